//! A validating JSON cursor that borrows: every value comes back as the bytes it stands in.
//!
//! The gateway never re-serialises a body, so it needs places, not trees. One pass over the body checks the
//! whole grammar (RFC 8259) and yields raw slices; the prompt walk goes over the parts it hashes once more.
//! Written by hand because a skipped value must still be validated at memory speed: prompts are long strings, and the
//! string scan below takes whole vectors a step (figures against serde and jiter: docs/decisions/0006).
//!
//! It does not convert numbers, does not unescape unless asked, and knows nothing of any API.

use std::borrow::Cow;

/// A complete JSON value as it stands in the body, without the white space around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raw<'a> {
    text: &'a str,
    start: usize,
}

/// The type of a JSON value.
#[allow(missing_docs, reason = "the names are those of RFC 8259")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonKind {
    Null,
    Bool,
    Number,
    Str,
    Array,
    Object,
}

impl<'a> Raw<'a> {
    /// The value's own text.
    pub fn text(&self) -> &'a str {
        self.text
    }

    /// Where it stands, in bytes from the start of the body.
    pub fn span(&self) -> std::ops::Range<usize> {
        self.start..self.start + self.text.len()
    }

    /// Its type, by its first byte.
    pub fn kind(&self) -> JsonKind {
        match self.text.as_bytes().first() {
            Some(b'{') => JsonKind::Object,
            Some(b'[') => JsonKind::Array,
            Some(b'"') => JsonKind::Str,
            Some(b't' | b'f') => JsonKind::Bool,
            Some(b'n') | None => JsonKind::Null,
            Some(_) => JsonKind::Number,
        }
    }

    /// A string's text between its quotes, escapes left as they are; `None` for other kinds.
    pub fn escaped(&self) -> Option<&'a str> {
        self.text.strip_prefix('"')?.strip_suffix('"')
    }

    /// A string, unescaped; borrowed when it has no escapes. `None` for other kinds and for lone surrogates.
    pub fn string(&self) -> Option<Cow<'a, str>> {
        let escaped = self.escaped()?;
        if escaped.contains('\\') {
            serde_json::from_str(self.text).ok().map(Cow::Owned)
        } else {
            Some(Cow::Borrowed(escaped))
        }
    }

    /// What a key names, unescaped, as an engine reads it; one that names nothing, as it is escaped.
    pub fn name(&self) -> Cow<'a, str> {
        self.string().unwrap_or_else(|| Cow::Borrowed(self.escaped().unwrap_or_default()))
    }

    /// Whether it is no empty string, list or object.
    pub fn is_filled(&self) -> bool {
        !matches!(self.text, "\"\"" | "[]" | "{}")
    }

    /// The value, or `None` for `null`.
    #[must_use]
    pub fn non_null(self) -> Option<Self> {
        Some(self).filter(|value| value.kind() != JsonKind::Null)
    }

    /// The members of an object with these names; see [`Cursor::members`]. All `None` for other kinds.
    pub fn members<const N: usize>(&self, names: [&str; N]) -> [Option<Self>; N] {
        self.cursor().members(names).unwrap_or([None; N])
    }

    /// A cursor at the start of this value.
    pub fn cursor(&self) -> Cursor<'a> {
        Cursor { text: self.text, at: 0, base: self.start, depth: 0, is_validated: true }
    }
}

/// Why a text is not JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonError {
    /// Where, in bytes from the start of the text.
    pub at: usize,
    /// What is wrong there.
    pub problem: &'static str,
}

/// A place in a JSON text.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    text: &'a str,
    at: usize,
    base: usize,
    depth: u8,
    /// The text was walked before: what is inside its strings need not be looked at again.
    is_validated: bool,
}

impl<'a> Cursor<'a> {
    /// A cursor at the first value of `text`.
    pub fn new(text: &'a str) -> Self {
        let mut cursor = Self { text, at: 0, base: 0, depth: 0, is_validated: false };
        cursor.skip_space();
        cursor
    }

    /// The kind of the value ahead, judged by its first byte.
    pub fn ahead(&self) -> JsonKind {
        Raw { text: self.text.get(self.at..).unwrap_or_default(), start: 0 }.kind()
    }

    /// Takes the value ahead, validating all of it.
    ///
    /// # Errors
    /// The place and the reason, when the text is not JSON or nests too deeply.
    pub fn value(&mut self) -> Result<Raw<'a>, JsonError> {
        let start = self.at;
        self.skip_value()?;
        Ok(self.since(start))
    }

    /// Takes the object ahead and returns its members with these names, `None` for absent and `null` ones. Of duplicates
    /// the last one counts. Names are compared with keys as they are escaped.
    pub fn members<const N: usize>(&mut self, names: [&str; N]) -> Result<[Option<Raw<'a>>; N], JsonError> {
        let mut found = [None; N];
        self.object(|key, value| {
            let mut slots = names.iter().zip(&mut found);
            if let Some((_, slot)) = slots.find(|(name, _)| key.escaped() == Some(**name)) {
                *slot = value.value()?.non_null();
            }
            Ok::<_, JsonError>(())
        })?;
        Ok(found)
    }

    /// Takes the object ahead; `member` gets each key, and the cursor at its value, which it may take.
    ///
    /// # Errors
    /// What `member` returns, or the place and the reason when the text is not JSON.
    pub fn object<E: From<JsonError>>(
        &mut self,
        mut member: impl FnMut(Raw<'a>, &mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        self.open(b'{')?;
        if self.close(b'}') {
            return Ok(());
        }
        loop {
            let start = self.at;
            self.skip_string("expected a key in quotes")?;
            let key = self.since(start);
            self.skip_space();
            self.expect(b':', "expected `:` after a key")?;
            self.skip_space();
            let before = self.at;
            member(key, self)?;
            self.finish_item(before)?;
            if self.close(b'}') {
                return Ok(());
            }
            self.expect(b',', "expected `,` or `}`")?;
            self.skip_space();
        }
    }

    /// Takes the array ahead; `element` gets the cursor at each value, which it may take.
    ///
    /// # Errors
    /// What `element` returns, or the place and the reason when the text is not JSON.
    pub fn array<E: From<JsonError>>(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        self.open(b'[')?;
        if self.close(b']') {
            return Ok(());
        }
        loop {
            let before = self.at;
            element(self)?;
            self.finish_item(before)?;
            if self.close(b']') {
                return Ok(());
            }
            self.expect(b',', "expected `,` or `]`")?;
            self.skip_space();
        }
    }

    /// Makes sure that nothing but white space is left.
    ///
    /// # Errors
    /// The place of what is left.
    pub fn end(&mut self) -> Result<(), JsonError> {
        self.skip_space();
        if self.at < self.text.len() { Err(self.fault("unexpected text after the end")) } else { Ok(()) }
    }

    fn skip_value(&mut self) -> Result<(), JsonError> {
        match self.peek() {
            Some(b'"') => self.skip_string("expected a string"),
            Some(b'{') => self.object(|_, cursor| cursor.skip_value()),
            Some(b'[') => self.array(|cursor| {
                cursor.skip_integers();
                cursor.skip_value()
            }),
            Some(b't') => self.skip_literal("true"),
            Some(b'f') => self.skip_literal("false"),
            Some(b'n') => self.skip_literal("null"),
            Some(b'-' | b'0'..=b'9') => self.skip_number(),
            Some(_) => Err(self.fault("expected a value")),
            None => Err(self.fault("unexpected end, expected a value")),
        }
    }

    /// Skips plain integers with a comma behind them: token ids come by the million. An element is still ahead then.
    fn skip_integers(&mut self) {
        let bytes = self.text.as_bytes();
        loop {
            let rest = bytes.get(self.at..).unwrap_or_default();
            let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let has_zero_in_front = digits > 1 && rest.first() == Some(&b'0');
            if digits == 0 || has_zero_in_front || rest.get(digits) != Some(&b',') {
                return;
            }
            self.at += digits + 1;
            self.skip_space();
        }
    }

    fn open(&mut self, bracket: u8) -> Result<(), JsonError> {
        self.expect(bracket, if bracket == b'{' { "expected an object" } else { "expected an array" })?;
        if self.depth == MAX_DEPTH {
            return Err(self.fault(TOO_DEEP));
        }
        self.depth += 1;
        self.skip_space();
        Ok(())
    }

    fn close(&mut self, bracket: u8) -> bool {
        let closes = self.peek() == Some(bracket);
        if closes {
            self.at += 1;
            self.depth -= 1;
        }
        closes
    }

    /// Skips the value at `before` unless the visitor took it, and the space behind it.
    fn finish_item(&mut self, before: usize) -> Result<(), JsonError> {
        if self.at == before {
            self.skip_value()?;
        }
        self.skip_space();
        Ok(())
    }

    fn skip_string(&mut self, expected: &'static str) -> Result<(), JsonError> {
        self.expect(b'"', expected)?;
        loop {
            let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
            // Keys are short and code is dense in escapes: look at a few words before setting up for a long run.
            self.at += match short_len(rest) {
                Ok(len) => len,
                Err(looked_at) if self.is_validated => looked_at + string_len(behind(rest, looked_at)),
                Err(looked_at) => looked_at + long_len(behind(rest, looked_at)),
            };
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') if self.is_validated => {
                    self.at += string_len(behind(self.text.as_bytes(), self.at));
                }
                Some(b'\\') => self.skip_escape()?,
                Some(_) => return Err(self.fault("control character in a string")),
                None => return Err(self.fault("unexpected end inside a string")),
            }
        }
    }

    fn skip_escape(&mut self) -> Result<(), JsonError> {
        let ahead = self.text.as_bytes().get(self.at + 1..).unwrap_or_default();
        let len = match ahead.first() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => 2,
            Some(b'u') if ahead.get(1..5).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)) => 6,
            _ => return Err(self.fault("invalid escape in a string")),
        };
        self.at += len;
        Ok(())
    }

    fn skip_literal(&mut self, word: &'static str) -> Result<(), JsonError> {
        if !self.text.as_bytes().get(self.at..).is_some_and(|rest| rest.starts_with(word.as_bytes())) {
            return Err(self.fault("expected a value"));
        }
        self.at += word.len();
        Ok(())
    }

    fn skip_number(&mut self) -> Result<(), JsonError> {
        self.take(b'-');
        if !self.take(b'0') {
            self.skip_digits()?;
        }
        if self.take(b'.') {
            self.skip_digits()?;
        }
        if self.take(b'e') || self.take(b'E') {
            let _sign = self.take(b'+') || self.take(b'-');
            self.skip_digits()?;
        }
        Ok(())
    }

    fn skip_digits(&mut self) -> Result<(), JsonError> {
        let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
        let digits = rest.iter().position(|b| !b.is_ascii_digit()).unwrap_or(rest.len());
        self.at += digits;
        if digits == 0 { Err(self.fault("expected a digit")) } else { Ok(()) }
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> bool {
        let is_there = self.peek() == Some(byte);
        self.at += usize::from(is_there);
        is_there
    }

    fn expect(&mut self, byte: u8, problem: &'static str) -> Result<(), JsonError> {
        if self.take(byte) { Ok(()) } else { Err(self.fault(problem)) }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn since(&self, start: usize) -> Raw<'a> {
        Raw { text: self.text.get(start..self.at).unwrap_or_default(), start: self.base + start }
    }

    fn fault(&self, problem: &'static str) -> JsonError {
        JsonError { at: self.base + self.at, problem }
    }
}

/// How many bytes of a valid JSON string are in front of the quote that ends it.
fn string_len(bytes: &[u8]) -> usize {
    let end = memchr::memchr_iter(b'"', bytes).find(|at| {
        let before = bytes.get(..*at).unwrap_or_default();
        before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 0
    });
    end.unwrap_or(bytes.len())
}

/// Whether a JSON string holds the text as it is.
pub(crate) fn is_plain(text: &str) -> bool {
    plain_len(text.as_bytes()) == text.len()
}

/// How many bytes at the start of `bytes` a JSON string holds as they are: up to a quote, backslash or control byte.
fn plain_len(bytes: &[u8]) -> usize {
    short_len(bytes).unwrap_or_else(|looked_at| looked_at + long_len(behind(bytes, looked_at)))
}

/// The same where it ends within a few words or the text does; else how many bytes were looked at.
#[inline(always)] // called for every string: most are keys, which end in their first or second word
fn short_len(bytes: &[u8]) -> Result<usize, usize> {
    let mut at = 0;
    while let Some(word) = bytes.get(at..).and_then(<[u8]>::first_chunk) {
        if let Some(stop) = first_stop(*word) {
            return Ok(at + stop);
        }
        at += 8;
        if at == SHORT {
            return Err(at);
        }
    }
    if let Some(last) = bytes.last_chunk().filter(|_| at > 0) {
        // What of it was looked at has no stop.
        return Ok(first_stop(*last).map_or(bytes.len(), |stop| bytes.len() - 8 + stop));
    }
    let is_plain = |byte: &&u8| !matches!(**byte, ..0x20 | b'"' | b'\\');
    Ok(bytes.iter().take_while(is_plain).count())
}

fn long_len(bytes: &[u8]) -> usize {
    let run = memchr::memchr2(b'"', b'\\', bytes).map_or(bytes, |end| bytes.get(..end).unwrap_or_default());
    printable_len(run)
}

fn behind(bytes: &[u8], at: usize) -> &[u8] {
    bytes.get(at..).unwrap_or_default()
}

/// How many bytes at the start of `bytes` are no control characters.
fn printable_len(bytes: &[u8]) -> usize {
    // No early exit inside a chunk, so that the compiler makes vector compares of it.
    let is_printable = |chunk: &&[u8; 128]| chunk.iter().fold(u8::MAX, |least, b| least.min(*b)) >= 0x20;
    let mut len = bytes.as_chunks::<128>().0.iter().take_while(is_printable).count() * 128;
    let (words, tail) = bytes.get(len..).unwrap_or_default().as_chunks::<8>();
    for word in words {
        match first_of(below(u64::from_le_bytes(*word), 0x20)) {
            Some(at) => return len + at,
            None => len += 8,
        }
    }
    len + tail.iter().take_while(|byte| **byte >= 0x20).count()
}

/// The place of the first quote, backslash or control character of eight bytes.
#[inline]
fn first_stop(word: [u8; 8]) -> Option<usize> {
    let word = u64::from_le_bytes(word);
    // A quote is two above the control characters: with that bit turned over it comes right behind them.
    let quote_or_control = below(word ^ (ONES * 2), u64::from(b'"' ^ 2) + 1);
    first_of(quote_or_control | below(word ^ (ONES * u64::from(b'\\')), 1))
}

/// The high bit of every byte below the limit. Bits above the lowest one set may be wrong (a borrow runs upwards), which does
/// no harm, as only the lowest is used.
fn below(word: u64, limit: u64) -> u64 {
    word.wrapping_sub(ONES * limit) & !word & (ONES * 0x80)
}

fn first_of(high_bits: u64) -> Option<usize> {
    (high_bits != 0).then_some(high_bits.trailing_zeros() as usize / 8)
}

const ONES: u64 = 0x0101_0101_0101_0101;
/// Bytes that a string is looked at word by word; whole words.
const SHORT: usize = 32;

/// Nesting that is accepted. The walk recurses, so this also bounds the stack.
const MAX_DEPTH: u8 = 128;

/// The [`JsonError::problem`] of a text that nests more than 128 levels.
pub const TOO_DEEP: &str = "nested more than 128 levels deep";

#[cfg(test)]
mod tests;
