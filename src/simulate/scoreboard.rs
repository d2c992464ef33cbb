//! The demo's view of a fleet: per replica, what the gateway's own observers saw.
//!
//! Fed from first tokens, gaps and records; read once a second. Percentiles are over the whole run, with the
//! last second's median TTFT beside them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::fleet::status::ReplicaStatus;
use crate::record::{AttemptCause, Gaps, Outcome, Record};
use crate::stats::{Counts, Histogram};

/// Counters and histograms by replica name.
#[derive(Debug, Default)]
pub struct DemoStats(Mutex<BTreeMap<Arc<str>, Tally>>);

/// One row of the table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DemoRow {
    /// Name as configured, by default `host:port`.
    pub replica: String,
    /// Requests ended since the start.
    pub requests: u64,
    /// Requests ended in the last second.
    pub recent_requests: u64,
    /// Failed requests since the start.
    pub failed: u64,
    /// Share of prompt tokens that came from the prefix cache; `None` before the first usage report.
    pub hit_rate: Option<f64>,
    /// Median TTFT since the start.
    pub ttft_p50: Option<Duration>,
    /// 99th percentile of TTFT since the start.
    pub ttft_p99: Option<Duration>,
    /// Median TTFT of the last second.
    pub recent_ttft_p50: Option<Duration>,
    /// Median inter-token latency since the start.
    pub itl_p50: Option<Duration>,
    /// 99th percentile of inter-token latency.
    pub itl_p99: Option<Duration>,
    /// Waiting requests as last scraped; `None` before the first scrape.
    pub queue: Option<u64>,
    /// This gateway's requests in flight.
    pub inflight: u64,
}

#[derive(Debug, Default)]
struct Tally {
    requests: u64,
    recent_requests: u64,
    failed: u64,
    input: u64,
    cached: u64,
    ttft: Histogram,
    recent_ttft: Histogram,
    itl: Histogram,
}

impl DemoStats {
    /// A request got its first token from `replica`.
    pub fn record_first_token(&self, replica: &Arc<str>, ttft: Duration) {
        self.with(replica, |tally| {
            tally.ttft.add(ttft, 1);
            tally.recent_ttft.add(ttft, 1);
        });
    }

    /// A stream of `replica` moved on.
    pub fn record_gaps(&self, replica: &Arc<str>, gaps: &Gaps<'_>) {
        self.with(replica, |tally| {
            for (itl, tokens) in gaps.itl() {
                tally.itl.add(itl, tokens);
            }
        });
    }

    /// A request ended. A prompt that was computed for another replica is one where it was computed.
    pub fn record_end(&self, record: &Record) {
        for leg in record.attempts.iter().filter(|attempt| attempt.cause == AttemptCause::Prefill) {
            self.with(&leg.served.replica, |tally| tally.ended(leg.error.is_some()));
        }
        let Some(served) = record.served() else { return };
        self.with(&served.replica, |tally| {
            tally.ended(record.outcome == Outcome::Failed);
            if let Some(input) = record.tokens.input {
                tally.input += input.0;
                tally.cached += record.tokens.cached.map_or(0, |cached| cached.0);
            }
        });
    }

    /// The rows of the fleet's replicas, in its order; begins a new second.
    pub fn rows(&self, fleet: &[ReplicaStatus]) -> Vec<DemoRow> {
        let mut tallies = self.0.lock();
        fleet.iter().map(|status| tallies.entry(status.replica.clone()).or_default().row(status)).collect()
    }

    fn with(&self, replica: &Arc<str>, add: impl FnOnce(&mut Tally)) {
        add(self.0.lock().entry(replica.clone()).or_default());
    }
}

impl Tally {
    fn ended(&mut self, has_failed: bool) {
        self.requests += 1;
        self.recent_requests += 1;
        self.failed += u64::from(has_failed);
    }

    fn row(&mut self, status: &ReplicaStatus) -> DemoRow {
        let quantile = |counts: &Counts, quantile| counts.quantile(quantile).map(Duration::from_secs_f64);
        let (ttft, itl) = (self.ttft.counts(), self.itl.counts());
        let row = DemoRow {
            replica: status.replica.to_string(),
            requests: self.requests,
            recent_requests: self.recent_requests,
            failed: self.failed,
            hit_rate: (self.input > 0).then(|| self.cached as f64 / self.input as f64),
            ttft_p50: quantile(&ttft, 0.5),
            ttft_p99: quantile(&ttft, 0.99),
            recent_ttft_p50: quantile(&self.recent_ttft.take(), 0.5),
            itl_p50: quantile(&itl, 0.5),
            itl_p99: quantile(&itl, 0.99),
            queue: status.signals.and_then(|signals| signals.page.waiting).map(|waiting| waiting as u64),
            inflight: status.inflight,
        };
        self.recent_requests = 0;
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::status::ReplicaState;
    use crate::observe::fixture;
    use crate::record::Gap;

    fn status(name: &str) -> ReplicaStatus {
        ReplicaStatus {
            pool: "p".into(),
            replica: name.into(),
            state: ReplicaState::Ready,
            traffic_share: 1.0,
            inflight: 3,
            ..ReplicaStatus::default()
        }
    }

    #[test]
    fn percentiles_are_of_the_run_and_the_recent_one_of_the_last_second() {
        let stats = DemoStats::default();
        stats.record_first_token(&"a".into(), Duration::from_millis(10));
        let _first_second = stats.rows(&[status("a")]);
        stats.record_first_token(&"a".into(), Duration::from_millis(100));
        let row = stats.rows(&[status("a"), status("b")]);
        let ms = |span: Option<Duration>| span.map(|s| s.as_millis());
        assert_eq!((ms(row[0].ttft_p50), ms(row[0].recent_ttft_p50)), (Some(10), Some(100)));
        assert_eq!((row[1].ttft_p50, row[1].inflight, row[1].queue), (None, 3, None));
    }

    #[test]
    fn a_prompt_counts_where_it_is_computed() {
        let (stats, mut record) = (DemoStats::default(), fixture::stream());
        let mut leg = record.attempts[0].clone();
        (leg.cause, leg.served.replica) = (AttemptCause::Prefill, "p".into());
        record.attempts.insert(0, leg);
        stats.record_end(&record);
        let served = record.served().unwrap().replica.clone();
        let rows = stats.rows(&[status("p"), status(&served)]);
        assert_eq!(rows.iter().map(|row| row.requests).collect::<Vec<_>>(), [1, 1]);
    }

    #[test]
    fn a_gap_counts_once_for_each_token_it_brought() {
        let stats = DemoStats::default();
        let gap = |ms, tokens| Gap { length: Duration::from_millis(ms), tokens };
        let gaps = [gap(90, Some(9)), gap(50, Some(1)), gap(900, None)];
        stats.record_gaps(&"a".into(), &Gaps { gaps: &gaps, late_itl: &[] });
        let row = &stats.rows(&[status("a")])[0];
        assert_eq!((row.itl_p50.unwrap().as_millis(), row.itl_p99.unwrap().as_millis()), (10, 50));
    }
}
