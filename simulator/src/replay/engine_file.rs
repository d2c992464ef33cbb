//! An engine model as a JSON file: what `tokenway replay --fit` writes and `--engine` reads.
//!
//! Seconds and tokens; every field is optional over the default engine; unknown fields and impossible values are refused
//! by name.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::engine::EngineConfig;

/// What an engine file overrides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineFile {
    /// Sequences in the batch at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_num_seqs: Option<usize>,
    /// Tokens of one step at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_batched_tokens: Option<u64>,
    /// Tokens that fit into the KV cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_tokens: Option<u64>,
    /// Seconds of an empty step.
    pub step_s: Option<f64>,
    /// Seconds that each sequence adds to a step.
    pub step_per_seq_s: Option<f64>,
    /// Seconds for each prompt token.
    pub prompt_token_s: Option<f64>,
    /// Seconds for each pair of a prompt token and a token before it.
    pub attention_pair_s: Option<f64>,
    /// Seconds for each token of context that a decoding sequence reads.
    pub context_token_s: Option<f64>,
    /// Share by which step times vary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<f64>,
}

/// A file that is no engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineFileError {
    /// It is not JSON, or has other fields.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A value that no engine has.
    #[error("{field} is {value}, which no engine has")]
    Value {
        /// The field's key.
        field: &'static str,
        /// The value as a number.
        value: f64,
    },
}

impl EngineFile {
    /// Reads the file's text.
    ///
    /// # Errors
    /// It is not JSON, has unknown fields or impossible values.
    pub fn read(text: &str) -> Result<Self, EngineFileError> {
        let file: Self = serde_json::from_str(text)?;
        for (field, value, is_zero_allowed) in [
            ("max_num_seqs", file.max_num_seqs.map(|n| n as f64), false),
            ("max_batched_tokens", file.max_batched_tokens.map(|n| n as f64), false),
            ("kv_tokens", file.kv_tokens.map(|n| n as f64), false),
            ("step_s", file.step_s, false),
            ("step_per_seq_s", file.step_per_seq_s, true),
            ("prompt_token_s", file.prompt_token_s, false),
            ("attention_pair_s", file.attention_pair_s, true),
            ("context_token_s", file.context_token_s, true),
            ("jitter", file.jitter, true),
        ] {
            let Some(value) = value else { continue };
            let is_possible = value.is_finite() && value >= 0.0 && (is_zero_allowed || value > 0.0);
            // A step of hours is a wrong unit, and would overflow times.
            if !is_possible || field.ends_with("_s") && value > MAX_SECONDS {
                return Err(EngineFileError::Value { field, value });
            }
        }
        Ok(file)
    }

    /// The limits that the file leaves open, with those of `engine`, which are taken then: a recording does not have them.
    #[must_use]
    pub fn open_limits(&self, engine: &EngineConfig) -> Vec<(&'static str, u64)> {
        [
            ("max_num_seqs", self.max_num_seqs.is_none(), engine.max_num_seqs as u64),
            ("max_batched_tokens", self.max_batched_tokens.is_none(), engine.max_batched_tokens),
            ("kv_tokens", self.kv_tokens.is_none(), engine.num_blocks * engine.block_size),
        ]
        .into_iter()
        .filter(|(_, is_open, _)| *is_open)
        .map(|(name, _, value)| (name, value))
        .collect()
    }

    /// `engine` with the file's values.
    #[must_use]
    pub fn over(&self, mut engine: EngineConfig) -> EngineConfig {
        let cost = &mut engine.cost;
        let span = |seconds: Option<f64>, default| seconds.map_or(default, Duration::from_secs_f64);
        cost.step = span(self.step_s, cost.step);
        cost.step_per_seq = span(self.step_per_seq_s, cost.step_per_seq);
        cost.prefill_tokens_per_second =
            self.prompt_token_s.map_or(cost.prefill_tokens_per_second, f64::recip);
        cost.attention_seconds = self.attention_pair_s.unwrap_or(cost.attention_seconds);
        cost.context_seconds = self.context_token_s.unwrap_or(cost.context_seconds);
        cost.jitter = self.jitter.unwrap_or(cost.jitter).min(1.0);
        engine.max_num_seqs = self.max_num_seqs.unwrap_or(engine.max_num_seqs);
        // A step must have room for one token of every running sequence.
        let tokens = self.max_batched_tokens.unwrap_or(engine.max_batched_tokens);
        engine.max_batched_tokens = tokens.max(engine.max_num_seqs as u64);
        if let Some(tokens) = self.kv_tokens {
            engine.num_blocks = (tokens / engine.block_size).max(1);
        }
        engine
    }
}

/// Seconds.
const MAX_SECONDS: f64 = 60.0;

#[cfg(test)]
mod tests {
    use super::super::qwen_32b_on_two_h100;
    use super::*;

    #[test]
    fn says_only_what_differs() {
        let default = qwen_32b_on_two_h100();
        assert_eq!(EngineFile::read("{}").unwrap().over(default.clone()), default);
        let file = EngineFile::read("{\"step_s\": 0.02, \"prompt_token_s\": 0.001, \"kv_tokens\": 5120}");
        let engine = file.unwrap().over(default.clone());
        assert_eq!((engine.cost.step.as_millis(), engine.num_blocks), (20, 10));
        assert_eq!(engine.cost.prefill_tokens_per_second, 1_000.0);
        assert_eq!(engine.cost.context_seconds, default.cost.context_seconds);
        let open = EngineFile { max_num_seqs: Some(32), ..EngineFile::default() }.open_limits(&default);
        assert_eq!(open, [("max_batched_tokens", 8192), ("kv_tokens", 799_744)]);
    }

    #[test]
    fn what_no_engine_has_is_refused() {
        for (text, said) in [
            ("{\"stepp_s\": 1}", "unknown field"),
            ("{\"step_s\": -1}", "step_s is -1"),
            ("{\"step_s\": 1e9}", "step_s"),
            ("{\"kv_tokens\": 0}", "kv_tokens is 0"),
            ("7", "invalid type"),
        ] {
            let error = EngineFile::read(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
