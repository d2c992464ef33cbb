//! Why an exchange with an engine came to nothing.

use std::io;

use thiserror::Error;

use super::framing::Malformed;

/// Why a request got no head of an answer.
#[derive(Debug, Error)]
pub enum AskError {
    /// The connection was closed before any of it was written.
    #[error("the connection was closed before the request was sent")]
    Unsent,
    /// The connection ended after that, without a byte of an answer.
    #[error("the connection was closed before the answer came")]
    Closed,
    /// It ended within the head.
    #[error("the connection was closed within the head of the answer")]
    Truncated,
    /// The engine ended it with an alert, or broke the protocol.
    #[error(transparent)]
    Tls(io::Error),
    /// Over 256 fields or 64 KiB.
    #[error("the head of the answer is too large")]
    HeadTooLarge,
    /// Not HTTP/1.1 (RFC 9112).
    #[error("the head of the answer is no valid HTTP")]
    InvalidHead,
}

/// Why a body ended before its end.
#[derive(Debug, Error)]
pub enum BodyError {
    /// The engine closed the connection.
    #[error("the connection was closed before the answer was complete")]
    Truncated,
    /// Its chunks are not framed as RFC 9112 has it.
    #[error("the answer's framing is no valid HTTP")]
    Malformed,
    /// It has more than is read of it.
    #[error("the answer is too long")]
    TooLarge,
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Malformed> for BodyError {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}
