//! What routing knows of one replica: our own work on it, and the engine's newest figures.
//!
//! Figures come from two places: a scrape of the engine's page, and a load report along with an answer (ORCA), which is
//! fresher and knows less. Both are kept with our own load at that moment, so that work of others can be told apart.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;

use super::batch_limit::BatchLimit;
use super::{EngineSignals, Foreign, LoadView, ReplicaLoad};
use crate::clock::Stamp;

/// One replica of a pool, as routing sees it.
#[derive(Debug)]
pub struct Target {
    /// Its place in the pool: in the prefix index and in the model.
    pub slot: usize,
    /// [`super::rendezvous::identity`] of its URL.
    pub identity: u64,
    /// Our work on it.
    pub load: Arc<ReplicaLoad>,
    figures: ArcSwapOption<Figures>,
    /// `1 - x` as bits, so that zero is the ordinary case.
    failing: AtomicU64,
    withheld: AtomicU64,
}

/// One reading of an engine's metrics page.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EnginePage {
    /// Running requests.
    pub running: f64,
    /// Waiting requests.
    pub waiting: f64,
    /// Share of the KV cache in use, 0 to 1.
    pub kv_cache_usage: f64,
    /// Tokens in a KV block.
    pub block_tokens: Option<u64>,
    /// KV blocks of the engine.
    pub total_blocks: Option<u64>,
}

/// An engine's load report along with an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadReport {
    /// Waiting requests.
    pub waiting: f64,
    /// Share of the KV cache in use, 0 to 1.
    pub kv_cache_usage: Option<f64>,
}

/// What the configuration says of a pool's engines.
#[derive(Clone, Copy, Debug)]
pub struct EngineLimits {
    /// Between two scrapes; figures older than [`MAX_AGE`] of them are absent.
    pub scrape_interval: Duration,
    /// Sequences that an engine runs at once; wins over what was observed.
    pub batch_limit: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Figures {
    at: Stamp,
    own: LoadView,
    page: EnginePage,
    batch_limit: BatchLimit,
    report: Option<Reported>,
}

#[derive(Clone, Copy, Debug)]
struct Reported {
    at: Stamp,
    own: LoadView,
    running: f64,
    report: LoadReport,
}

impl Target {
    /// A replica without work, of which the engine has reported nothing.
    #[must_use]
    pub fn new(slot: usize, identity: u64) -> Self {
        Self {
            slot,
            identity,
            load: ReplicaLoad::new(),
            figures: ArcSwapOption::empty(),
            failing: AtomicU64::new(0),
            withheld: AtomicU64::new(0),
        }
    }

    /// What its recent answers are worth: the probability that it answers, relative to its peers, and the fraction of its
    /// ordinary traffic that it should get.
    pub fn set_standing(&self, success: f64, share: f64) {
        self.failing.store((1.0 - success).to_bits(), Ordering::Relaxed);
        self.withheld.store((1.0 - share).to_bits(), Ordering::Relaxed);
    }

    /// Probability that it answers, relative to its peers, 0 to 1.
    #[must_use]
    pub fn success(&self) -> f64 {
        1.0 - f64::from_bits(self.failing.load(Ordering::Relaxed))
    }

    /// Fraction of its ordinary traffic that it should get, 0 to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        1.0 - f64::from_bits(self.withheld.load(Ordering::Relaxed))
    }

    /// The engine's page was read just now.
    pub fn scraped(&self, page: EnginePage, now: Stamp) {
        let before = self.figures.load();
        let batch_limit = before.as_ref().map(|before| before.batch_limit).unwrap_or_default();
        let batch_limit = batch_limit.seeing(page.running, page.waiting, page.kv_cache_usage);
        let own = self.load.view();
        self.figures.store(Some(Arc::new(Figures { at: now, own, page, batch_limit, report: None })));
    }

    /// The engine reported its load with an answer that was read just now. Without a page before it, it says too little.
    pub fn reported(&self, report: LoadReport, now: Stamp) {
        let Some(figures) = self.figures.load_full() else { return };
        let own = self.load.view();
        // A report leaves out what runs: the streams of others are those of the page, as far as it is still believed.
        let others = Foreign::seen(&figures.signals(now, None), &figures.own);
        let running = own.decoding() as f64 + others.requests - others.waiting;
        let report = Some(Reported { at: now, own, running, report });
        self.figures.store(Some(Arc::new(Figures { report, ..*figures })));
    }

    /// The engine's process is another one: nothing that was observed of it counts.
    pub fn restarted(&self) {
        self.figures.store(None);
    }

    /// The newest page.
    #[must_use]
    pub fn page(&self) -> Option<EnginePage> {
        self.figures.load().as_ref().map(|figures| figures.page)
    }

    /// Whether the next page is overdue, so that the engine should be asked to report with an answer.
    #[must_use]
    pub fn is_overdue(&self, now: Stamp, scrape_interval: Duration) -> bool {
        let figures = self.figures.load();
        let newest = figures.as_ref().map(|figures| figures.report.map_or(figures.at, |report| report.at));
        newest.is_some_and(|at| now.since(at) > scrape_interval.mul_f64(OVERDUE))
    }

    /// The newest figures with our own load at that time; absent when too old.
    #[must_use]
    pub fn signals(&self, now: Stamp, limits: &EngineLimits) -> Option<(EngineSignals, LoadView)> {
        let figures = self.figures.load();
        let figures = figures.as_ref()?;
        let scraped = figures.signals(now, limits.batch_limit);
        let (signals, own) = match figures.report {
            None => (scraped, figures.own),
            Some(Reported { at, own, running, report }) => {
                let kv_cache_usage = report.kv_cache_usage.unwrap_or(scraped.kv_cache_usage);
                let (age, waiting) = (now.since(at), report.waiting);
                (EngineSignals { age, running, waiting, kv_cache_usage, ..scraped }, own)
            }
        };
        (signals.age <= limits.scrape_interval * MAX_AGE).then_some((signals, own))
    }

    /// Work of others there, by the newest figures.
    pub(super) fn foreign(&self, now: Stamp, limits: &EngineLimits) -> Foreign {
        self.signals(now, limits)
            .map_or_else(Foreign::default, |(signals, own)| Foreign::seen(&signals, &own))
    }
}

impl Figures {
    fn signals(&self, now: Stamp, batch_limit: Option<u64>) -> EngineSignals {
        EngineSignals {
            age: now.since(self.at),
            running: self.page.running,
            waiting: self.page.waiting,
            kv_cache_usage: self.page.kv_cache_usage,
            batch_limit: batch_limit.or(self.batch_limit.get()),
            block_tokens: self.page.block_tokens,
            total_blocks: self.page.total_blocks,
        }
    }
}

/// Scrape intervals after which figures are absent rather than stale.
pub const MAX_AGE: u32 = 10;
/// Scrape intervals after which a page is overdue, jitter and a slow answer included.
const OVERDUE: f64 = 1.5;
