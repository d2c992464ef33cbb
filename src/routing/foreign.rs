//! Work on a replica that is not ours: what the engine reports, less what we had there when it was asked.
//!
//! Our own work is known to the microsecond, the engine's figures are as old as the last scrape: so they only
//! tell of other gateways and direct clients. A dead scrape is nothing known after [`MAX_AGE`](super::target::MAX_AGE);
//! it never marks a replica saturated, and a replica that reports too little cannot hide the work that we gave it, unless that is
//! overdue ([`ReplicaLoad::counted`](super::ReplicaLoad)).

use super::float::fast_max;
use super::load::LoadView;

/// Foreign requests on a replica, as of the last scrape.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Foreign {
    /// Running or waiting.
    pub requests: f64,
    /// Those that wait for a place in the batch.
    pub waiting: f64,
}

impl Foreign {
    /// What an engine has beyond our own load at the moment when it was asked. An absent figure says nothing.
    pub(super) fn beyond(running: Option<f64>, waiting: Option<f64>, own: &LoadView) -> Self {
        let (all, awaiting) = (own.inflight as f64, own.awaiting as f64);
        let requests = match (running, waiting) {
            (Some(running), Some(waiting)) => running + waiting - all,
            (Some(running), None) => running - (all - awaiting),
            (None, Some(waiting)) => waiting - awaiting,
            (None, None) => 0.0,
        };
        let requests = requests.max(0.0);
        // Of the engine's waiting ones as many as possible are taken to be ours: we know that ours wait.
        let waiting = waiting.map_or(0.0, |waiting| (waiting - awaiting).clamp(0.0, requests));
        Self { requests, waiting }
    }

    /// Those that are being decoded.
    #[inline]
    pub(super) fn running(self) -> f64 {
        fast_max(self.requests - self.waiting, 0.0)
    }
}

/// A number of requests; `None` for what cannot be one.
pub(super) fn sane(figure: f64) -> Option<f64> {
    (0.0..=MOST_REQUESTS).contains(&figure).then_some(figure)
}

/// What an engine claims beyond this is no figure.
const MOST_REQUESTS: f64 = 100_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn own(inflight: u64, awaiting: u64) -> LoadView {
        LoadView { inflight, awaiting, ..LoadView::default() }
    }

    #[test]
    fn is_what_the_engine_has_beyond_ours() {
        let cases = [
            ("all ours", Some(3.0), Some(1.0), own(4, 1), (0.0, 0.0)),
            ("other gateways'", Some(5.0), Some(4.0), own(2, 1), (7.0, 3.0)),
            ("ours not yet arrived there", Some(1.0), Some(0.0), own(9, 9), (0.0, 0.0)),
            ("only running is told", Some(5.0), None, own(3, 1), (3.0, 0.0)),
            ("only waiting is told", None, Some(4.0), own(3, 1), (3.0, 3.0)),
            ("nothing is told", None, None, own(3, 1), (0.0, 0.0)),
        ];
        for (name, running, waiting, own, (requests, waits)) in cases {
            let found = Foreign::beyond(running, waiting, &own);
            assert_eq!(found, Foreign { requests, waiting: waits }, "{name}");
        }
    }

    #[test]
    fn nonsense_is_no_number_of_requests() {
        for figure in [f64::NAN, f64::INFINITY, -3.0, 1e9] {
            assert_eq!(sane(figure), None);
        }
        assert_eq!(sane(7.0), Some(7.0));
    }
}
