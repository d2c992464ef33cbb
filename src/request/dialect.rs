//! Which API a path speaks: the allow-list of the data port.
//!
//! A path that is not here is 404, so that an engine's control endpoints (sleep, LoRA, reset, collective RPC)
//! are never reachable through the gateway. What the gateway knows of an API is one row of [`Dialect::facts`].

use http::Method;

use crate::config::paths;
use crate::error::ErrorShape;

/// One inference API that the gateway relays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/chat/completions/batch`
    ChatBatch,
    /// `/v1/completions`
    Completions,
    /// `/v1/responses`
    Responses,
    /// `/v1/responses/{id}` and `/v1/responses/{id}/cancel`: they go where the response was made.
    StoredResponse,
    /// `/v1/messages` (Anthropic)
    Messages,
    /// `/v1/messages/count_tokens` (Anthropic)
    CountTokens,
    /// `/v1/embeddings`, `/v2/embed`
    Embeddings,
    /// `/v1/rerank`, `/v2/rerank`, `/rerank`
    Rerank,
    /// `/v1/score`, `/score`
    Score,
    /// `/generative_scoring`
    GenerativeScoring,
    /// `/classify`
    Classify,
    /// `/pooling`
    Pooling,
    /// `/tokenize`
    Tokenize,
    /// `/detokenize`
    Detokenize,
    /// `/tokenizer_info`
    TokenizerInfo,
    /// `/v1/audio/transcriptions`, `/v1/audio/translations`: multipart.
    Audio,
    /// `/v1/realtime`: a WebSocket.
    Realtime,
    /// A path of `server.extra_paths`: relayed as it is, nothing is known of its body.
    Extra,
}

/// What a request's body is to the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyForm {
    /// A JSON object, whose fields are read.
    Json,
    /// `multipart/form-data`, of which the fields `model` and `stream` are read.
    Multipart,
    /// Bytes; of a JSON object and of a form the field `model` is read.
    Opaque,
}

/// What an engine computes for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Computes {
    /// A prompt, and an answer to it token by token.
    Answer,
    /// A prompt: the response comes with the end of its prefill.
    Prompt,
    /// More than one prompt and its answer, or what is not known: its time shows nothing of prefill.
    Other,
    /// Nothing: the API server of the engine answers it.
    Nothing,
}

/// What the gateway knows of an API.
#[derive(Clone, Copy, Debug)]
struct Facts {
    /// `gen_ai.operation.name` of the OpenTelemetry GenAI semantic conventions, or the API's own word.
    operation: &'static str,
    computes: Computes,
    has_known_stream: bool,
    body: BodyForm,
    errors: ErrorShape,
}

impl Dialect {
    /// The pattern of a path and its dialect; `extra` are the configured further patterns. `None` means 404.
    pub fn of_path<'p>(path: &str, extra: &'p [String]) -> Option<(&'p str, Self)> {
        let served = SERVED.iter().find(|(pattern, _)| paths::matches(pattern, path)).copied();
        served.or_else(|| {
            let extra = extra.iter().find(|pattern| paths::matches(pattern, path))?;
            Some((extra, Self::Extra))
        })
    }

    /// How errors look to clients of a path that is not served: those of the API below whose path it lies.
    pub fn shape_near(path: &str) -> ErrorShape {
        let is_below = |known: &str| path.strip_prefix(known).is_some_and(|rest| rest.starts_with('/'));
        let near = SERVED.iter().find(|(known, _)| is_below(known));
        near.map_or(ErrorShape::OpenAi, |(_, dialect)| dialect.error_shape())
    }

    /// How errors look to this dialect's clients.
    pub fn error_shape(self) -> ErrorShape {
        self.facts().errors
    }

    /// `gen_ai.operation.name`.
    pub fn operation(self) -> &'static str {
        self.facts().operation
    }

    /// Whether the engine writes an answer to a prompt, whose length is predicted and which is not empty without a reason.
    pub fn generates(self) -> bool {
        self.computes() == Computes::Answer
    }

    /// Whether its engine writes text for it, to one prompt or to several.
    pub fn writes(self) -> bool {
        self.generates() || self == Self::ChatBatch
    }

    /// What the engine computes for it.
    pub fn computes(self) -> Computes {
        self.facts().computes
    }

    /// Whether the events of its streams are understood, so that TTFT and inter-token latency mean something. Any other
    /// stream is relayed from its head on.
    pub fn has_known_stream(self) -> bool {
        self.facts().has_known_stream
    }

    /// Whether a request is open for as long as its client likes: its duration is no latency.
    pub fn is_tunnel(self) -> bool {
        self == Self::Realtime
    }

    /// What its requests' bodies are.
    pub fn body_form(self) -> BodyForm {
        self.facts().body
    }

    /// Names of the bound on an answer's tokens, the usual one first. Another API's name bounds nothing: engines leave out what they do
    /// not know.
    pub fn answer_limits(self) -> &'static [&'static str] {
        match self {
            Self::Chat | Self::ChatBatch => &["max_tokens", "max_completion_tokens"],
            Self::Completions | Self::Messages => &["max_tokens"],
            Self::Responses => &["max_output_tokens"],
            _ => &[],
        }
    }

    /// Whether its answers are stored by the engine that made them, under their id.
    pub fn is_stateful(self) -> bool {
        matches!(self, Self::Responses)
    }

    /// Whether the `usage` of a whole answer is that of its request. A stored response has that of the request that made it; of other
    /// opaque bodies nothing is known.
    pub fn has_own_usage(self) -> bool {
        self.body_form() != BodyForm::Opaque
    }

    /// Whether a request by this method is owed an answer with content, or a tunnel. One about a stored response, or on a path that is
    /// not known, may be answered without.
    pub fn owes_answer(self, method: &Method) -> bool {
        self == Self::Realtime || (*method == Method::POST && self.body_form() != BodyForm::Opaque)
    }

    /// Whether its body may have a `cache_salt`, as vLLM 0.32 has it. Others fill no prefix cache, or leave no way to divide it.
    pub fn takes_cache_salt(self) -> bool {
        self == Self::ChatBatch || matches!(self.computes(), Computes::Answer | Computes::Prompt)
    }

    /// Value of `Allow`: methods of this dialect's paths.
    pub fn allowed(self, pattern: &str) -> &'static str {
        match self {
            Self::StoredResponse if !pattern.ends_with("/cancel") => "DELETE, GET, HEAD, OPTIONS, POST",
            _ => "GET, HEAD, OPTIONS, POST",
        }
    }

    fn facts(self) -> Facts {
        let json = |operation| Facts {
            operation,
            computes: Computes::Other,
            has_known_stream: false,
            body: BodyForm::Json,
            errors: ErrorShape::OpenAi,
        };
        let stream =
            |operation| Facts { computes: Computes::Answer, has_known_stream: true, ..json(operation) };
        let prompt = |operation| Facts { computes: Computes::Prompt, ..json(operation) };
        let opaque = |operation| Facts { body: BodyForm::Opaque, ..json(operation) };
        let nothing = |facts| Facts { computes: Computes::Nothing, ..facts };
        match self {
            Self::Chat | Self::Responses => stream("chat"),
            Self::Completions => stream("text_completion"),
            Self::Messages => Facts { errors: ErrorShape::Anthropic, ..stream("chat") },
            Self::CountTokens => Facts { errors: ErrorShape::Anthropic, ..nothing(json("count_tokens")) },
            Self::ChatBatch => json("chat_batch"),
            Self::StoredResponse => nothing(opaque("stored_response")),
            Self::Embeddings => prompt("embeddings"),
            Self::Rerank => prompt("rerank"),
            Self::Score => prompt("score"),
            Self::GenerativeScoring => prompt("generative_scoring"),
            Self::Classify => prompt("classify"),
            Self::Pooling => prompt("pooling"),
            Self::Tokenize => nothing(json("tokenize")),
            Self::Detokenize => nothing(json("detokenize")),
            Self::TokenizerInfo => nothing(opaque("tokenizer_info")),
            Self::Audio => Facts { body: BodyForm::Multipart, has_known_stream: true, ..json("audio") },
            Self::Realtime => opaque("realtime"),
            Self::Extra => opaque("extra"),
        }
    }
}

/// Every built-in path of the data port that goes to an engine, the busiest first.
pub const SERVED: &[(&str, Dialect)] = &[
    ("/v1/chat/completions", Dialect::Chat),
    ("/v1/completions", Dialect::Completions),
    ("/v1/responses", Dialect::Responses),
    ("/v1/messages", Dialect::Messages),
    ("/v1/embeddings", Dialect::Embeddings),
    ("/v1/messages/count_tokens", Dialect::CountTokens),
    ("/v1/rerank", Dialect::Rerank),
    ("/v2/rerank", Dialect::Rerank),
    ("/rerank", Dialect::Rerank),
    ("/v1/score", Dialect::Score),
    ("/score", Dialect::Score),
    ("/v2/embed", Dialect::Embeddings),
    ("/classify", Dialect::Classify),
    ("/pooling", Dialect::Pooling),
    ("/generative_scoring", Dialect::GenerativeScoring),
    ("/tokenize", Dialect::Tokenize),
    ("/detokenize", Dialect::Detokenize),
    ("/tokenizer_info", Dialect::TokenizerInfo),
    ("/v1/chat/completions/batch", Dialect::ChatBatch),
    ("/v1/responses/{id}", Dialect::StoredResponse),
    ("/v1/responses/{id}/cancel", Dialect::StoredResponse),
    ("/v1/audio/transcriptions", Dialect::Audio),
    ("/v1/audio/translations", Dialect::Audio),
    ("/v1/realtime", Dialect::Realtime),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_known_exactly_or_not_at_all() {
        let extra = ["/v1/things/{id}".to_owned()];
        let of = |path| Dialect::of_path(path, &extra).map(|(_, dialect)| dialect);
        for (pattern, dialect) in SERVED {
            let path = pattern.replace("{id}", "resp_1");
            assert_eq!(
                Dialect::of_path(&path, &extra).map(|(_, dialect)| dialect),
                Some(*dialect),
                "{pattern}"
            );
        }
        assert_eq!(of("/v1/things/1"), Some(Dialect::Extra));
        for unknown in [
            "/", "/v1/classify", "/v1/responses/", "/v1/responses/a/b", "/v1/things", "/sleep",
            "/v1/chat/completions/",
        ] {
            assert_eq!(of(unknown), None, "{unknown}");
        }
    }
}
