//! The messages to Envoy.

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{StatusCode, Uri};

use super::super::fields::{self, set};
use super::super::proto::{
    BodyMutation, CommonResponse, HeaderMutation, HttpBody, HttpStatus, ImmediateResponse, Mutation, Order,
    PartResponse, ProcessingResponse, TrailersResponse,
};
use super::super::transfer::{DESTINATION, Outgoing, metadata};
use super::End;
use crate::request::pieces::Pieces;
use crate::upstream::http1::EngineRequest;

/// Sends a request, which came with these fields to this path, to its destination: its head, its body as the gateway would send
/// it, its trailers. A body that `is_buffered` waits in one message, and its head has been let pass.
pub(super) fn destination(
    outgoing: Outgoing,
    before: &HeaderMap,
    path: &Uri,
    is_buffered: bool,
    end: End,
) -> Vec<ProcessingResponse> {
    let is_buffered = is_buffered && end != End::Head;
    let Outgoing { destination, request } = outgoing;
    let EngineRequest { head, body } = request;
    let mut changes = fields::changes(before, &head.fields(), is_buffered);
    if let Ok(value) = HeaderValue::from_str(&destination) {
        set(&mut changes, DESTINATION, std::iter::once(&value));
    }
    let is_other = path.path_and_query().is_none_or(|path| path.as_str() != head.target());
    let other_path = is_other.then(|| HeaderValue::from_str(head.target()).ok()).flatten();
    if let Some(other) = &other_path {
        set(&mut changes, ":path", std::iter::once(other));
    }
    let mut common = CommonResponse {
        header_mutation: Some(changes),
        // By the other path Envoy would find another route, or none.
        clear_route_cache: other_path.is_none(),
        ..CommonResponse::default()
    };
    let metadata = Some(metadata(&destination));
    if is_buffered {
        common.body_mutation = Some(BodyMutation { mutation: Some(Mutation::Body(body.whole())) });
        return vec![of(Order::RequestBody(PartResponse { response: Some(common) }), metadata)];
    }
    let mut orders = vec![of(Order::RequestHeaders(PartResponse { response: Some(common) }), metadata)];
    if end != End::Head {
        orders.extend(request_pieces(&body, end != End::Trailers));
    }
    if end == End::Trailers {
        orders.push(trailers(Order::RequestTrailers));
    }
    orders
}

/// Lets a part pass as it is.
pub(super) fn unchanged(order: fn(PartResponse) -> Order) -> ProcessingResponse {
    of(order(PartResponse { response: Some(CommonResponse::default()) }), None)
}

/// Lets trailers pass.
pub(super) fn trailers(order: fn(TrailersResponse) -> Order) -> ProcessingResponse {
    of(order(TrailersResponse {}), None)
}

/// Lets the head of an answer pass, changed.
pub(super) fn response_head(changes: HeaderMutation) -> ProcessingResponse {
    let common = CommonResponse { header_mutation: Some(changes), ..CommonResponse::default() };
    of(Order::ResponseHeaders(PartResponse { response: Some(common) }), None)
}

/// A piece of an answer's body, over full duplex.
pub(super) fn response_body(piece: HttpBody) -> ProcessingResponse {
    of(Order::ResponseBody(streamed(piece)), None)
}

/// Has Envoy answer.
pub(super) fn immediate(status: StatusCode, headers: &HeaderMap, body: Bytes) -> ProcessingResponse {
    // Envoy frames it.
    let mut own = headers.clone();
    own.remove(header::CONNECTION);
    let immediate = ImmediateResponse {
        status: Some(HttpStatus { code: i32::from(status.as_u16()) }),
        headers: Some(fields::changes(&HeaderMap::new(), &own, false)),
        body,
        details: "tokenway".to_owned(),
    };
    of(Order::Immediate(immediate), None)
}

/// A body in pieces that every data plane takes; the last one ends it if `is_last`.
pub(super) fn pieces(mut body: Bytes, is_last: bool) -> impl Iterator<Item = HttpBody> {
    let mut is_over = false;
    std::iter::from_fn(move || {
        if is_over {
            return None;
        }
        let piece = body.split_to(body.len().min(MAX_PIECE));
        is_over = body.is_empty();
        Some(HttpBody { body: piece, end_of_stream: is_over && is_last })
    })
}

fn request_pieces(body: &Pieces, is_last: bool) -> impl Iterator<Item = ProcessingResponse> {
    let mut parts = body.iter().filter(|piece| !piece.is_empty()).cloned().peekable();
    let mut parts = std::iter::from_fn(move || {
        let part = parts.next()?;
        Some((part, parts.peek().is_none()))
    })
    .peekable();
    let empty = parts.peek().is_none().then_some((Bytes::new(), true));
    parts
        .chain(empty)
        .flat_map(move |(part, is_end)| pieces(part, is_end && is_last))
        .map(|piece| of(Order::RequestBody(streamed(piece)), None))
}

fn streamed(piece: HttpBody) -> PartResponse {
    let mutation = Some(BodyMutation { mutation: Some(Mutation::Streamed(piece)) });
    PartResponse { response: Some(CommonResponse { body_mutation: mutation, ..CommonResponse::default() }) }
}

fn of(order: Order, dynamic_metadata: Option<super::super::proto::Struct>) -> ProcessingResponse {
    ProcessingResponse { order: Some(order), dynamic_metadata }
}

/// Some data planes take 64 KiB at most; the extension's own picker sends as many.
const MAX_PIECE: usize = 62_000;
