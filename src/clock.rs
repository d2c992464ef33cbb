//! The only file that reads clocks.
//!
//! Latencies are differences of [`Stamp`]s: monotonic nanoseconds since the process' [`Clock`] was anchored, so that a
//! step of the wall clock does not show in them. Wall time is derived from the anchor, for spans and the access log only;
//! [`Clock::follow_wall`] keeps it to the machine's over weeks, through NTP's corrections and suspends.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

/// A monotonic timestamp in nanoseconds since the clock's anchor. Eight bytes, `Copy`, totally ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(u64);

impl Stamp {
    /// A stamp from its nanoseconds since the anchor: for simulated time and for atomics.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's anchor.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// `self - earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// `self - span`, not before the anchor.
    pub(crate) fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// `self + span`, saturating.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// How long what was due `at` has been over, where that shows that this process stood still: it was stopped, its machine was paused or
/// it had no CPU. With a moment more, to read what came meanwhile.
pub(crate) fn stood_still(at: Stamp, now: Stamp) -> Option<Duration> {
    let late = now.since(at);
    (late >= CATCH_UP).then(|| late + CATCH_UP)
}

/// Long enough to read what has come.
pub(crate) const CATCH_UP: Duration = Duration::from_millis(50);

/// A stamp that threads share; the anchor stands for none.
#[derive(Debug, Default)]
pub(crate) struct AtomicStamp(AtomicU64);

impl AtomicStamp {
    pub(crate) fn new(at: Stamp) -> Self {
        Self(AtomicU64::new(at.0))
    }

    /// The stamp, or the anchor where there is none.
    pub(crate) fn load(&self) -> Stamp {
        Stamp(self.0.load(Ordering::Relaxed))
    }

    pub(crate) fn get(&self) -> Option<Stamp> {
        Some(self.load()).filter(|at| at.0 != 0)
    }

    pub(crate) fn store(&self, at: Stamp) {
        self.0.store(at.0, Ordering::Relaxed);
    }

    pub(crate) fn clear(&self) {
        self.store(Stamp(0));
    }

    /// Sets it unless it is later already.
    pub(crate) fn raise(&self, at: Stamp) {
        self.0.fetch_max(at.0, Ordering::Relaxed);
    }

    /// Sets it where there is none; whether it did.
    pub(crate) fn begin(&self, at: Stamp) -> bool {
        self.0.compare_exchange(0, at.0.max(1), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Whether `now` is the first time, or comes `every` after it was so last. One alone of those who ask at once has that.
    pub(crate) fn is_due(&self, every: Duration, now: Stamp) -> bool {
        let before = self.load();
        let is_due = before.0 == 0 || now.since(before) >= every;
        is_due
            && self.0.compare_exchange(before.0, now.0.max(1), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Reads the monotonic clock; knows the wall time of its anchor.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    anchor: Instant,
    wall: SystemTime,
    /// Nanoseconds to add to the wall time. One for the life of the process, so that a clock stays a plain value.
    correction: &'static AtomicI64,
}

impl Clock {
    /// A clock whose anchor is the moment of the call.
    #[expect(clippy::disallowed_methods, reason = "this file is where clocks are read")]
    pub fn start() -> Self {
        let correction = Box::leak(Box::new(AtomicI64::new(0)));
        Self { anchor: Instant::now(), wall: SystemTime::now(), correction }
    }

    /// The monotonic time now.
    #[expect(clippy::disallowed_methods, reason = "this file is where clocks are read")]
    pub fn now(&self) -> Stamp {
        let passed = Instant::now().saturating_duration_since(self.anchor);
        Stamp(u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Wall time of a stamp, `anchor + stamp + correction`.
    pub fn wall(&self, stamp: Stamp) -> SystemTime {
        let uncorrected = self.wall + Duration::from_nanos(stamp.0);
        let correction = self.correction.load(Ordering::Relaxed);
        let by = Duration::from_nanos(correction.unsigned_abs());
        if correction < 0 { uncorrected - by } else { uncorrected + by }
    }

    /// Compares wall times with the machine's clock and corrects them; to be called every `interval`. Ahead they jump; back
    /// they only run slower, so that what ends later is never written down as earlier.
    #[expect(clippy::disallowed_methods, reason = "this file is where clocks are read")]
    pub fn follow_wall(&self, interval: Duration) {
        let (shown, actual) = (self.wall(self.now()), SystemTime::now());
        let error = match actual.duration_since(shown) {
            Ok(behind) => nanos(behind),
            Err(ahead) => -nanos(ahead.duration()),
        };
        self.correction.fetch_add(step(error, interval), Ordering::Relaxed);
    }

    /// The tokio instant of a stamp, for timers.
    pub fn instant(&self, stamp: Stamp) -> Instant {
        self.anchor + Duration::from_nanos(stamp.0)
    }
}

/// The part of an error in nanoseconds that is corrected now.
fn step(error: i64, interval: Duration) -> i64 {
    error.max(-(nanos(interval) / SLOWEST))
}

fn nanos(span: Duration) -> i64 {
    i64::try_from(span.as_nanos()).unwrap_or(i64::MAX)
}

/// Wall time that is ahead runs slower by one part in this many.
const SLOWEST: i64 = 2;

/// Ticks for a round each, the first at once: one that took longer delays those after it.
pub(crate) fn ticks(every: Duration) -> Interval {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Of a pause that is doubled for each of `times`, at most `longest`.
pub(crate) fn doubled(first: Duration, times: u32, longest: Duration) -> Duration {
    first.saturating_mul(2_u32.saturating_pow(times)).min(longest)
}

/// A moment in seconds since the Unix epoch; what is no time is the epoch.
pub(crate) fn wall(seconds: f64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// A moment in whole seconds since the Unix epoch.
pub(crate) fn wall_second(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

/// Time since the Unix epoch; zero before it.
pub(crate) fn since_epoch(at: SystemTime) -> Duration {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Milliseconds after the anchor.
#[cfg(test)]
pub(crate) fn millis(n: u64) -> Stamp {
    Stamp::from_nanos(n * 1_000_000)
}

/// Seconds after the anchor.
#[cfg(test)]
pub(crate) fn seconds(n: u64) -> Stamp {
    millis(1000 * n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_time_jumps_ahead_and_never_back() {
        let clock = Clock::start();
        let at = clock.now();
        let first = clock.wall(at);
        let hour = 3_600_000_000_000;
        clock.correction.fetch_add(step(hour, Duration::from_secs(10)), Ordering::Relaxed);
        assert_eq!(clock.wall(at), first + Duration::from_secs(3600), "an hour of suspend");
        // An hour back: half of the time that passes, until it is made up for.
        let mut shown = clock.wall(at);
        let mut left = -hour;
        for tick in 1..=720_u64 {
            let by = step(left, Duration::from_secs(10));
            clock.correction.fetch_add(by, Ordering::Relaxed);
            left -= by;
            let next = clock.wall(at.after(Duration::from_secs(10 * tick)));
            assert!(next > shown, "tick {tick}");
            shown = next;
        }
        assert_eq!((left, shown), (0, first + Duration::from_secs(7200)));
    }
}
