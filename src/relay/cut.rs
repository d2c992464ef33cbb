//! Events too long to be kept whole: judged by their two ends.
//!
//! Nothing an engine sends in ordinary work is that long; a whole response repeated at the end of a responses stream
//! may be. The key searches here are safe without the JSON around them: inside a string a quote is escaped, so
//! `"usage":` can only be a key.

use memchr::memmem;
use serde_json::value::RawValue;

use crate::relay::classify::{Event, Reading};
use crate::relay::frame::Fields;
use crate::relay::usage::string;
use crate::request::dialect::Dialect;

/// Reads an event of which `head` and `tail` are known.
pub(super) fn read(reading: &mut Reading, head: &[u8], tail: &[u8], tell: &mut dyn FnMut(Event)) {
    match reading.dialect() {
        Dialect::Chat | Dialect::Completions => chunk(reading, head, tail, tell),
        Dialect::Messages | Dialect::Responses => typed(reading, head, tail, tell),
        _ => tell(Event::Other),
    }
}

fn chunk(reading: &mut Reading, head: &[u8], tail: &[u8], tell: &mut dyn FnMut(Event)) {
    if let Some(error) = value_of(b"\"error\"", head) {
        return reading.error(error, tell);
    }
    let choice = value_of(b"\"index\"", head).and_then(|raw| raw.get().parse().ok()).unwrap_or(0);
    // What fills a megabyte is text; the only such text that is not generated is a prompt's echo.
    if memmem::find(head, b"\"choices\"").is_some() && reading.ends_echo(choice) {
        tell(Event::Content { choice, tokens: None });
    }
    if let Some(reason) = value_of(b"\"finish_reason\"", tail).filter(|raw| string(raw).is_some()) {
        reading.finish(choice, reason, tell);
    }
    reading.answer.note_usage(value_of(b"\"usage\"", tail));
}

fn typed(reading: &mut Reading, head: &[u8], tail: &[u8], tell: &mut dyn FnMut(Event)) {
    let mut joined = Vec::new();
    let named = String::from_utf8_lossy(Fields::of(head, &mut joined).name);
    let typed = || value_of(b"\"type\"", tail).and_then(string).unwrap_or_default();
    let kind = if named.is_empty() { typed() } else { named };
    if matches!(&*kind, "response.completed" | "response.incomplete") {
        reading.answer.note_usage(value_of(b"\"usage\"", tail));
        reading.answer.note_status(value_of(b"\"status\"", tail), None);
        tell(Event::Finish { choice: 0 });
        reading.done(tell);
    } else if kind.ends_with(".delta") || kind == "content_block_delta" {
        tell(Event::Content { choice: 0, tokens: None });
    } else {
        tell(Event::Other);
    }
    if let Some(number) = [tail, head].iter().find_map(|end| value_of(b"\"sequence_number\"", end)) {
        reading.next_sequence = number.get().parse::<u64>().unwrap_or(0).saturating_add(1);
    }
}

/// The value of the last such key that stands whole in `bytes`.
fn value_of<'a>(key: &[u8], bytes: &'a [u8]) -> Option<&'a RawValue> {
    let mut end = bytes.len();
    while let Some(at) = memmem::rfind(bytes.get(..end)?, key) {
        let rest = bytes.get(at + key.len()..)?.trim_ascii_start();
        if let Some(value) = rest.strip_prefix(b":")
            && let Some(Ok(raw)) = serde_json::Deserializer::from_slice(value).into_iter().next()
        {
            return Some(raw);
        }
        end = at;
    }
    None
}
