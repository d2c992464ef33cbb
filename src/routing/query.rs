//! One request as routing sees it: its prompt by blocks, and what it needs.

use std::time::Duration;

use super::float::MAX_SPAN;
use super::predictor::PoolModel;
use super::prefix_index::{PrefixIndex, Turn};
use super::prompt::Prompt;
use super::slots::SlotSet;
use crate::clock::Stamp;
use crate::record::SloBounds;
use crate::units::Tokens;

/// One request, as routing sees it.
#[derive(Clone, Copy)]
pub struct Query<'a> {
    /// Its prompt.
    pub prompt: Prompt<'a>,
    /// [`rendezvous::identity`] of `x-session-id`, where the client sent one.
    pub session: Option<u64>,
    /// What its conversation's turns have in common, where it is one.
    pub conversation: Option<u64>,
    /// Among the turns of its conversation, by its own hash.
    pub turn: Turn,
    /// What it says of its answer.
    pub sampling: Sampling,
    /// What it needs, and how long it has waited.
    pub aim: Aim,
    /// Where its prompt is computed by another pool.
    pub elsewhere: Option<Elsewhere<'a>>,
    /// What is known of the speed of the pool's replicas.
    pub model: &'a PoolModel,
    /// What the pool's replicas are believed to have cached.
    pub index: &'a PrefixIndex,
    /// Replicas that this request has tried already.
    pub excluded: &'a SlotSet,
    /// It only asks what a placement would cost: nobody's turn passes.
    pub is_quote: bool,
}

/// A prompt that another pool computes: here it is only decoded, once its KV is there.
#[derive(Clone, Copy)]
pub struct Elsewhere<'a> {
    /// Seconds to move the KV of a number of tokens to the replica of this identity.
    pub transfer: &'a dyn Fn(u64, Tokens) -> f64,
}

impl Elsewhere<'_> {
    /// Whether the price of its pair says to stay away from this replica: the last transfer to it failed.
    pub(super) fn is_avoided(&self, identity: u64) -> bool {
        (self.transfer)(identity, Tokens(0)) >= MAX_SPAN.as_secs_f64()
    }
}

/// What a request says of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// Most tokens of each sequence.
    pub max_tokens: Option<Tokens>,
    /// Sequences.
    pub n: u32,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { max_tokens: None, n: 1 }
    }
}

impl Sampling {
    /// Tokens of each sequence, of so many in all.
    pub(super) fn each(&self, output: Tokens) -> Tokens {
        Tokens(output.0 / u64::from(self.n.max(1)))
    }
}

/// What a request needs, and how long it has been waiting: part of a [`Query`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Aim {
    /// This moment.
    pub now: Stamp,
    /// Since the last byte of the request was read: what the TTFT bound counts from.
    pub waited: Duration,
    /// Its bounds; those that are absent cost and forbid nothing.
    pub slo: SloBounds,
    /// The share of its TTFT bound that it may be held for the sake of running streams; 0 never holds it.
    pub patience: f64,
    /// Whether a replica of the pool has answered before.
    pub has_answers: bool,
}
