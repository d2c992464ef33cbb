//! Configuration of a simulated replica.

use std::time::Duration;

use crate::engine::EngineConfig;
use crate::kv_transfer::KvTransfer;

/// Model, engine and limits of a replica.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Name of the served model.
    pub model: String,
    /// LoRA adapters: served under their own names, each with a prefix cache identity of its own.
    pub adapters: Vec<String>,
    /// Seed of the texts and of every random choice.
    pub seed: u64,
    /// The engine's speed and size.
    pub engine: EngineConfig,
    /// Longest context; never above what the KV cache holds.
    pub max_model_len: u64,
    /// Running and waiting requests above which a new one gets 503 (`--max-num-queued-reqs`).
    pub max_queued_requests: Option<usize>,
    /// Bearer key required on `/v1` paths (`--api-key`).
    pub api_key: Option<String>,
    /// Idle connections are closed after this; uvicorn's default is 5 s.
    pub keep_alive: Duration,
    /// How long KV takes from another replica.
    pub kv_transfer: KvTransfer,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            model: "sim".into(),
            adapters: Vec::new(),
            seed: 1,
            engine: EngineConfig::default(),
            max_model_len: 32_768,
            max_queued_requests: None,
            api_key: None,
            keep_alive: Duration::from_secs(5),
            kv_transfer: KvTransfer::default(),
        }
    }
}

impl SimConfig {
    /// The longest context that can be served.
    #[must_use]
    pub fn context_length(&self) -> u64 {
        self.max_model_len.min(self.engine.num_blocks.saturating_mul(self.engine.block_size))
    }
}
