//! What the client of a stream was told so far, and the continuation of the stream by another engine, made to fit it.
//!
//! Pure: whole SSE events in, events for the client out. The first engine's events are read on the way and pass unchanged, but for
//! the running token counts that the gateway, not the client, asked for: those are taken out. A later one's get the first one's id, `created` and model, lose the second role chunk, and their token counts become the whole
//! answer's. Only streams of routes with `migrate` have one; what it keeps is bounded and never leaves it but in the request that
//! continues the stream.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use crate::record::TokenCounts;
use crate::relay::frame::{Boundaries, SseFields, without_bom};
use crate::request::continuation::{Continuation, Obstacle, Progress, TokenIds};
use crate::request::dialect::Dialect;
use crate::request::json::{Cursor, JsonError, JsonKind, Raw};
use crate::request::splice::{Edit, apply};
use crate::units::Tokens;

/// The client's view of one stream.
#[derive(Debug)]
pub struct Transcript {
    boundaries: Boundaries,
    /// The last event was replaced, and its line end may go on: with an LF that is dropped.
    drops_line_feed: bool,
    joined: Vec<u8>,
    head: Option<Box<Head>>,
    told: Told,
    obstacle: Option<Obstacle>,
    /// The usage of chunks with choices was asked for by the gateway.
    hides_running: bool,
    /// `None` until the stream was continued.
    leg: Option<Leg>,
}

/// What every event of one stream has in common, as the first engine wrote it.
#[derive(Debug, Default)]
struct Head {
    id: Option<Box<str>>,
    created: Option<Box<str>>,
    model: Option<Box<str>>,
}

/// The answer so far.
#[derive(Debug, Default)]
struct Told {
    text: String,
    /// Tokens up to the last event with text that is more than white space.
    solid: u64,
    /// Tokens up to the last event with text.
    tokens: u64,
    /// Tokens since: half a character, the possible beginning of a stop string.
    held: u64,
    prompt_tokens: Option<u64>,
    ids: Option<TokenIds>,
    held_ids: Vec<u64>,
}

/// The part of the answer that the present engine gives.
#[derive(Debug)]
struct Leg {
    /// Tokens of the parts before it.
    given: u64,
    /// What it will say again.
    repeats: String,
}

impl Transcript {
    /// Of a stream that begins; with `hides_running` the client sees no usage beside choices.
    #[must_use]
    pub fn new(dialect: Dialect, hides_running: bool) -> Self {
        let obstacle =
            (!matches!(dialect, Dialect::Chat | Dialect::Completions)).then_some(Obstacle::Dialect);
        let told = Told { ids: Some(TokenIds::default()), ..Told::default() };
        let (boundaries, joined) = (Boundaries::default(), Vec::new());
        Self {
            boundaries,
            drops_line_feed: false,
            joined,
            head: None,
            told,
            obstacle,
            hides_running,
            leg: None,
        }
    }

    /// Takes whole events of the engine and gives what goes to the client.
    pub fn pass(&mut self, events: Bytes) -> Bytes {
        let is_edited = self.leg.is_some() || self.hides_running;
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
    #[must_use]
    pub fn obstacle(&self) -> Option<Obstacle> {
        self.obstacle
    }

    /// What to continue.
    ///
    /// # Errors
    /// Why it cannot be continued.
    pub fn progress(&self) -> Result<Progress, Obstacle> {
        if let Some(obstacle) = self.obstacle {
            return Err(obstacle);
        }
        let told = &self.told;
        let is_exact = told.ids.as_ref().is_some_and(|ids| !ids.prompt.is_empty());
        Ok(Progress {
            text: told.text.clone(),
            tokens: told.solid,
            all_tokens: told.tokens,
            ids: told.ids.clone().filter(|_| is_exact),
        })
    }

    /// The end of a stream that has all the tokens that it may have, as its engine would have told it.
    #[must_use]
    pub fn end_at_limit(&self, dialect: Dialect) -> Bytes {
        let (object, choice) = match dialect {
            Dialect::Completions => ("text_completion", "\"text\":\"\""),
            _ => ("chat.completion.chunk", "\"delta\":{}"),
        };
        let mut event = "data: {".to_owned();
        if let Some(head) = &self.head {
            for (name, value) in [("id", &head.id), ("created", &head.created), ("model", &head.model)] {
                event.extend(value.iter().flat_map(|value| ["\"", name, "\":", value, ","]));
            }
        }
        event.extend(["\"object\":\"", object, "\",\"choices\":[{\"index\":0,", choice]);
        event.push_str(",\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n");
        event.into()
    }

    /// Another engine continues the stream from here.
    pub fn continued(&mut self, by: Continuation) {
        self.boundaries = Boundaries::default();
        self.drops_line_feed = false;
        let told = &mut self.told;
        let is_exact = told
            .ids
            .as_ref()
            .is_some_and(|ids| !ids.output.is_empty() && ids.output.len() as u64 == by.tokens);
        if !is_exact {
            told.ids = None;
        }
        told.held_ids.clear();
        (told.solid, told.tokens, told.held) = (by.tokens, by.tokens, 0);
        self.leg = Some(Leg { given: by.tokens, repeats: by.repeats });
    }

    /// The token counts of the whole answer, from those of the engine that ended it.
    #[must_use]
    pub fn whole(&self, of_leg: TokenCounts) -> TokenCounts {
        let Some(leg) = &self.leg else { return of_leg };
        let input = of_leg.input.map(|input| Tokens(self.prompt_tokens(input.0, leg.given)));
        TokenCounts {
            input,
            cached: of_leg.cached.map(|cached| cached.min(input.unwrap_or(cached))),
            output: of_leg.output.map(|output| Tokens(output.0.saturating_add(leg.given))),
        }
    }

    /// The prompt of the client: known from the first engine, else what the present one counts less what it was given of the
    /// answer.
    fn prompt_tokens(&self, of_leg: u64, given: u64) -> u64 {
        self.told.prompt_tokens.unwrap_or(of_leg.saturating_sub(given))
    }

    fn event(&mut self, raw: &[u8], joined: &mut Vec<u8>, out: Option<&mut BytesMut>) {
        let event = without_bom(raw);
        let data = SseFields::of(event, joined).data;
        let data = data.and_then(|data| std::str::from_utf8(data).ok()).filter(|data| data.starts_with('{'));
        let Some((data, chunk)) = data.and_then(|data| Some((data, Chunk::read(data).ok()?))) else {
            if let Some(out) = out {
                out.extend_from_slice(raw);
            }
            return;
        };
        let new_text = self.note(&chunk);
        let Some(out) = out else { return };
        let hidden = if self.hides_running { chunk.running(data) } else { None };
        let Some(leg) = &self.leg else {
            // Everything else of the event stands as it was read.
            match hidden.and_then(|hidden| within(raw, data, hidden.at)) {
                Some(hidden) => {
                    out.extend_from_slice(raw.get(..hidden.start).unwrap_or_default());
                    out.extend_from_slice(raw.get(hidden.end..).unwrap_or_default());
                }
                None => out.extend_from_slice(raw),
            }
            return;
        };
        self.drops_line_feed = raw.last() == Some(&b'\r');
        if chunk.is_role_only() {
            return;
        }
        let mut edits = chunk.edits(data, self.head.as_deref(), new_text.as_deref());
        match (hidden, chunk.usage) {
            (Some(hidden), _) => edits.push(hidden),
            (None, Some(usage)) => self.add_up(usage, leg.given, &mut edits),
            (None, None) => {}
        }
        edits.sort_by_key(|edit| edit.at.start);
        out.extend_from_slice(b"data: ");
        out.extend(
            apply(data.as_bytes(), &edits).iter().map(|b| if matches!(b, b'\n' | b'\r') { b' ' } else { *b }),
        );
        out.extend_from_slice(b"\n\n");
    }

    /// Notes an event. Returns the text to relay in place of its own, where a part of that is known to the client.
    fn note(&mut self, chunk: &Chunk<'_>) -> Option<String> {
        if self.head.is_none() && chunk.id.is_some() {
            let own = |raw: Option<Raw<'_>>| raw.map(|raw| raw.text().into());
            let head = Head { id: own(chunk.id), created: own(chunk.created), model: own(chunk.model) };
            self.head = Some(Box::new(head));
        }
        if let Some(obstacle) = self.obstacle.or_else(|| chunk.obstacle()) {
            self.give_up(obstacle);
        }
        let given = self.leg.as_ref().map_or(0, |leg| leg.given);
        if self.leg.is_none() && self.told.prompt_tokens.is_none() {
            self.told.prompt_tokens = chunk.prompt_tokens();
        }
        let choice = chunk.choice.as_ref()?;
        if let Some(prompt) = choice.prompt_token_ids.filter(|_| self.leg.is_none())
            && let Some(ids) = &mut self.told.ids
        {
            ids.prompt = numbers(prompt);
        }
        self.told.count(choice, chunk.completion_tokens(), given);
        let text = choice.text?;
        let Some(text) = text.string() else {
            self.give_up(Obstacle::Unreadable);
            return None;
        };
        let fresh = match &mut self.leg {
            Some(leg) => unrepeated(&mut leg.repeats, &text),
            None => &text,
        };
        let replaced = (fresh.len() < text.len()).then(|| fresh.to_owned());
        if self.obstacle.is_none() {
            self.told.say(fresh);
        }
        if self.told.text.len() > MAX_TEXT {
            self.give_up(Obstacle::TooLong);
        }
        replaced
    }

    /// Frees what a stream that cannot be continued has no use for.
    fn give_up(&mut self, obstacle: Obstacle) {
        self.obstacle.get_or_insert(obstacle);
        let told = &mut self.told;
        (told.text, told.ids, told.held_ids) = (String::new(), None, Vec::new());
    }

    /// Makes the counts of one engine those of the whole answer.
    fn add_up(&self, usage: Raw<'_>, given: u64, edits: &mut Vec<Edit>) {
        let [prompt, completion, total, details] =
            usage.members(["prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"]);
        let number = |raw: Option<Raw<'_>>| raw.and_then(|raw| raw.text().parse::<u64>().ok());
        let Some(of_leg) = number(prompt) else { return };
        let input = self.prompt_tokens(of_leg, given);
        let output = number(completion).unwrap_or(0).saturating_add(given);
        let mut put = |raw: Option<Raw<'_>>, value: u64| {
            if let Some(raw) = raw {
                edits.push(Edit::replace(raw.span(), &value.to_string()));
            }
        };
        put(prompt, input);
        put(completion, output);
        put(total, input.saturating_add(output));
        let [cached] = details.map_or([None], |details| details.members(["cached_tokens"]));
        if number(cached).is_some_and(|cached| cached > input) {
            put(cached, input);
        }
    }
}

impl Told {
    /// Counts the tokens of an event: by its ids, by the engine's running count, else one.
    fn count(&mut self, choice: &ChunkChoice<'_>, running: Option<u64>, given: u64) {
        if !choice.is_output {
            return;
        }
        let ids = choice.token_ids.map(numbers);
        let n = match (&ids, running) {
            (Some(ids), _) => ids.len() as u64,
            (None, Some(running)) => {
                running.saturating_add(given).saturating_sub(self.tokens.saturating_add(self.held))
            }
            (None, None) => 1,
        };
        self.held = self.held.saturating_add(n);
        match ids {
            Some(ids) if self.ids.is_some() && self.held_ids.len() < MAX_TEXT => self.held_ids.extend(ids),
            _ => self.ids = None,
        }
    }

    fn say(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.text.push_str(text);
        self.tokens = self.tokens.saturating_add(std::mem::take(&mut self.held));
        if let Some(ids) = &mut self.ids {
            ids.output.append(&mut self.held_ids);
        }
        if !text.chars().all(char::is_whitespace) {
            self.solid = self.tokens;
        }
    }
}

/// The part of `text` that the client does not have. What an engine says instead of a repetition is all new.
fn unrepeated<'t>(repeats: &mut String, text: &'t str) -> &'t str {
    let common: usize =
        repeats.chars().zip(text.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
    let fresh = text.get(common..).unwrap_or_default();
    if fresh.is_empty() {
        repeats.drain(..common);
    } else {
        repeats.clear();
    }
    fresh
}

/// A range of `data` as one of `raw`; `None` where the data of several lines was joined.
fn within(raw: &[u8], data: &str, at: Range<usize>) -> Option<Range<usize>> {
    let (outer, inner) = (raw.as_ptr_range(), data.as_bytes().as_ptr_range());
    let by = (outer.start <= inner.start && inner.end <= outer.end)
        .then(|| inner.start.addr() - outer.start.addr())?;
    Some(at.start + by..at.end + by)
}

fn numbers(array: Raw<'_>) -> Vec<u64> {
    let inner = array.text().trim_matches(['[', ']']);
    inner.split(',').filter_map(|number| number.trim().parse().ok()).collect()
}

/// An event of chat or completions; members are `None` where absent or null.
#[derive(Default)]
struct Chunk<'a> {
    id: Option<Raw<'a>>,
    created: Option<Raw<'a>>,
    model: Option<Raw<'a>>,
    usage: Option<Raw<'a>>,
    /// Where the member `usage` begins.
    usage_key: Option<usize>,
    prompt_token_ids: Option<Raw<'a>>,
    choice: Option<ChunkChoice<'a>>,
    choices: u32,
}

#[derive(Default)]
struct ChunkChoice<'a> {
    text: Option<Raw<'a>>,
    /// `role` of a delta, key and value.
    role: Option<(Raw<'a>, Raw<'a>)>,
    /// Whether more follows the role in its delta.
    has_behind_role: bool,
    finish: Option<Raw<'a>>,
    token_ids: Option<Raw<'a>>,
    prompt_token_ids: Option<Raw<'a>>,
    /// It tells of the engine's output, and not of the role alone.
    is_output: bool,
    obstacle: Option<Obstacle>,
}

impl<'a> Chunk<'a> {
    fn read(data: &'a str) -> Result<Self, JsonError> {
        let mut chunk = Self::default();
        let mut cursor = Cursor::new(data);
        cursor.object(|key, value| {
            let slot = match key.escaped().unwrap_or_default() {
                "id" => &mut chunk.id,
                "created" => &mut chunk.created,
                "model" => &mut chunk.model,
                "usage" => {
                    chunk.usage_key = Some(key.span().start);
                    &mut chunk.usage
                }
                "prompt_token_ids" => &mut chunk.prompt_token_ids,
                "choices" if value.ahead() == JsonKind::Array => {
                    return value.array(|item| {
                        chunk.choices += 1;
                        if item.ahead() == JsonKind::Object {
                            chunk.choice = Some(ChunkChoice::read(item)?);
                        }
                        Ok(())
                    });
                }
                _ => return Ok(()),
            };
            *slot = value.value()?.non_null();
            Ok::<_, JsonError>(())
        })?;
        cursor.end()?;
        Ok(chunk)
    }

    /// Takes out the usage of a chunk with choices, with the comma that goes with it.
    fn running(&self, data: &str) -> Option<Edit> {
        let (start, end) = (self.usage_key?, self.usage?.span().end);
        if self.choices == 0 {
            return None;
        }
        let before = data.get(..start)?.trim_end();
        if before.ends_with(',') {
            return Some(Edit::replace(before.len() - 1..end, ""));
        }
        let rest = data.get(end..)?;
        let comma = rest.find(|c: char| !c.is_ascii_whitespace()).filter(|at| rest[*at..].starts_with(','));
        Some(Edit::replace(start..comma.map_or(end, |at| end + at + 1), ""))
    }

    fn obstacle(&self) -> Option<Obstacle> {
        let several = (self.choices > 1).then_some(Obstacle::SeveralChoices);
        several.or_else(|| self.choice.as_ref()?.obstacle)
    }

    /// A chunk that opens a stream, which is open already.
    fn is_role_only(&self) -> bool {
        self.choice
            .as_ref()
            .is_some_and(|choice| !choice.is_output && choice.role.is_some() && choice.finish.is_none())
    }

    fn prompt_tokens(&self) -> Option<u64> {
        let [counted] = self.usage?.members(["prompt_tokens"]);
        counted?.text().parse().ok()
    }

    fn completion_tokens(&self) -> Option<u64> {
        let [counted] = self.usage?.members(["completion_tokens"]);
        counted?.text().parse().ok()
    }

    fn edits(&self, data: &str, head: Option<&Head>, text: Option<&str>) -> Vec<Edit> {
        let mut edits = Vec::with_capacity(6);
        if let Some(head) = head {
            for (raw, first) in
                [(self.id, &head.id), (self.created, &head.created), (self.model, &head.model)]
            {
                if let (Some(raw), Some(first)) = (raw, first) {
                    edits.push(Edit::replace(raw.span(), first));
                }
            }
        }
        let choice = self.choice.as_ref();
        let prompt_ids = self.prompt_token_ids.or_else(|| choice?.prompt_token_ids);
        edits.extend(prompt_ids.map(|ids| Edit::replace(ids.span(), "null")));
        if let Some((key, value)) =
            choice.filter(|choice| choice.has_behind_role).and_then(|choice| choice.role)
        {
            let end = value.span().end;
            let comma = data.get(end..).and_then(|rest| rest.find(','));
            edits.extend(comma.map(|comma| Edit::replace(key.span().start..end + comma + 1, "")));
        }
        if let (Some(text), Some(own)) = (text, choice.and_then(|choice| choice.text)) {
            edits.push(Edit::replace(own.span(), &serde_json::to_string(text).unwrap_or_default()));
        }
        edits
    }
}

impl<'a> ChunkChoice<'a> {
    fn read(cursor: &mut Cursor<'a>) -> Result<Self, JsonError> {
        let mut choice = Self::default();
        cursor.object(|key, value| {
            let name = key.escaped().unwrap_or_default();
            if name == "delta" && value.ahead() == JsonKind::Object {
                return choice.delta(value);
            }
            let raw = value.value()?;
            let is_set = raw.kind() != JsonKind::Null;
            match name {
                "index" if raw.text() != "0" => choice.stops_at(Obstacle::SeveralChoices),
                "text" => {
                    choice.text = raw.non_null();
                    choice.is_output = true;
                }
                "finish_reason" => choice.finish = raw.non_null(),
                "token_ids" => choice.token_ids = raw.non_null(),
                "prompt_token_ids" => choice.prompt_token_ids = raw.non_null(),
                "logprobs" if is_set => choice.stops_at(Obstacle::Logprobs),
                _ => {}
            }
            Ok::<_, JsonError>(())
        })?;
        Ok(choice)
    }

    fn delta(&mut self, cursor: &mut Cursor<'a>) -> Result<(), JsonError> {
        let mut says = false;
        cursor.object(|key, value| {
            let raw = value.value()?;
            let name = key.escaped().unwrap_or_default();
            self.has_behind_role |= self.role.is_some();
            let is_filled = !matches!(raw.text(), "null" | "\"\"" | "[]" | "{}");
            match name {
                "role" => self.role = Some((key, raw)),
                "content" => {
                    self.text = raw.non_null();
                    says |= is_filled;
                }
                "reasoning" | "reasoning_content" if is_filled => self.stops_at(Obstacle::Reasoning),
                "tool_calls" | "function_call" if is_filled => self.stops_at(Obstacle::ToolCall),
                "refusal" if is_filled => self.stops_at(Obstacle::Unreadable),
                _ => {}
            }
            Ok::<_, JsonError>(())
        })?;
        self.is_output = says || self.obstacle.is_some() || self.role.is_none();
        Ok(())
    }

    fn stops_at(&mut self, obstacle: Obstacle) {
        self.obstacle.get_or_insert(obstacle);
    }
}

/// Bytes of text, and token ids, that are kept of an answer.
const MAX_TEXT: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut transcript = Transcript::new(dialect, false);
        assert_eq!(pass(&mut transcript, events), events, "what the first engine says passes as it is");
        let progress = transcript.progress().map(|told| (told.text, told.tokens));
        (transcript, progress)
    }

    fn continued(text: &str, tokens: u64, repeats: &str) -> Transcript {
        let (mut transcript, _) = told(Dialect::Chat, &(chunk("a", ROLE, "") + &say("a", text)));
        transcript.continued(Continuation { body: Bytes::new(), repeats: repeats.to_owned(), tokens });
        transcript
    }

    #[test]
    fn line_ends_of_two_bytes_stay_whole_however_the_reads_are_cut() {
        use crate::relay::whole_events::WholeEvents;
        let usage = ",\"usage\":{\"prompt_tokens\":9}}\n";
        let events = [chunk("a", ROLE, ""), say("a", "x").replace("}\n", usage), ": ping\n\n".to_owned()];
        let stream = (events.concat() + &say("a", "y")).replace('\n', "\r\n");
        let whole = pass(&mut Transcript::new(Dialect::Chat, true), &stream);
        assert!(!whole.contains("usage") && whole.contains("\r\n\r\n"), "{whole:?}");
        for size in 1..stream.len() {
            let (mut transcript, mut boundaries) =
                (Transcript::new(Dialect::Chat, true), Boundaries::default());
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
            let mut transcript = Transcript::new(Dialect::Chat, true);
            assert_eq!(pass(&mut transcript, event), expected);
            let mut shown = Transcript::new(Dialect::Chat, false);
            assert_eq!(&pass(&mut shown, event), event);
        }
        let mut transcript = Transcript::new(Dialect::Chat, true);
        let events = called.clone() + ": ping\n\n" + &behind + "data: [DONE]\n\n";
        let expected =
            called.replace(&format!(",{usage}"), "") + ": ping\n\n" + &say("a", "x") + "data: [DONE]\n\n";
        assert_eq!(
            pass(&mut transcript, &events),
            expected,
            "also of a stream that nobody can continue any more"
        );

        let mut transcript = Transcript::new(Dialect::Chat, true);
        pass(&mut transcript, &behind);
        assert_eq!(transcript.progress().unwrap().tokens, 4, "one event of four tokens");
        transcript.continued(Continuation { body: Bytes::new(), repeats: String::new(), tokens: 4 });
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
            (say("a", &"x".repeat(MAX_TEXT + 1)), Obstacle::TooLong),
        ] {
            let (transcript, progress) = told(Dialect::Chat, &(say("a", "y") + &events + &say("a", "z")));
            assert_eq!(progress, Err(expected));
            assert!(
                transcript.told.text.is_empty() && transcript.told.text.capacity() == 0,
                "its text is freed"
            );
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
