//! The routing table: an immutable snapshot of one configuration, joined with the live fleet.
//!
//! A request loads it once and sees one consistent configuration for its whole life.

use std::collections::HashMap;
use std::sync::Arc;

use crate::admission::RouteQueue;
use crate::config::{Config, ModelMatch, Route, Slo};
use crate::error::Failure;
use crate::fleet::pool::PoolState;
use crate::record::SloBounds;
use crate::request::chain::ChainSeed;
use crate::request::tenant::Tenants;
use crate::routing::{Policy, PoolWheel, policies};
use crate::units::Tokens;

/// Routes, pools and tenants of one configuration.
#[derive(Debug)]
pub struct RoutingTable {
    /// The configuration that it was built from.
    pub config: Arc<Config>,
    /// By the index of [`Config::pools`].
    pub pools: Arc<Vec<Arc<PoolState>>>,
    /// By the index of [`Config::routes`].
    pub routes: Vec<Arc<RouteState>>,
    /// Tenants by key digest.
    pub tenants: Tenants,
    /// Seed of the prefix hashes (`routing.seed`).
    pub seed: ChainSeed,
    by_model: HashMap<Arc<str>, usize>,
    any: Option<usize>,
}

/// One route in operation.
#[derive(Debug)]
pub struct RouteState {
    /// `[[route]]` as checked.
    pub config: Route,
    /// Pools with their weights; at least one weight is above 0.
    pub pools: Vec<(Arc<PoolState>, u32)>,
    /// Routing policy.
    pub policy: Box<dyn Policy>,
    /// Weighted choice among the pools.
    pub wheel: PoolWheel,
    /// Admission queue.
    pub queue: Arc<RouteQueue>,
}

impl RoutingTable {
    /// Joins a configuration with the pools that the fleet made from it.
    #[must_use]
    pub fn new(config: Arc<Config>, pools: Arc<Vec<Arc<PoolState>>>) -> Self {
        let seed = ChainSeed::new(&config.seed);
        let route = |route: &Route| {
            let weighted = |w: &crate::config::WeightedPool| Some((Arc::clone(pools.get(w.pool)?), w.weight));
            Arc::new(RouteState {
                policy: policies::named(route.policy),
                wheel: PoolWheel::new(route.pools.iter().map(|w| w.weight)),
                queue: RouteQueue::new(route.queue),
                pools: route.pools.iter().filter_map(weighted).collect(),
                config: route.clone(),
            })
        };
        let routes: Vec<_> = config.routes.iter().map(route).collect();
        let (mut by_model, mut any) = (HashMap::new(), None);
        for (at, route) in routes.iter().enumerate() {
            match &route.config.model {
                ModelMatch::Any => any = any.or(Some(at)),
                ModelMatch::Named(model) => {
                    by_model.insert(Arc::clone(model), at);
                }
            }
        }
        let tenants = Tenants::new(&config.tenants);
        Self { config, pools, routes, tenants, seed, by_model, any }
    }

    /// The route of a model, else the route `*`; without a model also the only route.
    ///
    /// # Errors
    /// [`Failure::ModelNotFound`], or [`Failure::MissingModel`] if there are several routes and none is `*`.
    pub fn route(&self, model: Option<&str>) -> Result<&Arc<RouteState>, Failure> {
        let at = match model {
            Some(name) => self.by_model.get(name).copied().or(self.any),
            None => self.any.or((self.routes.len() == 1).then_some(0)),
        };
        at.and_then(|at| self.routes.get(at)).ok_or_else(|| match model {
            Some(name) => Failure::ModelNotFound { model: shortened(name) },
            None => Failure::MissingModel,
        })
    }

    /// The bounds of an SLO class for a prompt length; an unknown class has no bounds.
    #[must_use]
    pub fn slo(&self, class: &str, prompt: Tokens) -> SloBounds {
        let Slo { ttft, itl, tpot, e2e } = self.config.slo.get(class).copied().unwrap_or_default();
        SloBounds { ttft: ttft.map(|bound| bound.for_prompt(prompt)), itl, tpot, e2e }
    }
}

impl RouteState {
    /// Whether a pool with a weight above 0 is ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.pools.iter().any(|(pool, weight)| *weight > 0 && pool.is_ready())
    }

    /// The engines' name of the model: `upstream_model`, else the only base model that they list, if that differs from the
    /// route's own name (`--served-model-name`). `None` if the client's name is theirs.
    #[must_use]
    pub fn engine_model(&self) -> Option<Arc<str>> {
        let ModelMatch::Named(name) = &self.config.model else { return None };
        if let Some(given) = &self.config.upstream_model {
            return Some(Arc::clone(given));
        }
        // The first replica that lists any: nearly always the first.
        let models = self.pools.iter().find_map(|(pool, _)| {
            let replicas = pool.replicas();
            replicas.iter().map(|replica| replica.models.load_full()).find(|models| !models.is_empty())
        })?;
        if models.iter().any(|model| model.id == *name) {
            return None;
        }
        let mut bases = models.iter().filter(|model| model.entry["parent"].is_null());
        match (bases.next(), bases.next()) {
            (Some(only), None) => Some(Arc::clone(&only.id)),
            _ => None,
        }
    }

    /// Whether a ready replica lists the model.
    #[must_use]
    pub fn is_listed(&self, model: Option<&str>) -> bool {
        let Some(model) = model else { return false };
        self.pools.iter().any(|(pool, _)| {
            let replicas = pool.replicas();
            replicas.iter().any(|r| r.is_ready() && r.models.load().iter().any(|m| &*m.id == model))
        })
    }

    /// Replica counts by state, for error messages: `2 ejected, 1 probing`.
    #[must_use]
    pub fn states(&self) -> String {
        let mut counts: Vec<(&'static str, u32)> = Vec::new();
        for replica in
            self.pools.iter().flat_map(|(pool, _)| pool.replicas().iter().cloned().collect::<Vec<_>>())
        {
            let state = replica.state().as_str();
            match counts.iter_mut().find(|(s, _)| *s == state) {
                Some((_, n)) => *n += 1,
                None => counts.push((state, 1)),
            }
        }
        counts.iter().map(|(state, n)| format!("{n} {state}")).collect::<Vec<_>>().join(", ")
    }
}

/// A client's string, cut to [`MAX_NAME`] characters for error messages.
fn shortened(name: &str) -> String {
    name.chars().take(MAX_NAME).collect()
}

const MAX_NAME: usize = 128;
