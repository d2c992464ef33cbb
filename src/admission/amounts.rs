//! What budgets count: tokens, requests, engine time.

use serde::{Deserialize, Serialize};

use crate::labels::labels;

/// Amounts of what a budget limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amounts {
    /// Prompt tokens, cached ones included.
    pub input: u64,
    /// Prompt tokens that the engine had cached.
    pub cached: u64,
    /// Tokens of answers.
    pub output: u64,
    /// Requests.
    pub requests: u64,
    /// Milliseconds at engines.
    pub engine_ms: u64,
}

/// What a request is expected to use.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted {
    pub(super) expected: Amounts,
    /// What of it its client determines, and may change.
    pub(super) counted: Amounts,
}

impl Wanted {
    /// Towards one limit of which so much is left. An estimate alone asks for no more than that: by an answer that is expected to be long
    /// a small budget would be refused unspent, and for good.
    pub(super) fn of(&self, kind: Kind, left: u64) -> u64 {
        self.expected.of(kind).min(left.max(self.counted.of(kind))).max(1)
    }
}

labels! {
    /// One limit of a budget, by its key in `[[tenant.budget]]`.
    pub enum Kind {
        /// Input and output.
        Tokens = "tokens",
        /// See [`Amounts::input`].
        Input = "input_tokens",
        /// See [`Amounts::cached`].
        Cached = "cached_tokens",
        /// See [`Amounts::output`].
        Output = "output_tokens",
        /// See [`Amounts::requests`].
        Requests = "requests",
        /// Whole seconds of [`Amounts::engine_ms`].
        Engine = "engine_seconds",
    }
}

impl Kind {
    /// Whether it counts tokens.
    pub fn is_tokens(self) -> bool {
        !matches!(self, Self::Requests | Self::Engine)
    }
}

impl Amounts {
    /// What counts towards one limit.
    pub fn of(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Tokens => self.input.saturating_add(self.output),
            Kind::Input => self.input,
            Kind::Cached => self.cached,
            Kind::Output => self.output,
            Kind::Requests => self.requests,
            Kind::Engine => self.engine_ms / 1000,
        }
    }

    /// The sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.each(other, u64::saturating_add)
    }

    pub(crate) fn each(self, other: Self, apply: fn(u64, u64) -> u64) -> Self {
        Self {
            input: apply(self.input, other.input),
            cached: apply(self.cached, other.cached),
            output: apply(self.output, other.output),
            requests: apply(self.requests, other.requests),
            engine_ms: apply(self.engine_ms, other.engine_ms),
        }
    }
}
