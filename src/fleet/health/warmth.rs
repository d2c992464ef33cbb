//! Whether a replica's process is warm: since when it is not, how long that took, and its slow start afterwards. And whether it
//! computes prompts that another pool of their route has cached: a new revision begins with empty caches.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::slow_start::SlowStart;
use crate::clock::{AtomicStamp, Stamp};
use crate::fleet::life::ColdStarts;

/// How warm one replica is.
#[derive(Debug, Default)]
pub(crate) struct Warmth {
    inner: Mutex<Inner>,
    /// Whether `inner` has a slow start, for the data path.
    is_slow: AtomicBool,
    /// Answers before this are those of a process that came up a short while ago.
    fresh_until: AtomicStamp,
    /// Prompts that it computes though another pool has them cached.
    fills: AtomicU32,
    /// Until then one of them may take so long.
    filling_until: AtomicStamp,
    /// When the last one of them was computed.
    filled: AtomicStamp,
}

#[derive(Debug, Default)]
struct Inner {
    /// `None` once it is warm.
    cold: Option<Cold>,
    /// When its process became warm.
    warm_since: Option<Stamp>,
    slow_start: Option<SlowStart>,
    cold_starts: ColdStarts,
}

/// A process that is not warm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cold {
    /// It was discovered, or connects were refused first.
    since: Stamp,
    /// When it was last seen loading or gone: it did not run before we came.
    absent: Option<Stamp>,
}

impl Cold {
    /// Whether another that has been warm since then served before it: already when it was first missed, or for a whole slow start by
    /// the time it came.
    pub(crate) fn comes_after(self, warm: Stamp, slow_start: Duration) -> bool {
        warm <= self.since || self.absent.is_some_and(|absent| warm.after(slow_start) <= absent)
    }
}

impl Warmth {
    /// A replica that is discovered now.
    pub(crate) fn new(now: Stamp) -> Self {
        let cold = Some(Cold { since: now, absent: None });
        Self { inner: Mutex::new(Inner { cold, ..Inner::default() }), ..Self::default() }
    }

    /// Since when it has been cold.
    pub(crate) fn cold(&self) -> Option<Cold> {
        self.inner.lock().cold
    }

    /// When its process became warm; `None` while it is not.
    pub(crate) fn warm_since(&self) -> Option<Stamp> {
        self.inner.lock().warm_since
    }

    /// An own request found nobody, or no working engine.
    pub(crate) fn not_yet(&self, now: Stamp) {
        if let Some(cold) = &mut self.inner.lock().cold {
            cold.absent = Some(now);
        }
    }

    /// Its process is gone, or another one.
    pub(crate) fn lost(&self, since: Stamp) {
        let mut inner = self.inner.lock();
        inner.cold.get_or_insert(Cold { since, absent: Some(since) });
        (inner.warm_since, inner.slow_start) = (None, None);
        self.is_slow.store(false, Ordering::Relaxed);
    }

    /// It is warm already, as another part of the fleet knows.
    pub(crate) fn adopted(&self, now: Stamp) {
        let mut inner = self.inner.lock();
        (inner.cold, inner.warm_since) = (None, Some(now));
    }

    /// It is warm. `joins`: others served before it, so that its time counts as a cold start in any case, and its share of the
    /// traffic rises over `span`. Returns how long a cold start took.
    pub(crate) fn warmed(&self, now: Stamp, joins: bool, span: Duration) -> Option<Duration> {
        let mut inner = self.inner.lock();
        let cold = inner.cold.take();
        inner.warm_since = Some(now);
        inner.slow_start = if joins { SlowStart::begin(now, span) } else { None };
        self.is_slow.store(inner.slow_start.is_some(), Ordering::Relaxed);
        let took = cold.filter(|cold| joins || cold.absent.is_some()).map(|cold| now.since(cold.since))?;
        self.fresh_until.store(now.after(span));
        inner.cold_starts.note(took);
        Some(took)
    }

    pub(crate) fn cold_starts(&self) -> ColdStarts {
        self.inner.lock().cold_starts.clone()
    }

    pub(crate) fn is_in_slow_start(&self) -> bool {
        self.is_slow.load(Ordering::Relaxed)
    }

    /// In slow start, or no longer than its span after a cold start without one, as no replica served before it: the time of its first tokens
    /// means little for its pool.
    pub(crate) fn is_cold(&self, now: Stamp) -> bool {
        self.is_in_slow_start() || now < self.fresh_until.load()
    }

    /// A prompt is sent there that another pool has cached. What takes longer than `until` is no doing of a cache.
    pub(crate) fn fill_begins(&self, until: Stamp) {
        self.filling_until.raise(until);
        self.fills.fetch_add(1, Ordering::Relaxed);
    }

    /// It is computed, or given up; `at` is no later than its `until`.
    pub(crate) fn fill_ends(&self, at: Stamp) {
        self.filled.raise(at);
        self.fills.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether such prompts were computed there at any time from then on.
    pub(crate) fn has_filled_since(&self, from: Stamp) -> bool {
        let is_filling = self.fills.load(Ordering::Relaxed) > 0 && self.filling_until.load() >= from;
        is_filling || self.filled.get().is_some_and(|last| last >= from)
    }

    /// Asks its slow start, or changes it; `None` where it is in none.
    pub(crate) fn slow_start<R>(&self, ask: impl FnOnce(&mut SlowStart) -> R) -> Option<R> {
        if !self.is_in_slow_start() {
            return None;
        }
        self.inner.lock().slow_start.as_mut().map(ask)
    }

    /// Takes a look at its slowness beside its peers; returns whether that ended its slow start.
    pub(crate) fn looked(&self, slowness: f64, now: Stamp) -> bool {
        if !self.is_in_slow_start() {
            return false;
        }
        let mut inner = self.inner.lock();
        inner.slow_start = inner.slow_start.and_then(|slow| slow.looked(slowness, now));
        let is_over = inner.slow_start.is_none();
        self.is_slow.store(!is_over, Ordering::Relaxed);
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::seconds as at;

    #[test]
    fn one_that_comes_long_after_others_comes_after_them_however_early_it_was_known() {
        let span = Duration::from_secs(30);
        let late = Warmth::new(at(10));
        let comes_after = |warm| late.cold().unwrap().comes_after(at(warm), span);
        assert!(comes_after(10) && !comes_after(11));
        late.not_yet(at(60));
        assert!(comes_after(30) && !comes_after(31), "those that loaded together share evenly");
    }

    #[test]
    fn a_prompt_that_is_never_computed_fills_no_cache_for_ever() {
        let warmth = Warmth::new(at(1));
        warmth.fill_begins(at(13));
        assert!(warmth.has_filled_since(at(10)) && warmth.has_filled_since(at(13)));
        assert!(!warmth.has_filled_since(at(14)), "it hangs");
        warmth.fill_begins(at(33));
        warmth.fill_ends(at(31));
        assert!(warmth.has_filled_since(at(31)), "one is computed");
        warmth.fill_ends(at(13));
        assert!(warmth.has_filled_since(at(31)) && !warmth.has_filled_since(at(32)), "the other is given up");
    }

    #[test]
    fn first_answers_after_a_cold_start_are_cold_even_without_a_slow_start() {
        let span = Duration::from_secs(30);
        let first = Warmth::new(at(1));
        first.not_yet(at(19));
        assert_eq!(first.warmed(at(20), false, span), Some(Duration::from_secs(19)));
        assert!(!first.is_in_slow_start() && first.is_cold(at(49)) && !first.is_cold(at(50)));

        let found_running = Warmth::new(at(1));
        assert_eq!(found_running.warmed(at(2), false, span), None);
        assert!(!found_running.is_cold(at(3)), "it was up before the gateway came");

        let joining = Warmth::new(at(1));
        joining.warmed(at(2), true, span);
        assert!(joining.is_cold(at(3)) && joining.is_in_slow_start());
    }
}
