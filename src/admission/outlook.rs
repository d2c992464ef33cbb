//! What a waiting request is told to expect, and why it went on waiting when it was its turn.

use std::time::Duration;

use crate::clock::Stamp;

/// Prediction for a waiting request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outlook {
    /// When this was predicted.
    pub at: Stamp,
    /// Time until a replica has room, if nobody else waits.
    pub drain: Duration,
    /// Time that it takes of one replica.
    pub work: Duration,
    /// Replicas that may take it.
    pub replicas: usize,
    /// The longest wait that it may begin; `None`: it has no bound, or one that cannot be met. Best effort.
    pub slack: Option<Duration>,
    /// When it is sent at the latest to meet its bound; of best effort, when it was read.
    pub latest: Stamp,
    /// Its TTFT bound; zero without one.
    pub bound: Duration,
    /// Whether it waits for nothing but the proof that an engine runs more at once: no prediction says how long that takes.
    pub is_held_back: bool,
}

/// Why a called request was not placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deferral {
    /// No replica has room: none of the others can be placed either.
    NoCapacity,
    /// For a reason of its own.
    Request,
}
