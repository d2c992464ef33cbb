//! A chosen replica, and the feedback of its request.
//!
//! Load is counted from the decision and released at the first token and at the end, whatever the end is: the
//! assignment is dropped with the pick, and the pick with the body.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::health::fails_alone;
use super::health::vitals::BUSY_FOR;
use super::life::Event;
use super::outside::OutsideCharge;
use super::pool::PoolState;
use super::replica::Replica;
use crate::admission::TurnOnDrop;
use crate::clock::Stamp;
use crate::config::EngineKind;
use crate::error::{Failure, ReplicaFailure, Timer};
use crate::record::{DecisionSummary, TokenCounts, Ways};
use crate::request::prompt_size::PromptSize;
use crate::routing::Assignment;
use crate::stats::lower_quantile;

/// The replica that one attempt goes to. It lives as long as its stream: what few have is boxed.
#[derive(Debug)]
pub struct Pick {
    pub pool: Arc<PoolState>,
    pub replica: Arc<Replica>,
    /// Of the first attempt, for the record and response headers.
    pub decision: DecisionSummary,
    /// The request's share of the replica's load.
    pub assignment: Assignment,
    /// After the load, which is released first: its end may make room for another.
    pub turn: TurnOnDrop,
    pub size: PromptSize,
    /// Hash of its tenant and of what it has an engine compute, to find requests that kill engines.
    pub identity: u64,
    /// Distinguishes its failures from those of another request: the same one sent again is one failure.
    pub request: u64,
    /// Its request can go nowhere else: a stored response lives there.
    pub is_pinned: bool,
    /// The replica that computes its prompt first, on a route with `[route.prefill]`.
    pub prefill: Option<Box<Pick>>,
    /// Why there is one, or none.
    pub ways: Option<Box<Ways>>,
    /// Its part of an outside provider's limits.
    pub outside: Option<Box<OutsideCharge>>,
    /// Until its prompt is computed, where another pool of its route has that cached.
    pub fill: Option<CacheFill>,
}

/// A prompt that a replica computes though another pool of its route has it cached.
#[derive(Debug)]
pub struct CacheFill {
    replica: Arc<Replica>,
    /// If it takes longer, that is not for its cache.
    until: Stamp,
}

impl CacheFill {
    /// At this replica.
    pub fn begin(replica: &Arc<Replica>, until: Stamp) -> Self {
        replica.health.warmth.fill_begins(until);
        Self { replica: Arc::clone(replica), until }
    }
}

impl Drop for CacheFill {
    fn drop(&mut self) {
        self.replica.health.warmth.fill_ends(self.replica.now().min(self.until));
    }
}

impl Pick {
    /// The first content event arrived.
    pub fn first_token(&mut self, now: Stamp) {
        self.computed(now);
        self.succeeded(now);
    }

    /// The engine began to answer, though it holds the text back.
    pub fn begun(&mut self, at: Stamp) {
        if matches!(self.pool.config().engine, EngineKind::Vllm | EngineKind::RayServe | EngineKind::Sglang) {
            self.computed(at);
        }
    }

    /// Its prompt is computed, and the engine has counted a first token, whenever its text comes.
    fn computed(&mut self, at: Stamp) {
        if !self.assignment.first_token(at) {
            return;
        }
        self.fill = None;
        if let Some(waited) = self.assignment.waited(at) {
            self.replica.engine.first_token(waited);
        }
        self.pool.queue.turn();
    }

    /// Content events that have come by now, of `choices` choices.
    #[inline]
    pub fn progress(&mut self, events: u64, choices: u64, now: Stamp) {
        self.assignment.progress(events / choices, now);
        if let Some(outside) = &mut self.outside {
            outside.seen = events;
        }
    }

    /// The engine's `usage` of the answer, or of as much of it as came.
    pub fn used(&mut self, tokens: TokenCounts) {
        if let Some(outside) = &mut self.outside {
            outside.usage = tokens;
        }
    }

    /// A complete response arrived, which proves as much as a probe. `is_first_sign`: no first token came before it.
    pub fn answered(&self, is_first_sign: bool, now: Stamp) {
        if self.assignment.is_past_engine() {
            // An API server answers for a dead engine as well.
            return;
        }
        self.shows_life(now);
        if is_first_sign {
            self.succeeded(now);
        }
    }

    fn succeeded(&self, now: Stamp) {
        self.replica.health.vitals.began_to_answer(self.assignment.at());
        self.replica.succeeded(now);
    }

    /// An answer came that may be its prompt's doing: without content, or a refusal of the request as wrong. Whether its replica gives
    /// more of them than its pool's others, or is on trial.
    pub fn doubtful(&self) -> bool {
        let answers = &self.replica.health.answers;
        answers.doubtful(self.distinguished(self.replica.now()));
        let own = answers.doubtful_rate().unwrap_or_default();
        let usual = self.usual_of_peers(|other| other.health.answers.doubtful_rate());
        usual.is_some_and(|usual| fails_alone(own, usual, answers.is_on_trial()))
    }

    /// Another replica answered the same prompt alike.
    pub fn confirmed(&self) {
        self.replica.health.answers.confirmed();
    }

    /// Its replica refused as wrong what another one of its pool answered. A client or conversation counts once: `client` distinguishes
    /// it from others, else the request does.
    pub fn refused_alone(&self, client: Option<u64>, now: Stamp) {
        self.replica.health.answers.refused_alone(client.unwrap_or(self.request), now);
        self.publish_beside_peers(now);
    }

    /// A stream that a proxy carries ended, whole or half way. Where its client leaves the proxy does the same as where its replica breaks:
    /// one says nothing, a share beyond that of the pool's others is a failure.
    pub fn carried_to_end(&self, is_cut: bool, now: Stamp) {
        let answers = &self.replica.health.answers;
        if !answers.ended(is_cut, self.assignment.at(), now) || !is_cut {
            return;
        }
        let own = answers.cut_rate().unwrap_or_default();
        let usual = self.usual_of_peers(|other| other.health.answers.cut_rate());
        if usual.is_some_and(|usual| fails_alone(own, usual, false)) {
            self.failed(&ReplicaFailure::EndsEarly { replica: self.replica.name() }, now);
        }
    }

    /// An answer goes to the client: one without content is a sign of life, and no proof.
    pub fn shows_life(&self, now: Stamp) {
        self.pool.dispatcher.answered(now);
        self.replica.health.vitals.answered(now);
        self.pool.poison.answered(self.identity, self.replica.slot());
    }

    /// Nothing came for too long.
    pub fn silent(&self, now: Stamp) {
        self.failed(&ReplicaFailure::Silent { replica: self.replica.name() }, now);
    }

    /// A deadline passed before any content came: a replica that kept the request waiting for most of `first_token`, and where nothing
    /// moved for half of that, is no better than one that failed. One that moves is busy, unless it began to answer what was sent when
    /// half of the wait was over: no queue held this one up, and where nothing was predicted no prediction prices it.
    pub fn overdue(&self, failure: &Failure, now: Stamp) {
        self.assignment.censored(now);
        let (sent, health) = (self.assignment.at(), &self.replica.health);
        let half = now.since(sent) / 2;
        let is_still = now.since(health.vitals.last_sign()) > half;
        let is_passed_over = self.assignment.decision.predicted_ttft.is_none()
            && health.vitals.has_answered_younger(sent.after(half));
        let is_busy = !is_still && !is_passed_over && !health.answers.is_on_trial();
        let is_first_token = matches!(failure, Failure::Timeout { timer: Timer::FirstToken, .. });
        if is_first_token && !is_busy && !failure.spares_replica(now.since(sent)) {
            self.silent(now);
        }
    }

    /// Its request failed there. From the second prompt on that fails there the replica gets less traffic. It is ejected once it
    /// fails more than the pool's others, on trial by one failure where they have hardly any, or at once where it refuses
    /// connections; but never the last ready one, and never more than `pool.ejection.max_share` of the pool. Where an answer says
    /// that its engine is down, a probe decides. A request that could go nowhere else has no peers to be compared with, and its
    /// client chose the replica: it only has the replica probed.
    pub fn failed(&self, failure: &ReplicaFailure, now: Stamp) {
        let (pool, replica, health) = (&self.pool, &self.replica, &self.replica.health);
        if matches!(failure, ReplicaFailure::NoFreeConnection { .. }) || failure.is_idle_close() {
            return;
        }
        if matches!(failure, ReplicaFailure::Bypassed { .. }) && health.answers.doubtful_rate().is_none() {
            // The proxy does not give its reason. It may not know a new replica yet: a probe is to find out.
            return health.vitals.suspect(now);
        }
        if failure.is_refusal() && now.since(health.vitals.last_sign()) < BUSY_FOR {
            // While anything moves there it is busy, not down: it gets less for a moment.
            health.answers.refused(now);
            return health.vitals.suspect(now);
        }
        let broke = failure.may_be_a_crash();
        // A listener that closed before its streams broke was shut down in order.
        if broke && health.vitals.refused_since().is_none_or(|from| now.since(from) < SHUTDOWN_LEAD) {
            pool.poison.suspect(self.identity, replica.life(), now);
        }
        let is_refused = matches!(failure, ReplicaFailure::Refused { .. });
        if is_refused {
            health.vitals.refused(now);
        }
        let counts = is_refused || !self.is_pinned;
        let is_sick = counts && (self.count_failure(now) || is_refused);
        if is_sick && replica.is_ready() && pool.may_eject() {
            if is_refused {
                replica.apply(Event::Refused, &failure.to_string());
            } else {
                replica.eject(&failure.to_string());
            }
            return health.vitals.check_now.notify_one();
        }
        match failure {
            ReplicaFailure::EngineDown { .. } => health.vitals.reported_down(),
            _ if is_refused || broke => health.vitals.check_now.notify_one(),
            _ => health.vitals.suspect(now),
        }
    }

    /// Counts a failure against the replica; returns whether its failures prove it sick.
    fn count_failure(&self, now: Stamp) -> bool {
        let answers = &self.replica.health.answers;
        let is_on_trial = answers.is_on_trial();
        answers.failed(self.distinguished(now), now);
        self.publish_beside_peers(now);
        let rate = answers.failure_rate(now).unwrap_or_default();
        match self.usual_of_peers(|other| other.health.answers.failure_rate(now)) {
            Some(peers) => fails_alone(rate, peers, is_on_trial),
            // Those on trial are soon peers again.
            None => !self.has_peer_on_trial() && fails_alone(rate, 0.0, is_on_trial),
        }
    }

    /// Publishes what its replica's evidence is worth beside that of its peers now.
    fn publish_beside_peers(&self, now: Stamp) {
        let usual = self.usual_of_peers(|other| other.health.answers.demotion_rate(now));
        self.replica.health.beside(usual.unwrap_or_default());
        self.replica.member().publish(now);
    }

    /// What distinguishes the request from others that came to the same end there. One that another replica answers is not to blame: each of
    /// them counts.
    fn distinguished(&self, now: Stamp) -> u64 {
        let is_alone = self.pool.poison.failed_alone(self.identity, self.replica.slot());
        if is_alone { now.as_nanos() } else { self.request }
    }

    /// What is usual of a figure among the pool's other replicas; those on trial have too few answers to show it.
    fn usual_of_peers(&self, figure: impl Fn(&Replica) -> Option<f64>) -> Option<f64> {
        let replicas = self.pool.replicas();
        let peers = replicas.iter().filter(|other| self.is_other(other) && !other.is_on_trial());
        let mut figures: SmallVec<[f64; 16]> = peers.filter_map(|other| figure(other)).collect();
        lower_quantile(&mut figures, 0.5)
    }

    fn has_peer_on_trial(&self) -> bool {
        self.pool.replicas().iter().any(|other| self.is_other(other) && other.is_on_trial())
    }

    fn is_other(&self, replica: &Replica) -> bool {
        replica.slot() != self.replica.slot()
    }

    /// The attempt was given up: sent at `sent`, it has brought nothing, neither a first token nor, if `is_whole`, an answer at once.
    /// That is a failure of the replica where nothing has moved there since, another replica has answered meanwhile or it is on trial
    /// after failures, and the wait was clearly longer than is usual in the pool: a client that is merely impatient says nothing. Where an
    /// engine without a page owes an answer in one piece a probe decides.
    pub fn given_up(&self, sent: Stamp, is_whole: bool, now: Stamp) {
        let (replica, waited) = (&self.replica, now.since(sent));
        if self.ways.as_ref().is_some_and(|ways| ways.is_apart) {
            // It waited for KV of another replica.
            return;
        }
        if waited < SHORTEST_SILENCE || replica.health.vitals.last_sign() >= sent {
            return;
        }
        let usual = self.pool.dispatcher.model.usual_wait(&self.assignment.decision.terms, is_whole);
        if waited.as_secs_f64() <= SILENT_FROM * usual {
            return;
        }
        let is_on_trial = replica.health.answers.is_on_trial();
        if is_whole && !replica.is_scraped() && !is_on_trial {
            // It may be writing a long answer, and no page shows it: a probe is to find out.
            return replica.health.vitals.suspect(now);
        }
        let answered = |other: &Arc<Replica>| {
            other.slot() != replica.slot() && other.health.vitals.last_answer() >= sent
        };
        // A client that asks one by one sees no answer of others meanwhile.
        if is_on_trial || self.pool.replicas().iter().any(answered) {
            self.silent(now);
        }
    }

    /// Learns bytes per token and the cached share from the engine's `usage`.
    pub fn learn(&mut self, tokens: TokenCounts) {
        if let Some(input) = tokens.input {
            self.size.teach(&self.pool.ratio, input);
        }
        if tokens.input.or(tokens.cached).is_some() {
            self.assignment.answer_counted(tokens.output);
            self.assignment.prompt_reported(tokens.input, tokens.cached);
        }
    }
}

/// A listener that was closed so long before its streams broke was shut down in order.
const SHUTDOWN_LEAD: Duration = Duration::from_millis(300);
/// Times the usual wait from which silence speaks against a replica.
const SILENT_FROM: f64 = 3.0;
/// Never sooner: gateways, networks and engines pause for longer than a first token takes.
const SHORTEST_SILENCE: Duration = Duration::from_secs(1);
