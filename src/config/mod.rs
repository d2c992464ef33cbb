//! The checked configuration: an invalid value cannot exist here.
//!
//! `check` turns a text into a [`Config`] or into `diagnostics` with places, `load` adds what flags say, `reload`
//! watches the file. The data path sees only the types of this module.

mod auth;
mod bounds;
mod budget;
mod canary;
pub mod check;
mod cluster;
mod content;
mod dcgm;
mod declare;
pub mod diagnostics;
mod discovery;
mod drift;
mod endpoint;
mod engine;
mod hedge;
mod kv_events;
pub mod load;
mod otel;
mod otlp;
mod outside;
pub mod paths;
mod prefill;
mod probe;
mod queue;
mod reference;
pub mod reload;
mod scale;
pub mod schema;
mod server;
mod slo;
mod state;
mod telemetry;
mod tenant;
pub mod view;
mod warmup;
pub mod watch;
mod zone;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use self::auth::{Jwks, Jwt};
pub use self::bounds::{Classes, Retry, Routing, Timeouts};
pub use self::budget::{Budget, NO_LIMIT, Window, budgets_of};
pub(crate) use self::budget::{read_budgets, write_budgets};
pub use self::canary::{Canary, CanaryShadow, CanaryStep, OnBreach, QuantileRatios};
use self::check::codec::{SECRET, SWITCH, Word};
use self::check::values::{INTERVAL, MODEL};
use self::check::{pool, route};
pub use self::cluster::{Broker, Cluster, OnLoss};
pub use self::content::{Content, Hook, Pattern};
pub use self::dcgm::{Dcgm, DcgmSources};
pub(crate) use self::declare::Declared;
use self::declare::{Below, section};
use self::discovery::DATA_PARALLEL;
pub use self::discovery::{
    DataParallel, Discovery, DnsRecords, DnsSource, KubernetesObject, KubernetesSource, ServicePort,
};
pub use self::drift::{Baseline, Drift};
pub(crate) use self::endpoint::percent_decoded;
pub use self::endpoint::{MAX_NAME, NAME_FORM, parse_endpoint, parse_name, segment};
pub use self::engine::{EngineKind, EngineProfile, Figure, FigureSource};
pub use self::hedge::{Hedge, HedgeAfter};
pub use self::kv_events::KvEvents;
use self::otlp::OtlpKeys;
pub(crate) use self::otlp::masked as masked_headers;
pub use self::outside::Outside;
pub use self::prefill::{Connector, Prefill, PrefillWhen, Role};
pub use self::probe::{Ejection, Probe, ProbeKind};
pub use self::queue::QueueLimits;
pub use self::scale::{ColdWait, Scale, ScaleWindow};
pub use self::server::{Admin, Server, Tls};
pub use self::slo::{ItlBounds, Slo, TtftBound};
pub use self::state::{DriftState, StatePlace};
pub use self::telemetry::{
    AccessLog, EngineSpansConfig, Keep, Otlp, OtlpMetrics, OtlpProtocol, OtlpTarget, Sampling, Telemetry,
    Temporality,
};
pub use self::tenant::{Tenant, TenantLimits};
pub use self::warmup::{Lora, WarmUp, WarmUpFeature, WarmUpLength};
pub use self::zone::Zone;
use crate::debug::debug_as;
use crate::labels::labels;
use crate::stage::StageBudget;

/// The whole configuration of a gateway.
#[derive(Clone, Debug)]
pub struct Config {
    /// `[server]`
    pub server: Server,
    /// `[admin]`
    pub admin: Admin,
    /// `[retry]`
    pub retry: Retry,
    /// `[slo.*]` by class name, the three that always exist included.
    pub slo: BTreeMap<Arc<str>, Slo>,
    /// `[routing]`
    pub routing: Routing,
    /// `[classes]`
    pub classes: Classes,
    /// `[[pool]]`, at least one.
    pub pools: Vec<Pool>,
    /// `[[route]]`, at least one.
    pub routes: Vec<Route>,
    /// `[[tenant]]`
    pub tenants: Vec<Tenant>,
    /// `[auth.jwt]`
    pub jwt: Option<Jwt>,
    /// `[telemetry]`
    pub telemetry: Telemetry,
    /// `[hook]`
    pub hook: Option<Hook>,
    /// `[drift]`
    pub drift: Drift,
    /// `[cluster]`
    pub cluster: Option<Cluster>,
    /// Where it keeps what outlives it.
    pub state: Option<StatePlace>,
    /// Files that it was read from beside its own: certificates, keys, secrets.
    pub files: Vec<PathBuf>,
}

impl Config {
    /// Whether a pool is the canary of a route.
    pub fn is_canary(&self, pool: &Pool) -> bool {
        self.tried_by(pool).next().is_some()
    }

    /// The other pools of the routes whose canary a pool is.
    pub fn baselines(&self, pool: &Pool) -> impl Iterator<Item = &Pool> {
        self.tried_by(pool).flat_map(|route| self.pools_of(route)).filter(|other| other.name != pool.name)
    }

    /// The routes whose canary a pool is.
    fn tried_by(&self, pool: &Pool) -> impl Iterator<Item = &Route> {
        let canary = |route: &Route| self.pools.get(route.canary.as_ref()?.pool);
        self.routes.iter().filter(move |route| canary(route).is_some_and(|known| known.name == pool.name))
    }

    /// The other pools that answer what a pool cannot, whatever its route: those of all its routes, but their canaries.
    pub fn beside(&self, pool: &Pool) -> impl Iterator<Item = &Pool> {
        let routes: Vec<_> = self.routes_of(pool).collect();
        let takes = |route: &Route, at: usize| {
            let is_canary = route.canary.as_ref().is_some_and(|canary| canary.pool == at);
            !is_canary && route.pools.iter().any(|weighted| weighted.pool == at)
        };
        let is_beside = move |at| !routes.is_empty() && routes.iter().all(|route| takes(route, at));
        let others =
            self.pools.iter().enumerate().filter(move |(at, _)| is_beside(*at)).map(|(_, pool)| pool);
        others.filter(|other| other.name != pool.name)
    }

    /// Whether requests of a pool may be refused: one of its routes has a `[route.queue]`.
    pub fn queues(&self, pool: &Pool) -> bool {
        self.routes_of(pool).any(|route| route.queue.is_some())
    }

    /// Whether broken streams of a pool's replicas are continued.
    pub fn migrates(&self, pool: &Pool) -> bool {
        self.routes_of(pool).any(|route| route.migrate)
    }

    fn routes_of(&self, pool: &Pool) -> impl Iterator<Item = &Route> {
        self.routes.iter().filter(|route| self.pools_of(route).any(|known| known.name == pool.name))
    }

    /// The pools that answer for a route.
    pub fn pools_of(&self, route: &Route) -> impl Iterator<Item = &Pool> {
        route.pools.iter().filter_map(|weighted| self.pools.get(weighted.pool))
    }
}

/// Replicas of one pool. The fleet has twice as many slots, because a reload may replace all of them at once.
pub const MAX_REPLICAS: usize = 2_048;

/// A value that never shows in `Debug`, logs or the admin API.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value, for the one place that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

/// Of a flag: its text, or where it is, looked up when the configuration is loaded, so that a reload reads a file of it again.
impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

debug_as!(Secret => "***");

section! {
    /// one model artifact on one runtime image
    #[derive(Clone, Debug)]
    pub struct Pool for "[[pool]]" {
        /// free facts of the revision
        revision_info: BTreeMap<String, String> as pool::REVISION_INFO, empty { image = "vllm/vllm-openai:v0.11.0" };
        /// what its replicas do for routes with a `[route.prefill]`
        role: Role as Word("role"), default "both";
        /// the engine that its replicas run
        engine: EngineKind as Word("engine"), default "vllm";
        /// engines behind each URL
        data_parallel: DataParallel as DATA_PARALLEL, default "auto";
        /// TLS of `https` replicas; without it the system's certificate store is trusted
        tls: Option<PoolTls> as pool::TLS, example { ca = "engines.pem" };
        /// sent upstream instead of the client's credential
        engine_api_key: Option<Secret> as SECRET, example "env:ENGINE_API_KEY";
        /// between two scrapes of one replica
        scrape_interval: Duration as INTERVAL, default "1s";
        /// limit of connections to one replica
        max_connections: NonZeroUsize as 1..=1_000_000, default 16384;
        /// the engine's batch limit; default: learned
        max_num_seqs: Option<NonZeroU64> as 1..=i64::MAX, example 256;
        /// takes traffic only while no pool before it in its route has a ready replica with room
        standby: bool as SWITCH, default false;
        /// waiting requests per replica above which an alert fires
        queue_target: Option<NonZeroU64> as 1..=i64::MAX, example 4;
        /// when a replica is ready
        probe: Probe as Below, section {};
        /// requests before a replica takes traffic
        warmup: WarmUp as Below, section {};
        /// what is taken out of rotation
        ejection: Ejection as Below, section {};
        /// bounds of the desired number of replicas
        scale: Scale as scale::SCALE, section {};
    } with {
        /// Unique name.
        name: Arc<str>,
        /// Revision label (default: the pool's name).
        revision: Arc<str>,
        /// Where the engine's figures come from: `[pool.engine_profile]` over the built-in profile.
        engine_profile: Arc<EngineProfile>,
        /// Up to [`MAX_REPLICAS`], with distinct URLs and names; none only where it has another source.
        replicas: Vec<ReplicaSpec>,
        /// `dns`, `file` and `kubernetes`: further replicas, found while running.
        discovery: Discovery,
        /// Where the figures of the replicas' GPUs are.
        dcgm: DcgmSources,
        /// `[pool.outside]`: it is another house's.
        outside: Option<Outside>,
        /// `[pool.kv_events]`: what its engines publish of their caches is followed.
        kv_events: Option<KvEvents>,
        /// `pool.keep_alive.interval`: idle replicas are asked this often.
        keep_alive: Option<Duration>,
        /// `pool.lora`
        lora: Lora,
    }
}

/// `pool.tls`: TLS towards `https` replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolTls {
    /// PEM file with the CAs that sign the replicas' certificates, instead of the system's.
    pub ca: Option<PathBuf>,
    /// The gateway's own certificate, for engines that ask for one (mutual TLS).
    pub identity: Option<PoolIdentity>,
    /// Name in the replicas' certificates, where it is not the host of their URLs.
    pub server_name: Option<Arc<str>>,
}

/// PEM files of a client certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolIdentity {
    /// `pool.tls.cert`: the chain.
    pub cert: PathBuf,
    /// `pool.tls.key`
    pub key: PathBuf,
}

/// One static replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReplicaSpec {
    /// Name (default `host:port`).
    pub name: Arc<str>,
    /// Base URL, parsed.
    pub endpoint: Endpoint,
    /// Where it runs, for people and labels.
    pub zone: Option<Arc<str>>,
}

/// The base URL of a replica, taken apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// `https`
    pub is_tls: bool,
    /// Host name or address, without brackets.
    pub host: Arc<str>,
    /// TCP port.
    pub port: u16,
    /// Path in front of `/v1/…`, without a trailing slash; empty mostly.
    pub base_path: Arc<str>,
}

impl Endpoint {
    /// `host:port`, with brackets around an IPv6 address: the `Host` header and the default name.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// The root of another port of the same host.
    pub fn at_port(&self, port: u16) -> Self {
        Self { port, base_path: "".into(), ..self.clone() }
    }

    /// Scheme, host and port: the path of a webhook is a credential, and is left out of the log.
    pub fn origin(&self) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        format!("{scheme}://{}", self.authority())
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.origin(), self.base_path)
    }
}

section! {
    /// maps a model name to pools
    #[derive(Clone, Debug)]
    pub struct Route for "[[route]]" {
        /// what the engines call it, where that differs
        upstream_model: Option<Arc<str>> as MODEL, example "meta/llama-8b";
        /// `/readyz` waits for it
        required: bool as SWITCH, default true;
        /// who is chosen, and why
        policy: PolicyName as Word("policy"), default "latency";
        /// what clients may set by header
        client_may: ClientMay as route::CLIENT_MAY, default ["timeout"];
        /// splice `stream_options.include_usage` into streams that lack it
        ask_usage: bool as SWITCH, default true;
        /// `[telemetry.content]` records prompts and answers of tenants that have it too
        content: bool as SWITCH, default false;
        /// continue a broken stream on another replica
        migrate: bool as SWITCH, default false;
    } with {
        /// Name (default: its model).
        name: Arc<str>,
        /// Model name in client requests.
        model: ModelMatch,
        /// Pools with their weights, at least one, at least one weight above zero.
        pools: Vec<WeightedPool>,
        /// SLO class, a key of [`Config::slo`].
        slo: Arc<str>,
        /// Its prompts may go to pools with `[pool.outside]`.
        outside: bool,
        /// Target duration of each stage.
        stage_budget: Option<Arc<StageBudget>>,
        /// Ask a second replica where the first token is overdue.
        hedge: Option<Hedge>,
        /// `[timeouts]` with this route's overrides.
        timeouts: Timeouts,
        /// `[route.queue]`: admission by prediction; `None` orders requests and refuses none.
        queue: Option<QueueLimits>,
        /// `[route.degrade]`
        degrade: Option<Degrade>,
        /// `[route.canary]`
        canary: Option<Canary>,
        /// `[route.prefill]`
        prefill: Option<Prefill>,
    }
}

impl Route {
    /// The place of the route with this name, or else of the one for the model of that name.
    pub fn position(routes: &[Self], name: &str) -> Option<usize> {
        let takes = |route: &Self| route.model.named().is_some_and(|model| **model == *name);
        let by_name = routes.iter().position(|route| *route.name == *name);
        by_name.or_else(|| routes.iter().position(takes))
    }

    /// The name that its engines are asked for, where the file has one.
    pub fn asked_model(&self) -> Option<&Arc<str>> {
        self.upstream_model.as_ref().or_else(|| self.model.named())
    }

    /// Whether its requests may go to the pool at this index, be it only to have their prompts computed.
    pub fn uses(&self, pool: usize) -> bool {
        let is_prefill = self.prefill.as_ref().is_some_and(|prefill| prefill.pool == pool);
        is_prefill || self.pools.iter().any(|weighted| weighted.pool == pool)
    }
}

/// `[route.degrade]`: fallback route.
#[derive(Clone, Debug, PartialEq)]
pub struct Degrade {
    /// Index into [`Config::routes`]: another route, which names one model and leads back to no route before it.
    pub to: usize,
    /// `when.predicted_ttft_over_slo`: it begins above this multiple of the TTFT bound, at least 1.
    pub over: f64,
    /// `when.tenants`: only requests of these; `None` is all.
    pub tenants: Option<Vec<Arc<str>>>,
    /// `when.max_priority`: only requests of this priority or a lower one.
    pub max_priority: Option<i32>,
    /// `until.predicted_ttft_over_slo`: once it has begun, above this multiple; 1 to `over`.
    pub until: f64,
    /// It is over when nothing was above `until` for so long.
    pub min_dwell: Duration,
}

impl Degrade {
    /// To this route above this multiple of the bound, for everybody.
    pub fn above(over: f64, to: usize) -> Self {
        let (tenants, max_priority) = (None, None);
        Self { to, over, tenants, max_priority, until: 1.0, min_dwell: Duration::from_secs(10) }
    }

    /// Whether it is for requests of this tenant and priority.
    pub fn is_for(&self, tenant: &str, priority: i32) -> bool {
        let is_of = self.tenants.as_ref().is_none_or(|tenants| tenants.iter().any(|one| **one == *tenant));
        is_of && self.max_priority.is_none_or(|most| priority <= most)
    }
}

/// Which models a route takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ModelMatch {
    /// `"*"`: every model; names unknown to us are forwarded.
    #[default]
    Any,
    /// Exactly this one.
    Named(Arc<str>),
}

impl ModelMatch {
    /// Its spelling in the file.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Any => "*",
            Self::Named(name) => name,
        }
    }

    /// The name, if it is one.
    pub fn named(&self) -> Option<&Arc<str>> {
        match self {
            Self::Any => None,
            Self::Named(name) => Some(name),
        }
    }
}

/// Values of flags and `TOKENWAY_…` variables, which take precedence over the file; the flags' comments are their help.
#[derive(clap::Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `server.listen`
    #[arg(skip)]
    pub listen: Option<SocketAddr>,
    /// Address of the admin port [default: the file's, else 127.0.0.1:9090]
    #[arg(long, env = "TOKENWAY_ADMIN_LISTEN", value_name = "ADDRESS")]
    pub admin_listen: Option<SocketAddr>,
    /// admin.token: env:NAME, file:PATH or the token itself [default: the file's]
    #[arg(long, env = "TOKENWAY_ADMIN_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub admin_token: Option<Secret>,
    /// admin.read_token, which may look and change nothing; given like --admin-token [default: the file's]
    #[arg(long, env = "TOKENWAY_ADMIN_READ_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub admin_read_token: Option<Secret>,
    /// Address of a port for /metrics and health alone, without a token [default: the file's, else none]
    #[arg(long, env = "TOKENWAY_ADMIN_METRICS_LISTEN", value_name = "ADDRESS")]
    pub admin_metrics_listen: Option<SocketAddr>,
    /// How every route chooses a replica [default: the file's, else latency]
    #[arg(long, env = "TOKENWAY_POLICY", value_name = "POLICY")]
    pub policy: Option<PolicyName>,
    /// Model name that clients ask for [default: every name that the replicas know]
    #[arg(long, env = "TOKENWAY_SERVED_MODEL_NAME", value_name = "NAME", value_parser = check::parse_model_name)]
    pub served_model_name: Option<String>,
    /// Base URL of an OpenTelemetry collector (OTLP over HTTP) that receives spans
    #[arg(long, env = "TOKENWAY_OTLP_ENDPOINT", value_name = "URL", value_parser = check::parse_http_url)]
    pub otlp_endpoint: Option<String>,
    /// A secret or PEM file that is not on this machine is a warning: for checks on machines that have none.
    #[arg(skip)]
    pub allow_missing_secrets: bool,
    /// A demonstration: no state is kept and no access log written, whatever the file has.
    #[arg(skip)]
    pub leaves_nothing: bool,
}

/// A pool of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedPool {
    /// Index into [`Config::pools`].
    pub pool: usize,
    /// Share of the route's traffic, relative to its other pools.
    pub weight: u32,
}

labels! {
    /// `route.policy`
    pub enum PolicyName {
        /// Least predicted time to first token.
        Latency = "latency",
        /// Longest cached prefix.
        Prefix = "prefix",
        /// Rendezvous hash of `x-session-id`.
        Session = "session",
        /// Fewest requests in flight and waiting.
        LeastLoaded = "least_loaded",
        /// Replicas in rotation.
        RoundRobin = "round_robin",
    }
}

impl clap::ValueEnum for PolicyName {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(self.as_str().into())
    }
}

impl PolicyName {
    /// Ours for a name that other gateways have.
    pub fn from_elsewhere(name: &str) -> Option<Self> {
        let name = name.replace('-', "_");
        Self::named(&name).or_else(|| {
            let foreign = FOREIGN_POLICIES.iter().find(|(foreign, _)| *foreign == name);
            foreign.map(|(_, policy)| *policy)
        })
    }
}

/// Policies of vllm-router, SMG, sglang-router, LiteLLM, nginx, Envoy and AIBrix.
const FOREIGN_POLICIES: &[(&str, PolicyName)] = &[
    ("cache_aware", PolicyName::Latency),
    ("latency_based_routing", PolicyName::Latency),
    ("least_latency", PolicyName::Latency),
    ("kv_aware", PolicyName::Latency),
    ("kvaware", PolicyName::Latency),
    ("prefix_hash", PolicyName::Prefix),
    ("prefix_aware", PolicyName::Prefix),
    ("prefixaware", PolicyName::Prefix),
    ("prefix_cache", PolicyName::Prefix),
    ("power_of_two", PolicyName::LeastLoaded),
    ("least_load", PolicyName::LeastLoaded),
    ("least_conn", PolicyName::LeastLoaded),
    ("least_request", PolicyName::LeastLoaded),
    ("least_busy", PolicyName::LeastLoaded),
    ("consistent_hash", PolicyName::Session),
    ("consistent_hashing", PolicyName::Session),
    ("ip_hash", PolicyName::Session),
    ("hash", PolicyName::Session),
    ("manual", PolicyName::Session),
    ("random", PolicyName::RoundRobin),
    ("roundrobin", PolicyName::RoundRobin),
    ("simple_shuffle", PolicyName::RoundRobin),
];

/// `route.client_may`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientMay {
    /// `x-request-timeout` is obeyed.
    pub timeout: bool,
    /// `x-slo-class` is obeyed.
    pub slo_class: bool,
    /// `x-priority` is obeyed.
    pub priority: bool,
    /// The body's `priority` and `x-vllm-priority` go to the engine.
    pub engine_priority: bool,
}

/// The field of a permission.
type PermissionField = fn(&mut ClientMay) -> &mut bool;

impl ClientMay {
    /// Every permission, by its name in the file.
    pub const PERMISSIONS: &'static [(&'static str, PermissionField)] = &[
        ("timeout", |may| &mut may.timeout),
        ("slo_class", |may| &mut may.slo_class),
        ("priority", |may| &mut may.priority),
        ("engine_priority", |may| &mut may.engine_priority),
    ];
}

/// Priorities of engines, where lower is sooner.
const ENGINE_PRIORITIES: std::ops::RangeInclusive<i64> = -1_000_000..=1_000_000;

/// Bound of priorities in both directions.
pub const MAX_PRIORITY: i32 = 100;

#[cfg(test)]
mod tests {
    use super::check::check_str;

    #[test]
    fn beside_a_pool_is_what_answers_the_requests_of_all_its_routes_and_no_canary() {
        let pool = |name| format!("[[pool]]\nname = \"{name}\"\nreplicas = [\"http://127.0.0.1:1\"]\n");
        let text = ["a", "b", "c", "d"].map(pool).concat()
            + "[[route]]\nmodel = \"m\"\npools = [{ name = \"a\" }, { name = \"c\", weight = 1 }]\n[route.canary]\npool = \"b\"\n\
               steps = [{ weight = 10, soak = \"1m\" }]\n\
               [[route]]\nmodel = \"n\"\npools = [{ name = \"c\" }, { name = \"d\", weight = 1 }]\n";
        let config = check_str("f", &text, &|_| None).unwrap();
        let beside = |at: usize| config.beside(&config.pools[at]).map(|pool| &*pool.name).collect::<Vec<_>>();
        assert_eq!([beside(0), beside(1)], [vec!["c"], vec!["a", "c"]]);
        assert_eq!(beside(2), Vec::<&str>::new(), "of each of its routes another one");
        assert_eq!(beside(3), ["c"]);
    }
}
