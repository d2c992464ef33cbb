//! Events of `/v1/messages`, `/v1/responses` and OpenAI's transcriptions: each names its type, in `event:` and in its JSON.
//!
//! These streams have one choice, no `[DONE]`, and an event that ends them. Only deltas are content: the `done` and
//! `completed` events repeat what was sent.

use crate::relay::stream_state::{ContentValues, Event, PlainContent, StreamState};
use crate::request::dialect::Dialect;
use crate::request::json::{Cursor, JsonError, Raw};

pub(super) fn read<'a>(
    state: &mut StreamState,
    name: &'a [u8],
    data: &'a str,
    emit: &mut dyn FnMut(Event),
) -> Option<PlainContent<'a>> {
    let Ok(event) = TypedEvent::read(data) else {
        emit(Event::Other);
        return None;
    };
    let kind = event.kind.and_then(|kind| kind.string()).unwrap_or_else(|| String::from_utf8_lossy(name));
    if kind.is_empty() || kind == "error" {
        // Engines put the message beside the type or into an `error` object.
        match event.error.or((kind == "error").then_some(event.whole)) {
            Some(error) => state.error(Some(error), emit),
            None if state.dialect() == Dialect::Audio => return segment(state, emit),
            None => emit(Event::Other),
        }
        return None;
    }
    match state.dialect() {
        Dialect::Messages => message(state, &kind, &event, emit),
        Dialect::Audio => transcript(state, &kind, &event, emit),
        _ => response(state, &kind, &event, emit),
    }
}

fn message<'a>(
    state: &mut StreamState,
    kind: &str,
    event: &TypedEvent<'a>,
    emit: &mut dyn FnMut(Event),
) -> Option<PlainContent<'a>> {
    match kind {
        "content_block_delta" => {
            let mut values = ContentValues::default();
            if let Some(delta) = event.delta {
                for text in delta.members(["text", "thinking", "partial_json"]) {
                    values.add(text);
                }
            }
            return content(state, &values, emit);
        }
        "message_start" => {
            if let Some(start) = event.message {
                let [id, model, usage] = start.members(["id", "model", "usage"]);
                state.answer.note_id(id);
                state.answer.note_model(model);
                state.answer.note_prompt_usage(usage);
            }
            state.choice(0);
            emit(Event::Other);
        }
        "message_delta" => {
            state.answer.note_usage(event.usage);
            let [stop_reason] = event.delta.map_or([None], |delta| delta.members(["stop_reason"]));
            match stop_reason {
                Some(reason) => state.finish(0, reason, emit),
                None => emit(Event::Other),
            }
        }
        "content_block_start" => emit(begun(event, "content_block", "tool_use")),
        // Without a reason the engine gave the answer up: vLLM's translation has no word for that.
        "message_stop" if !state.is_finished() => state.aborted(emit),
        "message_stop" => state.done(emit),
        _ => emit(Event::Other),
    }
    None
}

fn response<'a>(
    state: &mut StreamState,
    kind: &str,
    event: &TypedEvent<'a>,
    emit: &mut dyn FnMut(Event),
) -> Option<PlainContent<'a>> {
    if let Some(number) = event.sequence_number.and_then(|raw| raw.text().parse::<u64>().ok()) {
        // The engine's own failure is withheld: the gateway's takes its number.
        let is_withheld = kind == "response.failed";
        state.next_sequence = number.saturating_add(u64::from(!is_withheld));
    }
    if kind.starts_with("response.") && kind.ends_with(".delta") {
        return delta(state, event, emit);
    }
    match kind {
        "response.created" | "response.queued" | "response.in_progress" if state.answer.id.is_none() => {
            if let Some(whole) = event.response {
                let [id, model] = whole.members(["id", "model"]);
                state.answer.note_id(id);
                state.answer.note_model(model);
            }
            state.choice(0);
            emit(Event::Other);
        }
        "response.completed" | "response.incomplete" | "response.cancelled" => {
            if let Some(whole) = event.response {
                let [id, model, status, incomplete, usage] =
                    whole.members(["id", "model", "status", "incomplete_details", "usage"]);
                state.answer.note_id(id);
                state.answer.note_model(model);
                state.answer.note_status(status, incomplete);
                state.answer.note_usage(usage);
            }
            state.done(emit);
        }
        "response.output_item.added" => emit(begun(event, "item", "function_call")),
        "response.failed" => {
            let [error] = event.response.map_or([None], |whole| whole.members(["error"]));
            state.error(error.or(event.response), emit);
        }
        _ => emit(Event::Other),
    }
    None
}

fn transcript<'a>(
    state: &mut StreamState,
    kind: &str,
    event: &TypedEvent<'a>,
    emit: &mut dyn FnMut(Event),
) -> Option<PlainContent<'a>> {
    match kind {
        "transcript.text.delta" => return delta(state, event, emit),
        "transcript.text.done" => {
            state.answer.note_usage(event.usage);
            state.finished(0, emit);
            state.done(emit);
        }
        _ => emit(Event::Other),
    }
    None
}

/// A piece of a transcription as faster-whisper's server and its forks send it: JSON with `text`, or the text itself. Their streams
/// end with their body.
pub(super) fn segment<'a>(state: &mut StreamState, emit: &mut dyn FnMut(Event)) -> Option<PlainContent<'a>> {
    state.is_untyped = true;
    emit(Event::Content { choice: 0, tokens: None });
    None
}

/// An item begins: content where it is a tool call, which has its name from here on.
fn begun(event: &TypedEvent<'_>, item: &str, call: &str) -> Event {
    let of_item = |raw: Raw<'_>| {
        let [kind, name] = raw.cursor().members(["type", "name"]).ok()?;
        Some(kind?.string()? == call && name.is_some_and(|name| name.is_filled()))
    };
    let found = event.whole.cursor().members([item]).ok().and_then(|[raw]| of_item(raw?));
    if found == Some(true) { Event::Content { choice: 0, tokens: None } } else { Event::Other }
}

/// Content that an event carries as its whole `delta`.
fn delta<'a>(
    state: &mut StreamState,
    event: &TypedEvent<'a>,
    emit: &mut dyn FnMut(Event),
) -> Option<PlainContent<'a>> {
    let mut values = ContentValues::default();
    values.add(event.delta);
    content(state, &values, emit)
}

fn content<'a>(
    state: &mut StreamState,
    values: &ContentValues<'a>,
    emit: &mut dyn FnMut(Event),
) -> Option<PlainContent<'a>> {
    if !values.is_content() {
        emit(Event::Other);
        return None;
    }
    state.text_bytes += values.bytes();
    emit(Event::Content { choice: 0, tokens: None });
    values.only_string().map(|string| PlainContent { string, choice: 0 })
}

/// The members of an event that matter here, `None` where absent or `null`.
struct TypedEvent<'a> {
    whole: Raw<'a>,
    kind: Option<Raw<'a>>,
    delta: Option<Raw<'a>>,
    message: Option<Raw<'a>>,
    usage: Option<Raw<'a>>,
    error: Option<Raw<'a>>,
    response: Option<Raw<'a>>,
    sequence_number: Option<Raw<'a>>,
}

impl<'a> TypedEvent<'a> {
    fn read(data: &'a str) -> Result<Self, JsonError> {
        let mut cursor = Cursor::new(data);
        let whole = cursor.value()?;
        cursor.end()?;
        let names = ["type", "delta", "message", "usage", "error", "response", "sequence_number"];
        let [kind, delta, message, usage, error, response, sequence_number] =
            whole.cursor().members(names)?;
        Ok(Self { whole, kind, delta, message, usage, error, response, sequence_number })
    }
}
