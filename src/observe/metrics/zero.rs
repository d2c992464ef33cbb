//! Series that exist before their first event, so that `increase()` sees the first failure.
//!
//! What a route's alerts count, for every label set that the configuration lets us foresee: its named model, its
//! revisions, every class, and the tenants while those are few. Past [`MAX_LABEL_SETS`], where a page would be mostly
//! zeros, and on routes for every model, the series of a label set begin with its first request: what fails after it
//! is seen. The series of a revision leave with the second change of revisions after which it is not there: what it did last is
//! scraped, and a year of rollouts fills no page.

use std::collections::HashSet;
use std::sync::Arc;

use super::Metrics;
use super::declare::Group as _;
use super::foreseen::Foreseen;
use super::series::RequestKey;
use super::table::Families;
use crate::config::{Config, Slo};
use crate::labels::OTHER;
use crate::record::SloBounds;
use crate::request::class::Class;

impl Metrics {
    /// Makes the series of `config`, and room for them.
    pub fn follow_config(&self, config: &Config) {
        let revisions: HashSet<_> = config.pools.iter().map(|pool| Arc::clone(&pool.revision)).collect();
        let mut before = self.revisions.lock();
        // A file is often read twice for one change, by its watcher and by a signal.
        if *before != revisions {
            self.keep_revisions(|revision| {
                matches!(revision, RequestKey::NO_REVISION | OTHER)
                    || revisions.contains(revision)
                    || before.contains(revision)
            });
            *before = revisions;
        }
        self.preregister(config);
    }

    /// Forgets the series of all others.
    fn keep_revisions(&self, is_kept: impl Fn(&str) -> bool) {
        // No page shows the moment between.
        let _one_at_a_time = self.rendering.lock();
        let Families { by_tenant, by_route, requests, .. } = &*self.families;
        by_tenant.forget_values(REVISION, &is_kept);
        by_route.forget_values(REVISION, &is_kept);
        requests.forget_values(REVISION, &is_kept);
        // Handles of series that are gone.
        self.by_request.retain(|key, _| is_kept(&key.revision));
        self.by_stream.retain(|key, _| is_kept(&key.revision));
        self.exemplars.forget_revisions(&is_kept);
        if let Some(exponentials) = &self.exponentials {
            exponentials.forget_revisions(is_kept);
        }
    }

    /// Creates the series of the routes of `config`.
    fn preregister(&self, config: &Config) {
        let tenants: Vec<&str> = match &config.tenants[..] {
            [] => vec![NOBODY],
            named => named.iter().map(|tenant| &*tenant.name).collect(),
        };
        let routes: Vec<_> =
            config.routes.iter().filter_map(|route| Some((route, &**route.asked_model()?))).collect();
        let revisions: usize = routes.iter().map(|(route, _)| route.pools.len() + 1).sum();
        if revisions * tenants.len() * CLASSES.len() > MAX_LABEL_SETS {
            return;
        }
        for (route, model) in routes {
            let Slo { ttft, itl, tpot, e2e, .. } = config.slo.get(&route.slo).copied().unwrap_or_default();
            let slo =
                SloBounds { ttft: ttft.map(|bound| bound.base), itl, tpot, e2e, ..SloBounds::default() };
            let served = route.pools.iter().filter_map(|weighted| config.pools.get(weighted.pool));
            let revisions =
                served.map(|pool| (&*pool.revision, true)).chain([(RequestKey::NO_REVISION, false)]);
            for (revision, is_served) in revisions {
                for (tenant, class) in tenants.iter().flat_map(|t| CLASSES.map(|class| (*t, class))) {
                    let key = [&*route.name, model, tenant, revision, class.as_str()];
                    self.families.start_requests(key, &Foreseen { is_served, slo });
                }
            }
        }
    }
}

impl Families {
    /// Starts the series of requests by route, model, tenant, revision and class.
    fn start_requests(&self, key: [&str; 5], foreseen: &Foreseen) {
        let [route, model, _, revision, class] = key;
        self.by_tenant.start(&key, foreseen);
        self.by_route.start(&[route, model, revision, class], foreseen);
    }

    /// Starts those of a first request, and of requests of its kind that will reach no replica.
    pub(super) fn start_seen(&self, key: [&str; 5], slo: SloBounds) {
        let [route, model, tenant, revision, class] = key;
        let none = RequestKey::NO_REVISION;
        self.start_requests(key, &Foreseen { is_served: revision != none, slo });
        self.start_requests([route, model, tenant, none, class], &Foreseen { is_served: false, slo });
    }
}

const CLASSES: [Class; 3] = [Class::Short, Class::Medium, Class::Long];
/// Tenant of a gateway that has none.
const NOBODY: &str = "default";
/// Label sets of route, model, tenant, revision and class; with up to thirteen series each.
const MAX_LABEL_SETS: usize = 200;

const REVISION: &str = "revision";

#[cfg(test)]
mod tests {
    use super::super::Exposition;
    use super::*;
    use crate::clock::Clock;
    use crate::config::check::check_str;
    use crate::observe::{Judgement, fixture};

    fn of(revision: &str) -> Config {
        let pool = format!("name = \"p\"\nrevision = \"{revision}\"\nreplicas = [\"http://127.0.0.1:1\"]");
        check_str("f.toml", &format!("[[pool]]\n{pool}\n[[route]]\nmodel = \"m\"\n"), &|_| None).unwrap()
    }

    #[test]
    fn a_new_revision_has_exemplars_however_many_came_before() {
        let metrics = Metrics::new(&of("r0"), Clock::start());
        for revision in (0..40).map(|n| format!("r{n}")) {
            metrics.follow_config(&of(&revision));
            let mut record = fixture::stream();
            Arc::make_mut(&mut record.attempts[0].served).revision = revision.as_str().into();
            for model in 0..50 {
                record.model = format!("m{model}").into();
                metrics.record(&record, &Judgement::of(&record), true);
                metrics.exemplar(&record);
            }
            let page = metrics.render_as(&[], Exposition::OpenMetrics);
            let own = |line: &&str| {
                line.contains(&format!("revision=\"{revision}\"")) && line.contains("# {trace_id")
            };
            assert_eq!(page.lines().filter(own).count(), 50, "{revision}");
        }
    }

    #[test]
    fn a_change_that_is_read_twice_takes_no_series() {
        let metrics = Metrics::new(&of("old"), Clock::start());
        for (revision, is_kept) in [("new", true), ("new", true), ("newer", false)] {
            metrics.follow_config(&of(revision));
            assert_eq!(metrics.render(&[]).contains("revision=\"old\""), is_kept, "{revision}");
        }
    }
}
