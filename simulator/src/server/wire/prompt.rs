//! The tokens of a request's prompt, in place of chat template and tokenizer.
//!
//! Tools come first, then the messages in order, each opened by its role and tokenized by itself, then the role
//! of the answer: so the prompt of one turn, with its answer, is a prefix of the next turn's prompt.

use serde_json::{Map, Value};

use super::api::Api;
use crate::server::tokens;

use super::error::ApiError;

#[derive(Clone, Debug, Default)]
pub(super) struct Prompt {
    pub(super) tokens: Vec<u32>,
    /// What `echo` repeats.
    pub(super) text: String,
    /// Tokens at its end that begin the answer (`continue_final_message`).
    pub(super) continued: usize,
}

/// The prompts of a generating request: one, but for a batch of completions.
pub(super) fn prompts(api: Api, body: &Map<String, Value>) -> Result<Vec<Prompt>, ApiError> {
    match api {
        Api::Completions => completion_prompts(body),
        Api::Responses => {
            let input = body.get("input").ok_or_else(|| ApiError::missing("input", body.len()))?;
            Ok(vec![conversation(body, body.get("instructions"), input)])
        }
        Api::Messages | Api::CountTokens => Ok(vec![conversation(body, body.get("system"), messages(body)?)]),
        _ => Ok(vec![conversation(body, None, messages(body)?)]),
    }
}

fn messages(body: &Map<String, Value>) -> Result<&Value, ApiError> {
    let messages = body.get("messages").ok_or_else(|| ApiError::missing("messages", body.len()))?;
    if messages.as_array().is_some_and(|all| all.iter().all(Value::is_object)) {
        return Ok(messages);
    }
    let detail = "{'type': 'list_type', 'loc': 'body.messages', 'msg': 'Input should be a valid list'}";
    Err(ApiError::schema(detail, Some("body.messages".into())))
}

fn conversation(body: &Map<String, Value>, system: Option<&Value>, turns: &Value) -> Prompt {
    let mut out = Vec::new();
    if let Some(tools) = body.get("tools").filter(|tools| !tools.is_null()) {
        message("tools", &tools.to_string(), &mut out);
    }
    if let Some(system) = system.filter(|system| !system.is_null()) {
        message("system", &flat(system), &mut out);
    }
    match turns {
        Value::Array(turns) => {
            for turn in turns {
                let role = turn.get("role").and_then(Value::as_str).unwrap_or("user");
                let mut text = turn.get("content").map_or_else(String::new, flat);
                if let Some(calls) = turn.get("tool_calls").filter(|calls| !calls.is_null()) {
                    text.push_str(&calls.to_string());
                }
                message(role, &text, &mut out);
            }
        }
        text => message("user", &flat(text), &mut out),
    }
    if body.get("continue_final_message").and_then(Value::as_bool) == Some(true) {
        let begun = out.iter().rev().take_while(|token| !tokens::is_role(**token)).count();
        return Prompt { tokens: out, text: String::new(), continued: begun };
    }
    out.push(tokens::role("assistant"));
    Prompt { tokens: out, ..Prompt::default() }
}

fn message(role: &str, text: &str, out: &mut Vec<u32>) {
    out.push(tokens::role(role));
    tokens::encode(text, out);
}

/// The text of a content value: a string, or parts of which the ones that are not text count as their JSON.
fn flat(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        Value::Array(parts) => parts.iter().map(flat).collect(),
        Value::Object(part) => match part.get("text").and_then(Value::as_str) {
            Some(text) => text.to_owned(),
            None => content.to_string(),
        },
        other => other.to_string(),
    }
}

/// A string, token ids, or a list of either.
fn completion_prompts(body: &Map<String, Value>) -> Result<Vec<Prompt>, ApiError> {
    let prompts = match body.get("prompt") {
        Some(Value::Array(items)) if items.iter().all(Value::is_u64) => vec![ids(items)],
        Some(Value::Array(items)) => items.iter().filter_map(one).collect(),
        Some(single) => one(single).into_iter().collect(),
        None => Vec::new(),
    };
    if prompts.is_empty() || prompts.iter().any(|p| p.tokens.is_empty()) {
        let message = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)";
        return Err(ApiError::bad_request(message, "prompt"));
    }
    Ok(prompts)
}

/// One prompt: a string, or its token ids.
pub(super) fn one(value: &Value) -> Option<Prompt> {
    match value {
        Value::String(text) => {
            let mut out = Vec::new();
            tokens::encode(text, &mut out);
            Some(Prompt { tokens: out, text: text.clone(), continued: 0 })
        }
        Value::Array(items) if items.iter().all(Value::is_u64) => Some(ids(items)),
        _ => None,
    }
}

fn ids(items: &[Value]) -> Prompt {
    let tokens: Vec<u32> =
        items.iter().filter_map(Value::as_u64).map(|id| u32::try_from(id).unwrap_or(u32::MAX)).collect();
    let text = tokens::decode(&tokens);
    Prompt { tokens, text, continued: 0 }
}
