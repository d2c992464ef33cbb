//! What an engine's cache counters say of the hits that were promised, where its answers do not tell.
//!
//! Answers name their cached tokens only if the engine was told to (vLLM: `--enable-prompt-tokens-details`); its metrics page has
//! sums in any case. Between two pages the share of prompt tokens that it found is held against the share that our requests
//! were promised. Requests of others are taken to be like ours. A falling counter is another process: it says nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::float::sane_total;
use crate::routing::tuning::memories;
use crate::units::Tokens;

/// The prefix cache by an engine's page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CacheFigures {
    /// Prompt tokens looked up since its start, and those found.
    Totals {
        /// Looked up.
        queries: f64,
        /// Found.
        hits: f64,
    },
    /// The share that was found of late.
    Share(f64),
}

/// What was promised of one replica's cache since the last comparison.
#[derive(Debug, Default)]
pub(super) struct CacheCounters {
    requests: AtomicU64,
    prompt: AtomicU64,
    promised: AtomicU64,
    /// Queries and hits at the last comparison.
    before: Mutex<Option<[f64; 2]>>,
}

/// Means over requests: what one was promised and what it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CacheReport {
    pub(super) requests: u64,
    pub(super) promised: Tokens,
    pub(super) found: Tokens,
}

impl CacheCounters {
    /// A prompt was sent, so much of which is believed to be cached.
    #[inline]
    pub(super) fn sent(&self, prompt: Tokens, promised: Tokens) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.prompt.fetch_add(prompt.0, Ordering::Relaxed);
        self.promised.fetch_add(promised.0, Ordering::Relaxed);
    }

    /// A new page: compares once there is enough to compare.
    pub(super) fn compare(&self, figures: CacheFigures) -> Option<CacheReport> {
        let requests = self.requests.load(Ordering::Relaxed);
        if requests < u64::from(memories::ENOUGH_ANSWERS) {
            return None;
        }
        let share = match figures {
            CacheFigures::Share(share) => Some(share),
            CacheFigures::Totals { queries, hits } => self.share_since(queries, hits),
        };
        let [prompt, promised] = [&self.prompt, &self.promised].map(|sum| sum.swap(0, Ordering::Relaxed));
        self.requests.fetch_sub(requests, Ordering::Relaxed);
        let share = share.filter(|share| (0.0..=1.0).contains(share))?;
        let found = (share * prompt as f64) as u64;
        Some(CacheReport {
            requests,
            promised: Tokens(promised / requests),
            // Beyond what was promised others may have hit; that is nobody's merit here.
            found: Tokens(found.min(promised) / requests),
        })
    }

    /// Another process.
    pub(super) fn restarted(&self) {
        *self.before.lock() = None;
    }

    fn share_since(&self, queries: f64, hits: f64) -> Option<f64> {
        let now = [sane_total(queries)?, sane_total(hits)?];
        let before = self.before.lock().replace(now)?;
        let (looked_up, found) = (now[0] - before[0], now[1] - before[1]);
        (looked_up > 0.0 && found >= 0.0).then(|| found / looked_up)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(queries: f64, hits: f64) -> CacheFigures {
        CacheFigures::Totals { queries, hits }
    }

    fn sent(counters: &CacheCounters, requests: u64) {
        (0..requests).for_each(|_| counters.sent(Tokens(1000), Tokens(800)));
    }

    #[test]
    fn the_share_between_two_pages_is_held_against_what_was_promised() {
        let counters = CacheCounters::default();
        sent(&counters, 40);
        assert_eq!(counters.compare(totals(5e6, 4e6)), None, "nothing to compare the first page with");
        sent(&counters, 10);
        assert_eq!(counters.compare(totals(5e6, 4e6)), None, "too few requests");
        sent(&counters, 30);
        let report = counters.compare(totals(5.04e6, 4.01e6)).unwrap();
        assert_eq!(report, CacheReport { requests: 40, promised: Tokens(800), found: Tokens(250) });
        sent(&counters, 40);
        let more = counters.compare(totals(5.08e6, 4.05e6)).unwrap();
        assert_eq!(more.found, Tokens(800), "never more than was promised");
    }

    #[test]
    fn an_engine_without_totals_tells_the_share_itself() {
        let counters = CacheCounters::default();
        sent(&counters, 40);
        assert_eq!(counters.compare(CacheFigures::Share(0.4)).unwrap().found, Tokens(400));
    }

    #[test]
    fn counters_that_fall_stand_still_or_are_no_numbers_say_nothing() {
        let odd = [f64::NAN, f64::INFINITY, -1.0, 1e300, 0.0];
        for queries in odd {
            for hits in odd {
                let counters = CacheCounters::default();
                sent(&counters, 40);
                counters.compare(totals(1000.0, 900.0));
                sent(&counters, 40);
                assert_eq!(counters.compare(totals(queries, hits)), None, "{queries} {hits}");
                assert_eq!(counters.compare(CacheFigures::Share(queries)).filter(|_| queries != 0.0), None);
            }
        }
    }
}
