//! Embeddings, rerank, score, classify and pooling: plausible values at the cost of a prefill.
//!
//! A real vLLM serves either these or chat; the simulator serves both, so that one fleet tries every path.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::api::Api;
use crate::engine::Work;
use crate::server::replica::Replica;

use super::error::ApiError;
use super::prompt::{self, Prompt};
use super::{Reply, ask};

pub(super) async fn serve(
    replica: &Arc<Replica>,
    api: Api,
    body: &Map<String, Value>,
    request_id: &str,
) -> Result<Reply, ApiError> {
    let model = ask::model(body, &replica.config)?;
    let inputs = inputs(api, body)?;
    ask::context(&inputs, &replica.config)?;
    compute(replica, &inputs).await?;
    let tokens: usize = inputs.iter().map(|p| p.tokens.len()).sum();
    let (prefix, row): (&str, fn(usize, &Prompt) -> Value) = match api {
        Api::Rerank => {
            return Ok(Reply::Json(rerank(request_id, &model, &inputs, tokens).to_string()));
        }
        Api::Score => ("score", |index, p| json!({"index": index, "object": "score", "score": unit(p, 0)})),
        Api::Classify => ("classify", class),
        Api::Pooling => ("pool", |index, p| json!({"index": index, "object": "pooling", "data": vector(p)})),
        _ => ("embd", |index, p| json!({"index": index, "object": "embedding", "embedding": vector(p)})),
    };
    let data: Vec<Value> = inputs.iter().enumerate().map(|(index, p)| row(index, p)).collect();
    let reply = list(&format!("{prefix}-{request_id}"), &model, &data, replica.unix_time(), tokens);
    Ok(Reply::Json(reply.to_string()))
}

/// The texts to compute: pairs count as one text each.
fn inputs(api: Api, body: &Map<String, Value>) -> Result<Vec<Prompt>, ApiError> {
    let (first, second) = match api {
        Api::Rerank => ("query", Some("documents")),
        Api::Score => ("text_1", Some("text_2")),
        _ => ("input", None),
    };
    let left = texts(body, first)?;
    let Some(second) = second else { return Ok(left) };
    let right = texts(body, second)?;
    let query = left.first().cloned().unwrap_or_default();
    Ok(right
        .into_iter()
        .map(|p| Prompt { tokens: [query.tokens.as_slice(), &p.tokens].concat(), text: p.text, continued: 0 })
        .collect())
}

fn texts(body: &Map<String, Value>, field: &str) -> Result<Vec<Prompt>, ApiError> {
    let value = body.get(field).ok_or_else(|| ApiError::missing(field, body.len()))?;
    if let Some(single) = prompt::one(value) {
        return Ok(vec![single]);
    }
    let many = value.as_array().map(|items| items.iter().filter_map(prompt::one).collect::<Vec<_>>());
    many.filter(|all| !all.is_empty()).ok_or_else(|| {
        let message = format!("{field} must be a text or a list of texts. (parameter={field})");
        ApiError::bad_request(message, field)
    })
}

/// A prefill and nothing after it.
async fn compute(replica: &Arc<Replica>, inputs: &[Prompt]) -> Result<(), ApiError> {
    let block_size = replica.config.engine.block_size;
    let job = |p: &Prompt| Work::of(&[&p.tokens[..], &[0]].concat(), p.tokens.len(), 0, block_size);
    let mut submission = replica
        .driver
        .submit(inputs.iter().map(job).collect())
        .map_err(|unservable| ApiError::internal(&unservable.to_string()))?;
    for _ in inputs {
        if submission.events.recv().await.is_none() {
            return Err(ApiError::engine_dead());
        }
    }
    Ok(())
}

fn list(id: &str, model: &str, data: &[Value], created: u64, tokens: usize) -> Value {
    json!({
        "id": id, "object": "list", "created": created, "model": model, "data": data,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0,
                  "prompt_tokens_details": null},
    })
}

fn rerank(request_id: &str, model: &str, inputs: &[Prompt], tokens: usize) -> Value {
    let mut results: Vec<(usize, f64)> =
        inputs.iter().enumerate().map(|(index, p)| (index, unit(p, 0))).collect();
    results.sort_by(|a, b| b.1.total_cmp(&a.1));
    let results: Vec<Value> = results
        .into_iter()
        .map(|(index, score)| {
            let text = inputs.get(index).map_or("", |p| p.text.as_str());
            json!({"index": index, "document": {"text": text, "multi_modal": null}, "relevance_score": score})
        })
        .collect();
    json!({
        "id": format!("rerank-{request_id}"), "model": model, "results": results,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    })
}

fn class(index: usize, input: &Prompt) -> Value {
    let first = unit(input, 0);
    let label = if first < 0.5 { "LABEL_1" } else { "LABEL_0" };
    json!({"index": index, "label": label, "probs": [first, 1.0 - first], "num_classes": 2})
}

/// A unit vector that the text determines.
fn vector(input: &Prompt) -> Vec<f64> {
    let raw: Vec<f64> = (0..DIMENSIONS).map(|n| unit(input, n) - 0.5).collect();
    let norm = raw.iter().map(|x| x * x).sum::<f64>().sqrt().max(f64::MIN_POSITIVE);
    raw.into_iter().map(|x| x / norm).collect()
}

/// A number in [0, 1) that text and seed determine.
fn unit(input: &Prompt, seed: u64) -> f64 {
    let bytes: Vec<u8> = input.tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
    (xxh3_64_with_seed(&bytes, seed) >> 11) as f64 / (1u64 << 53) as f64
}

const DIMENSIONS: u64 = 32;
