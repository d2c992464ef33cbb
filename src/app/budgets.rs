//! Budgets of tenants around the data path: kept over restarts, exported as metrics, logged when one is spent.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::admission::{Kind, Ledgers};
use crate::config::{Budget, Config};
use crate::gateway::Gateway;
use crate::observe::instance;
use crate::state_file;

/// Continues from the previous process. Returns the gateway's name over restarts: the one under which others know what is kept, where
/// the file `is_own`, also on a host of another name.
pub(super) fn restore(gateway: &Gateway, is_own: bool) -> Option<Arc<str>> {
    let path = file(gateway)?;
    let kept: Option<Ledgers> =
        state_file::restore(&path, "budgets begin anew: what was used cannot be read");
    let mut kept = kept.unwrap_or_default();
    let new = || Box::from(&*instance::name(gateway.table.load().config.admin.listen));
    let name = kept.gateway.take().filter(|_| is_own).unwrap_or_else(new);
    kept.gateway = Some(name.clone());
    gateway.tenants.restore(kept);
    Some(name.into())
}

/// Writes what is used.
pub(super) fn keep(gateway: &Gateway) {
    let Some(path) = file(gateway) else { return };
    let ledgers = gateway.tenants.ledgers(gateway.clock.wall(gateway.clock.now()));
    if !ledgers.tenants.is_empty() || !ledgers.keys.is_empty() {
        state_file::keep(&path, &ledgers, "what is used of budgets cannot be kept over a restart");
    }
}

/// Exports what is used, forever.
pub(super) async fn export(gateway: Arc<Gateway>) {
    let mut exported = Exported::default();
    loop {
        exported.refresh(&gateway);
        tokio::time::sleep(KEEP_EVERY).await;
    }
}

fn file(gateway: &Gateway) -> Option<PathBuf> {
    gateway.table.load().config.state.as_ref().map(|place| place.file("budgets"))
}

/// Series that exist, and budgets that were spent at the last look.
#[derive(Default)]
struct Exported {
    series: HashSet<Series>,
    spent: HashSet<(Series, u64, bool)>,
}

/// Tenant, window, kind and model.
type Series = [Arc<str>; 4];

impl Exported {
    fn refresh(&mut self, gateway: &Gateway) {
        let config = Arc::clone(&gateway.table.load().config);
        let now = gateway.clock.wall(gateway.clock.now());
        let mut ledgers = gateway.tenants.ledgers(now).tenants;
        let families = &gateway.observer.metrics.families.requests;
        let (mut series, mut spent) = (HashMap::new(), HashSet::new());
        for (tenant, budget, kind, limit) in limits(&config) {
            let used = ledgers.get_mut(&**tenant).map_or(0, |ledger| ledger.used(budget, now).of(kind));
            let labels = labels(tenant, budget, kind);
            let this = (labels.clone(), limit, budget.hard);
            if used >= limit {
                if !self.spent.contains(&this) {
                    let (window, kind) = (budget.window.as_str(), kind.as_str());
                    tracing::warn!(tenant = %tenant, window, kind, used, limit, hard = budget.hard, "a budget is spent");
                }
                spent.insert(this);
            }
            let shown = series.entry(labels).or_insert((used, limit));
            *shown = next_reached(*shown, (used, limit));
        }
        let show = |labels: &Series, shown: Option<(u64, u64)>| {
            let values = labels.each_ref().map(|label| &**label);
            families.budget_used.set(values, shown.map(|(used, _)| used as f64));
            families.budget_limit.set(values, shown.map(|(_, limit)| limit as f64));
        };
        series.iter().for_each(|(labels, shown)| show(labels, Some(*shown)));
        let series = series.into_keys().collect();
        self.series.difference(&series).for_each(|gone| show(gone, None));
        (self.series, self.spent) = (series, spent);
    }
}

/// Of two budgets that one series stands for (a warning below a hard one; one window in two time zones), as used and limit: the one
/// that is reached next, or, where both are spent, the higher one.
fn next_reached(one: (u64, u64), other: (u64, u64)) -> (u64, u64) {
    let order = |(used, limit): &(u64, u64)| match limit.saturating_sub(*used) {
        0 => (true, Reverse(*limit), 0),
        left => (false, Reverse(0), left),
    };
    if order(&one) <= order(&other) { one } else { other }
}

fn limits(config: &Config) -> impl Iterator<Item = (&Arc<str>, &Budget, Kind, u64)> {
    config.tenants.iter().flat_map(|tenant| {
        let of_budget = move |budget| {
            Budget::limits(budget).map(move |(kind, limit)| (&tenant.name, budget, kind, limit))
        };
        tenant.budgets.iter().flat_map(of_budget)
    })
}

fn labels(tenant: &Arc<str>, budget: &Budget, kind: Kind) -> Series {
    let model = budget.model.clone().unwrap_or_else(|| "*".into());
    [Arc::clone(tenant), budget.window.as_str().into(), kind.as_str().into(), model]
}

pub(super) const KEEP_EVERY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::next_reached;

    #[test]
    fn of_two_budgets_in_one_series_the_next_one_is_shown() {
        for (used, expected) in [(3, 4), (4, 10), (9, 10), (12, 10)] {
            for pair in [[4, 10], [10, 4]] {
                let [one, other] = pair.map(|limit| (used, limit));
                assert_eq!(next_reached(one, other), (used, expected), "{used} {pair:?}");
            }
        }
    }
}
