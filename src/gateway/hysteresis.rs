//! A state that lasts beyond its last cause: a route that degrades, or whose requests go to a standby pool.
//!
//! Of `[route.degrade]`: it begins with the first request that is predicted beyond `when`. From then on the lower multiple `until` counts, and it is over when
//! no request was beyond that for `min_dwell`. A request that is within its bound stays on its route all the while.

use std::time::Duration;

use crate::clock::{AtomicStamp, Stamp};

/// When it was caused last.
#[derive(Debug, Default)]
pub struct Hysteresis(AtomicStamp);

/// Why requests of a route go to its standby pools; carried over.
#[derive(Debug, Default)]
pub struct Standby {
    /// No other pool had a ready replica.
    pub(super) down: Hysteresis,
    /// A queue refused a request.
    pub(super) full: Hysteresis,
}

impl Hysteresis {
    /// Whether that was within `dwell`.
    pub(super) fn is_on(&self, now: Stamp, dwell: Duration) -> bool {
        self.0.get().is_some_and(|last| now.since(last) < dwell)
    }

    /// It is caused again.
    pub(super) fn note(&self, now: Stamp) {
        self.0.store(now.max(Stamp::from_nanos(1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::seconds as at;

    #[test]
    fn it_is_on_from_the_first_request_until_none_was_degraded_for_the_dwell() {
        let (state, dwell) = (Hysteresis::default(), Duration::from_secs(10));
        assert!(!state.is_on(at(0), dwell) && !state.is_on(at(5), dwell), "before any");
        state.note(at(0));
        assert!(state.is_on(at(0), dwell));
        state.note(at(100));
        state.note(at(107));
        assert!(state.is_on(at(116), dwell) && !state.is_on(at(117), dwell));
    }
}
