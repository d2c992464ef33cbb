//! Where a prompt is computed on a route with `[route.prefill]`: at its decoding replica, or in the prefill pool.
//!
//! [`ways::weigh`] prices both ways; what a request or the state of a pool rules out is here. Nothing is reserved:
//! [`super::picker`] acts on the answer, and [`super::prefill_leg`] flies it.

use std::time::Duration;

use super::asking::{Asking, Task};
use super::prefill_side::PrefillSide;
use super::prepared::Prepared;
use crate::clock::Stamp;
use crate::config::{Prefill, PrefillWhen};
use crate::fleet::pick::Pick;
use crate::fleet::pool::PoolState;
use crate::record::Ways;
use crate::request::dialect::{Computes, Dialect};
use crate::request::fields::Fields;
use crate::routing::ways::{self, Choice, Rule};
use crate::routing::{Elsewhere, Offers, Quote, SlotSet};

/// Why the prompt of a request has to be computed where it is decoded, by its fields.
pub(super) fn obstacle(
    dialect: Dialect,
    fields: &Fields<'_>,
    has_several_choices: bool,
) -> Option<&'static str> {
    match dialect {
        Dialect::Chat | Dialect::Completions | Dialect::Messages | Dialect::Responses => {}
        _ => return Some("dialect"),
    }
    if has_several_choices {
        return Some("choices");
    }
    if fields.echo {
        return Some("echo");
    }
    let is_bound = fields.is_stored || fields.previous_response_id.is_some();
    is_bound.then_some("stored")
}

/// The way of a request that asks `whole` for its place; `tried` are replicas of the prefill pool that are out of the question.
pub(super) fn weigh(whole: &Asking<'_>, side: &PrefillSide, tried: &SlotSet, now: Stamp) -> Choice {
    let request = whole.request;
    if let Some(reason) = forbidden(request, side, whole.pool, now) {
        return Choice::together(Ways::default(), reason);
    }
    let Prefill { when, min_uncached_tokens, .. } = side.keys;
    let (model, transfers) = (&side.pool.dispatcher.model, &*side.transfers);
    let rule = Rule { when, min_uncached_tokens, model, transfers, tried };
    let choice = ways::weigh(&Pools { whole, side, now }, &rule, request.tokens, now);
    if choice.ways.reason != "short" {
        side.note_ready(&request.route.config.name, choice.ways.reason != ways::NO_REPLICA);
    }
    choice
}

/// How much longer a request is refused because engines of the prefill pool died of it. One that was answered where it is decoded is
/// computed there from now on.
pub(super) fn refused_for(request: &mut Prepared, now: Stamp) -> Option<Duration> {
    let side = request.route.prefill.as_ref().filter(|side| side.keys.when != PrefillWhen::Never)?;
    let left = side.pool.poison.refused_for(request.identity, now)?;
    if request.route.pools.iter().any(|pool| pool.poison.has_answered(request.identity)) {
        request.stays = Some("prefill_failed");
        return None;
    }
    Some(left)
}

/// Counts a prompt that found no replica in the prefill pool as demand on it: a pool at zero would stay there.
pub(super) fn note_missing(request: &Prepared, pick: &Pick) {
    let is_missing = pick.ways.as_ref().is_some_and(|ways| ways.reason == ways::NO_REPLICA);
    let Some(side) = request.route.prefill.as_ref().filter(|_| is_missing) else { return };
    let work = &pick.assignment.decision.terms.work;
    if side.keys.when == PrefillWhen::Always || ways::is_worth_learning(work.tokens) {
        side.pool.arrivals.note();
        side.pool.arrivals.placed(work, Computes::Prompt);
    }
}

/// The two pools of a request.
struct Pools<'a> {
    whole: &'a Asking<'a>,
    side: &'a PrefillSide,
    now: Stamp,
}

impl Offers for Pools<'_> {
    fn together(&self) -> Option<Quote> {
        self.whole.quote(self.now)
    }

    fn prefill(&self, closed: &SlotSet) -> Option<Quote> {
        let Self { whole, side, now } = *self;
        let policy = &*side.policy;
        Asking { pool: &side.pool, policy, task: Task::Prefill, tried: closed, ..*whole }.quote(now)
    }

    fn decode(&self, after: Duration, elsewhere: Elsewhere<'_>) -> Option<Quote> {
        Asking { task: Task::Decode { after, elsewhere }, ..*self.whole }.quote(self.now)
    }

    fn is_prefill_ready(&self) -> bool {
        self.side.pool.is_ready()
    }

    fn is_prefill_idle(&self) -> bool {
        self.side.pool.replicas().iter().all(|replica| replica.target.load.inflight() == 0)
    }
}

fn forbidden(request: &Prepared, side: &PrefillSide, pool: &PoolState, now: Stamp) -> Option<&'static str> {
    match request.stays {
        Some(reason) => Some(reason),
        None if side.keys.when == PrefillWhen::Never => Some("never"),
        None if request.pinned.is_some() => Some("stored"),
        None if !side.reaches(pool) => Some("revision"),
        None if side.is_closed(now) => Some("no_params"),
        None => None,
    }
}
