//! The prefill pool of a replayed route: the first legs of its requests, and what becomes of their KV.
//!
//! Its rule is the gateway's ([`crate::routing::ways`]), and it learns from the same moments as `gateway::prefill_leg`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokenway_sim::replay::{Arrival, Ended, RequestId};

use super::{Standings, identity, live};
use crate::clock::Stamp;
use crate::config::{PolicyName, PrefillWhen};
use crate::routing::ways::{Rule, weigh};
use crate::routing::{
    Ask, Assignment, Dispatcher, Elsewhere, EngineLimits, Judged, Offers, Pair, Policy, Quote, SlotSet,
    Target, Transfers, UnderWay, policies,
};
use crate::units::Tokens;

/// `[route.prefill]` as a replay runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayedPrefill {
    /// When another pool computes a prompt.
    pub when: PrefillWhen,
    /// Prompts of fewer uncached tokens stay where they are decoded.
    pub min_uncached_tokens: u64,
}

/// The replicas that compute prompts, behind those that decode.
pub(super) struct PrefillPool {
    keys: ReplayedPrefill,
    policy: Box<dyn Policy>,
    limits: EngineLimits,
    /// Place of its first replica in the fleet.
    first: usize,
    pub(super) dispatcher: Arc<Dispatcher>,
    targets: Vec<Target>,
    transfers: Arc<Transfers>,
    untried: SlotSet,
    legs: HashMap<RequestId, Leg>,
    /// Requests whose KV was lost.
    stays: HashSet<RequestId>,
}

/// A request whose prompt is computed here, until its first token.
struct Leg {
    request: Arrival,
    /// Until the prompt is computed.
    assignment: Option<Assignment>,
    pair: Pair,
    /// Tokens that move.
    tokens: Tokens,
    /// What decoding takes beside the transfer, in seconds.
    place: f64,
    /// Of queue and transfer, in seconds.
    expected: f64,
    computed_at: Stamp,
    under_way: Option<UnderWay>,
}

/// The replicas that decode, as one decision sees them.
#[derive(Clone, Copy)]
pub(super) struct Decoders<'a> {
    pub(super) policy: &'a dyn Policy,
    pub(super) dispatcher: &'a Arc<Dispatcher>,
    pub(super) targets: &'a [Target],
    pub(super) standings: &'a Standings,
    pub(super) limits: &'a EngineLimits,
}

impl<'a> Decoders<'a> {
    pub(super) fn judge<'q>(&self, ask: &Ask<'q>, now: Stamp) -> Option<Judged<'q>>
    where
        'a: 'q,
    {
        let Self { policy, dispatcher, targets, standings, limits } = *self;
        let in_use = targets.iter().filter(|target| standings.is_in(target.slot));
        dispatcher.judge(policy, ask, limits, now, in_use)
    }
}

impl PrefillPool {
    /// Behind `first` replicas that decode.
    pub(super) fn new(keys: ReplayedPrefill, limits: EngineLimits, first: usize, replicas: usize) -> Self {
        Self {
            keys,
            policy: policies::named(PolicyName::Latency),
            limits,
            first,
            dispatcher: Dispatcher::new(replicas),
            targets: (0..replicas).map(|slot| Target::new(slot, identity(first + slot))).collect(),
            transfers: Arc::default(),
            untried: SlotSet::new(),
            legs: HashMap::new(),
            stays: HashSet::new(),
        }
    }

    fn judge<'a>(&'a self, ask: &Ask<'a>, now: Stamp) -> Option<Judged<'a>> {
        self.dispatcher.judge(&*self.policy, ask, &self.limits, now, self.targets.iter())
    }

    /// The replica that is to compute the prompt, where that is not the one that decodes it.
    pub(super) fn choose(
        &self,
        request: RequestId,
        whole: &Ask<'_>,
        decoders: &Decoders<'_>,
        now: Stamp,
    ) -> Option<Quote> {
        let ReplayedPrefill { when, min_uncached_tokens } = self.keys;
        if when == PrefillWhen::Never || self.stays.contains(&request) {
            return None;
        }
        let (model, transfers, tried) = (&self.dispatcher.model, &self.transfers, &self.untried);
        let rule = Rule { when, min_uncached_tokens, model, transfers, tried };
        weigh(&Pools { whole, decoders, side: self, now }, &rule, whole.prompt.tokens, now).prefill
    }

    /// Judges the decoders for a prompt that is computed by the replica of `prefill`.
    pub(super) fn with_decoder<R>(
        &self,
        prefill: &Quote,
        whole: &Ask<'_>,
        decoders: &Decoders<'_>,
        now: Stamp,
        then: impl FnOnce(Judged<'_>) -> R,
    ) -> Option<R> {
        let links = self.transfers.from(prefill.identity, now);
        let transfer = |identity, tokens| links.seconds(identity, tokens);
        let ask = whole.for_decode(prefill.ttft, Elsewhere { transfer: &transfer });
        decoders.judge(&ask, now).map(then)
    }

    pub(super) fn assign(&self, whole: &Ask<'_>, now: Stamp) -> Option<Assignment> {
        self.judge(&whole.for_prefill(), now)?.assign()
    }

    /// The first leg is under way. Returns its replica's place in the fleet.
    pub(super) fn begin(
        &mut self,
        request: Arrival,
        leg: Assignment,
        decode: &Assignment,
        now: Stamp,
    ) -> usize {
        let (slot, terms) = (leg.decision.slot, &decode.decision.terms);
        let pair = (identity(self.first + slot), identity(decode.decision.slot));
        self.transfers.tries(pair, now);
        let tokens = Tokens(request.prompt).saturating_sub(decode.decision.hit);
        let (place, id) = (terms.wait + terms.base, request.id);
        let expected = place + self.transfers.from(pair.0, now).seconds(pair.1, tokens);
        let (assignment, computed_at, under_way) = (Some(leg), now, None);
        let leg = Leg { request, assignment, pair, tokens, place, expected, computed_at, under_way };
        self.legs.insert(id, leg);
        self.first + slot
    }

    pub(super) fn computed(&mut self, request: RequestId, end: &Ended) {
        let Some(leg) = self.legs.get_mut(&request) else { return };
        let Some(mut own) = leg.assignment.take() else { return };
        leg.computed_at = live(end.at);
        leg.under_way = self.transfers.begin(leg.pair, leg.expected, leg.computed_at);
        own.first_token(leg.computed_at);
        own.prompt_reported(None, Some(Tokens(end.cached)));
    }

    /// The first token of a request: its KV has come, if it was to.
    pub(super) fn first_token(&mut self, request: RequestId, at: Stamp) {
        let Some(leg) = self.legs.remove(&request) else { return };
        let took = at.since(leg.computed_at).as_secs_f64() - leg.place;
        self.transfers.worked(leg.pair, leg.tokens, Some(took.max(0.0)));
    }

    /// The KV of a request did not come: it is to be placed anew, and computed where it is decoded.
    pub(super) fn lost(&mut self, request: RequestId, now: Stamp) -> Option<Arrival> {
        let leg = self.legs.remove(&request)?;
        self.transfers.failed(leg.pair, now);
        self.stays.insert(request);
        Some(leg.request)
    }

    /// The replica at this place of the fleet.
    pub(super) fn target(&self, replica: usize) -> Option<&Target> {
        self.targets.get(replica.checked_sub(self.first)?)
    }

    pub(super) fn refresh(&self, now: Stamp) {
        self.dispatcher.refresh(self.targets.iter(), self.targets.iter(), &self.limits, now);
    }
}

/// The two pools of a request.
struct Pools<'a> {
    whole: &'a Ask<'a>,
    decoders: &'a Decoders<'a>,
    side: &'a PrefillPool,
    now: Stamp,
}

impl Offers for Pools<'_> {
    fn together(&self) -> Option<Quote> {
        self.decoders.judge(&Ask { is_quote: true, ..*self.whole }, self.now)?.quote()
    }

    fn prefill(&self, closed: &SlotSet) -> Option<Quote> {
        let ask = Ask { tried: closed, is_quote: true, ..self.whole.for_prefill() };
        self.side.judge(&ask, self.now)?.quote()
    }

    fn decode(&self, after: Duration, elsewhere: Elsewhere<'_>) -> Option<Quote> {
        let ask = Ask { is_quote: true, ..self.whole.for_decode(after, elsewhere) };
        self.decoders.judge(&ask, self.now)?.quote()
    }

    fn is_prefill_ready(&self) -> bool {
        !self.side.targets.is_empty()
    }

    fn is_prefill_idle(&self) -> bool {
        self.side.targets.iter().all(|target| target.load.inflight() == 0)
    }
}
