//! Rivals: how other projects choose a replica, re-implemented from their published formulas, and an oracle.
//!
//! Each file names the source of its formula and the defaults it keeps; none was tuned but the one that says so. Where a
//! project subscribes to KV events, its rival sees the true caches without delay, which flatters it; the others are given
//! the engines' true capacity.

mod cache_aware;
mod chwbl;
mod dynamo;
mod ledger;
mod llm_d;
mod oracle;
mod power_of_two;
mod prefix_record;
mod smetric;
mod token_load;

use crate::engine::EngineConfig;
use crate::replay::Router;

/// The rivals, by the names of the projects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rival {
    /// Two at random, the one with fewer requests.
    PowerOfTwo,
    /// Consistent hashing with bounded loads over the first block of the prompt.
    Chwbl,
    /// The same over the first three blocks of 512 tokens.
    ChwblThreeBlocks,
    /// SGLang's `cache_aware` policy.
    SglangCacheAware,
    /// llm-d's default scorers.
    LlmD,
    /// llm-d's affinity filter with token load.
    LlmDTokenLoad,
    /// Dynamo's cost with its default weights.
    Dynamo,
    /// Dynamo's cost with prefill counted fourfold.
    DynamoPrefill4,
    /// vllm-router's `smetric`.
    Smetric,
    /// Greedy on the engines' true state.
    Oracle,
}

impl Rival {
    /// All of them with their names, in the order of the documentation.
    const NAMED: [(Self, &'static str); 10] = [
        (Self::PowerOfTwo, "power_of_two"),
        (Self::Chwbl, "chwbl"),
        (Self::ChwblThreeBlocks, "chwbl_3_blocks"),
        (Self::SglangCacheAware, "sglang_cache_aware"),
        (Self::LlmD, "llm_d"),
        (Self::LlmDTokenLoad, "llm_d_token_load"),
        (Self::Dynamo, "dynamo"),
        (Self::DynamoPrefill4, "dynamo_prefill_4"),
        (Self::Smetric, "smetric"),
        (Self::Oracle, "oracle"),
    ];

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::NAMED.into_iter().map(|(rival, _)| rival)
    }

    /// Its name on the command line and in reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        let named = Self::NAMED.into_iter().find(|(rival, _)| *rival == self);
        named.map_or("", |(_, name)| name)
    }

    /// The rival of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMED.into_iter().find(|(_, known)| *known == name).map(|(rival, _)| rival)
    }

    /// A router with nothing learned yet.
    #[must_use]
    pub fn router(self, replicas: usize, engine: &EngineConfig, seed: u64) -> Box<dyn Router> {
        match self {
            Self::PowerOfTwo => Box::new(power_of_two::PowerOfTwo::new(replicas, seed)),
            Self::Chwbl => Box::new(chwbl::Chwbl::new(replicas, chwbl::KeyBlocks::FirstBlock)),
            Self::ChwblThreeBlocks => {
                Box::new(chwbl::Chwbl::new(replicas, chwbl::KeyBlocks::ThreeEngineBlocks))
            }
            Self::SglangCacheAware => Box::new(cache_aware::CacheAware::new(replicas, engine, seed)),
            Self::LlmD => Box::new(llm_d::LlmD::new(replicas, engine, seed)),
            Self::LlmDTokenLoad => Box::new(token_load::TokenLoad::new(replicas, engine)),
            Self::Dynamo => Box::new(dynamo::Dynamo::new(replicas, 1.0)),
            Self::DynamoPrefill4 => Box::new(dynamo::Dynamo::new(replicas, 4.0)),
            Self::Smetric => Box::new(smetric::Smetric::new(replicas, engine)),
            Self::Oracle => Box::new(oracle::Oracle::new(replicas, engine)),
        }
    }
}

/// Index of the least value; equals in turn, starting after `turn`.
fn least_in_turn(values: &[f64], turn: usize) -> Option<usize> {
    let count = values.len();
    let in_turn = (0..count).map(|offset| (turn + offset) % count);
    in_turn.min_by(|a, b| values[*a].total_cmp(&values[*b]))
}

#[cfg(test)]
mod tests;
