//! Slots of 10 s for ten minutes and of a minute for an hour.

use std::time::Duration;

use crate::clock::Stamp;
use crate::labels::labels;
use crate::stats::{Counts, Histogram, Ring};

labels! {
    /// Length of a slot.
    pub enum Step {
        /// For the last ten minutes.
        TenSeconds = "10s",
        /// For the last hour.
        Minute = "1m",
    }
}

impl Step {
    /// Length of a slot in seconds.
    pub fn seconds(self) -> u64 {
        match self {
            Self::TenSeconds => 10,
            Self::Minute => 60,
        }
    }

    /// Number of the slot of a stamp.
    pub fn slot(self, at: Stamp) -> i64 {
        (at.as_nanos() / (self.seconds() * 1_000_000_000)).cast_signed()
    }

    /// Seconds of a window of `whole` seconds in slots and the current slot, and no more than this process has lived.
    pub fn lasted(self, whole: u64, now: Stamp) -> f64 {
        let current = now.as_nanos() % (self.seconds() * 1_000_000_000);
        (whole as f64 + current as f64 / 1e9).min(now.as_nanos() as f64 / 1e9).max(1.0)
    }
}

#[derive(Default)]
pub(in crate::observe) struct LatencySlots {
    /// Number of the current slot of 10 s.
    number: i64,
    current: Histogram,
    short: Ring<Counts>,
    minutes: Ring<Counts>,
}

impl LatencySlots {
    /// Adds each value `count` times. A slightly older stamp of another thread counts into the current slot.
    pub(in crate::observe) fn add(&mut self, values: impl Iterator<Item = (Duration, u32)>, now: Stamp) {
        let number = Step::TenSeconds.slot(now);
        if number > self.number {
            self.close(number);
        }
        values.for_each(|(value, times)| self.current.add(value, times));
    }

    /// Number of the newest slot of 10 s with values.
    pub(super) fn newest(&self) -> i64 {
        self.number
    }

    fn close(&mut self, next: i64) {
        let minute = self.number / IN_MINUTE;
        let full = self.current.take();
        if full.count() > 0 {
            self.short.push(self.number, full, SLOTS);
        }
        if next / IN_MINUTE > minute {
            let full = Counts::merged(self.of_minute(minute));
            if full.count() > 0 {
                self.minutes.push(minute, full, SLOTS);
            }
        }
        self.number = next;
        self.short.expire(next - SLOTS + 1);
        self.minutes.expire(next / IN_MINUTE - SLOTS + 1);
    }

    /// Values in the slots from `oldest` to `newest`, both included.
    pub(in crate::observe) fn counts(&self, step: Step, oldest: i64, newest: i64) -> Counts {
        let minute = self.number / IN_MINUTE;
        let (current, ring) = match step {
            Step::TenSeconds => (self.number, &self.short),
            Step::Minute => (minute, &self.minutes),
        };
        let is_current = (oldest..=newest).contains(&current);
        let in_progress = is_current.then(|| self.current.counts());
        let of_minute = self.of_minute(minute).filter(|_| is_current && step == Step::Minute);
        let full = ring.range(oldest, newest).map(|(_, counts)| counts);
        Counts::merged(full.chain(of_minute).chain(&in_progress))
    }

    /// Full slots of 10 s of a minute.
    fn of_minute(&self, minute: i64) -> impl Iterator<Item = &Counts> {
        let first = minute * IN_MINUTE;
        self.short.range(first, first + IN_MINUTE - 1).map(|(_, counts)| counts)
    }
}

/// Kept slots of either step, the current one included.
pub const SLOTS: i64 = 61;
/// Slots of 10 s in a minute.
pub(in crate::observe) const IN_MINUTE: i64 = 6;
