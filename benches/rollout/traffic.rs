//! Synthetic traffic of a route with a canary: drifting, overdispersed, with stalls of single replicas.
//!
//! TTFT is lognormal with p50 60 ms and p99 180 ms for short prompts, longer in proportion for longer ones. Load multiplies both
//! arms alike (a walk from minute to minute and bursts of seconds); besides, every replica stalls on its own, once in ten
//! minutes for three seconds, in which all is three times slower: such a cluster falls on one arm alone.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "shared by the bench and the tests")]

use std::borrow::Cow;

use tokenway::config::Canary;
use tokenway::request::class::Class;
use tokenway::rollout::judge::{Arm, Judge, Measure, Observed, SavedEvidence};
use tokenway::stats::normal;

/// What the new revision does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Revision {
    /// The same as the old one.
    Fine,
    /// p99 of TTFT times 1.5, p50 as before.
    Tail,
    /// Long prompts take twice as long.
    LongPrompts,
    /// As fast as before, and one request in twenty fails.
    Failing,
    /// Every request fails.
    Broken,
    /// First tokens take forty times as long.
    Stuck,
    /// Tokens take 1.4 times as long.
    SlowTokens,
    /// As `SlowTokens`, where one gap in fifty takes six times as long with either revision.
    SlowTokensAmongStalls,
    /// Three requests in ten hang until their clients leave after 3 s.
    Hanging,
    /// Answers have one token.
    Short,
    /// Answers without a stream take ten times as long; all are without one.
    SlowUnary,
    /// The same as the old one, for thirty conversations that go on for ever, each with a prompt of its own.
    Sticky,
    /// As `Broken`, for such conversations.
    StickyBroken,
    /// The same as the old one, under mixed noise: single replicas stall six times as often, one request in fifty takes five times as
    /// long, failures come in bursts for both alike, and the share of long prompts swings from hour to hour.
    Noise,
}

/// How one canary ended.
#[derive(Clone, Debug)]
pub struct Ending {
    /// Canary requests before the verdict, and the test that gave it; `None` if it was within its bounds to the end.
    pub stopped: Option<(u64, Cow<'static, str>)>,
    /// It was stopped before it became worse.
    pub is_false: bool,
}

/// Runs a canary at a tenth of `rate` requests a second for at most `requests` requests of its own, after it was as good as the old one
/// for `good` of them.
pub fn run(bounds: &Canary, revision: Revision, rate: f64, seed: u64, requests: u64) -> Ending {
    run_late(bounds, revision, rate, seed, [0, requests])
}

/// The same; the first `good` requests of the canary do not count.
#[allow(
    clippy::cognitive_complexity,
    reason = "one request after the other, with what each revision does to it"
)]
pub fn run_late(
    bounds: &Canary,
    revision: Revision,
    rate: f64,
    seed: u64,
    [good, requests]: [u64; 2],
) -> Ending {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut judge = Judge::new(bounds, &SavedEvidence::default());
    let is_noisy = revision == Revision::Noise;
    let is_sticky = matches!(revision, Revision::Sticky | Revision::StickyBroken);
    let is_unary = revision == Revision::SlowUnary;
    let often = if is_noisy { 6.0 } else { 1.0 };
    let mut load = Load { stalls_per_second: often / 600.0, ..Load::default() };
    let people: [(Arm, f64); 30] = std::array::from_fn(|i| {
        (if i % 5 == 0 { Arm::Canary } else { Arm::Baseline }, (0.7 * normal(&mut random)).exp())
    });
    let (mut now, mut looked, mut of_canary) = (0.0, 0.0, 0);
    while of_canary < good + requests {
        now += -(1.0 - random.f64()).ln() / rate;
        let (arm, person) = match () {
            () if is_sticky => {
                let person = random.usize(..people.len());
                (people[person].0, Some(person))
            }
            () if random.f64() < 0.1 => (Arm::Canary, None),
            () => (Arm::Baseline, None),
        };
        let conversation = person.map(|person| person as u64);
        let replica = if arm == Arm::Canary { 9 } else { random.usize(..9) };
        let factor = load.at(now, &mut random) * load.stall(replica, now, &mut random);
        let is_bad = arm == Arm::Canary && of_canary >= good;
        let swing = if is_noisy { 0.3 * (now / 900.0).sin() } else { 0.0 };
        let class = match random.f64() {
            x if x < 0.5 + swing => Class::Short,
            x if x < 0.8 + swing / 2.0 => Class::Medium,
            _ => Class::Long,
        };
        of_canary += u64::from(arm == Arm::Canary);
        let failing = match revision {
            Revision::Failing if is_bad => 0.05,
            Revision::Broken | Revision::StickyBroken if is_bad => 1.0,
            Revision::Noise if now % 600.0 < 10.0 => 0.1,
            _ => 0.002,
        };
        let is_failed = random.f64() < failing;
        let factor = if is_noisy && random.f64() < 0.02 { 5.0 * factor } else { factor };
        let factor = person.map_or(factor, |person| factor * people[person].1);
        let seen = |value, is_censored| {
            let replica = replica as u64;
            Observed { arm, value, count: 1.0, is_censored, is_unary, replica, conversation }
        };
        if is_bad && revision == Revision::Hanging && random.f64() < 0.3 {
            judge.observe(now, Measure::Ttft, class, seen(3.0, true));
            continue;
        }
        judge.attempt(now, class, arm, conversation, is_failed);
        judge.slo(now, class, arm, conversation, is_failed);
        if !is_failed {
            let ttft = factor * ttft(class, revision, is_bad, &mut random);
            judge.observe(now, Measure::Ttft, class, seen(ttft, false));
            let tokens =
                if is_bad && revision == Revision::Short { 1.0 } else { 200.0 * random.f64().max(0.005) };
            judge.observe(now, Measure::Brevity, class, seen(1.0 / tokens, false));
            let is_slow = matches!(revision, Revision::SlowTokens | Revision::SlowTokensAmongStalls);
            let step = 0.02 * factor.sqrt() * if is_bad && is_slow { 1.4 } else { 1.0 };
            let stall = if revision == Revision::SlowTokensAmongStalls { 0.1 } else { 0.0 };
            if !is_unary {
                let [gaps @ .., mean] = pace(step, stall, &mut random);
                for gap in gaps {
                    judge.observe(now, Measure::Itl, class, seen(gap, false));
                }
                judge.observe(now, Measure::Tpot, class, seen(mean, false));
            }
        }
        // Evidence changes with each block.
        if now < looked + 0.25 {
            continue;
        }
        looked = now;
        if let Some(breach) = judge.breach() {
            // Stopped while it was good: a false alarm, told as such.
            return Ending {
                stopped: Some((of_canary.saturating_sub(good), breach.test)),
                is_false: of_canary < good,
            };
        }
    }
    Ending { stopped: None, is_false: false }
}

/// Two gaps, of which one in fifty has a stall, and the time per token of a stream.
fn pace(step: f64, stall: f64, random: &mut fastrand::Rng) -> [f64; 3] {
    let mut gap = || {
        let noise = (0.25 * normal(random)).exp();
        step * noise + if random.f64() < 0.02 { stall } else { 0.0 }
    };
    let gaps = [gap(), gap()];
    [gaps[0], gaps[1], step * (0.1 * normal(random)).exp() + 0.02 * stall]
}

fn ttft(class: Class, revision: Revision, is_new: bool, random: &mut fastrand::Rng) -> f64 {
    // ln(3) / 2.3263 and ln(4.5) / 2.3263: p99 at three and at four and a half times the median.
    let sigma = if is_new && revision == Revision::Tail { 0.6466 } else { 0.4723 };
    let median = match class {
        Class::Long if is_new && revision == Revision::LongPrompts => 0.72,
        Class::Long => 0.36,
        Class::Medium => 0.12,
        Class::Short | Class::None => 0.06,
    };
    let slow = match revision {
        Revision::Stuck if is_new => 40.0,
        Revision::SlowUnary if is_new => 10.0,
        _ => 1.0,
    };
    slow * median * (sigma * normal(random)).exp()
}

/// What slows requests beside the revision.
#[derive(Default)]
struct Load {
    minute: f64,
    walk: f64,
    burst_until: f64,
    burst: f64,
    /// Of each replica.
    stalls_per_second: f64,
    stalls: [f64; 10],
    second: [f64; 10],
}

impl Load {
    fn at(&mut self, now: f64, random: &mut fastrand::Rng) -> f64 {
        while self.minute < now {
            self.minute += 60.0;
            self.walk = 0.97 * self.walk + 0.15 * normal(random);
        }
        if now > self.burst_until {
            self.burst_until = now + 5.0 + 20.0 * random.f64();
            self.burst = 0.2 * normal(random);
        }
        (self.walk + self.burst).exp()
    }

    fn stall(&mut self, replica: usize, now: f64, random: &mut fastrand::Rng) -> f64 {
        if now >= self.second[replica] {
            self.second[replica] = now + 1.0;
            if random.f64() < self.stalls_per_second {
                self.stalls[replica] = now + 3.0;
            }
        }
        if now < self.stalls[replica] { 3.0 } else { 1.0 }
    }
}
