//! A replica that does what a script says, on a raw socket, and remembers what it was sent.
//!
//! It answers the gateway's own requests (probes, model list, metrics) by itself; every inference request gets
//! the next script, or the standing one. A script sees its connection close, so that a test can assert that the
//! gateway gave work up.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use socket2::SockRef;
use tokenway::config::Endpoint;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{until, wire};

/// One thing that a replica does.
#[derive(Clone, Debug)]
pub enum Step {
    /// Writes bytes as they are.
    Raw(Vec<u8>),
    /// Writes one chunk of a chunked body.
    Chunk(Vec<u8>),
    /// Writes the last chunk; the connection can be used again.
    End,
    /// Goes on when these bytes came: what a WebSocket's client says.
    Expect(Vec<u8>),
    /// Goes on when the gate is opened.
    Wait(Gate),
    /// Goes on with a permit, and uses it up.
    Permit(Arc<Semaphore>),
    /// Goes on when one of the engine's places is free, and has it until the script is over.
    Take(Arc<Semaphore>),
    /// Waits for ten milliseconds: the pace of a stream, never a means to be in time.
    Tick,
    /// Does nothing until the gateway closes the connection.
    Hang,
    /// Closes the connection, with a FIN.
    Close,
    /// Closes the connection with a RST.
    Reset,
    /// Refuses connections from now on; open ones stay.
    StopListening,
    /// Writes chunks of this event, as many bytes as are given.
    Flood(Vec<u8>, usize),
}

/// Opened once by a test, waited for by scripts.
pub type Gate = CancellationToken;

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Received {
    pub head: String,
    pub body: Vec<u8>,
}

impl Received {
    /// Every value of a header.
    pub fn all(&self, name: &str) -> Vec<&str> {
        wire::values(&self.head, name)
    }

    /// The value of a header that comes once at most.
    pub fn header(&self, name: &str) -> Option<&str> {
        let values = self.all(name);
        assert!(values.len() < 2, "{name} came twice: {values:?}");
        values.first().copied()
    }

    /// Method and target.
    pub fn line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

/// How own requests of the gateway are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probes {
    Answered,
    /// Green health and no completions: a frozen core.
    CompletionsUnanswered,
    /// Not even a page: the whole process is stopped.
    Unanswered,
    /// By scripts, like inference requests: a service that the gateway posts to.
    Scripted,
    /// 200 with this content type and body, whatever is asked for by POST.
    Says(&'static str, &'static str),
    /// This status, whatever is asked for by POST; where a key is missing, for its list of models too.
    Refused(u16),
}

/// A scripted replica.
pub struct Replica {
    pub addr: SocketAddr,
    state: Arc<State>,
}

/// What a request without an answer of its own gets.
type Answer = Box<dyn Fn(&Received) -> Vec<Step> + Send>;

struct State {
    scripts: Mutex<VecDeque<Vec<Step>>>,
    standing: Mutex<Answer>,
    received: Mutex<Vec<Received>>,
    probes: Mutex<Probes>,
    models: Mutex<String>,
    unasked: Mutex<String>,
    page: Mutex<Option<String>>,
    listening: Mutex<CancellationToken>,
    listeners: AtomicUsize,
    abandoned: AtomicUsize,
    closed: AtomicUsize,
    flooded: AtomicUsize,
    connections: AtomicUsize,
    busy: AtomicUsize,
    probed: AtomicUsize,
    own: Mutex<Vec<Received>>,
}

impl Replica {
    /// Starts one that answers every request with a short chat stream.
    pub async fn start() -> Self {
        Self::start_on(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    /// Starts so many.
    pub async fn several<const N: usize>() -> [Self; N] {
        let mut replicas = Vec::new();
        for _ in 0..N {
            replicas.push(Self::start().await);
        }
        replicas.try_into().unwrap_or_else(|_| panic!("not {N} replicas"))
    }

    /// Starts one on a socket of the test's choice.
    pub fn start_on(listener: TcpListener) -> Self {
        let state = Arc::new(State {
            scripts: Mutex::default(),
            standing: Mutex::new(Box::new(|_| wire::chat_stream(&["a", "b"]))),
            received: Mutex::default(),
            probes: Mutex::new(Probes::Answered),
            models: Mutex::new(wire::MODELS.to_owned()),
            unasked: Mutex::new("{}".to_owned()),
            page: Mutex::new(Some(wire::METRICS.into())),
            listening: Mutex::default(),
            listeners: AtomicUsize::new(0),
            abandoned: AtomicUsize::new(0),
            closed: AtomicUsize::new(0),
            flooded: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            probed: AtomicUsize::new(0),
            own: Mutex::default(),
        });
        let this = Self { addr: listener.local_addr().unwrap(), state };
        this.listen_on(listener);
        this
    }

    /// The next inference request gets this answer.
    pub fn next(&self, script: Vec<Step>) -> &Self {
        self.state.scripts.lock().push_back(script);
        self
    }

    /// The same once the gate is opened.
    pub fn held(&self, script: Vec<Step>) -> Gate {
        let gate = Gate::new();
        self.next(wire::behind(&gate, script));
        gate
    }

    /// Every inference request without an answer of its own gets this one.
    pub fn always(&self, script: Vec<Step>) -> &Self {
        self.answers(move |_| script.clone());
        self
    }

    /// The same, by the request.
    pub fn answers(&self, answer: impl Fn(&Received) -> Vec<Step> + Send + 'static) {
        *self.state.standing.lock() = Box::new(answer);
    }

    pub fn probes(&self, probes: Probes) {
        *self.state.probes.lock() = probes;
    }

    /// Its `/v1/models` is this page.
    pub fn lists(&self, page: &str) {
        *self.state.models.lock() = page.to_owned();
    }

    /// What it streams to a probe that asks for nothing but a stream.
    pub fn streams_unasked(&self, stream: &str) {
        *self.state.unasked.lock() = stream.to_owned();
    }

    /// Its `/metrics` is this from now on; `None`: gone.
    pub fn show_page(&self, page: Option<&str>) {
        *self.state.page.lock() = page.map(Into::into);
    }

    /// Refuses connections from now on.
    pub async fn stop_listening(&self) {
        self.state.listening.lock().cancel();
        until("the listener is closed", || self.state.listeners.load(Ordering::SeqCst) == 0).await;
    }

    /// Accepts connections again, at the same address.
    pub async fn listen_again(&self) {
        *self.state.listening.lock() = CancellationToken::new();
        self.listen_on(TcpListener::bind(self.addr).await.unwrap());
    }

    pub fn name(&self) -> String {
        self.addr.to_string()
    }

    pub fn endpoint(&self) -> Endpoint {
        let host = self.addr.ip().to_string().into();
        Endpoint { is_tls: false, host, port: self.addr.port(), base_path: "".into() }
    }

    /// Inference requests that came so far.
    pub fn received(&self) -> Vec<Received> {
        self.state.received.lock().clone()
    }

    pub fn count(&self) -> usize {
        self.state.received.lock().len()
    }

    /// The only request that came.
    pub fn only(&self) -> Received {
        let all = self.received();
        assert_eq!(all.len(), 1, "{all:?}");
        all.into_iter().next().unwrap()
    }

    /// Waits until `count` inference requests came.
    pub async fn got(&self, count: usize) {
        until("the replica got the request", || self.count() >= count).await;
    }

    /// Waits until the gateway closed `count` connections before the end of their script.
    pub async fn abandoned(&self, count: usize) {
        let abandoned = || self.state.abandoned.load(Ordering::SeqCst) == count;
        until("the gateway closes the connection to the replica", abandoned).await;
    }

    /// Waits until `count` scripts closed their connection.
    pub async fn closed_after(&self, count: usize) {
        until("the replica closes", || self.state.closed.load(Ordering::SeqCst) >= count).await;
    }

    /// Connections for inference that were opened so far.
    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// Inference requests that it works on.
    pub fn busy(&self) -> usize {
        self.state.busy.load(Ordering::SeqCst)
    }

    /// Probe completions that came so far; of one that is stopped, whatever asks it but for its page.
    pub fn probed(&self) -> usize {
        self.state.probed.load(Ordering::SeqCst)
    }

    /// Own POST requests of the gateway that came so far: probes, warm-up, keep-alive.
    pub fn own(&self) -> Vec<Received> {
        self.state.own.lock().clone()
    }

    /// Bytes that a flood could write.
    pub fn flooded(&self) -> usize {
        self.state.flooded.load(Ordering::SeqCst)
    }

    #[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
    fn listen_on(&self, listener: TcpListener) {
        let state = Arc::clone(&self.state);
        let token = state.listening.lock().clone();
        state.listeners.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(async move {
            while let Some(Ok((socket, _))) = token.run_until_cancelled(listener.accept()).await {
                tokio::spawn(serve(Arc::clone(&state), socket));
            }
            drop(listener);
            state.listeners.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

/// What became of a connection.
enum After {
    Reusable,
    Closed,
    /// The gateway closed it before the script was over.
    Abandoned,
}

async fn serve(state: Arc<State>, mut socket: TcpStream) {
    // As engines do: the second of two small writes does not wait for an acknowledgement.
    socket.set_nodelay(true).unwrap();
    let mut buffer = Vec::new();
    let mut is_counted = false;
    while let Some(request) = read_request(&mut socket, &mut buffer).await {
        let is_own = request.header("x-tokenway-probe").is_some();
        if is_own && *state.probes.lock() != Probes::Scripted {
            answer_own(&state, &mut socket, &request).await;
            continue;
        }
        if !std::mem::replace(&mut is_counted, true) {
            state.connections.fetch_add(1, Ordering::SeqCst);
        }
        let script = state.scripts.lock().pop_front();
        let script = script.unwrap_or_else(|| (state.standing.lock())(&request));
        state.received.lock().push(request);
        state.busy.fetch_add(1, Ordering::SeqCst);
        let after = run(&state, &mut socket, script).await;
        state.busy.fetch_sub(1, Ordering::SeqCst);
        match after {
            After::Reusable => {}
            After::Closed => {
                drop(socket);
                state.closed.fetch_add(1, Ordering::SeqCst);
                return;
            }
            After::Abandoned => {
                state.abandoned.fetch_add(1, Ordering::SeqCst);
                return;
            }
        }
    }
}

async fn answer_own(state: &State, socket: &mut TcpStream, request: &Received) {
    let probes = *state.probes.lock();
    if probes == Probes::Unanswered {
        let is_page = request.line().starts_with("GET /metrics");
        state.probed.fetch_add(usize::from(!is_page), Ordering::SeqCst);
        return closed(socket).await;
    }
    if probes == Probes::Refused(401) && request.line().starts_with("GET /v1/") {
        let _ = socket.write_all(&wire::whole(401, "application/json", "{}")).await;
        return;
    }
    if request.line().starts_with("POST") {
        state.probed.fetch_add(1, Ordering::SeqCst);
        state.own.lock().push(request.clone());
        match probes {
            Probes::Answered | Probes::Scripted | Probes::Unanswered => {}
            Probes::CompletionsUnanswered => return closed(socket).await,
            Probes::Refused(status) => {
                let _ = socket.write_all(&wire::whole(status, "application/json", "{}")).await;
                return;
            }
            Probes::Says(content_type, body) => {
                let _ = socket.write_all(&wire::whole(200, content_type, body)).await;
                return;
            }
        }
    }
    let page = state.page.lock().clone();
    let body = match request.line() {
        "GET /metrics HTTP/1.1" => match page {
            Some(page) => page,
            None => {
                let _ = socket.write_all(&wire::whole(404, "text/plain", "")).await;
                return;
            }
        },
        "GET /v1/models HTTP/1.1" => state.models.lock().clone(),
        _ if request.text().contains("\"stream\":true") => state.unasked.lock().clone(),
        "POST /v1/embeddings HTTP/1.1" => r#"{"data":[{"index":0,"embedding":[0.5]}]}"#.to_owned(),
        "POST /rerank HTTP/1.1" => r#"{"results":[{"index":0,"relevance_score":0.5}]}"#.to_owned(),
        _ => r#"{"choices":[{"index":0,"text":"a","finish_reason":"length"}]}"#.to_owned(),
    };
    let _ = socket.write_all(&wire::whole(200, "application/json", &body)).await;
}

async fn run(state: &State, socket: &mut TcpStream, script: Vec<Step>) -> After {
    let mut place = None;
    for step in script {
        let written = match step {
            Step::Raw(bytes) => socket.write_all(&bytes).await,
            Step::Chunk(bytes) => socket.write_all(&wire::chunk(&bytes)).await,
            Step::End => socket.write_all(b"0\r\n\r\n").await,
            Step::Flood(event, total) => flood(state, socket, &event, total).await,
            Step::StopListening => {
                state.listening.lock().cancel();
                until("the listener is closed", || state.listeners.load(Ordering::SeqCst) == 0).await;
                Ok(())
            }
            Step::Expect(bytes) => expect(socket, &bytes).await,
            // Both arms are cancel-safe: nothing is expected to be read.
            Step::Wait(gate) => tokio::select! {
                () = gate.cancelled() => Ok(()),
                () = closed(socket) => return After::Abandoned,
            },
            // As above; a permit that was not taken is left.
            Step::Permit(permits) => tokio::select! {
                permit = permits.acquire() => {
                    permit.unwrap().forget();
                    Ok(())
                }
                () = closed(socket) => return After::Abandoned,
            },
            Step::Take(places) => {
                place = places.acquire_owned().await.ok();
                Ok(())
            }
            Step::Tick => {
                tokio::time::sleep(Duration::from_millis(10)).await;
                Ok(())
            }
            Step::Hang => {
                closed(socket).await;
                return After::Abandoned;
            }
            Step::Close => return After::Closed,
            Step::Reset => {
                let _ = SockRef::from(&*socket).set_linger(Some(Duration::ZERO));
                return After::Closed;
            }
        };
        if written.is_err() {
            return After::Abandoned;
        }
    }
    drop(place);
    After::Reusable
}

async fn flood(state: &State, socket: &mut TcpStream, event: &[u8], total: usize) -> io::Result<()> {
    let chunk = wire::chunk(event);
    while state.flooded.load(Ordering::SeqCst) < total {
        socket.write_all(&chunk).await?;
        state.flooded.fetch_add(chunk.len(), Ordering::SeqCst);
    }
    Ok(())
}

async fn expect(socket: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let mut came = Vec::new();
    while memchr::memmem::find(&came, bytes).is_none() {
        if socket.read_buf(&mut came).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

/// Returns when the other side closed the connection.
async fn closed(socket: &mut TcpStream) {
    let mut byte = [0];
    while matches!(socket.read(&mut byte).await, Ok(1)) {}
}

async fn read_request(socket: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Received> {
    let head_end = loop {
        if let Some(at) = wire::head_end(buffer) {
            break at;
        }
        if socket.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&buffer[..head_end]).into_owned();
    let length = wire::values(&head, "content-length").first().and_then(|n| n.parse().ok()).unwrap_or(0);
    while buffer.len() < head_end + length {
        if socket.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    let body = buffer[head_end..head_end + length].to_vec();
    buffer.drain(..head_end + length);
    Some(Received { head, body })
}
