//! Metrics of pools that autoscalers read, and of routes that degrade.

use super::Metrics;

/// One pool, for its gauges.
#[derive(Clone, Copy, Debug)]
pub struct PoolGauges {
    /// Replicas to ask for.
    pub desired: f64,
    /// TTFT that a mean request would meet now, in seconds.
    pub predicted_ttft: Option<f64>,
    /// Requests that wait, in the gateway and at the engines, for each ready replica.
    pub waiting: f64,
}

impl Metrics {
    /// Exports whether a route degrades; `None` where it is no longer configured.
    pub fn degrade_active(&self, route: &str, is_on: Option<bool>) {
        self.degrade.active.set(&[route], is_on.map(|is_on| f64::from(u8::from(is_on))));
    }

    /// A route begins to degrade, or ends.
    pub fn degrade_changed(&self, route: &str, state: &'static str) {
        self.degrade.transitions.get(&[route, state]).inc();
    }

    /// A request moved from one route to another.
    pub fn degraded(&self, route: &str, to: &str) {
        self.degrade.requests.get(&[route, to]).inc();
    }

    /// Exports a pool as it is now; `None` where it is no longer configured.
    pub fn pool(&self, pool: &str, gauges: Option<&PoolGauges>) {
        self.scale.desired.set(&[pool], gauges.map(|gauges| gauges.desired));
        self.scale.predicted_ttft.set(&[pool], gauges.and_then(|gauges| gauges.predicted_ttft));
        self.scale.waiting.set(&[pool], gauges.map(|gauges| gauges.waiting));
    }
}
