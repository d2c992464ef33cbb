//! The head of an answer: status line and fields.

use std::mem::MaybeUninit;

use bytes::{Bytes, BytesMut};
use http::header::CONNECTION;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Version, response};
use httparse::Status;

use super::error::AskError;
use crate::upstream::headers;

/// Takes a head out of what was read; `None` while it is not all there.
pub(super) fn take(read: &mut BytesMut) -> Result<Option<response::Parts>, AskError> {
    if read.is_empty() {
        // An engine takes its time: a request is polled more often than its answer comes.
        return Ok(None);
    }
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut parsed = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    let len = match config.parse_response_with_uninit_headers(&mut parsed, read, &mut fields) {
        Ok(Status::Complete(len)) => len,
        Ok(Status::Partial) if read.len() <= MAX_BYTES => return Ok(None),
        Ok(Status::Partial) | Err(httparse::Error::TooManyHeaders) => return Err(AskError::HeadTooLarge),
        Err(_) => return Err(AskError::InvalidHead),
    };
    let status = parsed.code.and_then(|code| StatusCode::from_u16(code).ok());
    let version = if parsed.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
    // Where they stand, as the bytes are about to move.
    let start = read.as_ptr() as usize;
    let mut places = smallvec::SmallVec::<[(HeaderName, usize, usize); 16]>::new();
    for field in parsed.headers.iter() {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| AskError::InvalidHead)?;
        let from = if field.value.is_empty() { 0 } else { field.value.as_ptr() as usize - start };
        places.push((name, from, field.value.len()));
    }
    let bytes: Bytes = read.split_to(len).freeze();
    let mut headers = HeaderMap::with_capacity(places.len() + headers::ADDED);
    for (name, from, len) in places.drain(..) {
        let value = HeaderValue::from_maybe_shared(bytes.slice(from..from + len));
        headers.append(name, value.map_err(|_| AskError::InvalidHead)?);
    }
    let (mut head, ()) = Response::new(()).into_parts();
    head.status = status.ok_or(AskError::InvalidHead)?;
    (head.version, head.headers) = (version, headers);
    Ok(Some(head))
}

/// Whether the engine keeps the connection after this answer (RFC 9112 §9.3).
pub(super) fn keeps_open(head: &response::Parts) -> bool {
    let has = |option: &str| headers::lists(&head.headers, &CONNECTION, option);
    !has("close") && (head.version == Version::HTTP_11 || has("keep-alive"))
}

const MAX_BYTES: usize = 64 * 1024;
const MAX_FIELDS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn head(wire: &str) -> Result<Option<response::Parts>, AskError> {
        take(&mut BytesMut::from(wire))
    }

    #[test]
    fn a_head_is_read_as_it_is_written() {
        let wire = "HTTP/1.1 200 Fine\r\nX-A: 1\r\nx-a:  two \r\nx-empty:\r\nx-latin: \u{e9}\r\n\r\nbody";
        for cut in 0..wire.len() - 4 {
            let mut read = BytesMut::from(&wire.as_bytes()[..cut]);
            assert!(take(&mut read).unwrap().is_none(), "{cut}");
        }
        let mut read = BytesMut::from(wire);
        let head = take(&mut read).unwrap().unwrap();
        assert_eq!((head.status, head.version, &read[..]), (StatusCode::OK, Version::HTTP_11, &b"body"[..]));
        let values: Vec<_> = head.headers.get_all("x-a").iter().collect();
        assert_eq!(values, ["1", "two"]);
        assert!(head.headers["x-empty"].is_empty() && head.headers["x-latin"] == "\u{e9}");
    }

    #[test]
    fn what_is_no_head_is_refused_by_its_kind() {
        for wire in ["hello\r\n\r\n", "HTTP/2.0 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\n folded: 1\r\n\r\n"] {
            assert!(matches!(head(wire), Err(AskError::InvalidHead)), "{wire}");
        }
        for wire in [
            "HTTP/1.1 200 OK\r\nx: a\x01b\r\n\r\n",
            "HTTP/1.1 099 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\na b: 1\r\n\r\n",
        ] {
            assert!(matches!(head(wire), Err(AskError::InvalidHead)), "{wire}");
        }
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: 1\r\n".repeat(257));
        let long = format!("HTTP/1.1 200 OK\r\nx: {}", "a".repeat(MAX_BYTES));
        for wire in [many, long] {
            assert!(matches!(head(&wire), Err(AskError::HeadTooLarge)));
        }
    }

    #[test]
    fn a_connection_is_kept_as_its_version_has_it() {
        for (version, connection, is_kept) in [
            ("1.1", "", true),
            ("1.1", "Connection: x, Close\r\n", false),
            ("1.0", "", false),
            ("1.0", "Connection: Keep-Alive\r\n", true),
            ("1.0", "Connection: keep-alive, close\r\n", false),
        ] {
            let head = head(&format!("HTTP/{version} 200 OK\r\n{connection}\r\n")).unwrap().unwrap();
            assert_eq!(keeps_open(&head), is_kept, "{version} {connection}");
        }
    }
}
