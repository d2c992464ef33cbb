//! A scripted replica: strict about what it is sent, obedient to `x-script` about what it answers.
//!
//! It reads requests like the strictest server would (one Content-Length, no transfer coding) and keeps all of
//! them, so that a test can say what reached an engine. Own requests of the gateway are answered and not kept.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

/// A request as it reached the replica.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Request line and fields, lower-cased names as they came.
    pub head: String,
    pub body: Vec<u8>,
    /// Why no engine should have been sent this.
    pub fault: Option<String>,
}

impl Seen {
    pub fn line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }

    /// All values of a field.
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.head
            .lines()
            .skip(1)
            .filter_map(|line| line.split_once(':'))
            .filter(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
            .collect()
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        self.all(name).first().copied()
    }
}

/// A replica on a port of its own.
#[derive(Clone, Debug)]
pub struct Replica {
    pub addr: SocketAddr,
    script: Arc<Script>,
}

#[derive(Debug)]
struct Script {
    seen: Mutex<Vec<Seen>>,
    /// Each permit lets one event of a `gated` stream go.
    events: Semaphore,
    /// Requests that are being answered now.
    busy: AtomicUsize,
    tracker: TaskTracker,
}

impl Replica {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let script = Arc::new(Script {
            seen: Mutex::default(),
            events: Semaphore::new(0),
            busy: AtomicUsize::new(0),
            tracker: TaskTracker::new(),
        });
        let accepting = Arc::clone(&script);
        script.tracker.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let script = Arc::clone(&accepting);
                accepting.tracker.spawn(async move { script.serve(socket).await });
            }
        });
        Self { addr, script }
    }

    /// Everything that was sent to it so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.script.seen.lock().clone()
    }

    /// Requests that it works on.
    pub fn busy(&self) -> usize {
        self.script.busy.load(Ordering::SeqCst)
    }

    /// Lets `count` further events of gated streams go.
    pub fn let_go(&self, count: usize) {
        self.script.events.add_permits(count);
    }
}

struct Busy<'a>(&'a AtomicUsize);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Script {
    async fn serve(&self, mut socket: TcpStream) -> Option<()> {
        let mut buffer = Vec::new();
        loop {
            let seen = read_request(&mut socket, &mut buffer).await?;
            let is_own = seen.field("x-tokenway-probe").is_some();
            let script = seen.field("x-script").unwrap_or("unary").to_owned();
            let is_broken = seen.fault.is_some();
            if !is_own {
                self.seen.lock().push(seen);
            }
            if is_broken {
                return None;
            }
            self.busy.fetch_add(1, Ordering::SeqCst);
            let _busy = Busy(&self.busy);
            match script.as_str() {
                "flood" => flood(&mut socket).await?,
                "gated" => self.gated(&mut socket).await?,
                "silent" => return wait_for_end(&mut socket).await,
                "broken" => return broken(&mut socket).await,
                "medium" => socket.write_all(&large("200 OK", MEDIUM, MEDIUM)).await.ok()?,
                "large" => socket.write_all(&large("200 OK", LARGE, LARGE)).await.ok()?,
                "large-error" => socket.write_all(&large("500 Error", LARGE, LARGE)).await.ok()?,
                "large-cut" => return socket.write_all(&large("200 OK", LARGE, LARGE * 3 / 4)).await.ok(),
                _ => socket.write_all(unary().as_bytes()).await.ok()?,
            }
        }
    }

    /// An event for each permit, 3 after the first one, then the end.
    async fn gated(&self, socket: &mut TcpStream) -> Option<()> {
        socket.write_all(SSE_HEAD.as_bytes()).await.ok()?;
        socket.write_all(&chunk(&event("first"))).await.ok()?;
        for word in ["second", "third", "fourth"] {
            let mut byte = [0];
            tokio::select! {
                permit = self.events.acquire() => permit.ok()?.forget(),
                _ = socket.read(&mut byte) => return None,
            }
            socket.write_all(&chunk(&event(word))).await.ok()?;
        }
        let end = r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
        socket.write_all(&chunk(&format!("{end}\n\ndata: [DONE]\n\n"))).await.ok()?;
        socket.write_all(b"0\r\n\r\n").await.ok()
    }
}

/// Content until the client leaves.
async fn flood(socket: &mut TcpStream) -> Option<()> {
    socket.write_all(SSE_HEAD.as_bytes()).await.ok()?;
    let event = chunk(&event(&"x".repeat(8000)));
    loop {
        socket.write_all(&event).await.ok()?;
    }
}

/// One event, then the end of the connection inside the body.
async fn broken(socket: &mut TcpStream) -> Option<()> {
    socket.write_all(SSE_HEAD.as_bytes()).await.ok()?;
    socket.write_all(&chunk(&event("first"))).await.ok()
}

/// Bytes of a `large` answer.
pub const LARGE: usize = 2 << 20;

/// Bytes of a `medium` answer: one that is held whole where there is memory.
pub const MEDIUM: usize = 900_000;

/// An answer of `length` bytes, of which only some are sent.
fn large(status: &str, length: usize, sent: usize) -> Vec<u8> {
    let head =
        format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n");
    [head.as_bytes(), &vec![b' '; sent]].concat()
}

async fn wait_for_end(socket: &mut TcpStream) -> Option<()> {
    let mut byte = [0];
    socket.read(&mut byte).await.ok().map(|_| ())
}

fn event(text: &str) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n")
}

fn chunk(data: &str) -> Vec<u8> {
    format!("{:x}\r\n{data}\r\n", data.len()).into_bytes()
}

fn unary() -> String {
    let body = r#"{"id":"c1","object":"list","data":[{"id":"m","object":"model"}],"choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}]}"#;
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// One request, or `None` at the end of the connection.
async fn read_request(socket: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Seen> {
    let end = loop {
        if let Some(at) = memchr::memmem::find(buffer, b"\r\n\r\n") {
            break at + 4;
        }
        if socket.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
    buffer.drain(..end);
    let mut seen = Seen { head, body: Vec::new(), fault: None };
    seen.fault = fault(&seen);
    let length = seen.field("content-length").and_then(|n| n.parse().ok()).unwrap_or(0);
    while buffer.len() < length {
        if socket.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    seen.body = buffer.drain(..length).collect();
    Some(seen)
}

/// What the gateway promises never to send.
fn fault(seen: &Seen) -> Option<String> {
    let line: Vec<&str> = seen.line().split(' ').collect();
    let is_request =
        matches!(line[..], ["GET" | "POST" | "HEAD" | "OPTIONS", path, "HTTP/1.1"] if path.starts_with('/'));
    if !is_request {
        return Some(format!("not a request line: {:?}", seen.line()));
    }
    for gone in ["transfer-encoding", "te", "upgrade", "trailer", "keep-alive", "proxy-connection", "expect"]
    {
        if seen.field(gone).is_some() {
            return Some(format!("{gone} crossed"));
        }
    }
    let lengths = seen.all("content-length");
    let is_number = |n: &&str| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit());
    if lengths.len() > 1 || !lengths.iter().all(is_number) || (lengths.is_empty() && line[0] == "POST") {
        return Some(format!("content-length {lengths:?}"));
    }
    if seen.all("host").len() != 1 {
        return Some("not exactly one host".into());
    }
    let is_odd = |b: u8| b != b'\r' && b != b'\n' && b != b'\t' && (b < 0x20 || b == 0x7f);
    let bare = seen.head.replace("\r\n", "");
    (bare.contains(['\r', '\n']) || seen.head.bytes().any(is_odd)).then(|| "control bytes in the head".into())
}

const SSE_HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
