//! Where the time went: a record cut into stages. Pure.
//!
//! The stages of one stream follow each other without a hole from its head to its end, so that their sum is its
//! duration. What the engine does inside is only seen from outside here: until it tells its own queue time, the
//! wait between connection and first token is `prefill`, marked as an estimate, and `engine_queue` is left out
//! rather than guessed.

use std::time::Duration;

use smallvec::SmallVec;

use crate::record::Record;

/// A part of a request's life (label `stage`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The request body arrives.
    Read,
    /// Admission.
    Admit,
    /// The choice of a replica.
    Route,
    /// Until the connection that carried the answer was at hand; tries that failed before are in it.
    Connect,
    /// The engine's queue.
    EngineQueue,
    /// Until the first token.
    Prefill,
    /// From the first to the last token, what the client held up left out.
    Decode,
    /// At the replica, in none of its own figures: all of its time where an answer is no stream.
    EngineOther,
    /// Towards the client, its slowness included.
    Relay,
}

impl Stage {
    /// Every stage, in the order in which a request meets them.
    pub const ALL: [Self; 9] = [
        Self::Read,
        Self::Admit,
        Self::Route,
        Self::Connect,
        Self::EngineQueue,
        Self::Prefill,
        Self::Decode,
        Self::EngineOther,
        Self::Relay,
    ];

    /// The label's value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Admit => "admit",
            Self::Route => "route",
            Self::Connect => "connect",
            Self::EngineQueue => "engine_queue",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::EngineOther => "engine_other",
            Self::Relay => "relay",
        }
    }

    /// Its name as a span attribute and in the access log.
    #[must_use]
    pub fn attribute(self) -> &'static str {
        match self {
            Self::Read => "tokenway.stage.read",
            Self::Admit => "tokenway.stage.admit",
            Self::Route => "tokenway.stage.route",
            Self::Connect => "tokenway.stage.connect",
            Self::EngineQueue => "tokenway.stage.engine_queue",
            Self::Prefill => "tokenway.stage.prefill",
            Self::Decode => "tokenway.stage.decode",
            Self::EngineOther => "tokenway.stage.engine_other",
            Self::Relay => "tokenway.stage.relay",
        }
    }
}

/// Whether a duration was seen or inferred (label `source`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Between two stamps of ours.
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

/// The stages that a request reached, in order.
#[must_use]
pub fn stages(record: &Record) -> SmallVec<[StageTime; 9]> {
    use Source::{Estimated, Measured};
    let at = &record.at;
    let mut stages = SmallVec::new();
    let mut push = |stage, from: Option<crate::clock::Stamp>, to: Option<crate::clock::Stamp>, source| {
        if let (Some(from), Some(to)) = (from, to) {
            stages.push(StageTime { stage, duration: to.since(from), source });
        }
    };
    push(Stage::Read, Some(at.head), at.read, Measured);
    push(Stage::Admit, at.read, at.admitted, Measured);
    push(Stage::Route, at.admitted, at.routed, Measured);
    push(Stage::Connect, at.routed, at.connected, Measured);
    push(Stage::Prefill, at.connected, at.first_token, Estimated);
    if at.first_token.is_none() {
        push(Stage::EngineOther, at.connected, at.first_byte, Measured);
    }
    if let (Some(first), Some(last)) = (at.first_token, at.last_token) {
        let blocked = record.relay_blocked.min(last.since(first));
        let decode = last.since(first).saturating_sub(blocked);
        stages.push(StageTime { stage: Stage::Decode, duration: decode, source: Measured });
        let relay = at.end.since(last) + blocked;
        stages.push(StageTime { stage: Stage::Relay, duration: relay, source: Measured });
    } else if let Some(first_byte) = at.first_byte {
        let relay = at.end.since(first_byte);
        stages.push(StageTime { stage: Stage::Relay, duration: relay, source: Measured });
    }
    stages
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::fixture;
    use crate::record::Moments;

    fn names(record: &Record) -> Vec<(&'static str, u128, &'static str)> {
        stages(record).iter().map(|s| (s.stage.as_str(), s.duration.as_millis(), s.source.as_str())).collect()
    }

    #[test]
    fn the_stages_of_a_stream_add_up_to_its_duration() {
        let mut record = fixture::stream();
        record.relay_blocked = Duration::from_millis(250);
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
        assert_eq!(stages(&record).iter().map(|s| s.duration).sum::<Duration>(), record.duration());
    }

    #[test]
    fn an_answer_without_tokens_has_no_prefill_and_no_decode() {
        let mut record = fixture::stream();
        record.at.first_token = None;
        record.at.last_token = None;
        let names: Vec<_> = names(&record).into_iter().map(|(name, ..)| name).collect();
        assert_eq!(names, ["read", "admit", "route", "connect", "engine_other", "relay"]);
    }

    #[test]
    fn stages_that_were_not_reached_are_absent() {
        let mut record = fixture::stream();
        record.at = Moments { head: record.at.head, end: record.at.end, ..Moments::default() };
        assert_eq!(names(&record), []);
    }
}
