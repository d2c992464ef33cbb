//! The request that continues a broken stream elsewhere: the client's body with the text delivered so far spliced in.
//!
//! Chat gets the text as a last assistant message, left open (`continue_final_message`); completions get a longer prompt, of
//! token ids where all of them are known. The limits on the answer's length shrink by what was produced. As everywhere, these
//! are splices on the raw bytes. What an engine could not continue is an [`Obstacle`].

use std::ops::Range;

use bytes::Bytes;

use crate::config::EngineKind;
use crate::labels::labels;
use crate::request::dialect::Dialect;
use crate::request::fields::truth;
use crate::request::json::{Cursor, JsonError, JsonKind, Raw};
use crate::request::pieces::Pieces;
use crate::request::splice::{Edit, apply, in_order, open_of};

/// What the client of a broken stream has received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// All generated text.
    pub text: String,
    /// Tokens behind the text without the white space at its end.
    pub tokens: u64,
    /// Tokens behind the whole text.
    pub all_tokens: u64,
    /// Where the last token ends that is known to, if that is not the end of the text.
    pub boundary: Option<Boundary>,
    /// Token ids of prompt and text, where the engine reported all of them.
    pub ids: Option<TokenIds>,
}

/// A place in a text at which a token ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boundary {
    /// Bytes of the text before it.
    pub bytes: usize,
    /// Tokens of the text before it.
    pub tokens: u64,
}

/// Token ids as the engine reported them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenIds {
    /// Of the prompt.
    pub prompt: Vec<u64>,
    /// Of the text.
    pub output: Vec<u64>,
}

/// A request that continues a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continuation {
    /// The body to send.
    pub body: Pieces,
    /// The end of the text that the engine will repeat: chat templates may cut white space off a message's end, and it may be part of a
    /// token.
    pub repeats: String,
    /// Tokens of the answer that this request takes as given.
    pub tokens: u64,
}

labels! {
    /// Why a stream is not continued elsewhere.
    pub enum Obstacle {
        /// Its dialect cannot express it.
        Dialect = "dialect",
        /// Its engines may not know `continue_final_message`: they would answer again from the start.
        Engine = "engine",
        /// A tool call has begun.
        ToolCall = "tool_call",
        /// Reasoning was streamed, or is hidden: how it goes back into a prompt is each template's own affair.
        Reasoning = "reasoning",
        /// More than one choice, or a beam search.
        SeveralChoices = "several_choices",
        /// Log probabilities of tokens that two engines would count from different places.
        Logprobs = "logprobs",
        /// The answer follows a grammar, whose state is lost with the engine.
        StructuredOutput = "structured_output",
        /// The prompt comes back in the answer.
        Echo = "echo",
        /// A field that gives the prompt another meaning when it grows.
        PromptShape = "prompt_shape",
        /// Stop strings that are part of the answer: one may lie across the break.
        StopInOutput = "stop_in_output",
        /// The text is longer than what is kept of it.
        TooLong = "too_long",
        /// Part of it could not be read.
        Unreadable = "unreadable",
    }
}

impl From<JsonError> for Obstacle {
    fn from(_: JsonError) -> Self {
        Self::Unreadable
    }
}

/// The request that continues the answer to `body`; `None` where the answer has all the tokens that it may have.
///
/// # Errors
/// Why it cannot be continued.
pub fn continuation(
    dialect: Dialect,
    body: &Bytes,
    progress: &Progress,
    engine: EngineKind,
) -> Result<Option<Continuation>, Obstacle> {
    let text = std::str::from_utf8(body).map_err(|_| Obstacle::Unreadable)?;
    let mut request = Request::read(text)?;
    // Engines of before took a null for no limit at all: an answer that is longer shows it.
    let is_default = |limit: &u64| request.max_tokens.is_none() || progress.all_tokens <= *limit;
    if dialect == Dialect::Completions && request.max_tokens.and_then(Raw::non_null).is_none() {
        request.default_limit = engine.completions_max_tokens().filter(is_default);
    }
    request.check()?;
    let (mut edits, repeats, tokens) = match dialect {
        Dialect::Chat => request.chat(progress)?,
        Dialect::Completions => request.completions(progress)?,
        _ => return Err(Obstacle::Dialect),
    };
    if edits.is_empty() {
        // Nothing to build on: the answer begins anew, and what the client has of it is left out.
        return Ok(Some(Continuation { body: body.clone().into(), repeats, tokens: 0 }));
    }
    let may_continue = match dialect {
        Dialect::Chat => engine.continues_chats(),
        // Ollama, for one, answers the prompt of a completion as a user's message, from the start.
        _ => engine != EngineKind::Generic,
    };
    if !may_continue {
        return Err(Obstacle::Engine);
    }
    if request.limit()?.is_some_and(|limit| limit <= progress.all_tokens) {
        return Ok(None);
    }
    request.shrink(tokens, &mut edits)?;
    in_order(&mut edits);
    Ok(Some(Continuation { body: apply(body, &edits).into(), repeats, tokens }))
}

/// Characters at the end of a text that an engine keeps to itself, because one of its stop strings may begin there.
pub fn held_back(stop: Option<Raw<'_>>) -> usize {
    let Some(stop) = stop else { return 0 };
    let mut longest = 0;
    let mut note =
        |text: Raw<'_>| longest = text.string().map_or(0, |text| text.chars().count()).max(longest);
    if stop.kind() == JsonKind::Array {
        // What is no list of strings the engine has refused.
        let _ = stop.cursor().array(|text| text.value().map(&mut note));
    } else {
        note(stop);
    }
    longest.saturating_sub(1)
}

type Growth = (Vec<Edit>, String, u64);

/// The members of a request that matter here, `None` where absent or null; of duplicates the last one counts.
#[derive(Default)]
struct Request<'a> {
    /// Behind the brace that opens the body.
    open: usize,
    messages: Option<Raw<'a>>,
    prompt: Option<Raw<'a>>,
    stop: Option<Raw<'a>>,
    continues_final: Option<Raw<'a>>,
    adds_prompt: Option<Raw<'a>>,
    max_tokens: Option<Raw<'a>>,
    max_completion_tokens: Option<Raw<'a>>,
    min_tokens: Option<Raw<'a>>,
    temperature: Option<Raw<'a>>,
    /// Of completions without `max_tokens`.
    default_limit: Option<u64>,
    includes_stop: bool,
    obstacle: Option<Obstacle>,
}

impl<'a> Request<'a> {
    fn read(text: &'a str) -> Result<Self, Obstacle> {
        let open = open_of(text.as_bytes()).ok_or(Obstacle::Unreadable)?;
        let mut request = Self { open, ..Self::default() };
        Cursor::new(text).object(|key, value| {
            let value = value.value()?;
            if let Some(key) = key.string() {
                request.member(&key, value);
            }
            Ok::<_, JsonError>(())
        })?;
        Ok(request)
    }

    fn member(&mut self, key: &str, value: Raw<'a>) {
        let is_set = value.kind() != JsonKind::Null;
        // What the engine may take for true is no less an obstacle.
        let is_on = is_set && truth(&value) != Some(false);
        let slot = match key {
            "messages" => &mut self.messages,
            "prompt" => &mut self.prompt,
            "stop" => &mut self.stop,
            "continue_final_message" => &mut self.continues_final,
            "add_generation_prompt" => &mut self.adds_prompt,
            "max_tokens" => &mut self.max_tokens,
            "max_completion_tokens" => &mut self.max_completion_tokens,
            "min_tokens" => &mut self.min_tokens,
            "temperature" => &mut self.temperature,
            "include_stop_str_in_output" => {
                self.includes_stop = is_on;
                return;
            }
            _ => {
                self.obstacle = self.obstacle.or(obstacle_in(key, value, is_on, is_set));
                return;
            }
        };
        // A null is replaced where it stands.
        *slot = Some(value);
    }

    fn check(&self) -> Result<(), Obstacle> {
        if let Some(obstacle) = self.obstacle {
            return Err(obstacle);
        }
        if self.includes_stop && self.has_stop() { Err(Obstacle::StopInOutput) } else { Ok(()) }
    }

    fn chat(&self, progress: &Progress) -> Result<Growth, Obstacle> {
        let messages = self.messages.filter(|m| m.kind() == JsonKind::Array).ok_or(Obstacle::PromptShape)?;
        let (given, tokens) = self.given(progress, progress.tokens);
        let solid = given.trim_end_matches(is_trimmed);
        if solid.is_empty() {
            return Ok((Vec::new(), progress.text.clone(), 0));
        }
        let is = |field: Option<Raw<'_>>| field.and_then(Raw::non_null).map(|raw| truth(&raw));
        let mut edits = Vec::new();
        let (continues, adds) = (is(self.continues_final), is(self.adds_prompt));
        if continues == Some(Some(true)) {
            edits.push(append(last_content(messages)?, solid)?);
        } else if continues == Some(None) || matches!(adds, Some(None | Some(false))) {
            return Err(Obstacle::PromptShape);
        } else {
            let message = serde_json::to_string(solid).map_err(|_| Obstacle::Unreadable)?;
            let is_empty =
                messages.text().get(1..messages.text().len() - 1).is_none_or(|m| m.trim().is_empty());
            let comma = if is_empty { "" } else { "," };
            let end = messages.span().end - 1;
            edits
                .push(Edit::insert(end, &format!("{comma}{{\"role\":\"assistant\",\"content\":{message}}}")));
            for (name, field, value) in [
                ("continue_final_message", self.continues_final, "true"),
                ("add_generation_prompt", self.adds_prompt, "false"),
            ] {
                edits.push(Edit::put(self.open, field.map(|raw| raw.span()), name, value));
            }
        }
        Ok((edits, behind(solid, progress), tokens))
    }

    /// The text that another engine is given, and its tokens, where all of it has `tokens`. A text that ends inside a token is read as
    /// other tokens than those that were generated. Where the same are sure to come again it ends before that one; elsewhere the
    /// engine completes the word, as other text may come.
    fn given<'p>(&self, progress: &'p Progress, tokens: u64) -> (&'p str, u64) {
        let is_greedy = self.temperature.is_some_and(|raw| raw.text().parse() == Ok(0.0));
        let cut = progress.boundary.filter(|_| is_greedy);
        let cut = cut.and_then(|at| Some((progress.text.get(..at.bytes)?, at.tokens)));
        cut.unwrap_or((&progress.text, tokens))
    }

    fn has_stop(&self) -> bool {
        self.stop.is_some_and(|stop| !matches!(stop.text(), "null" | "[]" | "\"\""))
    }

    fn completions(&self, progress: &Progress) -> Result<Growth, Obstacle> {
        let prompt = self.prompt.and_then(Raw::non_null).ok_or(Obstacle::PromptShape)?;
        let (given, tokens) = self.given(progress, progress.all_tokens);
        if given.is_empty() {
            return Ok((Vec::new(), progress.text.clone(), 0));
        }
        // An engine holds back what could begin a stop string, so that the text may end inside its last token.
        if let Some(ids) = progress.ids.as_ref().filter(|_| !self.has_stop()) {
            let all: Vec<String> = ids.prompt.iter().chain(&ids.output).map(u64::to_string).collect();
            let edit = Edit::replace(prompt.span(), &format!("[{}]", all.join(",")));
            return Ok((vec![edit], String::new(), ids.output.len() as u64));
        }
        let edit = append(only_text(prompt)?, given)?;
        Ok((vec![edit], behind(given, progress), tokens))
    }

    /// The most tokens that its answer may have, where that is known.
    fn limit(&self) -> Result<Option<u64>, Obstacle> {
        let own = self.max_completion_tokens.and_then(Raw::non_null);
        match own.or(self.max_tokens.and_then(Raw::non_null)) {
            Some(limit) => limit.text().parse().map(Some).map_err(|_| Obstacle::PromptShape),
            None => Ok(self.default_limit),
        }
    }

    /// Lowers the limits on the length by the `tokens` that exist.
    fn shrink(&self, tokens: u64, edits: &mut Vec<Edit>) -> Result<(), Obstacle> {
        let limits = [(self.max_tokens, 1), (self.max_completion_tokens, 1), (self.min_tokens, 0)];
        for (field, least) in limits {
            let Some(raw) = field.and_then(Raw::non_null) else { continue };
            let limit: u64 = raw.text().parse().map_err(|_| Obstacle::PromptShape)?;
            let left = limit.saturating_sub(tokens).max(least.min(limit));
            edits.push(Edit::replace(raw.span(), &left.to_string()));
        }
        if let Some(limit) = self.default_limit {
            let left = limit.saturating_sub(tokens).max(1);
            let null = self.max_tokens.map(|raw| raw.span());
            edits.push(Edit::put(self.open, null, "max_tokens", &left.to_string()));
        }
        Ok(())
    }
}

/// Fields that cannot be continued.
fn obstacle_in(key: &str, value: Raw<'_>, is_on: bool, is_set: bool) -> Option<Obstacle> {
    let (is_one, obstacle) = match key {
        "n" | "best_of" => (is_set && value.text() != "1", Obstacle::SeveralChoices),
        "use_beam_search" => (is_on, Obstacle::SeveralChoices),
        "logprobs" => (is_set && value.text() != "false", Obstacle::Logprobs),
        "prompt_logprobs" => (is_set, Obstacle::Logprobs),
        "response_format" => {
            let [kind] = value.members(["type"]);
            (is_set && kind.is_none_or(|kind| kind.text() != "\"text\""), Obstacle::StructuredOutput)
        }
        // Of vLLM and SGLang.
        "structured_outputs" | "guided_json" | "guided_regex" | "guided_choice" | "guided_grammar"
        | "regex" | "ebnf" | "json_schema" => (is_set, Obstacle::StructuredOutput),
        // Of llama.cpp, TensorRT-LLM and Dynamo.
        "grammar" | "guided_decoding" | "nvext" => (is_set, Obstacle::StructuredOutput),
        // A call that the client demands follows the grammar of its arguments.
        "tool_choice" => {
            (is_set && !matches!(value.text(), "\"auto\"" | "\"none\""), Obstacle::StructuredOutput)
        }
        // Where the answer begins is known to the engine alone: another takes the rest for reasoning, and hides it.
        "include_reasoning" => (is_set && !is_on, Obstacle::Reasoning),
        "echo" => (is_on, Obstacle::Echo),
        "suffix" | "truncate_prompt_tokens" | "prompt_embeds" | "kv_transfer_params" => {
            (is_set, Obstacle::PromptShape)
        }
        _ => return None,
    };
    is_one.then_some(obstacle)
}

/// The content of the last message, which the client itself left open.
fn last_content(messages: Raw<'_>) -> Result<Raw<'_>, Obstacle> {
    let mut last = None;
    messages.cursor().array(|message| {
        last = Some(message.value()?);
        Ok::<_, JsonError>(())
    })?;
    let [role, content] = last.map_or([None; 2], |message| message.members(["role", "content"]));
    let is_assistant = role.is_some_and(|role| role.text() == "\"assistant\"");
    content.filter(|content| is_assistant && content.kind() == JsonKind::Str).ok_or(Obstacle::PromptShape)
}

/// The text of a prompt that is one string, or a list of one.
fn only_text(prompt: Raw<'_>) -> Result<Raw<'_>, Obstacle> {
    if prompt.kind() == JsonKind::Str {
        return Ok(prompt);
    }
    let mut all = Vec::new();
    if prompt.kind() == JsonKind::Array {
        prompt.cursor().array(|item| {
            all.push(item.value()?);
            Ok::<_, JsonError>(())
        })?;
    }
    match all.as_slice() {
        [only] if only.kind() == JsonKind::Str => Ok(*only),
        _ => Err(Obstacle::PromptShape),
    }
}

/// What is left of the text behind `given`.
fn behind(given: &str, progress: &Progress) -> String {
    progress.text.get(given.len()..).unwrap_or_default().to_owned()
}

/// `text` at the end of a JSON string.
fn append(string: Raw<'_>, text: &str) -> Result<Edit, Obstacle> {
    let quoted = serde_json::to_string(text).map_err(|_| Obstacle::Unreadable)?;
    let Range { end, .. } = string.span();
    Ok(Edit::insert(end - 1, quoted.get(1..quoted.len() - 1).unwrap_or_default()))
}

/// What Python's `str.rstrip` takes away, which templates and tokenizers use.
fn is_trimmed(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(text: &str, tokens: u64) -> Progress {
        Progress { text: text.to_owned(), tokens, all_tokens: tokens, boundary: None, ids: None }
    }

    fn of(dialect: Dialect, body: &str, progress: &Progress) -> Result<(String, String, u64), Obstacle> {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let Some(continuation) = continuation(dialect, &body, progress, EngineKind::Vllm)? else {
            return Ok(("nothing".to_owned(), String::new(), 0));
        };
        let text = String::from_utf8(continuation.body.whole().to_vec()).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap();
        Ok((text, continuation.repeats, continuation.tokens))
    }

    #[test]
    fn chat_goes_on_in_an_open_assistant_message() {
        for (body, expected) in [
            (
                r#"{"messages":[{"role":"user","content":"hi"}],"stream":true}"#,
                r#"{"continue_final_message":true,"add_generation_prompt":false,"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"a \"b\"\n"}],"stream":true}"#,
            ),
            (
                r#" {"add_generation_prompt":true, "messages" : [ {"role":"user","content":"]"} ] ,"max_tokens" : 10,"continue_final_message":null,"min_tokens":2}"#,
                r#" {"add_generation_prompt":false, "messages" : [ {"role":"user","content":"]"} ,{"role":"assistant","content":"a \"b\"\n"}] ,"max_tokens" : 7,"continue_final_message":true,"min_tokens":0}"#,
            ),
            (
                r#"{"continue_final_message":true,"add_generation_prompt":false,"messages":[{"role":"assistant","content":"so"}],"max_completion_tokens":4,"max_tokens":1}"#,
                r#"{"continue_final_message":true,"add_generation_prompt":false,"messages":[{"role":"assistant","content":"soa \"b\"\n"}],"max_completion_tokens":1,"max_tokens":1}"#,
            ),
        ] {
            let expected = expected.replace("\\n\"", "\"");
            let (after, repeats, tokens) = of(Dialect::Chat, body, &progress("a \"b\"\n", 3)).unwrap();
            assert_eq!((&*after, &*repeats, tokens), (&*expected, "\n", 3), "{body}");
        }
    }

    #[test]
    fn what_no_template_can_build_on_begins_anew() {
        let body = r#"{"messages":[{"role":"user","content":"hi"}],"max_tokens":9}"#;
        for text in ["", " \n"] {
            let (after, repeats, tokens) = of(Dialect::Chat, body, &progress(text, 2)).unwrap();
            assert_eq!((&*after, &*repeats, tokens), (body, text, 0));
        }
    }

    #[test]
    fn completions_get_a_longer_prompt() {
        let exact =
            Progress { ids: Some(TokenIds { prompt: vec![1, 2], output: vec![30, 4] }), ..progress("x ", 1) };
        for (body, progress, expected) in [
            (r#"{"prompt":"a"}"#, progress("x ", 2), r#"{"max_tokens":14,"prompt":"ax "}"#),
            (
                r#"{"prompt":["\u0061"],"max_tokens":null}"#,
                progress("é\"", 2),
                r#"{"prompt":["\u0061é\""],"max_tokens":14}"#,
            ),
            (r#"{"max_tokens":9,"prompt":"a"}"#, exact.clone(), r#"{"max_tokens":7,"prompt":[1,2,30,4]}"#),
            (r#"{"max_tokens":9,"prompt":[1,2]}"#, exact.clone(), r#"{"max_tokens":7,"prompt":[1,2,30,4]}"#),
            (
                r#"{"max_tokens":9,"prompt":"a","stop":"END"}"#,
                exact,
                r#"{"max_tokens":7,"prompt":"ax ","stop":"END"}"#,
            ),
        ] {
            let progress = Progress {
                all_tokens: progress.tokens.max(if progress.ids.is_some() { 2 } else { 0 }),
                ..progress
            };
            let expected = expected.replace("é\"\"", "é\\\"\"");
            let (after, repeats, _) = of(Dialect::Completions, body, &progress).unwrap();
            assert_eq!((&*after, &*repeats), (&*expected, ""), "{body}");
        }
    }

    #[test]
    fn a_text_that_ends_inside_a_token_is_given_up_to_there() {
        let cut =
            |bytes, tokens| Progress { boundary: Some(Boundary { bytes, tokens }), ..progress("the str", 2) };
        let chat = r#"{"max_tokens":9,"messages":[{"role":"user","content":"hi"}],"temperature":0}"#;
        let (after, repeats, tokens) = of(Dialect::Chat, chat, &cut(4, 1)).unwrap();
        assert!(after.contains(r#""content":"the"}"#) && after.contains(r#""max_tokens":8"#), "{after}");
        assert_eq!((&*repeats, tokens), (" str", 1));
        assert_eq!(of(Dialect::Chat, chat, &cut(0, 0)).unwrap(), (chat.to_owned(), "the str".to_owned(), 0));
        let body = r#"{"max_tokens":9,"prompt":"a","temperature":0.0}"#;
        let expected = r#"{"max_tokens":8,"prompt":"athe","temperature":0.0}"#;
        assert_eq!(
            of(Dialect::Completions, body, &cut(3, 1)).unwrap(),
            (expected.to_owned(), " str".to_owned(), 1)
        );
        assert_eq!(of(Dialect::Completions, body, &cut(0, 0)).unwrap().1, "the str");
        let sampled = body.replace("0.0", "0.7");
        assert_eq!(of(Dialect::Completions, &sampled, &cut(3, 1)).unwrap().1, "");
    }

    #[test]
    fn an_answer_with_all_the_tokens_it_may_have_needs_no_more_of_them() {
        let chat = |limit: &str| format!(r#"{{"messages":[{{"role":"user","content":"hi"}}]{limit}}}"#);
        let completions = |limit: &str| format!(r#"{{"prompt":"a"{limit}}}"#);
        let space = Progress { tokens: 5, ..progress("x ", 6) };
        for (dialect, body, progress, is_complete) in [
            (Dialect::Chat, chat(r#","max_tokens":6"#), progress("x", 6), true),
            (Dialect::Chat, chat(r#","max_tokens":6"#), space, true),
            (Dialect::Chat, chat(r#","max_tokens":6"#), progress("x", 5), false),
            (Dialect::Chat, chat(r#","max_tokens":6,"max_completion_tokens":7"#), progress("x", 6), false),
            (Dialect::Chat, chat(r#","max_tokens":6,"max_completion_tokens":null"#), progress("x", 6), true),
            (Dialect::Chat, chat(""), progress("x", 6000), false),
            (Dialect::Completions, completions(r#","max_tokens":2"#), progress("x", 7), true),
            (Dialect::Completions, completions(""), progress("x", 16), true),
            (Dialect::Completions, completions(""), progress("x", 15), false),
            (Dialect::Completions, completions(r#","max_tokens":null"#), progress("x", 16), true),
            (Dialect::Completions, completions(r#","max_tokens":null"#), progress("x", 17), false),
        ] {
            let (after, ..) = of(dialect, &body, &progress).unwrap();
            assert_eq!(after == "nothing", is_complete, "{body}: {after}");
        }
    }

    #[test]
    fn an_engine_whose_limit_is_not_known_goes_on_without_one() {
        let body = Bytes::from_static(br#"{"prompt":"a"}"#);
        let by = |engine| continuation(Dialect::Completions, &body, &progress("x", 40), engine);
        assert_eq!(by(EngineKind::Triton).unwrap().unwrap().body.whole(), r#"{"prompt":"ax"}"#);
        assert_eq!(by(EngineKind::Generic).unwrap_err(), Obstacle::Engine, "it may begin again");
        let body = Bytes::from_static(br#"{"messages":[{"role":"user","content":"hi"}]}"#);
        let by = |text| continuation(Dialect::Chat, &body, &progress(text, 4), EngineKind::Generic);
        assert_eq!(by("x").unwrap_err(), Obstacle::Engine);
        assert_eq!(by(" ").unwrap().unwrap().body.whole(), body, "nothing to build on");
    }

    #[test]
    fn one_character_less_than_the_longest_stop_string_is_held_back() {
        for (stop, expected) in [
            ("null", 0),
            ("[]", 0),
            ("\"\"", 0),
            ("\"END\"", 2),
            (r#"["a","\u00e9\u00e9\n",7]"#, 2),
            ("{\"a\":\"long\"}", 0),
        ] {
            let value = Cursor::new(stop).value().unwrap();
            assert_eq!(held_back(Some(value)), expected, "{stop}");
        }
        assert_eq!(held_back(None), 0);
    }

    #[test]
    fn what_cannot_be_continued_says_why() {
        use Obstacle::{Echo, Logprobs, PromptShape, SeveralChoices, StopInOutput, StructuredOutput};
        let chat = |field: &str| format!(r#"{{"messages":[{{"role":"user","content":"hi"}}],{field}}}"#);
        for (field, expected) in [
            (r#""n":2"#, Some(SeveralChoices)),
            (r#""n":1"#, None),
            (r#""n":null"#, None),
            (r#""use_beam_search":true"#, Some(SeveralChoices)),
            (r#""logprobs":true"#, Some(Logprobs)),
            (r#""logprobs":false"#, None),
            (r#""response_format":{"type":"json_object"}"#, Some(StructuredOutput)),
            (r#""response_format":{"type":"text"}"#, None),
            (r#""structured_outputs":{"choice":["a"]}"#, Some(StructuredOutput)),
            (r#""guided_json":null"#, None),
            (r#""grammar":"root ::= a""#, Some(StructuredOutput)),
            (r#""tool_choice":"required""#, Some(StructuredOutput)),
            (r#""tool_choice":{"type":"function","function":{"name":"f"}}"#, Some(StructuredOutput)),
            (r#""tool_choice":"auto""#, None),
            (r#""echo":true"#, Some(Echo)),
            // As the engine reads them.
            (r#""echo":1"#, Some(Echo)),
            (r#""echo":"Yes""#, Some(Echo)),
            (r#""echo":"off""#, None),
            (r#""use_beam_search":"t""#, Some(SeveralChoices)),
            (r#""continue_final_message":1"#, Some(PromptShape)),
            (r#""add_generation_prompt":0"#, Some(PromptShape)),
            (r#""stop":["a"],"include_stop_str_in_output":1"#, Some(StopInOutput)),
            (r#""regex":"[0-9]{4}""#, Some(StructuredOutput)),
            (r#""ebnf":"root ::= a""#, Some(StructuredOutput)),
            (r#""truncate_prompt_tokens":5"#, Some(PromptShape)),
            (r#""add_generation_prompt":false"#, Some(PromptShape)),
            (r#""continue_final_message":true"#, Some(PromptShape)),
            (r#""max_tokens":"9""#, Some(PromptShape)),
            (r#""stop":["a"],"include_stop_str_in_output":true"#, Some(StopInOutput)),
            (r#""stop":["a"]"#, None),
            (r#""include_stop_str_in_output":true"#, None),
            (r#""seed":5,"temperature":0.7,"tools":[]"#, None),
        ] {
            let result = of(Dialect::Chat, &chat(field), &progress("x", 1));
            assert_eq!(result.err(), expected, "{field}");
        }
        let completions = |body: &str| of(Dialect::Completions, body, &progress("x", 1)).err();
        assert_eq!(completions(r#"{"prompt":["a","b"]}"#), Some(PromptShape));
        assert_eq!(completions(r#"{"prompt":[1,2]}"#), Some(PromptShape), "ids of the answer are not known");
        assert_eq!(completions(r#"{"prompt":"a","logprobs":0}"#), Some(Logprobs));
        assert_eq!(completions(r#"{"prompt":"a","suffix":"b"}"#), Some(PromptShape));
        assert_eq!(
            of(Dialect::Messages, r#"{"messages":[]}"#, &progress("x", 1)).err(),
            Some(Obstacle::Dialect)
        );
    }
}
