//! Arithmetic on seconds: one instruction each, because it runs for every candidate of a decision.

use std::time::Duration;

/// A count as a float. Counts fit into 63 bits, and processors have one instruction for signed numbers and a handful for
/// unsigned ones.
#[inline]
pub(super) fn float(count: u64) -> f64 {
    count as i64 as f64
}

/// The minimum; `b` where `a` is NaN. `f64::min` handles NaN in both, at the price of a branch.
#[inline]
pub(super) fn fast_min(a: f64, b: f64) -> f64 {
    if a < b { a } else { b }
}

/// The maximum; `b` where `a` is NaN.
#[inline]
pub(super) fn fast_max(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}

/// A duration from computed seconds, never a panic: beyond [`MAX_SPAN`] nothing matters.
pub(crate) fn span(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).map_or(MAX_SPAN, |span| span.min(MAX_SPAN))
}

/// A counter of tokens; `None` for what cannot be one.
pub(super) fn sane_total(figure: f64) -> Option<f64> {
    (0.0..=MOST_TOKENS).contains(&figure).then_some(figure)
}

/// Longer than any deadline.
pub(super) const MAX_SPAN: Duration = Duration::from_secs(3600);
/// Beyond this a float does not count single tokens.
const MOST_TOKENS: f64 = 9e15;
