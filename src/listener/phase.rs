//! Connection phases and deadlines.
//!
//! Reading a head may take `header_timeout` from its first byte (the first head: from accept); idling between requests
//! `keep_alive`. hyper has one timer for both, so phases are tracked here: an IO wrapper sees the first byte after an
//! idle time, the service sees the complete head, a body wrapper sees the end of the response.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Buf;
use hyper::body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::CancellationToken;

use super::Tunnel;
use super::bad_request_head::{Explain, RejectionRewriter};
use super::lingering_close::LingeringClose;
use crate::clock::{Clock, Stamp};

/// Phase of one connection, updated by its IO and its requests.
#[derive(Debug)]
pub(super) struct ConnectionPhase {
    clock: Clock,
    requests: AtomicU32,
    is_reading_head: AtomicBool,
    /// Cancelled when the HTTP/2 preface was read.
    http2: CancellationToken,
    /// Matched bytes of the preface, which may arrive in pieces; `usize::MAX` after a mismatch.
    preface: AtomicUsize,
    has_served: AtomicBool,
    is_closing: AtomicBool,
    /// Start of the current phase.
    since: AtomicU64,
    /// What became of it after a 101.
    tunnel: OnceLock<Tunnel>,
}

/// Deadlines of the two phases.
#[derive(Clone, Copy, Debug)]
pub(super) struct PhaseDeadlines {
    /// For reading a head.
    pub header: Duration,
    /// For idling between requests.
    pub idle: Duration,
}

impl ConnectionPhase {
    /// A new connection: its first head is due `header` after `accepted`.
    pub(super) fn new(clock: Clock, accepted: Stamp) -> Self {
        Self {
            clock,
            requests: AtomicU32::new(0),
            is_reading_head: AtomicBool::new(true),
            http2: CancellationToken::new(),
            preface: AtomicUsize::new(0),
            has_served: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            since: AtomicU64::new(accepted.as_nanos()),
            tunnel: OnceLock::new(),
        }
    }

    /// Waits until the tunnel that the connection became is over; returns at once if it became none.
    pub(super) async fn tunnel_over(&self) {
        if let Some(tunnel) = self.tunnel.get() {
            tunnel.0.cancelled().await;
        }
    }

    /// A head is complete: the connection is busy until the guard is dropped.
    #[must_use]
    pub(super) fn request(this: &Arc<Self>) -> Busy {
        this.requests.fetch_add(1, Ordering::Relaxed);
        this.has_served.store(true, Ordering::Relaxed);
        this.is_reading_head.store(false, Ordering::Relaxed);
        Busy(Arc::clone(this))
    }

    /// The response closes the connection while its client may still be sending.
    fn closes(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
    }

    /// Waits for the HTTP/2 preface; never returns for an HTTP/1.1 client.
    pub(super) async fn http2(&self) {
        self.http2.cancelled().await;
    }

    /// When to check again; `None` when a deadline has passed.
    pub(super) fn next_check(&self, deadlines: &PhaseDeadlines) -> Option<Stamp> {
        let now = self.clock.now();
        if self.requests.load(Ordering::Relaxed) > 0 {
            return Some(now.after(deadlines.header));
        }
        let since = Stamp::from_nanos(self.since.load(Ordering::Relaxed));
        if self.is_reading_head.load(Ordering::Relaxed) {
            return Some(since.after(deadlines.header)).filter(|at| *at > now);
        }
        // A head may begin meanwhile: check again before it can be overdue.
        Some(since.after(deadlines.idle)).filter(|at| *at > now).map(|at| at.min(now.after(deadlines.header)))
    }

    fn is_between_requests(&self) -> bool {
        self.requests.load(Ordering::Relaxed) == 0
    }

    fn read(&self, bytes: &[u8]) {
        if bytes.is_empty() || !self.is_between_requests() {
            return;
        }
        if self.http2.is_cancelled() {
            return;
        }
        if !self.has_served.load(Ordering::Relaxed) {
            self.look_for_preface(bytes);
        } else if !self.is_reading_head.swap(true, Ordering::Relaxed) {
            self.since.store(self.clock.now().as_nanos(), Ordering::Relaxed);
        }
    }

    fn look_for_preface(&self, bytes: &[u8]) {
        let matched = self.preface.load(Ordering::Relaxed);
        let Some(missing) = PREFACE.get(matched..) else { return };
        let length = bytes.len().min(missing.len());
        if bytes.get(..length) != missing.get(..length) {
            self.preface.store(usize::MAX, Ordering::Relaxed);
            return;
        }
        self.preface.store(matched + length, Ordering::Relaxed);
        if length == missing.len() {
            self.http2.cancel();
        }
    }
}

/// Keeps a connection busy with one request.
#[derive(Debug)]
pub(super) struct Busy(Arc<ConnectionPhase>);

impl Busy {
    /// This is the connection's last request.
    pub(super) fn last(&self) {
        self.0.closes();
    }

    /// Behind this response the connection is a tunnel.
    pub(super) fn becomes(&self, tunnel: Tunnel) {
        // A connection becomes one once at most.
        let _ = self.0.tunnel.set(tunnel);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.since.store(self.0.clock.now().as_nanos(), Ordering::Relaxed);
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

pin_project! {
    /// A response body that keeps its connection busy until it is dropped.
    #[derive(Debug)]
    pub struct BusyBody<B> {
        #[pin]
        body: B,
        busy: Busy,
        handed: Option<Arc<CancellationToken>>,
    }
}

impl<B> BusyBody<B> {
    /// Wraps a body; `handed` is cancelled when its last frame goes to hyper.
    pub(super) fn new(body: B, busy: Busy, handed: Option<Arc<CancellationToken>>) -> Self {
        Self { body, busy, handed }
    }
}

impl<B: Body<Data: Buf>> Body for BusyBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let polled = this.body.as_mut().poll_frame(cx);
        let is_last = matches!(polled, Poll::Ready(None)) || (polled.is_ready() && this.body.is_end_stream());
        if is_last && let Some(handed) = this.handed.take() {
            handed.cancel();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

pin_project! {
    /// Reports reads to the phase and replaces hyper's bare rejections.
    #[derive(Debug)]
    pub struct PhaseIo<S> {
        #[pin]
        stream: S,
        phase: Arc<ConnectionPhase>,
        rewriter: RejectionRewriter,
        close: LingeringClose,
    }
}

impl<S> PhaseIo<S> {
    /// Wraps a stream; `explain` makes the responses to rejected heads.
    pub(super) fn new(stream: S, phase: Arc<ConnectionPhase>, explain: Explain) -> Self {
        Self { stream, phase, rewriter: RejectionRewriter::new(explain), close: LingeringClose::default() }
    }
}

impl<S: AsyncRead> AsyncRead for PhaseIo<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        let before = buf.filled().len();
        let polled = this.stream.poll_read(cx, buf);
        if polled.is_ready() {
            this.phase.read(buf.filled().get(before..).unwrap_or_default());
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

impl<S: AsyncRead + AsyncWrite> AsyncWrite for PhaseIo<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.project();
        match take_over(this.phase, this.rewriter, &[io::IoSlice::new(buf)]) {
            Some(length) => Poll::Ready(Ok(length)),
            None => this.stream.poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut this = self.project();
        ready!(this.rewriter.poll_written(this.stream.as_mut(), cx))?;
        this.stream.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut this = self.project();
        ready!(this.rewriter.poll_written(this.stream.as_mut(), cx))?;
        this.close.poll(this.stream, cx, this.phase.is_closing.load(Ordering::Relaxed))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.project();
        match take_over(this.phase, this.rewriter, bufs) {
            Some(length) => Poll::Ready(Ok(length)),
            None => this.stream.poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// HTTP/2 client preface (RFC 9113 §3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINES: PhaseDeadlines =
        PhaseDeadlines { header: Duration::from_secs(10), idle: Duration::from_secs(75) };

    fn begun() -> ConnectionPhase {
        let clock = Clock::start();
        ConnectionPhase::new(clock, clock.now())
    }

    async fn pass(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_head_is_due_from_accept() {
        let phase = begun();
        pass(9).await;
        assert!(phase.next_check(&DEADLINES).is_some());
        pass(1).await;
        assert!(phase.next_check(&DEADLINES).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_has_longer_than_a_head() {
        let phase = Arc::new(begun());
        drop(ConnectionPhase::request(&phase));
        pass(60).await;
        assert!(phase.next_check(&DEADLINES).is_some());
        phase.read(b"POST ");
        pass(9).await;
        assert!(phase.next_check(&DEADLINES).is_some());
        pass(1).await;
        assert!(phase.next_check(&DEADLINES).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_connection_has_no_deadline_here() {
        let phase = Arc::new(begun());
        let busy = ConnectionPhase::request(&phase);
        pass(3600).await;
        assert!(phase.next_check(&DEADLINES).is_some());
        drop(busy);
        pass(75).await;
        assert!(phase.next_check(&DEADLINES).is_none());
    }
}
