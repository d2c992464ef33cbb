//! The load client: kept-alive HTTP/1.1 on raw sockets, one thread, every answer checked.
//!
//! Each connection sends its next request when the last one was answered. A stream that lacks an event or its
//! `[DONE]`, or a status other than 200, is an error: a proxy must not win by losing data.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use hdrhistogram::Histogram;
use memchr::memmem;
use tokenway::clock::{Clock, Stamp};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use crate::Failure;

/// What to send.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) connections: usize,
    /// Over all connections.
    pub(crate) requests: usize,
    /// The connections open spread over this time.
    pub(crate) ramp: Duration,
    /// Content events that each stream must have; `None` requests unary responses.
    pub(crate) stream_tokens: Option<u64>,
}

/// What came back. Histograms are in nanoseconds.
pub(crate) struct Tally {
    pub(crate) requests: u64,
    pub(crate) events: u64,
    pub(crate) errors: u64,
    pub(crate) first_error: Option<String>,
    /// From before the request's write to the first content event.
    pub(crate) ttft: Histogram<u64>,
    /// From the engine's write of an event to our read of it.
    pub(crate) delay: Histogram<u64>,
    /// Whole requests.
    pub(crate) total: Histogram<u64>,
}

/// Runs the plan against `target`.
pub(crate) async fn run(target: SocketAddr, plan: Plan, clock: Clock) -> Result<Tally, Failure> {
    let histogram = || Histogram::<u64>::new(3);
    let tally = Rc::new(RefCell::new(Tally {
        requests: 0,
        events: 0,
        errors: 0,
        first_error: None,
        ttft: histogram()?,
        delay: histogram()?,
        total: histogram()?,
    }));
    let left = Rc::new(Cell::new(plan.requests));
    let tasks = LocalSet::new();
    for index in 0..plan.connections {
        let delay = plan.ramp.mul_f64(index as f64 / plan.connections as f64);
        let worker = Worker { target, plan, clock, index, tally: Rc::clone(&tally), left: Rc::clone(&left) };
        tasks.spawn_local(worker.work(delay));
    }
    tasks.await;
    Ok(Rc::into_inner(tally).ok_or("a worker outlived its run")?.into_inner())
}

struct Worker {
    target: SocketAddr,
    plan: Plan,
    clock: Clock,
    index: usize,
    tally: Rc<RefCell<Tally>>,
    left: Rc<Cell<usize>>,
}

impl Worker {
    async fn work(self, delay: Duration) {
        tokio::time::sleep(delay).await;
        let mut connection = None;
        while let Some(left) = self.left.get().checked_sub(1) {
            self.left.set(left);
            let exchange = self.exchange(&mut connection);
            let result = match tokio::time::timeout(LONGEST, exchange).await {
                Ok(result) => result,
                Err(_) => Err(format!("no complete answer in {LONGEST:?}").into()),
            };
            if let Err(error) = result {
                connection = None;
                let mut tally = self.tally.borrow_mut();
                tally.errors += 1;
                tally.first_error.get_or_insert_with(|| error.to_string());
            }
        }
    }

    async fn exchange(&self, kept: &mut Option<Connection>) -> Result<(), Failure> {
        let start = self.clock.now();
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => Connection::open(self.target).await?,
        };
        connection.socket.write_all(&self.request()).await?;
        let mut answer = Answer { start, seen: 0, scanned: 0, first: None };
        let is_chunked = connection.head().await?;
        if is_chunked {
            while let Some(now) = connection.chunk(self.clock).await? {
                answer.scan(&connection.body, now, &mut self.tally.borrow_mut())?;
            }
        }
        if let Some(tokens) = self.plan.stream_tokens {
            let is_done = connection.body.ends_with(b"data: [DONE]\n\n");
            if answer.seen != tokens || !is_done {
                return Err(format!("{} of {tokens} events, [DONE]: {is_done}", answer.seen).into());
            }
        }
        let mut tally = self.tally.borrow_mut();
        tally.requests += 1;
        tally.events += answer.seen;
        tally.total.record(self.clock.now().since(start).as_nanos().try_into()?)?;
        if let Some(first) = answer.first {
            tally.ttft.record(first.since(start).as_nanos().try_into()?)?;
        }
        *kept = Some(connection);
        Ok(())
    }

    fn request(&self) -> Vec<u8> {
        let group = self.index % 4;
        let text = format!("group {group}: {} request {}", "word ".repeat(20), self.left.get());
        let is_stream = self.plan.stream_tokens.is_some();
        let body = format!(
            "{{\"model\":\"mock\",\"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}],\
             \"max_tokens\":128,\"temperature\":0,\"stream\":{is_stream}}}"
        );
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            self.target,
            body.len()
        )
        .into_bytes()
    }
}

/// The content events of one answer.
struct Answer {
    start: Stamp,
    seen: u64,
    scanned: usize,
    first: Option<Stamp>,
}

impl Answer {
    /// Takes the marks that `body` got since the last call.
    fn scan(&mut self, body: &[u8], now: Stamp, tally: &mut Tally) -> Result<(), Failure> {
        while let Some(at) = memmem::find(&body[self.scanned..], b"@@") {
            let digits = self.scanned + at + 2;
            let Some(text) = body.get(digits..digits + 16) else { break };
            let sent = Stamp::from_nanos(std::str::from_utf8(text)?.parse()?);
            if sent < self.start {
                return Err("an event of an older request".into());
            }
            tally.delay.record(now.since(sent).as_nanos().try_into()?)?;
            self.first.get_or_insert(now);
            self.seen += 1;
            self.scanned = digits + 16;
        }
        Ok(())
    }
}

struct Connection {
    socket: TcpStream,
    buffer: Vec<u8>,
    /// The body of the present answer, its framing taken off.
    body: Vec<u8>,
}

impl Connection {
    async fn open(target: SocketAddr) -> Result<Self, Failure> {
        let socket = TcpStream::connect(target).await?;
        socket.set_nodelay(true)?;
        Ok(Self { socket, buffer: Vec::with_capacity(4096), body: Vec::new() })
    }

    async fn fill(&mut self) -> Result<(), Failure> {
        match self.socket.read_buf(&mut self.buffer).await? {
            0 => Err("closed within an answer".into()),
            _ => Ok(()),
        }
    }

    /// Reads a head, and the body if its length is known; returns whether a chunked body follows.
    async fn head(&mut self) -> Result<bool, Failure> {
        self.body.clear();
        let end = loop {
            match memmem::find(&self.buffer, b"\r\n\r\n") {
                Some(at) => break at + 4,
                None => self.fill().await?,
            }
        };
        let head = String::from_utf8_lossy(&self.buffer[..end]).to_ascii_lowercase();
        self.buffer.drain(..end);
        if !head.starts_with("http/1.1 200") {
            return Err(head.lines().next().unwrap_or_default().into());
        }
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        let Some(length) = length else { return Ok(true) };
        let length: usize = length.trim().parse()?;
        while self.buffer.len() < length {
            self.fill().await?;
        }
        self.body.extend(self.buffer.drain(..length));
        Ok(false)
    }

    /// Adds one chunk to the body and returns its time of arrival; `None` after the last one.
    async fn chunk(&mut self, clock: Clock) -> Result<Option<Stamp>, Failure> {
        let (start, size) = loop {
            match memmem::find(&self.buffer, b"\r\n") {
                Some(at) => {
                    let text = std::str::from_utf8(&self.buffer[..at])?;
                    break (at + 2, usize::from_str_radix(text, 16)?);
                }
                None => self.fill().await?,
            }
        };
        while self.buffer.len() < start + size + 2 {
            self.fill().await?;
        }
        let now = clock.now();
        self.body.extend_from_slice(&self.buffer[start..start + size]);
        self.buffer.drain(..start + size + 2);
        Ok((size > 0).then_some(now))
    }
}

/// No answer of any workload takes this long, not even on a machine ten times slower.
const LONGEST: Duration = Duration::from_secs(60);
