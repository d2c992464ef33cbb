//! Requests that the admin port refuses or cannot answer: status, code and message, as JSON.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{ALLOW, HeaderValue, WWW_AUTHENTICATE};

use crate::api::health::{Failure, FailureError};

/// Why a request fails; the text is the `message` of the response.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AdminError {
    #[error("send the admin token as authorization: Bearer")]
    InvalidToken,
    #[error("this token may only read (GET, HEAD): changes need admin.token")]
    ReadOnly,
    #[error("without a token the admin port is reached as localhost or by its address only")]
    ForeignHost,
    #[error("more than one host header")]
    SeveralHosts,
    #[error("POST needs the header x-tokenway-admin: 1")]
    MissingHeader,
    #[error("the admin port has no such path")]
    UnknownPath,
    #[error("allowed here: {allowed}")]
    MethodNotAllowed { allowed: String },
    #[error("window is 1m, 5m or 1h")]
    InvalidWindow,
    #[error("{0}")]
    InvalidQuery(String),
    #[error(
        "no request of that id is kept: it was neither slow, failed, refused nor among the last decisions"
    )]
    UnknownRequest,
    #[error("the body is late, broken or too long")]
    InvalidBody,
    #[error("{0}")]
    InvalidLevel(String),
    #[error("{0}")]
    InvalidConfig(String),
    #[error("{0}")]
    NoCanary(String),
    #[error("{0}")]
    CanaryState(String),
    #[error("{0}")]
    InvalidReplica(String),
    #[error("{0}")]
    NameTaken(String),
    #[error("{0}")]
    UnknownReplica(String),
    #[error("there is no pool {0}; there are {1}")]
    UnknownPool(String, String),
    #[error("pool {0} was not looked at yet: ask again in a second")]
    NotLookedAt(String),
    #[error("{0}")]
    InvalidKey(String),
    #[error("{0}")]
    UnknownKey(String),
    #[error("there is no tenant {0}; there are: {1}")]
    UnknownTenant(String, String),
    #[error("{0}")]
    NotKept(String),
    #[error("no finding of this id holds")]
    UnknownFinding,
    #[error("{0}")]
    InvalidMute(String),
    #[error("name the pool: {{\"pool\":\"name\",\"replica\":\"name\"}}")]
    NoPool,
    #[error("the reload broke off")]
    ReloadFailed,
    #[error("too many requests at once; try again")]
    Overloaded,
    #[error("the response took too long")]
    Timeout,
    #[error("the handler panicked; see the log")]
    Panicked,
}

impl AdminError {
    fn status_and_code(&self) -> (StatusCode, &'static str) {
        match self {
            Self::InvalidToken => (StatusCode::UNAUTHORIZED, "invalid_token"),
            Self::ReadOnly => (StatusCode::FORBIDDEN, "read_only"),
            Self::ForeignHost => (StatusCode::FORBIDDEN, "foreign_host"),
            Self::SeveralHosts => (StatusCode::BAD_REQUEST, "invalid_request"),
            Self::MissingHeader => (StatusCode::FORBIDDEN, "missing_header"),
            Self::UnknownPath => (StatusCode::NOT_FOUND, "unknown_path"),
            Self::MethodNotAllowed { .. } => (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
            Self::InvalidWindow => (StatusCode::BAD_REQUEST, "invalid_window"),
            Self::InvalidQuery(_) => (StatusCode::BAD_REQUEST, "invalid_query"),
            Self::UnknownRequest => (StatusCode::NOT_FOUND, "unknown_request"),
            Self::InvalidBody => (StatusCode::BAD_REQUEST, "invalid_body"),
            Self::NoPool => (StatusCode::BAD_REQUEST, "invalid_body"),
            Self::InvalidLevel(_) => (StatusCode::BAD_REQUEST, "invalid_level"),
            Self::UnknownFinding => (StatusCode::NOT_FOUND, "unknown_finding"),
            Self::InvalidMute(_) => (StatusCode::BAD_REQUEST, "invalid_mute"),
            Self::InvalidConfig(_) => (StatusCode::UNPROCESSABLE_ENTITY, "invalid_config"),
            Self::NoCanary(_) => (StatusCode::NOT_FOUND, "no_canary"),
            Self::CanaryState(_) => (StatusCode::CONFLICT, "canary_state"),
            Self::InvalidReplica(_) => (StatusCode::BAD_REQUEST, "invalid_replica"),
            Self::NameTaken(_) => (StatusCode::CONFLICT, "name_taken"),
            Self::UnknownReplica(_) => (StatusCode::NOT_FOUND, "unknown_replica"),
            Self::UnknownPool(..) => (StatusCode::NOT_FOUND, "unknown_pool"),
            Self::NotLookedAt(_) => (StatusCode::SERVICE_UNAVAILABLE, "not_looked_at"),
            Self::InvalidKey(_) => (StatusCode::BAD_REQUEST, "invalid_key"),
            Self::UnknownKey(_) => (StatusCode::NOT_FOUND, "unknown_key"),
            Self::UnknownTenant(..) => (StatusCode::NOT_FOUND, "unknown_tenant"),
            Self::NotKept(_) => (StatusCode::INTERNAL_SERVER_ERROR, "not_kept"),
            Self::ReloadFailed => (StatusCode::INTERNAL_SERVER_ERROR, "reload_failed"),
            Self::Overloaded => (StatusCode::SERVICE_UNAVAILABLE, "overloaded"),
            Self::Timeout => (StatusCode::SERVICE_UNAVAILABLE, "timeout"),
            Self::Panicked => (StatusCode::INTERNAL_SERVER_ERROR, "internal_error"),
        }
    }
}

impl IntoResponse for AdminError {
    fn into_response(self) -> Response {
        let (status, code) = self.status_and_code();
        let body = Failure { error: FailureError { code: code.to_owned(), message: self.to_string() } };
        let mut response = (status, Json(body)).into_response();
        let headers = response.headers_mut();
        match self {
            Self::InvalidToken => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Self::MethodNotAllowed { allowed } => {
                headers.extend(HeaderValue::try_from(allowed).ok().map(|allowed| (ALLOW, allowed)));
            }
            _ => {}
        }
        response
    }
}
