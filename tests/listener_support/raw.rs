//! Requests as bytes.

use std::net::SocketAddr;

pub use crate::support::client::{Client, Reply};

/// A POST with these further fields.
pub fn post(path: &str, fields: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n{fields}content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// One POST on a connection of its own.
pub async fn ask(addr: SocketAddr, path: &str, body: &str) -> Reply {
    exchange(addr, post(path, "", body)).await
}

/// These bytes on a connection of their own, and the first answer.
pub async fn exchange(addr: SocketAddr, bytes: impl AsRef<[u8]>) -> Reply {
    sent(addr, bytes).await.reply().await
}

/// A connection of its own on which these bytes were sent.
pub async fn sent(addr: SocketAddr, bytes: impl AsRef<[u8]>) -> Client {
    let mut client = Client::connect(addr).await;
    client.send_raw(bytes).await;
    client
}
