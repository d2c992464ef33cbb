//! What stands between arrivals and engines: the gateway, or a yardstick in its place.
//!
//! A dispatcher is asked where a request goes and told what a gateway sees: tokens as they pass, ends, scrapes. What
//! is true inside the engines goes along as [`Truth`]; a dispatcher says in its documentation what it reads of it, and
//! the product's reads nothing.

use std::time::Duration;

use crate::admission::Outlook;
use crate::clock::Stamp;
use crate::config::{Queue, Slo};
use crate::routing::EngineSignals;
use crate::simulate::engine::Engine;
use crate::units::Tokens;

/// Chooses replicas. Calls come in the order of simulated time.
pub trait Dispatcher {
    /// Where the request goes, or that it waits. A request that is held is asked about again.
    fn place(&mut self, request: &Incoming<'_>, now: Stamp, truth: &Truth<'_>) -> Verdict;

    /// The first token of a placed request came.
    fn first_token(&mut self, _request: RequestId, _at: Stamp) {}

    /// A further token of a placed request came.
    fn token(&mut self, _request: RequestId, _at: Stamp) {}

    /// A placed request gave its last token.
    fn ended(&mut self, _request: RequestId, _end: &Ended) {}

    /// A replica was scraped; `signals.age` is zero.
    fn scraped(&mut self, _replica: usize, _at: Stamp, _signals: &EngineSignals) {}
}

/// Names one request of a run: its place in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u32);

impl RequestId {
    /// As an index.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A request that wants a replica.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// Its name.
    pub id: RequestId,
    /// When it came.
    pub arrived: Stamp,
    /// Prompt tokens.
    pub prompt: Tokens,
    /// The gateway's prefix chain.
    pub chain: &'a [u64],
    /// The prompt token at which each block of `chain` ends.
    pub ends: &'a [u64],
    /// What it is held to.
    pub slo: &'a Slo,
    /// Hashes of the engine's blocks: for dispatchers that are told of KV events.
    pub engine_chain: &'a [u64],
    /// Tokens that it will get: nobody but an oracle may look.
    pub output: u64,
    /// Others that are late wait before it.
    pub is_behind_others: bool,
}

impl Incoming<'_> {
    /// The TTFT that it is held to.
    #[must_use]
    pub fn ttft_bound(&self) -> Option<Duration> {
        self.slo.ttft.map(|bound| bound.for_prompt(self.prompt))
    }
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// It goes to a replica now.
    Place(Placement),
    /// It waits in the gateway; it is asked about again at `until`, or before when something changes.
    Hold {
        /// When to ask again at the latest.
        until: Stamp,
    },
    /// It is late, and waits among the late or is refused by their limits.
    Queue(Outlook),
    /// It is refused.
    Refuse,
}

/// A route's `[route.queue]`, and what counts as a long prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The section.
    pub queue: Queue,
    /// Prompts above this are long.
    pub medium: Tokens,
}

/// A replica, and what was expected of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placement {
    /// Which replica.
    pub replica: usize,
    /// Predicted time from now to the first token, where the dispatcher predicts.
    pub predicted_ttft: Option<Duration>,
}

impl Placement {
    /// A replica without a prediction.
    #[must_use]
    pub fn on(replica: usize) -> Verdict {
        Verdict::Place(Self { replica, predicted_ttft: None })
    }
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// When.
    pub at: Stamp,
    /// Output tokens.
    pub output: u64,
    /// Prompt tokens that the engine found in its cache, by its own report.
    pub cached: Tokens,
}

/// The engines as they are.
#[derive(Clone, Copy, Debug)]
pub struct Truth<'a> {
    /// By replica.
    pub engines: &'a [Engine],
}

impl Truth<'_> {
    /// Prompt tokens that the replica has cached now: what KV events without any delay would tell.
    #[must_use]
    pub fn cached(&self, replica: usize, request: &Incoming<'_>) -> Tokens {
        let engine = self.engines.get(replica);
        engine.map_or(Tokens(0), |engine| engine.cached_prefix(request.engine_chain, request.prompt))
    }
}
