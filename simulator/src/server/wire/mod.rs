//! vLLM 0.32's HTTP API: routes, authorisation, and the faults that strike before the head.
//!
//! The formats follow recordings of the real server. `connection` has the sockets, `body` the streams, `ask` and
//! `prompt` read requests, `generation` is what the generating APIs share, and each of them has a file.

mod api;
mod ask;
mod body;
mod chat;
mod chunk;
mod completions;
mod connection;
mod control;
mod error;
mod generate;
mod generation;
mod messages;
mod metrics;
mod plain;
mod pooling;
mod prompt;
mod responses;
mod rooms;
mod transfer;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, SERVER, VARY};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::{Map, Value};

use super::faults::{Applied, Fault, FaultKind};
use super::replica::Replica;
use super::request_log::Visit;

use api::{Api, ErrorShape};
use body::{Live, SimBody};
use connection::Socket;
use error::ApiError;

pub(super) use connection::accept;

type SimResponse = Response<SimBody>;

/// A successful response.
enum Reply {
    Json(String),
    Stream(Box<Live>),
    /// A stream that is known whole.
    Events(Vec<u8>),
}

async fn handle(
    replica: Arc<Replica>,
    socket: Arc<Socket>,
    request: Request<Incoming>,
) -> Result<SimResponse, Infallible> {
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    let request_id = request_id(&head, &replica);
    let mut response = if path.starts_with("/sim/") {
        socket.is_control.store(true, Ordering::Relaxed);
        control::serve(&replica, &head, body).await
    } else {
        replica.seen.path(path);
        respond(&replica, &socket, &head, body, &request_id).await
    };
    let headers = response.headers_mut();
    headers.insert(SERVER, HeaderValue::from_static("uvicorn"));
    headers.insert(VARY, HeaderValue::from_static("Origin"));
    if let Ok(id) = HeaderValue::from_str(&request_id) {
        headers.insert("x-request-id", id);
    }
    Ok(response)
}

/// The client's id, which also names the response, or a fresh one.
fn request_id(head: &Parts, replica: &Replica) -> String {
    let given = head.headers.get("x-request-id").and_then(|value| value.to_str().ok());
    given.filter(|id| !id.is_empty()).map_or_else(|| replica.fresh_id(), str::to_owned)
}

async fn respond(
    replica: &Arc<Replica>,
    socket: &Socket,
    head: &Parts,
    body: Incoming,
    request_id: &str,
) -> SimResponse {
    if !is_authorized(head, replica) {
        return json_response(StatusCode::UNAUTHORIZED, r#"{"error":"Unauthorized"}"#);
    }
    let path = head.uri.path();
    if let Some(response) = plain_get(replica, path) {
        return if head.method == Method::GET { response } else { not_allowed("GET") };
    }
    let Some(api) = Api::of_path(path) else {
        return json_response(StatusCode::NOT_FOUND, r#"{"detail":"Not Found"}"#);
    };
    if head.method != Method::POST {
        return not_allowed("POST");
    }
    let Ok(body) = read(body).await else {
        return json_response(StatusCode::BAD_REQUEST, r#"{"detail":"There was an error parsing the body"}"#);
    };
    let visit = replica.seen.enter(head, &body);
    infer(replica, socket, Inference { head, body, api, request_id, visit }).await
}

/// vLLM guards everything under `/v1`, and only that.
fn is_authorized(head: &Parts, replica: &Replica) -> bool {
    let Some(key) = replica.config.api_key.as_ref().filter(|_| head.uri.path().starts_with("/v1")) else {
        return true;
    };
    let given = head.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    given.and_then(|value| value.strip_prefix("Bearer ")) == Some(key.as_str())
}

fn plain_get(replica: &Replica, path: &str) -> Option<SimResponse> {
    Some(match path {
        "/health" | "/ping" => {
            let mut response = Response::new(SimBody::full(""));
            if replica.is_dead() {
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            }
            response
        }
        "/version" => json_response(StatusCode::OK, plain::VERSION),
        "/v1/models" => {
            let created = replica.started() as u64;
            json_response(StatusCode::OK, plain::models(&replica.config, created))
        }
        "/metrics" => {
            let page = metrics::page(&replica.config, &replica.driver.stats(), replica.started());
            let mut response = Response::new(SimBody::full(page));
            let kind = HeaderValue::from_static("text/plain; version=1.0.0; charset=utf-8");
            response.headers_mut().insert(CONTENT_TYPE, kind);
            response
        }
        _ => return None,
    })
}

/// A request read whole.
struct Inference<'a> {
    head: &'a Parts,
    body: Bytes,
    api: Api,
    request_id: &'a str,
    visit: Visit,
}

async fn infer(replica: &Arc<Replica>, socket: &Socket, request: Inference<'_>) -> SimResponse {
    let shape = request.api.error_shape();
    let mut is_half = false;
    let replied = async {
        let fields = parse(request.head, &request.body)?;
        let faults = replica.draw_faults(own_fault(&fields)?);
        is_half = faults.of(FaultKind::Cut).is_some();
        strike(replica, socket, &faults).await?;
        dispatch(replica, &request, &fields, faults).await
    };
    let replied = replied.await;
    let response = match replied {
        Ok(Reply::Json(content)) if is_half => half(&content),
        Ok(Reply::Json(content)) => json_response(StatusCode::OK, content),
        Ok(Reply::Stream(live)) => event_stream(SimBody::live(live)),
        Ok(Reply::Events(events)) => event_stream(SimBody::full(events)),
        Err(error) => error_response(&error, shape),
    };
    request.visit.status(response.status().as_u16());
    response.map(|body| body.with_visit(request.visit))
}

/// Carries out the faults that strike before the head. Under those that leave a request unanswered it never returns.
async fn strike(replica: &Arc<Replica>, socket: &Socket, faults: &Applied) -> Result<(), ApiError> {
    if let Some(fault) = faults.on_replica() {
        replica.set_fault(fault.clone()).await;
    }
    if faults.of(FaultKind::Hang).is_some() {
        return std::future::pending().await;
    }
    if faults.of(FaultKind::ResetBeforeHead).is_some() {
        socket.reset.cancel();
        return std::future::pending().await;
    }
    if faults.of(FaultKind::ShuttingDown).is_some() {
        return Err(ApiError::shutting_down());
    }
    if faults.of(FaultKind::Error500).is_some() {
        return Err(ApiError::internal("Internal server error"));
    }
    if faults.of(FaultKind::Error503).is_some() {
        return Err(ApiError::busy());
    }
    if replica.is_dead() {
        return Err(ApiError::engine_dead());
    }
    Ok(())
}

async fn dispatch(
    replica: &Arc<Replica>,
    request: &Inference<'_>,
    fields: &Map<String, Value>,
    faults: Applied,
) -> Result<Reply, ApiError> {
    let config = &replica.config;
    match request.api {
        Api::Tokenize => return plain::tokenize(fields, config).map(Reply::Json),
        Api::Detokenize => return plain::detokenize(fields, config).map(Reply::Json),
        Api::CountTokens => return plain::count_tokens(fields, config).map(Reply::Json),
        _ => {}
    }
    if let Some(max) = config.max_queued_requests {
        let gauges = replica.driver.stats().gauges;
        if gauges.running + gauges.waiting >= max {
            return Err(ApiError::busy());
        }
    }
    if request.api.generates() {
        generate::serve(replica, request.api, fields, request.request_id, faults).await
    } else {
        pooling::serve(replica, request.api, fields, request.request_id).await
    }
}

fn own_fault(fields: &Map<String, Value>) -> Result<Option<Fault>, ApiError> {
    let Some(fault) = fields.get("sim_fault").filter(|fault| !fault.is_null()) else { return Ok(None) };
    serde_json::from_value(fault.clone()).map(Some).map_err(|error| {
        ApiError::bad_request(format!("sim_fault is no fault: {error}. (parameter=sim_fault)"), "sim_fault")
    })
}

fn parse(head: &Parts, body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    let kind = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !kind.to_ascii_lowercase().starts_with("application/json") {
        return Err(ApiError::schema("Unsupported Media Type: Only 'application/json' is allowed", None));
    }
    if body.is_empty() {
        let detail = "{'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'}";
        return Err(ApiError::schema(detail, Some("body".into())));
    }
    match serde_json::from_slice(body) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => {
            let detail = "{'type': 'model_attributes_type', 'loc': 'body', 'msg': 'Input should be a valid \
                          dictionary or object to extract fields from'}";
            Err(ApiError::schema(detail, Some("body".into())))
        }
        Err(error) => {
            let place = format!("body.{}", offset(body, &error));
            let detail = format!(
                "{{'type': 'json_invalid', 'loc': '{place}', 'msg': 'JSON decode error', 'input': \
                 '<dict of 0 items>', 'ctx': {{'error': '{error}'}}}}"
            );
            Err(ApiError::schema(&detail, Some(place)))
        }
    }
}

/// Byte offset of a JSON error.
fn offset(body: &[u8], error: &serde_json::Error) -> usize {
    let lines_before = error.line().saturating_sub(1);
    let before: usize = body.split_inclusive(|byte| *byte == b'\n').take(lines_before).map(<[u8]>::len).sum();
    before + error.column().saturating_sub(1)
}

async fn read(body: Incoming) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
    Ok(Limited::new(body, BODY_LIMIT).collect().await?.to_bytes())
}

fn json_response(status: StatusCode, content: impl Into<Bytes>) -> SimResponse {
    let mut response = Response::new(SimBody::full(content));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn event_stream(body: SimBody) -> SimResponse {
    let mut response = Response::new(body);
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Announces the whole length and sends half of it.
fn half(content: &str) -> SimResponse {
    let mut response = Response::new(SimBody::half(content));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(http::header::CONTENT_LENGTH, HeaderValue::from(content.len()));
    response
}

fn error_response(error: &ApiError, shape: ErrorShape) -> SimResponse {
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    json_response(status, error.body(shape))
}

fn not_allowed(allow: &'static str) -> SimResponse {
    let mut response = json_response(StatusCode::METHOD_NOT_ALLOWED, r#"{"detail":"Method Not Allowed"}"#);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    response
}

/// Far above any test's body; vLLM itself has no limit but the context.
const BODY_LIMIT: usize = 256 << 20;
