//! Configured targets as gauges, so that alerting rules need no copies of them.

use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use super::Metrics;
use super::declare::Handle as _;
use super::table::Families;
use crate::config::view::view;
use crate::config::{Config, Slo};
use crate::fleet::status::ReplicaState;

impl Metrics {
    /// Sets the targets of a configuration; those of routes and pools that it does not have leave the page.
    pub fn set_targets(&self, config: &Config) {
        let Families { requests, process, pools, routes, .. } = &*self.families;
        // No page shows the moment between.
        let _one_at_a_time = self.rendering.lock();
        // Of what the API shows, where secrets are masked.
        let hash = format!("{:016x}", xxh3_64(view(config).to_string().as_bytes()));
        process.config_info.forget(&[]);
        process.config_info.set([&hash], Some(1.0));
        process.runbook_info.forget(&[]);
        if let Some(url) = &config.telemetry.runbook_url {
            process.runbook_info.set([url], Some(1.0));
        }
        process.availability_target.set(config.drift.availability);
        pools.queue_target.forget(&[]);
        pools.replicas.forget(&[]);
        for pool in &config.pools {
            pools.queue_target.set([&pool.name], pool.queue_target.map(|target| target.get() as f64));
            for state in ReplicaState::ALL {
                // Counted on each scrape.
                pools.replicas.set([&pool.name, state.as_str()], Some(0.0));
            }
        }
        routes.slo.forget(&[]);
        requests.overdue.forget(&[]);
        for route in &config.routes {
            // Counted on each scrape.
            requests.overdue.set([&route.name], Some(0.0));
            let slo = config.slo.get(&route.slo).copied().unwrap_or_default();
            for (bound, value) in bounds(&slo) {
                routes.slo.set([&route.name, bound], value.map(|value| value.as_secs_f64()));
            }
        }
    }

    /// Sets when the first certificate of the data port's file expires, since 1970; a file that was replaced leaves the page.
    pub fn set_certificate(&self, certificate: Option<(&str, Duration)>) {
        // No page shows the moment between.
        let _one_at_a_time = self.rendering.lock();
        let family = &self.families.process.certificate_expiry;
        family.forget(&[]);
        if let Some((file, at)) = certificate {
            family.set([file], Some(at.as_secs_f64()));
        }
    }
}

fn bounds(slo: &Slo) -> [(&'static str, Option<Duration>); 3] {
    [("ttft", slo.ttft.map(|bound| bound.base)), ("tpot", slo.tpot), ("e2e", slo.e2e)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::config::check::check_str;
    use crate::fleet::discovery::SourceStatus;

    const CONFIG: &str = "[[pool]]\nname = \"main\"\nreplicas = [\"http://127.0.0.1:1\"]\n\n[[route]]\nmodel = \"m\"\npools = [\"main\"]\n";

    fn metrics() -> Metrics {
        let config = check_str("f.toml", CONFIG, &|_| None).unwrap();
        Metrics::new(&config, Clock::start())
    }

    #[test]
    fn a_source_that_is_configured_no_more_fails_no_more() {
        let metrics = metrics();
        let failing = |pool: &str| SourceStatus {
            pool: pool.into(),
            source: "file",
            targets: 0,
            age: None,
            failing: Some((Duration::from_secs(1), "no such file".into())),
            failures: 3,
            kept: 0,
        };
        metrics.set_sources(&[failing("main"), failing("retired")]);
        metrics.set_sources(&[failing("main")]);
        let page = metrics.render(&[]);
        assert!(!page.contains("retired"), "{page}");
        for series in
            ["failing{pool=\"main\",source=\"file\"} 1", "failures_total{pool=\"main\",source=\"file\"} 3"]
        {
            assert!(page.contains(&format!("tokenway_discovery_{series}")), "{page}");
        }
    }

    #[test]
    fn targets_of_what_a_reload_removed_leave_the_page() {
        let metrics = metrics();
        let renamed = CONFIG.replace("main", "other").replace("model = \"m\"", "model = \"n\"");
        metrics.set_targets(&check_str("f.toml", &renamed, &|_| None).unwrap());
        let page = metrics.render(&[]);
        for family in [
            "tokenway_pool_queue_target{", "tokenway_pool_replicas{", "tokenway_route_slo_seconds{",
            "tokenway_requests_overdue{",
        ] {
            let series: Vec<_> = page.lines().filter(|line| line.starts_with(family)).collect();
            assert!(
                !series.iter().any(|line| line.contains("\"main\"") || line.contains("\"m\"")),
                "{series:?}"
            );
        }
    }

    #[test]
    fn a_certificate_that_was_replaced_expires_no_more() {
        let metrics = metrics();
        metrics.set_certificate(Some(("a.pem", Duration::from_secs(1))));
        metrics.set_certificate(Some(("b.pem", Duration::from_secs(2))));
        let page = metrics.render(&[]);
        assert!(!page.contains("a.pem"), "{page}");
        assert!(page.contains("tokenway_certificate_expiry_seconds{file=\"b.pem\"} 2"), "{page}");
        metrics.set_certificate(None);
        assert!(!metrics.render(&[]).contains("b.pem"));
    }

    #[test]
    fn the_first_burst_of_failures_is_an_increase_whatever_its_status() {
        let page = metrics().render(&[]);
        for code in ["500", "502", "503", "504"] {
            for revision in ["main", "none"] {
                let series = format!(
                    r#"tokenway_requests_total{{class="short",code="{code}",model="m",outcome="failed",revision="{revision}",route="m",tenant="default"}} 0"#
                );
                assert!(page.contains(&series), "{series}: {page}");
            }
        }
    }
}
