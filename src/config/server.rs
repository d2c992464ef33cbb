//! `[server]` and `[admin]`: the two ports.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::Secret;
use super::check::codec::{List, Own, SECRET, SWITCH};
use super::check::pem::{self, holds_certificate, pem_file, pem_pair};
use super::check::secret;
use super::check::section::{Item, Section};
use super::check::values::{
    ADDRESS, BYTES_PER_SECOND, DURATION, EXTRA_PATH, HEADER_NAME, OFF_AT_ZERO, ORIGIN, POSITIVE_DURATION,
    ROOT_PATH, SIZE,
};
use super::declare::{Declared, Fixed, section};

section! {
    #[derive(Clone, Debug)]
    pub struct Server for "[server]" {
        /// data port
        listen: SocketAddr as ADDRESS, default "127.0.0.1:8080", restart;
        /// PEM; client_ca: mutual TLS; on or off: restart
        tls: Option<Tls> as TLS, example { cert = "server.pem", key = "server.key", client_ca = "clients.pem" };
        /// largest request body
        body_limit: usize as SIZE, default "32MiB";
        /// all request bodies together, charged as they arrive, half of it for one tenant or connection, and answers held for clients (a quarter); past it uploads wait 5 s, then 503, small ones have a reserve, the slowest ends with 408; at most a third of the memory (cgroup) limit
        body_memory: usize as SIZE, default "1GiB", restart;
        /// a body from its head to its last byte, unless it keeps to body_min_rate; later: 408
        body_timeout: Duration as POSITIVE_DURATION, default "60s";
        /// a second over the last ten (five at the start); slower uploads end with 408; 0B: no minimum
        body_min_rate: u64 as BYTES_PER_SECOND, default "16KiB";
        /// from the first byte of a request's head (on a new connection: from accept) to its end
        header_timeout: Duration as POSITIVE_DURATION, default "10s", restart;
        /// idle client connections are closed after it
        keep_alive: Duration as POSITIVE_DURATION, default "75s", restart;
        /// from accept to the end of the TLS handshake
        tls_handshake_timeout: Duration as POSITIVE_DURATION, default "5s", restart;
        /// open client connections; further ones wait; less where `RLIMIT_NOFILE` is below twice as many
        max_connections: NonZeroUsize as 1..=1_000_000, default 20000, restart;
        /// after SIGTERM: not ready, still serving
        drain_delay: Duration as DURATION, default "5s";
        /// then streams have this long to end
        drain_timeout: Duration as DURATION, default "20s";
        /// SSE comments after this silence, for impatient proxies in front; 0s: off
        heartbeat: Option<Duration> as OFF_AT_ZERO, default "0s";
        /// x-tokenway-replica, -revision, -decision on answers; default false once there are tenants
        route_info_headers: bool as SWITCH, default true;
        /// further paths of the engines: `["/v1/custom", "/v1/things/{id}"]`; control endpoints are refused
        extra_paths: Vec<String> as List(EXTRA_PATH), default [];
        /// "/llm": stripped from every path that begins with it, as by vllm --root-path
        root_path: String as ROOT_PATH, default "";
        /// pages that may call the gateway, "*" for all; unset: what the engines say passes
        cors_origins: Option<Vec<http::HeaderValue>> as List(ORIGIN), example ["https://app.example"];
        /// headers of a trusted proxy in front that name the tenant: `["x-tenant"]`; only with `[[tenant]]`
        trust_headers: Vec<http::HeaderName> as List(HEADER_NAME), default [];
    }
}

section! {
    #[derive(Clone, Debug)]
    pub struct Admin for "[admin]" {
        /// metrics, health, API; its port names the state files (`keys-9090.json`): with another port, rename them
        listen: SocketAddr as ADDRESS, default "127.0.0.1:9090", restart;
        /// bearer token; required, or read_token, for any address that is not loopback
        token: Option<Secret> as SECRET, example "env:TOKENWAY_ADMIN_TOKEN";
        /// may GET and HEAD and change nothing: Prometheus, boards, people who look; without token no change is possible
        read_token: Option<Secret> as SECRET, example "env:TOKENWAY_ADMIN_READ_TOKEN";
        /// a port of its own for /metrics and health alone, without a token
        metrics_listen: Option<SocketAddr> as ADDRESS, example "0.0.0.0:9091", restart;
    }
}

/// TLS of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// PEM file with the certificate chain.
    pub cert: PathBuf,
    /// PEM file with the private key.
    pub key: PathBuf,
    /// PEM file with client CAs; set means mutual TLS.
    pub client_ca: Option<PathBuf>,
    /// The configuration has this section no longer: it is in force until a restart, and its files are not read again.
    pub is_removed: bool,
}

/// Reads `[server]`; tenants are told nothing of the fleet unless the file says so.
pub(super) fn server(root: &Section<'_>, has_tenants: bool) -> Server {
    let section = Server::open(root);
    let server = Server::read(&section, &Server { route_info_headers: !has_tenants, ..Server::default() });
    section.fault_if(
        server.body_limit > server.body_memory,
        &["body_limit", "body_memory"],
        "server.body_limit is more than server.body_memory",
        "let one body fit into the memory of all",
    );
    server
}

/// Reads `[admin]`, which is open to others only with a token.
pub(super) fn admin(root: &Section<'_>) -> Admin {
    let section = Admin::open(root);
    let admin = Admin::read(&section, &Admin::default());
    let listen = admin.listen;
    let overrides = &section.checking.overrides;
    let is_overridden = overrides.admin_listen.is_some()
        || overrides.admin_token.is_some()
        || overrides.admin_read_token.is_some();
    let has_token = ["token", "read_token"].iter().any(|key| section.get(key).is_some());
    let is_open = !listen.ip().is_loopback() && !has_token && !is_overridden;
    let message = format!("{listen} is not loopback and [admin] has no token");
    section.fault_if(is_open, &["listen"], message, ADMIN_TOKEN_HINT);
    section.fault_if(admin.has_one_token_for_both(), &["read_token"], ONE_TOKEN, ONE_TOKEN_HINT);
    admin
}

impl Admin {
    /// Whether it asks for a token.
    pub fn is_guarded(&self) -> bool {
        self.token.is_some() || self.read_token.is_some()
    }

    /// Whether who may read could change everything. Tokens that are not on the machine of a check are not compared.
    pub(super) fn has_one_token_for_both(&self) -> bool {
        self.token
            .as_ref()
            .is_some_and(|token| !secret::is_stand_in(token) && self.read_token.as_ref() == Some(token))
    }
}

impl Server {
    /// Keeps what a running listener cannot change.
    pub(super) fn keep_listener(&mut self, old: &Self, fixed: &mut Fixed) {
        self.keep_fixed(old, fixed);
        // Other files are other certificates, which a running listener takes up; on or off is another listener.
        if self.tls.is_some() != old.tls.is_some() {
            fixed.keep("server.tls (on or off)", &mut self.tls, &old.tls);
            // Its files may be gone with it.
            self.tls.iter_mut().for_each(|tls| tls.is_removed = true);
        }
        // A body that is larger than the memory of all would wait for ever.
        if self.body_limit > self.body_memory {
            fixed.keep("server.body_limit", &mut self.body_limit, &old.body_limit);
        }
    }
}

fn tls(item: &Item<'_>) -> Option<Tls> {
    let section = item.section("server.tls")?;
    let (cert, key) = pem_pair(&section);
    for required in ["cert", "key"] {
        section.expect(required, pem::HINT);
    }
    let client_ca = pem_file(&section, "client_ca", holds_certificate);
    Some(Tls { cert: cert?, key: key?, client_ca, is_removed: false })
}

fn show_tls(tls: &Tls) -> Json {
    json!({
        "cert": tls.cert.display().to_string(),
        "key": tls.key.display().to_string(),
        "client_ca": tls.client_ca.as_ref().map(|path| path.display().to_string()),
    })
}

const TLS: Own<Tls> = Own { read: tls, show: show_tls };
pub(super) const ONE_TOKEN: &str =
    "token and read_token are the same, so that who may read may change everything";
pub(super) const ONE_TOKEN_HINT: &str = "make another one for reading: openssl rand -hex 32";
/// What to do about an admin port that is reachable from elsewhere.
pub(super) const ADMIN_TOKEN_HINT: &str = "add token = \"env:TOKENWAY_ADMIN_TOKEN\" to [admin] (--admin-token), or listen on 127.0.0.1; admin.metrics_listen needs none";
