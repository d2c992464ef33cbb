//! What is true inside an engine now: gauges, as a real one exports them, and what only an oracle can know.

use crate::time::Stamp;

use super::Engine;

/// What a router scrapes from `/metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gauges {
    /// Sequences in the batch.
    pub running: usize,
    /// Sequences that wait for a slot or for blocks.
    pub waiting: usize,
    /// Share of KV blocks in use, 0 to 1.
    pub kv_cache_usage: f64,
    /// `max_num_seqs`.
    pub batch_limit: usize,
    /// Tokens in a KV block.
    pub block_size: u64,
    /// KV blocks.
    pub num_blocks: u64,
}

/// A sequence that is not finished.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pending {
    /// Whether it is in the batch.
    pub is_running: bool,
    /// Tokens whose KV is computed; while it waits, those that the cache would give it now.
    pub computed: u64,
    /// Prompt tokens.
    pub prompt: u64,
    /// Output tokens, those to come included.
    pub output: u64,
    /// Output tokens that have left the engine.
    pub emitted: u64,
    /// When it was submitted.
    pub submitted: Stamp,
}

impl Pending {
    /// Prompt tokens still to compute.
    #[must_use]
    pub fn uncomputed(&self) -> u64 {
        self.prompt.saturating_sub(self.computed)
    }
}

impl Engine {
    /// The gauges now; cheaper than [`Engine::stats`], which copies histograms.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        Gauges {
            running: self.running.len(),
            waiting: self.waiting.len(),
            kv_cache_usage: self.cache.usage(),
            batch_limit: self.config.max_num_seqs,
            block_size: self.config.block_size,
            num_blocks: self.config.num_blocks,
        }
    }

    /// Prompt tokens that a job with this chain and prompt length would find in the cache now.
    #[must_use]
    pub fn cached_prefix(&self, chain: &[u64], prompt: u64) -> u64 {
        let findable = (prompt.saturating_sub(1) / self.config.block_size) as usize;
        let head = &chain[..findable.min(chain.len())];
        self.cache.lookup(head) as u64 * self.config.block_size
    }

    /// Unfinished sequences in scheduling order.
    pub fn pending(&self) -> impl Iterator<Item = Pending> + '_ {
        let running = self.running.iter().map(|s| (true, s.computed, s));
        let waiting = self.waiting.iter().map(|s| (false, self.cached_prefix(&s.chain, s.target()), s));
        running.chain(waiting).map(|(is_running, computed, s)| Pending {
            is_running,
            computed,
            prompt: s.prompt,
            output: s.output,
            emitted: s.emitted,
            submitted: s.submitted,
        })
    }

    /// Factor on every step's time; 1 unless [`Engine::set_slowdown`] changed it.
    #[must_use]
    pub fn slowdown(&self) -> f64 {
        self.slowdown
    }
}
