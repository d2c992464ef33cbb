//! `[[route]]`: maps a model name to pools.
//!
//! Names that point elsewhere (pools, SLO classes) are resolved here: a checked route cannot point at nothing.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde_json::json;
use toml::de::DeValue;

use crate::config::{
    ClientMay, Declared, ModelMatch, Pool, Route, Slo, Timeouts, WeightedPool, canary, hedge, prefill,
};

use super::codec::{Own, SWITCH};
use super::section::{Item, Section};
use super::shape::Kind;
use super::values::{LABEL, MODEL, NAME};
use super::{admission, stage_budget};

/// What routes refer to.
pub(super) struct Referred<'a> {
    pub(super) pools: &'a [Pool],
    pub(super) slo: &'a BTreeMap<Arc<str>, Slo>,
    /// `[timeouts]`
    pub(super) timeouts: Timeouts,
}

/// Reads every `[[route]]`; without any, a single pool takes everything.
pub(super) fn routes(root: &Section<'_>, referred: &Referred<'_>) -> Vec<Route> {
    let sections = root.sections("route", "[[route]]");
    let (mut names, mut models) = (HashSet::new(), HashSet::new());
    let mut routes = Vec::new();
    for section in &sections {
        let route = route(section, referred);
        let model = route.model.as_str().to_owned();
        if !models.insert(model.clone()) {
            section.fault(
                format!("two routes take model \"{model}\""),
                "keep one route for each model; split traffic by the weights of its pools",
            );
        } else {
            section.expect_unique("route", &route.name, &mut names);
        }
        routes.push(route);
    }
    admission::resolve(&sections, &mut routes, referred.slo, &tenant_names(root));
    let Some(written) = root.get("route") else {
        match referred.pools {
            [] => {}
            [_] => routes.push(catch_all(referred)),
            _ => root.fault(
                "several pools and no [[route]]: nothing says which model goes where",
                "add a [[route]] with model and pools for each model",
            ),
        }
        return routes;
    };
    if written.is_empty_list() {
        written.fault("the list of routes is empty", "add a [[route]], or remove the key");
    }
    routes
}

fn route(section: &Section<'_>, referred: &Referred<'_>) -> Route {
    let model = section.require("model", &MODEL).unwrap_or_else(|| format!("#{}", section.span.start).into());
    let name = match section.parse("name", &LABEL) {
        Some(name) => name,
        None => {
            if let (Err(fault), Some(item)) = ((LABEL.parse)(&model), section.get("model"))
                && &*model == "none"
            {
                item.fault(fault, "give the route another name: name = \"chat\"");
            }
            model.clone()
        }
    };
    let route = Route::read(section, &Route::default());
    let class = slo(section, referred.slo);
    let slo = referred.slo.get(&class).copied().unwrap_or_default();
    let mut pools = pools(section, referred.pools);
    let canary = canary::canary(section, referred.pools, &mut pools);
    let prefill = prefill::prefill(section, referred.pools, &pools, route.policy);
    Route {
        name,
        model: if &*model == "*" { ModelMatch::Any } else { ModelMatch::Named(model) },
        outside: outside(section, referred.pools, &pools),
        pools,
        slo: class,
        stage_budget: stage_budget::stage_budget(section, slo),
        hedge: hedge::hedge(section, route.policy),
        timeouts: Timeouts::read(&section.section("timeouts", "[route.timeouts]"), &referred.timeouts),
        queue: admission::queue(section),
        // All routes are known before one can be named.
        degrade: None,
        canary,
        prefill,
        ..route
    }
}

/// Names of the tenants, which are read later: they name routes.
fn tenant_names<'a>(root: &Section<'a>) -> Vec<&'a str> {
    let list = root.get("tenant").and_then(|item| item.value.as_array());
    let name =
        |tenant: &'a toml::Spanned<DeValue<'a>>| tenant.get_ref().as_table()?.get("name")?.get_ref().as_str();
    list.into_iter().flatten().filter_map(name).collect()
}

fn catch_all(referred: &Referred<'_>) -> Route {
    Route {
        name: "*".into(),
        pools: vec![WeightedPool { pool: 0, weight: DEFAULT_WEIGHT }],
        slo: DEFAULT_SLO.into(),
        timeouts: referred.timeouts,
        ..Route::default()
    }
}

fn pools(route: &Section<'_>, known: &[Pool]) -> Vec<WeightedPool> {
    let Some(list) = route.get("pools") else {
        if known.len() != 1 {
            route.fault("[[route]] names no pools", POOLS_HINT);
        }
        return vec![WeightedPool { pool: 0, weight: DEFAULT_WEIGHT }];
    };
    let items = list.list();
    let mut pools: Vec<WeightedPool> = Vec::new();
    for item in &items {
        let Some(weighted) = weighted_pool(item, known) else { continue };
        if pools.iter().any(|other| other.pool == weighted.pool) {
            item.fault("the route has this pool twice", "name each pool once, with its whole weight");
        }
        pools.push(weighted);
    }
    if list.is_empty_list() {
        list.fault("a route needs at least one pool", POOLS_HINT);
    }
    if pools.len() == items.len() && !pools.is_empty() && pools.iter().all(|pool| pool.weight == 0) {
        list.fault(
            "all weights are zero: no replica would get a request",
            "give one pool a weight above zero; a standby pool has none",
        );
    }
    pools
}

fn weighted_pool(item: &Item<'_>, known: &[Pool]) -> Option<WeightedPool> {
    item.accepts([Kind::Text { hint: "" }, Kind::Section { header: "route.pools" }]);
    let (named, given) = if let DeValue::Table(_) = item.value {
        let section = item.section("route.pools")?;
        let weight = section.value("weight", &(0..=1_000_000));
        section.require("name", &NAME)?;
        (section.get("name")?, weight)
    } else {
        (item.clone(), None)
    };
    let pool = named.pool_of(known)?;
    if let Some(known) = known.get(pool).filter(|pool| pool.standby) {
        if given.is_some_and(|weight| weight > 0) {
            item.fault(
                format!("pool \"{}\" is standby and shares no traffic: it has no weight", known.name),
                "remove the weight, or standby from the pool",
            );
        }
        return Some(WeightedPool { pool, weight: 0 });
    }
    Some(WeightedPool { pool, weight: given.unwrap_or(DEFAULT_WEIGHT) })
}

/// `outside`: prompts leave the house only where their route has it.
fn outside(route: &Section<'_>, known: &[Pool], pools: &[WeightedPool]) -> bool {
    let may = route.value("outside", &SWITCH).unwrap_or(false);
    let mut used = pools.iter().filter_map(|weighted| known.get(weighted.pool));
    if let Some(pool) = used.find(|pool| pool.outside.is_some()).filter(|_| !may) {
        route.fault(
            format!("pool \"{}\" has [pool.outside]: prompts of this route would leave the house", pool.name),
            "set outside = true in the route, or remove the pool from it",
        );
    }
    may
}

fn slo(route: &Section<'_>, known: &BTreeMap<Arc<str>, Slo>) -> Arc<str> {
    let Some(item) = route.get("slo") else { return DEFAULT_SLO.into() };
    let Some(name) = item.text() else { return DEFAULT_SLO.into() };
    if !known.contains_key(name) {
        let names: Vec<_> = known.keys().map(|name| &**name).collect();
        let hint = format!("classes: {}; add one as [slo.{name}]", names.join(", "));
        item.fault_unknown("slo class", name, &names, hint);
    }
    name.into()
}

pub(in crate::config) const CLIENT_MAY: Own<ClientMay> = Own {
    read: |item| {
        let mut may = ClientMay::default();
        for entry in item.list() {
            if let Some(permission) = entry.one_of("permission", ClientMay::PERMISSIONS) {
                *permission(&mut may) = true;
            }
        }
        Some(may)
    },
    show: |may| {
        let mut may = *may;
        let shown = ClientMay::PERMISSIONS.iter().map(|(name, of)| (*name, *of(&mut may)));
        json!(shown.collect::<BTreeMap<_, _>>())
    },
};

const DEFAULT_WEIGHT: u32 = 100;
const DEFAULT_SLO: &str = "standard";
const POOLS_HINT: &str = "name them: pools = [{ name = \"main\", weight = 100 }]";
