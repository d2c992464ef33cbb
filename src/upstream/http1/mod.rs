//! HTTP/1.1 to an engine, as a client (RFC 9112): one request at a time, written and read by the task that asks.
//!
//! Our own, because a library's connection is a task of its own: each event of a stream then crosses a channel and wakes a second
//! task, often on another core, and each stream keeps four buffers
//! ([0016](../../../docs/decisions/0016-own-http1-client.md)). Heads, chunk sizes and trailers are parsed by `httparse`.

mod answer_head;
mod connection;
mod error;
mod framing;
mod outgoing;
mod request_head;

pub use self::connection::Connection;
pub use self::error::{AskError, BodyError};
pub use self::outgoing::EngineRequest;
pub use self::request_head::RequestHead;
