//! Time of a request by stage; pure.
//!
//! Stages are contiguous from head to end, so they add up to the duration however the request ended: the rest goes to
//! the stage in which it ended. The wait for the first token is split by the engine's reported times (`measured`), else
//! by its pages that were read meanwhile, else by the predicted times, else, before anything was learned, by how many requests waited
//! at the replica (all `estimated`). The wait for a whole answer is split so too, by what its tokens are expected to take. Of a prompt that another replica computed, or was to compute, the wait there is split so, and
//! the wait for its first token here is the transfer of its KV, also where that did not come. Until a hedge was sent a request waited at
//! the engine that was silent.

use std::time::Duration;

use smallvec::SmallVec;

use crate::clock::Stamp;
use crate::labels::labels;
use crate::record::{Attempt, EngineTimes, Record};
use crate::request::dialect::Computes;
pub(crate) use crate::stage::Stage;

labels! {
    /// Whether a duration was measured or inferred (label `source`).
    pub enum StageSource {
        /// Between two stamps of ours, or reported by the engine.
        Measured = "measured",
        Estimated = "estimated",
    }
}

/// One stage of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageTime {
    pub stage: Stage,
    pub duration: Duration,
    pub source: StageSource,
}

/// The stages of one request, each at most once.
pub(crate) type StageTimes = SmallVec<[StageTime; 12]>;

/// The stages that a request reached, in order. Of several legs each has the time of all.
pub(crate) fn stages(record: &Record) -> StageTimes {
    if record.legs().next().is_none() && record.outrun().is_none() {
        return by_leg(record);
    }
    sums(by_leg(record))
}

fn sums(legs: StageTimes) -> StageTimes {
    let mut stages = StageTimes::new();
    for time in legs {
        match stages.iter_mut().find(|before| before.stage == time.stage) {
            Some(before) => before.duration += time.duration,
            None => stages.push(time),
        }
    }
    stages
}

/// The same without a hole from head to end, as they followed each other: several legs meet some stages twice.
pub(crate) fn by_leg(record: &Record) -> StageTimes {
    legs(record, record.outrun())
}

/// The same; the wait before a hedge is a leg of the silent attempt where that is given, and else part of the way to the hedge.
fn legs(record: &Record, outrun: Option<(&Attempt, &Attempt)>) -> StageTimes {
    let at = &record.at;
    let mut cursor = StageCursor { at: at.head, end: at.end, times: StageTimes::new() };
    let before_the_engine = [(Stage::Read, at.read), (Stage::Admit, at.admitted), (Stage::Route, at.routed)];
    for (stage, reached) in before_the_engine {
        let time = cursor.until(reached.unwrap_or(at.end));
        cursor.push(stage, time, StageSource::Measured);
        if reached.is_none() {
            return cursor.times;
        }
    }
    for (stage, leg) in record.legs() {
        cursor.leg(stage, leg, leg.end);
    }
    if let Some((silent, hedge)) = outrun.filter(|(silent, _)| silent.connected.is_some()) {
        cursor.leg(Stage::Prefill, silent, hedge.start);
    }
    let time = cursor.until(at.connected.unwrap_or(at.end));
    cursor.push(Stage::Connect, time, StageSource::Measured);
    if at.connected.is_none() {
        return cursor.times;
    }
    if is_streamed(record) {
        stream(record, &mut cursor);
    } else {
        unary(record, &mut cursor);
    }
    cursor.times
}

/// Stages from the connection to the first token, available before the request ends; empty without a first token.
pub(crate) fn at_the_engine(record: &Record) -> StageTimes {
    let at = &record.at;
    let (Some(connected), Some(first)) = (at.connected, at.first_token) else { return StageTimes::new() };
    let mut cursor = StageCursor { at: connected, end: first, times: StageTimes::new() };
    let wait = cursor.until(first);
    cursor.wait(wait, record);
    cursor.times
}

/// The times that budgets, metrics and the bill count: in the engine's prefill and decode, and all of a whole answer's time there where
/// the engine reports neither. A request that is free has none, and no wait at a replica that a hedge outran is charged.
pub(crate) fn charged(record: &Record, stages: &[StageTime]) -> impl Iterator<Item = StageTime> {
    let stages = match record.outrun() {
        None => StageTimes::from_slice(stages),
        Some(_) => sums(legs(record, None)),
    };
    let is_split = |time: &StageTime| match time.stage {
        Stage::Decode => true,
        Stage::Prefill => time.source == StageSource::Estimated,
        _ => false,
    };
    let is_whole = !is_streamed(record) && !record.dialect.is_tunnel() && !stages.iter().any(is_split);
    let is_free = record.is_free();
    stages.into_iter().filter(move |time| match time.stage {
        Stage::Prefill | Stage::Decode => !is_free,
        Stage::EngineOther => !is_free && is_whole,
        _ => false,
    })
}

/// The sum of [`charged`].
pub(crate) fn charged_time(record: &Record, stages: &[StageTime]) -> Duration {
    charged(record, stages).map(|time| time.duration).sum()
}

fn is_streamed(record: &Record) -> bool {
    record.at.first_token.is_some() || record.is_stream
}

/// Wait for the first token, decoding, relaying. Without a token the wait lasts until the end.
fn stream(record: &Record, cursor: &mut StageCursor) {
    let at = &record.at;
    let wait = cursor.until(at.first_token.unwrap_or(at.end));
    cursor.wait(wait, record);
    if at.last_token.is_none() {
        return;
    }
    // After the last content the engine still owes its last step, usage and end: only what the client blocks is relaying.
    let rest = cursor.until(at.end);
    let blocked = record.relay_blocked.min(rest);
    cursor.push(Stage::Decode, rest - blocked, StageSource::Measured);
    cursor.push(Stage::Relay, blocked, StageSource::Measured);
}

/// A unary response: its time at the engine by the engine's reported times, else as it was predicted, else one stage.
fn unary(record: &Record, cursor: &mut StageCursor) {
    let at = &record.at;
    let mut left = cursor.until(at.first_byte.unwrap_or(at.end));
    if let Some(engine) = record.engine.as_ref().filter(|engine| **engine != EngineTimes::default()) {
        let figures = [
            (Stage::EngineQueue, engine.queue),
            (Stage::Prefill, engine.own_prefill()),
            (Stage::Decode, engine.generation),
        ];
        for (stage, figure) in figures {
            let Some(figure) = figure.map(|figure| figure.min(left)) else { continue };
            left = left.saturating_sub(figure);
            cursor.push(stage, figure, StageSource::Measured);
        }
        cursor.push(Stage::EngineOther, left, StageSource::Measured);
    } else if let Some(parts) = whole_of(record).and_then(|whole| whole.parts(left)) {
        for (stage, part) in parts {
            cursor.push(stage, part, StageSource::Estimated);
        }
    } else {
        cursor.push(Stage::EngineOther, left, StageSource::Measured);
    }
    if at.first_byte.is_some() {
        let rest = cursor.until(at.end);
        cursor.push(Stage::Relay, rest, StageSource::Measured);
    }
}

/// What is known of an answer that is computed for one prompt and comes whole; `None` of any other, and where the engine refused the
/// request: its server did that.
fn whole_of(record: &Record) -> Option<Whole<'_>> {
    let is_apart = record.ways.as_ref().is_some_and(|ways| ways.is_apart);
    let is_answer = !is_apart && (record.at.first_byte.is_none() || record.status < 400);
    let tokens = record.tokens.output.map(|output| output.0 as f64 / record.side_by_side);
    let made = record.attempts.last().filter(|_| is_answer)?;
    Some(Whole { computes: record.dialect.computes(), made, tokens })
}

/// An answer that comes whole.
pub(super) struct Whole<'a> {
    pub(super) computes: Computes,
    pub(super) made: &'a Attempt,
    /// Of its longest choice; `None` where that is not known.
    pub(super) tokens: Option<f64>,
}

impl Whole<'_> {
    /// The parts of a time at the engine; `None` where nothing is predicted. Without a count of its tokens they have what is left.
    pub(super) fn parts(&self, time: Duration) -> Option<impl Iterator<Item = (Stage, Duration)> + use<>> {
        let expected = self.made.expected?;
        let outside = self.made.seen.map_or(Duration::ZERO, |seen| part(time, seen.outside));
        let at_engine = time - outside;
        let decode = match (self.computes, self.tokens) {
            (Computes::Answer, Some(tokens)) => expected.per_token.mul_f64((tokens - 1.0).max(0.0)),
            (Computes::Answer, None) => at_engine.saturating_sub(expected.queue + expected.prefill),
            (Computes::Prompt, _) => Duration::ZERO,
            (Computes::Other | Computes::Nothing, _) => return None,
        };
        let own = expected.prefill + decode;
        if own.is_zero() {
            return None;
        }
        let queue = queue_of(at_engine, self.made, decode).unwrap_or_default();
        let decode = part(at_engine - queue, decode.as_secs_f64() / own.as_secs_f64());
        let all = [
            (Stage::EngineQueue, queue),
            (Stage::Prefill, at_engine - queue - decode),
            (Stage::Decode, decode),
            (Stage::EngineOther, outside),
        ];
        let is_prompt = self.computes == Computes::Prompt;
        let is_there = move |(stage, part): &(Stage, Duration)| match stage {
            Stage::Decode => !is_prompt,
            Stage::EngineOther => !part.is_zero(),
            _ => true,
        };
        Some(all.into_iter().filter(is_there))
    }
}

/// Advances from stamp to stamp, never backwards and never beyond the end.
struct StageCursor {
    at: Stamp,
    end: Stamp,
    times: StageTimes,
}

impl StageCursor {
    fn until(&mut self, next: Stamp) -> Duration {
        let next = next.clamp(self.at, self.end.max(self.at));
        let passed = next.since(self.at);
        self.at = next;
        passed
    }

    fn push(&mut self, stage: Stage, duration: Duration, source: StageSource) {
        self.times.push(StageTime { stage, duration, source });
    }

    /// An attempt before the one that was answered, until `end`.
    fn leg(&mut self, stage: Stage, leg: &Attempt, end: Stamp) {
        let connect = self.until(leg.connected.unwrap_or(end).min(end));
        self.push(Stage::Connect, connect, StageSource::Measured);
        let wait = self.until(end);
        match stage {
            Stage::KvTransfer => self.push(stage, wait, StageSource::Measured),
            _ => self.split(wait, None, Some(leg)),
        }
    }

    /// The wait for the first token: at the replica that computes the prompt, or for its KV.
    fn wait(&mut self, wait: Duration, record: &Record) {
        let Some(ways) = record.ways.as_ref().filter(|ways| ways.is_apart) else {
            return self.split(wait, record.engine.as_ref(), record.attempts.last());
        };
        let transfer = ways.transfer.unwrap_or(wait).min(wait);
        self.push(Stage::EngineQueue, wait - transfer, StageSource::Estimated);
        self.push(Stage::KvTransfer, transfer, StageSource::Estimated);
    }

    fn split(&mut self, wait: Duration, engine: Option<&EngineTimes>, attempt: Option<&Attempt>) {
        if let Some((queue, prefill)) = engine.and_then(|times| Some((times.queue?, times.own_prefill()?))) {
            let queue = queue.min(wait);
            let prefill = prefill.min(wait - queue);
            self.push(Stage::EngineQueue, queue, StageSource::Measured);
            self.push(Stage::Prefill, prefill, StageSource::Measured);
            self.push(Stage::EngineOther, wait - queue - prefill, StageSource::Measured);
            return;
        }
        let outside =
            attempt.and_then(|attempt| attempt.seen).map_or(Duration::ZERO, |seen| part(wait, seen.outside));
        let wait = wait - outside;
        let queue = attempt.and_then(|attempt| queue_of(wait, attempt, Duration::ZERO));
        if let Some(queue) = queue {
            self.push(Stage::EngineQueue, queue, StageSource::Estimated);
        }
        self.push(Stage::Prefill, wait - queue.unwrap_or_default(), StageSource::Estimated);
        if !outside.is_zero() {
            self.push(Stage::EngineOther, outside, StageSource::Estimated);
        }
    }
}

impl EngineTimes {
    /// Prefill time as reported, else TTFT − queue.
    fn own_prefill(&self) -> Option<Duration> {
        self.prefill.or_else(|| Some(self.first_token?.saturating_sub(self.queue.unwrap_or_default())))
    }
}

/// The queue's part of a wait, by the pages that were read meanwhile; of none
/// `share · min(wait, 1.5 · expected) + max(share, n / (n + 1)) · max(0, wait − 1.5 · expected)` behind n requests, with
/// `share = queue / (queue + prefill + decode)` as expected: time far beyond the prediction is other requests' work, where there are any.
/// `None` where nothing is known.
fn queue_of(wait: Duration, attempt: &Attempt, decode: Duration) -> Option<Duration> {
    if let Some(queued) = attempt.seen.and_then(|seen| seen.queued) {
        return Some(part(wait, queued));
    }
    let of_others = f64::from(attempt.ahead / (attempt.ahead + 1.0));
    let Some(expected) = attempt.expected else {
        return (attempt.ahead > 0.0).then(|| part(wait, of_others));
    };
    let whole = expected.queue + expected.prefill + decode;
    if whole.is_zero() {
        return Some(Duration::ZERO);
    }
    let explained = wait.min(whole.mul_f64(NOISE));
    let share = expected.queue.as_secs_f64() / whole.as_secs_f64();
    Some(part(explained, share) + part(wait - explained, share.max(of_others)))
}

fn part(of: Duration, share: f64) -> Duration {
    of.mul_f64(share).min(of)
}

/// Ratio of actual to predicted wait that is within the prediction's error.
const NOISE: f64 = 1.5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::fixture;
    use crate::record::{AttemptCause, ExpectedWait, Moments, Outcome, SeenWait, TokenCounts, Ways};
    use crate::request::dialect::Dialect;
    use crate::units::Tokens;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn names(record: &Record) -> Vec<(&'static str, u128, &'static str)> {
        stages(record).iter().map(|s| (s.stage.as_str(), s.duration.as_millis(), s.source.as_str())).collect()
    }

    fn sum(record: &Record) -> Duration {
        stages(record).iter().map(|s| s.duration).sum()
    }

    /// An answer in one piece, whose head came 50 ms before its end.
    fn unary() -> Record {
        let mut record = Record { is_stream: false, ..fixture::stream() };
        (record.at.first_token, record.at.last_token) = (None, None);
        record.at.first_byte = Some(record.at.head.after(ms(1250)));
        record
    }

    #[test]
    fn the_stages_of_a_stream_add_up_to_its_duration() {
        let mut record = fixture::stream();
        record.relay_blocked = ms(250);
        assert_eq!(
            names(&record),
            [
                ("read", 10, "measured"),
                ("admit", 1, "measured"),
                ("route", 1, "measured"),
                ("connect", 3, "measured"),
                ("prefill", 195, "estimated"),
                ("decode", 840, "measured"),
                ("relay", 250, "measured"),
            ]
        );
        assert_eq!(sum(&record), record.duration());
    }

    #[test]
    fn the_wait_for_the_first_token_is_split_by_the_best_known_times() {
        let reported = |queue, prefill, first_token| {
            let [queue, first_token] = [queue, first_token].map(|time| Some(ms(time)));
            Some(EngineTimes { queue, prefill, first_token, generation: None })
        };
        let expected = |queue, prefill| {
            Some(ExpectedWait { queue: ms(queue), prefill: ms(prefill), ..ExpectedWait::default() })
        };
        let pages = |queued, outside| Some(SeenWait { outside, queued: Some(queued) });
        let way = |outside| Some(SeenWait { outside, queued: None });
        // (engine's figures, expectation, by its pages, requests ahead; engine_queue, engine_other in ms; source), of 195 ms.
        let cases = [
            (reported(50, None, 150), None, None, 0.0, Some(50), Some(45), "measured"),
            (reported(50, Some(ms(90)), 150), expected(1, 1), None, 0.0, Some(50), Some(55), "measured"),
            (reported(500, None, 900), None, None, 0.0, Some(195), Some(0), "measured"),
            (Some(EngineTimes::default()), expected(0, 195), None, 0.0, Some(0), None, "estimated"),
            (None, expected(65, 130), None, 0.0, Some(65), None, "estimated"),
            (None, expected(130, 260), None, 0.0, Some(65), None, "estimated"),
            (None, expected(10, 10), None, 0.0, Some(97), None, "estimated"),
            (None, expected(0, 0), None, 0.0, Some(0), None, "estimated"),
            (None, expected(0, 20), None, 0.0, Some(0), None, "estimated"),
            (None, expected(0, 20), None, 3.0, Some(123), None, "estimated"),
            (None, expected(0, 20), pages(0.0, 0.0), 3.0, Some(0), None, "estimated"),
            (None, expected(0, 20), pages(0.5, 0.0), 0.0, Some(97), None, "estimated"),
            (None, expected(0, 20), pages(1.0, 0.0), 0.0, Some(195), None, "estimated"),
            // What an idle engine did not have was with its server.
            (None, None, pages(0.1, 0.8), 0.0, Some(3), Some(156), "estimated"),
            (None, expected(13, 26), way(0.8), 0.0, Some(13), Some(156), "estimated"),
            // Before anything is learned those who were there first share the wait.
            (None, None, None, 0.0, None, None, "estimated"),
            (None, None, None, 1.0, Some(97), None, "estimated"),
            (None, None, None, 12.0, Some(180), None, "estimated"),
        ];
        for (case, (engine, expected, seen, ahead, queue, other, source)) in cases.into_iter().enumerate() {
            let mut record = Record { engine, ..fixture::stream() };
            let made = &mut record.attempts[0];
            (made.expected, made.seen, made.ahead) = (expected, seen, ahead);
            let seen = names(&record);
            let of = |name| seen.iter().find(|(stage, ..)| *stage == name);
            let millis = |name| of(name).map(|(_, millis, _)| *millis);
            assert_eq!((millis("engine_queue"), millis("engine_other")), (queue, other), "case {case}");
            assert_eq!(of("prefill").unwrap().2, source, "case {case}");
            assert_eq!(sum(&record), record.duration(), "case {case}");
        }
    }

    #[test]
    fn two_legs_add_up_too_and_the_second_waits_for_kv() {
        let mut record = fixture::stream();
        let whole = record.attempts[0].clone();
        let start = record.at.routed.unwrap();
        let at = |after| start.after(ms(after));
        let leg = Attempt {
            cause: AttemptCause::Prefill,
            start,
            connected: Some(at(2)),
            head: Some(at(60)),
            end: at(60),
            ..whole.clone()
        };
        record.attempts.insert(0, leg);
        record.at.connected = Some(at(63));
        record.ways = Some(Ways { is_apart: true, transfer: Some(ms(100)), ..Ways::default() });
        let seen = names(&record);
        let of = |name| seen.iter().find(|(stage, ..)| *stage == name).map(|(_, millis, _)| *millis);
        assert_eq!(
            (of("connect"), of("prefill"), of("kv_transfer")),
            (Some(5), Some(58), Some(100)),
            "{seen:?}"
        );
        assert_eq!(sum(&record), record.duration());
    }

    #[test]
    fn a_late_prompt_and_kv_that_did_not_come_have_stages_of_their_own() {
        let answered = fixture::stream();
        let start = answered.at.routed.unwrap();
        let at = |after| start.after(ms(after));
        let made = |cause, begun, end, error| {
            let (start, connected, end) = (at(begun), Some(at(begun + 1)), at(end));
            Attempt { cause, start, connected, head: None, end, error, ..answered.attempts[0].clone() }
        };
        let late = vec![made(AttemptCause::Prefill, 0, 60, Some("prefill_late"))];
        let lost = vec![
            made(AttemptCause::Prefill, 0, 20, None),
            made(AttemptCause::First, 20, 60, Some("transfer_failed")),
        ];
        // (attempts before the answered one; connect, prefill and kv_transfer in ms), of a first token 198 ms after routing.
        for (before, expected) in [(late, [2, 196, 0]), (lost, [3, 156, 39])] {
            let mut record = answered.clone();
            record.attempts.splice(0..0, before);
            record.at.connected = Some(at(61));
            let seen = names(&record);
            let of =
                |name| seen.iter().find(|(stage, ..)| *stage == name).map_or(0, |(_, millis, _)| *millis);
            assert_eq!(["connect", "prefill", "kv_transfer"].map(of), expected, "{seen:?}");
            assert_eq!(sum(&record), record.duration());
        }
    }

    #[test]
    fn prefill_and_decode_are_charged_and_a_whole_answer_s_time_where_they_are_not_reported() {
        let charged = |record: &Record| -> Vec<_> {
            let stages = stages(record);
            charged(record, &stages).map(|time| (time.stage.as_str(), time.duration.as_millis())).collect()
        };
        let mut record = fixture::stream();
        assert_eq!(charged(&record), [("prefill", 195), ("decode", 1090)]);
        let times =
            |prefill, generation| EngineTimes { queue: Some(ms(5)), prefill, first_token: None, generation };
        record.engine = Some(times(Some(ms(150)), None));
        assert_eq!(charged(&record), [("prefill", 150), ("decode", 1090)], "not what is neither");
        record = unary();
        assert_eq!(charged(&record), [("engine_other", 1235)]);
        record.engine = Some(times(Some(ms(150)), Some(ms(900))));
        assert_eq!(charged(&record), [("prefill", 150), ("decode", 900)]);
        record.engine = None;
        record.at.first_byte = None;
        assert_eq!(charged(&record), [("engine_other", 1285)], "its client left before its end");
        let failed = Record {
            outcome: Outcome::Failed,
            status: 503,
            tokens: TokenCounts::default(),
            ..record.clone()
        };
        let is_free = charged(&Record { content_events: 0, ..failed }).is_empty();
        assert!(is_free, "an error is all that it got");
        record.dialect = Dialect::Realtime;
        assert!(charged(&record).is_empty(), "an open tunnel");
    }

    #[test]
    fn a_unary_response_is_one_engine_stage_or_split_by_reported_times() {
        let mut record = unary();
        let tail = |record: &Record| names(record).split_off(4);
        assert_eq!(tail(&record), [("engine_other", 1235, "measured"), ("relay", 50, "measured")]);
        record.engine = Some(EngineTimes {
            queue: Some(ms(35)),
            prefill: None,
            first_token: Some(ms(235)),
            generation: Some(ms(900)),
        });
        assert_eq!(
            tail(&record),
            [
                ("engine_queue", 35, "measured"),
                ("prefill", 200, "measured"),
                ("decode", 900, "measured"),
                ("engine_other", 100, "measured"),
                ("relay", 50, "measured"),
            ]
        );
        assert_eq!(sum(&record), record.duration());
    }

    #[test]
    fn a_whole_answer_that_the_engine_reports_nothing_of_is_split_as_it_was_predicted() {
        // (predicted queue and prefill in ms; requests ahead; by its pages; its tokens; queue, prefill, decode and other), of 1235 ms.
        let pages = |queued, outside| Some(SeenWait { outside, queued: Some(queued) });
        let cases = [
            ((47, 188), 0.0, None, Some(101), [47, 188, 1000, 0]),
            ((94, 376), 0.0, None, Some(201), [47, 188, 1000, 0]),
            ((0, 40), 0.0, None, Some(1), [0, 1235, 0, 0]),
            // Far more than predicted, behind others and alone.
            ((0, 100), 1.0, None, Some(11), [467, 383, 383, 0]),
            ((0, 100), 0.0, None, Some(11), [0, 617, 617, 0]),
            ((0, 100), 0.0, pages(0.5, 0.2), Some(11), [494, 247, 247, 247]),
            // It gave no count, or has not ended.
            ((35, 200), 0.0, None, None, [35, 200, 1000, 0]),
        ];
        for (case, ((queue, prefill), ahead, seen, tokens, parts)) in cases.into_iter().enumerate() {
            let mut record = unary();
            let expected = ExpectedWait { queue: ms(queue), prefill: ms(prefill), per_token: ms(10) };
            let made = &mut record.attempts[0];
            (made.expected, made.ahead, made.seen) = (Some(expected), ahead, seen);
            record.tokens.output = tokens.map(Tokens);
            let seen = names(&record);
            let millis =
                |name| seen.iter().find(|(stage, ..)| *stage == name).map_or(0, |(_, millis, _)| *millis);
            assert_eq!(
                ["engine_queue", "prefill", "decode", "engine_other"].map(millis),
                parts,
                "case {case}"
            );
            assert_eq!(sum(&record), record.duration(), "case {case}");
            let stages = stages(&record);
            let charged: Vec<_> = charged(&record, &stages).map(|time| time.stage).collect();
            assert_eq!(charged, [Stage::Prefill, Stage::Decode], "case {case}");
        }
        let mut record = unary();
        record.attempts[0].expected =
            Some(ExpectedWait { queue: ms(30), prefill: ms(200), per_token: ms(10) });
        let tail = |record: &Record| -> Vec<_> {
            names(record).into_iter().skip(4).map(|(stage, millis, _)| (stage, millis)).collect()
        };
        record.dialect = Dialect::Embeddings;
        assert_eq!(tail(&record), [("engine_queue", 161), ("prefill", 1073), ("relay", 50)]);
        record.dialect = Dialect::Tokenize;
        assert_eq!(tail(&record), [("engine_other", 1235), ("relay", 50)], "its server answers that");
        (record.dialect, record.status) = (Dialect::Chat, 400);
        assert_eq!(tail(&record), [("engine_other", 1235), ("relay", 50)], "and refuses that");
    }

    #[test]
    fn stages_add_up_to_the_duration_however_a_request_ends() {
        let whole = fixture::stream().at;
        let reached = |n: usize| Moments {
            read: whole.read.filter(|_| n > 0),
            admitted: whole.admitted.filter(|_| n > 1),
            routed: whole.routed.filter(|_| n > 2),
            connected: whole.connected.filter(|_| n > 3),
            first_byte: whole.first_byte.filter(|_| n > 4),
            first_token: None,
            last_token: None,
            ..whole
        };
        let ended_in = ["read", "admit", "route", "connect", "prefill", "prefill"];
        for (n, stage) in ended_in.into_iter().enumerate() {
            let mut record = fixture::stream();
            record.at = reached(n);
            assert_eq!(names(&record).last().unwrap().0, stage, "{n} moments");
            assert_eq!(sum(&record), record.duration(), "{n} moments");
        }
    }

    #[test]
    fn what_a_hedge_was_sent_for_waited_at_its_engine() {
        let mut record = fixture::hedged();
        let of = |record: &Record, name| {
            names(record).into_iter().find(|(stage, ..)| *stage == name).map_or(0, |(_, millis, _)| millis)
        };
        assert_eq!((of(&record, "connect"), of(&record, "prefill")), (5, 193), "{:?}", names(&record));
        assert_eq!(sum(&record), record.duration());
        let expected = ExpectedWait { queue: ms(30), prefill: ms(60), ..ExpectedWait::default() };
        record.attempts[0].expected = Some(expected);
        let times = EngineTimes { queue: Some(ms(5)), prefill: Some(ms(90)), ..EngineTimes::default() };
        record.engine = Some(times);
        let (queue, prefill) = (of(&record, "engine_queue"), of(&record, "prefill"));
        assert_eq!((queue, prefill), (37, 155), "each engine's part: {:?}", names(&record));
        assert_eq!(sum(&record), record.duration());
        // The first one had no connection by then.
        record.attempts[0].connected = None;
        assert_eq!(of(&record, "connect"), 103);
    }

    #[test]
    fn a_wait_that_a_hedge_ended_is_not_charged() {
        let mut record = fixture::hedged();
        let of = |record: &Record| {
            let stages = stages(record);
            let charged = charged(record, &stages).map(|time| (time.stage, time.duration.as_millis()));
            (charged.collect::<Vec<_>>(), charged_time(record, &stages).as_millis())
        };
        assert_eq!(of(&record), (vec![(Stage::Prefill, 95), (Stage::Decode, 1090)], 1185));
        let times = EngineTimes { queue: Some(ms(5)), prefill: Some(ms(80)), ..EngineTimes::default() };
        record.engine = Some(times);
        assert_eq!(of(&record), (vec![(Stage::Prefill, 80), (Stage::Decode, 1090)], 1170), "as reported");
    }
}
