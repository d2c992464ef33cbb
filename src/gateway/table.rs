//! The routing table: an immutable snapshot of one configuration, joined with the live fleet.
//!
//! A request loads it once and sees one consistent configuration for its whole life.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::hysteresis::{Hysteresis, Standby};
use super::interim::Interim;
use super::prefill_side::PrefillSide;
use super::shadow::{Shadow, Shadows};
use crate::clock::Stamp;
use crate::config::{ColdWait, Config, ModelMatch, Route, Slo, WeightedPool};
use crate::error::Failure;
use crate::fleet::pool::PoolState;
use crate::fleet::replica::Replica;
use crate::labels::LabelHasher;
use crate::record::SloBounds;
use crate::request::api_keys::ApiKeys;
use crate::request::body::BodyLimits;
use crate::request::cache_salt::SaltKey;
use crate::request::chain::ChainSeed;
use crate::request::dialect::Dialect;
use crate::request::jwt::TokenKeys;
use crate::request::tenant::{TenantRef, Tenants, own_response_id};
use crate::routing::{ByCanary, CanaryShare, Policy, PoolWheel, policies};
use crate::units::Tokens;
use crate::upstream::budget::{AttemptBudget, HEDGE_BURST};

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
    /// A pool follows KV events: only then the turns of a conversation are told apart.
    pub follows_kv_events: bool,
    /// Of every body; its route is unknown while it is read, so that the stall timeout is the longest of all.
    pub body_limits: BodyLimits,
    by_model: HashMap<Arc<str>, usize, LabelHasher>,
    any: Option<usize>,
    /// What all tables share.
    pub carried_over: CarriedOver,
}

/// What all tables of a gateway share, from one reload to the next.
#[derive(Clone, Debug, Default)]
pub struct CarriedOver {
    /// Keys of the token issuer.
    pub tokens: Arc<TokenKeys>,
    /// Shares of the routes' canaries, set by their rollouts.
    pub canaries: Arc<ByCanary<CanaryShare>>,
    /// Shadow steps of canaries, set by their rollouts.
    pub shadows: Arc<Shadows>,
    /// Key of the tenants' cache salts, set before the first table that has isolated ones.
    pub salt_key: Arc<OnceLock<SaltKey>>,
    /// API keys made at run time.
    pub api_keys: Arc<ApiKeys>,
}

/// One route in operation. Its parts begin anew with each table, unless they say that they are carried over.
#[derive(Debug)]
pub struct RouteState {
    /// `[[route]]` as checked.
    pub config: Route,
    /// Its model, where that is no route's name: tenants and keys may name it so.
    also_named: Option<Arc<str>>,
    /// Its pools, as the configuration lists them. The fleet carries over those that keep their name.
    pub pools: Vec<Arc<PoolState>>,
    /// Routing policy.
    pub policy: Box<dyn Policy>,
    /// Weighted choice among the pools; the canary's share is carried over.
    pub wheel: PoolWheel,
    /// Hedges that it may still make.
    pub hedges: AttemptBudget,
    /// Whether its requests are degraded; carried over.
    pub degrading: Arc<Hysteresis>,
    /// Places of the pools that take traffic only while the others cannot, in the order of the route.
    standbys: Box<[usize]>,
    /// Whether they do; carried over.
    pub standby: Arc<Standby>,
    /// The pools that it had before, behind its own.
    interim: Interim,
    /// Copies of its requests for its canary; carried over.
    pub shadow: Option<Arc<Shadow>>,
    /// Its `[route.prefill]`; what was learned of it is carried over.
    pub prefill: Option<Box<PrefillSide>>,
}

impl CarriedOver {
    /// Of a gateway that begins with these keys; copies of requests end when `stop` is cancelled.
    pub fn new(tokens: Arc<TokenKeys>, stop: CancellationToken) -> Self {
        Self { tokens, shadows: Arc::new(Shadows::new(stop)), ..Self::default() }
    }
}

impl RoutingTable {
    /// Whether a route is still served by the pools that it had before.
    pub fn is_interim(&self) -> bool {
        self.routes.iter().any(|route| route.is_interim())
    }

    /// From now on each route has its own pools alone.
    pub fn end_interim(&self) {
        self.routes.iter().for_each(|route| route.interim.end());
    }

    /// Joins a configuration with the pools that the fleet made from it.
    pub fn new(config: Arc<Config>, pools: Arc<Vec<Arc<PoolState>>>, carried_over: CarriedOver) -> Self {
        Self::build(config, pools, carried_over, &[])
    }

    /// The table of the next configuration.
    pub fn next(&self, config: Arc<Config>, pools: Arc<Vec<Arc<PoolState>>>) -> Self {
        Self::build(config, pools, self.carried_over.clone(), &self.routes)
    }

    fn build(
        config: Arc<Config>,
        pools: Arc<Vec<Arc<PoolState>>>,
        carried_over: CarriedOver,
        former: &[Arc<RouteState>],
    ) -> Self {
        let seed = ChainSeed::new(&config.routing.seed);
        let route = |route: &Route| Arc::new(RouteState::new(route, &config, &pools, &carried_over, former));
        let routes: Vec<_> = config.routes.iter().map(route).collect();
        let (mut by_model, mut any) = (HashMap::default(), None);
        for (at, route) in routes.iter().enumerate() {
            match &route.config.model {
                ModelMatch::Any => any = any.or(Some(at)),
                ModelMatch::Named(model) => {
                    by_model.insert(Arc::clone(model), at);
                }
            }
        }
        let salt_key = carried_over.salt_key.get();
        let (made, tokens) = (Arc::clone(&carried_over.api_keys), Arc::clone(&carried_over.tokens));
        let tenants = Tenants::new(&config.tenants, salt_key).beside(made, tokens);
        let follows_kv_events = config.pools.iter().any(|pool| pool.kv_events.is_some());
        let stall = config.routes.iter().map(|route| route.timeouts.client_stall).max();
        let body_limits = BodyLimits {
            size: config.server.body_limit,
            stall: stall.unwrap_or(Duration::from_secs(60)),
            timeout: config.server.body_timeout,
            min_rate: config.server.body_min_rate,
        };
        Self {
            config,
            pools,
            routes,
            tenants,
            seed,
            follows_kv_events,
            body_limits,
            by_model,
            any,
            carried_over,
        }
    }

    /// The route of a model, else the route `*`.
    pub fn route_of(&self, model: &str) -> Option<&Arc<RouteState>> {
        self.routes.get(self.by_model.get(model).copied().or(self.any)?)
    }

    /// The same for a tenant; `None` where it may not use it.
    pub fn route_for(&self, tenant: &TenantRef, model: &str) -> Option<&Arc<RouteState>> {
        self.route_of(model).filter(|route| route.is_visible_to(tenant))
    }

    /// The route of a request that names no model: `*`, else the only one that its tenant may use.
    ///
    /// # Errors
    /// [`Failure::MissingModel`] if several routes could be meant, or the engine would take a model that the tenant may not use.
    pub fn unnamed_route(&self, tenant: &TenantRef) -> Result<&Arc<RouteState>, Failure> {
        let visible = || self.routes.iter().filter(|route| route.is_visible_to(tenant));
        let any = visible().find(|route| route.config.model == ModelMatch::Any);
        let mut all = visible();
        match (any, all.next(), all.next()) {
            (Some(any), ..) if any.first_listed().is_none_or(|it| self.route_for(tenant, &it).is_some()) => {
                Ok(any)
            }
            (None, Some(only), None) => Ok(only),
            _ => Err(Failure::MissingModel { routes: shortened(&names(visible())) }),
        }
    }

    /// The route that answers what no route is meant by: CORS preflights, which all engines answer alike.
    pub fn some_route(&self) -> Option<&Arc<RouteState>> {
        self.routes.iter().find(|route| route.is_ready()).or(self.routes.first())
    }

    /// Whether it matters which model an engine finds in a body: tenants may be kept from some, and several routes are several models.
    pub fn has_several_models(&self) -> bool {
        self.tenants.ask_for_keys() || self.routes.len() > 1
    }

    /// The engine's id for what a client named `chosen`: where there are tenants and the engine stores its answer under that id.
    pub fn own_id(&self, dialect: Dialect, tenant: &str, chosen: &str) -> Option<String> {
        (dialect.is_stateful() && self.tenants.ask_for_keys()).then(|| own_response_id(tenant, chosen))
    }

    /// The bounds of an SLO class for a prompt length; an unknown class has no bounds.
    pub fn slo(&self, class: &str, prompt: Tokens) -> SloBounds {
        let Slo { ttft, itl, tpot, e2e, .. } = self.config.slo.get(class).copied().unwrap_or_default();
        SloBounds {
            ttft: ttft.map(|bound| bound.for_prompt(prompt)),
            ttft_base: ttft.map(|bound| bound.base),
            itl,
            tpot,
            e2e,
        }
    }
}

impl RouteState {
    fn new(
        route: &Route,
        config: &Config,
        pools: &[Arc<PoolState>],
        carried_over: &CarriedOver,
        all_former: &[Arc<Self>],
    ) -> Self {
        let former = all_former.iter().map(Arc::as_ref).find(|known| known.config.name == route.name);
        let mut wheel = PoolWheel::new(
            config
                .pools_of(route)
                .map(|pool| &*pool.name)
                .zip(route.pools.iter().map(|weighted| weighted.weight)),
        );
        let mut shadow = None;
        if let Some(canary) = &route.canary
            && let Some(pool) = config.pools.get(canary.pool)
        {
            if let Some(place) = route.pools.iter().position(|weighted| weighted.pool == canary.pool) {
                wheel = wheel.with_canary(place, carried_over.canaries.of(&route.name, &pool.name));
            }
            shadow =
                canary.shadow.as_ref().map(|_| carried_over.shadows.by_canary.of(&route.name, &pool.name));
        }
        let is_a_name = |word: &str| config.routes.iter().any(|known| *known.name == *word);
        let also_named = route.model.named().filter(|model| !is_a_name(model)).cloned();
        let mut used: Vec<_> = route.pools.iter().filter_map(|w| pools.get(w.pool).cloned()).collect();
        // A pool at zero is woken by those that wait for it.
        let is_awake = used.iter().all(|pool| pool.config().scale.cold_wait().is_none());
        let served = Self::that_served(route, former, all_former).filter(|_| is_awake);
        let interim = Interim::behind(&mut used, &served.map(Self::serving).unwrap_or_default());
        let is_canary = |at: usize| route.canary.as_ref().is_some_and(|canary| canary.pool == at);
        let is_standby = |w: &WeightedPool| config.pools.get(w.pool).is_some_and(|pool| pool.standby);
        let standbys = route.pools.iter().enumerate();
        let standbys = standbys.filter(|(_, w)| w.weight == 0 && is_standby(w) && !is_canary(w.pool));
        Self {
            also_named,
            standbys: standbys.map(|(at, _)| at).collect(),
            standby: former.map(|known| Arc::clone(&known.standby)).unwrap_or_default(),
            policy: policies::named(route.policy),
            wheel,
            hedges: AttemptBudget::new(HEDGE_BURST),
            degrading: former.map(|known| Arc::clone(&known.degrading)).unwrap_or_default(),
            shadow,
            prefill: PrefillSide::of(route, config, pools, former.and_then(|known| known.prefill.as_deref()))
                .map(Box::new),
            pools: used,
            interim,
            config: route.clone(),
        }
    }

    /// Whether `routes` of a tenant and of its key name it: by its name, or by its model where no route has that name.
    pub fn is_visible_to(&self, tenant: &TenantRef) -> bool {
        tenant.may_use(|word| *word == *self.config.name || self.also_named.as_deref() == Some(word))
    }

    /// Whether an engine of it keeps cached prompts of different salts apart.
    pub fn takes_cache_salt(&self) -> bool {
        self.pools.iter().any(|pool| pool.seen_config().engine.takes_cache_salt())
    }

    /// Whether none of its engines counts in chunks without `include_usage`.
    pub fn counts_only_beside_usage(&self) -> bool {
        // A provider's body is made from the client's own.
        self.pools.iter().all(|pool| {
            let config = pool.seen_config();
            config.outside.is_some() || config.engine.counts_only_beside_usage()
        })
    }

    /// Whether its requests are degraded now; `None` without a `[route.degrade]`.
    pub fn is_degrading(&self, now: Stamp) -> Option<bool> {
        self.config.degrade.as_ref().map(|degrade| self.degrading.is_on(now, degrade.min_dwell))
    }

    /// Whether a pool that gets requests is ready.
    pub fn is_ready(&self) -> bool {
        self.used().any(|pool| pool.is_ready())
    }

    /// Its pools that get requests, always or while others cannot.
    pub(super) fn used(&self) -> impl Iterator<Item = &Arc<PoolState>> {
        let is_used = |place| self.is_own(place) || self.is_interim() && place >= self.interim.first;
        self.pools.iter().enumerate().filter(move |(place, _)| is_used(*place)).map(|(_, pool)| pool)
    }

    /// Whether this pool gets requests and is none of those that it had before.
    fn is_own(&self, place: usize) -> bool {
        self.wheel.may_use(place) || self.is_standby(place)
    }

    /// Places of the pools that take traffic while the others cannot: standby pools, and until a pool of its own is ready those that it
    /// had before the last reload.
    pub(super) fn standbys(&self) -> impl Iterator<Item = usize> {
        let interim = if self.is_interim() { self.interim.first..self.pools.len() } else { 0..0 };
        self.standbys.iter().copied().chain(interim)
    }

    /// Its pools, without those that stand by or are another house's.
    fn serving(&self) -> Vec<&Arc<PoolState>> {
        let former = if self.is_interim() { self.interim.first } else { self.pools.len() };
        let pools = self.pools.iter().enumerate();
        let has_weight = |place: usize| self.config.pools.get(place).is_some_and(|own| own.weight > 0);
        let serving = pools.filter(|(place, _)| *place >= former || has_weight(*place));
        serving.map(|(_, pool)| pool).filter(|pool| !pool.is_outside()).collect()
    }

    /// Whether it is a configured standby pool.
    pub(super) fn is_standby(&self, place: usize) -> bool {
        self.standbys.contains(&place)
    }

    /// Whether the pools that it had before the last reload still serve it.
    pub fn is_interim(&self) -> bool {
        let mut pools = self.pools.iter().enumerate();
        if !self.interim.is_over() && pools.any(|(place, pool)| self.is_own(place) && pool.is_ready()) {
            self.interim.end();
        }
        !self.interim.is_over()
    }

    /// Of the routes before a reload the one whose engines have the models that this one asks for: of its name, of its model, or for all.
    fn that_served<'r>(next: &Route, namesake: Option<&'r Self>, all: &'r [Arc<Self>]) -> Option<&'r Self> {
        let of = |model: &ModelMatch| all.iter().map(Arc::as_ref).find(|known| known.config.model == *model);
        let likely = [namesake, of(&next.model), of(&ModelMatch::Any)];
        likely.into_iter().flatten().find(|known| {
            let is_same =
                known.config.model == next.model && known.config.upstream_model == next.upstream_model;
            is_same || next.asked_model().is_some_and(|model| known.is_known(model))
        })
    }

    /// Whether a request is answered now, or after the cold start of a pool that may scale to zero.
    pub fn takes_requests(&self) -> bool {
        self.is_ready() || self.cold_wait().is_some()
    }

    /// How requests wait for the first replica of a pool that gets any and may scale to zero; `None` where there is none.
    pub(super) fn cold_wait(&self) -> Option<ColdWait> {
        self.used().find_map(|pool| pool.config().scale.cold_wait().copied())
    }

    /// The engines' name of the model: `upstream_model`, else what most replicas of its first pool list, if that differs from the
    /// route's own name (`--served-model-name`). `None` if the client's name is theirs.
    pub fn engine_model(&self) -> Option<Arc<str>> {
        let name = self.config.model.named()?;
        if let Some(given) = &self.config.upstream_model {
            return Some(Arc::clone(given));
        }
        let engine_name = self.pools.iter().find_map(|pool| pool.engine_name(name))?;
        (engine_name != *name).then_some(engine_name)
    }

    /// The name that the engines of one of its pools have for it; `None` where that is not known, or configured.
    pub fn engine_model_of(&self, pool: &PoolState) -> Option<Arc<str>> {
        pool.engine_name(self.config.model.named().filter(|_| self.config.upstream_model.is_none())?)
    }

    /// The same for a request that named another route's model, which is not theirs in any case.
    pub fn model_in_place(&self) -> Option<Arc<str>> {
        self.engine_model().or_else(|| self.config.model.named().cloned())
    }

    /// The model that a request without one has to name, because an engine would take another: the first that it lists. `None` also
    /// where nothing is known.
    pub fn model_to_name(&self) -> Option<Arc<str>> {
        let model = self.model_in_place()?;
        let is_given = self.config.upstream_model.is_some();
        let takes_another = |replica: &Arc<Replica>| {
            let models = replica.engine.models.load();
            let is_first = models.first().is_some_and(|first| first.id == model);
            !is_first && (is_given || models.iter().any(|known| known.id == model))
        };
        let is_any = self.pools.iter().any(|pool| pool.replicas().iter().any(takes_another));
        is_any.then_some(model)
    }

    /// The model that an engine takes where none is named.
    pub fn first_listed(&self) -> Option<Arc<str>> {
        let first = |replica: &Arc<Replica>| Some(Arc::clone(&replica.engine.models.load().first()?.id));
        self.pools.iter().find_map(|pool| pool.replicas().iter().find_map(first))
    }

    /// Whether a ready replica lists the model.
    pub fn is_listed(&self, model: Option<&str>) -> bool {
        model.is_some_and(|model| self.any(|replica| replica.is_ready() && replica.engine.lists(model)))
    }

    /// Whether a replica lists the model, be it ready or not.
    pub fn is_known(&self, model: &str) -> bool {
        self.any(|replica| replica.engine.lists(model))
    }

    fn any(&self, is_it: impl Fn(&Replica) -> bool) -> bool {
        self.pools.iter().any(|pool| pool.replicas().iter().any(|replica| is_it(replica)))
    }

    /// Why no replica takes its requests, in a phrase for people; of a model that some list, why those do not.
    pub fn why_unready(&self, model: Option<&str>) -> String {
        let model = model.filter(|model| self.is_known(model));
        let why = self.used().map(|pool| {
            pool.why_unready(|one| pool.is_outside() || model.is_none_or(|model| one.may_have(model)))
        });
        why.filter(|why| !why.is_empty()).collect::<Vec<_>>().join("; ")
    }
}

/// What clients may ask for, for error messages.
fn names<'r>(routes: impl Iterator<Item = &'r Arc<RouteState>>) -> String {
    let name = |route: &'r Arc<RouteState>| &**route.config.model.named().unwrap_or(&route.config.name);
    routes.map(name).collect::<Vec<_>>().join(", ")
}

/// A client's string, cut to [`MAX_NAME`] characters for error messages.
pub(super) fn shortened(name: &str) -> String {
    name.chars().take(MAX_NAME).collect()
}

const MAX_NAME: usize = 128;
