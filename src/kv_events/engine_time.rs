//! When an engine stored what it publishes, on our clock. Pure.
//!
//! Its batches have the time of the engine's clock, and come with what delay the network and a busy machine add, those of a replay much
//! later. The least recent difference of the two clocks is that of batches that came at once; before any came, both are
//! taken to show the same time of day.

use std::time::SystemTime;

use crate::clock::{Stamp, since_epoch};

/// The clock of one engine, compared with ours.
#[derive(Debug, Default)]
pub(super) struct EngineTime {
    /// The difference where the engine's clock shows the same time of day: seconds.
    assumed: f64,
    /// The least difference in the present window, and in the one before it: seconds.
    least: Option<f64>,
    before: Option<f64>,
    /// Batches in the present window.
    batches: u32,
}

impl EngineTime {
    /// Of an engine of which nothing came; it is `wall` at `now`.
    pub(super) fn new(now: Stamp, wall: SystemTime) -> Self {
        let of_day = since_epoch(wall).as_secs_f64();
        Self { assumed: seconds(now) - of_day, ..Self::default() }
    }

    /// When a batch of `ts` was stored that has just come; `ts` in seconds of the engine's clock.
    pub(super) fn arrived(&mut self, ts: Option<f64>, now: Stamp) -> Stamp {
        let Some(ts) = self.plausible(ts, now) else { return now };
        if self.batches >= WINDOW {
            (self.before, self.least, self.batches) = (self.least, None, 0);
        }
        self.batches += 1;
        let difference = seconds(now) - ts;
        self.least = Some(self.least.map_or(difference, |least| least.min(difference)));
        self.of(ts, now)
    }

    /// The same of a batch that is replayed: its delay is unknown.
    pub(super) fn replayed(&self, ts: Option<f64>, now: Stamp) -> Stamp {
        self.plausible(ts, now).map_or(now, |ts| self.of(ts, now))
    }

    /// Not that of a publisher without a clock.
    fn plausible(&self, ts: Option<f64>, now: Stamp) -> Option<f64> {
        ts.filter(|ts| (seconds(now) - ts - self.assumed).abs() < PLAUSIBLE)
    }

    fn of(&self, ts: f64, now: Stamp) -> Stamp {
        let least = self.least.into_iter().chain(self.before).reduce(f64::min).unwrap_or(self.assumed);
        Stamp::from_nanos(((ts + least).max(0.0) * 1e9) as u64).min(now)
    }
}

fn seconds(at: Stamp) -> f64 {
    at.as_nanos() as f64 / 1e9
}

/// Seconds by which the times of day may differ, the age of what is replayed included.
const PLAUSIBLE: f64 = 7.0 * 24.0 * 3600.0;
/// Batches after which a difference is forgotten: clocks are set.
const WINDOW: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{millis as at, wall_second};

    const DAY: u64 = 2_000_000_000;

    fn new() -> EngineTime {
        EngineTime::new(at(0), wall_second(DAY))
    }

    #[test]
    fn a_late_batch_has_the_time_of_its_engine() {
        // Its clock is 100 s behind.
        let (mut time, ts) = (new(), |seconds: f64| Some(DAY as f64 - 100.0 + seconds));
        let near =
            |one: Stamp, other: Stamp| one.since(other).as_micros() + other.since(one).as_micros() < 10;
        assert!(near(time.replayed(ts(103.0), at(5000)), at(3000)), "by the time of day");
        assert_eq!(time.arrived(ts(5.0), at(5000)), at(5000));
        assert!(near(time.arrived(ts(6.0), at(6800)), at(6000)), "800 ms late");
        assert!(near(time.replayed(ts(3.0), at(7000)), at(3000)));
        assert!(near(time.arrived(ts(8.0), at(7900)), at(7900)), "sooner than all before it");
        for without in [None, Some(0.0), Some(1.0)] {
            assert_eq!([time.arrived(without, at(9000)), time.replayed(without, at(9000))], [at(9000); 2]);
        }
    }

    #[test]
    fn a_clock_that_was_set_back_is_followed() {
        let mut time = new();
        time.arrived(Some(DAY as f64), at(0));
        let arrived = |n: u64| time.arrived(Some((DAY + n) as f64 - 60.0), at(n * 1000));
        let last = (1..=2 * u64::from(WINDOW)).map(arrived).last().unwrap();
        assert!(at(2 * u64::from(WINDOW) * 1000).since(last).as_millis() < 10);
    }
}
