//! Figures as sentences have them, and how two of them are compared.

use super::table::LN_CHANCE;
use crate::stats::ln_binomial_tail;

/// Whether some of all are more than the others' share and chance: a fault that all have shows at one of them first.
pub(crate) fn exceeds((some, all): (f64, f64), (others, of): (f64, f64)) -> bool {
    ln_binomial_tail(some, all, (others + 1.0) / (of + 2.0)) <= LN_CHANCE
}

/// Two or three significant digits with their unit.
pub(crate) fn seconds(value: f64) -> String {
    match value {
        value if value >= 99.5 => format!("{value:.0} s"),
        value if value >= 0.9995 => format!("{value:.1} s"),
        value if value >= 0.00995 => format!("{:.0} ms", value * 1e3),
        value => format!("{:.1} ms", value * 1e3),
    }
}

/// In whole percent.
pub(super) fn share(value: f64) -> String {
    format!("{:.0} %", value * 100.0)
}
