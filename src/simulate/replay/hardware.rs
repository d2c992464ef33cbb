//! The engine that replays are run on unless another is asked for: a 32B model on two H100, as vLLM runs it.
//!
//! The prices follow from published facts: some 15.9 thousand prompt tokens a second in chunks of 8192 from an empty
//! context (llm-d's calibration of Qwen-32B, tensor parallel over two H100), of which the model's 64 layers of attention
//! have their share; a decode step that reads the weights in 13 ms; fp8 KV read at the memory's speed.

use std::time::Duration;

use crate::simulate::engine::{CostModel, EngineConfig};

use super::trace::BLOCK_TOKENS;

/// A 32B model on two H100.
#[must_use]
pub fn qwen_32b_on_two_h100() -> EngineConfig {
    EngineConfig {
        max_num_seqs: 256,
        max_batched_tokens: 8_192,
        cost: CostModel {
            step: Duration::from_millis(13),
            step_per_seq: Duration::from_micros(20),
            prefill_tokens_per_second: 17_900.0,
            attention_seconds: 1.3e-9,
            context_seconds: 2.5e-8,
            jitter: 0.0,
        },
        admits_whole_prompts: true,
        // As fine as traces tell prompts apart.
        block_size: BLOCK_TOKENS,
        num_blocks: KV_TOKENS / BLOCK_TOKENS,
    }
}

const KV_TOKENS: u64 = 800_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_chunk_is_computed_at_the_published_rate() {
        let cost = qwen_32b_on_two_h100().cost;
        let seconds = cost.step.as_secs_f64() + cost.prefill_seconds(0, 8_192);
        let rate = 8_192.0 / seconds;
        assert!((15_700.0..16_100.0).contains(&rate), "{rate}");
    }
}
