//! The table of metrics: the only place that names one.
//!
//! A row is a family: kind, handle, name, labels behind those of its group, help text ([`families!`] has the form). Names,
//! labels and help texts are stable from the first release; `docs/metric-families.md` is written from them.

use prometheus::{CounterVec, Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge};

use super::declare::{Group, Handle, Maker, families};
use super::declared::{Declared, Label};
use super::exponential::{ExponentialHistogram, ExponentialSeries};
use super::family::Family;
use super::foreseen::{Foreseen, outcomes, reasons, refusals, served};
use super::labels::{ContentLoss, DeliveryResult, DropReason, HookOutcome, JoinResult};
use super::log_drops::LogDrops;
use crate::listener::tls::HandshakeFault;

families! {
    /// Every family of the gateway, by who feeds it.
    pub struct Families {
        /// Requests by everything that tells them apart.
        pub(super) by_tenant: ByTenant [route, model, tenant, revision, class] {
            histogram(ttft) ttft "tokenway_time_to_first_token_seconds" []
                "From the last byte of the request to the first content event.";
            counter requests "tokenway_requests_total" [outcome, code] zero outcomes
                "Requests on inference paths whose head was accepted, by how they ended.";
            counter goodput "tokenway_goodput_requests_total" [] zero served
                "Requests that met every measurable bound of their SLO.";
            counter slo_missed "tokenway_slo_missed_requests_total" [reason] zero reasons
                "Requests that missed their SLO, by the first reason of error, refused, empty, ttft, itl, tpot, e2e.";
        }

        /// Requests of all tenants.
        pub(super) by_route: ByRoute [route, model, revision, class] {
            histogram(token) icl "tokenway_inter_chunk_latency_seconds" []
                "Gap between two content events of one stream.";
            histogram(token) itl "tokenway_inter_token_latency_seconds" []
                "Gap between two content events, divided by the tokens of the later one.";
            histogram(token) tpot "tokenway_time_per_output_token_seconds" []
                "From the first to the last content event, divided by the output tokens after the first.";
            histogram(duration) duration "tokenway_request_duration_seconds" []
                "From the parsed request head to the last byte handed to the client's connection.";
            histogram(ttft) first_byte "tokenway_time_to_first_byte_seconds" []
                "From the last byte of the request to the first byte of the replica's response.";
            histogram(overhead) overhead "tokenway_gateway_overhead_seconds" []
                "From the last byte of the request to the routing decision, without time in the admission queue.";
            counter tokens "tokenway_tokens_total" [kind]
                "Tokens in the engine's usage, by kind: input_cached, input_uncached, input_unknown (no cached count), output.";
            counter finish_reasons "tokenway_finish_reasons_total" [reason]
                "Finish reasons of choices; unknown ones are other.";
            counter slo_missed_in "tokenway_slo_missed_by_stage_total" [reason, stage] zero refusals
                "Requests that missed their SLO, by reason and by the longest stage that the bound covers.";
            counter over_budget "tokenway_stage_over_budget_total" [stage]
                "Requests in which a stage exceeded its share of the route's stage budget.";
        }

        /// Requests in few series.
        pub requests: Requests [] {
            histogram(stage) stage "tokenway_stage_duration_seconds" [route, model, tenant, revision, stage, source]
                "Time in one stage of a request; source is measured or estimated.";
            histogram(stage) prediction_error "tokenway_prediction_error_seconds" []
                "Absolute difference between predicted and actual time to first token.";
            histogram(ratio) prediction_ratio "tokenway_prediction_ratio" []
                "Actual time to first token divided by the predicted one.";
            counter prefix_tokens "tokenway_prefix_tokens_total" [kind = &["looked_up", "predicted", "reported"]]
                "Prompt tokens looked_up in the prefix index, predicted to be cached, reported cached.";
            counter decisions "tokenway_decisions_total" [policy, reason]
                "Routing decisions, by policy and by the reason for the chosen replica.";
            counter admissions "tokenway_admissions_total" [decision, reason]
                "Admission decisions, by decision and reason.";
            level queued "tokenway_queue_requests" []
                "Requests waiting in the gateway's admission queue.";
            level queued_bytes "tokenway_queue_bytes" []
                "Bytes of request bodies waiting there.";
            gauge queued_longest "tokenway_queue_oldest_seconds" []
                "How long the oldest request in the queue has waited.";
            counter tenant_tokens "tokenway_tenant_tokens_total" [route, model, tenant, kind]
                "Tokens that budgets count, by tenant and kind: input (all of the prompt), cached (the part of it found in the cache), output; estimated without the engine's usage.";
            amount tenant_seconds "tokenway_tenant_engine_seconds_total" [route, model, tenant, stage]
                "Seconds that requests spent in the engine's prefill and decode (unpredicted: engine_other); those of one batch share the engine.";
            counter hook "tokenway_hook_calls_total" [call = &["before", "after"], outcome = HookOutcome::LABELS]
                "Calls of [hook], before a request or after its answer: ok, refused, timeout, failed, too_large, dropped (by a full queue).";
            counter outside "tokenway_outside_requests_total" [route, pool, tenant]
                "Attempts at outside providers ([pool.outside]).";
            counter outside_tokens "tokenway_outside_tokens_total" [route, pool, tenant, kind]
                "Their tokens, by kind as in tokenway_tenant_tokens_total, which has them too.";
            gauge budget_used "tokenway_tenant_budget_used" [tenant, window, kind, model]
                "What a tenant has used of a budget in its window, elsewhere too once served here; model is * for all models.";
            gauge budget_limit "tokenway_tenant_budget_limit" [tenant, window, kind, model]
                "What the budget allows.";
            counter retries "tokenway_retries_total" [reason]
                "Requests sent to another replica, by the error of the attempt before.";
            counter migrations "tokenway_migrations_total" []
                "Broken streams that were continued on another replica.";
            counter hedges "tokenway_hedges_total" [result = &["won", "lost", "failed"]]
                "Requests sent to a second replica as well, by whether that one won, lost or failed.";
            counter kv_transfers "tokenway_kv_transfers_total" [prefill, decode, result]
                "KV that a decoding replica had to fetch from a prefill replica: worked, failed.";
            histogram(stage) kv_transfer_time "tokenway_kv_transfer_seconds" [prefill, decode]
                "From the decoding request to its first token, less what decoding takes, by the pair of replicas; of streams.";
            counter kv_released "tokenway_kv_released_total" [result = &["fetched", "failed"]]
                "KV that no decoding replica was asked for, fetched to free the blocks of its prefill replica.";
            counter timeouts "tokenway_timeouts_total" [timer]
                "Deadlines that fired, by timer (a key of timeouts in the configuration).";
            counter http_rejected "tokenway_http_rejected_total" [reason]
                "Connections and requests rejected before they counted as requests.";
            level inflight "tokenway_requests_inflight" []
                "Requests being served.";
            gauge overdue "tokenway_requests_overdue" [route]
                "Requests being served that wait past a bound of their SLO: for the first token, or for the end.";
        }

        /// Replicas, as the gateway sees them and as their engines and GPUs report themselves.
        pub(super) replicas: Replicas [pool, replica] {
            histogram(ttft) ttft "tokenway_replica_time_to_first_token_seconds" []
                "Time to first token of requests that had not failed elsewhere.";
            histogram(token) itl "tokenway_replica_inter_token_latency_seconds" []
                "Inter-token latency, by the replica that answered.";
            counter requests "tokenway_replica_requests_total" [outcome = &["ok", "failed", "canceled", "client_error"]]
                "Attempts at the replica, by how they ended; one tried again elsewhere has failed.";
            counter empty_answers "tokenway_replica_empty_answers_total" []
                "Answers of the replica that were whole and had no text, though the model ended them.";
            gauge inflight "tokenway_replica_inflight" []
                "Requests of this gateway in flight at the replica.";
            gauge overdue "tokenway_replica_overdue_seconds" []
                "For how long the longest of the requests there has waited for its first token past its bound.";
            gauge traffic_share "tokenway_replica_traffic_share_ratio" []
                "Fraction of its ordinary traffic that the replica gets: below 1 in slow start, or while it fails more than its pool's others; 0 on trial.";
            gauge queue_depth "tokenway_replica_queue_depth" []
                "Requests waiting in the engine's queue.";
            gauge running "tokenway_replica_running" []
                "Requests running in the engine's batch.";
            gauge kv_cache_usage "tokenway_replica_kv_cache_usage_ratio" []
                "Share of the engine's KV cache in use, 0 to 1.";
            gauge batch_limit "tokenway_replica_batch_limit" []
                "Maximum number of requests that the engine runs at once.";
            gauge scrape_age "tokenway_replica_scrape_age_seconds" []
                "Age of the engine's signals; absent with them when too old.";
            counter preemptions "tokenway_replica_preemptions_total" []
                "Requests that the engine put back from its batch into its queue; starts anew with the engine.";
            counter kv_fetched "tokenway_replica_kv_transfers_total" []
                "KV transfers that the engine fetched, by its own count; starts anew with the engine.";
            counter kv_bytes "tokenway_replica_kv_transfer_bytes_total" []
                "Bytes of KV that the engine fetched.";
            counter kv_failed "tokenway_replica_kv_transfer_failures_total" []
                "KV transfers that failed, by the engine's own count.";
            counter kv_expired "tokenway_replica_kv_expired_total" []
                "Requests whose KV no engine fetched in time: it held their blocks for minutes.";
            gauge kv_seconds "tokenway_replica_kv_transfer_seconds" []
                "Mean duration of the engine's KV transfers in the last minute.";
            counter scrape_failures "tokenway_replica_scrape_failures_total" []
                "Scrapes of the engine's metrics page that brought none.";
            counter probe_failures "tokenway_replica_probe_failures_total" []
                "Probes that were not answered as a working engine answers.";
            gauge state "tokenway_replica_state" [state]
                "1 for the current state of the replica, 0 for the others.";
            counter state_changes "tokenway_replica_state_changes_total" [state]
                "How often the replica entered the state.";
            gauge info "tokenway_replica_info" [revision, zone]
                "Always 1; facts of the replica in its labels.";
            gauge gpu_utilization "tokenway_replica_gpu_utilization_ratio" []
                "Mean share of time in which a kernel ran on the replica's GPUs, 0 to 1 (DCGM).";
            gauge gpu_memory_used "tokenway_replica_gpu_memory_used_bytes" []
                "Framebuffer in use on the replica's GPUs (DCGM).";
            gauge gpu_memory_free "tokenway_replica_gpu_memory_free_bytes" []
                "Framebuffer that is free on the replica's GPUs (DCGM).";
            gauge gpu_throttled "tokenway_replica_gpu_clocks_throttled" [reason]
                "1 while clocks of a GPU of the replica are lowered for the reason, else 0 (DCGM).";
            gauge gpu_xid "tokenway_replica_gpu_xid" []
                "The last XID error of a GPU of the replica; 0 without one (DCGM).";
        }

        /// Sources of replicas.
        pub(super) sources: Sources [pool, source] {
            gauge targets "tokenway_discovery_targets" []
                "Replicas that a source of the pool names.";
            gauge age "tokenway_discovery_age_seconds" []
                "Since the last good answer of a source; 0 for the configuration's own list.";
            gauge failing "tokenway_discovery_failing" []
                "1 while a source fails and its last known replicas stay in force.";
            counter failures "tokenway_discovery_failures_total" []
                "Times that a source did not answer, or not with a list of replicas.";
            gauge kept "tokenway_discovery_kept_replicas" []
                "Replicas of the pool that serve although its sources name them no more: nothing that they name is ready.";
        }

        /// Pools: their targets, and what autoscalers read.
        pub pools: Pools [pool] {
            histogram(cold_start) cold_start "tokenway_cold_start_seconds" []
                "From the discovery of a replica, or the first refused connect, to the end of its warm-up.";
            gauge desired "tokenway_desired_replicas" []
                "Replicas that the pool should have to hold its SLO, computed with its cold start in mind.";
            gauge predicted_ttft "tokenway_pool_predicted_ttft_seconds" []
                "TTFT predicted for a mean request that arrived now; absent without a ready replica.";
            gauge waiting "tokenway_pool_waiting_per_replica" []
                "Requests waiting in the gateway and at the engines, for each ready replica.";
            gauge replicas "tokenway_pool_replicas" [state]
                "Replicas of the pool in the state; complete for any number of them.";
            gauge queue_target "tokenway_pool_queue_target" []
                "Configured number of waiting requests per replica above which an alert fires.";
        }

        /// Routes: their targets, and those that hand requests to others.
        pub routes: Routes [route] {
            gauge slo "tokenway_route_slo_seconds" [bound]
                "Bounds of a route's SLO class, for an empty prompt: ttft, tpot, e2e.";
            gauge degrading "tokenway_degrade_active" []
                "1 while the route hands requests to the route of [route.degrade].";
            counter degrade_transitions "tokenway_degrade_transitions_total" [state]
                "Times that a route began (on) or ended (off) to degrade.";
            counter degraded "tokenway_degraded_requests_total" [to]
                "Requests handed to another route.";
            counter prefill_requests "tokenway_prefill_requests_total" [way, reason]
                "Requests of a route with [route.prefill], by the way that they went in the end (together, apart) and why.";
            counter unknown_objectives "tokenway_unknown_objectives_total" []
                "Requests that named an InferenceObjective which none of the route's pools has.";
            counter standby "tokenway_standby_requests_total" [pool, reason]
                "Requests that a standby pool got, by why: down (no other pool ready, or just back), full (a queue refused them).";
        }

        /// Canaries, by what they serve.
        pub canaries: Canaries [route, pool, revision] {
            gauge state "tokenway_canary_state" [state]
                "1 for the state of a route's canary, 0 for its other states.";
            gauge share "tokenway_canary_share_ratio" []
                "Share of the route's new requests that its canary gets.";
            gauge shadow_share "tokenway_canary_shadow_share_ratio" []
                "Share of the route's new requests of which its canary gets copies.";
            counter shadow_requests "tokenway_canary_shadow_requests_total" [outcome]
                "Copies of requests for a canary, by how they ended, or why they were not sent.";
            histogram(ttft) shadow_ttft "tokenway_canary_shadow_time_to_first_token_seconds" []
                "From the copy of a request for a canary to its first content event.";
            gauge evidence "tokenway_canary_evidence_ratio" [test]
                "Evidence against the canary by test, as a fraction of what stops it: 1 is a breach.";
            counter breaches "tokenway_canary_breaches_total" [reason]
                "Canaries stopped because they broke a bound, by the bound.";
        }

        /// The control plane: findings of drift, and the reports of both judges.
        pub control: Control [] {
            counter drift_findings "tokenway_drift_findings_total" [route, revision, replica, kind, diagnosis]
                "Findings of drift detection, by kind and most likely cause; replica is none unless one alone drifts.";
            gauge drift_active "tokenway_drift_active" [route, revision, replica, kind, diagnosis]
                "1 for every active finding of drift detection.";
            counter drift_dropped "tokenway_drift_observations_dropped_total" []
                "Requests that drift detection missed because its queue was full.";
            counter drift_webhook "tokenway_drift_webhook_posts_total" [result = DeliveryResult::LABELS]
                "Posts to the drift webhook, by result; none is dropped.";
            counter drift_events "tokenway_drift_events_total" [result = DeliveryResult::LABELS]
                "Findings as OTLP events: sent, failed, or dropped by a full queue.";
            counter canary_dropped "tokenway_canary_observations_dropped_total" []
                "Observations that the judges of canaries missed because their queue was full.";
            counter canary_webhook "tokenway_canary_webhook_posts_total" [result = DeliveryResult::LABELS]
                "Reports to the webhooks of canaries: sent, failed, or dropped by a full queue.";
        }

        /// Other gateways, by `cluster.name`.
        pub cluster: Cluster [cluster] {
            gauge connected "tokenway_cluster_connected" []
                "1 while the broker of [cluster] is reached, else 0.";
            gauge refused "tokenway_cluster_refused" []
                "Kinds of knowledge (budgets, API keys, verdicts, …) that the broker is reached for and refuses, as a full one does.";
            gauge peers "tokenway_cluster_peers" []
                "Other gateways that are followed.";
            counter notices "tokenway_cluster_notices_total" [direction]
                "Notices of decisions, first tokens, ends and ejections: sent to other gateways, received from them.";
            counter dropped "tokenway_cluster_notices_dropped_total" [reason]
                "Notices not sent (queue_full, disconnected) or not taken in (unknown_replica, unknown_kind), and messages that are unreadable or were lost.";
            gauge lag "tokenway_cluster_lag_seconds" []
                "How long the newest batch took to the broker and back.";
        }

        /// What engines publish of their KV caches.
        pub kv_events: KvEvents [pool, replica] {
            gauge connected "tokenway_kv_events_connected" []
                "1 while its KV events are followed, else 0.";
            gauge complete "tokenway_kv_events_complete" []
                "1 if no event is missing since it started or was emptied, else 0.";
            gauge blocks "tokenway_kv_events_blocks" [medium]
                "KV blocks held by its events: gpu, or other for those in tiers behind alone.";
            counter events "tokenway_kv_events_total" [kind]
                "KV events: stored, removed, cleared, skipped (unknown kinds, further groups of layers), undecodable.";
            counter gaps "tokenway_kv_events_gaps_total" [outcome]
                "Gaps in the numbers of batches: replayed, lost; restarted: they began again.";
            counter prompts "tokenway_kv_events_prompts_total" [outcome]
                "Answered prompts, by whether their blocks were found: found, nothing (none stored), unknown, ambiguous.";
        }

        /// The process: connections, configuration, its own telemetry.
        pub process: Process [] {
            level open_connections "tokenway_open_connections" []
                "Client connections on the data port.";
            level connections_waiting "tokenway_connections_waiting" []
                "1 while new connections wait because server.max_connections is reached.";
            counter tls_failures "tokenway_tls_handshake_failures_total" [reason = HandshakeFault::LABELS]
                "TLS handshakes of clients that failed: client_certificate, alert (the client refused ours), protocol, closed, timeout.";
            gauge lag "tokenway_runtime_lag_seconds" []
                "Longest wait for a thread of the data path in the last minute: how late the gateway itself runs.";
            gauge late "tokenway_runtime_late_ratio" []
                "Share of the last minute, 0 to 1, in which a request's next step waited more than 50 ms for a thread.";
            gauge throttled "tokenway_runtime_cpu_throttled_seconds" []
                "Time for which the CPU limit of the gateway's cgroup kept it from running, since the group began.";
            counter panics "tokenway_panics_total" []
                "Requests that a bug of the gateway ended (500, or a broken response).";
            counter spans_dropped "tokenway_spans_dropped_total" [reason = DropReason::LABELS]
                "Spans dropped instead of exported, by reason.";
            counter engine_spans "tokenway_engine_spans_total" [result = JoinResult::LABELS]
                "Joins of engines' spans with records: joined, missing (no span came), unmatched (no record came).";
            counter otlp_exports "tokenway_otlp_metric_exports_total" [result = &["sent", "failed"]]
                "Exports of metrics by OTLP: sent or failed.";
            counter access_log_dropped "tokenway_access_log_dropped_total" []
                "Access-log lines lost to a full queue or a failed write.";
            counter content_dropped "tokenway_content_dropped_total" [reason = ContentLoss::LABELS]
                "Entries of telemetry.content lost to a full queue, a failed write or a failed export.";
            counter log_dropped "tokenway_log_dropped_total" [reason = LogDrops::LABELS]
                "Lines of the log on stderr that were not written: queue_full or write_failed, or rate (more than a few a second of one kind).";
            counter config_reloads "tokenway_config_reloads_total" [result = &["success", "failure"]]
                "Configuration reloads, by result: success or failure.";
            gauge last_reload_successful "tokenway_config_last_reload_successful" []
                "1 if the last reload succeeded, else 0.";
            gauge build_info "tokenway_build_info" [version, revision, date, os, arch]
                "Version of the running gateway; the value is always 1.";
            gauge config_info "tokenway_config_info" [hash]
                "The configuration that runs, without secrets, as a hash; the value is always 1.";
            gauge runbook_info "tokenway_runbook_info" [url]
                "Where people read the runbook, by telemetry.runbook_url; the value is always 1.";
            gauge availability_target "tokenway_availability_target_ratio" []
                "Configured share of requests that should succeed.";
            gauge certificate_expiry "tokenway_certificate_expiry_seconds" [file]
                "When the first certificate of the file expires, in seconds since 1970.";
        }
    }
}

/// A histogram that only OTLP carries.
pub(super) struct ExponentialMeasure {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) pick: fn(&ExponentialSeries) -> &ExponentialHistogram,
    /// The family of the page that OTLP does without.
    replaces: &'static str,
}

/// Whether OTLP carries the family as one of [`EXPONENTIAL`] instead.
pub(super) fn is_exponential(family: &str) -> bool {
    EXPONENTIAL.iter().any(|measure| measure.replaces == family)
}

/// Under the names of the semantic conventions for GenAI where they have one.
pub(super) const EXPONENTIAL: [ExponentialMeasure; 4] = [
    ExponentialMeasure {
        name: "gen_ai.server.time_to_first_token",
        help: "From the last byte of the request to the first content event.",
        pick: |series| &series.ttft,
        replaces: "tokenway_time_to_first_token_seconds",
    },
    ExponentialMeasure {
        name: "gen_ai.server.time_per_output_token",
        help: "From the first to the last content event, divided by the output tokens after the first.",
        pick: |series| &series.tpot,
        replaces: "tokenway_time_per_output_token_seconds",
    },
    ExponentialMeasure {
        name: "gen_ai.server.request.duration",
        help: "From the parsed request head to the last byte handed to the client's connection.",
        pick: |series| &series.duration,
        replaces: "tokenway_request_duration_seconds",
    },
    ExponentialMeasure {
        name: "tokenway.inter_token_latency",
        help: "Gap between two content events, divided by the tokens of the later one.",
        pick: |series| &series.itl,
        replaces: "tokenway_inter_token_latency_seconds",
    },
];

#[cfg(test)]
mod tests {
    use std::fs;

    use prometheus::Registry;

    use super::super::buckets::Edges;
    use super::super::declare::OVERFLOW;
    use super::*;

    /// `TOKENWAY_UPDATE_DOCS=1` writes the page instead.
    #[test]
    fn the_page_of_families_is_what_the_table_declares() {
        let (registry, edges) = (Registry::new(), Edges::default());
        let maker = Maker::new(&registry, &edges);
        Families::new(&maker);
        let mut declared = maker.declared.take();
        declared.push(&OVERFLOW);
        declared.sort_by_key(|family| family.name);
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metric-families.md");
        let page = fs::read_to_string(path).unwrap();
        let marker = "<!-- generated from the table of families -->\n";
        let (before, _) = page.split_once(marker).unwrap();
        let mut expected =
            format!("{before}{marker}\n| family | type | labels | meaning |\n|---|---|---|---|\n");
        expected.extend(declared.iter().map(|family| family.document()));
        if std::env::var_os("TOKENWAY_UPDATE_DOCS").is_some() {
            fs::write(path, &expected).unwrap();
        }
        assert!(
            fs::read_to_string(path).unwrap() == expected,
            "docs/metric-families.md is not the table: TOKENWAY_UPDATE_DOCS=1 cargo test --lib the_page_of_families"
        );
    }
}
