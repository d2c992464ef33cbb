//! Handles of one label set, resolved once and shared by all its requests.
//!
//! Looking up a metric hashes its labels and takes a lock; that happens at the first event of a label set, later ones are
//! atomic additions. Handles are created on first use, so that a route that only refuses has no empty histograms.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prometheus::{Counter, Histogram, HistogramVec, IntCounter};

use super::declare::Handle as _;
use super::exponential::{ExponentialKey, ExponentialSeries};
use super::family::Family;
use super::foreseen::Foreseen;
use super::memo::Memo;
use super::table::{ByRoute, Families, Replicas};
use crate::observe::judgement::Judgement;
use crate::observe::slo::{Missed, SloVerdict};
use crate::observe::stages::{self, Stage, StageSource};
use crate::record::{Gaps, Outcome, Record, Served};
use crate::request::class::Class;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RequestKey {
    pub(super) route: Arc<str>,
    pub(super) model: Arc<str>,
    pub(super) tenant: Arc<str>,
    pub(super) revision: Arc<str>,
    pub(super) class: Class,
}

/// Labels of a stream's gaps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StreamKey {
    /// Label `route`.
    pub route: Arc<str>,
    /// Label `model`.
    pub model: Arc<str>,
    /// Label `revision`, of the pool that serves it.
    pub revision: Arc<str>,
    /// Label `class`.
    pub class: Class,
    /// Label `pool`, of its replica.
    pub pool: Arc<str>,
    /// Label `replica`, which serves it.
    pub replica: Arc<str>,
}

impl StreamKey {
    /// Key of a request's stream, which is served by `served`.
    pub fn new(record: &Record, served: &Served) -> Self {
        Self {
            route: Arc::clone(&record.route),
            model: Arc::clone(&record.model),
            revision: Arc::clone(&served.revision),
            class: record.class,
            pool: Arc::clone(&served.pool),
            replica: Arc::clone(&served.replica),
        }
    }
}

/// Operation and engine are not known of a gap, and not needed.
impl From<&StreamKey> for ExponentialKey {
    fn from(key: &StreamKey) -> Self {
        Self {
            operation: "",
            provider: None,
            route: Arc::clone(&key.route),
            model: Arc::clone(&key.model),
            revision: Arc::clone(&key.revision),
            class: key.class,
            error: None,
        }
    }
}

impl RequestKey {
    /// Label `revision` of what no replica served.
    pub(super) const NO_REVISION: &str = "none";
    /// Place of the tenant among the labels of families by tenant.
    pub(super) const TENANT: usize = 2;
}

/// Which histograms have the label `tenant`.
#[derive(Clone, Copy)]
pub(super) struct SplitByTenant {
    pub(super) stages: bool,
    pub(super) ttft: bool,
}

/// Value of `tenant` in histograms without it.
pub(super) const ALL_TENANTS: &str = "all";

pub(super) struct RequestSeries {
    key: RequestKey,
    families: Arc<Families>,
    split: SplitByTenant,
    handles: Handles,
}

/// Handles of the families, each resolved when it is first needed.
#[derive(Default)]
struct Handles {
    ttft: OnceLock<Histogram>,
    goodput: OnceLock<IntCounter>,
    tpot: OnceLock<Histogram>,
    duration: OnceLock<Histogram>,
    first_byte: OnceLock<Histogram>,
    overhead: OnceLock<Histogram>,
    requests: Memo<(Outcome, u16), IntCounter>,
    missed: Memo<Missed, IntCounter>,
    missed_in: Memo<(Missed, Stage), IntCounter>,
    over_budget: Memo<Stage, IntCounter>,
    stages: Memo<(Stage, StageSource), Histogram>,
    tokens: Memo<&'static str, IntCounter>,
    tenant_tokens: Memo<&'static str, IntCounter>,
    engine_seconds: Memo<Stage, Counter>,
    finish_reasons: Memo<&'static str, IntCounter>,
}

impl RequestSeries {
    pub(super) fn new(key: RequestKey, families: Arc<Families>, split: SplitByTenant) -> Self {
        Self { key, families, split, handles: Handles::default() }
    }

    pub(super) fn first_token(&self, ttft: Duration) {
        let handle = self.handles.ttft.get_or_init(|| {
            let [route, model, tenant, revision, class] = self.tenant_labels();
            let tenant = if self.split.ttft { tenant } else { ALL_TENANTS };
            self.families.by_tenant.ttft.get([route, model, tenant, revision, class])
        });
        handle.observe(ttft.as_secs_f64());
    }

    pub(super) fn record(&self, record: &Record, judgement: &Judgement) {
        self.count(record, judgement);
        self.time(record);
        self.count_tokens(record);
        for reason in &record.finish_reasons {
            self.finish_reason(known_finish_reason(reason)).inc();
        }
    }

    /// Observes times by stage and what is blamed on stages.
    pub(super) fn settled(&self, record: &Record, judgement: &Judgement) {
        self.count_engine_seconds(record, judgement);
        for time in &judgement.stages {
            self.stage(time.stage, time.source).observe(time.duration.as_secs_f64());
        }
        if let (Some(missed), Some(stage)) = (judgement.missed(), judgement.blamed) {
            self.missed_in(missed, stage).inc();
        }
        for stage in &judgement.over_budget {
            self.stage_over_budget(*stage).inc();
        }
    }

    fn count(&self, record: &Record, judgement: &Judgement) {
        let [route, model, tenant, revision, class] = self.tenant_labels();
        let by_tenant = &self.families.by_tenant;
        let requests = self.handles.requests.get((record.outcome, record.status), || {
            let code = record.status.to_string();
            by_tenant.requests.get([route, model, tenant, revision, class, record.outcome.as_str(), &code])
        });
        requests.inc();
        // Created at zero: a goodput of 0 must be visible, not absent.
        let goodput = self.handles.goodput.get_or_init(|| {
            self.families.start_seen(self.tenant_labels(), record.slo);
            by_tenant.goodput.get(self.tenant_labels())
        });
        if judgement.verdict == SloVerdict::Met {
            goodput.inc();
        }
        // Tenants see what their limits refused in their own series; it belongs to no stage, so it is in no series by stage.
        let of_limit = record.is_over_own_limit().then_some(Missed::Refused);
        if let Some(missed) = judgement.missed().or(of_limit) {
            let labels = [route, model, tenant, revision, class, missed.as_str()];
            self.handles.missed.get(missed, || by_tenant.slo_missed.get(labels)).inc();
        }
    }

    fn time(&self, record: &Record) {
        let families = &self.families.by_route;
        let at = &record.at;
        let observe = |slot: &OnceLock<Histogram>, family: &Family<HistogramVec, 4>, value: Duration| {
            slot.get_or_init(|| family.get(self.route_labels())).observe(value.as_secs_f64());
        };
        observe(&self.handles.duration, &families.duration, record.duration());
        if let Some(tpot) = record.tpot() {
            observe(&self.handles.tpot, &families.tpot, tpot);
        }
        if let (Some(read), Some(first_byte)) = (at.read, at.first_byte) {
            observe(&self.handles.first_byte, &families.first_byte, first_byte.since(read));
        }
        if let (Some(read), Some(routed)) = (at.read, at.routed) {
            let own = routed.since(read).saturating_sub(record.held);
            observe(&self.handles.overhead, &families.overhead, own);
        }
    }

    fn count_tokens(&self, record: &Record) {
        if let Some(input) = record.tokens.input {
            match record.tokens.cached {
                Some(cached) => {
                    self.token_kind("input_cached").inc_by(cached.0);
                    self.token_kind("input_uncached").inc_by(input.saturating_sub(cached).0);
                }
                None => self.token_kind("input_unknown").inc_by(input.0),
            }
        }
        if let Some(output) = record.tokens.output {
            self.token_kind("output").inc_by(output.0);
        }
    }

    /// Counts tokens for the tenant, which may be one of those that share this series.
    pub(super) fn count_tenant_tokens(&self, record: &Record) {
        let family = &self.families.requests.tenant_tokens;
        let is_own = *self.key.tenant == *record.tenant;
        for (kind, tokens) in record.charged_tokens().by_kind() {
            let handle = || family.get([&*record.route, &record.model, &record.tenant, kind]);
            if is_own {
                self.handles.tenant_tokens.get(kind, handle).inc_by(tokens.0);
            } else {
                handle().inc_by(tokens.0);
            }
        }
    }

    /// The same of seconds at the engine.
    fn count_engine_seconds(&self, record: &Record, judgement: &Judgement) {
        let family = &self.families.requests.tenant_seconds;
        let is_own = *self.key.tenant == *record.tenant;
        for time in stages::charged(record, &judgement.stages) {
            let labels = [&*record.route, &record.model, &record.tenant, time.stage.as_str()];
            let (handle, seconds) = (|| family.get(labels), time.duration.as_secs_f64());
            if is_own {
                self.handles.engine_seconds.get(time.stage, handle).inc_by(seconds);
            } else {
                handle().inc_by(seconds);
            }
        }
    }

    fn token_kind(&self, kind: &'static str) -> &IntCounter {
        let [route, model, revision, class] = self.route_labels();
        let family = &self.families.by_route.tokens;
        self.handles.tokens.get(kind, || family.get([route, model, revision, class, kind]))
    }

    fn finish_reason(&self, reason: &'static str) -> &IntCounter {
        let [route, model, revision, class] = self.route_labels();
        let family = &self.families.by_route.finish_reasons;
        self.handles.finish_reasons.get(reason, || family.get([route, model, revision, class, reason]))
    }

    fn missed_in(&self, missed: Missed, stage: Stage) -> &IntCounter {
        let [route, model, revision, class] = self.route_labels();
        let labels = [route, model, revision, class, missed.as_str(), stage.as_str()];
        self.handles.missed_in.get((missed, stage), || self.families.by_route.slo_missed_in.get(labels))
    }

    fn stage_over_budget(&self, stage: Stage) -> &IntCounter {
        let [route, model, revision, class] = self.route_labels();
        let family = &self.families.by_route.over_budget;
        self.handles.over_budget.get(stage, || family.get([route, model, revision, class, stage.as_str()]))
    }

    fn stage(&self, stage: Stage, source: StageSource) -> &Histogram {
        let [route, model, tenant, revision, _] = self.tenant_labels();
        let tenant = if self.split.stages { tenant } else { ALL_TENANTS };
        let labels = [route, model, tenant, revision, stage.as_str(), source.as_str()];
        self.handles.stages.get((stage, source), || self.families.requests.stage.get(labels))
    }

    fn tenant_labels(&self) -> [&str; 5] {
        let key = &self.key;
        [&key.route, &key.model, &key.tenant, &key.revision, key.class.as_str()]
    }

    fn route_labels(&self) -> [&str; 4] {
        [&self.key.route, &self.key.model, &self.key.revision, self.key.class.as_str()]
    }
}

/// Only finish reasons that the dialects define become label values; engines may send others.
fn known_finish_reason(reason: &str) -> &'static str {
    FINISH_REASONS.iter().find(|known| **known == reason).copied().unwrap_or("other")
}

pub(super) struct ReplicaSeries {
    pub(super) ttft: Histogram,
    pub(super) itl: Histogram,
    requests: Memo<Outcome, IntCounter>,
}

impl ReplicaSeries {
    pub(super) fn new(families: &Replicas, pool: &str, replica: &str) -> Self {
        // At zero from the start: the first failure of a replica has to show in a rate.
        families.requests.start(&[pool, replica], &Foreseen::default());
        families.empty_answers.start(&[pool, replica], &Foreseen::default());
        let (ttft, itl) = (families.ttft.get([pool, replica]), families.itl.get([pool, replica]));
        Self { ttft, itl, requests: Memo::default() }
    }

    pub(super) fn attempt(&self, families: &Replicas, served: &Served, outcome: Outcome) {
        let labels = [&*served.pool, &*served.replica, outcome.as_str()];
        self.requests.get(outcome, || families.requests.get(labels)).inc();
    }
}

/// Histograms for the gaps of streams with the same [`StreamKey`].
pub struct StreamHistograms {
    icl: Histogram,
    itl: Histogram,
    replica: Arc<ReplicaSeries>,
    exponential: Option<Arc<ExponentialSeries>>,
}

impl StreamHistograms {
    pub(super) fn new(
        key: &StreamKey,
        families: &ByRoute,
        replica: Arc<ReplicaSeries>,
        exponential: Option<Arc<ExponentialSeries>>,
    ) -> Self {
        let labels: [&str; 4] = [&key.route, &key.model, &key.revision, key.class.as_str()];
        Self { icl: families.icl.get(labels), itl: families.itl.get(labels), replica, exponential }
    }

    /// Observes a batch: one ICL per gap, one ITL per token once the tokens are known.
    pub fn gaps(&self, gaps: &Gaps<'_>) {
        for icl in gaps.icl() {
            self.icl.observe(icl.as_secs_f64());
        }
        if let Some(exponential) = &self.exponential {
            exponential.itl.observe_each(gaps.itl());
        }
        for (itl, tokens) in gaps.itl() {
            for _ in 0..tokens {
                self.itl.observe(itl.as_secs_f64());
                self.replica.itl.observe(itl.as_secs_f64());
            }
        }
    }
}

const FINISH_REASONS: &[&str] = &[
    "stop", "length", "tool_calls", "function_call", "content_filter", "abort", "error", "end_turn",
    "max_tokens", "max_output_tokens", "tool_use", "stop_sequence", "pause_turn", "refusal", "completed",
    "incomplete", "failed", "cancelled", "repetition",
];
