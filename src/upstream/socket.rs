//! A socket to an engine, and its options.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

/// A socket, with TLS for https. Boxed: a TLS session is a kilobyte, and each future on the way of a socket has room for it.
pub type Stream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// First events must not wait for Nagle, and a vanished host must be noticed between requests.
pub(super) fn tune(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let probe = TcpKeepalive::new().with_time(Duration::from_secs(15)).with_interval(Duration::from_secs(5));
    let socket = SockRef::from(socket);
    socket.set_tcp_keepalive(&probe)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    Ok(())
}

/// A host that acknowledges nothing for so long is gone, whether it is sent a request or a keep-alive (RFC 5482). Linux alone would
/// try for 15 minutes.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED: Duration = Duration::from_secs(20);
