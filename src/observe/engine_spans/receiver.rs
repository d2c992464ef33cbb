//! The port that engines export to: OTLP as protobuf over HTTP, and over gRPC, on one socket.
//!
//! Every answer is made from memory and at once: an engine must never wait for what we do with its spans. Bodies,
//! connections and waits are bounded. Knows nothing of what the spans mean.

use std::convert::Infallible;
use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flate2::read::GzDecoder;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use prost::Message;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::codec::CompressionEncoding;
use tower::Service;

use crate::background::Background;
use crate::observe::otlp::PROTOBUF;

/// Takes an export: its bytes and their decoded form.
pub(super) type Sink = Arc<dyn Fn(Bytes, &ExportTraceServiceRequest) + Send + Sync>;

/// Runs what HTTP/2 needs beside a connection as tasks of the telemetry runtime.
#[derive(Clone, Debug)]
struct Tracked(Background);

impl<F> hyper::rt::Executor<F> for Tracked
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, task: F) {
        self.0.tasks.spawn_on(task, &self.0.runtime);
    }
}

/// Serves until `stop`.
pub(super) async fn serve(
    listener: TcpListener,
    sink: Sink,
    background: Background,
    stop: CancellationToken,
) {
    let free = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let accepted = stop.run_until_cancelled(async {
            let permit = Arc::clone(&free).acquire_owned().await;
            (permit, listener.accept().await)
        });
        match accepted.await {
            Some((Ok(permit), Ok((stream, _)))) => {
                let serving = connection(stream, Arc::clone(&sink), background.clone());
                background.spawn_until(&stop, async move {
                    serving.await;
                    drop(permit);
                });
            }
            Some((Ok(_), Err(error))) => {
                tracing::warn!(%error, "port for engines' spans: accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
            // Stopped; the semaphore is never closed.
            None | Some((Err(_), _)) => return,
        }
    }
}

async fn connection(stream: TcpStream, sink: Sink, background: Background) {
    // Only costs latency where it fails.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let sink = Arc::clone(&sink);
        async move { Ok::<_, Infallible>(answer(request, sink).await) }
    });
    let mut builder = auto::Builder::new(Tracked(background));
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE_LIMIT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .max_concurrent_streams(MAX_STREAMS);
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "an engine's connection");
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
    let Some(coding) = coding_of_protobuf(&head.headers) else {
        return http(StatusCode::UNSUPPORTED_MEDIA_TYPE);
    };
    let body = match coding {
        Coding::Identity => body.to_bytes(),
        Coding::Gzip => match unzip(&body.to_bytes()) {
            Ok(body) => body,
            Err(status) => return http(status),
        },
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

#[derive(Clone, Copy)]
enum Coding {
    Identity,
    Gzip,
}

/// The content coding of a protobuf message; `None` for anything else.
fn coding_of_protobuf(headers: &HeaderMap) -> Option<Coding> {
    headers.get(CONTENT_TYPE).filter(|t| t.as_bytes().starts_with(PROTOBUF.as_bytes()))?;
    match headers.get(CONTENT_ENCODING).map(HeaderValue::as_bytes) {
        None | Some(b"identity") => Some(Coding::Identity),
        Some(b"gzip") => Some(Coding::Gzip),
        Some(_) => None,
    }
}

/// Decompresses up to [`MAX_BODY`] bytes.
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
const MAX_STREAMS: u32 = 8;
const BODY_LIMIT: Duration = Duration::from_secs(10);
const IDLE_LIMIT: Duration = Duration::from_secs(120);
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
