//! The tail decision: which requests' spans are kept. Pure.
//!
//! Made when all is known. What went wrong is kept by rule; what went well by a share of the trace ids, so that
//! several gateways keep the same traces. A caller who sampled its trace gets our part of it in any case.

use crate::config::Sampling;
use crate::observe::slo::{Verdict, verdict};
use crate::observe::trace_context::in_share;
use crate::record::{Outcome, Record};

/// Whether the spans of an ended request are to be exported.
#[must_use]
pub fn keep(record: &Record, sampling: &Sampling) -> bool {
    record.trace.sampled == Some(true)
        || (sampling.keep_error && is_error(record))
        || (sampling.keep_slo_miss && matches!(verdict(record), Verdict::Missed(_)))
        || (sampling.keep_retry && record.attempts.len() > 1)
        || in_share(record.trace.trace_id, sampling.routine)
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

    fn with(change: impl FnOnce(&mut Record)) -> Record {
        let mut record = fixture::stream();
        change(&mut record);
        record
    }

    #[test]
    fn what_is_kept() {
        let none = Sampling { routine: 0.0, keep_error: false, keep_slo_miss: false, keep_retry: false };
        let all = Sampling { routine: 0.0, keep_error: true, keep_slo_miss: true, keep_retry: true };
        let good = fixture::stream();
        let sampled = with(|r| r.trace.sampled = Some(true));
        let unsampled = with(|r| r.trace.sampled = Some(false));
        let failed = with(|r| r.outcome = Outcome::Failed);
        let late = with(|r| r.slo.ttft = Some(Duration::from_millis(100)));
        let retried = with(|r| r.attempts.push(r.attempts[0].clone()));
        let table = [
            (&good, false, false),
            (&sampled, true, true),
            (&unsampled, false, false),
            (&failed, false, true),
            (&late, false, true),
            (&retried, false, true),
        ];
        for (i, (record, by_none, by_all)) in table.into_iter().enumerate() {
            assert_eq!((keep(record, &none), keep(record, &all)), (by_none, by_all), "case {i}");
            assert!(keep(record, &Sampling { routine: 1.0, ..none.clone() }), "case {i}");
        }
    }

    #[test]
    fn the_share_is_taken_from_the_low_bits() {
        let half = Sampling { routine: 0.5, keep_error: false, keep_slo_miss: false, keep_retry: false };
        let id = |trace_id| with(|r| r.trace.trace_id = trace_id);
        assert!(keep(&id(0xffff_ffff_ffff_ffff_ff00_0000_0000_0001), &half));
        assert!(!keep(&id(0x0000_0000_0000_0001_0080_0000_0000_0000), &half));
    }
}
