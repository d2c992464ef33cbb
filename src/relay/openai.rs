//! Chunks of `/v1/chat/completions` and `/v1/completions`.
//!
//! Every field is read leniently: engines differ in what they leave out, send as null or add. A chunk that is no
//! JSON object of this shape is [`Event::Other`]. Nothing is unescaped or allocated for an ordinary chunk.

use smallvec::SmallVec;

use crate::relay::stream_state::{ContentValues, Counts, Event, PlainContent, StreamState};
use crate::relay::usage::Usage;
use crate::request::json::{Cursor, JsonError, JsonKind, Raw};
use crate::units::Tokens;

pub(super) fn read<'a>(
    state: &mut StreamState,
    data: &'a str,
    emit: &mut dyn FnMut(Event),
) -> Option<PlainContent<'a>> {
    let Ok(chunk) = Chunk::read(data) else {
        emit(Event::Other);
        return None;
    };
    if chunk.error.is_some() {
        state.error(chunk.error, emit);
        return None;
    }
    state.answer.note_id(chunk.id);
    state.answer.note_model(chunk.model);
    state.answer.note_engine_times(chunk.metrics);

    let choices = chunk.choices;
    let is_plain = choices.len() == 1 && chunk.usage.is_none();
    let running = chunk.usage.filter(|_| choices.len() == 1).and_then(Usage::of).and_then(|u| u.output());
    let mut has_emitted = false;
    let mut plain = None;
    for choice in &choices {
        let facts = read_choice(state, choice, running, emit);
        has_emitted |= facts.is_content || facts.is_finish;
        plain = facts.plain.filter(|_| is_plain);
    }
    if chunk.usage.is_some() {
        state.answer.note_usage(chunk.usage);
        if choices.is_empty() {
            emit(Event::Usage);
            has_emitted = true;
        } else if running.is_some() {
            // The engine counts by choice here; the chunk that closes the stream counts them all.
            state.answer.tokens.output = Some(Tokens(state.running_total()));
        }
    }
    if !has_emitted {
        emit(Event::Other);
    }
    plain
}

struct ChoiceFacts<'a> {
    is_content: bool,
    is_finish: bool,
    plain: Option<PlainContent<'a>>,
}

fn read_choice<'a>(
    state: &mut StreamState,
    choice: &ChunkChoice<'a>,
    running: Option<u64>,
    emit: &mut dyn FnMut(Event),
) -> ChoiceFacts<'a> {
    let index = choice.index.and_then(|index| index.text().parse().ok()).unwrap_or(0);
    let counts = Counts { ids: choice.token_ids.and_then(array_len), usage: running };
    let values = choice.values();
    let mut is_content = values.is_content();
    let mut tokens = None;
    if let Some(choice_state) = state.choice(index) {
        choice_state.count(counts);
        is_content = is_content && choice_state.is_generated(&values);
        if is_content {
            tokens = choice_state.take_tokens(counts);
        }
    }
    if is_content {
        emit(Event::Content { choice: index, tokens });
    }
    let finish = choice.finish_reason.filter(|reason| reason.text() != "\"\"");
    if let Some(reason) = finish {
        state.finish(index, reason, emit);
    }
    let is_plain = is_content && tokens.is_none() && finish.is_none();
    let plain =
        values.only_string().filter(|_| is_plain).map(|string| PlainContent { string, choice: index });
    ChoiceFacts { is_content, is_finish: finish.is_some(), plain }
}

impl<'a> ChunkChoice<'a> {
    fn values(&self) -> ContentValues<'a> {
        let mut values = ContentValues::default();
        values.add(self.text);
        values.add(self.delta.content);
        values.add(self.delta.reasoning);
        values.add(self.delta.reasoning_content);
        values.add(self.delta.refusal);
        if let Some(calls) = self.delta.tool_calls {
            // A fault means that it is no array of objects: then it carries nothing.
            let _ = calls.cursor().array(|call| {
                let [function] = call.members(["function"])?;
                add_function(&mut values, function);
                Ok::<_, JsonError>(())
            });
        }
        add_function(&mut values, self.delta.function_call);
        values
    }
}

fn add_function<'a>(values: &mut ContentValues<'a>, function: Option<Raw<'a>>) {
    for value in function.map_or([None; 2], |function| function.members(["name", "arguments"])) {
        values.add(value);
    }
}

/// Length of a JSON array of numbers.
fn array_len(array: Raw<'_>) -> Option<u64> {
    let inner = array.text().strip_prefix('[')?.strip_suffix(']')?.trim_ascii();
    let commas = memchr::memchr_iter(b',', inner.as_bytes()).count();
    Some(if inner.is_empty() { 0 } else { u64::try_from(commas).ok()?.saturating_add(1) })
}

/// The members that matter here, `None` where absent or `null`.
#[derive(Default)]
struct Chunk<'a> {
    id: Option<Raw<'a>>,
    model: Option<Raw<'a>>,
    choices: SmallVec<[ChunkChoice<'a>; 1]>,
    usage: Option<Raw<'a>>,
    error: Option<Raw<'a>>,
    metrics: Option<Raw<'a>>,
}

#[derive(Default)]
struct ChunkChoice<'a> {
    index: Option<Raw<'a>>,
    delta: ChunkDelta<'a>,
    text: Option<Raw<'a>>,
    finish_reason: Option<Raw<'a>>,
    token_ids: Option<Raw<'a>>,
}

#[derive(Default)]
struct ChunkDelta<'a> {
    content: Option<Raw<'a>>,
    reasoning: Option<Raw<'a>>,
    reasoning_content: Option<Raw<'a>>,
    refusal: Option<Raw<'a>>,
    tool_calls: Option<Raw<'a>>,
    function_call: Option<Raw<'a>>,
}

// One pass over the whole chunk: taking members out and state them again costs half as much on top.
impl<'a> Chunk<'a> {
    fn read(data: &'a str) -> Result<Self, JsonError> {
        let mut chunk = Self::default();
        let mut cursor = Cursor::new(data);
        cursor.object(|key, value| {
            let slot = match key.escaped().unwrap_or_default() {
                "id" => &mut chunk.id,
                "model" => &mut chunk.model,
                "usage" => &mut chunk.usage,
                "error" => &mut chunk.error,
                "metrics" => &mut chunk.metrics,
                "choices" if value.ahead() == JsonKind::Array => {
                    chunk.choices.clear();
                    return value.array(|choice| {
                        if choice.ahead() == JsonKind::Object {
                            chunk.choices.push(ChunkChoice::read(choice)?);
                        }
                        Ok(())
                    });
                }
                _ => return Ok(()),
            };
            *slot = value.value()?.non_null();
            Ok::<_, JsonError>(())
        })?;
        cursor.end()?;
        Ok(chunk)
    }
}

impl<'a> ChunkChoice<'a> {
    fn read(cursor: &mut Cursor<'a>) -> Result<Self, JsonError> {
        let mut choice = Self::default();
        cursor.object(|key, value| {
            let slot = match key.escaped().unwrap_or_default() {
                "index" => &mut choice.index,
                "text" => &mut choice.text,
                "finish_reason" => &mut choice.finish_reason,
                "token_ids" => &mut choice.token_ids,
                "delta" if value.ahead() == JsonKind::Object => {
                    choice.delta = ChunkDelta::read(value)?;
                    return Ok(());
                }
                _ => return Ok(()),
            };
            *slot = value.value()?.non_null();
            Ok::<_, JsonError>(())
        })?;
        Ok(choice)
    }
}

impl<'a> ChunkDelta<'a> {
    fn read(cursor: &mut Cursor<'a>) -> Result<Self, JsonError> {
        let mut delta = Self::default();
        cursor.object(|key, value| {
            let slot = match key.escaped().unwrap_or_default() {
                "content" => &mut delta.content,
                "reasoning" => &mut delta.reasoning,
                "reasoning_content" => &mut delta.reasoning_content,
                "refusal" => &mut delta.refusal,
                "tool_calls" => &mut delta.tool_calls,
                "function_call" => &mut delta.function_call,
                _ => return Ok(()),
            };
            *slot = value.value()?.non_null();
            Ok::<_, JsonError>(())
        })?;
        Ok(delta)
    }
}
