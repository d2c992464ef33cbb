//! A request that asks one pool for a replica: the whole of it, or one of the two legs of `[route.prefill]`.
//!
//! What a leg changes is defined once, for quotes and for picks: [`Ask::for_prefill`] and [`Ask::for_decode`].

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::prepared::Prepared;
use crate::admission::TurnOnDrop;
use crate::clock::Stamp;
use crate::fleet::pick::{CacheFill, Pick};
use crate::fleet::pool::PoolState;
use crate::fleet::replica::Replica;
use crate::fleet::status::ReplicaState;
use crate::record::{DecisionSummary, Weighed};
use crate::request::body::NO_BODY;
use crate::request::dialect::Computes;
use crate::routing::prefix_index::Turn;
use crate::routing::{Ask, Elsewhere, Judged, Policy, Prompt, Quote, Reason, SlotSet};

/// What is asked of a pool.
#[derive(Clone, Copy)]
pub(super) enum Task<'a> {
    /// The whole request.
    Whole,
    /// To compute its prompt for another pool: one token, whose lateness that other pool answers for.
    Prefill,
    /// To decode what another pool will have computed by then.
    Decode {
        /// Until it is computed.
        after: Duration,
        /// What it takes to move.
        elsewhere: Elsewhere<'a>,
    },
    /// What a proxy has taken to this replica of its own accord.
    Taken(&'a Arc<Replica>),
}

/// A request that asks a pool for a replica.
#[derive(Clone, Copy)]
pub(super) struct Asking<'a> {
    pub(super) request: &'a Prepared,
    pub(super) pool: &'a Arc<PoolState>,
    pub(super) policy: &'a dyn Policy,
    pub(super) task: Task<'a>,
    /// Replicas of the pool that are excluded.
    pub(super) tried: &'a SlotSet,
}

/// The replicas among which one is chosen.
pub(super) struct Scene {
    pub(super) replicas: Arc<Vec<Arc<Replica>>>,
    /// Some replica is neither in a back-off nor on trial, and has the model.
    has_preferred: bool,
}

/// The replicas that a request has tried, by pool.
pub(super) type Tried = smallvec::SmallVec<[(Arc<str>, SlotSet); 1]>;

/// State of a request from its earlier decisions.
#[derive(Clone, Copy, Debug)]
pub(super) struct PickContext<'a> {
    /// Replicas excluded because they failed this request.
    pub(super) tried: &'a Tried,
    /// Pool that it waits for. It keeps it while that pool takes requests; choosing anew on each retry would distort the
    /// pools' weights.
    pub(super) pool: Option<usize>,
    /// Whether it waits for room: then it was called because it is the first in order.
    pub(super) is_late: bool,
    /// Whether it waits for the first replica of a pool.
    pub(super) is_cold: bool,
    /// Whether the prefill pool of its route may compute its prompt.
    pub(super) may_go_apart: bool,
    /// Whether a queue refused it, so that it goes to a standby pool.
    pub(super) overflows: bool,
    /// The canary's pool, whose queue refused it.
    pub(super) left: Option<usize>,
}

impl<'a> PickContext<'a> {
    /// For the pool at this place, at once: beside or behind an attempt that the request has made.
    pub(super) fn within(pool: Option<usize>, tried: &'a Tried) -> Self {
        Self {
            tried,
            pool,
            is_late: false,
            is_cold: false,
            may_go_apart: false,
            overflows: false,
            left: None,
        }
    }
}

impl<'a> Asking<'a> {
    /// The whole request, by the policy of its route.
    pub(super) fn whole(request: &'a Prepared, pool: &'a Arc<PoolState>, tried: &'a SlotSet) -> Self {
        Self { request, pool, policy: &*request.route.policy, task: Task::Whole, tried }
    }
}

impl Asking<'_> {
    /// What the best placement would mean; `None` without a replica.
    pub(super) fn quote(&self, now: Stamp) -> Option<Quote> {
        self.ask(true, now, |judged, _| judged.quote()).flatten()
    }

    /// Judges the replicas that may take it, for `then`; `None` where there is none.
    pub(super) fn judge<R>(&self, now: Stamp, then: impl FnOnce(&Judged<'_>, &Scene) -> R) -> Option<R> {
        self.ask(false, now, then)
    }

    /// Takes the replica that is judged best, past admission; `None` where none may take it.
    pub(super) fn take_best(&self, now: Stamp) -> Option<Box<Pick>> {
        self.judge(now, |judged, scene| self.take(judged, scene, Box::default(), now)).flatten()
    }

    fn ask<R>(&self, is_quote: bool, now: Stamp, then: impl FnOnce(&Judged<'_>, &Scene) -> R) -> Option<R> {
        let Self { request, pool, .. } = *self;
        let replicas = pool.replicas();
        let is_untried = |replica: &Replica| !self.tried.contains(replica.slot());
        // A replica in its back-off, on trial or without the model is better than none.
        let has_preferred =
            request.pinned.is_none() && replicas.iter().any(|r| is_untried(r) && self.is_preferred(r, now));
        let scene = Scene { replicas, has_preferred };
        let chain = &request.prompt.chain;
        let lacks_adapter = lacks_adapter(pool, request, &scene.replicas);
        let waited = now.since(request.read);
        let whole = Ask {
            prompt: Prompt { chain: chain.hashes(), bytes: chain.bytes(), tokens: request.tokens },
            session: request.session,
            slo: request.slo,
            waited,
            queues_late: pool.queue.is_strict(),
            shows_first_token: request.shows_first_token,
            conversation: request.prompt.conversation,
            turn: Turn { whole: request.prompt.chain.whole(), continues: request.prompt.continues },
            sampling: request.sampling,
            has_media: request.prompt.size.media > 0,
            is_untimed: request.computes == Computes::Other,
            is_past_engine: false,
            lacks_adapter: lacks_adapter.as_ref(),
            elsewhere: None,
            tried: self.tried,
            is_quote,
        };
        // What its engine will refuse is no work for it: others would wait for nothing.
        let is_no_work = request.computes == Computes::Nothing
            || request.length().is_some_and(|tokens| pool.refuses_length(tokens));
        let whole = if is_no_work { whole.past_engine() } else { whole };
        let ask = match self.task {
            Task::Whole => whole,
            Task::Prefill => whole.for_prefill(),
            Task::Decode { after, elsewhere } => whole.for_decode(after, elsewhere),
            Task::Taken(_) => Ask { is_untimed: true, ..whole },
        };
        let takes = |replica: &&Arc<Replica>| self.may_take(replica, &scene, now);
        let targets = scene.replicas.iter().filter(takes).map(|replica| &replica.target);
        let judged = pool.dispatcher.judge(self.policy, &ask, &pool.engine_limits(), now, targets)?;
        Some(then(&judged, &scene))
    }

    /// Whether it is neither in a back-off nor on trial, and has the model.
    pub(super) fn is_preferred(&self, replica: &Replica, now: Stamp) -> bool {
        let model = self.request.model.as_deref();
        replica.is_open(now)
            && self.request.allows(replica)
            && model.is_none_or(|model| !is_missing(self.pool, replica, model))
    }

    /// Whether it may go there.
    pub(super) fn may_take(&self, replica: &Arc<Replica>, scene: &Scene, now: Stamp) -> bool {
        if let Task::Taken(there) = self.task {
            return Arc::ptr_eq(there, replica);
        }
        match &self.request.pinned {
            Some(pinned) => {
                // One that drains is asked for what it alone has.
                let is_there = replica.state() == ReplicaState::Ready;
                is_there && Arc::ptr_eq(pinned, replica) && self.request.allows(replica)
            }
            None if scene.has_preferred => self.is_preferred(replica, now),
            None => replica.is_ready() && self.request.allows(replica),
        }
    }

    /// Acts on a decision that places.
    pub(super) fn take(
        &self,
        judged: &Judged<'_>,
        scene: &Scene,
        weighed: Box<[Weighed]>,
        now: Stamp,
    ) -> Option<Box<Pick>> {
        let Self { request, pool, .. } = *self;
        let replicas = &scene.replicas;
        let outside = pool.reserve_outside(request.outside_demand(), now).ok()?;
        let predicted_from = judged.query.aim.waited;
        let others = request.route.pools.iter().filter(|other| !Arc::ptr_eq(other, pool));
        let others = others.map(|other| &*other.dispatcher);
        // Asked only where revisions are compared.
        let is_compared = request.route.config.canary.is_some();
        let longest_fill = if is_compared { judged.longest_fill(others.clone()) } else { Duration::ZERO };
        let misses_cache = is_compared && judged.misses_cache_of(others);
        let mut assignment = judged.assign()?;
        let replica = Arc::clone(replicas.iter().find(|r| r.slot() == assignment.decision.slot)?);
        let has_adapter = |model: &Arc<str>| scene.has_preferred && lacked_elsewhere(replicas, model);
        let is_only = assignment.decision.reason == Reason::Only;
        if is_only && request.model.as_ref().is_some_and(has_adapter) {
            assignment.decision.reason = Reason::Adapter;
        }
        replica.chosen(now);
        let fill = misses_cache.then(|| CacheFill::begin(&replica, now.after(longest_fill)));
        let warmth = &replica.health.warmth;
        let (is_cold, is_filling) = (warmth.is_cold(now), warmth.has_filled_since(now));
        let summary = assignment.decision.summary(predicted_from);
        Some(Box::new(Pick {
            turn: TurnOnDrop(Arc::clone(&pool.queue)),
            pool: Arc::clone(pool),
            replica,
            decision: DecisionSummary {
                weighed,
                is_cold,
                is_filling,
                longest_fill,
                waited: now.since(request.read),
                ..summary
            },
            assignment,
            size: request.prompt.size,
            identity: request.identity,
            request: distinguished(request),
            is_pinned: request.pinned.is_some(),
            prefill: None,
            ways: None,
            outside,
            fill,
        }))
    }
}

/// What distinguishes a request from others, so that the same one sent again and again is one failure: its prompt, else its body; a handshake
/// has neither.
fn distinguished(request: &Prepared) -> u64 {
    match (request.prompt.chain.whole(), request.identity) {
        (0, NO_BODY) => request.read.as_nanos(),
        (0, identity) => identity,
        (prompt, _) => prompt,
    }
}

/// Replicas that would have to load the adapter that the request names; `None` where none holds it.
fn lacks_adapter(pool: &PoolState, request: &Prepared, replicas: &[Arc<Replica>]) -> Option<SlotSet> {
    let model = request.model.as_deref().filter(|_| pool.tells_adapters.load(Ordering::Relaxed))?;
    let holds = |replica: &&Arc<Replica>| replica.engine.adapters.holds(model);
    let lacks = |replica: &&Arc<Replica>| !holds(replica);
    let is_held = replicas.iter().any(|replica| holds(&replica));
    is_held.then(|| replicas.iter().filter(lacks).map(|replica| replica.slot()).collect())
}

/// Whether a replica that lists its models does not list this one, while another one of its pool does.
fn is_missing(pool: &PoolState, replica: &Replica, model: &str) -> bool {
    !replica.may_have(model) && pool.others_list(replica, model)
}

/// Whether another ready replica lists models, but not this one.
fn lacked_elsewhere(replicas: &[Arc<Replica>], model: &str) -> bool {
    replicas.iter().any(|other| other.is_ready() && !other.may_have(model))
}
