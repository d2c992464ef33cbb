//! Error responses for request heads that hyper rejects.
//!
//! A head that is not valid HTTP/1.1 never becomes a request: hyper writes an empty 400, 414 or 431 and closes. That
//! response is recognised in the output and replaced by one with a body that says what is wrong.

use std::io;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use http::{Response, StatusCode, header};

use crate::debug::debug_as;

/// Why hyper rejected a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadFault {
    /// Invalid request line, header or framing (RFC 9112): 400.
    Malformed,
    /// Target over hyper's 65,534 bytes: 414.
    UriTooLong,
    /// Over 100 headers or [`super::BUFFER`] bytes: 431.
    TooLarge,
    /// Both `Content-Length` and `Transfer-Encoding` (RFC 9112 §6.3): 400. hyper accepts it; the listener does not.
    Ambiguous,
    /// Clear text on a TLS port: 400.
    ClearText,
}

/// Makes the response to a rejected head.
pub(super) type Explain = Arc<dyn Fn(HeadFault) -> Response<Bytes> + Send + Sync>;

/// Replaces hyper's bare rejections on one connection.
pub(super) struct RejectionRewriter {
    explain: Explain,
    /// The replacement, while one is pending.
    pub(super) unwritten: Bytes,
}

impl RejectionRewriter {
    pub(super) fn new(explain: Explain) -> Self {
        Self { explain, unwritten: Bytes::new() }
    }

    /// Replaces what hyper is about to write if it is a bare rejection; returns its length, to be reported as written.
    /// Only valid between requests.
    pub(super) fn take_over(&mut self, written: &[io::IoSlice<'_>]) -> Option<usize> {
        if !written.first()?.starts_with(STATUS_LINE) {
            return None;
        }
        let length: usize = written.iter().map(|slice| slice.len()).sum();
        if length > MAX_REJECTION {
            return None;
        }
        let whole: Vec<u8> = written.iter().flat_map(|slice| slice.iter().copied()).collect();
        let fault = bare_rejection(&whole)?;
        self.unwritten = on_the_wire(&(self.explain)(fault));
        Some(length)
    }
}

debug_as!(RejectionRewriter => "RejectionRewriter");

/// The fault behind a response that hyper made itself: ours and engines' have an `x-request-id`.
fn bare_rejection(written: &[u8]) -> Option<HeadFault> {
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

/// An HTTP/1.1 response that ends its connection.
pub(super) fn on_the_wire(response: &Response<Bytes>) -> Bytes {
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
/// hyper's rejections are a status line and three headers.
const MAX_REJECTION: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_response_without_headers_of_ours_is_hypers_own() {
        let of = |head: &str| bare_rejection(head.as_bytes());
        let own = "HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n";
        assert_eq!(of(own), Some(HeadFault::TooLarge));
        assert_eq!(of("HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"), Some(HeadFault::Malformed));
        assert_eq!(of("HTTP/1.1 400 Bad Request\r\nx-request-id: 1\r\ncontent-length: 0\r\n\r\n"), None);
        assert_eq!(of("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"), None);
        assert_eq!(of("HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}"), None);
    }
}
