//! The judge of a canary: sequential and anytime-valid. Pure.
//!
//! Every bound is a test of its own, over blocks of half a second: quantiles of TTFT, ITL and TPOT (`tail`), failed attempts and
//! missed SLOs (`rate`). Each may stop the canary as soon as its evidence reaches the number of tests divided by
//! `false_rollback_rate`, so that all of them together stop a revision within its bounds with that probability at most. Where
//! the statistics come from is in `docs/rollouts.md`.

mod baseline;
pub mod fleet;
mod rate;
mod samples;
mod tail;
mod wealth;

use serde::{Deserialize, Serialize};

use self::baseline::Baseline;
use self::rate::RateTest;
use self::samples::Samples;
use self::tail::{Bound, TailTest, TailWealth};
use self::wealth::Wealth;
use crate::config::{Canary, QuantileRatios};
use crate::request::class::Class;

/// One of the two that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// The route's other pools.
    Baseline = 0,
    /// The new revision.
    Canary = 1,
}

/// A latency that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Time to first token.
    Ttft,
    /// Inter-token latency.
    Itl,
    /// Time per output token.
    Tpot,
}

impl Measure {
    /// Every measure.
    pub const ALL: [Self; 3] = [Self::Ttft, Self::Itl, Self::Tpot];

    /// Its name in reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ttft => "ttft",
            Self::Itl => "itl",
            Self::Tpot => "tpot",
        }
    }
}

/// A value of a latency.
#[derive(Clone, Copy, Debug)]
pub struct Observed {
    /// Whose it is.
    pub arm: Arm,
    /// Seconds.
    pub value: f64,
    /// How often.
    pub count: f64,
    /// It ended without an answer after this time: the latency would have been longer.
    pub is_censored: bool,
}

/// A test with its evidence.
#[derive(Clone, Debug, PartialEq)]
pub struct Evidence {
    /// `ttft_p99`, `errors`, …
    pub test: &'static str,
    /// The bound of the file.
    pub bound: f64,
    /// Logarithm of the evidence against the canary, as a share of what stops it: 1 is a breach.
    pub share: f64,
}

/// Percentiles of both arms side by side, seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// Which latency.
    pub measure: Measure,
    /// Which prompts.
    pub class: Class,
    /// Baseline's and canary's p50, p90 and p99.
    pub percentiles: [[f64; 3]; 2],
}

/// Compares a canary with its baseline.
#[derive(Clone, Debug)]
pub struct Judge {
    tails: Vec<(&'static str, Measure, Bound, TailTest)>,
    errors: (f64, RateTest),
    goodput: (f64, RateTest),
    /// By measure.
    baseline: [Baseline; 3],
    /// The canary's, by measure and class.
    canary: [[Samples; CLASSES]; 3],
    block_ends: f64,
    /// Log of the evidence that stops the canary.
    limit: f64,
}

/// A judge's evidence, kept over restarts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SavedEvidence {
    tails: Vec<(String, TailWealth)>,
    errors: Wealth,
    goodput: Wealth,
}

impl Judge {
    /// A judge by the bounds of `canary` that goes on from `saved`.
    #[must_use]
    pub fn new(canary: &Canary, saved: &SavedEvidence) -> Self {
        let wealth =
            |name: &str| saved.tails.iter().find(|(known, _)| known == name).map(|(_, wealth)| *wealth);
        let bounds = bounds(canary);
        let tests = bounds.len() as f64 + 2.0;
        let tails = bounds
            .into_iter()
            .map(|(name, measure, bound)| {
                (name, measure, bound, TailTest::new(bound, wealth(name).unwrap_or_default()))
            })
            .collect();
        Self {
            tails,
            errors: (
                canary.max_error_ratio_increase,
                RateTest::new(canary.max_error_ratio_increase, saved.errors),
            ),
            goodput: (canary.max_goodput_decrease, RateTest::new(canary.max_goodput_decrease, saved.goodput)),
            baseline: Default::default(),
            canary: Default::default(),
            block_ends: 0.0,
            limit: (tests / canary.false_rollback_rate).ln(),
        }
    }

    /// A latency, at `now` (seconds).
    pub fn observe(&mut self, now: f64, measure: Measure, class: Class, observed: Observed) {
        self.advance(now);
        for (_, of, _, test) in &mut self.tails {
            if *of == measure {
                test.observe(class as usize, observed);
            }
        }
        if observed.is_censored {
            return;
        }
        let (measure, class) = (measure as usize, class as usize);
        match observed.arm {
            Arm::Baseline => {
                if let Some(baseline) = self.baseline.get_mut(measure) {
                    baseline.add(class, observed.value);
                }
            }
            Arm::Canary => {
                if let Some(samples) = self.canary.get_mut(measure).and_then(|of| of.get_mut(class)) {
                    samples.add(observed.value);
                }
            }
        }
    }

    /// An attempt ended, well or not.
    pub fn attempt(&mut self, now: f64, class: Class, arm: Arm, is_failed: bool) {
        self.advance(now);
        self.errors.1.observe(class as usize, arm, is_failed);
    }

    /// A request was judged by its SLO.
    pub fn slo(&mut self, now: f64, class: Class, arm: Arm, is_missed: bool) {
        self.advance(now);
        self.goodput.1.observe(class as usize, arm, is_missed);
    }

    /// Ends the block if its time is over.
    pub fn advance(&mut self, now: f64) {
        if now < self.block_ends {
            return;
        }
        self.block_ends = now + BLOCK;
        self.baseline.iter_mut().for_each(Baseline::refresh);
        for (_, measure, _, test) in &mut self.tails {
            if let Some(baseline) = self.baseline.get(*measure as usize) {
                test.close(baseline);
            }
        }
        self.errors.1.close();
        self.goodput.1.close();
    }

    /// Evidence of every test.
    #[must_use]
    pub fn evidence(&self) -> Vec<Evidence> {
        let tails = self.tails.iter().map(|(test, _, bound, tail)| (*test, bound.ratio, tail.evidence()));
        let rates = [
            ("errors", self.errors.0, self.errors.1.evidence()),
            ("goodput", self.goodput.0, self.goodput.1.evidence()),
        ];
        let share = |(test, bound, log): (_, _, f64)| Evidence { test, bound, share: log / self.limit };
        tails.chain(rates).map(share).collect()
    }

    /// The test that stops the canary.
    #[must_use]
    pub fn breach(&self) -> Option<Evidence> {
        let strongest = self.evidence().into_iter().max_by(|a, b| a.share.total_cmp(&b.share));
        strongest.filter(|evidence| evidence.share >= 1.0)
    }

    /// Percentiles side by side, of classes that both have seen.
    #[must_use]
    pub fn compared(&mut self) -> Vec<Compared> {
        let mut compared = Vec::new();
        let arms = self.baseline.iter_mut().zip(&mut self.canary);
        for (measure, (baseline, canary)) in Measure::ALL.into_iter().zip(arms) {
            for (class, (baseline, canary)) in ALL_CLASSES.into_iter().zip(baseline.samples().zip(canary)) {
                let percentiles = |samples: &mut Samples| {
                    samples.sort();
                    Some([samples.rank(0.5)?, samples.rank(0.9)?, samples.rank(0.99)?])
                };
                if let (Some(baseline), Some(canary)) = (percentiles(baseline), percentiles(canary)) {
                    compared.push(Compared { measure, class, percentiles: [baseline, canary] });
                }
            }
        }
        compared
    }

    /// What a restart must not lose.
    #[must_use]
    pub fn save(&self) -> SavedEvidence {
        SavedEvidence {
            tails: self.tails.iter().map(|(name, _, _, test)| ((*name).to_owned(), test.wealth())).collect(),
            errors: self.errors.1.wealth(),
            goodput: self.goodput.1.wealth(),
        }
    }
}

fn bounds(canary: &Canary) -> Vec<(&'static str, Measure, Bound)> {
    let of = |measure, names: [&'static str; 2], ratios: QuantileRatios| {
        let bounds = [(names[0], 0.5, ratios.p50), (names[1], 0.99, ratios.p99)];
        bounds.into_iter().filter_map(move |(name, quantile, ratio)| {
            Some((name, measure, Bound { quantile, ratio: ratio? }))
        })
    };
    of(Measure::Ttft, ["ttft_p50", "ttft_p99"], canary.max_ttft_ratio)
        .chain(of(Measure::Itl, ["itl_p50", "itl_p99"], canary.max_itl_ratio))
        .chain(of(Measure::Tpot, ["tpot_p50", "tpot_p99"], canary.max_tpot_ratio))
        .collect()
}

const ALL_CLASSES: [Class; CLASSES] = [Class::None, Class::Short, Class::Medium, Class::Long];
/// Prompt classes, the unknown one included.
const CLASSES: usize = 4;
/// Seconds. What happens within one is one event.
const BLOCK: f64 = 0.5;
