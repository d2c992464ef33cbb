//! Work of ours that a replica has: counted at decision time, released by a guard inside the response body.
//!
//! A request counts from the moment it was decided, not from when it was sent or when the head came: a burst
//! would see an idle replica otherwise and herd. Its uncached prompt counts until its first token, the request itself
//! until the end; every end drops the guard. Decisions read published sums without a lock; the lock of the [`ledger`] is
//! taken three times in a request's life and by [`ReplicaLoad::refresh`]. Work of others is [`super::foreign`].

mod concurrency;
mod inflight;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

pub(super) use self::inflight::Known;
use self::inflight::{InflightLedger, Progress};
pub use self::inflight::{Pace, Refreshed, TimingSample};
use super::cache_counters::CacheCounters;
use super::hazard::{self, POINTS};
use super::work::Work;
use crate::clock::Stamp;
use crate::units::Tokens;

/// What one replica has to do for us.
#[derive(Debug, Default)]
#[repr(C, align(64))] // what a decision reads is two cache lines, and two replicas never share one
pub struct ReplicaLoad {
    inflight: AtomicU32,
    awaiting: AtomicU32,
    /// Those of the awaiting whose time per token is bounded.
    bounded: AtomicU32,
    /// Those whose time per token is bounded and whose first token came after the last refresh.
    fresh: AtomicU32,
    head_tokens: AtomicU32,
    tokens: AtomicU64,
    attention: AtomicU64,
    head_attention: AtomicU64,
    head_since: AtomicU64,
    context: AtomicU64,
    harm: [AtomicU32; POINTS],
    refreshed: AtomicU64,
    /// Sequences that the engine was seen to run at once at most: zero while that is not known.
    limit: AtomicU32,
    /// Sequences that ran at once so far.
    peak: AtomicU32,
    ledger: Mutex<InflightLedger>,
    /// Hits that its requests were promised, for the comparison with the engine's counters.
    pub(super) promises: CacheCounters,
}

/// A [`ReplicaLoad`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadView {
    /// Requests in flight.
    pub inflight: u64,
    /// Those of them that have no first token yet.
    pub awaiting: u64,
    /// Those whose time per token is bounded and that the harm of a stall does not count yet: they await their first token,
    /// or got it a moment ago.
    pub bounded: u64,
    /// Prompts of the awaiting.
    pub waiting: Work,
    /// The first of them, which are being computed, ...
    pub head: Work,
    /// ... since then.
    pub head_since: Stamp,
    /// Tokens in the context of running streams.
    pub context: u64,
}

impl LoadView {
    /// Requests that have their first token: sequences being decoded.
    #[must_use]
    pub fn decoding(&self) -> u64 {
        self.inflight.saturating_sub(self.awaiting)
    }

    /// Seconds since the head is computed; 0 where nothing is. Counts and head are published one after the other: a request that was
    /// counted a moment ago may not be at the head yet.
    #[inline]
    pub(crate) fn head_age(&self, now: Stamp) -> f64 {
        let since = self.head_since.as_nanos();
        if since == 0 { 0.0 } else { now.as_nanos().saturating_sub(since) as f64 * 1e-9 }
    }

    /// Uncached prompt tokens of the awaiting.
    #[must_use]
    pub fn waiting_tokens(&self) -> Tokens {
        Tokens(self.waiting.tokens)
    }
}

/// What a decision puts on a replica.
#[derive(Clone, Copy, Debug, Default)]
pub struct Placement {
    /// When.
    pub at: Stamp,
    /// What is to be computed.
    pub work: Work,
    /// The whole prompt, cached or not.
    pub prompt: Tokens,
    /// Bound on the mean time per token of the answer.
    pub tpot: Option<Duration>,
    /// Whether its first token will be seen.
    pub is_stream: bool,
    /// Whether it has images, sounds or files: how many tokens they are, the answer tells.
    pub has_media: bool,
    /// Whether another pool computes the prompt: it waits for its KV, and is no part of the queue.
    pub is_elsewhere: bool,
}

impl ReplicaLoad {
    /// A replica with nothing to do.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The load now. The figures are read one by one: a decision may see a request half counted, which moves it
    /// by one request at most.
    #[inline]
    #[must_use]
    pub fn view(&self) -> LoadView {
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let count = |cell: &AtomicU32| u64::from(cell.load(Ordering::Relaxed));
        LoadView {
            inflight: count(&self.inflight),
            awaiting: count(&self.awaiting),
            bounded: count(&self.bounded) + count(&self.fresh),
            waiting: Work { tokens: read(&self.tokens), attention: read(&self.attention) },
            head: Work { tokens: count(&self.head_tokens), attention: read(&self.head_attention) },
            head_since: Stamp::from_nanos(read(&self.head_since)),
            context: read(&self.context),
        }
    }

    /// Requests of ours in flight.
    #[inline]
    #[must_use]
    pub fn inflight(&self) -> u64 {
        u64::from(self.inflight.load(Ordering::Relaxed))
    }

    /// Sequences that the engine runs at once, as far as our own streams have shown it.
    #[inline]
    #[must_use]
    pub fn batch_limit(&self) -> Option<u64> {
        Some(u64::from(self.limit.load(Ordering::Relaxed))).filter(|limit| *limit > 0)
    }

    /// Most sequences that ran at once.
    #[inline]
    #[must_use]
    pub fn peak(&self) -> u64 {
        u64::from(self.peak.load(Ordering::Relaxed))
    }

    /// The engine is another process: how many it runs at once is not known.
    pub(super) fn restarted(&self) {
        let mut ledger = self.ledger.lock();
        ledger.forget_concurrency();
        self.publish(&ledger);
        self.promises.restarted();
    }

    /// Running streams that a stall of `more` seconds would push over their bound, on top of one that comes `anyway`.
    #[inline]
    pub(super) fn harm(&self, anyway: f32, more: f32) -> f32 {
        let point = |at: usize| self.harm.get(at).map(|bits| f32::from_bits(bits.load(Ordering::Relaxed)));
        (hazard::read(point, anyway + more) - hazard::read(point, anyway)).max(0.0)
    }

    /// Tokens in the context of running streams.
    pub(super) fn context(&self) -> u64 {
        self.context.load(Ordering::Relaxed)
    }

    /// Whether a refresh is due: something runs or ran, and it was not asked a moment ago.
    #[must_use]
    pub fn is_stale(&self, now: Stamp) -> bool {
        let last = self.refreshed.load(Ordering::Relaxed);
        let has_work = self.inflight.load(Ordering::Relaxed) > 0;
        let is_due = now.since(Stamp::from_nanos(last)) >= REFRESH_EVERY;
        is_due && (has_work || last != 0)
    }

    /// Asks the streams how far they are, publishes the harm that stalls would do, and returns what was learned
    /// meanwhile. Not for the request path.
    pub(super) fn refresh(&self, now: Stamp, known: &Known<'_>) -> Refreshed {
        let mut ledger = self.ledger.lock();
        let (curve, found) = ledger.refresh(now, known);
        self.publish(&ledger);
        found.computed.iter().for_each(|placement| self.release(placement));
        for (cell, point) in self.harm.iter().zip(curve.points()) {
            cell.store(point.to_bits(), Ordering::Relaxed);
        }
        // An idle replica needs to be asked no more.
        let has_work = self.inflight.load(Ordering::Relaxed) > 0;
        self.refreshed.store(if has_work { now.as_nanos().max(1) } else { 0 }, Ordering::Relaxed);
        found
    }

    /// A prompt is computed, or will not be.
    fn release(&self, placement: &Placement) {
        self.awaiting.fetch_sub(1, Ordering::Relaxed);
        self.bounded.fetch_sub(u32::from(placement.tpot.is_some()), Ordering::Relaxed);
        self.tokens.fetch_sub(placement.work.tokens, Ordering::Relaxed);
        self.attention.fetch_sub(placement.work.attention, Ordering::Relaxed);
    }

    fn publish(&self, ledger: &InflightLedger) {
        let head = ledger.head();
        let tokens = u32::try_from(head.work.tokens).unwrap_or(u32::MAX);
        self.head_tokens.store(tokens, Ordering::Relaxed);
        self.head_attention.store(head.work.attention, Ordering::Relaxed);
        self.head_since.store(head.since.as_nanos(), Ordering::Relaxed);
        self.context.store(ledger.context(), Ordering::Relaxed);
        self.fresh.store(ledger.fresh(), Ordering::Relaxed);
        self.limit.store(ledger.concurrency().limit(), Ordering::Relaxed);
        self.peak.store(ledger.concurrency().peak(), Ordering::Relaxed);
    }
}

/// One request's share of a replica's load; dropping it releases what is left of it, exactly once.
#[derive(Debug)]
#[must_use = "dropping the guard releases the load at once"]
pub struct LoadGuard {
    load: Arc<ReplicaLoad>,
    id: u64,
    progress: Arc<Progress>,
    is_awaiting: bool,
}

impl LoadGuard {
    /// Counts a request that was just decided.
    pub fn reserve(load: &Arc<ReplicaLoad>, placement: Placement) -> Self {
        load.inflight.fetch_add(1, Ordering::Relaxed);
        load.awaiting.fetch_add(1, Ordering::Relaxed);
        load.bounded.fetch_add(u32::from(placement.tpot.is_some()), Ordering::Relaxed);
        load.tokens.fetch_add(placement.work.tokens, Ordering::Relaxed);
        load.attention.fetch_add(placement.work.attention, Ordering::Relaxed);
        if !placement.is_elsewhere {
            let promised = placement.prompt.saturating_sub(Tokens(placement.work.tokens));
            load.promises.sent(placement.prompt, promised);
        }
        let mut ledger = load.ledger.lock();
        let id = ledger.enter(&placement);
        load.publish(&ledger);
        drop(ledger);
        Self { load: Arc::clone(load), id, progress: Arc::default(), is_awaiting: true }
    }

    /// The first token came: the prompt is computed. Further calls do nothing.
    pub fn first_token(&mut self, now: Stamp) {
        if !std::mem::take(&mut self.is_awaiting) {
            return;
        }
        let mut ledger = self.load.ledger.lock();
        let computed = ledger.first_token(self.id, now, &self.progress);
        self.load.publish(&ledger);
        drop(ledger);
        computed.iter().for_each(|placement| self.load.release(placement));
    }

    /// The engine told what it computed of the prompt.
    pub(super) fn computed(&self, work: Work) {
        self.load.ledger.lock().computed(self.id, work);
    }

    /// The stream has brought so many content events of each choice by now. Two plain stores: fit for every event.
    #[inline]
    pub fn progress(&self, events: u64, now: Stamp) {
        self.progress.update(events, now);
    }

    /// Tokens in the context of the replica's running streams.
    pub(super) fn context(&self) -> u64 {
        self.load.context()
    }

    /// It gave up without a token: how long the engine had been at it, if it was its turn.
    #[must_use]
    pub fn overdue(&self, now: Stamp) -> Option<TimingSample> {
        if self.is_awaiting { self.load.ledger.lock().overdue(self.id, now) } else { None }
    }
}

impl Drop for LoadGuard {
    fn drop(&mut self) {
        let mut ledger = self.load.ledger.lock();
        let waited = if self.is_awaiting { ledger.leave(self.id) } else { None };
        if !self.is_awaiting {
            ledger.end(self.id);
        }
        self.load.publish(&ledger);
        drop(ledger);
        if let Some(placement) = waited {
            self.load.release(&placement);
        }
        self.load.inflight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Less than an engine's step: the picture does not change faster.
pub const REFRESH_EVERY: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(at_ms: u64, tokens: u64) -> Placement {
        let at = ms(at_ms);
        Placement {
            at,
            work: Work::of(Tokens(tokens), Tokens(0)),
            prompt: Tokens(tokens),
            tpot: None,
            is_stream: true,
            has_media: false,
            is_elsewhere: false,
        }
    }

    fn ms(n: u64) -> Stamp {
        Stamp::from_nanos(n * 1_000_000)
    }

    fn counts(load: &ReplicaLoad) -> (u64, u64, u64) {
        let view = load.view();
        (view.inflight, view.awaiting, view.waiting.tokens)
    }

    /// 100 µs a token.
    fn refresh(load: &ReplicaLoad, at_ms: u64) -> Refreshed {
        let survival = hazard::lengths::Lengths::default().survival();
        let seconds = |work: &Work| work.tokens as f64 * 1e-4;
        load.refresh(ms(at_ms), &Known { step: 0.02, per_event: 1.0, survival: &survival, seconds: &seconds })
    }

    /// Prompts of so many tokens that are sent together at 100 ms, and when each has its first token.
    fn answered<const N: usize>(load: &Arc<ReplicaLoad>, prompts: [(u64, u64); N]) -> Vec<LoadGuard> {
        let mut guards = prompts.map(|(tokens, _)| LoadGuard::reserve(load, placed(100, tokens)));
        for (guard, (_, at)) in guards.iter_mut().zip(prompts) {
            guard.first_token(ms(at));
        }
        guards.into()
    }

    #[test]
    fn what_a_decision_reads_is_two_cache_lines() {
        assert_eq!(std::mem::offset_of!(ReplicaLoad, refreshed), 128);
    }

    #[test]
    fn counts_from_the_decision_and_gives_back_in_two_steps() {
        let load = ReplicaLoad::new();
        let mut first = LoadGuard::reserve(&load, placed(0, 700));
        let second = LoadGuard::reserve(&load, placed(0, 50));
        assert_eq!(counts(&load), (2, 2, 750));
        first.first_token(ms(9));
        assert_eq!(counts(&load), (2, 1, 50));
        assert_eq!((load.view().decoding(), load.view().context), (1, 701));
        first.first_token(ms(10));
        assert_eq!(counts(&load), (2, 1, 50), "a second first token changes nothing");
        drop(second);
        assert_eq!(counts(&load), (1, 0, 0), "a request without any token releases both");
        drop(first);
        let LoadView { head_since, .. } = load.view();
        assert_eq!(load.view(), LoadView { head_since, ..LoadView::default() });
    }

    #[test]
    fn the_head_of_the_queue_is_known_and_since_when_it_is_computed() {
        let load = ReplicaLoad::new();
        let mut first = LoadGuard::reserve(&load, placed(100, 700));
        let _second = LoadGuard::reserve(&load, placed(120, 50));
        assert_eq!((load.view().head.tokens, load.view().head_since), (700, ms(100)));
        first.first_token(ms(200));
        assert_eq!((load.view().head.tokens, load.view().head_since), (50, ms(200)));
    }

    #[test]
    fn what_waits_when_a_step_begins_is_computed_in_it_as_far_as_it_fits() {
        let load = ReplicaLoad::new();
        let mut first = LoadGuard::reserve(&load, placed(100, 700));
        let _together: Vec<_> =
            [50, 60, 4000].map(|tokens| LoadGuard::reserve(&load, placed(150, tokens))).into();
        assert_eq!(load.view().head.tokens, 700, "they came when it was under way");
        first.first_token(ms(200));
        let _later = LoadGuard::reserve(&load, placed(220, 70));
        assert_eq!((load.view().head.tokens, load.view().head_since), (110, ms(200)));
    }

    #[test]
    fn the_time_between_two_first_tokens_is_what_the_second_prompt_took() {
        let load = ReplicaLoad::new();
        drop(answered(&load, [(700, 200), (50, 300), (60, 301), (900, 500)]));
        let samples = refresh(&load, 600).samples;
        let seen: Vec<_> = samples.iter().map(|l| (l.work.tokens, l.busy.as_millis(), l.was_idle)).collect();
        assert_eq!(seen, [(700, 100, true), (110, 101, false), (900, 199, false)]);
    }

    #[test]
    fn a_lesson_waits_until_its_answers_have_told_what_was_computed() {
        let load = ReplicaLoad::new();
        let mut guards = answered(&load, [(7000, 200), (500, 201), (9000, 500), (700, 600)]);
        let learned = |at| refresh(&load, at).samples.iter().map(|l| l.work.tokens).collect::<Vec<_>>();
        assert_eq!(learned(650), [700], "it took longer than expected, and all others go on");
        guards[0].computed(Work::of(Tokens(2000), Tokens(5000)));
        assert!(learned(700).is_empty(), "the other one of its step goes on");
        drop(guards.remove(1));
        assert_eq!(learned(800), [2500]);
        assert!(learned(10_500).is_empty());
        assert_eq!(learned(10_501), [9000], "a long answer is not waited for");
        guards[1].computed(Work::default());
        drop(guards);
        assert!(learned(11_000).is_empty(), "each is learned once");
    }

    #[test]
    fn what_media_took_is_learned_once_their_tokens_were_counted() {
        let load = ReplicaLoad::new();
        let images = [9000, 15_000].map(|at| {
            let mut guard =
                LoadGuard::reserve(&load, Placement { has_media: true, ..placed(at - 5000, 100) });
            guard.first_token(ms(at));
            guard
        });
        assert!(refresh(&load, 15_100).samples.is_empty(), "both took far longer than expected");
        images[0].computed(Work::of(Tokens(3000), Tokens(0)));
        drop(images);
        let samples = refresh(&load, 15_200).samples;
        assert_eq!(samples.iter().map(|sample| sample.work.tokens).collect::<Vec<_>>(), [3000]);
    }

    #[test]
    fn an_event_of_several_tokens_is_paced_by_its_tokens() {
        let load = ReplicaLoad::new();
        let mut guard = LoadGuard::reserve(&load, placed(0, 100));
        guard.first_token(ms(100));
        guard.progress(11, ms(700));
        let survival = hazard::lengths::Lengths::default().survival();
        let found = load
            .refresh(ms(700), &Known { step: 0.02, per_event: 4.0, survival: &survival, seconds: &|_| 0.0 });
        assert!((found.paces[0].per_token - 0.015).abs() < 1e-9, "{:?}", found.paces);
        assert_eq!(load.view().context, 144);
    }

    #[test]
    fn a_request_that_is_counted_before_the_head_is_known_makes_no_old_head() {
        let view = LoadView { inflight: 1, awaiting: 1, ..LoadView::default() };
        assert_eq!(view.head_age(ms(3_600_000)), 0.0);
        assert!((LoadView { head_since: ms(100), ..view }.head_age(ms(600)) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_refresh_learns_the_pace_and_what_a_stall_would_do() {
        let load = ReplicaLoad::new();
        let tpot = Some(Duration::from_millis(50));
        let mut guard = LoadGuard::reserve(&load, Placement { tpot, ..placed(0, 100) });
        guard.first_token(ms(100));
        guard.progress(11, ms(300));
        assert!(load.is_stale(ms(300)));
        let found = refresh(&load, 300);
        assert!(!load.is_stale(ms(305)) && load.is_stale(ms(310)));
        assert!((found.paces[0].per_token - 0.02).abs() < 1e-9 && found.paces[0].context == 111);
        assert!(load.harm(0.0, 5.0) > 0.1);
        drop(guard);
        refresh(&load, 320);
        assert!(load.harm(0.0, 5.0).abs() < 1e-9);
        assert!(!load.is_stale(ms(900)), "an idle replica is left alone");
    }

    #[test]
    fn a_stream_that_has_just_begun_is_never_out_of_sight() {
        let load = ReplicaLoad::new();
        let tpot = Some(Duration::from_millis(50));
        let place = |at| LoadGuard::reserve(&load, Placement { tpot, ..placed(at, 100) });
        let (mut first, mut second) = (place(0), place(0));
        assert_eq!(load.view().bounded, 2);
        first.first_token(ms(100));
        second.first_token(ms(100));
        assert_eq!((load.view().awaiting, load.view().bounded), (0, 2), "no curve knows them yet");
        drop(first);
        assert_eq!(load.view().bounded, 1, "it ended before any refresh");
        refresh(&load, 105);
        assert_eq!(load.view().bounded, 0);
        assert!(load.harm(0.0, 5.0) > 0.0, "the curve has the other one");
        drop(second);
        assert_eq!(load.view().bounded, 0);
    }

    #[test]
    fn an_answer_without_a_stream_does_not_hold_up_the_queue_until_its_end() {
        let load = ReplicaLoad::new();
        let place = |tokens| LoadGuard::reserve(&load, Placement { is_stream: false, ..placed(0, tokens) });
        let (_overtaken, mut stream) = (place(1000), LoadGuard::reserve(&load, placed(0, 50)));
        let _silent = place(2000);
        stream.first_token(ms(150));
        assert_eq!(counts(&load), (3, 1, 2000), "the stream's token shows that those before it are computed");
        refresh(&load, 300);
        assert_eq!(counts(&load), (3, 1, 2000), "it is not its time yet");
        refresh(&load, 350);
        assert_eq!(counts(&load), (3, 0, 0));
        drop((_overtaken, stream, _silent));
        assert_eq!(counts(&load), (0, 0, 0));
    }

    #[test]
    fn only_whose_turn_it_is_can_be_overdue() {
        let load = ReplicaLoad::new();
        let first = LoadGuard::reserve(&load, placed(100, 700));
        let second = LoadGuard::reserve(&load, placed(120, 50));
        assert_eq!(first.overdue(ms(900)).map(|l| l.busy.as_millis()), Some(800));
        assert_eq!(second.overdue(ms(900)), None);
    }

    #[test]
    fn a_panic_in_the_stream_releases_its_load() {
        let load = ReplicaLoad::new();
        let inside = Arc::clone(&load);
        let ended = std::thread::spawn(move || {
            let _guard = LoadGuard::reserve(&inside, placed(0, 9));
            panic!("a stream's task fell over");
        });
        assert!(ended.join().is_err());
        assert_eq!(counts(&load), (0, 0, 0));
    }

    #[test]
    fn many_threads_leave_nothing_behind() {
        let load = ReplicaLoad::new();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let load = &load;
                scope.spawn(move || {
                    for i in 0..500 {
                        let mut guard = LoadGuard::reserve(load, placed(i, i + thread));
                        if i % 2 == 0 {
                            guard.first_token(ms(i));
                        }
                    }
                });
            }
        });
        assert_eq!(counts(&load), (0, 0, 0));
        assert_eq!(load.view().context, 0);
    }

    #[test]
    fn a_guard_may_move_between_threads() {
        fn is_send<T: Send + 'static>() {}
        is_send::<LoadGuard>();
    }
}
