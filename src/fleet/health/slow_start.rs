//! Slow start: how much of its ordinary traffic a replica gets after it became warm.
//!
//! It is tried with one request at a time. The share rises with every few answers that came about as soon as the others', or else
//! with time, and is over after `pool.warmup.slow_start`. While it is slower than its pool's others it stays at the beginning, for
//! twice as long at the latest, and is tried at growing distances: its first answers are its slowest, and what was learned from them
//! would else never be corrected. Pure: time is an argument.

use std::time::Duration;

use crate::clock::Stamp;

/// One slow start under way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SlowStart {
    began: Stamp,
    /// Longest time that it takes.
    span: Duration,
    /// First tokens and whole answers since.
    answers: u32,
    share: f64,
    /// A request is there whose first token has not come.
    is_trying: bool,
    /// When it may be tried next, and the distance to the one after it.
    next_trial: Stamp,
    distance: Duration,
}

impl SlowStart {
    /// A replica that becomes ready now; `None` where it gets all of its share at once.
    pub(crate) fn begin(now: Stamp, span: Duration) -> Option<Self> {
        (!span.is_zero()).then_some(Self {
            began: now,
            span,
            answers: 0,
            share: FIRST_SHARE,
            is_trying: false,
            next_trial: now,
            distance: TRIAL,
        })
    }

    /// Fraction of its ordinary traffic that it should get now: all of it while a trial is due.
    pub(crate) fn share(&self, now: Stamp) -> f64 {
        if !self.is_trying && now >= self.next_trial { 1.0 } else { self.share }
    }

    /// The same without trials.
    pub(crate) fn lasting_share(&self) -> f64 {
        self.share
    }

    /// It was chosen for a request.
    pub(crate) fn chosen(&mut self, now: Stamp) {
        if !self.is_trying && now >= self.next_trial {
            self.is_trying = true;
            self.next_trial = now.after(self.distance);
        }
    }

    /// Whether a trial is due of one that was slow when it was last tried: its trial is a fair one only where what was learned
    /// from its slow answers is forgotten first, or a policy that predicts would never choose it.
    pub(crate) fn is_retrial_due(&self, now: Stamp) -> bool {
        self.was_slow() && !self.is_trying && now >= self.next_trial
    }

    /// It was slow when it was last tried.
    fn was_slow(&self) -> bool {
        self.distance > TRIAL
    }

    /// A request was answered there.
    pub(crate) fn answered(&mut self) {
        self.answers = self.answers.saturating_add(1);
        self.is_trying = false;
    }

    /// Notes how slow it is beside its peers (1 is ordinary); `None` when slow start is over.
    pub(crate) fn looked(mut self, slowness: f64, now: Stamp) -> Option<Self> {
        let elapsed = now.since(self.began);
        let is_slow = slowness > TOLERATED;
        if elapsed >= self.span * if is_slow { EXTENDED } else { 1 } {
            return None;
        }
        let by_time = elapsed.as_secs_f64() / self.span.as_secs_f64();
        let by_answers = FIRST_SHARE * (f64::from(self.answers) / ANSWERS_PER_DOUBLING).exp2();
        // Of what never answers nothing is learned by waiting for it.
        self.is_trying &= now < self.next_trial.after(TRIAL_LIMIT);
        if is_slow {
            if self.answers > 0 {
                self.distance = (self.distance * 2).clamp(SLOW_TRIAL, MAX_DISTANCE);
                self.next_trial = self.next_trial.max(now.after(self.distance));
            }
            self.answers = 0;
            self.share = FIRST_SHARE;
        } else if self.was_slow() && self.answers == 0 {
            // It seems ordinary because what was learned of it is forgotten.
            self.share = FIRST_SHARE;
        } else if self.answers < PROOF {
            // Little is known but that it answered its warm-up.
            self.share = by_time.powi(2).max(self.share);
        } else {
            self.share = by_answers.max(by_time).min(self.share * MAX_RISE).max(self.share);
            self.distance = TRIAL;
        }
        (self.share < 1.0).then_some(self)
    }
}

/// A quarter of a percent of all requests where an idle replica would get every one of them: the pool's p99 is that of the
/// others, whatever these take.
const FIRST_SHARE: f64 = 0.0025;
const ANSWERS_PER_DOUBLING: f64 = 2.0;
/// Answers that tell its speed.
const PROOF: u32 = 4;
/// From one trial to the next at least, while it is as fast as its peers.
const TRIAL: Duration = Duration::from_millis(250);
/// The same while it is slow, doubled with each: six trials in its first minute, which the p99 of thirty requests a second hardly sees.
const SLOW_TRIAL: Duration = Duration::from_secs(1);
const MAX_DISTANCE: Duration = Duration::from_secs(32);
/// The longest that one trial keeps others from being made.
const TRIAL_LIMIT: Duration = Duration::from_secs(5);
/// From one look to the next.
const MAX_RISE: f64 = 1.5;
/// Times its peers' TTFT or ITL up to which it is as good as they are.
const TOLERATED: f64 = 1.5;
/// Spans for one that is still slow when its slow start should be over: then it is not cold but slow.
const EXTENDED: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::millis as at;
    use crate::config::PolicyName;
    use crate::routing::{
        Ask, Assignment, Dispatcher, EngineLimits, Prompt, SlotSet, Target, policies, rendezvous,
    };
    use crate::units::Tokens;

    /// Shares over `seconds`, five looks a second, with so many answers before each.
    fn shares(seconds: u64, answers: u32, slowness: f64) -> Vec<f64> {
        let mut slow = SlowStart::begin(at(0), Duration::from_secs(30));
        let step = |look: u64| {
            slow = slow.and_then(|mut one| {
                (0..answers).for_each(|_| one.answered());
                one.looked(slowness, at(look * 200))
            });
            slow.map_or(1.0, |one| one.share)
        };
        (1..=seconds * 5).map(step).collect()
    }

    #[test]
    fn the_share_rises_with_good_answers() {
        let rising = shares(5, 1, 1.0);
        assert!(rising[0] < 0.03 && rising.is_sorted() && rising.last() == Some(&1.0), "{rising:?}");
    }

    #[test]
    fn without_answers_it_rises_with_time() {
        let rising = shares(30, 0, 1.0);
        assert!(rising.is_sorted() && rising[74] < 0.3 && rising.last() == Some(&1.0), "{rising:?}");
    }

    #[test]
    fn while_it_is_slow_it_stays_at_the_beginning_until_the_time_is_over() {
        let low = shares(60, 3, 3.0);
        assert!(low[..298].iter().all(|share| *share == FIRST_SHARE) && low.last() == Some(&1.0), "{low:?}");
    }

    /// Requests that a replica gets in each of `seconds`, of ten a second at a pool of two, where a request takes `millis(second)`
    /// there and 100 ms elsewhere. What it is known for is its last answer.
    fn tried(seconds: u64, millis: impl Fn(u64) -> u64) -> Vec<u32> {
        let mut slow = SlowStart::begin(at(0), Duration::from_secs(30));
        let (mut got, mut slowness, mut ends) = (vec![0; seconds as usize], 1.0, Vec::new());
        let mut random = fastrand::Rng::with_seed(3);
        for n in 0..seconds * 10 {
            let now = at(n * 100);
            ends.retain(|(end, took)| {
                let is_over = *end <= n * 100;
                if is_over {
                    slowness = *took as f64 / 100.0;
                    slow.iter_mut().for_each(SlowStart::answered);
                }
                !is_over
            });
            if n % 2 == 0 {
                slow = slow.and_then(|slow| slow.looked(slowness, now));
            }
            if random.f64() < 0.5 * slow.map_or(1.0, |slow| slow.share(now)) {
                slow.iter_mut().for_each(|slow| slow.chosen(now));
                got[(n / 10) as usize] += 1;
                let took = millis(n / 10);
                ends.push((n * 100 + took, took));
            }
        }
        got
    }

    #[test]
    fn one_whose_first_answers_are_slow_gets_its_share_when_they_no_longer_are() {
        let got = tried(30, |second| if second < 3 { 1_500 } else { 100 });
        assert!(got[..3].iter().sum::<u32>() <= 3, "{got:?}");
        assert!(got[15..25].iter().sum::<u32>() >= 30, "of about fifty: {got:?}");
    }

    #[test]
    fn one_that_stays_slow_is_tried_ever_more_seldom() {
        let got = tried(59, |_| 1_500);
        assert!((3..=9).contains(&got.iter().sum::<u32>()), "{got:?}");
    }

    #[test]
    fn a_span_of_zero_is_none() {
        assert_eq!(SlowStart::begin(at(0), Duration::ZERO), None);
    }

    /// p99 TTFT in seconds over a minute of 200 requests a second at four replicas, in simulated time. The last one is new: its
    /// first tokens take `factor` times as long during all of it.
    fn p99(policy: PolicyName, factor: f64) -> f64 {
        let (dispatcher, policy) = (Dispatcher::new(4), policies::named(policy));
        let targets: Vec<Target> =
            (0..4).map(|slot| Target::new(slot, rendezvous::identity(0, &[slot as u8]))).collect();
        let limits = EngineLimits { scrape_interval: Duration::from_secs(1), batch_limit: None };
        let mut random = fastrand::Rng::with_seed(7);
        let mut slow = SlowStart::begin(at(0), Duration::from_secs(30));
        let (mut means, mut ttfts, mut flying) = ([None; 4], Vec::new(), Vec::new());
        let slowness =
            |means: &[Option<f64>; 4]| means[3].zip(means[0]).map_or(1.0, |(own, usual)| own / usual);
        for n in 0..12_000_u64 {
            let now = at(n * 5);
            if n % 40 == 0 {
                slow = slow.and_then(|slow| slow.looked(slowness(&means), now));
                targets[3].set_standing(1.0, slow.map_or(1.0, |slow| slow.share(now)));
            }
            flying.retain(|(end, slot, ttft, _): &(Stamp, usize, f64, Assignment)| {
                if *end <= now {
                    let mean = means[*slot].get_or_insert(*ttft);
                    *mean += 0.2 * (*ttft - *mean);
                    if let (3, Some(slow)) = (*slot, &mut slow) {
                        slow.answered();
                    }
                }
                *end > now
            });
            let prompt = Prompt { bytes: 400, tokens: Tokens(100), ..Prompt::default() };
            let tried = SlotSet::new();
            let ask = Ask::of(prompt, &tried);
            let judged = dispatcher.judge(&*policy, &ask, &limits, now, targets.iter()).unwrap();
            let assignment = judged.assign().unwrap();
            let slot = assignment.decision.slot;
            if let (3, Some(slow)) = (slot, &mut slow) {
                slow.chosen(now);
                targets[3].set_standing(1.0, slow.share(now));
            }
            let jitter: f64 = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
            let ttft = 0.2 * (0.3 * jitter).exp() * if slot == 3 { factor } else { 1.0 };
            ttfts.push(ttft);
            flying.push((now.after(Duration::from_secs_f64(ttft)), slot, ttft, assignment));
        }
        ttfts.sort_by(f64::total_cmp);
        ttfts[ttfts.len() * 99 / 100]
    }

    #[test]
    fn a_cold_replica_adds_at_most_five_percent_to_its_pools_p99_in_its_first_minute() {
        for policy in [PolicyName::RoundRobin, PolicyName::LeastLoaded, PolicyName::Latency] {
            let (warm, cold) = (p99(policy, 1.0), p99(policy, 5.0));
            assert!(cold <= warm * 1.05, "{policy:?}: {warm:.3} s without, {cold:.3} s with a cold one");
        }
    }
}
