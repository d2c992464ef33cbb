//! Events too long to be kept whole, judged by their first and last 64 KiB.
//!
//! Nothing an engine sends in ordinary work is that long; a whole response repeated at the end of a responses stream
//! may be, with the tools and the metadata of its request in it. So a key counts only where it stands at its depth: from the head
//! brackets are counted forwards, from the tail backwards.

use crate::relay::chunk::{ChoiceView, ChunkView};
use crate::relay::frame::SseFields;
use crate::relay::stream_state::{Event, StreamState};
use crate::request::dialect::Dialect;
use crate::request::json::{Cursor, JsonError, Raw};

/// Reads an event of which `head` and `tail` are known.
pub(super) fn read(state: &mut StreamState, head: &[u8], tail: &[u8], emit: &mut dyn FnMut(Event)) {
    let mut joined = Vec::new();
    let fields = SseFields::of(head, &mut joined);
    let name = String::from_utf8_lossy(fields.name);
    let head = String::from_utf8_lossy(fields.data.unwrap_or_default());
    let tail = String::from_utf8_lossy(tail);
    match state.dialect() {
        Dialect::Chat | Dialect::Completions | Dialect::Audio => chunk(state, &head, &tail, emit),
        Dialect::Messages | Dialect::Responses => typed(state, &name, &head, &tail, emit),
        _ => emit(Event::Other),
    }
}

fn chunk(state: &mut StreamState, head: &str, tail: &str, emit: &mut dyn FnMut(Event)) {
    let start = ChunkView::of_head(head);
    if start.error.is_some() {
        return state.error(start.error, emit);
    }
    let choice = start.choices.last().map_or(0, ChoiceView::index);
    // What fills a megabyte is text; the only such text that is not generated is a prompt's echo.
    if start.choice_count.is_some() && state.ends_echo(choice) {
        state.text_bytes += (head.len() + tail.len()) as u64;
        emit(Event::Content { choice, tokens: None });
    }
    let reason = value_of("finish_reason", CHOICE, tail).filter(|reason| reason.string().is_some());
    if let Some(reason) = reason {
        state.finish(choice, reason, emit);
    }
    state.answer.note_usage(value_of("usage", EVENT, tail));
}

fn typed(state: &mut StreamState, name: &str, head: &str, tail: &str, emit: &mut dyn FnMut(Event)) {
    let [own_kind, number] =
        ["type", "sequence_number"].map(|key| value_of(key, EVENT, tail).or_else(|| member_of(key, head)));
    let kind = match own_kind.and_then(|kind| kind.string()) {
        Some(kind) if name.is_empty() => kind,
        _ => name.into(),
    };
    if matches!(&*kind, "response.completed" | "response.incomplete") {
        state.answer.note_usage(value_of("usage", RESPONSE, tail));
        state.answer.note_status(value_of("status", RESPONSE, tail), None);
        state.done(emit);
    } else if kind.ends_with(".delta") || kind == "content_block_delta" {
        state.text_bytes += (head.len() + tail.len()) as u64;
        emit(Event::Content { choice: 0, tokens: None });
    } else {
        emit(Event::Other);
    }
    if let Some(number) = number {
        state.next_sequence = number.text().parse::<u64>().unwrap_or(0).saturating_add(1);
    }
}

/// A member of the object whose beginning is `head`.
pub(super) fn member_of<'a>(name: &str, head: &'a str) -> Option<Raw<'a>> {
    let mut found = None;
    // As above.
    let _ = Cursor::new(head).object(|key, value| {
        if key.escaped() == Some(name) {
            found = Some(value.value()?);
        }
        Ok::<_, JsonError>(())
    });
    found
}

/// The value of the last such key in `tail`, the end of an event, that stands within `depth` brackets. Behind the end of the
/// JSON there is no string, so quotes and brackets can be counted from there.
pub(super) fn value_of<'a>(name: &str, depth: usize, tail: &'a str) -> Option<Raw<'a>> {
    let bytes = tail.as_bytes();
    let mut open = 0_usize;
    // Where the string ends that is being walked through.
    let mut string_end = None;
    for (at, byte) in bytes.iter().enumerate().rev() {
        let before = bytes.get(..at).unwrap_or_default();
        match (byte, string_end) {
            (b'"', _) if before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1 => {}
            (b'"', None) => string_end = Some(at),
            (b'"', Some(end)) => {
                string_end = None;
                let rest = tail.get(end + 1..).unwrap_or_default().trim_start();
                if open == depth
                    && tail.get(at + 1..end) == Some(name)
                    && let Some(value) = rest.strip_prefix(':')
                {
                    return Cursor::new(value.trim_start()).value().ok();
                }
            }
            (_, Some(_)) => {}
            (b'}' | b']', None) => open += 1,
            (b'{' | b'[', None) => open = open.checked_sub(1)?,
            _ => {}
        }
    }
    None
}

/// Brackets around the members of an event, of a response inside it, of a choice inside it.
pub(super) const EVENT: usize = 1;
const RESPONSE: usize = 2;
const CHOICE: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_counts_at_its_depth_only_wherever_the_tail_begins() {
        let tools = r#"[{"name":"\"usage\":{","parameters":{"usage":{"input_tokens":1},"status":"x"}}]"#;
        let event = format!(
            r#"{{"response":{{"tools":{tools},"status":"completed","text":{{"status":"y"}},"usage":{{"input_tokens":7}},"user":"}}]\\"}} ,"sequence_number" : 8 }}"#
        );
        let whole = event.clone() + "\n\n";
        for start in (0..whole.len()).filter(|start| whole.is_char_boundary(*start)) {
            let tail = &whole[start..];
            let told = |name, depth| value_of(name, depth, tail).map(|value| value.text());
            for (name, depth, expected) in [
                ("usage", RESPONSE, r#"{"input_tokens":7}"#),
                ("status", RESPONSE, r#""completed""#),
                ("sequence_number", EVENT, "8"),
            ] {
                let is_there = event.rfind(&format!("\"{name}\"")).is_some_and(|at| start <= at);
                let found = told(name, depth);
                assert!(found.is_none() || found == Some(expected), "{name} from {start}: {found:?}");
                assert!(found.is_some() || !is_there || name == "status", "{name} from {start}");
            }
            assert_eq!(told("usage", EVENT), None);
        }
        assert_eq!(value_of("status", RESPONSE, &whole).unwrap().text(), r#""completed""#);
    }
}
