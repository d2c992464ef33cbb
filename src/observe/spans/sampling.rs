//! The tail decision: which requests' spans are kept. Pure.
//!
//! Made when all is known. What went wrong is kept by rule; what went well by a share of the trace ids, so that
//! several gateways keep the same traces. A caller who sampled its trace gets our part of it in any case.

use crate::config::{Keep, Sampling};
use crate::observe::judgement::Judgement;
use crate::record::{Outcome, Record};
use crate::request::trace_context::in_share;

/// What others know of an ended request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// It was slower than the rolling 99th percentile of its series.
    pub is_tail: bool,
    /// Its series drifts, or did until just now.
    pub is_drifting: bool,
    /// A canary that is being judged served it.
    pub is_canary: bool,
}

/// Whether the spans of an ended request are to be exported.
pub fn keep(record: &Record, judgement: &Judgement, seen: Seen, sampling: &Sampling) -> bool {
    is_asked_for(record)
        || (sampling.keeps(Keep::Error) && is_error(record))
        || (sampling.keeps(Keep::SloMiss) && judgement.missed().is_some())
        || (sampling.keeps(Keep::Tail) && seen.is_tail)
        || (sampling.keeps(Keep::Drift) && seen.is_drifting)
        || (sampling.keeps(Keep::Canary) && seen.is_canary)
        || (sampling.keeps(Keep::Retry) && record.is_repeated())
        || in_share(record.trace.trace_id, sampling.routine)
}

/// Whether its caller sampled the trace, as one of ours: whoever has no key fills no collector.
pub(super) fn is_asked_for(record: &Record) -> bool {
    record.trace.is_sampled_by_caller() && record.status != 401
}

fn is_error(record: &Record) -> bool {
    match record.outcome {
        Outcome::Failed | Outcome::Refused => true,
        Outcome::Ok | Outcome::ClientError | Outcome::Canceled => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::observe::fixture;
    use crate::record::{Attempt, AttemptCause};

    fn with(change: impl FnOnce(&mut Record)) -> Record {
        let mut record = fixture::stream();
        change(&mut record);
        record
    }

    fn rules(routine: f64, all: bool) -> Sampling {
        let every = [Keep::Error, Keep::SloMiss, Keep::Tail, Keep::Retry, Keep::Drift, Keep::Canary];
        let keep = if all { every.to_vec() } else { Vec::new() };
        Sampling { routine, max_per_second: u32::MAX, keep }
    }

    fn kept(record: &Record, seen: Seen, sampling: &Sampling) -> bool {
        keep(record, &Judgement::of(record), seen, sampling)
    }

    #[test]
    fn what_is_kept() {
        let good = fixture::stream();
        let called = |r: &mut Record, flags| (r.trace.parent, r.trace.flags_upstream) = (Some(7), flags);
        let (sampled, unsampled) = (with(|r| called(r, 1)), with(|r| called(r, 0)));
        let stranger = with(|r| {
            called(r, 1);
            (r.outcome, r.status) = (Outcome::ClientError, 401);
        });
        let failed = with(|r| r.outcome = Outcome::Failed);
        let late = with(|r| r.slo.ttft = Some(Duration::from_millis(100)));
        let retried = with(|r| r.attempts.push(r.attempts[0].clone()));
        let two_legs = with(|r| {
            let leg = Attempt { cause: AttemptCause::Prefill, ..r.attempts[0].clone() };
            r.attempts.insert(0, leg);
        });
        let none = Seen::default();
        let table = [
            (&good, none, false, false),
            (&two_legs, none, false, false),
            (&good, Seen { is_tail: true, ..none }, false, true),
            (&good, Seen { is_drifting: true, ..none }, false, true),
            (&good, Seen { is_canary: true, ..none }, false, true),
            (&sampled, none, true, true),
            (&unsampled, none, false, false),
            (&stranger, none, false, false),
            (&failed, none, false, true),
            (&late, none, false, true),
            (&retried, none, false, true),
        ];
        for (i, (record, seen, by_none, by_all)) in table.into_iter().enumerate() {
            assert_eq!(kept(record, seen, &rules(0.0, false)), by_none, "case {i}");
            assert_eq!(kept(record, seen, &rules(0.0, true)), by_all, "case {i}");
            assert!(kept(record, seen, &rules(1.0, false)), "case {i}");
        }
    }

    #[test]
    fn the_share_is_taken_from_the_low_bits() {
        let half = rules(0.5, false);
        let id = |trace_id| with(|r| r.trace.trace_id = trace_id);
        assert!(kept(&id(0xffff_ffff_ffff_ffff_ff00_0000_0000_0001), Seen::default(), &half));
        assert!(!kept(&id(0x0000_0000_0000_0001_0080_0000_0000_0000), Seen::default(), &half));
    }
}
