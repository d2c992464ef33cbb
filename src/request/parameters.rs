//! What changes an engine's work for a prompt: the members of a body that vLLM and SGLang compute by.
//!
//! A request that is sent again has the same ones, whatever it is called the second time. What names a request or its sender, gives it a
//! place in line, seeds its dice or shapes its stream is none.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::request::json::Raw;

/// A number for a member that an engine computes by, 0 for any other. Those of a body are added up: their order is nothing.
pub(super) fn parameter(name: &str, value: Raw<'_>) -> u64 {
    match (PARAMETERS.binary_search(&name), value.non_null()) {
        (Ok(_), Some(value)) => xxh3_64_with_seed(value.text().as_bytes(), xxh3_64(name.as_bytes())),
        _ => 0,
    }
}

/// In the order of the alphabet.
const PARAMETERS: [&str; 69] = [
    "activation", "add_generation_prompt", "add_special_tokens", "allowed_token_ids", "bad_words", "best_of",
    "chat_template", "chat_template_kwargs", "continue_final_message", "dimensions", "ebnf", "echo",
    "encoding_format", "frequency_penalty", "guided_choice", "guided_decoding_backend", "guided_grammar",
    "guided_json", "guided_regex", "guided_whitespace_pattern", "ignore_eos", "include_reasoning",
    "include_stop_str_in_output", "json_schema", "length_penalty", "logit_bias", "logits_processors",
    "logprobs", "max_completion_tokens", "max_output_tokens", "max_tokens", "media_io_kwargs", "min_p",
    "min_tokens", "mm_processor_kwargs", "n", "normalize", "parallel_tool_calls", "presence_penalty",
    "prompt_logprobs", "reasoning", "reasoning_effort", "regex", "repetition_penalty", "response_format",
    "return_token_ids", "return_tokens_as_token_ids", "separate_reasoning", "skip_special_tokens", "softmax",
    "spaces_between_special_tokens", "stop", "stop_sequences", "stop_token_ids", "structured_outputs",
    "suffix", "task", "temperature", "text", "thinking", "tool_choice", "top_k", "top_logprobs", "top_n",
    "top_p", "truncate_prompt_tokens", "truncation", "use_beam_search", "vllm_xargs",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_found() {
        assert!(PARAMETERS.is_sorted_by(|one, next| one < next));
    }
}
