//! What every router can count of its own: requests in flight, and those that have no first token yet.
//!
//! A yardstick notes a placement with the work that it takes it for, in its own unit; the ledger gives the sums back
//! and drops the work at the first token and the request at its end.

use std::collections::HashMap;

use crate::clock::Stamp;
use crate::simulate::replay::RequestId;

/// Own requests by replica.
#[derive(Debug)]
pub(super) struct Ledger {
    replicas: Vec<Account>,
    requests: HashMap<RequestId, Entry>,
}

/// One replica.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Account {
    /// Requests in flight.
    pub(super) inflight: usize,
    /// Work of those without a first token.
    pub(super) pending: f64,
}

/// One request in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) replica: usize,
    pub(super) placed: Stamp,
    /// Counts until the first token.
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

    pub(super) fn place(&mut self, request: RequestId, replica: usize, placed: Stamp, work: f64) {
        let account = &mut self.replicas[replica];
        account.inflight += 1;
        account.pending += work;
        self.requests.insert(request, Entry { replica, placed, work, is_pending: true });
    }

    /// The first token came; what was noted at the placement.
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
            // Sums of floats drift; an idle replica has nothing.
            *account = Account::default();
        }
    }

    /// The replica with the fewest requests, the first of equals.
    pub(super) fn fewest(&self) -> usize {
        let least = self.replicas.iter().enumerate().min_by_key(|(_, account)| account.inflight);
        least.map_or(0, |(replica, _)| replica)
    }
}
