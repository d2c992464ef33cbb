//! Asks a second replica where the first token is overdue (`hedge`): the first to speak wins, the other is cancelled.
//!
//! Overdue is measured against the request's own prediction, by how predictions have fitted of late, or by a fixed delay. The budget is
//! a share of the route's requests, without a floor: hedges are paid for by requests that came before. For answers whose first
//! token can be seen, streams above all; a unary generation takes as long as its answer is long, which nothing predicts.

use std::pin::pin;
use std::sync::Arc;

use super::Gateway;
use super::asking::Tried;
use super::attempt::{AttemptError, UpstreamResponse};
use super::outbound::{Flight, Outbound};
use super::picker;
use super::prepared::Prepared;
use crate::clock::Stamp;
use crate::config::HedgeAfter;
use crate::fleet::pick::Pick;
use crate::fleet::pool::PoolState;
use crate::record::{AttemptCause, Record};

/// What an attempt came to.
type Landed = Result<UpstreamResponse, AttemptError>;

/// What the second of two attempts came to beside the first.
struct Second {
    flight: Flight,
    /// Whether it counts.
    counts: bool,
    /// What the attempt that does not count came to, where it was waited for.
    other: Option<Landed>,
}

/// What became of a request's attempt, and of a second one where that was made.
pub(super) struct Flown {
    /// The attempt that counts.
    pub(super) flight: Flight,
    /// What it came to.
    pub(super) landed: Landed,
    /// The one that does not, and what that came to where it failed by itself.
    pub(super) other: Option<(Flight, Option<Landed>)>,
}

/// Flies the first attempt, which is open in `record`, and a second one where it is overdue.
pub(super) async fn fly(
    outbound: &Outbound<'_>,
    mut first: Flight,
    record: &mut Record,
    due: Option<Stamp>,
    tried: &Tried,
) -> Flown {
    let Some(due) = due else {
        let landed = first.land_in(record, outbound.prepared.prompt.chain.hashes()).await;
        return Flown { flight: first, landed, other: None };
    };
    // Boxed: few routes hedge, and the two attempts' state would be in every request's future.
    let (landed, second) = Box::pin(race(outbound, &mut first, record, due, tried)).await;
    match second {
        None => Flown { flight: first, landed, other: None },
        Some(second) => settle(&outbound.incoming.gateway, first, second, landed),
    }
}

/// When the first token is overdue; `None` where the request is not to be hedged.
pub(super) fn due(prepared: &Prepared, cause: AttemptCause, first: &Flight) -> Option<Stamp> {
    let hedge = prepared.route.config.hedge?;
    let is_bound = prepared.pinned.is_some() || prepared.is_sent_once || prepared.carrier.is_some();
    // Blocks that one engine has fetched are no longer there for another.
    let is_apart = first.pick().ways.as_ref().is_some_and(|ways| ways.is_apart);
    if cause != AttemptCause::First || !prepared.shows_first_token || is_bound || is_apart {
        return None;
    }
    prepared.route.hedges.deposit(hedge.budget);
    let assignment = &first.pick().assignment;
    let wait = match hedge.after {
        HedgeAfter::Delay(delay) => delay,
        HedgeAfter::Quantile(share) => assignment.ttft_within(share)?,
    };
    Some(assignment.at().after(wait))
}

async fn race(
    outbound: &Outbound<'_>,
    first: &mut Flight,
    record: &mut Record,
    due: Stamp,
    tried: &Tried,
) -> (Landed, Option<Second>) {
    let gateway = &outbound.incoming.gateway;
    let (pool, tried) = {
        let pick = first.pick();
        let mut tried = tried.clone();
        picker::note_tried(&mut tried, pick);
        (Arc::clone(&pick.pool), tried)
    };
    let mut one = pin!(first.land_in(record, outbound.prepared.prompt.chain.hashes()));
    // Both arms are cancel-safe: the first attempt is polled on.
    let landed = tokio::select! {
        biased;
        landed = one.as_mut() => Some(landed),
        () = tokio::time::sleep_until(gateway.clock.instant(due)) => None,
    };
    if let Some(landed) = landed {
        return (landed, None);
    }
    let Some(pick) = second(gateway, outbound.prepared, &pool, &tried) else {
        return (one.await, None);
    };
    let owes_answer = outbound.identity.dialect.owes_answer(&outbound.incoming.parts.method);
    let mut flight = outbound.launch(pick, AttemptCause::Hedge);
    let (landed, counts, other) = {
        let mut two = pin!(flight.land());
        // Both arms are cancel-safe: whichever is left is polled on, or given up for good.
        tokio::select! {
            biased;
            landed = one.as_mut() => match landed {
                Ok(_) => (landed, false, None),
                Err(_) => (two.await, true, Some(landed)),
            },
            landed = two.as_mut() => match &landed {
                Ok(answer) if !answer.is_error(outbound.identity.dialect, owes_answer) => (landed, true, None),
                // An instant refusal is no answer to prefer.
                _ => (one.await, false, Some(landed)),
            },
        }
    };
    (landed, Some(Second { flight, counts, other }))
}

/// Another replica of the same pool, within the budget, for a request that is not refused.
fn second(
    gateway: &Arc<Gateway>,
    prepared: &Prepared,
    pool: &Arc<PoolState>,
    tried: &Tried,
) -> Option<Box<Pick>> {
    let now = gateway.clock.now();
    if pool.poison.refused_for(prepared.identity, now).is_some() || gateway.drain.refuses() {
        return None;
    }
    // First: a replica that is picked is expected to have the prompt from then on.
    let budget = &prepared.route.hedges;
    if !budget.withdraw(0, now) {
        return None;
    }
    let second = picker::another(gateway, prepared, pool, tried);
    if second.is_none() {
        budget.deposit(1.0);
    }
    second
}

/// What is noted of the attempt that does not count.
fn settle(gateway: &Gateway, first: Flight, second: Second, landed: Landed) -> Flown {
    let now = gateway.clock.now();
    let Second { flight: second, counts, other } = second;
    let result = match (counts, &other) {
        (true, _) if landed.is_ok() => "won",
        (false, None) => "lost",
        _ => "failed",
    };
    if counts && other.is_none() {
        // It was overdue, which is known for certain.
        first.pick().assignment.censored(now);
    }
    gateway.observer.metrics.families.requests.hedges.inc([result]);
    let (flight, left) = if counts { (second, first) } else { (first, second) };
    Flown { flight, landed, other: Some((left, other)) }
}
