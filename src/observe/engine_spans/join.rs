//! Joins a request's record with its engine's figures, whichever comes first. Pure: time is an argument.
//!
//! Engines export in batches, seconds after the request; a slow client ends long after its engine. So either side
//! waits for the other, for a bounded time and in bounded number. A record that waits in vain keeps its estimates.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::figures::Figures;
use crate::admission::EngineCharge;
use crate::clock::Stamp;
use crate::record::{EngineTimes, Record};

/// A record that is ready to be published.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) record: Arc<Record>,
    /// Its spans are to be exported.
    pub(super) keep: bool,
    /// What its tenant was charged before its engine's times were known.
    pub(super) charge: Option<EngineCharge>,
    /// As its engine measured them, once they came.
    pub(super) times: Option<EngineTimes>,
}

/// What became of a record that was offered.
#[derive(Debug)]
pub(super) enum Offered {
    /// It waits for its engine.
    Waits,
    /// Nothing to wait for, or too many wait.
    Refused,
    /// The figures were here already.
    Joined(Box<Ready>),
}

/// Both sides that wait, by the id of the attempt.
#[derive(Debug, Default)]
pub(super) struct Join {
    records: HashMap<u64, Ready>,
    figures: HashMap<u64, Figures>,
    /// By deadline. Joined entries stay until then, so the queues bound the maps.
    records_until: VecDeque<(Stamp, u64)>,
    figures_until: VecDeque<(Stamp, u64)>,
}

impl Join {
    /// Takes a record that ended `now`.
    pub(super) fn offer(&mut self, ready: Ready, now: Stamp) -> Offered {
        let Some(attempt) = awaited(&ready.record) else { return Offered::Refused };
        let trace = ready.record.trace.trace_id;
        if let Some(figures) = self.figures.remove(&attempt).filter(|figures| figures.trace == trace) {
            return Offered::Joined(Box::new(Ready { times: Some(figures.times), ..ready }));
        }
        if self.records_until.len() >= MAX_WAITING {
            return Offered::Refused;
        }
        self.records_until.push_back((now.after(RECORD_TIMEOUT), attempt));
        self.records.insert(attempt, ready);
        Offered::Waits
    }

    /// Takes figures that came `now`; returns the record that waited for them.
    pub(super) fn receive(&mut self, figures: Figures, now: Stamp) -> Option<Ready> {
        let waits = |ready: &Ready| ready.record.trace.trace_id == figures.trace;
        if self.records.get(&figures.attempt).is_some_and(waits) {
            let ready = self.records.remove(&figures.attempt);
            return ready.map(|ready| Ready { times: Some(figures.times), ..ready });
        }
        if self.figures_until.len() < MAX_WAITING {
            self.figures_until.push_back((now.after(FIGURES_TIMEOUT), figures.attempt));
            self.figures.insert(figures.attempt, figures);
        }
        None
    }

    /// Records whose figures did not come in time, and the number of figures without a record.
    pub(super) fn overdue(&mut self, now: Stamp) -> (Vec<Ready>, u64) {
        let mut records = Vec::new();
        while let Some(attempt) = expired(&mut self.records_until, now) {
            records.extend(self.records.remove(&attempt));
        }
        let mut unmatched = 0;
        while let Some(attempt) = expired(&mut self.figures_until, now) {
            unmatched += u64::from(self.figures.remove(&attempt).is_some());
        }
        (records, unmatched)
    }

    pub(super) fn give_up(&mut self) -> Vec<Ready> {
        self.records_until.clear();
        self.records.drain().map(|(_, ready)| ready).collect()
    }
}

/// The next attempt whose deadline has passed.
fn expired(queue: &mut VecDeque<(Stamp, u64)>, now: Stamp) -> Option<u64> {
    let (_, attempt) = *queue.front().filter(|(until, _)| *until <= now)?;
    queue.pop_front();
    Some(attempt)
}

/// The attempt whose span the engine may have exported: it answered, was marked as sampled, and its engine's times did
/// not come in-band.
fn awaited(record: &Record) -> Option<u64> {
    let attempt = record.attempts.last()?;
    let may_come = record.trace.is_sampled_upstream() && attempt.error.is_none() && record.engine.is_none();
    may_come.then_some(attempt.span)
}

/// Of either side: about 400 sampled requests a second.
const MAX_WAITING: usize = 4096;
/// The batch delay of OpenTelemetry's SDKs is five seconds.
const RECORD_TIMEOUT: Duration = Duration::from_secs(10);
/// A slow client may read long after its engine has finished.
const FIGURES_TIMEOUT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::seconds as second;
    use crate::observe::fixture;

    fn record(attempt: u64) -> Arc<Record> {
        let mut record = fixture::stream();
        record.trace.flags_upstream = 1;
        record.attempts[0].span = attempt;
        Arc::new(record)
    }

    fn ended(attempt: u64, keep: bool) -> Ready {
        Ready { record: record(attempt), keep, charge: None, times: None }
    }

    fn figures(attempt: u64) -> Figures {
        let times = EngineTimes { queue: Some(Duration::from_millis(50)), ..EngineTimes::default() };
        Figures { trace: record(1).trace.trace_id, attempt, times }
    }

    #[test]
    fn whichever_comes_first_waits_for_the_other() {
        let mut join = Join::default();
        assert!(matches!(join.offer(ended(1, true), second(0)), Offered::Waits));
        let ready = join.receive(figures(1), second(5)).unwrap();
        assert_eq!((ready.times, ready.keep), (Some(figures(1).times), true));
        assert!(join.receive(figures(2), second(6)).is_none());
        let Offered::Joined(joined) = join.offer(ended(2, false), second(60)) else { panic!("joined") };
        assert_eq!(joined.times, Some(figures(2).times));
        let (late, unmatched) = join.overdue(second(1000));
        assert_eq!((late.len(), unmatched), (0, 0), "nothing is published twice");
    }

    #[test]
    fn waits_are_bounded_in_time() {
        let mut join = Join::default();
        join.offer(ended(1, true), second(0));
        join.receive(figures(2), second(0));
        assert_eq!(join.overdue(second(9)).0.len(), 0);
        let (late, unmatched) = join.overdue(second(10));
        assert_eq!((late.len(), late[0].times, unmatched), (1, None, 0));
        assert_eq!(join.overdue(second(60)).1, 1);
        assert!(join.receive(figures(1), second(61)).is_none());
        join.offer(ended(3, true), second(61));
        assert_eq!(join.give_up().len(), 1);
    }

    #[test]
    fn a_record_that_cannot_have_a_span_does_not_wait() {
        let change = |change: fn(&mut Record)| {
            let mut record = Record::clone(&record(1));
            change(&mut record);
            Arc::new(record)
        };
        for record in [
            change(|r| r.trace.flags_upstream = 0),
            change(|r| r.attempts.clear()),
            change(|r| r.attempts[0].error = Some("connect_refused")),
            change(|r| r.engine = Some(EngineTimes::default())),
        ] {
            assert!(matches!(
                Join::default().offer(Ready { record, ..ended(1, true) }, second(0)),
                Offered::Refused
            ));
        }
        let mut join = Join::default();
        join.receive(Figures { trace: 1, ..figures(1) }, second(0));
        assert!(matches!(join.offer(ended(1, true), second(0)), Offered::Waits), "another trace's figures");
    }

    #[test]
    fn neither_side_grows_without_bound() {
        let mut join = Join::default();
        for attempt in 1..=2 * MAX_WAITING as u64 {
            join.offer(ended(attempt, true), second(0));
            join.receive(figures(attempt + 1_000_000), second(0));
        }
        assert_eq!((join.records.len(), join.figures.len()), (MAX_WAITING, MAX_WAITING));
        assert!(matches!(join.offer(ended(1_000_000_000, true), second(1)), Offered::Refused));
    }
}
