//! Prices in seconds, and the thresholds that decisions go by.

use std::time::Duration;

/// Seconds that a missed bound is worth, and a failed answer: its client waits for all of it again, at the least.
pub(crate) const MISS_COST: f64 = 10.0;
/// Missed bounds that each bound of excess on TPOT is worth; on TTFT it is one. A reader loses less by what comes slower.
pub(crate) const TPOT_EXCESS: f64 = 0.3;
/// Parts of the bound on TPOT over which a miss becomes e times as likely: steps vary less than first tokens.
pub(crate) const TPOT_WIDTH: f64 = 0.03;
/// Seconds of waiting for the first token that a second of decoding is worth: an answer is read while it comes.
pub(crate) const DECODE_WEIGHT: f64 = 0.15;
/// Multiple of the best replica's decoding that is no reason to wait for another: predictions err by as much, and chance evens it
/// out.
pub(crate) const DECODE_TOLERANCE: f64 = 1.2;
/// Seconds that others lose by a second of computing for each prompt that waits at a replica: it delays those in the queue, those who
/// come meanwhile, and evicts what they would have hit.
pub(crate) const QUEUE_PRICE: f64 = 50.0;
/// Prompts per replica at which the price begins to go with the queue and no longer with its square.
pub(crate) const QUEUE_KNEE: f64 = 2.0;
/// Seconds to load a LoRA adapter: tenths of a second to seconds, and another one is pushed out.
pub(crate) const ADAPTER_LOAD: f64 = 1.0;
/// Part of the handshake of a pair of replicas that is charged to the request that makes it: it is paid once, and serves those that
/// come next.
pub(crate) const HANDSHAKE_SHARE: f64 = 0.06;
/// Part of an expected answer for which each stream that runs is to have room in the KV cache yet: half of one on average, as much as others leave by then.
/// With a half, equal replicas with little memory gave hits away.
pub(crate) const GROWTH: f64 = 0.25;
/// Share of its bound on TTFT that a request may spend waiting for a moment in which it breaks no stream, the predicted wait
/// included.
pub(crate) const PATIENCE: f64 = 0.8;
/// Streams that a wait must be expected to save before it is worth one. Above one stream first tokens come sooner in most traffic,
/// and twice as many requests miss on conversations and tools near capacity.
pub(crate) const PACING_HARM: f64 = 0.07;
/// Where others of whom only the engine's page tells have so many times as many prompts waiting as we have, holding back would give
/// them our turn. Up to three more gateways that do the same each keep to their part: prompts are compared with prompts, so that
/// all of them together send no more because of one another.
pub(crate) const FOREIGN_PART: f64 = 4.0;
/// Share of its bound within which a request must be predicted to be answered to begin to wait, or to go before best effort: what
/// waits may err.
pub(crate) const ENTER: f64 = 0.75;
/// What waits at a replica is worth this number of empty steps at least, up to [`MAX_LOOKAHEAD`]: a full step takes some ten times as long as an
/// empty one, and learned steps come out short. With eight, two of five seeds of embeddings on a 70B model fell behind.
pub(crate) const FILLED_STEPS: u32 = 16;
/// Several steps of an engine that computes prompts: what waits there fills them. A quarter of it for requests without a bound: what they
/// take is felt by the next ones with a bound.
pub(crate) const MAX_LOOKAHEAD: Duration = Duration::from_millis(200);
/// Policy `prefix`: requests that never send a prompt away from its cache. A nearly idle fleet has no mean to speak of. Half as many are
/// what loading a LoRA adapter is worth to policies that predict nothing.
pub(crate) const FREE_REQUESTS: f64 = 8.0;
/// Policy `prefix`: recent hits that ended alike from which on they are on what prompts share. Turns too short for a block of their
/// own end alike, too.
pub(crate) const SHARED_FROM: f64 = 1.5;
/// Policy `prefix`: how far above the mean a replica may be loaded for its cache's sake.
pub(crate) const LOAD_FACTOR: f64 = 1.25;
