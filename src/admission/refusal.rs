//! Why a request was refused: the limit that it would exceed, with the numbers for its client.
//!
//! What a refusal looks like on the wire is decided in [`crate::error`].

use std::time::Duration;

use thiserror::Error;

use crate::error::Failure;

/// A limit of `[route.queue]` that a request would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The lane is full.
    #[error(
        "no replica can answer in time now, and {waiting} requests wait already (route.queue.max_requests = {max})"
    )]
    MaxRequests {
        /// Requests in the lane.
        waiting: usize,
        /// The limit.
        max: usize,
        /// Until there may be room.
        retry_after: Duration,
    },
    /// The lane holds as many bytes as it may.
    #[error(
        "no replica can answer in time now, and {waiting} bytes of requests wait already, {own} more would be over \
         {max} (route.queue.max_bytes)"
    )]
    MaxBytes {
        /// Bytes in the lane.
        waiting: usize,
        /// Bytes of this request.
        own: usize,
        /// The limit.
        max: usize,
        /// Until there may be room.
        retry_after: Duration,
    },
    /// Its predicted wait is too long.
    #[error(
        "no replica can answer in time for the next {:.1} s, and a request waits {:.1} s at most (route.queue.max_wait)",
        .drain.as_secs_f64(), .max.as_secs_f64()
    )]
    TooLong {
        /// How long it would be.
        drain: Duration,
        /// The limit.
        max: Duration,
        /// Until there may be room.
        retry_after: Duration,
    },
    /// It has waited for `max_wait`.
    #[error(
        "no replica could answer in time within {:.1} s of waiting (route.queue.max_wait); predicted are another {:.1} s",
        .max.as_secs_f64(), .drain.as_secs_f64()
    )]
    Waited {
        /// The limit.
        max: Duration,
        /// What was predicted last.
        drain: Duration,
        /// Until there may be room.
        retry_after: Duration,
    },
}

impl Refusal {
    /// The key of the limit: the error code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::MaxRequests { .. } => "max_requests",
            Self::MaxBytes { .. } => "max_bytes",
            Self::TooLong { .. } | Self::Waited { .. } => "max_wait",
        }
    }

    /// When to come back.
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
