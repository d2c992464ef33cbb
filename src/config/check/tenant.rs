//! `[[tenant]]`: clients by the SHA-256 digests of their keys.

use std::collections::HashSet;
use std::sync::Arc;

use crate::config::{Route, Tenant};

use super::section::{Item, Section};
use super::values::{DIGEST, NAME};
use super::{admission, unbuilt};

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
    unbuilt::refuse(section, unbuilt::TENANT);
    let name = section.require("name", &NAME).unwrap_or_else(|| format!("#{}", section.span.start).into());
    Tenant {
        name,
        key_digests: key_digests(section, seen),
        routes: section
            .get("routes")
            .map(|list| list.list().iter().filter_map(|item| allowed_route(item, routes)).collect()),
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
