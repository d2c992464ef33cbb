//! Quantities that would otherwise be bare integers.
//!
//! A count of tokens and a count of bytes are both `u64` on the wire; mixing them up has no compiler error.
//! Time has [`std::time::Duration`] and [`crate::clock::Stamp`]; money there is none.

use std::iter::Sum;
use std::ops::{Add, AddAssign};

/// A number of model tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tokens(pub u64);

impl Tokens {
    /// The difference, or zero where it would be negative.
    #[must_use]
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
