//! A client that keeps the framing: status, headers, chunks as they were cut, how the connection ended.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const LIMIT: Duration = Duration::from_secs(20);

/// One request and everything that came back.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) chunks: Vec<Vec<u8>>,
    /// The body has its end: last chunk or whole content length.
    pub(crate) is_complete: bool,
    pub(crate) is_reset: bool,
}

impl Exchange {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    pub(crate) fn header_names(&self) -> BTreeSet<&str> {
        self.headers.iter().map(|(name, _)| name.as_str()).collect()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.chunks.concat()).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text()).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// The JSON of every `data:` line but `[DONE]`.
    pub(crate) fn events(&self) -> Vec<Value> {
        let text = self.text();
        let data = text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|d| *d != "[DONE]");
        data.map(|d| serde_json::from_str(d).unwrap()).collect()
    }

    /// What a chat stream says.
    pub(crate) fn content(&self) -> String {
        let events = self.events();
        events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect()
    }

    /// Event names and key sets in order; equal neighbours count once.
    pub(crate) fn shapes(&self) -> Vec<String> {
        if !self.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")) {
            return vec![shape(&self.json()).to_string()];
        }
        let text = self.text();
        let mut shapes: Vec<String> = text
            .split("\n\n")
            .filter(|event| !event.is_empty())
            .map(|event| {
                let line = |prefix| event.lines().find_map(|l| l.strip_prefix(prefix));
                let data = line("data: ").unwrap();
                let shape = serde_json::from_str(data).map_or(data.into(), |json| shape(&json).to_string());
                format!("{} {shape}", line("event: ").unwrap_or("-"))
            })
            .collect();
        shapes.dedup();
        shapes
    }
}

/// The keys of a JSON value: of lists the first element, of scalars nothing.
pub(crate) fn shape(value: &Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields.iter().map(|(key, value)| (key.clone(), shape(value))).collect::<Map<_, _>>(),
        ),
        Value::Array(items) => Value::Array(items.first().map(shape).into_iter().collect()),
        _ => Value::Null,
    }
}

/// A recorded exchange.
pub(crate) fn fixture(name: &str) -> Exchange {
    let path = format!("{}/../tests/fixtures/vllm/{name}.raw", env!("CARGO_MANIFEST_DIR"));
    parse(&std::fs::read(path).unwrap())
}

/// Sends one request with `connection: close` and reads to the end.
pub(crate) async fn exchange(
    at: SocketAddr,
    method: &str,
    path: &str,
    headers: &[&str],
    body: &[u8],
) -> Exchange {
    Connection::send(at, method, path, headers, body).await.rest().await
}

/// A connection with one request on it.
pub(crate) struct Connection {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Connection {
    pub(crate) async fn send(
        at: SocketAddr,
        method: &str,
        path: &str,
        headers: &[&str],
        body: &[u8],
    ) -> Self {
        let headers = [headers, &["connection: close"]].concat();
        Self::write(at, &format!("{method} {path}"), &headers, body).await
    }

    /// A request without a body on a connection that stays.
    pub(crate) async fn keep(at: SocketAddr, method: &str, path: &str) -> Self {
        Self::write(at, &format!("{method} {path}"), &[], b"").await
    }

    async fn write(at: SocketAddr, line: &str, headers: &[&str], body: &[u8]) -> Self {
        let mut stream = TcpStream::connect(at).await.unwrap();
        let more: String = headers.iter().map(|h| format!("{h}\r\n")).collect();
        let length = body.len();
        let head = format!("{line} HTTP/1.1\r\nhost: {at}\r\ncontent-length: {length}\r\n{more}\r\n");
        stream.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
        Self { stream, read: Vec::new() }
    }

    /// Reads until the head is there.
    pub(crate) async fn head(&mut self) -> Exchange {
        self.read_until(b"\r\n\r\n").await;
        parse(&self.read)
    }

    /// Reads until these bytes have come; returns all bytes so far.
    pub(crate) async fn read_until(&mut self, mark: &[u8]) -> String {
        tokio::time::timeout(LIMIT, self.read_on(mark)).await.unwrap();
        String::from_utf8_lossy(&self.read).into_owned()
    }

    async fn read_on(&mut self, mark: &[u8]) {
        while !self.read.windows(mark.len()).any(|w| w == mark) {
            let mut part = [0; 4096];
            let n = self.stream.read(&mut part).await.unwrap();
            assert!(n > 0, "ended before: {}", String::from_utf8_lossy(&self.read));
            self.read.extend_from_slice(&part[..n]);
        }
    }

    /// Reads to the end of the connection.
    pub(crate) async fn rest(&mut self) -> Exchange {
        let end = tokio::time::timeout(LIMIT, self.stream.read_to_end(&mut self.read)).await.unwrap();
        let mut exchange = parse(&self.read);
        exchange.is_reset = end.is_err_and(|e| e.kind() == ErrorKind::ConnectionReset);
        exchange
    }

    /// Whether the connection is reset before any byte.
    pub(crate) async fn is_reset_at_once(&mut self) -> bool {
        let end = tokio::time::timeout(LIMIT, self.stream.read(&mut [0; 1])).await.unwrap();
        end.is_err_and(|e| e.kind() == ErrorKind::ConnectionReset)
    }
}

/// Waits for a condition, with a limit.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    eventually_async(what, async || holds()).await;
}

/// The same for a condition that must be awaited.
pub(crate) async fn eventually_async(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(LIMIT, waiting).await.unwrap_or_else(|_| panic!("never came true: {what}"));
}

fn parse(raw: &[u8]) -> Exchange {
    let Some(end) = raw.windows(4).position(|w| w == b"\r\n\r\n") else { return Exchange::default() };
    let head = String::from_utf8_lossy(&raw[..end]);
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let header = |line: &str| {
        let (name, value) = line.split_once(": ").unwrap();
        (name.to_ascii_lowercase(), value.to_owned())
    };
    let headers: Vec<_> = lines.map(header).collect();
    let mut exchange = Exchange { status, headers, ..Exchange::default() };
    let body = &raw[end + 4..];
    if exchange.header("transfer-encoding") == Some("chunked") {
        (exchange.chunks, exchange.is_complete) = dechunk(body);
    } else {
        let length: usize = exchange.header("content-length").map_or(0, |l| l.parse().unwrap());
        exchange.chunks = vec![body.to_vec()];
        exchange.is_complete = body.len() == length;
    }
    exchange
}

fn dechunk(mut body: &[u8]) -> (Vec<Vec<u8>>, bool) {
    let mut chunks = Vec::new();
    while let Some(line) = body.windows(2).position(|w| w == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&body[..line]).unwrap(), 16).unwrap();
        if size == 0 {
            return (chunks, true);
        }
        let Some(chunk) = body.get(line + 2..line + 2 + size) else { break };
        chunks.push(chunk.to_vec());
        body = body.get(line + 4 + size..).unwrap_or_default();
    }
    (chunks, false)
}
