//! What the client of a stream has, and the continuation of the stream by another engine, made to fit it.
//!
//! Pure: whole SSE events in, events for the client out. The first engine's events are read on the way and pass unchanged, but for
//! the running token counts that the gateway, not the client, asked for: those are taken out. A later one's get the first one's
//! id, `created` and model, lose the second role chunk, and their token counts become the whole answer's. Only streams of routes
//! with `migrate` have one; what it keeps is bounded and never leaves it but in the request that continues the stream.

use bytes::{Bytes, BytesMut};

use crate::record::TokenCounts;
use crate::relay::chunk::{ChoiceView, ChunkView};
use crate::relay::delivered::Delivered;
use crate::relay::frame::Boundaries;
use crate::relay::segment::{Head, Segment, fit, running_usage};
use crate::relay::usage::Usage;
use crate::request::continuation::{Continuation, Obstacle, Progress};
use crate::request::dialect::Dialect;
use crate::request::json::Raw;
use crate::request::splice::{Edit, apply, in_order};
use crate::units::Tokens;

/// The client's view of one stream.
#[derive(Debug, Default)]
pub struct Transcript {
    boundaries: Boundaries,
    /// The last event was replaced, and its line end may go on: with an LF that is dropped.
    drops_line_feed: bool,
    joined: Vec<u8>,
    head: Option<Box<Head>>,
    delivered: Delivered,
    /// Counted by the first engine.
    prompt_tokens: Option<u64>,
    obstacle: Option<Obstacle>,
    /// The usage of chunks with choices was asked for by the gateway.
    hides_running: bool,
    /// The client waits for a chunk with the usage of the whole.
    owes_usage: bool,
    /// `None` until the stream was continued.
    segment: Option<Segment>,
}

impl Transcript {
    /// Of a stream that begins; with `hides_running` the client sees no usage beside choices. Its engines keep the last `held_back`
    /// characters of the text to themselves.
    pub fn new(dialect: Dialect, hides_running: bool, held_back: usize) -> Self {
        let obstacle =
            (!matches!(dialect, Dialect::Chat | Dialect::Completions)).then_some(Obstacle::Dialect);
        Self { obstacle, hides_running, delivered: Delivered::behind(held_back), ..Self::default() }
    }

    /// Of a client that asked for a chunk with the usage.
    pub fn owing_usage(self, owes_usage: bool) -> Self {
        Self { owes_usage, ..self }
    }

    /// Takes whole events of the engine and gives what goes to the client.
    pub fn pass(&mut self, events: Bytes) -> Bytes {
        let is_edited = self.segment.is_some() || self.hides_running;
        if self.obstacle.is_some() && !is_edited {
            return events;
        }
        let mut out = is_edited.then(|| BytesMut::with_capacity(events.len()));
        let mut joined = std::mem::take(&mut self.joined);
        let mut start = self.boundaries.begin(&events);
        if let Some(out) = out.as_mut().filter(|_| !self.drops_line_feed) {
            out.extend_from_slice(events.get(..start).unwrap_or_default());
        }
        self.drops_line_feed &= events.is_empty();
        while let Some(end) = self.boundaries.next_end(&events, start) {
            let raw = events.get(start..end).unwrap_or_default();
            start = end;
            self.event(raw, &mut joined, out.as_mut());
            self.drops_line_feed &= end == events.len();
        }
        self.joined = joined;
        // What never ended is not whole: it comes from the end of a body, and passes.
        match out {
            None => events,
            Some(mut out) => {
                out.extend_from_slice(events.get(start..).unwrap_or_default());
                out.freeze()
            }
        }
    }

    /// Why the stream cannot be continued, as far as its events tell.
    pub fn obstacle(&self) -> Option<Obstacle> {
        self.obstacle
    }

    /// What to continue.
    ///
    /// # Errors
    /// Why it cannot be continued.
    pub fn progress(&self) -> Result<Progress, Obstacle> {
        self.obstacle.map_or_else(|| Ok(self.delivered.progress()), Err)
    }

    /// The end of a stream that has all the tokens that it may have, as its engine would have written it.
    pub fn end_at_limit(&self, dialect: Dialect, tokens: TokenCounts) -> Bytes {
        let choice = if dialect == Dialect::Completions { "\"text\":\"\"" } else { "\"delta\":{}" };
        let choice = format!("\"choices\":[{{\"index\":0,{choice},\"finish_reason\":\"length\"}}]");
        (self.chunk(dialect, &choice) + &self.rest(dialect, tokens)).into()
    }

    /// The end of a stream whose choices have ended.
    pub fn end(&self, dialect: Dialect, tokens: TokenCounts) -> Bytes {
        self.rest(dialect, tokens).into()
    }

    /// What follows the last choice: the usage that the client asked for and does not have, where that is known.
    fn rest(&self, dialect: Dialect, tokens: TokenCounts) -> String {
        let (Some(Tokens(input)), Some(Tokens(output)), true) =
            (tokens.input, tokens.output, self.owes_usage)
        else {
            return DONE.to_owned();
        };
        let total = input.saturating_add(output);
        let usage = format!(
            "\"choices\":[],\"usage\":{{\"prompt_tokens\":{input},\"total_tokens\":{total},\"completion_tokens\":{output}}}"
        );
        self.chunk(dialect, &usage) + DONE
    }

    fn chunk(&self, dialect: Dialect, members: &str) -> String {
        let object =
            if dialect == Dialect::Completions { "text_completion" } else { "chat.completion.chunk" };
        let head = self.head.as_ref().map(|head| head.members()).unwrap_or_default();
        format!("data: {{{head}\"object\":\"{object}\",{members}}}\n\n")
    }

    /// Another engine continues the stream from here.
    pub fn continued(&mut self, by: Continuation) {
        self.boundaries = Boundaries::default();
        self.drops_line_feed = false;
        self.delivered.resume_at(by.tokens, &by.repeats);
        self.segment = Some(Segment { carried_over: by.tokens, repeats: by.repeats });
    }

    /// The token counts of the whole answer, from those of the engine that ended it.
    pub fn whole(&self, of_segment: TokenCounts) -> TokenCounts {
        let Some(segment) = &self.segment else { return of_segment };
        let input = of_segment.input.map(|n| Tokens(segment.prompt_tokens(self.prompt_tokens, n.0)));
        TokenCounts {
            input,
            cached: of_segment.cached.map(|cached| cached.min(input.unwrap_or(cached))),
            output: of_segment.output.map(|n| Tokens(n.0.saturating_add(segment.carried_over))),
        }
    }

    fn event(&mut self, raw: &[u8], joined: &mut Vec<u8>, out: Option<&mut BytesMut>) {
        let Some(chunk) = ChunkView::of_event(raw, joined) else {
            if let Some(out) = out {
                out.extend_from_slice(raw);
            }
            return;
        };
        let new_text = self.note(&chunk);
        let Some(out) = out else { return };
        let hidden = if self.hides_running { running_usage(&chunk) } else { None };
        let Some(segment) = &self.segment else {
            // Everything else of the event stands as it was read.
            let hidden = hidden.and_then(|hidden| chunk.in_event(&hidden)).unwrap_or_default();
            out.extend_from_slice(raw.get(..hidden.start).unwrap_or_default());
            out.extend_from_slice(raw.get(hidden.end..).unwrap_or_default());
            return;
        };
        self.drops_line_feed = raw.last() == Some(&b'\r');
        if is_role_only(&chunk) {
            return;
        }
        let mut edits = fit(&chunk, self.head.as_deref(), new_text.as_deref());
        match (hidden, chunk.usage) {
            (Some(hidden), _) => edits.push(Edit::replace(hidden, "")),
            (None, Some(usage)) => segment.add_up(usage, self.prompt_tokens, &mut edits),
            (None, None) => {}
        }
        in_order(&mut edits);
        let data = apply(chunk.data.as_bytes(), &edits);
        out.extend_from_slice(b"data: ");
        out.extend(data.iter().map(|b| if matches!(b, b'\n' | b'\r') { b' ' } else { *b }));
        out.extend_from_slice(b"\n\n");
    }

    /// Notes an event. Returns the text to relay in place of its own, where a part of that is known to the client.
    fn note(&mut self, chunk: &ChunkView<'_>) -> Option<String> {
        if self.head.is_none() && chunk.id.is_some() {
            self.head = Some(Box::new(Head::of(chunk)));
        }
        if let Some(obstacle) = self.obstacle.or_else(|| obstacle_in(chunk)) {
            self.give_up(obstacle);
        }
        let counts = chunk.usage.and_then(Usage::of).map(|usage| usage.counts()).unwrap_or_default();
        self.owes_usage &= chunk.has_choices() || chunk.usage.is_none();
        let choice = chunk.choices.last();
        let carried_over = match &self.segment {
            Some(segment) => segment.carried_over,
            None => {
                self.prompt_tokens = self.prompt_tokens.or(counts.input.map(|n| n.0));
                if let Some(ids) = choice.and_then(|choice| choice.prompt_token_ids) {
                    self.delivered.set_prompt_ids(ids);
                }
                0
            }
        };
        let choice = choice?;
        if is_output(choice) {
            let running = counts.output.map(|n| n.0.saturating_add(carried_over));
            self.delivered.count(choice, running);
        }
        let Some(text) = choice.text_or_content()?.string() else {
            self.give_up(Obstacle::Unreadable);
            return None;
        };
        let fresh = match &mut self.segment {
            Some(segment) => segment.unrepeated(&text),
            None => &text,
        };
        if self.obstacle.is_none() {
            self.delivered.append(fresh);
        }
        if self.delivered.is_too_long() {
            self.give_up(Obstacle::TooLong);
        }
        (fresh.len() < text.len()).then(|| fresh.to_owned())
    }

    /// Frees what a stream that cannot be continued has no use for.
    fn give_up(&mut self, obstacle: Obstacle) {
        self.obstacle.get_or_insert(obstacle);
        self.delivered.free();
    }
}

const DONE: &str = "data: [DONE]\n\n";

/// Why a stream with this chunk cannot be continued.
fn obstacle_in(chunk: &ChunkView<'_>) -> Option<Obstacle> {
    let choice = chunk.choices.last()?;
    if chunk.choice_count > Some(1) || choice.index() != 0 {
        return Some(Obstacle::SeveralChoices);
    }
    let by_delta = choice.delta.as_ref().and_then(|delta| {
        let [_, reasoning, reasoning_content, thinking, refusal, tool_calls, function_call, audio, images] =
            delta.content;
        let holds =
            |values: [Option<Raw<'_>>; 3]| values.into_iter().flatten().any(|value| value.is_filled());
        if holds([reasoning, reasoning_content, thinking]) {
            Some(Obstacle::Reasoning)
        } else if holds([tool_calls, function_call, None]) {
            Some(Obstacle::ToolCall)
        } else {
            holds([refusal, audio, images]).then_some(Obstacle::Unreadable)
        }
    });
    by_delta.or_else(|| choice.logprobs.map(|_| Obstacle::Logprobs))
}

/// Whether a choice tells of the engine's output, and not of the role alone.
fn is_output(choice: &ChoiceView<'_>) -> bool {
    match &choice.delta {
        Some(delta) => delta.role.is_none() || choice.values().is_content(),
        None => choice.text.is_some(),
    }
}

/// A chunk that opens a stream, which is open already.
fn is_role_only(chunk: &ChunkView<'_>) -> bool {
    let is_role = |choice: &ChoiceView<'_>| choice.delta.is_some() && !is_output(choice);
    chunk.choices.last().is_some_and(|choice| is_role(choice) && choice.finish_reason().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::delivered::MAX_KEPT;
    use crate::request::pieces::Pieces;

    fn chunk(id: &str, delta: &str, more: &str) -> String {
        format!(
            "data: {{\"id\":\"{id}\",\"created\":1,\"model\":\"m-{id}\",\"choices\":[{{\"index\":0,\"delta\":{delta},\
             \"logprobs\":null,\"finish_reason\":null{more}}}]}}\n\n"
        )
    }

    fn say(id: &str, text: &str) -> String {
        chunk(id, &format!("{{\"content\":\"{text}\"}}"), "")
    }

    const ROLE: &str = r#"{"role":"assistant","content":""}"#;

    fn pass(transcript: &mut Transcript, events: &str) -> String {
        let passed = transcript.pass(Bytes::copy_from_slice(events.as_bytes()));
        String::from_utf8(passed.to_vec()).unwrap()
    }

    fn told(dialect: Dialect, events: &str) -> (Transcript, Result<(String, u64), Obstacle>) {
        let mut transcript = Transcript::new(dialect, false, 0);
        assert_eq!(pass(&mut transcript, events), events, "what the first engine says passes as it is");
        let progress = transcript.progress().map(|told| (told.text, told.tokens));
        (transcript, progress)
    }

    fn continued(text: &str, tokens: u64, repeats: &str) -> Transcript {
        let (mut transcript, _) = told(Dialect::Chat, &(chunk("a", ROLE, "") + &say("a", text)));
        transcript.continued(Continuation { body: Pieces::default(), repeats: repeats.to_owned(), tokens });
        transcript
    }

    #[test]
    fn line_ends_of_two_bytes_stay_whole_however_the_reads_are_cut() {
        use crate::relay::whole_events::WholeEvents;
        let usage = ",\"usage\":{\"prompt_tokens\":9}}\n";
        let events = [chunk("a", ROLE, ""), say("a", "x").replace("}\n", usage), ": ping\n\n".to_owned()];
        let stream = (events.concat() + &say("a", "y")).replace('\n', "\r\n");
        let whole = pass(&mut Transcript::new(Dialect::Chat, true, 0), &stream);
        assert!(!whole.contains("usage") && whole.contains("\r\n\r\n"), "{whole:?}");
        for size in 1..stream.len() {
            let (mut transcript, mut boundaries) =
                (Transcript::new(Dialect::Chat, true, 0), Boundaries::default());
            let (mut cutter, mut passed) = (WholeEvents::default(), Vec::new());
            for read in stream.as_bytes().chunks(size) {
                let (mut start, mut end) = (boundaries.begin(read), 0);
                while let Some(next) = boundaries.next_end(read, start) {
                    (start, end) = (next, next);
                }
                passed.extend(transcript.pass(cutter.cut(Bytes::copy_from_slice(read), end)));
            }
            passed.extend(transcript.pass(cutter.rest()));
            assert_eq!(String::from_utf8(passed).unwrap(), whole, "reads of {size}");
        }
    }

    #[test]
    fn tokens_are_those_behind_the_text() {
        let role = chunk("a", ROLE, "");
        let ids = |text: &str, ids: &str| {
            chunk("a", &format!("{{\"content\":\"{text}\"}}"), &format!(",\"token_ids\":{ids}"))
        };
        let running = |text: &str, n: u64| {
            say("a", text).replace(
                "]}\n",
                &format!("],\"usage\":{{\"prompt_tokens\":9,\"completion_tokens\":{n}}}}}\n"),
            )
        };
        for (name, events, expected) in [
            ("nothing yet", role.clone(), ("", 0)),
            ("one event, one token", say("a", "x") + &say("a", "y"), ("xy", 2)),
            ("half a character is said again", say("a", "x") + &say("a", ""), ("x", 1)),
            ("held back and come out", say("a", "x") + &say("a", "") + &say("a", "é"), ("xé", 3)),
            ("white space at the end is said again", say("a", "x") + &say("a", "\\n"), ("x\n", 1)),
            ("ids count", ids("x", "[1]") + &ids("yz", "[2,3,4]") + &ids("", "[5]"), ("xyz", 4)),
            ("running counts", running("x", 1) + &running("", 3) + &running("y", 4), ("xy", 4)),
            ("escapes", say("a", r#"\"\u00e9\ud83d\ude00"#), ("\"é😀", 1)),
            ("comments and pings", format!(": ping\n\n{role}"), ("", 0)),
        ] {
            let (text, tokens) = told(Dialect::Chat, &events).1.unwrap();
            assert_eq!((&*text, tokens), expected, "{name}");
        }
    }

    #[test]
    fn tokens_whose_text_an_engine_holds_back_are_generated_again() {
        // A token has four characters, and the engine keeps nine of them to itself.
        let events = |id: &str, tokens: usize, before: usize| {
            let chars = |tokens: usize| (4 * tokens).saturating_sub(9);
            let text = |n: usize| "x".repeat(chars(n) - chars(n - 1));
            let count =
                |n: usize| format!("],\"usage\":{{\"prompt_tokens\":9,\"completion_tokens\":{}}}}}\n", n);
            (1..=tokens).map(|n| say(id, &text(n)).replace("]}\n", &count(n + before))).collect::<String>()
        };
        for (tokens, behind) in [(2, 0), (3, 0), (4, 1), (5, 2), (6, 3), (20, 17)] {
            let mut transcript = Transcript::new(Dialect::Completions, false, 9);
            pass(&mut transcript, &events("a", tokens, 0));
            let progress = transcript.progress().unwrap();
            assert_eq!(progress.all_tokens, behind, "{} characters", progress.text.len());
            if let Some(at) = progress.boundary {
                assert_eq!(at.bytes as u64, 4 * at.tokens, "where a token ends");
                assert!(
                    at.tokens == if behind < 3 { 0 } else { behind },
                    "the first texts show no ends: {at:?}"
                );
            }
            let by = Continuation { body: Pieces::default(), repeats: String::new(), tokens: behind };
            transcript.continued(by);
            pass(&mut transcript, &events("b", 20, 0));
            assert_eq!(transcript.progress().unwrap().all_tokens, behind + 17, "and those of the next");
        }
    }

    #[test]
    fn running_counts_that_only_the_gateway_wanted_are_taken_out() {
        let usage = r#""usage":{"prompt_tokens":9,"total_tokens":13,"completion_tokens":4,"x":null}"#;
        let behind = say("a", "x").replace("]}\n", &format!("],{usage}}}\n"));
        let between = say("a", "x").replace("]}\n", &format!("], {usage},\"system_fingerprint\":\"f\"}}\n"));
        let first = say("a", "x").replace("{\"id\"", &format!("{{{usage} , \"id\""));
        let whole = format!("data: {{\"id\":\"a\",\"choices\":[],{usage}}}\n\n");
        let call = chunk("a", r#"{"tool_calls":[{"index":0}]}"#, "");
        let called = call.replace("]}\n", &format!("],{usage}}}\n"));
        for (event, expected) in [
            (&behind, say("a", "x")),
            (&between, say("a", "x").replace("]}\n", "],\"system_fingerprint\":\"f\"}\n")),
            (&first, say("a", "x").replace("{\"id\"", "{ \"id\"")),
            (&whole, whole.clone()),
            (&called, call),
        ] {
            let mut transcript = Transcript::new(Dialect::Chat, true, 0);
            assert_eq!(pass(&mut transcript, event), expected);
            let mut shown = Transcript::new(Dialect::Chat, false, 0);
            assert_eq!(&pass(&mut shown, event), event);
        }
        let mut transcript = Transcript::new(Dialect::Chat, true, 0);
        let events = called.clone() + ": ping\n\n" + &behind + "data: [DONE]\n\n";
        let expected =
            called.replace(&format!(",{usage}"), "") + ": ping\n\n" + &say("a", "x") + "data: [DONE]\n\n";
        assert_eq!(
            pass(&mut transcript, &events),
            expected,
            "also of a stream that nobody can continue any more"
        );

        let mut transcript = Transcript::new(Dialect::Chat, true, 0);
        pass(&mut transcript, &behind);
        assert_eq!(transcript.progress().unwrap().tokens, 4, "one event of four tokens");
        transcript.continued(Continuation { body: Pieces::default(), repeats: String::new(), tokens: 4 });
        assert_eq!(
            pass(&mut transcript, &behind.replace("\"a\"", "\"b\"")),
            say("a", "x").replace("m-b", "m-a")
        );
        assert_eq!(transcript.progress().unwrap().tokens, 8);
    }

    #[test]
    fn some_streams_cannot_be_continued() {
        let call = r#"{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"{"}}]}"#;
        let second = say("a", "x").replace("\"index\":0", "\"index\":1");
        for (events, expected) in [
            (chunk("a", call, ""), Obstacle::ToolCall),
            (chunk("a", r#"{"reasoning":"hm"}"#, ""), Obstacle::Reasoning),
            (second, Obstacle::SeveralChoices),
            (say("a", "x").replace("\"logprobs\":null", "\"logprobs\":{}"), Obstacle::Logprobs),
            (say("a", r"\ud800"), Obstacle::Unreadable),
            (say("a", &"x".repeat(MAX_KEPT + 1)), Obstacle::TooLong),
        ] {
            let (transcript, progress) = told(Dialect::Chat, &(say("a", "y") + &events + &say("a", "z")));
            assert_eq!(progress, Err(expected));
            assert!(transcript.delivered.is_freed(), "its text is freed");
        }
        assert_eq!(told(Dialect::Messages, "data: {}\n\n").1, Err(Obstacle::Dialect));
    }

    #[test]
    fn a_later_engine_s_events_are_those_of_the_first() {
        let mut transcript = continued("x", 1, "");
        let later = chunk("b", ROLE, "") + &say("b", "y") + ": ping\n\n" + "data: [DONE]\n\n";
        let expected = say("a", "y") + ": ping\n\n" + "data: [DONE]\n\n";
        assert_eq!(pass(&mut transcript, &later), expected);
        assert_eq!(transcript.progress().unwrap().text, "xy");

        let opening = chunk("b", r#"{"role":"assistant","content":"z"}"#, ",\"prompt_token_ids\":[1,2]");
        let expected = chunk("a", r#"{"content":"z"}"#, ",\"prompt_token_ids\":null");
        assert_eq!(pass(&mut transcript, &opening), expected);
        assert_eq!(
            pass(&mut transcript, "data: {\"id\":\n\n"),
            "data: {\"id\":\n\n",
            "what is no JSON passes"
        );
    }

    #[test]
    fn what_is_said_again_is_left_out() {
        for (repeats, events, expected) in [
            (" \n", vec![" \n", "y"], "y"),
            (" \n", vec![" ", "\n y"], " y"),
            (" ", vec!["  y"], " y"),
            (" ", vec!["y"], "y"),
            (" ", vec!["\n", " y"], "\n y"),
            ("", vec![" y"], " y"),
        ] {
            let mut transcript = continued(&("x".to_owned() + &repeats.replace('\n', "\\n")), 1, repeats);
            let mut text = String::new();
            for event in &events {
                let passed = pass(&mut transcript, &say("b", &event.replace('\n', "\\n")));
                let value: serde_json::Value =
                    serde_json::from_str(passed.trim_start_matches("data: ")).unwrap();
                text += value["choices"][0]["delta"]["content"].as_str().unwrap();
            }
            assert_eq!(text, expected, "{repeats:?} {events:?}");
            assert_eq!(transcript.progress().unwrap().text, format!("x{repeats}{expected}"));
        }
    }

    #[test]
    fn counts_are_those_of_the_whole_answer() {
        let usage = |prompt: u64, completion: u64, cached: u64| {
            format!(
                "data: {{\"id\":\"a\",\"choices\":[],\"usage\":{{\"prompt_tokens\":{prompt},\"total_tokens\":{},\
                 \"completion_tokens\":{completion},\"prompt_tokens_details\":{{\"cached_tokens\":{cached}}}}}}}\n\n",
                prompt + completion
            )
        };
        let mut transcript = continued("x", 5, "");
        assert_eq!(pass(&mut transcript, &usage(15, 7, 12)), usage(10, 12, 10));
        let n = |n| Some(Tokens(n));
        let whole = transcript.whole(TokenCounts { input: n(15), cached: n(12), output: n(7) });
        assert_eq!((whole.input, whole.cached, whole.output), (n(10), n(10), n(12)));
    }
}
