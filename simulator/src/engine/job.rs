//! A job as it is submitted, a sequence as it runs, an event as it comes out.
//!
//! There is no model: a job carries its output, and the engine decides only when each token comes.

use crate::time::Stamp;

use super::blocks::{Holding, chain};

/// Names one job of one engine; counts from 0 and goes on after a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// One prompt and the output to generate.
#[derive(Clone, Debug)]
pub struct Work {
    /// Chained hashes of the full blocks of prompt and output; blocks beyond its end are never cached.
    pub chain: Vec<u64>,
    /// Prompt tokens.
    pub prompt: u64,
    /// Output tokens, at least one.
    pub output: u64,
}

impl Work {
    /// `prompt` tokens and those of the output after them. `root` names the model or adapter with its cache salt.
    #[must_use]
    pub fn of(tokens: &[u32], prompt: usize, root: u64, block_size: u64) -> Self {
        let block = usize::try_from(block_size).unwrap_or(usize::MAX);
        let output = tokens.len().saturating_sub(prompt) as u64;
        Self { chain: chain(tokens, block, root), prompt: prompt as u64, output }
    }
}

/// One token left the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineEvent {
    /// The job that emitted it.
    pub job: JobId,
    /// End of the step that computed it.
    pub at: Stamp,
    /// Index of the output token, from 0.
    pub index: u64,
    /// Whether the job ends with it.
    pub is_last: bool,
    /// Prompt tokens that the prefix cache had when the job was first scheduled.
    pub cached: u64,
}

/// The job is longer than the engine's whole KV cache, or has no output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the job has {tokens} tokens, the engine has room for {capacity}")]
pub struct Unservable {
    /// Prompt and output tokens of the job.
    pub tokens: u64,
    /// Tokens that fit into the KV cache.
    pub capacity: u64,
}

/// A job inside the engine. Its KV cache must hold `prompt + emitted` tokens before it can emit the next one:
/// prefill, decode and the recomputation after a preemption are all the same rule.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: JobId,
    /// Chained hashes of the full blocks of prompt and output.
    pub(super) chain: Vec<u64>,
    pub(super) prompt: u64,
    pub(super) output: u64,
    /// Tokens whose KV is computed.
    pub(super) computed: u64,
    /// Tokens that the step in progress computes.
    pub(super) scheduled: u64,
    pub(super) emitted: u64,
    /// Another engine computed the prompt: all of its KV but the last token's comes with it, until a preemption drops it.
    pub(super) is_fetched: bool,
    /// Prefix hit of the first admission; `None` before it.
    pub(super) cached: Option<u64>,
    pub(super) submitted: Stamp,
    pub(super) last_token: Option<Stamp>,
    pub(super) blocks: Holding,
}

impl Sequence {
    /// Tokens whose KV must be there before the next token can come.
    pub(super) fn target(&self) -> u64 {
        self.prompt + self.emitted
    }

    /// Tokens still to compute.
    pub(super) fn missing(&self) -> u64 {
        self.target().saturating_sub(self.computed)
    }
}
