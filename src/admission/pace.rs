//! How fast a pool works off what waits, and what refused requests are told about it.
//!
//! The pace is predicted work placed per second while requests wait, so that it corrects whatever the predictions are wrong
//! by. Refused requests are told to come back one after the other, each when the ones before it are done: told the same time
//! all would come at once and be refused again.

use std::time::Duration;

use super::outlook::Outlook;
use crate::clock::Stamp;
use crate::routing::tuning::{memories, priors};

/// Work placed over time with a backlog, both forgotten exponentially.
#[derive(Debug, Default)]
pub(super) struct Pace {
    work: f64,
    seconds: f64,
    /// Counted up to here, while there is a backlog.
    since: Option<Stamp>,
    /// When those that were refused so far are done, if they come back as told.
    promised: Stamp,
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

    /// `Retry-After` of a request that would fit in a while: behind those that were told so before.
    pub(super) fn promise(&mut self, outlook: &Outlook, until_it_fits: Duration) -> Duration {
        let turn = self.promised.max(outlook.at.after(until_it_fits));
        let most = outlook.at.after(MAX_RETRY);
        self.promised = turn.after(self.time_for(outlook.work, outlook)).min(most);
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
        let told: Vec<_> =
            (0..200).map(|_| pace.promise(&outlook(0), Duration::from_millis(500)).as_millis()).collect();
        // 25 ms each: two replicas.
        assert_eq!((told[0], told[20], told[60], told[199]), (1000, 1000, 2000, 5475));
        assert_eq!(pace.promise(&outlook(5_000), Duration::ZERO).as_millis(), 1000, "most of them have come");
    }
}
