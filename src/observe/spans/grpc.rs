//! The little of gRPC that OTLP needs: one message each way, over HTTP/2. Pure.
//!
//! A message is a flag byte (compressed or not), four bytes of length and the payload; the call's end is told by the
//! trailer `grpc-status`. A whole gRPC stack for that would be a second HTTP client and server in the process.

use bytes::{BufMut, Bytes, BytesMut};
use http::HeaderMap;

/// Path of the one method of OTLP's trace service.
pub(crate) const EXPORT_PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// And of its log service.
pub(crate) const EXPORT_LOGS_PATH: &str = "/opentelemetry.proto.collector.logs.v1.LogsService/Export";
/// Content type of requests and responses.
pub(crate) const CONTENT_TYPE: &str = "application/grpc";
/// The call succeeded.
pub(crate) const OK: &str = "0";
/// The call is not understood.
pub(crate) const INVALID_ARGUMENT: &str = "3";
/// Too much, or too often.
pub(crate) const RESOURCE_EXHAUSTED: &str = "8";
/// No such method, or no such compression.
pub(crate) const UNIMPLEMENTED: &str = "12";

/// Why a message cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MessageError {
    /// It is compressed, which was not offered.
    #[error("the message is compressed")]
    Compressed,
    /// Its length is not that of the body.
    #[error("the body is not exactly one message")]
    Length,
}

/// Wraps a payload as a message.
pub(crate) fn frame(payload: &[u8]) -> Bytes {
    let mut message = BytesMut::with_capacity(HEADER + payload.len());
    message.put_u8(0);
    // A body of 4 GiB does not exist here: bodies are bounded long before.
    message.put_u32(u32::try_from(payload.len()).unwrap_or(u32::MAX));
    message.put_slice(payload);
    message.freeze()
}

/// The payload of a body that is one message.
pub(crate) fn unframe(body: &Bytes) -> Result<Bytes, MessageError> {
    let Some((&[compressed, a, b, c, d], payload)) = body.split_first_chunk::<HEADER>() else {
        return Err(MessageError::Length);
    };
    let length = u32::from_be_bytes([a, b, c, d]);
    if usize::try_from(length) != Ok(payload.len()) {
        return Err(MessageError::Length);
    }
    if compressed != 0 {
        return Err(MessageError::Compressed);
    }
    Ok(body.slice(HEADER..))
}

/// Status and message that ended a call: in the trailers, or in the head of an answer that is nothing else.
pub(crate) fn status<'a>(head: &'a HeaderMap, trailers: Option<&'a HeaderMap>) -> Option<(&'a str, &'a str)> {
    let headers = trailers.filter(|t| t.contains_key("grpc-status")).unwrap_or(head);
    let status = headers.get("grpc-status")?.to_str().ok()?;
    let message = headers.get("grpc-message").and_then(|text| text.to_str().ok()).unwrap_or_default();
    Some((status, message))
}

const HEADER: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_there_and_back() {
        for payload in [&b""[..], b"x", &[7; 70_000]] {
            assert_eq!(unframe(&frame(payload)).as_deref(), Ok(payload));
        }
        let cases: [(&[u8], MessageError); 5] = [
            (b"", MessageError::Length),
            (b"\0\0\0\0", MessageError::Length),
            (b"\0\0\0\0\x02x", MessageError::Length),
            (b"\0\0\0\0\x01xy", MessageError::Length),
            (b"\x01\0\0\0\x01x", MessageError::Compressed),
        ];
        for (body, error) in cases {
            assert_eq!(unframe(&Bytes::from_static(body)), Err(error), "{body:?}");
        }
    }

    #[test]
    fn the_status_is_in_the_trailers_or_in_a_head_alone() {
        let with = |status: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-status", status.parse().unwrap());
            headers
        };
        let (none, ok, busy) = (HeaderMap::new(), with("0"), with("8"));
        assert_eq!(status(&none, Some(&ok)), Some(("0", "")));
        assert_eq!(status(&busy, None), Some(("8", "")));
        assert_eq!(status(&busy, Some(&none)), Some(("8", "")));
        assert_eq!(status(&none, Some(&none)), None);
    }
}
