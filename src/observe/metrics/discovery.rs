//! Gauges of the sources of replicas, set on each scrape of our page.

use super::Metrics;
use super::table::DiscoveryFamilies;
use crate::fleet::discovery::SourceStatus;

impl Metrics {
    /// Sets the state of every source; those that are no longer configured keep their last values until a restart.
    pub fn set_sources(&self, sources: &[SourceStatus]) {
        let DiscoveryFamilies { targets, age, failures, failing, kept } = &self.discovery;
        for status in sources {
            let labels: [&str; 2] = [&status.pool, status.source];
            targets.set(&labels, Some(status.targets as f64));
            age.set(&labels, status.age.map(|age| age.as_secs_f64()));
            failing.set(&labels, Some(f64::from(u8::from(status.failing.is_some()))));
            kept.set(&labels, Some(status.kept as f64));
            failures.set_total(&labels, status.failures);
        }
    }
}
