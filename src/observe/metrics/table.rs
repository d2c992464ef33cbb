//! The table of metrics: the only place that names one.
//!
//! Grouped by label set: a family has the labels of its group and no others. Names, labels and help texts are stable from
//! the first release.

use prometheus::core::Collector;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts,
    Registry,
};

use super::buckets::{self, Edges};
use super::exponential::{ExponentialHistogram, ExponentialSeries};
use super::family::Family;

/// Labels of what is reported by tenant.
const TENANT: [&str; 5] = ["route", "model", "tenant", "revision", "class"];
/// Labels of a replica's families.
const REPLICA: &[&str] = &["pool", "replica"];

/// Families by `route, model, tenant, revision, class` (and the one by stage).
pub(super) struct TenantFamilies {
    pub(super) ttft: Family<HistogramVec>,
    pub(super) requests: Family<IntCounterVec>,
    pub(super) goodput: Family<IntCounterVec>,
    pub(super) slo_missed: Family<IntCounterVec>,
    pub(super) stage: Family<HistogramVec>,
}

/// Families by `route, model, revision, class`.
pub(super) struct RouteFamilies {
    pub(super) icl: Family<HistogramVec>,
    pub(super) itl: Family<HistogramVec>,
    pub(super) tpot: Family<HistogramVec>,
    pub(super) duration: Family<HistogramVec>,
    pub(super) first_byte: Family<HistogramVec>,
    pub(super) overhead: Family<HistogramVec>,
    pub(super) tokens: Family<IntCounterVec>,
    pub(super) finish_reasons: Family<IntCounterVec>,
    pub(super) slo_missed_in: Family<IntCounterVec>,
    pub(super) over_budget: Family<IntCounterVec>,
}

/// Families by `pool, replica`.
pub(super) struct ReplicaFamilies {
    pub(super) ttft: Family<HistogramVec>,
    pub(super) itl: Family<HistogramVec>,
    pub(super) inflight: Family<GaugeVec>,
    pub(super) traffic_share: Family<GaugeVec>,
    pub(super) queue_depth: Family<GaugeVec>,
    pub(super) running: Family<GaugeVec>,
    pub(super) kv_cache_usage: Family<GaugeVec>,
    pub(super) batch_limit: Family<GaugeVec>,
    pub(super) scrape_age: Family<GaugeVec>,
    pub(super) preemptions: Family<IntCounterVec>,
    pub(super) scrape_failures: Family<IntCounterVec>,
    pub(super) probe_failures: Family<IntCounterVec>,
    pub(super) state: Family<GaugeVec>,
    pub(super) state_changes: Family<IntCounterVec>,
    pub(super) info: Family<GaugeVec>,
    pub(super) cold_start: Family<HistogramVec>,
    pub(super) requests: Family<IntCounterVec>,
    pub(super) gpu: GpuFamilies,
}

/// Figures of replicas' GPUs.
pub(super) struct GpuFamilies {
    pub(super) utilization: Family<GaugeVec>,
    pub(super) memory_used: Family<GaugeVec>,
    pub(super) memory_free: Family<GaugeVec>,
    pub(super) throttled: Family<GaugeVec>,
    pub(super) xid: Family<GaugeVec>,
}

/// Families with few labels or none, about requests.
pub(super) struct Totals {
    pub(super) prediction_error: Histogram,
    pub(super) prediction_ratio: Histogram,
    pub(super) prefix_tokens: Family<IntCounterVec>,
    pub(super) decisions: Family<IntCounterVec>,
    pub(super) admissions: Family<IntCounterVec>,
    pub(super) queue_requests: IntGauge,
    pub(super) queue_bytes: IntGauge,
    pub(super) queue_oldest: Gauge,
    pub(super) tenant_tokens: Family<IntCounterVec>,
    pub(super) retries: Family<IntCounterVec>,
    pub(super) migrations: IntCounter,
    pub(super) hedges: Family<IntCounterVec>,
    pub(super) timeouts: Family<IntCounterVec>,
    pub(super) http_rejected: Family<IntCounterVec>,
}

/// Families with few labels or none, about the gateway itself.
pub(super) struct Process {
    pub(super) requests_inflight: IntGauge,
    pub(super) open_connections: IntGauge,
    pub(super) spans_dropped: Family<IntCounterVec>,
    pub(super) engine_spans: Family<IntCounterVec>,
    pub(super) otlp_exports: Family<IntCounterVec>,
    pub(super) access_log_dropped: IntCounter,
    pub(super) log_dropped: Family<IntCounterVec>,
    pub(super) connections_waiting: IntGauge,
    pub(super) panics: IntCounter,
    pub(super) config_reloads: Family<IntCounterVec>,
    pub(super) last_reload_successful: Gauge,
    pub(super) build_info: GaugeVec,
    pub(super) certificate_expiry: Family<GaugeVec>,
}

/// Creates families and registers them.
pub(super) struct Maker<'a> {
    registry: &'a Registry,
    overflow: IntCounterVec,
}

impl<'a> Maker<'a> {
    pub(super) fn new(registry: &'a Registry) -> Self {
        let opts = Opts::new(
            "tokenway_metric_overflow_total",
            "Label sets folded into the value other, by metric family.",
        );
        let overflow = IntCounterVec::new(opts, &["family"]).expect(TABLE_IS_VALID);
        let maker = Self { registry, overflow };
        maker.register(maker.overflow.clone());
        maker
    }

    fn register<C: Collector + Clone + 'static>(&self, collector: C) -> C {
        self.registry.register(Box::new(collector.clone())).expect(TABLE_IS_VALID);
        collector
    }

    fn counters(
        &self,
        name: &'static str,
        help: &str,
        labels: &'static [&'static str],
    ) -> Family<IntCounterVec> {
        let vec = IntCounterVec::new(Opts::new(name, help), labels).expect(TABLE_IS_VALID);
        Family::new(self.register(vec), name, labels, self.overflow.clone())
    }

    fn gauges(&self, name: &'static str, help: &str, labels: &'static [&'static str]) -> Family<GaugeVec> {
        let vec = GaugeVec::new(Opts::new(name, help), labels).expect(TABLE_IS_VALID);
        Family::new(self.register(vec), name, labels, self.overflow.clone())
    }

    fn histograms(
        &self,
        name: &'static str,
        help: &str,
        labels: &'static [&'static str],
        edges: &[f64],
    ) -> Family<HistogramVec> {
        let opts = HistogramOpts::new(name, help).buckets(edges.to_vec());
        let vec = HistogramVec::new(opts, labels).expect(TABLE_IS_VALID);
        Family::new(self.register(vec), name, labels, self.overflow.clone())
    }

    fn histogram(&self, name: &'static str, help: &str, edges: &[f64]) -> Histogram {
        let opts = HistogramOpts::new(name, help).buckets(edges.to_vec());
        self.register(Histogram::with_opts(opts).expect(TABLE_IS_VALID))
    }

    fn counter(&self, name: &'static str, help: &str) -> IntCounter {
        self.register(IntCounter::new(name, help).expect(TABLE_IS_VALID))
    }

    fn gauge(&self, name: &'static str, help: &str) -> IntGauge {
        self.register(IntGauge::new(name, help).expect(TABLE_IS_VALID))
    }
}

impl TenantFamilies {
    pub(super) fn new(maker: &Maker<'_>, edges: &Edges) -> Self {
        const OUTCOME: &[&str] = &[TENANT[0], TENANT[1], TENANT[2], TENANT[3], TENANT[4], "outcome", "code"];
        const REASON: &[&str] = &[TENANT[0], TENANT[1], TENANT[2], TENANT[3], TENANT[4], "reason"];
        const STAGE: &[&str] = &["route", "model", "tenant", "revision", "stage", "source"];
        Self {
            ttft: maker.histograms(
                "tokenway_time_to_first_token_seconds",
                "From the last byte of the request to the first content event.",
                &TENANT,
                &edges.ttft,
            ),
            requests: maker.counters(
                "tokenway_requests_total",
                "Requests on inference paths whose head was accepted, by how they ended.",
                OUTCOME,
            ),
            goodput: maker.counters(
                "tokenway_goodput_requests_total",
                "Requests that met every measurable bound of their SLO.",
                &TENANT,
            ),
            slo_missed: maker.counters(
                "tokenway_slo_missed_requests_total",
                "Requests that missed their SLO, by the first reason of error, refused, ttft, itl, tpot, e2e.",
                REASON,
            ),
            stage: maker.histograms(
                "tokenway_stage_duration_seconds",
                "Time in one stage of a request; source is measured or estimated.",
                STAGE,
                &edges.stage,
            ),
        }
    }
}

impl RouteFamilies {
    pub(super) fn new(maker: &Maker<'_>, edges: &Edges) -> Self {
        const ROUTE: &[&str] = &["route", "model", "revision", "class"];
        const KIND: &[&str] = &["route", "model", "revision", "class", "kind"];
        const REASON: &[&str] = &["route", "model", "revision", "class", "reason"];
        const STAGE: &[&str] = &["route", "model", "revision", "class", "stage"];
        const REASON_STAGE: &[&str] = &["route", "model", "revision", "class", "reason", "stage"];
        let by_route = |name, help, edges: &[f64]| maker.histograms(name, help, ROUTE, edges);
        Self {
            icl: by_route(
                "tokenway_inter_chunk_latency_seconds",
                "Gap between two content events of one stream.",
                &edges.token,
            ),
            itl: by_route(
                "tokenway_inter_token_latency_seconds",
                "Gap between two content events, divided by the tokens of the later one.",
                &edges.token,
            ),
            tpot: by_route(
                "tokenway_time_per_output_token_seconds",
                "From the first to the last content event, divided by the output tokens after the first.",
                &edges.token,
            ),
            duration: by_route(
                "tokenway_request_duration_seconds",
                "From the parsed request head to the last byte handed to the client's connection.",
                &edges.duration,
            ),
            first_byte: by_route(
                "tokenway_time_to_first_byte_seconds",
                "From the last byte of the request to the first byte of the replica's response.",
                &edges.ttft,
            ),
            overhead: by_route(
                "tokenway_gateway_overhead_seconds",
                "From the last byte of the request to the routing decision, without time in the admission queue.",
                &edges.overhead,
            ),
            tokens: maker.counters(
                "tokenway_tokens_total",
                "Tokens in the engine's usage, by kind: input_cached, input_uncached, input_unknown (no cached count), output.",
                KIND,
            ),
            finish_reasons: maker.counters(
                "tokenway_finish_reasons_total",
                "Finish reasons of choices; unknown ones are other.",
                REASON,
            ),
            slo_missed_in: maker.counters(
                "tokenway_slo_missed_by_stage_total",
                "Requests that missed their SLO, by reason and by the longest stage that the bound covers.",
                REASON_STAGE,
            ),
            over_budget: maker.counters(
                "tokenway_stage_over_budget_total",
                "Requests in which a stage exceeded its share of the route's stage budget.",
                STAGE,
            ),
        }
    }
}

impl GpuFamilies {
    fn new(maker: &Maker<'_>) -> Self {
        let gauges = |name, help| maker.gauges(name, help, REPLICA);
        Self {
            utilization: gauges(
                "tokenway_replica_gpu_utilization_ratio",
                "Mean share of time in which a kernel ran on the replica's GPUs, 0 to 1 (DCGM).",
            ),
            memory_used: gauges(
                "tokenway_replica_gpu_memory_used_bytes",
                "Framebuffer in use on the replica's GPUs (DCGM).",
            ),
            memory_free: gauges(
                "tokenway_replica_gpu_memory_free_bytes",
                "Framebuffer that is free on the replica's GPUs (DCGM).",
            ),
            throttled: maker.gauges(
                "tokenway_replica_gpu_clocks_throttled",
                "1 while clocks of a GPU of the replica are lowered for the reason, else 0 (DCGM).",
                &["pool", "replica", "reason"],
            ),
            xid: gauges(
                "tokenway_replica_gpu_xid",
                "The last XID error of a GPU of the replica; 0 without one (DCGM).",
            ),
        }
    }
}

impl ReplicaFamilies {
    pub(super) fn new(maker: &Maker<'_>, edges: &Edges) -> Self {
        const STATE: &[&str] = &["pool", "replica", "state"];
        const OUTCOME: &[&str] = &["pool", "replica", "outcome"];
        let gauges = |name, help| maker.gauges(name, help, REPLICA);
        let histograms = |name, help, edges: &[f64]| maker.histograms(name, help, REPLICA, edges);
        Self {
            ttft: histograms(
                "tokenway_replica_time_to_first_token_seconds",
                "Time to first token, by the replica that answered.",
                &edges.ttft,
            ),
            itl: histograms(
                "tokenway_replica_inter_token_latency_seconds",
                "Inter-token latency, by the replica that answered.",
                &edges.token,
            ),
            inflight: gauges(
                "tokenway_replica_inflight",
                "Requests of this gateway in flight at the replica.",
            ),
            traffic_share: gauges(
                "tokenway_replica_traffic_share_ratio",
                "Fraction of its ordinary traffic that the replica gets: below 1 in slow start, or while it fails more than its pool's others.",
            ),
            queue_depth: gauges("tokenway_replica_queue_depth", "Requests waiting in the engine's queue."),
            running: gauges("tokenway_replica_running", "Requests running in the engine's batch."),
            kv_cache_usage: gauges(
                "tokenway_replica_kv_cache_usage_ratio",
                "Share of the engine's KV cache in use, 0 to 1.",
            ),
            batch_limit: gauges(
                "tokenway_replica_batch_limit",
                "Maximum number of requests that the engine runs at once.",
            ),
            scrape_age: gauges(
                "tokenway_replica_scrape_age_seconds",
                "Age of the engine's signals; absent with them when too old.",
            ),
            preemptions: maker.counters(
                "tokenway_replica_preemptions_total",
                "Requests that the engine put back from its batch into its queue; starts anew with the engine.",
                REPLICA,
            ),
            scrape_failures: maker.counters(
                "tokenway_replica_scrape_failures_total",
                "Scrapes of the engine's metrics page that brought none.",
                REPLICA,
            ),
            probe_failures: maker.counters(
                "tokenway_replica_probe_failures_total",
                "Probes that were not answered as a working engine answers.",
                REPLICA,
            ),
            state: maker.gauges(
                "tokenway_replica_state",
                "1 for the current state of the replica, 0 for the others.",
                STATE,
            ),
            state_changes: maker.counters(
                "tokenway_replica_state_changes_total",
                "How often the replica entered the state.",
                STATE,
            ),
            info: maker.gauges(
                "tokenway_replica_info",
                "Always 1; facts of the replica in its labels.",
                &["pool", "replica", "revision", "zone"],
            ),
            cold_start: maker.histograms(
                "tokenway_cold_start_seconds",
                "From the discovery of a replica, or the first refused connect, to the end of its warm-up.",
                &["pool"],
                buckets::COLD_START,
            ),
            requests: maker.counters(
                "tokenway_replica_requests_total",
                "Attempts at the replica, by how they ended; one that was tried again elsewhere has failed.",
                OUTCOME,
            ),
            gpu: GpuFamilies::new(maker),
        }
    }
}

impl Totals {
    pub(super) fn new(maker: &Maker<'_>, edges: &Edges) -> Self {
        let oldest = Gauge::new(
            "tokenway_queue_oldest_seconds",
            "How long the oldest request in the queue has waited.",
        );
        Self {
            migrations: maker.counter(
                "tokenway_migrations_total",
                "Broken streams that were continued on another replica.",
            ),
            hedges: maker.counters(
                "tokenway_hedges_total",
                "Requests sent to a second replica as well, by whether that one won, lost or failed.",
                &["result"],
            ),
            prediction_error: maker.histogram(
                "tokenway_prediction_error_seconds",
                "Absolute difference between predicted and actual time to first token.",
                &edges.stage,
            ),
            prediction_ratio: maker.histogram(
                "tokenway_prediction_ratio",
                "Actual time to first token divided by the predicted one.",
                &edges.ratio,
            ),
            prefix_tokens: maker.counters(
                "tokenway_prefix_tokens_total",
                "Prompt tokens looked_up in the prefix index, predicted to be cached, reported cached.",
                &["kind"],
            ),
            decisions: maker.counters(
                "tokenway_decisions_total",
                "Routing decisions, by policy and by the reason for the chosen replica.",
                &["policy", "reason"],
            ),
            admissions: maker.counters(
                "tokenway_admissions_total",
                "Admission decisions, by decision and reason.",
                &["decision", "reason"],
            ),
            queue_requests: maker
                .gauge("tokenway_queue_requests", "Requests waiting in the gateway's admission queue."),
            queue_bytes: maker.gauge("tokenway_queue_bytes", "Bytes of request bodies waiting there."),
            queue_oldest: maker.register(oldest.expect(TABLE_IS_VALID)),
            tenant_tokens: maker.counters(
                "tokenway_tenant_tokens_total",
                "Tokens in the engine's usage, by tenant and kind: input, output.",
                &["route", "tenant", "kind"],
            ),
            retries: maker.counters(
                "tokenway_retries_total",
                "Requests sent to another replica, by the error of the attempt before.",
                &["reason"],
            ),
            timeouts: maker.counters(
                "tokenway_timeouts_total",
                "Deadlines that fired, by timer (a key of timeouts in the configuration).",
                &["timer"],
            ),
            http_rejected: maker.counters(
                "tokenway_http_rejected_total",
                "Connections and requests rejected before they counted as requests.",
                &["reason"],
            ),
        }
    }
}

impl Process {
    pub(super) fn new(maker: &Maker<'_>) -> Self {
        const BUILD: &[&str] = &["version", "revision", "os", "arch"];
        let build =
            Opts::new("tokenway_build_info", "Version of the running gateway; the value is always 1.");
        let last =
            Gauge::new("tokenway_config_last_reload_successful", "1 if the last reload succeeded, else 0.");
        Self {
            requests_inflight: maker.gauge("tokenway_requests_inflight", "Requests being served."),
            open_connections: maker
                .gauge("tokenway_open_connections", "Client connections on the data port."),
            spans_dropped: maker.counters(
                "tokenway_spans_dropped_total",
                "Spans dropped instead of exported, by reason.",
                &["reason"],
            ),
            engine_spans: maker.counters(
                "tokenway_engine_spans_total",
                "Joins of engines' spans with records: joined, missing (no span came), unmatched (no record came).",
                &["result"],
            ),
            otlp_exports: maker.counters(
                "tokenway_otlp_metric_exports_total",
                "Exports of metrics by OTLP: sent or failed.",
                &["result"],
            ),
            access_log_dropped: maker.counter(
                "tokenway_access_log_dropped_total",
                "Access-log lines lost to a full queue or a failed write.",
            ),
            log_dropped: maker.counters(
                "tokenway_log_dropped_total",
                "Lines of the log on stderr that were not written: queue_full or write_failed, or rate (more than a few a second of one kind).",
                &["reason"],
            ),
            connections_waiting: maker.gauge(
                "tokenway_connections_waiting",
                "1 while new connections wait because server.max_connections is reached.",
            ),
            panics: maker.counter(
                "tokenway_panics_total",
                "Requests that a bug of the gateway ended (500, or a broken response).",
            ),
            config_reloads: maker.counters(
                "tokenway_config_reloads_total",
                "Configuration reloads, by result: success or failure.",
                &["result"],
            ),
            last_reload_successful: maker.register(last.expect(TABLE_IS_VALID)),
            build_info: maker.register(GaugeVec::new(build, BUILD).expect(TABLE_IS_VALID)),
            certificate_expiry: maker.gauges(
                "tokenway_certificate_expiry_seconds",
                "When the first certificate of the file expires, in seconds since 1970.",
                &["file"],
            ),
        }
    }
}

/// Configured targets, so that alerting rules need no copies of them.
pub(super) struct Targets {
    pub(super) slo: Family<GaugeVec>,
    pub(super) queue: Family<GaugeVec>,
    pub(super) availability: Gauge,
    pub(super) config_info: GaugeVec,
}

impl Targets {
    pub(super) fn new(maker: &Maker<'_>) -> Self {
        let availability = Gauge::new(
            "tokenway_availability_target_ratio",
            "Configured share of requests that should succeed.",
        );
        let config = Opts::new(
            "tokenway_config_info",
            "The configuration that runs, without secrets, as a hash; the value is always 1.",
        );
        Self {
            slo: maker.gauges(
                "tokenway_route_slo_seconds",
                "Bounds of a route's SLO class, for an empty prompt: ttft, tpot, e2e.",
                &["route", "bound"],
            ),
            queue: maker.gauges(
                "tokenway_pool_queue_target",
                "Configured number of waiting requests per replica above which an alert fires.",
                &["pool"],
            ),
            availability: maker.register(availability.expect(TABLE_IS_VALID)),
            config_info: maker.register(GaugeVec::new(config, &["hash"]).expect(TABLE_IS_VALID)),
        }
    }
}

/// Families of drift detection.
pub(super) struct DriftFamilies {
    pub(super) findings: Family<IntCounterVec>,
    pub(super) active: Family<GaugeVec>,
    pub(super) dropped: IntCounter,
    pub(super) webhook: Family<IntCounterVec>,
    pub(super) events: Family<IntCounterVec>,
}

impl DriftFamilies {
    pub(super) fn new(maker: &Maker<'_>) -> Self {
        const FINDING: &[&str] = &["route", "revision", "replica", "kind", "diagnosis"];
        Self {
            findings: maker.counters(
                "tokenway_drift_findings_total",
                "Findings of drift detection, by kind and most likely cause; replica is none unless one alone drifts.",
                FINDING,
            ),
            active: maker.gauges(
                "tokenway_drift_active",
                "1 for every active finding of drift detection.",
                FINDING,
            ),
            dropped: maker.counter(
                "tokenway_drift_observations_dropped_total",
                "Requests that drift detection missed because its queue was full.",
            ),
            webhook: maker.counters(
                "tokenway_drift_webhook_posts_total",
                "Posts to the drift webhook: sent, failed, or dropped by a full queue.",
                &["result"],
            ),
            events: maker.counters(
                "tokenway_drift_events_total",
                "Findings as OTLP events: sent, failed, or dropped by a full queue.",
                &["result"],
            ),
        }
    }
}

/// Families of rollouts.
pub(super) struct CanaryFamilies {
    pub(super) state: Family<GaugeVec>,
    pub(super) share: Family<GaugeVec>,
    pub(super) shadow_share: Family<GaugeVec>,
    pub(super) shadow_requests: Family<IntCounterVec>,
    pub(super) shadow_ttft: Family<HistogramVec>,
    pub(super) evidence: Family<GaugeVec>,
    pub(super) breaches: Family<IntCounterVec>,
    pub(super) dropped: IntCounter,
    pub(super) webhook: Family<IntCounterVec>,
}

impl CanaryFamilies {
    pub(super) fn new(maker: &Maker<'_>, edges: &Edges) -> Self {
        Self {
            state: maker.gauges(
                "tokenway_canary_state",
                "1 for the state of a route's canary, 0 for its other states.",
                &["route", "pool", "revision", "state"],
            ),
            share: maker.gauges(
                "tokenway_canary_share_ratio",
                "Share of the route's new requests that its canary gets.",
                &["route", "pool", "revision"],
            ),
            shadow_share: maker.gauges(
                "tokenway_canary_shadow_share_ratio",
                "Share of the route's new requests of which its canary gets copies.",
                &["route", "pool", "revision"],
            ),
            shadow_requests: maker.counters(
                "tokenway_canary_shadow_requests_total",
                "Copies of requests for a canary, by how they ended, or why they were not sent.",
                &["route", "pool", "revision", "outcome"],
            ),
            shadow_ttft: maker.histograms(
                "tokenway_canary_shadow_time_to_first_token_seconds",
                "From the copy of a request for a canary to its first content event.",
                &["route", "pool", "revision"],
                &edges.ttft,
            ),
            evidence: maker.gauges(
                "tokenway_canary_evidence_ratio",
                "Evidence against the canary by test, as a fraction of what stops it: 1 is a breach.",
                &["route", "pool", "revision", "test"],
            ),
            breaches: maker.counters(
                "tokenway_canary_breaches_total",
                "Canaries stopped because they broke a bound, by the bound.",
                &["route", "pool", "revision", "reason"],
            ),
            dropped: maker.counter(
                "tokenway_canary_observations_dropped_total",
                "Observations that the judges of canaries missed because their queue was full.",
            ),
            webhook: maker.counters(
                "tokenway_canary_webhook_posts_total",
                "Reports to the webhooks of canaries: sent, failed, or dropped by a full queue.",
                &["result"],
            ),
        }
    }
}

/// Families of `[route.degrade]`.
pub(super) struct DegradeFamilies {
    pub(super) active: Family<GaugeVec>,
    pub(super) transitions: Family<IntCounterVec>,
    pub(super) requests: Family<IntCounterVec>,
}

impl DegradeFamilies {
    pub(super) fn new(maker: &Maker<'_>) -> Self {
        Self {
            active: maker.gauges(
                "tokenway_degrade_active",
                "1 while the route hands requests to the route of [route.degrade].",
                &["route"],
            ),
            transitions: maker.counters(
                "tokenway_degrade_transitions_total",
                "Times that a route began (on) or ended (off) to degrade.",
                &["route", "state"],
            ),
            requests: maker.counters(
                "tokenway_degraded_requests_total",
                "Requests handed to another route.",
                &["route", "to"],
            ),
        }
    }
}

/// Families of pools, for autoscalers.
pub(super) struct ScaleFamilies {
    pub(super) desired: Family<GaugeVec>,
    pub(super) predicted_ttft: Family<GaugeVec>,
    pub(super) waiting: Family<GaugeVec>,
}

impl ScaleFamilies {
    pub(super) fn new(maker: &Maker<'_>) -> Self {
        const POOL: &[&str] = &["pool"];
        Self {
            desired: maker.gauges(
                "tokenway_desired_replicas",
                "Replicas that the pool should have to hold its SLO, computed with its cold start in mind.",
                POOL,
            ),
            predicted_ttft: maker.gauges(
                "tokenway_pool_predicted_ttft_seconds",
                "TTFT predicted for a mean request that arrived now; absent without a ready replica.",
                POOL,
            ),
            waiting: maker.gauges(
                "tokenway_pool_waiting_per_replica",
                "Requests waiting in the gateway and at the engines, for each ready replica.",
                POOL,
            ),
        }
    }
}

/// Families of the sources of replicas.
pub(super) struct DiscoveryFamilies {
    pub(super) targets: Family<GaugeVec>,
    pub(super) age: Family<GaugeVec>,
    pub(super) failing: Family<GaugeVec>,
    pub(super) failures: Family<IntCounterVec>,
    pub(super) kept: Family<GaugeVec>,
}

impl DiscoveryFamilies {
    pub(super) fn new(maker: &Maker<'_>) -> Self {
        const SOURCE: &[&str] = &["pool", "source"];
        Self {
            targets: maker.gauges(
                "tokenway_discovery_targets",
                "Replicas that a source of the pool names.",
                SOURCE,
            ),
            age: maker.gauges(
                "tokenway_discovery_age_seconds",
                "Since the last good answer of a source; 0 for the configuration's own list.",
                SOURCE,
            ),
            failing: maker.gauges(
                "tokenway_discovery_failing",
                "1 while a source fails and its last known replicas stay in force.",
                SOURCE,
            ),
            failures: maker.counters(
                "tokenway_discovery_failures_total",
                "Times that a source did not answer, or not with a list of replicas.",
                SOURCE,
            ),
            kept: maker.gauges(
                "tokenway_discovery_kept_replicas",
                "Replicas of the pool that serve although its sources name them no more: nothing that they name is ready.",
                SOURCE,
            ),
        }
    }
}

/// A histogram that only OTLP carries.
pub(super) struct ExponentialMeasure {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) pick: fn(&ExponentialSeries) -> &ExponentialHistogram,
}

/// Under the names of the semantic conventions for GenAI where they have one.
pub(super) const EXPONENTIAL: [ExponentialMeasure; 4] = [
    ExponentialMeasure {
        name: "gen_ai.server.time_to_first_token",
        help: "From the last byte of the request to the first content event.",
        pick: |series| &series.ttft,
    },
    ExponentialMeasure {
        name: "gen_ai.server.time_per_output_token",
        help: "From the first to the last content event, divided by the output tokens after the first.",
        pick: |series| &series.tpot,
    },
    ExponentialMeasure {
        name: "gen_ai.server.request.duration",
        help: "From the parsed request head to the last byte handed to the client's connection.",
        pick: |series| &series.duration,
    },
    ExponentialMeasure {
        name: "tokenway.inter_token_latency",
        help: "Gap between two content events, divided by the tokens of the later one.",
        pick: |series| &series.itl,
    },
];

/// Families of the page that OTLP carries as [`EXPONENTIAL`] instead.
pub(super) const REPLACED_BY_EXPONENTIAL: [&str; 4] = [
    "tokenway_time_to_first_token_seconds",
    "tokenway_time_per_output_token_seconds",
    "tokenway_request_duration_seconds",
    "tokenway_inter_token_latency_seconds",
];

const TABLE_IS_VALID: &str = "invariant: the table's names and labels are valid and distinct (tested)";
