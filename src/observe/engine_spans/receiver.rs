//! The port that engines export to: OTLP as protobuf over HTTP, and over gRPC, on one socket.
//!
//! Every answer is made from memory and at once: an engine must never wait for what we do with its spans. Bodies,
//! connections and waits are bounded. Knows nothing of what the spans mean.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::observe::spans::grpc;
use crate::observe::spans::{Background, Tracked};

/// Takes an export: its bytes, and what they say.
pub(super) type Sink = Arc<dyn Fn(Bytes, &ExportTraceServiceRequest) + Send + Sync>;

type Answer = Response<BoxBody<Bytes, std::convert::Infallible>>;

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
                let stop = stop.clone();
                background.tasks.spawn_on(
                    async move {
                        stop.run_until_cancelled(serving).await;
                        drop(permit);
                    },
                    &background.runtime,
                );
            }
            Some((Ok(_), Err(error))) => {
                tracing::warn!(%error, "port for engines' spans: accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
            // Told to stop; the semaphore is never closed.
            None | Some((Err(_), _)) => return,
        }
    }
}

async fn connection(stream: TcpStream, sink: Sink, background: Background) {
    // Only costs latency where it fails.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let sink = Arc::clone(&sink);
        async move { Ok::<_, std::convert::Infallible>(answer(request, &sink).await) }
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

async fn answer(request: Request<Incoming>, sink: &Sink) -> Answer {
    let is_grpc = request.uri().path() == grpc::EXPORT_PATH;
    if !is_grpc && request.uri().path() != HTTP_PATH {
        return http(StatusCode::NOT_FOUND);
    }
    if *request.method() != Method::POST {
        return http(StatusCode::METHOD_NOT_ALLOWED);
    }
    let (head, body) = request.into_parts();
    let body = tokio::time::timeout(BODY_LIMIT, Limited::new(body, MAX_BODY).collect()).await;
    let Ok(Ok(body)) = body else {
        let (status, code) = (StatusCode::PAYLOAD_TOO_LARGE, grpc::RESOURCE_EXHAUSTED);
        return if is_grpc { grpc_end(code, "too long, too late or broken off") } else { http(status) };
    };
    let body = body.to_bytes();
    if is_grpc { over_grpc(&body, sink) } else { over_http(&head.headers, body, sink) }
}

fn over_http(headers: &HeaderMap, body: Bytes, sink: &Sink) -> Answer {
    let is_protobuf =
        headers.get(CONTENT_TYPE).is_some_and(|t| t.as_bytes().starts_with(PROTOBUF.as_bytes()));
    if !is_protobuf || headers.get(CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
        return http(StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
    match ExportTraceServiceRequest::decode(body.clone()) {
        Ok(export) => {
            sink(body, &export);
            // An empty message: all of it was taken.
            http(StatusCode::OK)
        }
        Err(_) => http(StatusCode::BAD_REQUEST),
    }
}

fn over_grpc(body: &Bytes, sink: &Sink) -> Answer {
    let payload = match grpc::unframe(body) {
        Ok(payload) => payload,
        Err(error @ grpc::MessageError::Compressed) => {
            return grpc_end(grpc::UNIMPLEMENTED, &error.to_string());
        }
        Err(error @ grpc::MessageError::Length) => {
            return grpc_end(grpc::INVALID_ARGUMENT, &error.to_string());
        }
    };
    match ExportTraceServiceRequest::decode(payload.clone()) {
        Ok(export) => {
            sink(payload, &export);
            let trailers = std::future::ready(Some(Ok(grpc_status(grpc::OK, ""))));
            let mut answer = Response::new(Full::new(grpc::frame(b"")).with_trailers(trailers).boxed());
            answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(grpc::CONTENT_TYPE));
            answer
        }
        Err(_) => grpc_end(grpc::INVALID_ARGUMENT, "no export of spans"),
    }
}

fn http(status: StatusCode) -> Answer {
    let mut answer = Response::new(Full::default().boxed());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(PROTOBUF));
    answer
}

/// A call that ends without an answer.
fn grpc_end(code: &'static str, message: &str) -> Answer {
    let mut answer = Response::new(Full::default().boxed());
    answer.headers_mut().extend(grpc_status(code, message));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(grpc::CONTENT_TYPE));
    answer
}

fn grpc_status(code: &'static str, message: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("grpc-status", HeaderValue::from_static(code));
    if let (false, Ok(message)) = (message.is_empty(), HeaderValue::from_str(message)) {
        headers.insert("grpc-message", message);
    }
    headers
}

const HTTP_PATH: &str = "/v1/traces";
const PROTOBUF: &str = "application/x-protobuf";
/// The largest message that gRPC servers take by default.
const MAX_BODY: usize = 4 * 1024 * 1024;
/// Engines have one or two each.
const MAX_CONNECTIONS: usize = 512;
const MAX_STREAMS: u32 = 8;
const BODY_LIMIT: Duration = Duration::from_secs(10);
const IDLE_LIMIT: Duration = Duration::from_secs(120);
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
