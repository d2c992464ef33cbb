//! The least request that an engine answers, by what it serves: of probes, and of the warm-up.

use serde_json::{Value, json};

use crate::config::ProbeKind;

/// Path and body for an engine that answers probes of this kind, `more` in the body of a generation; `None` for one that answers only
/// `/health`.
pub(super) fn least(
    kind: ProbeKind,
    model: &str,
    prompt: &str,
    more: &Value,
) -> Option<(&'static str, Value)> {
    let (path, mut body) = match kind {
        ProbeKind::Health => return None,
        ProbeKind::Embedding => ("/v1/embeddings", json!({ "input": prompt })),
        ProbeKind::Rerank => ("/rerank", json!({ "query": prompt, "documents": [prompt] })),
        ProbeKind::Chat => {
            ("/v1/chat/completions", json!({ "messages": [{ "role": "user", "content": prompt }] }))
        }
        ProbeKind::Completion | ProbeKind::Auto => ("/v1/completions", json!({ "prompt": prompt })),
    };
    body["model"] = model.into();
    if !matches!(kind, ProbeKind::Embedding | ProbeKind::Rerank)
        && let (Some(body), Some(more)) = (body.as_object_mut(), more.as_object())
    {
        body.extend(more.clone());
    }
    Some((path, body))
}
