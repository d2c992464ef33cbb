//! How fast a pool works off what waits, and what refused requests are told about it.
//!
//! The pace is predicted work placed per second while requests wait, so that it corrects whatever the predictions are wrong
//! by. Refused requests of a tenant are sent away for as long as the ones before them take: with one `Retry-After` for all they would come
//! at once and be refused again. Tenants take turns by their weights, so that one's flood puts off no other.

use std::sync::Arc;
use std::time::Duration;

use super::outlook::Outlook;
use super::waiter::Share;
use crate::clock::Stamp;
use crate::routing::tuning::{memories, priors};

/// Work placed over time with a backlog, both forgotten exponentially.
#[derive(Debug, Default)]
pub(super) struct Pace {
    work: f64,
    seconds: f64,
    /// Counted up to here, while there is a backlog.
    since: Option<Stamp>,
    /// Of each tenant with refused requests that have not come back.
    promised: Vec<Promised>,
}

#[derive(Debug)]
struct Promised {
    tenant: Arc<str>,
    weight: u32,
    /// When its refused requests are done, if they come back in time.
    until: Stamp,
}

impl Pace {
    /// Requests wait for room.
    pub(super) fn resume(&mut self, now: Stamp) {
        self.since.get_or_insert(now);
    }

    /// Nobody waits any more.
    pub(super) fn pause(&mut self) {
        self.since = None;
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
        let per_second = (self.work + assumed) / (self.seconds + priors::LESSONS);
        Duration::try_from_secs_f64(work.as_secs_f64() / per_second)
            .map_or(MAX_WAIT, |time| time.min(MAX_WAIT))
    }

    /// `Retry-After` of a request that would fit in a while: behind those of its tenant that were refused before.
    pub(super) fn promise(&mut self, share: &Share, outlook: &Outlook, until_it_fits: Duration) -> Duration {
        self.promised.retain(|promised| promised.until > outlook.at);
        let (tenant, weight) = (&share.tenant, share.weight.max(1));
        let known =
            self.promised.iter().position(|promised| promised.tenant == *tenant).unwrap_or_else(|| {
                let (tenant, until) = (Arc::clone(tenant), Stamp::default());
                self.promised.push(Promised { tenant, weight, until });
                self.promised.len() - 1
            });
        let all: u32 = self.promised.iter().map(|promised| promised.weight).fold(0, u32::saturating_add);
        let time = self.time_for(outlook.work, outlook).saturating_mul(all) / weight;
        let Some(own) = self.promised.get_mut(known) else { return MIN_RETRY };
        let turn = own.until.max(outlook.at.after(until_it_fits));
        own.until = turn.after(time).min(outlook.at.after(MAX_RETRY));
        turn.since(outlook.at).clamp(MIN_RETRY, MAX_RETRY)
    }

    fn advance(&mut self, now: Stamp) {
        let Some(since) = self.since else { return };
        let passed = now.since(since).as_secs_f64();
        let kept = (-passed / memories::ADMITTED).exp();
        (self.work, self.seconds) = (self.work * kept, self.seconds * kept + passed);
        self.since = Some(since.max(now));
    }
}

/// Upper bound of a predicted wait, above any `max_wait` in use.
const MAX_WAIT: Duration = Duration::from_secs(3600);
const MIN_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(60);

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
        let found = pace.time_for(second, &outlook(0)).as_secs_f64();
        assert!((0.85..1.05).contains(&found), "{found} s");
        pace.pause();
        pace.resume(outlook(90_000).at);
        assert_eq!(pace.time_for(second, &outlook(0)).as_secs_f64(), found, "idle time says nothing");
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
