//! Configured targets as gauges, so that alerting rules need no copies of them.

use std::time::Duration;

use super::Metrics;
use crate::config::{Config, Slo};

impl Metrics {
    /// Sets the targets of a configuration; those of removed routes and pools stay until a restart.
    pub fn set_targets(&self, config: &Config) {
        let targets = &self.targets;
        targets.availability.set(config.drift.availability);
        for pool in &config.pools {
            match pool.queue_target {
                Some(target) => {
                    if let Some(gauge) = targets.queue.get_exact(&[&pool.name]) {
                        gauge.set(target.get() as f64);
                    }
                }
                None => targets.queue.remove(&[&pool.name]),
            }
        }
        for route in &config.routes {
            let slo = config.slo.get(&route.slo).copied().unwrap_or_default();
            for (bound, value) in bounds(&slo) {
                match value {
                    Some(value) => {
                        if let Some(gauge) = targets.slo.get_exact(&[&route.name, bound]) {
                            gauge.set(value.as_secs_f64());
                        }
                    }
                    None => targets.slo.remove(&[&route.name, bound]),
                }
            }
        }
    }
}

fn bounds(slo: &Slo) -> [(&'static str, Option<Duration>); 3] {
    [("ttft", slo.ttft.map(|bound| bound.base)), ("tpot", slo.tpot), ("e2e", slo.e2e)]
}
