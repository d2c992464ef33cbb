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

/// One request that asks for a replica.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    /// Its prompt.
    pub prompt: Prompt<'a>,
    /// [`super::rendezvous::identity`] of `x-session-id`, where the client sent one.
    pub session: Option<u64>,
    /// Its bounds; those that are absent cost and forbid nothing.
    pub slo: SloBounds,
    /// Since the last byte of the request was read: what the TTFT bound counts from.
    pub waited: Duration,
    /// Whether requests of its pool may be refused: then no more are sent than places in the batch were seen.
    pub queues_late: bool,
    /// Whether its first token will be seen.
    pub shows_first_token: bool,
    /// What its conversation's turns have in common, where it is one.
    pub conversation: Option<u64>,
    /// Among those turns.
    pub turn: Turn,
    /// What it says of its answer.
    pub sampling: Sampling,
    /// Whether it has images, sounds or files, of which the answer tells how many tokens they are.
    pub has_media: bool,
    /// Whether it was sent there at a time that is not known, or is answered for more than a prompt: how long it waits is no
    /// observation.
    pub is_untimed: bool,
    /// Whether its replica answers it without the engine: it waits for none and is no part of the load that decisions see.
    pub is_past_engine: bool,
    /// Replicas that would have to load the LoRA adapter that it names, where others hold it.
    pub lacks_adapter: Option<&'a SlotSet>,
    /// Where another pool computes its prompt.
    pub elsewhere: Option<Elsewhere<'a>>,
    /// Replicas that it has tried.
    pub tried: &'a SlotSet,
    /// It only asks what a placement would cost, and will not be placed by this answer.
    pub is_quote: bool,
}

impl<'a> Ask<'a> {
    /// A prompt without bounds, session or conversation, that is answered as a stream and asks nothing of its replica.
    pub fn of(prompt: Prompt<'a>, tried: &'a SlotSet) -> Self {
        Self {
            prompt,
            session: None,
            slo: SloBounds::default(),
            waited: Duration::ZERO,
            queues_late: false,
            shows_first_token: true,
            conversation: None,
            turn: Turn::default(),
            sampling: Sampling::default(),
            has_media: false,
            is_untimed: false,
            is_past_engine: false,
            lacks_adapter: None,
            elsewhere: None,
            tried,
            is_quote: false,
        }
    }

    /// To compute its prompt for another pool: one token, whose lateness that other pool answers for.
    #[must_use]
    pub fn for_prefill(self) -> Self {
        Self { slo: SloBounds::default(), shows_first_token: true, sampling: Sampling::PROMPT, ..self }
    }

    /// To be answered without the engine: nothing of it is computed, and no bound holds for it.
    #[must_use]
    pub fn past_engine(self) -> Self {
        Self {
            prompt: Prompt::default(),
            slo: SloBounds::default(),
            shows_first_token: false,
            conversation: None,
            turn: Turn::default(),
            has_media: false,
            is_untimed: true,
            is_past_engine: true,
            ..self
        }
    }

    /// To decode what another pool will have computed `after` so long: as late as both legs together.
    #[must_use]
    pub fn for_decode(self, after: Duration, elsewhere: Elsewhere<'a>) -> Self {
        Self { waited: self.waited + after, elsewhere: Some(elsewhere), ..self }
    }
}

/// One request, as routing sees it.
#[derive(Clone, Copy)]
pub struct Query<'a> {
    /// What it asks.
    pub ask: Ask<'a>,
    /// What it needs, and how long it has waited.
    pub aim: Aim,
    /// What is known of the speed of the pool's replicas.
    pub model: &'a PoolModel,
    /// What the pool's replicas are believed to have cached.
    pub index: &'a PrefixIndex,
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
    /// Of what is no answer: the response ends the prefill.
    pub const PROMPT: Self = Self { max_tokens: Some(Tokens(1)), n: 1 };

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
