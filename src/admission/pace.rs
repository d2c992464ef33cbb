//! How fast a pool works off what waits, and what refused requests are promised.
//!
//! The pace is predicted work placed per second while requests wait or are refused, so that it corrects whatever the predictions are
//! wrong by. Without a backlog it fades after a while: what held the engines up then does so no more. Refused requests of a tenant are
//! sent away for as long as the ones before them take: with one `Retry-After` for all they would come at once and be refused again.
//! Tenants take turns by their weights, so that one's flood puts off no other.
//!
//! Where no request may wait, room goes to the one that comes first after it opened: to a client that polls, and never to one that
//! obeys its `Retry-After`. So room is kept for a promised request around the time at which it is to come, of a tenant
//! whose last promised request came.

use std::sync::Arc;
use std::time::Duration;

use super::outlook::Outlook;
use super::waiter::{Lane, Share, Waiter};
use crate::clock::Stamp;
use crate::routing::tuning::{memories, priors};
use crate::units::whole_seconds;

/// Work placed over time with a backlog, both forgotten exponentially.
#[derive(Debug, Default)]
pub(super) struct Pace {
    work: f64,
    seconds: f64,
    /// Counted up to here, while there is a backlog: requests wait, or are refused.
    since: Option<Stamp>,
    /// When the last backlog ended.
    ended: Stamp,
    waits: bool,
    refuses_until: Stamp,
    /// Of each tenant with refused requests that have not come back.
    promised: Vec<Promised>,
    /// What they are owed is as of then.
    as_of: Stamp,
}

#[derive(Debug)]
struct Promised {
    tenant: Arc<str>,
    weight: u32,
    /// Seconds of work of its refused requests that are not done yet, if they come back in time.
    owed: f64,
    /// The first of those that are to come, in the order in which they were refused.
    turns: Vec<Turn>,
    /// The last promised request did not come.
    stays_away: bool,
}

/// A refused request that is to come back.
#[derive(Clone, Copy, Debug)]
struct Turn {
    due: Stamp,
    lane: Lane,
    work: Duration,
    /// From when on room is kept for it.
    kept_from: Stamp,
}

impl Pace {
    /// Requests wait for room.
    pub(super) fn resume(&mut self, now: Stamp) {
        self.advance(now);
        self.waits = true;
        self.begin(now);
    }

    /// Nobody waits any more.
    pub(super) fn pause(&mut self) {
        self.waits = false;
    }

    /// Where none may wait: while requests are refused the pool has as little room as while they wait.
    fn refused(&mut self, now: Stamp) {
        if !self.waits && self.refuses_until < now {
            self.stop();
        }
        self.begin(now);
        self.refuses_until = now.after(MIN_RETRY);
    }

    fn begin(&mut self, now: Stamp) {
        if self.since.is_none() {
            let kept = self.fresh(now);
            (self.work, self.seconds) = (self.work * kept, self.seconds * kept);
            self.since = Some(now);
        }
    }

    fn stop(&mut self) {
        self.ended = self.last_backlog();
        self.since = None;
    }

    /// When there was one last, where nobody waits.
    fn last_backlog(&self) -> Stamp {
        self.since.map_or(self.ended, |since| since.max(self.refuses_until))
    }

    /// The part of what was seen that is worth believing.
    fn fresh(&self, now: Stamp) -> f64 {
        if self.waits && self.since.is_some() {
            return 1.0;
        }
        let idle = now.since(self.last_backlog()).saturating_sub(STAYS);
        (-idle.as_secs_f64() / memories::RECENT.as_secs_f64()).exp()
    }

    /// A request with so much work was placed.
    pub(super) fn placed(&mut self, work: Duration, now: Stamp) {
        self.advance(now);
        if self.since.is_some() {
            self.work += work.as_secs_f64();
        }
    }

    /// How long this much work takes. Before anything was seen a replica does a second of it in a second.
    pub(super) fn time_for(&self, work: Duration, outlook: &Outlook) -> Duration {
        let assumed = priors::LESSONS * outlook.replicas.max(1) as f64;
        let kept = self.fresh(outlook.at);
        let per_second = (self.work * kept + assumed) / (self.seconds * kept + priors::LESSONS);
        Duration::try_from_secs_f64(work.as_secs_f64() / per_second)
            .map_or(MAX_WAIT, |time| time.min(MAX_WAIT))
    }

    /// `Retry-After` of a request that would fit in a while: behind those of its tenant that were refused before.
    pub(super) fn promise(&mut self, share: &Share, outlook: &Outlook, until_it_fits: Duration) -> Duration {
        let now = outlook.at;
        // One that comes earlier is another.
        self.take_turn(share, now, |turn| turn.due);
        self.refused(now);
        let a_second = self.time_for(SECOND, outlook).as_secs_f64();
        self.work_off(a_second, now);
        let (tenant, weight) = (&share.tenant, share.weight.max(1));
        let known =
            self.promised.iter().position(|promised| promised.tenant == *tenant).unwrap_or_else(|| {
                let (tenant, turns) = (Arc::clone(tenant), Vec::new());
                self.promised.push(Promised { tenant, weight, owed: 0.0, turns, stays_away: false });
                self.promised.len() - 1
            });
        let work = outlook.work.as_secs_f64();
        let others = self.promised.iter().filter(|other| other.owed > 0.0 && other.tenant != *tenant);
        let all = others.map(|other| other.weight).fold(weight, u32::saturating_add);
        let Some(own) = self.promised.get_mut(known) else { return MIN_RETRY };
        let seconds = a_second * f64::from(all) / f64::from(weight);
        let until = Duration::try_from_secs_f64(own.owed * seconds).unwrap_or(MAX_RETRY);
        let until = until.saturating_add(until_it_fits);
        own.owed += if until < MAX_RETRY { work } else { 0.0 };
        let retry_after = until.clamp(MIN_RETRY, MAX_RETRY);
        if own.turns.len() < MAX_TURNS {
            // The header has whole seconds.
            let after = Duration::from_secs(whole_seconds(retry_after));
            let due = now.after(after);
            // Those that come in the same second need as many places.
            let beside = own.turns.iter().rev().take_while(|turn| turn.due.after(MIN_RETRY) > due).count();
            let alone = Duration::try_from_secs_f64(work * a_second * (1 + beside) as f64).unwrap_or(after);
            let kept_from = now.after(after.saturating_sub(alone));
            let lane = Lane::of(share, outlook);
            own.turns.push(Turn { due, lane, work: outlook.work, kept_from });
        }
        retry_after
    }

    /// A request of the tenant was placed or may wait: the one that room was kept for, if it was.
    pub(super) fn came(&mut self, share: &Share, outlook: &Outlook) {
        if self.promised.is_empty() {
            return;
        }
        self.take_turn(share, outlook.at, |turn| turn.kept_from);
        self.work_off(self.time_for(SECOND, outlook).as_secs_f64(), outlook.at);
    }

    fn take_turn(&mut self, share: &Share, now: Stamp, from: impl Fn(&Turn) -> Stamp) {
        for promised in &mut self.promised {
            let expected = promised.turns.len();
            promised.turns.retain(|turn| now <= turn.due.after(PATIENCE));
            promised.stays_away |= promised.turns.len() < expected;
            let due = || promised.turns.iter().position(|turn| from(turn) <= now);
            if promised.tenant == share.tenant
                && let Some(due) = due()
            {
                promised.turns.remove(due);
                promised.stays_away = false;
            }
        }
    }

    /// Time has passed, in which a second of work took `a_second`: each tenant's part of it is done, by the weights of those that
    /// are owed some.
    fn work_off(&mut self, a_second: f64, now: Stamp) {
        let mut done = now.since(self.as_of).as_secs_f64() / a_second;
        self.as_of = self.as_of.max(now);
        while done > DONE {
            let owed = || self.promised.iter().filter(|promised| promised.owed > 0.0);
            let all: f64 = owed().map(|promised| f64::from(promised.weight)).sum();
            let next_end = owed().map(|promised| promised.owed / f64::from(promised.weight)).reduce(f64::min);
            let Some(each) = next_end.map(|end| end.min(done / all)) else { break };
            for promised in &mut self.promised {
                let left = promised.owed - each * f64::from(promised.weight);
                promised.owed = if left > DONE { left } else { 0.0 };
            }
            done -= each * all;
        }
        self.promised.retain(|promised| promised.owed > 0.0 || !promised.turns.is_empty());
    }

    /// What room is kept for, in other tenants' requests that go before this one: one of each.
    pub(super) fn kept<'p>(
        &'p self,
        waiter: &'p Waiter,
        is_before: impl Fn(Lane, &str) -> bool + 'p,
    ) -> impl Iterator<Item = (u32, Duration)> + 'p {
        let now = waiter.outlook.at;
        let is_now = move |turn: &&Turn| turn.kept_from <= now && now <= turn.due.after(PATIENCE);
        let others = self.promised.iter().filter(|other| other.tenant != waiter.share.tenant);
        others.filter(|other| !other.stays_away).filter_map(move |other| {
            let turn = other.turns.iter().find(is_now)?;
            is_before(turn.lane, &other.tenant).then_some((other.weight, turn.work))
        })
    }

    /// Whether refused requests are to come back.
    pub(super) fn has_promised(&self) -> bool {
        !self.promised.is_empty()
    }

    fn advance(&mut self, now: Stamp) {
        let Some(since) = self.since else { return };
        let end = if self.waits { now } else { now.min(self.refuses_until) };
        let passed = end.since(since).as_secs_f64();
        let kept = (-passed / memories::ADMITTED).exp();
        (self.work, self.seconds) = (self.work * kept, self.seconds * kept + passed);
        if end >= now {
            self.since = Some(since.max(now));
        } else {
            self.stop();
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);
/// How long what was seen counts in full without a backlog: those who were refused come back meanwhile.
const STAYS: Duration = Duration::from_secs(30);
/// Upper bound of a predicted wait, above any `max_wait` in use.
const MAX_WAIT: Duration = Duration::from_secs(3600);
const MIN_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(60);
/// How long room is kept for a request behind the time at which it was to come: clients add a little, so as not to come all at once.
const PATIENCE: Duration = Duration::from_millis(500);
/// Seconds of work that are none: what rounding leaves.
const DONE: f64 = 1e-6;
/// Promised requests of a tenant that are remembered.
const MAX_TURNS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn outlook(at_ms: u64) -> Outlook {
        let at = Stamp::from_nanos(at_ms * 1_000_000);
        Outlook { at, work: Duration::from_millis(50), replicas: 2, ..Outlook::default() }
    }

    #[test]
    fn the_pace_is_the_work_that_was_placed_while_requests_waited() {
        let mut pace = Pace::default();
        let second = Duration::from_secs(1);
        assert_eq!(pace.time_for(second, &outlook(0)), Duration::from_millis(500));
        // 20 requests a second, taken for 50 ms of work each, on what is one replica's worth of speed in truth.
        pace.resume(outlook(0).at);
        (1..=400).for_each(|n| pace.placed(Duration::from_millis(50), outlook(n * 50).at));
        let found = pace.time_for(second, &outlook(20_000)).as_secs_f64();
        assert!((0.85..1.05).contains(&found), "{found} s");
        pace.pause();
        let after = |ms| pace.time_for(second, &outlook(ms)).as_secs_f64();
        assert!(after(22_000) > 0.8 && after(110_000) < 0.51, "{} {}", after(22_000), after(110_000));
        pace.resume(outlook(110_000).at);
        assert!(pace.time_for(second, &outlook(110_000)).as_secs_f64() < 0.51);
    }

    #[test]
    fn refused_requests_are_told_to_come_one_after_the_other() {
        let mut pace = Pace::default();
        let [flood, other] =
            ["flood", "other"].map(|tenant| Share { tenant: tenant.into(), weight: 1, priority: 0 });
        let fits = Duration::from_millis(500);
        let waits: Vec<_> = (0..200).map(|_| pace.promise(&flood, &outlook(0), fits).as_millis()).collect();
        // 25 ms each: two replicas.
        assert_eq!((waits[0], waits[20], waits[60], waits[199]), (1000, 1000, 2000, 5475));
        let waits: Vec<_> = (0..40).map(|_| pace.promise(&other, &outlook(0), fits).as_millis()).collect();
        // 50 ms each: it has half of them.
        assert_eq!((waits[0], waits[10], waits[39]), (1000, 1000, 2450), "behind none of another tenant's");
        let wait = pace.promise(&flood, &outlook(5_000), Duration::ZERO).as_millis();
        assert_eq!(wait, 1000, "most of them have come");
    }
}
