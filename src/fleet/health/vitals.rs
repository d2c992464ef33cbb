//! Evidence about one replica, shared by its streams, its prober and its scraper.
//!
//! Streams report progress and suspicious silence, the prober refused connects and unanswered completions, the scraper
//! whether the engine's own counters move. Only several of them together end a stream early: busy is not down, and
//! healthy is not working.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::{AtomicStamp, Stamp};

/// Times of the last evidence of each kind; lock-free.
#[derive(Debug, Default)]
pub struct Vitals {
    last_progress: AtomicStamp,
    last_answer: AtomicStamp,
    /// When the youngest of the requests that it began to answer was sent.
    youngest_answered: AtomicStamp,
    engine_moved: AtomicStamp,
    /// A probe was computed.
    proved: AtomicStamp,
    refused: InARow,
    frozen: InARow,
    is_page_silent: AtomicBool,
    /// Its metrics page or the answer to a probe came.
    last_reply: AtomicStamp,
    silent: InARow,
    /// Since when it has stood still together with all others of its routes.
    still_together: AtomicStamp,
    is_excused: AtomicBool,
    suspected_at: AtomicStamp,
    is_reported_down: AtomicBool,
    /// Wakes the prober ahead of its interval.
    pub check_now: Notify,
}

/// Times of the first and the last of some failures in a row: one may be a moment's, a later one proves more.
#[derive(Debug, Default)]
struct InARow {
    first: AtomicStamp,
    last: AtomicStamp,
}

impl InARow {
    fn note(&self, at: Stamp) {
        if !self.first.begin(at) {
            self.last.raise(at);
        }
    }

    fn clear(&self) {
        self.first.clear();
        self.last.clear();
    }

    fn latest(&self) -> Option<Stamp> {
        self.last.get().or(self.first.get())
    }

    /// The first and the last, once there were two.
    fn both(&self) -> Option<(Stamp, Stamp)> {
        self.first.get().zip(self.last.get())
    }
}

impl Vitals {
    /// A stream had a content event.
    pub fn progressed(&self, now: Stamp) {
        self.last_progress.store(now);
    }

    /// A complete response or a first token arrived, which proves as much as a probe.
    pub fn answered(&self, now: Stamp) {
        self.last_answer.store(now);
        self.last_progress.store(now);
    }

    /// It began to answer a request that was sent then.
    pub fn began_to_answer(&self, sent: Stamp) {
        self.youngest_answered.raise(sent);
    }

    /// Whether it began to answer a request that was sent after this.
    pub fn has_answered_younger(&self, sent: Stamp) -> bool {
        self.youngest_answered.load() > sent
    }

    /// Last [`Vitals::answered`].
    pub fn last_answer(&self) -> Stamp {
        self.last_answer.load()
    }

    /// Last content event of any stream.
    pub fn last_progress(&self) -> Stamp {
        self.last_progress.load()
    }

    /// The engine's counters of tokens or steps differ from those of the page before.
    pub fn engine_moved(&self, now: Stamp) {
        self.engine_moved.store(now);
    }

    /// A probe was answered with what it asked for.
    pub fn proved(&self, now: Stamp) {
        self.proved.store(now);
    }

    /// Last sign that what waits there is computed: progress of others, or a probe. A probe alone excuses no failure: it asks for less.
    pub fn last_computed(&self) -> Stamp {
        self.last_sign().max(self.proved.load())
    }

    /// Last progress of anything there: a stream of ours, or the engine's own counters.
    pub fn last_sign(&self) -> Stamp {
        self.last_progress().max(self.engine_moved.load())
    }

    /// A connect was refused: nobody listens.
    pub fn refused(&self, now: Stamp) {
        self.refused.note(now);
    }

    /// A completion that was sent at `sent` got no answer in time. What moved since the first that got none begins the row anew.
    pub fn frozen(&self, sent: Stamp) {
        if self.frozen.first.get().is_some_and(|first| self.last_computed() > first) {
            self.frozen.clear();
        }
        self.frozen.note(sent);
    }

    /// Its metrics page came, or did not come in time; whether it fell silent now.
    pub fn page(&self, is_silent: bool, now: Stamp) -> bool {
        if !is_silent {
            self.last_reply.store(now);
        }
        !self.is_page_silent.swap(is_silent, Ordering::Relaxed) && is_silent
    }

    /// Its list of models, which computes nothing, was asked for at `sent` and did not come in time.
    pub fn silent(&self, sent: Stamp) {
        self.silent.note(sent);
    }

    /// Its list of models came: those that stay away are counted anew.
    pub fn listed(&self) {
        self.silent.clear();
    }

    /// A probe got an answer or a refusal.
    pub fn spoke(&self) {
        self.listed();
        self.still_together.clear();
        self.is_excused.store(false, Ordering::Relaxed);
    }

    /// A probe got no answer; `together`: from no other ready replica of its routes comes anything either. Then it is the network or a host
    /// that stands still, requests have nowhere better to go, and for [`SPELL`] it is not left.
    pub fn stands_still(&self, together: bool, now: Stamp) {
        if !together {
            self.still_together.clear();
        }
        let is_excused = together && {
            self.still_together.begin(now);
            self.still_together.get().is_some_and(|since| now.since(since) < SPELL)
        };
        self.is_excused.store(is_excused, Ordering::Relaxed);
    }

    /// Since when it has stood still together with all others.
    pub fn still_since(&self) -> Option<Stamp> {
        self.still_together.get()
    }

    /// Whether anything came from it since then.
    pub fn was_heard_since(&self, at: Stamp) -> bool {
        self.last_computed().max(self.last_reply.load()) > at
    }

    fn is_excused(&self) -> bool {
        self.is_excused.load(Ordering::Relaxed)
    }

    /// Whether the process or its host stands still: two lists in a row and its page stayed away, and nothing moved since the first.
    /// What has no page may be busy: some servers answer nothing while they compute.
    pub fn is_stopped(&self) -> bool {
        let is_page_silent = self.is_page_silent.load(Ordering::Relaxed) && !self.is_excused();
        is_page_silent && self.silent.both().is_some_and(|(first, _)| self.last_sign() <= first)
    }

    /// A stream is suspiciously silent: probes at once, at most every [`MIN_CHECK_INTERVAL`].
    pub fn suspect(&self, now: Stamp) {
        if self.suspected_at.is_due(MIN_CHECK_INTERVAL, now) {
            self.check_now.notify_one();
        }
    }

    /// An answer told that its engine is dead or shutting down: a probe is to decide, at once.
    pub fn reported_down(&self) {
        self.is_reported_down.store(true, Ordering::Relaxed);
        self.check_now.notify_one();
    }

    /// Whether an answer told that its engine is down, and no probe was answered since.
    pub fn is_reported_down(&self) -> bool {
        self.is_reported_down.load(Ordering::Relaxed)
    }

    /// A connect succeeded: somebody listens.
    pub fn connected(&self) {
        self.refused.clear();
    }

    /// A probe succeeded: clears earlier evidence.
    pub fn cleared(&self, now: Stamp) {
        self.last_reply.store(now);
        self.connected();
        self.frozen.clear();
        self.is_reported_down.store(false, Ordering::Relaxed);
    }

    /// First of the refused connects, unless one succeeded since.
    pub fn refused_since(&self) -> Option<Stamp> {
        self.refused.first.get()
    }

    /// Whether connects were refused over at least this span and no stream moved meanwhile: the process is gone. Streams that went on
    /// after its listener closed belong to a process that drains.
    pub fn is_gone(&self, span: Duration) -> bool {
        let moved = self.last_progress();
        self.refused
            .both()
            .is_some_and(|(from, to)| moved < from.after(REFUSED_TWICE) && to.since(from.max(moved)) >= span)
    }

    /// Whether connects are refused and no stream moved since the last of them.
    pub fn is_deaf(&self) -> bool {
        self.refused.latest().is_some_and(|at| self.last_progress() <= at)
    }

    /// When the last probe that got no answer was sent, unless a probe succeeded, a stream progressed or the engine's counters
    /// moved since, or all of its routes stand still.
    pub fn frozen_since(&self) -> Option<Stamp> {
        self.frozen.latest().filter(|sent| self.last_sign() <= *sent && !self.is_excused())
    }

    /// Whether a prompt that the engine has had since then may well take so long: a long prefill starves the probe behind it. Where
    /// requests leave and others come none is old: probes show for how long nothing has been computed.
    pub fn may_compute(&self, since: Stamp, now: Stamp) -> bool {
        let unanswered = self.frozen.first.get().filter(|first| self.last_computed() <= *first);
        [Some(since), unanswered].into_iter().flatten().all(|from| now.since(from) < LONG_PREFILL)
    }
}

/// Without progress for so long a replica that refuses requests is not busy.
pub(crate) const BUSY_FOR: Duration = Duration::from_secs(5);
/// Refused connects at least so far apart prove that the process of a silent stream is gone.
pub(crate) const REFUSED_TWICE: Duration = Duration::from_millis(500);
/// How long replicas that all stand still are waited for: as long as pauses of hosts, switches and shared disks last.
const SPELL: Duration = Duration::from_secs(30);
/// Without evidence, no prompt is computed for longer: half of the default of `timeouts.first_token`.
const LONG_PREFILL: Duration = Duration::from_secs(30);
/// Every check of every silent stream asks for a probe; one serves them all.
const MIN_CHECK_INTERVAL: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::millis as at;

    #[test]
    fn only_connects_refused_again_later_while_nothing_moves_prove_that_a_process_is_gone() {
        let span = Duration::from_millis(500);
        let vitals = Vitals::default();
        vitals.refused(at(1000));
        vitals.refused(at(1300));
        assert!(!vitals.is_gone(span), "300 ms may be a restart of the listener alone");
        vitals.refused(at(1500));
        assert!(vitals.is_gone(span) && !vitals.is_gone(4 * span));
        vitals.progressed(at(1600));
        assert!(!vitals.is_gone(span), "streams move: the address refuses, not the process");
        vitals.refused(at(9000));
        assert!(!vitals.is_gone(span), "it drains");
        vitals.connected();
        vitals.refused(at(10_000));
        assert!(!vitals.is_gone(span), "it starts anew");
        vitals.progressed(at(10_300));
        vitals.refused(at(10_700));
        assert!(!vitals.is_gone(span), "400 ms after what was on its way");
        vitals.refused(at(10_800));
        assert!(vitals.is_gone(span), "what was on its way when the process ended");
    }

    #[test]
    fn only_a_process_whose_page_and_two_lists_stay_away_while_nothing_moves_is_stopped() {
        let vitals = Vitals::default();
        vitals.silent(at(1000));
        vitals.silent(at(6000));
        assert!(
            !vitals.is_stopped(),
            "without a page it may be a server that answers one request after the other"
        );
        vitals.page(true, at(900));
        assert!(vitals.is_stopped());
        vitals.progressed(at(7000));
        assert!(!vitals.is_stopped(), "a token came");
        vitals.spoke();
        vitals.silent(at(8000));
        assert!(!vitals.is_stopped(), "once");
        vitals.silent(at(13_000));
        assert!(vitals.is_stopped());
        vitals.page(false, at(13_500));
        assert!(!vitals.is_stopped());
    }

    #[test]
    fn what_stands_still_with_all_others_is_waited_for_a_while() {
        let vitals = Vitals::default();
        vitals.page(true, at(900));
        let look = |seconds: u64, together| {
            vitals.silent(at(1000 * seconds));
            vitals.frozen(at(1000 * seconds));
            vitals.stands_still(together, at(1000 * seconds));
            (vitals.is_stopped(), vitals.frozen_since().is_some())
        };
        assert_eq!([look(5, true), look(10, true), look(30, true)], [(false, false); 3]);
        assert_eq!(look(31, false), (true, true), "another one is back");
        assert_eq!([look(35, true), look(64, true)], [(false, false); 2]);
        assert_eq!(look(65, true), (true, true), "it is no pause");
        vitals.spoke();
        assert_eq!(look(70, true), (false, false));
    }

    #[test]
    fn clients_that_leave_and_come_again_do_not_hide_a_core_that_computes_nothing() {
        let vitals = Vitals::default();
        // Probes of a replica whose oldest request is 5 s old each time.
        let probe = |seconds: u64| {
            vitals.frozen(at(1000 * seconds));
            vitals.may_compute(at(1000 * seconds), at(1000 * (seconds + 5)))
        };
        assert_eq!([10, 20, 30, 34, 35, 45].map(probe), [true, true, true, true, false, false]);
        vitals.progressed(at(46_000));
        assert_eq!([50, 60, 74, 75].map(probe), [true, true, true, false], "a token came");
        vitals.cleared(at(79_000));
        assert!(probe(80), "and now a probe was answered");
        assert!(!vitals.may_compute(at(51_000), at(81_000)), "no prompt takes so long");
    }

    #[test]
    fn an_engine_whose_counters_move_is_not_frozen() {
        let vitals = Vitals::default();
        vitals.frozen(at(5000));
        assert!(vitals.frozen_since().is_some());
        vitals.engine_moved(at(7000));
        assert_eq!(vitals.frozen_since(), None);
    }
}
