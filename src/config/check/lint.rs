//! Warnings: what a file says without a fault, and yet can hardly be meant.
//!
//! A warning names a setting that has no effect, a bound that can never be the one that is missed, a rollout that ends unjudged, or a default that tenants can turn
//! against each other. What is a matter of
//! taste is none, so that a file without warnings is worth having.

use std::collections::HashMap;

use crate::config::diagnostics::Fault;
use crate::config::{Config, Jwks, PolicyName, PrefillWhen, Route, Routing, Slo, Tenant, Timeouts};

use super::section::Section;

/// Warns of what `config`, read from this file without faults, can hardly mean.
pub(super) fn lint(root: &Section<'_>, config: &Config) {
    let lint = Lint { root, config };
    lint.pools();
    lint.routes();
    lint.tenants();
    lint.classes();
    lint.key_set();
    lint.cluster();
    lint.content();
}

struct Lint<'l, 'a> {
    root: &'l Section<'a>,
    config: &'l Config,
}

impl Lint<'_, '_> {
    /// Warns at the first of these keys that a section has, or at the section where it has none of them.
    fn warn(&self, section: &str, at: usize, keys: &[&str], message: impl Into<String>, hint: &str) {
        let key = keys.iter().find_map(|key| self.root.peek(&[section, key], at));
        let item = key.or_else(|| self.root.peek(&[section], at));
        let span = item.map_or_else(|| self.root.span.clone(), |item| item.span);
        self.root.checking.warn(&span, Fault::new(message, hint));
    }

    fn cluster(&self) {
        let Some(cluster) = &self.config.cluster else { return };
        if cluster.ca.is_some() && !cluster.url.endpoints.iter().any(|endpoint| endpoint.is_tls) {
            let message = "cluster.ca has no effect: the broker is reached without TLS";
            self.warn("cluster", 0, &["ca"], message, "write rediss:// in cluster.url, or remove ca");
        }
    }

    fn content(&self) {
        let Config { routes, tenants, telemetry, .. } = self.config;
        let of_route = routes.iter().position(|route| route.content);
        let of_tenant = tenants.iter().position(|tenant| tenant.content);
        match (&telemetry.content, of_route, of_tenant) {
            (None, None, None) | (Some(_), Some(_), Some(_)) => {}
            (None, at, or_at) => {
                let section = if at.is_some() { "route" } else { "tenant" };
                let at = at.or(or_at).unwrap_or_default();
                let message = "content = true has no effect: there is no [telemetry.content]";
                let hint = "add [telemetry.content] with file or otlp = true, or remove content";
                self.warn(section, at, &["content"], message, hint);
            }
            (Some(_), at, _) => {
                let lacks = if at.is_none() { "route" } else { "tenant" };
                let message =
                    format!("[telemetry.content] records nothing: no [[{lacks}]] has content = true");
                let hint = "set content = true in a [[route]] and in each [[tenant]] that has agreed";
                self.warn("telemetry", 0, &["content"], message, hint);
            }
        }
    }

    fn pools(&self) {
        let (mut homes, mut names) = (HashMap::new(), HashMap::new());
        for (at, pool) in self.config.pools.iter().enumerate() {
            if !self.config.routes.iter().any(|route| route.uses(at)) {
                let message =
                    format!("no route uses pool \"{}\": its replicas are probed and idle", pool.name);
                self.warn("pool", at, &["name"], message, "name it in the pools of a route");
            }
            if pool.tls.is_some()
                && !pool.replicas.is_empty()
                && pool.replicas.iter().all(|r| !r.endpoint.is_tls)
            {
                let message = "pool.tls has no effect: no replica of the pool has an https URL";
                self.warn("pool", at, &["tls"], message, "write https:// URLs, or remove tls");
            }
            for replica in &pool.replicas {
                if let Some(other) =
                    homes.insert(&replica.endpoint, &pool.name).filter(|other| **other != pool.name)
                {
                    let message = format!(
                        "{} is in pools \"{other}\" and \"{}\": each takes it for its own and counts half its load",
                        replica.endpoint, pool.name
                    );
                    let hint = "list a replica in one pool; several routes may use that pool";
                    self.warn("pool", at, &["replicas"], message, hint);
                } else if let Some(other) =
                    names.insert(&replica.name, &pool.name).filter(|other| **other != pool.name)
                {
                    let message = format!(
                        "pools \"{other}\" and \"{}\" both have a replica \"{}\": figures by replica take the two for one",
                        pool.name, replica.name
                    );
                    let hint = "give each replica a name of its own, or none";
                    self.warn("pool", at, &["replicas"], message, hint);
                }
            }
        }
    }

    fn routes(&self) {
        for (at, route) in self.config.routes.iter().enumerate() {
            let slo = self.config.slo.get(&route.slo).copied().unwrap_or_default();
            self.deadlines(at, route, slo);
            let pools: Vec<_> = self.config.pools_of(route).collect();
            let is_alone = matches!(pools[..], [pool] if pool.replicas.len() == 1);
            if route.hedge.is_some() && is_alone {
                let message = format!("hedge has no effect: route \"{}\" has one replica", route.name);
                self.warn("route", at, &["hedge"], message, "add a replica, or remove hedge");
            }
            for weighted in route.pools.iter().filter(|weighted| weighted.weight == 0) {
                let is_canary = route.canary.as_ref().is_some_and(|canary| canary.pool == weighted.pool);
                let Some(pool) =
                    self.config.pools.get(weighted.pool).filter(|pool| !is_canary && !pool.standby)
                else {
                    continue;
                };
                let message = format!(
                    "weight = 0: pool \"{}\" gets no request of route \"{}\", not even when its other pools are down",
                    pool.name, route.name
                );
                let hint =
                    "remove it, or set standby = true in its [[pool]]: then it serves when the others cannot";
                self.warn("route", at, &["pools"], message, hint);
            }
            self.crossed(at, route);
            self.pattern(at, route);
            self.outside(at, route);
            self.prefill(at, route);
            if route.client_may.priority && !self.has_order() {
                let message =
                    format!("clients may set a priority on route \"{}\", and nothing waits", route.name);
                let hint = "use policy latency on a route, or remove \"priority\"";
                self.warn("route", at, &["client_may"], message, hint);
            }
        }
    }

    /// A pattern, where a name is meant.
    fn pattern(&self, at: usize, route: &Route) {
        if route.model.named().is_some_and(|model| model.contains('*')) {
            let message = format!("route \"{}\" takes requests for exactly this name", route.name);
            let hint = "a route's model is one name, or \"*\" for all that no other route has";
            self.warn("route", at, &["model"], message, hint);
        }
    }

    /// A name that clients know as the model of another route.
    fn crossed(&self, at: usize, route: &Route) {
        let takes = |other: &&Route| other.model.named() == Some(&route.name);
        let Some(other) = self.config.routes.iter().find(takes).filter(|other| other.name != route.name)
        else {
            return;
        };
        let message = format!(
            "\"{}\" is the name of this route and the model of route \"{}\": in lists of routes it means this one",
            route.name, other.name
        );
        let hint = "give the route a name that is no other route's model";
        self.warn("route", at, &["name", "model"], message, hint);
    }

    /// Prompts that are computed apart for some, and by whom.
    fn prefill(&self, at: usize, route: &Route) {
        let Some(prefill) = route.prefill.as_ref().filter(|prefill| prefill.when != PrefillWhen::Never)
        else {
            return;
        };
        let Some(computes) = self.config.pools.get(prefill.pool) else { return };
        let canary = route.canary.as_ref().and_then(|canary| self.config.pools.get(canary.pool));
        if canary.is_some_and(|canary| canary.revision != computes.revision) {
            let message = format!(
                "the canary of route \"{}\" computes its prompts itself and is judged against requests whose prompts pool \"{}\" computes",
                route.name, computes.name
            );
            let hint =
                "set prefill = { when = \"never\", … } while revisions change: KV moves within one revision";
            self.warn("route", at, &["canary", "prefill"], message, hint);
        }
        let connector = prefill.connector;
        let mut pools = self.config.pools_of(route).chain([computes]);
        if let Some(other) = pools.find(|pool| connector.is_unknown_to(pool.engine)) {
            let (name, engine, connector) = (&other.name, other.engine.as_str(), connector.as_str());
            let message = format!(
                "connector {connector}: engine of pool \"{name}\" is {engine}, which fetches no KV by it"
            );
            self.warn("route", at, &["prefill"], message, "set another connector, or the engine of the pool");
        }
    }

    /// What leaves the house, or does not although it seems to.
    fn outside(&self, at: usize, route: &Route) {
        let mut outside = self.config.pools_of(route).filter(|pool| pool.outside.is_some()).peekable();
        if route.outside && outside.peek().is_none() {
            let message =
                format!("outside has no effect: route \"{}\" has no pool with [pool.outside]", route.name);
            self.warn("route", at, &["outside"], message, "name such a pool, or remove it");
        }
        for pool in outside {
            let is_far = |host: &str| !matches!(host, "localhost" | "127.0.0.1" | "::1");
            let clear = pool.replicas.iter().find(|one| !one.endpoint.is_tls && is_far(&one.endpoint.host));
            if let Some(clear) = clear {
                let message = format!(
                    "prompts and the key of pool \"{}\" go to {} without TLS",
                    pool.name, clear.endpoint
                );
                self.warn("route", at, &["pools"], message, "use https://");
            }
        }
    }

    fn deadlines(&self, at: usize, route: &Route, slo: Slo) {
        let warn = |message: String, hint| {
            self.warn("route", at, &["timeouts", "slo", "name", "model"], message, hint);
        };
        let (ttft, first_token) = (slo.ttft.map(|bound| bound.base), route.timeouts.first_token);
        if let Some(ttft) = ttft.filter(|ttft| *ttft >= first_token) {
            let message = format!(
                "timeouts.first_token ({first_token:?}) of route \"{}\" ends requests before their ttft bound ({ttft:?})",
                route.name
            );
            warn(message, "raise the timeout well above the bound of the SLO class");
        }
        let total = route.timeouts.total;
        // The default was not asked for.
        if first_token > total && first_token != Timeouts::default().first_token {
            let message = format!(
                "timeouts.first_token ({first_token:?}) of route \"{}\" has no effect: timeouts.total ({total:?}) ends its requests before",
                route.name
            );
            warn(message, "raise timeouts.total, or lower the other");
        }
        if let Some(e2e) = slo.e2e.filter(|e2e| *e2e >= total) {
            let message = format!(
                "timeouts.total ({total:?}) of route \"{}\" ends requests before their e2e bound ({e2e:?})",
                route.name
            );
            warn(message, "raise the timeout well above the bound of the SLO class");
        }
    }

    /// Whether a pool's requests are ever ordered.
    fn has_order(&self) -> bool {
        self.config.routes.iter().any(|route| route.policy == PolicyName::Latency)
    }

    fn tenants(&self) {
        let config = self.config;
        if config.tenants.is_empty() && !config.server.trust_headers.is_empty() {
            let message = "trust_headers has no effect: there is no [[tenant]]";
            let hint = "add the tenants that the headers name, or remove it";
            self.warn("server", 0, &["trust_headers"], message, hint);
        }
        if config.tenants.is_empty() && config.routing.cache_isolation {
            let message = "cache_isolation has no effect: there is no [[tenant]]";
            self.warn("routing", 0, &["cache_isolation"], message, "add the tenants, or remove it");
        }
        if config.tenants.len() > 1 && config.routing.seed == Routing::default().seed {
            let message = "routing.seed is no secret: a tenant can compute to which replica and which side of a canary others' sessions go";
            let hint = "set routing.seed = \"env:NAME\" or \"file:PATH\", the same on all gateways";
            self.warn("routing", 0, &["seed"], message, hint);
        }
        let checks_clients = config.server.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        for (at, tenant) in config.tenants.iter().enumerate() {
            let name = &tenant.name;
            if !self.has_order() && (tenant.weight != 1 || tenant.priority != 0) {
                let message =
                    format!("weight and priority of tenant \"{name}\" have no effect: nothing waits");
                let hint = "use policy latency on a route, or remove them";
                self.warn("tenant", at, &["weight", "priority"], message, hint);
            }
            self.reach(at, tenant);
            self.isolation(at, tenant);
            if !checks_clients && !tenant.client_names.is_empty() {
                let message = format!(
                    "client_names of tenant \"{name}\" have no effect: no client shows a certificate"
                );
                let hint = "set client_ca in server.tls, or remove them";
                self.warn("tenant", at, &["client_names"], message, hint);
            }
        }
    }

    /// What a tenant cannot use, and budgets of what it cannot.
    fn reach(&self, at: usize, tenant: &Tenant) {
        let name = &tenant.name;
        if tenant.routes.as_ref().is_some_and(Vec::is_empty) {
            let message = format!("tenant \"{name}\" may use nothing: its list of routes is empty");
            let hint = "name its routes, or leave routes out: then it may use all";
            self.warn("tenant", at, &["routes"], message, hint);
            return;
        }
        let is_served = |model: &str| {
            self.usable(tenant).any(|route| route.model.named().is_none_or(|named| **named == *model))
        };
        for (which, budget) in tenant.budgets.iter().enumerate() {
            let Some(model) = budget.model.as_ref().filter(|model| !is_served(model)) else { continue };
            let budgets = self.root.peek(&["tenant", "budget"], at);
            let Some(written) = budgets.and_then(|budgets| budgets.peek("model", which)) else { continue };
            let message = format!(
                "this budget of tenant \"{name}\" never counts: no route that it may use takes model \"{model}\""
            );
            let hint = "write the model of a [[route]], which is what clients ask for";
            self.root.checking.warn(&written.span, Fault::new(message, hint));
        }
    }

    /// The routes that a tenant may use.
    fn usable<'s>(&'s self, tenant: &'s Tenant) -> impl Iterator<Item = &'s Route> {
        let may_use = |route: &&Route| tenant.routes.as_ref().is_none_or(|names| names.contains(&route.name));
        self.config.routes.iter().filter(may_use)
    }

    /// What keeps a tenant's cached prompts less apart than they seem.
    fn isolation(&self, at: usize, tenant: &Tenant) {
        let (config, name) = (self.config, &tenant.name);
        if !tenant.cache_isolation {
            if tenant.cache_group.is_some() {
                let message =
                    format!("cache_group of tenant \"{name}\" has no effect: it shares with everybody");
                let hint = "set cache_isolation = true, for the tenant or in [routing]";
                self.warn("tenant", at, &["cache_group"], message, hint);
            }
            return;
        }
        let mut pools = self.usable(tenant).flat_map(|route| config.pools_of(route));
        if let Some(pool) = pools.find(|pool| !pool.engine.takes_cache_salt()) {
            let message = format!(
                "tenant \"{name}\" shares cached prompts in pool \"{}\": engine {} takes no cache_salt",
                pool.name,
                pool.engine.as_str()
            );
            let hint = "switch prefix caching off in that engine, or keep the tenant from its routes";
            self.warn("tenant", at, &["cache_isolation", "name"], message, hint);
        }
        if !config.server.extra_paths.is_empty() {
            let message = format!("tenant \"{name}\" shares cached prompts on server.extra_paths");
            let hint = "their bodies are opaque and get no cache_salt: remove those that make an engine read a prompt";
            self.warn("server", 0, &["extra_paths"], message, hint);
        }
    }

    fn classes(&self) {
        let config = self.config;
        if config.routes.iter().any(|route| route.client_may.slo_class) {
            return;
        }
        for class in config.slo.keys().filter(|class| !BUILT_IN.contains(&class.as_ref())) {
            if !config.routes.iter().any(|route| route.slo == *class) {
                let message =
                    format!("no route uses the slo class \"{class}\", and no client may ask for one");
                let hint =
                    "name it in a route: slo = \"…\", or let clients ask: client_may = [\"slo_class\"]";
                self.warn("slo", 0, &[class.as_ref()], message, hint);
            }
        }
    }

    fn key_set(&self) {
        let Some(jwt) = &self.config.jwt else { return };
        let Jwks::Url { endpoint, .. } = &jwt.jwks else { return };
        let is_here = matches!(&*endpoint.host, "localhost" | "127.0.0.1" | "::1");
        if !endpoint.is_tls && !is_here {
            let message = format!("the keys that tokens are checked with come from {endpoint} without TLS");
            let hint = "anyone on the way can add a key: use https://, or file:";
            self.warn("auth", 0, &["jwt"], message, hint);
        }
    }
}

const BUILT_IN: &[&str] = &["interactive", "standard", "batch"];
