//! A mean that is summed up piece by piece.

use std::ops::{AddAssign, Sub, SubAssign};

/// A sum, and of how many; of weighted values, the sum of the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mean {
    /// Of the values.
    pub sum: f64,
    /// Their number.
    pub count: f64,
}

impl Mean {
    /// Adds a value that is known.
    pub fn add(&mut self, value: impl Into<Option<f64>>) {
        if let Some(value) = value.into() {
            self.add_times(value, 1.0);
        }
    }

    /// Adds a value `times` times; a negative number takes it back.
    pub fn add_times(&mut self, value: f64, times: f64) {
        *self += Self { sum: value * times, count: times };
    }

    /// The mean; `None` of nothing.
    pub fn value(self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }
}

impl AddAssign for Mean {
    fn add_assign(&mut self, more: Self) {
        (self.sum, self.count) = (self.sum + more.sum, self.count + more.count);
    }
}

impl Sub for Mean {
    type Output = Self;

    fn sub(mut self, less: Self) -> Self {
        self -= less;
        self
    }
}

impl SubAssign for Mean {
    fn sub_assign(&mut self, less: Self) {
        (self.sum, self.count) = (self.sum - less.sum, self.count - less.count);
    }
}
