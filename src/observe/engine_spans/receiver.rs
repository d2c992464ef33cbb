//! The port that engines export to: OTLP as protobuf over HTTP, and over gRPC, on one socket.
//!
//! Every answer is made from memory and at once: an engine must never wait for what we do with its spans. Bodies,
//! connections and waits are bounded. Knows nothing of what the spans mean.

use std::io::Read as _;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flate2::read::GzDecoder;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use prometheus::IntCounter;
use prost::Message;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::body::Body;
use tonic::codec::CompressionEncoding;
use tower::Service;

use crate::clock::Clock;
use crate::listener::{
    self, Acceptor, Boxed, ConnectionLimit, ConnectionLimits, HeadFault, KillSwitch, Port, PortBody, Serving,
    UserTimeout, port_body,
};
use crate::observe::otlp::PROTOBUF;

/// Takes an export: its bytes and their decoded form.
pub(super) type Sink = Arc<dyn Fn(Bytes, &ExportTraceServiceRequest) + Send + Sync>;

pub(super) async fn serve(
    socket: TcpListener,
    sink: Sink,
    clock: Clock,
    panics: IntCounter,
    tracker: TaskTracker,
    stop: CancellationToken,
) {
    let limit = ConnectionLimit {
        connections: MAX_CONNECTIONS,
        name: "the port for engines' spans",
        waiting: None,
        closes_idle: false,
    };
    let limits = ConnectionLimits {
        header_timeout: IDLE_LIMIT,
        keep_alive: IDLE_LIMIT,
        tls_handshake_timeout: IDLE_LIMIT,
        is_behind_proxy: false,
    };
    let [draining, closing, cut_off] = [stop.clone(), stop.clone(), stop.clone()];
    let serving = Serving::new(limits, UserTimeout::new(IDLE_LIMIT), clock, tracker, stop, panics);
    let serving = Serving { draining, closing, cut_off, ..serving };
    listener::accept_loop(Acceptor::new(socket, limit, clock), serving, Boxed::new(Receiver(sink))).await;
}

struct Receiver(Sink);

impl Port for Receiver {
    fn handle(
        &self,
        request: Request<Incoming>,
        _: KillSwitch,
    ) -> Pin<Box<dyn Future<Output = Response<PortBody>> + Send + '_>> {
        Box::pin(async { port_body(answer(request, Arc::clone(&self.0)).await) })
    }

    fn reject(&self, _: HeadFault) -> Response<Bytes> {
        let mut response = Response::default();
        *response.status_mut() = StatusCode::BAD_REQUEST;
        response
    }

    fn panicked(&self) -> Response<PortBody> {
        port_body(http(StatusCode::INTERNAL_SERVER_ERROR))
    }
}

async fn answer(request: Request<Incoming>, sink: Sink) -> Response<Body> {
    let of_http = request.uri().path() == HTTP_PATH;
    if !of_http && !request.uri().path().starts_with(GRPC_SERVICE) {
        return http(StatusCode::NOT_FOUND);
    }
    if *request.method() != Method::POST {
        return http(StatusCode::METHOD_NOT_ALLOWED);
    }
    if of_http { over_http(request, &sink).await } else { over_grpc(request, sink).await }
}

async fn over_http(request: Request<Incoming>, sink: &Sink) -> Response<Body> {
    let (head, body) = request.into_parts();
    let body = tokio::time::timeout(BODY_LIMIT, Limited::new(body, MAX_BODY).collect()).await;
    let Ok(Ok(body)) = body else { return http(StatusCode::PAYLOAD_TOO_LARGE) };
    let body = match read(&head.headers, body.to_bytes()) {
        Ok(body) => body,
        Err(status) => return http(status),
    };
    match ExportTraceServiceRequest::decode(body.clone()) {
        Ok(export) => {
            sink(body, &export);
            // An empty message: all of it was taken.
            http(StatusCode::OK)
        }
        Err(_) => http(StatusCode::BAD_REQUEST),
    }
}

async fn over_grpc(request: Request<Incoming>, sink: Sink) -> Response<Body> {
    let mut server = TraceServiceServer::new(Grpc(sink))
        .accept_compressed(CompressionEncoding::Gzip)
        .max_decoding_message_size(MAX_BODY);
    match tokio::time::timeout(BODY_LIMIT, server.call(request)).await {
        Ok(Ok(answer)) => answer,
        Err(_) => tonic::Status::deadline_exceeded("the message came too slowly").into_http(),
    }
}

struct Grpc(Sink);

#[tonic::async_trait]
impl TraceService for Grpc {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let export = request.into_inner();
        (self.0)(export.encode_to_vec().into(), &export);
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

/// A message of protobuf without its content coding.
fn read(headers: &HeaderMap, body: Bytes) -> Result<Bytes, StatusCode> {
    let is_protobuf = |kind: &HeaderValue| kind.as_bytes().starts_with(PROTOBUF.as_bytes());
    match headers.get(CONTENT_ENCODING).map(HeaderValue::as_bytes) {
        _ if !headers.get(CONTENT_TYPE).is_some_and(is_protobuf) => Err(StatusCode::UNSUPPORTED_MEDIA_TYPE),
        None | Some(b"identity") => Ok(body),
        Some(b"gzip") => unzip(&body),
        Some(_) => Err(StatusCode::UNSUPPORTED_MEDIA_TYPE),
    }
}

fn unzip(body: &[u8]) -> Result<Bytes, StatusCode> {
    let mut plain = Vec::new();
    let limit = MAX_BODY as u64 + 1;
    GzDecoder::new(body).take(limit).read_to_end(&mut plain).map_err(|_| StatusCode::BAD_REQUEST)?;
    if plain.len() > MAX_BODY { Err(StatusCode::PAYLOAD_TOO_LARGE) } else { Ok(plain.into()) }
}

fn http(status: StatusCode) -> Response<Body> {
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(PROTOBUF));
    answer
}

const HTTP_PATH: &str = "/v1/traces";
const GRPC_SERVICE: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/";
/// The largest message that gRPC servers take by default.
const MAX_BODY: usize = 4 * 1024 * 1024;
/// Engines have one or two each.
const MAX_CONNECTIONS: usize = 512;
const BODY_LIMIT: Duration = Duration::from_secs(10);
const IDLE_LIMIT: Duration = Duration::from_secs(120);
