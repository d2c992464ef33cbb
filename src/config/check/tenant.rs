//! `[[tenant]]`: who may ask, by the digests of their keys.

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::config::diagnostics::did_you_mean;
use crate::config::schema;
use crate::config::{ModelMatch, Route, Tenant};

use super::section::{Item, Section};
use super::unbuilt;
use super::values::{DIGEST, NAME};

/// Reads every `[[tenant]]`.
pub(super) fn tenants(root: &Section<'_>, routes: &[Route]) -> Vec<Tenant> {
    let (mut names, mut digests) = (HashSet::new(), HashSet::new());
    let mut tenants = Vec::new();
    for section in root.sections("tenant", schema::TENANT) {
        let tenant = tenant(&section, routes, &mut digests);
        if !names.insert(tenant.name.clone()) {
            section.fault(
                format!("two tenants are named \"{}\"", tenant.name),
                "give each tenant a name of its own",
            );
        }
        tenants.push(tenant);
    }
    tenants
}

fn tenant(section: &Section<'_>, routes: &[Route], seen: &mut HashSet<[u8; 32]>) -> Tenant {
    unbuilt::refuse(section, unbuilt::TENANT);
    let name = section.require("name", &NAME).unwrap_or_else(|| format!("#{}", section.span.start).into());
    let weight = section.integer("weight", 1..=1_000_000).and_then(|number| u32::try_from(number).ok());
    let priority = section.integer("priority", i64::from(i32::MIN)..=i64::from(i32::MAX));
    Tenant {
        name,
        key_digests: key_digests(section, seen),
        routes: section
            .get("routes")
            .map(|list| list.list().iter().filter_map(|item| allowed_route(item, routes)).collect()),
        weight: weight.and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN),
        priority: priority.and_then(|number| i32::try_from(number).ok()).unwrap_or(0),
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
    let text = item.text()?;
    let is_meant = |route: &&Route| {
        &*route.name == text || matches!(&route.model, ModelMatch::Named(model) if &**model == text)
    };
    let by_name = routes.iter().find(|route| &*route.name == text);
    let found = by_name.or_else(|| routes.iter().find(is_meant));
    if found.is_none() {
        let names: Vec<_> = routes.iter().map(|route| &*route.name).collect();
        let message = did_you_mean(format!("unknown route \"{text}\""), text, &names);
        item.fault(message, format!("routes of this file: {}", names.join(", ")));
    }
    found.map(|route| route.name.clone())
}
