//! What is true inside an engine at this moment: for gauges that are read often, and for an oracle.
//!
//! Nobody outside a real engine can see most of this. It changes nothing and is no part of the model.

use crate::clock::Stamp;
use crate::units::Tokens;

use super::Engine;

/// The gauges that a gateway scrapes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gauges {
    /// Sequences in the batch.
    pub running: usize,
    /// Sequences that wait.
    pub waiting: usize,
    /// Share of KV blocks in use, 0 to 1.
    pub kv_cache_usage: f64,
}

/// A sequence that is not finished.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pending {
    /// Whether it is in the batch.
    pub is_running: bool,
    /// Tokens whose KV is computed; for one that waits, those that the cache would give it now.
    pub computed: u64,
    /// Prompt tokens.
    pub prompt: u64,
    /// Output tokens, those to come included.
    pub output: u64,
    /// Output tokens that have left.
    pub emitted: u64,
    /// When it was submitted.
    pub submitted: Stamp,
}

impl Pending {
    /// Prompt tokens that are still to be computed.
    #[must_use]
    pub fn uncomputed(&self) -> u64 {
        self.prompt.saturating_sub(self.computed)
    }
}

impl Engine {
    /// The gauges now, without the histograms of [`Engine::stats`].
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        Gauges {
            running: self.running.len(),
            waiting: self.waiting.len(),
            kv_cache_usage: self.cache.usage(),
        }
    }

    /// Prompt tokens that a job with this chain and prompt length would find in the cache now.
    #[must_use]
    pub fn cached_prefix(&self, chain: &[u64], prompt: Tokens) -> Tokens {
        let findable = (prompt.0.saturating_sub(1) / self.config.block_size) as usize;
        let head = &chain[..findable.min(chain.len())];
        Tokens(self.cache.lookup(head) as u64 * self.config.block_size)
    }

    /// Everything that is not finished, in the order in which it is scheduled.
    pub fn pending(&self) -> impl Iterator<Item = Pending> + '_ {
        let running = self.running.iter().map(|s| (true, s.computed, s));
        let waiting =
            self.waiting.iter().map(|s| (false, self.cached_prefix(&s.chain, Tokens(s.target())).0, s));
        running.chain(waiting).map(|(is_running, computed, s)| Pending {
            is_running,
            computed,
            prompt: s.prompt,
            output: s.output,
            emitted: s.emitted,
            submitted: s.submitted,
        })
    }

    /// By what every step is slower than the model says.
    #[must_use]
    pub fn slowdown(&self) -> f64 {
        self.slowdown
    }
}
