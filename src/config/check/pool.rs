//! `[[pool]]`: replicas that serve one model artifact on one runtime image.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use serde_json::json;
use toml::de::DeValue;

use crate::config::dcgm::dcgm;
use crate::config::{
    Dcgm, DcgmSources, Declared, Endpoint, MAX_REPLICAS, Pool, PoolIdentity, PoolTls, ReplicaSpec, discovery,
    kv_events, outside, warmup,
};

use super::codec::Own;
use super::engine;
use super::pem::{holds_certificate, pem_file, pem_pair};
use super::section::{Item, Section};
use super::shape::Kind;
use super::values::{ENDPOINT, LABEL, NAME};

pub(super) fn pools(root: &Section<'_>) -> Vec<Pool> {
    let mut names = HashSet::new();
    let mut pools = Vec::new();
    for section in root.sections("pool", "[[pool]]") {
        let pool = pool(&section);
        section.expect_unique("pool", &pool.name, &mut names);
        pools.push(pool);
    }
    if pools.is_empty() && root.get("pool").is_none_or(|item| item.is_empty_list()) {
        root.fault(
            "no [[pool]] is configured",
            "add one: [[pool]] name = \"main\", replicas = [\"http://127.0.0.1:8000\"]",
        );
    }
    pools
}

fn pool(section: &Section<'_>) -> Pool {
    let name = section.require("name", &LABEL).unwrap_or_else(|| format!("#{}", section.span.start).into());
    let revision = section.parse("revision", &LABEL).unwrap_or_else(|| name.clone());
    let pool = Pool::read(section, &Pool::default());
    let mut own_dcgm = BTreeMap::new();
    let mut pool = Pool {
        revision,
        engine_profile: Arc::new(engine::profile(section, pool.engine)),
        replicas: replicas(section, &name, &mut own_dcgm),
        dcgm: DcgmSources { pool: section.get("dcgm").and_then(|item| dcgm(&item)), replicas: own_dcgm },
        discovery: discovery::discovery(section),
        keep_alive: warmup::keep_alive(section),
        lora: warmup::lora(section),
        name,
        ..pool
    };
    pool.outside = outside::outside(section, &pool);
    pool.kv_events = kv_events::kv_events(section, &pool);
    if pool.outside.is_some() {
        // Its figures are not ours to see.
        Arc::make_mut(&mut pool.engine_profile).metrics_path = None;
    }
    pool
}

pub(in crate::config) const REVISION_INFO: Own<BTreeMap<String, String>> =
    Own { read: |item| Some(revision_info(item)), show: |facts| json!(facts) };

fn revision_info(item: &Item<'_>) -> BTreeMap<String, String> {
    let hint = "write free facts of the revision: { image = \"…\", model = \"…\" }";
    let fact = |entry: Item<'_>| Some((entry.key.to_owned(), entry.text()?.to_owned()));
    item.entries("a table", hint).filter_map(fact).collect()
}

fn replicas(pool: &Section<'_>, name: &str, own_dcgm: &mut BTreeMap<Arc<str>, Dcgm>) -> Vec<ReplicaSpec> {
    let items = pool.list("replicas");
    let is_elsewhere = ["dns", "file", "kubernetes"].iter().any(|key| pool.get(key).is_some());
    match pool.get("replicas") {
        None if !is_elsewhere => pool.fault("[[pool]] has no replicas", ENDPOINT_HINT),
        Some(list) if !is_elsewhere && list.is_empty_list() => {
            list.fault("a pool needs at least one replica", ENDPOINT_HINT);
        }
        Some(list) if items.len() > MAX_REPLICAS => list.fault(
            format!("pool \"{name}\" has {} replicas, more than {MAX_REPLICAS}", items.len()),
            "split it into pools of one route: pools = [\"a\", \"b\"]",
        ),
        _ => {}
    }
    let (mut names, mut endpoints) = (HashSet::new(), HashSet::new());
    let mut replicas = Vec::new();
    for item in &items {
        let Some((replica, dcgm)) = replica(item) else { continue };
        own_dcgm.extend(dcgm.map(|dcgm| (Arc::clone(&replica.name), dcgm)));
        if !endpoints.insert(replica.endpoint.clone()) {
            item.fault(format!("{} is listed twice", replica.endpoint), "list each replica once");
        } else if !names.insert(replica.name.clone()) {
            item.fault(
                format!("two replicas are named \"{}\"", replica.name),
                "give each replica a name of its own, or none",
            );
        }
        replicas.push(replica);
    }
    replicas
}

fn replica(item: &Item<'_>) -> Option<(ReplicaSpec, Option<Dcgm>)> {
    item.accepts([Kind::Text { hint: ENDPOINT.hint }, Kind::Section { header: "pool.replicas" }]);
    if !matches!(item.value, DeValue::Table(_)) {
        let endpoint = item.parse(&ENDPOINT)?;
        return Some((ReplicaSpec { name: default_name(&endpoint), endpoint, zone: None }, None));
    }
    let section = item.section("pool.replicas")?;
    let endpoint = section.require("url", &ENDPOINT);
    let name = section.parse("name", &LABEL);
    let zone = section.parse("zone", &NAME);
    let dcgm = section.get("dcgm").and_then(|item| dcgm(&item));
    let endpoint = endpoint?;
    let name = name.unwrap_or_else(|| default_name(&endpoint));
    Some((ReplicaSpec { name, endpoint, zone }, dcgm))
}

fn default_name(endpoint: &Endpoint) -> Arc<str> {
    // Two replicas behind one ingress differ by their path alone.
    format!("{}{}", endpoint.authority(), endpoint.base_path).into()
}

/// `pool.tls`
pub(in crate::config) const TLS: Own<PoolTls> = Own {
    read: tls,
    show: |tls| {
        let shown = |path: &PathBuf| path.display().to_string();
        json!({
            "ca": tls.ca.as_ref().map(shown),
            "cert": tls.identity.as_ref().map(|files| shown(&files.cert)),
            "key": tls.identity.as_ref().map(|files| shown(&files.key)),
            "server_name": tls.server_name.as_deref(),
        })
    },
};

fn tls(item: &Item<'_>) -> Option<PoolTls> {
    let section = item.section("pool.tls")?;
    let (cert, key) = pem_pair(&section);
    for (present, missing) in [(&cert, "key"), (&key, "cert")] {
        if present.is_some() && section.get(missing).is_none() {
            section.fault(format!("pool.tls has no \"{missing}\""), POOL_TLS_HINT);
        }
    }
    let server_name = section.get("server_name").and_then(|item| {
        let name = item.text()?;
        if ServerName::try_from(name).is_err() {
            item.fault(format!("{name:?} is no DNS name or address"), POOL_TLS_HINT);
        }
        Some(name.into())
    });
    Some(PoolTls {
        ca: pem_file(&section, "ca", holds_certificate),
        identity: cert.zip(key).map(|(cert, key)| PoolIdentity { cert, key }),
        server_name,
    })
}

const POOL_TLS_HINT: &str = "all are optional, cert and key go together: \
    tls = { ca = \"engines.pem\", cert = \"gateway.pem\", key = \"gateway.key\", server_name = \"vllm.internal\" }";
const ENDPOINT_HINT: &str = "list the replicas: replicas = [\"http://127.0.0.1:8000\"], or name where they are found: dns, file, kubernetes";
