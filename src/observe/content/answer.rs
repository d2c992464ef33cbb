//! The text of an answer, put together from its stream while it passes.
//!
//! Engines send a word in pieces, and what spans two events no pattern would find in either. Bounded: of the text, and of an event
//! that does not end.

use std::borrow::Cow;

use memchr::memchr;
use serde_json::{Map, Value as Json};

use super::redact::Redact;
use crate::record::cut;
use crate::request::json::{Cursor, JsonError, JsonKind, Raw};

#[derive(Debug, Default)]
pub(super) struct StreamText {
    /// Beginning of a line whose end has not come.
    line: Vec<u8>,
    texts: Vec<Text>,
    bytes: usize,
    /// More came than was kept.
    is_cut: bool,
}

#[derive(Debug)]
struct Text {
    choice: u64,
    /// Member of the delta.
    kind: &'static str,
    text: String,
    /// More of it came than was kept.
    is_cut: bool,
}

impl StreamText {
    /// Takes bytes of the stream; at most `limit` bytes of text are kept.
    pub(super) fn push(&mut self, mut bytes: &[u8], limit: usize) {
        while let Some(end) = memchr(b'\n', bytes) {
            let (head, rest) = bytes.split_at(end);
            bytes = rest.get(1..).unwrap_or_default();
            if self.line.is_empty() {
                self.read_line(head, limit);
            } else {
                self.keep(head);
                let line = std::mem::take(&mut self.line);
                self.read_line(&line, limit);
                // Its memory serves the next one.
                self.line = line;
                self.line.clear();
            }
        }
        self.keep(bytes);
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = MAX_LINE - self.line.len().min(MAX_LINE);
        self.is_cut |= bytes.len() > room;
        self.line.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
    }

    fn read_line(&mut self, line: &[u8], limit: usize) {
        let data = line.strip_prefix(b"data:").and_then(|data| std::str::from_utf8(data).ok());
        let Some(data) = data else { return };
        // What is no JSON, such as [DONE], has no text.
        let _ = read(data.trim_ascii(), &mut |choice, kind, text| self.add(choice, kind, &text, limit));
    }

    fn add(&mut self, choice: u64, kind: &'static str, text: &str, limit: usize) {
        let room = limit - self.bytes.min(limit);
        let fitting = cut(text, room);
        let is_cut = fitting.len() < text.len();
        self.is_cut |= is_cut;
        self.bytes += fitting.len();
        let is_it = |known: &Text| known.choice == choice && known.kind == kind;
        let has_room = self.texts.len() < MAX_TEXTS;
        match self.texts.iter_mut().find(|known| is_it(known)) {
            Some(known) => {
                known.text.push_str(fitting);
                known.is_cut |= is_cut;
            }
            None if has_room => {
                self.texts.push(Text { choice, kind, text: fitting.to_owned(), is_cut });
            }
            None => self.is_cut = true,
        }
    }

    /// Of the bytes themselves not all were kept.
    pub(super) fn cut_short(&mut self) {
        self.texts.iter_mut().for_each(|text| text.is_cut = true);
    }

    /// Whether no text was found.
    pub(super) fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Whether there was more of it than `limit` bytes.
    pub(super) fn is_cut(&self, limit: usize) -> bool {
        self.is_cut || self.bytes > limit
    }

    /// One object a choice, without what `redact` takes out, and with at most `limit` bytes of a text.
    pub(super) fn json(&self, redact: &Redact, limit: usize) -> Json {
        let mut choices: Vec<(u64, Map<String, Json>)> = Vec::new();
        for Text { choice, kind, text, is_cut } in &self.texts {
            let at = choices.iter().position(|(known, _)| known == choice).unwrap_or(choices.len());
            if at == choices.len() {
                choices.push((*choice, Map::new()));
            }
            if let Some((_, choice)) = choices.get_mut(at) {
                choice.insert((*kind).to_owned(), redact.cut(text, limit, *is_cut).into());
            }
        }
        choices.into_iter().map(|(_, choice)| Json::from(choice)).collect()
    }
}

type Each<'e> = dyn FnMut(u64, &'static str, Cow<'_, str>) + 'e;

/// Finds the texts of one event of any dialect.
fn read(data: &str, each: &mut Each<'_>) -> Result<(), JsonError> {
    let [choices, delta] = Cursor::new(data).members(["choices", "delta"])?;
    if let Some(choices) = choices.filter(|choices| choices.kind() == JsonKind::Array) {
        return choices.cursor().array(|choice| {
            let [index, text, delta] = choice.members(["index", "text", "delta"])?;
            let index = index.and_then(|index| index.text().parse().ok()).unwrap_or_default();
            add(index, "text", text, each);
            if let Some(delta) = delta {
                of_delta(index, delta, each);
            }
            Ok::<_, JsonError>(())
        });
    }
    match delta {
        // Messages.
        Some(delta) if delta.kind() == JsonKind::Object => {
            for (kind, text) in MESSAGE.into_iter().zip(delta.members(MESSAGE)) {
                add(0, kind, text, each);
            }
        }
        // Responses.
        delta => add(0, "text", delta, each),
    }
    Ok(())
}

fn of_delta(index: u64, delta: Raw<'_>, each: &mut Each<'_>) {
    for (kind, text) in CHAT.into_iter().zip(delta.members(CHAT)) {
        add(index, kind, text, each);
    }
    let [calls, call] = delta.members(["tool_calls", "function_call"]);
    let mut of_function = |function: Option<Raw<'_>>| {
        for text in function.map_or([None; 2], |function| function.members(["name", "arguments"])) {
            add(index, "tool_calls", text, each);
        }
    };
    of_function(call);
    if let Some(calls) = calls {
        // What is no list of objects has no text.
        let _ = calls.cursor().array(|call| {
            let [function] = call.members(["function"])?;
            of_function(function);
            Ok::<_, JsonError>(())
        });
    }
}

fn add(choice: u64, kind: &'static str, text: Option<Raw<'_>>, each: &mut Each<'_>) {
    if let Some(text) = text.and_then(|text| text.string()).filter(|text| !text.is_empty()) {
        each(choice, kind, text);
    }
}

const CHAT: [&str; 4] = ["content", "reasoning", "reasoning_content", "refusal"];
const MESSAGE: [&str; 3] = ["text", "thinking", "partial_json"];
/// Bytes of a line: an event of a stream has some hundred.
const MAX_LINE: usize = 64 << 10;
/// Choices, times what each may have.
const MAX_TEXTS: usize = 64;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::redact::{BEYOND_CUT, REDACTED};
    use super::*;

    fn text_of(stream: &str, size: usize, limit: usize) -> (Json, bool) {
        let mut text = StreamText::default();
        stream.as_bytes().chunks(size).for_each(|piece| text.push(piece, limit));
        (text.json(&Redact::default(), limit), text.is_cut(limit))
    }

    #[test]
    fn texts_of_every_dialect_are_put_together_however_reads_are_cut() {
        let chat = |delta: &str| format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{delta}}}]}}\r\n\r\n");
        let call = |name: &str| {
            chat(&format!(
                r#"{{"tool_calls":[{{"index":0,"function":{{"name":"{name}","arguments":"{{}}"}}}}]}}"#
            ))
        };
        let two = "data: {\"choices\":[{\"index\":1,\"text\":\"b\"},{\"index\":0,\"text\":\"a\"}]}\n\n";
        for (stream, expected) in [
            (
                [chat(r#"{"role":"assistant","content":""}"#), chat(r#"{"content":"\u00e9"}"#), chat(r#"{"content":"x"}"#)]
                    .concat()
                    + ": ping\n\ndata: [DONE]\n\n",
                json!([{ "content": "éx" }]),
            ),
            (chat(r#"{"reasoning":"hm"}"#) + &call("f"), json!([{ "reasoning": "hm", "tool_calls": "f{}" }])),
            (two.repeat(2), json!([{ "text": "bb" }, { "text": "aa" }])),
            (
                "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"m\"}}\n\n".repeat(2),
                json!([{ "text": "mm" }]),
            ),
            (
                "data: {\"type\":\"response.output_text.delta\",\"delta\":\"r\"}\n\ndata: {\"type\":\"response.completed\",\"response\":{}}\n\n".to_owned(),
                json!([{ "text": "r" }]),
            ),
        ] {
            for size in 1..stream.len() {
                assert_eq!(text_of(&stream, size, 1000), (expected.clone(), false), "{size} {stream}");
            }
        }
    }

    #[test]
    fn what_is_over_a_bound_is_cut() {
        let event = "data: {\"choices\":[{\"delta\":{\"content\":\"é\"}}]}\n\n";
        assert_eq!(text_of(&event.repeat(5), 7, 5), (json!([{ "content": "éé" }]), true));
        let endless = "data: ".to_owned() + &"x".repeat(2 * MAX_LINE);
        assert_eq!(text_of(&endless, 1000, 5), (json!([]), true));
        let many: String = (0..100)
            .map(|n| format!("data: {{\"choices\":[{{\"index\":{n},\"text\":\"x\"}}]}}\n\n"))
            .collect();
        let (texts, is_cut) = text_of(&many, 1000, 1000);
        assert_eq!((texts.as_array().map(Vec::len), is_cut), (Some(MAX_TEXTS), true));
    }

    #[test]
    fn a_text_that_others_left_no_room_ends_before_what_may_be_half_a_secret() {
        let redact = Redact::of(&[r"\d{16}"]);
        let delta = |member: &str, text: &str| {
            format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"{member}\":\"{text}\"}}}}]}}\n\n")
        };
        let (limit, kept) = (4000, 4000 + BEYOND_CUT);
        let thought = "t".repeat(3000);
        for (length, is_whole) in [(kept - 3000 - 8, false), (kept - 3000 - 16, true)] {
            let mut text = StreamText::default();
            for (member, piece) in [
                ("reasoning", &*thought),
                ("content", &*"y".repeat(length)),
                ("content", "49290000"),
                ("content", "11112222"),
            ] {
                text.push(delta(member, piece).as_bytes(), kept);
            }
            let answer = text.json(&redact, limit);
            let content = answer[0]["content"].as_str().unwrap();
            assert_eq!((content.contains(REDACTED), content.contains("4929")), (is_whole, false), "{length}");
            assert_eq!(answer[0]["reasoning"], thought, "it came whole");
        }
    }
}
