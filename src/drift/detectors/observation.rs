//! What the detectors take: one value for each ended request, live or from a recorded trace.
//!
//! Durations are in seconds. What is unknown is `None`, never zero.

use crate::record::Outcome;

/// Revision and replica of a request that was not served.
pub const NOT_SERVED: &str = "none";

/// One ended request.
#[derive(Clone, Copy, Debug)]
pub struct Observation<'a> {
    /// When it ended: seconds since an epoch whose days start at midnight UTC, because hours of the day are compared.
    pub at: f64,
    /// Route name.
    pub route: &'a str,
    /// Revision that served it, or [`NOT_SERVED`].
    pub revision: &'a str,
    /// Replica that served it, or [`NOT_SERVED`].
    pub replica: &'a str,
    /// Time to first token.
    pub ttft: Option<f64>,
    /// Mean inter-token latency of the stream.
    pub itl: Option<f64>,
    /// Tokens of its prompt.
    pub prompt: Option<f64>,
    /// Predicted TTFT.
    pub predicted: Option<f64>,
    /// The SLO's bound on TTFT for this request.
    pub ttft_bound: Option<f64>,
    /// How it ended.
    pub outcome: Outcome,
}

impl Observation<'_> {
    /// Whether it counts against availability; `None` where it does not count.
    pub(super) fn is_bad(&self) -> Option<bool> {
        match self.outcome {
            Outcome::Ok => Some(false),
            Outcome::Failed | Outcome::Refused => Some(true),
            // Caused by the client.
            Outcome::ClientError | Outcome::Canceled => None,
        }
    }
}
