//! Which API a path speaks: the allow-list of the data port.
//!
//! A path that is not here is 404, so that an engine's control endpoints (sleep, LoRA, reset, collective RPC)
//! are never reachable through the gateway.

use crate::error::ErrorShape;

/// One inference API that the gateway relays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/responses`
    Responses,
    /// `/v1/messages` (Anthropic)
    Messages,
    /// `/v1/messages/count_tokens` (Anthropic)
    CountTokens,
    /// `/v1/embeddings`
    Embeddings,
    /// `/v1/rerank`, `/rerank`
    Rerank,
    /// `/v1/score`, `/score`
    Score,
    /// `/v1/classify`
    Classify,
    /// `/pooling`
    Pooling,
    /// `/tokenize`
    Tokenize,
    /// `/detokenize`
    Detokenize,
    /// A path of `server.extra_paths`: relayed as it is, nothing is known of its body.
    Extra,
}

impl Dialect {
    /// The dialect of an exact path; `extra` are the configured further paths. `None` means 404.
    #[must_use]
    pub fn of_path(path: &str, extra: &[String]) -> Option<Self> {
        Some(match path {
            "/v1/chat/completions" => Self::Chat,
            "/v1/completions" => Self::Completions,
            "/v1/responses" => Self::Responses,
            "/v1/messages" => Self::Messages,
            "/v1/messages/count_tokens" => Self::CountTokens,
            "/v1/embeddings" => Self::Embeddings,
            "/v1/rerank" | "/rerank" => Self::Rerank,
            "/v1/score" | "/score" => Self::Score,
            "/v1/classify" => Self::Classify,
            "/pooling" => Self::Pooling,
            "/tokenize" => Self::Tokenize,
            "/detokenize" => Self::Detokenize,
            other if extra.iter().any(|p| p == other) => Self::Extra,
            _ => return None,
        })
    }

    /// How errors look to this dialect's clients.
    #[must_use]
    pub fn error_shape(self) -> ErrorShape {
        match self {
            Self::Messages | Self::CountTokens => ErrorShape::Anthropic,
            _ => ErrorShape::OpenAi,
        }
    }

    /// `gen_ai.operation.name` of the OpenTelemetry GenAI semantic conventions, or the API's own word.
    #[must_use]
    pub fn operation(self) -> &'static str {
        match self {
            Self::Chat | Self::Responses | Self::Messages => "chat",
            Self::Completions => "text_completion",
            Self::Embeddings => "embeddings",
            Self::CountTokens => "count_tokens",
            Self::Rerank => "rerank",
            Self::Score => "score",
            Self::Classify => "classify",
            Self::Pooling => "pooling",
            Self::Tokenize => "tokenize",
            Self::Detokenize => "detokenize",
            Self::Extra => "extra",
        }
    }

    /// Whether the engine generates tokens for it, so that TTFT and inter-token latency mean something.
    #[must_use]
    pub fn generates(self) -> bool {
        matches!(self, Self::Chat | Self::Completions | Self::Responses | Self::Messages)
    }

    /// Whether its answers are stored by the engine that made them, under their id.
    #[must_use]
    pub fn is_stateful(self) -> bool {
        matches!(self, Self::Responses)
    }
}
