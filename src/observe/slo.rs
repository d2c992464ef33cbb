//! Whether a request met its SLO; pure.
//!
//! Goodput counts requests that met every bound measurable for them. Failed and refused requests are misses; client
//! errors are not judged, nor what a tenant's own limits refuse, nor streams that the client left before a bound was missed. A miss is blamed on the stage
//! with the largest share of the time that the missed bound covers.

use std::time::Duration;

use smallvec::SmallVec;

use super::stages::{Stage, StageTime};
use crate::labels::labels;
use crate::record::{EmptyAnswer, Outcome, Record};

labels! {
    /// Why the SLO was missed: the first that applies, in this order (label `reason`).
    pub enum Missed {
        /// No response, or a broken one.
        Error = "error",
        Refused = "refused",
        Ttft = "ttft",
        Itl = "itl",
        Tpot = "tpot",
        E2e = "e2e",
        /// No content, where the other replicas' answers have some.
        Empty = "empty",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SloVerdict {
    /// Every measurable bound was met.
    Met,
    Missed(Missed),
    /// The client's own error or early leave, or its tenant's limit.
    NotCounted,
}

/// Compares an ended request with its bounds.
pub(crate) fn verdict(record: &Record) -> SloVerdict {
    match record.outcome {
        Outcome::Failed => SloVerdict::Missed(Missed::Error),
        Outcome::Refused if record.is_over_own_limit() => SloVerdict::NotCounted,
        Outcome::Refused => SloVerdict::Missed(Missed::Refused),
        Outcome::ClientError => SloVerdict::NotCounted,
        Outcome::Ok if record.empty == Some(EmptyAnswer::OfReplica) => SloVerdict::Missed(Missed::Empty),
        Outcome::Ok => missed_bound(record).map_or(SloVerdict::Met, SloVerdict::Missed),
        Outcome::Canceled => missed_bound(record).map_or(SloVerdict::NotCounted, SloVerdict::Missed),
    }
}

fn missed_bound(record: &Record) -> Option<Missed> {
    let over = |value: Option<Duration>, bound: Option<Duration>| match (value, bound) {
        (Some(value), Some(bound)) => value > bound,
        _ => false,
    };
    if over(waited_for_first_token(record), record.slo.ttft) {
        Some(Missed::Ttft)
    } else if record.itl_missed.is_some() {
        Some(Missed::Itl)
    } else if over(record.tpot(), record.slo.tpot) {
        Some(Missed::Tpot)
    } else if over(Some(record.duration()), record.slo.e2e) {
        Some(Missed::E2e)
    } else {
        None
    }
}

/// TTFT; for a client that left without one, the time it had waited.
fn waited_for_first_token(record: &Record) -> Option<Duration> {
    let has_left = record.outcome == Outcome::Canceled && record.is_stream && record.at.first_token.is_none();
    if has_left { Some(record.at.end.since(record.at.read?)) } else { record.ttft() }
}

impl Missed {
    /// Whether what is missed for this reason may be blamed on a stage.
    pub(crate) fn may_be_in(self, stage: Stage) -> bool {
        match self {
            Self::Ttft => stage.is_before_first_token(),
            Self::Itl | Self::Tpot => matches!(stage, Stage::Decode | Stage::Relay),
            Self::Error | Self::Refused | Self::E2e | Self::Empty => true,
        }
    }
}

/// The longest of the stages that a missed bound covers.
pub(crate) fn blamed(record: &Record, missed: Missed, stages: &[StageTime]) -> Option<Stage> {
    match missed {
        Missed::E2e => longest(stages, |_| true),
        // Refused or failed within a millisecond, reading the request took longest and explains nothing.
        Missed::Error if record.attempts.is_empty() => longest(stages, |stage| stage != Stage::Read),
        // The attempt failed, not the decision to make it, however short it was.
        Missed::Error | Missed::Empty => {
            let is_ours = |stage| matches!(stage, Stage::Read | Stage::Admit | Stage::Route);
            // Nor its words, however late they came, unless its client did not read them.
            let is_relay = |stage| stage == Stage::Relay && record.relay_blocked.is_zero();
            longest(stages, |stage| !is_ours(stage) && !is_relay(stage))
        }
        // Our own decision, made between two stamps whose distance means nothing: by its reason, not by time.
        Missed::Refused if record.error == Some(NO_REPLICA) => Some(Stage::Route),
        Missed::Refused if record.attempts.is_empty() => Some(Stage::Admit),
        Missed::Refused => longest(stages, |stage| !matches!(stage, Stage::Read | Stage::Relay)),
        Missed::Ttft => longest(stages, Stage::is_before_first_token),
        // Gaps blocked by the client are in no percentile.
        Missed::Itl => Some(Stage::Decode),
        // Between the first and the last token there are only decoding and a blocking client.
        Missed::Tpot => {
            let decode = stages.iter().find(|time| time.stage == Stage::Decode)?;
            Some(if record.relay_blocked > decode.duration { Stage::Relay } else { Stage::Decode })
        }
    }
}

/// Stages that exceeded the route's budget, in order.
pub(crate) fn over_budget(record: &Record, stages: &[StageTime]) -> SmallVec<[Stage; 4]> {
    let Some(budget) = &record.stage_budget else { return SmallVec::new() };
    let is_over = |time: &&StageTime| budget.share(time.stage).is_some_and(|share| time.duration > share);
    stages.iter().filter(is_over).map(|time| time.stage).collect()
}

fn longest(stages: &[StageTime], counts: impl Fn(Stage) -> bool) -> Option<Stage> {
    stages.iter().filter(|time| counts(time.stage)).max_by_key(|time| time.duration).map(|time| time.stage)
}

/// Code of the error of a request for which no replica is ready.
const NO_REPLICA: &str = "no_ready_replica";

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::observe::fixture;
    use crate::observe::stages::stages;
    use crate::record::{EngineTimes, SloBounds};
    use crate::stage::StageBudget;
    use crate::units::Tokens;

    fn blame(record: &Record, missed: Missed) -> Option<Stage> {
        blamed(record, missed, &stages(record))
    }

    /// TTFT 200 ms, 11 tokens in 1 s after that (TPOT 100 ms), 1.3 s in all.
    fn record(outcome: Outcome, ttft_ms: u64, tpot_ms: u64, e2e_ms: u64) -> Record {
        let ms = |n| Some(Duration::from_millis(n));
        let slo = SloBounds { ttft: ms(ttft_ms), tpot: ms(tpot_ms), e2e: ms(e2e_ms), ..SloBounds::default() };
        let mut record = Record { outcome, slo, ..fixture::stream() };
        record.tokens.output = Some(Tokens(11));
        record
    }

    #[test]
    fn verdicts() {
        use Missed::{E2e, Error, Itl, Refused, Tpot, Ttft};
        let with = |mut record: Record, change: fn(&mut Record)| {
            change(&mut record);
            record
        };
        let slow_tokens = |record| with(record, |record| record.itl_missed = Some(99));
        let silent =
            |record| with(record, |record| (record.at.first_token, record.at.last_token) = (None, None));
        let unary = Record { is_stream: false, ..silent(record(Outcome::Ok, 1, 1, 2000)) };
        let table = [
            (record(Outcome::Ok, 200, 100, 2000), SloVerdict::Met),
            (record(Outcome::Ok, 199, 1, 1), SloVerdict::Missed(Ttft)),
            (record(Outcome::Ok, 200, 99, 1), SloVerdict::Missed(Tpot)),
            (record(Outcome::Ok, 200, 100, 1000), SloVerdict::Missed(E2e)),
            (record(Outcome::Failed, 1, 1, 1), SloVerdict::Missed(Error)),
            (record(Outcome::Refused, 1, 1, 1), SloVerdict::Missed(Refused)),
            (record(Outcome::ClientError, 1, 1, 1), SloVerdict::NotCounted),
            (record(Outcome::Canceled, 200, 100, 2000), SloVerdict::NotCounted),
            (record(Outcome::Canceled, 100, 100, 2000), SloVerdict::Missed(Ttft)),
            (slow_tokens(record(Outcome::Ok, 200, 1, 1)), SloVerdict::Missed(Itl)),
            (slow_tokens(record(Outcome::Ok, 199, 1, 1)), SloVerdict::Missed(Ttft)),
            // What cannot be measured does not count.
            (unary, SloVerdict::Met),
            // It waited past its bound and left.
            (silent(record(Outcome::Canceled, 500, 1000, 9000)), SloVerdict::Missed(Ttft)),
        ];
        for (i, (record, expected)) in table.iter().enumerate() {
            assert_eq!(verdict(record), *expected, "case {i}");
        }
    }

    #[test]
    fn choices_that_are_written_side_by_side_have_each_its_own_pace() {
        let mut record = record(Outcome::Ok, 100, 50, 1_000);
        let alone = record.tpot().unwrap();
        let tokens = record.tokens.output.unwrap();
        (record.side_by_side, record.tokens.output) = (4.0, Some(Tokens(4 * tokens.0)));
        assert_eq!(record.tpot(), Some(alone), "four of them take as long as one");
        record.tokens.output = Some(Tokens(4));
        assert_eq!(record.tpot(), None, "one token each");
        (record.side_by_side, record.tokens.output) = (1.0, Some(tokens));
        record.at.last_token = record.at.first_token;
        assert_eq!(record.tpot(), None, "all in one event");
    }

    #[test]
    fn a_miss_is_blamed_on_the_longest_stage_that_its_bound_covers() {
        let mut record = fixture::stream();
        assert_eq!(blame(&record, Missed::Ttft), Some(Stage::Prefill));
        assert_eq!(blame(&record, Missed::Tpot), Some(Stage::Decode));
        assert_eq!(blame(&record, Missed::E2e), Some(Stage::Decode));
        record.relay_blocked = Duration::from_millis(900);
        assert_eq!(blame(&record, Missed::Itl), Some(Stage::Decode));
        assert_eq!(blame(&record, Missed::Tpot), Some(Stage::Relay));
        record.engine = Some(EngineTimes {
            queue: Some(Duration::from_millis(150)),
            first_token: Some(Duration::from_millis(190)),
            ..EngineTimes::default()
        });
        assert_eq!(blame(&record, Missed::Ttft), Some(Stage::EngineQueue));
        record.at.routed = None;
        assert_eq!(blame(&record, Missed::Refused), Some(Stage::Route));
    }

    #[test]
    fn a_tenants_own_limit_is_no_miss_and_a_full_queue_is() {
        let refused = |code| Record { outcome: Outcome::Refused, error: Some(code), ..fixture::stream() };
        for code in ["budget", "concurrency", "requests_per_minute", "tokens_per_minute"] {
            assert_eq!(verdict(&refused(code)), SloVerdict::NotCounted, "{code}");
        }
        for code in ["max_requests", "max_wait", "ttft", NO_REPLICA] {
            assert_eq!(verdict(&refused(code)), SloVerdict::Missed(Missed::Refused), "{code}");
        }
    }

    #[test]
    fn a_failed_attempt_is_not_blamed_on_the_decision_to_make_it() {
        let mut failed = Record { outcome: Outcome::Failed, ..fixture::stream() };
        let at = |micros| failed.at.head.after(Duration::from_micros(micros));
        failed.at = crate::record::Moments {
            head: failed.at.head,
            read: Some(at(50)),
            admitted: Some(at(60)),
            routed: Some(at(900)),
            connected: Some(at(950)),
            end: at(1200),
            ..crate::record::Moments::default()
        };
        let blamed = blame(&failed, Missed::Error).unwrap();
        assert!(!matches!(blamed, Stage::Read | Stage::Admit | Stage::Route), "{blamed:?}");
    }

    #[test]
    fn a_failure_is_not_blamed_on_how_late_its_words_came() {
        let mut failed = Record { outcome: Outcome::Failed, is_stream: false, ..fixture::stream() };
        (failed.at.first_token, failed.at.last_token) = (None, None);
        failed.at.end = failed.at.first_byte.unwrap().after(Duration::from_secs(1));
        assert_eq!(blame(&failed, Missed::Error), Some(Stage::EngineOther));
        failed.relay_blocked = Duration::from_secs(1);
        assert_eq!(blame(&failed, Missed::Error), Some(Stage::Relay));
    }

    #[test]
    fn a_request_that_is_refused_at_once_is_not_blamed_on_reading_it() {
        let mut refused = Record { outcome: Outcome::Refused, ..fixture::stream() };
        let read = refused.at.read.unwrap();
        refused.at = crate::record::Moments {
            head: refused.at.head,
            read: Some(read),
            end: read.after(Duration::from_micros(20)),
            ..crate::record::Moments::default()
        };
        refused.attempts = Vec::new();
        assert_eq!(blame(&refused, Missed::Refused), Some(Stage::Admit));
        refused.at.admitted = Some(read);
        assert_eq!(blame(&refused, Missed::Refused), Some(Stage::Admit), "while picking");
        refused.error = Some("no_ready_replica");
        assert_eq!(blame(&refused, Missed::Refused), Some(Stage::Route));
    }

    #[test]
    fn stages_over_their_budget_are_listed() {
        let mut record = fixture::stream();
        assert!(over_budget(&record, &stages(&record)).is_empty(), "no budget, nothing over it");
        let mut budget = StageBudget::default();
        budget.set(Stage::Connect, Duration::from_millis(3));
        budget.set(Stage::Prefill, Duration::from_millis(100));
        budget.set(Stage::Relay, Duration::from_millis(1));
        record.relay_blocked = Duration::from_millis(2);
        record.stage_budget = Some(Arc::new(budget));
        assert_eq!(over_budget(&record, &stages(&record))[..], [Stage::Prefill, Stage::Relay]);
    }
}
