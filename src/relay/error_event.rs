//! The event that tells a client that its stream broke, in the form its SDK raises on.
//!
//! An incomplete answer must never look complete: the event starts on a fresh line where the engine stopped inside
//! an event, no `[DONE]` follows it, and the caller aborts the body after it. Codes and messages come from `error.rs`.

use bytes::Bytes;
use serde::Serialize;

use crate::error::Failure;
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
        }
    }
}

/// The error event that ends a stream, of a failure as it may be shown.
pub fn event(dialect: Dialect, failure: &Failure, at: &EventContext<'_>) -> Bytes {
    let kind = failure.kind(dialect.error_shape());
    event_of(dialect, ErrorObject::new(kind, &failure.to_string(), failure.code()), at)
}

fn event_of(dialect: Dialect, error: ErrorObject<'_>, at: &EventContext<'_>) -> Bytes {
    let mut out = at.tail.closing().to_vec();
    match dialect {
        Dialect::Messages | Dialect::CountTokens => {
            let error = ErrorObject { param: None, ..error };
            write(&mut out, "error", &ErrorBody { kind: Some("error"), error });
        }
        Dialect::Responses => {
            let error = ResponsesError { code: error.code, message: error.message };
            let response = ResponsesBody {
                id: at.response_id,
                object: "response",
                model: at.model,
                status: "failed",
                output: [],
                error,
            };
            let kind = "response.failed";
            write(&mut out, kind, &ResponsesEvent { kind, sequence_number: at.sequence_number, response });
        }
        _ => write(&mut out, "", &ErrorBody { kind: None, error }),
    }
    out.into()
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
        let error = ErrorObject::new("invalid_request_error", &message, "engine_rejected");
        return event_of(dialect, error, &EventContext::default());
    }
    let mut out = Vec::with_capacity(body.len() + 32);
    let name = if matches!(dialect, Dialect::Messages | Dialect::CountTokens) { "error" } else { "" };
    // A line break would end the field; JSON has none but between its tokens.
    let line: Vec<u8> = body.iter().map(|b| if matches!(b, b'\r' | b'\n') { b' ' } else { *b }).collect();
    frame(&mut out, name, &line);
    out.into()
}

fn write(out: &mut Vec<u8>, name: &str, data: &impl Serialize) {
    // The shapes below cannot fail; an event without data would be dropped by readers.
    let json = serde_json::to_vec(data).unwrap_or_else(|_| b"{\"error\":{}}".to_vec());
    frame(out, name, &json);
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

#[derive(Serialize)]
struct ErrorBody<'a> {
    /// Anthropic's alone.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    error: ErrorObject<'a>,
}

#[derive(Serialize)]
struct ErrorObject<'a> {
    /// Of the dialect's shape (`upstream_error`; for messages `api_error`).
    #[serde(rename = "type")]
    kind: &'a str,
    message: &'a str,
    /// Null where it is `Some(None)`: OpenAI's shape has it always.
    #[serde(skip_serializing_if = "Option::is_none")]
    param: Option<Option<&'a str>>,
    /// For programs (`replica_failed`, `timeout_inter_token`).
    code: &'a str,
}

impl<'a> ErrorObject<'a> {
    const fn new(kind: &'a str, message: &'a str, code: &'a str) -> Self {
        Self { kind, message, param: Some(None), code }
    }
}

#[derive(Serialize)]
struct ResponsesEvent<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    sequence_number: u64,
    response: ResponsesBody<'a>,
}

#[derive(Serialize)]
struct ResponsesBody<'a> {
    id: Option<&'a str>,
    object: &'static str,
    model: Option<&'a str>,
    status: &'static str,
    output: [(); 0],
    error: ResponsesError<'a>,
}

#[derive(Serialize)]
struct ResponsesError<'a> {
    code: &'a str,
    message: &'a str,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::stream_state::Echo;

    const ERROR: ErrorObject<'_> =
        ErrorObject::new("upstream_error", "replica \"r0\"\nclosed", "replica_failed");

    fn after(dialect: Dialect, stream: &str) -> String {
        let mut scanner = Scanner::new(dialect, Echo::Off);
        scanner.feed(stream.as_bytes(), |_, _| {});
        String::from_utf8(event_of(dialect, ERROR, &EventContext::behind(&scanner)).to_vec()).unwrap()
    }

    #[test]
    fn each_dialect_gets_its_own_form() {
        let openai = "data: {\"error\":{\"type\":\"upstream_error\",\"message\":\"replica \\\"r0\\\"\\nclosed\",\
                      \"param\":null,\"code\":\"replica_failed\"}}\n\n";
        assert_eq!(after(Dialect::Chat, "data: {}\n\n"), openai);
        assert_eq!(after(Dialect::Completions, ""), openai);
        assert_eq!(
            after(Dialect::Messages, ""),
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"upstream_error\",\
             \"message\":\"replica \\\"r0\\\"\\nclosed\",\"code\":\"replica_failed\"}}\n\n"
        );
        let begun = "event: response.created\ndata: {\"response\":{\"id\":\"resp_1\",\"model\":\"m\"},\
                     \"sequence_number\":6,\"type\":\"response.created\"}\n\n";
        assert_eq!(
            after(Dialect::Responses, begun),
            "event: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":7,\"response\":\
             {\"id\":\"resp_1\",\"object\":\"response\",\"model\":\"m\",\"status\":\"failed\",\"output\":[],\
             \"error\":{\"code\":\"replica_failed\",\"message\":\"replica \\\"r0\\\"\\nclosed\"}}}\n\n"
        );
    }

    #[test]
    fn an_engines_own_error_becomes_one_that_sdks_raise_on() {
        let event =
            |dialect, body: &str| String::from_utf8(engine_event(dialect, body.as_bytes()).to_vec()).unwrap();
        let own = r#"{"error":{"message":"no","code":400}}"#;
        assert_eq!(event(Dialect::Chat, own), format!("data: {own}\n\n"));
        for body in [r#"{"object":"error","message":"no","code":400}"#, r#"{"detail":"no"}"#, "no"] {
            let quoted = "\"type\":\"invalid_request_error\",\"message\":\"no\"";
            assert!(
                event(Dialect::Chat, body).starts_with(&format!("data: {{\"error\":{{{quoted}")),
                "{body}"
            );
            assert!(
                event(Dialect::Messages, body).starts_with("event: error\ndata: {\"type\":\"error\""),
                "{body}"
            );
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
