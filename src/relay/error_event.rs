//! The event that tells a client that its stream broke, in the form its SDK raises on.
//!
//! An incomplete answer must never look complete: the event starts on a fresh line where the engine stopped inside
//! an event, no `[DONE]` follows it, and the caller aborts the body after it. Codes and messages come from `error.rs`.

use bytes::Bytes;
use serde_json::json;

use crate::error::{ErrorShape, Failure, error_body};
use crate::record::cut;
use crate::relay::frame::LineState;
use crate::relay::sse::Scanner;
use crate::request::dialect::Dialect;
use crate::request::json::Cursor;

/// Where in a stream the error event is written.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventContext<'a> {
    /// Where the engine's bytes stopped.
    pub tail: LineState,
    /// Id of the response, as the engine sent it (responses only).
    pub response_id: Option<&'a str>,
    /// Model, as the engine sent it (responses only).
    pub model: Option<&'a str>,
    /// The next sequence number (responses only).
    pub sequence_number: u64,
    /// What the engine said of its own error, which is held back: its client may be the one who can mend the request.
    pub engine_words: Option<&'a str>,
}

impl<'a> EventContext<'a> {
    /// The context after all that `scanner` has read.
    pub fn behind(scanner: &'a Scanner) -> Self {
        let state = scanner.state();
        Self {
            tail: scanner.tail(),
            response_id: state.answer.id.as_deref(),
            model: state.answer.model.as_deref(),
            sequence_number: state.next_sequence,
            engine_words: state.answer.message.as_deref(),
        }
    }
}

/// The error event that ends a stream, of a failure as it may be shown.
pub fn event(dialect: Dialect, failure: &Failure, at: &EventContext<'_>) -> Bytes {
    let kind = failure.kind(dialect.error_shape());
    let mut message = failure.to_string();
    if let Some(words) = at.engine_words {
        message.extend([": ", words]);
    }
    event_of(dialect, [kind, &message, failure.code()], at)
}

fn event_of(dialect: Dialect, [kind, message, code]: [&str; 3], at: &EventContext<'_>) -> Bytes {
    let (name, data) = match dialect {
        Dialect::Responses => {
            let name = "response.failed";
            let event = json!({
                "type": name,
                "sequence_number": at.sequence_number,
                "response": {
                    "id": at.response_id,
                    "object": "response",
                    "model": at.model,
                    "status": "failed",
                    "output": [],
                    "error": { "code": code, "message": message },
                },
            });
            (name, event.to_string())
        }
        _ => (name_of(dialect), error_body(dialect.error_shape(), kind, message, None, code)),
    };
    let mut out = at.tail.closing().to_vec();
    frame(&mut out, name, data.as_bytes());
    out.into()
}

/// What `event:` calls an error; empty where it has no such field.
fn name_of(dialect: Dialect) -> &'static str {
    if dialect.error_shape() == ErrorShape::Anthropic { "error" } else { "" }
}

/// An engine's own error answer as an event, for a client whose stream has begun with comments. One that SDKs would not take for an error
/// is quoted in one that they do.
pub fn engine_event(dialect: Dialect, body: &[u8]) -> Bytes {
    let text = String::from_utf8_lossy(body);
    let [error, message, detail] =
        Cursor::new(&text).members(["error", "message", "detail"]).unwrap_or_default();
    if error.is_none() {
        let message = message
            .or(detail)
            .and_then(|text| text.string())
            .unwrap_or_else(|| cut(&text, MAX_QUOTED).into());
        let error = ["invalid_request_error", &message, "engine_rejected"];
        return event_of(dialect, error, &EventContext::default());
    }
    let mut out = Vec::with_capacity(body.len() + 32);
    // A line break would end the field; JSON has none but between its tokens.
    let line: Vec<u8> = body.iter().map(|b| if matches!(b, b'\r' | b'\n') { b' ' } else { *b }).collect();
    frame(&mut out, name_of(dialect), &line);
    out.into()
}

fn frame(out: &mut Vec<u8>, name: &str, data: &[u8]) {
    if !name.is_empty() {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name.as_bytes());
        out.push(b'\n');
    }
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(data);
    out.extend_from_slice(b"\n\n");
}

/// Bytes of an engine's answer in a message.
const MAX_QUOTED: usize = 4096;

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::relay::stream_state::Echo;

    const ERROR: [&str; 3] = ["upstream_error", "replica \"r0\"\nclosed", "replica_failed"];

    fn after(dialect: Dialect, stream: &str) -> String {
        let mut scanner = Scanner::new(dialect, Echo::Off);
        scanner.feed(stream.as_bytes(), |_, _| {});
        String::from_utf8(event_of(dialect, ERROR, &EventContext::behind(&scanner)).to_vec()).unwrap()
    }

    #[test]
    fn each_dialect_gets_its_own_form() {
        let [kind, message, code] = ERROR;
        let openai = json!({"error": {"type": kind, "message": message, "param": null, "code": code}});
        let anthropic = json!({"type": "error", "error": {"type": kind, "message": message, "code": code}});
        let begun = "event: response.created\ndata: {\"response\":{\"id\":\"resp_1\",\"model\":\"m\"},\
                     \"sequence_number\":6,\"type\":\"response.created\"}\n\n";
        let response = json!({
            "id": "resp_1", "object": "response", "model": "m", "status": "failed", "output": [],
            "error": {"code": code, "message": message},
        });
        let failed = json!({"type": "response.failed", "sequence_number": 7, "response": response});
        for (dialect, stream, start, expected) in [
            (Dialect::Chat, "data: {}\n\n", "data: ", &openai),
            (Dialect::Completions, "", "data: ", &openai),
            (Dialect::Messages, "", "event: error\ndata: ", &anthropic),
            (Dialect::Responses, begun, "event: response.failed\ndata: ", &failed),
        ] {
            let event = after(dialect, stream);
            let data = event.strip_prefix(start).and_then(|rest| rest.strip_suffix("\n\n")).unwrap();
            assert_eq!(serde_json::from_str::<Value>(data).unwrap(), *expected, "{event}");
        }
    }

    #[test]
    fn an_engines_own_error_becomes_one_that_sdks_raise_on() {
        let event =
            |dialect, body: &str| String::from_utf8(engine_event(dialect, body.as_bytes()).to_vec()).unwrap();
        let own = r#"{"error":{"message":"no","code":400}}"#;
        assert_eq!(event(Dialect::Chat, own), format!("data: {own}\n\n"));
        for body in [r#"{"object":"error","message":"no","code":400}"#, r#"{"detail":"no"}"#, "no"] {
            for (dialect, start) in [(Dialect::Chat, "data: "), (Dialect::Messages, "event: error\ndata: ")] {
                let event = event(dialect, body);
                let quoted: Value = serde_json::from_str(event.strip_prefix(start).unwrap()).unwrap();
                assert_eq!(quoted["error"]["type"], "invalid_request_error", "{body}");
                assert_eq!(quoted["error"]["message"], "no", "{body}");
                assert_eq!(quoted.get("type").is_some(), dialect == Dialect::Messages, "{body}");
            }
        }
    }

    #[test]
    fn it_is_never_glued_to_half_an_event() {
        let cases = [
            ("data: {}\n\n", ""),
            ("data: {\"cho", "\n\n"),
            ("data: {}\n", "\n"),
            ("data: {}\r", "\n\n"),
            ("data: {}\r\n\r", ""),
            (": keep", "\n\n"),
        ];
        for (stream, closing) in cases {
            let event = after(Dialect::Chat, stream);
            assert!(event.starts_with(&format!("{closing}data: ")), "{stream:?}: {event:?}");
        }
    }
}
