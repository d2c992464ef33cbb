//! Where the prompt of a request is computed: at the replica that decodes it, or at one of a pool that computes prompts.
//!
//! Both ways are priced by what prices candidates: hit, queue and harm at the best decoding replica; or hit and queue at the best
//! prefill replica, its KV's transfer, and a place at a decoding one. Nothing is reserved here. The gateway and `replay` differ in
//! what they offer ([`Offers`]), and in nothing else.

use std::time::Duration;

use super::{Elsewhere, PoolModel, SlotSet, Transfers};
use crate::clock::Stamp;
use crate::config::PrefillWhen;
use crate::record::{ApartCost, Ways};
use crate::routing::tuning::priors;
use crate::units::Tokens;

/// What a placement would mean, without any.
#[derive(Clone, Copy, Debug)]
pub struct Quote {
    /// Of the replica.
    pub slot: usize,
    /// [`super::rendezvous::identity`] of the replica.
    pub identity: u64,
    /// To the first token.
    pub ttft: Duration,
    /// Seconds, as of a candidate.
    pub cost: f64,
    /// Seconds of it that KV moves.
    pub transfer: f64,
    /// Prompt tokens that it lacks.
    pub uncached: Tokens,
}

/// What two pools offer one request. A quote is absent where there is no replica.
pub trait Offers {
    /// To compute its prompt and to decode it.
    fn together(&self) -> Option<Quote>;

    /// To compute its prompt, these replicas of the prefill pool excepted.
    fn prefill(&self, closed: &SlotSet) -> Option<Quote>;

    /// To decode what is computed `after` so long.
    fn decode(&self, after: Duration, elsewhere: Elsewhere<'_>) -> Option<Quote>;

    /// Whether the prefill pool has a ready replica.
    fn is_prefill_ready(&self) -> bool;

    /// Whether it computes none now.
    fn is_prefill_idle(&self) -> bool;
}

/// By what a way is chosen.
#[derive(Clone, Copy, Debug)]
pub struct Rule<'a> {
    /// `route.prefill.when`; `never` is the caller's.
    pub when: PrefillWhen,
    /// `route.prefill.min_uncached_tokens`
    pub min_uncached_tokens: u64,
    /// What is known of the speed of the prefill pool, ...
    pub model: &'a PoolModel,
    /// ... and of transfers from there.
    pub transfers: &'a Transfers,
    /// Replicas of the prefill pool that the request has tried.
    pub tried: &'a SlotSet,
}

/// The way of a request.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Both ways, and which is taken.
    pub ways: Ways,
    /// The prefill replica, where another pool computes the prompt.
    pub prefill: Option<Quote>,
    /// Replicas of the prefill pool that are out of the question, those of avoided pairs among them.
    pub closed: SlotSet,
}

impl Choice {
    /// In one place, for a reason.
    pub fn together(ways: Ways, reason: &'static str) -> Self {
        Self { ways: Ways { reason, ..ways }, prefill: None, closed: SlotSet::new() }
    }
}

/// The way of a request of `tokens` prompt tokens.
pub fn weigh(offers: &impl Offers, rule: &Rule<'_>, tokens: Tokens, now: Stamp) -> Choice {
    let here = offers.together();
    let mut ways = Ways { together: here.map(|quote| quote.cost), ..Ways::default() };
    let uncached = here.map_or(tokens, |quote| quote.uncached);
    if uncached.0 < rule.min_uncached_tokens {
        return Choice::together(ways, "short");
    }
    let mut closed = rule.tried.clone();
    while let Some(prefill) = offers.prefill(&closed) {
        let links = rule.transfers.from(prefill.identity, now);
        let transfer = |identity, tokens| links.seconds(identity, tokens);
        let Some(decode) = offers.decode(prefill.ttft, Elsewhere { transfer: &transfer }) else { break };
        if links.is_avoided(decode.identity) {
            closed.insert(prefill.slot);
            continue;
        }
        let apart = ApartCost {
            prefill: prefill.cost,
            transfer: decode.transfer,
            decode: decode.cost - decode.transfer,
        };
        ways.apart = Some(apart);
        let (is_apart, reason) = match rule.when {
            PrefillWhen::Always => (true, "always"),
            _ if rule.model.pool.is_taught() => cheaper(here.as_ref(), &apart),
            // A pool that has computed nothing yet gets a prompt of mean length to be learned by.
            _ => (offers.is_prefill_idle() && is_worth_learning(uncached.0), "unlearned"),
        };
        let prefill = is_apart.then_some(prefill);
        return Choice { ways: Ways { is_apart, reason, ..ways }, prefill, closed };
    }
    let reason = if offers.is_prefill_ready() { "avoided" } else { NO_REPLICA };
    Choice::together(ways, reason)
}

/// Whether two legs cost less, by more than predictions err, or there is no replica here.
fn cheaper(here: Option<&Quote>, apart: &ApartCost) -> (bool, &'static str) {
    let is_cheaper = |here: &Quote| apart.total() + priors::JITTER.max(MARGIN * here.cost) < here.cost;
    (here.is_none_or(is_cheaper), "cost")
}

/// Whether a prompt is long enough that a prefill pool of which nothing is known yet gets it.
pub fn is_worth_learning(uncached: u64) -> bool {
    uncached as f64 >= 2.0 * priors::ANSWER_TOKENS
}

/// The prefill pool has no ready replica.
pub const NO_REPLICA: &str = "no_replica";
/// Share of the cost by which two legs have to be better.
const MARGIN: f64 = 0.05;
