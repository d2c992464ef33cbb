//! `[server]` and `[admin]`: the two ports.
//!
//! TLS files are opened here, so that a missing or empty one is reported with its line and not at the first
//! connection; the certificates' own meaning is the listener's.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::{Admin, Config, Server, Tls};

use super::section::{Item, Section};
use super::values::{ADDRESS, DURATION, EXTRA_PATH, HEADER_NAME, ORIGIN, POSITIVE_DURATION, ROOT_PATH, SIZE};
use super::{DEFAULT_ADMIN_LISTEN, DEFAULT_LISTEN, secret};

/// Reads `[server]`; `has_tenants` is the default of `route_info_headers`, negated.
pub(super) fn server(root: &Section<'_>, has_tenants: bool) -> Server {
    let section = root.section("server", "[server]");
    let positive = |key, default| section.parse(key, &POSITIVE_DURATION).unwrap_or(default);
    let body_limit = section.parse("body_limit", &SIZE).unwrap_or(32 << 20);
    let body_memory = section.parse("body_memory", &SIZE).unwrap_or(1 << 30);
    if body_limit > body_memory {
        let item = section.get("body_limit").or_else(|| section.get("body_memory"));
        if let Some(item) = item {
            item.fault(
                "server.body_limit is more than server.body_memory",
                "let one body fit into the memory of all",
            );
        }
    }
    Server {
        listen: section.parse("listen", &ADDRESS).unwrap_or(DEFAULT_LISTEN),
        tls: section.get("tls").and_then(|item| tls(&item)),
        body_limit,
        body_memory,
        body_timeout: positive("body_timeout", Duration::from_secs(60)),
        body_min_rate: section.parse("body_min_rate", &SIZE).map_or(16 << 10, |bytes| bytes as u64),
        header_timeout: positive("header_timeout", Duration::from_secs(10)),
        keep_alive: positive("keep_alive", Duration::from_secs(75)),
        tls_handshake_timeout: positive("tls_handshake_timeout", Duration::from_secs(5)),
        max_connections: max_connections(&section, 20_000),
        drain_delay: section.parse("drain_delay", &DURATION).unwrap_or(Duration::from_secs(5)),
        drain_timeout: section.parse("drain_timeout", &DURATION).unwrap_or(Duration::from_secs(20)),
        heartbeat: section.parse("heartbeat", &DURATION).filter(|silence| !silence.is_zero()),
        route_info_headers: section.boolean("route_info_headers").unwrap_or(!has_tenants),
        extra_paths: section.list("extra_paths").iter().filter_map(|item| item.parse(&EXTRA_PATH)).collect(),
        root_path: section.parse("root_path", &ROOT_PATH).unwrap_or_default(),
        cors_origins: section
            .get("cors_origins")
            .map(|item| item.list().iter().filter_map(|item| item.parse(&ORIGIN)).collect()),
        trust_headers: section
            .list("trust_headers")
            .iter()
            .filter_map(|item| item.parse(&HEADER_NAME))
            .collect(),
    }
}

/// Reads `[admin]`.
pub(super) fn admin(root: &Section<'_>) -> Admin {
    let section = root.section("admin", "[admin]");
    let listen = section.parse("listen", &ADDRESS).unwrap_or(DEFAULT_ADMIN_LISTEN);
    let token = section.get("token");
    let is_overridden = section.checking.overrides.admin_listen.is_some();
    let is_open = !listen.ip().is_loopback() && token.is_none() && !is_overridden;
    if let Some(item) = section.get("listen").filter(|_| is_open) {
        item.fault(format!("{listen} is not loopback and [admin] has no token"), ADMIN_TOKEN_HINT);
    }
    Admin { listen, token: token.and_then(|item| secret::read(&item)) }
}

/// Reports two ports of ours at one address. Where flags name one, the addresses are known later.
pub(super) fn expect_ports_apart(root: &Section<'_>, config: &Config) {
    let overrides = root.checking.overrides;
    if overrides.listen.is_some() || overrides.admin_listen.is_some() {
        return;
    }
    let place = |section: &'static str| root.get(section).and_then(|item| item.peek("listen", 0));
    if is_one_port(config.server.listen, config.admin.listen)
        && let Some(item) = place("admin").or_else(|| place("server"))
    {
        item.fault(one_port(config.admin.listen), PORTS_HINT);
    }
    let spans = root.get("telemetry").and_then(|item| item.peek("engine_spans", 0)?.peek("listen", 0));
    if let (Some(item), Some(engine_spans)) = (spans, &config.telemetry.engine_spans)
        && [config.server.listen, config.admin.listen]
            .iter()
            .any(|other| is_one_port(engine_spans.listen, *other))
    {
        item.fault(one_port(engine_spans.listen), PORTS_HINT);
    }
}

/// Whether two listeners cannot both be bound: every address includes each.
pub(in crate::config) fn is_one_port(one: SocketAddr, other: SocketAddr) -> bool {
    let overlap = one.ip() == other.ip()
        || (one.is_ipv6() == other.is_ipv6() && (one.ip().is_unspecified() || other.ip().is_unspecified()));
    one.port() == other.port() && one.port() != 0 && overlap
}

/// What is wrong with an address that another listener has.
pub(in crate::config) fn one_port(addr: SocketAddr) -> String {
    format!("{addr} is taken by another port of this configuration")
}

pub(in crate::config) const PORTS_HINT: &str =
    "give server.listen, admin.listen and telemetry.engine_spans.listen a port each";

/// Reads `max_connections` of a server or a pool.
pub(super) fn max_connections(section: &Section<'_>, default: usize) -> NonZeroUsize {
    section
        .integer("max_connections", 1..=1_000_000)
        .or(Some(default))
        .and_then(NonZeroUsize::new)
        .unwrap_or(NonZeroUsize::MIN)
}

fn tls(item: &Item<'_>) -> Option<Tls> {
    let section = item.section("server.tls")?;
    let cert = pem_file(&section, "cert", holds_certificate);
    let key = pem_file(&section, "key", holds_key);
    for required in ["cert", "key"] {
        section.expect(required, TLS_HINT);
    }
    let client_ca = pem_file(&section, "client_ca", holds_certificate);
    Some(Tls { cert: cert?, key: key?, client_ca })
}

/// The path of a PEM file, relative to the configuration; its content is looked at.
pub(super) fn pem_file(
    section: &Section<'_>,
    key: &'static str,
    holds: fn(&[u8]) -> Result<(), String>,
) -> Option<PathBuf> {
    let item = section.get(key)?;
    let path = section.checking.directory.join(item.text()?);
    let fault = match std::fs::read(&path) {
        Ok(pem) => holds(&pem).err().map(|fault| format!("{} {fault}", path.display())),
        Err(error) => {
            let message = format!("cannot read {}: {error}", path.display());
            return item.missing(message, TLS_HINT, ()).map(|()| path);
        }
    };
    if let Some(message) = fault {
        item.fault(message, TLS_HINT);
    }
    Some(path)
}

/// Whether a PEM file holds a certificate.
pub(super) fn holds_certificate(pem: &[u8]) -> Result<(), String> {
    match CertificateDer::pem_slice_iter(pem).next() {
        Some(Ok(_)) => Ok(()),
        _ => Err("holds no certificate in PEM form".to_owned()),
    }
}

/// Whether a PEM file holds a private key.
pub(super) fn holds_key(pem: &[u8]) -> Result<(), String> {
    match PrivateKeyDer::from_pem_slice(pem) {
        Ok(_) => Ok(()),
        Err(_) => Err("holds no private key in PEM form".to_owned()),
    }
}

/// What to do about an admin port that is reachable from elsewhere.
pub(in crate::config) const ADMIN_TOKEN_HINT: &str =
    "add token = \"env:TOKENWAY_ADMIN_TOKEN\" to [admin], or listen on 127.0.0.1";
const TLS_HINT: &str = "name PEM files, relative to the configuration file: tls = { cert = \"server.pem\", key = \"server.key\" }";
