//! Where the body of an answer ends, and its bytes without their framing (RFC 9112 §6 and §7).

use bytes::{Buf, Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, StatusCode, Version, response};
use httparse::Status;

use crate::upstream::headers::items;

/// How the rest of a body is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// This many bytes.
    Length(u64),
    /// Whatever comes until the engine closes.
    ToClose,
    /// A chunk's size comes next.
    ChunkSize,
    /// This many bytes.of a chunk.
    Chunk(u64),
    /// The line end behind a chunk.
    ChunkEnd,
    /// Trailers, or the empty line in place of them.
    Trailers,
    /// Nothing.
    Ended,
}

/// What the bytes that were read so far hold.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decoded {
    Data(Bytes),
    /// Nothing until more is read.
    Nothing,
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl Framing {
    /// Of the answer with this head (RFC 9112 §6.3) and the length that [`tidy_length`] found; `is_bodiless` for one to HEAD.
    pub(super) fn of(
        head: &response::Parts,
        found: Option<u64>,
        is_bodiless: bool,
    ) -> Result<Self, Malformed> {
        if is_bodiless || has_no_body(head.status) {
            return Ok(Self::Ended);
        }
        if let Some(last) = items(&head.headers, &TRANSFER_ENCODING).last() {
            return match head.version {
                Version::HTTP_10 => Err(Malformed),
                _ if last.eq_ignore_ascii_case(b"chunked") => Ok(Self::ChunkSize),
                _ => Ok(Self::ToClose),
            };
        }
        let declared = if found.is_some() { found } else { declared_length(&head.headers)? };
        Ok(declared.map_or(Self::ToClose, Self::with_length))
    }

    fn with_length(length: u64) -> Self {
        if length == 0 { Self::Ended } else { Self::Length(length) }
    }

    /// Takes the next bytes of the body out of what was read.
    pub(super) fn decode(&mut self, read: &mut BytesMut) -> Result<Decoded, Malformed> {
        loop {
            match *self {
                Self::Ended => return Ok(Decoded::End),
                _ if read.is_empty() => return Ok(Decoded::Nothing),
                Self::ToClose => return Ok(Decoded::Data(read.split().freeze())),
                Self::Length(left) => {
                    let data = up_to(left, read);
                    *self = Self::with_length(left - data.len() as u64);
                    return Ok(Decoded::Data(data));
                }
                Self::Chunk(left) => {
                    let data = up_to(left, read);
                    *self = match left - data.len() as u64 {
                        0 => Self::ChunkEnd,
                        left => Self::Chunk(left),
                    };
                    return Ok(Decoded::Data(data));
                }
                Self::ChunkEnd => match read.get(..2) {
                    None if read.starts_with(b"\r") => return Ok(Decoded::Nothing),
                    Some(b"\r\n") => {
                        read.advance(2);
                        *self = Self::ChunkSize;
                    }
                    _ => return Err(Malformed),
                },
                Self::ChunkSize => match chunk_size(read)? {
                    None => return Ok(Decoded::Nothing),
                    Some(0) => *self = Self::Trailers,
                    Some(size) => *self = Self::Chunk(size),
                },
                Self::Trailers => {
                    if !skip_trailers(read)? {
                        return Ok(Decoded::Nothing);
                    }
                    *self = Self::Ended;
                }
            }
        }
    }
}

/// Leaves the length that a head declares as those behind us take it (RFC 9110 §8.6): once, and not with a status that has no body, whose
/// bytes a client of HTTP/2 would miss. Returns it where it is read already.
pub(super) fn tidy_length(head: &mut response::Parts) -> Result<Option<u64>, Malformed> {
    let headers = &mut head.headers;
    if head.status == StatusCode::NO_CONTENT {
        headers.remove(CONTENT_LENGTH);
    }
    let mut fields = headers.get_all(CONTENT_LENGTH).iter();
    let (first, is_once) = (fields.next(), fields.next().is_none());
    match first.map(|one| one.as_bytes()) {
        None => Ok(None),
        Some(one) if is_once && !one.contains(&b',') => Ok(length(one.trim_ascii())),
        Some(_) => {
            let declared = declared_length(headers)?;
            if let Some(length) = declared {
                headers.insert(CONTENT_LENGTH, length.into());
            }
            Ok(declared)
        }
    }
}

fn declared_length(headers: &HeaderMap) -> Result<Option<u64>, Malformed> {
    let mut lengths = items(headers, &CONTENT_LENGTH).map(length).peekable();
    let Some(first) = lengths.peek().copied() else { return Ok(None) };
    let is_one = lengths.all(|length| length == first);
    first.filter(|_| is_one).map(Some).ok_or(Malformed)
}

/// Whether an answer of this status has none, whatever its head declares.
fn has_no_body(status: StatusCode) -> bool {
    status.is_informational() || status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED
}

fn length(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()
}

fn up_to(left: u64, read: &mut BytesMut) -> Bytes {
    let len = usize::try_from(left).unwrap_or(usize::MAX).min(read.len());
    read.split_to(len).freeze()
}

fn chunk_size(read: &mut BytesMut) -> Result<Option<u64>, Malformed> {
    match httparse::parse_chunk_size(read).map_err(|_| Malformed)? {
        Status::Partial if read.len() > MAX_CHUNK_LINE => Err(Malformed),
        Status::Partial => Ok(None),
        Status::Complete((line, size)) => {
            let line = read.split_to(line);
            // A bare line feed in an extension ends the line for other readers (RFC 9112 §2.2).
            let feeds = memchr::memchr_iter(b'\n', &line).count();
            (feeds == 1 && line.first().is_some_and(u8::is_ascii_hexdigit))
                .then_some(Some(size))
                .ok_or(Malformed)
        }
    }
}

/// Whether they are over. No engine sends any that a client misses.
fn skip_trailers(read: &mut BytesMut) -> Result<bool, Malformed> {
    if read.starts_with(b"\r\n") {
        read.advance(2);
        return Ok(true);
    }
    let mut fields = [httparse::EMPTY_HEADER; MAX_TRAILERS];
    match httparse::parse_headers(read, &mut fields).map_err(|_| Malformed)? {
        Status::Partial if read.len() > MAX_TRAILER_BYTES => Err(Malformed),
        Status::Partial => Ok(false),
        Status::Complete((len, _)) => {
            read.advance(len);
            Ok(true)
        }
    }
}

/// Bytes of a chunk's size with its extensions.
const MAX_CHUNK_LINE: usize = 4 * 1024;
const MAX_TRAILERS: usize = 64;
const MAX_TRAILER_BYTES: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Response};

    use super::*;

    /// The body of `wire`, read in pieces of `size` bytes; with what is left behind it.
    fn decoded(
        mut framing: Framing,
        wire: &[u8],
        size: usize,
    ) -> Result<(Vec<u8>, usize, Framing), Malformed> {
        let (mut body, mut read) = (Vec::new(), BytesMut::new());
        for piece in wire.chunks(size) {
            read.extend_from_slice(piece);
            while let Decoded::Data(data) = framing.decode(&mut read)? {
                assert!(!data.is_empty());
                body.extend_from_slice(&data);
            }
        }
        Ok((body, read.len(), framing))
    }

    #[test]
    fn a_body_is_the_same_however_it_is_cut() {
        let chunked =
            b"5\r\nhello\r\n1;name=\"a\"\r\n,\r\n00a \r\n and more!\r\n0\r\nx-sum: 1\r\ny: 2\r\n\r\nNEXT";
        let plain = b"3\r\na\r\n\r\n0\r\n\r\n";
        for size in 1..chunked.len() {
            let (body, left, framing) = decoded(Framing::ChunkSize, chunked, size).unwrap();
            assert_eq!((&*body, left, framing), (&b"hello, and more!"[..], 4, Framing::Ended), "{size}");
            let (body, left, framing) = decoded(Framing::ChunkSize, plain, size).unwrap();
            assert_eq!((&*body, left, framing), (&b"a\r\n"[..], 0, Framing::Ended), "{size}");
            let (body, left, framing) = decoded(Framing::Length(7), chunked, size).unwrap();
            assert_eq!((&*body, left, framing), (&chunked[..7], chunked.len() - 7, Framing::Ended), "{size}");
            let (body, _, framing) = decoded(Framing::ToClose, chunked, size).unwrap();
            assert_eq!((&*body, framing), (&chunked[..], Framing::ToClose), "{size}");
        }
    }

    #[test]
    fn a_length_is_passed_on_once_and_not_beside_a_status_without_a_body() {
        for (status, fields, declared) in [
            (200, &["5"][..], Ok(&["5"][..])),
            (200, &["5, 5"], Ok(&["5"])),
            (200, &["5", "5"], Ok(&["5"])),
            (200, &["5", "6"], Err(Malformed)),
            (200, &["5,x"], Err(Malformed)),
            (204, &["5"], Ok(&[])),
            (204, &["5", "6"], Ok(&[])),
            (304, &["5"], Ok(&["5"])),
        ] {
            let head = Response::builder().status(status);
            let head = fields.iter().fold(head, |head, field| head.header(CONTENT_LENGTH, *field));
            let (mut head, ()) = head.body(()).unwrap().into_parts();
            let left = tidy_length(&mut head)
                .map(|_| head.headers.get_all(CONTENT_LENGTH).iter().cloned().collect::<Vec<_>>());
            let declared =
                declared.map(|all| Vec::from_iter(all.iter().map(|one| HeaderValue::from_static(one))));
            assert_eq!(left, declared, "{status} {fields:?}");
        }
    }

    #[test]
    fn what_is_no_chunk_ends_the_answer() {
        for wire in [
            &b"5\r\nhelloX\r\n"[..],
            b"5\nhello\r\n",
            b"-5\r\nhello\r\n",
            b"5 5\r\nhello\r\n",
            b"\r\nhello\r\n",
            b";x\r\nhello\r\n",
            b" \r\nhello\r\n",
            b"1;a\nb\r\nx\r\n",
            b"11111111111111111\r\n",
            b"x\r\n",
            b"0\r\nno field\r\n\r\n",
            &[&b"1;"[..], &[b'a'; 5000]].concat(),
            &[&b"0\r\na: "[..], &[b'a'; 20_000]].concat(),
        ] {
            let mut read = BytesMut::from(wire);
            let mut framing = Framing::ChunkSize;
            let end = loop {
                match framing.decode(&mut read) {
                    Ok(Decoded::Data(_)) => {}
                    end => break end,
                }
            };
            assert_eq!(end, Err(Malformed), "{}", String::from_utf8_lossy(&wire[..wire.len().min(40)]));
        }
    }

    #[test]
    fn the_head_decides_where_a_body_ends() {
        for (status, fields, expected) in [
            (200, &[][..], Ok(Framing::ToClose)),
            (200, &[("content-length", "5")], Ok(Framing::Length(5))),
            (200, &[("content-length", "0")], Ok(Framing::Ended)),
            (200, &[("content-length", "5, 5"), ("content-length", "5")], Ok(Framing::Length(5))),
            (200, &[("content-length", "5"), ("content-length", "6")], Err(Malformed)),
            (200, &[("content-length", "+5")], Err(Malformed)),
            (200, &[("content-length", "")], Err(Malformed)),
            (200, &[("content-length", "99999999999999999999")], Err(Malformed)),
            (200, &[("transfer-encoding", "Chunked")], Ok(Framing::ChunkSize)),
            (200, &[("transfer-encoding", "gzip, chunked")], Ok(Framing::ChunkSize)),
            (200, &[("transfer-encoding", "chunked"), ("transfer-encoding", "gzip")], Ok(Framing::ToClose)),
            (204, &[("content-length", "5")], Ok(Framing::Ended)),
            (304, &[("transfer-encoding", "chunked")], Ok(Framing::Ended)),
            (101, &[], Ok(Framing::Ended)),
        ] {
            let mut head = Response::builder().status(status);
            for (name, value) in fields {
                head = head.header(*name, *value);
            }
            let (head, ()) = head.body(()).unwrap().into_parts();
            assert_eq!(Framing::of(&head, None, false), expected, "{status} {fields:?}");
            assert_eq!(Framing::of(&head, None, true), Ok(Framing::Ended));
        }
    }
}
