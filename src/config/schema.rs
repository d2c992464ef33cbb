//! What a file may say: the keys of every section.
//!
//! One table, because three readers need it: the check that refuses unknown keys with a suggestion, the refusal of
//! parts that are not built, and the test that every key is documented in `config/reference.toml`. The file is read
//! through a tree with spans and not by serde's derive, which stops at the first fault and says of a string-or-table
//! value only that "no variant matched". Types and bounds of the values are in `check`.

/// The keys of one section.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    /// How messages call the section: `[server]`, `[[pool]]`.
    pub header: &'static str,
    /// Every key that it may have.
    pub known: &'static [&'static str],
}

/// Top level of a file.
pub const ROOT: Keys = Keys {
    header: "a configuration",
    known: &[
        "server",
        "admin",
        "timeouts",
        "retry",
        "slo",
        "routing",
        "classes",
        "pool",
        "route",
        "tenant",
        "telemetry",
        "drift",
    ],
};

/// `[server]`
pub const SERVER: Keys = Keys {
    header: "[server]",
    known: &[
        "listen",
        "tls",
        "body_limit",
        "body_memory",
        "header_timeout",
        "keep_alive",
        "tls_handshake_timeout",
        "max_connections",
        "drain_delay",
        "drain_timeout",
        "heartbeat",
        "route_info_headers",
        "extra_paths",
        "trust_headers",
    ],
};

/// `server.tls`
pub const TLS: Keys = Keys { header: "server.tls", known: &["cert", "key", "client_ca"] };

/// `[admin]`
pub const ADMIN: Keys = Keys { header: "[admin]", known: &["listen", "token"] };

/// `[timeouts]`
pub const TIMEOUTS: Keys = Keys { header: "[timeouts]", known: TIMERS };

/// `[route.timeouts]`
pub const ROUTE_TIMEOUTS: Keys = Keys { header: "[route.timeouts]", known: TIMERS };

/// `[retry]`
pub const RETRY: Keys = Keys { header: "[retry]", known: &["attempts", "budget", "min_per_second"] };

/// `[slo.*]`
pub const SLO: Keys = Keys { header: "[slo.*]", known: &["ttft", "tpot", "itl", "e2e"] };

/// `slo.*.itl`
pub const ITL: Keys = Keys { header: "slo.*.itl", known: &["p50", "p90", "p95", "p99"] };

/// `slo.*.ttft`
pub const TTFT: Keys = Keys { header: "slo.*.ttft", known: &["base", "per_prompt_token"] };

/// `[routing]`
pub const ROUTING: Keys = Keys { header: "[routing]", known: &["seed"] };

/// `[classes]`
pub const CLASSES: Keys = Keys { header: "[classes]", known: &["short", "medium"] };

/// `[[pool]]`
pub const POOL: Keys = Keys {
    header: "[[pool]]",
    known: &[
        "name",
        "revision",
        "revision_info",
        "engine",
        "replicas",
        "dns",
        "file",
        "kubernetes",
        "engine_api_key",
        "scrape_interval",
        "max_connections",
        "max_num_seqs",
        "queue_target",
        "probe",
        "warmup",
        "keep_alive",
        "ejection",
    ],
};

/// An entry of `pool.replicas`
pub const REPLICA: Keys = Keys { header: "pool.replicas", known: &["url", "name", "zone"] };

/// `[pool.probe]`
pub const PROBE: Keys = Keys { header: "[pool.probe]", known: &["interval", "timeout", "kind", "prompt"] };

/// `[pool.ejection]`
pub const EJECTION: Keys = Keys { header: "[pool.ejection]", known: &["max_share"] };

/// `[[route]]`
pub const ROUTE: Keys = Keys {
    header: "[[route]]",
    known: &[
        "name",
        "model",
        "upstream_model",
        "required",
        "pools",
        "policy",
        "slo",
        "client_may",
        "stage_budget",
        "ask_usage",
        "migrate",
        "hedge",
        "timeouts",
        "canary",
        "degrade",
        "queue",
    ],
};

/// `[route.queue]`
pub const QUEUE: Keys =
    Keys { header: "[route.queue]", known: &["max_requests", "max_bytes", "max_wait", "isolate_long"] };

/// `[route.degrade]`
pub const DEGRADE: Keys = Keys { header: "[route.degrade]", known: &["to", "when"] };

/// `route.degrade.when`
pub const DEGRADE_WHEN: Keys = Keys { header: "route.degrade.when", known: &["predicted_ttft_over_slo"] };

/// `route.stage_budget`
pub const STAGE_BUDGET: Keys = Keys {
    header: "route.stage_budget",
    known: &[
        "read",
        "admit",
        "route",
        "connect",
        "engine_queue",
        "prefill",
        "decode",
        "engine_other",
        "relay",
    ],
};

/// An entry of `route.pools`
pub const ROUTE_POOL: Keys = Keys { header: "route.pools", known: &["name", "weight"] };

/// `[[tenant]]`
pub const TENANT: Keys =
    Keys { header: "[[tenant]]", known: &["name", "key_sha256", "weight", "priority", "limits", "routes"] };

/// `[telemetry]`
pub const TELEMETRY: Keys =
    Keys { header: "[telemetry]", known: &["access_log", "content", "otlp", "engine_spans", "sampling"] };

/// `[telemetry.otlp]`
pub const OTLP: Keys =
    Keys { header: "[telemetry.otlp]", known: &["endpoint", "protocol", "headers", "timeout"] };

/// `[telemetry.engine_spans]`
pub const ENGINE_SPANS: Keys = Keys { header: "[telemetry.engine_spans]", known: &["listen"] };

/// `[telemetry.sampling]`
pub const SAMPLING: Keys = Keys { header: "[telemetry.sampling]", known: &["routine", "keep"] };

/// `[drift]`
pub const DRIFT: Keys =
    Keys { header: "[drift]", known: &["block", "baseline", "availability", "webhook", "state"] };

/// `drift.baseline`
pub const BASELINE: Keys = Keys { header: "drift.baseline", known: &["from", "to"] };

const TIMERS: &[&str] = &["connect", "first_token", "inter_token", "total", "client_stall"];
