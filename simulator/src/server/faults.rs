//! Fault injection: kinds of faults, how often they strike and for how long.
//!
//! Pure bookkeeping; `wire` and `replica` carry them out. A fault comes from the control endpoint, from a request's
//! `sim_fault` field, or from a [`SimReplica`](super::SimReplica).

use serde::{Deserialize, Serialize};

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// Everything takes `factor` times as long.
    Slow,
    /// The stream goes silent after `after_events` content events, its socket open; unary never answers.
    Stall,
    /// The connection is reset before the response head.
    ResetBeforeHead,
    /// The connection ends after `after_events` content events, without the last chunk.
    Cut,
    /// 500, as an internal error of the engine.
    #[serde(rename = "error_500")]
    Error500,
    /// 503, as a full queue.
    #[serde(rename = "error_503")]
    Error503,
    /// The request is read and never answered.
    Hang,
    /// SIGKILL of the whole process: listener and connections are gone at once.
    Crash,
    /// The engine core dies after `after_events` content events: an error event, then `[DONE]`; 500 for later ones.
    EngineDeath,
    /// New connections are refused; open ones go on.
    Refuse,
    /// SIGTERM with no grace: the listener closes, open streams stay open and silent.
    Sigterm,
    /// SIGTERM with grace: what runs is finished, new requests get 500, health stays green.
    #[serde(alias = "drain")]
    ShuttingDown,
    /// SIGSTOP of the engine core: nothing moves, every other endpoint answers.
    Freeze,
    /// KV that another replica computed does not come.
    TransferLost,
    /// SSE comments every `interval_ms` while nothing else is sent.
    KeepaliveComments,
}

impl FaultKind {
    /// Whether it strikes the replica at once rather than later requests.
    #[must_use]
    pub fn hits_replica(self) -> bool {
        matches!(self, Self::Crash | Self::Refuse | Self::Sigterm | Self::Freeze)
    }
}

/// A fault and when it strikes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Its kind.
    pub kind: FaultKind,
    /// After how many content events of a stream, where that applies.
    #[serde(default)]
    pub after_events: u64,
    /// Requests that it strikes; without it, until cleared.
    #[serde(default)]
    pub count: Option<u64>,
    /// For `slow`.
    #[serde(default = "default_factor")]
    pub factor: f64,
    /// Share of requests that it strikes, 0 to 1.
    #[serde(default = "certain")]
    pub probability: f64,
    /// Between two comments of `keepalive_comments`.
    #[serde(default = "default_interval")]
    pub interval_ms: u64,
    /// The fault clears itself after this.
    #[serde(default)]
    pub duration_ms: Option<u64>,
}

impl Fault {
    /// A fault of this kind, at once, for everyone, until cleared.
    #[must_use]
    pub fn new(kind: FaultKind) -> Self {
        Self {
            kind,
            after_events: 0,
            count: None,
            factor: default_factor(),
            probability: certain(),
            interval_ms: default_interval(),
            duration_ms: None,
        }
    }

    /// The same, after `events` content events.
    #[must_use]
    pub fn after(self, events: u64) -> Self {
        Self { after_events: events, ..self }
    }

    /// The same, for `count` requests.
    #[must_use]
    pub fn times(self, count: u64) -> Self {
        Self { count: Some(count), ..self }
    }
}

fn default_factor() -> f64 {
    4.0
}

fn certain() -> f64 {
    1.0
}

fn default_interval() -> u64 {
    1_000
}

/// The faults that a replica is under; at most one of a kind.
#[derive(Debug)]
pub(super) struct FaultBoard {
    faults: Vec<Fault>,
    random: fastrand::Rng,
}

impl FaultBoard {
    pub(super) fn new(seed: u64) -> Self {
        Self { faults: Vec::new(), random: fastrand::Rng::with_seed(seed) }
    }

    pub(super) fn set(&mut self, fault: Fault) {
        self.clear(fault.kind);
        self.faults.push(fault);
    }

    pub(super) fn clear(&mut self, kind: FaultKind) {
        self.faults.retain(|f| f.kind != kind);
    }

    pub(super) fn clear_all(&mut self) {
        self.faults.clear();
    }

    /// The faults of the next request: its own and those of the board that strike it.
    pub(super) fn draw(&mut self, own: Option<Fault>) -> Applied {
        let mut applied: Vec<Fault> = own.into_iter().collect();
        for fault in &mut self.faults {
            if fault.count == Some(0) || self.random.f64() >= fault.probability {
                continue;
            }
            fault.count = fault.count.map(|left| left - 1);
            applied.push(fault.clone());
        }
        self.faults.retain(|f| f.count != Some(0));
        Applied(applied)
    }
}

/// The faults of one request.
#[derive(Clone, Debug, Default)]
pub(super) struct Applied(Vec<Fault>);

impl Applied {
    pub(super) fn of(&self, kind: FaultKind) -> Option<&Fault> {
        self.0.iter().find(|f| f.kind == kind)
    }

    /// The fault of the replica itself that this request brought, if any.
    pub(super) fn on_replica(&self) -> Option<&Fault> {
        self.0.iter().find(|f| f.kind.hits_replica())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counted_fault_strikes_that_many_requests() {
        let mut board = FaultBoard::new(1);
        board.set(Fault::new(FaultKind::Error500).times(2));
        let struck: Vec<bool> = (0..4).map(|_| board.draw(None).of(FaultKind::Error500).is_some()).collect();
        assert_eq!(struck, [true, true, false, false]);
    }

    #[test]
    fn probability_is_a_share_and_repeats_under_a_seed() {
        let strikes = |seed| {
            let mut board = FaultBoard::new(seed);
            board.set(Fault { probability: 0.25, ..Fault::new(FaultKind::Cut) });
            (0..1_000).filter(|_| board.draw(None).of(FaultKind::Cut).is_some()).count()
        };
        assert_eq!(strikes(3), strikes(3));
        assert!((200..300).contains(&strikes(3)));
    }

    #[test]
    fn a_fault_is_written_as_json_with_defaults() {
        let fault: Fault = serde_json::from_str(r#"{"kind":"cut","after_events":3}"#).unwrap();
        assert_eq!(fault, Fault::new(FaultKind::Cut).after(3));
        let drain: Fault = serde_json::from_str(r#"{"kind":"drain"}"#).unwrap();
        assert_eq!(drain.kind, FaultKind::ShuttingDown);
        assert!(serde_json::from_str::<Fault>(r#"{"kind":"error_500"}"#).is_ok());
        assert!(serde_json::from_str::<Fault>(r#"{"kind":"cut","after":3}"#).is_err());
    }

    #[test]
    fn setting_a_kind_again_replaces_it() {
        let mut board = FaultBoard::new(1);
        board.set(Fault::new(FaultKind::Stall));
        board.set(Fault::new(FaultKind::Stall).after(5));
        assert_eq!(board.draw(None).of(FaultKind::Stall).unwrap().after_events, 5);
        board.clear(FaultKind::Stall);
        assert!(board.draw(None).of(FaultKind::Stall).is_none());
    }
}
