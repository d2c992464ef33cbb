//! The part of an answer that its client has: text, tokens and, where the engine sends them, token ids.

use crate::relay::chunk::ChoiceView;
use crate::request::continuation::{Progress, TokenIds};
use crate::request::json::Raw;

/// The answer so far.
#[derive(Debug, Default)]
pub(super) struct Delivered {
    text: String,
    /// Tokens up to the last event with text that is more than white space.
    confirmed_tokens: u64,
    /// Tokens up to the last event with text.
    tokens: u64,
    /// Tokens since: half a character, the possible beginning of a stop string.
    pending_tokens: u64,
    ids: TokenIds,
    pending_ids: Vec<u64>,
    /// Tokens came without ids: those that came with some are of no use.
    lacks_ids: bool,
}

impl Delivered {
    /// What another engine would continue.
    pub(super) fn progress(&self) -> Progress {
        let is_exact = !self.lacks_ids && !self.ids.prompt.is_empty();
        Progress {
            text: self.text.clone(),
            tokens: self.confirmed_tokens,
            all_tokens: self.tokens,
            ids: is_exact.then(|| self.ids.clone()),
        }
    }

    pub(super) fn set_prompt_ids(&mut self, prompt: Raw<'_>) {
        if !self.lacks_ids {
            self.ids.prompt = numbers(prompt);
        }
    }

    /// Counts the tokens of an event: by its ids, by the engine's count of the answer so far, else one.
    pub(super) fn count(&mut self, choice: &ChoiceView<'_>, running: Option<u64>) {
        let ids = choice.token_ids.map(numbers);
        let n = match (&ids, running) {
            (Some(ids), _) => ids.len() as u64,
            (None, Some(running)) => running.saturating_sub(self.tokens.saturating_add(self.pending_tokens)),
            (None, None) => 1,
        };
        self.pending_tokens = self.pending_tokens.saturating_add(n);
        match ids {
            Some(ids) if !self.lacks_ids && self.pending_ids.len() < MAX_KEPT => self.pending_ids.extend(ids),
            _ => self.forget_ids(),
        }
    }

    fn forget_ids(&mut self) {
        (self.ids, self.pending_ids, self.lacks_ids) = (TokenIds::default(), Vec::new(), true);
    }

    pub(super) fn append(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.text.push_str(text);
        self.tokens = self.tokens.saturating_add(std::mem::take(&mut self.pending_tokens));
        self.ids.output.append(&mut self.pending_ids);
        if !text.chars().all(char::is_whitespace) {
            self.confirmed_tokens = self.tokens;
        }
    }

    pub(super) fn is_too_long(&self) -> bool {
        self.text.len() > MAX_KEPT
    }

    /// Another engine goes on behind `tokens`.
    pub(super) fn resume_at(&mut self, tokens: u64) {
        let output = self.ids.output.len() as u64;
        if output == 0 || output != tokens {
            self.forget_ids();
        }
        self.pending_ids.clear();
        (self.confirmed_tokens, self.tokens, self.pending_tokens) = (tokens, tokens, 0);
    }

    /// Frees what only a continuation needs.
    pub(super) fn free(&mut self) {
        self.text = String::new();
        self.forget_ids();
    }

    #[cfg(test)]
    pub(super) fn is_freed(&self) -> bool {
        self.text.capacity() == 0
    }
}

fn numbers(array: Raw<'_>) -> Vec<u64> {
    let inner = array.text().trim_matches(['[', ']']);
    inner.split(',').filter_map(|number| number.trim().parse().ok()).collect()
}

/// Bytes of text, and token ids, that are kept of an answer.
pub(super) const MAX_KEPT: usize = 1 << 20;
