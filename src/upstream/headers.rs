//! The only file that edits headers, in both directions (RFC 9110 §7.6).
//!
//! Hop-by-hop fields are removed: `Connection`, the fields it names, framing, upgrades. The request is framed anew (our
//! `Host` and length, no transfer coding), so a client's framing never reaches an engine. `x-tokenway-*` is reserved:
//! removed in both directions. Everything else passes unchanged.

use http::StatusCode;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use super::http1::RequestHead;
use crate::config::Secret;
use crate::digits;
use crate::request::engine_priority::EnginePriority;
use crate::request::rare::Rare;
use crate::request::trace_context::{self, TRACEPARENT, TRACESTATE, Trace};

/// Fields that the gateway sets in an upstream request.
#[derive(Debug)]
pub(crate) struct Upstream<'a> {
    /// `Host`
    pub host: &'a HeaderValue,
    /// `Content-Length`; `None` where none is owed.
    pub body_len: Option<usize>,
    /// `x-request-id`
    pub request_id: &'a str,
    /// `traceparent`: the trace, and the span of the attempt.
    pub trace: Option<(&'a Trace, u64)>,
    /// `tracestate`
    pub tracestate: Option<&'a str>,
    pub credential: Credential<'a>,
    /// Entry appended to `Via`.
    pub via: &'a HeaderValue,
    /// What becomes of the client's `x-vllm-priority`, which goes before the body's `priority`.
    pub priority: EnginePriority,
    /// What becomes of the client's `x-data-parallel-rank`.
    pub rank: EngineRank,
    /// What the client's headers may be looked through for.
    pub rare: Rare,
}

/// Which engine behind a URL is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineRank {
    /// The one that the request was routed to.
    Ours(u32),
    /// The client's choice.
    Client,
    /// None: the URL is one target, and vLLM answers 400 to a rank that it does not have.
    Unnamed,
}

/// Handling of the client's credential.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Credential<'a> {
    /// Neither tenants nor an engine key: forwarded, as a drop-in for `vllm --api-key`.
    Forward,
    /// Tenants, but no engine key: removed.
    Remove,
    /// Replaced by the pool's key.
    Replace(&'a Secret),
}

/// Adds the fields of an upstream request. None that passes has the name of one of ours, but for `Via`.
pub(crate) fn upstream_request(mut to: RequestHead, client: &HeaderMap, ours: &Upstream<'_>) -> RequestHead {
    to.push(&header::HOST, ours.host.as_bytes());
    let nominated = if ours.rare.has(Rare::CONNECTION) { nominated(client) } else { SmallVec::new() };
    let mut cookies = SmallVec::<[&[u8]; 2]>::new();
    for (name, value) in client {
        let is_priority = *name == X_VLLM_PRIORITY && ours.priority != EnginePriority::Client;
        let is_rank = *name == DATA_PARALLEL_RANK && ours.rank != EngineRank::Client;
        let is_dropped = is_hop_by_hop(name) || nominated.contains(name) || is_priority || is_rank;
        if is_dropped || is_rewritten(name, ours.credential) {
            continue;
        }
        if ours.rare.has(Rare::COOKIE) && *name == header::COOKIE {
            cookies.push(value.as_bytes());
        } else {
            to.push(name, value.as_bytes());
        }
    }
    if !cookies.is_empty() {
        // HTTP/2 clients may send a cookie in pieces, which HTTP/1.1 has in one line (RFC 9113 §8.2.3).
        to.push(&header::COOKIE, &cookies.join(&b"; "[..]));
    }
    to.push(&header::ACCEPT_ENCODING, b"identity");
    if let Some(len) = ours.body_len {
        to.push_with(&header::CONTENT_LENGTH, |value| digits::int(value, len as u64));
    }
    to.push(&X_REQUEST_ID, if is_value(ours.request_id) { ours.request_id.as_bytes() } else { b"none" });
    if let Some((trace, span)) = ours.trace {
        to.push_with(&TRACEPARENT, |value| trace_context::write_traceparent(value, trace, span));
    }
    if let Some(state) = ours.tracestate.filter(|state| is_value(state)) {
        to.push(&TRACESTATE, state.as_bytes());
    }
    if let EnginePriority::Ours(priority) = ours.priority {
        to.push(&X_VLLM_PRIORITY, HeaderValue::from(priority).as_bytes());
    }
    if let EngineRank::Ours(rank) = ours.rank {
        to.push(&DATA_PARALLEL_RANK, HeaderValue::from(rank).as_bytes());
    }
    if let Credential::Replace(key) = ours.credential
        && is_value(key.reveal())
    {
        to.push(&header::AUTHORIZATION, format!("Bearer {}", key.reveal()).as_bytes());
    }
    to.push(&header::VIA, ours.via.as_bytes());
    to
}

/// Whether a text can be a field's value, as [`HeaderValue::from_str`] has it.
fn is_value(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t'))
}

/// Whether a request asks to become a WebSocket (RFC 6455 §4.1).
pub(crate) fn is_websocket(client: &HeaderMap) -> bool {
    lists(client, &header::CONNECTION, "upgrade") && lists(client, &header::UPGRADE, "websocket")
}

/// Whether a response with status 101 switches to WebSocket and nothing else (RFC 6455 §4.1).
pub(crate) fn switches_to_websocket(response: &HeaderMap) -> bool {
    is_websocket(response) && items(response, &header::UPGRADE).count() == 1
}

/// The hop's own fields of a WebSocket handshake, in either direction.
pub(crate) fn upgrade() -> [(HeaderName, HeaderValue); 2] {
    [(header::CONNECTION, "upgrade"), (header::UPGRADE, "websocket")]
        .map(|(name, value)| (name, HeaderValue::from_static(value)))
}

/// Removes hop-by-hop and `x-tokenway-*` fields from a replica's response.
pub(crate) fn strip_response(headers: &mut HeaderMap) {
    let nominated = nominated(headers);
    let strip: SmallVec<[HeaderName; 8]> = headers
        .keys()
        .filter(|name| is_hop_by_hop(name) || nominated.contains(name) || is_ours(name))
        .cloned()
        .collect();
    for name in strip {
        headers.remove(name);
    }
}

/// Leads a redirect of a replica to itself through the gateway: its address is not for tenants, and their keys are not for it.
pub(crate) fn redirect_through(headers: &mut HeaderMap, replica: &str, root_path: &str) {
    let Some(location) = headers.get(header::LOCATION).and_then(|location| location.to_str().ok()) else {
        return;
    };
    let path = location.strip_prefix(replica).filter(|path| path.starts_with('/'));
    if let Some(Ok(own)) = path.map(|path| HeaderValue::try_from(format!("{root_path}{path}"))) {
        headers.insert(header::LOCATION, own);
    }
}

/// Why a replica's response head must not be relayed, if so: what it does, for the error message. A body with two framings, or
/// in a coding that was not asked for, has two readings (RFC 9112 §6.3); nothing was asked to switch protocols.
pub(crate) fn response_fault(head: &http::response::Parts) -> Option<&'static str> {
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        return Some("switched protocols without an Upgrade request (101)");
    }
    let mut codings = items(&head.headers, &header::TRANSFER_ENCODING);
    let coding = codings.next()?;
    if head.headers.contains_key(header::CONTENT_LENGTH) {
        return Some("answered with both content-length and transfer-encoding");
    }
    let is_chunked = coding.eq_ignore_ascii_case(b"chunked");
    (!is_chunked || codings.next().is_some()).then_some("answered in a transfer-encoding other than chunked")
}

/// What is wrong with a stream that has to be read: it is compressed, as a proxy before the engine may do in spite of what it was asked.
pub(crate) fn coding_fault(headers: &HeaderMap) -> Option<&'static str> {
    let coding = headers.get(header::CONTENT_ENCODING)?.as_bytes().trim_ascii();
    let is_plain = coding.is_empty() || coding.eq_ignore_ascii_case(b"identity");
    (!is_plain).then_some("compressed its event stream (content-encoding), which was not asked for")
}

/// Removes the length of a stream, which withheld or added events would break.
pub(crate) fn strip_length(headers: &mut HeaderMap) {
    headers.remove(header::CONTENT_LENGTH);
}

/// Whether the request already passed through the gateway with this pseudonym (RFC 9110 §7.6.3).
pub(crate) fn is_looping(client: &HeaderMap, via: &HeaderValue) -> bool {
    client.get_all(header::VIA).iter().any(|v| memchr::memmem::find(v.as_bytes(), via.as_bytes()).is_some())
}

fn is_hop_by_hop(name: &HeaderName) -> bool {
    is_of_connection(name)
        || matches!(
            name.as_str(),
            "proxy-authorization" | "proxy-authenticate" | "proxy-authentication-info" | "http2-settings"
        )
}

/// What one connection frames and keeps a message by (RFC 9110 §7.6.1).
pub(crate) fn is_of_connection(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection" | "keep-alive" | "proxy-connection" | "te" | "trailer" | "transfer-encoding" | "upgrade"
    )
}

fn is_rewritten(name: &HeaderName, credential: Credential<'_>) -> bool {
    match name.as_str() {
        "host" | "content-length" | "expect" | "accept-encoding" | "x-request-id" | "traceparent"
        | "tracestate" => true,
        "authorization" | "x-api-key" => !matches!(credential, Credential::Forward),
        _ => is_ours(name),
    }
}

/// Of the gateway's own name space.
pub(crate) fn is_ours(name: &HeaderName) -> bool {
    name.as_str().starts_with("x-tokenway-")
}

/// Fields named by `Connection`. Removed before ours are added, so that a client cannot remove one of ours.
fn nominated(headers: &HeaderMap) -> SmallVec<[HeaderName; 2]> {
    items(headers, &header::CONNECTION)
        .filter_map(|item| HeaderName::from_bytes(item).ok())
        // These are end-to-end: nominating them would change the meaning of the request.
        .filter(|name| !matches!(name.as_str(), "authorization" | "x-api-key" | "content-type"))
        .collect()
}

/// Whether a field that is a list has this item, in any case.
pub(super) fn lists(headers: &HeaderMap, name: &HeaderName, wanted: &str) -> bool {
    items(headers, name).any(|item| item.eq_ignore_ascii_case(wanted.as_bytes()))
}

/// What a field lists, over all of its lines (RFC 9110 §5.6.1).
pub(super) fn items<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h [u8]> {
    let lines = headers.get_all(name).iter();
    lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii)
}

/// Fields that the gateway adds to an answer, at most.
pub(crate) const ADDED: usize = 9;
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// vLLM's, of the request's priority.
pub(crate) const X_VLLM_PRIORITY: HeaderName = HeaderName::from_static("x-vllm-priority");
/// Of vLLM: index of the data-parallel engine that is to answer.
pub(crate) const DATA_PARALLEL_RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(k, v)| (HeaderName::from_static(k), HeaderValue::from_str(v).unwrap())).collect()
    }

    fn send(client: &HeaderMap, credential: Credential<'_>) -> HeaderMap {
        let host = HeaderValue::from_static("replica:8001");
        let via = HeaderValue::from_static("1.1 tokenway-1");
        let head = upstream_request(
            RequestHead::new(&http::Method::POST, "", "/"),
            client,
            &Upstream {
                host: &host,
                body_len: Some(7),
                request_id: "r1",
                trace: None,
                tracestate: None,
                credential,
                via: &via,
                priority: EnginePriority::None,
                rank: EngineRank::Unnamed,
                rare: Rare::of(client),
            },
        );
        head.fields()
    }

    #[test]
    fn framing_and_nominated_fields_stay_on_their_connection() {
        let client = map(&[
            ("host", "evil"),
            ("connection", "x-hop, content-length, x-request-id"),
            ("x-hop", "1"),
            ("transfer-encoding", "chunked"),
            ("te", "trailers"),
            ("expect", "100-continue"),
            ("accept-encoding", "gzip"),
            ("x-tokenway-probe", "1"),
            ("x-custom", "kept"),
            ("x-vllm-priority", "-99"),
        ]);
        let out = send(&client, Credential::Forward);
        assert_eq!(out[header::HOST], "replica:8001");
        assert_eq!(out[header::CONTENT_LENGTH], "7");
        assert_eq!(out[header::ACCEPT_ENCODING], "identity");
        assert_eq!(out[X_REQUEST_ID], "r1");
        assert_eq!(out["x-custom"], "kept");
        let dropped = [
            "connection", "x-hop", "transfer-encoding", "te", "expect", "x-tokenway-probe", "x-vllm-priority",
        ];
        for gone in dropped {
            assert!(!out.contains_key(gone), "{gone} crossed");
        }
    }

    #[test]
    fn credentials_follow_the_rule() {
        let client = map(&[("authorization", "Bearer client"), ("x-api-key", "client")]);
        assert_eq!(send(&client, Credential::Forward)[header::AUTHORIZATION], "Bearer client");
        assert!(!send(&client, Credential::Remove).contains_key(header::AUTHORIZATION));
        let key = Secret::new("engine");
        let out = send(&client, Credential::Replace(&key));
        assert_eq!(out[header::AUTHORIZATION], "Bearer engine");
        assert!(!out.contains_key("x-api-key"));
    }

    #[test]
    fn a_response_with_two_readings_is_a_fault() {
        let fault = |status: u16, pairs: &[(&'static str, &str)]| {
            let (mut head, ()) = http::Response::builder().status(status).body(()).unwrap().into_parts();
            head.headers = map(pairs);
            response_fault(&head).is_some()
        };
        let (length, chunked) = (("content-length", "5"), ("transfer-encoding", "chunked"));
        for (is_fault, status, pairs) in [
            (false, 200, &[length][..]),
            (false, 200, &[chunked]),
            (false, 200, &[]),
            (true, 200, &[length, chunked]),
            (true, 200, &[chunked, chunked]),
            (true, 200, &[("transfer-encoding", "gzip, chunked")]),
            (true, 101, &[]),
        ] {
            assert_eq!(fault(status, pairs), is_fault, "{status} {pairs:?}");
        }
    }

    #[test]
    fn a_response_loses_hop_fields_and_forged_ones() {
        let mut headers =
            map(&[("connection", "close"), ("x-tokenway-replica", "forged"), ("server", "uvicorn")]);
        strip_response(&mut headers);
        assert_eq!(headers.len(), 1);
        assert_eq!(headers["server"], "uvicorn");
    }
}
