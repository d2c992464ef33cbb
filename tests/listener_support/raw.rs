//! A raw HTTP/1.1 client: sends the given bytes and reads responses as they arrive.

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::soon;

/// One connection.
pub struct Client<S = TcpStream> {
    stream: S,
    buffer: Vec<u8>,
}

/// One answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    /// Status line and fields.
    pub head: String,
    pub body: String,
    /// The body came to its end.
    pub is_whole: bool,
}

impl Reply {
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }

    /// `error.code` of an error in the OpenAI shape.
    pub fn code(&self) -> String {
        let error = &self.json()["error"];
        assert!(error["message"].is_string() && error["type"].is_string(), "not OpenAI's shape: {self:?}");
        error["code"].as_str().unwrap_or_default().to_owned()
    }
}

impl Client {
    pub async fn connect(addr: SocketAddr) -> Self {
        Self::over(soon("a connection", TcpStream::connect(addr)).await.unwrap())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    pub fn over(stream: S) -> Self {
        Self { stream, buffer: Vec::new() }
    }

    /// Sends these bytes; that the other side has closed shows when reading.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = soon("the client may write", self.stream.write_all(bytes.as_ref())).await;
        let _ = self.stream.flush().await;
    }

    /// One whole answer.
    pub async fn reply(&mut self) -> Reply {
        soon("an answer", self.read_reply()).await
    }

    async fn read_reply(&mut self) -> Reply {
        let head = self.head().await;
        let status = head.get(9..12).and_then(|s| s.parse().ok()).unwrap_or(0);
        let mut reply = Reply { status, head, body: String::new(), is_whole: true };
        if reply.status / 100 == 1 || matches!(reply.status, 204 | 304) {
            return reply;
        }
        let body = if reply.field("transfer-encoding") == Some("chunked") {
            self.chunked().await
        } else {
            let length = reply.field("content-length").and_then(|n| n.parse().ok()).unwrap_or(0);
            self.exactly(length).await
        };
        reply.is_whole = body.is_ok();
        let (Ok(body) | Err(body)) = body;
        reply.body = String::from_utf8_lossy(&body).into_owned();
        reply
    }

    /// The next head of an answer; what follows it stays in the buffer.
    pub async fn head(&mut self) -> String {
        loop {
            if let Some(at) = memchr::memmem::find(&self.buffer, b"\r\n\r\n") {
                let head = self.buffer.drain(..at + 4).collect();
                return String::from_utf8(head).unwrap();
            }
            assert!(
                self.fill().await,
                "closed before a whole head: {:?}",
                String::from_utf8_lossy(&self.buffer)
            );
        }
    }

    async fn chunked(&mut self) -> Result<Vec<u8>, Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let Some(chunk) = self.chunk().await else { return Err(body) };
            if chunk.is_empty() {
                return Ok(body);
            }
            body.extend(chunk);
        }
    }

    /// One chunk of a chunked body; empty at its end, `None` when it broke off.
    pub async fn chunk(&mut self) -> Option<Vec<u8>> {
        let line_end = loop {
            if let Some(at) = memchr::memmem::find(&self.buffer, b"\r\n") {
                break at;
            }
            if !soon("a chunk", self.fill()).await {
                return None;
            }
        };
        let line = String::from_utf8(self.buffer.drain(..line_end + 2).collect()).unwrap();
        let size = usize::from_str_radix(line.trim(), 16).unwrap();
        let mut data = self.exactly(size + 2).await.ok()?;
        data.truncate(size);
        Some(data)
    }

    async fn exactly(&mut self, length: usize) -> Result<Vec<u8>, Vec<u8>> {
        while self.buffer.len() < length {
            if !self.fill().await {
                return Err(std::mem::take(&mut self.buffer));
            }
        }
        Ok(self.buffer.drain(..length).collect())
    }

    /// Reads until the other side closes; everything that came.
    pub async fn rest(&mut self) -> Vec<u8> {
        soon("the end of the connection", async { while self.fill().await {} }).await;
        std::mem::take(&mut self.buffer)
    }

    /// Whether the other side closed; takes what it sent.
    pub async fn has_ended(&mut self) -> bool {
        let now = std::time::Duration::from_millis(1);
        matches!(tokio::time::timeout(now, self.fill()).await, Ok(false))
    }

    /// Whether the other side closes without another byte.
    pub async fn is_closed(&mut self) -> bool {
        self.rest().await.is_empty()
    }

    async fn fill(&mut self) -> bool {
        // A reset is an end like any other here.
        self.stream.read_buf(&mut self.buffer).await.is_ok_and(|n| n > 0)
    }
}

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
    let mut client = Client::connect(addr).await;
    client.send(bytes).await;
    client.reply().await
}
