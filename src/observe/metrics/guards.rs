//! Gauges that count something for as long as a value lives.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::IntGauge;

use super::Metrics;
use super::table::Families;
use crate::clock::Stamp;
use crate::observe::overdue::{Late, Overdue};
use crate::observe::slo::Missed;
use crate::record::Served;

impl Metrics {
    /// Counts a request as in flight while the guard lives.
    #[must_use]
    pub fn request_inflight(&self) -> GaugeGuard {
        GaugeGuard::new(&self.families.requests.inflight, 1)
    }

    /// Counts a client connection as open while the guard lives.
    #[must_use]
    pub fn open_connection(&self) -> GaugeGuard {
        GaugeGuard::new(&self.families.process.open_connections, 1)
    }

    /// Counts a request and the bytes of its body as queued while the guard lives.
    #[must_use]
    pub fn queued(&self, bytes: usize) -> QueuedGuard {
        let requests = &self.families.requests;
        QueuedGuard {
            _request: GaugeGuard::new(&requests.queued, 1),
            _bytes: GaugeGuard::new(&requests.queued_bytes, i64::try_from(bytes).unwrap_or(i64::MAX)),
            since: self.waiting.enter(self.clock.now()),
            waiting: self.waiting.clone(),
        }
    }
}

/// Adds to a gauge until it is dropped.
pub struct GaugeGuard {
    gauge: IntGauge,
    share: i64,
}

impl GaugeGuard {
    fn new(gauge: &IntGauge, share: i64) -> Self {
        gauge.add(share);
        Self { gauge: gauge.clone(), share }
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.gauge.sub(self.share);
    }
}

/// One request in the queue.
pub struct QueuedGuard {
    _request: GaugeGuard,
    _bytes: GaugeGuard,
    since: Stamp,
    waiting: Waiting,
}

impl Drop for QueuedGuard {
    fn drop(&mut self) {
        self.waiting.leave(self.since);
    }
}

/// When those that wait in the queue came, and how many came then.
#[derive(Clone, Default)]
pub(super) struct Waiting(Arc<Mutex<BTreeMap<Stamp, usize>>>);

impl Waiting {
    /// How long the oldest has waited.
    pub(super) fn longest(&self, now: Stamp) -> Duration {
        self.0.lock().first_key_value().map_or(Duration::ZERO, |(since, _)| now.since(*since))
    }

    fn enter(&self, now: Stamp) -> Stamp {
        *self.0.lock().entry(now).or_default() += 1;
        now
    }

    fn leave(&self, since: Stamp) {
        if let Entry::Occupied(mut same) = self.0.lock().entry(since) {
            *same.get_mut() -= 1;
            if *same.get() == 0 {
                same.remove();
            }
        }
    }
}

/// Counts overdue requests by route, each of which has its series, and sets how late replicas are.
pub(super) fn count_overdue(overdue: &Overdue, families: &Families, now: Stamp) {
    let routes = overdue.by_route(now);
    let waiting = |late: &&Late| late.waits_for.is_some();
    let count = |route: &str| routes.get(route).map_or(0, |late| late.iter().filter(waiting).count());
    families.requests.overdue.set_all(|[route]| count(route) as f64);
    let mut longest: HashMap<(&str, &str), Duration> = HashMap::new();
    for late in routes.values().flatten().filter(|late| late.waits_for == Some(Missed::Ttft)) {
        let Some(Served { pool, replica, .. }) = late.asked.as_deref() else { continue };
        let by = longest.entry((pool, replica)).or_default();
        *by = (*by).max(late.by);
    }
    for ((pool, replica), by) in longest {
        families.replicas.overdue.set([pool, replica], Some(by.as_secs_f64()));
    }
}
