//! Replicas from the EndpointSlices of a Kubernetes Service.
//!
//! One list, then a watch from the list's version on; a watch that ends is taken up at the version that it had reached, and
//! one whose version the server no longer has (410) begins with a list again. Three GETs in all, which is why this is
//! no client library ([0012](../../../../docs/decisions/0012-own-endpointslice-watch.md)). What stands in the slices is
//! `slices`' affair; the cluster's address and credentials are `api`'s.

mod api;
mod error;
mod events;
mod slices;

use std::time::Duration;

use self::api::{Api, WATCH_FOR};
use self::error::ApiError;
use self::slices::Slices;
use super::report::Report;
use crate::config::KubernetesSource;
use crate::upstream::call::CallError;

/// Follows the slices until the task is dropped.
pub(super) async fn run(source: KubernetesSource, report: Report) {
    let slices = Slices::new(source.clone());
    let mut following = Following { slices, version: None, source, report, watch_for: WATCH_FOR };
    let mut misses = 0_u32;
    loop {
        let reached = following.version.clone();
        let pause = match following.follow().await {
            // The server ends every watch after [`WATCH_FOR`].
            Ok(()) => {
                misses = 0;
                AFTER_END
            }
            Err(error) => {
                if matches!(error, ApiError::Expired) {
                    tracing::debug!(service = &*following.source.service, "watch expired: listing again");
                    following.version = None;
                } else {
                    following.report.failed(&error.to_string());
                }
                let is_further = following.version.is_some() && following.version != reached;
                misses = if is_further { 1 } else { misses + 1 };
                (FIRST_RETRY * 2_u32.saturating_pow(misses.min(8) - 1)).min(MAX_RETRY)
            }
        };
        // Gateways that lost the server together do not come back together.
        tokio::time::sleep(pause.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
    }
}

struct Following {
    source: KubernetesSource,
    report: Report,
    slices: Slices,
    /// Where a watch goes on; `None` before a list.
    version: Option<String>,
    watch_for: Duration,
}

impl Following {
    /// Lists where that is needed, and watches until the watch ends.
    async fn follow(&mut self) -> Result<(), ApiError> {
        let api = Api::open(&self.source, &self.report.connector).await?;
        let version = match self.version.take() {
            Some(version) => version,
            None => self.list(&api).await?,
        };
        self.version = Some(version.clone());
        let mut events = api.watch(&version, self.watch_for).await?;
        self.report.answered(self.slices.targets());
        let watching = async {
            while let Some(event) = events.next().await? {
                if let Some(version) = event.version() {
                    self.version = Some(version.to_owned());
                }
                self.slices.apply(event);
                // Of a bookmark too: it says that the list is as good as new.
                self.report.answered(self.slices.targets());
            }
            Ok(())
        };
        // A server that does not end the watch is frozen, or has forgotten it: its host may go on answering TCP.
        let limit = self.watch_for + WATCH_GRACE;
        tokio::time::timeout(limit, watching).await.unwrap_or(Err(CallError::Timeout.into()))
    }

    async fn list(&mut self, api: &Api) -> Result<String, ApiError> {
        let mut items = Vec::new();
        let mut rest: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let mut page = api.list(rest.as_deref()).await?;
            items.append(&mut page.items);
            rest = page.metadata.rest.filter(|rest| !rest.is_empty());
            if rest.is_none() {
                self.slices.replace(items);
                self.report.answered(self.slices.targets());
                return Ok(page.metadata.resource_version);
            }
        }
        Err(ApiError::Protocol("the list has no end".into()))
    }
}

/// Pages of one list: 500 slices each, of up to a thousand endpoints.
const MAX_PAGES: usize = 100;
const WATCH_GRACE: Duration = Duration::from_secs(5);
const AFTER_END: Duration = Duration::from_millis(20);
/// Doubled for each failure in a row.
const FIRST_RETRY: Duration = Duration::from_millis(500);
const MAX_RETRY: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::config::{Endpoint, ServicePort};
    use crate::fleet::discovery::report::SourceSink;
    use crate::fleet::discovery::roster::{Found, SourceKind};
    use crate::upstream::connect::Connector;

    #[derive(Debug)]
    struct Nobody;

    impl SourceSink for Nobody {
        fn answered(self: Arc<Self>, _: SourceKind, _: Vec<Found>) {}
        fn failed(&self, _: SourceKind, _: &str) {}
        fn absent(self: Arc<Self>, _: SourceKind, _: &str) {}
        fn saw_ranks(self: Arc<Self>, _: &Endpoint, _: u32) {}
    }

    #[tokio::test]
    async fn a_server_that_says_nothing_and_does_not_end_the_watch_has_failed() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, tracker) = (listener.local_addr().unwrap(), TaskTracker::new());
        tracker.spawn(async move {
            let mut open = Vec::new();
            while let Ok((mut socket, _)) = listener.accept().await {
                let mut head = [0; 2048];
                let read = socket.read(&mut head).await.unwrap();
                assert!(String::from_utf8_lossy(&head[..read]).contains("watch=1"));
                socket.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
                open.push(socket);
            }
        });
        let (host, base_path) = (address.ip().to_string().into(), "".into());
        let source = KubernetesSource {
            namespace: "models".into(),
            service: "vllm".into(),
            port: ServicePort::Only,
            is_tls: false,
            api: Some(Endpoint { is_tls: false, host, port: address.port(), base_path }),
        };
        let connector = Connector::new(tracker).unwrap();
        let report = Report { sink: Arc::new(Nobody), kind: SourceKind::Kubernetes, connector };
        let slices = Slices::new(source.clone());
        let version = Some("7".to_owned());
        // Its end is late by the grace at once.
        let watch_for = Duration::ZERO;
        let mut following = Following { source, report, slices, version, watch_for };
        let error = following.follow().await.unwrap_err();
        assert!(error.to_string().contains("no answer in time"), "{error}");
        assert_eq!(following.version.as_deref(), Some("7"), "the next watch goes on where this one was");
    }
}
