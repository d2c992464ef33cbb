//! Configured targets as gauges, so that alerting rules need no copies of them.

use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use super::Metrics;
use super::table::Families;
use crate::config::view::view;
use crate::config::{Config, Slo};

impl Metrics {
    /// Sets the targets of a configuration; those of removed routes and pools stay until a restart.
    pub fn set_targets(&self, config: &Config) {
        let Families { requests, process, pools, routes, .. } = &*self.families;
        // Of what the API shows, where secrets are masked.
        let hash = format!("{:016x}", xxh3_64(view(config).to_string().as_bytes()));
        process.config_info.forget(&[]);
        process.config_info.set([&hash], Some(1.0));
        process.runbook_info.forget(&[]);
        if let Some(url) = &config.telemetry.runbook_url {
            process.runbook_info.set([url], Some(1.0));
        }
        process.availability_target.set(config.drift.availability);
        for pool in &config.pools {
            pools.queue_target.set([&pool.name], pool.queue_target.map(|target| target.get() as f64));
        }
        for route in &config.routes {
            // Counted on each scrape.
            requests.overdue.set([&route.name], Some(0.0));
            let slo = config.slo.get(&route.slo).copied().unwrap_or_default();
            for (bound, value) in bounds(&slo) {
                routes.slo.set([&route.name, bound], value.map(|value| value.as_secs_f64()));
            }
        }
    }
}

fn bounds(slo: &Slo) -> [(&'static str, Option<Duration>); 3] {
    [("ttft", slo.ttft.map(|bound| bound.base)), ("tpot", slo.tpot), ("e2e", slo.e2e)]
}
