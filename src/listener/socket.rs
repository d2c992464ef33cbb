//! The TCP socket of a client, under TLS or bare: its options, whether its peer left, how it closes.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// A client's byte stream over TCP.
pub(super) trait ClientStream: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// The socket below.
    fn socket(&self) -> &TcpStream;
}

impl ClientStream for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }
}

impl ClientStream for TlsStream<TcpStream> {
    fn socket(&self) -> &TcpStream {
        self.get_ref().0
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
}

/// Whether the peer has closed its side, also while bytes of it are still unread.
pub(super) fn has_left(socket: &TcpStream) -> bool {
    let ready = pin!(socket.ready(Interest::READABLE));
    // Polled once, for what is known now: nobody waits for it.
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
