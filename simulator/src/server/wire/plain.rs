//! The endpoints that need no engine: models, version, tokenizer.

use serde_json::{Map, Value};

use super::api::Api;
use crate::server::config::SimConfig;
use crate::server::tokens;

use super::error::ApiError;
use super::generation::quote;
use super::{ask, prompt};

/// `/v1/models`
pub(super) fn models(config: &SimConfig, created: u64) -> String {
    let base = model(&config.model, None, config, created);
    let adapters = config.adapters.iter().map(|name| model(name, Some(&config.model), config, created));
    let data: Vec<String> = std::iter::once(base).chain(adapters).collect();
    format!(r#"{{"object":"list","data":[{}]}}"#, data.join(","))
}

fn model(name: &str, parent: Option<&str>, config: &SimConfig, created: u64) -> String {
    let length = if parent.is_none() { config.context_length().to_string() } else { "null".into() };
    format!(
        "{{\"id\":{name},\"object\":\"model\",\"created\":{created},\"owned_by\":\"vllm\",\"root\":{name},\
         \"parent\":{},\"max_model_len\":{length},\"permission\":[{{\"id\":\"modelperm-{:016x}\",\
         \"object\":\"model_permission\",\"created\":{created},\"allow_create_engine\":false,\"allow_sampling\":true,\
         \"allow_logprobs\":true,\"allow_search_indices\":false,\"allow_view\":true,\"allow_fine_tuning\":false,\
         \"organization\":\"*\",\"group\":null,\"is_blocking\":false}}]}}",
        parent.map_or_else(|| "null".into(), quote),
        config.seed,
        name = quote(name),
    )
}

/// `/version`
pub(super) const VERSION: &str = r#"{"version":"0.32.0"}"#;

/// `/tokenize`
pub(super) fn tokenize(body: &Map<String, Value>, config: &SimConfig) -> Result<String, ApiError> {
    ask::model(body, config)?;
    let tokens = match body.get("prompt").and_then(prompt::one) {
        Some(prompt) => prompt.tokens,
        None => prompt::prompts(Api::Chat, body)?.into_iter().flat_map(|p| p.tokens).collect(),
    };
    let strings = if body.get("return_token_strs").and_then(Value::as_bool) == Some(true) {
        let strings: Vec<String> = tokens.iter().map(|token| tokens::decode(&[*token])).collect();
        serde_json::to_string(&strings).unwrap_or_default()
    } else {
        "null".into()
    };
    Ok(format!(
        r#"{{"count":{},"max_model_len":{},"tokens":{},"token_strs":{strings}}}"#,
        tokens.len(),
        config.context_length(),
        serde_json::to_string(&tokens).unwrap_or_default(),
    ))
}

/// `/detokenize`
pub(super) fn detokenize(body: &Map<String, Value>, config: &SimConfig) -> Result<String, ApiError> {
    ask::model(body, config)?;
    let tokens = body.get("tokens").ok_or_else(|| ApiError::missing("tokens", body.len()))?;
    let text = prompt::one(tokens).map(|p| p.text).unwrap_or_default();
    Ok(format!(r#"{{"prompt":{}}}"#, quote(&text)))
}

/// `/v1/messages/count_tokens`
pub(super) fn count_tokens(body: &Map<String, Value>, config: &SimConfig) -> Result<String, ApiError> {
    ask::model(body, config)?;
    let prompts = prompt::prompts(Api::CountTokens, body)?;
    let count: usize = prompts.iter().map(|p| p.tokens.len()).sum();
    Ok(format!(r#"{{"input_tokens":{count},"context_management":{{"original_input_tokens":{count}}}}}"#))
}
