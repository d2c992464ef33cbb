//! The default engine of replays: a 32B model on two H100, as vLLM runs it.
//!
//! Coefficients: 15,928 prompt tokens a second (llm-d's calibration of Qwen3-32B, tensor parallel over two H100, chunks of
//! 8192); 64 layers of attention at some 1.5 PFLOP/s; a step that reads the weights in 13 ms; 262 kB of KV for each
//! token of context at the two memories' 6.7 TB/s. They are a reference, not one machine;
//! [`fit`](super::fit) derives an engine from a real one.

use std::time::Duration;

use crate::engine::{CostModel, EngineConfig};

use super::trace::BLOCK_TOKENS;

/// A 32B model on two H100: the engine of the published tables.
#[must_use]
pub fn qwen_32b_on_two_h100() -> EngineConfig {
    EngineConfig {
        max_num_seqs: 256,
        max_batched_tokens: 8_192,
        cost: CostModel {
            step: Duration::from_millis(13),
            step_per_seq: Duration::from_micros(50),
            prefill_tokens_per_second: 15_928.0,
            attention_seconds: 1.2e-9,
            context_seconds: 4e-8,
            jitter: 0.0,
        },
        admits_whole_prompts: true,
        // The granularity of traces.
        block_size: BLOCK_TOKENS,
        num_blocks: KV_TOKENS / BLOCK_TOKENS,
    }
}

const KV_TOKENS: u64 = 800_000;
