//! One generation: its output, known from the start, and how much of it the engine has emitted.
//!
//! Each API has a [`Render`] that writes it as SSE events or as a whole answer.

use bytes::Bytes;

use crate::engine::{EngineEvent, Work};
use crate::server::config::SimConfig;
use crate::server::tokens;

use super::ask::Ask;

/// One choice of an answer, as OpenAI calls it.
#[derive(Debug)]
pub(super) struct Choice {
    /// Index of its prompt.
    pub(super) prompt: usize,
    pub(super) output: Vec<u32>,
    /// Tokens that the engine has emitted.
    pub(super) emitted: u64,
    /// `stop`, `length` or `tool_calls`.
    pub(super) finish: &'static str,
    /// The stop string that ended it.
    pub(super) stop: Option<String>,
    /// Bytes of the text before the stop string.
    visible: usize,
    is_tool_call: bool,
}

impl Choice {
    pub(super) fn piece(&self, index: u64) -> String {
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        let Some(token) = self.output.get(index) else { return String::new() };
        if self.is_tool_call {
            return self.argument_piece(index, *token);
        }
        let room = self.visible.saturating_sub(index * 4).min(4);
        tokens::decode(&[*token]).chars().take(room).collect()
    }

    pub(super) fn text(&self) -> String {
        (0..self.output.len() as u64).map(|index| self.piece(index)).collect()
    }

    /// The arguments of the call are one JSON object with one string, cut into the tokens' pieces.
    fn argument_piece(&self, index: usize, token: u32) -> String {
        let mut piece = String::new();
        if index == 0 {
            piece.push_str(r#"{"text": ""#);
        }
        piece.push_str(&tokens::decode(&[token]));
        if index + 1 == self.output.len() {
            piece.push_str(r#""}"#);
        }
        piece
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    pub(super) choice: usize,
    pub(super) index: u64,
    pub(super) is_last: bool,
}

/// One request's output under way.
#[derive(Debug)]
pub(super) struct Generation {
    /// Response id with its API's prefix.
    pub(super) id: String,
    /// Unix seconds.
    pub(super) created: u64,
    pub(super) ask: Ask,
    pub(super) choices: Vec<Choice>,
    /// Prompt tokens from the prefix cache, over all prompts.
    pub(super) cached: u64,
    /// Its KV came from another replica: the engine counts none of it as cached.
    pub(super) is_fetched: bool,
    block_size: u64,
}

impl Generation {
    pub(super) fn new(id: String, created: u64, ask: Ask, config: &SimConfig) -> Self {
        let mut choices = Vec::with_capacity(ask.prompts.len() * ask.n);
        for prompt in 0..ask.prompts.len() {
            for nth in 0..ask.n {
                choices.push(choice(&ask, prompt, nth as u64, config));
            }
        }
        Self {
            id,
            created,
            ask,
            choices,
            cached: 0,
            is_fetched: false,
            block_size: config.engine.block_size.max(1),
        }
    }

    /// One job for each choice.
    pub(super) fn jobs(&self) -> Vec<Work> {
        self.choices
            .iter()
            .filter_map(|choice| {
                let prompt = &self.ask.prompts.get(choice.prompt)?.tokens;
                let tokens = [prompt.as_slice(), &choice.output].concat();
                Some(Work::of(&tokens, prompt.len(), self.ask.root, self.block_size))
            })
            .collect()
    }

    /// Notes a token of the choice at `place`.
    pub(super) fn note(&mut self, place: usize, event: &EngineEvent) -> Token {
        if let Some(choice) = self.choices.get_mut(place) {
            choice.emitted += 1;
            if event.index == 0 && place.is_multiple_of(self.ask.n) && !self.is_fetched {
                self.cached += event.cached;
            }
        }
        Token { choice: place, index: event.index, is_last: event.is_last }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.choices.iter().all(|c| c.emitted == c.output.len() as u64)
    }

    pub(super) fn completion_tokens(&self) -> u64 {
        self.choices.iter().map(|c| c.emitted).sum()
    }

    /// Prompt tokens that entered the prefix cache by this request.
    pub(super) fn cache_written(&self) -> u64 {
        let full = |tokens: usize| tokens as u64 / self.block_size * self.block_size;
        let all: u64 = self.ask.prompts.iter().map(|p| full(p.tokens.len())).sum();
        all.saturating_sub(self.cached)
    }
}

fn choice(ask: &Ask, prompt: usize, nth: u64, config: &SimConfig) -> Choice {
    let given = ask.prompts.get(prompt).map_or(&[][..], |p| &p.tokens);
    let room = config.context_length().saturating_sub(given.len() as u64).max(1);
    let (wanted, finish) = match ask.max_tokens {
        Some(limit) => (limit, "length"),
        // What is continued ends where the whole would have ended.
        None => {
            let continued = ask.prompts.get(prompt).map_or(0, |p| p.continued);
            let asked = given.get(..given.len() - continued).unwrap_or_default();
            let whole = tokens::natural_length(asked, config.seed);
            (whole.saturating_sub(continued as u64).max(1), "stop")
        }
    };
    let length = usize::try_from(wanted.min(room)).unwrap_or(usize::MAX);
    let mut choice = Choice {
        prompt,
        output: tokens::output(given, config.seed, nth, length),
        emitted: 0,
        finish,
        stop: None,
        visible: length.saturating_mul(4),
        is_tool_call: ask.tool.is_some(),
    };
    if choice.is_tool_call {
        choice.finish = "tool_calls";
    } else {
        stop_early(&mut choice, &ask.stops);
    }
    choice
}

/// Ends the choice with the token that completes the first stop string.
fn stop_early(choice: &mut Choice, stops: &[String]) {
    if stops.is_empty() {
        return;
    }
    let text = tokens::decode(&choice.output);
    let found = stops.iter().filter_map(|stop| Some((text.find(stop.as_str())?, stop))).min_by_key(|f| f.0);
    if let Some((at, stop)) = found {
        choice.output.truncate((at + stop.len()).div_ceil(4));
        choice.visible = at;
        choice.finish = "stop";
        choice.stop = Some(stop.clone());
    }
}

/// Writes generations in the format of one API.
pub(super) trait Render: Send {
    /// The events of one token; before the first one, those that open the stream.
    fn token(&mut self, generation: &Generation, token: Token, out: &mut Vec<Bytes>);

    /// The events after the last token.
    fn close(&mut self, generation: &Generation, out: &mut Vec<Bytes>);

    /// The whole answer of a request without `stream`.
    fn whole(&self, generation: &Generation) -> String;
}

pub(super) fn quote(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_else(|_| "\"\"".into())
}

/// A JSON string, or null.
pub(super) fn quote_or_null(text: Option<&str>) -> String {
    text.map_or_else(|| "null".into(), quote)
}

/// Token ids as a JSON list, or null where they were not requested.
pub(super) fn ids_or_null(asked: bool, ids: &[u32]) -> String {
    if asked { serde_json::to_string(ids).unwrap_or_else(|_| "null".into()) } else { "null".into() }
}
