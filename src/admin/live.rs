//! `/api/events`: the verdict once a second, as server-sent events.
//!
//! Computed once for all subscribers and only while there are any. Subscribers are limited; one that does not read loses
//! events, not memory: it holds one. Streams end with the admin port, and with the token that they were opened with.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method};
use http_body_util::channel::Channel;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::error::AdminError;
use super::query::Admin;
use super::{AdminState, access, slo};
use crate::background::boxed;

pub(super) struct Live {
    events: watch::Sender<Bytes>,
    subscribers: Arc<Semaphore>,
    tracker: TaskTracker,
    shutdown: CancellationToken,
}

impl Live {
    /// Starts to publish until `shutdown`.
    pub(super) fn start(
        admin: Arc<AdminState>,
        tracker: TaskTracker,
        shutdown: CancellationToken,
    ) -> Arc<Self> {
        let live = Arc::new(Self {
            events: watch::Sender::default(),
            subscribers: Arc::new(Semaphore::new(MAX_SUBSCRIBERS)),
            tracker: tracker.clone(),
            shutdown,
        });
        tracker.spawn(boxed(Arc::clone(&live).publish(admin)));
        live
    }

    async fn publish(self: Arc<Self>, admin: Arc<AdminState>) {
        while self.shutdown.run_until_cancelled(tokio::time::sleep(INTERVAL)).await.is_some() {
            if self.events.receiver_count() > 0 {
                self.events.send_replace(event(&admin));
            }
        }
    }
}

/// A stream of events, the first at once. It ends where its request would be refused by now: a reload may change the token.
pub(super) async fn events(
    Extension(live): Extension<Arc<Live>>,
    State(admin): Admin,
    headers: HeaderMap,
) -> Result<Response, AdminError> {
    let permit = Arc::clone(&live.subscribers).try_acquire_owned().map_err(|_| AdminError::Overloaded)?;
    let mut events = live.events.subscribe();
    let (mut sender, body) = Channel::<Bytes>::new(1);
    let (first, shutdown) = (event(&admin), live.shutdown.clone());
    live.tracker.spawn(boxed(async move {
        let forward = async {
            let mut next = first;
            let may_read = || access::check(&admin.control.config().admin, &Method::GET, &headers).is_ok();
            while sender.send_data(next).await.is_ok() && events.changed().await.is_ok() && may_read() {
                next = events.borrow_and_update().clone();
            }
        };
        shutdown.run_until_cancelled(forward).await;
        drop(permit);
    }));
    Ok(([(CONTENT_TYPE, "text/event-stream")], Body::new(body)).into_response())
}

fn event(admin: &AdminState) -> Bytes {
    // A struct of strings and numbers is always JSON.
    let verdict = serde_json::to_string(&slo::summary(admin)).unwrap_or_default();
    format!("event: slo\ndata: {verdict}\n\n").into()
}

const INTERVAL: Duration = Duration::from_secs(1);
const MAX_SUBSCRIBERS: usize = 16;
