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

/// Follows the slices until the task is dropped.
pub(super) async fn run(source: KubernetesSource, report: Report) {
    let mut following = Following { slices: Slices::new(source.clone()), version: None, source, report };
    let mut misses = 0_u32;
    loop {
        let reached = following.version.clone();
        let pause = match following.follow().await {
            // The server ends every watch after some minutes.
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
        let mut events = api.watch(&version).await?;
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
        // A server that does not end the watch may have forgotten it.
        tokio::time::timeout(WATCH_FOR + WATCH_GRACE, watching).await.unwrap_or(Ok(()))
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
const WATCH_GRACE: Duration = Duration::from_secs(15);
const AFTER_END: Duration = Duration::from_millis(20);
/// Doubled for each failure in a row.
const FIRST_RETRY: Duration = Duration::from_millis(500);
const MAX_RETRY: Duration = Duration::from_secs(30);
