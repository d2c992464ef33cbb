//! Server-sent events as bytes: where an event ends, and what its fields hold.
//!
//! Follows the WHATWG rules: lines end with LF, CRLF or a lone CR (also where CR and LF come in different
//! reads), a blank line ends an event, a leading byte order mark is skipped, `:` opens a comment,
//! several `data` lines are joined with LF. Bytes are only looked at, never changed.
//!
//! It does not know JSON, and it does not buffer: that is the scanner's part.

use std::ops::Range;

use memchr::{memchr, memchr2};

/// Where a stream stands in its lines. Fed with every read, in order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Boundaries {
    in_line: bool,
    in_event: bool,
    after_cr: bool,
}

impl Boundaries {
    /// Call once for each read before [`Self::next_end`]: how many of its first bytes (0 or 1) still belong to
    /// the line end that the last read stopped in.
    pub fn begin(&mut self, read: &[u8]) -> usize {
        match read.first() {
            None => 0,
            Some(first) => usize::from(std::mem::take(&mut self.after_cr) && *first == b'\n'),
        }
    }

    /// The position behind the next blank line at or after `from`; `None` when the read ends before one.
    #[inline]
    pub fn next_end(&mut self, read: &[u8], from: usize) -> Option<usize> {
        let mut at = from;
        while let Some(found) = read.get(at..).and_then(|rest| memchr2(b'\n', b'\r', rest)) {
            let is_blank = found == 0 && !self.in_line;
            let eol = at + found;
            at = eol + 1;
            if read.get(eol) == Some(&b'\r') {
                match read.get(at) {
                    Some(b'\n') => at += 1,
                    Some(_) => {}
                    None => self.after_cr = true,
                }
            }
            self.in_line = false;
            self.in_event = !is_blank;
            if is_blank {
                return Some(at);
            }
        }
        if at < read.len() {
            self.in_line = true;
            self.in_event = true;
        }
        None
    }

    /// Whether the last read ended right behind an event, with nothing left to come of its line end.
    #[inline]
    pub fn is_between_events(&self) -> bool {
        !self.in_line && !self.in_event && !self.after_cr
    }

    /// Where the stream stands after the last read.
    pub fn tail(&self) -> LineState {
        match (self.in_line, self.in_event, self.after_cr) {
            (true, ..) => LineState::MidLine,
            // An LF after a CR would only complete that line end, so one more is needed.
            (false, true, true) => LineState::MidLine,
            (false, true, false) => LineState::MidEvent,
            (false, false, _) => LineState::Boundary,
        }
    }
}

/// Where a stream stopped: what must be written first so that an event of ours is not glued to a half one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LineState {
    /// Between two events: nothing.
    #[default]
    Boundary,
    /// Inside an event, at the start of a line: one line end.
    MidEvent,
    /// Inside a line: two line ends.
    MidLine,
}

impl LineState {
    /// The bytes that end what was begun.
    pub fn closing(self) -> &'static [u8] {
        match self {
            Self::Boundary => b"",
            Self::MidEvent => b"\n",
            Self::MidLine => b"\n\n",
        }
    }
}

/// The fields of one event that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SseFields<'a> {
    /// `event:`, empty where it has none.
    pub name: &'a [u8],
    /// `data:`, joined; `None` where the event has none (a comment, a lone `id`): it is never dispatched.
    pub data: Option<&'a [u8]>,
}

impl<'a> SseFields<'a> {
    /// Reads a whole event. `joined` is scratch space, used only for events of several `data` lines.
    pub fn of(raw: &'a [u8], joined: &'a mut Vec<u8>) -> Self {
        let mut name: &[u8] = b"";
        let mut only: Option<&[u8]> = None;
        let mut has_several = false;
        for line in SseLines(raw) {
            let (field, value) = split_field(line);
            match field {
                b"event" => name = value,
                b"data" => match only {
                    None => only = Some(value),
                    Some(first) => {
                        if !has_several {
                            joined.clear();
                            joined.extend_from_slice(first);
                            has_several = true;
                        }
                        joined.push(b'\n');
                        joined.extend_from_slice(value);
                    }
                },
                _ => {}
            }
        }
        Self { name, data: if has_several { Some(joined) } else { only } }
    }
}

/// Removes the byte order mark that may open a stream.
pub fn without_bom(raw: &[u8]) -> &[u8] {
    raw.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(raw)
}

/// Where `part` lies in `whole`; `None` where it is a copy: joined lines, repaired text.
pub fn range_within(whole: &[u8], part: &[u8]) -> Option<Range<usize>> {
    let start = part.as_ptr().addr().checked_sub(whole.as_ptr().addr())?;
    let end = start.checked_add(part.len()).filter(|end| *end <= whole.len())?;
    Some(start..end)
}

fn split_field(line: &[u8]) -> (&[u8], &[u8]) {
    match memchr(b':', line) {
        None => (line, b""),
        Some(colon) => {
            let (field, rest) = line.split_at(colon);
            let value = rest.get(1..).unwrap_or_default();
            (field, value.strip_prefix(b" ").unwrap_or(value))
        }
    }
}

struct SseLines<'a>(&'a [u8]);

impl<'a> Iterator for SseLines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.0.is_empty() {
            return None;
        }
        let Some(eol) = memchr2(b'\n', b'\r', self.0) else {
            return Some(std::mem::take(&mut self.0));
        };
        let (line, rest) = self.0.split_at(eol);
        self.0 = rest.strip_prefix(b"\r\n").or_else(|| rest.get(1..)).unwrap_or_default();
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(reads: &[&[u8]]) -> (Vec<usize>, LineState) {
        let mut boundaries = Boundaries::default();
        let (mut all, mut base) = (Vec::new(), 0);
        for read in reads {
            let mut at = boundaries.begin(read);
            while let Some(end) = boundaries.next_end(read, at) {
                all.push(base + end);
                at = end;
            }
            base += read.len();
        }
        (all, boundaries.tail())
    }

    #[test]
    fn a_blank_line_of_any_kind_ends_an_event() {
        type Case = (&'static [&'static [u8]], &'static [usize], LineState);
        let cases: [Case; 11] = [
            (&[b"data: a\n\n"], &[9], LineState::Boundary),
            (&[b"data: a\r\n\r\ndata: b\r\n\r\n"], &[11, 22], LineState::Boundary),
            (&[b"data: a\r\rdata: b\r\r"], &[9, 18], LineState::Boundary),
            (&[b"data: a\r", b"\n\r", b"\ndata: b"], &[10], LineState::MidLine),
            (&[b"data: a\n", b"\n"], &[9], LineState::Boundary),
            (&[b"data: a\n"], &[], LineState::MidEvent),
            (&[b"data: a\r"], &[], LineState::MidLine),
            (&[b"data: a\r", b"\r"], &[9], LineState::Boundary),
            (&[b"data: a\n\r\ndata"], &[10], LineState::MidLine),
            (&[b": ping\n\n", b"\n"], &[8, 9], LineState::Boundary),
            (&[b"", b"a", b"", b"\n\n"], &[3], LineState::Boundary),
        ];
        for (reads, expected, tail) in cases {
            assert_eq!(ends(reads), (expected.to_vec(), tail), "{reads:?}");
        }
    }

    #[test]
    fn fields_follow_the_standard() {
        type Case = (&'static [u8], &'static [u8], Option<&'static [u8]>);
        let cases: [Case; 9] = [
            (b"data: a\n\n", b"", Some(b"a")),
            (b"data:a\n\n", b"", Some(b"a")),
            (b"data:  a\n\n", b"", Some(b" a")),
            (b"event: x\r\ndata: a: b\r\n\r\n", b"x", Some(b"a: b")),
            (b"data: a\rdata\rdata: b\r\r", b"", Some(b"a\n\nb")),
            (b": comment\n\n", b"", None),
            (b"id: 1\nretry: 5\n\n", b"", None),
            (b"event: a\nevent: b\n data: x\n\n", b"b", None),
            (b"datax: a\ndata\n\n", b"", Some(b"")),
        ];
        for (raw, name, data) in cases {
            assert_eq!(SseFields::of(raw, &mut Vec::new()), SseFields { name, data }, "{raw:?}");
        }
    }
}
