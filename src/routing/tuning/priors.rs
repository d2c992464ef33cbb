//! What is assumed before anything was seen.

/// Seconds of a step, decoding or not, 100,000 tokens of context, 1,000 tokens, attention of 10,000 tokens to 10,000: a mid-sized model on one
/// data-centre GPU. Only their ratios matter.
pub(crate) const RATES: [f64; 4] = [0.025, 0.004, 0.1, 0.1];
/// Seconds of a decoding step, and of 100,000 tokens of its context.
pub(crate) const STEP: [f64; 2] = [0.02, 0.004];
/// Seconds of a transfer of KV, and of a thousand tokens of it: 160 KB a token at 5 GB/s.
pub(crate) const TRANSFER: [f64; 2] = [0.02, 0.03];
/// Seconds of a handshake between two engines: a real pair took 4 to 11 on two busy cores.
pub(crate) const HANDSHAKE: f64 = 2.0;
/// Tokens that an engine computes in one step: its own limit (vLLM: `--max-num-batched-tokens`) is not among its metrics.
pub(crate) const STEP_TOKENS: u64 = 4096;
/// Tokens of one of the engine's KV blocks: vLLM's on GPUs.
pub(crate) const BLOCK_TOKENS: u64 = 16;
/// Tokens of an answer; a prompt has twice as many that are not cached.
pub(crate) const ANSWER_TOKENS: f64 = 256.0;
/// Answers that the assumed length counts for, and events of one token that streams are taken to have begun with.
pub(crate) const ANSWERS: f64 = 8.0;
/// Observations that the assumed shape of a fit counts for, and its speed; seconds of the assumed pace of admission.
pub(crate) const LESSONS: f64 = 0.25;
/// Lessons of the pool before its replicas are told apart.
pub(crate) const ALIKE_LESSONS: u32 = 16;
/// Share within which a replica's slowness is the usual one: what twenty answers of an engine whose steps vary by a third tell errs by
/// as much. So do estimated tokens: a hit that lacks less was found.
pub(crate) const ALIKE: f64 = 0.15;
/// Times as long, or as short, as expected at which an observation is an outlier, and a prompt without its first token overdue.
pub(crate) const OUTLIER: f64 = 2.0;
/// Outliers in a row on one side that are a change: the past is let go.
pub(crate) const CHANGE: i32 = 5;
/// Seconds that say nothing: scheduling, the network one way. Costs that differ by less are a tie.
pub(crate) const JITTER: f64 = 0.005;
/// Share by which predictions of first tokens err: costs that differ by less are a tie. And the margin of admission: no more
/// of a bound is waited for at a replica.
pub(crate) const ERROR: f64 = 0.1;
