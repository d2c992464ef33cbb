//! Reads an engine's event stream as it passes: one pass over the bytes, however the reads split them.
//!
//! An event within one read is scanned in place; one that spans reads is copied into a bounded buffer that the stream
//! keeps. Relaying the bytes is not done here and never waits for the scan. Facts are emitted with the position where
//! their event ends; [`Scanner::finish`] judges the end of the stream.

use std::borrow::Cow;

use crate::relay::frame::{Boundaries, LineState, SseFields, range_within, without_bom};
use crate::relay::stream_state::{Echo, Event, PlainContent, StreamEnd, StreamState};
use crate::relay::template::{Recognised, Templates};
use crate::relay::{openai, oversized, typed};
use crate::request::dialect::Dialect;

/// Scans one stream. What an ordinary event touches lies together; the rest is out of its way.
#[derive(Debug)]
pub struct Scanner {
    boundaries: Boundaries,
    is_at_start: bool,
    /// `rest.carried` is not empty.
    has_carried: bool,
    templates: Templates,
    rest: Box<Rest>,
}

/// What only events touch that are parsed or span reads.
#[derive(Debug)]
struct Rest {
    state: StreamState,
    /// The event that the last read stopped in.
    carried: Carried,
    /// Several `data` lines of one event, joined.
    joined: Vec<u8>,
}

/// The result of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedResult {
    /// The position behind the last event that ended in this read, 0 if none did: what follows is the beginning of another.
    pub end: usize,
    /// It began and ended between two events, and all of them were ordinary: content or none, known by a template.
    pub is_ordinary: bool,
}

impl Scanner {
    /// A scanner for a stream of this dialect. `echo`: whether the request asked for its prompt back.
    pub fn new(dialect: Dialect, echo: Echo) -> Self {
        Self {
            boundaries: Boundaries::default(),
            is_at_start: true,
            has_carried: false,
            templates: Templates::default(),
            rest: Box::new(Rest {
                state: StreamState::new(dialect, echo),
                carried: Carried::default(),
                joined: Vec::new(),
            }),
        }
    }

    /// The same for a request of several choices.
    #[must_use]
    pub fn of_choices(mut self, choices: u32) -> Self {
        self.rest.state.expect(choices);
        self
    }

    /// Takes the next bytes of the stream and emits each fact, in order, with the position in `read` behind its event.
    /// Events without data (comments) have no facts.
    pub fn feed(&mut self, read: &[u8], mut emit: impl FnMut(Event, usize)) -> FeedResult {
        let mut start = self.boundaries.begin(read);
        let mut is_ordinary = start == 0 && !self.has_carried;
        // The line feed of a terminator that was cut in two belongs to the event before.
        let mut last_end = if self.has_carried { 0 } else { start };
        while let Some(end) = self.boundaries.next_end(read, start) {
            let piece = read.get(start..end).unwrap_or_default();
            let mut emit = |event| emit(event, end);
            if self.has_carried {
                self.carried_event(piece, &mut emit);
            } else {
                is_ordinary &= self.event(piece, &mut emit);
            }
            start = end;
            last_end = end;
        }
        match read.get(start..) {
            Some(rest) if !rest.is_empty() => {
                self.rest.carried.extend(rest);
                self.has_carried = true;
                is_ordinary = false;
            }
            _ => {}
        }
        FeedResult { end: last_end, is_ordinary: is_ordinary && read.last() == Some(&b'\n') }
    }

    /// The sum of all events so far.
    pub fn state(&self) -> &StreamState {
        &self.rest.state
    }

    /// Where the stream stands in its lines: what must precede an event of ours.
    pub fn tail(&self) -> LineState {
        self.boundaries.tail()
    }

    /// Judges the stream at its end; `is_clean` where the body's framing ended as it should. An event that has begun
    /// but not ended counts for nothing, as the standard says.
    pub fn finish(&self, is_clean: bool) -> StreamEnd {
        self.rest.state.end(is_clean)
    }

    /// Whether a template recognised it.
    #[inline]
    fn event(&mut self, raw: &[u8], emit: &mut dyn FnMut(Event)) -> bool {
        let Some(Recognised { choice, text }) = self.templates.recognise(raw) else {
            self.parse(raw, emit);
            return false;
        };
        self.rest.state.text_bytes += text as u64;
        emit(if text == 0 { Event::Other } else { Event::Content { choice, tokens: None } });
        true
    }

    fn carried_event(&mut self, piece: &[u8], emit: &mut dyn FnMut(Event)) {
        self.rest.carried.extend(piece);
        let mut carried = std::mem::take(&mut self.rest.carried);
        match carried.cut_ends() {
            None => {
                self.event(&carried.bytes, emit);
            }
            Some((head, tail)) => {
                self.is_at_start = false;
                oversized::read(&mut self.rest.state, head, tail, emit);
            }
        }
        carried.reset();
        self.rest.carried = carried;
        self.has_carried = false;
    }

    fn parse(&mut self, raw: &[u8], emit: &mut dyn FnMut(Event)) {
        let event = if std::mem::take(&mut self.is_at_start) { without_bom(raw) } else { raw };
        let mut joined = std::mem::take(&mut self.rest.joined);
        let fields = SseFields::of(event, &mut joined);
        // Clients replace what is not UTF-8 (WHATWG); so do we, to judge what they see.
        let data = fields.data.unwrap_or_default();
        let data = std::str::from_utf8(data).map_or_else(|_| String::from_utf8_lossy(data), Cow::Borrowed);
        if !data.is_empty()
            && let Some(plain) = read(&mut self.rest.state, fields.name, &data, emit)
            // Only where the string lies in the event itself: not for joined or repaired data.
            && let Some(string) = range_within(raw, plain.string.as_bytes())
        {
            self.templates.learn(raw, string, plain.choice);
        }
        self.rest.joined = joined;
    }
}

/// Reads one whole event by the wire shape of its dialect and emits its facts: keys at their place in the JSON, never searched for
/// in model output. Returns the content string where that is its only fact, so that a template can be learned from it.
fn read<'a>(
    state: &mut StreamState,
    name: &'a [u8],
    data: &'a str,
    emit: &mut dyn FnMut(Event),
) -> Option<PlainContent<'a>> {
    if data == "[DONE]" {
        // The typed streams have an end of their own; this one says nothing there.
        if !matches!(state.dialect(), Dialect::Messages | Dialect::Responses) {
            state.done(emit);
        }
        return None;
    }
    match state.dialect() {
        Dialect::Chat | Dialect::Completions | Dialect::Audio => openai::read(state, data, emit),
        Dialect::Messages | Dialect::Responses => typed::read(state, name, data, emit),
        _ => {
            emit(Event::Other);
            None
        }
    }
}

/// An event that spans reads.
#[derive(Debug, Default)]
struct Carried {
    bytes: Vec<u8>,
    is_cut: bool,
}

impl Carried {
    fn extend(&mut self, more: &[u8]) {
        for piece in more.chunks(MAX_EVENT_LEN - KEPT_END) {
            if self.bytes.len() + piece.len() > MAX_EVENT_LEN {
                let kept = self.bytes.len().saturating_sub(KEPT_END).max(KEPT_END);
                self.bytes.drain(KEPT_END..kept);
                self.is_cut = true;
            }
            self.bytes.extend_from_slice(piece);
        }
    }

    /// The two ends that are left of an event that was too long.
    fn cut_ends(&self) -> Option<(&[u8], &[u8])> {
        self.is_cut.then(|| self.bytes.split_at(KEPT_END))
    }

    fn reset(&mut self) {
        self.bytes.clear();
        // One long event must not hold its memory for the rest of a long stream.
        self.bytes.shrink_to(KEPT_CAPACITY);
        self.is_cut = false;
    }
}

/// Bytes; of a longer event only both ends are kept.
const MAX_EVENT_LEN: usize = 1024 * 1024;
/// Bytes of each end.
const KEPT_END: usize = 64 * 1024;
const KEPT_CAPACITY: usize = 8 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::usage::{EngineError, EngineErrorKind, of_unary};
    use Dialect::{Chat, Completions, Messages, Responses};

    fn scan(dialect: Dialect, echo: Echo, stream: &str) -> (Scanner, Vec<Event>) {
        let mut scanner = Scanner::new(dialect, echo);
        let mut events = Vec::new();
        scanner.feed(stream.as_bytes(), |event, _| events.push(event));
        (scanner, events)
    }

    fn contents(dialect: Dialect, data: &str) -> usize {
        let events = scan(dialect, Echo::Off, &format!("data: {data}\n\n")).1;
        events.iter().filter(|event| matches!(event, Event::Content { .. })).count()
    }

    #[test]
    fn content_is_what_a_model_generated() {
        let chat = |delta: &str| format!(r#"{{"choices":[{{"index":0,"delta":{delta}}}]}}"#);
        let deltas = [
            (r#"{"content":"a"}"#, 1),
            (r#"{ "content" : "a" }"#, 1),
            (r#"{"role":"assistant","content":""}"#, 0),
            (r#"{"content":null}"#, 0),
            (r#"{"role":"assistant"}"#, 0),
            ("{}", 0),
            ("null", 0),
            (r#"{"reasoning":"a"}"#, 1),
            (r#"{"reasoning_content":"a","content":null}"#, 1),
            (r#"{"refusal":"a"}"#, 1),
            (r#"{"thinking":"a"}"#, 1),
            (r#"{"audio":{"data":"UklG"}}"#, 1),
            (r#"{"audio":null,"images":[]}"#, 0),
            (r#"{"images":[{"type":"image_url"}]}"#, 1),
            (r#"{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":""}}]}"#, 1),
            (r#"{"tool_calls":[{"index":0,"function":{"arguments":"{\""}}]}"#, 1),
            (r#"{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"arguments":""}}]}"#, 0),
            (r#"{"tool_calls":[]}"#, 0),
            (r#"{"function_call":{"arguments":"{"}}"#, 1),
        ];
        for (delta, expected) in deltas {
            assert_eq!(contents(Chat, &chat(delta)), expected, "{delta}");
            let whole = of_unary(Chat, format!(r#"{{"choices":[{{"message":{delta}}}]}}"#).as_bytes());
            let is_part_of_a_call = delta.contains(r#""arguments":"""#) && expected == 0;
            assert!(is_part_of_a_call || whole.has_content == (expected > 0), "whole: {delta}");
        }
    }

    #[test]
    fn content_is_found_in_every_dialect_at_its_place_only() {
        let cases = [
            (
                Chat,
                r#"{"choices":[{"index":0,"delta":{"content":"a"}},{"index":1,"delta":{"content":"b"}}]}"#,
                2,
            ),
            (Chat, r#"{"choices":[],"usage":{"completion_tokens":3},"content":"x"}"#, 0),
            (Chat, r#"{"choices":[{"delta":{},"logprobs":{"content":[{"token":"a"}]}}]}"#, 0),
            (Chat, r#"{"choices":null}"#, 0),
            (Chat, r#"["choices"]"#, 0),
            (Completions, r#"{"choices":[{"index":0,"text":"a"}],"prompt_text":"x"}"#, 1),
            (Completions, r#"{"choices":[{"index":0,"text":""}]}"#, 0),
            (Messages, r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}"#, 1),
            (
                Messages,
                r#"{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"a"}}"#,
                1,
            ),
            (
                Messages,
                r#"{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":""}}"#,
                0,
            ),
            (
                Messages,
                r#"{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{"}}"#,
                1,
            ),
            (
                Messages,
                r#"{"type":"content_block_delta","delta":{"type":"signature_delta","signature":"a"}}"#,
                0,
            ),
            (Messages, r#"{"type":"content_block_start","content_block":{"type":"text","text":"a"}}"#, 0),
            (
                Messages,
                r#"{"type":"content_block_start","content_block":{"type":"tool_use","name":"f","input":{}}}"#,
                1,
            ),
            (Messages, r#"{"type":"ping"}"#, 0),
            (Responses, r#"{"type":"response.output_item.added","item":{"type":"message","content":[]}}"#, 0),
            (
                Responses,
                r#"{"type":"response.output_item.added","item":{"type":"function_call","name":"f"}}"#,
                1,
            ),
            (
                Responses,
                r#"{"type":"response.output_item.added","item":{"type":"function_call","name":""}}"#,
                0,
            ),
            (Responses, r#"{"type":"response.output_text.delta","delta":"a"}"#, 1),
            (Responses, r#"{"type":"response.function_call_arguments.delta","delta":"{"}"#, 1),
            (Responses, r#"{"type":"response.reasoning_text.delta","delta":""}"#, 0),
            (Responses, r#"{"type":"response.output_text.done","text":"a"}"#, 0),
            (Responses, r#"{"type":"response.completed","response":{"output":[{"delta":"a"}]}}"#, 0),
        ];
        for (dialect, data, expected) in cases {
            assert_eq!(contents(dialect, data), expected, "{data}");
        }
    }

    #[test]
    fn an_echoed_prompt_is_no_content() {
        let known = |bytes| Echo::On { prompts: [Some(bytes), Some(bytes)].into(), choices_per_prompt: 1 };
        let unknown = || Echo::On { prompts: [None].into(), choices_per_prompt: 2 };
        let text = |index: u32, text: &str, more: &str| {
            format!("data: {{\"choices\":[{{\"index\":{index},\"text\":\"{text}\"{more}}}]}}\n\n")
        };
        let cases = [
            (known(4), text(0, "a\\u00e9b", "") + &text(0, "c", ""), vec![0]),
            (known(4), text(0, "ab", "") + &text(0, "cd", "") + &text(0, "e", ""), vec![0]),
            (known(4), text(0, "abcd first", "") + &text(1, "abcd", "") + &text(1, "x", ""), vec![0, 1]),
            (known(4), text(0, "abcd", "") + &text(1, "abcd", "") + &text(0, "x", ""), vec![0]),
            (known(0), text(0, "x", ""), vec![0]),
            (unknown(), text(0, "prompt", "") + &text(1, "prompt", "") + &text(1, "x", ""), vec![1]),
            (unknown(), text(0, "x", ",\"token_ids\":[5]"), vec![0]),
            (known(100), text(0, "x", ",\"token_ids\":[5]"), vec![0]),
            (Echo::Off, text(0, "x", ""), vec![0]),
        ];
        for (echo, stream, expected) in cases {
            let told = scan(Completions, echo, &stream).1.into_iter().filter_map(|event| match event {
                Event::Content { choice, .. } => Some(choice),
                _ => None,
            });
            assert_eq!(told.collect::<Vec<_>>(), expected, "{stream}");
        }
    }

    #[test]
    fn held_back_tokens_belong_to_the_event_that_brings_their_text() {
        let chunk = |text: &str, ids: &str, total: u32| {
            format!(
                "data: {{\"choices\":[{{\"index\":0,\"text\":\"{text}\",\"token_ids\":{ids}}}],\
                 \"usage\":{{\"completion_tokens\":{total}}}}}\n\n"
            )
        };
        let by_ids = chunk("a", "[1]", 1) + &chunk("", "[2,3]", 3) + &chunk("b", "[4]", 4);
        let by_usage = chunk("a", "null", 1) + &chunk("", "null", 3) + &chunk("b", "null", 4);
        for stream in [by_ids, by_usage] {
            let events = scan(Completions, Echo::Off, &stream).1;
            let content = |tokens| Event::Content { choice: 0, tokens: Some(tokens) };
            assert_eq!(events, [content(1), Event::HeldBack, content(3)], "{stream}");
        }
    }

    #[test]
    fn the_end_is_judged_by_what_was_told() {
        let error = |kind, code| StreamEnd::Failed(EngineError { kind, code });
        let (dead, other) = (EngineErrorKind::EngineDead, EngineErrorKind::Other);
        let open = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}},{\"index\":1,\"delta\":{}}]}\n\n";
        let half = "data: {\"choices\":[{\"index\":0,\"finish_reason\":\"stop\"}]}\n\n";
        let rest = "data: {\"choices\":[{\"index\":1,\"finish_reason\":\"stop\"}]}\n\n";
        let done = "data: [DONE]\n\n";
        let died = "data: {\"error\":{\"message\":\"EngineCore encountered an issue. See stack trace (above) for the root cause.\",\"code\":500}}\n\n";
        let aborted = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"abort\"}]}\n\n";
        let ended = "event: message_delta\ndata: {\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n";
        let stop = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
        let cases: [(Dialect, &[&str], bool, StreamEnd); 19] = [
            (Chat, &[open, done], true, StreamEnd::Complete),
            (Chat, &[open, half, rest], true, StreamEnd::Complete),
            (Chat, &[open, half, rest], false, StreamEnd::Truncated),
            (Chat, &[open, half], true, StreamEnd::Truncated),
            (Chat, &[open, "data: [DONE]"], true, StreamEnd::Truncated),
            (Chat, &[], true, StreamEnd::Truncated),
            (Chat, &[open, died, done], true, error(dead, Some(500))),
            (Chat, &[open, aborted, done], true, error(EngineErrorKind::ShuttingDown, None)),
            (Completions, &[aborted, done], true, error(EngineErrorKind::ShuttingDown, None)),
            (Chat, &["data: {\"error\":\"busy\"}\n\n"], true, error(other, None)),
            (Messages, &[ended, stop], true, StreamEnd::Complete),
            (Messages, &[ended, "event: message_stop\ndata: {}\n\n"], true, StreamEnd::Complete),
            (Messages, &[stop], true, error(EngineErrorKind::ShuttingDown, None)),
            (Messages, &[done], true, StreamEnd::Truncated),
            (
                Messages,
                &[
                    "event: error\ndata: {\"type\":\"error\",\"error\":{\"message\":\"Background loop has errored already.\"}}\n\n",
                ],
                true,
                error(dead, None),
            ),
            (
                Responses,
                &["data: {\"type\":\"error\",\"message\":\"x\",\"code\":\"500\"}\n\n"],
                true,
                error(other, Some(500)),
            ),
            (
                Responses,
                &["data: {\"type\":\"response.failed\",\"response\":{\"error\":{\"message\":\"x\"}}}\n\n"],
                true,
                error(other, None),
            ),
            (Responses, &["data: {\"type\":\"response.incomplete\"}\n\n"], true, StreamEnd::Complete),
            (Dialect::Extra, &["data: x\n\n"], true, StreamEnd::Complete),
        ];
        let half = "data: {\"choices\":[{\"index\":0,\"text\":\"a\",\"finish_reason\":\"length\"}]}\n\n";
        for (choices, expected) in [(1, StreamEnd::Complete), (2, StreamEnd::Truncated)] {
            let mut scanner = Scanner::new(Completions, Echo::Off).of_choices(choices);
            scanner.feed(half.as_bytes(), |_, _| ());
            assert_eq!(scanner.finish(true), expected, "one of {choices}");
        }
        for (dialect, parts, is_clean, expected) in cases {
            let stream = parts.concat();
            assert_eq!(scan(dialect, Echo::Off, &stream).0.finish(is_clean), expected, "{stream}");
        }
    }

    #[test]
    fn an_event_of_any_length_is_judged_and_forgotten() {
        let long = "x".repeat(3 * MAX_EVENT_LEN);
        let chat = format!(
            "data: {{\"choices\":[{{\"index\":1,\"delta\":{{\"content\":\"{long}\"}},\"finish_reason\":\"stop\"}}]}}\n\n"
        );
        let responses = format!(
            "event: response.completed\ndata: {{\"response\":{{\"output\":\"{long}\",\"status\":\"completed\",\
             \"usage\":{{\"input_tokens\":3,\"output_tokens\":9}}}},\"sequence_number\":8}}\n\n"
        );
        for size in [4096, usize::MAX / 2] {
            let (mut scanner, mut events) = (Scanner::new(Chat, Echo::Off), Vec::new());
            chat.as_bytes().chunks(size).for_each(|read| {
                scanner.feed(read, |event, _| events.push(event));
            });
            assert_eq!(events, [Event::Content { choice: 1, tokens: None }, Event::Other]);
            assert_eq!(&*scanner.state().answer.finish_reasons[0], "stop");
            assert!(scanner.rest.carried.bytes.capacity() <= KEPT_CAPACITY);

            let mut scanner = Scanner::new(Responses, Echo::Off);
            responses.as_bytes().chunks(size).for_each(|read| {
                scanner.feed(read, |_, _| {});
            });
            assert_eq!(scanner.finish(true), StreamEnd::Complete);
            assert_eq!(scanner.state().answer.tokens.output.map(|n| n.0), Some(9));
            assert_eq!(scanner.state().next_sequence, 9);
        }
    }

    #[test]
    fn bad_utf8_is_read_as_readers_see_it() {
        let mut scanner = Scanner::new(Chat, Echo::Off);
        let mut events = Vec::new();
        scanner.feed(b"data: {\"choices\":[{\"delta\":{\"content\":\"\xff\"}}]}\n\n", |e, _| events.push(e));
        assert_eq!(events, [Event::Content { choice: 0, tokens: None }]);
    }
}
