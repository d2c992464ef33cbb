//! A mock engine that costs little: HTTP/1.1 on a raw socket, one thread, two ports.
//!
//! Every content event carries the moment just before its write (`@@` and nanoseconds of the shared clock), so
//! that the load client can measure how long the proxy kept it. It understands what the two proxies send it
//! (a head, a body by `content-length`) and nothing else; it is no model of vLLM's timing.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use memchr::memmem;
use tokenway::clock::{Clock, Stamp};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

use crate::Failure;

/// How fast the engine answers streams; unary answers come at once.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    /// From the request to the first event, and between two events.
    pub(crate) step: Duration,
    /// Content events of a stream.
    pub(crate) tokens: u64,
}

/// The running engine: its addresses and its present pace.
pub(crate) struct Engine {
    pub(crate) addresses: Vec<SocketAddr>,
    shared: Arc<Shared>,
}

struct Shared {
    clock: Clock,
    step_nanos: AtomicU64,
    tokens: AtomicU64,
}

impl Engine {
    /// Starts it on two free ports, in a thread that lives as long as the process.
    pub(crate) fn start(clock: Clock) -> Result<Self, Failure> {
        let shared = Arc::new(Shared { clock, step_nanos: AtomicU64::new(0), tokens: AtomicU64::new(1) });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut addresses = Vec::new();
        let tasks = TaskTracker::new();
        for _ in 0..2 {
            let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
            addresses.push(listener.local_addr()?);
            tasks.spawn_on(accept(listener, Arc::clone(&shared), tasks.clone()), runtime.handle());
        }
        std::thread::Builder::new().name("engine".into()).spawn(move || {
            runtime.block_on(async {
                tasks.close();
                tasks.wait().await;
            });
        })?;
        Ok(Self { addresses, shared })
    }

    /// Streams that begin from now on go at this pace.
    pub(crate) fn set(&self, pace: Pace) {
        let nanos = u64::try_from(pace.step.as_nanos()).unwrap_or(u64::MAX);
        self.shared.step_nanos.store(nanos, Relaxed);
        self.shared.tokens.store(pace.tokens, Relaxed);
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, tasks: TaskTracker) {
    while let Ok((socket, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        // An error here is a proxy that closed its connection: its business.
        tasks.spawn(async move { serve(socket, &shared).await.ok() });
    }
}

async fn serve(mut socket: TcpStream, shared: &Shared) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(4096);
    loop {
        let head_end = loop {
            if let Some(at) = memmem::find(&buffer, b"\r\n\r\n") {
                break at + 4;
            }
            if socket.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        let end = head_end + content_length(&buffer[..head_end]);
        while buffer.len() < end {
            if socket.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
        let request = Request::read(&buffer[..head_end], &buffer[head_end..end]);
        buffer.drain(..end);
        match request {
            Request::Stream { wants_usage } => stream(&mut socket, shared, wants_usage).await?,
            Request::Unary => socket.write_all(unary().as_bytes()).await?,
            Request::Other(text) => socket.write_all(whole("text/plain", text).as_bytes()).await?,
        }
    }
}

enum Request {
    Stream { wants_usage: bool },
    Unary,
    Other(&'static str),
}

impl Request {
    fn read(head: &[u8], body: &[u8]) -> Self {
        let path = head.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
        if path.ends_with(b"/completions") {
            if memmem::find(body, b"\"stream\":true").is_some() {
                let wants_usage = memmem::find(body, b"\"include_usage\":true").is_some();
                return Self::Stream { wants_usage };
            }
            return Self::Unary;
        }
        match path {
            b"/metrics" => Self::Other(METRICS),
            b"/v1/models" => Self::Other(MODELS),
            _ => Self::Other("{}"),
        }
    }
}

fn content_length(head: &[u8]) -> usize {
    let text = String::from_utf8_lossy(head).to_ascii_lowercase();
    text.lines()
        .find_map(|line| line.strip_prefix("content-length:"))
        .and_then(|value| value.trim().parse().ok())
        .unwrap_or(0)
}

async fn stream(socket: &mut TcpStream, shared: &Shared, wants_usage: bool) -> std::io::Result<()> {
    let step = Duration::from_nanos(shared.step_nanos.load(Relaxed));
    let tokens = shared.tokens.load(Relaxed);
    let mut due = shared.clock.now();
    socket.write_all(STREAM_HEAD).await?;
    let mut out = String::with_capacity(512);
    for index in 0..tokens {
        if !step.is_zero() {
            due = due.after(step);
            tokio::time::sleep_until(shared.clock.instant(due)).await;
        }
        out.clear();
        let finish = if index + 1 == tokens { "\"stop\"" } else { "null" };
        event(&mut out, shared.clock.now(), finish);
        socket.write_all(out.as_bytes()).await?;
    }
    out.clear();
    if wants_usage {
        chunk(&mut out, &format!("data: {{{CHUNK},\"choices\":[],\"usage\":{USAGE}}}\n\n"));
    }
    out.push_str("e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
    socket.write_all(out.as_bytes()).await
}

fn event(out: &mut String, now: Stamp, finish: &str) {
    let text = format!(
        "data: {{{CHUNK},\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"@@{:016}\"}},\
         \"logprobs\":null,\"finish_reason\":{finish}}}]}}\n\n",
        now.as_nanos()
    );
    chunk(out, &text);
}

fn chunk(out: &mut String, text: &str) {
    // Writing to a String cannot fail.
    let _ = write!(out, "{:x}\r\n{text}\r\n", text.len());
}

fn unary() -> String {
    let body = format!(
        "{{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion\",\"created\":1764000000,\"model\":\"mock\",\
         \"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\"content\":\"{}\"}},\
         \"logprobs\":null,\"finish_reason\":\"stop\"}}],\"usage\":{USAGE}}}",
        "word ".repeat(40)
    );
    whole("application/json", &body)
}

fn whole(content_type: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

const STREAM_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\n\
    content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
const CHUNK: &str = "\"id\":\"chatcmpl-00000000000000000000000000000000\",\"object\":\"chat.completion.chunk\",\
                     \"created\":1764000000,\"model\":\"mock\"";
const USAGE: &str = "{\"prompt_tokens\":40,\"total_tokens\":140,\"completion_tokens\":100}";
const MODELS: &str = "{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"object\":\"model\",\
                      \"created\":1764000000,\"owned_by\":\"vllm\",\"root\":\"mock\",\"parent\":null}]}";
const METRICS: &str = "# TYPE vllm:num_requests_running gauge\n\
                       vllm:num_requests_running{engine=\"0\",model_name=\"mock\"} 0.0\n\
                       # TYPE vllm:num_requests_waiting gauge\n\
                       vllm:num_requests_waiting{engine=\"0\",model_name=\"mock\"} 0.0\n";
