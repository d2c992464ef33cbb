//! What the detectors take: one value for each ended request, live or from a recorded trace.
//!
//! Durations are in seconds. What is unknown is `None`, never zero.

use std::sync::Arc;

use crate::record::Outcome;

/// Revision and replica of a request that was not served: no replica, so none is compared for it.
pub const NOT_SERVED: &str = "none";

/// Mean inter-token latency of an answer in one piece: what is beyond its predicted first token, by token.
pub fn itl_of_whole(seconds: f64, predicted: Option<f64>, output_tokens: Option<f64>) -> Option<f64> {
    let rest = seconds - predicted.unwrap_or(0.0);
    output_tokens.filter(|tokens| *tokens > 0.0 && rest > 0.0).map(|tokens| rest / tokens)
}

/// One ended request.
#[derive(Clone, Copy, Debug)]
pub struct Observation<'a> {
    /// When it ended: seconds since an epoch whose days start at midnight UTC, because hours of the day are compared.
    pub at: f64,
    /// Route name.
    pub route: &'a str,
    /// Revision that served it, or [`NOT_SERVED`].
    pub revision: &'a str,
    /// Its pool takes traffic only while others cannot: their baseline is not its own, nor its theirs.
    pub is_standby: bool,
    /// Replica of the last attempt, or [`NOT_SERVED`].
    pub replica: &'a str,
    /// Replica that is charged with its time to first token, where that is another: one that took most of it and failed.
    pub waited_at: Option<&'a str>,
    /// Replicas of attempts that failed before the last.
    pub failed_at: &'a [Arc<str>],
    /// Time to first token; of an answer that is no stream and has no tokens (embeddings, scores) to the answer.
    pub ttft: Option<f64>,
    /// Mean inter-token latency, of a stream or of an answer in one piece.
    pub itl: Option<f64>,
    /// Tokens of its prompt.
    pub prompt: Option<f64>,
    /// Predicted TTFT.
    pub predicted: Option<f64>,
    /// How slow the replica is in that prediction; 1 is the pool's speed.
    pub pace: f64,
    /// The SLO's bound on TTFT for this request, and for an empty prompt.
    pub ttft_bound: Option<(f64, f64)>,
    /// How it ended.
    pub outcome: Outcome,
}

impl Observation<'_> {
    /// A good request of which nothing is known but its end.
    #[cfg(test)]
    pub(super) fn of<'a>(route: &'a str, revision: &'a str, at: f64) -> Observation<'a> {
        Observation {
            at,
            route,
            revision,
            is_standby: false,
            replica: NOT_SERVED,
            waited_at: None,
            failed_at: &[],
            ttft: None,
            itl: None,
            prompt: None,
            predicted: None,
            pace: 1.0,
            ttft_bound: None,
            outcome: Outcome::Ok,
        }
    }

    /// Factor that takes a TTFT to that of an empty prompt by the SLO: longer prompts, which may take longer, are no drift.
    pub(super) fn scale(&self) -> f64 {
        self.ttft_bound.filter(|(bound, _)| *bound > 0.0).map_or(1.0, |(bound, base)| base / bound)
    }

    /// TTFT over what this work takes at the pool's speed.
    pub(super) fn residual(&self) -> Option<f64> {
        Some(self.ttft? * self.pace / self.predicted.filter(|predicted| *predicted > 0.0)?)
    }

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
