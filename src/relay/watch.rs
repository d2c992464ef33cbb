//! The watchdog: deadlines of streams, enforced outside their bodies.
//!
//! hyper does not poll a body whose client takes nothing, so a timer inside the body cannot fire then. Each
//! stream therefore leaves its stamps in a [`StreamWatch`]; one task checks all of them every 50 ms.
//! A stream that waits for its replica is woken with an [`Expiry`] and ends in order (error event, abort). One that
//! waits for its client is ended by its [`KillSwitch`]: the connection is dropped (HTTP/2: the stream is reset).
//! Nothing is armed, reset or allocated per event.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use atomic_waker::AtomicWaker;
use parking_lot::Mutex;

use crate::clock::{AtomicStamp, Clock, Stamp, ticks};
use crate::error::{Failure, ReplicaFailure, Timer};
use crate::fleet::health::{REFUSED_TWICE, Vitals};
use crate::listener::KillSwitch;

/// Why a stream has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// This deadline passed.
    Deadline(Timer),
    /// The replica refuses connections or leaves probes unanswered.
    ReplicaSilent,
    /// The drain is over.
    DrainOver,
}

/// What one stream and the watchdog share. What an event touches comes first and fits one cache line: between two
/// events of a stream its memory has left the cache, and each line costs a miss.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct StreamWatch {
    /// The last content event, or the start of the wait for the first one.
    moved: AtomicStamp,
    /// When the body last handed a frame to hyper; counts while `is_waiting` is false.
    handed: AtomicStamp,
    vitals: Arc<Vitals>,
    waker: AtomicWaker,
    /// The stream waits for its replica (else: for its client).
    is_waiting: AtomicBool,
    /// `inter_token` counts (it does not before the first token: `first_token` does).
    is_decoding: AtomicBool,
    is_over: AtomicBool,
    wants_flush: AtomicBool,
    /// The stream's own end came, and its body goes on.
    is_told: AtomicBool,
    /// Why it has to end, and since when.
    expiry: OnceLock<(Expiry, Stamp)>,
    kill: KillSwitch,
    deadlines: StreamDeadlines,
    /// For how long the gateway stood still at most meanwhile, in nanoseconds.
    stood_still: AtomicU64,
    /// When its engine began an answer of which it holds the text back.
    begun: AtomicStamp,
}

/// Deadlines of one stream.
#[derive(Clone, Copy, Debug)]
pub struct StreamDeadlines {
    /// Between two content events; `None` for answers that are not streams.
    pub inter_token: Option<Duration>,
    /// Without a byte taken by the client.
    pub client_stall: Duration,
    /// Silence before the first content event, or before a unary answer, from which on evidence against the replica counts.
    pub patience: Duration,
    /// When the first content event is overdue (streams).
    pub first_token: Option<Deadline>,
    /// Whether its engine may be silent in health once it has begun, for as long as its parser holds a call of a tool or the reasoning
    /// back: the two deadlines of silence then count only while nothing moves there, neither its own counters nor another stream.
    pub may_be_silent: MayBeSilent,
    /// When the request is over.
    pub total: Deadline,
    /// Whose end that is: the route's, or the client's own.
    pub total_timer: Timer,
}

/// A deadline, with the timeout that it comes from.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    /// When it expires.
    pub at: Stamp,
    /// The configured timeout, for the error message.
    pub after: Duration,
}

/// From when on silence may be health.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MayBeSilent {
    /// Never.
    #[default]
    Never,
    /// Once its engine has begun to answer.
    OnceBegun,
    /// From the start: the API does not show when an engine begins.
    FromTheStart,
}

impl StreamDeadlines {
    /// The timeout behind a deadline.
    fn timeout(&self, timer: Timer) -> Duration {
        match (timer, self.first_token, self.inter_token) {
            (Timer::FirstToken, Some(first_token), _) => first_token.after,
            (Timer::InterToken, _, Some(inter_token)) => inter_token,
            (Timer::ClientStall, ..) => self.client_stall,
            _ => self.total.after,
        }
    }
}

impl StreamWatch {
    /// The stream waits for its replica from now on. Call [`Self::restart_silence`] before it where the client held us up:
    /// the watchdog may look at any moment.
    pub fn waits_for_replica(&self) {
        self.is_waiting.store(true, Ordering::Release);
    }

    /// A frame went to hyper: until the next poll the client is waited for.
    pub fn waits_for_client(&self, now: Stamp) {
        self.handed.store(now);
        self.is_waiting.store(false, Ordering::Release);
    }

    /// Restarts the silence: a content event came, or the client held us up.
    pub fn restart_silence(&self, now: Stamp) {
        self.moved.store(now);
    }

    /// A content event came.
    pub fn progressed(&self, now: Stamp) {
        self.restart_silence(now);
        self.vitals.progressed(now);
    }

    /// The first content event came: `inter_token` counts from here.
    pub fn decodes(&self, now: Stamp) {
        self.restart_silence(now);
        self.is_decoding.store(true, Ordering::Release);
        self.vitals.answered(now);
    }

    /// Its engine began to answer, and holds the text back.
    pub fn begins(&self, now: Stamp) {
        if self.deadlines.may_be_silent == MayBeSilent::OnceBegun && self.begun().is_none() {
            self.begun.store(now);
        }
    }

    /// See [`Self::begins`].
    pub fn begun(&self) -> Option<Stamp> {
        Some(self.begun.load()).filter(|at| *at != Stamp::default())
    }

    /// From when on it may be silent in health.
    pub fn may_be_silent(&self) -> MayBeSilent {
        self.deadlines.may_be_silent
    }

    /// The stream's own end came. Its body gets [`QUIET`] to end, too, so that its connection can be used again.
    pub fn only_body_left(&self, now: Stamp) {
        self.restart_silence(now);
        self.is_told.store(true, Ordering::Release);
    }

    /// The stream ended: the watchdog drops it at its next check.
    pub fn close(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// The stream fell silent: gaps that wait to be merged are to be merged now.
    pub fn take_flush_request(&self) -> bool {
        self.wants_flush.load(Ordering::Relaxed) && self.wants_flush.swap(false, Ordering::Relaxed)
    }

    /// Ready when the stream has to end.
    pub fn poll_expiry(&self, cx: &Context<'_>) -> Poll<Expiry> {
        if let Some(expiry) = self.expiry() {
            return Poll::Ready(expiry);
        }
        self.waker.register(cx.waker());
        self.expiry().map_or(Poll::Pending, Poll::Ready)
    }

    /// The failure of the stream at `replica` where it has to end for this reason.
    pub fn failure(&self, expiry: Expiry, replica: Arc<str>) -> Failure {
        match expiry {
            Expiry::Deadline(timer) => Failure::Timeout { timer, after: self.deadlines.timeout(timer) },
            Expiry::ReplicaSilent => Failure::Replica(ReplicaFailure::Silent { replica }),
            Expiry::DrainOver => Failure::DrainCut,
        }
    }

    /// Why the stream has to end, if it has to.
    pub fn expiry(&self) -> Option<Expiry> {
        self.expiry.get().map(|(expiry, _)| *expiry)
    }

    /// Moves every deadline: the gateway stood still, and what came meanwhile waits in its sockets. The ends of a request move by
    /// its longest pause: on a machine that stands still again and again its client would wait for ever.
    fn postpone(&self, by: Duration, now: Stamp) {
        for cell in [&self.moved, &self.handed] {
            cell.raise(cell.load().after(by).min(now));
        }
        self.stood_still.fetch_max(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn check(&self, now: Stamp, drain_over: bool) {
        if let Some((_, since)) = self.expiry.get() {
            // hyper asks no body of which the client takes nothing.
            if now.since(*since) >= self.deadlines.client_stall {
                self.kill.cancel();
            }
            return;
        }
        // The stamps are written before the flags that make them count.
        let is_waiting = self.is_waiting.load(Ordering::Acquire);
        let is_decoding = self.is_decoding.load(Ordering::Acquire);
        let stood_still = Duration::from_nanos(self.stood_still.load(Ordering::Relaxed));
        let is_past = |deadline: Deadline| now >= deadline.at.after(stood_still);
        let is_excused = self.is_excused(now);
        let expiry = if drain_over {
            Some(Expiry::DrainOver)
        } else if is_past(self.deadlines.total) {
            Some(Expiry::Deadline(self.deadlines.total_timer))
        } else if is_waiting
            && !is_decoding
            && !(is_excused && self.may_have_begun())
            && self.deadlines.first_token.is_some_and(is_past)
        {
            // Not while the client is waited for: the token may have come, behind what it does not take.
            Some(Expiry::Deadline(Timer::FirstToken))
        } else if is_waiting {
            self.check_silence(now, is_decoding)
        } else {
            (now.since(self.handed.load()) >= self.deadlines.client_stall)
                .then_some(Expiry::Deadline(Timer::ClientStall))
        };
        let Some(expiry) = expiry else { return };
        let _ = self.expiry.set((expiry, now));
        if is_waiting {
            self.waker.wake();
        } else {
            // Nobody polls the body: only from outside can it end.
            self.kill.cancel();
        }
    }

    fn may_have_begun(&self) -> bool {
        self.deadlines.may_be_silent == MayBeSilent::FromTheStart || self.begun().is_some()
    }

    /// Whether silence is no fault of it: others move there.
    fn is_excused(&self, now: Stamp) -> bool {
        let limits = &self.deadlines;
        limits.may_be_silent != MayBeSilent::Never
            && limits.inter_token.is_some_and(|bound| now.since(self.vitals.last_computed()) < bound)
    }

    fn check_silence(&self, now: Stamp, is_decoding: bool) -> Option<Expiry> {
        let inter_token = self.deadlines.inter_token?;
        let silence = now.since(self.moved.load());
        if (FLUSH_AFTER..FLUSH_AFTER + 2 * TICK).contains(&silence) {
            self.wants_flush.store(true, Ordering::Relaxed);
            self.waker.wake();
        }
        if self.is_told.load(Ordering::Acquire) {
            return (silence >= QUIET).then_some(Expiry::Deadline(Timer::InterToken));
        }
        if is_decoding && silence >= inter_token && !self.is_excused(now) {
            return Some(Expiry::Deadline(Timer::InterToken));
        }
        let refused_for = if is_decoding { REFUSED_TWICE } else { REFUSED_FOR_GOOD };
        if silence >= QUIET && (self.vitals.is_gone(refused_for) || self.vitals.is_stopped()) {
            return Some(Expiry::ReplicaSilent);
        }
        let others = now.since(self.vitals.last_progress());
        let suspicious = SUSPICIOUS.min(inter_token / 2);
        if silence >= QUIET && self.vitals.refused_since().is_some()
            || silence >= suspicious && others >= suspicious
        {
            self.vitals.suspect(now);
        }
        // Before the first token silence proves nothing: a long prefill is silent and starves the probe behind it.
        let patience = if is_decoding { inter_token / 2 } else { self.deadlines.patience };
        let is_alone = silence >= patience && others >= inter_token / 2;
        (is_alone && (self.vitals.frozen_since().is_some() || self.vitals.is_deaf()))
            .then_some(Expiry::ReplicaSilent)
    }
}

/// Enforces the deadlines of all streams.
#[derive(Debug)]
pub struct Watchdog {
    clock: Clock,
    shards: [Mutex<Vec<Arc<StreamWatch>>>; SHARDS],
    next: AtomicU64,
    drain_over: AtomicBool,
}

impl Watchdog {
    /// A watchdog without streams; [`Watchdog::run`] does the work.
    pub fn new(clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            clock,
            shards: std::array::from_fn(|_| Mutex::new(Vec::new())),
            next: AtomicU64::new(0),
            drain_over: AtomicBool::new(false),
        })
    }

    /// Registers a stream that starts to wait for `vitals`' replica now.
    pub fn watch(
        &self,
        vitals: Arc<Vitals>,
        kill: KillSwitch,
        deadlines: StreamDeadlines,
        now: Stamp,
    ) -> Arc<StreamWatch> {
        let watch = Arc::new(StreamWatch {
            vitals,
            kill,
            deadlines,
            moved: AtomicStamp::new(now),
            handed: AtomicStamp::new(now),
            is_waiting: AtomicBool::new(true),
            is_decoding: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            wants_flush: AtomicBool::new(false),
            is_told: AtomicBool::new(false),
            stood_still: AtomicU64::new(0),
            begun: AtomicStamp::new(Stamp::default()),
            expiry: OnceLock::new(),
            waker: AtomicWaker::new(),
        });
        let shard = self.next.fetch_add(1, Ordering::Relaxed) as usize % SHARDS;
        if let Some(shard) = self.shards.get(shard) {
            shard.lock().push(Arc::clone(&watch));
        }
        watch
    }

    /// Expires every stream that still runs with [`Expiry::DrainOver`].
    pub fn end_drain(&self) {
        self.drain_over.store(true, Ordering::Relaxed);
    }

    /// Number of running streams.
    pub fn streams(&self) -> usize {
        self.shards.iter().map(|s| s.lock().iter().filter(|watch| goes_on(watch)).count()).sum()
    }

    /// Checks every stream each [`TICK`]; never returns.
    pub async fn run(self: Arc<Self>) {
        let mut tick = ticks(TICK);
        let mut before = self.clock.now();
        loop {
            tick.tick().await;
            let now = self.clock.now();
            self.look(std::mem::replace(&mut before, now), now);
        }
    }

    /// Checks every stream once and drops the ended ones. When it was done `before` tells whether the gateway stood still since: the
    /// machine was paused, or the process.
    fn look(&self, before: Stamp, now: Stamp) {
        // A busy machine is late a little at every tick: added up, that would put deadlines off for minutes.
        let late = now.since(before).saturating_sub(2 * TICK);
        let late = if late < PAUSE { Duration::ZERO } else { late };
        let drain_over = self.drain_over.load(Ordering::Relaxed);
        for shard in &self.shards {
            shard.lock().retain(|watch| {
                let goes_on = goes_on(watch);
                if goes_on {
                    if !late.is_zero() {
                        watch.postpone(late, now);
                    }
                    watch.check(now, drain_over);
                }
                goes_on
            });
        }
    }
}

const SHARDS: usize = 16;

/// Resolution of the deadlines: 10,000 streams cost a quarter of a percent of a core at this rate.
const TICK: Duration = Duration::from_millis(50);

/// Lateness from which the gateway stood still.
const PAUSE: Duration = Duration::from_secs(1);

// Gaps are merged at least once a second, also while their stream is silent.
const FLUSH_AFTER: Duration = Duration::from_millis(900);

// A draining engine closes its listener and streams on; only a stream that is also quiet for a while, by the
// standard of live decoding, lost its process.
const QUIET: Duration = Duration::from_secs(1);

// A prefill is silent anyway, and a listener may be replaced while its process works on.
const REFUSED_FOR_GOOD: Duration = Duration::from_secs(2);

// Silence of a stream, and of all others there, that is worth a probe: it decides nothing by itself.
const SUSPICIOUS: Duration = Duration::from_secs(2);

/// Whether the stream has neither ended nor been dropped without an end.
fn goes_on(watch: &Arc<StreamWatch>) -> bool {
    Arc::strong_count(watch) > 1 && !watch.is_over.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::seconds as at;

    fn deadlines(inter_token: u64) -> StreamDeadlines {
        StreamDeadlines {
            inter_token: Some(Duration::from_secs(inter_token)),
            client_stall: Duration::from_secs(60),
            patience: Duration::from_secs(40),
            first_token: Some(Deadline { at: at(300), after: Duration::from_secs(299) }),
            may_be_silent: MayBeSilent::Never,
            total: Deadline { at: at(1000), after: Duration::from_secs(999) },
            total_timer: Timer::Total,
        }
    }

    fn watched(inter_token: u64) -> (Arc<Watchdog>, Arc<StreamWatch>, Arc<Vitals>, KillSwitch) {
        watched_by(deadlines(inter_token))
    }

    fn watched_by(deadlines: StreamDeadlines) -> (Arc<Watchdog>, Arc<StreamWatch>, Arc<Vitals>, KillSwitch) {
        let dog = Watchdog::new(Clock::start());
        let (vitals, kill) = (Arc::new(Vitals::default()), KillSwitch::default());
        let watch = dog.watch(Arc::clone(&vitals), kill.clone(), deadlines, at(1));
        (dog, watch, vitals, kill)
    }

    /// What the watchdog finds at this time.
    fn found(watch: &StreamWatch, at: Stamp) -> Option<Expiry> {
        watch.check(at, false);
        watch.expiry()
    }

    #[test]
    fn a_stream_that_may_be_silent_is_so_as_long_as_its_engine_moves() {
        let may_be = |may_be_silent| watched_by(StreamDeadlines { may_be_silent, ..deadlines(10) });
        let may_be_silent = || may_be(MayBeSilent::OnceBegun);
        let (_dog, watch, vitals, _) = may_be_silent();
        watch.decodes(at(2));
        for second in [5, 14, 23, 32] {
            vitals.engine_moved(at(second));
            assert_eq!(found(&watch, at(second + 9)), None, "{second}");
        }
        assert_eq!(found(&watch, at(42)), Some(Expiry::Deadline(Timer::InterToken)));
        let (_dog, waits, vitals, _) = may_be_silent();
        vitals.engine_moved(at(299));
        assert_eq!(
            found(&waits, at(300)),
            Some(Expiry::Deadline(Timer::FirstToken)),
            "in the engine's queue"
        );
        let (_dog, first, vitals, _) = may_be_silent();
        first.begins(at(3));
        vitals.engine_moved(at(299));
        assert_eq!(found(&first, at(305)), None);
        assert_eq!(found(&first, at(309)), Some(Expiry::Deadline(Timer::FirstToken)));
        let (_dog, response, vitals, _) = may_be(MayBeSilent::FromTheStart);
        vitals.engine_moved(at(299));
        assert_eq!(found(&response, at(305)), None);
        assert_eq!(found(&response, at(309)), Some(Expiry::Deadline(Timer::FirstToken)));
        let (_dog, total, vitals, _) = may_be_silent();
        vitals.engine_moved(at(1000));
        assert_eq!(found(&total, at(1000)), Some(Expiry::Deadline(Timer::Total)));
    }

    #[test]
    fn silence_counts_only_after_the_first_token() {
        let (_dog, watch, _, _) = watched(10);
        assert_eq!(found(&watch, at(50)), None);
        let (_other_dog, other, ..) = watched(1000);
        assert_eq!(found(&other, at(300)), Some(Expiry::Deadline(Timer::FirstToken)));
        watch.decodes(at(51));
        assert_eq!(found(&watch, at(60)), None);
        assert_eq!(found(&watch, at(61)), Some(Expiry::Deadline(Timer::InterToken)));
    }

    #[test]
    fn a_first_token_is_not_late_while_the_client_takes_nothing() {
        let (_dog, watch, ..) = watched(1000);
        watch.waits_for_client(at(250));
        assert_eq!(found(&watch, at(305)), None);
        let (_other_dog, other, ..) = watched(1000);
        other.waits_for_client(at(250));
        assert_eq!(found(&other, at(310)), Some(Expiry::Deadline(Timer::ClientStall)));
        watch.waits_for_replica();
        assert_eq!(found(&watch, at(306)), Some(Expiry::Deadline(Timer::FirstToken)));
    }

    #[test]
    fn what_is_dropped_without_an_end_is_forgotten() {
        let (dog, watch, ..) = watched(10);
        assert_eq!(dog.streams(), 1);
        drop(watch);
        assert_eq!(dog.streams(), 0);
        dog.look(at(1), at(2));
        assert!(dog.shards.iter().all(|shard| shard.lock().is_empty()));
    }

    #[test]
    fn a_refused_connect_ends_quiet_streams_and_spares_moving_ones() {
        let (_dog, watch, vitals, _) = watched(30);
        watch.decodes(at(10));
        vitals.refused(at(10));
        assert_eq!(found(&watch, at(12)), None, "refused once");
        vitals.refused(at(12));
        assert_eq!(found(&watch, at(12)), Some(Expiry::ReplicaSilent));
    }

    #[test]
    fn a_stream_that_went_on_behind_a_closed_listener_has_half_of_its_deadline_to_go_on_again() {
        let (_dog, watch, vitals, _) = watched(30);
        vitals.refused(at(5));
        watch.decodes(at(7));
        vitals.progressed(at(7));
        vitals.refused(at(10));
        assert_eq!([11, 21].map(|now| found(&watch, at(now))), [None, None], "it drains");
        vitals.refused(at(21));
        assert_eq!(found(&watch, at(22)), Some(Expiry::ReplicaSilent));
    }

    #[test]
    fn a_listener_that_is_away_for_a_moment_ends_no_prefill() {
        let (_dog, watch, vitals, _) = watched(30);
        vitals.refused(Stamp::from_nanos(5_000_000_000));
        vitals.refused(Stamp::from_nanos(6_200_000_000));
        assert_eq!(found(&watch, at(7)), None);
        vitals.refused(at(7));
        assert_eq!(found(&watch, at(7)), Some(Expiry::ReplicaSilent), "refused for two seconds");
    }

    #[test]
    fn a_long_prefill_is_left_alone_though_probes_starve_behind_it() {
        let (_dog, watch, vitals, _) = watched(30);
        vitals.frozen(at(5));
        assert_eq!(found(&watch, at(40)), None);
        vitals.engine_moved(at(39));
        assert_eq!(found(&watch, at(45)), None, "the engine's counters move");
        vitals.frozen(at(40));
        assert_eq!(found(&watch, at(46)), Some(Expiry::ReplicaSilent));
    }

    #[test]
    fn nothing_waits_at_a_process_that_stands_still() {
        let (_dog, watch, vitals, _) = watched(30);
        vitals.page(true, at(3));
        vitals.silent(at(3));
        assert_eq!(found(&watch, at(8)), None, "one list that stayed away");
        vitals.silent(at(9));
        assert_eq!(found(&watch, at(14)), Some(Expiry::ReplicaSilent));
    }

    #[test]
    fn half_a_silence_with_an_unanswered_probe_ends_a_stream() {
        let (_dog, watch, vitals, _) = watched(20);
        watch.decodes(at(10));
        assert_eq!(found(&watch, at(21)), None);
        vitals.frozen(at(22));
        assert_eq!(found(&watch, at(22)), Some(Expiry::ReplicaSilent));
    }

    #[test]
    fn another_stream_that_moves_is_an_alibi() {
        let (_dog, watch, vitals, _) = watched(20);
        watch.decodes(at(10));
        vitals.frozen(at(15));
        vitals.progressed(at(20));
        assert_eq!(found(&watch, at(22)), None);
    }

    #[test]
    fn a_busy_machine_puts_no_deadline_off() {
        let (dog, watch, ..) = watched(1000);
        let mut before = at(1);
        while before < at(300) {
            assert_eq!(watch.expiry(), None, "at {before:?}");
            let now = before.after(Duration::from_millis(400));
            dog.look(before, now);
            before = now;
        }
        assert_eq!(watch.expiry(), Some(Expiry::Deadline(Timer::FirstToken)));
    }

    #[test]
    fn a_machine_that_stands_still_again_and_again_puts_a_first_token_off_once() {
        let (dog, watch, ..) = watched(1000);
        let mut before = at(1);
        while before < at(302) {
            assert_eq!(watch.expiry(), None, "at {before:?}");
            let now = before.after(Duration::from_secs(2));
            dog.look(before, now);
            before = now;
        }
        dog.look(before, before.after(Duration::from_millis(50)));
        assert_eq!(watch.expiry(), Some(Expiry::Deadline(Timer::FirstToken)), "300 s and one pause");
    }

    #[test]
    fn a_gateway_that_stood_still_moves_every_deadline_by_as_long() {
        let second = 1_000_000_000;
        let (dog, watch, ..) = watched(10);
        watch.decodes(at(50));
        let (waiting_dog, waiting, ..) = watched(10);
        let (stalled_dog, stalled, ..) = watched(1000);
        stalled.decodes(at(50));
        stalled.waits_for_client(at(50));
        for (dog, watch, left) in [(dog, watch, 10), (waiting_dog, waiting, 250), (stalled_dog, stalled, 60)]
        {
            dog.look(at(50), at(50));
            dog.look(at(50), at(2050));
            // Two ticks of lateness are ordinary.
            let due = Stamp::from_nanos((2050 + left) * second - 100_000_000);
            dog.look(Stamp::from_nanos(due.as_nanos() - 1), Stamp::from_nanos(due.as_nanos() - 1));
            assert_eq!(watch.expiry(), None, "{left} s left");
            dog.look(due, at(2050 + left));
            assert!(watch.expiry().is_some(), "{left} s left");
        }
    }

    #[test]
    fn a_body_that_is_left_open_behind_its_stream_gets_a_moment() {
        let (_dog, watch, ..) = watched(30);
        watch.decodes(at(10));
        watch.only_body_left(at(20));
        assert_eq!(found(&watch, Stamp::from_nanos(20_900_000_000)), None);
        watch.check(at(21), false);
        assert!(watch.expiry().is_some());
    }

    /// Over HTTP/2 a body is not asked while its window is closed, though nothing waits to be taken.
    #[test]
    fn a_stream_that_has_to_end_and_is_not_asked_is_cut_from_outside() {
        let (_dog, watch, _, kill) = watched(5);
        watch.decodes(at(10));
        assert_eq!(found(&watch, at(15)), Some(Expiry::Deadline(Timer::InterToken)));
        watch.check(at(74), false);
        assert!(!kill.is_cancelled(), "its last event is on the way");
        watch.check(at(75), false);
        assert!(kill.is_cancelled());
    }

    #[test]
    fn a_client_that_takes_nothing_is_cut_from_outside_and_feeds_no_token_deadline() {
        let (_dog, watch, _, kill) = watched(5);
        watch.decodes(at(10));
        watch.waits_for_client(at(10));
        assert_eq!(found(&watch, at(30)), None);
        assert_eq!(found(&watch, at(70)), Some(Expiry::Deadline(Timer::ClientStall)));
        assert!(kill.is_cancelled());
    }
}
