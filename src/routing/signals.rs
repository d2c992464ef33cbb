//! What an engine reports of itself: the input of routing that is not our own count.

use std::time::Duration;

/// The engine's own figures, from its metrics page, with their age. What the page does not tell is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineSignals {
    /// Age of these values.
    pub age: Duration,
    /// Running requests, over all engines of the URL.
    pub running: Option<f64>,
    /// Waiting requests, over all engines of the URL.
    pub waiting: Option<f64>,
    /// Share of the KV cache that running requests hold, 0 to 1, the mean over the engines of the URL.
    pub kv_cache_usage: Option<f64>,
    /// Of the configuration, of the page, or what the engine was seen not to exceed.
    pub batch_limit: Option<u64>,
    /// Tokens in a KV block.
    pub block_tokens: Option<u64>,
    /// KV blocks of the engine.
    pub total_blocks: Option<u64>,
}
