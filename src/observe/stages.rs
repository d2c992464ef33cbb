//! Where the time went: a record cut into stages. Pure.
//!
//! The stages of a request follow each other without a hole from its head to its end, so that their sum is its
//! duration, however it ended: what is left goes to the stage in which it ended. The wait for the first token is cut by
//! the engine's own figures where it told them, else by what was learned of it, else it is all `prefill`; only
//! the first of these is `measured`.

use std::time::Duration;

use smallvec::SmallVec;

use crate::clock::Stamp;
use crate::record::{EngineTimes, ExpectedWait, Record};
pub use crate::stage::Stage;

/// Whether a duration was seen or inferred (label `source`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Between two stamps of ours, or told by the engine.
    Measured,
    /// Inferred from outside.
    Estimated,
}

impl Source {
    /// The label's value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Estimated => "estimated",
        }
    }
}

/// One stage of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageTime {
    /// Which.
    pub stage: Stage,
    /// How long.
    pub duration: Duration,
    /// How it is known.
    pub source: Source,
}

/// The stages of one request, each at most once.
pub type StageTimes = SmallVec<[StageTime; 9]>;

/// The stages that a request reached, in order.
#[must_use]
pub fn stages(record: &Record) -> StageTimes {
    let at = &record.at;
    let mut walk = Walk { cursor: at.head, end: at.end, times: StageTimes::new() };
    let before_the_engine = [
        (Stage::Read, at.read),
        (Stage::Admit, at.admitted),
        (Stage::Route, at.routed),
        (Stage::Connect, at.connected),
    ];
    for (stage, reached) in before_the_engine {
        let time = walk.until(reached.unwrap_or(at.end));
        walk.push(stage, time, Source::Measured);
        if reached.is_none() {
            return walk.times;
        }
    }
    if at.first_token.is_some() || record.is_stream {
        stream(record, &mut walk);
    } else {
        unary(record, &mut walk);
    }
    walk.times
}

/// The parts of the wait for a first token that came, for whoever asks before the end.
#[must_use]
pub fn at_the_engine(record: &Record) -> StageTimes {
    let at = &record.at;
    let (Some(connected), Some(first)) = (at.connected, at.first_token) else { return StageTimes::new() };
    let mut walk = Walk { cursor: connected, end: first, times: StageTimes::new() };
    let expected = record.attempts.last().and_then(|attempt| attempt.expected);
    let wait = walk.until(first);
    walk.wait(wait, record.engine.as_ref(), expected);
    walk.times
}

/// A wait for the first token, then tokens and the client's turns. One that got no token waited until its end.
fn stream(record: &Record, walk: &mut Walk) {
    let at = &record.at;
    let wait = walk.until(at.first_token.unwrap_or(at.end));
    let expected = record.attempts.last().and_then(|attempt| attempt.expected);
    walk.wait(wait, record.engine.as_ref(), expected);
    let Some(last) = at.last_token else { return };
    let tokens = walk.until(last);
    let blocked = record.relay_blocked.min(tokens);
    walk.push(Stage::Decode, tokens.saturating_sub(blocked), Source::Measured);
    let rest = walk.until(at.end);
    walk.push(Stage::Relay, blocked + rest, Source::Measured);
}

/// The answer comes whole: without the engine's own figures its time there is one piece.
fn unary(record: &Record, walk: &mut Walk) {
    let at = &record.at;
    let mut left = walk.until(at.first_byte.unwrap_or(at.end));
    if let Some(engine) = &record.engine {
        let figures = [
            (Stage::EngineQueue, engine.queue),
            (Stage::Prefill, engine.own_prefill()),
            (Stage::Decode, engine.generation),
        ];
        for (stage, figure) in figures {
            let Some(figure) = figure.map(|figure| figure.min(left)) else { continue };
            left = left.saturating_sub(figure);
            walk.push(stage, figure, Source::Measured);
        }
    }
    walk.push(Stage::EngineOther, left, Source::Measured);
    if at.first_byte.is_some() {
        let rest = walk.until(at.end);
        walk.push(Stage::Relay, rest, Source::Measured);
    }
}

/// From stamp to stamp, never backwards and never beyond the end.
struct Walk {
    cursor: Stamp,
    end: Stamp,
    times: StageTimes,
}

impl Walk {
    fn until(&mut self, next: Stamp) -> Duration {
        let next = next.clamp(self.cursor, self.end.max(self.cursor));
        let passed = next.since(self.cursor);
        self.cursor = next;
        passed
    }

    fn push(&mut self, stage: Stage, duration: Duration, source: Source) {
        self.times.push(StageTime { stage, duration, source });
    }

    /// Cuts the wait for a first token.
    fn wait(&mut self, wait: Duration, engine: Option<&EngineTimes>, expected: Option<ExpectedWait>) {
        if let Some((queue, prefill)) = engine.and_then(|told| Some((told.queue?, told.own_prefill()?))) {
            let queue = queue.min(wait);
            let prefill = prefill.min(wait - queue);
            self.push(Stage::EngineQueue, queue, Source::Measured);
            self.push(Stage::Prefill, prefill, Source::Measured);
            self.push(Stage::EngineOther, wait - queue - prefill, Source::Measured);
        } else if let Some(queue) = expected.map(|expected| queue_of(wait, expected)) {
            self.push(Stage::EngineQueue, queue, Source::Estimated);
            self.push(Stage::Prefill, wait - queue, Source::Estimated);
        } else {
            self.push(Stage::Prefill, wait, Source::Estimated);
        }
    }
}

impl EngineTimes {
    /// Time for the prompt: as told, or what the engine's own time to first token has beyond its queue.
    fn own_prefill(&self) -> Option<Duration> {
        self.prefill.or_else(|| Some(self.first_token?.saturating_sub(self.queue.unwrap_or_default())))
    }
}

/// How much of a wait was the engine's queue, by what was expected. A wait near the expected one is cut in the expected
/// ratio; what goes far beyond it no prompt explains: somebody else's work was in front.
fn queue_of(wait: Duration, expected: ExpectedWait) -> Duration {
    let whole = expected.queue + expected.prefill;
    if whole.is_zero() {
        return Duration::ZERO;
    }
    let explained = wait.min(whole.mul_f64(NOISE));
    let share = expected.queue.as_secs_f64() / whole.as_secs_f64();
    (wait - explained + explained.mul_f64(share)).min(wait)
}

/// A prediction this far off is still its noise and no sign of a queue.
const NOISE: f64 = 1.5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::fixture;
    use crate::record::Moments;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn names(record: &Record) -> Vec<(&'static str, u128, &'static str)> {
        stages(record).iter().map(|s| (s.stage.as_str(), s.duration.as_millis(), s.source.as_str())).collect()
    }

    fn sum(record: &Record) -> Duration {
        stages(record).iter().map(|s| s.duration).sum()
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
                ("decode", 750, "measured"),
                ("relay", 340, "measured"),
            ]
        );
        assert_eq!(sum(&record), record.duration());
    }

    #[test]
    fn the_wait_for_the_first_token_is_cut_by_the_best_that_is_known() {
        let told = |queue, prefill, first_token| EngineTimes {
            queue: Some(ms(queue)),
            prefill,
            first_token: Some(ms(first_token)),
            generation: None,
        };
        let expected = |queue, prefill| Some(ExpectedWait { queue: ms(queue), prefill: ms(prefill) });
        // (engine's figures, expectation; engine_queue, prefill, engine_other in ms; source), of 195 ms.
        let cases = [
            (Some(told(50, None, 150)), None, Some(50), 100, Some(45), "measured"),
            (Some(told(50, Some(ms(90)), 150)), expected(1, 1), Some(50), 90, Some(55), "measured"),
            (Some(told(500, None, 900)), None, Some(195), 0, Some(0), "measured"),
            (Some(EngineTimes::default()), expected(0, 195), Some(0), 195, None, "estimated"),
            (None, expected(65, 130), Some(65), 130, None, "estimated"),
            (None, expected(130, 260), Some(65), 130, None, "estimated"),
            (None, expected(0, 10), Some(180), 15, None, "estimated"),
            (None, expected(0, 0), Some(0), 195, None, "estimated"),
            (None, None, None, 195, None, "estimated"),
        ];
        for (case, (engine, expected, queue, prefill, other, source)) in cases.into_iter().enumerate() {
            let mut record = fixture::stream();
            record.engine = engine;
            record.attempts[0].expected = expected;
            let seen = stages(&record);
            let of = |stage| seen.iter().find(|s| s.stage == stage);
            let millis = |stage| of(stage).map(|s| s.duration.as_millis());
            assert_eq!(millis(Stage::EngineQueue), queue, "case {case}");
            assert_eq!(millis(Stage::Prefill), Some(prefill), "case {case}");
            assert_eq!(millis(Stage::EngineOther), other, "case {case}");
            assert_eq!(of(Stage::Prefill).unwrap().source.as_str(), source, "case {case}");
            assert_eq!(sum(&record), record.duration(), "case {case}");
        }
    }

    #[test]
    fn a_whole_answer_is_the_engines_time_in_one_piece_or_as_it_tells() {
        let mut record = fixture::stream();
        record.is_stream = false;
        record.at.first_token = None;
        record.at.last_token = None;
        record.at.first_byte = Some(record.at.head.after(ms(1250)));
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
    fn however_a_request_ends_nothing_of_its_time_is_lost() {
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
}
