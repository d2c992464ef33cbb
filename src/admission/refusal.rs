//! Refusals by admission: the limit of `[route.queue]` that was exceeded, with the figures for the error message.
//!
//! [`crate::error`] decides status, headers and body.

use std::time::Duration;

use thiserror::Error;

use crate::error::Failure;

/// A limit of `[route.queue]` that a request would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The lane holds `max_requests`.
    #[error(
        "no replica can answer in time now, and {waiting} requests wait already (route.queue.max_requests = {max})"
    )]
    MaxRequests {
        /// Requests waiting in the lane.
        waiting: usize,
        /// `max_requests`.
        max: usize,
        /// `Retry-After`.
        retry_after: Duration,
    },
    /// The lane would hold more than `max_bytes`.
    #[error(
        "no replica can answer in time now, and {waiting} bytes of requests wait already, {own} more would be over \
         {max} (route.queue.max_bytes)"
    )]
    MaxBytes {
        /// Bytes of the bodies waiting in the lane.
        waiting: usize,
        /// Bytes of this request's body.
        own: usize,
        /// `max_bytes`.
        max: usize,
        /// `Retry-After`.
        retry_after: Duration,
    },
    /// Its predicted wait exceeds `max_wait`.
    #[error(
        "no replica can answer in time for the next {:.1} s, and a request waits {:.1} s at most (route.queue.max_wait)",
        .drain.as_secs_f64(), .max.as_secs_f64()
    )]
    TooLong {
        /// Predicted wait.
        drain: Duration,
        /// `max_wait`.
        max: Duration,
        /// `Retry-After`.
        retry_after: Duration,
    },
    /// It has waited for `max_wait` and could not be placed.
    #[error(
        "no replica could answer in time within {:.1} s of waiting (route.queue.max_wait); predicted are another {:.1} s",
        .max.as_secs_f64(), .drain.as_secs_f64()
    )]
    Waited {
        /// `max_wait`.
        max: Duration,
        /// Predicted remaining wait.
        drain: Duration,
        /// `Retry-After`.
        retry_after: Duration,
    },
}

impl Refusal {
    /// The limit's key under `[route.queue]`, used as the error code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::MaxRequests { .. } => "max_requests",
            Self::MaxBytes { .. } => "max_bytes",
            Self::TooLong { .. } | Self::Waited { .. } => "max_wait",
        }
    }

    /// Seconds of `Retry-After`, 1 to 60.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        match self {
            Self::MaxRequests { retry_after, .. }
            | Self::MaxBytes { retry_after, .. }
            | Self::TooLong { retry_after, .. }
            | Self::Waited { retry_after, .. } => *retry_after,
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::NotAdmitted {
            limit: refusal.code(),
            message: refusal.to_string(),
            retry_after: refusal.retry_after(),
        }
    }
}
