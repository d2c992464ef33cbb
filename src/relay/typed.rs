//! Events of `/v1/messages` and `/v1/responses`: each names its type, in `event:` and in its JSON.
//!
//! These streams have one choice, no `[DONE]`, and an event that ends them. Only deltas are content: the `done` and
//! `completed` events repeat what was sent.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::relay::classify::{Event, Leaves, Plain, Reading};
use crate::relay::usage::string;
use crate::request::dialect::Dialect;

pub(super) fn read<'a>(
    reading: &mut Reading,
    name: &'a [u8],
    data: &'a [u8],
    tell: &mut dyn FnMut(Event),
) -> Option<Plain<'a>> {
    let Ok(event) = serde_json::from_slice::<Typed<'a>>(data) else {
        tell(Event::Other);
        return None;
    };
    let kind = event.kind.and_then(string).unwrap_or_else(|| String::from_utf8_lossy(name));
    if kind.is_empty() || kind == "error" {
        // Engines put the message beside the type or into an `error` object.
        let beside = || serde_json::from_slice(data).ok().filter(|_| kind == "error");
        match event.error.or_else(beside) {
            Some(error) => reading.error(error, tell),
            None => tell(Event::Other),
        }
        return None;
    }
    match reading.dialect() {
        Dialect::Messages => message(reading, &kind, &event, tell),
        _ => response(reading, &kind, &event, tell),
    }
}

fn message<'a>(
    reading: &mut Reading,
    kind: &Cow<'a, str>,
    event: &Typed<'a>,
    tell: &mut dyn FnMut(Event),
) -> Option<Plain<'a>> {
    let delta = || event.delta.and_then(|raw| Delta::deserialize(raw).ok());
    match kind.as_ref() {
        "content_block_delta" => {
            let mut leaves = Leaves::default();
            if let Some(delta) = delta() {
                leaves.add(delta.text);
                leaves.add(delta.thinking);
                leaves.add(delta.partial_json);
            }
            return content(&leaves, tell);
        }
        "message_start" => {
            if let Some(start) = event.message.and_then(|raw| Whole::deserialize(raw).ok()) {
                reading.answer.note_id(start.id);
                reading.answer.note_model(start.model);
                reading.answer.note_usage(start.usage);
            }
            reading.choice(0);
            tell(Event::Other);
        }
        "message_delta" => {
            reading.answer.note_usage(event.usage);
            if event.usage.is_some() {
                tell(Event::Usage);
            }
            match delta().and_then(|delta| delta.stop_reason) {
                Some(reason) => reading.finish(0, reason, tell),
                None => tell(Event::Other),
            }
        }
        "message_stop" => reading.done(tell),
        _ => tell(Event::Other),
    }
    None
}

fn response<'a>(
    reading: &mut Reading,
    kind: &Cow<'a, str>,
    event: &Typed<'a>,
    tell: &mut dyn FnMut(Event),
) -> Option<Plain<'a>> {
    if let Some(number) = event.sequence_number.and_then(|raw| raw.get().parse::<u64>().ok()) {
        reading.next_sequence = number.saturating_add(1);
    }
    if kind.starts_with("response.") && kind.ends_with(".delta") {
        let mut leaves = Leaves::default();
        leaves.add(event.delta);
        return content(&leaves, tell);
    }
    let whole = || event.response.and_then(|raw| Whole::deserialize(raw).ok());
    match kind.as_ref() {
        "response.created" | "response.queued" | "response.in_progress" if reading.answer.id.is_none() => {
            if let Some(whole) = whole() {
                reading.answer.note_id(whole.id);
                reading.answer.note_model(whole.model);
            }
            reading.choice(0);
            tell(Event::Other);
        }
        "response.completed" | "response.incomplete" | "response.cancelled" => {
            if let Some(whole) = whole() {
                reading.answer.note_id(whole.id);
                reading.answer.note_model(whole.model);
                reading.answer.note_status(whole.status, whole.incomplete_details);
                reading.answer.note_usage(whole.usage);
                if whole.usage.is_some() {
                    tell(Event::Usage);
                }
            }
            tell(Event::Finish { choice: 0 });
            reading.done(tell);
        }
        "response.failed" => match whole().and_then(|whole| whole.error).or(event.response) {
            Some(error) => reading.error(error, tell),
            None => reading.error(RawValue::NULL, tell),
        },
        _ => tell(Event::Other),
    }
    None
}

fn content<'a>(leaves: &Leaves<'a>, tell: &mut dyn FnMut(Event)) -> Option<Plain<'a>> {
    if !leaves.is_content() {
        tell(Event::Other);
        return None;
    }
    tell(Event::Content { choice: 0, tokens: None });
    leaves.only_string().map(|string| Plain { string, choice: 0 })
}

#[derive(Deserialize)]
struct Typed<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    delta: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    response: Option<&'a RawValue>,
    #[serde(borrow)]
    sequence_number: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    thinking: Option<&'a RawValue>,
    #[serde(borrow)]
    partial_json: Option<&'a RawValue>,
    #[serde(borrow)]
    stop_reason: Option<&'a RawValue>,
}

/// A whole message or response inside an event.
#[derive(Deserialize)]
struct Whole<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Option<&'a RawValue>,
    #[serde(borrow)]
    incomplete_details: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}
