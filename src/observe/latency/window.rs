//! Look-back windows, and the percentiles that are read from them.

use super::slots::Step;
use crate::labels::labels;
use crate::stats::Counts;

labels! {
    /// A look-back window.
    pub enum Window {
        /// `1m`
        Minute = "1m",
        /// `5m`
        FiveMinutes = "5m",
        /// `1h`
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

/// Percentiles of one measure in one window, in seconds; 0 without values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Percentiles {
    /// Number of values in the window.
    pub count: u64,
    /// Median, seconds.
    pub p50: f64,
    /// 90th percentile, seconds.
    pub p90: f64,
    /// 95th percentile, seconds.
    pub p95: f64,
    /// 99th percentile, seconds.
    pub p99: f64,
    /// 99.9th percentile, seconds.
    pub p999: f64,
    /// Maximum, seconds.
    pub max: f64,
}

impl From<&Counts> for Percentiles {
    fn from(counts: &Counts) -> Self {
        let at = |quantile| counts.quantile(quantile).unwrap_or_default();
        Self {
            count: counts.count(),
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
            max: at(1.0),
        }
    }
}
