//! Yardsticks: how other projects choose a replica, re-implemented from their published formulas, and an oracle.
//!
//! They exist in the simulator only. Each file says where its formula is from and which defaults it keeps; none of them
//! was tuned. Where a project has the engines' KV events, its yardstick sees the true caches without delay, which is
//! better than it would have it.

mod history;
mod ledger;
mod power_of_two;
mod smetric;

use super::engine::EngineConfig;
use super::replay::Dispatcher;

/// Every yardstick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Two at random, the one with fewer requests.
    PowerOfTwo,
    /// vllm-router's `smetric`.
    Smetric,
}

impl Peer {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::PowerOfTwo, Self::Smetric];

    /// Its name on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PowerOfTwo => "power_of_two",
            Self::Smetric => "smetric",
        }
    }

    /// The yardstick of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|peer| peer.as_str() == name)
    }

    /// A fresh one.
    #[must_use]
    pub fn dispatcher(self, replicas: usize, engine: &EngineConfig, seed: u64) -> Box<dyn Dispatcher> {
        match self {
            Self::PowerOfTwo => Box::new(power_of_two::PowerOfTwo::new(replicas, seed)),
            Self::Smetric => Box::new(smetric::Smetric::new(replicas, engine)),
        }
    }
}
