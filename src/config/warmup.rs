//! What a replica is asked before it takes traffic, and while nobody else asks it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// `[pool.warmup]`; the default asks nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WarmUp {
    /// Requests of each length.
    pub requests: u32,
    /// Bound on all of it, the loading of adapters included.
    pub timeout: Duration,
    /// Longest time in which its share of the traffic rises; zero: all of it at once.
    pub slow_start: Duration,
    /// Prompt classes that are tried.
    pub lengths: Vec<WarmUpLength>,
    /// System prompts to have cached.
    pub prompts: Vec<Arc<str>>,
    /// Features that engines compile on first use.
    pub features: Vec<WarmUpFeature>,
}

/// `pool.warmup.lengths`: a prompt class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmUpLength {
    /// Half of `classes.short` tokens, at most 64.
    Short,
    /// Half of `classes.medium` tokens.
    Medium,
    /// `classes.medium` tokens and a quarter.
    Long,
}

/// `pool.warmup.features`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmUpFeature {
    /// A completion with `logprobs`.
    Logprobs,
    /// A chat completion with a JSON schema as `response_format`.
    Guided,
}

impl WarmUpFeature {
    /// Every feature, as the file writes it.
    pub const ALL: [(&'static str, Self); 2] = [("logprobs", Self::Logprobs), ("guided", Self::Guided)];
}

/// `pool.lora`: adapters of the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lora {
    /// Whether the gateway loads those that a replica does not list.
    pub load: bool,
    /// Paths as the engines see them, by the adapter's name.
    pub adapters: BTreeMap<Arc<str>, Arc<str>>,
}
