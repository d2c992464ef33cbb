//! One ext_proc stream as Envoy would open it, with the messages of the gateway's own declaration.

use bytes::Bytes;
use tokenway::app::App;
use tokio::sync::mpsc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};

use super::codec::Proto;
use super::proto::*;
use crate::support::soon;

/// A stream of one request.
pub(super) struct Envoy {
    messages: Option<mpsc::Sender<ProcessingRequest>>,
    orders: Streaming<ProcessingResponse>,
}

/// Where a request went, and as what.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) destination: String,
    pub(super) set: Vec<(String, String)>,
    pub(super) removed: Vec<String>,
    pub(super) body: Vec<u8>,
    pub(super) selects_route_again: bool,
}

impl Placed {
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.set.iter().find(|(key, _)| key == name).map(|(_, value)| &**value)
    }

    pub(super) fn endpoints(&self) -> Vec<&str> {
        self.destination.split(',').collect()
    }
}

pub(super) async fn channel(app: &App) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{}", app.data)).unwrap();
    soon("connect", endpoint.connect()).await.unwrap()
}

pub(super) async fn health(app: &App, service: &str) -> Result<i32, Status> {
    let mut grpc = tonic::client::Grpc::new(channel(app).await);
    grpc.ready().await.unwrap();
    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let asked = Request::new(HealthCheckRequest { service: service.into() });
    let codec = Proto::<HealthCheckRequest, HealthCheckResponse>::default();
    soon("health", grpc.unary(asked, path, codec)).await.map(|answer| answer.into_inner().status)
}

/// Both directions over full duplex, as the extension wants it.
pub(super) const DUPLEX: [BodySendMode; 2] = [BodySendMode::FullDuplexStreamed; 2];

pub(super) fn fields(pairs: &[(&str, &str)]) -> HeaderMap {
    let field = |(key, value): &(&str, &str)| HeaderValue {
        key: (*key).into(),
        raw_value: Bytes::copy_from_slice(value.as_bytes()),
        value: String::new(),
    };
    HeaderMap { headers: pairs.iter().map(field).collect() }
}

pub(super) fn post(pairs: &[(&str, &str)]) -> HttpHeaders {
    let pseudo =
        [(":method", "POST"), (":path", "/v1/chat/completions"), (":scheme", "http"), (":authority", "a")];
    HttpHeaders { headers: Some(fields(&[&pseudo[..], pairs].concat())), end_of_stream: false }
}

impl Envoy {
    pub(super) async fn open(app: &App) -> Self {
        let mut grpc = tonic::client::Grpc::new(channel(app).await);
        grpc.ready().await.unwrap();
        let (messages, sent) = mpsc::channel(64);
        let path = PathAndQuery::from_static("/envoy.service.ext_proc.v3.ExternalProcessor/Process");
        let codec = Proto::<ProcessingRequest, ProcessingResponse>::default();
        let stream = grpc.streaming(Request::new(ReceiverStream::new(sent)), path, codec);
        let orders = soon("the stream's head", stream).await.unwrap().into_inner();
        Self { messages: Some(messages), orders }
    }

    /// A stream with this request's head.
    pub(super) async fn request(app: &App, head: HttpHeaders, modes: [BodySendMode; 2]) -> Self {
        Self::hinted(app, head, modes, None).await
    }

    /// The same with the metadata of a data plane.
    pub(super) async fn hinted(
        app: &App,
        head: HttpHeaders,
        [request, response]: [BodySendMode; 2],
        metadata_context: Option<Metadata>,
    ) -> Self {
        let envoy = Self::open(app).await;
        let protocol_config = Some(ProtocolConfiguration {
            request_body_mode: request as i32,
            response_body_mode: response as i32,
        });
        let seen = Some(Seen::RequestHeaders(head));
        let first = ProcessingRequest { seen, metadata_context, protocol_config, ..Default::default() };
        envoy.send_message(first).await;
        envoy
    }

    pub(super) async fn send_message(&self, message: ProcessingRequest) {
        let _ = self.messages.as_ref().unwrap().send(message).await;
    }

    pub(super) async fn send(&self, seen: Seen) {
        self.send_message(ProcessingRequest { seen: Some(seen), ..Default::default() }).await;
    }

    pub(super) async fn body(&self, body: &str, end_of_stream: bool) {
        self.send(Seen::RequestBody(HttpBody {
            body: Bytes::copy_from_slice(body.as_bytes()),
            end_of_stream,
        }))
        .await;
    }

    pub(super) async fn answer_head(&self, status: &str, kind: &str) {
        self.answer_head_with(status, kind, None).await;
    }

    /// The same as the stream's first message.
    pub(super) async fn first_answer_head(&self, status: &str, kind: &str, modes: ProtocolConfiguration) {
        let headers = Some(fields(&[(":status", status), ("content-type", kind)]));
        let seen = Some(Seen::ResponseHeaders(HttpHeaders { headers, end_of_stream: false }));
        self.send_message(ProcessingRequest { seen, protocol_config: Some(modes), ..Default::default() })
            .await;
    }

    /// The same with the metadata of a data plane.
    pub(super) async fn answer_head_with(
        &self,
        status: &str,
        kind: &str,
        metadata_context: Option<Metadata>,
    ) {
        let headers = Some(fields(&[(":status", status), ("content-type", kind), ("x-engine", "1")]));
        let seen = Some(Seen::ResponseHeaders(HttpHeaders { headers, end_of_stream: false }));
        self.send_message(ProcessingRequest { seen, metadata_context, ..Default::default() }).await;
    }

    pub(super) async fn answer_body(&self, body: &str, end_of_stream: bool) {
        self.send(Seen::ResponseBody(HttpBody {
            body: Bytes::copy_from_slice(body.as_bytes()),
            end_of_stream,
        }))
        .await;
    }

    /// Envoy half-closes the stream.
    pub(super) fn close(&mut self) {
        self.messages = None;
    }

    pub(super) async fn next(&mut self) -> Result<Option<ProcessingResponse>, Status> {
        soon("an order", self.orders.message()).await
    }

    pub(super) async fn order(&mut self) -> ProcessingResponse {
        self.next().await.unwrap().expect("an order before the end")
    }

    /// The answer that is Envoy's to give.
    pub(super) async fn immediate(&mut self) -> (i32, Vec<(String, String)>, String) {
        match self.order().await.order {
            Some(Order::Immediate(answer)) => {
                let (set, _) = changed(answer.headers);
                (answer.status.unwrap().code, set, String::from_utf8(answer.body.to_vec()).unwrap())
            }
            other => panic!("no immediate response: {other:?}"),
        }
    }

    /// Reads a request on its way, over full duplex, to its end.
    pub(super) async fn placed(&mut self) -> Placed {
        let first = self.order().await;
        let Some(Order::RequestHeaders(PartResponse { response: Some(common) })) = first.order else {
            panic!("no head: {:?}", first.order)
        };
        let selects_route_again = common.clear_route_cache;
        let (set, removed) = changed(common.header_mutation);
        let destination = destination_of(&set, first.dynamic_metadata);
        let body = self
            .pieces(|order| match order {
                Order::RequestBody(part) => Some(part),
                _ => None,
            })
            .await;
        Placed { destination, set, removed, body, selects_route_again }
    }

    async fn pieces(&mut self, of: impl Fn(Order) -> Option<PartResponse>) -> Vec<u8> {
        let mut whole = Vec::new();
        loop {
            let order = self.order().await.order.unwrap();
            if matches!(order, Order::RequestTrailers(_) | Order::ResponseTrailers(_)) {
                return whole;
            }
            let part = of(order).expect("a piece of this direction");
            let Some(Mutation::Streamed(piece)) = part.response.unwrap().body_mutation.unwrap().mutation
            else {
                panic!("a piece that does not stream")
            };
            assert!(piece.body.len() < 64 * 1024);
            whole.extend_from_slice(&piece.body);
            if piece.end_of_stream {
                return whole;
            }
        }
    }

    /// What is changed in the answer's head.
    pub(super) async fn answered(&mut self) -> (Vec<(String, String)>, Vec<String>) {
        match self.order().await.order {
            Some(Order::ResponseHeaders(part)) => changed(part.response.unwrap().header_mutation),
            other => panic!("no head of an answer: {other:?}"),
        }
    }

    /// The answer's body, to its end.
    pub(super) async fn answer(&mut self) -> String {
        let whole = self
            .pieces(|order| match order {
                Order::ResponseBody(part) => Some(part),
                _ => None,
            })
            .await;
        String::from_utf8(whole).unwrap()
    }
}

/// What is set and what is removed.
pub(super) fn changed(mutation: Option<HeaderMutation>) -> (Vec<(String, String)>, Vec<String>) {
    let mutation = mutation.unwrap_or_default();
    let set = mutation.set_headers.into_iter().map(|option| {
        let header = option.header.unwrap();
        (header.key, String::from_utf8(header.raw_value.to_vec()).unwrap())
    });
    (set.collect(), mutation.remove_headers)
}

/// The destination, which header and metadata must give alike.
pub(super) fn destination_of(set: &[(String, String)], metadata: Option<Struct>) -> String {
    let (_, header) = set.iter().find(|(key, _)| key == "x-gateway-destination-endpoint").unwrap();
    let outer = metadata.unwrap().fields.remove("envoy.lb").unwrap().kind;
    let Some(Kind::Struct(mut inner)) = outer else { panic!("{outer:?}") };
    let value = inner.fields.remove("x-gateway-destination-endpoint").unwrap().kind;
    assert_eq!(value, Some(Kind::Text(header.clone())));
    header.clone()
}
