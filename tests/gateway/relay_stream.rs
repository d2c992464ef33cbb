//! Streams recorded from a real vLLM, and made-up ones, through the scanner: however the reads split the bytes, it
//! yields the same facts, and they are those that a plain reading of the standard gives.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on must say so")]

use std::path::Path;

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::Value;
use smallvec::SmallVec;
use tokenway::config::EngineKind;
use tokenway::relay::sse::Scanner;
use tokenway::relay::stream_state::{Echo, Event, StreamEnd};
use tokenway::relay::transcript::Transcript;
use tokenway::relay::usage::{AnswerFacts, EngineErrorKind, of_unary};
use tokenway::relay::usage_filter::{AskedUsage, UsageFilter};
use tokenway::relay::whole_events::WholeEvents;
use tokenway::request::continuation::continuation;
use tokenway::request::dialect::Dialect;

/// The body of a recorded response, and whether its framing ended.
fn recorded(name: &str) -> (Vec<u8>, bool) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/vllm").join(name);
    let raw = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let at = raw.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
    let (head, mut rest) = (String::from_utf8_lossy(&raw[..at]).to_lowercase(), &raw[at + 4..]);
    if !head.contains("transfer-encoding: chunked") {
        return (rest.to_vec(), true);
    }
    let mut body = Vec::new();
    while let Some(eol) = rest.windows(2).position(|w| w == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..eol]).unwrap(), 16).unwrap();
        if size == 0 {
            return (body, true);
        }
        body.extend_from_slice(&rest[eol + 2..eol + 2 + size]);
        rest = &rest[eol + 4 + size..];
    }
    (body, false)
}

struct Scanned {
    facts: Vec<(Event, usize)>,
    answer: AnswerFacts,
    end: StreamEnd,
}

impl Scanned {
    fn contents(&self) -> Vec<(u32, Option<u32>)> {
        let content = |(event, _): &(Event, usize)| match event {
            Event::Content { choice, tokens } => Some((*choice, *tokens)),
            _ => None,
        };
        self.facts.iter().filter_map(content).collect()
    }
}

fn scan<'a>(
    dialect: Dialect,
    echo: Echo,
    reads: impl IntoIterator<Item = &'a [u8]>,
    is_clean: bool,
) -> Scanned {
    let mut scanner = Scanner::new(dialect, echo);
    let (mut facts, mut base) = (Vec::new(), 0);
    for read in reads {
        scanner.feed(read, |event, end| facts.push((event, base + end)));
        base += read.len();
    }
    Scanned { facts, answer: scanner.state().answer.clone(), end: scanner.finish(is_clean) }
}

type Recorded = (&'static str, Dialect, usize, [Option<u64>; 3], &'static [&'static str], &'static str);

const RECORDED: [Recorded; 17] = [
    ("chat_stream", Dialect::Chat, 8, [None; 3], &["length"], "complete"),
    ("chat_stream_interval4", Dialect::Chat, 4, [Some(22), Some(0), Some(10)], &["length"], "complete"),
    ("chat_stream_logprobs", Dialect::Chat, 3, [None; 3], &["length"], "complete"),
    ("chat_stream_n2", Dialect::Chat, 6, [Some(22), Some(0), Some(8)], &["length"], "complete"),
    ("chat_stream_queued_keepalive", Dialect::Chat, 39, [None; 3], &["length"], "complete"),
    ("chat_stream_stop", Dialect::Chat, 2, [None; 3], &["stop"], "complete"),
    ("chat_stream_token_ids", Dialect::Chat, 3, [None, None, Some(3)], &["length"], "complete"),
    ("chat_stream_usage", Dialect::Chat, 8, [Some(22), Some(0), Some(8)], &["length"], "complete"),
    ("chat_stream_usage_continuous", Dialect::Chat, 8, [Some(22), Some(0), Some(8)], &["length"], "complete"),
    ("completions_stream", Dialect::Completions, 8, [None; 3], &["length"], "complete"),
    ("completions_stream_echo_batch", Dialect::Completions, 6, [None; 3], &["length"], "complete"),
    (
        "completions_stream_usage",
        Dialect::Completions,
        8,
        [Some(10), Some(0), Some(8)],
        &["length"],
        "complete",
    ),
    ("messages_stream", Dialect::Messages, 6, [Some(22), Some(0), Some(6)], &["max_tokens"], "complete"),
    (
        "responses_stream",
        Dialect::Responses,
        2,
        [Some(17), Some(0), Some(6)],
        &["max_output_tokens"],
        "complete",
    ),
    ("engine_death_stream", Dialect::Chat, 95, [None; 3], &[], "dead"),
    ("sigkill_api_stream", Dialect::Chat, 73, [None; 3], &[], "truncated"),
    ("sigterm_default_stream", Dialect::Chat, 75, [None; 3], &[], "truncated"),
];

#[test]
fn recorded_streams_tell_the_same_however_they_are_split() {
    for (name, dialect, contents, tokens, reasons, end) in RECORDED {
        let (body, is_clean) = recorded(&format!("{name}.raw"));
        let whole = scan(dialect, Echo::Off, [&body[..]], is_clean);
        let reported = [whole.answer.tokens.input, whole.answer.tokens.cached, whole.answer.tokens.output];
        assert_eq!(reported.map(|n| n.map(|n| n.0)), tokens, "{name}");
        assert_eq!(whole.contents().len(), contents, "{name}");
        assert!(whole.answer.finish_reasons.iter().map(|r| &**r).eq(reasons.iter().copied()), "{name}");
        assert!(whole.answer.id.is_some() && whole.answer.model.as_deref() == Some("tiny"), "{name}");
        let judged = match whole.end {
            StreamEnd::Complete => "complete",
            StreamEnd::Failed(error) if error.kind == EngineErrorKind::EngineDead => "dead",
            StreamEnd::Failed(_) => "failed",
            StreamEnd::Truncated => "truncated",
        };
        assert_eq!(judged, end, "{name}");
        for size in [1, 2, 3, 7, 64, 333, 1000] {
            let split = scan(dialect, Echo::Off, body.chunks(size), is_clean);
            assert_eq!(split.facts, whole.facts, "{name} in reads of {size}");
        }
        // CRLF, so that a line end too is split by some read.
        let crlf = String::from_utf8_lossy(&body).replace('\n', "\r\n");
        for size in [1, 5, crlf.len()] {
            let split = scan(dialect, Echo::Off, crlf.as_bytes().chunks(size), is_clean);
            assert!(split.facts.iter().map(|f| f.0).eq(whole.facts.iter().map(|f| f.0)), "{name}, CRLF");
        }
    }
}

#[test]
fn token_counts_come_with_the_events_where_the_engine_tells_them() {
    let cases: [(&str, &[Option<u32>]); 4] = [
        ("chat_stream_interval4", &[Some(1), Some(4), Some(4), Some(1)]),
        ("chat_stream_token_ids", &[Some(1); 3]),
        ("chat_stream_usage_continuous", &[Some(1); 8]),
        ("chat_stream_usage", &[None; 8]),
    ];
    for (name, expected) in cases {
        let (body, _) = recorded(&format!("{name}.raw"));
        let contents = scan(Dialect::Chat, Echo::Off, [&body[..]], true).contents();
        assert!(contents.iter().map(|c| c.1).eq(expected.iter().copied()), "{name}: {contents:?}");
    }
    let (body, _) = recorded("chat_stream_n2.raw");
    let contents = scan(Dialect::Chat, Echo::Off, [&body[..]], true).contents();
    assert!(contents.iter().map(|c| c.0).eq([0, 0, 1, 0, 1, 1]), "{contents:?}");
}

#[test]
fn engine_times_are_read_where_they_are_sent() {
    let (body, _) = recorded("chat_stream_interval4.raw");
    let times = scan(Dialect::Chat, Echo::Off, [&body[..]], true).answer.engine.unwrap();
    assert_eq!(times.queue.unwrap().as_micros(), 44);
    let (body, _) = recorded("chat_nonstream_metrics.raw");
    assert_eq!(of_unary(Dialect::Chat, &body).engine.unwrap().first_token.unwrap().as_millis(), 7);
}

#[test]
fn recorded_unary_bodies_tell_the_same_as_streams() {
    let cases = [
        ("messages_nonstream_cached", Dialect::Messages, [734, 640, 2], "max_tokens"),
        ("responses_nonstream", Dialect::Responses, [17, 0, 6], "max_output_tokens"),
        ("completions_nonstream", Dialect::Completions, [10, 0, 8], "length"),
    ];
    for (name, dialect, tokens, reason) in cases {
        let answer = of_unary(dialect, &recorded(&format!("{name}.raw")).0);
        let reported = [answer.tokens.input, answer.tokens.cached, answer.tokens.output];
        assert_eq!(reported.map(|n| n.map(|n| n.0)), tokens.map(Some), "{name}");
        assert_eq!(&*answer.finish_reasons[0], reason, "{name}");
    }
    let dead = of_unary(Dialect::Chat, &recorded("engine_death_nonstream.raw").0).error.unwrap();
    assert_eq!((dead.kind, dead.code), (EngineErrorKind::EngineDead, Some(500)));
}

/// What the filter makes of a stream, the same for every way to cut it.
fn filtered(asked: &AskedUsage, text: &str) -> String {
    let cut = |size: usize| {
        let (mut scanner, mut events) = (Scanner::new(Dialect::Chat, Echo::Off), WholeEvents::default());
        let (mut filter, mut out) = (UsageFilter::new(asked.clone()), SmallVec::new());
        for frame in text.as_bytes().chunks(size) {
            let fed = scanner.feed(frame, |_, _| {});
            filter.filter(events.cut(Bytes::copy_from_slice(frame), fed.end), &mut out);
        }
        filter.filter(events.rest(), &mut out);
        out.extend(filter.release());
        String::from_utf8(out.concat()).unwrap()
    };
    let whole = cut(text.len());
    for size in [1, 10, 100, 1000] {
        assert_eq!(cut(size), whole, "frames of {size}");
    }
    whole
}

/// A recorded stream as vLLM would have sent it to a client that asks for no usage.
fn unasked(text: &str) -> String {
    let is_usage = |event: &&str| event.contains("\"choices\":[],\"usage\"");
    let fingerprint = text.split_inclusive("\n\n").find(is_usage).and_then(|event| {
        let at = event.find(",\"system_fingerprint\":")?;
        let end = at + event[at..].find(['}', '\n'])?;
        let value_end = event[at + 1..end].find(",\"").map_or(end, |comma| at + 1 + comma);
        Some(&event[at..value_end])
    });
    let events = text.split_inclusive("\n\n").filter(|event| !is_usage(event));
    let spliced = |event: &str| match fingerprint {
        Some(member) if event.contains("\"finish_reason\":\"") => {
            event.replacen("}\n\n", &format!("{member}}}\n\n"), 1)
        }
        _ => event.to_owned(),
    };
    events.map(spliced).collect()
}

#[test]
fn recorded_streams_become_those_of_an_engine_that_nobody_asked() {
    let asked = AskedUsage { fingerprint: Some("\"vllm-0.32.0-0f84c043\"".into()), ..AskedUsage::default() };
    for (name, dialect, ..) in RECORDED {
        if !matches!(dialect, Dialect::Chat | Dialect::Completions) {
            continue;
        }
        let text = String::from_utf8(recorded(&format!("{name}.raw")).0).unwrap();
        let asked = AskedUsage { has_several_choices: name == "chat_stream_n2", ..asked.clone() };
        // It counts from its first chunk on, which we never ask for.
        let counts_unasked = name == "chat_stream_usage_continuous";
        let expected =
            if counts_unasked || name.ends_with("echo_batch") { text.clone() } else { unasked(&text) };
        assert_eq!(filtered(&asked, &text), expected, "{name}");
    }
}

#[test]
fn asked_and_unasked_recordings_differ_in_ids_and_times_only() {
    let plain = |name: &str| {
        let text = String::from_utf8(recorded(name).0).unwrap();
        let unasked = filtered(&AskedUsage::default(), &text);
        let anonymous = unasked.split("\"object\"").map(|part| match part.rfind("{\"id\":") {
            Some(at) => part[..at].to_owned(),
            None => part.to_owned(),
        });
        let joined = anonymous.collect::<Vec<_>>().join("#");
        let created = joined
            .split("\"created\":")
            .map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit()).to_owned());
        created.collect::<String>()
    };
    assert_eq!(plain("chat_stream_usage.raw"), plain("chat_stream.raw"));
    assert_eq!(plain("completions_stream_usage.raw"), plain("completions_stream.raw"));
}

/// The standard's event stream interpretation, word for word and without a thought for speed: the data of every
/// dispatched event.
fn dispatched(stream: &str) -> Vec<String> {
    let text = stream.strip_prefix('\u{FEFF}').unwrap_or(stream).replace("\r\n", "\n").replace('\r', "\n");
    let (mut all, mut data) = (Vec::new(), String::new());
    // What follows the last line end is no line.
    let lines: Vec<&str> = text.split('\n').collect();
    for line in &lines[..lines.len() - 1] {
        if line.is_empty() {
            if !data.is_empty() {
                data.pop();
                all.push(std::mem::take(&mut data));
            }
        } else if let Some(value) = line.strip_prefix("data:") {
            data.push_str(value.strip_prefix(' ').unwrap_or(value));
            data.push('\n');
        } else if *line == "data" {
            data.push('\n');
        }
    }
    all
}

/// What a chat stream's content events are, by a full parse of everything.
fn contents_by_parsing(stream: &str) -> Vec<u32> {
    let mut all = Vec::new();
    for data in dispatched(stream) {
        let Ok(chunk) = serde_json::from_str::<Value>(&data) else { continue };
        for choice in chunk["choices"].as_array().into_iter().flatten() {
            let is_content = ["content", "reasoning"]
                .iter()
                .any(|key| choice["delta"][key].as_str().is_some_and(|s| !s.is_empty()));
            if is_content {
                all.push(u32::try_from(choice["index"].as_u64().unwrap_or(0)).unwrap());
            }
        }
    }
    all
}

/// Lines of a stream: chunks of a few shapes around texts that look like JSON, comments, other fields, rubbish.
fn line() -> impl Strategy<Value = String> {
    let text = prop_oneof![
        Just(String::new()),
        "[a-z\"\\\\,:{}\\[\\]é\n]{0,12}",
        Just("\",\"choices\":[],\"content\":\"x".to_owned()),
        Just("\\".to_owned()),
    ];
    let chunk = (text, 0..3_u32, 0..5_u8).prop_map(|(text, index, shape)| {
        let text = Value::String(text).to_string();
        match shape {
            0 | 1 => format!(r#"data: {{"id":"a","choices":[{{"index":{index},"delta":{{"content":{text}}},"finish_reason":null}}]}}"#),
            2 => format!(r#"data: {{"choices": [{{"delta": {{"reasoning": {text}}}, "index": {index}}}]}}"#),
            3 => format!(r#"data:{{"content":{text},"choices":[{{"index":{index},"delta":{{"role":"a","content":""}}}}]}}"#),
            _ => format!(r#"data: {{"choices":[{{"index":{index},"delta":{{}},"logprobs":{{"content":[{{"token":{text}}}]}}}}]}}"#),
        }
    });
    let rubbish = prop_oneof![
        Just(": ping"),
        Just("event: x"),
        Just("id: 1"),
        Just("data"),
        Just("data:"),
        Just("data: {\"choices\":[{\"delta\":"),
        Just("data: {\"content\":\"x\"}}]}"),
        Just(""),
        Just("\u{FEFF}data: {}"),
    ];
    prop_oneof![6 => chunk, 2 => rubbish.prop_map(str::to_owned)]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn any_stream_in_any_split_tells_what_a_full_parse_tells(
        lines in prop::collection::vec((line(), "(\n|\r|\r\n)(\n|\r|\r\n|)"), 0..40),
        sizes in prop::collection::vec(1..400_usize, 1..20),
        has_bom in any::<bool>(),
    ) {
        let mut stream = String::from(if has_bom { "\u{FEFF}" } else { "" });
        lines.iter().for_each(|(line, end)| stream.extend([line.as_str(), end.as_str()]));
        let expected = contents_by_parsing(&stream);
        let mut rest = stream.as_bytes();
        let reads = sizes.iter().cycle().map_while(|size| {
            let (read, left) = rest.split_at((*size).min(rest.len()));
            rest = left;
            (!read.is_empty()).then_some(read)
        });
        let scanned = scan(Dialect::Chat, Echo::Off, reads.collect::<Vec<_>>(), true);
        let reported: Vec<u32> = scanned.contents().iter().map(|c| c.0).collect();
        prop_assert_eq!(reported, expected, "{:?}", stream);
    }
}

/// What a client makes of a stream of chat or completions.
#[derive(Debug, Default, PartialEq)]
struct Read {
    text: String,
    ids: Vec<String>,
    created: Vec<u64>,
    roles: usize,
    finish: Vec<String>,
    usage: Vec<[u64; 3]>,
    done: usize,
}

impl Read {
    fn of(stream: &[u8]) -> Self {
        let mut read = Self::default();
        for line in
            std::str::from_utf8(stream).unwrap().lines().filter_map(|line| line.strip_prefix("data: "))
        {
            if line == "[DONE]" {
                read.done += 1;
                continue;
            }
            let event: Value = serde_json::from_str(line).unwrap();
            let id = event["id"].as_str().unwrap().to_owned();
            if !read.ids.contains(&id) {
                read.ids.push(id);
            }
            let created = event["created"].as_u64().unwrap();
            if !read.created.contains(&created) {
                read.created.push(created);
            }
            for choice in event["choices"].as_array().unwrap() {
                read.roles += usize::from(choice["delta"]["role"].is_string());
                read.text +=
                    choice["text"].as_str().or(choice["delta"]["content"].as_str()).unwrap_or_default();
                read.finish.extend(choice["finish_reason"].as_str().map(str::to_owned));
            }
            if let Some(usage) =
                event["usage"].as_object().filter(|_| event["choices"] == serde_json::json!([]))
            {
                read.usage.push(
                    ["prompt_tokens", "completion_tokens", "total_tokens"]
                        .map(|n| usage[n].as_u64().unwrap()),
                );
            }
        }
        read
    }
}

/// An engine that knows the answer, and goes on wherever a request has it begun: three characters an event, which are its tokens.
fn go_on(request: &Value, whole: &Read, given: u64, form: &str) -> String {
    let told = match request["messages"].as_array() {
        Some(messages) if messages.len() > 1 => messages[1]["content"].as_str().unwrap(),
        Some(_) => "",
        None => request["prompt"].as_str().unwrap().strip_prefix("say").unwrap(),
    };
    let rest: Vec<char> =
        whole.text.strip_prefix(told).expect("it builds on what was told").chars().collect();
    let wrap = |choices: String| {
        format!(
            "data: {{\"id\":\"other\",\"object\":\"x\",\"created\":7,\"model\":\"m\",\"choices\":[{choices}]}}\n\n"
        )
    };
    let mut out = String::new();
    if form == "content" {
        out += &wrap(
            "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}"
                .to_owned(),
        );
    }
    for piece in rest.chunks(3) {
        let text = serde_json::to_string(&piece.iter().collect::<String>()).unwrap();
        out += &wrap(match form {
            "content" => format!("{{\"index\":0,\"delta\":{{\"content\":{text}}},\"finish_reason\":null}}"),
            _ => format!("{{\"index\":0,\"text\":{text},\"finish_reason\":null}}"),
        });
    }
    let finish = &whole.finish[0];
    out += &wrap(match form {
        "content" => format!("{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"{finish}\"}}"),
        _ => format!("{{\"index\":0,\"text\":\"\",\"finish_reason\":\"{finish}\"}}"),
    });
    if let Some([prompt, ..]) = whole.usage.first() {
        let (prompt, completion) = (prompt + given, rest.chunks(3).count() as u64);
        let total = prompt + completion;
        let usage = format!(
            "\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{completion},\"total_tokens\":{total}}}"
        );
        out += &wrap(String::new()).replace("\"choices\":[]", &format!("\"choices\":[],{usage}"));
    }
    out + "data: [DONE]\n\n"
}

#[test]
fn a_stream_that_breaks_at_any_byte_goes_on_as_if_it_had_not() {
    let recorded_streams = [
        ("chat_stream", Dialect::Chat, "content"),
        ("chat_stream_usage", Dialect::Chat, "content"),
        ("chat_stream_usage_continuous", Dialect::Chat, "content"),
        ("chat_stream_token_ids", Dialect::Chat, "content"),
        ("chat_stream_interval4", Dialect::Chat, "content"),
        ("chat_stream_stop", Dialect::Chat, "content"),
        ("completions_stream", Dialect::Completions, "text"),
        ("completions_stream_usage", Dialect::Completions, "text"),
    ];
    for (name, dialect, form) in recorded_streams {
        let (body, _) = recorded(&format!("{name}.raw"));
        let whole = Read::of(&body);
        let request = Bytes::from_static(match dialect {
            Dialect::Chat => b"{\"messages\":[{\"role\":\"user\",\"content\":\"say\"}],\"max_tokens\":50}",
            _ => b"{\"prompt\":\"say\",\"max_tokens\":50}",
        });
        for cut in 0..body.len() {
            let (mut scanner, mut events) = (Scanner::new(dialect, Echo::Off), WholeEvents::default());
            let mut transcript = Transcript::new(dialect, false, 0);
            let mut client = Vec::new();
            for read in body[..cut].chunks(97) {
                let fed = scanner.feed(read, |_, _| {});
                client.extend_from_slice(&transcript.pass(events.cut(Bytes::copy_from_slice(read), fed.end)));
            }
            if scanner.state().is_finished() {
                // Only the terminator is missing, and perhaps the usage: nobody is asked.
                break;
            }
            let by = continuation(dialect, &request, &transcript.progress().unwrap(), EngineKind::Vllm)
                .unwrap()
                .unwrap();
            let sent: Value = serde_json::from_slice(&by.body.whole()).unwrap();
            let given = by.tokens;
            assert_eq!(sent["max_tokens"], 50 - given, "{name} cut at {cut}");
            transcript.continued(by);
            let more = go_on(&sent, &whole, given, form);
            client.extend_from_slice(&transcript.pass(Bytes::from(more)));
            let joined = Read::of(&client);
            // A stream that broke before its first event has none to be true to.
            if !joined.ids.contains(&"other".to_owned()) {
                assert_eq!(
                    (&joined.ids, &joined.created),
                    (&whole.ids, &whole.created),
                    "{name} cut at {cut}"
                );
                assert_eq!(joined.roles, whole.roles, "{name} cut at {cut}");
            }
            assert_eq!(
                (&joined.text, &joined.finish, joined.done),
                (&whole.text, &whole.finish, 1),
                "{name} cut at {cut}"
            );
            let prompt = |read: &Read| read.usage.first().map(|usage| usage[0]);
            assert_eq!(prompt(&joined), prompt(&whole), "{name} cut at {cut}");
            assert!(joined.usage.iter().all(|[prompt, completion, total]| prompt + completion == *total));
        }
    }
}
