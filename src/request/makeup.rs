//! What a text is made of, as far as it decides how many bytes a token has.
//!
//! A tokenizer packs English words, digits, spaces and other scripts differently: 4 bytes a token, 1 to 3, up to 20, and 1 to 5. Kinds are
//! told by bytes alone, at memory speed. JSON's `\uXXXX` counts as the UTF-8 that it stands for.

/// Bytes of a text by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Makeup([u64; KINDS]);

/// Letters of ASCII · spaces · other ASCII · characters of two, three and four bytes in UTF-8.
pub(super) const KINDS: usize = 6;
pub(super) const LETTERS: usize = 0;
const SYMBOLS: usize = 2;
const TWO: usize = 3;
const THREE: usize = 4;
const FOUR: usize = 5;

impl Makeup {
    /// Bytes of each kind.
    pub(super) fn kinds(&self) -> &[u64; KINDS] {
        &self.0
    }

    /// Bytes that are no text, which count as ordinary ones.
    pub(super) fn add_bytes(&mut self, bytes: u64) {
        self.0[LETTERS] += bytes;
    }

    /// The inside of a JSON string, escapes included.
    pub(crate) fn add(&mut self, text: &str) {
        let bytes = text.as_bytes();
        self.add_utf8(bytes);
        for at in memchr::memchr_iter(b'\\', bytes) {
            self.unescape(bytes.get(at..).unwrap_or_default());
        }
    }

    fn add_utf8(&mut self, bytes: &[u8]) {
        let Ascii { letters, spaces, is_all } = ascii(bytes);
        let [two, three, four] = if is_all { [0; 3] } else { longer(bytes) };
        let symbols = (bytes.len() as u64).saturating_sub(letters + spaces + two + three + four);
        for (kind, bytes) in self.0.iter_mut().zip([letters, spaces, symbols, two, three, four]) {
            *kind += bytes;
        }
    }

    /// Takes `\uXXXX` for its character, a surrogate for half of one. In an escaped backslash before a `u` it may be wrong, which costs
    /// the estimate little.
    fn unescape(&mut self, bytes: &[u8]) {
        let Some(escape @ [_, b'u', hex @ ..]) = bytes.get(..6) else { return };
        let code = std::str::from_utf8(hex).ok().and_then(|hex| u32::from_str_radix(hex, 16).ok());
        let (kind, len) = match code {
            Some(0x80..0x800) => (TWO, 2),
            Some(0xd800..0xe000) => (FOUR, 2),
            Some(0x800..) => (THREE, 3),
            _ => return,
        };
        let letters = count(escape, |byte| byte.is_ascii_alphabetic());
        self.0[LETTERS] = self.0[LETTERS].saturating_sub(letters);
        self.0[SYMBOLS] = self.0[SYMBOLS].saturating_sub(6 - letters);
        self.0[kind] += len;
    }
}

/// What of a text is ASCII.
struct Ascii {
    letters: u64,
    spaces: u64,
    /// There is nothing else.
    is_all: bool,
}

/// One pass: nearly all text is ASCII.
fn ascii(bytes: &[u8]) -> Ascii {
    let mut found = Ascii { letters: 0, spaces: 0, is_all: true };
    for piece in bytes.chunks(PIECE) {
        let mut lanes = Lanes::default();
        let (vectors, tail) = piece.as_chunks();
        vectors.iter().for_each(|vector| lanes.note(vector));
        let mut last = [0; LANES];
        last[..tail.len()].copy_from_slice(tail);
        lanes.note(&last);
        found.letters += sum(&lanes.letters);
        found.spaces += sum(&lanes.spaces);
        found.is_all &= lanes.any.is_ascii();
    }
    found
}

/// Counts of a byte each, side by side: the compiler makes one step of them.
#[derive(Default)]
struct Lanes {
    letters: [u8; LANES],
    spaces: [u8; LANES],
    /// All bytes, or-ed together.
    any: [u8; LANES],
}

impl Lanes {
    #[inline]
    fn note(&mut self, vector: &[u8; LANES]) {
        for (lane, byte) in vector.iter().enumerate() {
            self.letters[lane] += u8::from(is_letter(*byte));
            self.spaces[lane] += u8::from(*byte == b' ');
            self.any[lane] |= byte;
        }
    }
}

fn is_letter(byte: u8) -> bool {
    (byte | 0x20).wrapping_sub(b'a') < 26
}

/// In pairs first, so that nothing runs over, and then all pairs of a word at once.
fn sum(lanes: &[u8; LANES]) -> u64 {
    const EVEN: u64 = 0x00ff_00ff_00ff_00ff;
    const PAIRS: u64 = 0x0001_0001_0001_0001;
    let pairs = lanes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
    let pairs: u64 = pairs.map(|word| (word & EVEN) + (word >> 8 & EVEN)).sum();
    pairs.wrapping_mul(PAIRS) >> 48
}

/// Bytes of characters of two, three and four bytes.
fn longer(bytes: &[u8]) -> [u64; 3] {
    let two = 2 * count(bytes, |byte| byte & 0xe0 == 0xc0);
    let three = 3 * count(bytes, |byte| byte & 0xf0 == 0xe0);
    [two, three, 4 * count(bytes, |byte| byte >= 0xf0)]
}

/// How many bytes are so. In pieces whose count fits a byte, so that the compiler makes it many bytes a step.
fn count(bytes: &[u8], is: impl Fn(u8) -> bool) -> u64 {
    let of_piece = |piece: &[u8]| piece.iter().fold(0u8, |n, byte| n.wrapping_add(u8::from(is(*byte))));
    bytes.chunks(224).map(|piece| u64::from(of_piece(piece))).sum()
}

/// Bytes of a vector.
const LANES: usize = 32;
/// Whole vectors, so few that no lane runs over.
const PIECE: usize = 254 * LANES;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_told_apart_and_escapes_count_as_what_they_stand_for() {
        for (text, kinds) in [
            ("", [0; KINDS]),
            ("Hi there", [7, 1, 0, 0, 0, 0]),
            ("a1, \\n", [2, 1, 3, 0, 0, 0]),
            ("\u{e9}\u{4e2d}\u{1f600}", [0, 0, 0, 2, 3, 4]),
            (r"\u00e9\u4e2d\ud83d\ude00", [0, 0, 0, 2, 3, 4]),
        ] {
            let mut makeup = Makeup::default();
            makeup.add(text);
            assert_eq!(makeup.0, kinds, "{text}");
        }
        let mut long = Makeup::default();
        long.add(&"word ".repeat(1000));
        assert_eq!(long.0, [4000, 1000, 0, 0, 0, 0]);
    }
}
