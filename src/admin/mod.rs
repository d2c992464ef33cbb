//! The admin port: metrics, health, the JSON API and a page that shows it.
//!
//! HTTP/1.1 on a listener and a runtime of its own, so that it answers while the data port is saturated.
//! Connections are few and bounded, writes must get on; it never holds anything that the data path waits for.

mod access;
mod config_view;
mod control;
mod patience;
mod routes;
mod views;

use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::control::{Control, Readiness};
use self::patience::Patient;
use crate::config::Secret;
use crate::drift::service::Feed;
use crate::observe::Observer;

/// What the admin port serves from.
pub struct AdminState {
    /// The gateway.
    pub control: Arc<dyn Control>,
    /// Its observers.
    pub observer: Arc<Observer>,
    /// Drift detection.
    pub drift: Arc<Feed>,
    /// Token that everything but health asks for.
    pub token: Option<Secret>,
}

/// Serves the admin port until `shutdown`; connections are tasks of `tracker`.
pub async fn serve(
    listener: TcpListener,
    admin: Arc<AdminState>,
    tracker: TaskTracker,
    shutdown: CancellationToken,
) {
    let free = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // Both arms are cancel-safe: a permit or a connection is taken whole or not at all.
        let accepted = tokio::select! {
            () = shutdown.cancelled() => return,
            accepted = async {
                let permit = Arc::clone(&free).acquire_owned().await;
                (permit, listener.accept().await)
            } => accepted,
        };
        match accepted {
            (Ok(permit), Ok((stream, _))) => {
                let connection = connection(stream, Arc::clone(&admin), shutdown.clone());
                tracker.spawn(async move {
                    connection.await;
                    drop(permit);
                });
            }
            (Ok(_), Err(error)) => {
                // Mostly no file descriptors left: they come back, and asking at once would only burn a core.
                tracing::warn!(%error, "admin port: accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
            // The semaphore is never closed.
            (Err(_), _) => return,
        }
    }
}

async fn connection(stream: TcpStream, admin: Arc<AdminState>, shutdown: CancellationToken) {
    // Only costs latency where it fails.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let admin = Arc::clone(&admin);
        async move { Ok::<_, std::convert::Infallible>(routes::answer(&admin, request).await) }
    });
    let io = TokioIo::new(Patient::new(stream, WRITE_LIMIT));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_LIMIT)
        .serve_connection(io, service);
    let mut connection = std::pin::pin!(connection);
    // A connection may be polled again after the other arm won.
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = shutdown.cancelled() => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(SHUTDOWN_LIMIT, connection).await {
                Ok(ended) => ended,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "admin connection");
    }
}

const MAX_CONNECTIONS: usize = 64;
/// From the end of a request to the end of the next one's head; above the scrape intervals in use.
const IDLE_LIMIT: Duration = Duration::from_secs(75);
const WRITE_LIMIT: Duration = Duration::from_secs(10);
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
