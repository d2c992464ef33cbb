//! Prometheus metrics: fed by records and first tokens, rendered for a scrape.
//!
//! [`table`] declares every metric, [`family`] bounds its label sets, [`series`] caches handles, so that an event costs
//! atomic additions. Rooms count by the handles in [`Metrics::families`]. Nothing here waits. The registry is not the
//! global one, so that dependencies cannot add to our page.

mod buckets;
mod declare;
mod declared;
mod delta;
mod exemplars;
mod exponential;
mod family;
mod foreseen;
mod guards;
mod labels;
mod log_drops;
mod memo;
mod openmetrics;
mod otlp;
mod replicas;
mod series;
mod table;
mod targets;
mod zero;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dashmap::DashMap;
// Labels come from code and configuration, not from clients, so a fast hash is safe.
use parking_lot::Mutex;
use prometheus::process_collector::ProcessCollector;
use prometheus::{IntCounter, Registry, TextEncoder};

use self::buckets::Edges;
use self::declare::{Group as _, Maker};
pub(super) use self::delta::since;
use self::exemplars::{Exemplar, Exemplars};
use self::exponential::{ExponentialKey, Exponentials};
use self::guards::Waiting;
pub use self::guards::{GaugeGuard, QueuedGuard};
pub use self::labels::{ContentLoss, DeliveryResult, DropReason, HookOutcome, JoinResult};
pub use self::log_drops::LogDrops;
use self::memo::Memo;
pub use self::openmetrics::Exposition;
use self::replicas::{KnownReplicas, ReplicaKey};
use self::series::{ALL_TENANTS, ReplicaSeries, RequestKey, RequestSeries, SplitByTenant};
pub use self::series::{StreamHistograms, StreamKey};
use self::table::Families;
pub use self::table::{Cluster, KvEvents};
use crate::clock::Clock;
use crate::config::Config;
use crate::fleet::discovery::SourceStatus;
use crate::fleet::status::ReplicaStatus;
use crate::labels::{LabelHasher, OTHER};
use crate::observe::judgement::Judgement;
use crate::observe::lag::{self, Lag};
use crate::observe::overdue::Overdue;
use crate::observe::stages::StageTime;
use crate::observe::usage::Usage;
use crate::record::{Attempt, AttemptCause, FirstToken, Outcome, Record};

/// Every metric of the gateway.
pub struct Metrics {
    /// Handles of the families.
    pub families: Arc<Families>,
    /// Usage for the bill.
    pub usage: Usage,
    /// Requests in flight that have missed a bound already.
    pub overdue: Overdue,
    /// How late this process runs.
    pub lag: Arc<Lag>,
    registry: Registry,
    clock: Clock,
    split: SplitByTenant,
    by_request: DashMap<RequestKey, Arc<RequestSeries>, LabelHasher>,
    /// The tenant whose series is that of all without one of their own.
    other: Arc<str>,
    by_stream: DashMap<StreamKey, Arc<StreamHistograms>, LabelHasher>,
    by_replica: DashMap<ReplicaKey, Arc<ReplicaSeries>, LabelHasher>,
    decisions: Memo<(&'static str, &'static str), IntCounter>,
    admitted: Memo<&'static str, IntCounter>,
    prefix_tokens: Memo<&'static str, IntCounter>,
    known_replicas: Mutex<KnownReplicas>,
    /// Of the configuration's pools.
    revisions: Mutex<HashSet<Arc<str>>>,
    waiting: Waiting,
    rendering: Mutex<()>,
    edges: Edges,
    exemplars: Exemplars,
    /// Where metrics are exported by OTLP.
    exponentials: Option<Exponentials>,
    /// When counting began.
    started: SystemTime,
    /// Of the process' log, once there is one.
    log_drops: Mutex<Option<Arc<LogDrops>>>,
}

impl Metrics {
    /// All metrics at zero; the SLO bounds of `config` become histogram edges.
    pub fn new(config: &Config, clock: Clock) -> Self {
        let registry = Registry::new();
        let edges = Edges::new(config);
        let families = Families::new(&Maker::new(&registry, &edges));
        // Fails without /proc: then there are no process_* metrics.
        let _ = registry.register(Box::new(ProcessCollector::for_self()));
        let [revision, date] = [option_env!("TOKENWAY_BUILD_REVISION"), option_env!("TOKENWAY_BUILD_DATE")]
            .map(|known| known.unwrap_or("unknown"));
        let labels =
            [env!("CARGO_PKG_VERSION"), revision, date, std::env::consts::OS, std::env::consts::ARCH];
        families.process.build_info.set(labels, Some(1.0));
        families.process.last_reload_successful.set(1.0);
        let telemetry = &config.telemetry;
        let metrics = Self {
            families: Arc::new(families),
            usage: Usage::default(),
            overdue: Overdue::default(),
            lag: Arc::default(),
            registry,
            clock,
            split: SplitByTenant { stages: telemetry.stages_by_tenant, ttft: telemetry.ttft_by_tenant },
            by_request: DashMap::default(),
            other: OTHER.into(),
            by_stream: DashMap::default(),
            by_replica: DashMap::default(),
            decisions: Memo::default(),
            admitted: Memo::default(),
            prefix_tokens: Memo::default(),
            known_replicas: Mutex::default(),
            revisions: Mutex::default(),
            waiting: Waiting::default(),
            rendering: Mutex::default(),
            edges,
            exemplars: Exemplars::default(),
            exponentials: telemetry.otlp_metrics.as_ref().map(|_| Exponentials::default()),
            started: clock.wall(clock.now()),
            log_drops: Mutex::default(),
        };
        metrics.set_targets(config);
        metrics.follow_config(config);
        metrics
    }

    /// Histograms of the gaps of streams with this key; resolved once per stream.
    pub fn stream_series(&self, key: &StreamKey) -> Arc<StreamHistograms> {
        if let Some(series) = self.by_stream.get(key) {
            return Arc::clone(&series);
        }
        let replica = self.replica_series(&key.pool, &key.replica);
        let exponential = self.exponentials.as_ref().map(|all| all.series(&ExponentialKey::from(key)));
        let series = Arc::new(StreamHistograms::new(key, &self.families.by_route, replica, exponential));
        if self.by_stream.len() < CACHED_SERIES {
            self.by_stream.insert(key.clone(), Arc::clone(&series));
        }
        series
    }

    /// Observes a request's first content event.
    pub fn first_token(&self, first: &FirstToken<'_>) {
        self.request_series(key_of(first.record)).first_token(first.ttft);
        if let Some(all) = &self.exponentials {
            all.series(&ExponentialKey::of_record(first.record)).ttft.observe(first.ttft);
        }
        let ttft = first.ttft.as_secs_f64();
        // Of a request that was elsewhere before, most of it is another replica's.
        if let Some(served) = first.waited_at() {
            self.replica_series(&served.pool, &served.replica).ttft.observe(ttft);
        }
        if let Some(predicted) = first.predicted.map(|p| p.as_secs_f64()).filter(|p| *p > 0.0) {
            self.families.requests.prediction_error.observe((ttft - predicted).abs());
            self.families.requests.prediction_ratio.observe(ttft / predicted);
        }
    }

    /// Observes a request's end; where not `is_settled`, its stages follow by [`Metrics::settled`].
    pub fn record(&self, record: &Record, judgement: &Judgement, is_settled: bool) {
        let series = self.request_series(key_of(record));
        series.record(record, judgement);
        series.count_tenant_tokens(record);
        if is_settled {
            series.settled(record, judgement);
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
        if let Some(ways) = &record.ways {
            self.families.routes.prefill_requests.inc([&*record.route, ways.way(), ways.reason]);
        }
        self.count_outside_tokens(record);
        let stages: &[StageTime] = if is_settled { &judgement.stages } else { &[] };
        self.usage.count(record, stages, self.clock.wall(record.at.end));
    }

    /// Observes times by stage, once the engine's times have arrived or are overdue.
    pub fn settled(&self, record: &Record, judgement: &Judgement) {
        self.request_series(key_of(record)).settled(record, judgement);
        self.usage.count_engine(record, &judgement.stages, self.clock.wall(record.at.end));
    }

    fn count_attempts(&self, record: &Record) {
        let Families { requests, replicas, .. } = &*self.families;
        let timeout = |error: Option<&'static str>| error.and_then(|e| e.strip_prefix("timeout_"));
        for (i, attempt) in record.attempts.iter().enumerate() {
            let (outcome, served) = (record.outcome_of(i, attempt), &attempt.served);
            if outcome != Outcome::Refused {
                self.replica_series(&served.pool, &served.replica).attempt(replicas, served, outcome);
            }
            if attempt.is_empty {
                replicas.empty_answers.inc([&served.pool, &served.replica]);
            }
            let Some(error) = attempt.error else { continue };
            // A hedge is no retry, and neither is the continuation of a broken stream. With two legs a retry begins with the first.
            let is_again = |next: &Attempt| matches!(next.cause, AttemptCause::Retry | AttemptCause::Prefill);
            if record.attempts.get(i + 1).is_some_and(is_again) {
                requests.retries.inc([error]);
            }
            if let Some(timer) = timeout(Some(error)) {
                requests.timeouts.inc([timer]);
            }
        }
        let last = record.attempts.last().and_then(|attempt| attempt.error);
        if let Some(timer) = timeout(record.error).filter(|_| last != record.error) {
            requests.timeouts.inc([timer]);
        }
    }

    fn count_outside_tokens(&self, record: &Record) {
        let Some(served) = record.served().filter(|served| served.is_outside) else { return };
        for (kind, tokens) in record.charged_tokens().by_kind() {
            let labels = [&*record.route, &served.pool, &record.tenant, kind];
            self.families.requests.outside_tokens.inc_by(labels, tokens.0);
        }
    }

    fn count_decision(&self, record: &Record) {
        let Some(decision) = &record.decision else { return };
        let requests = &self.families.requests;
        let made = (decision.policy, decision.reason);
        self.decisions.get(made, || requests.decisions.get([made.0, made.1])).inc();
        let prefix = [
            ("looked_up", record.tokens.input.unwrap_or(record.estimated_input)),
            ("predicted", decision.predicted_hit),
            ("reported", record.tokens.cached.unwrap_or_default()),
        ];
        for (kind, tokens) in prefix {
            self.prefix_tokens.get(kind, || requests.prefix_tokens.get([kind])).inc_by(tokens.0);
        }
    }

    /// Counts a request that was let in.
    pub fn admitted(&self, reason: &'static str) {
        self.admitted.get(reason, || self.families.requests.admissions.get(["admit", reason])).inc();
    }

    /// Counts a reload, and whether it succeeded.
    pub fn config_reload(&self, is_success: bool) {
        let process = &self.families.process;
        process.config_reloads.inc([if is_success { "success" } else { "failure" }]);
        process.last_reload_successful.set(f64::from(u8::from(is_success)));
    }

    /// Counts from now on the log's lines that are not written.
    pub fn count_log_drops(&self, drops: Arc<LogDrops>) {
        *self.log_drops.lock() = Some(drops);
    }

    /// Sets the state of every source; those that are configured no more leave the page.
    pub fn set_sources(&self, sources: &[SourceStatus]) {
        // No page shows the moment between.
        let _one_at_a_time = self.rendering.lock();
        let families = &self.families.sources;
        families.forget(&[]);
        for status in sources {
            let key: [&str; 2] = [&status.pool, status.source];
            families.targets.set(key, Some(status.targets as f64));
            families.age.set(key, status.age.map(|age| age.as_secs_f64()));
            families.failing.set(key, Some(f64::from(u8::from(status.failing.is_some()))));
            families.kept.set(key, Some(status.kept as f64));
            families.failures.set_total(key, status.failures);
        }
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
        // Another start would be a reset to a backend: it does not follow corrections of the clock.
        let span =
            otlp::Span { start: self.started, now: self.clock.wall(self.clock.now()).max(self.started) };
        otlp::metrics(&families, &exponentials, span)
    }

    /// Every family, with the gauges of `fleet`.
    fn gather(&self, fleet: &[ReplicaStatus]) -> Vec<prometheus::proto::MetricFamily> {
        // Concurrent scrapes would remove gauges from each other's pages.
        let _one_at_a_time = self.rendering.lock();
        let gone = self.known_replicas.lock().update(&self.families, fleet, self.clock.now());
        if !gone.is_empty() {
            // Also of those that had no room until now.
            self.by_stream.clear();
            self.by_replica.clear();
        }
        let Families { requests, process, .. } = &*self.families;
        if let Some(drops) = &*self.log_drops.lock() {
            for (reason, lines) in drops.take() {
                process.log_dropped.inc_by([reason], lines);
            }
        }
        requests.queued_longest.set(self.waiting.longest(self.clock.now()).as_secs_f64());
        guards::count_overdue(&self.overdue, &self.families, self.clock.now());
        let lateness = self.lag.of_minute(self.clock.now());
        process.lag.set(lateness.worst.as_secs_f64());
        process.late.set(lateness.late);
        process.throttled.set(lag::throttled().unwrap_or_default());
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
            let tenant = if self.split.ttft { &*record.tenant } else { ALL_TENANTS };
            let mut labels = [a, b, c, d, ("tenant", tenant)];
            self.exemplars.note(exemplars::TTFT, &mut labels, &self.edges.ttft, exemplar(ttft));
        }
    }

    fn request_series(&self, mut key: RequestKey) -> Arc<RequestSeries> {
        if let Some(series) = self.by_request.get(&key) {
            return Arc::clone(&series);
        }
        // Tenants without series of their own have no handles of their own either.
        if !self.families.by_tenant.requests.takes(RequestKey::TENANT, &key.tenant) {
            key.tenant = Arc::clone(&self.other);
            if let Some(series) = self.by_request.get(&key) {
                return Arc::clone(&series);
            }
        }
        let series = Arc::new(RequestSeries::new(key.clone(), Arc::clone(&self.families), self.split));
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
        let series = Arc::new(ReplicaSeries::new(&self.families.replicas, pool, replica));
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

/// Label sets with cached handles; families are bounded separately (see [`family`]).
const CACHED_SERIES: usize = 10_000;
