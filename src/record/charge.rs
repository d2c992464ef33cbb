//! What a request costs its tenant: what limits, budgets, metrics and the bill all count.

use super::{Outcome, Record, TokenCounts};
use crate::units::Tokens;

impl Record {
    /// The gateway, a limit or `[hook]` refused it: it does not even count as a request.
    pub fn is_refused(&self) -> bool {
        self.outcome == Outcome::Refused || self.error == Some("hook_refused")
    }

    /// It used nothing of an engine, as far as known: it reached none, or all of its answer was an error.
    pub fn is_free(&self) -> bool {
        let is_error = matches!(self.outcome, Outcome::ClientError | Outcome::Failed);
        let has_usage = self.tokens.input.or(self.tokens.output).is_some();
        // A stream's head may be out before its error; a whole answer that breaks off behind a good head had content.
        let has_content = self.content_events > 0 || !self.is_stream && self.status < 400;
        self.at.routed.is_none() || self.is_refused() || is_error && !has_usage && !has_content
    }

    /// Its tokens by the engine's usage; where that is absent, by the estimates of the prompt and of the content that was seen, at least
    /// one for each event.
    pub fn charged_tokens(&self) -> TokenCounts {
        if self.is_free() {
            return TokenCounts::default();
        }
        let seen = |tokens: Tokens| Some(tokens).filter(|tokens| tokens.0 > 0);
        let input = self.tokens.input.or(seen(self.estimated_input));
        TokenCounts {
            input,
            // Where an engine reports more than the prompt has, no more than that was saved.
            cached: self.tokens.cached.map(|cached| cached.min(input.unwrap_or(cached))),
            output: self.tokens.output.or(seen(self.estimated_output.max(Tokens(self.content_events)))),
        }
    }
}
