//! How one replica has answered of late: failure rate, back-off after refusals, trial after an ejection.
//!
//! A replica that fails fast looks idle. So failures lower its share of the traffic long before they eject it, and an
//! ejected replica that passes its probe gets a trial share until live answers prove it. What fails with one prompt alone is
//! that prompt's doing as likely as the replica's, and counts when another prompt has failed there. Pure: time is an argument.
//! What the figures mean beside the pool's other replicas is [`super::outliers`]' affair.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Stamp;

/// Recent answers of one replica.
#[derive(Debug, Default)]
pub struct Answers {
    recent: Mutex<Recent>,
    paused_until: AtomicU64,
    /// Requests that may be in flight at once; 0 is no limit.
    trial: AtomicU32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    /// Failed answers as a fraction of all, newer ones weighing more: what ejects, ...
    rate: f64,
    /// ... and the same with a shorter memory: what lowers its share, which keeps it from answers to clear itself with.
    price: f64,
    at: Stamp,
    is_known: bool,
    failures_in_a_row: u32,
    refusals_in_a_row: u32,
    /// The prompt that failed last, and when.
    last_failed: Option<(u64, Stamp)>,
    /// Whether that failure does not count yet.
    is_withheld: bool,
}

impl Answers {
    /// A first token or a whole answer came. Returns whether that ended a trial.
    pub fn good(&self, now: Stamp) -> bool {
        {
            let mut recent = self.recent.lock();
            recent.note(now, 0.0);
            recent.failures_in_a_row = 0;
            recent.refusals_in_a_row = 0;
        }
        let allowed = self.trial.load(Ordering::Relaxed);
        if allowed == 0 {
            return false;
        }
        let next = if allowed >= TRIAL_ENDS_AT { 0 } else { allowed * 2 };
        self.trial.store(next, Ordering::Relaxed);
        next == 0
    }

    /// A request with this prompt failed there. Returns the failures in a row that count.
    pub fn failed(&self, prompt: u64, now: Stamp) -> u32 {
        let in_a_row = {
            let mut recent = self.recent.lock();
            recent.failed(prompt, now);
            recent.failures_in_a_row
        };
        if in_a_row > 0 {
            self.back_off(now, in_a_row);
        }
        in_a_row
    }

    /// It refused a request at once (a full queue), which is no failure while its streams move.
    pub fn refused(&self, now: Stamp) {
        let in_a_row = {
            let mut recent = self.recent.lock();
            recent.refusals_in_a_row += 1;
            recent.refusals_in_a_row
        };
        self.back_off(now, in_a_row);
    }

    fn back_off(&self, now: Stamp, in_a_row: u32) {
        self.pause(now, (FIRST_PAUSE * (1 << in_a_row.clamp(1, 8).saturating_sub(1))).min(MAX_PAUSE));
    }

    /// Takes no requests for this long while other replicas do.
    pub fn pause(&self, now: Stamp, span: Duration) {
        self.paused_until.fetch_max(now.after(span).as_nanos(), Ordering::Relaxed);
    }

    /// Whether it takes another request now, beside `inflight` of ours, while other replicas are there.
    pub fn takes(&self, now: Stamp, inflight: u64) -> bool {
        let allowed = u64::from(self.trial.load(Ordering::Relaxed));
        now.as_nanos() >= self.paused_until.load(Ordering::Relaxed) && (allowed == 0 || inflight < allowed)
    }

    /// Fraction of failed answers, 0 to 1; `None` where it has not answered at all.
    pub fn failure_rate(&self, now: Stamp) -> Option<f64> {
        let recent = *self.recent.lock();
        recent.is_known.then(|| recent.rate_at(now))
    }

    /// The same with a shorter memory, 0 where failures are rare: what it costs its share of the traffic.
    pub fn price(&self, now: Stamp) -> Option<f64> {
        let recent = *self.recent.lock();
        let rare = |price: f64| if price < RARE { 0.0 } else { price };
        recent.is_known.then(|| rare(recent.price_at(now)))
    }

    /// A replica that traffic proved sick takes requests again: few at first.
    pub fn begin_trial(&self) {
        *self.recent.lock() = Recent::default();
        self.resume();
        self.trial.store(1, Ordering::Relaxed);
    }

    /// Whether it is on trial.
    pub fn is_on_trial(&self) -> bool {
        self.trial.load(Ordering::Relaxed) != 0
    }

    /// Ends a back-off.
    pub fn resume(&self) {
        self.paused_until.store(0, Ordering::Relaxed);
    }
}

impl Recent {
    fn failed(&mut self, prompt: u64, now: Stamp) {
        let before = self.last_failed.replace((prompt, now));
        match before.filter(|(_, at)| now.since(*at) < RATE_FADES_IN) {
            Some((before, _)) if before == prompt => {}
            Some(_) => {
                for _ in 0..=u32::from(std::mem::take(&mut self.is_withheld)) {
                    self.note(now, 1.0);
                    self.failures_in_a_row += 1;
                }
            }
            None => self.is_withheld = true,
        }
    }

    fn note(&mut self, now: Stamp, failure: f64) {
        let (rate, price) = (self.rate_at(now), self.price_at(now));
        self.rate = rate + LEARNED * (failure - rate);
        self.price = price + LEARNED * (failure - price);
        self.at = now;
        self.is_known = true;
    }

    fn rate_at(&self, now: Stamp) -> f64 {
        faded(self.rate, now.since(self.at), RATE_FADES_IN)
    }

    fn price_at(&self, now: Stamp) -> f64 {
        faded(self.price, now.since(self.at), PRICE_FADES_IN)
    }
}

fn faded(value: f64, age: Duration, fades_in: Duration) -> f64 {
    if value == 0.0 { 0.0 } else { value * (-age.as_secs_f64() / fades_in.as_secs_f64()).exp() }
}

/// Weight of one answer in the rate: three failures in a row of a healthy replica make 27 %.
const LEARNED: f64 = 0.1;
/// Times in which rate and price lose two thirds: three failures in a row count together though requests are rare; a replica
/// that is avoided for one failure is tried again after some ten seconds.
const RATE_FADES_IN: Duration = Duration::from_secs(60);
const PRICE_FADES_IN: Duration = Duration::from_secs(10);
const RARE: f64 = 0.03;
/// Doubled for each failure or refusal in a row.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// A trial allows 1, 2, 4, … requests at once; a good answer beyond this many ends it.
const TRIAL_ENDS_AT: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Stamp {
        Stamp::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn failures_raise_the_rate_and_time_and_good_answers_lower_it() {
        let answers = Answers::default();
        assert_eq!(answers.failure_rate(at(0)), None);
        for prompt in 0..3 {
            answers.failed(prompt, at(0));
        }
        let after_three = answers.failure_rate(at(0)).unwrap();
        assert!((0.27..0.28).contains(&after_three), "{after_three}");
        assert!(answers.failure_rate(at(120_000)).unwrap() < 0.05);
        assert!(answers.price(at(0)).unwrap() > 0.27);
        assert_eq!(answers.price(at(25_000)), Some(0.0));
        for _ in 0..10 {
            answers.good(at(0));
        }
        assert!(answers.failure_rate(at(0)).unwrap() < 0.1);
        assert_eq!(answers.failed(9, at(0)), 1);
    }

    #[test]
    fn failures_count_once_a_second_prompt_fails() {
        let answers = Answers::default();
        answers.good(at(0));
        for n in 0..20 {
            assert_eq!(answers.failed(7, at(n)), 0, "one client's request");
        }
        assert!(answers.price(at(20)) == Some(0.0) && answers.takes(at(20), 0));
        assert_eq!(answers.failed(8, at(30)), 2);
        assert!(answers.price(at(30)).unwrap() > 0.18 && !answers.takes(at(31), 0));
        assert_eq!(answers.failed(9, at(30)), 3);
        let rare = Answers::default();
        for minute in 0..5 {
            assert_eq!(rare.failed(minute, at(minute * 61_000)), 0, "not within a minute");
        }
    }

    #[test]
    fn a_refusal_pauses_for_longer_each_time_up_to_a_second() {
        let answers = Answers::default();
        answers.refused(at(0));
        assert!(!answers.takes(at(99), 0) && answers.takes(at(100), 0));
        assert_eq!(answers.failure_rate(at(100)), None);
        for _ in 0..9 {
            answers.refused(at(100));
        }
        assert!(!answers.takes(at(1099), 0) && answers.takes(at(1100), 0));
        answers.good(at(1100));
        answers.refused(at(1100));
        assert!(answers.takes(at(1200), 0));
    }

    #[test]
    fn a_trial_lets_one_in_then_two_then_all() {
        let answers = Answers::default();
        answers.failed(1, at(0));
        answers.begin_trial();
        assert!(answers.takes(at(1), 0) && !answers.takes(at(1), 1));
        assert!(!answers.good(at(1)));
        assert!(answers.takes(at(1), 1) && !answers.takes(at(1), 2));
        let ended = (0..4).map(|_| answers.good(at(1))).collect::<Vec<_>>();
        assert_eq!(ended, [false, false, false, true]);
        assert!(answers.takes(at(1), 10_000));
    }
}
