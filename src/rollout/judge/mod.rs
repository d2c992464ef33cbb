//! The judge of a canary: sequential and anytime-valid. Pure.
//!
//! Every bound is a test of its own, over blocks of half a second at most: quantiles of TTFT, ITL, TPOT and of the length of answers
//! (`tail`), failed attempts and missed SLOs (`rate`). Each has a part of `false_rollback_rate`, a larger one where a breach takes more
//! requests to see, and stops the canary as soon as its evidence reaches one over its part. Beside each test runs one on whether the
//! canary is worse than the baseline at all: a revision as good as it is stopped with the configured probability at most, by all
//! tests together, and one that is worse but within its bounds with [`wealth::WITHIN`] times that. A trial is the same on a canary made
//! worse by half its bound, which says whether a breach would have been seen by now. Where the statistics come from is in
//! `docs/rollouts.md`.

mod baseline;
mod evidence;
pub mod fleet;
mod rate;
mod samples;
mod tail;
mod wealth;

use self::baseline::Baseline;
use self::evidence::known;
pub use self::evidence::{Evidence, SavedEvidence};
use self::rate::{RateTest, RateWealth};
use self::samples::Samples;
use self::tail::{Bound, TailTest};
use self::wealth::Limits;
use crate::config::{Canary, QuantileRatios};
use crate::diagnosis::figures::{Count, seconds};
use crate::labels::labels;
use crate::request::class::Class;

/// One of the two that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arm {
    /// The route's other pools.
    Baseline = 0,
    /// The new revision.
    Canary = 1,
}

labels! {
    /// A latency that is compared.
    pub enum Measure {
        /// Time to first token; of answers without a stream the whole time, per output token where it generates.
        Ttft = "ttft",
        /// Inter-token latency.
        Itl = "itl",
        /// Time per output token.
        Tpot = "tpot",
        /// One over the output tokens: long where answers are short.
        Brevity = "brevity",
    }
}

/// How a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// In a stream of tokens.
    Stream = 0,
    /// A generated text in one piece.
    Text = 1,
    /// Anything else.
    Other = 2,
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
    /// Of an answer without a stream.
    pub is_unary: bool,
    /// Its replica, by a hash of the name: what one replica is late with at a time is one event.
    pub replica: u64,
    /// Which conversation it is of, where that is known.
    pub conversation: Option<u64>,
    /// It ended without an answer after this time: the latency would have been longer.
    pub is_censored: bool,
}

impl Observed {
    /// A whole value of a stream, of no replica or conversation that is known.
    pub fn of(arm: Arm, value: f64) -> Self {
        Self { arm, value, count: 1.0, is_censored: false, is_unary: false, replica: 0, conversation: None }
    }
}

/// Percentiles of both arms side by side, seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// Which latency.
    pub measure: Measure,
    /// Which prompts.
    pub class: Class,
    /// Of answers without a stream.
    pub is_unary: bool,
    /// Baseline's and canary's p50, p90 and p99.
    pub percentiles: [[f64; 3]; 2],
}

/// Compares a canary with its baseline.
#[derive(Clone, Debug)]
pub struct Judge {
    tails: Vec<Tail>,
    rates: [Rate; 3],
    /// By measure.
    baseline: [Baseline; MEASURES],
    /// The canary's, by measure and group.
    canary: [[Samples; GROUPS]; MEASURES],
    blocks: [Blocks; 2],
    /// The baseline's in this step, by [`Form`].
    answers: [u64; 3],
    /// Logarithm of how many judges may stop the canary, this one included.
    judges: f64,
}

/// A bound on a quantile.
#[derive(Clone, Debug)]
struct Tail {
    name: &'static str,
    measure: Measure,
    bound: Bound,
    test: TailTest,
    /// Whether it is above the baseline's at all.
    alike: TailTest,
    trial: TailTest,
    limits: Limits,
    is_used: bool,
}

/// A bound on a share.
#[derive(Clone, Debug)]
struct Rate {
    name: &'static str,
    increase: f64,
    test: RateTest,
    /// Whether it is above the baseline's at all.
    alike: RateTest,
    trial: RateTest,
    limits: Limits,
    is_used: bool,
    /// By arm: what was seen since this gateway began, for people.
    seen: [Count; 2],
}

/// When a block ends: by time, and sooner where the canary gets many requests.
#[derive(Clone, Copy, Debug, Default)]
struct Blocks {
    since: f64,
    ends: f64,
    requests: u32,
}

impl Judge {
    /// A judge by the bounds of `canary` that goes on from `saved`.
    pub fn new(canary: &Canary, saved: &SavedEvidence) -> Self {
        let bounds = bounds(canary);
        let total: f64 =
            RATE_WEIGHTS.iter().sum::<f64>() + bounds.iter().map(|bound| bound.weight).sum::<f64>();
        let limits = |weight: f64| Limits::of(weight / total, canary.false_rollback_rate);
        let tail = |TailBound { name, measure, bound, weight }| Tail {
            name,
            measure,
            bound,
            test: TailTest::new(bound, 1.0 / bound.ratio, known(&saved.tails, name)),
            alike: TailTest::new(bound, 1.0, known(&saved.tails_alike, name)),
            trial: TailTest::trial(bound, TRIAL_RATIO),
            limits: limits(weight),
            is_used: false,
        };
        let rate = |name: &'static str, increase, weight| Rate {
            name,
            increase,
            test: RateTest::new(increase, 0.0, known(&saved.rates, name)),
            alike: RateTest::new(0.0, 0.0, known(&saved.rates_alike, name)),
            trial: rate_trial(increase),
            limits: limits(weight),
            is_used: false,
            seen: Default::default(),
        };
        let [errors, goodput, cut] = RATE_WEIGHTS;
        Self {
            tails: bounds.into_iter().map(tail).collect(),
            rates: [
                rate("errors", canary.max_error_ratio_increase, errors),
                rate(GOODPUT, canary.max_goodput_decrease, goodput),
                rate(LENGTH, MAX_LENGTH_INCREASE, cut),
            ],
            baseline: Default::default(),
            canary: Default::default(),
            blocks: Default::default(),
            answers: [0; 3],
            judges: 0.0,
        }
    }

    /// Each of `judges` may stop the canary by what it sees, and has its part of the error rate.
    pub fn among(&mut self, judges: usize) {
        self.judges = (judges.max(1) as f64).ln();
    }

    /// The same judge by other bounds, which keeps what it knows of both.
    #[must_use]
    pub fn rebound(mut self, canary: &Canary) -> Self {
        let new = Self::new(canary, &self.save());
        let is_same = |judge: &Self| {
            let tails: Vec<_> = judge.tails.iter().map(|tail| (tail.name, tail.bound)).collect();
            (tails, judge.rates.each_ref().map(|rate| rate.increase))
        };
        if is_same(&new) == is_same(&self) {
            self.tails.iter_mut().zip(&new.tails).for_each(|(tail, new)| tail.limits = new.limits);
            self.rates.iter_mut().zip(&new.rates).for_each(|(rate, new)| rate.limits = new.limits);
            return self;
        }
        Self { baseline: self.baseline, canary: self.canary, ..new }
    }

    /// Another step began: whether a breach would be seen is asked anew.
    pub fn begin_step(&mut self) {
        self.answers = [0; 3];
        for tail in &mut self.tails {
            tail.trial = tail.trial.again();
            tail.is_used = false;
        }
        for rate in &mut self.rates {
            rate.trial = rate_trial(rate.increase);
            rate.is_used = false;
        }
    }

    /// A latency, at `now` (seconds).
    pub fn observe(&mut self, now: f64, measure: Measure, class: Class, observed: Observed) {
        self.advance(now);
        let group = class as usize + if observed.is_unary { CLASSES } else { 0 };
        for tail in self.tails.iter_mut().filter(|tail| tail.measure == measure) {
            tail.is_used |= observed.arm == Arm::Baseline;
            for test in [&mut tail.test, &mut tail.alike, &mut tail.trial] {
                test.observe(group, observed);
            }
        }
        self.count(now, TAILS, measure == Measure::Ttft && observed.arm == Arm::Canary);
        if observed.is_censored {
            return;
        }
        let measure = measure as usize;
        match observed.arm {
            Arm::Baseline => {
                if let Some(baseline) = self.baseline.get_mut(measure) {
                    baseline.add(group, observed.value);
                }
            }
            Arm::Canary => {
                if let Some(samples) = self.canary.get_mut(measure).and_then(|of| of.get_mut(group)) {
                    samples.add(observed.value);
                }
            }
        }
    }

    /// The baseline has latencies that cannot be compared yet: no step ends before some can.
    pub fn expects(&mut self, measure: Measure) {
        self.tails.iter_mut().filter(|tail| tail.measure == measure).for_each(|tail| tail.is_used = true);
    }

    /// The baseline answers a request, in such a form.
    pub fn answers(&mut self, form: Form) {
        if let Some(count) = self.answers.get_mut(form as usize) {
            *count += 1;
        }
    }

    /// Whether so few of the baseline's answers in this step have it that no step waits for enough of them.
    fn is_rare(&self, measure: Measure) -> bool {
        let [streams, texts, others] = self.answers;
        let with = match measure {
            Measure::Ttft => return false,
            Measure::Itl | Measure::Tpot => streams,
            Measure::Brevity => streams + texts,
        };
        with * RARE < streams + texts + others
    }

    /// An attempt ended, well or not.
    pub fn attempt(&mut self, now: f64, class: Class, arm: Arm, conversation: Option<u64>, is_failed: bool) {
        self.share(now, 0, (class, arm, conversation), is_failed);
        self.count(now, RATES, arm == Arm::Canary);
    }

    /// A request was judged by its SLO.
    pub fn slo(&mut self, now: f64, class: Class, arm: Arm, conversation: Option<u64>, is_missed: bool) {
        self.share(now, 1, (class, arm, conversation), is_missed);
    }

    /// A generated answer ended, at its limit of tokens or not.
    pub fn end(&mut self, now: f64, class: Class, arm: Arm, conversation: Option<u64>, is_at_limit: bool) {
        self.share(now, 2, (class, arm, conversation), is_at_limit);
    }

    fn share(
        &mut self,
        now: f64,
        at: usize,
        (class, arm, conversation): (Class, Arm, Option<u64>),
        is_bad: bool,
    ) {
        self.advance(now);
        let Some(rate) = self.rates.get_mut(at) else { return };
        rate.is_used |= arm == Arm::Baseline;
        if let Some(seen) = rate.seen.get_mut(arm as usize) {
            seen.add(is_bad);
        }
        for test in [&mut rate.test, &mut rate.alike, &mut rate.trial] {
            test.observe(class as usize, arm, conversation, is_bad);
        }
    }

    /// Ends the blocks whose time is over.
    pub fn advance(&mut self, now: f64) {
        for which in [TAILS, RATES] {
            if self.blocks.get(which).is_some_and(|blocks| now >= blocks.ends) {
                self.close(now, which);
            }
        }
    }

    /// Counts a request of the canary; so many of them end a block, however soon they came.
    fn count(&mut self, now: f64, which: usize, is_one: bool) {
        let (Some(blocks), Some(limit)) = (self.blocks.get_mut(which), MAX_REQUESTS.get(which)) else {
            return;
        };
        blocks.requests += u32::from(is_one);
        if blocks.requests >= *limit {
            self.close(now, which);
        }
    }

    fn close(&mut self, now: f64, which: usize) {
        let Some(blocks) = self.blocks.get_mut(which) else { return };
        let passed = now - blocks.since;
        *blocks = Blocks { since: now, ends: now + BLOCK, requests: 0 };
        if which == RATES {
            for rate in &mut self.rates {
                [&mut rate.test, &mut rate.alike, &mut rate.trial].into_iter().for_each(RateTest::close);
            }
            return;
        }
        self.baseline.iter_mut().for_each(Baseline::refresh);
        self.canary.iter_mut().flatten().for_each(Samples::refresh);
        for tail in &mut self.tails {
            let measure = tail.measure as usize;
            if let (Some(baseline), Some(canary)) = (self.baseline.get(measure), self.canary.get(measure)) {
                tail.test.close(baseline, passed);
                tail.alike.close(baseline, passed);
                tail.trial.level(levels(baseline, canary));
                tail.trial.close(baseline, passed);
            }
        }
    }

    /// Evidence of every test.
    pub fn evidence(&self) -> Vec<Evidence> {
        let tails = self.tails.iter().map(|tail| Evidence {
            test: tail.name.into(),
            bound: tail.bound.ratio,
            share: tail.limits.share(
                self.judges,
                |limit| tail.test.evidence(limit),
                |limit| tail.alike.evidence(limit),
            ),
            trial: (tail.is_used && !self.is_rare(tail.measure))
                .then(|| tail.trial.evidence(tail.limits.within + self.judges)),
        });
        let rates = self.rates.iter().map(|rate| Evidence {
            test: rate.name.into(),
            bound: rate.increase,
            share: rate.limits.share(
                self.judges,
                |limit| rate.test.evidence(limit),
                |limit| rate.alike.evidence(limit),
            ),
            trial: (rate.is_used
                && rate.increase < 1.0
                && !(rate.name == LENGTH && self.is_rare(Measure::Brevity)))
            .then(|| rate.trial.evidence(rate.limits.within + self.judges)),
        });
        tails.chain(rates).collect()
    }

    /// The test that stops the canary.
    pub fn breach(&self) -> Option<Evidence> {
        let strongest = self.evidence().into_iter().max_by(|a, b| a.share.total_cmp(&b.share));
        strongest.filter(|evidence| evidence.share >= 1.0)
    }

    /// Percentiles side by side, of classes that both have seen.
    pub fn compared(&mut self) -> Vec<Compared> {
        let mut compared = Vec::new();
        let arms = self.baseline.iter_mut().zip(&mut self.canary);
        for (measure, (baseline, canary)) in Measure::ALL.into_iter().zip(arms) {
            let groups = [false, true].into_iter().flat_map(|unary| Class::ALL.map(|class| (class, unary)));
            for ((class, is_unary), (baseline, canary)) in groups.zip(baseline.samples().zip(canary)) {
                let percentiles = |samples: &mut Samples| {
                    samples.sort();
                    Some([samples.rank(0.5)?, samples.rank(0.9)?, samples.rank(0.99)?])
                };
                if let (Some(baseline), Some(canary)) = (percentiles(baseline), percentiles(canary)) {
                    compared.push(Compared { measure, class, is_unary, percentiles: [baseline, canary] });
                }
            }
        }
        compared
    }

    /// What a test compares, of baseline and canary, as a sentence has it: where the two differ most.
    pub fn sides(&mut self, test: &str) -> Option<[String; 2]> {
        if let Some(rate) = self.rates.iter().find(|rate| rate.name == test) {
            let shown = |bad: f64| if rate.name == GOODPUT { 1.0 - bad } else { bad };
            return Some(rate.seen.map(|seen| format!("{:.1} %", 100.0 * shown(seen.share()))));
        }
        let tail = self.tails.iter().find(|tail| tail.name == test)?;
        let measure = tail.measure;
        let ranks = match measure {
            // One answer in ten may be cut short, or in a hundred.
            Measure::Brevity => 0..3,
            _ if tail.bound.is_tail() => 2..3,
            _ => 0..1,
        };
        let groups = self.compared().into_iter().filter(|compared| compared.measure == measure);
        let sides = groups.flat_map(|group| {
            ranks
                .clone()
                .rev()
                .map(move |rank| (rank, group.percentiles.map(|percentiles| percentiles[rank])))
        });
        let (rank, widest) = sides.max_by(|(_, a), (_, b)| (a[1] / a[0]).total_cmp(&(b[1] / b[0])))?;
        Some(widest.map(|value| match (measure, rank) {
            (Measure::Brevity, 0) => format!("{:.0} tokens", 1.0 / value),
            (Measure::Brevity, 1) => format!("{:.0} tokens in the shortest tenth", 1.0 / value),
            (Measure::Brevity, _) => format!("{:.0} tokens in the shortest hundredth", 1.0 / value),
            _ => seconds(value),
        }))
    }

    /// What a restart must not lose.
    pub fn save(&self) -> SavedEvidence {
        let tails = |of: fn(&Tail) -> &TailTest| {
            self.tails.iter().map(|tail| (tail.name.to_owned(), of(tail).wealth().clone())).collect()
        };
        let rates = |of: fn(&Rate) -> &RateTest| {
            self.rates.iter().map(|rate| (rate.name.to_owned(), of(rate).wealth().clone())).collect()
        };
        SavedEvidence {
            tails: tails(|tail| &tail.test),
            rates: rates(|rate| &rate.test),
            tails_alike: tails(|tail| &tail.alike),
            rates_alike: rates(|rate| &rate.alike),
        }
    }
}

/// How much slower than it is a canary would have to be to be like the baseline, by group: a trial asks whether a breach would be seen,
/// and one that is fast has farther to go.
fn levels(baseline: &Baseline, canary: &[Samples; GROUPS]) -> [f64; GROUPS] {
    let mut levels = [1.0; GROUPS];
    for (group, (level, samples)) in levels.iter_mut().zip(canary).enumerate() {
        if let (Some(usual), Some(own)) = (baseline.threshold(group, 0.5), samples.quantile(0.5))
            && own > 0.0
        {
            *level = (usual / own).max(1.0);
        }
    }
    levels
}

/// A bound with its test's name and weight in the error rate.
struct TailBound {
    name: &'static str,
    measure: Measure,
    bound: Bound,
    weight: f64,
}

fn bounds(canary: &Canary) -> Vec<TailBound> {
    let of = |measure, names: [&'static str; 2], ratios: QuantileRatios| {
        let bounds = [(names[0], 0.5, ratios.p50, MEDIAN_WEIGHT), (names[1], 0.99, ratios.p99, TAIL_WEIGHT)];
        bounds.into_iter().filter_map(move |(name, quantile, ratio, weight)| {
            Some(TailBound { name, measure, bound: Bound { quantile, ratio: ratio? }, weight })
        })
    };
    let bound = Bound { quantile: SHORTEST, ratio: MAX_BREVITY };
    of(Measure::Ttft, ["ttft_p50", "ttft_p99"], canary.max_ttft_ratio)
        .chain(of(Measure::Itl, ["itl_p50", "itl_p99"], canary.max_itl_ratio))
        .chain(of(Measure::Tpot, ["tpot_p50", "tpot_p99"], canary.max_tpot_ratio))
        .chain([TailBound { name: "brevity", measure: Measure::Brevity, bound, weight: BREVITY_WEIGHT }])
        .collect()
}

/// Whether a breach of a bound on a share would be seen.
fn rate_trial(increase: f64) -> RateTest {
    RateTest::new(increase, rate_trial_share(increase), RateWealth::default())
}

/// The share of bad requests that a step waits to have seen, for a bound on their increase. Less is suspected, though not waited for.
pub fn rate_trial_share(increase: f64) -> f64 {
    TRIAL_SHARE.max(TRIAL_RATIO * increase)
}

/// Prompt classes, the unknown one included.
const CLASSES: usize = Class::ALL.len();
/// Those of streams and those of answers without one.
const GROUPS: usize = 2 * CLASSES;
const MEASURES: usize = 4;
/// The test of the share of requests within their SLO.
const GOODPUT: &str = "goodput";
/// The test of the share of answers that end at their limit.
const LENGTH: &str = "length";
/// A step waits for the verdict of a measure that one answer in this number has.
const RARE: u64 = 20;
/// Seconds. What happens within one is one event.
const BLOCK: f64 = 0.5;
const TAILS: usize = 0;
const RATES: usize = 1;
/// Requests of the canary after which a block ends sooner, of tails and of shares: what a bad canary costs is a number of requests. A
/// stall makes all requests of its time slow, but seldom fail.
const MAX_REQUESTS: [u32; 2] = [16, 4];
/// A trial's canary: a middle, and the share of bad requests, half above its bound, of these a quarter at least. Of tails, see
/// [`TailTest::trial`].
const TRIAL_RATIO: f64 = 1.5;
const TRIAL_SHARE: f64 = 0.25;
/// The shortest fifth of the answers: where every third one stops at once, the median is as long as ever.
const SHORTEST: f64 = 0.8;
/// These may have a third of the tokens of the baseline's shortest: less is no matter of style.
const MAX_BREVITY: f64 = 3.0;
/// Parts of the error rate by test, relative to each other: the more, the more requests a breach takes to see.
const TAIL_WEIGHT: f64 = 5.0;
const MEDIAN_WEIGHT: f64 = 1.0;
const BREVITY_WEIGHT: f64 = 0.5;
/// Of errors, of goodput and of answers that end at their limit.
const RATE_WEIGHTS: [f64; 3] = [2.0, 1.0, 0.5];
/// A model that does not find its end runs to the limit each time; one that only writes more does so now and then.
const MAX_LENGTH_INCREASE: f64 = 0.25;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::fixture;

    fn judge(bounds: &str) -> Judge {
        Judge::new(&fixture::canary(bounds), &SavedEvidence::default())
    }

    fn evidence(judge: &Judge, test: &str) -> Evidence {
        judge.evidence().into_iter().find(|evidence| evidence.test == test).unwrap()
    }

    #[test]
    fn a_canary_that_is_faster_ends_its_steps_as_soon_as_one_that_is_alike() {
        for speed in [1.0, 0.6] {
            let mut judge = judge("max_ttft_ratio = { p50 = 1.1 }\nmax_itl_ratio = {}\n");
            let mut random = fastrand::Rng::with_seed(1);
            for request in 0..6000_u32 {
                let now = f64::from(request) / 100.0;
                let (arm, speed) = if request % 5 == 0 { (Arm::Canary, speed) } else { (Arm::Baseline, 1.0) };
                let ttft = 0.02 * (1.0 + 0.1 * random.f64());
                judge.observe(now, Measure::Ttft, Class::Short, Observed::of(arm, speed * ttft));
            }
            let evidence = evidence(&judge, "ttft_p50");
            assert!(evidence.share < 0.1 && evidence.trial >= Some(1.0), "{speed}: {evidence:?}");
        }
    }

    #[test]
    fn no_step_ends_while_the_baseline_is_too_cold_to_be_compared_with() {
        let mut judge = judge("");
        let trial = |judge: &Judge| evidence(judge, "ttft_p50").trial;
        judge.observe(1.0, Measure::Ttft, Class::Short, Observed::of(Arm::Canary, 0.35));
        assert_eq!(trial(&judge), None, "the baseline has none to wait for");
        judge.expects(Measure::Ttft);
        assert!(trial(&judge).is_some_and(|trial| trial < 1.0));
        judge.begin_step();
        assert_eq!(trial(&judge), None);
    }

    #[test]
    fn a_canary_whose_answers_run_to_their_limit_is_stopped_and_one_that_writes_more_is_not() {
        for (share, is_stopped) in [(0.1, false), (0.25, false), (0.6, true), (1.0, true)] {
            let mut judge = judge("");
            let mut random = fastrand::Rng::with_seed(1);
            for request in 0..2000_u32 {
                let arm = [Arm::Canary, Arm::Baseline][request as usize % 2];
                let is_at_limit = random.f64() < if arm == Arm::Canary { share } else { 0.1 };
                judge.end(f64::from(request) / 20.0, Class::Short, arm, None, is_at_limit);
            }
            let evidence = evidence(&judge, "length");
            assert_eq!(evidence.share >= 1.0, is_stopped, "{share}: {evidence:?}");
            assert!(evidence.trial >= Some(1.0), "{share}: {evidence:?}");
        }
    }

    #[test]
    fn a_step_ends_by_wide_bounds_on_shares_too() {
        for increase in [0.01, 0.25, 0.4, 0.8, 1.0] {
            let bounds =
                format!("max_error_ratio_increase = {increase}\nmax_goodput_decrease = {increase}\n");
            let mut judge = judge(&bounds);
            for request in 0..4000_u32 {
                let arm = [Arm::Canary, Arm::Baseline][request as usize % 2];
                judge.attempt(f64::from(request) / 20.0, Class::Short, arm, None, false);
            }
            let errors = evidence(&judge, "errors");
            assert!(errors.trial.is_none_or(|trial| trial >= 1.0), "{increase}: {errors:?}");
            assert_eq!(errors.trial.is_none(), increase == 1.0, "no share of failed requests is above it");
        }
    }

    #[test]
    fn a_breach_has_what_was_measured_on_both_sides() {
        let mut judge = judge("max_ttft_ratio = { p50 = 1.1, p99 = 1.2 }\n");
        for request in 0..2000_u32 {
            let (now, arm) = (f64::from(request) / 20.0, [Arm::Canary, Arm::Baseline][request as usize % 2]);
            for (class, canary_ttft) in [(Class::Short, 0.2), (Class::Long, 1.5)] {
                let ttft = if arm == Arm::Canary { canary_ttft } else { 0.2 };
                judge.observe(now, Measure::Ttft, class, Observed::of(arm, ttft));
            }
            judge.slo(now, Class::Long, arm, None, arm == Arm::Canary && request % 8 == 0);
        }
        assert!(judge.breach().unwrap().test.starts_with("ttft_"));
        assert_eq!(judge.sides("ttft_p99").unwrap(), ["200 ms", "1.5 s"]);
        assert_eq!(judge.sides("goodput").unwrap(), ["100.0 %", "75.0 %"]);
        assert_eq!(judge.sides("itl_p99"), None, "nothing was measured");
        for request in 0..2000_u32 {
            let arm = [Arm::Canary, Arm::Baseline][request as usize % 2];
            // One answer of the canary in eight is empty.
            let brevity = if request % 16 == 0 { 2.0 } else { 1.0 / 12.0 };
            judge.observe(
                200.0 + f64::from(request) / 20.0,
                Measure::Brevity,
                Class::Short,
                Observed::of(arm, brevity),
            );
        }
        let shortest = ["12", "0"].map(|tokens| format!("{tokens} tokens in the shortest tenth"));
        assert_eq!(judge.sides("brevity").unwrap(), shortest);
    }

    /// Whether a step ends, after how many answers of the canary, of which a share takes six times as long; 24 requests a second,
    /// half of them the canary's, which differ little.
    fn ends(seed: u64, slow: f64) -> Option<u32> {
        let mut judge = judge("max_ttft_ratio = { p50 = 1.1, p99 = 1.2 }\nmax_itl_ratio = {}\n");
        let mut random = fastrand::Rng::with_seed(seed);
        for request in 0..8000_u32 {
            let arm = [Arm::Canary, Arm::Baseline][request as usize % 2];
            let normal = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
            let stretch = if arm == Arm::Canary && random.f64() < slow { 6.0 } else { 1.0 };
            let ttft = 0.3 * (0.2 * normal).exp() * stretch;
            let now = f64::from(request) / 24.0;
            judge.observe(now, Measure::Ttft, Class::Short, Observed::of(arm, ttft));
            let evidence = judge.evidence();
            if evidence.iter().any(|test| test.share >= 1.0) {
                return None;
            }
            let mut used = evidence.iter().filter(|test| test.trial.is_some());
            if request > 700 && used.all(|test| test.share < 0.25 && test.trial >= Some(1.0)) {
                return Some(request / 2);
            }
        }
        panic!("neither stopped nor let through");
    }

    #[test]
    fn a_step_does_not_end_before_a_longer_tail_alone_would_be_seen() {
        let count = |slow| (0..20).filter_map(|seed| ends(seed, slow)).collect::<Vec<_>>();
        let (fine, slow) = (count(0.0), count(0.05));
        assert!(fine.len() == 20 && fine.iter().all(|answers| *answers < 1500), "{fine:?}");
        assert!(slow.len() <= 1, "one in twenty answers takes six times as long: {slow:?} let through");
    }

    #[test]
    fn a_test_that_a_handful_of_requests_have_keeps_no_step_from_ending() {
        for (streams, is_waited_for) in [(3, false), (200, true)] {
            let mut judge = judge("");
            for request in 0..2000_u32 {
                let now = f64::from(request) / 20.0;
                if request < streams {
                    for _ in 0..20 {
                        judge.observe(now, Measure::Itl, Class::Short, Observed::of(Arm::Baseline, 0.02));
                    }
                    judge.observe(now, Measure::Brevity, Class::Short, Observed::of(Arm::Baseline, 0.1));
                    judge.end(now, Class::Short, Arm::Baseline, None, false);
                }
                judge.answers(if request < streams { Form::Stream } else { Form::Other });
                judge.attempt(now, Class::Short, Arm::Baseline, None, false);
            }
            for test in ["itl_p99", "brevity", "length"] {
                let trial = evidence(&judge, test).trial;
                assert_eq!(trial.is_some(), is_waited_for, "{streams} of 2,000: {test}");
            }
            assert!(evidence(&judge, "errors").trial.is_some());
            judge.begin_step();
            assert!(judge.evidence().iter().all(|test| test.trial.is_none()), "none was seen in this step");
        }
    }
}
