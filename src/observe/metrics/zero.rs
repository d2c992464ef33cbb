//! Series that exist before their first event, so that `increase()` sees the first failure.
//!
//! What a route's alerts count, for every label set that the configuration lets us foresee: its named model, its
//! revisions, every class, and the tenants while those are few. Past [`MAX_LABEL_SETS`] a series begins with its first
//! event, else a page with hundreds of tenants would be mostly zeros; the rules that ship take a series that appears for
//! an increase.

use super::Metrics;
use super::series::RequestKey;
use super::table::TenantFamilies;
use crate::config::{Config, ModelMatch, Route, Slo};
use crate::observe::slo::Missed;
use crate::record::Outcome;
use crate::request::class::Class;

impl Metrics {
    /// Creates the series of the routes of `config`.
    pub fn foresee(&self, config: &Config) {
        let tenants: Vec<&str> = match &config.tenants[..] {
            [] => vec![NOBODY],
            named => named.iter().map(|tenant| &*tenant.name).collect(),
        };
        let routes: Vec<_> = config.routes.iter().filter_map(|route| Some((route, model(route)?))).collect();
        let revisions: usize = routes.iter().map(|(route, _)| route.pools.len() + 1).sum();
        if revisions * tenants.len() * CLASSES.len() > MAX_LABEL_SETS {
            return;
        }
        for (route, model) in routes {
            let slo = config.slo.get(&route.slo).copied().unwrap_or_default();
            let served = route.pools.iter().filter_map(|weighted| config.pools.get(weighted.pool));
            let revisions: Vec<&str> = served.map(|pool| &*pool.revision).collect();
            for (tenant, class) in tenants.iter().flat_map(|t| CLASSES.map(|class| (*t, class))) {
                let labels = |revision| [&*route.name, model, tenant, revision, class.as_str()];
                for revision in &revisions {
                    served_at_zero(&self.requests.by_tenant, labels(revision), &slo);
                }
                unserved_at_zero(&self.requests.by_tenant, labels(RequestKey::NO_REVISION));
            }
        }
    }
}

/// The name that requests will have as label `model`; of a route for every model it is not known.
fn model(route: &Route) -> Option<&str> {
    match (&route.upstream_model, &route.model) {
        (Some(name), _) | (None, ModelMatch::Named(name)) => Some(name),
        (None, _) => None,
    }
}

/// Of requests that a replica of the revision answered, or failed to.
fn served_at_zero(families: &TenantFamilies, labels: [&str; 5], slo: &Slo) {
    families.goodput.get(&labels);
    for (outcome, code) in [(Outcome::Ok, "200"), (Outcome::Failed, "200"), (Outcome::Failed, "502")] {
        outcomes(families, labels, outcome, code);
    }
    let bounds = [
        (Missed::Error, true),
        (Missed::Ttft, slo.ttft.is_some()),
        (Missed::Itl, !slo.itl.is_empty()),
        (Missed::Tpot, slo.tpot.is_some()),
        (Missed::E2e, slo.e2e.is_some()),
    ];
    for (missed, _) in bounds.into_iter().filter(|(_, is_bound)| *is_bound) {
        misses(families, labels, missed);
    }
}

/// Of requests that reached no replica.
fn unserved_at_zero(families: &TenantFamilies, labels: [&str; 5]) {
    for (outcome, code) in [(Outcome::Refused, "429"), (Outcome::Refused, "503"), (Outcome::Failed, "502")] {
        outcomes(families, labels, outcome, code);
    }
    misses(families, labels, Missed::Error);
    misses(families, labels, Missed::Refused);
}

fn outcomes(families: &TenantFamilies, labels: [&str; 5], outcome: Outcome, code: &str) {
    let [route, model, tenant, revision, class] = labels;
    families.requests.get(&[route, model, tenant, revision, class, outcome.as_str(), code]);
}

fn misses(families: &TenantFamilies, labels: [&str; 5], missed: Missed) {
    let [route, model, tenant, revision, class] = labels;
    families.slo_missed.get(&[route, model, tenant, revision, class, missed.as_str()]);
}

const CLASSES: [Class; 3] = [Class::Short, Class::Medium, Class::Long];
/// Tenant of a gateway that has none.
const NOBODY: &str = "default";
/// Label sets of route, model, tenant, revision and class; with up to eight series each.
const MAX_LABEL_SETS: usize = 200;
