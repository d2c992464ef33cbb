//! Prometheus metrics: fed by records and first tokens, rendered for a scrape.
//!
//! [`table`] names every metric with its labels, [`family`] bounds its label sets, [`series`] caches handles, so that an
//! event costs atomic additions. Nothing here waits. The registry is not the global one, so that dependencies cannot add
//! to our page.

mod buckets;
mod canary;
mod delta;
mod discovery;
mod drift;
mod exemplars;
mod exponential;
mod family;
mod memo;
mod openmetrics;
mod otlp;
mod replicas;
mod scale;
mod series;
mod table;
mod targets;
mod zero;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use dashmap::DashMap;
// Labels come from code and configuration, not from clients, so a fast hash is safe.
use parking_lot::Mutex;
use prometheus::process_collector::ProcessCollector;
use prometheus::{IntCounter, IntGauge, Registry, TextEncoder};
use std::hash::RandomState;

use self::buckets::Edges;
pub use self::canary::CanaryGauges;
pub(super) use self::delta::since;
pub use self::drift::{DeliveryResult, FindingLabels};
use self::exemplars::{Exemplar, Exemplars};
use self::exponential::{ExponentialKey, Exponentials};
use self::memo::Memo;
pub use self::openmetrics::Exposition;
use self::replicas::{KnownReplicas, ReplicaKey};
pub use self::scale::PoolGauges;
use self::series::{ALL_TENANTS, ReplicaSeries, RequestFamilies, RequestKey, RequestSeries};
pub use self::series::{StreamHistograms, StreamKey};
use self::table::{
    CanaryFamilies, DegradeFamilies, DiscoveryFamilies, DriftFamilies, Maker, Process, ReplicaFamilies,
    RouteFamilies, ScaleFamilies, Targets, TenantFamilies, Totals,
};
use crate::clock::{Clock, Stamp};
use crate::config::Config;
use crate::fleet::status::ReplicaStatus;
use crate::observe::judgement::Judgement;
use crate::record::{AttemptCause, FirstToken, Outcome, Record};

/// Version of this binary, for `tokenway_build_info` and spans.
#[derive(Clone, Copy, Debug)]
pub struct BuildInfo {
    /// Version of the Cargo package.
    pub version: &'static str,
    /// Git revision, or `unknown`.
    pub revision: &'static str,
}

/// Every metric of the gateway.
pub struct Metrics {
    registry: Registry,
    clock: Clock,
    requests: Arc<RequestFamilies>,
    replicas: ReplicaFamilies,
    totals: Totals,
    process: Process,
    drift: DriftFamilies,
    canaries: CanaryFamilies,
    scale: ScaleFamilies,
    degrade: DegradeFamilies,
    targets: Targets,
    discovery: DiscoveryFamilies,
    by_request: DashMap<RequestKey, Arc<RequestSeries>, RandomState>,
    by_stream: DashMap<StreamKey, Arc<StreamHistograms>, RandomState>,
    by_replica: DashMap<ReplicaKey, Arc<ReplicaSeries>, RandomState>,
    known_replicas: Mutex<KnownReplicas>,
    /// When those that wait in the queue came, and how many came then.
    waiting: Arc<Mutex<BTreeMap<Stamp, usize>>>,
    rendering: Mutex<()>,
    edges: Edges,
    exemplars: Exemplars,
    /// Where metrics are exported by OTLP.
    exponentials: Option<Exponentials>,
    /// When counting began.
    started: Stamp,
    decisions: Memo<(&'static str, &'static str), IntCounter>,
    admissions: Memo<(&'static str, &'static str), IntCounter>,
    retries: Memo<&'static str, IntCounter>,
    timeouts: Memo<&'static str, IntCounter>,
    rejected: Memo<&'static str, IntCounter>,
    spans_dropped: Memo<&'static str, IntCounter>,
    engine_spans: Memo<&'static str, IntCounter>,
    /// Of the process' log, once there is one.
    log_drops: Mutex<Option<Arc<LogDrops>>>,
    prefix: PrefixTokens,
}

/// Handles of `tokenway_prefix_tokens_total`.
struct PrefixTokens {
    looked_up: IntCounter,
    predicted: IntCounter,
    reported: IntCounter,
}

impl Metrics {
    /// All metrics at zero; the SLO bounds of `config` become histogram edges.
    pub fn new(config: &Config, build: BuildInfo, clock: Clock) -> Self {
        let registry = Registry::new();
        let maker = Maker::new(&registry);
        let edges = Edges::new(config);
        let requests = RequestFamilies {
            by_tenant: TenantFamilies::new(&maker, &edges),
            by_route: RouteFamilies::new(&maker, &edges),
            stages_by_tenant: config.telemetry.stages_by_tenant,
            ttft_by_tenant: config.telemetry.ttft_by_tenant,
        };
        let totals = Totals::new(&maker, &edges);
        let prefix = PrefixTokens {
            looked_up: totals.prefix_tokens.get(&["looked_up"]),
            predicted: totals.prefix_tokens.get(&["predicted"]),
            reported: totals.prefix_tokens.get(&["reported"]),
        };
        let replicas = ReplicaFamilies::new(&maker, &edges);
        let process = Process::new(&maker);
        let (canaries, scale) = (CanaryFamilies::new(&maker, &edges), ScaleFamilies::new(&maker));
        let degrade = DegradeFamilies::new(&maker);
        let (drift, targets) = (DriftFamilies::new(&maker), Targets::new(&maker));
        let discovery = DiscoveryFamilies::new(&maker);
        // Fails without /proc: then there are no process_* metrics.
        let _ = registry.register(Box::new(ProcessCollector::for_self()));
        let metrics = Self {
            registry,
            clock,
            requests: Arc::new(requests),
            replicas,
            totals,
            process,
            drift,
            canaries,
            scale,
            degrade,
            targets,
            discovery,
            by_request: DashMap::default(),
            by_stream: DashMap::default(),
            by_replica: DashMap::default(),
            known_replicas: Mutex::default(),
            waiting: Arc::default(),
            rendering: Mutex::default(),
            edges,
            exemplars: Exemplars::default(),
            exponentials: config.telemetry.otlp_metrics.as_ref().map(|_| Exponentials::default()),
            started: clock.now(),
            decisions: Memo::default(),
            admissions: Memo::default(),
            retries: Memo::default(),
            timeouts: Memo::default(),
            rejected: Memo::default(),
            spans_dropped: Memo::default(),
            engine_spans: Memo::default(),
            log_drops: Mutex::default(),
            prefix,
        };
        metrics.start_at_zero(build);
        metrics.set_targets(config);
        metrics.foresee(config);
        metrics
    }

    /// Creates series that alerts use before their first event.
    fn start_at_zero(&self, build: BuildInfo) {
        let labels = [build.version, build.revision, std::env::consts::OS, std::env::consts::ARCH];
        self.process.build_info.with_label_values(&labels).set(1.0);
        self.process.last_reload_successful.set(1.0);
        for result in HEDGE_RESULTS {
            self.totals.hedges.get(&[result]);
        }
        for result in ["success", "failure"] {
            self.process.config_reloads.get(&[result]);
        }
        for (reason, _) in LogDrops::default().take() {
            self.process.log_dropped.get(&[reason]);
        }
        for result in DeliveryResult::ALL {
            self.drift.webhook.get(&[result.as_str()]);
            self.canaries.webhook.get(&[result.as_str()]);
            self.drift_events(result, 0);
        }
        for result in [DeliveryResult::Sent, DeliveryResult::Failed] {
            self.process.otlp_exports.get(&[result.as_str()]);
        }
        for reason in DropReason::ALL {
            self.spans_dropped(reason, 0);
        }
        for result in JoinResult::ALL {
            self.engine_spans(result, 0);
        }
    }

    /// Histograms of the gaps of streams with this key; resolved once per stream.
    pub fn stream_series(&self, key: &StreamKey) -> Arc<StreamHistograms> {
        if let Some(series) = self.by_stream.get(key) {
            return Arc::clone(&series);
        }
        let replica = self.replica_series(&key.pool, &key.replica);
        let exponential = self.exponentials.as_ref().map(|all| all.series(&ExponentialKey::from(key)));
        let series = Arc::new(StreamHistograms::new(key, &self.requests.by_route, replica, exponential));
        if self.by_stream.len() < CACHED_SERIES {
            self.by_stream.insert(key.clone(), Arc::clone(&series));
        }
        series
    }

    /// Observes a request's first content event.
    pub fn first_token(&self, first: &FirstToken) {
        let key = RequestKey {
            route: Arc::clone(&first.route),
            model: Arc::clone(&first.model),
            tenant: Arc::clone(&first.tenant),
            revision: Arc::clone(&first.served.revision),
            class: first.class,
        };
        self.request_series(key).first_token(first.ttft);
        if let Some(all) = &self.exponentials {
            all.series(&ExponentialKey::of_first_token(first)).ttft.observe(first.ttft);
        }
        let ttft = first.ttft.as_secs_f64();
        self.replica_series(&first.served.pool, &first.served.replica).ttft.observe(ttft);
        if let Some(predicted) = first.predicted.map(|p| p.as_secs_f64()).filter(|p| *p > 0.0) {
            self.totals.prediction_error.observe((ttft - predicted).abs());
            self.totals.prediction_ratio.observe(ttft / predicted);
        }
    }

    /// Observes a request's end; where not `is_settled`, its stages follow by [`Metrics::settled`].
    pub fn record(&self, record: &Record, judgement: &Judgement, is_settled: bool) {
        let series = self.request_series(key_of(record));
        series.record(record, judgement);
        if is_settled {
            series.settled(judgement);
        }
        if let Some(all) = &self.exponentials {
            let series = all.series(&ExponentialKey::of_record(record));
            series.duration.observe(record.duration());
            if let Some(tpot) = record.tpot() {
                series.tpot.observe(tpot);
            }
        }
        self.count_attempts(record);
        self.count_decision(record);
        self.count_tenant_tokens(record);
    }

    /// Observes times by stage, once the engine's times have arrived or are overdue.
    pub fn settled(&self, record: &Record, judgement: &Judgement) {
        self.request_series(key_of(record)).settled(judgement);
    }

    fn count_attempts(&self, record: &Record) {
        let timeout = |error: Option<&'static str>| error.and_then(|e| e.strip_prefix("timeout_"));
        for (i, attempt) in record.attempts.iter().enumerate() {
            let is_last = i + 1 == record.attempts.len();
            let outcome = match attempt.error {
                None if is_last => record.outcome,
                // Another attempt of its hedge spoke first.
                _ if attempt.is_canceled => Outcome::Canceled,
                _ => Outcome::Failed,
            };
            let served = &attempt.served;
            self.replica_series(&served.pool, &served.replica).attempt(&self.replicas, served, outcome);
            let Some(error) = attempt.error else { continue };
            // A hedge is no retry, and neither is the continuation of a broken stream.
            if record.attempts.get(i + 1).is_some_and(|next| next.cause == AttemptCause::Retry) {
                self.retries.get(error, || self.totals.retries.get(&[error])).inc();
            }
            if let Some(timer) = timeout(Some(error)) {
                self.timeouts.get(timer, || self.totals.timeouts.get(&[timer])).inc();
            }
        }
        let last = record.attempts.last().and_then(|attempt| attempt.error);
        if let Some(timer) = timeout(record.error).filter(|_| last != record.error) {
            self.timeouts.get(timer, || self.totals.timeouts.get(&[timer])).inc();
        }
    }

    fn count_tenant_tokens(&self, record: &Record) {
        for (kind, tokens) in [("input", record.tokens.input), ("output", record.tokens.output)] {
            let Some(tokens) = tokens else { continue };
            self.totals.tenant_tokens.get(&[&record.route, &record.tenant, kind]).inc_by(tokens.0);
        }
    }

    fn count_decision(&self, record: &Record) {
        let Some(decision) = &record.decision else { return };
        let key = (decision.policy, decision.reason);
        self.decisions.get(key, || self.totals.decisions.get(&[key.0, key.1])).inc();
        self.prefix.looked_up.inc_by(record.tokens.input.unwrap_or(record.estimated_input).0);
        self.prefix.predicted.inc_by(decision.predicted_hit.0);
        self.prefix.reported.inc_by(record.tokens.cached.unwrap_or_default().0);
    }

    /// Counts an admission decision (`admit`, `refuse`, …) and its reason.
    pub fn admission(&self, decision: &'static str, reason: &'static str) {
        self.admissions.get((decision, reason), || self.totals.admissions.get(&[decision, reason])).inc();
    }

    /// Counts a broken stream that goes on at another replica.
    pub fn migrated(&self) {
        self.totals.migrations.inc();
    }

    /// Counts a request that a second replica was asked for: whether that one `won`, `lost` or `failed`.
    pub fn hedged(&self, result: &'static str) {
        self.totals.hedges.get(&[result]).inc();
    }

    /// Counts a request and the bytes of its body as queued while the guard lives.
    #[must_use]
    pub fn queued(&self, bytes: usize) -> QueuedGuard {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        QueuedGuard {
            _request: GaugeGuard::new(&self.totals.queue_requests),
            _bytes: GaugeGuard::of(&self.totals.queue_bytes, bytes),
            since: self.clock.now(),
            waiting: Arc::clone(&self.waiting),
        }
        .enter()
    }

    /// Sets when the first certificate of a file expires.
    pub fn certificate_expiry(&self, file: &str, at: SystemTime) {
        let at = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.process.certificate_expiry.set(&[file], Some(at.as_secs_f64()));
    }

    /// Counts a connection or request that was rejected before it counted as a request.
    pub fn http_rejected(&self, reason: &'static str) {
        self.rejected.get(reason, || self.totals.http_rejected.get(&[reason])).inc();
    }

    /// Counts a reload, and whether it succeeded.
    pub fn config_reload(&self, is_success: bool) {
        let result = if is_success { "success" } else { "failure" };
        self.process.config_reloads.get(&[result]).inc();
        self.process.last_reload_successful.set(if is_success { 1.0 } else { 0.0 });
    }

    /// Counts spans that are lost.
    pub fn spans_dropped(&self, reason: DropReason, spans: u64) {
        let reason = reason.as_str();
        self.spans_dropped.get(reason, || self.process.spans_dropped.get(&[reason])).inc_by(spans);
    }

    /// Counts joins of engines' spans with records.
    pub fn engine_spans(&self, result: JoinResult, records: u64) {
        let result = result.as_str();
        self.engine_spans.get(result, || self.process.engine_spans.get(&[result])).inc_by(records);
    }

    /// Counts access-log lines that are lost.
    pub fn access_log_dropped(&self, lines: u64) {
        self.process.access_log_dropped.inc_by(lines);
    }

    /// Counts from now on the log's lines that are not written.
    pub fn count_log_drops(&self, drops: Arc<LogDrops>) {
        *self.log_drops.lock() = Some(drops);
    }

    /// 1 while new connections wait because of `server.max_connections`.
    #[must_use]
    pub fn connections_waiting(&self) -> IntGauge {
        self.process.connections_waiting.clone()
    }

    /// Counts panics while requests are served.
    #[must_use]
    pub fn panics(&self) -> IntCounter {
        self.process.panics.clone()
    }

    /// Counts a request as in flight while the guard lives.
    #[must_use]
    pub fn request_inflight(&self) -> GaugeGuard {
        GaugeGuard::new(&self.process.requests_inflight)
    }

    /// Counts a client connection as open while the guard lives.
    #[must_use]
    pub fn open_connection(&self) -> GaugeGuard {
        GaugeGuard::new(&self.process.open_connections)
    }

    /// The page in plain text, with the gauges of `fleet`.
    pub fn render(&self, fleet: &[ReplicaStatus]) -> String {
        self.render_as(fleet, Exposition::Plain)
    }

    /// The page in the format that the scraper accepts.
    pub fn render_as(&self, fleet: &[ReplicaStatus], exposition: Exposition) -> String {
        let families = self.gather(fleet);
        match exposition {
            Exposition::OpenMetrics => openmetrics::encode(&families, &self.exemplars),
            Exposition::Plain => TextEncoder::new().encode_to_string(&families).unwrap_or_else(|error| {
                tracing::error!(%error, "metrics could not be encoded");
                String::new()
            }),
        }
    }

    /// The same for OTLP, cumulative since the start.
    pub(super) fn otlp(
        &self,
        fleet: &[ReplicaStatus],
    ) -> Vec<opentelemetry_proto::tonic::metrics::v1::Metric> {
        let families = self.gather(fleet);
        let exponentials = self.exponentials.as_ref().map(Exponentials::all).unwrap_or_default();
        let span =
            otlp::Span { start: self.clock.wall(self.started), now: self.clock.wall(self.clock.now()) };
        otlp::metrics(&families, &exponentials, span)
    }

    /// Counts an export of metrics.
    pub(super) fn otlp_export(&self, result: DeliveryResult) {
        self.process.otlp_exports.get(&[result.as_str()]).inc();
    }

    /// Every family, with the gauges of `fleet`.
    fn gather(&self, fleet: &[ReplicaStatus]) -> Vec<prometheus::proto::MetricFamily> {
        // Concurrent scrapes would remove gauges from each other's pages.
        let _one_at_a_time = self.rendering.lock();
        let gone = self.known_replicas.lock().update(&self.replicas, fleet, self.clock.now());
        for (pool, replica) in gone {
            self.by_stream.retain(|key, _| key.pool != pool || key.replica != replica);
            self.by_replica.remove(&(pool, replica));
        }
        if let Some(drops) = &*self.log_drops.lock() {
            for (reason, lines) in drops.take() {
                self.process.log_dropped.get(&[reason]).inc_by(lines);
            }
        }
        let oldest = self.waiting.lock().first_key_value().map(|(since, _)| *since);
        let waited = oldest.map_or(Duration::ZERO, |since| self.clock.now().since(since));
        self.totals.queue_oldest.set(waited.as_secs_f64());
        self.registry.gather()
    }

    /// Makes the trace of a request the exemplar of its buckets; only for requests whose spans are kept.
    pub fn exemplar(&self, record: &Record) {
        let [route, model, revision, class] =
            [&*record.route, &*record.model, record.revision(), record.class.as_str()];
        let at = self.clock.wall(record.at.end);
        let exemplar =
            |value: Duration| Exemplar { trace_id: record.trace.trace_id, value: value.as_secs_f64(), at };
        let mut labels = [("route", route), ("model", model), ("revision", revision), ("class", class)];
        let duration = exemplar(record.duration());
        self.exemplars.note(exemplars::DURATION, &mut labels, &self.edges.duration, duration);
        if let Some(ttft) = record.ttft() {
            let [a, b, c, d] = labels;
            let tenant = if self.requests.ttft_by_tenant { &*record.tenant } else { ALL_TENANTS };
            let mut labels = [a, b, c, d, ("tenant", tenant)];
            self.exemplars.note(exemplars::TTFT, &mut labels, &self.edges.ttft, exemplar(ttft));
        }
    }

    fn request_series(&self, key: RequestKey) -> Arc<RequestSeries> {
        if let Some(series) = self.by_request.get(&key) {
            return Arc::clone(&series);
        }
        let series = Arc::new(RequestSeries::new(key.clone(), Arc::clone(&self.requests)));
        if self.by_request.len() < CACHED_SERIES {
            return Arc::clone(&self.by_request.entry(key).or_insert(series));
        }
        series
    }

    fn replica_series(&self, pool: &Arc<str>, replica: &Arc<str>) -> Arc<ReplicaSeries> {
        let key = (Arc::clone(pool), Arc::clone(replica));
        if let Some(series) = self.by_replica.get(&key) {
            return Arc::clone(&series);
        }
        // Before the series exists, so that it is removed when the replica has left.
        self.known_replicas.lock().note(key.clone(), self.clock.now());
        let series = Arc::new(ReplicaSeries::new(&self.replicas, pool, replica));
        Arc::clone(&self.by_replica.entry(key).or_insert(series))
    }
}

fn key_of(record: &Record) -> RequestKey {
    RequestKey {
        route: Arc::clone(&record.route),
        model: Arc::clone(&record.model),
        tenant: Arc::clone(&record.tenant),
        revision: record
            .served()
            .map_or_else(|| RequestKey::NO_REVISION.into(), |served| Arc::clone(&served.revision)),
        class: record.class,
    }
}

/// Lines of the log on stderr that were not written, since the last scrape.
#[derive(Debug, Default)]
pub struct LogDrops {
    /// The writer could not keep up.
    pub queue_full: AtomicU64,
    /// stderr is closed, or its disk is full.
    pub write_failed: AtomicU64,
    /// More lines of one place in the code than its rate limit allows.
    pub rate: AtomicU64,
}

impl LogDrops {
    fn take(&self) -> [(&'static str, u64); 3] {
        [("queue_full", &self.queue_full), ("write_failed", &self.write_failed), ("rate", &self.rate)]
            .map(|(reason, lines)| (reason, lines.swap(0, Ordering::Relaxed)))
    }
}

/// Result of joining an engine's span with a record (label `result`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinResult {
    /// The record got its engine's times.
    Joined,
    /// No span came in time.
    Missing,
    /// No record came in time.
    Unmatched,
}

impl JoinResult {
    const ALL: [Self; 3] = [Self::Joined, Self::Missing, Self::Unmatched];

    fn as_str(self) -> &'static str {
        match self {
            Self::Joined => "joined",
            Self::Missing => "missing",
            Self::Unmatched => "unmatched",
        }
    }
}

/// Why spans were dropped (label `reason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The collector is slower than the spans.
    QueueFull,
    /// The collector refused them or did not respond.
    ExportFailed,
    /// The gateway stopped first.
    Shutdown,
    /// Over `telemetry.sampling.max_per_second`.
    RateLimited,
}

impl DropReason {
    const ALL: [Self; 4] = [Self::QueueFull, Self::ExportFailed, Self::Shutdown, Self::RateLimited];

    fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::ExportFailed => "export_failed",
            Self::Shutdown => "shutdown",
            Self::RateLimited => "rate_limited",
        }
    }
}

/// Adds to a gauge until it is dropped.
pub struct GaugeGuard {
    gauge: IntGauge,
    share: i64,
}

impl GaugeGuard {
    fn new(gauge: &IntGauge) -> Self {
        Self::of(gauge, 1)
    }

    fn of(gauge: &IntGauge, share: i64) -> Self {
        gauge.add(share);
        Self { gauge: gauge.clone(), share }
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.gauge.sub(self.share);
    }
}

/// One request in the queue.
pub struct QueuedGuard {
    _request: GaugeGuard,
    _bytes: GaugeGuard,
    since: Stamp,
    waiting: Arc<Mutex<BTreeMap<Stamp, usize>>>,
}

impl QueuedGuard {
    fn enter(self) -> Self {
        *self.waiting.lock().entry(self.since).or_default() += 1;
        self
    }
}

impl Drop for QueuedGuard {
    fn drop(&mut self) {
        if let Entry::Occupied(mut same) = self.waiting.lock().entry(self.since) {
            *same.get_mut() -= 1;
            if *same.get() == 0 {
                same.remove();
            }
        }
    }
}

/// Values of `result` of `tokenway_hedges_total`.
const HEDGE_RESULTS: [&str; 3] = ["won", "lost", "failed"];

/// Label sets with cached handles; families are bounded separately (see [`family`]).
const CACHED_SERIES: usize = 10_000;
