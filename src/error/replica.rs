//! Failures of replicas, as attempts see them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::Seconds;

/// Why a replica gave no complete response.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReplicaFailure {
    /// The connect was refused: nothing was sent.
    #[error("replica {replica} refused the connection")]
    Refused { replica: Arc<str> },
    /// No connection within `timeouts.connect`: nothing was sent.
    #[error("no connection to replica {replica} within {}", Seconds(*.after))]
    ConnectTimeout { replica: Arc<str>, after: Duration },
    /// Connecting failed otherwise: nothing was sent.
    #[error("no connection to replica {replica}: {kind}")]
    Unreachable { replica: Arc<str>, kind: std::io::ErrorKind },
    /// The connection closed before the response head.
    #[error("replica {replica} closed the connection before the response head")]
    ClosedBeforeHead { replica: Arc<str>, closed: Closed },
    /// The response ended early.
    #[error("replica {replica} broke off in the middle of the answer")]
    Truncated { replica: Arc<str> },
    /// The engine reported that it is dead or shutting down.
    #[error("replica {replica} reported that its engine is dead or shutting down")]
    EngineDown {
        replica: Arc<str>,
        /// It shuts down, as asked to.
        is_orderly: bool,
    },
    /// The engine reported an error in a stream, or as the body of a success.
    #[error("replica {replica} reported an error under status 200")]
    ErrorEvent { replica: Arc<str> },
    /// The replica responded with a status that speaks against it.
    #[error("replica {replica} answered {status}")]
    Status { replica: Arc<str>, status: u16 },
    /// The replica answered with a redirect, or with success and neither events nor JSON.
    #[error("replica {replica} answered {content_type} in place of a stream or JSON")]
    NotAnAnswer {
        replica: Arc<str>,
        /// As the replica named it, cut; else the status.
        content_type: Box<str>,
    },
    /// The replica answered a request for a stream whole, when the head of a stream was out (`server.heartbeat`).
    #[error("replica {replica} answered {content_type} where a stream had begun")]
    NotAStream {
        replica: Arc<str>,
        /// As above.
        content_type: Box<str>,
    },
    /// The stream was silent, and the replica refused a connect or did not answer a probe.
    #[error("replica {replica} went silent and does not answer any more")]
    Silent { replica: Arc<str> },
    /// Streams that a proxy carries end half way more often than at its peers; of one alone it is not known who ended it.
    #[error("streams of replica {replica} end half way more often than those of its pool's others")]
    EndsEarly { replica: Arc<str> },
    /// The answer was whole and had no content, where another replica's answer to the same prompt has some.
    #[error("replica {replica} answered with no text what another answered with some")]
    EmptyAnswer { replica: Arc<str> },
    /// The answer was a refusal of the request as wrong, which another replica of the pool answered.
    #[error("replica {replica} refused with {status} a request that another answered")]
    RefusedAlone { replica: Arc<str>, status: u16 },
    /// The response head cannot be relayed: its framing has two readings, or it switches protocols.
    #[error("replica {replica} {what}")]
    InvalidHead { replica: Arc<str>, what: &'static str },
    /// The proxy that carries the request took it elsewhere: this replica refused it, failed, or is not among the proxy's endpoints.
    #[error("the proxy took the request to {served} in place of replica {replica}")]
    Bypassed { replica: Arc<str>, served: SocketAddr },
    /// The replica's connection pool was exhausted for `timeouts.connect`: nothing was sent.
    #[error(
        "all connections to replica {replica} were taken for {}; raise pool.max_connections, or timeouts.connect to wait longer",
        Seconds(*.after)
    )]
    NoFreeConnection { replica: Arc<str>, after: Duration },
}

/// What the engine did when it closed a connection before the response head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// It had closed before anything was written.
    Unsent,
    /// It was closing an idle connection when the request came; new ones it takes.
    Idle,
    /// It may have started on the request.
    Asked,
}

impl ReplicaFailure {
    /// Whether the request was certainly not sent.
    pub fn is_unsent(&self) -> bool {
        match self {
            Self::Refused { .. }
            | Self::ConnectTimeout { .. }
            | Self::Unreachable { .. }
            | Self::NoFreeConnection { .. } => true,
            Self::ClosedBeforeHead { closed, .. } => *closed == Closed::Unsent,
            _ => false,
        }
    }

    /// Whether the replica answered that it does not have a model that its pool's others list.
    pub fn is_missing_model(&self) -> bool {
        matches!(self, Self::Status { status: 404, .. })
    }

    /// Whether the end of an idle connection was all that happened, which says nothing against the replica.
    pub fn is_idle_close(&self) -> bool {
        matches!(self, Self::ClosedBeforeHead { closed: Closed::Unsent | Closed::Idle, .. })
    }

    /// Whether the replica turned the request away at once, as a full queue does.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Status { status: 429 | 503, .. })
    }

    /// Whether a process that crashes breaks its requests like this.
    pub fn may_be_a_crash(&self) -> bool {
        matches!(
            self,
            Self::ClosedBeforeHead { closed: Closed::Asked, .. }
                | Self::Truncated { .. }
                | Self::EngineDown { is_orderly: false, .. }
        )
    }

    /// The label `reason` of `tokenway_retries_total`, and `error.type` of an attempt.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "connect_refused",
            Self::ConnectTimeout { .. } => "timeout_connect",
            Self::Unreachable { .. } => "connect_failed",
            Self::ClosedBeforeHead { .. } => "closed_before_head",
            Self::Truncated { .. } | Self::EndsEarly { .. } => "truncated",
            Self::EngineDown { .. } => "engine_down",
            Self::ErrorEvent { .. } => "error_event",
            Self::Status { status: 502, .. } => "status_502",
            Self::Status { status: 503, .. } => "status_503",
            Self::Status { status: 504, .. } => "status_504",
            Self::Status { .. } => "status",

            Self::NotAnAnswer { .. } | Self::NotAStream { .. } => "not_an_answer",
            Self::Silent { .. } => "silent",
            Self::EmptyAnswer { .. } => "empty_answer",
            Self::RefusedAlone { .. } => "refused_alone",
            Self::InvalidHead { .. } => "invalid_head",
            Self::Bypassed { .. } => "bypassed",
            Self::NoFreeConnection { .. } => "no_free_connection",
        }
    }
}
