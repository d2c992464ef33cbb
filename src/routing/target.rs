//! What routing knows of one replica: our own work on it, and the engine's newest figures.
//!
//! A page of the engine is read together with our own load at that moment, so that work of others can be told apart. What
//! decisions need of it is published as plain atomics, one cache line: a decision reads it for every candidate. The
//! figures are read one by one, so a reader may mix two pages that follow one another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::cache_counters::{CacheFigures, CacheReport};
use super::foreign::sane;
use super::load::{LoadView, Shown};
use super::memory::Memory;
use super::{Foreign, ReplicaLoad};
use crate::clock::Stamp;
use crate::units::AtomicF64;

/// One replica of a pool, as routing sees it.
#[derive(Debug, Default)]
pub struct Target {
    /// Its place in the pool: in the prefix index and in the model.
    pub slot: usize,
    /// [`super::rendezvous::identity`] of its URL.
    pub identity: u64,
    /// Our work on it.
    pub load: Arc<ReplicaLoad>,
    published: Published,
    seen: Mutex<Seen>,
    /// `1 - x`, so that zero is the ordinary case.
    failing: AtomicF64,
    withheld: AtomicF64,
}

/// One reading of an engine's metrics page; what the page does not have is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EnginePage {
    /// Running requests.
    pub running: Option<f64>,
    /// Waiting requests.
    pub waiting: Option<f64>,
    /// Share of the KV cache in use, 0 to 1.
    pub kv_cache_usage: Option<f64>,
    /// Tokens in a KV block.
    pub block_tokens: Option<u64>,
    /// KV blocks of the engine.
    pub total_blocks: Option<u64>,
    /// Whether it finds nothing again of what it computed, and says so.
    pub is_caching_off: bool,
    /// Requests that it runs at once at most.
    pub batch_limit: Option<u64>,
    /// What its prefix cache found.
    pub cache: Option<CacheFigures>,
}

/// The newest reading, where it is not too old.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineSignals {
    /// Its age.
    pub age: Duration,
    /// Its batch limit is that of the configuration, else what the engine was seen not to exceed, else of the page.
    pub page: EnginePage,
    /// The batch limit as configured: what the engine was seen not to exceed moves with the traffic.
    pub set_batch_limit: Option<u64>,
}

/// What the configuration says of a pool's engines.
#[derive(Clone, Copy, Debug)]
pub struct EngineLimits {
    /// Between two scrapes; figures older than [`MAX_AGE`] of them are absent.
    pub scrape_interval: Duration,
    /// Sequences that an engine runs at once; wins over what was observed.
    pub batch_limit: Option<u64>,
}

/// A target's newest page as a decision needs it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EngineSnapshot {
    pub(super) foreign: Foreign,
    pub(super) batch_limit: Option<u64>,
    pub(super) block_tokens: Option<u64>,
    pub(super) memory: Option<Memory>,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Published {
    /// Nanoseconds of the page's stamp plus one; zero without a page.
    at: AtomicU64,
    /// Work of others then, as bits of floats.
    foreign: AtomicU32,
    foreign_waiting: AtomicU32,
    /// Zero where not known.
    block_tokens: AtomicU32,
    batch_limit: AtomicU64,
    /// See [`Memory`]; its capacity is zero where not known.
    capacity: AtomicU32,
    beyond: AtomicU32,
    /// Requests waited there on one of its pages.
    has_queued: AtomicBool,
}

/// Beside the request path.
#[derive(Debug, Default)]
struct Seen {
    at: Stamp,
    page: Option<EnginePage>,
}

impl Target {
    /// A replica without work, of which the engine has reported nothing.
    pub fn new(slot: usize, identity: u64) -> Self {
        Self { slot, identity, ..Self::default() }
    }

    /// What its recent answers are worth: the probability that it answers, relative to its peers, and the fraction of its
    /// ordinary traffic that it should get.
    pub fn set_standing(&self, success: f64, share: f64) {
        self.failing.store(1.0 - success);
        self.withheld.store(1.0 - share);
    }

    /// Probability that it answers, relative to its peers, 0 to 1.
    pub fn success(&self) -> f64 {
        1.0 - self.failing.load()
    }

    /// Fraction of its ordinary traffic that it should get, 0 to 1.
    pub fn share(&self) -> f64 {
        1.0 - self.withheld.load()
    }

    /// The engine's page was read just now. Figures that make no sense are taken for absent.
    pub fn scraped(&self, page: EnginePage, now: Stamp) {
        let page = page.sane();
        let mut seen = self.seen.lock();
        let since = std::mem::replace(&mut seen.at, now);
        seen.page = Some(page);
        if let Some((running, waiting)) = page.running.zip(page.waiting) {
            let shown = Shown { running: running as u32, waiting: waiting as u32 };
            self.load.counted(shown, since, now);
        }
        let own = self.load.view();
        let foreign = Foreign::beyond(page.running, page.waiting, &own);
        if page.waiting.is_some_and(|waiting| waiting > 0.0) {
            self.published.has_queued.store(true, Ordering::Relaxed);
        }
        self.published.publish(&page, foreign, page.memory(&own), now);
    }

    /// The engine's process is another one: nothing that was observed of it counts.
    pub fn restarted(&self) {
        self.load.restarted();
        *self.seen.lock() = Seen::default();
        self.published.at.store(0, Ordering::Release);
        self.published.has_queued.store(false, Ordering::Relaxed);
    }

    /// The newest page.
    pub fn page(&self) -> Option<EnginePage> {
        self.seen.lock().page
    }

    /// What its counters say of the hits that were promised since the last call.
    pub(super) fn cache_report(&self) -> Option<CacheReport> {
        self.load.promises.compare(self.page()?.cache?)
    }

    /// Whether its engine has shown requests that wait since it started.
    #[inline]
    pub(super) fn has_queued(&self) -> bool {
        self.published.has_queued.load(Ordering::Relaxed)
    }

    /// The newest figures; absent when too old.
    pub fn signals(&self, now: Stamp, limits: &EngineLimits) -> Option<EngineSignals> {
        let seen = self.seen.lock();
        let (page, age) = (seen.page?, now.since(seen.at));
        (age <= limits.scrape_interval * MAX_AGE).then_some(EngineSignals {
            age,
            page: EnginePage {
                batch_limit: limits.batch_limit.or(self.load.batch_limit()).or(page.batch_limit),
                ..page
            },
            set_batch_limit: limits.batch_limit.or(page.batch_limit),
        })
    }

    /// What a decision needs of the page; absent when too old.
    #[inline]
    pub(super) fn snapshot(&self, now: Stamp, limits: &EngineLimits) -> Option<EngineSnapshot> {
        let Published { at, foreign, foreign_waiting, .. } = &self.published;
        let age = now.since(Stamp::from_nanos(at.load(Ordering::Acquire).checked_sub(1)?));
        if age > limits.scrape_interval * MAX_AGE {
            return None;
        }
        let foreign = Foreign { requests: float(foreign), waiting: float(foreign_waiting) };
        let block_tokens = self.published.block_tokens.load(Ordering::Relaxed);
        let (capacity, beyond) = (float(&self.published.capacity), float(&self.published.beyond));
        Some(EngineSnapshot {
            foreign,
            batch_limit: Some(self.published.batch_limit.load(Ordering::Relaxed)).filter(|limit| *limit > 0),
            block_tokens: (block_tokens > 0).then_some(u64::from(block_tokens)),
            memory: (capacity > 0.0).then_some(Memory { capacity, beyond }),
        })
    }

    /// Work of others there, by the newest figures.
    pub(crate) fn foreign(&self, now: Stamp, limits: &EngineLimits) -> Foreign {
        self.snapshot(now, limits).unwrap_or_default().foreign
    }
}

impl EnginePage {
    /// Its KV memory beside what we had there then.
    fn memory(&self, own: &LoadView) -> Option<Memory> {
        Some(Memory::of(self.total_blocks?, self.block_tokens?, self.kv_cache_usage?, own))
    }

    /// Without what cannot be: figures of nonsense are absent, not zero.
    fn sane(self) -> Self {
        // vLLM's for a model without a KV cache.
        let has_cache = self.total_blocks != Some(1);
        let above_zero = |count: Option<u64>| count.filter(|count| (1..=MOST_BLOCKS).contains(count));
        Self {
            running: self.running.and_then(sane),
            waiting: self.waiting.and_then(sane),
            kv_cache_usage: self.kv_cache_usage.filter(|usage| (0.0..=1.0).contains(usage)),
            block_tokens: above_zero(self.block_tokens),
            total_blocks: above_zero(self.total_blocks).filter(|_| has_cache),
            is_caching_off: self.is_caching_off || !has_cache,
            batch_limit: above_zero(self.batch_limit),
            cache: self.cache,
        }
    }
}

impl Published {
    fn publish(&self, page: &EnginePage, foreign: Foreign, memory: Option<Memory>, now: Stamp) {
        let store = |cell: &AtomicU32, value: f64| cell.store((value as f32).to_bits(), Ordering::Relaxed);
        store(&self.foreign, foreign.requests);
        store(&self.foreign_waiting, foreign.waiting);
        let memory = memory.unwrap_or(Memory { capacity: 0.0, beyond: 0.0 });
        store(&self.capacity, memory.capacity);
        store(&self.beyond, memory.beyond);
        let block = page.block_tokens.unwrap_or(0);
        self.block_tokens.store(u32::try_from(block).unwrap_or(0), Ordering::Relaxed);
        self.batch_limit.store(page.batch_limit.unwrap_or(0), Ordering::Relaxed);
        self.at.store(now.as_nanos().saturating_add(1), Ordering::Release);
    }
}

fn float(cell: &AtomicU32) -> f64 {
    f64::from(f32::from_bits(cell.load(Ordering::Relaxed)))
}

/// Scrape intervals after which figures are absent rather than stale.
pub const MAX_AGE: u32 = 10;
/// More blocks are no cache, more tokens no block.
const MOST_BLOCKS: u64 = 1 << 40;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::seconds as at;

    const LIMITS: EngineLimits = EngineLimits { scrape_interval: Duration::from_secs(1), batch_limit: None };

    #[test]
    fn a_page_is_told_until_it_is_ten_scrapes_old() {
        let target = Target::new(0, 1);
        assert!(target.snapshot(at(1), &LIMITS).is_none());
        let page = EnginePage { running: Some(3.0), waiting: Some(1.0), ..EnginePage::default() };
        target.scraped(page, at(5));
        let snapshot = target.snapshot(at(5), &LIMITS).unwrap();
        assert_eq!((snapshot.foreign.requests, snapshot.foreign.waiting), (4.0, 1.0));
        assert!(snapshot.batch_limit.is_none() && snapshot.block_tokens.is_none());
        assert!(target.snapshot(at(15), &LIMITS).is_some() && target.snapshot(at(16), &LIMITS).is_none());
        assert!(target.signals(at(15), &LIMITS).is_some() && target.signals(at(16), &LIMITS).is_none());
        target.restarted();
        assert!(target.snapshot(at(5), &LIMITS).is_none() && target.page().is_none());
    }

    #[test]
    fn figures_of_nonsense_are_absent() {
        let target = Target::new(0, 1);
        for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 1e300] {
            let huge = Some(u64::MAX);
            let page = EnginePage {
                running: Some(odd),
                waiting: Some(odd),
                kv_cache_usage: Some(odd),
                block_tokens: huge,
                total_blocks: huge,
                is_caching_off: false,
                batch_limit: huge,
                cache: Some(CacheFigures::Share(odd)),
            };
            target.scraped(page, at(1));
            let snapshot = target.snapshot(at(1), &LIMITS).unwrap();
            assert_eq!(snapshot.foreign, Foreign::default(), "{odd}");
            assert!(snapshot.batch_limit.is_none() && snapshot.block_tokens.is_none());
        }
    }
}
