//! Metrics of pools that autoscalers read.

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
    /// Exports a pool as it is now; `None` where it is no longer configured.
    pub fn pool(&self, pool: &str, gauges: Option<&PoolGauges>) {
        self.scale.desired.set(&[pool], gauges.map(|gauges| gauges.desired));
        self.scale.predicted_ttft.set(&[pool], gauges.and_then(|gauges| gauges.predicted_ttft));
        self.scale.waiting.set(&[pool], gauges.map(|gauges| gauges.waiting));
    }
}
