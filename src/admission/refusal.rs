//! Refusals by admission: the limit that was exceeded, with the figures for the error message.
//!
//! [`crate::error`] decides status, headers and body.

use std::time::Duration;

use thiserror::Error;

use crate::error::Failure;

/// A request that is not let in, and when it may come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub exceeded: Exceeded,
    /// `Retry-After`, 1 to 60 s.
    pub retry_after: Duration,
}

/// A limit that a request would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Exceeded {
    /// The route's queue holds `max_requests`.
    #[error(
        "no replica can answer in time now, and {waiting} requests wait already (route.queue.max_requests = {max})"
    )]
    MaxRequests {
        /// Requests waiting.
        waiting: usize,
        /// `max_requests`.
        max: usize,
    },
    /// The route's queue would hold more than `max_bytes`.
    #[error(
        "no replica can answer in time now, and {waiting} bytes of requests wait already, {own} more would be over \
         {max} (route.queue.max_bytes)"
    )]
    MaxBytes {
        /// Bytes of the bodies waiting.
        waiting: usize,
        /// Bytes of this request's body.
        own: usize,
        /// `max_bytes`.
        max: usize,
    },
    /// Its predicted wait exceeds `max_wait`.
    #[error(
        "no replica has room for the next {:.1} s, and a request waits {:.1} s at most (route.queue.max_wait)",
        .wait.as_secs_f64(), .max.as_secs_f64()
    )]
    TooLong {
        /// Predicted wait.
        wait: Duration,
        /// `max_wait`.
        max: Duration,
    },
    /// Its predicted wait exceeds what its bound on TTFT leaves.
    #[error(
        "no replica has room for the next {:.2} s, and its time to first token is bounded by {:.2} s, of which {:.2} s \
         are left to wait (the SLO class's ttft)",
        .wait.as_secs_f64(), .bound.as_secs_f64(), .slack.as_secs_f64()
    )]
    Late {
        /// Predicted wait.
        wait: Duration,
        /// The longest wait with which it could be answered in time.
        slack: Duration,
        /// Its bound on TTFT.
        bound: Duration,
    },
    /// It has waited until no replica could answer it in time.
    #[error(
        "no replica had room while its first token could have come within {:.2} s (the SLO class's ttft)",
        .bound.as_secs_f64()
    )]
    WaitedLate {
        /// Its bound on TTFT.
        bound: Duration,
    },
    /// It has waited for `max_wait` and could not be placed.
    #[error(
        "no replica had room within {:.1} s of waiting (route.queue.max_wait){}",
        .max.as_secs_f64(), another(*.wait)
    )]
    Waited {
        /// `max_wait`.
        max: Duration,
        /// Predicted remaining wait.
        wait: Duration,
    },
}

/// Nothing where the queue is predicted to be through: it has waited for something else.
fn another(wait: Duration) -> String {
    let seconds = wait.as_secs_f64();
    if seconds < 0.05 { String::new() } else { format!("; predicted are another {seconds:.1} s") }
}

impl Exceeded {
    /// The limit's key, used as the error code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::MaxRequests { .. } => "max_requests",
            Self::MaxBytes { .. } => "max_bytes",
            Self::TooLong { .. } | Self::Waited { .. } => "max_wait",
            Self::Late { .. } | Self::WaitedLate { .. } => "ttft",
        }
    }
}

impl From<Refusal> for Failure {
    fn from(Refusal { exceeded, retry_after }: Refusal) -> Self {
        Self::NotAdmitted {
            limit: exceeded.code(),
            message: exceeded.to_string(),
            retry_after: Some(retry_after),
        }
    }
}
