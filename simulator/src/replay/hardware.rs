//! The stock engines of replays: a 32B model on two H100 or two A100, as vLLM runs it.
//!
//! Coefficients: 15,928 prompt tokens a second (llm-d's calibration of Qwen3-32B, tensor parallel over two H100, chunks of
//! 8192); 64 layers of attention at some 1.5 PFLOP/s; a step that reads the weights in 13 ms; 262 kB of KV for each
//! token of context at the two memories' 6.7 TB/s. The A100's are those by the ratios of their data sheets (312 to 989 TFLOPS,
//! 2.0 to 3.35 TB/s), with the chunks of 2,048 that vLLM takes on GPUs before the H100. They are a reference, not one machine;
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

/// The same model on two A100.
#[must_use]
pub fn qwen_32b_on_two_a100() -> EngineConfig {
    let h100 = qwen_32b_on_two_h100();
    EngineConfig {
        max_batched_tokens: 2_048,
        cost: CostModel {
            step: Duration::from_micros(21_800),
            step_per_seq: Duration::from_micros(160),
            prefill_tokens_per_second: 5_025.0,
            attention_seconds: 3.8e-9,
            context_seconds: 6.7e-8,
            ..h100.cost
        },
        ..h100
    }
}

const KV_TOKENS: u64 = 800_000;
