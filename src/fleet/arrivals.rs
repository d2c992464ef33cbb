//! Requests that ask for a pool.
//!
//! They are counted when they first do, those that are refused later included: what was not served is demand as well.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::routing::Work;
use crate::units::AtomicF64;

/// Requests that asked for a pool, since it was opened, and the mean work of those that were placed of late.
#[derive(Debug, Default)]
pub struct Arrivals {
    count: AtomicU64,
    placed: AtomicU64,
    /// Of uncached prompts.
    tokens: AtomicF64,
    attention: AtomicF64,
}

impl Arrivals {
    /// A request asks for the pool for the first time.
    pub fn note(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// A request was placed with so much to compute. Concurrent calls may lose an observation, which a mean can spare.
    pub fn placed(&self, work: &Work) {
        let weight = (1.0 / (self.placed.fetch_add(1, Ordering::Relaxed) + 1) as f64).max(LEARNED);
        for (cell, seen) in [(&self.tokens, work.tokens), (&self.attention, work.attention)] {
            let mean = cell.load();
            cell.store(mean + weight * (seen as f64 - mean));
        }
    }

    /// How many have asked.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Work of one of them.
    pub fn mean_work(&self) -> Work {
        Work { tokens: self.tokens.load() as u64, attention: self.attention.load() as u64 }
    }
}

/// Weight of one request in the mean.
const LEARNED: f64 = 1.0 / 128.0;
