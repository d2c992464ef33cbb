//! Failures of requests: the only file that maps a failure to a status.
//!
//! Status, code, type, outcome and `retry-after` follow from the variant, so that metrics, spans and bodies agree.
//! Messages carry numbers and the next step, never a key or a prompt. The codes are part of the data port's contract.

mod replica;

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, StatusCode, header};
use serde_json::json;
use thiserror::Error;

pub(crate) use self::replica::{Closed, ReplicaFailure};
use crate::labels::labels;
use crate::units::whole_seconds;

/// JSON shape of a dialect's error bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorShape {
    /// `{"error":{"message","type","param","code"}}`
    OpenAi,
    /// `{"type":"error","error":{"type","message","code"}}`: Anthropic's own has no `code`.
    Anthropic,
}

labels! {
    /// A deadline of `[timeouts]`; its error code is `timeout_<key>`.
    pub enum Timer {
        Connect = "connect",
        FirstToken = "first_token",
        InterToken = "inter_token",
        Total = "total",
        /// The client's own bound of the whole, `x-request-timeout`; to codes and metrics it is `total`.
        Asked = "asked",
        ClientStall = "client_stall",
    }
}

impl Timer {
    pub fn code(self) -> &'static str {
        match self {
            Self::Connect => "timeout_connect",
            Self::FirstToken => "timeout_first_token",
            Self::InterToken => "timeout_inter_token",
            Self::Total | Self::Asked => "timeout_total",
            Self::ClientStall => "timeout_client_stall",
        }
    }
}

/// Why a request got no response of a replica, or only part of one.
#[derive(Clone, Debug, Error)]
pub enum Failure {
    /// The path is not on the allow-list.
    #[error("unknown path; this gateway serves the OpenAI inference paths, see /v1/models for models")]
    UnknownPath,
    /// Known path, wrong method.
    #[error("method not allowed; this path takes {allow}")]
    MethodNotAllowed {
        /// Value of `Allow`.
        allow: &'static str,
    },
    /// A WebSocket on a path that has none.
    #[error("this path is no WebSocket: only /v1/realtime is; send the request without `upgrade: websocket`")]
    UpgradeNotSupported,
    /// A WebSocket, or a request to its path, that a proxy carries.
    #[error("the endpoint picker places no WebSocket: have the proxy route /v1/realtime past it")]
    UpgradeNotCarried,
    /// A plain request, or HTTP/2, on a WebSocket's path.
    #[error("this path is a WebSocket: connect over HTTP/1.1 with `upgrade: websocket` (RFC 6455)")]
    UpgradeRequired,
    /// A preflight from a page that may not call the gateway.
    #[error("pages of this origin may not call the gateway (server.cors_origins)")]
    OriginNotAllowed,
    /// Invalid HTTP or JSON.
    #[error("{message}")]
    BadRequest {
        message: String,
        /// The field at fault, where there is one.
        param: Option<&'static str>,
    },
    /// The body has a content coding.
    #[error("request bodies must not be compressed; send content-encoding: identity")]
    UnsupportedEncoding,
    /// `Expect` other than `100-continue`.
    #[error("unknown expectation; only 100-continue is supported")]
    ExpectationFailed,
    /// The body is over `server.body_limit`.
    #[error("request body is larger than {limit} bytes (server.body_limit)")]
    BodyTooLarge { limit: usize },
    /// All bodies together are over `server.body_memory`.
    #[error("too many request bodies in memory (server.body_memory); try again later")]
    BodyMemory,
    /// The client stopped sending the body.
    #[error("the request body stopped for {} (timeouts.client_stall)", Seconds(*.after))]
    BodyStalled { after: Duration },
    /// The body came slower than `server.body_min_rate`.
    #[error("the request body came slower than {min_rate} bytes a second (server.body_min_rate)")]
    BodyTooSlow { min_rate: u64 },
    /// The body came slowly while others waited for the memory that it held.
    #[error("the request body came so slowly that its memory went to others (server.body_memory)")]
    BodyEvicted,
    /// The body was not complete in time.
    #[error("the request body was not complete within {} (server.body_timeout)", Seconds(*.after))]
    BodyTimeout { after: Duration },
    /// The client left while it sent the body.
    #[error("the client left before the request body was complete")]
    ClientLeft,
    /// Missing or unknown API key.
    #[error("{message}")]
    InvalidKey { message: String },
    /// A token came before the issuer's keys could be read.
    #[error("the keys of the token issuer could not be read yet (auth.jwt.jwks); try again later")]
    NoTokenKeys { retry_after: Duration },
    /// No `model`, and several routes could be meant.
    #[error("`model` is missing, and several routes could be meant: name one of {routes}")]
    MissingModel {
        /// What the client may ask for.
        routes: String,
    },
    /// No route for the model, or the tenant may not use it.
    #[error("the model `{model}` does not exist or you do not have access to it; GET /v1/models lists them")]
    ModelNotFound {
        /// As sent by the client, truncated.
        model: String,
    },
    /// Unknown `previous_response_id`.
    #[error(
        "Response with id '{id}' not found: it was not made through this gateway, or its replica is gone; send the whole \
         input instead of `previous_response_id`"
    )]
    PreviousResponseNotFound {
        /// As sent by the client, truncated.
        id: String,
    },
    /// Unknown id in `/v1/responses/{id}`.
    #[error(
        "Response with id '{id}' not found: it was not made through this gateway, or its replica is gone"
    )]
    ResponseNotFound {
        /// As sent by the client, truncated.
        id: String,
    },
    /// A response that is not known here, while the gateways that may know it cannot be asked.
    #[error(
        "Response with id '{id}' is not known to this gateway, and the others cannot be asked at the moment; try again"
    )]
    OthersUnreachable {
        /// As sent by the client, truncated.
        id: String,
    },
    /// No replica of the route is ready.
    #[error("no ready replica for route {route}: {detail}")]
    NoReadyReplica {
        route: Arc<str>,
        /// Why.
        detail: String,
        /// Until the next probe.
        retry_after: Duration,
    },
    /// A limit of the tenant or of the route's queue is reached.
    #[error("{message}")]
    NotAdmitted {
        /// Key of the limit, which is the error code.
        limit: &'static str,
        message: String,
        /// When it is worth a try; `None` where waiting does not help.
        retry_after: Option<Duration>,
    },
    /// The operator's hook refuses the request.
    #[error("{message}")]
    HookRefused {
        /// 400 to 499.
        status: u16,
        /// The hook's.
        message: String,
    },
    /// The hook did not answer, and fails closed.
    #[error("the service that checks requests did not answer (hook.on_failure); try again later")]
    HookUnavailable,
    /// The gateway is shutting down.
    #[error("the gateway is shutting down; send the request to another one")]
    Draining,
    /// The prompt was in flight at two replica deaths.
    #[error("this request was in flight at two replica crashes and is refused for {} s", .retry_after.as_secs())]
    SuspectedPoison { retry_after: Duration },
    /// Invalid HTTP/1.1 head (RFC 9112).
    #[error(
        "the request head is no valid HTTP (RFC 9112): check the request line, the header names and values, and that \
         content-length and transfer-encoding agree; the connection was closed"
    )]
    MalformedHead,
    /// Both `Content-Length` and `Transfer-Encoding` (RFC 9112 §6.3).
    #[error(
        "the request has both content-length and transfer-encoding (RFC 9112 section 6.3): send one of them; the \
         connection was closed"
    )]
    AmbiguousFraming,
    /// Clear text on a TLS port.
    #[error("this port speaks TLS: ask with https://; the connection was closed")]
    ClearText,
    /// Request target over hyper's limit.
    #[error("the request target is over 65534 bytes; what is long belongs into the body")]
    UriTooLong,
    /// Too many headers, or too many bytes of them.
    #[error(
        "the request head has over 100 headers, or is longer than the 64 KiB that always fit; send fewer or shorter ones"
    )]
    HeadTooLarge,
    /// Our own `Via` entry is in the request.
    #[error("this request already passed through this gateway; check the upstream URLs")]
    Loop,
    /// A deadline of `[timeouts]`, or the client's own, passed.
    #[error("no {} within {} ({})", what(*.timer), Seconds(*.after), setter(*.timer))]
    Timeout { timer: Timer, after: Duration },
    /// The same, of a request that waited in the gateway's own queue.
    #[error("no replica could take the request before its {} were over ({})", Seconds(*.after), setter(*.timer))]
    NeverPlaced { timer: Timer, after: Duration },
    /// A replica failed and no other took over.
    #[error("{0}")]
    Replica(ReplicaFailure),
    /// The same as tenants see it.
    #[error(
        "a replica failed ({reason}) and no other took over; try again later, or ask the gateway's operator, who finds more \
         under request id {request_id}"
    )]
    UnnamedReplica {
        /// [`ReplicaFailure::code`]
        reason: &'static str,
        /// Named, because clients show the message of an error in a stream and no header with it.
        request_id: Arc<str>,
    },
    /// This gateway has no descriptor or local port left for a connection to a replica.
    #[error(
        "the gateway is out of descriptors or local ports for connections to replicas; try again later, and raise its \
         RLIMIT_NOFILE or lower server.max_connections"
    )]
    LocalResources,
    /// The stream was cut at the end of the drain.
    #[error("the gateway shut down before the answer was complete (server.drain_timeout)")]
    DrainCut,
    /// A bug of the gateway.
    #[error("internal error of the gateway; the log has more under this request id")]
    Internal,
}

impl Failure {
    /// A 400 with the field at fault.
    pub fn bad_request(message: impl Into<String>, param: Option<&'static str>) -> Self {
        Self::BadRequest { message: message.into(), param }
    }

    /// As tenants may see it: they are not the operator, and where replicas are is not theirs to see.
    pub fn for_tenants(&self, request_id: Arc<str>) -> Self {
        match self {
            Self::Replica(
                ReplicaFailure::ConnectTimeout { after, .. } | ReplicaFailure::NoFreeConnection { after, .. },
            ) => Self::Timeout { timer: Timer::Connect, after: *after },
            Self::Replica(failure) => Self::UnnamedReplica { reason: failure.code(), request_id },
            other => other.clone(),
        }
    }

    /// Status, code and OpenAI `error.type`.
    fn row(&self) -> (StatusCode, &'static str, &'static str) {
        const INVALID: &str = "invalid_request_error";
        const OVERLOADED: &str = "overloaded_error";
        use StatusCode as S;
        match self {
            Self::UnknownPath => (S::NOT_FOUND, "unknown_path", INVALID),
            Self::MalformedHead => (S::BAD_REQUEST, "malformed_head", INVALID),
            Self::AmbiguousFraming => (S::BAD_REQUEST, "ambiguous_framing", INVALID),
            Self::ClearText => (S::BAD_REQUEST, "tls_required", INVALID),
            Self::UriTooLong => (S::URI_TOO_LONG, "uri_too_long", INVALID),
            Self::HeadTooLarge => (S::REQUEST_HEADER_FIELDS_TOO_LARGE, "head_too_large", INVALID),
            Self::MethodNotAllowed { .. } => (S::METHOD_NOT_ALLOWED, "method_not_allowed", INVALID),
            Self::UpgradeNotSupported | Self::UpgradeNotCarried => {
                (S::BAD_REQUEST, "upgrade_not_supported", INVALID)
            }
            Self::UpgradeRequired => (S::UPGRADE_REQUIRED, "upgrade_required", INVALID),
            Self::OriginNotAllowed => (S::BAD_REQUEST, "origin_not_allowed", INVALID),
            Self::BadRequest { .. } => (S::BAD_REQUEST, "invalid_request", INVALID),
            Self::UnsupportedEncoding => (S::UNSUPPORTED_MEDIA_TYPE, "unsupported_encoding", INVALID),
            Self::ExpectationFailed => (S::EXPECTATION_FAILED, "expectation_failed", INVALID),
            Self::BodyTooLarge { .. } => (S::PAYLOAD_TOO_LARGE, "body_limit", INVALID),
            Self::BodyMemory => (S::SERVICE_UNAVAILABLE, "body_memory", OVERLOADED),
            Self::BodyStalled { .. } => (S::REQUEST_TIMEOUT, "timeout_client_stall", "timeout_error"),
            Self::BodyEvicted => (S::REQUEST_TIMEOUT, "body_memory", "timeout_error"),
            Self::BodyTooSlow { .. } => (S::REQUEST_TIMEOUT, "body_min_rate", "timeout_error"),
            Self::BodyTimeout { .. } => (S::REQUEST_TIMEOUT, "body_timeout", "timeout_error"),
            // Nobody reads it; the status is that of the record.
            Self::ClientLeft => (S::from_u16(499).unwrap_or(S::BAD_REQUEST), "client_left", INVALID),
            Self::InvalidKey { .. } => (S::UNAUTHORIZED, "invalid_api_key", "authentication_error"),
            Self::NoTokenKeys { .. } => (S::SERVICE_UNAVAILABLE, "no_token_keys", OVERLOADED),
            Self::MissingModel { .. } => (S::BAD_REQUEST, "missing_model", INVALID),
            Self::ModelNotFound { .. } => (S::NOT_FOUND, "model_not_found", INVALID),
            Self::PreviousResponseNotFound { .. } => (S::NOT_FOUND, "previous_response_not_found", INVALID),
            Self::ResponseNotFound { .. } => (S::NOT_FOUND, "response_not_found", INVALID),
            Self::OthersUnreachable { .. } => (S::SERVICE_UNAVAILABLE, "cluster_unreachable", OVERLOADED),
            Self::NoReadyReplica { .. } => (S::SERVICE_UNAVAILABLE, "no_ready_replica", OVERLOADED),
            Self::NotAdmitted { limit, .. } => (S::TOO_MANY_REQUESTS, limit, "rate_limit_error"),
            Self::HookRefused { status, .. } => {
                (S::from_u16(*status).unwrap_or(S::FORBIDDEN), "hook_refused", INVALID)
            }
            Self::HookUnavailable => (S::SERVICE_UNAVAILABLE, "hook_unavailable", OVERLOADED),
            Self::Draining => (S::SERVICE_UNAVAILABLE, "draining", OVERLOADED),
            Self::SuspectedPoison { .. } => (S::SERVICE_UNAVAILABLE, "suspected_poison", OVERLOADED),
            Self::Loop => (S::LOOP_DETECTED, "loop_detected", INVALID),
            Self::Timeout { timer, .. } | Self::NeverPlaced { timer, .. } => {
                (S::GATEWAY_TIMEOUT, timer.code(), "timeout_error")
            }
            Self::Replica(
                ReplicaFailure::ConnectTimeout { .. } | ReplicaFailure::NoFreeConnection { .. },
            ) => (S::GATEWAY_TIMEOUT, Timer::Connect.code(), "timeout_error"),
            Self::Replica(_) | Self::UnnamedReplica { .. } => {
                (S::BAD_GATEWAY, "replica_failed", "upstream_error")
            }
            Self::LocalResources => (S::SERVICE_UNAVAILABLE, "local_resources", OVERLOADED),
            Self::DrainCut => (S::SERVICE_UNAVAILABLE, "drain_timeout", OVERLOADED),
            Self::Internal => (S::INTERNAL_SERVER_ERROR, "internal_error", "upstream_error"),
        }
    }

    pub fn status(&self) -> StatusCode {
        self.row().0
    }

    /// Whether a deadline passed which speaks for no fault of a replica that had the request for so long: it is the client's own, or most
    /// of it was over when the replica got the rest.
    pub fn spares_replica(&self, had: Duration) -> bool {
        matches!(self, Self::Timeout { timer, after } if *timer == Timer::Asked || had < *after / 2)
    }

    pub fn code(&self) -> &'static str {
        self.row().1
    }

    /// `error.type` of a dialect; Anthropic's are those of its API's page on errors.
    pub fn kind(&self, shape: ErrorShape) -> &'static str {
        let (status, _, kind) = self.row();
        match (shape, status, kind) {
            (ErrorShape::OpenAi, ..) => kind,
            (_, StatusCode::NOT_FOUND, _) => "not_found_error",
            (_, StatusCode::PAYLOAD_TOO_LARGE, _) => "request_too_large",
            (.., "upstream_error") => "api_error",
            (.., kind) => kind,
        }
    }

    /// `retry-after`, where waiting helps.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::NotAdmitted { retry_after, .. } => *retry_after,
            Self::NoReadyReplica { retry_after, .. }
            | Self::NoTokenKeys { retry_after }
            | Self::SuspectedPoison { retry_after } => Some(*retry_after),
            Self::BodyMemory
            | Self::Draining
            | Self::LocalResources
            | Self::HookUnavailable
            | Self::OthersUnreachable { .. } => Some(Duration::from_secs(1)),
            _ => None,
        }
    }

    /// OpenAI's `param`: the field at fault.
    pub fn param(&self) -> Option<&'static str> {
        match self {
            Self::BadRequest { param, .. } => *param,
            Self::MissingModel { .. } | Self::ModelNotFound { .. } => Some("model"),
            Self::PreviousResponseNotFound { .. } => Some("previous_response_id"),
            Self::ResponseNotFound { .. } => Some("response_id"),
            _ => None,
        }
    }

    /// The JSON body in a dialect's shape.
    pub fn body(&self, shape: ErrorShape) -> String {
        error_body(shape, self.kind(shape), &self.to_string(), self.param(), self.code())
    }

    /// Adds the headers of this error.
    pub fn write_headers(&self, headers: &mut http::HeaderMap) {
        if let Some(wait) = self.retry_after() {
            // Whole seconds (RFC 9110 §10.2.3), rounded up.
            let seconds = whole_seconds(wait);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        match self {
            Self::MethodNotAllowed { allow } => {
                headers.insert(header::ALLOW, HeaderValue::from_static(allow));
            }
            Self::UpgradeRequired => {
                headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
            }
            Self::InvalidKey { .. } => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            // The rest of the body is not read, so the connection cannot be reused.
            Self::BodyTooLarge { .. }
            | Self::BodyMemory
            | Self::BodyStalled { .. }
            | Self::BodyTooSlow { .. }
            | Self::BodyEvicted
            | Self::BodyTimeout { .. }
            | Self::ClientLeft => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
    }
}

/// An error as JSON in a dialect's shape.
pub(crate) fn error_body(
    shape: ErrorShape,
    kind: &str,
    message: &str,
    param: Option<&str>,
    code: &str,
) -> String {
    match shape {
        ErrorShape::OpenAi => {
            json!({ "error": { "message": message, "type": kind, "param": param, "code": code } })
        }
        ErrorShape::Anthropic => {
            json!({ "type": "error", "error": { "type": kind, "message": message, "code": code } })
        }
    }
    .to_string()
}

/// Displays a duration as decimal seconds (`1.5 s`).
struct Seconds(Duration);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} s", self.0.as_secs_f64())
    }
}

fn what(timer: Timer) -> &'static str {
    match timer {
        Timer::Connect => "connection to a replica",
        Timer::FirstToken => "first token",
        Timer::InterToken => "further token",
        Timer::Total | Timer::Asked => "complete answer",
        Timer::ClientStall => "progress of the client",
    }
}

/// Where its length stands.
fn setter(timer: Timer) -> String {
    match timer {
        Timer::Asked => "x-request-timeout".to_owned(),
        of_file => format!("timeouts.{}", of_file.as_str()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_was_half_over_before_spares_the_replica_that_got_the_rest() {
        let had = Duration::from_secs;
        let deadline = |timer| Failure::Timeout { timer, after: had(60) };
        for (timer, seconds, is_spared) in [
            (Timer::FirstToken, 1, true),
            (Timer::FirstToken, 29, true),
            (Timer::FirstToken, 30, false),
            (Timer::Total, 29, true),
            (Timer::Total, 60, false),
            (Timer::Asked, 60, true),
        ] {
            assert_eq!(deadline(timer).spares_replica(had(seconds)), is_spared, "{timer:?} {seconds}");
        }
        assert!(!Failure::DrainCut.spares_replica(had(0)));
    }

    #[test]
    fn openai_body_names_the_timer_that_fired() {
        let failure = Failure::Timeout { timer: Timer::FirstToken, after: Duration::from_millis(1500) };
        let body: serde_json::Value = serde_json::from_str(&failure.body(ErrorShape::OpenAi)).unwrap();
        assert_eq!(failure.status(), 504);
        assert_eq!(body["error"]["code"], "timeout_first_token");
        assert_eq!(body["error"]["type"], "timeout_error");
        assert_eq!(body["error"]["message"], "no first token within 1.5 s (timeouts.first_token)");
    }

    #[test]
    fn anthropic_clients_see_their_types_and_the_code() {
        let failed = Failure::Replica(ReplicaFailure::Truncated { replica: "a".into() });
        for (failure, status, kind, code) in [
            (failed, 502, "api_error", "replica_failed"),
            (Failure::ResponseNotFound { id: "r".into() }, 404, "not_found_error", "response_not_found"),
            (Failure::bad_request("no", None), 400, "invalid_request_error", "invalid_request"),
        ] {
            let body: serde_json::Value = serde_json::from_str(&failure.body(ErrorShape::Anthropic)).unwrap();
            assert_eq!((&body["type"], failure.status().as_u16()), (&"error".into(), status));
            assert_eq!((&body["error"]["type"], &body["error"]["code"]), (&kind.into(), &code.into()));
        }
    }

    #[test]
    fn tenants_see_the_same_error_without_the_replica() {
        let (replica, after): (Arc<str>, _) = ("10.0.0.1:8000".into(), Duration::from_secs(5));
        for failure in [
            ReplicaFailure::Refused { replica: Arc::clone(&replica) },
            ReplicaFailure::Truncated { replica: Arc::clone(&replica) },
            ReplicaFailure::ConnectTimeout { replica: Arc::clone(&replica), after },
            ReplicaFailure::NoFreeConnection { replica: Arc::clone(&replica), after },
            ReplicaFailure::Bypassed { replica, served: ([10, 0, 0, 2], 8000).into() },
        ] {
            let own = Failure::Replica(failure);
            let shown = own.for_tenants("asked-7".into());
            assert_eq!(shown.row(), own.row());
            assert!(own.to_string().contains("10.0.0.") && !shown.to_string().contains("10.0.0."), "{shown}");
            let names_request = shown.to_string().contains("request id asked-7");
            assert_eq!(names_request, shown.code() == "replica_failed", "{shown}");
        }
    }

    #[test]
    fn retry_after_is_whole_seconds_rounded_up() {
        let failure = Failure::NoReadyReplica {
            route: "chat".into(),
            detail: "http://gpu-1:8000: connection refused (3 tries)".into(),
            retry_after: Duration::from_millis(1200),
        };
        let mut headers = http::HeaderMap::new();
        failure.write_headers(&mut headers);
        assert_eq!(headers[header::RETRY_AFTER], "2");
    }
}
