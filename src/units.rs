//! Types with units, where a bare integer would compile with the wrong unit.
//!
//! Time has [`std::time::Duration`] and [`crate::clock::Stamp`].

use std::iter::Sum;
use std::ops::{Add, AddAssign};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Whole seconds, rounded up: no header that counts them promises a time too early.
pub fn whole_seconds(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}

/// A number of model tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tokens(pub u64);

impl Tokens {
    /// The difference, or zero where it would be negative.
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for Tokens {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Tokens {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for Tokens {
    fn sum<I: Iterator<Item = Self>>(values: I) -> Self {
        values.fold(Self(0), Add::add)
    }
}

/// A number that one writes and many read; zero at first.
#[derive(Debug, Default)]
pub(crate) struct AtomicF64(AtomicU64);

impl AtomicF64 {
    #[inline]
    pub(crate) fn load(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn store(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }
}

impl From<f64> for AtomicF64 {
    fn from(value: f64) -> Self {
        Self(AtomicU64::new(value.to_bits()))
    }
}
