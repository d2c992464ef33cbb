//! Warm-up: what a replica is asked before it takes traffic, and while nobody else asks it.
//!
//! [`requests`] makes the list, which is pure but for the words of its prompts: nobody's cache has them. The prober sends it,
//! one request after the other, within `pool.warmup.timeout`; what fails is reported and holds nobody back.

use serde_json::{Value, json};

use super::probe_request::least;
use crate::config::{Classes, ProbeKind, WarmUp, WarmUpFeature, WarmUpLength};
use crate::request::dialect::Dialect;

/// One request of a warm-up.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct WarmUpRequest {
    /// For people: `short prompt`, `logprobs`.
    pub(super) what: &'static str,
    pub(super) path: &'static str,
    pub(super) body: String,
    /// Its prompt begins as those of clients do: it will be found cached.
    pub(super) shared_prompt: Option<Dialect>,
}

/// The requests of a warm-up, for an engine that answers probes of this kind.
pub(super) fn requests(
    config: &WarmUp,
    classes: &Classes,
    kind: ProbeKind,
    model: &str,
) -> Vec<WarmUpRequest> {
    let mut requests = Vec::new();
    for length in &config.lengths {
        let (what, tokens) = size(*length, classes);
        requests.extend((0..config.requests).filter_map(|_| plain(what, kind, model, &words(tokens))));
    }
    if kind.generates() {
        requests.extend(config.prompts.iter().map(|prompt| system(model, prompt)));
    }
    if kind == ProbeKind::Completion {
        requests.extend(config.features.iter().map(|one| feature(*one, model)));
    }
    requests
}

/// The request that keeps an idle replica warm: the system prompts again, or a small one.
pub(super) fn keep_alive(config: &WarmUp, kind: ProbeKind, model: &str) -> Vec<WarmUpRequest> {
    if kind.generates() && !config.prompts.is_empty() {
        return config.prompts.iter().map(|prompt| system(model, prompt)).collect();
    }
    plain("keep-alive", kind, model, &words(KEEP_ALIVE_TOKENS)).into_iter().collect()
}

fn size(length: WarmUpLength, classes: &Classes) -> (&'static str, u64) {
    match length {
        WarmUpLength::Short => ("short prompt", (classes.short.0 / 2).min(MAX_SHORT)),
        WarmUpLength::Medium => ("medium prompt", classes.medium.0 / 2),
        WarmUpLength::Long => ("long prompt", classes.medium.0 + classes.medium.0 / 4),
    }
}

fn plain(what: &'static str, kind: ProbeKind, model: &str, prompt: &str) -> Option<WarmUpRequest> {
    let (path, body) = least(kind, model, prompt, &json!({ "max_tokens": DECODED, "temperature": 0 }))?;
    Some(request(what, path, &body))
}

/// A chat whose system prompt is `prompt`.
fn system(model: &str, prompt: &str) -> WarmUpRequest {
    let messages = json!([{ "role": "system", "content": prompt }, { "role": "user", "content": "Hello" }]);
    let body = json!({ "model": model, "messages": messages, "max_tokens": 1 });
    let shared_prompt = Some(Dialect::Chat);
    WarmUpRequest { shared_prompt, ..request("system prompt", "/v1/chat/completions", &body) }
}

fn feature(feature: WarmUpFeature, model: &str) -> WarmUpRequest {
    match feature {
        WarmUpFeature::Logprobs => {
            let body = json!({ "model": model, "prompt": words(8), "max_tokens": DECODED, "logprobs": 5 });
            request("logprobs", "/v1/completions", &body)
        }
        WarmUpFeature::Guided => {
            let schema = json!({ "type": "object", "properties": { "ok": { "type": "boolean" } }, "required": ["ok"] });
            let body = json!({
                "model": model,
                "messages": [{ "role": "user", "content": "Answer in JSON." }],
                "max_tokens": 16,
                "response_format": { "type": "json_schema", "json_schema": { "name": "warm", "schema": schema } },
            });
            request("guided", "/v1/chat/completions", &body)
        }
    }
}

fn request(what: &'static str, path: &'static str, body: &Value) -> WarmUpRequest {
    WarmUpRequest { what, path, body: body.to_string(), shared_prompt: None }
}

/// About so many tokens of short words, another text each time.
fn words(tokens: u64) -> String {
    let word = |_| WORDS.get(fastrand::usize(..WORDS.len())).copied().unwrap_or("a");
    (0..tokens.max(1)).map(word).collect::<Vec<_>>().join(" ")
}

const WORDS: [&str; 16] =
    ["the", "of", "and", "to", "in", "is", "it", "on", "as", "at", "by", "we", "or", "an", "be", "so"];
/// Fits into any engine's context.
const MAX_SHORT: u64 = 64;
const KEEP_ALIVE_TOKENS: u64 = 16;
/// Tokens to decode: the first comes with the prompt.
const DECODED: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Tokens;

    const CLASSES: Classes = Classes { short: Tokens(1024), medium: Tokens(8192) };

    fn config() -> WarmUp {
        WarmUp {
            requests: 2,
            lengths: vec![WarmUpLength::Short, WarmUpLength::Long],
            prompts: vec!["You are".into()],
            features: vec![WarmUpFeature::Logprobs, WarmUpFeature::Guided],
            ..WarmUp::default()
        }
    }

    #[test]
    fn lengths_prompts_and_features_each_have_their_requests() {
        let all = requests(&config(), &CLASSES, ProbeKind::Completion, "m");
        let what: Vec<_> = all.iter().map(|one| one.what).collect();
        assert_eq!(
            what,
            [
                "short prompt", "short prompt", "long prompt", "long prompt", "system prompt", "logprobs",
                "guided"
            ]
        );
        assert_ne!(all[0].body, all[1].body, "the second would be answered from the cache of the first");
        let words = |at: usize| all[at].body.split(' ').count();
        assert!((60..70).contains(&words(0)) && (10_000..11_000).contains(&words(2)));
        assert!(all.iter().all(|one| one.body.contains("\"model\":\"m\"")));
    }

    #[test]
    fn an_engine_is_asked_only_for_what_it_does() {
        let paths = |kind| {
            let all = requests(&config(), &CLASSES, kind, "m");
            all.iter().map(|one| one.path).collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(paths(ProbeKind::Embedding).into_iter().collect::<Vec<_>>(), ["/v1/embeddings"]);
        assert_eq!(paths(ProbeKind::Rerank).into_iter().collect::<Vec<_>>(), ["/rerank"]);
        assert!(paths(ProbeKind::Health).is_empty());
    }

    #[test]
    fn an_idle_replica_gets_its_system_prompts_again() {
        let kept = |config| keep_alive(&config, ProbeKind::Completion, "m")[0].what;
        assert_eq!((kept(config()), kept(WarmUp::default())), ("system prompt", "keep-alive"));
    }
}
