//! The admin port: metrics, health, the JSON API and a dashboard.
//!
//! On a runtime of its own, so that it answers while the data port is saturated. `routes` maps paths to handlers and
//! stacks the layers around them; here are the bounds of its connections: those without a request make room for new
//! ones, and of those with one some are kept for health.

mod access;
mod actions;
mod assets;
mod control;
mod decisions;
mod drift;
mod error;
mod fleet;
mod history;
mod keys;
mod latency;
mod live;
mod moment;
mod openapi;
mod query;
mod requests;
mod routes;
mod slo;
mod usage;
mod verdict;
mod views;

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use bytes::Bytes;
use http::header::{CONNECTION, HeaderValue};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

pub use self::control::Control;
use self::error::AdminError;
use self::live::Live;
use crate::drift::service::Feed;
use crate::identity::KeyStore;
use crate::listener::{
    self, Acceptor, Boxed, ConnectionLimit, ConnectionLimits, HeadFault, KillSwitch, Port, PortBody, Serving,
    UserTimeout, port_body,
};
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
    /// API keys made at run time.
    pub keys: Arc<KeyStore>,
}

impl AdminState {
    fn now(&self) -> SystemTime {
        let clock = self.observer.clock;
        clock.wall(clock.now())
    }
}

/// Serves the admin port until `shutdown`; its background work is a task of `tracker`.
pub async fn serve(
    listener: TcpListener,
    admin: Arc<AdminState>,
    tracker: TaskTracker,
    shutdown: CancellationToken,
) {
    let live = Live::start(Arc::clone(&admin), tracker, shutdown.clone());
    accept(listener, &admin, shutdown, routes::router(Arc::clone(&admin), live)).await;
}

/// Serves `admin.metrics_listen` until `shutdown`.
pub async fn serve_metrics(listener: TcpListener, admin: Arc<AdminState>, shutdown: CancellationToken) {
    accept(listener, &admin, shutdown, routes::metrics_router(Arc::clone(&admin))).await;
}

async fn accept(listener: TcpListener, admin: &AdminState, shutdown: CancellationToken, router: Router) {
    let clock = admin.observer.clock;
    let limit = ConnectionLimit {
        connections: MAX_CONNECTIONS,
        name: "the admin port",
        waiting: None,
        closes_idle: true,
    };
    let acceptor = Acceptor::new(listener, limit, clock);
    let connections = TaskTracker::new();
    let limits = ConnectionLimits {
        header_timeout: HEADER_TIMEOUT,
        keep_alive: KEEP_ALIVE,
        tls_handshake_timeout: HEADER_TIMEOUT,
        is_behind_proxy: false,
    };
    let panics = admin.observer.metrics.families.process.panics.clone();
    let serving =
        Serving::new(limits, UserTimeout::new(WRITE_TIMEOUT), clock, connections.clone(), shutdown, panics);
    listener::accept_loop(acceptor, serving.clone(), Boxed::new(Service(router))).await;
    // Idle connections close at once, busy ones after their response.
    serving.closing.cancel();
    connections.close();
    let _ = tokio::time::timeout(SHUTDOWN_GRACE, connections.wait()).await;
    serving.cut_off.cancel();
}

/// What the port does with requests.
struct Service(Router);

impl Port for Service {
    fn handle(
        &self,
        request: Request<Incoming>,
        _: KillSwitch,
    ) -> Pin<Box<dyn Future<Output = Response<PortBody>> + Send + '_>> {
        let answer = self.0.clone().oneshot(request);
        Box::pin(async {
            let Ok(response) = answer.await;
            port_body(routes::finish(response))
        })
    }

    fn reject(&self, fault: HeadFault) -> Response<Bytes> {
        let mut response = Response::default();
        *response.status_mut() = match fault {
            HeadFault::UriTooLong => StatusCode::URI_TOO_LONG,
            HeadFault::TooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            HeadFault::Malformed | HeadFault::Ambiguous | HeadFault::ClearText => StatusCode::BAD_REQUEST,
        };
        response
    }

    fn refuse(&self, fault: HeadFault) -> Response<PortBody> {
        let mut response = port_body(self.reject(fault).map(Body::from));
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        response
    }

    fn panicked(&self) -> Response<PortBody> {
        port_body(AdminError::Panicked.into_response())
    }
}

/// More than [`routes`] lets have a response under way: the rest is for health.
const MAX_CONNECTIONS: usize = 80;
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// From the end of a response to the start of the next head; above the scrape intervals in use.
const KEEP_ALIVE: Duration = Duration::from_secs(75);
/// Without an acknowledgement: a scraper that stops reading would hold a page in memory and a connection.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);
