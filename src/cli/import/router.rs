//! Flags of the SGLang family, vllm-router, sglang-router, SMG, and those of production-stack's router, which is called vllm-router too.

use sha2::{Digest as _, Sha256};

use super::super::draft::{Draft, DraftPool, DraftRoute, quoted};
use super::Notes;
use crate::config::view::without_userinfo;
use crate::config::{Connector, Server};
use crate::digits;

/// Maps the flags; `--name value …`, `--name=value`.
pub(super) fn import(flags: &[String], notes: &mut Notes) -> Draft {
    let mut read = Read::default();
    for flag in split(flags, notes) {
        let shown = flag.shown();
        if !read.flag(&flag, &shown, notes) {
            notes.left(shown, why(&flag.name));
        } else {
            let (most, takes) = takes(&flag.name);
            for value in flag.values.iter().skip(most) {
                let value = if flag.is_secret() { "***" } else { &without_userinfo(value) };
                notes.left(value, &format!("--{} takes {takes}", flag.name));
            }
        }
    }
    if read.has_no_retries {
        read.draft.attempts = Some(0);
    }
    read.take_engine_tls();
    let prefill = read.prefill(notes);
    let Read { mut draft, mut pool, mut route, host, port, tls, metrics, .. } = read;
    listen(&mut draft, host, port, notes);
    if metrics.iter().any(Option::is_some) {
        let [host, port] = metrics;
        let host = host.unwrap_or_else(|| "0.0.0.0".to_owned());
        draft.metrics_listen = address("--prometheus-host, --prometheus-port", host, port, "29000", notes);
    }
    match tls {
        [Some(cert), Some(key)] => {
            draft.server.push(format!("tls = {{ cert = {}, key = {} }}", quoted(&cert), quoted(&key)));
        }
        [None, None] => {}
        _ => notes.left("--tls-cert-path, --tls-key-path", "one without the other"),
    }
    pool.name = "main".to_owned();
    (route.model, route.pools) = ("*".to_owned(), vec![(pool.name.clone(), 1)]);
    if let Some((prefill, table)) = prefill {
        route.prefill = Some(table);
        pool.keys.extend(["role = \"decode\"", REVISION].map(str::to_owned));
        pool.keys.extend(prefill.keys.iter().filter(|line| line.starts_with("engine = ")).cloned());
        draft.pools.push(prefill);
    }
    draft.pools.push(pool);
    draft.routes.push(route);
    draft
}

/// What takes a flag's place here; `None` for one that these routers do not have, as far as it is known.
pub(in crate::cli) fn counterpart(name: &str) -> Option<&'static str> {
    let flag = Flag { name: name.to_owned(), values: vec!["1".to_owned()] };
    let is_mapped = Read::default().flag(&flag, "", &mut Notes::default());
    if is_mapped { Some("it is a key of the file") } else { Some(why(name)).filter(|why| *why != UNKNOWN) }
}

/// What flags have said so far.
#[derive(Default)]
struct Read {
    draft: Draft,
    pool: DraftPool,
    route: DraftRoute,
    host: Option<String>,
    port: Option<String>,
    tls: [Option<String>; 2],
    /// To the engines: CA, certificate, key.
    engine_tls: [Option<String>; 3],
    /// `--prometheus-host`, `--prometheus-port`
    metrics: [Option<String>; 2],
    /// Replicas that compute prompts, with what follows their URLs: the port of SGLang's bootstrap server.
    prefills: Vec<(String, Option<String>)>,
    /// Of vLLM: KV moves by its `kv_transfer_params`.
    is_vllm: bool,
    /// `--disable-retries`, wherever it stands.
    has_no_retries: bool,
}

impl Read {
    /// Takes a flag, if it has a counterpart.
    fn flag(&mut self, flag: &Flag, shown: &str, notes: &mut Notes) -> bool {
        self.legs(flag, notes) || self.engine(flag, shown, notes) || self.server(flag, shown, notes)
    }

    /// Takes a flag of prompts that are computed apart from their answers, if it is one.
    fn legs(&mut self, flag: &Flag, notes: &mut Notes) -> bool {
        match flag.name.as_str() {
            "prefill" => {
                self.prefills.push((flag.value().to_owned(), flag.values.get(1).cloned()));
            }
            "decode" => flag.values.iter().for_each(|url| notes.add_replica(&mut self.pool.replicas, url)),
            "pd-disaggregation" => {}
            "vllm-pd-disaggregation" => self.is_vllm = true,
            _ => return false,
        }
        true
    }

    /// Writes `pool.tls`, where a flag was about it.
    fn take_engine_tls(&mut self) {
        let files = ["ca", "cert", "key"].into_iter().zip(&self.engine_tls);
        let keys: Vec<_> =
            files.filter_map(|(key, file)| Some(format!("{key} = {}", quoted(file.as_deref()?)))).collect();
        if !keys.is_empty() {
            self.pool.keys.push(format!("tls = {{ {} }}", keys.join(", ")));
        }
    }

    /// The pool that computes prompts, and the table of its route.
    fn prefill(&self, notes: &mut Notes) -> Option<(DraftPool, String)> {
        let mut pool =
            DraftPool { name: "prefill".to_owned(), keys: self.pool.keys.clone(), ..DraftPool::default() };
        pool.keys.extend(["role = \"prefill\"", REVISION].map(str::to_owned));
        self.prefills.iter().for_each(|(url, _)| notes.add_replica(&mut pool.replicas, url));
        if pool.replicas.is_empty() {
            return None;
        }
        let connector = if self.is_vllm { Connector::Nixl } else { Connector::Sglang };
        if connector == Connector::Sglang {
            pool.keys.push("engine = \"sglang\"".to_owned());
        }
        let of_prefill =
            |(_, port): &'_ (String, Option<String>)| port.clone().unwrap_or_else(|| NONE.to_owned());
        let mut ports: Vec<String> = self.prefills.iter().map(of_prefill).collect();
        ports.dedup();
        let port = match ports.as_slice() {
            [port] if port.parse::<u16>().is_ok_and(|port| port > 0) => format!(", bootstrap_port = {port}"),
            [port] if port == NONE => String::new(),
            _ => {
                notes.left(
                    format_args!("--prefill, bootstrap ports {ports:?}"),
                    "a route has one bootstrap_port",
                );
                String::new()
            }
        };
        let connector = connector.as_str();
        Some((
            pool,
            format!("{{ pool = \"prefill\", when = \"always\", connector = \"{connector}\"{port} }}"),
        ))
    }

    /// Takes a flag about engines and their requests, if it is one.
    fn engine(&mut self, flag: &Flag, shown: &str, notes: &mut Notes) -> bool {
        let value = flag.value();
        match flag.name.as_str() {
            "worker-urls" | "worker-url" | "static-backends" => {
                let urls = flag.values.iter().flat_map(|urls| urls.split(',')).filter(|url| !url.is_empty());
                urls.for_each(|url| notes.add_replica(&mut self.pool.replicas, url));
            }
            "service-discovery" if value == "static" => {}
            "policy" | "routing-logic" => {
                self.route.policy = notes.policy(shown, value).or(self.route.policy);
            }
            // These gateways ask their clients for it and send it to the engines.
            "api-key" if !value.is_empty() => {
                self.draft.client_key = Some(digits::hex_of(&Sha256::digest(value)));
                self.pool.keys.push("engine_api_key = \"env:ENGINE_API_KEY\"".to_owned());
                notes.add("--api-key: clients have to send it; remove [[tenant]] to let everyone in");
                notes.add(
                    "--api-key: for the engines put it into the variable ENGINE_API_KEY, or say file:PATH",
                );
            }
            "request-timeout-secs" if flag.is_number() => self.route.total = notes.seconds(shown, value),
            "retry-max-retries" if flag.is_number() => self.draft.attempts = value.parse().ok(),
            "intra-node-data-parallel-size" if flag.is_number() => {
                self.pool.keys.push(format!("data_parallel = {value}"));
            }
            // The default: as many engines as /metrics shows.
            "dp-aware" => {}
            "disable-retries" => self.has_no_retries = true,
            "ca-cert-path" | "ca-cert-paths" => self.engine_tls[0] = Some(value.to_owned()),
            "client-cert-path" => self.engine_tls[1] = Some(value.to_owned()),
            "client-key-path" => self.engine_tls[2] = Some(value.to_owned()),
            "health-check-endpoint" if !value.is_empty() => {
                self.pool.keys.push(format!("engine_profile.health_path = {}", quoted(value)));
            }
            "health-check-interval-secs" | "health-check-timeout-secs" if flag.is_number() => {
                let key = flag.name.trim_start_matches("health-check-").trim_end_matches("-secs");
                let span = notes.seconds(shown, value);
                self.pool.keys.extend(span.map(|span| format!("probe.{key} = {}", quoted(&span))));
            }
            _ => return false,
        }
        true
    }

    /// Takes a flag about the router's own ports, if it is one.
    fn server(&mut self, flag: &Flag, shown: &str, notes: &mut Notes) -> bool {
        let value = flag.value();
        match flag.name.as_str() {
            "host" => self.host = Some(value.to_owned()),
            "port" => self.port = Some(value.to_owned()),
            "prometheus-host" => self.metrics[0] = Some(value.to_owned()),
            "prometheus-port" if value.parse::<u16>().is_ok() => self.metrics[1] = Some(value.to_owned()),
            "max-payload-size" if flag.is_number() => match value.parse::<usize>() {
                Ok(0) => notes.left(shown, "no request has a body of no bytes; the default is 32MiB"),
                Ok(bytes) if bytes > Server::default().body_memory => {
                    notes.left(shown, "more than server.body_memory: raise that, and server.body_limit");
                }
                Ok(bytes) => self.draft.server.push(format!("body_limit = {}", quoted(&size(bytes)))),
                Err(error) => notes.left(shown, &error.to_string()),
            },
            "cors-allowed-origins" => {
                let origins: Vec<_> = flag.values.iter().map(|origin| quoted(origin)).collect();
                self.draft.server.push(format!("cors_origins = [{}]", origins.join(", ")));
            }
            "shutdown-grace-period-secs" if flag.is_number() => {
                let span = notes.seconds(shown, value);
                self.draft.server.extend(span.map(|span| format!("drain_timeout = {}", quoted(&span))));
            }
            "tls-cert-path" => self.tls[0] = Some(value.to_owned()),
            "tls-key-path" => self.tls[1] = Some(value.to_owned()),
            _ => return false,
        }
        true
    }
}

fn listen(draft: &mut Draft, host: Option<String>, port: Option<String>, notes: &mut Notes) {
    if host.is_none() && port.is_none() {
        notes.add("no --port: the file says our default, 127.0.0.1:8080");
        return;
    }
    if host.is_none() {
        notes.add("no --host: this machine alone, 127.0.0.1; some of these gateways listen on 0.0.0.0 then");
    }
    let host = host.unwrap_or_else(|| "127.0.0.1".to_owned());
    draft.listen = address("--host, --port", host, port, "30000", notes).or(draft.listen.take());
}

/// The address of two flags, or a note why it is none.
fn address(
    flags: &str,
    host: String,
    port: Option<String>,
    default: &str,
    notes: &mut Notes,
) -> Option<String> {
    let host = host.replace("localhost", "127.0.0.1");
    let host = if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host };
    let address = format!("{host}:{}", port.as_deref().unwrap_or(default));
    let parsed = address.parse::<std::net::SocketAddr>();
    let fault = |_| notes.left(format_args!("{flags} {address}"), "not an IP address with a port");
    parsed.map(|address| address.to_string()).map_err(fault).ok()
}

/// As many bytes, in the largest unit that has them exactly.
fn size(bytes: usize) -> String {
    let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let unit = units.into_iter().find(|(_, of)| bytes.is_multiple_of(*of));
    unit.map_or_else(|| format!("{bytes}B"), |(unit, of)| format!("{}{unit}", bytes / of))
}

/// Why a flag is not mapped, as far as it is known here.
fn why(flag: &str) -> &'static str {
    match flag {
        "cache-threshold"
        | "balance-abs-threshold"
        | "balance-rel-threshold"
        | "eviction-interval-secs"
        | "max-tree-size" => "not needed: latency weighs cached prefixes against queues in seconds",
        "otlp-traces-endpoint" | "enable-trace" => "see [telemetry.otlp]",
        "log-level" | "log-dir" => "give --log-level to tokenway serve; logs go to stderr",
        "max-concurrent-requests" | "rate-limit-tokens-per-second" => "see tenant.limits",
        "queue-size" | "queue-timeout-secs" => "see [route.queue]",
        "service-discovery"
        | "selector"
        | "service-discovery-port"
        | "service-discovery-namespace"
        | "k8s-namespace"
        | "k8s-label-selector"
        | "k8s-port" => "see pool.kubernetes",
        "static-models" => "not needed: engines list their models",
        "session-key" => "session goes by the header x-session-id",
        _ if flag.starts_with("jwt-") => "see [auth.jwt]",
        "prefill-policy" | "decode-policy" => "a route has one policy, for both",
        _ if flag.starts_with("cb-") || flag == "disable-circuit-breaker" => "see pool.ejection",
        _ => UNKNOWN,
    }
}

struct Flag {
    name: String,
    values: Vec<String>,
}

impl Flag {
    /// The first value; empty without one.
    fn value(&self) -> &str {
        self.values.first().map_or("", String::as_str)
    }

    fn is_secret(&self) -> bool {
        SECRETS.contains(&self.name.rsplit('-').next().unwrap_or_default())
    }

    /// As it was given; a secret is not repeated.
    fn shown(&self) -> String {
        let values = if self.is_secret() && !self.values.is_empty() {
            "***".to_owned()
        } else {
            let values: Vec<_> = self.values.iter().map(|value| without_userinfo(value)).collect();
            values.join(" ")
        };
        format!("--{} {values}", self.name).trim_end().to_owned()
    }

    fn is_number(&self) -> bool {
        self.value().parse::<u32>().is_ok()
    }
}

fn split(flags: &[String], notes: &mut Notes) -> Vec<Flag> {
    let mut found: Vec<Flag> = Vec::new();
    // `smg launch --worker-urls ...`, as its documentation has it.
    let flags = flags.strip_prefix(&["launch".to_owned()]).unwrap_or(flags);
    for word in flags {
        match (word.strip_prefix("--"), found.last_mut()) {
            (Some(""), _) => {}
            (Some(flag), _) => {
                let (name, value) =
                    flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
                let values = value.map(str::to_owned).into_iter().collect();
                found.push(Flag { name: name.replace('_', "-"), values });
            }
            (None, Some(flag)) => flag.values.push(word.clone()),
            (None, None) => notes.left(word, "stands before the first flag"),
        }
    }
    let names: Vec<String> = found.iter().map(|flag| flag.name.clone()).collect();
    let mut at = 0;
    found.retain(|flag| {
        at += 1;
        let is_last = is_listed(flag) || !names[at..].contains(&flag.name);
        if !is_last {
            notes.left(format_args!("--{}", flag.name), "the last of several counts");
        }
        is_last
    });
    found
}

/// Whether each of several counts.
fn is_listed(flag: &Flag) -> bool {
    matches!(flag.name.as_str(), "worker-urls" | "worker-url" | "static-backends" | "prefill" | "decode")
}

/// How many values a flag that is mapped takes, and in words.
fn takes(name: &str) -> (usize, &'static str) {
    match name {
        "worker-urls" | "worker-url" | "static-backends" | "decode" | "cors-allowed-origins" => {
            (usize::MAX, "several values")
        }
        "prefill" => (2, "a URL and a port; give it once for each replica"),
        "pd-disaggregation" | "vllm-pd-disaggregation" | "dp-aware" | "disable-retries" => (0, "no value"),
        _ => (1, "one value"),
    }
}

/// Of a flag that nothing is known of.
const UNKNOWN: &str = "no counterpart";
/// What stands for no port of a bootstrap server.
const NONE: &str = "none";
/// KV moves between engines of one revision.
const REVISION: &str = "revision = \"main\"";
/// Last words of the names of flags whose values are secrets.
const SECRETS: [&str; 5] = ["key", "keys", "token", "secret", "password"];
