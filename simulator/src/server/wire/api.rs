//! Which API a path speaks.

/// One of vLLM's inference APIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Api {
    Chat,
    Completions,
    Responses,
    /// Anthropic's.
    Messages,
    /// Anthropic's.
    CountTokens,
    Embeddings,
    Rerank,
    Score,
    Classify,
    Pooling,
    Tokenize,
    Detokenize,
}

/// The shape of an API's errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorShape {
    /// `{"error":{"message","type","param","code"}}`
    OpenAi,
    /// `{"type":"error","error":{"type","message"}}`
    Anthropic,
}

impl Api {
    pub(super) fn of_path(path: &str) -> Option<Self> {
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
            _ => return None,
        })
    }

    pub(super) fn error_shape(self) -> ErrorShape {
        match self {
            Self::Messages | Self::CountTokens => ErrorShape::Anthropic,
            _ => ErrorShape::OpenAi,
        }
    }

    /// Whether its requests decode tokens, not only prefill or tokenize.
    pub(super) fn generates(self) -> bool {
        matches!(self, Self::Chat | Self::Completions | Self::Responses | Self::Messages)
    }

    /// Whether its streams end with `data: [DONE]`; typed event streams do not.
    pub(super) fn ends_with_done(self) -> bool {
        matches!(self, Self::Chat | Self::Completions)
    }
}
