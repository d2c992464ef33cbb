//! What every router can count of its own: requests in flight, and the work of those without a first token.
//!
//! Work is in the unit of the router that notes it.

use std::collections::HashMap;

use crate::replay::RequestId;
use crate::time::Stamp;

/// Own requests, by replica.
#[derive(Debug)]
pub(super) struct Ledger {
    replicas: Vec<Account>,
    requests: HashMap<RequestId, Entry>,
}

/// The sums of one replica.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Account {
    pub(super) inflight: usize,
    /// Work of requests without a first token.
    pub(super) pending: f64,
}

/// One request in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) replica: usize,
    pub(super) sent: Stamp,
    pub(super) work: f64,
    is_pending: bool,
}

impl Ledger {
    pub(super) fn new(replicas: usize) -> Self {
        Self { replicas: vec![Account::default(); replicas], requests: HashMap::new() }
    }

    pub(super) fn accounts(&self) -> &[Account] {
        &self.replicas
    }

    pub(super) fn note(&mut self, request: RequestId, replica: usize, sent: Stamp, work: f64) {
        let account = &mut self.replicas[replica];
        account.inflight += 1;
        account.pending += work;
        self.requests.insert(request, Entry { replica, sent, work, is_pending: true });
    }

    /// Takes the request's work off its replica; returns what was noted.
    pub(super) fn first_token(&mut self, request: RequestId) -> Option<Entry> {
        let entry = self.requests.get_mut(&request)?;
        if std::mem::take(&mut entry.is_pending) {
            self.replicas[entry.replica].pending -= entry.work;
        }
        Some(*entry)
    }

    pub(super) fn end(&mut self, request: RequestId) {
        self.first_token(request);
        let Some(entry) = self.requests.remove(&request) else { return };
        let account = &mut self.replicas[entry.replica];
        account.inflight -= 1;
        if account.inflight == 0 {
            // Sums of floats drift; an idle replica has no work.
            *account = Account::default();
        }
    }

    /// The replica with the fewest requests, the first of equals.
    pub(super) fn fewest(&self) -> usize {
        let fewest = self.replicas.iter().enumerate().min_by_key(|(_, account)| account.inflight);
        fewest.map_or(0, |(replica, _)| replica)
    }
}
