//! Requests that ask for a pool.
//!
//! They are counted when they first do, those that are refused later included: what was not served is demand as well.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::request::dialect::Computes;
use crate::routing::{MeanRequest, Work};
use crate::units::AtomicF64;

/// Requests that asked for a pool, since it was opened, and the mean of the last ones that were placed.
#[derive(Debug, Default)]
pub struct Arrivals {
    count: AtomicU64,
    placed: AtomicU64,
    /// Of uncached prompts.
    tokens: AtomicF64,
    attention: AtomicF64,
    /// Share of those without an answer that is decoded.
    prompts: AtomicF64,
}

impl Arrivals {
    /// A request asks for the pool for the first time.
    pub fn note(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// A request was placed with so much to compute. Concurrent calls may lose an observation, which a mean can spare.
    pub fn placed(&self, work: &Work, computes: Computes) {
        let weight = (1.0 / (self.placed.fetch_add(1, Ordering::Relaxed) + 1) as f64).max(LEARNED);
        let is_prompt = computes == Computes::Prompt;
        let seen = [work.tokens as f64, work.attention as f64, f64::from(u8::from(is_prompt))];
        for (cell, seen) in [&self.tokens, &self.attention, &self.prompts].into_iter().zip(seen) {
            let mean = cell.load();
            cell.store(mean + weight * (seen - mean));
        }
    }

    /// How many have asked.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// One of those that were placed.
    pub fn mean(&self) -> MeanRequest {
        MeanRequest {
            work: Work { tokens: self.tokens.load() as u64, attention: self.attention.load() as u64 },
            prompts: self.prompts.load(),
        }
    }
}

/// Weight of one request in the mean.
const LEARNED: f64 = 1.0 / 128.0;
