//! What one replica's engine says of itself: models, adapters, counters.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arc_swap::{ArcSwap, ArcSwapOption};

use super::adapters::Adapters;
use super::gpu::GpuReading;
use super::status::EngineCounters;
use super::stream_defaults::StreamDefaults;

/// Facts of one engine; written by probes and scrapes.
#[derive(Debug, Default)]
pub struct EngineFacts {
    /// As listed by `/v1/models`.
    pub models: ArcSwap<Vec<EngineModel>>,
    /// Promised models that it does not list.
    pub(super) lacks: ArcSwap<Vec<Arc<str>>>,
    /// LoRA adapters that it is known to hold.
    pub adapters: Adapters,
    /// What it puts into a stream that asks for nothing; `None` until a probe told.
    pub stream_defaults: ArcSwapOption<StreamDefaults>,
    /// Counters of the last scrape.
    pub(super) scraped: ArcSwapOption<ScrapedCounters>,
    /// Figures that are expected of it and that its page does not have.
    pub(super) absent: ArcSwap<Vec<&'static str>>,
    /// Figures of its GPUs.
    pub(super) gpu: ArcSwapOption<GpuReading>,
    /// Start of the newest process that its page named, seconds since 1970 as bits; 0 where none is.
    pub(super) newest_process: AtomicU64,
}

/// A model as an engine lists it.
#[derive(Clone, Debug)]
pub struct EngineModel {
    pub id: Arc<str>,
    /// The whole object as the engine wrote it, for our `/v1/models`.
    pub entry: Box<str>,
    /// Where the value of its `id` stands in `entry`, quotes included.
    pub id_at: std::ops::Range<usize>,
    /// It has no `parent`: it is no adapter.
    pub is_base: bool,
}

/// Counters of one scrape.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScrapedCounters {
    pub(super) counters: EngineCounters,
    /// Start of the process, where it is told.
    pub(super) process_start: Option<f64>,
}

impl EngineFacts {
    /// Whether it lists the model.
    pub fn lists(&self, model: &str) -> bool {
        self.models.load().iter().any(|known| &*known.id == model)
    }

    /// The first model that is no adapter, else the first.
    pub(super) fn base_model(&self) -> Arc<str> {
        let models = self.models.load();
        let base = models.iter().find(|model| model.is_base).or(models.first());
        base.map_or_else(|| "".into(), |model| Arc::clone(&model.id))
    }
}
