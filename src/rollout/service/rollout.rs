//! One running rollout: its plan, its judge, what it has seen.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::board::RolloutView;
use super::feed::{Ended, Observation, Seen};
use super::state::Saved;
use crate::config::{Canary, Config, Route};
use crate::fleet::status::{ReplicaState, ReplicaStatus};
use crate::observe::rfc3339;
use crate::rollout::judge::fleet::{FleetWatch, ReplicaSeen};
use crate::rollout::judge::{Arm, Judge, Measure, Observed, SavedEvidence};
use crate::rollout::plan::{Action, Plan, RolloutState};

/// A rollout of one route.
pub(super) struct Rollout {
    pub(super) route: Arc<str>,
    pub(super) pool: Arc<str>,
    pub(super) revision: Arc<str>,
    pub(super) canary: Canary,
    pub(super) plan: Plan,
    /// Changed since the state was written.
    pub(super) is_dirty: bool,
    info: Json,
    /// Names of the route's other pools.
    baseline: Vec<Arc<str>>,
    identity: String,
    judge: Judge,
    fleet: FleetWatch,
    requests: [u64; 2],
    shadowed: u64,
    worst: Vec<Worst>,
    report: Option<Json>,
    /// The canary had a ready replica at the last look.
    is_served: bool,
}

/// A request of the canary that went badly.
struct Worst {
    badness: f64,
    told: Json,
}

impl Rollout {
    /// That of a route, going on from what was saved if that is of the same revision.
    pub(super) fn new(config: &Config, route: &Route, canary: &Canary, saved: Option<Saved>) -> Option<Self> {
        let pool = config.pools.get(canary.pool)?;
        let others = route.pools.iter().filter(|weighted| weighted.pool != canary.pool);
        let baseline = others.filter_map(|weighted| Some(Arc::clone(&config.pools.get(weighted.pool)?.name)));
        let info = json!(pool.revision_info);
        let identity = format!("{}\n{}\n{}\n{info}", route.name, pool.name, pool.revision);
        let fresh = || Saved { plan: Plan::new(canary), ..Saved::default() };
        let mut saved = saved.filter(|saved| saved.identity == identity).unwrap_or_else(fresh);
        saved.plan.step = saved.plan.step.min(canary.steps.len());
        Some(Self {
            route: Arc::clone(&route.name),
            pool: Arc::clone(&pool.name),
            revision: Arc::clone(&pool.revision),
            canary: canary.clone(),
            judge: Judge::new(canary, &saved.evidence),
            plan: saved.plan,
            is_dirty: false,
            info,
            baseline: baseline.collect(),
            identity,
            fleet: FleetWatch::default(),
            requests: saved.requests,
            shadowed: saved.shadowed,
            worst: Vec::new(),
            report: saved.report,
            is_served: true,
        })
    }

    /// The same revision under another configuration keeps what it has.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.identity == other.identity
    }

    /// What is kept over restarts.
    pub(super) fn save(&self) -> Saved {
        Saved {
            identity: self.identity.clone(),
            plan: self.plan.clone(),
            evidence: self.judge.save(),
            requests: self.requests,
            shadowed: self.shadowed,
            report: self.report.clone(),
        }
    }

    /// Whether observations count.
    pub(super) fn is_judged(&self) -> bool {
        self.plan.state == RolloutState::Running
    }

    pub(super) fn act(&mut self, action: Action) -> Result<(), String> {
        if self.plan.act(action)? {
            self.judge = Judge::new(&self.canary, &SavedEvidence::default());
            (self.fleet, self.report) = (FleetWatch::default(), None);
            self.worst.clear();
        }
        self.is_dirty = true;
        Ok(())
    }

    /// Takes what was seen, at `now` (seconds).
    pub(super) fn observe(&mut self, now: f64, observation: &Observation) {
        if !self.is_judged() {
            return;
        }
        let class = observation.class;
        let value = |arm, value, count, is_censored| Observed { arm, value, count, is_censored };
        match &observation.seen {
            Seen::FirstToken { arm, ttft } => {
                self.judge.observe(now, Measure::Ttft, class, value(*arm, *ttft, 1.0, false));
            }
            Seen::Gaps { arm, gaps } => {
                for (gap, tokens) in gaps {
                    self.judge.observe(now, Measure::Itl, class, value(*arm, *gap, *tokens, false));
                }
            }
            Seen::Ended(ended) => {
                if let Some(waited) = ended.censored_ttft {
                    self.judge.observe(now, Measure::Ttft, class, value(ended.arm, waited, 1.0, true));
                }
                if let Some(tpot) = ended.tpot {
                    self.judge.observe(now, Measure::Tpot, class, value(ended.arm, tpot, 1.0, false));
                }
                for (arm, is_failed) in &ended.attempts {
                    self.judge.attempt(now, class, *arm, *is_failed);
                }
                if let Some(is_missed) = ended.is_slo_missed {
                    self.judge.slo(now, class, ended.arm, is_missed);
                }
                self.count(ended, class.as_str());
            }
        }
    }

    fn count(&mut self, ended: &Ended, class: &str) {
        if ended.is_shadow {
            self.shadowed += 1;
        } else if let Some(requests) = self.requests.get_mut(ended.arm as usize) {
            *requests += 1;
        }
        if ended.arm != Arm::Canary {
            return;
        }
        // A copy may end after its step.
        self.plan.answers += u64::from(ended.is_shadow == self.plan.is_shadow(&self.canary));
        let slow = ended.ttft.or(ended.censored_ttft).unwrap_or_default();
        let badness = if ended.error.is_some() { MAX_SECONDS + slow } else { slow };
        let place = self.worst.partition_point(|worst| worst.badness > badness);
        if place >= MAX_WORST {
            return;
        }
        let told = json!({
            "request_id": &*ended.request_id,
            "trace_id": format!("{:032x}", ended.trace_id),
            "replica": &*ended.replica,
            "class": class,
            "ttft": ended.ttft,
            "error": ended.error,
            "shadow": ended.is_shadow,
        });
        self.worst.insert(place, Worst { badness, told });
        self.worst.truncate(MAX_WORST);
    }

    /// Time passed: judges, and ends a step whose soak is over. Returns the bound that was broken.
    pub(super) fn advance(&mut self, now: f64, passed: Duration, fleet: &[ReplicaStatus]) -> Option<String> {
        if !self.is_judged() {
            return None;
        }
        self.judge.advance(now);
        let replicas = self.replicas(fleet);
        let breach = self.judge.breach().map(|found| {
            format!("{}: evidence over the limit against a bound of {}", found.test, found.bound)
        });
        let breach = breach.or_else(|| self.fleet.look(now, &self.canary, &replicas));
        if let Some(reason) = &breach {
            self.plan.breach(&self.canary, reason);
            self.is_dirty = true;
            return breach;
        }
        self.is_served = replicas.iter().any(|replica| replica.arm == Arm::Canary && replica.is_ready);
        if self.is_served && !self.is_suspect() && self.plan.soak(&self.canary, passed) {
            self.is_dirty = true;
        }
        None
    }

    /// Whether it is at its shadow step with some evidence against it: no client waits, so that the judge may take the time for a
    /// verdict. Evidence against a revision within its bounds falls again.
    fn is_suspect(&self) -> bool {
        self.plan.is_shadow(&self.canary) && self.judge.evidence().iter().any(|test| test.share >= SUSPECT)
    }

    fn replicas(&self, fleet: &[ReplicaStatus]) -> Vec<ReplicaSeen> {
        let arm = |pool: &Arc<str>| match pool {
            pool if *pool == self.pool => Some(Arm::Canary),
            pool if self.baseline.contains(pool) => Some(Arm::Baseline),
            _ => None,
        };
        let seen = |status: &ReplicaStatus| {
            Some(ReplicaSeen {
                arm: arm(&status.pool).filter(|_| status.state != ReplicaState::Draining)?,
                name: Arc::clone(&status.replica),
                is_ready: status.state == ReplicaState::Ready,
                waiting: status.signals.as_ref().and_then(|signals| signals.waiting),
            })
        };
        fleet.iter().filter_map(seen).collect()
    }

    /// Numbers for people who have to find out why.
    pub(super) fn write_report(&mut self, at: std::time::SystemTime) -> Json {
        let compared = self.judge.compared().into_iter().map(|compared| {
            let of = |[p50, p90, p99]: [f64; 3]| json!({ "p50": p50, "p90": p90, "p99": p99 });
            json!({
                "measure": compared.measure.as_str(),
                "class": compared.class.as_str(),
                "baseline": of(compared.percentiles[0]),
                "canary": of(compared.percentiles[1]),
            })
        });
        let compared: Vec<_> = compared.collect();
        let tests = self.judge.evidence();
        let tests: Vec<_> = tests
            .iter()
            .map(|test| json!({ "test": test.test, "bound": test.bound, "evidence": test.share }))
            .collect();
        let is_shadow = self.plan.is_shadow(&self.canary);
        let report = json!({
            "at": rfc3339::utc(at),
            "route": &*self.route,
            "pool": &*self.pool,
            "revision": &*self.revision,
            "revision_info": self.info,
            "state": self.plan.state.as_str(),
            "step": self.place(),
            "weight": if is_shadow { Some(0) } else { self.canary.steps.get(self.plan.step).map(|step| step.weight) },
            "shadow_weight": self.canary.shadow.filter(|_| is_shadow).map(|shadow| shadow.weight),
            "reason": self.plan.reason,
            "requests": { "baseline": self.requests[0], "canary": self.requests[1], "shadow": self.shadowed },
            "tests": tests,
            "percentiles": compared,
            "worst_requests": self.worst.iter().map(|worst| &worst.told).collect::<Vec<_>>(),
        });
        self.report = Some(report.clone());
        report
    }

    /// Number of its step, 0 for the shadow step.
    fn place(&self) -> usize {
        if self.plan.is_shadow(&self.canary) { 0 } else { self.plan.step + 1 }
    }

    pub(super) fn view(&self) -> RolloutView {
        let steps = self.canary.steps.len();
        let mut reason = self.plan.reason.clone();
        if self.is_judged() && !self.is_served {
            reason.push_str("; no replica of it is ready, so it gets no request and its soak stands still");
        }
        if self.is_judged() && self.is_suspect() {
            reason.push_str("; its soak stands still while there is evidence against it");
        }
        RolloutView {
            route: Arc::clone(&self.route),
            pool: Arc::clone(&self.pool),
            revision: Arc::clone(&self.revision),
            state: self.plan.state,
            step: (self.place().min(steps), steps),
            share: self.plan.share(&self.canary),
            shadow_share: self.plan.shadow_share(&self.canary),
            soaked: self.plan.soaked,
            requests: self.requests,
            shadowed: self.shadowed,
            reason,
            evidence: self.judge.evidence(),
            report: self.report.clone(),
        }
    }
}

/// Evidence, as a fraction of a verdict, at which the shadow step goes on.
const SUSPECT: f64 = 0.25;
/// Requests in a report.
const MAX_WORST: usize = 10;
/// Failed requests are worse than slow ones.
const MAX_SECONDS: f64 = 1e6;
