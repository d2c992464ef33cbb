//! Figures as sentences have them.

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
