//! What engines publish of their KV caches (`[pool.kv_events]`): above all what they evicted, and what other gateways and direct
//! clients put there.
//!
//! The prefix index stays the only thing that a request reads. A `source` follows one engine (`wire`, `batch`), a `follower` holds what
//! is known of a pool: a `picture` of each cache, and the `ledger` that knows which text its blocks are. All of it runs beside the
//! requests: without events, or with those of a publisher that lies, the index believes what it believes without them.

mod batch;
mod engine_time;
mod firsts;
mod follower;
mod ledger;
mod listen;
mod numbers;
mod picture;
mod replay;
mod service;
mod source;
mod wire;

pub use self::service::start;

use crate::labels::labels;

labels! {
    /// What came of an event.
    enum EventKind {
        Stored = "stored",
        Removed = "removed",
        Cleared = "cleared",
        Skipped = "skipped",
        Undecodable = "undecodable",
    }

    /// What came of a gap in the numbers of batches.
    enum GapOutcome {
        Replayed = "replayed",
        Lost = "lost",
        Restarted = "restarted",
    }

    /// Whether the blocks of a prompt were found.
    enum PromptOutcome {
        Found = "found",
        /// It stored none.
        Nothing = "nothing",
        /// None fit.
        Unknown = "unknown",
        /// Several fit.
        Ambiguous = "ambiguous",
    }
}
