//! Look-back windows.

use super::slots::Step;
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
    pub(super) fn slots(self) -> (Step, i64) {
        match self {
            Self::Minute => (Step::TenSeconds, 6),
            Self::FiveMinutes => (Step::Minute, 5),
            Self::Hour => (Step::Minute, 60),
        }
    }
}
