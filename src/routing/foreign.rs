//! Work on a replica that is not ours: what the engine reports, less what we had there when it was asked.
//!
//! Our own work is known to the microsecond, the engine's figures are as old as the last scrape: so they only
//! tell of other gateways and direct clients, and they lose weight as they age. A scrape that is dead therefore
//! fades to "nothing known"; it never marks a replica saturated, and a replica that reports too little cannot
//! hide the work that we gave it.

use std::time::Duration;

use super::EngineSignals;
use super::load::LoadView;

/// Foreign requests on a replica, weighted by how fresh the news of them is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Foreign {
    /// Running or waiting.
    pub requests: f64,
    /// Those that wait for a place in the batch.
    pub waiting: f64,
}

impl Foreign {
    /// Foreign work by `signals`, given our own load on the replica when they were scraped.
    #[must_use]
    pub fn seen(signals: &EngineSignals, own_at_scrape: &LoadView) -> Self {
        let weight = freshness(signals.age);
        let (running, waiting) = (sane(signals.running), sane(signals.waiting));
        let requests = (running + waiting - own_at_scrape.inflight as f64).max(0.0);
        // Of the engine's waiting ones as many as possible are taken to be ours: we know that ours wait.
        let waiting = (waiting - own_at_scrape.awaiting as f64).clamp(0.0, requests);
        Self { requests: requests * weight, waiting: waiting * weight }
    }
}

/// Halves at [`HALF_TRUST`], falls to a tenth at nine times that.
fn freshness(age: Duration) -> f64 {
    1.0 / (1.0 + age.as_secs_f64() / HALF_TRUST.as_secs_f64())
}

fn sane(figure: f64) -> f64 {
    if (0.0..=MOST_REQUESTS).contains(&figure) { figure } else { 0.0 }
}

/// A queue's content is replaced within seconds; two of them are two scrapes at the default interval.
const HALF_TRUST: Duration = Duration::from_secs(2);
/// What an engine claims beyond this is no figure.
const MOST_REQUESTS: f64 = 100_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn signals(age_ms: u64, running: f64, waiting: f64) -> EngineSignals {
        EngineSignals {
            age: Duration::from_millis(age_ms),
            running,
            waiting,
            kv_cache_usage: 0.5,
            batch_limit: None,
            block_tokens: None,
            total_blocks: None,
        }
    }

    fn own(inflight: u64, awaiting: u64) -> LoadView {
        LoadView { inflight, awaiting, ..LoadView::default() }
    }

    #[test]
    fn is_what_the_engine_has_beyond_ours_and_fades() {
        let cases = [
            ("all ours", signals(0, 3.0, 1.0), own(4, 1), (0.0, 0.0)),
            ("other gateways'", signals(0, 5.0, 4.0), own(2, 1), (7.0, 3.0)),
            ("half as much after two seconds", signals(2000, 5.0, 4.0), own(2, 1), (3.5, 1.5)),
            ("ours not yet arrived there", signals(0, 1.0, 0.0), own(9, 9), (0.0, 0.0)),
            ("nonsense counts as nothing", signals(0, f64::NAN, -3.0), own(0, 0), (0.0, 0.0)),
            ("so does what no engine has", signals(0, 1e300, f64::INFINITY), own(0, 0), (0.0, 0.0)),
        ];
        for (name, signals, own, (requests, waiting)) in cases {
            assert_eq!(Foreign::seen(&signals, &own), Foreign { requests, waiting }, "{name}");
        }
    }

    #[test]
    fn a_dead_scrape_fades_to_nothing() {
        let long_ago = Foreign::seen(&signals(600_000, 64.0, 500.0), &own(0, 0));
        assert!(long_ago.requests < 2.0, "{long_ago:?}");
    }
}
