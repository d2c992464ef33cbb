//! Figures as sentences have them, and how two of them are compared.

use std::iter::Sum;

use serde::{Deserialize, Serialize};

use super::table::LN_CHANCE;
use crate::stats::ln_binomial_tail;

/// Requests, and the bad ones among them.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Count {
    pub(crate) all: f64,
    pub(crate) bad: f64,
}

impl Count {
    pub(crate) fn new(bad: u32, all: u32) -> Self {
        Self { all: all.into(), bad: bad.into() }
    }

    pub(crate) fn add(&mut self, is_bad: bool) {
        self.all += 1.0;
        self.bad += f64::from(u8::from(is_bad));
    }

    pub(crate) fn share(self) -> f64 {
        self.bad / self.all.max(1.0)
    }

    /// Whether more are bad than the others' share and chance: a fault that all have shows at one of them first.
    pub(crate) fn exceeds(self, others: Self) -> bool {
        ln_binomial_tail(self.bad, self.all, (others.bad + 1.0) / (others.all + 2.0)) <= LN_CHANCE
    }

    /// Whether it is worse than the rest of `all`, beyond chance.
    pub(crate) fn exceeds_the_rest(self, all: Self) -> bool {
        self.exceeds(Self { all: all.all - self.all, bad: all.bad - self.bad })
    }
}

impl Sum for Count {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |sum, count| Self { all: sum.all + count.all, bad: sum.bad + count.bad })
    }
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
