//! What stands between arrivals and engines: a router under test.
//!
//! A router sees what a gateway sees: requests, tokens as they pass, scrapes. It sends a request at once or keeps it and
//! sends it later, from [`Router::reconsider`] or a [`Router::tick`] that it asked for; how requests wait is its own
//! affair. The engines' true state goes along in [`Fleet::engines`]; a router that reads it says so in its documentation.

use std::time::Duration;

use crate::engine::{Engine, Gauges};
use crate::time::Stamp;

/// Decides where requests go. Calls come in the order of simulated time.
pub trait Router {
    /// A request arrived. One that is never sent counts as refused.
    fn arrive(&mut self, request: Arrival, fleet: &mut dyn Fleet);

    /// First token of a request.
    fn first_token(&mut self, _request: RequestId, _at: Stamp) {}

    /// A later token of a request.
    fn token(&mut self, _request: RequestId, _at: Stamp) {}

    /// A request ended: its last token came, or no engine could serve it.
    fn ended(&mut self, _request: RequestId, _end: &Ended) {}

    /// The prompt of a request that was sent by [`Fleet::send_apart`] is computed, and its KV is on the way.
    fn prefilled(&mut self, _request: RequestId, _end: &Ended) {}

    /// The KV of a request did not come: it is to be sent again.
    fn transfer_failed(&mut self, _request: RequestId, _fleet: &mut dyn Fleet) {}

    /// A replica was scraped.
    fn scraped(&mut self, _replica: usize, _at: Stamp, _gauges: &Gauges) {}

    /// An engine step that brought a first token or an end was reported in full: waiting requests may find room.
    fn reconsider(&mut self, _fleet: &mut dyn Fleet) {}

    /// When the router wants its next [`Router::tick`].
    fn next_tick(&self) -> Option<Stamp> {
        None
    }

    /// The time of [`Router::next_tick`] has come.
    fn tick(&mut self, _fleet: &mut dyn Fleet) {}

    /// How often it chose among the replicas, where that is not once a request.
    fn decisions(&self) -> Option<u64> {
        None
    }
}

/// The fleet at one moment, as a router may act on it.
pub trait Fleet {
    /// Simulated time.
    fn now(&self) -> Stamp;

    /// Sends a request to a replica; it is in the engine when this returns. `predicted_ttft` counts from now.
    fn send(&mut self, request: RequestId, replica: usize, predicted_ttft: Option<Duration>);

    /// Has the prompt of a request computed by a replica, for another one to decode. A fleet that cannot move KV sends it to the
    /// latter.
    fn send_apart(&mut self, request: RequestId, legs: Legs, predicted_ttft: Option<Duration>) {
        self.send(request, legs.decode, predicted_ttft);
    }

    /// The true state of every replica's engine.
    fn engines(&self) -> &[Engine];

    /// One of them, for who starts, slows down or restarts it. Work is sent by [`Fleet::send`] alone.
    fn engine(&mut self, replica: usize) -> Option<&mut Engine>;
}

/// The two replicas of a request whose prompt is computed elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Legs {
    /// Computes the prompt.
    pub prefill: usize,
    /// Gets its KV and decodes.
    pub decode: usize,
}

/// Names one request of a run: its place in the order of arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u32);

impl RequestId {
    /// The place as an index.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A request for the router to place.
#[derive(Clone, Debug, Default)]
pub struct Arrival {
    /// To be passed to [`Fleet::send`].
    pub id: RequestId,
    /// When it arrived.
    pub at: Stamp,
    /// Prompt tokens.
    pub prompt: u64,
    /// Chained hashes of the prompt's blocks, as a gateway computes them from its bytes.
    pub chain: Vec<u64>,
    /// The prompt token at which each block of `chain` ends.
    pub ends: Vec<u64>,
    /// Chained hashes of the engine's blocks, for routers that receive KV events.
    pub engine_chain: Vec<u64>,
    /// Output tokens it will get; only an oracle may read it.
    pub output: u64,
    /// Bound on its TTFT.
    pub ttft_bound: Option<Duration>,
    /// Bound on its TPOT.
    pub tpot_bound: Option<Duration>,
}

impl Arrival {
    /// Prompt tokens in an engine's cache now: what KV events without delay would say.
    #[must_use]
    pub fn cached_in(&self, engine: &Engine) -> u64 {
        engine.cached_prefix(&self.engine_chain, self.prompt)
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Time of the last token, or of the refusal by the engine.
    pub at: Stamp,
    /// Output tokens; zero where no engine could serve it.
    pub output: u64,
    /// Prompt tokens found in the prefix cache, by the engine's own report.
    pub cached: u64,
}

/// Latency bounds of a run's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// On TTFT, for an empty prompt.
    pub ttft: Option<Duration>,
    /// What the TTFT bound grows by with each prompt token.
    pub ttft_per_prompt_token: Duration,
    /// On TPOT.
    pub tpot: Option<Duration>,
    /// On the 99th percentile of a request's own ITL.
    pub itl_p99: Option<Duration>,
    /// On the whole request.
    pub e2e: Option<Duration>,
}

impl Bounds {
    /// The TTFT bound of a prompt of `prompt` tokens.
    #[must_use]
    pub fn ttft_of(&self, prompt: u64) -> Option<Duration> {
        let tokens = u32::try_from(prompt).unwrap_or(u32::MAX);
        Some(self.ttft? + self.ttft_per_prompt_token.saturating_mul(tokens))
    }
}
