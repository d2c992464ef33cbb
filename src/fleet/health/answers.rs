//! Recent answers of one replica: failure rates, back-off after refusals, trial after an ejection.
//!
//! A replica that fails fast looks idle. So failures lower its share of the traffic long before they eject it, and an
//! ejected replica that passes its probe gets a trial share until live answers prove it. What fails with one prompt alone is
//! that prompt's doing as likely as the replica's, and counts when another prompt has failed there. Pure: time is an argument.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::{AtomicStamp, Stamp, doubled};

/// Recent answers of one replica.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    recent: Mutex<Recent>,
    paused_until: AtomicStamp,
    /// Until then another gateway's word against it counts.
    doubted_until: AtomicStamp,
    /// Requests that may be in flight at once; 0 is no limit.
    trial: AtomicU32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    /// Failed answers as a fraction of all, exponentially weighted: what ejects.
    rate: f64,
    /// The same with τ = 10 s: what lowers its share.
    demotion_rate: f64,
    /// The part of it that its peers had as well: it fades and is displaced by answers as the whole is.
    shared_rate: f64,
    at: Stamp,
    is_known: bool,
    failures_in_a_row: u32,
    refusals_in_a_row: u32,
    /// Answers that may be their prompts' doing (no content, or a refusal of the request as wrong) as a fraction of all,
    /// exponentially weighted by answer.
    doubtful_rate: f64,
    has_answered: bool,
    /// The prompt that was answered so last.
    last_doubtful: Option<u64>,
    /// Carried streams that ended half way as a fraction of all, exponentially weighted by end.
    cut_rate: f64,
    /// Of the last one that counted.
    last_end: Option<Stamp>,
    /// The prompt that failed last, and when.
    last_failed: Option<(u64, Stamp)>,
    /// Whether it has answered since.
    is_well_since: bool,
    /// Whether that failure does not count yet.
    is_withheld: bool,
    /// Failures at other gateways counted last.
    elsewhere: Option<Stamp>,
}

impl Answers {
    /// A first token or a whole answer came. Returns whether that ended a trial.
    pub(crate) fn good(&self, now: Stamp) -> bool {
        {
            let mut recent = self.recent.lock();
            recent.note(now, 0.0);
            recent.note_doubtful(0.0);
            recent.failures_in_a_row = 0;
            recent.is_well_since = true;
            recent.refusals_in_a_row = 0;
        }
        self.believe();
        let allowed = self.trial.load(Ordering::Relaxed);
        if allowed == 0 {
            return false;
        }
        let next = if allowed >= TRIAL_ENDS_AT { 0 } else { allowed * 2 };
        self.trial.store(next, Ordering::Relaxed);
        next == 0
    }

    /// An answer without content came to this prompt, or a refusal of it as wrong. One prompt alone means little: it may ask for
    /// nothing, or for what no replica grants.
    pub(crate) fn doubtful(&self, prompt: u64) {
        let mut recent = self.recent.lock();
        if recent.last_doubtful.replace(prompt) != Some(prompt) {
            recent.note_doubtful(1.0);
        }
    }

    /// Another replica answered one of those prompts alike: what came of the others says as little. Clients whose requests stay
    /// together here would else have each of them asked twice.
    pub(crate) fn confirmed(&self) {
        self.recent.lock().doubtful_rate = 0.0;
    }

    /// Fraction of answers that may be their prompts' doing; `None` where it has not answered at all.
    pub(crate) fn doubtful_rate(&self) -> Option<f64> {
        let recent = *self.recent.lock();
        recent.has_answered.then_some(recent.doubtful_rate)
    }

    /// A carried stream that began at `begin` ended, half way or whole; whether that counts. Streams that run at once may end at once, with
    /// one client that has all of them: only one counts that began after the last end.
    pub(crate) fn ended(&self, is_cut: bool, begin: Stamp, now: Stamp) -> bool {
        let mut recent = self.recent.lock();
        let counts = recent.last_end.is_none_or(|last| begin >= last);
        if counts {
            recent.last_end = Some(now);
            recent.cut_rate += LEARNED * (f64::from(u8::from(is_cut)) - recent.cut_rate);
        }
        counts
    }

    /// Fraction of carried streams that ended half way; `None` where none has ended.
    pub(crate) fn cut_rate(&self) -> Option<f64> {
        let recent = *self.recent.lock();
        recent.last_end.map(|_| recent.cut_rate)
    }

    /// A request with this prompt failed there. Returns the failures in a row that count.
    pub(crate) fn failed(&self, prompt: u64, now: Stamp) -> u32 {
        let in_a_row = {
            let mut recent = self.recent.lock();
            for _ in 0..recent.counted(prompt, now) {
                recent.note(now, 1.0);
                recent.failures_in_a_row += 1;
            }
            recent.failures_in_a_row
        };
        if in_a_row > 0 {
            self.back_off(now, in_a_row);
        }
        in_a_row
    }

    /// It refused as wrong what another replica answered, to this client as far as clients are known. It lowers the share alone:
    /// others have what they ask for there.
    pub(crate) fn refused_alone(&self, client: u64, now: Stamp) {
        let mut recent = self.recent.lock();
        for _ in 0..recent.counted(client, now) {
            recent.note_share(now, 1.0);
        }
    }

    /// It refused a request at once (a full queue), which is no failure while its streams move. From the second in a row on it gets
    /// less than replicas that refuse less, and is not ejected.
    pub(crate) fn refused(&self, now: Stamp) {
        let in_a_row = {
            let mut recent = self.recent.lock();
            recent.refusals_in_a_row += 1;
            if recent.refusals_in_a_row > 1 {
                recent.note_share(now, 1.0);
            }
            recent.refusals_in_a_row
        };
        self.back_off(now, in_a_row);
    }

    fn back_off(&self, now: Stamp, in_a_row: u32) {
        self.pause(now, doubled(FIRST_PAUSE, in_a_row.saturating_sub(1), MAX_PAUSE));
    }

    /// Takes no requests for this long while other replicas do.
    pub(crate) fn pause(&self, now: Stamp, span: Duration) {
        self.paused_until.raise(now.after(span));
    }

    /// Whether it takes another request beside that many: neither in a back-off nor at the limit of its trial.
    pub(crate) fn admits(&self, inflight: u64, now: Stamp) -> bool {
        let is_paused = now < self.paused_until.load().max(self.doubted_until.load());
        !is_paused && self.trial().is_none_or(|most| inflight < u64::from(most))
    }

    /// It may be gone for all we know: until then it takes no requests while other replicas do. Failures there count, once a minute.
    pub(crate) fn doubt(&self, is_failing: bool, until: Stamp, now: Stamp) {
        self.doubted_until.store(until);
        let mut recent = self.recent.lock();
        if is_failing && recent.elsewhere.is_none_or(|at| now.since(at) >= RATE_FADES_IN) {
            recent.elsewhere = Some(now);
            for _ in 0..FAILURES_ELSEWHERE {
                recent.note(now, 1.0);
            }
        }
    }

    /// Whether a word against it that its probes have not refuted still counts.
    pub(crate) fn is_doubted(&self, now: Stamp) -> bool {
        now < self.doubted_until.load()
    }

    /// It answered this gateway.
    pub(crate) fn believe(&self) {
        if self.doubted_until.get().is_some() {
            self.doubted_until.clear();
        }
    }

    /// Requests that it may have in flight at once; `None` unless it is on trial.
    fn trial(&self) -> Option<u32> {
        Some(self.trial.load(Ordering::Relaxed)).filter(|most| *most > 0)
    }

    /// Fraction of failed answers, 0 to 1; `None` where it has not answered at all.
    pub(crate) fn failure_rate(&self, now: Stamp) -> Option<f64> {
        let recent = *self.recent.lock();
        recent.is_known.then(|| recent.rate_at(now))
    }

    /// The same with a shorter memory, 0 where failures are rare: lowers its share of the traffic. Its memory is short because a low
    /// share keeps it from answers to clear itself with.
    pub(crate) fn demotion_rate(&self, now: Stamp) -> Option<f64> {
        let recent = *self.recent.lock();
        let unless_rare = |rate: f64| if rate < RARE { 0.0 } else { rate };
        recent.is_known.then(|| unless_rare(recent.demotion_rate_at(now)))
    }

    /// The part of it that says nothing about this replica: its peers failed alike then. They may have shown since that they are well.
    pub(crate) fn shared_rate(&self, now: Stamp) -> f64 {
        let recent = *self.recent.lock();
        recent.demotion_faded(recent.shared_rate, now)
    }

    /// Its peers' demotion rate now.
    pub(crate) fn beside(&self, peers: f64, now: Stamp) {
        if peers <= 0.0 {
            return;
        }
        let mut recent = self.recent.lock();
        // As of the last answer, like the rate that it is part of.
        let peers = peers / recent.demotion_faded(1.0, now);
        recent.shared_rate = recent.demotion_rate.min(peers).max(recent.shared_rate);
    }

    /// A replica that traffic proved sick takes requests again: few at first.
    pub(crate) fn begin_trial(&self) {
        *self.recent.lock() = Recent::default();
        self.resume();
        self.trial.store(1, Ordering::Relaxed);
    }

    /// Whether it is on trial.
    pub(crate) fn is_on_trial(&self) -> bool {
        self.trial().is_some()
    }

    /// Ends a back-off.
    pub(crate) fn resume(&self) {
        self.believe();
        self.paused_until.clear();
    }
}

impl Recent {
    /// How many failures count now that this prompt has failed: none before another one has, then both.
    fn counted(&mut self, prompt: u64, now: Stamp) -> u32 {
        let before = self.last_failed.replace((prompt, now));
        let is_well_since = std::mem::take(&mut self.is_well_since);
        match before.filter(|(_, at)| !is_well_since || now.since(*at) < RATE_FADES_IN) {
            Some((before, _)) if before == prompt => 0,
            Some(_) => 1 + u32::from(std::mem::take(&mut self.is_withheld)),
            None => {
                self.is_withheld = true;
                0
            }
        }
    }

    fn note(&mut self, now: Stamp, failure: f64) {
        self.note_share(now, failure);
        self.rate += LEARNED * (failure - self.rate);
    }

    /// What lowers the share alone.
    fn note_share(&mut self, now: Stamp, failure: f64) {
        self.rate = self.rate_at(now);
        let demotion = self.demotion_rate_at(now);
        self.demotion_rate = demotion + LEARNED * (failure - demotion);
        self.shared_rate = (1.0 - LEARNED) * self.demotion_faded(self.shared_rate, now);
        self.at = now;
        self.is_known = true;
    }

    fn note_doubtful(&mut self, doubtful: f64) {
        self.doubtful_rate += LEARNED * (doubtful - self.doubtful_rate);
        self.has_answered = true;
    }

    /// Failures in a row count together however long the next request takes to come.
    fn rate_at(&self, now: Stamp) -> f64 {
        let in_a_row = 1.0 - (1.0 - LEARNED).powf(self.failures_in_a_row.into());
        faded(self.rate, now.since(self.at), RATE_FADES_IN).max(in_a_row)
    }

    fn demotion_rate_at(&self, now: Stamp) -> f64 {
        self.demotion_faded(self.demotion_rate, now)
    }

    fn demotion_faded(&self, rate: f64, now: Stamp) -> f64 {
        faded(rate, now.since(self.at), DEMOTION_FADES_IN)
    }
}

fn faded(value: f64, age: Duration, fades_in: Duration) -> f64 {
    if value == 0.0 { 0.0 } else { value * (-age.as_secs_f64() / fades_in.as_secs_f64()).exp() }
}

/// Weight of one answer in the rate: three failures in a row of a healthy replica make 27 %.
const LEARNED: f64 = 0.1;
/// Time constants of the two rates: a replica that is avoided for one failure is tried again after some ten seconds.
const RATE_FADES_IN: Duration = Duration::from_secs(60);
const DEMOTION_FADES_IN: Duration = Duration::from_secs(10);
const RARE: f64 = 0.03;
/// As many as a replica may have without being ejected, so that two of this gateway's own decide.
const FAILURES_ELSEWHERE: usize = 2;
/// Doubled for each failure or refusal in a row.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// A trial allows 1, 2, 4, … requests at once; a good answer beyond this many ends it.
const TRIAL_ENDS_AT: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::millis as at;
    use crate::fleet::health::fails_alone;

    /// Whether it takes another request at this millisecond, beside so many.
    fn takes(answers: &Answers, millis: u64, inflight: u64) -> bool {
        answers.admits(inflight, at(millis))
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
        assert!(answers.demotion_rate(at(0)).unwrap() > 0.27);
        assert_eq!(answers.demotion_rate(at(25_000)), Some(0.0));
        for _ in 0..10 {
            answers.good(at(0));
        }
        let after_ten = answers.failure_rate(at(0)).unwrap();
        assert!(after_ten < 0.1 && answers.failure_rate(at(60_000)).unwrap() < after_ten / 2.0);
        assert_eq!(answers.failed(9, at(0)), 1);
    }

    #[test]
    fn failures_count_once_a_second_prompt_fails() {
        let answers = Answers::default();
        answers.good(at(0));
        for n in 0..20 {
            assert_eq!(answers.failed(7, at(n)), 0, "one client's request");
        }
        assert!(answers.demotion_rate(at(20)) == Some(0.0) && takes(&answers, 20, 0));
        assert_eq!(answers.failed(8, at(30)), 2);
        assert!(answers.demotion_rate(at(30)).unwrap() > 0.18 && !takes(&answers, 31, 0));
        assert_eq!(answers.failed(9, at(30)), 3);
        let rare = Answers::default();
        for minute in 0..5 {
            assert_eq!(rare.failed(minute, at(minute * 61_000)), 0, "not within a minute");
            rare.good(at(minute * 61_000));
        }
    }

    #[test]
    fn what_fails_all_of_its_rare_requests_is_sick_however_long_they_take_to_come() {
        let (answers, hour) = (Answers::default(), 3_600_000);
        answers.good(at(0));
        assert_eq!([1, 2, 3].map(|prompt| answers.failed(prompt, at(prompt * hour))), [0, 2, 3]);
        let is_sick = |now| fails_alone(answers.failure_rate(at(now)).unwrap(), 0.0, false);
        assert!(is_sick(3 * hour));
        answers.good(at(3 * hour + 1));
        assert!(!is_sick(4 * hour));
    }

    #[test]
    fn what_it_alone_refuses_costs_share_from_the_second_client_on_and_never_ejects() {
        let answers = Answers::default();
        answers.good(at(0));
        for n in 0..20 {
            answers.refused_alone(7, at(n));
        }
        assert_eq!(answers.demotion_rate(at(20)), Some(0.0), "one conversation");
        for client in 8..20 {
            answers.refused_alone(client, at(20));
        }
        assert!(answers.demotion_rate(at(20)).unwrap() > 0.5 && takes(&answers, 20, 0));
        assert_eq!(answers.failure_rate(at(20)), Some(0.0));
    }

    #[test]
    fn a_refusal_pauses_for_longer_each_time_up_to_a_second() {
        let answers = Answers::default();
        answers.refused(at(0));
        assert!(!takes(&answers, 99, 0) && takes(&answers, 100, 0));
        assert_eq!(answers.failure_rate(at(100)), None);
        for _ in 0..9 {
            answers.refused(at(100));
        }
        assert_eq!(answers.failure_rate(at(100)), Some(0.0), "nothing that ejects");
        assert!(answers.demotion_rate(at(100)).unwrap() > 0.5, "and less for it meanwhile");
        assert!(!takes(&answers, 1099, 0) && takes(&answers, 1100, 0));
        answers.good(at(1100));
        answers.refused(at(1100));
        assert!(takes(&answers, 1200, 0));
    }

    #[test]
    fn another_gateways_word_keeps_others_preferred_until_it_answers_and_never_ejects_alone() {
        let answers = Answers::default();
        for minute in 0..3 {
            answers.doubt(true, at(minute * 10_000 + 1000), at(minute * 10_000));
        }
        assert!(!takes(&answers, 20_999, 0) && takes(&answers, 21_000, 0), "for a while only");
        assert!(
            !fails_alone(answers.failure_rate(at(20_000)).unwrap(), 0.0, false),
            "however often it is repeated"
        );
        answers.doubt(false, at(31_000), at(30_000));
        answers.believe();
        assert!(takes(&answers, 30_001, 0));
        let (other, probed) = (Answers::default(), Answers::default());
        probed.doubt(false, at(1000), at(0));
        assert_eq!(probed.failure_rate(at(0)), None, "what a probe found a probe disproves");
        other.doubt(true, at(1000), at(0));
        other.failed(1, at(1));
        other.failed(2, at(2));
        assert!(
            fails_alone(other.failure_rate(at(2)).unwrap(), 0.0, false),
            "two failures of its own are enough"
        );
    }

    #[test]
    fn a_trial_lets_one_in_then_two_then_all() {
        let answers = Answers::default();
        answers.failed(1, at(0));
        answers.begin_trial();
        assert!(takes(&answers, 1, 0) && !takes(&answers, 1, 1));
        assert!(!answers.good(at(1)));
        assert!(takes(&answers, 1, 1) && !takes(&answers, 1, 2));
        let ended = (0..4).map(|_| answers.good(at(1))).collect::<Vec<_>>();
        assert_eq!(ended, [false, false, false, true]);
        assert!(takes(&answers, 1, 10_000));
    }
}
