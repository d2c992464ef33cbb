//! `[[tenant]]`: clients by the SHA-256 digests of their keys.

use std::collections::HashSet;
use std::sync::Arc;

use crate::config::{Route, Tenant, TenantLimits};

use super::admission;
use super::section::{Item, Section};
use super::values::{DIGEST, NAME};

/// Reads every `[[tenant]]`.
pub(super) fn tenants(root: &Section<'_>, routes: &[Route]) -> Vec<Tenant> {
    let (mut names, mut digests) = (HashSet::new(), HashSet::new());
    let mut tenants = Vec::new();
    for section in root.sections("tenant", "[[tenant]]") {
        let tenant = tenant(&section, routes, &mut digests);
        section.expect_unique("tenant", &tenant.name, &mut names);
        tenants.push(tenant);
    }
    tenants
}

fn tenant(section: &Section<'_>, routes: &[Route], seen: &mut HashSet<[u8; 32]>) -> Tenant {
    let name = section.require("name", &NAME).unwrap_or_else(|| format!("#{}", section.span.start).into());
    Tenant {
        name,
        key_digests: key_digests(section, seen),
        routes: section
            .get("routes")
            .map(|list| list.list().iter().filter_map(|item| allowed_route(item, routes)).collect()),
        weight: section.integer("weight", 1..=1_000_000).unwrap_or(1),
        priority: section.integer("priority", -MAX_PRIORITY..=MAX_PRIORITY).unwrap_or(0),
        limits: limits(&section.section("limits", "tenant.limits")),
    }
}

fn limits(section: &Section<'_>) -> TenantLimits {
    TenantLimits {
        requests_per_minute: section.integer("requests_per_minute", 1..=1_000_000_000),
        tokens_per_minute: section.integer("tokens_per_minute", 1..=1_000_000_000_000),
        concurrency: section.integer("concurrency", 1..=1_000_000),
    }
}

fn key_digests(section: &Section<'_>, seen: &mut HashSet<[u8; 32]>) -> Vec<[u8; 32]> {
    let items = section.list("key_sha256");
    if section.get("key_sha256").is_none() {
        section.fault("[[tenant]] has no \"key_sha256\"", DIGEST.hint);
    }
    let mut digests = Vec::new();
    for item in &items {
        let Some(digest) = item.parse(&DIGEST) else { continue };
        if !seen.insert(digest) {
            item.fault("this key is listed already", "a key belongs to one tenant, once");
        }
        digests.push(digest);
    }
    digests
}

fn allowed_route(item: &Item<'_>, routes: &[Route]) -> Option<Arc<str>> {
    let found = admission::route_named(item, item.text()?, routes)?;
    routes.get(found).map(|route| Arc::clone(&route.name))
}

/// Bound of `priority` in both directions, and of the header `x-priority`.
const MAX_PRIORITY: i64 = crate::config::MAX_PRIORITY as i64;
