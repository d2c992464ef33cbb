//! Look-back windows.

use super::slots::Step;
use crate::clock::Stamp;
use crate::labels::labels;

labels! {
    /// A look-back window.
    pub enum Window {
        Minute = "1m",
        FiveMinutes = "5m",
        Hour = "1h",
    }
}

impl Window {
    /// Its slots: their length and number.
    fn slots(self) -> (Step, i64) {
        match self {
            Self::Minute => (Step::TenSeconds, 6),
            Self::FiveMinutes => (Step::Minute, 5),
            Self::Hour => (Step::Minute, 60),
        }
    }

    /// Those of the window that ends `now`, the first and the last included. One more than it has, because the current slot is only partly
    /// filled.
    pub(in crate::observe) fn ending(self, now: Stamp) -> (Step, i64, i64) {
        let (step, whole) = self.slots();
        let newest = step.slot(now);
        (step, newest - whole, newest)
    }
}
