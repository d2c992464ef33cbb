//! Paths answered by the gateway itself on the data port: `/health`, `/version` (and `/v1/models`: [`super::models`]).

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::json;

use super::table::RoutingTable;

/// `GET /health`: 200 if a route is ready and the gateway does not drain, else 503.
pub fn health(table: &RoutingTable, is_draining: bool) -> Response<Bytes> {
    let (status, text) = if is_draining {
        (StatusCode::SERVICE_UNAVAILABLE, "draining")
    } else if table.routes.iter().any(|r| r.takes_requests()) {
        (StatusCode::OK, "ok")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "no route is ready")
    };
    json_response(status, json!({ "status": text }))
}

/// `GET /version`: the crate's version.
pub fn version() -> Response<Bytes> {
    json_response(StatusCode::OK, json!({ "version": env!("CARGO_PKG_VERSION"), "gateway": "tokenway" }))
}

/// A JSON answer of the gateway itself.
pub(super) fn json_response(status: StatusCode, body: impl ToString) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
