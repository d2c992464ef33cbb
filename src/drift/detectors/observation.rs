//! What the detectors are fed: one value for each ended request.
//!
//! Seconds throughout, wall-clock seconds for `at`, because hours of the day are looked at. A field that is not known
//! is `None` and never zero. Live code and recorded traces fill the same value.

use crate::record::Outcome;

/// One ended request, as far as drift cares.
#[derive(Clone, Copy, Debug)]
pub struct Observation<'a> {
    /// When it ended, in seconds; any epoch whose days start at midnight UTC.
    pub at: f64,
    /// Route name.
    pub route: &'a str,
    /// Revision that served it.
    pub revision: &'a str,
    /// Replica that served it.
    pub replica: &'a str,
    /// Time to first token.
    pub ttft: Option<f64>,
    /// The stream's own inter-token latency.
    pub itl: Option<f64>,
    /// What TTFT had been predicted.
    pub predicted: Option<f64>,
    /// The SLO's bound on TTFT for this request.
    pub ttft_bound: Option<f64>,
    /// How it ended.
    pub outcome: Outcome,
}

impl Observation<'_> {
    /// Whether it counts against availability; `None` where it says nothing about it.
    pub(super) fn is_bad(&self) -> Option<bool> {
        match self.outcome {
            Outcome::Ok => Some(false),
            Outcome::Failed | Outcome::Refused => Some(true),
            // The client's own doing.
            Outcome::ClientError | Outcome::Canceled => None,
        }
    }
}
