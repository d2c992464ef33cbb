//! `[[tenant]]`: clients by the SHA-256 digests of their keys, by names in their certificates, by claims of their tokens.

use std::collections::HashSet;
use std::sync::Arc;

use crate::config::{Declared, Route, Tenant, TenantLimits};

use super::admission;
use super::section::{Item, Section};
use super::values::{DIGEST, NAME};

/// Reads every `[[tenant]]`.
pub(super) fn tenants(root: &Section<'_>, routes: &[Route]) -> Vec<Tenant> {
    let (mut names, mut digests, mut client_names) = (HashSet::new(), HashSet::new(), HashSet::new());
    let has_tokens = root.get("auth").is_some();
    let mut tenants = Vec::new();
    for section in root.sections("tenant", "[[tenant]]") {
        let tenant = tenant(&section, routes, &mut digests, &mut client_names);
        let is_reachable =
            has_tokens || section.get("key_sha256").is_some() || !tenant.client_names.is_empty();
        if !is_reachable {
            section.fault("[[tenant]] has no \"key_sha256\"", DIGEST.hint);
        }
        section.expect_unique("tenant", &tenant.name, &mut names);
        tenants.push(tenant);
    }
    tenants
}

fn tenant(
    section: &Section<'_>,
    routes: &[Route],
    seen: &mut HashSet<[u8; 32]>,
    seen_names: &mut HashSet<Arc<str>>,
) -> Tenant {
    let name = section.require("name", &NAME).unwrap_or_else(|| format!("#{}", section.span.start).into());
    let client_names = client_names(section, seen_names);
    Tenant {
        name,
        key_digests: key_digests(section, seen),
        client_names,
        routes: section
            .get("routes")
            .map(|list| list.list().iter().filter_map(|item| allowed_route(item, routes)).collect()),
        weight: section.integer("weight", 1..=1_000_000).unwrap_or(1),
        priority: section.integer("priority", -MAX_PRIORITY..=MAX_PRIORITY).unwrap_or(0),
        limits: TenantLimits::of(section),
    }
}

fn key_digests(section: &Section<'_>, seen: &mut HashSet<[u8; 32]>) -> Vec<[u8; 32]> {
    let items = section.list("key_sha256");
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

fn client_names(section: &Section<'_>, seen: &mut HashSet<Arc<str>>) -> Vec<Arc<str>> {
    let mut names = Vec::new();
    for item in section.list("client_names") {
        let Some(name) = item.text().map(Arc::<str>::from) else { continue };
        if name.is_empty() {
            item.fault("a client name is empty", CLIENT_NAME_HINT);
        } else if !seen.insert(Arc::clone(&name)) {
            item.fault(
                format!("\"{name}\" is listed already"),
                "a client's certificate belongs to one tenant",
            );
        }
        names.push(name);
    }
    names
}

fn allowed_route(item: &Item<'_>, routes: &[Route]) -> Option<Arc<str>> {
    let found = admission::route_named(item, item.text()?, routes)?;
    routes.get(found).map(|route| Arc::clone(&route.name))
}

/// Bound of `priority` in both directions, and of the header `x-priority`.
const MAX_PRIORITY: i64 = crate::config::MAX_PRIORITY as i64;
const CLIENT_NAME_HINT: &str = "write a DNS name, a URI or the common name of its client certificate: client_names = [\"team-a.internal\"]";
