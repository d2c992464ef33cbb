//! The part of an answer that its client has: text, tokens and, where the engine sends them, token ids.

use std::collections::VecDeque;

use crate::relay::chunk::ChoiceView;
use crate::request::continuation::{Boundary, Progress, TokenIds};
use crate::request::json::Raw;

/// A place of the text, and the tokens before it.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    chars: usize,
    tokens: u64,
}

/// The answer so far.
#[derive(Debug, Default)]
pub(super) struct Delivered {
    text: String,
    /// Characters of it.
    chars: usize,
    /// Characters that the engine has behind it, as soon as it has that many.
    held_back: usize,
    /// Tokens behind the text up to its last event that was more than white space.
    confirmed_tokens: u64,
    /// All tokens of the engine, also those whose text it holds back: half a character, the possible beginning of a stop string.
    generated: u64,
    /// The last place that the client has reached and whose tokens are known.
    reached: Mark,
    /// Such places of the text that is held back.
    ahead: VecDeque<Mark>,
    ids: TokenIds,
    pending_ids: Vec<u64>,
    /// Tokens came without ids: those that came with some are of no use.
    lacks_ids: bool,
}

impl Delivered {
    /// Of an engine that keeps the last `held_back` characters to itself.
    pub(super) fn behind(held_back: usize) -> Self {
        Self { held_back, ..Self::default() }
    }

    /// What another engine would continue.
    pub(super) fn progress(&self) -> Progress {
        let is_exact = !self.lacks_ids && !self.ids.prompt.is_empty();
        Progress {
            text: self.text.clone(),
            tokens: self.confirmed_tokens,
            all_tokens: self.tokens(),
            boundary: self.boundary(),
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
            (None, Some(running)) => running.saturating_sub(self.generated),
            (None, None) => 1,
        };
        self.generated = self.generated.saturating_add(n);
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
        self.chars += text.chars().count();
        self.ahead.push_back(Mark { chars: self.chars + self.held_back, tokens: self.generated });
        while let Some(&mark) = self.ahead.front().filter(|mark| mark.chars <= self.chars) {
            self.reached = mark;
            self.ahead.pop_front();
        }
        self.ids.output.append(&mut self.pending_ids);
        if !text.chars().all(char::is_whitespace) {
            self.confirmed_tokens = self.tokens();
        }
    }

    /// Tokens behind the text, up to its last event; between two known places as if each had as many characters.
    fn tokens(&self) -> u64 {
        let Mark { chars, tokens } = self.reached;
        let Some(next) = self.ahead.front() else { return tokens };
        let part = (self.chars - chars) as u128 * u128::from(next.tokens.saturating_sub(tokens));
        tokens + u64::try_from(part / (next.chars - chars) as u128).unwrap_or_default()
    }

    /// The last place whose tokens are known, where there is text behind it.
    fn boundary(&self) -> Option<Boundary> {
        let Mark { chars, tokens } = self.reached;
        let (bytes, _) = self.text.char_indices().nth(chars)?;
        Some(Boundary { bytes, tokens })
    }

    pub(super) fn is_too_long(&self) -> bool {
        self.text.len() > MAX_KEPT
    }

    /// Another engine goes on behind `tokens`, and says the end of the text again that it is not given.
    pub(super) fn resume_at(&mut self, tokens: u64, repeats: &str) {
        let output = self.ids.output.len() as u64;
        if output == 0 || output != tokens {
            self.forget_ids();
        }
        self.pending_ids.clear();
        let given = self.chars.saturating_sub(repeats.chars().count());
        self.reached = Mark { chars: given, tokens };
        self.ahead.clear();
        (self.confirmed_tokens, self.generated) = (tokens, tokens);
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
