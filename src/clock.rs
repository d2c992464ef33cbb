//! The only file that reads clocks.
//!
//! Latencies are differences of [`Stamp`]s: monotonic nanoseconds since the process' [`Clock`] was anchored, so that a
//! step of the wall clock does not show in them. Wall time is derived from the anchor, for spans and the access log only.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// A monotonic timestamp in nanoseconds since the clock's anchor. Eight bytes, `Copy`, totally ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(u64);

impl Stamp {
    /// A stamp from its nanoseconds since the anchor: for simulated time and for atomics.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's anchor.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// `self - earlier`; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// `self + span`, saturating.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Reads the monotonic clock; knows the wall time of its anchor.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    anchor: Instant,
    wall: SystemTime,
}

impl Clock {
    /// A clock whose anchor is the moment of the call.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this file is where clocks are read")]
    pub fn start() -> Self {
        Self { anchor: Instant::now(), wall: SystemTime::now() }
    }

    /// The monotonic time now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this file is where clocks are read")]
    pub fn now(&self) -> Stamp {
        let passed = Instant::now().saturating_duration_since(self.anchor);
        Stamp(u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Wall time of a stamp, `anchor + stamp`: steps of the wall clock after the start do not show.
    #[must_use]
    pub fn wall(&self, stamp: Stamp) -> SystemTime {
        self.wall + Duration::from_nanos(stamp.0)
    }

    /// The tokio instant of a stamp, for timers.
    #[must_use]
    pub fn instant(&self, stamp: Stamp) -> Instant {
        self.anchor + Duration::from_nanos(stamp.0)
    }
}
