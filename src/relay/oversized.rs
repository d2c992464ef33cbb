//! Events too long to be kept whole, judged by their first and last 64 KiB.
//!
//! Nothing an engine sends in ordinary work is that long; a whole response repeated at the end of a responses stream
//! may be. Keys are searched for as text, which is safe without the JSON around them: inside a string a quote is
//! escaped, so `"usage":` can only be a key.

use crate::relay::frame::SseFields;
use crate::relay::stream_state::{Event, StreamState};
use crate::request::dialect::Dialect;
use crate::request::json::{Cursor, Raw};

/// Reads an event of which `head` and `tail` are known.
pub(super) fn read(state: &mut StreamState, head: &[u8], tail: &[u8], emit: &mut dyn FnMut(Event)) {
    let mut joined = Vec::new();
    let name = String::from_utf8_lossy(SseFields::of(head, &mut joined).name);
    let (head, tail) = (String::from_utf8_lossy(head), String::from_utf8_lossy(tail));
    match state.dialect() {
        Dialect::Chat | Dialect::Completions => chunk(state, &head, &tail, emit),
        Dialect::Messages | Dialect::Responses => typed(state, &name, &head, &tail, emit),
        _ => emit(Event::Other),
    }
}

fn chunk(state: &mut StreamState, head: &str, tail: &str, emit: &mut dyn FnMut(Event)) {
    let error = value_of("error", head);
    if error.is_some() {
        return state.error(error, emit);
    }
    let choice = value_of("index", head).and_then(|index| index.text().parse().ok()).unwrap_or(0);
    // What fills a megabyte is text; the only such text that is not generated is a prompt's echo.
    if head.contains("\"choices\"") && state.ends_echo(choice) {
        emit(Event::Content { choice, tokens: None });
    }
    if let Some(reason) = value_of("finish_reason", tail).filter(|reason| reason.string().is_some()) {
        state.finish(choice, reason, emit);
    }
    state.answer.note_usage(value_of("usage", tail));
}

fn typed(state: &mut StreamState, name: &str, head: &str, tail: &str, emit: &mut dyn FnMut(Event)) {
    let kind = match value_of("type", tail).and_then(|kind| kind.string()) {
        Some(kind) if name.is_empty() => kind,
        _ => name.into(),
    };
    if matches!(&*kind, "response.completed" | "response.incomplete") {
        state.answer.note_usage(value_of("usage", tail));
        state.answer.note_status(value_of("status", tail), None);
        emit(Event::Finish { choice: 0 });
        state.done(emit);
    } else if kind.ends_with(".delta") || kind == "content_block_delta" {
        emit(Event::Content { choice: 0, tokens: None });
    } else {
        emit(Event::Other);
    }
    if let Some(number) = [tail, head].iter().find_map(|end| value_of("sequence_number", end)) {
        state.next_sequence = number.text().parse::<u64>().unwrap_or(0).saturating_add(1);
    }
}

/// The value of the last such key that stands whole in `text`.
fn value_of<'a>(key: &str, text: &'a str) -> Option<Raw<'a>> {
    let key = format!("\"{key}\"");
    text.rmatch_indices(&key).find_map(|(at, _)| {
        let value = text.get(at + key.len()..)?.trim_start().strip_prefix(':')?;
        Cursor::new(value).value().ok()
    })
}
