//! Words for a head that hyper refuses.
//!
//! A head that is not HTTP/1.1 never becomes a request: hyper answers 400, 414 or 431 by itself, with nothing in it,
//! and closes. Clients are owed an error that says what is wrong, so its bare answer is recognised on the way out and
//! another one written in its place.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use http::{Response, StatusCode, header};
use tokio::io::AsyncWrite;

/// What is wrong with a head that could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadFault {
    /// Not HTTP/1.1 (RFC 9112): request line, a header's name or value, or the framing.
    Malformed,
    /// The target is longer than hyper reads.
    UriTooLong,
    /// More headers, or longer ones, than [`super::MAX_HEADERS`] and [`super::BUFFER`] allow.
    TooLarge,
}

/// Writes the answer to a head that could not be read.
pub type Explain = Arc<dyn Fn(HeadFault) -> Response<Bytes> + Send + Sync>;

/// Where one connection's answers to unreadable heads are made and wait to be written.
pub(super) struct Refusals {
    explain: Explain,
    unwritten: Bytes,
}

impl Refusals {
    pub(super) fn new(explain: Explain) -> Self {
        Self { explain, unwritten: Bytes::new() }
    }

    /// Takes over what hyper is about to write, if that is its own bare refusal: its length, which is then taken to
    /// be written. To be asked between requests only.
    pub(super) fn take_over(&mut self, written: &[io::IoSlice<'_>]) -> Option<usize> {
        if !written.first()?.starts_with(STATUS_LINE) {
            return None;
        }
        let length: usize = written.iter().map(|slice| slice.len()).sum();
        if length > LONGEST_REFUSAL {
            return None;
        }
        let whole: Vec<u8> = written.iter().flat_map(|slice| slice.iter().copied()).collect();
        let fault = bare_refusal(&whole)?;
        self.unwritten = on_the_wire(&(self.explain)(fault));
        Some(length)
    }

    /// Writes what waits.
    pub(super) fn poll_written<S: AsyncWrite>(
        &mut self,
        mut stream: Pin<&mut S>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.unwritten.is_empty() {
            let count = ready!(stream.as_mut().poll_write(cx, &self.unwritten))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            drop(self.unwritten.split_to(count));
        }
        Poll::Ready(Ok(()))
    }
}

impl std::fmt::Debug for Refusals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Refusals").field("unwritten", &self.unwritten.len()).finish_non_exhaustive()
    }
}

/// The fault that an answer of hyper's own stands for. An answer of ours, or of an engine, has a request id.
fn bare_refusal(written: &[u8]) -> Option<HeadFault> {
    let head = std::str::from_utf8(written).ok()?.strip_suffix("\r\n\r\n")?;
    let (status_line, headers) = head.split_once("\r\n")?;
    let is_bare = headers.split("\r\n").all(|line| {
        let name = line.split(':').next().unwrap_or_default();
        ["connection", "content-length", "date"].iter().any(|own| name.eq_ignore_ascii_case(own))
    });
    let status = status_line.split(' ').nth(1)?;
    match StatusCode::from_bytes(status.as_bytes()).ok()? {
        StatusCode::BAD_REQUEST if is_bare => Some(HeadFault::Malformed),
        StatusCode::URI_TOO_LONG if is_bare => Some(HeadFault::UriTooLong),
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE if is_bare => Some(HeadFault::TooLarge),
        _ => None,
    }
}

fn on_the_wire(response: &Response<Bytes>) -> Bytes {
    let status = response.status();
    let reason = status.canonical_reason().unwrap_or_default();
    let mut wire = BytesMut::new();
    wire.put_slice(format!("HTTP/1.1 {} {reason}\r\n", status.as_u16()).as_bytes());
    for (name, value) in response.headers() {
        if !matches!(*name, header::CONNECTION | header::CONTENT_LENGTH) {
            wire.put_slice(name.as_str().as_bytes());
            wire.put_slice(b": ");
            wire.put_slice(value.as_bytes());
            wire.put_slice(b"\r\n");
        }
    }
    let length = response.body().len();
    wire.put_slice(format!("content-length: {length}\r\nconnection: close\r\n\r\n").as_bytes());
    wire.put_slice(response.body());
    wire.freeze()
}

const STATUS_LINE: &[u8] = b"HTTP/1.1 4";
/// hyper's own: a status line and three headers.
const LONGEST_REFUSAL: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_without_anything_of_ours_is_hypers_own() {
        let of = |head: &str| bare_refusal(head.as_bytes());
        let own = "HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n";
        assert_eq!(of(own), Some(HeadFault::TooLarge));
        assert_eq!(of("HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"), Some(HeadFault::Malformed));
        assert_eq!(of("HTTP/1.1 400 Bad Request\r\nx-request-id: 1\r\ncontent-length: 0\r\n\r\n"), None);
        assert_eq!(of("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"), None);
        assert_eq!(of("HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}"), None);
    }
}
