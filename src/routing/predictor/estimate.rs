//! What a predictor has published: a few numbers, and the prediction they make for one request.
//!
//! Plain values, copied once per candidate and decision. Policies know no more of prediction than
//! [`Estimate::terms`] and [`Estimate::ttft`]: a better model changes this file and its teacher, not them.

use std::time::Duration;

use super::fit::Line;
use crate::routing::foreign::Foreign;
use crate::routing::load::LoadView;
use crate::units::Tokens;

/// What is known of a replica's speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    pub(super) line: Line,
    /// Seconds that a request holds its place in the batch.
    pub(super) service: f64,
    /// Uncached tokens of a request that we know nothing else of.
    pub(super) mean_uncached: f64,
}

/// What a prediction is made of; it travels with the request, so that its answer can be learned from.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Terms {
    /// Prompt tokens of others that are computed first.
    pub ahead: Tokens,
    /// Own prompt tokens to compute.
    pub uncached: Tokens,
    /// Expected wait for a place in a full batch.
    pub slot_wait: Duration,
}

/// The queue at a replica, when a request is to be placed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue<'a> {
    pub(crate) own: &'a LoadView,
    pub(crate) foreign: &'a Foreign,
    /// Sequences that the engine runs at once, where known.
    pub(crate) batch_limit: Option<u64>,
}

impl Estimate {
    /// What a request with `uncached` tokens to compute would meet at this replica.
    pub(crate) fn terms(&self, queue: &Queue<'_>, uncached: Tokens) -> Terms {
        let foreign = Tokens((queue.foreign.waiting * self.mean_uncached) as u64);
        Terms { ahead: queue.own.waiting_tokens + foreign, uncached, slot_wait: self.slot_wait(queue) }
    }

    /// Predicted time from the decision to the first token.
    #[must_use]
    pub fn ttft(&self, terms: &Terms) -> Duration {
        let tokens = terms.ahead + terms.uncached;
        span(self.line.at(tokens.0 as f64)) + terms.slot_wait
    }

    /// Time to compute so many prompt tokens.
    #[must_use]
    pub fn prefill(&self, tokens: Tokens) -> Duration {
        span(self.line.per_token * tokens.0 as f64)
    }

    /// Time to first token of an empty prompt at an idle replica.
    #[must_use]
    pub fn base(&self) -> Duration {
        span(self.line.base)
    }

    /// A full batch gives a place free every `service / limit`; whoever stands further back waits for more.
    fn slot_wait(&self, queue: &Queue<'_>) -> Duration {
        let Some(limit) = queue.batch_limit.filter(|limit| *limit > 0) else { return Duration::ZERO };
        let present = queue.own.inflight as f64 + queue.foreign.requests;
        let behind = (present + 1.0 - limit as f64).max(0.0);
        span(behind * self.service / limit as f64)
    }
}

/// A duration from computed seconds, never a panic: beyond [`LONGEST`] nothing matters.
fn span(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).map_or(LONGEST, |span| span.min(LONGEST))
}

/// Longer than any deadline.
const LONGEST: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate() -> Estimate {
        Estimate { line: Line { base: 0.02, per_token: 1e-3 }, service: 4.0, mean_uncached: 100.0 }
    }

    fn own(inflight: u64, waiting_tokens: u64) -> LoadView {
        LoadView { inflight, awaiting: inflight, waiting_tokens: Tokens(waiting_tokens) }
    }

    #[test]
    fn work_ahead_own_work_and_a_full_batch_add_up() {
        let none = Foreign::default();
        let others = Foreign { requests: 6.0, waiting: 2.0 };
        let cases = [
            ("idle", own(0, 0), none, Some(8), 30, 50),
            ("behind our own prompts", own(2, 500), none, Some(8), 30, 550),
            ("behind other gateways' too", own(1, 500), others, Some(8), 30, 750),
            ("two wait for one of eight places", own(3, 0), others, Some(8), 30, 250 + 2 * 500),
            ("no limit known", own(300, 0), none, None, 30, 50),
        ];
        for (name, own, foreign, batch_limit, uncached, expected_ms) in cases {
            let queue = Queue { own: &own, foreign: &foreign, batch_limit };
            let terms = estimate().terms(&queue, Tokens(uncached));
            assert_eq!(estimate().ttft(&terms), Duration::from_millis(expected_ms), "{name}");
        }
    }

    #[test]
    fn absurd_work_is_an_hour_not_a_panic() {
        let terms = Terms { ahead: Tokens(u64::MAX), ..Terms::default() };
        assert_eq!(estimate().ttft(&terms), LONGEST);
        assert_eq!(span(f64::NAN), Duration::ZERO);
    }
}
