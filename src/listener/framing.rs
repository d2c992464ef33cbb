//! Finds requests that give both `Content-Length` and `Transfer-Encoding` (RFC 9112 §6.1, §6.3).
//!
//! hyper drops the length of such a head before the service sees it. It may be an attempt to make two parsers read two
//! requests, so the listener refuses it. The scan runs beside hyper on the bytes of one connection and follows the
//! framing just far enough to know where heads begin. What it cannot follow it gives up on: hyper rejects most of that,
//! and in any case a request goes upstream with a framing of our own.

/// Follows the requests of one HTTP/1.1 connection.
#[derive(Debug, Default)]
pub struct RequestFraming {
    state: State,
    /// Start of the current line without the padding of numbers, at most [`LINE_KEPT`] bytes of it.
    line: Vec<u8>,
    head: Head,
    heads: u64,
    first_ambiguous: Option<u64>,
}

/// What is expected next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    HeadLine,
    Body {
        left: u64,
    },
    ChunkSize,
    ChunkData {
        left: u64,
    },
    /// The line end behind a chunk's data.
    ChunkEnd,
    Trailer,
    /// No HTTP that could be followed.
    Lost,
}

/// Framing fields of the head so far.
#[derive(Debug, Default)]
struct Head {
    lines: u32,
    length: Option<u64>,
    has_length: bool,
    has_coding: bool,
}

impl RequestFraming {
    /// Number of the first request with both fields, counted from 1.
    pub fn first_ambiguous(&self) -> Option<u64> {
        self.first_ambiguous
    }

    /// Heads that have begun, the current one included; past a framing that cannot be followed there may be any number.
    pub(super) fn heads_begun(&self) -> u64 {
        let is_in_head = self.state == State::HeadLine && (self.head.lines > 0 || !self.line.is_empty());
        if self.state == State::Lost { u64::MAX } else { self.heads + u64::from(is_in_head) }
    }

    /// Takes bytes as they were read.
    pub fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.state != State::Lost {
            bytes = match self.state {
                State::Body { left } => self.skip(bytes, left, |left| State::Body { left }, State::HeadLine),
                State::ChunkData { left } => {
                    self.skip(bytes, left, |left| State::ChunkData { left }, State::ChunkEnd)
                }
                _ => self.read_line(bytes),
            };
        }
    }

    fn skip<'b>(&mut self, bytes: &'b [u8], left: u64, within: fn(u64) -> State, after: State) -> &'b [u8] {
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        let left = left - count as u64;
        self.state = if left == 0 { after } else { within(left) };
        bytes.get(count..).unwrap_or_default()
    }

    /// Takes the rest of the current line, as far as it is there.
    fn read_line<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let end = memchr::memchr(b'\n', bytes);
        let part = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
        let rest = end.map_or(&[][..], |end| bytes.get(end + 1..).unwrap_or_default());
        if end.is_some() && self.line.is_empty() && part.len() <= LINE_KEPT {
            // Nearly every line: nothing is to be kept.
            self.state = self.after_line(part.strip_suffix(b"\r").unwrap_or(part));
            return rest;
        }
        self.keep(part);
        if end.is_some() {
            let line = std::mem::take(&mut self.line);
            self.state = self.after_line(line.strip_suffix(b"\r").unwrap_or(&line));
            self.line = line;
            self.line.clear();
        }
        rest
    }

    /// Keeps a piece of the current line as far as there is room: of one with a number without what pads it, in any amount.
    fn keep(&mut self, part: &[u8]) {
        let room = LINE_KEPT.saturating_sub(self.line.len());
        let first = self.line.first().or(part.first());
        let has_number = self.state == State::ChunkSize || first.is_some_and(|byte| byte | 0x20 == b'c');
        if part.len() <= room || !has_number {
            self.line.extend_from_slice(part.get(..room.min(part.len())).unwrap_or_default());
            return;
        }
        let kept = std::mem::take(&mut self.line);
        for byte in kept.iter().chain(part) {
            let is_padding = match byte {
                b' ' | b'\t' => self.line.ends_with(b":"),
                b'0' => self.line == b"0" || self.line.ends_with(b":0"),
                _ => false,
            };
            if !is_padding && self.line.len() < LINE_KEPT {
                self.line.push(*byte);
            }
        }
    }

    fn after_line(&mut self, line: &[u8]) -> State {
        match self.state {
            State::HeadLine if line.is_empty() && self.head.lines == 0 => State::HeadLine,
            State::HeadLine if line.is_empty() => self.end_head(),
            State::HeadLine => {
                self.head.line(line);
                State::HeadLine
            }
            State::ChunkSize => match chunk_size(line) {
                Some(0) => State::Trailer,
                Some(left) => State::ChunkData { left },
                None => State::Lost,
            },
            State::ChunkEnd if line.is_empty() => State::ChunkSize,
            State::Trailer if line.is_empty() => State::HeadLine,
            State::Trailer => State::Trailer,
            _ => State::Lost,
        }
    }

    fn end_head(&mut self) -> State {
        let head = std::mem::take(&mut self.head);
        self.heads += 1;
        if head.has_coding && head.has_length {
            self.first_ambiguous.get_or_insert(self.heads);
        }
        match head {
            Head { has_coding: true, .. } => State::ChunkSize,
            Head { has_length: false, .. } | Head { length: Some(0), .. } => State::HeadLine,
            Head { length: Some(left), .. } => State::Body { left },
            Head { length: None, .. } => State::Lost,
        }
    }
}

impl Head {
    fn line(&mut self, line: &[u8]) {
        self.lines = self.lines.saturating_add(1);
        // The first one is the request line.
        if self.lines == 1 || !line.first().is_some_and(|byte| matches!(byte | 0x20, b'c' | b't')) {
            return;
        }
        let Some(colon) = memchr::memchr(b':', line) else { return };
        let (name, value) = line.split_at(colon);
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.has_coding = true;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            self.has_length = true;
            let digits = value.get(1..).unwrap_or_default().trim_ascii();
            self.length = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
        }
    }
}

/// Size of a chunk; extensions are ignored.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| *byte == b';').next()?.trim_ascii_end();
    let is_hex = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    u64::from_str_radix(std::str::from_utf8(digits).ok().filter(|_| is_hex)?, 16).ok()
}

/// Longer than either field with any length that fits 64 bits.
const LINE_KEPT: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello";
    const CHUNKED: &str =
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nt: 1\r\n\r\n";
    const GET: &str = "GET / HTTP/1.1\r\nhost: a\r\nx: content-length: 5\r\n\r\n";
    const BOTH: &str =
        "POST / HTTP/1.1\r\nContent-Length: 5\r\nhost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    const BOTH_TURNED: &str = "POST / HTTP/1.1\nTRANSFER-ENCODING:chunked\ncontent-length:\t5\n\n0\r\n\r\n";

    fn first(parts: &[&str]) -> Option<u64> {
        let whole = parts.concat();
        let mut framing = RequestFraming::default();
        framing.read(whole.as_bytes());
        // In pieces of any size the result is the same.
        for size in 1..40 {
            let mut pieces = RequestFraming::default();
            whole.as_bytes().chunks(size).for_each(|piece| pieces.read(piece));
            assert_eq!(pieces.first_ambiguous(), framing.first_ambiguous(), "pieces of {size}");
        }
        framing.first_ambiguous()
    }

    #[test]
    fn a_head_with_both_fields_is_found_wherever_it_stands() {
        for (parts, expected) in [
            (&[PLAIN, CHUNKED, GET, PLAIN][..], None),
            (&[BOTH], Some(1)),
            (&[BOTH_TURNED], Some(1)),
            (&[PLAIN, BOTH], Some(2)),
            (&[CHUNKED, GET, BOTH_TURNED, BOTH], Some(3)),
            (&["\r\n", BOTH], Some(1)),
        ] {
            assert_eq!(first(parts), expected, "{parts:?}");
        }
    }

    #[test]
    fn what_looks_like_a_head_inside_a_body_is_none() {
        let body = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{BOTH}", BOTH.len());
        assert_eq!(first(&[&body, GET]), None);
        let chunk = format!(
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{BOTH}\r\n0\r\n\r\n",
            BOTH.len()
        );
        assert_eq!(first(&[&chunk, GET]), None);
    }

    #[test]
    fn a_padded_number_is_followed_however_long_its_line_is() {
        for padding in ["\t".repeat(200), format!(" {}", "0".repeat(200)), " ".repeat(70) + &"0".repeat(70)] {
            let body = format!("POST / HTTP/1.1\r\nhost: a\r\nContent-Length:{padding}5\r\n\r\nhello");
            assert_eq!(first(&[&body, BOTH]), Some(2), "{padding:?}");
        }
        let zeros = "0".repeat(200);
        let chunks = format!(
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n{zeros}5\r\nhello\r\n{zeros}\r\n\r\n"
        );
        assert_eq!(first(&[&chunks, BOTH]), Some(2));
    }

    #[test]
    fn framing_that_cannot_be_followed_ends_the_scan() {
        for odd in ["content-length: x", "content-length: 18446744073709551616"] {
            assert_eq!(first(&[&format!("POST / HTTP/1.1\r\n{odd}\r\n\r\n"), BOTH]), None);
        }
        for size in ["", "g", "+5", "0x5", "10000000000000000"] {
            let head = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n";
            assert_eq!(first(&[head, size, "\r\n", BOTH]), None, "{size}");
        }
    }
}
