//! Who failed, and what the client is told: the only file that maps a failure to a status.
//!
//! A failure is data: its status, code, type, outcome and `retry-after` follow from the variant, so that
//! metrics, spans and bodies can never disagree. Messages carry numbers and the next step, and never a key or
//! a prompt. The table of codes is the contract of the data port.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, StatusCode, header};
use serde_json::json;
use thiserror::Error;

/// The shape in which a dialect's clients expect errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorShape {
    /// `{"error":{"message","type","param","code"}}`
    OpenAi,
    /// `{"type":"error","error":{"type","message"}}`
    Anthropic,
}

/// A deadline of `[timeouts]`; its key names the error code `timeout_<key>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Timer {
    /// `connect`
    Connect,
    /// `first_token`
    FirstToken,
    /// `inter_token`
    InterToken,
    /// `total`
    Total,
    /// `client_stall`
    ClientStall,
}

impl Timer {
    /// Its key in `[timeouts]`: the label `timer`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::FirstToken => "first_token",
            Self::InterToken => "inter_token",
            Self::Total => "total",
            Self::ClientStall => "client_stall",
        }
    }

    /// The error code.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Connect => "timeout_connect",
            Self::FirstToken => "timeout_first_token",
            Self::InterToken => "timeout_inter_token",
            Self::Total => "timeout_total",
            Self::ClientStall => "timeout_client_stall",
        }
    }
}

/// Why a replica gave no (whole) answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReplicaFailure {
    /// The connection could not be made: nothing was sent.
    #[error("replica {replica} refused the connection")]
    Refused {
        /// Who.
        replica: Arc<str>,
    },
    /// No connection within `timeouts.connect`: nothing was sent.
    #[error("no connection to replica {replica} within {}", Seconds(*.after))]
    ConnectTimeout {
        /// Who.
        replica: Arc<str>,
        /// The deadline.
        after: Duration,
    },
    /// The connection could not be made for another reason: nothing was sent.
    #[error("no connection to replica {replica}: {kind}")]
    Unreachable {
        /// Who.
        replica: Arc<str>,
        /// What kind of error.
        kind: std::io::ErrorKind,
    },
    /// The connection broke before the whole head; the request may have been worked on.
    #[error("replica {replica} closed the connection before the response head")]
    ClosedBeforeHead {
        /// Who.
        replica: Arc<str>,
        /// The request was handed back unwritten.
        is_unsent: bool,
    },
    /// The answer broke off.
    #[error("replica {replica} broke off in the middle of the answer")]
    Truncated {
        /// Who.
        replica: Arc<str>,
    },
    /// The engine said that it is dead or dying.
    #[error("replica {replica} reported that its engine is dead or shutting down")]
    EngineDown {
        /// Who.
        replica: Arc<str>,
    },
    /// The engine reported an error inside the stream.
    #[error("replica {replica} reported an error inside the stream")]
    ErrorEvent {
        /// Who.
        replica: Arc<str>,
    },
    /// 502, 503 or 504 of the replica.
    #[error("replica {replica} answered {status}")]
    Status {
        /// Who.
        replica: Arc<str>,
        /// What.
        status: u16,
    },
    /// Proof that the replica is gone or frozen: silence, and no answer to a probe or no connection.
    #[error("replica {replica} went silent and does not answer any more")]
    Silent {
        /// Who.
        replica: Arc<str>,
    },
    /// Every connection of the replica stayed taken until `timeouts.connect`: nothing was sent.
    #[error("all connections to replica {replica} were taken for {}", Seconds(*.after))]
    NoFreeConnection {
        /// Who.
        replica: Arc<str>,
        /// The deadline.
        after: Duration,
    },
}

impl ReplicaFailure {
    /// Whether it is certain that the replica did not begin to work on the request.
    #[must_use]
    pub fn is_unsent(&self) -> bool {
        match self {
            Self::Refused { .. }
            | Self::ConnectTimeout { .. }
            | Self::Unreachable { .. }
            | Self::NoFreeConnection { .. } => true,
            Self::ClosedBeforeHead { is_unsent, .. } => *is_unsent,
            _ => false,
        }
    }

    /// The label `reason` of `tokenway_retries_total`, and `error.type` of an attempt.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "connect_refused",
            Self::ConnectTimeout { .. } => "timeout_connect",
            Self::Unreachable { .. } => "connect_failed",
            Self::ClosedBeforeHead { .. } => "closed_before_head",
            Self::Truncated { .. } => "truncated",
            Self::EngineDown { .. } => "engine_down",
            Self::ErrorEvent { .. } => "error_event",
            Self::Status { status: 502, .. } => "status_502",
            Self::Status { status: 503, .. } => "status_503",
            Self::Status { .. } => "status_504",
            Self::Silent { .. } => "silent",
            Self::NoFreeConnection { .. } => "no_free_connection",
        }
    }
}

/// Why a request got no answer of a replica, or only a part of one.
#[derive(Clone, Debug, Error)]
pub enum Failure {
    /// The path is not on the allow-list.
    #[error("unknown path; this gateway serves the OpenAI inference paths, see /v1/models for models")]
    UnknownPath,
    /// A listed path, but a method that none of them takes.
    #[error("method not allowed; the allow header names those that are")]
    MethodNotAllowed,
    /// The request breaks HTTP or JSON rules.
    #[error("{message}")]
    BadRequest {
        /// What, where, what to do.
        message: String,
        /// The field, where one is to blame.
        param: Option<&'static str>,
    },
    /// A body with a content coding.
    #[error("request bodies must not be compressed; send content-encoding: identity")]
    UnsupportedEncoding,
    /// An unknown `Expect`.
    #[error("unknown expectation; only 100-continue is supported")]
    ExpectationFailed,
    /// The body is over `server.body_limit`.
    #[error("request body is larger than {limit} bytes (server.body_limit)")]
    BodyTooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// All bodies together are over `server.body_memory`.
    #[error("too many request bodies in memory (server.body_memory); try again later")]
    BodyMemory,
    /// The client stopped sending its body.
    #[error("the request body stopped for {} (timeouts.client_stall)", Seconds(*.after))]
    BodyStalled {
        /// The deadline.
        after: Duration,
    },
    /// No key, or a wrong one.
    #[error("{message}")]
    InvalidKey {
        /// Which of the two, and where keys go.
        message: String,
    },
    /// No `model` where the dialect needs one.
    #[error("you must provide a model parameter")]
    MissingModel,
    /// No route for the model, or the tenant may not use it.
    #[error("the model `{model}` does not exist or you do not have access to it; GET /v1/models lists them")]
    ModelNotFound {
        /// As the client wrote it, bounded.
        model: String,
    },
    /// `previous_response_id` is unknown here.
    #[error(
        "the previous response was not made through this gateway or its replica is gone; send the whole input"
    )]
    PreviousResponseNotFound,
    /// Nobody can serve the route now.
    #[error("no ready replica for route {route}: {detail}")]
    NoReadyReplica {
        /// The route.
        route: Arc<str>,
        /// States of its replicas, counted.
        detail: String,
        /// When a probe may have changed that.
        retry_after: Duration,
    },
    /// Nobody can answer in time, and a limit of the route's queue speaks against waiting.
    #[error("{message}")]
    NotAdmitted {
        /// Key of the limit in `[route.queue]`: the error code.
        limit: &'static str,
        /// The limit and the numbers.
        message: String,
        /// Predicted time until there is room.
        retry_after: Duration,
    },
    /// The gateway is going down.
    #[error("the gateway is shutting down; send the request to another one")]
    Draining,
    /// The prompt coincided with two replica deaths.
    #[error("this prompt was in flight at two replica crashes and is refused for {} s", .retry_after.as_secs())]
    SuspectedPoison {
        /// Until it is tried again.
        retry_after: Duration,
    },
    /// The head is no HTTP/1.1 (RFC 9112).
    #[error(
        "the request head is no valid HTTP (RFC 9112): check the request line, the header names and values, and that \
         content-length and transfer-encoding agree; the connection was closed"
    )]
    MalformedHead,
    /// The request target is longer than hyper reads.
    #[error("the request target is over 65534 bytes; what is long belongs into the body")]
    UriTooLong,
    /// Too many headers, or too long ones.
    #[error("the request head has over 100 headers or 64 KiB; send fewer or shorter ones")]
    HeadTooLarge,
    /// A loop of proxies.
    #[error("this request already passed through this gateway; check the upstream URLs")]
    Loop,
    /// A deadline.
    #[error("no {} within {} (timeouts.{})", what(*.timer), Seconds(*.after), .timer.as_str())]
    Timeout {
        /// Which.
        timer: Timer,
        /// Its length.
        after: Duration,
    },
    /// A replica failed and nobody else could help.
    #[error("{0}")]
    Replica(ReplicaFailure),
    /// The stream was cut at the end of the drain.
    #[error("the gateway shut down before the answer was complete (server.drain_timeout)")]
    DrainCut,
    /// Our own fault.
    #[error("internal error of the gateway; the log tells more under this request id")]
    Internal,
}

impl Failure {
    /// A 400 with a field.
    #[must_use]
    pub fn bad_request(message: impl Into<String>, param: Option<&'static str>) -> Self {
        Self::BadRequest { message: message.into(), param }
    }

    /// Status, code and type (`error.type` of the OpenAI shape).
    fn row(&self) -> (StatusCode, &'static str, &'static str) {
        const INVALID: &str = "invalid_request_error";
        const OVERLOADED: &str = "overloaded_error";
        use StatusCode as S;
        match self {
            Self::UnknownPath => (S::NOT_FOUND, "unknown_path", INVALID),
            Self::MalformedHead => (S::BAD_REQUEST, "malformed_head", INVALID),
            Self::UriTooLong => (S::URI_TOO_LONG, "uri_too_long", INVALID),
            Self::HeadTooLarge => (S::REQUEST_HEADER_FIELDS_TOO_LARGE, "head_too_large", INVALID),
            Self::MethodNotAllowed => (S::METHOD_NOT_ALLOWED, "method_not_allowed", INVALID),
            Self::BadRequest { .. } => (S::BAD_REQUEST, "invalid_request", INVALID),
            Self::UnsupportedEncoding => (S::UNSUPPORTED_MEDIA_TYPE, "unsupported_encoding", INVALID),
            Self::ExpectationFailed => (S::EXPECTATION_FAILED, "expectation_failed", INVALID),
            Self::BodyTooLarge { .. } => (S::PAYLOAD_TOO_LARGE, "body_limit", INVALID),
            Self::BodyMemory => (S::SERVICE_UNAVAILABLE, "body_memory", OVERLOADED),
            Self::BodyStalled { .. } => (S::REQUEST_TIMEOUT, "timeout_client_stall", "timeout_error"),
            Self::InvalidKey { .. } => (S::UNAUTHORIZED, "invalid_api_key", "authentication_error"),
            Self::MissingModel => (S::BAD_REQUEST, "missing_model", INVALID),
            Self::ModelNotFound { .. } => (S::NOT_FOUND, "model_not_found", INVALID),
            Self::PreviousResponseNotFound => (S::NOT_FOUND, "previous_response_not_found", INVALID),
            Self::NoReadyReplica { .. } => (S::SERVICE_UNAVAILABLE, "no_ready_replica", OVERLOADED),
            Self::NotAdmitted { limit, .. } => (S::TOO_MANY_REQUESTS, limit, "rate_limit_error"),
            Self::Draining => (S::SERVICE_UNAVAILABLE, "draining", OVERLOADED),
            Self::SuspectedPoison { .. } => (S::SERVICE_UNAVAILABLE, "suspected_poison", OVERLOADED),
            Self::Loop => (S::LOOP_DETECTED, "loop_detected", INVALID),
            Self::Timeout { timer, .. } => (S::GATEWAY_TIMEOUT, timer.code(), "timeout_error"),
            Self::Replica(
                ReplicaFailure::ConnectTimeout { .. } | ReplicaFailure::NoFreeConnection { .. },
            ) => (S::GATEWAY_TIMEOUT, Timer::Connect.code(), "timeout_error"),
            Self::Replica(_) => (S::BAD_GATEWAY, "replica_failed", "upstream_error"),
            Self::DrainCut => (S::SERVICE_UNAVAILABLE, "drain_timeout", OVERLOADED),
            Self::Internal => (S::INTERNAL_SERVER_ERROR, "internal_error", "upstream_error"),
        }
    }

    /// Status of the response.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.row().0
    }

    /// Error code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.row().1
    }

    /// `error.type` in a dialect's words: what OpenAI clients call `upstream_error` Anthropic's call `api_error`.
    #[must_use]
    pub fn kind(&self, shape: ErrorShape) -> &'static str {
        match (self.row().2, shape) {
            ("upstream_error", ErrorShape::Anthropic) => "api_error",
            (kind, _) => kind,
        }
    }

    /// The deadline that fired, if one did.
    #[must_use]
    pub fn timer(&self) -> Option<Timer> {
        match self {
            Self::Timeout { timer, .. } => Some(*timer),
            Self::BodyStalled { .. } => Some(Timer::ClientStall),
            Self::Replica(
                ReplicaFailure::ConnectTimeout { .. } | ReplicaFailure::NoFreeConnection { .. },
            ) => Some(Timer::Connect),
            _ => None,
        }
    }

    /// When to come back, where waiting helps.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::NoReadyReplica { retry_after, .. }
            | Self::NotAdmitted { retry_after, .. }
            | Self::SuspectedPoison { retry_after } => Some(*retry_after),
            Self::BodyMemory | Self::Draining => Some(Duration::from_secs(1)),
            _ => None,
        }
    }

    /// The field to blame (OpenAI's `param`).
    #[must_use]
    pub fn param(&self) -> Option<&'static str> {
        match self {
            Self::BadRequest { param, .. } => *param,
            Self::MissingModel | Self::ModelNotFound { .. } => Some("model"),
            Self::PreviousResponseNotFound => Some("previous_response_id"),
            _ => None,
        }
    }

    /// The JSON body in a dialect's shape.
    #[must_use]
    pub fn body(&self, shape: ErrorShape) -> String {
        let (kind, message) = (self.kind(shape), self.to_string());
        match shape {
            ErrorShape::OpenAi => json!({
                "error": { "message": message, "type": kind, "param": self.param(), "code": self.code() }
            }),
            ErrorShape::Anthropic => {
                json!({ "type": "error", "error": { "type": kind, "message": message } })
            }
        }
        .to_string()
    }

    /// Headers that belong to the error itself.
    pub fn write_headers(&self, headers: &mut http::HeaderMap) {
        if let Some(wait) = self.retry_after() {
            // Whole seconds, rounded up: RFC 9110 §10.2.3 knows no fractions.
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        match self {
            Self::MethodNotAllowed => {
                headers.insert(header::ALLOW, HeaderValue::from_static("GET, HEAD, OPTIONS, POST"));
            }
            Self::InvalidKey { .. } => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            // The rest of such a body is never read, so the connection cannot be used again.
            Self::BodyTooLarge { .. } | Self::BodyMemory | Self::BodyStalled { .. } => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
    }
}

/// A duration as people write it in configuration: seconds with what is needed of fractions.
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
        Timer::Total => "complete answer",
        Timer::ClientStall => "progress of the client",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn anthropic_clients_see_api_error_for_a_failed_replica() {
        let failure = Failure::Replica(ReplicaFailure::Truncated { replica: "a".into() });
        let body: serde_json::Value = serde_json::from_str(&failure.body(ErrorShape::Anthropic)).unwrap();
        assert_eq!(body["type"], "error");
        assert_eq!(body["error"]["type"], "api_error");
        assert_eq!(failure.status(), 502);
    }

    #[test]
    fn retry_after_is_whole_seconds_rounded_up() {
        let failure = Failure::NoReadyReplica {
            route: "chat".into(),
            detail: "2 ejected".into(),
            retry_after: Duration::from_millis(1200),
        };
        let mut headers = http::HeaderMap::new();
        failure.write_headers(&mut headers);
        assert_eq!(headers[header::RETRY_AFTER], "2");
    }
}
