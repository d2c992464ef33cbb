//! A list of objects, kept up to date.
//!
//! One list, then a watch from the list's version on; a watch that ends is taken up at the version that it had reached. It begins
//! with a list again where the server no longer has that version (410), refuses it twice, or goes back behind it: one that was
//! restored from a backup does.

use std::time::Duration;

use serde::de::DeserializeOwned;

use super::api::{Api, WATCH_FOR};
use super::error::ApiError;
use super::events::{Event, Reached};
use super::object::Objects;
use crate::clock::doubled;
use crate::config::Endpoint;
use crate::upstream::call::CallError;
use crate::upstream::connect::Connector;

/// What the objects of one list are followed for.
pub(super) trait Collection {
    type Object: DeserializeOwned;

    /// There are these, and no others.
    fn changed(&mut self, objects: &Objects<Self::Object>);

    /// It is being watched, and what was taken in is as good as a new list.
    fn is_current(&self);

    /// The server gives no answer: what is known stays.
    fn failed(&self, error: &str);
}

/// Keeps the objects of a list up to date.
pub(super) struct Watching<'w, C: Collection> {
    server: Option<&'w Endpoint>,
    /// Of the list, with its selector.
    path: String,
    connector: &'w Connector,
    collection: C,
    objects: Objects<C::Object>,
    /// Where a watch goes on; `None` before a list.
    version: Option<String>,
    /// Since the last event.
    refusals: u32,
    misses: u32,
    /// Watches in a row that ended in order and brought nothing.
    empty: u32,
    watch_for: Duration,
}

impl<'w, C: Collection> Watching<'w, C> {
    /// Of the server of the cluster where none is given.
    pub(super) fn new(
        server: Option<&'w Endpoint>,
        path: String,
        connector: &'w Connector,
        collection: C,
    ) -> Self {
        Self {
            server,
            path,
            connector,
            collection,
            objects: Objects::new(),
            version: None,
            refusals: 0,
            misses: 0,
            empty: 0,
            watch_for: WATCH_FOR,
        }
    }

    /// Watches until it is dropped.
    pub(super) async fn run(mut self) {
        loop {
            let pause = match self.follow().await {
                // The server ends every watch after [`WATCH_FOR`]; one that ends them at once is asked less and less often.
                Ok(()) => {
                    (self.refusals, self.misses) = (0, 0);
                    self.empty = self.empty.saturating_add(1);
                    doubled(AFTER_END, self.empty - 1, MAX_AFTER_END)
                }
                Err(error) => {
                    self.missed(&error);
                    doubled(FIRST_RETRY, self.misses.saturating_sub(1), MAX_RETRY)
                }
            };
            // Gateways that lost the server together do not come back together.
            tokio::time::sleep(pause.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
        }
    }

    /// Decides whether the next watch goes on where this one was.
    fn missed(&mut self, error: &ApiError) {
        self.misses += 1;
        self.refusals += u32::from(error.is_refusal());
        let is_expired = matches!(error, ApiError::Expired);
        if is_expired && self.refusals < MAX_REFUSALS {
            // The server is there: however long it was away, what it has now is asked for at once.
            self.misses = self.refusals;
            tracing::debug!(path = self.path, "watch expired: listing again");
        } else {
            self.collection.failed(&error.to_string());
        }
        if is_expired || (error.is_refusal() && self.refusals >= MAX_REFUSALS) {
            self.version = None;
        }
    }

    /// Lists where that is needed, and watches until the watch ends.
    async fn follow(&mut self) -> Result<(), ApiError> {
        let api = Api::open(self.server, &self.path, self.connector).await?;
        let version = match self.version.take() {
            Some(version) => version,
            None => self.list(&api).await?,
        };
        self.version = Some(version.clone());
        let mut events = api.watch(&version, self.watch_for).await?;
        self.collection.is_current();
        // A server that does not end the watch is frozen, or has forgotten it: its host may go on answering TCP.
        let limit = self.watch_for + WATCH_GRACE;
        let watching = async {
            while let Some(Reached { version, event }) = events.next::<C::Object>().await? {
                if let Some(version) = version {
                    if self.version.as_deref().is_some_and(|reached| is_before(&version, reached)) {
                        return Err(ApiError::Expired);
                    }
                    self.version = Some(version);
                }
                (self.refusals, self.misses, self.empty) = (0, 0, 0);
                if let Some(event) = event {
                    self.take(event);
                }
                // Of a bookmark too: with it the list is as good as new.
                self.collection.is_current();
            }
            Ok(())
        };
        tokio::time::timeout(limit, watching).await.unwrap_or(Err(CallError::Timeout.into()))
    }

    fn take(&mut self, event: Event<C::Object>) {
        match event {
            Event::Changed(name, object) => self.objects.insert(name, object),
            Event::Deleted(name) => self.objects.remove(&name),
        };
        self.collection.changed(&self.objects);
    }

    async fn list(&mut self, api: &Api) -> Result<String, ApiError> {
        let mut objects = Objects::new();
        let mut rest: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let page = api.list(rest.as_deref(), &mut objects).await?;
            rest = page.rest.filter(|rest| !rest.is_empty());
            if rest.is_none() {
                self.objects = objects;
                self.collection.changed(&self.objects);
                return Ok(page.resource_version);
            }
        }
        Err(ApiError::Protocol("the list has no end".into()))
    }
}

/// Of two versions, where they are numbers, as an API server's are.
fn is_before(version: &str, reached: &str) -> bool {
    let number = |version: &str| version.parse::<u64>().ok();
    number(version).zip(number(reached)).is_some_and(|(version, reached)| version < reached)
}

/// Refusals in a row with which a version is given up: one may be a server that starts or is busy.
const MAX_REFUSALS: u32 = 2;
/// Pages of one list: 500 objects each; a slice has up to a thousand endpoints.
const MAX_PAGES: usize = 100;
const WATCH_GRACE: Duration = Duration::from_secs(5);
/// Doubled for each watch in a row that ended in order and brought nothing.
const AFTER_END: Duration = Duration::from_millis(20);
const MAX_AFTER_END: Duration = Duration::from_secs(1);
/// Doubled for each failure in a row.
const FIRST_RETRY: Duration = Duration::from_millis(500);
const MAX_RETRY: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::fleet::discovery::kubernetes::slices::Slice;

    struct Nobody;

    impl Collection for Nobody {
        type Object = Slice;

        fn changed(&mut self, _: &Objects<Slice>) {}
        fn is_current(&self) {}
        fn failed(&self, _: &str) {}
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
        let connector = Connector::new(tracker).unwrap();
        let (host, base_path) = (address.ip().to_string().into(), "".into());
        let server = Endpoint { is_tls: false, host, port: address.port(), base_path };
        let mut following = Watching::new(Some(&server), "/slices?".into(), &connector, Nobody);
        following.version = Some("7".to_owned());
        // Its end is late by the grace at once.
        following.watch_for = Duration::ZERO;
        let error = following.follow().await.unwrap_err();
        assert!(error.to_string().contains("no answer in time"), "{error}");
        assert_eq!(following.version.as_deref(), Some("7"), "the next watch goes on where this one was");
    }
}
