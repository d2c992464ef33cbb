//! Where a prompt is computed on a route with `[route.prefill]`: at its decoding replica, or in the prefill pool.
//!
//! Both ways are priced by what prices candidates: hit, queue and harm at the best decoding replica; or hit and queue at the best
//! prefill replica, its KV's transfer, and a place at a decoding one. Nothing is reserved here: [`super::picker`] acts on the
//! answer, and [`super::prefill_leg`] flies it.

use super::asking::{Asking, Quote, Task};
use super::prefill_side::PrefillSide;
use super::prepared::Prepared;
use crate::clock::Stamp;
use crate::config::PrefillWhen;
use crate::fleet::pool::PoolState;
use crate::record::{ApartCost, Ways};
use crate::request::dialect::Dialect;
use crate::request::fields::Fields;
use crate::routing::tuning::priors;
use crate::routing::{Elsewhere, SlotSet};

/// The way of a request.
pub(super) struct Choice {
    pub(super) ways: Ways,
    /// The prefill replica, where another pool computes the prompt.
    pub(super) prefill: Option<Quote>,
}

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

/// The way of a request that asks `whole` for its place; `tried` are replicas of the prefill pool.
pub(super) fn weigh(whole: &Asking<'_>, side: &PrefillSide, tried: &SlotSet, now: Stamp) -> Choice {
    let request = whole.request;
    let mut ways = Ways::default();
    let together = |ways: Ways, reason| Choice { ways: Ways { reason, ..ways }, prefill: None };
    if let Some(reason) = forbidden(request, side, whole.pool, now) {
        return together(ways, reason);
    }
    let here = whole.quote(now);
    ways.together = here.as_ref().map(|quote| quote.cost);
    let uncached = here.as_ref().map_or(request.tokens, |quote| quote.uncached);
    if uncached.0 < side.keys.min_uncached_tokens {
        return together(ways, "short");
    }
    let mut closed = tried.clone();
    for _ in 0..MAX_PREFILL_REPLICAS {
        let asking =
            Asking { pool: &side.pool, policy: &*side.policy, task: Task::Prefill, tried: &closed, ..*whole };
        let Some(prefill) = asking.quote(now) else { break };
        side.note_ready(&request.route.config.name, true);
        let links = side.transfers.from(prefill.identity, now);
        let transfer = |identity, tokens| links.seconds(identity, tokens);
        let task = Task::Decode { after: prefill.ttft, elsewhere: Elsewhere { transfer: &transfer } };
        let Some(decode) = (Asking { task, ..*whole }).quote(now) else { break };
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
        let (is_apart, reason) = match side.keys.when {
            PrefillWhen::Always => (true, "always"),
            _ => cheaper(side, here.as_ref(), &apart, uncached.0),
        };
        let prefill = is_apart.then_some(prefill);
        return Choice { ways: Ways { is_apart, reason, ..ways }, prefill };
    }
    let is_ready = side.pool.is_ready();
    side.note_ready(&request.route.config.name, is_ready);
    together(ways, if is_ready { "avoided" } else { "no_replica" })
}

fn forbidden(request: &Prepared, side: &PrefillSide, pool: &PoolState, now: Stamp) -> Option<&'static str> {
    match request.stays {
        Some(reason) => Some(reason),
        None if side.keys.when == PrefillWhen::Never => Some("never"),
        None if request.pinned.is_some() => Some("stored"),
        None if pool.config().revision != side.pool.config().revision => Some("revision"),
        None if side.is_closed(now) => Some("no_params"),
        None => None,
    }
}

/// Whether two legs cost less, by more than predictions err. Where nothing is held back, a wait for streams here (`None`) is a
/// reason to go. A pool that has computed nothing yet gets a long prompt to be learned by.
fn cheaper(
    side: &PrefillSide,
    here: Option<&Quote>,
    apart: &ApartCost,
    uncached: u64,
) -> (bool, &'static str) {
    if !side.pool.dispatcher.model.is_taught() {
        let is_idle = side.pool.replicas().iter().all(|replica| replica.target.load.inflight() == 0);
        return (is_idle && uncached >= MIN_LESSON, "unlearned");
    }
    match here {
        Some(here) => {
            let margin = priors::JITTER.max(MARGIN * here.cost);
            (apart.total() + margin < here.cost, "cost")
        }
        None => (true, "cost"),
    }
}

/// Replicas that are asked for one whose transfers work.
const MAX_PREFILL_REPLICAS: usize = 3;
/// Share of the cost by which two legs have to be better.
const MARGIN: f64 = 0.05;
/// Uncached tokens of a prompt that teaches something of a pool's speed.
const MIN_LESSON: u64 = 512;
