//! How much a replica is sent: prompt tokens a second, over the last few seconds.
//!
//! An engine computes whatever waits at the end of a step in the next one, so a request that waits pays for those that come
//! meanwhile, too.

use std::time::Duration;

use crate::clock::Stamp;

/// A rate that forgets exponentially.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    per_second: f64,
    last: Stamp,
}

impl Arrivals {
    /// A prompt with so many tokens to compute was sent.
    pub(super) fn note(&mut self, at: Stamp, tokens: u64) {
        let memory = MEMORY.as_secs_f64();
        let kept = (-at.since(self.last).as_secs_f64() / memory).exp();
        self.per_second = self.per_second * kept + tokens as f64 / memory;
        self.last = at;
    }

    /// Tokens a second, as of the last arrival.
    pub(super) fn per_second(&self) -> f64 {
        self.per_second
    }
}

/// Long enough for some dozens of requests, short enough for a burst.
const MEMORY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_rate_is_found_and_an_old_one_forgotten() {
        let mut arrivals = Arrivals::default();
        let second = 1_000_000_000;
        for n in 1..=240 {
            arrivals.note(Stamp::from_nanos(n * second / 4), 500);
        }
        assert!((1950.0..2100.0).contains(&arrivals.per_second()), "{arrivals:?}");
        arrivals.note(Stamp::from_nanos(160 * second), 10);
        assert!(arrivals.per_second() < 2.0, "{arrivals:?}");
    }
}
