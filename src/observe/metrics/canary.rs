//! Metrics of rollouts.

use std::time::Duration;

use super::Metrics;
use super::drift::DeliveryResult;

/// One rollout, for its gauges.
#[derive(Clone, Debug)]
pub struct CanaryGauges<'a> {
    /// Labels `route`, `pool` and `revision`.
    pub labels: [&'a str; 3],
    /// Every state (label `state`), and whether it is the one.
    pub states: [(&'static str, bool); 4],
    /// Share of new requests, 0 to 1.
    pub share: f64,
    /// Share of new requests of which it gets copies, 0 to 1.
    pub shadow_share: f64,
    /// Evidence by test (label `test`).
    pub evidence: &'a [(&'static str, f64)],
}

impl Metrics {
    /// Exports a rollout as it is now.
    pub fn canary(&self, rollout: &CanaryGauges<'_>) {
        let [route, pool, revision] = rollout.labels;
        for (state, is_it) in rollout.states {
            self.canaries.state.set(&[route, pool, revision, state], Some(f64::from(u8::from(is_it))));
        }
        self.canaries.share.set(&rollout.labels, Some(rollout.share));
        self.canaries.shadow_share.set(&rollout.labels, Some(rollout.shadow_share));
        for (test, evidence) in rollout.evidence {
            self.canaries.evidence.set(&[route, pool, revision, test], Some(*evidence));
        }
    }

    /// A rollout is no longer configured.
    pub fn canary_gone(&self, rollout: &CanaryGauges<'_>) {
        let [route, pool, revision] = rollout.labels;
        for (state, _) in rollout.states {
            self.canaries.state.remove(&[route, pool, revision, state]);
        }
        self.canaries.share.remove(&rollout.labels);
        self.canaries.shadow_share.remove(&rollout.labels);
        for (test, _) in rollout.evidence {
            self.canaries.evidence.remove(&[route, pool, revision, test]);
        }
    }

    /// Counts a copy of a request for a canary. Labels `route`, `pool` and `revision`.
    pub fn shadow_request(&self, labels: [&str; 3], outcome: &str) {
        let [route, pool, revision] = labels;
        self.canaries.shadow_requests.get(&[route, pool, revision, outcome]).inc();
    }

    /// The first token of a copy came.
    pub fn shadow_first_token(&self, labels: [&str; 3], ttft: Duration) {
        self.canaries.shadow_ttft.get(&labels).observe(ttft.as_secs_f64());
    }

    /// Counts a breach of a bound.
    pub fn canary_breach(&self, labels: [&str; 3], reason: &str) {
        let [route, pool, revision] = labels;
        self.canaries.breaches.get(&[route, pool, revision, reason]).inc();
    }

    /// Counts an observation that the judges missed.
    pub fn canary_dropped(&self) {
        self.canaries.dropped.inc();
    }

    /// A report to the webhook ended.
    pub fn canary_webhook(&self, result: DeliveryResult) {
        self.canaries.webhook.get(&[result.as_str()]).inc();
    }
}
