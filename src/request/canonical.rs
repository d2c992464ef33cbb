//! The canonical bytes of a prompt: what the engine will make its tokens of, in the engine's order.
//!
//! Tools come first, then system text, then messages, as chat templates put them. A message is its members in the
//! order given, with no closing mark: a conversation with one more turn begins with the bytes of the shorter one.
//! Strings go in as they are escaped, since one client escapes alike in every turn. What changes from turn to
//! turn without reaching the prompt (`cache_control`, `null` members, text given as a string or as one part) is left
//! out. An image, sound or file stands for a fixed number of bytes made of its digest, because its tokens do not grow
//! with its base64.
//!
//! Nothing is copied together: the bytes go straight into the chain. The tests are beside `RequestPrompt::read`.

use crate::request::chain::{ChainBuilder, ChainSeed, FINE_BLOCK, PrefixChain, Root};
use crate::request::dialect::{BodyForm, Dialect};
use crate::request::fields::{Fields, PromptFields};
use crate::request::json::{Cursor, JsonError, JsonKind, Raw};
use crate::request::makeup::Makeup;
use crate::request::prompt_size::PromptSize;
use crate::units::Tokens;

/// A walk over the fields of one request, feeding a chain as it goes.
pub(super) struct PromptWalk<'s> {
    chain: ChainBuilder<'s>,
    seed: &'s ChainSeed,
    media: u32,
    token_ids: u64,
    is_text: bool,
    makeup: Makeup,
    /// Bytes of the texts in it.
    text_bytes: u64,
    opening: Opening,
    tells_turns: bool,
    /// The hash of all before the assistant's last answer, where `tells_turns`.
    before_answer: Option<u64>,
    was_answer: bool,
    names_media: bool,
}

/// The part of a conversation that all its turns repeat: what comes before the assistant's first answer.
enum Opening {
    Empty,
    Open,
    Answered(Option<u64>),
}

impl<'s> PromptWalk<'s> {
    /// A walk that starts an empty chain with room for about `bytes` bytes.
    pub(super) fn new(seed: &'s ChainSeed, root: Root<'_>, bytes: usize, tells_turns: bool) -> Self {
        let chain = ChainBuilder::new(seed, root, bytes);
        Self {
            chain,
            seed,
            media: 0,
            token_ids: 0,
            is_text: false,
            makeup: Makeup::default(),
            text_bytes: 0,
            opening: Opening::Empty,
            tells_turns,
            before_answer: None,
            was_answer: false,
            names_media: false,
        }
    }

    /// Feeds the prompt of a request. A fault is possible only in fields that were not validated.
    pub(super) fn request(&mut self, dialect: Dialect, fields: &Fields<'_>) -> Result<(), JsonError> {
        self.known(dialect, &fields.prompt)?;
        let is_empty = !self.is_text && self.token_ids == 0 && self.media == 0;
        match fields.prompt.other.filter(|_| is_empty && dialect.body_form() == BodyForm::Json) {
            Some(other) => self.verbatim(&mut other.cursor()),
            None => Ok(()),
        }
    }

    fn known(&mut self, dialect: Dialect, given: &PromptFields<'_>) -> Result<(), JsonError> {
        match dialect {
            Dialect::Chat if given.given_ids.is_some() => self.texts_of(given.given_ids),
            Dialect::Chat
            | Dialect::Messages
            | Dialect::CountTokens
            | Dialect::Tokenize
            | Dialect::Embeddings
            | Dialect::Classify
            | Dialect::Pooling => {
                self.each(given.tools, Self::tool)?;
                self.each(given.documents, Self::tool)?;
                self.system(given.system)?;
                self.each(given.messages, Self::message)?;
                self.texts_of(given.prompt)?;
                self.texts_of(given.input)
            }
            Dialect::Responses => {
                self.each(given.tools, Self::tool)?;
                self.system(given.instructions)?;
                match given.input {
                    Some(input) if input.kind() == JsonKind::Str => self.said_by("user", input),
                    input => self.each(input, Self::message),
                }
            }
            Dialect::Completions => self.texts_of(given.prompt),
            Dialect::Rerank | Dialect::Score | Dialect::GenerativeScoring => {
                self.list_of([given.query, given.documents])
            }
            Dialect::Detokenize => self.texts_of(given.tokens),
            Dialect::ChatBatch => self.each(given.messages, Self::conversation),
            Dialect::StoredResponse
            | Dialect::TokenizerInfo
            | Dialect::Audio
            | Dialect::Realtime
            | Dialect::Extra => Ok(()),
        }
    }

    /// What the walk has found: chain, size, the hash of the conversation and of what it continues, and whether a part of the content has
    /// a `uuid`.
    pub(super) fn finish(mut self) -> (PrefixChain, PromptSize, Option<u64>, Option<u64>, bool) {
        let exact_tokens = Some(Tokens(self.token_ids)).filter(|n| n.0 > 0 && !self.is_text);
        let chain = self.chain.finish();
        let conversation = match self.opening {
            Opening::Empty => None,
            Opening::Open => Some(chain.whole()),
            Opening::Answered(conversation) => conversation,
        };
        let media = u64::from(self.media) * MEDIA_BYTES as u64;
        self.makeup.add_bytes(chain.bytes().saturating_sub(self.text_bytes + media));
        let size = PromptSize { bytes: chain.bytes(), makeup: self.makeup, media: self.media, exact_tokens };
        (chain, size, conversation, self.before_answer, self.names_media)
    }

    fn each(
        &mut self,
        list: Option<Raw<'_>>,
        element: fn(&mut Self, &mut Cursor<'_>) -> Result<(), JsonError>,
    ) -> Result<(), JsonError> {
        let Some(list) = list else { return Ok(()) };
        match list.kind() {
            JsonKind::Array => list.cursor().array(|cursor| element(self, cursor)),
            // The engine will refuse it; until then it is some text like any other.
            _ => self.verbatim(&mut list.cursor()),
        }
    }

    fn tool(&mut self, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        self.mark(TOOL);
        self.verbatim(cursor)
    }

    fn system(&mut self, text: Option<Raw<'_>>) -> Result<(), JsonError> {
        let Some(text) = text else { return Ok(()) };
        if text.kind() != JsonKind::Array {
            return self.said_by("system", text);
        }
        self.begin_turn("system");
        text.cursor().array(|cursor| {
            let block = cursor.value()?;
            if is_attribution(block) { Ok(()) } else { self.content(&mut block.cursor()) }
        })
    }

    /// The same bytes as `{"role": role, "content": content}` gives.
    fn said_by(&mut self, role: &str, content: Raw<'_>) -> Result<(), JsonError> {
        self.begin_turn(role);
        self.content(&mut content.cursor())
    }

    fn begin_turn(&mut self, role: &str) {
        self.mark(MESSAGE);
        self.key("role");
        for piece in ["\"", role, "\""] {
            self.text(piece);
        }
    }

    fn message(&mut self, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        // A hash of what is in the last block: only where it is asked for.
        let is_asked = self.tells_turns || matches!(self.opening, Opening::Open);
        let before = is_asked.then(|| self.chain.whole_so_far());
        let is_open = matches!(self.opening, Opening::Open);
        let is_answer = self.turn(cursor)?;
        // What an agent does in one turn is several items of a conversation.
        if is_answer && !std::mem::replace(&mut self.was_answer, true) {
            self.before_answer = before.filter(|_| self.tells_turns);
        }
        self.was_answer = is_answer;
        self.opening = match self.opening {
            Opening::Answered(known) => Opening::Answered(known),
            _ if is_answer => Opening::Answered(before.filter(|_| is_open)),
            _ => Opening::Open,
        };
        Ok(())
    }

    /// One of a batch.
    fn conversation(&mut self, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        match cursor.ahead() {
            JsonKind::Array => cursor.array(|cursor| self.turn(cursor).map(drop)),
            _ => self.verbatim(cursor),
        }
    }

    /// Whether the turn is the assistant's: its message, or what it did. An item of responses without a role is a call of a tool,
    /// or its thoughts.
    fn turn(&mut self, cursor: &mut Cursor<'_>) -> Result<bool, JsonError> {
        self.mark(MESSAGE);
        if cursor.ahead() != JsonKind::Object {
            return self.content(cursor).map(|()| false);
        }
        let mut is_answer = true;
        cursor.object(|key, cursor| match &*key.name() {
            "content" => self.content(cursor),
            "role" if cursor.ahead() == JsonKind::Str => {
                let role = cursor.value()?;
                is_answer = role.text() == "\"assistant\"";
                self.key("role");
                self.text(role.text());
                Ok(())
            }
            key => self.member(key, cursor),
        })?;
        Ok(is_answer)
    }

    fn content(&mut self, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        match cursor.ahead() {
            JsonKind::Str => self.string(cursor),
            JsonKind::Array => cursor.array(|cursor| match cursor.ahead() {
                JsonKind::Str => self.string(cursor),
                _ => self.part(cursor),
            }),
            JsonKind::Null => Ok(()),
            _ => self.part(cursor),
        }
    }

    fn part(&mut self, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        if cursor.ahead() != JsonKind::Object {
            return self.verbatim(cursor);
        }
        cursor.object(|key, cursor| match (&*key.name(), cursor.ahead()) {
            ("text", JsonKind::Str) => self.string(cursor),
            (key, kind) => {
                self.names_media |= key == "uuid" && kind != JsonKind::Null;
                self.member(key, cursor)
            }
        })
    }

    /// A member of a message or of a content part that is not its text.
    fn member(&mut self, key: &str, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        if cursor.ahead() == JsonKind::Null {
            return Ok(());
        }
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

    fn field(&mut self, key: &str, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        let value = cursor.value()?;
        let says_nothing = key == "type"
            && matches!(value.escaped(), Some("message" | "text" | "input_text" | "output_text"));
        if !says_nothing {
            self.key(key);
            self.text(value.text());
        }
        Ok(())
    }

    fn source(&mut self, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
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

    fn texts_of(&mut self, given: Option<Raw<'_>>) -> Result<(), JsonError> {
        given.map_or(Ok(()), |given| self.texts(&mut given.cursor()))
    }

    fn list_of(&mut self, given: [Option<Raw<'_>>; 2]) -> Result<(), JsonError> {
        for text in given.into_iter().flatten() {
            self.chain.feed(NEXT_TEXT);
            self.texts(&mut text.cursor())?;
        }
        Ok(())
    }

    /// A text, token ids, or a list of either: the engine takes each of a list as a prompt of its own.
    fn texts(&mut self, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        match cursor.ahead() {
            JsonKind::Number => self.token_id(cursor),
            JsonKind::Array => {
                let mut is_first = true;
                cursor.array(|cursor| {
                    if !std::mem::replace(&mut is_first, false) && cursor.ahead() != JsonKind::Number {
                        self.chain.feed(NEXT_TEXT);
                    }
                    self.texts(cursor)
                })
            }
            JsonKind::Str => {
                let text = cursor.value()?;
                self.text(text.escaped().unwrap_or_default());
                Ok(())
            }
            _ => self.part(cursor),
        }
    }

    fn token_id(&mut self, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        let number = cursor.value()?.text();
        if let Ok(id) = number.parse::<u32>() {
            self.token_ids += 1;
            self.chain.feed(&id.to_le_bytes());
        } else {
            self.text(number);
        }
        Ok(())
    }

    fn string(&mut self, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        let text = cursor.value()?;
        self.mark(TEXT);
        self.text(text.escaped().unwrap_or_default());
        Ok(())
    }

    fn verbatim(&mut self, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
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
        self.makeup.add(text);
        self.text_bytes += text.len() as u64;
        self.chain.feed(text.as_bytes());
    }

    fn mark(&mut self, mark: u8) {
        self.chain.feed(&[mark]);
    }
}

/// Whether a document's `source` holds its text (`{"type":"text","data":…}`) rather than a file.
/// Whether a block of `system` is the line that Claude Code puts first, with a hash of the request: vLLM leaves it out of the prompt.
fn is_attribution(block: Raw<'_>) -> bool {
    let [text] = block.members(["text"]);
    text.is_some_and(|text| text.text().starts_with("\"x-anthropic-billing-header"))
}

fn is_text_source(source: Raw<'_>) -> Result<bool, JsonError> {
    let mut is_text = false;
    if source.kind() == JsonKind::Object {
        source.cursor().object(|key, cursor| {
            let value = cursor.value()?;
            is_text |= key.escaped() == Some("type") && matches!(value.escaped(), Some("text" | "content"));
            Ok::<_, JsonError>(())
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

/// What an image, a sound or a file counts for in the chain, whatever its own length.
const MEDIA_BYTES: usize = 4096;
