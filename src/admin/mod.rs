//! The admin port: metrics, health, the JSON API and a dashboard.
//!
//! HTTP/1.1 on a listener and a runtime of its own, so that it answers while the data port is saturated. `routes` maps
//! paths to handlers and stacks the layers around them; here is the listener: a bounded number of connections, each of
//! which has to send heads and take responses in time.

mod access;
mod actions;
mod assets;
mod canaries;
mod config_view;
mod control;
mod drift;
mod error;
mod latency;
mod live;
mod openapi;
mod replicas;
mod requests;
mod routes;
mod scale;
mod slo;
mod verdict;
mod views;

use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceBuilder;

pub use self::control::{Control, Readiness};
use self::live::Live;
use crate::drift::service::Feed;
use crate::listener::{Acceptor, ConnectionLimit};
use crate::observe::Observer;
use crate::rollout::service as rollouts;

/// State of every handler.
pub struct AdminState {
    /// The gateway.
    pub control: Arc<dyn Control>,
    /// Its observers.
    pub observer: Arc<Observer>,
    /// Drift detection.
    pub drift: Arc<Feed>,
    /// Canaries.
    pub rollouts: Arc<rollouts::Feed>,
    /// Replicas that each pool should have.
    pub scale: Arc<crate::autoscale::service::Board>,
}

/// Serves the admin port until `shutdown`; connections are tasks of `tracker`.
pub async fn serve(
    listener: TcpListener,
    admin: Arc<AdminState>,
    tracker: TaskTracker,
    shutdown: CancellationToken,
) {
    let limit = ConnectionLimit { connections: MAX_CONNECTIONS, name: "the admin port", waiting: None };
    let mut acceptor = Acceptor::new(listener, limit, admin.observer.clock());
    let live = Live::start(Arc::clone(&admin), tracker.clone(), shutdown.clone());
    let service = ServiceBuilder::new().map_response(routes::finish).service(routes::router(admin, live));
    let service = TowerToHyperService::new(service);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(IDLE_TIMEOUT);
    let (draining, cut_off) = (GracefulShutdown::new(), CancellationToken::new());
    while let Some((stream, permit)) = shutdown.run_until_cancelled(acceptor.next()).await {
        // Best effort: a failure costs latency, or a connection held for longer.
        let _ = stream.set_nodelay(true);
        let _ = bound_writes(&stream, WRITE_TIMEOUT);
        let connection = draining.watch(http.serve_connection(TokioIo::new(stream), service.clone()));
        let cut_off = cut_off.clone();
        tracker.spawn(async move {
            if let Some(Err(error)) = cut_off.run_until_cancelled(connection).await {
                tracing::debug!(%error, "admin connection");
            }
            drop(permit);
        });
    }
    drop(acceptor);
    // Idle connections close at once, busy ones after their response.
    let _ = tokio::time::timeout(SHUTDOWN_GRACE, draining.shutdown()).await;
    cut_off.cancel();
}

/// Breaks a connection whose peer acknowledges nothing, or keeps its window closed, for `timeout`. hyper has no timeout
/// for writes, and a scraper that stops reading would hold a page in memory and one of few connections.
fn bound_writes(stream: &TcpStream, timeout: Duration) -> std::io::Result<()> {
    SockRef::from(stream).set_tcp_user_timeout(Some(timeout))
}

const MAX_CONNECTIONS: usize = 64;
/// From the end of a request to the end of the next one's head; above the scrape intervals in use.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn a_write_that_nobody_reads_fails_in_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        bound_writes(&stream, Duration::from_millis(200)).unwrap();
        let page = vec![0; 64 * 1024 * 1024];
        let written = tokio::time::timeout(Duration::from_secs(30), stream.write_all(&page)).await;
        assert_eq!(written.expect("in time").unwrap_err().kind(), ErrorKind::TimedOut);
    }
}
