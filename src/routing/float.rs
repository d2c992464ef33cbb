//! Floats in one instruction each, for sums that are made for every candidate.

/// A count as a float. Counts fit into 63 bits, and processors have one instruction for signed numbers and a handful for
/// unsigned ones.
#[inline]
pub(super) fn float(count: u64) -> f64 {
    count as i64 as f64
}

/// The lesser of two; `b` where `a` is no number. Those of the standard library have a rule for both.
#[inline]
pub(super) fn least(a: f64, b: f64) -> f64 {
    if a < b { a } else { b }
}

/// The greater of two; `b` where `a` is no number.
#[inline]
pub(super) fn most(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}
