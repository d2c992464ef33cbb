//! The few fields of a request body that routing needs, borrowed from the body.
//!
//! The body is forwarded as it came; this only reads it. It checks that the whole body is JSON, because a body
//! that two parsers read differently could be routed as one request and served as another: hence the errors for
//! duplicate `model` and `stream` keys, escaped spellings included. Of other duplicate keys the last one counts,
//! as in the engine's parser.
//!
//! Values of other fields are not judged here: what the engine refuses, the engine explains best.

use std::borrow::Cow;

use crate::request::dialect::{BodyForm, Dialect};
use crate::request::json::{Cursor, JsonError, JsonKind, Raw};
use crate::request::parameters::parameter;

/// What a client that moves KV, or outputs of encoders, by itself sends: vLLM's objects, and SGLang's rendezvous.
pub const KV_MEMBERS: [&str; 5] =
    ["kv_transfer_params", "ec_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room"];

/// The fields of a request body that the gateway uses.
#[derive(Clone, Debug, Default)]
pub struct Fields<'a> {
    /// `model`, unescaped.
    pub model: Option<Cow<'a, str>>,
    /// Where `model` stands in the body: what a rename replaces.
    pub model_at: Option<ModelAt>,
    /// `stream`; `null` is false.
    pub(super) stream: Option<bool>,
    /// `stream_options` as it stands in the body, `null` included.
    pub stream_options: Option<Raw<'a>>,
    /// `n`
    choices: Option<u32>,
    /// The most of the bounds on the answer's tokens ([`Dialect::answer_limits`]): which of them counts, the engine decides.
    pub max_tokens: Option<u64>,
    /// `echo`: the prompt comes back in front of the completion.
    pub echo: bool,
    /// `include_reasoning` is false: what the model thinks is not sent.
    pub hides_reasoning: bool,
    /// `cache_salt` as it stands in the body, `null` included: part of the engine's prefix identity.
    pub cache_salt: Option<Raw<'a>>,
    /// `priority` as it stands in the body, `null` included: the engine's, where it schedules by it.
    pub priority: Option<Raw<'a>>,
    /// It names KV of another engine, or where engines meet for it ([`KV_MEMBERS`]).
    pub names_kv: bool,
    /// `previous_response_id`: pins the request to the replica that made it.
    pub previous_response_id: Option<Cow<'a, str>>,
    /// `request_id` as it stands in the body: the client's own, where it sends no header.
    pub request_id: Option<Raw<'a>>,
    /// `store` or `background` is true: of responses, what the engine makes stays there. Without `store`, which OpenAI's API takes for
    /// true, vLLM keeps nothing unless its operator wants it (`VLLM_ENABLE_RESPONSES_API_STORE`).
    pub is_stored: bool,
    /// `store` is false.
    pub is_unstored: bool,
    /// What the engine makes its prompt of.
    pub prompt: PromptFields<'a>,
    /// `query` or `documents` are given by two of their names: which of them the engine takes is not known.
    pub is_ambiguous: bool,
    /// `stop` as it stands in the body, `null` included.
    pub stop: Option<Raw<'a>>,
    /// One number for all members that change an engine's work ([`parameter`]).
    pub parameters: u64,
}

/// Where a body names its model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelAt {
    /// A JSON string, quotes included.
    Json(std::ops::Range<usize>),
    /// The value of a part of a form.
    Form(std::ops::Range<usize>),
}

/// The fields that make up the prompt, each as it stands in the body; `null` is absent.
#[derive(Clone, Copy, Debug, Default)]
pub struct PromptFields<'a> {
    /// `messages`
    pub messages: Option<Raw<'a>>,
    /// `prompt`: text, texts, token ids or lists of token ids.
    pub prompt: Option<Raw<'a>>,
    /// `input`: of responses (text or items), of embeddings and poolers (like `prompt`).
    pub input: Option<Raw<'a>>,
    /// `instructions`, of responses.
    pub instructions: Option<Raw<'a>>,
    /// `system`, of messages: text or blocks.
    pub system: Option<Raw<'a>>,
    /// `tools`
    pub tools: Option<Raw<'a>>,
    /// `query`, of rerank; of scoring what is compared with `documents`, by any of its names.
    pub query: Option<Raw<'a>>,
    /// `documents`, of rerank; of scoring likewise.
    pub documents: Option<Raw<'a>>,
    /// `tokens`, of detokenize.
    pub tokens: Option<Raw<'a>>,
    /// `kv_transfer_params.prompt_token_ids`: vLLM takes them for the prompt of a chat, whatever its messages are.
    pub given_ids: Option<Raw<'a>>,
    /// The longest of the other members: an engine knows forms of a prompt that have another name.
    pub other: Option<Raw<'a>>,
}

/// Whether there was one before.
fn keep_longest<'a>(kept: &mut Option<Raw<'a>>, value: Raw<'a>) -> bool {
    let Some(value) = value.non_null() else { return false };
    let before = *kept;
    if before.is_none_or(|before| before.text().len() < value.text().len()) {
        *kept = Some(value);
    }
    before.is_some()
}

impl Fields<'_> {
    /// Whether the answer is to be a stream.
    pub fn is_stream(&self) -> bool {
        self.stream == Some(true)
    }

    /// The model that it names; vLLM takes an empty name for none.
    pub fn named_model(&self) -> Option<&str> {
        self.model.as_deref().filter(|model| !model.is_empty())
    }

    /// The number of choices, 1 where the request does not state it.
    pub fn choices(&self) -> u32 {
        self.choices.unwrap_or(1)
    }

    /// Of a request of the Responses API: whether it has effects beside its answer, which is kept or whose tools the server runs. Clients
    /// run those of type `function` and `custom`.
    pub fn has_effects(&self) -> bool {
        let is_left_to_the_client = |tool: &mut Cursor<'_>| {
            let [kind] = tool.members(["type"])?;
            let is_left = kind
                .and_then(|kind| kind.string())
                .is_some_and(|kind| matches!(&*kind, "function" | "custom"));
            if is_left { Ok(()) } else { Err(NOT_LEFT) }
        };
        let runs_tools =
            || self.prompt.tools.is_some_and(|tools| tools.cursor().array(is_left_to_the_client).is_err());
        self.is_stored || runs_tools()
    }
}

/// Ends the walk at a tool that the server runs.
const NOT_LEFT: JsonError = JsonError { at: 0, problem: "" };

/// Why a body cannot be taken. Never holds text of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// Bytes that are not UTF-8.
    #[error("request body is not valid UTF-8 at line {line} column {column}")]
    NotUtf8 {
        /// Line, from 1.
        line: usize,
        /// Column in bytes, from 1.
        column: usize,
    },
    /// Text that is not JSON.
    #[error("request body is not valid JSON: {problem} at line {line} column {column}")]
    Malformed {
        /// Short description, without text of the body.
        problem: &'static str,
        /// Line, from 1.
        line: usize,
        /// Column in bytes, from 1.
        column: usize,
    },
    /// JSON that is not an object.
    #[error("request body must be a JSON object")]
    NotAnObject,
    /// A key given twice whose two values could be read differently.
    #[error("`{field}` is given more than once")]
    Duplicate {
        /// Key in the body.
        field: &'static str,
    },
    /// A value of the wrong type.
    #[error("`{field}` must be {expected}")]
    WrongType {
        /// Key in the body.
        field: &'static str,
        /// The type that it must have, with its article.
        expected: &'static str,
    },
    /// A form whose parts cannot be distinguished.
    #[error("the multipart body {problem}")]
    Form {
        /// Short description, without text of the body.
        problem: &'static str,
    },
}

impl FieldError {
    /// The field at fault, for the error's `param`.
    pub fn param(&self) -> Option<&'static str> {
        match self {
            Self::Duplicate { field } | Self::WrongType { field, .. } => Some(field),
            Self::NotUtf8 { .. } | Self::Malformed { .. } | Self::NotAnObject | Self::Form { .. } => None,
        }
    }
}

/// Reads the fields of a JSON request body; of an opaque one `model`, and whether it names KV.
///
/// # Errors
/// The first thing that is wrong with the body, without any of its text.
pub fn parse<'a>(dialect: Dialect, body: &'a [u8]) -> Result<Fields<'a>, FieldError> {
    let mut fields = Fields::default();
    let known = (dialect.body_form(), dialect.answer_limits());
    if known.0 != BodyForm::Multipart {
        walk(body, |key, cursor| fields.member(known, key, cursor))?;
    }
    Ok(fields)
}

/// Visits the members of a body that is a JSON object.
fn walk<'a>(
    body: &'a [u8],
    member: impl FnMut(Raw<'a>, &mut Cursor<'a>) -> Result<(), Stop>,
) -> Result<(), FieldError> {
    let text = simdutf8::compat::from_utf8(body).map_err(|e| {
        let (line, column) = place(body, e.valid_up_to());
        FieldError::NotUtf8 { line, column }
    })?;
    let mut cursor = Cursor::new(text);
    let read = if cursor.ahead() == JsonKind::Object {
        cursor.object(member)
    } else {
        // A scalar and a text that is not JSON are different errors.
        cursor.value().map_err(Stop::from).and(Err(Stop::Field(FieldError::NotAnObject)))
    };
    match read.and_then(|()| Ok(cursor.end()?)) {
        Ok(()) => Ok(()),
        Err(Stop::Field(error)) => Err(error),
        Err(Stop::Json(JsonError { at, problem })) => {
            let (line, column) = place(body, at);
            Err(FieldError::Malformed { problem, line, column })
        }
    }
}

/// Line and column, both from 1, of a byte of the body.
fn place(body: &[u8], at: usize) -> (usize, usize) {
    let before = body.get(..at).unwrap_or(body);
    let line_start = memchr::memrchr(b'\n', before).map_or(0, |newline| newline + 1);
    (memchr::memchr_iter(b'\n', before).count() + 1, before.len() - line_start + 1)
}

/// Why reading stopped: the place of a fault is turned into line and column only at the end.
enum Stop {
    Json(JsonError),
    Field(FieldError),
}

impl From<JsonError> for Stop {
    fn from(fault: JsonError) -> Self {
        Self::Json(fault)
    }
}

impl<'a> Fields<'a> {
    fn member(
        &mut self,
        (form, limits): (BodyForm, &[&str]),
        key: Raw<'a>,
        cursor: &mut Cursor<'a>,
    ) -> Result<(), Stop> {
        let value = cursor.value()?;
        // A key with a lone surrogate matches no field.
        let Some(key) = key.string() else { return Ok(()) };
        self.parameters = self.parameters.wrapping_add(parameter(&key, value));
        match &*key {
            "model" => self.read_model(value).map_err(Stop::Field)?,
            key if KV_MEMBERS.contains(&key) => {
                self.names_kv |= value.non_null().is_some();
                let [ids] = value.members(["prompt_token_ids"]);
                self.prompt.given_ids = ids.filter(|_| key == KV_MEMBERS[0]).or(self.prompt.given_ids);
            }
            _ if form == BodyForm::Opaque => {}
            "stream" => self.read_stream(value).map_err(Stop::Field)?,
            "stream_options" => self.stream_options = Some(value),
            "n" => self.choices = whole_number(&value).and_then(|choices| choices.try_into().ok()),
            key if limits.contains(&key) => {
                self.max_tokens = whole_number(&value).max(self.max_tokens);
            }
            "include_reasoning" => self.hides_reasoning = truth(&value) == Some(false),
            "echo" => self.echo = truth(&value) == Some(true),
            "cache_salt" => self.cache_salt = Some(value),
            "priority" => self.priority = Some(value),
            "stop" => self.stop = Some(value),
            "previous_response_id" => self.previous_response_id = value.string(),
            "request_id" => self.request_id = value.non_null(),
            "store" | "background" => {
                let is = truth(&value);
                self.is_stored |= is == Some(true);
                self.is_unstored |= key == "store" && is == Some(false);
            }
            key => self.prompt_member(key, value),
        }
        Ok(())
    }

    fn prompt_member(&mut self, key: &str, value: Raw<'a>) {
        let prompt = &mut self.prompt;
        let field = match key {
            "messages" => &mut prompt.messages,
            "prompt" => &mut prompt.prompt,
            // `/v2/embed` calls its input texts.
            "input" | "texts" => &mut prompt.input,
            "instructions" => &mut prompt.instructions,
            "system" => &mut prompt.system,
            "tools" => &mut prompt.tools,
            // Of a name and its others in one body it is not known which the engine takes.
            "query" | "queries" | "text_1" | "data_1" => {
                self.is_ambiguous |= keep_longest(&mut prompt.query, value);
                return;
            }
            "documents" | "items" | "text_2" | "data_2" => {
                self.is_ambiguous |= keep_longest(&mut prompt.documents, value);
                return;
            }
            "tokens" => &mut prompt.tokens,
            _ => {
                keep_longest(&mut prompt.other, value);
                return;
            }
        };
        *field = value.non_null();
    }

    fn read_model(&mut self, value: Raw<'a>) -> Result<(), FieldError> {
        if self.model_at.replace(ModelAt::Json(value.span())).is_some() {
            return Err(FieldError::Duplicate { field: "model" });
        }
        if value.kind() != JsonKind::Null {
            let wrong = FieldError::WrongType { field: "model", expected: "a string" };
            self.model = Some(value.string().ok_or(wrong)?);
        }
        Ok(())
    }

    fn read_stream(&mut self, value: Raw<'a>) -> Result<(), FieldError> {
        let wrong = FieldError::WrongType { field: "stream", expected: "true or false" };
        if self.stream.is_some() {
            return Err(FieldError::Duplicate { field: "stream" });
        }
        self.stream = Some(value.kind() != JsonKind::Null && truth(&value).ok_or(wrong)?);
        Ok(())
    }
}

/// What the engine takes for true and false: vLLM's fields are pydantic's, in its lax mode.
pub(super) fn truth(value: &Raw<'_>) -> Option<bool> {
    match value.kind() {
        JsonKind::Bool => Some(value.text() == "true"),
        JsonKind::Number => match value.text() {
            "1" | "1.0" => Some(true),
            "0" | "0.0" => Some(false),
            _ => None,
        },
        JsonKind::Str => truth_of_word(&value.string()?),
        _ => None,
    }
}

/// What engines read as a whole number (pydantic's lax mode): `2`, `2.0`, `2e0`, `"2"` and `"1_000"`.
pub(super) fn whole_number(value: &Raw<'_>) -> Option<u64> {
    let quoted = value.string();
    let text = quoted.as_deref().map_or(value.text(), str::trim);
    let text = if quoted.is_some() { Cow::from(text.replace('_', "")) } else { text.into() };
    let by_value = || {
        let value: f64 = text.parse().ok()?;
        (value.fract() == 0.0 && (0.0..=MOST_WHOLE).contains(&value)).then_some(value as u64)
    };
    text.parse().ok().or_else(by_value)
}

/// Beyond this a float is no whole number for certain.
const MOST_WHOLE: f64 = (1u64 << 53) as f64;

/// The same of a string, or of a field of a form.
pub(super) fn truth_of_word(word: &str) -> Option<bool> {
    const TRUE: [&str; 6] = ["true", "1", "yes", "on", "t", "y"];
    const FALSE: [&str; 6] = ["false", "0", "no", "off", "f", "n"];
    let is_among = |words: [&str; 6]| words.iter().any(|known| word.eq_ignore_ascii_case(known));
    if is_among(TRUE) { Some(true) } else { is_among(FALSE).then_some(false) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::request::json::TOO_DEEP;

    fn chat(body: &str) -> Result<Fields<'_>, FieldError> {
        parse(Dialect::Chat, body.as_bytes())
    }

    fn error(body: &str) -> (String, Option<&'static str>) {
        let error = chat(body).unwrap_err();
        (error.to_string(), error.param())
    }

    #[test]
    fn reads_what_routing_needs() {
        let body = r#" {"model":"m\u0031","stream":true,"n":2,
            "cache_salt":"s","stream_options":{"include_usage":true},"messages":[1],"tools":null,"x":{}} "#;
        let fields = chat(body).unwrap();
        assert_eq!(fields.model.as_deref(), Some("m1"));
        assert_eq!(fields.model_at, Some(ModelAt::Json(10..19)));
        assert!(fields.is_stream() && !fields.echo);
        assert_eq!((fields.choices(), fields.cache_salt.map(|raw| raw.text())), (2, Some("\"s\"")));
        assert_eq!(fields.stream_options.map(|raw| raw.text()), Some(r#"{"include_usage":true}"#));
        assert_eq!(fields.prompt.messages.map(|raw| raw.text()), Some("[1]"));
        assert!(fields.prompt.tools.is_none());
    }

    #[test]
    fn null_is_absent_and_plain_names_are_borrowed() {
        let fields = chat(r#"{"model":null,"stream":null}"#).unwrap();
        assert!(fields.model.is_none() && !fields.is_stream());
        assert_eq!(fields.choices(), 1);
        assert!(matches!(chat(r#"{"model":"m"}"#).unwrap().model, Some(Cow::Borrowed("m"))));
    }

    #[test]
    fn stream_is_what_the_engine_takes_it_for() {
        for (value, is_stream) in
            [("1", true), ("\"yes\"", true), (r#""Tru\u0065""#, true), ("0.0", false), ("\"OFF\"", false)]
        {
            assert_eq!(chat(&format!(r#"{{"stream":{value}}}"#)).unwrap().is_stream(), is_stream, "{value}");
        }
    }

    #[test]
    fn of_other_duplicates_the_last_counts() {
        assert_eq!(chat(r#"{"n":2,"n":3}"#).unwrap().choices(), 3);
        assert_eq!(chat(r#"{"n":"2"}"#).unwrap().choices(), 2, "engines read it so");
        assert_eq!(chat(r#"{"n":2.0,"max_tokens":"7"}"#).unwrap().max_tokens, Some(7));
        for n in ["8e0", "0.8e1", "\"8.00\"", "80E-1", "\"0_8\""] {
            assert_eq!(chat(&format!(r#"{{"n":{n}}}"#)).unwrap().choices(), 8, "{n}");
        }
        for n in ["8.5", "-8", "1e300", "\"nan\""] {
            assert_eq!(chat(&format!(r#"{{"n":{n}}}"#)).unwrap().choices(), 1, "{n}");
        }
    }

    #[test]
    fn of_several_limits_on_the_answer_the_most_counts() {
        for limits in [
            r#"{"max_tokens":1,"max_completion_tokens":300}"#,
            r#"{"max_completion_tokens":300,"max_tokens":1,"max_output_tokens":900}"#,
            r#"{"max_tokens":300,"max_tokens":1}"#,
        ] {
            assert_eq!(chat(limits).unwrap().max_tokens, Some(300), "{limits}");
        }
        for (dialect, limit) in [
            (Dialect::Chat, "max_output_tokens"),
            (Dialect::Completions, "max_completion_tokens"),
            (Dialect::Responses, "max_tokens"),
            (Dialect::Messages, "max_output_tokens"),
        ] {
            let body = format!("{{\"{limit}\":1}}");
            let fields = parse(dialect, body.as_bytes()).unwrap();
            assert_eq!(fields.max_tokens, None, "{dialect:?} has no {limit}");
        }
    }

    #[test]
    fn stored_responses_have_effects_and_those_whose_tools_the_server_runs() {
        for (body, has_effects) in [
            (r#"{"input":"x"}"#, false),
            (r#"{"input":"x","store":false,"tools":[]}"#, false),
            (r#"{"tools":[{"type":"function","name":"f"},{"name":"g","type":"cust\u006fm"}]}"#, false),
            (r#"{"tools":[{"type":"function"},{"type":"mcp"}]}"#, true),
            (r#"{"tools":[{"name":"f"}]}"#, true),
            (r#"{"tools":{"type":"mcp"}}"#, true),
            (r#"{"store":true}"#, true),
            (r#"{"store":false,"background":true}"#, true),
        ] {
            let fields = parse(Dialect::Responses, body.as_bytes()).unwrap();
            assert_eq!(fields.has_effects(), has_effects, "{body}");
        }
    }

    #[test]
    fn errors_name_the_field_or_the_place() {
        let malformed = "request body is not valid JSON: ";
        for (body, message, param) in [
            ("", format!("{malformed}unexpected end, expected a value at line 1 column 1"), None),
            ("{\"a\":1,\n \"b\" 2}", format!("{malformed}expected `:` after a key at line 2 column 6"), None),
            ("{} x", format!("{malformed}unexpected text after the end at line 1 column 4"), None),
            ("[1]", "request body must be a JSON object".to_owned(), None),
            ("nonsense", format!("{malformed}expected a value at line 1 column 1"), None),
            (r#"{"model":3}"#, "`model` must be a string".to_owned(), Some("model")),
            (r#"{"model":"\ud800"}"#, "`model` must be a string".to_owned(), Some("model")),
            (r#"{"stream":"maybe"}"#, "`stream` must be true or false".to_owned(), Some("stream")),
            (r#"{"stream":2}"#, "`stream` must be true or false".to_owned(), Some("stream")),
            (r#"{"stream":[]}"#, "`stream` must be true or false".to_owned(), Some("stream")),
            (r#"{"model":"a","model":"a"}"#, "`model` is given more than once".to_owned(), Some("model")),
            (
                r#"{"model":"a","mod\u0065l":null}"#,
                "`model` is given more than once".to_owned(),
                Some("model"),
            ),
            (
                r#"{"stream":true,"\u0073tream":true}"#,
                "`stream` is given more than once".to_owned(),
                Some("stream"),
            ),
        ] {
            assert_eq!(error(body), (message, param), "{body}");
        }
    }

    #[test]
    fn bad_utf8_and_depth_bombs_are_errors() {
        let error = parse(Dialect::Chat, b"{\"model\":\n\"\xff\"}").unwrap_err();
        assert_eq!(error, FieldError::NotUtf8 { line: 2, column: 2 });
        let bomb = format!("{{\"messages\":{}", "[".repeat(100_000));
        assert!(chat(&bomb).unwrap_err().to_string().contains(TOO_DEEP));
    }

    #[test]
    fn of_an_extra_path_s_body_the_model_alone_is_read() {
        let extra = |body: &'static [u8]| parse(Dialect::Extra, body);
        assert_eq!(extra(br#"{"model":"m"}"#).unwrap().model.as_deref(), Some("m"));
        assert!(extra(br#"{"model":"m","model":"n"}"#).is_err() && extra(b"--boundary\r\n\xff").is_err());
        let odd = extra(br#"{"stream":1,"stream":2,"n":7,"messages":[1]}"#).unwrap();
        assert!(odd.model.is_none() && odd.prompt.messages.is_none() && odd.choices() == 1);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(Dialect::Chat, &body);
        }
    }
}
