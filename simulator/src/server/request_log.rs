//! The last requests that arrived, with digests of their bodies, for tests of what a gateway sent.
//!
//! Every inference request is entered once and closed by the drop of its [`Visit`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;
use sha2::{Digest, Sha256};

/// State of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestState {
    /// Not answered in full yet.
    InFlight,
    /// The whole response was handed to the socket.
    Served,
    /// The client left, or a fault broke the response off.
    Canceled,
}

/// One request as it arrived.
#[derive(Clone, Debug, Serialize)]
pub struct LoggedRequest {
    /// Counts the requests of this replica, from 0.
    pub sequence: u64,
    /// Path of the URL, without the query.
    pub path: String,
    /// Headers in the order of their arrival, names in lower case.
    pub headers: Vec<(String, String)>,
    /// SHA-256 of the body in hex.
    pub body_sha256: String,
    /// Length of the body.
    pub body_bytes: usize,
    /// Status of the response, once there is one.
    pub status: Option<u16>,
    /// What became of it.
    pub outcome: RequestState,
}

/// Counters since the start and the last requests.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SimStats {
    /// Inference requests.
    pub requests: u64,
    /// Of those, fully served.
    pub served: u64,
    /// Of those, canceled or broken off.
    pub canceled: u64,
    /// Of those, not over yet.
    pub in_flight: u64,
    /// Connections accepted.
    pub connections: u64,
    /// All requests by path, scrapes and health checks included.
    pub by_path: BTreeMap<String, u64>,
    /// The last inference requests, oldest first.
    pub last: Vec<LoggedRequest>,
}

/// The log of one replica.
#[derive(Debug, Default)]
pub(super) struct RequestLog(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    stats: SimStats,
    last: VecDeque<LoggedRequest>,
}

const MAX_LOGGED: usize = 256;

/// Distinct paths that are counted.
const MAX_PATHS: usize = 64;

impl RequestLog {
    pub(super) fn connection(&self) {
        self.0.lock().stats.connections += 1;
    }

    pub(super) fn path(&self, path: &str) {
        let by_path = &mut self.0.lock().stats.by_path;
        if by_path.len() < MAX_PATHS || by_path.contains_key(path) {
            *by_path.entry(path.to_owned()).or_default() += 1;
        }
    }

    pub(super) fn enter(self: &Arc<Self>, head: &http::request::Parts, body: &[u8]) -> Visit {
        let headers = head.headers.iter().map(|(name, value)| {
            (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        });
        let headers = headers.collect();
        let body_sha256 = hex(&Sha256::digest(body));
        let mut inner = self.0.lock();
        let sequence = inner.stats.requests;
        inner.stats.requests += 1;
        inner.stats.in_flight += 1;
        if inner.last.len() == MAX_LOGGED {
            inner.last.pop_front();
        }
        inner.last.push_back(LoggedRequest {
            sequence,
            path: head.uri.path().to_owned(),
            headers,
            body_sha256,
            body_bytes: body.len(),
            status: None,
            outcome: RequestState::InFlight,
        });
        Visit { log: self.clone(), sequence, served: false }
    }

    pub(super) fn stats(&self) -> SimStats {
        let inner = self.0.lock();
        SimStats { last: inner.last.iter().cloned().collect(), ..inner.stats.clone() }
    }
}

/// A request inside the replica; its drop closes the entry.
#[derive(Debug)]
pub(super) struct Visit {
    log: Arc<RequestLog>,
    sequence: u64,
    served: bool,
}

impl Visit {
    pub(super) fn status(&self, status: u16) {
        if let Some(seen) = self.log.0.lock().last.iter_mut().find(|s| s.sequence == self.sequence) {
            seen.status = Some(status);
        }
    }

    /// The last byte was handed to the socket.
    pub(super) fn served(&mut self) {
        self.served = true;
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut inner = self.log.0.lock();
        inner.stats.in_flight -= 1;
        let outcome = if self.served {
            inner.stats.served += 1;
            RequestState::Served
        } else {
            inner.stats.canceled += 1;
            RequestState::Canceled
        };
        if let Some(seen) = inner.last.iter_mut().find(|s| s.sequence == self.sequence) {
            seen.outcome = outcome;
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
