//! Whether the body of a successful probe is an engine's answer. Pure.
//!
//! Whatever listens at an address may say 200: a proxy's page, another service, an engine that reports an error. So the answer
//! must have what was asked for: a choice, a vector or a score.

use serde_json::Value;

use crate::config::ProbeKind;

/// What is wrong with the body of a 2xx to a probe; `None` for an answer.
pub(super) fn fault(kind: ProbeKind, body: &[u8]) -> Option<&'static str> {
    if kind == ProbeKind::Health {
        return None;
    }
    if body.is_empty() {
        return Some("an empty body");
    }
    let Ok(answer) = serde_json::from_slice::<Value>(body) else { return Some("a body that is no JSON") };
    if answer.get("error").is_some_and(|error| !error.is_null()) {
        return Some("an error object");
    }
    let first = |key: &str| answer.get(key)?.as_array()?.first();
    match kind {
        ProbeKind::Embedding => {
            let vector = first("data").and_then(|item| item.get("embedding"));
            let has_content = match vector {
                Some(Value::Array(numbers)) => numbers.first().is_some_and(Value::is_number),
                Some(Value::String(base64)) => !base64.is_empty(),
                _ => false,
            };
            (!has_content).then_some("no embedding")
        }
        ProbeKind::Rerank => {
            // Some engines answer with the bare list.
            let score = first("results").or_else(|| answer.as_array()?.first());
            let is_scored = score.and_then(|item| item.get("relevance_score").or_else(|| item.get("score")));
            (!is_scored.is_some_and(Value::is_number)).then_some("no score")
        }
        _ => (!first("choices").is_some_and(Value::is_object)).then_some("no choices"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_asked_for_is_an_answer() {
        use ProbeKind::{Completion, Embedding, Health, Rerank};
        let completion =
            r#"{"id":"c","choices":[{"index":0,"text":"","finish_reason":"length"}],"error":null}"#;
        for (kind, body, expected) in [
            (Completion, completion, None),
            (Completion, "<html>welcome</html>", Some("a body that is no JSON")),
            (Completion, &completion[..30], Some("a body that is no JSON")),
            (Completion, "", Some("an empty body")),
            (Completion, r#"{"error":{"message":"m"}}"#, Some("an error object")),
            (Completion, r#"{"status":"ok"}"#, Some("no choices")),
            (Completion, r#"{"choices":[]}"#, Some("no choices")),
            (Embedding, r#"{"data":[{"embedding":[0.5,-1]}]}"#, None),
            (Embedding, r#"{"data":[{"embedding":"AAA="}]}"#, None),
            (Embedding, r#"{"data":[{"embedding":[]}]}"#, Some("no embedding")),
            (Embedding, completion, Some("no embedding")),
            (Rerank, r#"{"results":[{"index":0,"relevance_score":0.9}]}"#, None),
            (Rerank, r#"[{"index":0,"score":0.9}]"#, None),
            (Rerank, r#"{"results":[]}"#, Some("no score")),
            (Rerank, "{}", Some("no score")),
            (Health, "", None),
        ] {
            assert_eq!(fault(kind, body.as_bytes()), expected, "{kind:?} {body}");
        }
    }
}
