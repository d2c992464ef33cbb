//! The TCP socket of a client, under TLS or bare: its options, whether its peer left, how it closes.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Buf;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// A client's byte stream over TCP.
pub trait ClientStream: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// The socket below.
    fn socket(&self) -> &TcpStream;
}

impl ClientStream for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }
}

impl ClientStream for Box<dyn ClientStream> {
    fn socket(&self) -> &TcpStream {
        (**self).socket()
    }
}

impl ClientStream for TlsStream<TcpStream> {
    fn socket(&self) -> &TcpStream {
        self.get_ref().0
    }
}

/// Longest time without an acknowledgement of what was sent (TCP_USER_TIMEOUT). May change while connections are open.
#[derive(Clone, Debug)]
pub struct UserTimeout(Arc<AtomicU64>);

impl UserTimeout {
    /// So long, to the millisecond.
    pub fn new(timeout: Duration) -> Self {
        let this = Self(Arc::default());
        this.set(timeout);
        this
    }

    /// As last set.
    pub fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }

    /// Holds for what is written from now on.
    pub fn set(&self, timeout: Duration) {
        self.0.store(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// The [`UserTimeout`] of one socket.
#[derive(Debug)]
pub(super) struct FollowedTimeout {
    wanted: UserTimeout,
    applied: Duration,
}

impl FollowedTimeout {
    /// Of a socket that was just configured with it.
    pub(super) fn new(wanted: UserTimeout) -> Self {
        Self { applied: wanted.get(), wanted }
    }

    /// Before a write: one that waits keeps the timeout that it began with.
    #[inline]
    pub(super) fn follow(&mut self, socket: &TcpStream) {
        let wanted = self.wanted.get();
        if wanted != self.applied {
            let _ = SockRef::from(socket).set_tcp_user_timeout(Some(wanted));
            self.applied = wanted;
        }
    }
}

/// Sets the options of an accepted socket. Best effort: without them a vanished client is noticed later.
pub(super) fn configure(socket: &TcpStream, user_timeout: Duration) {
    // Nagle's algorithm would delay the first event.
    let _ = socket.set_nodelay(true);
    let socket = SockRef::from(socket);
    // A client whose machine vanished sends no FIN, and its request would go on burning GPU time.
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    let _ = socket.set_tcp_keepalive(&keepalive);
    let _ = socket.set_tcp_user_timeout(Some(user_timeout));
    // Where the kernel takes megabytes ahead, a client that reads slowly and steadily shows no progress for minutes: a stall.
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_notsent_lowat(UNSENT);
}

/// Writes all that is left of `unwritten`.
#[inline]
pub(super) fn poll_write_all<S: AsyncWrite>(
    mut stream: Pin<&mut S>,
    cx: &mut Context<'_>,
    unwritten: &mut impl Buf,
) -> Poll<io::Result<()>> {
    while unwritten.has_remaining() {
        let count = ready!(stream.as_mut().poll_write(cx, unwritten.chunk()))?;
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        unwritten.advance(count);
    }
    Poll::Ready(Ok(()))
}

/// Whether the peer has closed its side, also while bytes of it are still unread.
pub(super) fn has_left(socket: &TcpStream) -> bool {
    let ready = pin!(socket.ready(Interest::READABLE));
    // Polled once, for what is known now, without waiting.
    match ready.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(ready)) => ready.is_read_closed() || ready.is_error(),
        Poll::Ready(Err(_)) => true,
        Poll::Pending => false,
    }
}

/// Makes the close a reset (RST) instead of an orderly end (FIN).
pub(super) fn reset_on_close(socket: &TcpStream) {
    let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
}

const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;
/// Bytes that wait in the kernel for the client to take those before them.
#[cfg(target_os = "linux")]
const UNSENT: u32 = 128 * 1024;

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_write_that_nobody_reads_fails_in_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        configure(&stream, Duration::from_millis(200));
        let page = vec![0; 64 * 1024 * 1024];
        let written = tokio::time::timeout(Duration::from_secs(30), stream.write_all(&page)).await;
        assert_eq!(written.expect("in time").unwrap_err().kind(), ErrorKind::TimedOut);
    }
}
