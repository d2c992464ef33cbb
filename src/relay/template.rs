//! Recognises an ordinary content event by comparing, where parsing has seen its like before.
//!
//! The content events of one stream differ in one JSON string only. So an event that was parsed in full, and held
//! nothing but one content string, leaves a template: length and digest of the bytes before and after that string. A
//! later event with the same bytes around a string without an unescaped quote or a line end has the same structure
//! and the same meaning, whatever the engine's key order or spacing. This costs two digests and one search instead
//! of a JSON parse, and it cannot be fooled by text inside strings. What does not match is parsed.
//!
//! Digests, not the bytes: between two events of a stream its memory has left the cache, while the event itself was
//! just read.

use std::ops::Range;

use memchr::memchr3_iter;
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64;

/// Templates of one stream: one for each choice, or for text and reasoning.
#[derive(Debug, Default)]
pub struct Templates {
    known: SmallVec<[Template; 1]>,
    replace_next: u8,
}

#[derive(Clone, Copy, Debug)]
struct Template {
    before: Imprint,
    after: Imprint,
    choice: u32,
}

/// Digest and length of bytes that are expected again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Imprint {
    digest: u64,
    len: u16,
}

/// An event that a template recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recognised {
    /// Whose content it is.
    pub choice: u32,
    /// Bytes of the content string: of none it is no content event.
    pub text: usize,
}

impl Templates {
    /// The event's meaning, if its like was learned.
    #[inline]
    pub fn recognise(&self, raw: &[u8]) -> Option<Recognised> {
        self.known.iter().find_map(|template| template.recognise(raw))
    }

    /// Learns from an event whose only meaning is the content inside `string` (without its quotes).
    pub fn learn(&mut self, raw: &[u8], string: Range<usize>, choice: u32) {
        let (Some(before), Some(after)) = (raw.get(..string.start), raw.get(string.end..)) else { return };
        let (Some(before), Some(after)) = (Imprint::of(before), Imprint::of(after)) else { return };
        let template = Template { before, after, choice };
        let slot = self.known.iter().position(|t| t.choice == choice && t.before == before).or_else(|| {
            (self.known.len() >= MAX_TEMPLATES).then(|| {
                self.replace_next = (self.replace_next + 1) % MAX_TEMPLATES as u8;
                usize::from(self.replace_next)
            })
        });
        match slot.and_then(|slot| self.known.get_mut(slot)) {
            Some(old) => *old = template,
            None => self.known.push(template),
        }
    }
}

impl Template {
    #[inline]
    fn recognise(&self, raw: &[u8]) -> Option<Recognised> {
        let (before, rest) = raw.split_at_checked(usize::from(self.before.len))?;
        let (string, after) = rest.split_at_checked(rest.len().checked_sub(usize::from(self.after.len))?)?;
        (self.after.fits(after) && self.before.fits(before) && is_inside_of_a_string(string))
            .then_some(Recognised { choice: self.choice, text: string.len() })
    }
}

impl Imprint {
    /// `None` for more bytes than an ordinary event has.
    fn of(bytes: &[u8]) -> Option<Self> {
        let len = u16::try_from(bytes.len()).ok().filter(|len| *len <= MAX_PART_LEN)?;
        Some(Self { digest: xxh3_64(bytes), len })
    }

    #[inline]
    fn fits(&self, bytes: &[u8]) -> bool {
        xxh3_64(bytes) == self.digest
    }
}

/// Whether `bytes` between two quotes are one JSON string on one line.
#[inline]
fn is_inside_of_a_string(bytes: &[u8]) -> bool {
    // The closing quote is checked like any other: a backslash before it would escape it.
    !is_escaped(bytes)
        && memchr3_iter(b'"', b'\n', b'\r', bytes)
            .all(|at| bytes.get(at) == Some(&b'"') && bytes.get(..at).is_some_and(is_escaped))
}

/// Whether the byte after `before` is escaped: an odd number of backslashes stands there.
#[inline]
fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

const MAX_TEMPLATES: usize = 4;
const MAX_PART_LEN: u16 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_content_string_may_differ() {
        let mut templates = Templates::default();
        templates.learn(b"data: {\"t\":\"a\"}\n\n", 12..13, 7);
        let cases: [(&[u8], Option<usize>); 10] = [
            (b"data: {\"t\":\"bc\"}\n\n", Some(2)),
            (b"data: {\"t\":\"\"}\n\n", Some(0)),
            (b"data: {\"t\":\"say \\\"x\\\" \"}\n\n", Some(10)),
            (b"data: {\"t\":\"\\\\\"}\n\n", Some(2)),
            (b"data: {\"t\":\"\\\"}\n\n", None),
            (b"data: {\"t\":\"a\",\"u\":\"b\"}\n\n", None),
            (b"data: {\"t\":\"a\"}\n\ndata: {\"t\":\"b\"}\n\n", None),
            (b"data: {\"t\":\"a\ndata: b\"}\n\n", None),
            (b"data: {\"t\":\"", None),
            (b"data: {\"t\":\"}\n\n", None),
        ];
        for (raw, text) in cases {
            let expected = text.map(|text| Recognised { choice: 7, text });
            assert_eq!(templates.recognise(raw), expected, "{}", String::from_utf8_lossy(raw));
        }
    }

    #[test]
    fn templates_stay_few_and_the_latest_is_known() {
        let mut templates = Templates::default();
        for choice in 0..100 {
            let raw = format!("{choice:03}x!");
            templates.learn(raw.as_bytes(), 3..4, choice);
            assert_eq!(templates.recognise(raw.as_bytes()).map(|r| r.choice), Some(choice));
        }
        assert_eq!(templates.known.len(), MAX_TEMPLATES);
    }
}
