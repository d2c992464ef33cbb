//! The head of a request, in the bytes that are written: its fields pass through once, and none is looked up.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue, Method};

/// Its line and fields, without the empty line behind them.
#[derive(Default)]
pub struct RequestHead {
    bytes: Vec<u8>,
    is_head: bool,
}

impl RequestHead {
    /// A request by this method for `target`, an origin form, below `base_path`.
    pub fn new(method: &Method, base_path: &str, target: &str) -> Self {
        let mut bytes = Vec::with_capacity(USUAL);
        for part in [method.as_str(), " ", base_path, target, " HTTP/1.1\r\n"] {
            bytes.extend_from_slice(part.as_bytes());
        }
        Self { bytes, is_head: method == Method::HEAD }
    }

    /// Adds a field whose value is one of [`HeaderValue`].
    pub(crate) fn push(&mut self, name: &HeaderName, value: &[u8]) {
        self.push_with(name, |bytes| bytes.extend_from_slice(value));
    }

    /// Adds a field whose value `write` appends.
    pub(crate) fn push_with(&mut self, name: &HeaderName, write: impl FnOnce(&mut Vec<u8>)) {
        self.bytes.extend_from_slice(name.as_str().as_bytes());
        self.bytes.extend_from_slice(b": ");
        write(&mut self.bytes);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Whether its answer has no body, whatever it declares.
    pub(super) fn is_head(&self) -> bool {
        self.is_head
    }

    /// What is written.
    pub(super) fn into_bytes(mut self) -> Vec<u8> {
        self.bytes.extend_from_slice(b"\r\n");
        self.bytes
    }

    fn lines(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line))
    }

    /// What it asks for.
    pub fn target(&self) -> &str {
        let target = self.lines().next().and_then(|line| line.split(|byte| *byte == b' ').nth(1));
        target.and_then(|target| str::from_utf8(target).ok()).unwrap_or_default()
    }

    /// Its fields, for whoever looks them up.
    pub fn fields(&self) -> HeaderMap {
        let field = |line: &[u8]| {
            let at = memchr::memchr(b':', line)?;
            let (name, value) = (line.get(..at)?, line.get(at + 2..)?);
            Some((HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?))
        };
        self.lines().skip(1).filter_map(field).collect()
    }
}

/// A field may be a key.
impl fmt::Debug for RequestHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestHead").field("target", &self.target()).finish_non_exhaustive()
    }
}

/// Bytes of a head that are written without growing.
const USUAL: usize = 768;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_in_is_read_again_and_a_key_is_not_shown() {
        let mut head = RequestHead::new(&Method::POST, "/v", "/v1/chat?a=b");
        head.push(&http::header::AUTHORIZATION, b"Bearer: secret");
        head.push(&http::header::TE, b"");
        let fields = head.fields();
        assert_eq!((head.target(), fields.len(), fields["te"].len()), ("/v/v1/chat?a=b", 2, 0));
        assert_eq!(fields["authorization"], "Bearer: secret");
        assert!(!format!("{head:?}").contains("secret"));
        let bytes = head.into_bytes();
        assert_eq!(bytes, b"POST /v/v1/chat?a=b HTTP/1.1\r\nauthorization: Bearer: secret\r\nte: \r\n\r\n");
    }
}
