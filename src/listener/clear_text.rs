//! An answer for a client that speaks clear text on a TLS port.
//!
//! rustls ends such a connection by an alert, which an HTTP client shows as garbage or a reset. A TLS record begins
//! with a byte that no HTTP request begins with, so the mistake is recognised and answered in HTTP/1.1.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;

use bytes::Bytes;
use http::Response;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::bad_request_head::on_the_wire;
use super::lingering_close::LingeringClose;

/// Whether the first byte is one of a request line, or of the HTTP/2 preface; waits for it.
pub(super) async fn begins(socket: &TcpStream) -> io::Result<bool> {
    let mut first = [0];
    let count = socket.peek(&mut first).await?;
    Ok(count == 1 && first[0].is_ascii_alphabetic())
}

/// Answers, and discards what the client still sends, so that it can read the answer.
pub(super) async fn refuse(mut socket: TcpStream, answer: &Response<Bytes>) {
    let mut close = LingeringClose::default();
    if socket.write_all(&on_the_wire(answer)).await.is_ok() {
        // Whatever comes of it, the connection is over.
        let _ = poll_fn(|cx| close.poll(Pin::new(&mut socket), cx, true)).await;
    }
}
