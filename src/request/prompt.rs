//! The canonical bytes of a prompt: what the engine will make its tokens of, in the engine's order.
//!
//! Tools come first, then system text, then messages, as chat templates put them. A message is its members in the
//! order given, with no closing mark: a conversation with one more turn begins with the bytes of the shorter one.
//! Strings go in as they are escaped, since one client escapes alike in every turn. What changes from turn to
//! turn without reaching the prompt (`cache_control`, `null` members, text given as a string or as one part) is left
//! out. An image, sound or file stands for a fixed number of bytes made of its digest, because its tokens do not grow
//! with its base64.
//!
//! Nothing is copied together: the bytes go straight into the chain.

use crate::request::chain::{ChainBuilder, ChainSeed, FINE_BLOCK, PrefixChain, Root, Unit};
use crate::request::dialect::Dialect;
use crate::request::fields::Fields;
use crate::request::json::{Cursor, Fault, Kind, Raw};
use crate::request::ratio::TokenRatio;
use crate::units::Tokens;

/// Identity and size of a request's prompt.
#[derive(Clone, Debug, Default)]
pub struct Prompt {
    /// Its prefix chain.
    pub chain: PrefixChain,
    /// How long it is.
    pub size: PromptSize,
}

/// How long a prompt is, before the engine has counted it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptSize {
    /// Canonical bytes.
    pub bytes: u64,
    /// Images, sounds and files among them: with any, the bytes say nothing about bytes per token.
    pub media: u32,
    /// Tokens, where the client sent token ids.
    pub exact_tokens: Option<Tokens>,
}

impl PromptSize {
    /// Tokens: counted where possible, else estimated.
    #[must_use]
    pub fn tokens(&self, ratio: &TokenRatio) -> Tokens {
        self.exact_tokens.unwrap_or_else(|| ratio.estimate(self.bytes))
    }

    /// Teaches `ratio` what the engine counted, if this prompt can teach it anything.
    pub fn teach(&self, ratio: &TokenRatio, counted: Tokens) {
        if self.exact_tokens.is_none() && self.media == 0 {
            ratio.observe(self.bytes, counted);
        }
    }
}

impl Prompt {
    /// Reads the prompt of a request; `model` is the engine's name of the model or LoRA adapter. Dialects whose bodies
    /// are unknown have an empty one.
    #[must_use]
    pub fn read(dialect: Dialect, fields: &Fields<'_>, model: &str, seed: ChainSeed) -> Self {
        let root = Root {
            model,
            cache_salt: fields.cache_salt.as_deref().unwrap_or_default(),
            template: template(dialect, fields),
        };
        let given = &fields.prompt;
        let longest = [given.messages, given.prompt, given.input];
        let room = longest.iter().flatten().map(|raw| raw.text().len()).sum();
        let mut walk = Walk {
            chain: ChainBuilder::new(seed, root).with_room_for(room),
            seed,
            media: 0,
            token_ids: 0,
            is_text: false,
        };
        // The fields were validated when they were parsed: a walk over them cannot meet a fault.
        let _never_faults = walk.request(dialect, fields);
        walk.finish()
    }
}

/// What an image, a sound or a file counts for: about a thousand tokens.
const MEDIA_BYTES: usize = 4096;

/// Requests that the engine renders differently share no prefix.
fn template(dialect: Dialect, fields: &Fields<'_>) -> u8 {
    match dialect {
        Dialect::Chat | Dialect::Responses | Dialect::Messages | Dialect::CountTokens => 1,
        Dialect::Tokenize if fields.prompt.messages.is_some() => 1,
        Dialect::Completions | Dialect::Tokenize => 2,
        Dialect::Embeddings | Dialect::Classify | Dialect::Pooling => 3,
        Dialect::Rerank | Dialect::Score => 4,
        Dialect::Detokenize | Dialect::Extra => 5,
    }
}

struct Walk {
    chain: ChainBuilder,
    seed: ChainSeed,
    media: u32,
    token_ids: u64,
    is_text: bool,
}

impl Walk {
    fn request(&mut self, dialect: Dialect, fields: &Fields<'_>) -> Result<(), Fault> {
        let given = &fields.prompt;
        match dialect {
            Dialect::Chat
            | Dialect::Messages
            | Dialect::CountTokens
            | Dialect::Tokenize
            | Dialect::Embeddings
            | Dialect::Classify
            | Dialect::Pooling => {
                self.each(given.tools, Self::tool)?;
                self.system(given.system)?;
                self.each(given.messages, Self::message)?;
                self.texts_of(given.prompt)?;
                self.texts_of(given.input)
            }
            Dialect::Responses => {
                self.each(given.tools, Self::tool)?;
                self.system(given.instructions)?;
                match given.input {
                    Some(input) if input.kind() == Kind::Str => self.said_by("user", input),
                    input => self.each(input, Self::message),
                }
            }
            Dialect::Completions => self.texts_of(given.prompt),
            Dialect::Rerank => self.list_of([given.query, given.documents]),
            Dialect::Score => self.list_of([given.text_1, given.text_2]),
            Dialect::Detokenize => self.texts_of(given.tokens),
            Dialect::Extra => Ok(()),
        }
    }

    fn finish(mut self) -> Prompt {
        let exact_tokens = Some(Tokens(self.token_ids)).filter(|n| n.0 > 0 && !self.is_text);
        if exact_tokens.is_some() {
            self.chain.set_unit(Unit::TokenIds);
        }
        let chain = self.chain.finish();
        Prompt { size: PromptSize { bytes: chain.bytes(), media: self.media, exact_tokens }, chain }
    }

    fn each(
        &mut self,
        list: Option<Raw<'_>>,
        element: fn(&mut Self, &mut Cursor<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let Some(list) = list else { return Ok(()) };
        match list.kind() {
            Kind::Array => list.cursor().array(|cursor| element(self, cursor)),
            // The engine will refuse it; until then it is some text like any other.
            _ => self.verbatim(&mut list.cursor()),
        }
    }

    fn tool(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        self.mark(TOOL);
        self.verbatim(cursor)
    }

    fn system(&mut self, text: Option<Raw<'_>>) -> Result<(), Fault> {
        text.map_or(Ok(()), |text| self.said_by("system", text))
    }

    /// The same bytes as `{"role": role, "content": content}` gives.
    fn said_by(&mut self, role: &str, content: Raw<'_>) -> Result<(), Fault> {
        self.mark(MESSAGE);
        self.key("role");
        for piece in ["\"", role, "\""] {
            self.text(piece);
        }
        self.content(&mut content.cursor())
    }

    fn message(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        self.mark(MESSAGE);
        if cursor.ahead() != Kind::Object {
            return self.content(cursor);
        }
        cursor.object(|key, cursor| match key.escaped().unwrap_or_default() {
            "content" => self.content(cursor),
            key => self.member(key, cursor),
        })
    }

    fn content(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        match cursor.ahead() {
            Kind::Str => self.string(cursor),
            Kind::Array => cursor.array(|cursor| match cursor.ahead() {
                Kind::Str => self.string(cursor),
                _ => self.part(cursor),
            }),
            Kind::Null => Ok(()),
            _ => self.part(cursor),
        }
    }

    fn part(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        if cursor.ahead() != Kind::Object {
            return self.verbatim(cursor);
        }
        cursor.object(|key, cursor| match (key.escaped().unwrap_or_default(), cursor.ahead()) {
            ("text", Kind::Str) => self.string(cursor),
            (key, _) => self.member(key, cursor),
        })
    }

    /// A member of a message or of a content part that is not its text.
    fn member(&mut self, key: &str, cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        match key {
            "cache_control" => Ok(()),
            // `output` is what a tool gave back to a model of the responses API.
            "content" | "output" => self.content(cursor),
            "image_url" | "input_audio" | "audio_url" | "video_url" | "image" | "audio" | "video"
            | "file" | "file_data" | "file_url" | "file_id" | "image_embeds" => {
                let media = cursor.value()?;
                self.media(media);
                Ok(())
            }
            "source" => self.source(cursor),
            key => self.field(key, cursor),
        }
    }

    fn field(&mut self, key: &str, cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        let value = cursor.value()?;
        let says_nothing = value.kind() == Kind::Null
            || key == "type"
                && matches!(value.escaped(), Some("message" | "text" | "input_text" | "output_text"));
        if !says_nothing {
            self.key(key);
            self.text(value.text());
        }
        Ok(())
    }

    fn source(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        let source = cursor.value()?;
        if is_text_source(source)? {
            self.text(source.text());
        } else {
            self.media(source);
        }
        Ok(())
    }

    fn media(&mut self, media: Raw<'_>) {
        self.media = self.media.saturating_add(1);
        let digest = self.seed.hash(media.text().as_bytes());
        let mut block = [0; FINE_BLOCK];
        for word in block.as_chunks_mut::<8>().0 {
            *word = digest.to_le_bytes();
        }
        self.mark(MEDIA);
        for _ in 0..MEDIA_BYTES / FINE_BLOCK {
            self.chain.feed(&block);
        }
    }

    fn texts_of(&mut self, given: Option<Raw<'_>>) -> Result<(), Fault> {
        given.map_or(Ok(()), |given| self.texts(&mut given.cursor()))
    }

    fn list_of(&mut self, given: [Option<Raw<'_>>; 2]) -> Result<(), Fault> {
        for text in given.into_iter().flatten() {
            self.chain.feed(NEXT_TEXT);
            self.texts(&mut text.cursor())?;
        }
        Ok(())
    }

    /// A text, token ids, or a list of either: the engine takes each of a list as a prompt of its own.
    fn texts(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        match cursor.ahead() {
            Kind::Number => self.token_id(cursor),
            Kind::Array => {
                let mut is_first = true;
                cursor.array(|cursor| {
                    if !std::mem::replace(&mut is_first, false) && cursor.ahead() != Kind::Number {
                        self.chain.feed(NEXT_TEXT);
                    }
                    self.texts(cursor)
                })
            }
            Kind::Str => {
                let text = cursor.value()?;
                self.text(text.escaped().unwrap_or_default());
                Ok(())
            }
            _ => self.part(cursor),
        }
    }

    fn token_id(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        let number = cursor.value()?.text();
        if let Ok(id) = number.parse::<u32>() {
            self.token_ids += 1;
            self.chain.feed(&id.to_le_bytes());
        } else {
            self.text(number);
        }
        Ok(())
    }

    fn string(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        let text = cursor.value()?;
        self.mark(TEXT);
        self.text(text.escaped().unwrap_or_default());
        Ok(())
    }

    fn verbatim(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Fault> {
        let value = cursor.value()?;
        self.text(value.text());
        Ok(())
    }

    fn key(&mut self, key: &str) {
        self.mark(KEY);
        self.text(key);
        self.mark(VALUE);
    }

    fn text(&mut self, text: &str) {
        self.is_text = true;
        self.chain.feed(text.as_bytes());
    }

    fn mark(&mut self, mark: u8) {
        self.chain.feed(&[mark]);
    }
}

/// Whether a document's `source` holds its text (`{"type":"text","data":…}`) rather than a file.
fn is_text_source(source: Raw<'_>) -> Result<bool, Fault> {
    let mut is_text = false;
    if source.kind() == Kind::Object {
        source.cursor().object(|key, cursor| {
            let value = cursor.value()?;
            is_text |= key.escaped() == Some("type") && matches!(value.escaped(), Some("text" | "content"));
            Ok::<_, Fault>(())
        })?;
    }
    Ok(is_text)
}

// Control characters cannot stand in a JSON string as they are, so no text can pretend to be a mark.
const MESSAGE: u8 = 0x1e;
const TEXT: u8 = 0x1f;
const KEY: u8 = 0x1d;
const VALUE: u8 = 0x1c;
const TOOL: u8 = 0x1b;
const MEDIA: u8 = 0x1a;

/// Not UTF-8, and as wide as a token id.
const NEXT_TEXT: &[u8] = &[0xff; 4];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::config::Secret;
    use crate::request::fields::parse;

    fn read_as(model: &str, dialect: Dialect, body: &Value) -> Prompt {
        let body = serde_json::to_vec(body).unwrap();
        let fields = parse(dialect, &body).unwrap();
        Prompt::read(dialect, &fields, model, ChainSeed::new(&Secret::new("s")))
    }

    fn read(dialect: Dialect, body: &Value) -> Prompt {
        read_as("m", dialect, body)
    }

    fn chat(messages: &Value) -> Prompt {
        read(Dialect::Chat, &json!({ "messages": messages }))
    }

    fn long(word: &str) -> String {
        format!("{word} ").repeat(200)
    }

    /// Every shape of content, as a conversation that grows.
    fn turns() -> Vec<Value> {
        vec![
            json!({"role":"system","content":long("system")}),
            json!({"role":"user","content":[{"type":"text","text":long("look")},
                {"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}},
                {"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}},
                {"type":"file","file":{"file_data":"AAAA"}}]}),
            json!({"role":"assistant","content":null,"refusal":null,"tool_calls":[{"id":"c1","type":"function",
                "function":{"name":"f","arguments":long("{}")}}]}),
            json!({"role":"tool","tool_call_id":"c1","name":"f","content":long("result\n\"quoted\"")}),
            json!({"role":"assistant","refusal":long("no")}),
            json!({"role":"user","content":long("and then")}),
        ]
    }

    #[test]
    fn a_conversation_keeps_its_chain_when_it_grows() {
        let turns = turns();
        let chains: Vec<_> = (1..=turns.len()).map(|n| chat(&json!(turns[..n])).chain).collect();
        for pair in chains.windows(2) {
            assert!(pair[1].hashes().starts_with(pair[0].hashes()));
            assert!(pair[1].hashes().len() > pair[0].hashes().len());
        }
    }

    #[test]
    fn every_member_of_a_message_counts() {
        let base = chat(&json!(turns())).chain;
        for (turn, pointer) in [
            (0, "/role"),
            (1, "/content/0/text"),
            (1, "/content/1/image_url/url"),
            (1, "/content/2/input_audio/data"),
            (1, "/content/3/file/file_data"),
            (2, "/tool_calls/0/function/arguments"),
            (3, "/tool_call_id"),
            (3, "/name"),
            (3, "/content"),
            (4, "/refusal"),
        ] {
            let mut turns = turns();
            *turns[turn].pointer_mut(pointer).unwrap() = json!("changed");
            assert_ne!(chat(&json!(turns)).chain.whole(), base.whole(), "{turn} {pointer}");
        }
    }

    #[test]
    fn what_never_reaches_the_prompt_does_not_count() {
        let plain = chat(&json!([{"role":"user","content":long("hello")}])).chain;
        for same in [
            json!([{"role":"user","content":[{"type":"text","text":long("hello")}]}]),
            json!([{"role":"user","name":null,"content":[{"type":"text","text":long("hello"),
                "cache_control":{"type":"ephemeral"}}]}]),
        ] {
            assert_eq!(chat(&same).chain, plain, "{same}");
        }
    }

    #[test]
    fn dialects_that_render_alike_share_their_chain() {
        let hello = long("hello");
        let user = format!(r#"{{"role":"user","content":"{hello}"}}"#);
        let system = r#"{"role":"system","content":"s"}"#;
        let text = |dialect, body: String| {
            let fields = parse(dialect, body.as_bytes()).unwrap();
            Prompt::read(dialect, &fields, "m", ChainSeed::new(&Secret::new("s"))).chain
        };
        let chat = text(Dialect::Chat, format!(r#"{{"messages":[{system},{user}]}}"#));
        for (dialect, body) in [
            (Dialect::Chat, format!(r#"{{ "messages" : [ {system} , {user} ] }}"#)),
            (Dialect::Messages, format!(r#"{{"system":"s","messages":[{user}]}}"#)),
            (
                Dialect::Messages,
                format!(r#"{{"messages":[{user}],"system":[{{"type":"text","text":"s"}}]}}"#),
            ),
            (Dialect::Responses, format!(r#"{{"instructions":"s","input":"{hello}"}}"#)),
            (Dialect::Responses, format!(r#"{{"instructions":"s","input":[{user}]}}"#)),
            (Dialect::Tokenize, format!(r#"{{"messages":[{system},{user}]}}"#)),
        ] {
            assert_eq!(text(dialect, body.clone()), chat, "{body}");
        }
    }

    #[test]
    fn roots_share_nothing() {
        let body = json!({"messages":turns(),"prompt":long("x"),"input":long("x")});
        let base = read(Dialect::Chat, &body).chain;
        let mut salted = body.clone();
        salted["cache_salt"] = json!("salt");
        let mut tooled = body.clone();
        tooled["tools"] = json!([{"type":"function"}]);
        for other in [
            read_as("lora", Dialect::Chat, &body),
            read(Dialect::Chat, &salted),
            read(Dialect::Chat, &tooled),
            read(Dialect::Completions, &body),
            read(Dialect::Embeddings, &body),
        ] {
            assert!(base.hashes().iter().zip(other.chain.hashes()).all(|(a, b)| a != b));
        }
    }

    #[test]
    fn token_ids_are_counted_exactly() {
        let ids: Vec<u32> = (0..200).collect();
        for (prompt, exact, blocks) in [
            (json!(ids), Some(200), 3),
            (json!([ids]), Some(200), 3),
            (json!([ids, [1, 2]]), Some(202), 3),
            (json!(long("hello")), None, 4),
            (json!([long("hello"), "x"]), None, 4),
            (json!([1, "x"]), None, 0),
            (json!([-1, 1.5]), None, 0),
            (json!([]), None, 0),
        ] {
            let read = read(Dialect::Completions, &json!({ "prompt": prompt }));
            assert_eq!(read.size.exact_tokens, exact.map(Tokens), "{prompt}");
            assert_eq!(read.chain.hashes().len(), blocks, "{prompt}");
        }
        let ids = read(Dialect::Completions, &json!({ "prompt": ids }));
        assert_eq!(ids.chain.tokens_in(2, &TokenRatio::default()), Tokens(128));
    }

    #[test]
    fn media_count_the_same_whatever_their_length() {
        let image = |data: &str| {
            chat(&json!([{"role":"user","content":[{"type":"image_url","image_url":{"url":data}}]}])).size
        };
        let size = image(&"A".repeat(100_000));
        assert_eq!((size, size.media), (image("A"), 1));
        let ratio = TokenRatio::default();
        size.teach(&ratio, Tokens(576));
        assert!((ratio.bytes_per_token() - 4.0).abs() < f64::EPSILON);
        let document = json!([{"role":"user","content":[{"type":"document",
            "source":{"type":"text","data":"d".repeat(50_000)}}]}]);
        let document = read(Dialect::Messages, &json!({ "messages": document })).size;
        assert!(document.bytes > 50_000 && document.media == 0);
    }

    #[test]
    fn other_dialects_have_a_chain_too() {
        let x = long("x");
        for (dialect, body) in [
            (Dialect::Embeddings, json!({"input":[x]})),
            (Dialect::Classify, json!({"input":x})),
            (Dialect::Pooling, json!({"messages":[{"role":"user","content":x}]})),
            (Dialect::Rerank, json!({"query":x,"documents":["a",{"text":"b"}]})),
            (Dialect::Score, json!({"text_1":x,"text_2":["a","b"]})),
            (Dialect::Tokenize, json!({"prompt":x})),
            (Dialect::Detokenize, json!({"tokens":(0..100).collect::<Vec<_>>()})),
        ] {
            assert!(!read(dialect, &body).chain.hashes().is_empty(), "{dialect:?}");
        }
        assert_eq!(read(Dialect::Extra, &json!({"prompt":x})).size, PromptSize::default());
    }

    fn dialects() -> impl Strategy<Value = Dialect> {
        prop::sample::select(vec![
            Dialect::Chat,
            Dialect::Completions,
            Dialect::Responses,
            Dialect::Messages,
            Dialect::Embeddings,
            Dialect::Rerank,
            Dialect::Score,
            Dialect::Tokenize,
            Dialect::Detokenize,
            Dialect::Extra,
        ])
    }

    proptest! {
        #[test]
        fn a_longer_last_turn_and_more_turns_keep_the_chain(
            texts in prop::collection::vec(".{0,400}", 1..6), more in ".{0,400}",
        ) {
            let turn = |text: &String| json!({"role":"user","content":text});
            let turns: Vec<Value> = texts.iter().map(turn).collect();
            let chain = chat(&json!(turns)).chain;
            let grown: Vec<Value> = turns.iter().cloned().chain([turn(&more)]).collect();
            prop_assert!(chat(&json!(grown)).chain.hashes().starts_with(chain.hashes()));
        }

        #[test]
        fn no_body_panics(
            dialect in dialects(),
            tokens in prop::collection::vec(prop::sample::select(vec![
                "{", "}", "[", "]", ",", ":", "\"messages\"", "\"prompt\"", "\"input\"", "\"content\"", "\"text\"",
                "\"source\"", "\"tools\"", "\"image_url\"", "\"type\"", "\"\\u00e9\"", "1", "-1.5", "null", "true", " ",
            ]), 0..40),
            wrap in any::<bool>(),
        ) {
            let text = tokens.concat();
            let text = if wrap { format!("{{\"messages\":[{{{text}}}],\"prompt\":[{text}]}}") } else { text };
            if let Ok(fields) = parse(dialect, text.as_bytes()) {
                let _ = Prompt::read(dialect, &fields, "m", ChainSeed::new(&Secret::new("s")));
            }
        }
    }
}
