//! One running rollout: its plan, its judge, what it has seen.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::feed::{Ended, Observation, Seen, id};
use super::processes::{Earlier, Process};
use super::shared::{Elsewhere, View};
use super::spread::Spread;
use super::state::{Former, Saved};
use crate::api::canaries::{self as api, CanaryRequests, CanaryTest};
use crate::cluster::Shown;
use crate::config::{Canary, Config, Route};
use crate::fleet::status::{ReplicaState, ReplicaStatus};
use crate::observe::rfc3339;
use crate::record::{Outcome, Record, Unserved};
use crate::request::dialect::Dialect;
use crate::rollout::judge::fleet::{FleetWatch, ReplicaSeen};
use crate::rollout::judge::{Arm, Evidence, Form, Judge, Measure, Observed, SavedEvidence, rate_trial_share};
use crate::rollout::plan::{Action, Plan, RolloutState};

pub(super) struct Rollout {
    pub(super) route: Arc<str>,
    pub(super) pool: Arc<str>,
    pub(super) revision: Arc<str>,
    pub(super) canary: Canary,
    pub(super) plan: Plan,
    /// Changed since the state was written.
    pub(super) is_dirty: bool,
    /// The state is being written as it was a moment ago.
    pub(super) is_being_written: bool,
    /// Why the last write of the state failed, or does not end.
    pub(super) unwritten: Option<String>,
    info: Json,
    /// Names of the route's other pools.
    baseline: Vec<Arc<str>>,
    identity: String,
    pub(super) judge: Judge,
    fleet: FleetWatch,
    requests: [u64; 2],
    shadowed: u64,
    worst: Vec<Worst>,
    report: Option<Json>,
    /// Earlier revisions that were rolled back.
    rolled_back: Vec<Former>,
    /// Those of its pool when it was rolled back.
    processes: Vec<Process>,
    /// Those of earlier revisions: while its pool has any it gets nothing.
    earlier: Earlier,
    /// How many of its replicas are such.
    awaited: Option<String>,
    /// Models that each side has answered for, with the path that it was asked at: no engine serves every path.
    answered: HashSet<(Arm, Arc<str>, Box<str>)>,
    /// What engines are asked for instead of the client's name.
    upstream_model: Option<Arc<str>>,
    /// A model for which the canary's engine has answered 404, and the baseline nothing yet.
    not_found: Option<Box<str>>,
    /// What no more evidence is needed for.
    fault: Option<String>,
    /// A replica of it was ready at the last look.
    is_served: bool,
    spread: Spread,
    begun: Begun,
    /// What other gateways have seen of it.
    elsewhere: Elsewhere,
}

/// Seconds after which requests that arrive are compared: of two sides whose shares change, those that arrived before are the longer ones
/// of one, and there are none of the other.
#[derive(Clone, Copy, Default)]
struct Begun {
    /// It got its first request, or copy.
    traffic: f64,
    /// Its step began.
    step: f64,
}

/// A request of the canary that went badly.
struct Worst {
    badness: f64,
    shown: Json,
}

impl Rollout {
    /// That of a route, going on from what was saved if that is of the same revision.
    pub(super) fn new(config: &Config, route: &Route, canary: &Canary, saved: Option<Saved>) -> Option<Self> {
        let pool = config.pools.get(canary.pool)?;
        let others = route.pools.iter().filter(|weighted| weighted.pool != canary.pool);
        let baseline = others.filter_map(|weighted| Some(Arc::clone(&config.pools.get(weighted.pool)?.name)));
        let info = json!(pool.revision_info);
        let identity = format!("{}\n{}\n{}\n{info}", route.name, pool.name, pool.revision);
        let mut saved = match saved {
            Some(saved) if saved.identity == identity => saved,
            other => after(other, &identity, canary),
        };
        saved.plan.resteps(canary);
        Some(Self {
            route: Arc::clone(&route.name),
            pool: Arc::clone(&pool.name),
            revision: Arc::clone(&pool.revision),
            canary: canary.clone(),
            judge: Judge::new(canary, &saved.evidence),
            plan: saved.plan,
            is_dirty: false,
            is_being_written: false,
            unwritten: None,
            info,
            baseline: baseline.collect(),
            identity,
            fleet: FleetWatch::resumed(saved.warm),
            requests: saved.requests,
            shadowed: saved.shadowed,
            worst: Vec::new(),
            report: saved.report,
            earlier: Earlier::of(saved.rolled_back.iter().map(|known| (known.revision(), &*known.processes))),
            awaited: None,
            rolled_back: saved.rolled_back,
            processes: saved.processes,
            answered: HashSet::new(),
            upstream_model: route.upstream_model.clone(),
            not_found: None,
            fault: None,
            is_served: true,
            spread: Spread::default(),
            begun: Begun::default(),
            elsewhere: Elsewhere::default(),
        })
    }

    /// It has had no request before `now` (seconds).
    pub(super) fn begins(&mut self, now: f64) {
        self.begun = Begun { traffic: now, step: now };
    }

    fn begin_step(&mut self, now: f64) {
        self.begun.step = now;
        self.judge.begin_step();
    }

    /// A verdict on the same revision holds where it was reached under a route that is gone, after what is known of it here: this one may
    /// be that by another name.
    pub(super) fn inherit(&mut self, former: &Saved) {
        let is_rolled_back = former.plan.state == RolloutState::RolledBack;
        let last = is_rolled_back.then(|| Former::of(former));
        let is_it = |known: &&Former| revision_of(&known.identity) == revision_of(&self.identity);
        let is_later = |known: &&Former| known.acts > self.plan.acts;
        let all = former.rolled_back.iter().chain(&last).filter(is_it);
        if let Some(known) = all.filter(is_later).max_by_key(|known| known.acts) {
            known_bad(&mut self.plan, known.acts);
            self.processes.clone_from(&known.processes);
            self.is_dirty = true;
        }
    }

    /// Takes why its state is not written, if it is not, and logs a change.
    pub(super) fn unwritten(&mut self, error: Option<String>) {
        let route = &self.route;
        match (&self.unwritten, &error) {
            (None, Some(error)) => tracing::warn!(error, %route, "route.canary.state cannot be written"),
            (Some(_), None) => tracing::info!(%route, "route.canary.state is written again"),
            _ => {}
        }
        self.unwritten = error;
    }

    /// Takes over what the same revision had seen under another configuration.
    pub(super) fn go_on(&mut self, now: f64, old: Self) {
        self.judge = old.judge.rebound(&self.canary);
        self.begun = old.begun;
        if self.plan.stance() != old.plan.stance() {
            self.begin_step(now);
        }
        (self.fleet, self.worst, self.answered) = (old.fleet, old.worst, old.answered);
        self.spread = old.spread;
        self.is_dirty = true;
    }

    /// What was decided of it cannot be read: it gets nothing until it is resumed, or another gateway knows better. That is
    /// written: a broken file was moved aside, and the next start would find none.
    pub(super) fn waits(&mut self) {
        self.plan.lose();
        self.is_dirty = true;
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
            rolled_back: self.rolled_back.clone(),
            warm: self.fleet.warm().map(str::to_owned).collect(),
            processes: self.processes.clone(),
        }
    }

    /// Whether observations count.
    pub(super) fn is_judged(&self) -> bool {
        self.plan.is_judged()
    }

    /// Notes what its verdict is on, where it was rolled back.
    pub(super) fn note_processes(&mut self, fleet: &[ReplicaStatus]) {
        if self.plan.state == RolloutState::RolledBack {
            self.processes = Process::of_pool(&self.pool, fleet);
        }
    }

    /// Looks whether its replicas are those of a revision that was rolled back: the next one is not judged by them.
    pub(super) fn look_for_earlier(&mut self, fleet: &[ReplicaStatus]) {
        if self.plan.owns_pods {
            self.rolled_back.iter_mut().for_each(|former| former.processes.clear());
            self.earlier = Earlier::default();
        }
        let awaited = self.earlier.awaited(&self.pool, fleet);
        let (route, revision) = (&self.route, &self.revision);
        match (&self.awaited, &awaited) {
            (None, Some(replicas)) => {
                tracing::warn!(%route, %revision, replicas, "canary waits for its replicas");
            }
            (Some(_), None) => tracing::info!(%route, %revision, "canary waits for its replicas no more"),
            _ => {}
        }
        self.awaited = awaited;
    }

    /// An operator acts at `now`, in milliseconds since 1970.
    pub(super) fn act(&mut self, action: Action, now: u64) -> Result<(), String> {
        if self.plan.act(action, now)? {
            self.forget();
        }
        // Who was there before the verdict on another revision is its own.
        self.plan.owns_pods |= action == Action::Resume && self.awaited.take().is_some();
        self.is_dirty = true;
        Ok(())
    }

    /// What was held against it counts no longer.
    fn forget(&mut self) {
        self.judge = Judge::new(&self.canary, &SavedEvidence::default());
        (self.fleet, self.report) = (FleetWatch::default(), None);
        self.worst.clear();
        (self.fault, self.not_found) = (None, None);
    }

    /// Takes in what other gateways show at `now` (seconds), `None` where that is not known; returns whether its plan is another one now.
    pub(super) fn hear(&mut self, now: f64, shown: Option<&[Shown]>) -> bool {
        let mut views = shown.map(|shown| View::read_all(shown, &self.identity)).unwrap_or_default();
        let mut plan = self.plan.clone();
        for view in &mut views {
            // It may have more steps, and be the view of a gateway that is gone.
            view.plan.resteps(&self.canary);
            plan.follow(&view.plan);
        }
        let is_another = plan.stance() != self.plan.stance();
        if is_another {
            let before = std::mem::replace(&mut self.plan, plan);
            self.is_dirty = true;
            if before.is_off && !self.plan.is_off && self.plan.state == RolloutState::Running {
                self.forget();
            }
            // A pause between is none of the step's answers.
            if !before.is_in_step_of(&self.plan) {
                self.begin_step(now);
            }
        } else {
            self.is_dirty |= (plan.acts, plan.owns_pods) != (self.plan.acts, self.plan.owns_pods);
            (self.plan.acts, self.plan.soaked, self.plan.owns_pods) =
                (plan.acts, plan.soaked, plan.owns_pods);
        }
        self.elsewhere = Elsewhere::of(views, &self.plan);
        self.plan.answers_elsewhere = self.elsewhere.answers;
        let gateways = self.elsewhere.gateways + 1;
        // One that is not heard for a moment has seen its part all the same.
        self.plan.gateways = self.plan.gateways.max(gateways as u32);
        self.judge.among(gateways);
        is_another
    }

    /// What other gateways are shown.
    pub(super) fn shown(&self) -> String {
        View::new(&self.identity, &self.plan, self.judge.evidence()).text()
    }

    /// Takes what was seen, at `now`, of a request that had come at `arrived` (seconds).
    pub(super) fn observe(&mut self, now: f64, arrived: f64, observation: &Observation) {
        // A follow-up that is pinned there is answered by an earlier revision.
        if !self.is_judged() || self.awaited.is_some() {
            return;
        }
        let class = observation.class;
        self.count_answer(&observation.seen);
        match &observation.seen {
            Seen::FirstToken { .. } if arrived < self.begun.step => {}
            Seen::FirstToken { has_queued: true, .. } if self.is_smaller() => {}
            Seen::Gaps { .. } if self.is_denser() => {}
            Seen::FirstToken { arm, replica, ttft, conversation, .. } => {
                let (replica, conversation) = (*replica, *conversation);
                let seen = Observed { replica, conversation, ..Observed::of(*arm, *ttft) };
                self.judge.observe(now, Measure::Ttft, class, seen);
            }
            Seen::Gaps { arm, replica, gaps } => {
                for (gap, tokens) in gaps {
                    let seen = Observed { count: *tokens, replica: *replica, ..Observed::of(*arm, *gap) };
                    self.judge.observe(now, Measure::Itl, class, seen);
                }
            }
            Seen::Ended(ended) => {
                let is_of_step = arrived >= self.begun.step;
                if arrived >= self.begun.traffic {
                    self.compare(now, ended, is_of_step);
                }
                self.note_model(ended);
                self.count(ended, is_of_step);
            }
            Seen::TurnedAway { arm, record } => self.turned_away(now, *arm, record),
        }
    }

    /// A stream at its beginning: its gaps come from then on.
    fn count_answer(&mut self, seen: &Seen) {
        let (arm, replica, form) = match seen {
            Seen::FirstToken { arm, replica, .. } => (*arm, *replica, Form::Stream),
            Seen::Ended(ended) if !ended.record.is_stream => {
                let form = if ended.record.dialect.generates() { Form::Text } else { Form::Other };
                (ended.arm, ended.replica, form)
            }
            _ => return,
        };
        self.spread.answered(arm, replica);
        if arm == Arm::Baseline {
            self.judge.answers(form);
        }
    }

    /// What the queue of a side's pool refuses is a failure of that side: it takes fewer requests than its share.
    fn turned_away(&mut self, now: f64, arm: Arm, record: &Record) {
        self.judge.attempt(now, record.class, arm, record.conversation, true);
        if let Some(requests) = self.requests.get_mut(arm as usize) {
            *requests += 1;
        }
        if let Some(by) = record.turned_away.as_ref().filter(|_| arm == Arm::Canary) {
            self.note_worst(MAX_SECONDS, || {
                json!({
                    "request_id": &*record.request_id,
                    "trace_id": format!("{:032x}", record.trace.trace_id),
                    "pool": &*by.pool,
                    "class": record.class.as_str(),
                    "error": by.limit,
                })
            });
        }
    }

    /// Of a request that came in an earlier step only what went wrong counts: an answer may take longer than any step, or never come.
    fn compare(&mut self, now: f64, ended: &Ended, is_of_step: bool) {
        let (arm, replica, record) = (ended.arm, ended.replica, &*ended.record);
        let (class, conversation, is_unary) = (record.class, record.conversation, !record.is_stream);
        let is_censored = ended.censored.is_some();
        let is_denser = self.is_denser();
        let is_of_pace = is_denser && record.dialect.generates();
        let is_of_load = is_of_pace || self.is_smaller() && record.has_queued();
        let answer_time = ended.answer_time.filter(|_| is_of_step && !is_of_load);
        let decision = record.decision.as_ref();
        let is_stalled = decision.is_some_and(|decision| decision.is_filling_beside);
        let is_alone = decision.is_some_and(|decision| decision.is_alone);
        let tpot = record.tpot().filter(|_| is_of_step && (!is_denser || is_alone) && !is_stalled);
        for (measure, value) in [
            (Measure::Ttft, ended.censored.or(answer_time)),
            (Measure::Tpot, tpot.map(|tpot| tpot.max(LEAST_TPOT).as_secs_f64())),
            (Measure::Brevity, ended.brevity.filter(|_| is_of_step)),
        ] {
            let Some(value) = value else { continue };
            let is_censored = is_censored && measure == Measure::Ttft;
            let seen = Observed { is_censored, is_unary, replica, conversation, ..Observed::of(arm, value) };
            self.judge.observe(now, measure, class, seen);
        }
        if (record.is_cold() || record.is_filling()) && record.outcome == Outcome::Ok && arm == Arm::Baseline
        {
            self.judge.expects(Measure::Ttft);
        }
        for (arm, is_failed) in ended.attempts.iter().filter(|(_, is_failed)| is_of_step || *is_failed) {
            self.judge.attempt(now, class, *arm, conversation, *is_failed);
        }
        if let Some(is_at_limit) = ended.is_at_limit.filter(|_| is_of_step) {
            self.judge.end(now, class, arm, conversation, is_at_limit);
        }
        if let Some(is_missed) = ended.is_slo_missed.filter(|is_missed| is_of_step || *is_missed) {
            self.judge.slo(now, class, ended.dealt, conversation, is_missed);
        }
    }

    /// A canary whose engine does not know a model that the baseline serves needs no statistics.
    fn note_model(&mut self, ended: &Ended) {
        let Record { requested_model, dialect, path, outcome, unserved, .. } = &*ended.record;
        // Where its name does not decide.
        let asked = requested_model.as_ref().filter(|_| *dialect != Dialect::Responses);
        let Some(model) = asked else { return };
        let by = |arm| (arm, Arc::clone(path), model.clone());
        if *outcome == Outcome::Ok && self.answered.len() < MAX_MODELS {
            self.answered.insert(by(ended.arm));
        }
        let is_unserved = match unserved {
            Some(Unserved::Model) => true,
            // A path that it has answered at is served: something before it was away for a moment.
            Some(Unserved::Path) => !self.answered.contains(&by(Arm::Canary)),
            None => false,
        };
        if ended.arm == Arm::Canary && is_unserved {
            if self.answered.contains(&by(Arm::Baseline)) {
                self.fault = Some(unknown_model(model));
            } else {
                self.not_found = Some(model.clone());
            }
        }
    }

    /// The same before the baseline has answered anything: its engines list the model, and the canary's do not.
    fn unlisted_model(&self, fleet: &[ReplicaStatus]) -> Option<String> {
        let asked = self.not_found.as_deref()?;
        let model = self.upstream_model.as_deref().unwrap_or(asked);
        let is_listed = |is_of: &dyn Fn(&Arc<str>) -> bool| {
            let mut lists =
                fleet.iter().filter(|replica| is_of(&replica.pool) && !replica.models.is_empty()).peekable();
            lists
                .peek()
                .is_some()
                .then(|| lists.any(|replica| replica.models.iter().any(|known| **known == *model)))
        };
        let by_baseline = is_listed(&|pool| self.baseline.contains(pool));
        let by_canary = is_listed(&|pool| *pool == self.pool);
        (by_baseline == Some(true) && by_canary == Some(false)).then(|| unknown_model(model))
    }

    fn count(&mut self, ended: &Ended, is_of_step: bool) {
        let record = &*ended.record;
        let is_shadow = record.shadow_of.is_some();
        if is_shadow {
            self.shadowed += 1;
        } else if let Some(requests) = self.requests.get_mut(ended.arm as usize) {
            *requests += 1;
        }
        let (replica, error) = match &ended.lost {
            Some((replica, error)) => {
                // It was a request of both.
                self.requests[Arm::Canary as usize] += 1;
                (replica, Some(*error))
            }
            None if ended.arm == Arm::Canary => {
                let is_of_step = is_of_step && is_shadow == self.plan.is_shadow(&self.canary);
                self.plan.answers += u64::from(ended.is_answered && is_of_step);
                let Some(served) = record.served() else { return };
                (&served.replica, ended.error)
            }
            None => return,
        };
        let ttft = record.ttft().map(|ttft| ttft.as_secs_f64());
        let slow = ttft.or(ended.censored).unwrap_or_default();
        let badness = if error.is_some() { MAX_SECONDS + slow } else { slow };
        let shown = || {
            json!({
                "request_id": &*record.request_id,
                "trace_id": format!("{:032x}", record.trace.trace_id),
                "replica": &**replica,
                "class": record.class.as_str(),
                "ttft": ttft,
                "error": error,
                "shadow": is_shadow,
            })
        };
        self.note_worst(badness, shown);
    }

    fn note_worst(&mut self, badness: f64, shown: impl FnOnce() -> serde_json::Value) {
        let place = self.worst.partition_point(|worst| worst.badness > badness);
        if place < MAX_WORST {
            self.worst.insert(place, Worst { badness, shown: shown() });
            self.worst.truncate(MAX_WORST);
        }
    }

    /// Time passed: judges, and ends a step whose soak is over. Returns the bound that was broken, at `wall`, in milliseconds since
    /// 1970.
    pub(super) fn advance(
        &mut self,
        now: f64,
        wall: u64,
        passed: Duration,
        fleet: &[ReplicaStatus],
    ) -> Option<String> {
        if self.shares() == [0; 2] {
            self.begins(now);
        }
        if !self.is_judged() {
            return None;
        }
        self.look_for_earlier(fleet);
        self.judge.advance(now);
        let replicas = self.replicas(fleet);
        let breach = self.judge.breach().map(|found| {
            let sides = self.judge.sides(&found.test);
            let sides = sides.map_or_else(String::new, |[baseline, canary]| {
                format!("{canary} against {baseline} of the baseline, ")
            });
            let Evidence { test, bound, .. } = &found;
            let reason = format!("{test}: {sides}evidence over the limit against a bound of {bound}");
            // What fails may be slow as well, and the other way round.
            let is_other = |test: &Evidence| test.test != found.test && test.share >= SUSPECT;
            self.judge.evidence().iter().filter(|test| is_other(test)).fold(reason, |reason, test| {
                format!("{reason}; {}: {} % of it", test.test, percent(test.share))
            })
        });
        let fault = self.fault.take().or_else(|| self.unlisted_model(fleet));
        let breach = fault.or(breach).or_else(|| self.fleet.look(now, &self.canary, &replicas));
        if let Some(reason) = &breach {
            self.plan.breach(&self.canary, reason, wall);
            self.is_dirty = true;
            return breach;
        }
        let is_ready = |replica: &ReplicaSeen| replica.arm == Arm::Canary && replica.is_ready;
        self.is_served = self.awaited.is_none() && replicas.iter().any(is_ready);
        let is_compared = |replica: &&ReplicaStatus| {
            let is_of_route = replica.pool == self.pool || self.baseline.contains(&replica.pool);
            is_of_route && replica.state == ReplicaState::Ready
        };
        let ready = fleet.iter().filter(is_compared);
        let ready = ready.map(|replica| (id(&replica.pool, &replica.replica), replica.sent)).collect();
        self.spread.look(&ready, passed);
        let missing = self.missing();
        if self.is_served && self.plan.soak(&self.canary, passed, missing.as_deref()) {
            self.is_dirty = true;
            if self.plan.state == RolloutState::Running {
                self.begin_step(now);
            }
        }
        None
    }

    /// Fewer replicas answer for it than for its baseline: what finds one busy has no free one to go to.
    fn is_smaller(&self) -> bool {
        let [baseline, canary] = self.spread.answering();
        canary < baseline
    }

    /// Each of them gets over a quarter more requests than one of its baseline: prompts stop its streams more often, and more streams
    /// share its steps, whatever its revision is. What users miss by that counts all the same, as goodput.
    fn is_denser(&self) -> bool {
        self.has_too_few() || self.spread.is_denser()
    }

    /// The same by its share, as long as no other route asks its replicas.
    fn has_too_few(&self) -> bool {
        let [baseline, canary] = self.spread.answering();
        let [share, copied] = self.shares().map(u64::from);
        // What is copied is answered by the baseline as well.
        let (asked, beside) = if copied > 0 { (copied, WHOLE) } else { (share, WHOLE.saturating_sub(share)) };
        canary > 0 && 4 * asked * baseline > 5 * beside * canary
    }

    /// What keeps its step from ending: some evidence against it, or a breach that would not have been seen yet.
    fn missing(&self) -> Option<String> {
        let tests = self.elsewhere.strongest(self.judge.evidence());
        let suspect = tests.iter().find(|test| test.share >= SUSPECT);
        let blind = tests.iter().find(|test| test.trial.is_some_and(|trial| trial < 1.0));
        match (suspect, blind) {
            (Some(test), _) => {
                Some(format!("{}: {} % of the evidence that stops it", test.test, percent(test.share)))
            }
            (None, Some(test)) => Some(format!(
                "{}: answers for {} % of a verdict on a revision {}",
                test.test,
                percent(test.trial.unwrap_or_default()),
                tried(test)
            )),
            (None, None) if tests.iter().all(|test| test.trial.is_none()) => {
                Some(NOTHING_COMPARED.to_owned())
            }
            (None, None) => None,
        }
    }

    fn replicas(&self, fleet: &[ReplicaStatus]) -> Vec<ReplicaSeen> {
        let arm = |pool: &Arc<str>| match pool {
            pool if *pool == self.pool => Some(Arm::Canary),
            pool if self.baseline.contains(pool) => Some(Arm::Baseline),
            _ => None,
        };
        let seen = |status: &ReplicaStatus| {
            let arm = arm(&status.pool).filter(|_| !status.state.is_away())?;
            let is_earlier = arm == Arm::Canary && self.earlier.revision(status).is_some();
            (!is_earlier).then(|| ReplicaSeen {
                arm,
                name: Arc::clone(&status.replica),
                is_ready: status.state == ReplicaState::Ready,
                waiting: status.signals.as_ref().and_then(|signals| signals.page.waiting),
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
                "stream": !compared.is_unary,
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
        let step = self.canary.steps.get(self.plan.step);
        let report = json!({
            "at": rfc3339::utc(at),
            "route": &*self.route,
            "pool": &*self.pool,
            "revision": &*self.revision,
            "revision_info": self.info,
            "state": self.plan.state.as_str(),
            "step": self.place().min(self.canary.steps.len()),
            "weight": if is_shadow { 0 } else { step.map_or(100, |step| step.weight) },
            "shadow_weight": self.canary.shadow.filter(|_| is_shadow).map(|shadow| shadow.weight),
            "reason": self.plan.reason,
            "requests": { "baseline": self.requests[0], "canary": self.requests[1], "shadow": self.shadowed },
            "tests": tests,
            "percentiles": compared,
            "worst_requests": self.worst.iter().map(|worst| &worst.shown).collect::<Vec<_>>(),
        });
        self.report = Some(report.clone());
        report
    }

    /// Number of its step, 0 for the shadow step.
    fn place(&self) -> usize {
        if self.plan.is_shadow(&self.canary) { 0 } else { self.plan.step + 1 }
    }

    /// Its share of new requests, and of those of which it gets copies, in ten thousandths.
    pub(super) fn shares(&self) -> [u32; 2] {
        if self.is_judged() && self.awaited.is_some() {
            return [0; 2];
        }
        [self.plan.share(&self.canary), self.plan.shadow_share(&self.canary)]
    }

    /// As the admin API lists it.
    pub(super) fn view(&self) -> api::Canary {
        let steps = self.canary.steps.len();
        let mut reason = self.plan.reason.clone();
        if let Some(awaited) = self.awaited.as_ref().filter(|_| self.is_judged()) {
            let _ = write!(reason, "; waits for replicas of {}: {awaited}", self.revision);
        } else if self.is_judged() && !self.is_served {
            reason.push_str("; no replica of it is ready, so it gets no request and its soak stands still");
        } else if self.is_judged() && self.is_denser() {
            let [baseline, canary] = self.spread.answering();
            let why = if self.has_too_few() {
                "too few for its share"
            } else {
                "and get more of all routes' requests"
            };
            let _ = write!(
                reason,
                "; {canary} of its replicas answer beside {baseline} of the baseline, {why}: ITL is not compared, and TPOT only of \
                 streams that ran alone"
            );
        }
        if self.plan.state == RolloutState::Running
            && self.awaited.is_none()
            && let Some(missing) = self.missing()
        {
            let _ = write!(reason, "; it ends when a breach would have been seen: {missing}");
        }
        let [weight, shadow_weight] = self.shares().map(|share| f64::from(share) / 100.0);
        let [baseline, canary] = self.requests;
        let test = |Evidence { test, bound, share, .. }| CanaryTest {
            bound,
            evidence: share,
            test: test.into_owned(),
        };
        api::Canary {
            pool: self.pool.to_string(),
            reason,
            report: self.report.clone(),
            requests: CanaryRequests { baseline, canary, shadow: self.shadowed },
            revision: self.revision.to_string(),
            route: self.route.to_string(),
            shadow_weight,
            soaked: self.plan.soaked,
            state: self.plan.state.as_str().to_owned(),
            step: self.place().min(steps),
            steps,
            tests: self.judge.evidence().into_iter().map(test).collect(),
            weight,
        }
    }
}

/// A share of the evidence that stops a canary, whole.
fn percent(share: f64) -> f64 {
    (100.0 * share.clamp(0.0, 1.0)).floor()
}

/// What a step waits to have seen of a test: see [`rate_trial_share`].
fn tried(test: &Evidence) -> String {
    if ["errors", "goodput"].contains(&&*test.test) {
        let share = 100.0 * rate_trial_share(test.bound);
        return format!("with {share:.0} % of its requests worse");
    }
    "half above its bound".to_owned()
}

fn unknown_model(model: &str) -> String {
    format!(
        "model: the canary's engine answers 404 for {model:?}, which the baseline serves; start it with that name (--served-model-name)"
    )
}

/// The state of a revision that was not there before, after one that was.
fn after(other: Option<Saved>, identity: &str, canary: &Canary) -> Saved {
    let mut saved = Saved { plan: Plan::new(canary), ..Saved::default() };
    if let Some(other) = other {
        saved.rolled_back = other.rolled_back;
        if other.plan.state == RolloutState::RolledBack && !other.identity.is_empty() {
            let Saved { identity, plan, processes, .. } = other;
            saved.rolled_back.push(Former { identity, acts: plan.acts, processes });
        }
        if saved.rolled_back.len() > MAX_ROLLED_BACK {
            saved.rolled_back.remove(0);
        }
    }
    if let Some(at) = saved.rolled_back.iter().position(|known| known.identity == identity) {
        let known = saved.rolled_back.remove(at);
        known_bad(&mut saved.plan, known.acts);
        saved.processes = known.processes;
    }
    saved
}

/// `acts` is that of the word by which it was rolled back: what was decided of it before holds no more.
fn known_bad(plan: &mut Plan, acts: u64) {
    (plan.state, plan.acts) = (RolloutState::RolledBack, plan.acts.max(acts));
    "this revision was rolled back before".clone_into(&mut plan.reason);
}

/// An identity without its first line, the route.
fn revision_of(identity: &str) -> &str {
    identity.split_once('\n').map_or(identity, |(_, revision)| revision)
}

/// What was compared in a step is not kept over a restart.
const NOTHING_COMPARED: &str = "the baseline has answered nothing since its step, or this gateway, began";
/// Tokens that come together are apart by the noise of processes and networks, which is no revision's.
const LEAST_TPOT: Duration = Duration::from_micros(500);
/// Revisions that stay rolled back.
const MAX_ROLLED_BACK: usize = 16;
const MAX_MODELS: usize = 64;
/// Evidence, as a fraction of a verdict, at which a step goes on.
const SUSPECT: f64 = 0.25;
/// Requests in a report.
const MAX_WORST: usize = 10;
/// All requests, as [`Rollout::shares`] counts them.
const WHOLE: u64 = 10_000;
/// Failed requests are worse than slow ones.
const MAX_SECONDS: f64 = 1e6;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Stamp;
    use crate::observe::fixture;
    use crate::request::class::Class;
    use crate::rollout::fixture::{canary, config};

    fn observation(route: Arc<str>, class: Class, seen: Seen) -> Observation {
        Observation { route, class, arrived: Stamp::default(), seen }
    }

    /// A rollout for which these numbers of replicas of the baseline and of the canary answer. More of the baseline's are ready: of a
    /// pool that stands by.
    fn answered_by(mut rollout: Rollout, answering: [u64; 2]) -> Rollout {
        let ready = |pool: &str, at: u64| ReplicaStatus {
            pool: pool.into(),
            replica: at.to_string().into(),
            state: ReplicaState::Ready,
            ..ReplicaStatus::default()
        };
        let of = |pool| (1..=20).map(move |at| ready(pool, at));
        let fleet: Vec<_> = of("a").chain(of("b")).collect();
        let arms = [(Arm::Baseline, "a"), (Arm::Canary, "b")];
        for ((arm, pool), replicas) in arms.into_iter().zip(answering) {
            for replica in 1..=replicas {
                let replica = id(pool, &replica.to_string());
                let seen =
                    Seen::FirstToken { arm, replica, ttft: 0.25, conversation: None, has_queued: false };
                let (route, class) = (Arc::clone(&rollout.route), Class::Short);
                rollout.observe(1.0, 1.0, &observation(route, class, seen));
            }
        }
        assert_eq!(rollout.advance(1.0, 0, Duration::from_millis(250), &fleet), None);
        rollout
    }

    /// A canary that gets a larger share has young answers alone at first, and its baseline the long ones of before.
    #[test]
    fn what_came_before_a_step_is_not_compared_and_fails_for_its_side_all_the_same() {
        let config = config("");
        let route = &config.routes[0];
        let canary = route.canary.as_ref().unwrap();
        let mut rollout = Rollout::new(&config, route, canary, None).unwrap();
        rollout.begins(10.0);
        rollout.begin_step(20.0);
        let mut end = |arrived: f64, arm: Arm, ttft: f64, is_failed: bool| {
            let seen = Seen::FirstToken { arm, replica: 1, ttft, conversation: None, has_queued: false };
            rollout.observe(21.0, arrived, &observation(Arc::clone(&route.name), Class::Short, seen));
            let record = fixture::stream();
            let ended = Ended {
                attempts: vec![(arm, is_failed)],
                arm,
                dealt: arm,
                lost: None,
                is_answered: true,
                censored: None,
                answer_time: None,
                brevity: None,
                is_at_limit: None,
                is_slo_missed: Some(is_failed),
                error: None,
                replica: 1,
                record: Arc::new(record),
            };
            let seen = Seen::Ended(Box::new(ended));
            rollout.observe(21.0, arrived, &observation(Arc::clone(&route.name), Class::Short, seen));
        };
        for (arrived, arm) in [(5.0, Arm::Baseline), (15.0, Arm::Baseline), (15.0, Arm::Canary)] {
            end(arrived, arm, 9.0, true);
            end(arrived, arm, 9.0, false);
        }
        [Arm::Baseline, Arm::Canary].into_iter().for_each(|arm| end(20.5, arm, 1.0, false));
        let compared = rollout.judge.compared().remove(0);
        assert_eq!((compared.measure, compared.percentiles), (Measure::Ttft, [[1.0; 3]; 2]));
        for test in ["errors", "goodput"] {
            let sides = rollout.judge.sides(test).unwrap();
            assert_eq!(sides[0], sides[1], "{test}: one of two of either side");
        }
        assert_eq!((rollout.requests, rollout.plan.answers), ([5, 3], 1));
    }

    #[test]
    fn what_finds_a_smaller_canary_busy_is_not_compared() {
        let config = config("");
        let route = &config.routes[0];
        let canary = route.canary.as_ref().unwrap();
        for (baseline, p99) in [(1, 0.5), (3, 0.25)] {
            let rollout = Rollout::new(&config, route, canary, None).unwrap();
            let mut rollout = answered_by(rollout, [baseline, 1]);
            for request in 0..100 {
                for arm in [Arm::Baseline, Arm::Canary] {
                    let has_queued = arm == Arm::Canary && request % 4 == 0;
                    let ttft = if has_queued { 0.5 } else { 0.25 };
                    let seen = Seen::FirstToken { arm, replica: 1, ttft, conversation: None, has_queued };
                    let (route, class) = (Arc::clone(&route.name), Class::Short);
                    rollout.observe(2.0, 2.0, &observation(route, class, seen));
                }
            }
            let compared = rollout.judge.compared().remove(0);
            assert_eq!(
                compared.percentiles.map(|of| of[2]),
                [0.25, p99],
                "{baseline} replicas of the baseline"
            );
        }
    }

    /// Each side gives this answer.
    fn both_answer(rollout: &mut Rollout, record: Record) {
        let record = Arc::new(record);
        for arm in [Arm::Baseline, Arm::Canary] {
            let seen = Seen::Ended(Box::new(answered(arm, &record)));
            let (route, class) = (Arc::clone(&rollout.route), Class::Short);
            rollout.observe(2.0, 2.0, &observation(route, class, seen));
        }
    }

    #[test]
    fn tokens_that_come_together_or_beside_prompts_of_an_empty_cache_have_no_pace() {
        let config = config("");
        let route = &config.routes[0];
        let compared = |change: fn(&mut Record)| {
            let mut rollout = Rollout::new(&config, route, route.canary.as_ref().unwrap(), None).unwrap();
            let mut record = Record { is_stream: true, ..fixture::stream() };
            change(&mut record);
            both_answer(&mut rollout, record);
            let compared = rollout.judge.compared();
            let tpot = compared.iter().find(|compared| compared.measure.as_str() == "tpot");
            tpot.map(|tpot| tpot.percentiles.map(|of| (of[0] * 1e4).round()))
        };
        assert_eq!(compared(|_| ()), Some([500.0; 2]), "50 ms");
        let together = |record: &mut Record| {
            record.at.last_token = record.at.first_token.map(|first| first.after(Duration::from_micros(200)));
        };
        assert_eq!(compared(together), Some([5.0; 2]), "half a millisecond");
        assert_eq!(compared(|record| record.decision.as_mut().unwrap().is_filling_beside = true), None);
    }

    #[test]
    fn of_a_canary_whose_traffic_gathers_at_one_replica_streams_that_ran_alone_are_compared() {
        let config = config("");
        let route = &config.routes[0];
        for (is_alone, expected) in [(false, false), (true, true)] {
            let mut rollout = Rollout::new(&config, route, route.canary.as_ref().unwrap(), None).unwrap();
            rollout.plan.step = 1;
            let mut rollout = answered_by(rollout, [2, 1]);
            let mut record = Record { is_stream: true, ..fixture::stream() };
            record.decision.as_mut().unwrap().is_alone = is_alone;
            both_answer(&mut rollout, record);
            let compared = rollout.judge.compared();
            assert_eq!(compared.iter().any(|compared| compared.measure.as_str() == "tpot"), expected);
            assert!(rollout.view().reason.contains("1 of its replicas answer beside 2"));
        }
    }

    #[test]
    fn a_canary_whose_replicas_have_more_load_each_is_not_compared_by_the_pace_of_its_tokens() {
        let stream = Arc::new(Record { is_stream: true, ..fixture::stream() });
        let mut text = Record { is_stream: false, ..fixture::stream() };
        (text.at.first_token, text.at.last_token) = (None, None);
        let text = Arc::new(text);
        let all = ["ttft", "ttft", "itl", "tpot"];
        for (shadow, step, answering, expected) in [
            ("", 1, [2, 1], &all[..1]),
            ("", 1, [2, 2], &all),
            ("", 1, [1, 2], &all),
            ("", 0, [2, 1], &all),
            ("", 0, [9, 1], &all),
            ("", 0, [11, 1], &all),
            ("", 0, [12, 1], &all[..1]),
            ("shadow = { weight = 50, soak = \"1m\" }\n", 0, [2, 1], &all),
            ("shadow = { weight = 63, soak = \"1m\" }\n", 0, [2, 1], &all[..1]),
        ] {
            let config = config(shadow);
            let route = &config.routes[0];
            let mut rollout = Rollout::new(&config, route, route.canary.as_ref().unwrap(), None).unwrap();
            rollout.plan.step = step;
            let mut rollout = answered_by(rollout, answering);
            for (arm, times) in [(Arm::Baseline, 1.0), (Arm::Canary, 4.0)] {
                let first =
                    Seen::FirstToken { arm, replica: 1, ttft: 0.25, conversation: None, has_queued: false };
                let gaps = Seen::Gaps { arm, replica: 1, gaps: vec![(0.02 * times, 1.0)] };
                let ended = |record: &Arc<Record>, answer_time| {
                    Seen::Ended(Box::new(Ended { answer_time, ..answered(arm, record) }))
                };
                for seen in [first, gaps, ended(&stream, None), ended(&text, Some(0.02 * times))] {
                    let (route, class) = (Arc::clone(&route.name), Class::Short);
                    rollout.observe(2.0, 2.0, &observation(route, class, seen));
                }
            }
            let compared = rollout.judge.compared();
            let compared = Vec::from_iter(compared.iter().map(|compared| compared.measure.as_str()));
            assert_eq!(compared, expected, "{shadow} {step} {answering:?}");
            assert_eq!(
                rollout.judge.sides("goodput").unwrap(),
                ["0.0 %"; 2],
                "{shadow} {step} {answering:?}"
            );
            let is_named = rollout.view().reason.contains("ITL");
            assert_eq!(is_named, expected.len() == 1, "{}", rollout.view().reason);
        }
    }

    #[test]
    fn a_canary_whose_pool_serves_another_route_as_well_is_not_compared_by_the_pace_of_its_tokens() {
        let config = config("");
        let route = &config.routes[0];
        for (of_another, is_named) in [(0, false), (200, true)] {
            let mut rollout = Rollout::new(&config, route, route.canary.as_ref().unwrap(), None).unwrap();
            rollout.plan.step = 1;
            let mut rollout = answered_by(rollout, [1, 1]);
            let ready = |pool: &str, sent| ReplicaStatus {
                pool: pool.into(),
                replica: "1".into(),
                state: ReplicaState::Ready,
                sent,
                ..ReplicaStatus::default()
            };
            let fleet = [ready("a", 100), ready("b", 100 + of_another)];
            assert_eq!(rollout.advance(2.0, 0, Duration::from_millis(250), &fleet), None);
            assert_eq!(rollout.view().reason.contains("more of all routes' requests"), is_named);
            both_answer(&mut rollout, Record { is_stream: true, ..fixture::stream() });
            let compared = rollout.judge.compared();
            assert_eq!(compared.iter().any(|compared| compared.measure.as_str() == "tpot"), !is_named);
        }
    }

    #[test]
    fn a_canary_that_waits_for_its_pods_begins_at_all_gateways_where_it_is_resumed_at_one() {
        let config = config("");
        let route = &config.routes[0];
        let pod = ReplicaStatus {
            pool: "b".into(),
            instance: Some("u1".into()),
            state: ReplicaState::Ready,
            ..ReplicaStatus::default()
        };
        let fleet = [pod];
        let before = Former { identity: "r1".into(), acts: 5, processes: Process::of_pool("b", &fleet) };
        let saved = Saved { rolled_back: vec![before], ..Saved::default() };
        let start = |saved| {
            let mut rollout = Rollout::new(&config, route, route.canary.as_ref().unwrap(), saved).unwrap();
            rollout.look_for_earlier(&fleet);
            rollout
        };
        let [mut here, mut there] = [saved.clone(), saved].map(|saved| start(Some(saved)));
        assert_eq!([here.shares()[0], there.shares()[0]], [0; 2]);
        here.act(Action::Resume, 9).unwrap();
        let hears = |rollout: &mut Rollout, other: &Rollout| {
            rollout.hear(1.0, Some(&[Shown { text: other.shown(), is_alive: true }]));
            rollout.advance(1.0, 0, Duration::from_millis(250), &fleet);
        };
        hears(&mut there, &here);
        hears(&mut here, &there);
        let shares = |rollout: &Rollout| (rollout.shares()[0], start(Some(rollout.save())).shares()[0]);
        assert_eq!([shares(&here), shares(&there)], [(1000, 1000); 2], "over a restart as well");
    }

    /// An answer as it should be.
    fn answered(arm: Arm, record: &Arc<Record>) -> Ended {
        Ended {
            record: Arc::clone(record),
            attempts: vec![(arm, false)],
            arm,
            dealt: arm,
            lost: None,
            is_answered: true,
            censored: None,
            answer_time: None,
            brevity: None,
            is_at_limit: None,
            is_slo_missed: Some(true),
            error: None,
            replica: 1,
        }
    }

    #[test]
    fn a_revision_that_was_rolled_back_stays_so_whatever_was_decided_of_it_before() {
        let canary = canary("");
        let by = |state, acts| Plan { state, acts, is_past_shadow: true, ..Plan::new(&canary) };
        let r2 = Saved { identity: "r2".into(), plan: by(RolloutState::RolledBack, 5), ..Saved::default() };
        let r3 = Saved { identity: "r3".into(), ..after(Some(r2), "r3", &canary) };
        // As its file has it.
        let r3: Saved = serde_json::from_str(&serde_json::to_string(&r3).unwrap()).unwrap();
        let mut back = after(Some(r3), "r2", &canary).plan;
        assert_eq!(back.state, RolloutState::RolledBack);
        // A gateway that is gone shows what an operator had decided before.
        assert!(!back.follow(&by(RolloutState::Promoted, 4)) && !back.follow(&by(RolloutState::Running, 4)));
        assert!(back.follow(&by(RolloutState::Promoted, 6)), "an operator's later word");
    }
}
