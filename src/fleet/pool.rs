//! One pool in operation: its replicas, its dispatcher, and what restarts and comparisons mean for them.
//!
//! [`super::registry`] opens pools and changes their replicas; probes, scrapes and requests report here. What a replica's evidence
//! is worth beside the others' is [`super::health`].

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use tokio_util::sync::CancellationToken;

use super::arrivals::Arrivals;
use super::health::{COMPARE_EVERY, compare};
use super::life::{Event, ReplicaState};
use super::objectives::Objectives;
use super::outside::{AtLimit, OutsideCharge, OutsideDemand, OutsideUse};
use super::poison::PoisonRequests;
use super::promise::{EngineNames, List, Promised, Proofs, longest, shorter};
use super::replica::Replica;
use crate::admission::PoolQueue;
use crate::clock::{Clock, Stamp, ticks};
use crate::config::Pool;
use crate::request::ratio::TokenRatio;
use crate::routing::{Dispatcher, EngineLimits, REFRESH_EVERY};
use crate::units::Tokens;
use crate::upstream::budget::{AttemptBudget, RETRY_BURST};

/// One pool in operation.
#[derive(Debug)]
pub struct PoolState {
    /// Name of the `[[pool]]`.
    pub name: Arc<str>,
    /// Prefix index, load and learned model of its replicas.
    pub dispatcher: Arc<Dispatcher>,
    /// Learned bytes per token of its model.
    pub ratio: TokenRatio,
    /// Retries of work that may have started at its replicas.
    pub retries: AttemptBudget,
    /// Requests of all its routes that wait.
    pub queue: Arc<PoolQueue>,
    /// Requests that asked for it.
    pub arrivals: Arrivals,
    retired: CancellationToken,
    pub(super) config: ArcSwap<Pool>,
    pub(super) replicas: ArcSwap<Vec<Arc<Replica>>>,
    /// Tokens of the longest prompt that any of its engines lists; the largest number where one does not tell.
    longest: AtomicU64,
    /// The last that was longer was refused.
    refuses_longer: AtomicBool,
    /// The other pools of its routes.
    pub(super) beside: ArcSwap<Vec<Weak<PoolState>>>,
    /// What its routes promise of it.
    pub(super) promised: ArcSwap<Promised>,
    /// What its engines call what is promised.
    engine_names: ArcSwap<EngineNames>,
    /// Why its sources name no replicas, for people.
    pub(super) trouble: ArcSwapOption<String>,
    /// Those that left and whose streams have not ended.
    pub(super) draining: ArcSwap<Vec<Arc<Replica>>>,
    /// Prompts that kill its engines.
    pub poison: PoisonRequests,
    outside: Arc<OutsideUse>,
    /// InferenceObjectives that its requests may name.
    pub objectives: Objectives,
    /// Some engine told which LoRA adapters it holds.
    pub tells_adapters: AtomicBool,
    /// A route of it continues broken streams.
    pub(super) migrates: AtomicBool,
}

impl PoolState {
    /// A pool without replicas, with room for `slots` of them.
    pub(super) fn new(config: &Pool, slots: usize) -> Arc<Self> {
        Arc::new(Self {
            name: Arc::clone(&config.name),
            dispatcher: Dispatcher::new(slots),
            ratio: TokenRatio::default(),
            retries: AttemptBudget::new(RETRY_BURST),
            queue: Arc::default(),
            arrivals: Arrivals::default(),
            retired: CancellationToken::new(),
            config: ArcSwap::from_pointee(config.clone()),
            replicas: ArcSwap::default(),
            longest: AtomicU64::new(u64::MAX),
            refuses_longer: AtomicBool::new(false),
            beside: ArcSwap::default(),
            promised: ArcSwap::default(),
            engine_names: ArcSwap::default(),
            trouble: ArcSwapOption::empty(),
            draining: ArcSwap::default(),
            poison: PoisonRequests::default(),
            outside: Arc::default(),
            objectives: Objectives::default(),
            tells_adapters: AtomicBool::new(false),
            migrates: AtomicBool::new(false),
        })
    }

    /// Ends the pool's tasks and those of its replicas.
    pub(super) fn retire(&self) {
        self.retired.cancel();
        self.replicas.load().iter().for_each(|replica| replica.retire());
    }

    /// Refreshes the dispatcher's view of running streams every [`REFRESH_EVERY`], and what each replica's answers are worth
    /// beside the others', until the pool is retired; then only lets those go that left, as their streams end.
    pub(super) async fn refresh(self: Arc<Self>, clock: Clock) {
        let mut ticks = ticks(REFRESH_EVERY);
        let mut looked_at = Stamp::default();
        while self.retired.run_until_cancelled(ticks.tick()).await.is_some() {
            self.sweep();
            let replicas = self.replicas();
            let targets = replicas.iter().map(|replica| &replica.target);
            let ready = replicas.iter().filter(|replica| replica.is_ready()).map(|replica| &replica.target);
            let now = clock.now();
            self.dispatcher.refresh(targets, ready, &self.engine_limits(), now);
            if now.since(looked_at) >= COMPARE_EVERY {
                looked_at = now;
                self.compare(&replicas, now);
            }
        }
        while !self.has_ended() {
            ticks.tick().await;
            self.sweep();
        }
    }

    /// Retires every replica, before the pool itself is retired.
    pub(super) fn drain_all(&self) {
        self.drain(self.replicas.swap(Arc::default()).to_vec());
    }

    /// Whether it is retired and the last stream of its replicas has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.retired.is_cancelled() && self.draining.load().is_empty()
    }

    /// Retires replicas; they are listed until their streams have ended.
    pub(super) fn drain(&self, replicas: Vec<Arc<Replica>>) {
        replicas.iter().for_each(|replica| replica.retire());
        let is_busy = |replica: &Arc<Replica>| replica.target.load.own() > 0;
        let busy: Vec<_> = replicas.into_iter().filter(is_busy).collect();
        if !busy.is_empty() {
            self.draining.rcu(|before| before.iter().chain(&busy).cloned().collect::<Vec<_>>());
        }
    }

    /// Lets those go whose streams have ended.
    fn sweep(&self) {
        let draining = self.draining.load();
        let is_busy = |replica: &&Arc<Replica>| replica.target.load.own() > 0;
        if draining.is_empty() || draining.iter().all(|replica| is_busy(&replica)) {
            return;
        }
        for replica in draining.iter().filter(|replica| !is_busy(replica)) {
            let served = replica.served();
            tracing::info!(pool = %served.pool, replica = %served.replica, "replica is gone: its streams have ended");
        }
        drop(draining);
        self.draining.rcu(|before| before.iter().filter(is_busy).cloned().collect::<Vec<_>>());
    }

    /// Every replica, also those that left; of two with one name the one that did not.
    pub(super) fn listed(&self) -> Vec<Arc<Replica>> {
        let replicas = self.replicas.load();
        let draining = self.draining.load();
        let is_apart = |left: &&Arc<Replica>| !replicas.iter().any(|replica| replica.name() == left.name());
        draining.iter().filter(is_apart).chain(replicas.iter()).cloned().collect()
    }

    /// Whether its engines are known to answer anew where an answer is to go on.
    pub fn answers_anew(&self) -> bool {
        self.replicas().iter().any(|replica| *replica.engine.continues_chats.lock() == Some(false))
    }

    /// Whether an engine of it is known to stream reasoning.
    pub fn streams_reasoning(&self) -> bool {
        self.replicas().iter().any(|replica| replica.engine.streams_reasoning.load(Ordering::Relaxed))
    }

    /// The configuration that was applied last.
    pub fn config(&self) -> Arc<Pool> {
        self.config.load_full()
    }

    /// The same, only to be looked at here and now.
    pub fn seen_config(&self) -> Guard<Arc<Pool>> {
        self.config.load()
    }

    /// Its replicas in every state.
    pub fn replicas(&self) -> Arc<Vec<Arc<Replica>>> {
        self.replicas.load_full()
    }

    /// Whether any replica is `Ready`.
    pub fn is_ready(&self) -> bool {
        self.replicas.load().iter().any(|r| r.is_ready())
    }

    /// Whether it may get this request: always, unless it is an outside one at its limit.
    pub fn has_room(&self, demand: OutsideDemand, now: Stamp) -> bool {
        self.config.load().outside.as_ref().is_none_or(|outside| self.outside.has_room(outside, demand, now))
    }

    /// It is to get this request: reserved where it is an outside one.
    ///
    /// # Errors
    /// It is at its limit.
    pub fn reserve_outside(
        &self,
        demand: OutsideDemand,
        now: Stamp,
    ) -> Result<Option<Box<OutsideCharge>>, AtLimit> {
        match &self.config.load().outside {
            Some(outside) => self.outside.reserve(outside, demand, now).map(|charge| Some(Box::new(charge))),
            None => Ok(None),
        }
    }

    /// Whether it is another house's.
    pub fn is_outside(&self) -> bool {
        self.config.load().outside.is_some()
    }

    /// Why none of those replicas takes requests that `is_meant` names, in a phrase for people; empty where there are only others.
    pub fn why_unready(&self, is_meant: impl Fn(&Replica) -> bool) -> String {
        let replicas = self.replicas.load();
        if replicas.is_empty() {
            let trouble = self.trouble.load();
            return match trouble.as_ref() {
                Some(trouble) => trouble.to_string(),
                None => format!("pool {} has no replicas", self.name),
            };
        }
        let is_outside = self.is_outside();
        let reason = |one: &Arc<Replica>| match one.is_ready() && is_outside {
            true => format!("{}: {AT_OUTSIDE_LIMITS}", one.name()),
            false => one.why_unready(),
        };
        let meant = || replicas.iter().filter(|one| is_meant(one));
        let mut reasons: Vec<String> = meant().take(MAX_REASONS).map(reason).collect();
        if let Some(more) = meant().count().checked_sub(MAX_REASONS + 1) {
            reasons.push(format!("and {} more", more + 1));
        }
        reasons.join("; ")
    }

    /// What its engines call the model of a route without `upstream_model`; `None` where they do not tell.
    pub fn engine_name(&self, model: &str) -> Option<Arc<str>> {
        self.engine_names.load().get(model).cloned()
    }

    /// Publishes what its engines call what is promised: as those list it that take traffic, or all where none does.
    pub(super) fn settle_names(&self) {
        let replicas = self.replicas.load();
        if let Some(promised) = self.promised.load().with_adapters(&lists(replicas.iter())) {
            self.promised.store(Arc::new(promised));
        }
        let ready = lists(replicas.iter().filter(|replica| replica.is_ready()));
        let former = self.engine_names.load();
        let names =
            if ready.is_empty() { self.names_by_all() } else { self.promised.load().names(&ready, &former) };
        if names != **former {
            self.engine_names.store(Arc::new(names));
        }
        let longest = longest(&lists(replicas.iter())).map_or(u64::MAX, |tokens| tokens.0);
        self.longest.store(longest, Ordering::Relaxed);
    }

    /// Whether its engines are to refuse a prompt for its length: they list less, and have refused the last one.
    pub fn refuses_length(&self, prompt: Tokens) -> bool {
        self.refuses_longer.load(Ordering::Relaxed) && self.is_longer(prompt)
    }

    /// One of its engines refused such a prompt, or took it.
    pub fn note_length(&self, prompt: Tokens, is_refused: bool) {
        if self.is_longer(prompt) {
            self.refuses_longer.store(is_refused, Ordering::Relaxed);
        }
    }

    /// By twice what any engine takes, as the length is estimated.
    fn is_longer(&self, prompt: Tokens) -> bool {
        prompt.0 > self.longest.load(Ordering::Relaxed).saturating_mul(2)
    }

    /// What this replica has to prove beside its pool's others.
    pub(super) fn proofs(&self, replica: &Replica) -> Proofs {
        let (promised, used) = (self.promised.load(), self.engine_names.load());
        let models = replica.engine.models.load();
        let mut proofs = promised.proofs(&models, [&used, &used]);
        if proofs.other.is_some() {
            proofs = promised.proofs(&models, [&used, &self.names_by_all()]);
        }
        let replicas = self.replicas.load();
        let others = replicas.iter().filter(|other| other.slot() != replica.slot() && other.is_ready());
        proofs.lacks.extend(shorter(&models, &lists(others)));
        proofs
    }

    fn names_by_all(&self) -> EngineNames {
        self.promised.load().names(&lists(self.replicas.load().iter()), &self.engine_names.load())
    }

    /// Whether another ready replica lists a model that this one answered not to have.
    pub fn others_list(&self, replica: &Replica, model: &str) -> bool {
        let replicas = self.replicas.load();
        replicas
            .iter()
            .any(|other| other.slot() != replica.slot() && other.is_ready() && other.engine.lists(model))
    }

    /// Compares every replica with the others; [`super::health`] says what follows.
    fn compare(&self, replicas: &[Arc<Replica>], now: Stamp) {
        self.settle_names();
        let members: Vec<_> = replicas.iter().map(|replica| replica.member()).collect();
        compare(&members, &self.dispatcher.model, now, |place| {
            if let Some(replica) = replicas.get(place) {
                tracing::info!(pool = %self.name, replica = %replica.name(), "replica gets its full share");
            }
        });
    }

    /// Whether one more may be left: never the last ready one, and at most `pool.ejection.max_share` of the pool, or one where that
    /// is less than one.
    pub(super) fn may_eject(&self) -> bool {
        let (replicas, max_share) = (self.replicas.load(), self.config.load().ejection.max_share);
        let ready = replicas.iter().filter(|r| r.is_ready()).count();
        let ejected = replicas.iter().filter(|r| r.state().is_left()).count();
        let size = replicas.len().max(1) as f64;
        ready > 1 && max_share > 0.0 && (ejected + 1) as f64 / size <= max_share.max(1.0 / size)
    }

    /// The prober found a replica's process gone: its cache with it, and the prompts in flight when it broke are suspects.
    pub(super) fn died(&self, replica: &Replica, now: Stamp) {
        self.forgets(replica, now);
        replica.target.restarted();
        // Its successor counts from zero: that is no second restart.
        replica.engine.scraped.store(None);
        replica.health.warmth.lost(replica.health.vitals.refused_since().unwrap_or(now));
    }

    /// Another process answers at a replica: nothing of the former one's cache is there.
    pub(super) fn forgets(&self, replica: &Replica, now: Stamp) {
        self.dispatcher.forget(replica.slot());
        replica.engine.adapters.forget();
        for request in self.poison.confirm(replica.slot(), replica.identity.of_url(), now) {
            self.dispatcher.died(&replica.target, request, now);
        }
    }

    /// A replica passed its warm-up, as far as it had to: it takes traffic, slowly at first where others served before.
    pub(super) fn warmed(&self, replica: &Replica, reason: &str, now: Stamp) {
        // It may have restarted meanwhile.
        if !matches!(replica.state(), ReplicaState::Warming | ReplicaState::Ready) {
            return;
        }
        let (cold, slow_start) = (replica.health.warmth.cold(), self.config.load().warmup.slow_start);
        let served_before = |other: &Arc<Replica>| {
            let both = other.health.warmth.warm_since().zip(cold);
            let before = both.is_some_and(|(warm, cold)| cold.comes_after(warm, slow_start));
            other.slot() != replica.slot() && other.is_ready() && before
        };
        let joins = self.replicas.load().iter().any(served_before);
        let took = replica.health.warmth.warmed(now, joins, slow_start);
        replica.member().publish(now);
        replica.apply(Event::Warmed, reason);
        if let Some(took) = took {
            let seconds = took.as_secs_f64();
            tracing::info!(pool = %self.name, replica = %replica.name(), seconds, "cold start");
        }
    }

    /// Limits of its engines as configured.
    pub fn engine_limits(&self) -> EngineLimits {
        let config = self.config.load();
        EngineLimits {
            scrape_interval: config.scrape_interval,
            batch_limit: config.max_num_seqs.map(NonZeroU64::get),
        }
    }
}

fn lists<'r>(replicas: impl Iterator<Item = &'r Arc<Replica>>) -> Vec<List> {
    replicas.map(|replica| replica.engine.models.load_full()).filter(|models| !models.is_empty()).collect()
}

/// Why a provider that is there gets no request.
pub(crate) const AT_OUTSIDE_LIMITS: &str = "at the limits of [pool.outside]";
/// Replicas of which an error message says why they take no requests.
const MAX_REASONS: usize = 3;
