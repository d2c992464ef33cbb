//! Asks a second replica where the first token is overdue (`hedge`): the first to speak wins, the other is cancelled.
//!
//! Overdue is measured against the request's own prediction, by how predictions have fitted of late, or by a fixed delay. The budget is
//! a share of the route's requests, without a floor: hedges are paid for by requests that came before. For answers whose first
//! token can be seen, streams above all; a unary generation takes as long as its answer is long, which nothing predicts.

use std::pin::pin;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Gateway;
use super::attempt::{AttemptError, UpstreamResponse};
use super::exchange::Exchange;
use super::outbound::{Flight, Identity};
use super::picker::{self, PickContext, PickOutcome};
use super::prepare::Prepared;
use crate::clock::Stamp;
use crate::config::HedgeAfter;
use crate::fleet::pick::Pick;
use crate::record::AttemptCause;

/// Hedges that a route may still make.
#[derive(Debug, Default)]
pub struct HedgeBudget(Mutex<f64>);

impl HedgeBudget {
    fn deposit(&self, share: f64) {
        let mut balance = self.0.lock();
        *balance = (*balance + share).min(MAX_BALANCE);
    }

    fn withdraw(&self) -> bool {
        let mut balance = self.0.lock();
        let is_granted = *balance >= 1.0;
        if is_granted {
            *balance -= 1.0;
        }
        is_granted
    }
}

/// What an attempt came to.
type Landed = Result<UpstreamResponse, AttemptError>;

/// What two attempts came to, as far as both were needed.
enum Race {
    /// Nobody else was asked.
    Alone(Landed),
    /// The first answered first.
    First(Landed),
    /// The second answered first.
    Second(Landed),
    /// The second failed, so the first was waited for.
    FirstAfter { second: Landed, first: Landed },
    /// The first failed, so the second was waited for.
    SecondAfter { first: Landed, second: Landed },
}

/// Flies the first attempt, and a second one where it is overdue. Returns the one that counts, with what it came to; the other is noted.
pub(super) async fn fly(exchange: &mut Exchange, mut first: Flight, identity: &Identity) -> (Flight, Landed) {
    let Some(due) = due(exchange, &first) else {
        let landed = first.land().await;
        return (first, landed);
    };
    // Boxed: few routes hedge, and the two attempts' state would be in every request's future.
    let (second, race) = Box::pin(race(exchange, &mut first, due, identity)).await;
    settle(exchange, first, second, race)
}

/// When the first token is overdue; `None` where the request is not to be hedged.
fn due(exchange: &mut Exchange, first: &Flight) -> Option<Stamp> {
    let hedge = exchange.prepared.route.config.hedge?;
    let is_first = exchange.guard.record().attempts.is_empty();
    let Prepared { route, shows_first_token, pinned, .. } = &*exchange.prepared;
    if !is_first || !shows_first_token || pinned.is_some() {
        return None;
    }
    route.hedges.deposit(hedge.budget);
    let assignment = &first.pick()?.assignment;
    let wait = match hedge.after {
        HedgeAfter::Delay(delay) => delay,
        HedgeAfter::Quantile(share) => assignment.ttft_within(share)?,
    };
    Some(assignment.at.after(wait))
}

async fn race(
    exchange: &mut Exchange,
    first: &mut Flight,
    due: Stamp,
    identity: &Identity,
) -> (Option<Flight>, Race) {
    let clock = exchange.gateway().clock;
    let (pool, tried) = {
        let Some(pick) = first.pick() else { return (None, Race::Alone(first.land().await)) };
        let mut tried = exchange.tried.clone();
        picker::note_tried(&mut tried, pick);
        (Arc::clone(&pick.pool), tried)
    };
    let mut one = pin!(first.land());
    // Both arms are cancel-safe: the first attempt is polled on.
    let landed = tokio::select! {
        biased;
        landed = one.as_mut() => Some(landed),
        () = tokio::time::sleep_until(clock.instant(due)) => None,
    };
    if let Some(landed) = landed {
        return (None, Race::Alone(landed));
    }
    let Some(pick) = second(exchange.gateway(), &exchange.prepared, &pool, &tried) else {
        return (None, Race::Alone(one.await));
    };
    let mut flight = exchange.outbound(identity).launch(pick, AttemptCause::Hedge);
    let race = {
        let mut two = pin!(flight.land());
        // Both arms are cancel-safe: whichever is left is polled on, or given up for good.
        tokio::select! {
            biased;
            landed = one.as_mut() => match landed {
                Ok(_) => Race::First(landed),
                Err(_) => Race::SecondAfter { first: landed, second: two.await },
            },
            landed = two.as_mut() => match &landed {
                Ok(answer) if answer.status().is_success() => Race::Second(landed),
                // An instant refusal is no answer to prefer.
                _ => Race::FirstAfter { second: landed, first: one.await },
            },
        }
    };
    (Some(flight), race)
}

/// Another replica of the same pool, within the budget, for a prompt that is not refused.
fn second(
    gateway: &Arc<Gateway>,
    prepared: &Prepared,
    pool: &Arc<crate::fleet::pool::PoolState>,
    tried: &picker::Tried,
) -> Option<Box<Pick>> {
    if pool.poisoned_for(prepared.prompt.chain.whole(), gateway.clock.now()).is_some()
        || gateway.drain.refuses()
    {
        return None;
    }
    let at = prepared.route.pools.iter().position(|(known, _)| Arc::ptr_eq(known, pool));
    match picker::pick(gateway, prepared, PickContext { tried, pool: at, is_late: false })? {
        PickOutcome::Take(pick) if Arc::ptr_eq(&pick.pool, pool) => {
            prepared.route.hedges.withdraw().then_some(pick)
        }
        _ => None,
    }
}

/// Notes the attempt that does not count, before the one that does.
fn settle(exchange: &mut Exchange, first: Flight, second: Option<Flight>, race: Race) -> (Flight, Landed) {
    let Some(second) = second else {
        return match race {
            Race::Alone(landed) | Race::First(landed) | Race::Second(landed) => (first, landed),
            Race::FirstAfter { first: landed, .. } | Race::SecondAfter { first: landed, .. } => {
                (first, landed)
            }
        };
    };
    let now = exchange.gateway().clock.now();
    let (result, lost, winner, landed) = match race {
        Race::Alone(landed) | Race::First(landed) => ("lost", second.lost_entry(now), first, landed),
        Race::Second(landed) => {
            if let Some(pick) = first.pick() {
                // It was overdue, which is known for certain.
                pick.assignment.censored(now);
            }
            ("won", first.lost_entry(now), second, landed)
        }
        Race::FirstAfter { second: failed, first: landed } => {
            let entry = second.entry(&failed, now);
            exchange.note_failed(&second, &failed);
            ("failed", entry, first, landed)
        }
        Race::SecondAfter { first: failed, second: landed } => {
            let entry = first.entry(&failed, now);
            exchange.note_failed(&first, &failed);
            (if landed.is_ok() { "won" } else { "failed" }, entry, second, landed)
        }
    };
    exchange.gateway().observer.metrics().hedged(result);
    exchange.guard.record().attempts.push(lost);
    (winner, landed)
}

/// A burst of overdue requests must not double the load of a fleet that is slow for everybody.
const MAX_BALANCE: f64 = 10.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hedges_are_paid_for_by_requests_that_came_before() {
        let budget = HedgeBudget::default();
        let mut granted = 0;
        for _ in 0..1000 {
            budget.deposit(0.02);
            granted += u32::from(budget.withdraw());
        }
        assert!((19..=20).contains(&granted), "{granted} of 1000");
        (0..100_000).for_each(|_| budget.deposit(0.02));
        let burst = (0..100).filter(|_| budget.withdraw()).count();
        assert_eq!(burst, 10);
    }
}
