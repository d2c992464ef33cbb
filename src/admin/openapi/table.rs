//! Every endpoint of the admin API.

/// One method of one path.
pub(in crate::admin) struct Endpoint {
    /// As OpenAPI spells it.
    pub(super) method: &'static str,
    /// Below `/api/v1`.
    pub(super) path: &'static str,
    pub(super) summary: &'static str,
    pub(super) description: &'static str,
    pub(super) parameters: &'static [Parameter],
    /// What the body may be.
    pub(super) body: Option<&'static str>,
    /// Of a good answer.
    pub(super) status: &'static str,
    pub(super) content_type: &'static str,
}

/// A parameter of a query or a path.
pub(in crate::admin) struct Parameter {
    pub(super) name: &'static str,
    pub(super) description: &'static str,
    pub(super) kind: &'static str,
    /// The words that it may be; empty is any.
    pub(super) values: &'static [&'static str],
    pub(super) is_in_path: bool,
}

const fn get(
    path: &'static str,
    summary: &'static str,
    description: &'static str,
    parameters: &'static [Parameter],
) -> Endpoint {
    Endpoint {
        method: "get",
        path,
        summary,
        description,
        parameters,
        body: None,
        status: "200",
        content_type: "application/json",
    }
}

const fn post(path: &'static str, summary: &'static str, description: &'static str) -> Endpoint {
    Endpoint { method: "post", ..get(path, summary, description, &[]) }
}

const fn text(name: &'static str, description: &'static str) -> Parameter {
    Parameter { name, description, kind: "string", values: &[], is_in_path: false }
}

const fn one_of(name: &'static str, values: &'static [&'static str], description: &'static str) -> Parameter {
    Parameter { name, description, kind: "string", values, is_in_path: false }
}

const fn in_path(name: &'static str, description: &'static str) -> Parameter {
    Parameter { is_in_path: true, ..text(name, description) }
}

const ROUTE: Parameter = text("route", "Only this route");
const TENANT: Parameter = text("tenant", "Only this tenant");
const REVISION: Parameter = text("revision", "Only this revision");

/// The whole API, in the order of the index.
pub(in crate::admin) const ENDPOINTS: &[Endpoint] = &[
    get("/", "This list", "Version of the gateway and every endpoint.", &[]),
    get("/openapi.json", "This API as OpenAPI 3.1", "", &[]),
    get(
        "/slo",
        "What is wrong, in one sentence",
        "For each route: whether it keeps its SLO, goodput, burn rate, and the stage and replica that misses come from, with the \
         numbers that say so. `status` is `ok`, `bad` or `unknown` (too few requests).",
        &[],
    ),
    Endpoint {
        content_type: "text/event-stream",
        ..get(
            "/events",
            "The verdict, live",
            "Server-sent events: `slo`, once a second, with what `/slo` answers. 503 where 16 listen already.",
            &[],
        )
    },
    get(
        "/history",
        "The last hour by route",
        "One list for each figure, one value for each slot: percentiles of TTFT and ITL, misses by reason and by stage, times by \
         stage, and a heat map of TTFT. `null` where nothing was measured.",
        &[one_of("step", &["10s", "1m"], "Length of a slot: 10 s for ten minutes, 1 m for an hour"), ROUTE],
    ),
    get(
        "/latency",
        "Percentiles by series",
        "Of HDR histograms, within 0.4 %. A filter on tenant, class or stage splits by it.",
        &[
            one_of("window", &["1m", "5m", "1h"], "How far back; 5m if absent"),
            one_of("by", &["tenant", "class", "stage"], "Split every series"),
            ROUTE,
            text("model", "Only this model"),
            REVISION,
            TENANT,
            one_of("class", &["none", "short", "medium", "long"], "Only this class of prompts"),
            text("stage", "Only this stage"),
        ],
    ),
    get(
        "/requests",
        "The slowest and the failed of the last hour",
        "Newest first. Of each five minutes of a route the ten slowest, ten failed and ten refused are kept.",
        &[
            ROUTE,
            TENANT,
            REVISION,
            text("replica", "Only requests that were sent to this replica"),
            one_of("outcome", &["ok", "refused", "failed", "canceled"], "Only this outcome"),
            text("stage", "Only misses blamed on this stage"),
            Parameter { kind: "boolean", ..text("missed", "Whether the SLO was missed") },
            Parameter { kind: "integer", ..text("limit", "1 to 500; 50 if absent") },
            text("after", "`next` of the page before"),
        ],
    ),
    get(
        "/requests/{id}",
        "Where the time of a request went, and why that replica",
        "Stages with their source, attempts, and the decision with each candidate's predicted cost. Of the requests above and the \
         last 200 decisions.",
        &[in_path("id", "The request's `x-request-id` or trace id, or a beginning that is no other's")],
    ),
    get(
        "/fleet",
        "Every replica",
        "State with its reason, load, the engine's own figures and their age.",
        &[],
    ),
    get(
        "/routes",
        "Every route",
        "Pools with weight, share of new requests (a canary's as it is now) and ready replicas.",
        &[],
    ),
    get(
        "/decisions",
        "The last 200 decisions",
        "Newest first, with each candidate's cost.",
        &[ROUTE, Parameter { kind: "integer", ..text("limit", "1 to 200; all if absent") }],
    ),
    get(
        "/canaries",
        "Every canary",
        "State, step, evidence of each test (1 stops it) and the report of the last breach.",
        &[],
    ),
    get(
        "/pools/{pool}/scale",
        "Replicas that a pool should have",
        "For autoscalers: desired_replicas, with the reason in words and the terms that it was computed from.",
        &[in_path("pool", "Name of the pool")],
    ),
    Endpoint {
        parameters: &[
            in_path("route", "Name of the route"),
            Parameter {
                values: &["promote", "rollback", "pause", "resume"],
                ..in_path("action", "What becomes of its canary")
            },
        ],
        ..post(
            "/canaries/{route}/{action}",
            "Act on a canary",
            "409 where its state does not allow it; 500 not_kept where it holds and route.canary.state cannot be written.",
        )
    },
    get(
        "/drift",
        "Findings of drift detection",
        "Active and recent ones with diagnosis, evidence and runner-up; what is muted.",
        &[],
    ),
    get(
        "/usage",
        "Usage for the bill",
        "Requests, tokens (input, cached, output) and engine seconds (prefill, decode), counted as the metrics of tenants are. By \
         the hour for two days, then by the day (UTC) for 400.",
        &[
            text("since", "`7d`, `2026-11-01` or `2026-11-01T00:00:00Z`; 1d if absent"),
            text("until", "The same, a date to its end; now if absent"),
            text("by", "A list of tenant, model, key, day; tenant if absent"),
        ],
    ),
    get("/keys", "API keys made at run time", "Without their secrets.", &[TENANT]),
    Endpoint {
        body: Some(
            "`{\"tenant\": \"team-a\"}`; optional: `name`, `expires` (`30d`, `2026-12-31`), `routes` (names or models), `budget` (as `[[tenant.budget]]`)",
        ),
        status: "201",
        ..post(
            "/keys",
            "Make an API key",
            "In force at once. `secret` is shown this once: its digest is kept.",
        )
    },
    Endpoint {
        parameters: &[in_path("tenant", "Name of the tenant"), in_path("name", "Name of the key")],
        ..post("/keys/{tenant}/{name}/revoke", "Revoke an API key", "The next request with it is refused.")
    },
    get("/config", "The configuration that runs", "Secrets are masked.", &[]),
    get("/log-level", "The log filter", "", &[]),
    Endpoint {
        body: Some("`{\"level\": \"debug\"}`, or a filter such as `tokenway::upstream=trace,info`"),
        ..post("/log-level", "Set the log filter", "Until the next restart.")
    },
    Endpoint {
        body: Some("`{\"pool\": \"p\", \"replica\": \"r\"}`; without a replica, all of the pool"),
        status: "202",
        ..post(
            "/warm-up",
            "Warm replicas up again",
            "One leaves the traffic for it if another of its pool is ready. 404 for names that are none.",
        )
    },
    post(
        "/reload",
        "Read the configuration again",
        "`restart` names changed keys that need a restart. 422 with what is wrong.",
    ),
    Endpoint {
        body: Some(
            "`{\"action\": \"add\" | \"drain\" | \"remove\", \"pool\": …, \"url\": …}`, or `name` of a known replica",
        ),
        ..post(
            "/replicas",
            "Add, drain or remove a replica",
            "Until the next restart; streams run to their end.",
        )
    },
    Endpoint {
        parameters: &[in_path("id", "`id` of the finding")],
        body: Some("Nothing, or `{\"undo\": true}` to take it back"),
        ..post(
            "/drift/{id}/acknowledge",
            "Somebody knows of a finding",
            "No more alerts of it while it lasts.",
        )
    },
    Endpoint {
        parameters: &[in_path("id", "`id` of the finding")],
        ..post("/drift/{id}/reset", "A finding is over", "What is now is usual: its baseline begins anew.")
    },
    Endpoint {
        body: Some(
            "`{\"route\": \"chat\", \"kind\": \"ttft_shift\", \"for\": \"2h\"}`; without route or kind it is all of them, `0s` ends it",
        ),
        ..post(
            "/drift/mute",
            "No alerts of such findings for a while",
            "They are found and shown all the same. 404 where there is no such route.",
        )
    },
    Endpoint { status: "202", ..post("/drain", "Drain and stop", "As SIGTERM does.") },
];
