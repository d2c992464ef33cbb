//! Connection phases and deadlines.
//!
//! Reading a head may take `header_timeout` from its first byte (the first head: from accept); idling between requests
//! `keep_alive`. hyper has one timer for both, so phases are tracked here: an IO wrapper sees the first byte after an
//! idle time, the service sees the complete head, a body wrapper sees the end of the response.

use std::future::pending;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Buf;
use hyper::body::{Body, Frame, SizeHint};
use prometheus::IntCounter;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use super::bad_request_head::{Explain, RejectionRewriter};
use super::continues::{ContinueSignal, Continues};
use super::first_bytes::{FirstBytes, PREFACE};
use super::framing::RequestFraming;
use super::lingering_close::LingeringClose;
use super::panics::caught;
use super::socket::{self, ClientStream, FollowedTimeout, UserTimeout};
use super::taking::Taking;
use super::{ConnectionLimits, Tunnel};
use crate::clock::{AtomicStamp, Clock, Stamp, stood_still};

/// Phase of one connection, updated by its IO and its requests.
#[derive(Debug)]
pub(super) struct ConnectionPhase {
    clock: Clock,
    requests: AtomicU32,
    is_reading_head: AtomicBool,
    /// The HTTP/2 preface was read.
    is_http2: AtomicBool,
    /// Its first bytes were no HTTP/2 preface.
    is_http1: AtomicBool,
    /// They begin a TLS handshake, which no HTTP does.
    is_tls: AtomicBool,
    is_closing: AtomicBool,
    /// Start of the current phase.
    since: AtomicStamp,
    total: AtomicU64,
    /// There was a first request.
    asked: Notify,
    /// Heads that have begun to arrive.
    begun: AtomicU64,
    /// Number of the first request with two framings, from 1; 0 for none.
    ambiguous: AtomicU64,
    /// ALPN chose HTTP/2, so that nothing else may follow.
    is_http2_agreed: AtomicBool,
    /// Cut rather than closed, so that its last response does not look complete.
    is_cut: AtomicBool,
    /// Bytes came behind a request that is not answered yet.
    pipelined: Notify,
    /// The next flush looks whether the client is still there.
    looks: AtomicBool,
    /// Polls so far, where it speaks HTTP/1.
    polls: AtomicU64,
    panics: IntCounter,
    /// What became of it after a 101.
    tunnel: OnceLock<Tunnel>,
}

impl ConnectionPhase {
    /// A new connection: its first head is due `header_timeout` after `accepted`.
    pub(super) fn new(clock: Clock, accepted: Stamp, panics: IntCounter) -> Self {
        Self {
            clock,
            requests: AtomicU32::new(0),
            is_reading_head: AtomicBool::new(true),
            is_http2: AtomicBool::new(false),
            is_http1: AtomicBool::new(false),
            is_tls: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            since: AtomicStamp::new(accepted),
            total: AtomicU64::new(0),
            asked: Notify::new(),
            begun: AtomicU64::new(0),
            ambiguous: AtomicU64::new(0),
            is_http2_agreed: AtomicBool::new(false),
            is_cut: AtomicBool::new(false),
            pipelined: Notify::new(),
            looks: AtomicBool::new(false),
            polls: AtomicU64::new(0),
            panics,
            tunnel: OnceLock::new(),
        }
    }

    /// The tunnel that the connection became.
    pub(super) fn tunnel(&self) -> Option<&Tunnel> {
        self.tunnel.get()
    }

    /// Its task polls it once more.
    pub(super) fn is_polled(&self) {
        self.polls.fetch_add(1, Ordering::Relaxed);
    }

    /// A head is complete: the connection is busy until the guard is dropped.
    pub(super) fn request(this: &Arc<Self>) -> Busy {
        this.requests.fetch_add(1, Ordering::Relaxed);
        this.is_reading_head.store(false, Ordering::Relaxed);
        let number = this.total.fetch_add(1, Ordering::Relaxed) + 1;
        if number == 1 {
            this.asked.notify_one();
        }
        let is_ambiguous = number == this.ambiguous.load(Ordering::Relaxed);
        Busy { phase: Arc::clone(this), is_ambiguous }
    }

    /// Whether its client tried to begin TLS, in what is read here as clear text.
    pub(super) fn is_tls(&self) -> bool {
        self.is_tls.load(Ordering::Relaxed)
    }

    /// The response closes the connection while its client may still be sending.
    fn closes(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
    }

    /// Waits for the first request over HTTP/2, once; never returns for an HTTP/1.1 client.
    pub(super) async fn asked_over_http2(&self) {
        self.asked.notified().await;
        if !self.is_http2() {
            pending::<()>().await;
        }
    }

    /// When to check again; `None` when a deadline has passed.
    pub(super) fn next_check(&self, limits: &ConnectionLimits) -> Option<Stamp> {
        let now = self.clock.now();
        if self.requests.load(Ordering::Relaxed) > 0 {
            return Some(now.after(LOOK_EVERY));
        }
        let since = self.since.load();
        if self.is_reading_head.load(Ordering::Relaxed) {
            return Some(since.after(limits.header_timeout)).filter(|at| *at > now);
        }
        // A head may begin meanwhile: check again before it can be overdue.
        let overdue = Some(since.after(limits.keep_alive)).filter(|at| *at > now);
        overdue.map(|at| at.min(now.after(limits.header_timeout)))
    }

    /// A check that was due `at` is over: where the gateway stood still, what came meanwhile is read before it counts as missing.
    pub(super) fn catch_up(&self, at: Stamp) {
        if let Some(missed) = stood_still(at, self.clock.now()) {
            self.since.store(self.since.load().after(missed));
        }
    }

    /// Waits until a client pipelines: its next check is due sooner than a head or an idle time would be.
    pub(super) async fn pipelined(&self) {
        self.pipelined.notified().await;
    }

    /// Takes note of the heads that have begun: those behind the next request, or behind one that is under way, are in
    /// hyper's buffer, which reads nothing then.
    fn note_heads(&self, begun: u64) {
        self.begun.store(begun, Ordering::Relaxed);
        let next = self.total.load(Ordering::Relaxed) + u64::from(self.is_between_requests());
        if begun > next {
            self.pipelined.notify_one();
        }
    }

    /// Whether a request is under way, so that its client may have left unnoticed: hyper reads nothing while bytes of a
    /// further request wait in its buffer.
    pub(super) fn is_to_be_looked_at(&self) -> bool {
        let is_busy = !self.is_between_requests() && !self.is_http2();
        if is_busy {
            self.looks.store(true, Ordering::Relaxed);
        }
        is_busy
    }

    /// Since when it has had no request; `None` while one is under way.
    pub(super) fn idle_since(&self) -> Option<Stamp> {
        self.is_between_requests().then(|| self.since.load())
    }

    /// Whether it is to be cut rather than closed.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Relaxed)
    }

    /// ALPN chose HTTP/2.
    pub(super) fn agree_http2(&self) {
        self.is_http2_agreed.store(true, Ordering::Relaxed);
    }

    /// Whether its first bytes were no HTTP/2 preface.
    fn is_http1(&self) -> bool {
        self.is_http1.load(Ordering::Relaxed)
    }

    fn is_http2(&self) -> bool {
        self.is_http2.load(Ordering::Relaxed)
    }

    /// Whether nothing has come yet.
    pub(super) fn is_unread(&self) -> bool {
        !self.is_http1() && !self.is_http2()
    }

    fn is_between_requests(&self) -> bool {
        self.requests.load(Ordering::Relaxed) == 0
    }

    fn read(&self, bytes: &[u8]) {
        if bytes.is_empty() || !self.is_between_requests() || self.is_http2() {
            return;
        }
        if self.total.load(Ordering::Relaxed) == 0 {
            // `FirstBytes` brings a preface in one read.
            if !self.is_http1() && bytes.starts_with(PREFACE) {
                self.is_http2.store(true, Ordering::Relaxed);
            } else if !self.is_http1.swap(true, Ordering::Relaxed) {
                self.is_tls.store(bytes.first() == Some(&TLS_HANDSHAKE), Ordering::Relaxed);
            }
        } else if !self.is_reading_head.swap(true, Ordering::Relaxed) {
            self.since.store(self.clock.now());
        }
    }
}

/// Keeps a connection busy with one request.
#[derive(Debug)]
pub(super) struct Busy {
    phase: Arc<ConnectionPhase>,
    is_ambiguous: bool,
}

impl Busy {
    /// Whether the request gives two framings.
    pub(super) fn is_ambiguous(&self) -> bool {
        self.is_ambiguous
    }

    /// This is the connection's last request.
    pub(super) fn last(&self) {
        self.phase.closes();
    }

    /// Guards a body whose end only the connection's shows (HTTP/1.0): dropped early, it cuts the connection.
    pub(super) fn ends_with_connection(&self) -> EndGuard {
        EndGuard(Some(Arc::clone(&self.phase)))
    }

    /// Its handling panicked.
    pub(super) fn note_panic(&self) {
        self.phase.panics.inc();
    }

    /// Behind this response the connection is a tunnel.
    pub(super) fn becomes(&self, tunnel: Tunnel) {
        // A connection becomes one once at most.
        let _ = self.phase.tunnel.set(tunnel);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let phase = &self.phase;
        phase.since.store(phase.clock.now());
        // A client that pipelines may have begun the next head already.
        let has_begun = phase.begun.load(Ordering::Relaxed) > phase.total.load(Ordering::Relaxed);
        phase.is_reading_head.store(has_begun, Ordering::Relaxed);
        phase.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Cuts its connection unless the body came to its end.
#[derive(Debug, Default)]
pub(super) struct EndGuard(Option<Arc<ConnectionPhase>>);

impl EndGuard {
    fn ended(&mut self) {
        self.0 = None;
    }
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        if let Some(phase) = &self.0 {
            phase.is_cut.store(true, Ordering::Relaxed);
        }
    }
}

/// A response body that keeps its connection busy until it is dropped.
#[derive(Debug)]
pub(super) struct BusyBody<B> {
    body: B,
    is_left_out: bool,
    busy: Busy,
    taking: Option<Arc<Taking>>,
    /// The poll of its connection in which it had nothing.
    idle_in: Option<u64>,
    end: EndGuard,
}

impl<B> BusyBody<B> {
    /// Wraps a body; `taking` and `end` learn when its last frame goes to hyper. One that is left out has a length alone.
    pub(super) fn new(
        body: B,
        is_left_out: bool,
        busy: Busy,
        taking: Option<Arc<Taking>>,
        end: EndGuard,
    ) -> Self {
        taking.iter().for_each(|taking| taking.begins());
        Self { body, is_left_out, busy, taking, idle_in: None, end }
    }
}

impl<B> Body for BusyBody<B>
where
    B: Body<Data: Buf, Error: Into<BodyError>> + Unpin,
{
    type Data = B::Data;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BodyError>>> {
        let this = self.get_mut();
        // Behind a flush hyper asks again: a body that had nothing has nothing until it is woken, which is another poll. Over HTTP/2
        // polls are those of the stream's task.
        let poll = this.taking.is_none().then(|| this.busy.phase.polls.load(Ordering::Relaxed));
        if poll.is_some() && this.idle_in == poll {
            return Poll::Pending;
        }
        let polled = match caught(|| Pin::new(&mut this.body).poll_frame(cx)) {
            Ok(polled) => polled,
            Err(panicked) => {
                this.busy.note_panic();
                return Poll::Ready(Some(Err(panicked.into())));
            }
        };
        if let Some(taking) = &this.taking {
            taking.asked(polled.is_ready());
        }
        let is_last = match &polled {
            Poll::Pending => {
                this.idle_in = poll;
                return Poll::Pending;
            }
            Poll::Ready(None) => true,
            Poll::Ready(Some(frame)) => frame.is_ok() && this.body.is_end_stream(),
        };
        if is_last {
            this.end.ended();
            if let Some(taking) = this.taking.take() {
                taking.handed();
            }
        }
        polled.map(|frame| frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.is_left_out || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// Reports reads to the phase and replaces hyper's bare rejections.
#[derive(Debug)]
pub(super) struct PhaseIo<S: ClientStream> {
    stream: S,
    first: FirstBytes,
    phase: Arc<ConnectionPhase>,
    rewriter: RejectionRewriter,
    framing: RequestFraming,
    continues: Continues,
    close: LingeringClose,
    timeout: FollowedTimeout,
}

impl<S: ClientStream> Drop for PhaseIo<S> {
    fn drop(&mut self) {
        if self.phase.is_cut.load(Ordering::Relaxed) {
            socket::reset_on_close(self.stream.socket());
        }
    }
}

impl<S: ClientStream> PhaseIo<S> {
    /// Wraps a stream; `explain` makes the responses to rejected heads, `signal` asks for `100 Continue` over HTTP/2.
    pub(super) fn new(
        stream: S,
        phase: Arc<ConnectionPhase>,
        explain: Explain,
        signal: ContinueSignal,
        timeout: UserTimeout,
    ) -> Self {
        Self {
            stream,
            first: FirstBytes::default(),
            phase,
            rewriter: RejectionRewriter::new(explain),
            framing: RequestFraming::default(),
            continues: Continues::new(signal),
            close: LingeringClose::default(),
            timeout: FollowedTimeout::new(timeout),
        }
    }
}

impl<S: ClientStream> AsyncRead for PhaseIo<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let polled = this.first.poll_read(Pin::new(&mut this.stream), cx, buf);
        if polled.is_ready() {
            let bytes = buf.filled().get(before..).unwrap_or_default();
            this.phase.read(bytes);
            if this.phase.is_http1() {
                if this.phase.is_http2_agreed.load(Ordering::Relaxed) {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "no HTTP/2 preface")));
                }
                this.framing.read(bytes);
                if let Some(number) = this.framing.first_ambiguous() {
                    this.phase.ambiguous.store(number, Ordering::Relaxed);
                }
                this.phase.note_heads(this.framing.heads_begun());
            } else {
                this.continues.read(bytes);
            }
        }
        polled
    }
}

/// Length of a replaced rejection, which is the connection's last response.
#[inline]
fn take_over(
    phase: &ConnectionPhase,
    rewriter: &mut RejectionRewriter,
    bufs: &[io::IoSlice<'_>],
) -> Option<usize> {
    let length = if phase.is_between_requests() { rewriter.take_over(bufs)? } else { return None };
    phase.closes();
    Some(length)
}

impl<S: ClientStream> AsyncWrite for PhaseIo<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(buf)])
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.phase.looks.load(Ordering::Relaxed) {
            this.phase.looks.store(false, Ordering::Relaxed);
            if socket::has_left(this.stream.socket()) {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
        }
        ready!(socket::poll_write_all(Pin::new(&mut this.stream), cx, &mut this.rewriter.unwritten))?;
        if this.phase.is_http2() {
            this.continues.queue();
            ready!(socket::poll_write_all(Pin::new(&mut this.stream), cx, &mut this.continues.unwritten))?;
        }
        Pin::new(&mut this.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(socket::poll_write_all(Pin::new(&mut this.stream), cx, &mut this.rewriter.unwritten))?;
        this.close.poll(Pin::new(&mut this.stream), cx, this.phase.is_closing.load(Ordering::Relaxed))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.timeout.follow(this.stream.socket());
        if this.phase.is_http2() {
            ready!(socket::poll_write_all(Pin::new(&mut this.stream), cx, &mut this.continues.unwritten))?;
            let written = ready!(Pin::new(&mut this.stream).poll_write_vectored(cx, bufs))?;
            let mut left = written;
            for buf in bufs {
                let count = left.min(buf.len());
                this.continues.wrote(buf.get(..count).unwrap_or_default());
                left -= count;
            }
            return Poll::Ready(Ok(written));
        }
        match take_over(&this.phase, &mut this.rewriter, bufs) {
            Some(length) => Poll::Ready(Ok(length)),
            None => Pin::new(&mut this.stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Content type of the record that a ClientHello comes in (RFC 8446 §5.1).
const TLS_HANDSHAKE: u8 = 22;
/// How often a connection with a request under way is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
