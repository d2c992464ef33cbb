//! `[[tenant]]`: clients by the SHA-256 digests of their keys, by names in their certificates, by claims of their tokens.

use std::collections::HashSet;
use std::sync::Arc;

use super::budget::BUDGET;
use super::check::admission::own_names;
use super::check::codec::{List, NAMED, Own, SWITCH};
use super::check::section::{Item, Section};
use super::check::values::{DIGEST, LABEL, NAME};
use super::declare::{Below, Declared, section};
use super::{Budget, ENGINE_PRIORITIES, MAX_PRIORITY, Route};

section! {
    #[derive(Clone, Debug)]
    pub struct Tenant for "[[tenant]]", optional {
        /// required, unique
        name: Arc<str> as LABEL, required "acme";
        /// printf %s "$KEY" | sha256sum; [] where all are made at run time: `tokenway key add`
        key_digests @ "key_sha256": Vec<[u8; 32]> as List(DIGEST), empty ["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"];
        /// with server.tls.client_ca: DNS name, URI or common name in its client certificate; no key is needed then
        client_names: Vec<Arc<str>> as List(CLIENT_NAME), empty ["team-a.internal"];
        /// names of routes, or models where no route has that name; default: all
        routes: Option<Vec<Arc<str>>> as List(NAMED), example ["llama-8b"];
        /// its part of a pool while others wait too, in predicted seconds of work; with policy latency
        weight: u32 as 1..=1_000_000, default 1;
        /// -100 to 100: higher goes first, whatever the weights; with policy latency
        priority: i32 as PRIORITIES, default 0;
        /// engines keep its prompts apart from others': the gateway sets `cache_salt`, with the client's own folded in; default: that of `[routing]`
        cache_isolation: bool as SWITCH, default false;
        /// only tenants of one group share cached prompts; with cache_isolation
        cache_group: Option<Arc<str>> as NAME, example "house-prompts";
        /// vLLM's priority (--scheduling-policy priority), lower is sooner; a client's own counts only where the route's client_may has "engine_priority"
        engine_priority: Option<i32> as ENGINE_PRIORITIES, example 0;
        /// `[telemetry.content]` may record its prompts and answers, on routes that have it too
        content: bool as SWITCH, default false;
        /// what it may use in windows of the calendar
        budgets @ "budget": Vec<Budget> as List(BUDGET), section {};
        /// each optional; 429 beyond. A minute's allowance may be used at once; tokens are those of prompts and answers
        limits: TenantLimits as Below, empty { requests_per_minute = 600, tokens_per_minute = 100000, concurrency = 64 };
    }
}

section! {
    /// what is absent is unlimited
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct TenantLimits for "tenant.limits", optional {
        /// requests per minute; a minute's may come at once
        requests_per_minute: Option<u64> as 1..=1_000_000_000, example 600;
        /// prompt and answer tokens per minute
        tokens_per_minute: Option<u64> as 1..=1_000_000_000_000, example 100000;
        /// requests in flight, waiting ones included
        concurrency: Option<u32> as 1..=1_000_000, example 64;
    }
}

pub(super) fn tenants(root: &Section<'_>, routes: &[Route], cache_isolation: bool) -> Vec<Tenant> {
    let default = Tenant { cache_isolation, ..Tenant::default() };
    let (mut names, mut credentials) = (HashSet::new(), HashSet::new());
    let has_tokens = root.get("auth").is_some();
    let mut tenants = Vec::new();
    for section in root.sections("tenant", Tenant::DECLARATION.header) {
        let tenant = tenant(&section, routes, &default);
        expect_own(&section, &mut credentials);
        let is_reachable =
            has_tokens || section.get("key_sha256").is_some() || !tenant.client_names.is_empty();
        if !is_reachable {
            section.fault("[[tenant]] has no \"key_sha256\"", KEYS_HINT);
        }
        section.expect_unique("tenant", &tenant.name, &mut names);
        tenants.push(tenant);
    }
    tenants
}

fn tenant(section: &Section<'_>, routes: &[Route], default: &Tenant) -> Tenant {
    let mut tenant = Tenant::read(section, default);
    section.expect("name", NAME.hint);
    if section.get("name").and_then(|item| item.value.as_str()) != Some(&*tenant.name) {
        tenant.name = format!("#{}", section.span.start).into();
    }
    tenant.routes = tenant.routes.map(|_| own_names(section, routes));
    tenant
}

/// Reports keys and names that a tenant has already.
fn expect_own(section: &Section<'_>, known: &mut HashSet<(&'static str, String)>) {
    for item in section.list("key_sha256") {
        let digest = item.value.as_str().unwrap_or_default().to_ascii_lowercase();
        if !digest.is_empty() && !known.insert(("key_sha256", digest)) {
            item.fault("this key is listed already", "a key belongs to one tenant, once");
        }
    }
    for item in section.list("client_names") {
        let name = item.value.as_str().unwrap_or_default();
        if !name.is_empty() && !known.insert(("client_names", name.to_owned())) {
            item.fault(
                format!("\"{name}\" is listed already"),
                "a client's certificate belongs to one tenant",
            );
        }
    }
}

fn client_name(item: &Item<'_>) -> Option<Arc<str>> {
    let name = item.text()?;
    if name.is_empty() {
        item.fault("a client name is empty", CLIENT_NAME_HINT);
    }
    Some(name.into())
}

const CLIENT_NAME: Own<Arc<str>> = Own { read: client_name, ..NAMED };
/// Bound of `priority` in both directions, and of the header `x-priority`.
const PRIORITIES: std::ops::RangeInclusive<i64> = -(MAX_PRIORITY as i64)..=MAX_PRIORITY as i64;
const KEYS_HINT: &str = "write the 64 hexadecimal digits that `printf %s \"$KEY\" | sha256sum` prints, or key_sha256 = [] and make keys with `tokenway key add`";
const CLIENT_NAME_HINT: &str = "write a DNS name, a URI or the common name of its client certificate: client_names = [\"team-a.internal\"]";
