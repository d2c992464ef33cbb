//! Facts of an engine's answer: id, model, token counts, finish reasons, the engine's own timings, errors.
//!
//! The same value is filled from a stream's events and from a unary body, so that the record has one source.
//! Strings are bounded: an answer cannot make the gateway keep more than a few hundred bytes of it. Text that a
//! model wrote is never kept.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crate::error::ReplicaFailure;
use crate::record::{EngineTimes, TokenCounts, cut};
use crate::request::dialect::Dialect;
use crate::request::json::{Cursor, JsonError, JsonKind, Raw};
use crate::request::makeup::Makeup;
use crate::units::Tokens;

/// Facts of an answer, as far as it was read.
#[derive(Clone, Debug, Default)]
pub struct AnswerFacts {
    /// `id` of the response, at most 256 bytes.
    pub id: Option<Box<str>>,
    /// Model, as the engine names it.
    pub model: Option<Box<str>>,
    /// Distinct finish reasons, in order.
    pub finish_reasons: Vec<Box<str>>,
    /// Token counts of `usage`.
    pub tokens: TokenCounts,
    /// The engine's own times, where it sends them in-band.
    pub engine: Option<EngineTimes>,
    /// The error that the engine answered with, in an event or as a body.
    pub error: Option<EngineError>,
    /// Its message, cut; it may quote the request.
    pub message: Option<Box<str>>,
    /// Whether a unary answer holds text, reasoning, a refusal or a call.
    pub has_content: bool,
    /// Whether a unary answer is a JSON object that ends before its end.
    pub is_cut: bool,
}

/// An error that the engine itself reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineError {
    /// What it means for a retry.
    pub kind: EngineErrorKind,
    /// Its `code`, where that is a status; 400 where there is none and its `type` blames the request.
    pub code: Option<u16>,
}

/// What an engine's error means for a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineErrorKind {
    /// The engine core died: no request of this replica will get on.
    EngineDead,
    /// The engine drains or stops: others will answer.
    ShuttingDown,
    /// Any other error: relayed as the request's own.
    Other,
}

/// Reads a unary answer (or an error body). What cannot be read stays empty.
pub fn of_unary(dialect: Dialect, body: &[u8]) -> AnswerFacts {
    let mut answer = AnswerFacts::default();
    let text = match std::str::from_utf8(body) {
        Ok(text) => text,
        Err(fault) => return AnswerFacts { is_cut: fault.error_len().is_none(), ..answer },
    };
    let (mut is_flat_error, mut is_message) = (false, false);
    // What was read before a fault is no less true.
    let read = Cursor::new(text).object(|key, value| {
        is_message |= dialect == Dialect::Messages && key.escaped() == Some("content");
        match key.escaped().unwrap_or_default() {
            "object" => is_flat_error = value.value()?.text() == FLAT_ERROR,
            "choices" if value.ahead() == JsonKind::Array => answer.note_choices(dialect, value)?,
            "usage" if value.ahead() == JsonKind::Object => answer.note_counts(Usage::read(value)?.counts()),
            name => answer.note_member(dialect, name, value.value()?),
        }
        Ok::<_, JsonError>(())
    });
    let is_object = text.trim_start().starts_with('{');
    // Behind the first byte of a word that is none, as `NaN` is, the object may end as it should.
    let is_at_end = |fault: &JsonError| {
        fault.at + MAX_JSON_TOKEN > text.len() && !text.get(fault.at..).unwrap_or_default().contains('}')
    };
    answer.is_cut = is_object && read.as_ref().is_err_and(is_at_end);
    // vLLM leaves out what is null.
    if is_message && read.is_ok() && answer.finish_reasons.is_empty() {
        answer.note_reason(Some(ABORTED.into()));
    }
    if is_flat_error && answer.error.is_none() {
        answer.note_error(Cursor::new(text).value().ok());
    }
    answer
}

/// What a model wrote in a unary answer, for an estimate of its tokens where the engine counted none.
pub fn text_of_unary(dialect: Dialect, body: &[u8]) -> Makeup {
    let mut text = Makeup::default();
    // What was read before a fault is no less true.
    let body = body.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    let mut add = |value: Raw<'_>| {
        if let Some(value) = value.non_null() {
            text.add(value.escaped().unwrap_or(value.text()));
        }
    };
    let _ = Cursor::new(body).object(|key, value| {
        match (key.escaped().unwrap_or_default(), dialect) {
            ("choices", _) if value.ahead() == JsonKind::Array => each_of_choices(value, |name, value| {
                // Sounds and pictures are no text, and their base64 would count for thousands of tokens.
                if !matches!(name, "finish_reason" | "audio" | "images") {
                    add(value);
                }
            })?,
            ("content", Dialect::Messages) | ("output", Dialect::Responses)
                if value.ahead() == JsonKind::Array =>
            {
                each_text(value, true, &mut add)?;
            }
            _ => {}
        }
        Ok::<_, JsonError>(())
    });
    text
}

/// What was written in items of the messages and responses APIs, and in the parts of these; their types, roles and ids were not.
fn each_text<'a>(
    items: &mut Cursor<'a>,
    has_parts: bool,
    add: &mut impl FnMut(Raw<'a>),
) -> Result<(), JsonError> {
    items.array(|item| {
        if item.ahead() != JsonKind::Object {
            return item.value().map(drop);
        }
        item.object(|key, value| {
            match key.escaped() {
                Some("text" | "thinking" | "refusal" | "input" | "arguments") => add(value.value()?),
                Some("content" | "summary") if has_parts && value.ahead() == JsonKind::Array => {
                    each_text(value, false, add)?;
                }
                _ => {}
            }
            Ok(())
        })
    })
}

/// Finish reason and content of every choice of a unary answer, by the names of their members.
fn each_of_choices(
    choices: &mut Cursor<'_>,
    mut note: impl FnMut(&'static str, Raw<'_>),
) -> Result<(), JsonError> {
    choices.array(|choice| {
        if choice.ahead() != JsonKind::Object {
            return choice.value().map(drop);
        }
        choice.object(|key, value| {
            match key.escaped() {
                Some("finish_reason") => note("finish_reason", value.value()?),
                Some("text") => note("text", value.value()?),
                Some("message") if value.ahead() == JsonKind::Object => {
                    let members = CONTENT.into_iter().zip(value.members(CONTENT)?);
                    members.for_each(|(name, member)| {
                        if let Some(member) = member {
                            note(name, member);
                        }
                    });
                }
                _ => {}
            }
            Ok(())
        })
    })
}

impl AnswerFacts {
    fn note_member(&mut self, dialect: Dialect, name: &str, value: Raw<'_>) {
        match (name, dialect) {
            ("id", _) => self.note_id(Some(value)),
            ("model", _) => self.note_model(Some(value)),
            ("usage", _) => self.note_usage(Some(value)),
            ("metrics", _) => self.note_engine_times(value.non_null()),
            ("error", _) => {
                if let Some(error) = value.non_null().filter(Raw::is_filled) {
                    self.note_error(Some(error));
                }
            }
            // vLLM's translation has no word for an answer that it gave up.
            ("stop_reason", Dialect::Messages) => {
                self.note_reason(Some(value.string().unwrap_or(ABORTED.into())));
            }
            ("content", Dialect::Messages) | ("output", Dialect::Responses) => {
                self.has_content = value.non_null().is_some_and(|value| value.is_filled());
            }
            ("status", Dialect::Responses) if self.finish_reasons.is_empty() => {
                self.note_reason(value.string());
            }
            // More precise than the status, wherever it stands.
            ("incomplete_details", Dialect::Responses) => {
                if let [Some(reason)] = value.members(["reason"]) {
                    self.finish_reasons.clear();
                    self.note_reason(reason.string());
                }
            }
            _ => {}
        }
    }

    fn note_choices(&mut self, dialect: Dialect, choices: &mut Cursor<'_>) -> Result<(), JsonError> {
        let has_reasons = matches!(dialect, Dialect::Chat | Dialect::ChatBatch | Dialect::Completions);
        each_of_choices(choices, |name, value| match name {
            "finish_reason" if !has_reasons => {}
            "finish_reason" => self.note_reason(value.string()),
            _ => self.has_content |= value.non_null().is_some_and(|value| value.is_filled()),
        })
    }

    pub(super) fn note_id(&mut self, id: Option<Raw<'_>>) {
        note_string(&mut self.id, id.and_then(|id| id.string()));
    }

    pub(super) fn note_model(&mut self, model: Option<Raw<'_>>) {
        note_string(&mut self.model, model.and_then(|model| model.string()));
    }

    pub(super) fn note_reason(&mut self, reason: Option<Cow<'_, str>>) {
        if let Some(reason) = reason.filter(|r| r.len() <= MAX_REASON_LEN) {
            let is_new = self.finish_reasons.iter().all(|known| **known != *reason);
            if is_new && self.finish_reasons.len() < MAX_REASONS {
                self.finish_reasons.push(reason.into());
            }
        }
    }

    /// The responses API has a status and a reason for being incomplete instead of a finish reason.
    pub(super) fn note_status(&mut self, status: Option<Raw<'_>>, incomplete: Option<Raw<'_>>) {
        let [reason] = incomplete.map_or([None], |details| details.members(["reason"]));
        self.note_reason(reason.or(status).and_then(|reason| reason.string()));
    }

    /// Merges a `usage` object: what it leaves out keeps its earlier value.
    pub(super) fn note_usage(&mut self, usage: Option<Raw<'_>>) {
        if let Some(usage) = usage.and_then(Usage::of) {
            self.note_counts(usage.counts());
        }
    }

    /// The same at the start of an answer: its output tokens, none or one, are no count of what follows.
    pub(super) fn note_prompt_usage(&mut self, usage: Option<Raw<'_>>) {
        if let Some(usage) = usage.and_then(Usage::of) {
            self.note_counts(TokenCounts { output: None, ..usage.counts() });
        }
    }

    fn note_counts(&mut self, counts: TokenCounts) {
        let tokens = &mut self.tokens;
        // A prompt does not shrink: the last usage of Anthropic's messages may leave out what was cached of it.
        tokens.input = counts.input.max(tokens.input);
        tokens.cached = counts.cached.or(tokens.cached);
        tokens.output = counts.output.or(tokens.output);
    }

    pub(super) fn note_engine_times(&mut self, metrics: Option<Raw<'_>>) {
        let names = ["queue_time_ms", "time_to_first_token_ms", "generation_time_ms"];
        if let Some(Ok([queue, first_token, generation])) = metrics.map(|raw| raw.cursor().members(names)) {
            self.engine = Some(EngineTimes {
                queue: queue.and_then(millis),
                prefill: None,
                first_token: first_token.and_then(millis),
                generation: generation.and_then(millis),
            });
        }
    }

    /// Whether the model ended every choice by itself: neither a limit nor a filter did, and it calls no tool.
    pub fn has_stopped(&self) -> bool {
        self.finish_reasons.iter().all(|reason| STOPPED.contains(&&**reason))
    }

    /// Whether the engine gave the request up: told by the finish reason of a choice.
    pub fn is_aborted(&self) -> bool {
        self.finish_reasons.iter().any(|reason| **reason == *ABORTED)
    }

    /// The engine gave up a request that its client still waits for.
    pub(super) fn note_abort(&mut self) -> EngineError {
        *self.error.get_or_insert(EngineError { kind: EngineErrorKind::ShuttingDown, code: None })
    }

    /// Keeps the first error: later ones follow from it.
    pub(super) fn note_error(&mut self, error: Option<Raw<'_>>) -> EngineError {
        let message = error.and_then(message_of);
        let error = error.map_or(EngineError { kind: EngineErrorKind::Other, code: None }, EngineError::of);
        if self.error.is_none() && !error.is_of_request() {
            self.message = message.map(|message| cut(&message, MAX_MESSAGE_LEN).into());
        }
        *self.error.get_or_insert(error)
    }
}

impl EngineError {
    /// Reads an error object, or a bare message.
    fn of(error: Raw<'_>) -> Self {
        let [code, kind] = error.members(["code", "type"]);
        let message = message_of(error).unwrap_or_default();
        let code = code.and_then(|code| code.text().trim_matches('"').parse().ok());
        // Errors of the messages API have no code.
        let kind = kind.and_then(|kind| kind.escaped()).filter(|kind| REJECTIONS.contains(kind));
        let code = code.or(kind.map(|_| 400));
        Self { kind: EngineErrorKind::of(&message, code), code }
    }

    /// The failure of its replica; `None` where others of it may get on.
    pub fn of_engine(self, replica: &Arc<str>) -> Option<ReplicaFailure> {
        let is_orderly = self.kind == EngineErrorKind::ShuttingDown;
        let replica = Arc::clone(replica);
        (self.kind != EngineErrorKind::Other).then_some(ReplicaFailure::EngineDown { replica, is_orderly })
    }

    /// Whether the engine blames the request.
    pub fn is_of_request(&self) -> bool {
        self.code.is_some_and(|code| (400..500).contains(&code))
    }
}

impl EngineErrorKind {
    /// Judges an engine's error by its code and its whole message: a message may quote the client or the model.
    fn of(message: &str, code: Option<u16>) -> Self {
        match message {
            _ if code.is_some_and(|code| code < 500) => Self::Other,
            DEAD | DEAD_V0 => Self::EngineDead,
            STOPPING | EXITING => Self::ShuttingDown,
            _ => Self::Other,
        }
    }
}

/// Any dialect's `usage` object.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    total_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cached_tokens: Option<u64>,
}

impl Usage {
    pub(super) fn of(object: Raw<'_>) -> Option<Self> {
        Self::read(&mut object.cursor()).ok()
    }

    /// Takes the object ahead.
    fn read(object: &mut Cursor<'_>) -> Result<Self, JsonError> {
        let mut usage = Self::default();
        object.object(|key, value| {
            let slot = match key.escaped().unwrap_or_default() {
                "prompt_tokens" => &mut usage.prompt_tokens,
                "completion_tokens" => &mut usage.completion_tokens,
                "input_tokens" => &mut usage.input_tokens,
                "output_tokens" => &mut usage.output_tokens,
                "total_tokens" => &mut usage.total_tokens,
                "cache_read_input_tokens" => &mut usage.cache_read_input_tokens,
                "cache_creation_input_tokens" => &mut usage.cache_creation_input_tokens,
                "prompt_tokens_details" | "input_tokens_details" if value.ahead() == JsonKind::Object => {
                    return value.object(|key, value| {
                        if key.escaped() == Some("cached_tokens") {
                            usage.cached_tokens = count(value.value()?);
                        }
                        Ok(())
                    });
                }
                _ => return Ok(()),
            };
            *slot = count(value.value()?);
            Ok::<_, JsonError>(())
        })?;
        Ok(usage)
    }

    /// Generated tokens so far.
    pub(super) fn output(&self) -> Option<u64> {
        self.completion_tokens.or(self.output_tokens)
    }

    pub(super) fn counts(&self) -> TokenCounts {
        // Anthropic counts what was read from or written to the cache beside `input_tokens`, the others within.
        let [read, created] = [self.cache_read_input_tokens, self.cache_creation_input_tokens];
        let beside = read.unwrap_or(0).saturating_add(created.unwrap_or(0));
        // Other engines' reranks have the total alone.
        let rest = || self.total_tokens.map(|n| n.saturating_sub(self.output().unwrap_or(0)));
        let input = self.prompt_tokens.or(self.input_tokens.map(|n| n.saturating_add(beside)));
        TokenCounts {
            input: input.or_else(rest).map(Tokens),
            cached: self.cached_tokens.or(self.cache_read_input_tokens).map(Tokens),
            output: self.output().map(Tokens),
        }
    }
}

/// The message of an error object, or a bare one.
fn message_of(error: Raw<'_>) -> Option<Cow<'_, str>> {
    error.string().or_else(|| {
        let [message] = error.members(["message"]);
        message?.string()
    })
}

fn note_string(slot: &mut Option<Box<str>>, text: Option<Cow<'_, str>>) {
    if slot.is_none() {
        *slot = text.filter(|s| !s.is_empty() && s.len() <= MAX_NAME_LEN).map(Into::into);
    }
}

/// A whole number of tokens; `None` for `null` and for what is none. Sums of them are kept for months.
fn count(value: Raw<'_>) -> Option<u64> {
    value.text().parse().ok().filter(|tokens| *tokens <= MOST_TOKENS)
}

/// A thousand times what the longest context holds.
const MOST_TOKENS: u64 = 1 << 34;

/// A JSON number of milliseconds.
fn millis(value: Raw<'_>) -> Option<Duration> {
    let ms: f64 = value.text().parse().ok()?;
    Duration::try_from_secs_f64(ms / 1e3).ok()
}

/// What of a chat's message, or of a delta, is content: thinking is what other engines than vLLM call reasoning, sounds and pictures are of
/// models that speak and draw.
pub(super) const CONTENT: [&str; 9] = [
    "content", "reasoning", "reasoning_content", "thinking", "refusal", "tool_calls", "function_call",
    "audio", "images",
];
/// Finish reasons of an answer that its model ended, in the dialects' words.
const STOPPED: [&str; 3] = ["stop", "end_turn", "completed"];
const MAX_MESSAGE_LEN: usize = 512;
const MAX_NAME_LEN: usize = 256;
const MAX_REASON_LEN: usize = 64;
const MAX_REASONS: usize = 8;
/// Bytes of a literal or an escape of JSON, which a cut leaves unfinished.
const MAX_JSON_TOKEN: usize = 6;
/// The `EngineDeadError` of vLLM, and that of its former engine.
const DEAD: &str = "EngineCore encountered an issue. See stack trace (above) for the root cause.";
const DEAD_V0: &str = "Background loop has errored already.";
/// What Python's executors say to the API server of an engine that is going down.
const STOPPING: &str = "cannot schedule new futures after shutdown";
const EXITING: &str = "cannot schedule new futures after interpreter shutdown";
/// Types of errors that are the request's: of Anthropic, and as vLLM writes it.
const REJECTIONS: [&str; 2] = ["invalid_request_error", "BadRequestError"];
/// Finish reason with which vLLM ends what it does not finish when it shuts down, with `[DONE]` and a complete body.
pub(super) const ABORTED: &str = "abort";

/// `object` of an error without a member `error`: vLLM before 0.10, SGLang, LMDeploy, TensorRT-LLM.
pub(super) const FLAT_ERROR: &str = "\"error\"";

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(answer: &AnswerFacts) -> [Option<u64>; 3] {
        [answer.tokens.input, answer.tokens.cached, answer.tokens.output].map(|n| n.map(|n| n.0))
    }

    #[test]
    fn usage_of_every_dialect_counts_cached_tokens_as_input() {
        let openai = r#"{"id":"a","model":"m","choices":[{"finish_reason":"stop"},{"finish_reason":"length"}],
            "usage":{"prompt_tokens":734,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":640}},
            "metrics":{"queue_time_ms":1.5,"generation_time_ms":null}}"#;
        let messages = r#"{"id":"a","model":"m","stop_reason":"stop","usage":{"input_tokens":94,
            "output_tokens":4,"cache_creation_input_tokens":0,"cache_read_input_tokens":640}}"#;
        let responses = r#"{"id":"a","model":"m","status":"completed","incomplete_details":null,
            "usage":{"input_tokens":734,"input_tokens_details":{"cached_tokens":640},"output_tokens":4}}"#;
        let cases: [(Dialect, &str, &[&str]); 3] = [
            (Dialect::Chat, openai, &["stop", "length"]),
            (Dialect::Messages, messages, &["stop"]),
            (Dialect::Responses, responses, &["completed"]),
        ];
        for (dialect, body, reasons) in cases {
            let answer = of_unary(dialect, body.as_bytes());
            assert_eq!(counts(&answer), [Some(734), Some(640), Some(4)], "{dialect:?}");
            assert_eq!(answer.id.as_deref(), Some("a"));
            assert_eq!(answer.model.as_deref(), Some("m"));
            assert!(answer.finish_reasons.iter().map(|r| &**r).eq(reasons.iter().copied()), "{dialect:?}");
        }
        let engine = of_unary(Dialect::Chat, openai.as_bytes()).engine.unwrap();
        assert_eq!(engine.queue, Some(Duration::from_micros(1500)));
        assert_eq!(engine.generation, None);
    }

    #[test]
    fn counts_that_no_engine_can_mean_are_none() {
        let answer = |output: u64| {
            format!(r#"{{"choices":[],"usage":{{"prompt_tokens":5,"completion_tokens":{output}}}}}"#)
        };
        for (output, counted) in [(7, Some(7)), (u64::MAX, None), (9_007_199_254_740_993, None)] {
            let facts = of_unary(Dialect::Chat, answer(output).as_bytes());
            assert_eq!(counts(&facts), [Some(5), None, counted], "{output}");
        }
    }

    #[test]
    fn error_bodies_are_told_apart() {
        use EngineErrorKind::{EngineDead, Other, ShuttingDown};
        let cases = [
            (
                r#"{"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause.","code":500}}"#,
                EngineDead,
                Some(500),
            ),
            (
                r#"{"object":"error","message":"EngineCore encountered an issue. See stack trace (above) for the root cause.","code":500}"#,
                EngineDead,
                Some(500),
            ),
            (r#"{"error":"cannot schedule new futures after interpreter shutdown"}"#, ShuttingDown, None),
            (
                r#"{"error":{"message":"cannot schedule new futures after shutdown","code":500}}"#,
                ShuttingDown,
                Some(500),
            ),
            (r#"{"error":{"message":"bad \"x\"","code":"429"}}"#, Other, Some(429)),
            (r#"{"type":"error","error":{"type":"invalid_request_error","message":"x"}}"#, Other, Some(400)),
            (
                r#"{"error":{"message":"cannot schedule new futures after shutdown","code":400}}"#,
                Other,
                Some(400),
            ),
            (
                r#"{"type":"error","error":{"type":"api_error","message":"EngineDeadError: the pool is draining"}}"#,
                Other,
                None,
            ),
            (r#"{"error":"overloaded"}"#, Other, None),
            (r#"{"error":[1]}"#, Other, None),
        ];
        for (body, kind, code) in cases {
            let error = of_unary(Dialect::Chat, body.as_bytes()).error;
            assert_eq!(error, Some(EngineError { kind, code }), "{body}");
        }
    }

    #[test]
    fn odd_bodies_tell_nothing_and_nothing_long_is_kept() {
        let long =
            format!(r#"{{"id":"{0}","model":"{0}","choices":[{{"finish_reason":"{0}"}}]}}"#, "x".repeat(999));
        for body in ["", "[]", "null", "{", r#"{"id":7,"usage":[],"choices":null}"#, r#"{"usage":{}}"#, &long]
        {
            let answer = of_unary(Dialect::Chat, body.as_bytes());
            assert!(
                answer.id.is_none() && answer.model.is_none() && answer.finish_reasons.is_empty(),
                "{body}"
            );
            assert_eq!(counts(&answer), [None; 3], "{body}");
        }
    }
}
