//! The state of a stream: the facts that its events add up to, and how it ended.
//!
//! A content event is one whose delta carries generated text, reasoning, a refusal, or a tool call's name or
//! arguments. Role-only chunks, comments, pings, empty deltas and usage chunks are none, and neither is a prompt
//! that comes back by `echo: true`. Here is what the wire shapes share: the vocabulary, the state of a stream's choices, the
//! echo rule and the judgement of the end.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::relay::usage::{ABORTED, AnswerFacts, EngineError};
use crate::request::dialect::Dialect;
use crate::request::json::{JsonKind, Raw};

/// One fact of an SSE event, which may hold several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Generated content arrived.
    Content {
        /// Index of the choice; 0 where the dialect has one only.
        choice: u32,
        /// Tokens since the choice's last content event, where the engine counts them in the stream.
        tokens: Option<u32>,
    },
    /// The stream's own end: `[DONE]`, `message_stop`, `response.completed` and its like.
    Done,
    /// The engine reported an error inside the stream.
    Error(EngineError),
    /// Tokens whose text the engine's parser holds back.
    HeldBack,
    /// Nothing of the above: role-only, ping, empty delta, finish reason, token counts, unknown.
    Other,
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// Terminator seen, or a finish reason for every choice.
    Complete,
    /// The engine reported an error in the stream, whatever came after it.
    Failed(EngineError),
    /// The body was cut, or ended neither with the stream's terminator nor with a finish reason for every choice.
    Truncated,
}

/// Whether the prompt comes back in the answer, and how long it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Echo {
    /// The prompt does not come back.
    #[default]
    Off,
    /// `echo: true`. Each choice first repeats its prompt, alone or together with the first token.
    On {
        /// Bytes of each prompt's text; `None` where only the engine knows it (token ids): then a choice's
        /// first text is its prompt, unless the engine counts tokens for it. At most [`MAX_CHOICES`].
        prompts: Arc<[Option<usize>]>,
        /// `n`: choices are numbered prompt by prompt.
        choices_per_prompt: u32,
    },
}

/// The state of one stream: the sum of its events so far.
#[derive(Debug)]
pub struct StreamState {
    /// Id, model, usage and error so far.
    pub answer: AnswerFacts,
    /// The next `sequence_number` of a responses stream.
    pub next_sequence: u64,
    /// Bytes of the text that was generated, as it stands in the events.
    pub text_bytes: u64,
    dialect: Dialect,
    echo: Echo,
    choices: SmallVec<[ChoiceState; 1]>,
    /// That were asked for.
    expected: usize,
    is_done: bool,
    /// Its events name no type, so that none of them is the last.
    pub(super) is_untyped: bool,
}

impl StreamState {
    pub(super) fn new(dialect: Dialect, echo: Echo) -> Self {
        Self {
            answer: AnswerFacts::default(),
            next_sequence: 0,
            text_bytes: 0,
            dialect,
            echo,
            choices: SmallVec::new(),
            expected: 1,
            is_done: false,
            is_untyped: false,
        }
    }

    /// This number of choices was asked for: none of them is left out of a whole answer.
    pub(super) fn expect(&mut self, choices: u32) {
        if matches!(self.dialect, Dialect::Chat | Dialect::Completions) {
            self.expected = usize::try_from(choices).unwrap_or(MAX_CHOICES).clamp(1, MAX_CHOICES);
        }
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Judges the end of the body; `is_clean` where its framing ended as it should.
    pub fn end(&self, is_clean: bool) -> StreamEnd {
        if let Some(error) = self.answer.error {
            return StreamEnd::Failed(error);
        }
        let ends_with_its_body = || self.is_finished() || self.is_untyped || !self.dialect.has_known_stream();
        if self.is_done || (is_clean && ends_with_its_body()) {
            StreamEnd::Complete
        } else {
            StreamEnd::Truncated
        }
    }

    /// Whether an end of the stream without any content is no answer: a completion is nothing for a reason, which it tells.
    /// A vLLM that is ended by SIGTERM closes the streams that still waited so, with `[DONE]`.
    pub fn gives_no_reason(&self) -> bool {
        matches!(self.dialect, Dialect::Chat | Dialect::Completions | Dialect::Audio) && !self.has_reasons()
    }

    /// Whether its engine has begun to answer, with text or without: vLLM names the role when the first token is there.
    pub fn has_begun(&self) -> bool {
        match self.dialect {
            Dialect::Chat | Dialect::Completions => !self.choices.is_empty(),
            Dialect::Messages => self.answer.id.is_some(),
            _ => false,
        }
    }

    /// Whether every choice has its finish reason and nothing can follow. A transcription has one for each piece of its audio.
    pub fn is_finished(&self) -> bool {
        self.dialect != Dialect::Audio && self.has_reasons()
    }

    fn has_reasons(&self) -> bool {
        self.choices.len() >= self.expected && self.choices.iter().all(|c| c.is_finished)
    }

    pub(super) fn done(&mut self, emit: &mut dyn FnMut(Event)) {
        self.is_done = true;
        emit(Event::Done);
    }

    /// Whether the stream's own end came: what follows it changes nothing.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// An engine's error object or message; `None` where it reported a failure without one.
    pub(super) fn error(&mut self, error: Option<Raw<'_>>, emit: &mut dyn FnMut(Event)) {
        if self.is_done {
            return emit(Event::Other);
        }
        emit(Event::Error(self.answer.note_error(error)));
    }

    pub(super) fn finish(&mut self, choice: u32, reason: Raw<'_>, emit: &mut dyn FnMut(Event)) {
        self.answer.note_reason(reason.string());
        if reason.escaped() == Some(ABORTED) && !self.is_done {
            return self.aborted(emit);
        }
        self.finished(choice, emit);
    }

    /// The engine gave the answer up.
    pub(super) fn aborted(&mut self, emit: &mut dyn FnMut(Event)) {
        emit(Event::Error(self.answer.note_abort()));
    }

    /// A choice has ended.
    pub(super) fn finished(&mut self, choice: u32, emit: &mut dyn FnMut(Event)) {
        if let Some(state) = self.choice(choice) {
            state.is_finished = true;
        }
        emit(Event::Other);
    }

    /// The state of a choice, from its first mention on. `None` from index [`MAX_CHOICES`] on.
    pub(super) fn choice(&mut self, index: u32) -> Option<&mut ChoiceState> {
        let place = usize::try_from(index).ok().filter(|place| *place < MAX_CHOICES)?;
        while self.choices.len() <= place {
            let echo = self.echo_of(self.choices.len());
            self.choices.push(ChoiceState { echo, ..ChoiceState::default() });
        }
        self.choices.get_mut(place)
    }

    /// Output tokens of all choices, by continuous usage.
    pub(super) fn running_total(&self) -> u64 {
        self.choices.iter().map(|c| c.total).fold(0, u64::saturating_add)
    }

    /// Whether a choice's text is generated, for text too long to be measured: its echo ends with it.
    pub(super) fn ends_echo(&mut self, choice: u32) -> bool {
        self.choice(choice).is_none_or(|state| std::mem::take(&mut state.echo) == EchoLeft::None)
    }

    fn echo_of(&self, choice: usize) -> EchoLeft {
        let Echo::On { prompts, choices_per_prompt } = &self.echo else { return EchoLeft::None };
        let per_prompt = usize::try_from(*choices_per_prompt).unwrap_or(usize::MAX).max(1);
        match prompts.get(choice / per_prompt) {
            Some(Some(0)) => EchoLeft::None,
            Some(Some(bytes)) => EchoLeft::Bytes(*bytes),
            Some(None) | None => EchoLeft::FirstText,
        }
    }
}

/// One choice of a stream.
#[derive(Debug, Default)]
pub(super) struct ChoiceState {
    is_finished: bool,
    echo: EchoLeft,
    /// Output tokens by continuous usage, now and at the last content event.
    total: u64,
    total_at_content: u64,
    /// Token ids that came since the last content event.
    ids: u64,
}

impl ChoiceState {
    /// Notes the counts that came with an event; whether they show more tokens.
    pub(super) fn count(&mut self, counts: Counts) -> bool {
        let before = (self.ids, self.total);
        self.ids = self.ids.saturating_add(counts.ids.unwrap_or(0));
        self.total = counts.usage.unwrap_or(self.total);
        self.ids > before.0 || self.total > before.1
    }

    /// Whether the text is generated, not the prompt's echo.
    pub(super) fn is_generated(&mut self, text: &ContentValues<'_>) -> bool {
        let is_counted = self.ids > 0 || self.total > self.total_at_content;
        match std::mem::take(&mut self.echo) {
            EchoLeft::None => true,
            _ if is_counted => true,
            EchoLeft::FirstText => false,
            EchoLeft::Bytes(left) => match left.checked_sub(text.decoded_len()) {
                None => true,
                Some(0) => false,
                Some(rest) => {
                    self.echo = EchoLeft::Bytes(rest);
                    false
                }
            },
        }
    }

    /// The tokens that a content event brought: what was counted since the last one. Tokens whose text was held
    /// back (half a character, a possible stop string) come out with the later event and belong to it.
    pub(super) fn take_tokens(&mut self, counts: Counts) -> Option<u32> {
        let by_ids = counts.ids.map(|_| std::mem::take(&mut self.ids));
        let by_usage = counts.usage.map(|_| self.total.saturating_sub(self.total_at_content));
        self.total_at_content = self.total;
        by_ids.or(by_usage).map(|n| u32::try_from(n.max(1)).unwrap_or(u32::MAX))
    }
}

/// Token counts that came with one event of a choice.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Length of its `token_ids`.
    pub ids: Option<u64>,
    /// Its continuous `usage`: output tokens of the choice so far.
    pub usage: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EchoLeft {
    #[default]
    None,
    Bytes(usize),
    FirstText,
}

/// The content string of an event that holds nothing else.
pub(super) struct PlainContent<'a> {
    /// Inside of the string, as it stands in the event.
    pub string: &'a str,
    /// Whose content it is.
    pub choice: u32,
}

/// The values of a delta that carry content, in order.
#[derive(Debug, Default)]
pub(super) struct ContentValues<'a> {
    carrying: SmallVec<[Raw<'a>; 1]>,
}

impl<'a> ContentValues<'a> {
    /// Adds a value unless it is empty or null.
    pub(super) fn add(&mut self, value: Option<Raw<'a>>) {
        self.carrying.extend(value.filter(Raw::is_filled));
    }

    /// Bytes of the texts as they stand in the event: sounds and pictures are none.
    pub(super) fn bytes(&self) -> u64 {
        let texts = self.carrying.iter().filter(|value| value.kind() == JsonKind::Str);
        texts.map(|text| text.text().len() as u64).sum()
    }

    pub(super) fn is_content(&self) -> bool {
        !self.carrying.is_empty()
    }

    /// The string where it is all that carries.
    pub(super) fn only_string(&self) -> Option<&'a str> {
        match self.carrying.as_slice() {
            [value] => value.escaped(),
            _ => None,
        }
    }

    /// Bytes of the text, escapes resolved.
    fn decoded_len(&self) -> usize {
        let len = |value: &Raw<'_>| value.string().map_or(value.text().len(), |text| text.len());
        self.carrying.iter().map(len).sum()
    }
}

/// Choices of a stream that are distinguished.
pub const MAX_CHOICES: usize = 1024;
