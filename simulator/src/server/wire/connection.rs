//! The accept loop and one connection, with the faults that end it.
//!
//! Like uvicorn: HTTP/1.1 with keep-alive, an idle connection is closed after a while, a half-close is a
//! disconnect, no delay on small writes.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::server::replica::{Life, Replica};

/// A request's handle on its own connection.
#[derive(Debug, Default)]
pub(super) struct Socket {
    /// Canceled: the connection is reset.
    pub(super) reset: CancellationToken,
    /// It carries a control request, whose response must get out even when the replica "crashes".
    pub(super) is_control: AtomicBool,
}

/// Accepts until the life's listener is to close.
pub(in crate::server) async fn accept(replica: Arc<Replica>, listener: TcpListener, life: Life) {
    loop {
        // Both arms are cancel-safe.
        let accepted = tokio::select! {
            biased;
            () = life.accepting.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                replica.seen.connection();
                replica.tracker.spawn(serve(replica.clone(), stream, life.clone()));
            }
            // Out of file descriptors, mostly: others must close before it makes sense to go on.
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
    drop(listener);
    life.closed.cancel();
}

#[derive(Clone, Copy, Debug)]
enum End {
    Over,
    Reset,
    Dropped,
    Closing,
}

async fn serve(replica: Arc<Replica>, stream: TcpStream, life: Life) {
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let socket = Arc::new(Socket::default());
    let service = {
        let (replica, socket) = (replica.clone(), socket.clone());
        service_fn(move |request| super::handle(replica.clone(), socket.clone(), request))
    };
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(replica.config.keep_alive);
    let mut connection = builder.serve_connection(TokioIo::new(stream), service);
    let (mut is_spared, mut is_closing) = (false, false);
    loop {
        // The connection is polled on in the next turn; the other arms hold nothing.
        let end = tokio::select! {
            _ = &mut connection => End::Over,
            () = socket.reset.cancelled() => End::Reset,
            () = life.connections.cancelled(), if !is_spared => End::Dropped,
            () = life.closing.cancelled(), if !is_closing => End::Closing,
        };
        match end {
            End::Over => return,
            End::Reset => return reset(&connection.into_parts().io.into_inner()),
            End::Dropped if !socket.is_control.load(Ordering::Relaxed) => return,
            End::Dropped => is_spared = true,
            End::Closing => is_closing = true,
        }
        Pin::new(&mut connection).graceful_shutdown();
    }
}

/// The next close of this socket sends RST instead of FIN.
fn reset(stream: &TcpStream) {
    if let Err(error) = SockRef::from(stream).set_linger(Some(Duration::ZERO)) {
        tracing::debug!(%error, "no reset: the connection is closed in order");
    }
}

const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
