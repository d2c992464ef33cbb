//! Every endpoint of the admin API: its handler, and what the index and the description have of it.

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

use crate::admin::{
    AdminState, actions, decisions, drift, fleet, history, keys, latency, live, requests, slo, usage, views,
};

pub(super) struct Endpoint {
    pub(super) method: &'static str,
    /// Below `/api/v1`.
    pub(super) path: &'static str,
    pub(super) summary: &'static str,
    pub(super) description: &'static str,
    pub(super) parameters: &'static [Parameter],
    /// What the body may be; empty is none.
    pub(super) body: &'static str,
    /// Of a good answer.
    pub(super) status: &'static str,
    pub(super) content_type: &'static str,
}

/// A parameter of a query or a path.
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) description: &'static str,
    pub(super) kind: &'static str,
    /// The words that it may be; empty is any.
    pub(super) values: &'static [&'static str],
}

/// Method, path, handler and summary, then the description, `[parameters]`, `{body}` and `=> status` with the type of the content.
macro_rules! endpoints {
    ($($(#[$doc:meta])* $group:ident {$(
        $method:ident $path:literal $handler:path, $summary:literal: $description:literal
        $([$($name:ident $(as $kind:ident)? $(($($value:literal)|+))?: $what:literal),+])?
        $({$body:literal})? $(=> $status:literal $($content_type:literal)?)?;
    )+})+) => {
        $($(#[$doc])*
        pub(in crate::admin) fn $group() -> Router<Arc<AdminState>> {
            Router::new()$(.route($path, $method($handler)))+
        })+

        /// The whole API, in the order of the index.
        pub(super) const ENDPOINTS: &[Endpoint] = &[$($(Endpoint {
            method: stringify!($method),
            path: $path,
            summary: $summary,
            description: $description,
            parameters: &[$($(Parameter {
                name: stringify!($name),
                description: $what,
                kind: [$(stringify!($kind),)? "string"][0],
                values: &[$($($value),+)?],
            }),+)?],
            body: concat!($($body)?),
            status: [$($status,)? "200"][0],
            content_type: [$($($content_type,)?)? "application/json"][0],
        },)+)+];
    };
}

endpoints! {
    /// What only reads.
    reads {
        get "/" super::index, "This list": "Version of the gateway and every endpoint.";
        get "/openapi.json" super::document, "This API as OpenAPI 3.1": "";
        get "/slo" slo::slo, "What is wrong, in one sentence":
            "For each route: whether it keeps its SLO, goodput, burn rate, and the stage and replica that misses come from, with the \
             numbers that say so. `status` is `ok`, `bad` or `unknown` (too few requests).";
        get "/history" history::history, "The last hour by route":
            "One list for each figure, one value for each slot: percentiles of TTFT and ITL, misses by reason and by stage, times by \
             stage, and a heat map of TTFT. `null` where nothing was measured."
            [step("10s" | "1m"): "Length of a slot: 10 s for ten minutes, 1 m for an hour", route: "Only this route"];
        get "/latency" latency::latency, "Percentiles by series":
            "Of HDR histograms, within 0.4 %. A filter on tenant, class or stage splits by it."
            [window("1m" | "5m" | "1h"): "How far back; 5m if absent",
             by("tenant" | "class" | "stage"): "Split every series",
             route: "Only this route", model: "Only this model", revision: "Only this revision", tenant: "Only this tenant",
             class("none" | "short" | "medium" | "long"): "Only this class of prompts", stage: "Only this stage"];
        get "/requests" requests::requests, "The slowest and the failed of the last hour":
            "Newest first. Of each five minutes of a route the ten slowest, ten failed and ten refused are kept."
            [route: "Only this route", tenant: "Only this tenant", revision: "Only this revision",
             replica: "Only requests that were sent to this replica",
             outcome("ok" | "refused" | "failed" | "canceled"): "Only this outcome",
             stage: "Only misses blamed on this stage", missed as boolean: "Whether the SLO was missed",
             limit as integer: "1 to 500; 50 if absent", after: "`next` of the page before"];
        get "/requests/{id}" requests::request, "Where the time of a request went, and why that replica":
            "Stages with their source, attempts, and the decision with each candidate's predicted cost. Of the requests above and the \
             last 200 decisions."
            [id: "The request's `x-request-id` or trace id, or a beginning that is no other's"];
        get "/fleet" fleet::fleet, "Every replica": "State with its reason, load, the engine's own figures and their age.";
        get "/routes" views::routes, "Every route":
            "Pools with weight, share of new requests (a canary's as it is now) and ready replicas.";
        get "/decisions" decisions::decisions, "The last 200 decisions": "Newest first, with each candidate's cost."
            [route: "Only this route", limit as integer: "1 to 200; all if absent"];
        get "/canaries" views::canaries, "Every canary":
            "State, step, evidence of each test (1 stops it) and the report of the last breach.";
        get "/pools/{pool}/scale" views::scale, "Replicas that a pool should have":
            "For autoscalers: desired_replicas, with the reason in words and the terms that it was computed from."
            [pool: "Name of the pool"];
        get "/drift" drift::findings, "Findings of drift detection":
            "Active and recent ones with diagnosis, evidence and runner-up; what is muted.";
        get "/usage" usage::usage, "Usage for the bill":
            "Requests, tokens (input, cached, output) and engine seconds (prefill, decode), counted as the metrics of tenants are. By \
             the hour for two days, then by the day (UTC) for 400."
            [since: "`7d`, `2026-11-01` or `2026-11-01T00:00:00Z`; 1d if absent",
             until: "The same, a date to its end; now if absent",
             by: "A list of tenant, model, key, day; tenant if absent"];
        get "/config" views::config, "The configuration that runs": "Secrets are masked.";
    }

    /// What does not end by itself.
    streams {
        get "/events" live::events, "The verdict, live":
            "Server-sent events: `slo`, once a second, with what `/slo` answers. 503 where 16 listen already."
            => "200" "text/event-stream";
    }

    /// What changes the gateway.
    actions {
        post "/canaries/{route}/{action}" actions::canary, "Act on a canary":
            "409 where its state does not allow it; 500 not_kept where it holds and route.canary.state cannot be written."
            [route: "Name of the route", action("promote" | "rollback" | "pause" | "resume"): "What becomes of its canary"];
        get "/keys" keys::list, "API keys made at run time": "Without their secrets." [tenant: "Only this tenant"];
        post "/keys" keys::make, "Make an API key": "In force at once. `secret` is shown this once: its digest is kept."
            {"`{\"tenant\": \"team-a\"}`; optional: `name`, `expires` (`30d`, `2026-12-31`), `routes` (names or models), `budget` \
              (as `[[tenant.budget]]`)"} => "201";
        post "/keys/{tenant}/{name}/revoke" keys::revoke, "Revoke an API key": "The next request with it is refused."
            [tenant: "Name of the tenant", name: "Name of the key"];
        get "/log-level" actions::log_level, "The log filter": "";
        post "/log-level" actions::set_log_level, "Set the log filter": "Until the next restart."
            {"`{\"level\": \"debug\"}`, or a filter such as `tokenway::upstream=trace,info`"};
        post "/warm-up" actions::warm_up, "Warm replicas up again":
            "One leaves the traffic for it if another of its pool is ready. 404 for names that are none."
            {"`{\"pool\": \"p\", \"replica\": \"r\"}`; without a replica, all of the pool"} => "202";
        post "/reload" actions::reload, "Read the configuration again":
            "`restart` names changed keys that need a restart. 422 with what is wrong.";
        post "/replicas" actions::replica, "Add, drain or remove a replica": "Until the next restart; streams run to their end."
            {"`{\"action\": \"add\" | \"drain\" | \"remove\", \"pool\": …, \"url\": …}`, or `name` of a known replica"};
        post "/drift/{id}/acknowledge" drift::acknowledge, "Somebody knows of a finding": "No more alerts of it while it lasts."
            [id: "`id` of the finding"] {"Nothing, or `{\"undo\": true}` to take it back"};
        post "/drift/{id}/reset" drift::reset, "A finding is over": "What is now is usual: its baseline begins anew."
            [id: "`id` of the finding"];
        post "/drift/mute" drift::mute, "No alerts of such findings for a while":
            "They are found and shown all the same. 404 where there is no such route."
            {"`{\"route\": \"chat\", \"kind\": \"ttft_shift\", \"for\": \"2h\"}`; without route or kind it is all of them, `0s` ends it"};
        post "/drain" actions::drain, "Drain and stop": "As SIGTERM does." => "202";
    }
}
