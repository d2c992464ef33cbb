//! Requests that the admin port refuses or cannot answer: status, code and message, as JSON.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{ALLOW, HeaderValue, WWW_AUTHENTICATE};

use crate::api::failure::{Failure, FailureError};

macro_rules! errors {
    ($($Error:ident $(($($part:ty),+))? = $status:ident $code:literal $message:literal;)+) => {
        /// Why a request fails; the text is the `message` of the response.
        #[derive(Debug, PartialEq, Eq, thiserror::Error)]
        pub(super) enum AdminError {
            $(#[error($message)] $Error $(($($part),+))?,)+
        }

        impl AdminError {
            fn status_and_code(&self) -> (StatusCode, &'static str) {
                match self {
                    $(Self::$Error { .. } => (StatusCode::$status, $code),)+
                }
            }
        }
    };
}

// Status, `code` and `message` of the response.
errors! {
    InvalidToken = UNAUTHORIZED "invalid_token" "send the admin token as authorization: Bearer";
    ReadOnly = FORBIDDEN "read_only" "this token may only read (GET, HEAD): changes need admin.token";
    ForeignHost = FORBIDDEN "foreign_host" "without a token the admin port is reached as localhost or by its address only";
    SeveralHosts = BAD_REQUEST "invalid_request" "more than one host header";
    MissingHeader = FORBIDDEN "missing_header" "POST needs the header x-tokenway-admin: 1";
    UnknownPath = NOT_FOUND "unknown_path" "the admin port has no such path";
    MethodNotAllowed(String) = METHOD_NOT_ALLOWED "method_not_allowed" "allowed here: {0}";
    InvalidWindow = BAD_REQUEST "invalid_window" "window is 1m, 5m or 1h";
    InvalidQuery(String) = BAD_REQUEST "invalid_query" "{0}";
    UnknownRequest = NOT_FOUND "unknown_request" "no request of that id is kept: it was neither slow, failed, refused nor among the last decisions";
    InvalidBody = BAD_REQUEST "invalid_body" "the body is late, broken or too long";
    DrainsAll = BAD_REQUEST "invalid_drain" "this drains the whole gateway and takes no body; for a replica: POST /api/replicas, {{\"action\":\"drain\",\"pool\":POOL,\"name\":REPLICA}}";
    InvalidLevel(String) = BAD_REQUEST "invalid_level" "{0}";
    InvalidConfig(String) = UNPROCESSABLE_ENTITY "invalid_config" "{0}";
    NoCanary(String) = NOT_FOUND "no_canary" "{0}";
    CanaryState(String) = CONFLICT "canary_state" "{0}";
    InvalidReplica(String) = BAD_REQUEST "invalid_replica" "{0}";
    NameTaken(String) = CONFLICT "name_taken" "{0}";
    UnknownReplica(String) = NOT_FOUND "unknown_replica" "{0}";
    UnknownPool(String, String) = NOT_FOUND "unknown_pool" "there is no pool {0}; there are {1}";
    NotLookedAt(String) = SERVICE_UNAVAILABLE "not_looked_at" "pool {0} was not looked at yet: ask again in a second";
    InvalidKey(String) = BAD_REQUEST "invalid_key" "{0}";
    UnknownKey(String) = NOT_FOUND "unknown_key" "{0}";
    UnknownRoute(String, String) = NOT_FOUND "unknown_route" "there is no route {0}; there are {1}";
    UnknownTenant(String, String) = NOT_FOUND "unknown_tenant" "there is no tenant {0}; there are: {1}";
    NotKept(String) = INTERNAL_SERVER_ERROR "not_kept" "{0}";
    UnknownFinding = NOT_FOUND "unknown_finding" "no finding of this id holds";
    InvalidMute(String) = BAD_REQUEST "invalid_mute" "{0}";
    InvalidWarmUp(String) = BAD_REQUEST "invalid_body" "{0}; send {{\"pool\":\"name\",\"replica\":\"name\"}}, or the pool alone for all of it";
    ReloadFailed = INTERNAL_SERVER_ERROR "reload_failed" "the reload broke off";
    Overloaded = SERVICE_UNAVAILABLE "overloaded" "too many requests at once; try again";
    Timeout = SERVICE_UNAVAILABLE "timeout" "the response took too long";
    Panicked = INTERNAL_SERVER_ERROR "internal_error" "the handler panicked; see the log";
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
            Self::MethodNotAllowed(allowed) => {
                headers.extend(HeaderValue::try_from(allowed).ok().map(|allowed| (ALLOW, allowed)));
            }
            _ => {}
        }
        response
    }
}
