//! Recognises an ordinary content event by comparing, where parsing has seen its like before.
//!
//! The content events of one stream differ in one JSON string only. So an event that was parsed in full, and held
//! nothing but one content string, leaves a template: the bytes before and after that string. A later event with the
//! same bytes around a string without an unescaped quote or a line end has the same structure and the same meaning,
//! whatever the engine's key order or spacing. This costs two comparisons and one search instead of a JSON parse,
//! and it cannot be fooled by text inside strings. What does not match is parsed.

use std::ops::Range;

use memchr::memchr3_iter;
use smallvec::SmallVec;

/// Templates of one stream: one for each choice, or for text and reasoning.
#[derive(Debug, Default)]
pub struct Templates {
    known: SmallVec<[Template; 1]>,
    replace_next: usize,
}

#[derive(Debug)]
struct Template {
    before: Vec<u8>,
    after: Vec<u8>,
    choice: u32,
}

/// An event that a template recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recognised {
    /// Whose content it is.
    pub choice: u32,
    /// Whether the content string is empty: then the event is no content event.
    pub is_empty: bool,
}

impl Templates {
    /// The event's meaning, if its like was learned.
    #[must_use]
    #[inline]
    pub fn recognise(&self, raw: &[u8]) -> Option<Recognised> {
        self.known.iter().find_map(|template| template.recognise(raw))
    }

    /// Learns from an event whose only meaning is the content inside `string` (without its quotes).
    pub fn learn(&mut self, raw: &[u8], string: Range<usize>, choice: u32) {
        let (Some(before), Some(after)) = (raw.get(..string.start), raw.get(string.end..)) else { return };
        if before.len() > LONGEST_BEFORE || after.len() > LONGEST_AFTER {
            return;
        }
        let slot = self.known.iter().position(|t| t.choice == choice && t.before == before).or_else(|| {
            (self.known.len() >= MOST).then(|| {
                self.replace_next = (self.replace_next + 1) % MOST;
                self.replace_next
            })
        });
        match slot.and_then(|slot| self.known.get_mut(slot)) {
            Some(old) => {
                old.before.clear();
                old.before.extend_from_slice(before);
                old.after.clear();
                old.after.extend_from_slice(after);
                old.choice = choice;
            }
            None => {
                self.known.push(Template { before: before.to_vec(), after: after.to_vec(), choice });
            }
        }
    }
}

impl Template {
    #[inline]
    fn recognise(&self, raw: &[u8]) -> Option<Recognised> {
        let string = raw.strip_prefix(self.before.as_slice())?.strip_suffix(self.after.as_slice())?;
        is_inside_of_a_string(string)
            .then_some(Recognised { choice: self.choice, is_empty: string.is_empty() })
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

const MOST: usize = 4;
const LONGEST_BEFORE: usize = 1024;
const LONGEST_AFTER: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_content_string_may_differ() {
        let mut templates = Templates::default();
        templates.learn(b"data: {\"t\":\"a\"}\n\n", 12..13, 7);
        let cases: [(&[u8], Option<bool>); 10] = [
            (b"data: {\"t\":\"bc\"}\n\n", Some(false)),
            (b"data: {\"t\":\"\"}\n\n", Some(true)),
            (b"data: {\"t\":\"say \\\"x\\\" \"}\n\n", Some(false)),
            (b"data: {\"t\":\"\\\\\"}\n\n", Some(false)),
            (b"data: {\"t\":\"\\\"}\n\n", None),
            (b"data: {\"t\":\"a\",\"u\":\"b\"}\n\n", None),
            (b"data: {\"t\":\"a\"}\n\ndata: {\"t\":\"b\"}\n\n", None),
            (b"data: {\"t\":\"a\ndata: b\"}\n\n", None),
            (b"data: {\"t\":\"", None),
            (b"data: {\"t\":\"}\n\n", None),
        ];
        for (raw, is_empty) in cases {
            let expected = is_empty.map(|is_empty| Recognised { choice: 7, is_empty });
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
        assert_eq!(templates.known.len(), MOST);
    }
}
