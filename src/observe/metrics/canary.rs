//! Metrics of rollouts.

use super::Metrics;

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
    /// Exports a rollout as it is now, or removes it when it is no longer configured.
    pub fn canary(&self, rollout: &CanaryGauges<'_>, is_configured: bool) {
        let [route, pool, revision] = rollout.labels;
        let families = &self.families.canaries;
        let value = |value: f64| is_configured.then_some(value);
        for (state, is_it) in rollout.states {
            families.state.set([route, pool, revision, state], value(f64::from(u8::from(is_it))));
        }
        families.share.set(rollout.labels, value(rollout.share));
        families.shadow_share.set(rollout.labels, value(rollout.shadow_share));
        for (test, evidence) in rollout.evidence {
            families.evidence.set([route, pool, revision, test], value(*evidence));
        }
    }
}
