//! Simulated and real time: the only file of this crate that reads clocks.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// A monotonic moment: nanoseconds since the start of a run or of a [`Clock`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(u64);

impl Stamp {
    /// The moment `nanos` after the start.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the start.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time since `earlier`; zero where `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The moment `span` after this one.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Reads the monotonic clock; knows the wall time of its start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    anchor: Instant,
    wall: SystemTime,
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "this file is where clocks are read")]
    pub(crate) fn start() -> Self {
        Self { anchor: Instant::now(), wall: SystemTime::now() }
    }

    #[expect(clippy::disallowed_methods, reason = "this file is where clocks are read")]
    pub(crate) fn now(&self) -> Stamp {
        let passed = Instant::now().saturating_duration_since(self.anchor);
        Stamp(u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX))
    }

    /// By the wall clock at the start: its later steps do not show.
    pub(crate) fn wall(&self, stamp: Stamp) -> SystemTime {
        self.wall + Duration::from_nanos(stamp.0)
    }

    /// For timers of the runtime.
    pub(crate) fn instant(&self, stamp: Stamp) -> Instant {
        self.anchor + Duration::from_nanos(stamp.0)
    }
}
