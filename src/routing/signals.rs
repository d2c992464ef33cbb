//! What an engine reports of itself: the input of routing that is not our own count.

use std::time::Duration;

/// The engine's own figures, from its `/metrics`, with their age.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineSignals {
    /// Age of these values.
    pub age: Duration,
    /// `vllm:num_requests_running`, summed over engines.
    pub running: f64,
    /// `vllm:num_requests_waiting`, summed over engines.
    pub waiting: f64,
    /// `vllm:kv_cache_usage_perc`, the largest over engines, 0 to 1.
    pub kv_cache_usage: f64,
    /// `max_num_seqs` of the configuration, or what the engine was seen not to exceed.
    pub batch_limit: Option<u64>,
    /// Tokens in a KV block, of `vllm:cache_config_info`.
    pub block_tokens: Option<u64>,
    /// KV blocks of the engine, of `vllm:cache_config_info`.
    pub total_blocks: Option<u64>,
}
