//! How long things are remembered.

use std::time::Duration;

/// Seconds in which the known queue follows the real one: prices that change with every bunch change the mind of every decision.
pub(crate) const QUEUE_SETTLING: f64 = 8.0;
/// For how long what was seen says something of what comes: hits on a shared prefix, and a replica's slowness, which counts half by
/// then. With 10 s, one replica of four never gets the system prompt of short chats, since each copy has to pay for itself before its
/// time; and a slow replica is tried again within minutes.
pub(crate) const STANDING: Duration = Duration::from_secs(60);
/// The same of what passes sooner: a replica's decoding steps, once it has no stream that shows them: after a slow moment it would stay
/// without streams. And how long a confirmation is waited for: the cached tokens of a timed prefill, and a first token of a pool whose
/// predictions say that nothing fits. A pair of replicas whose transfer failed is tried again after as long.
pub(crate) const RECENT: Duration = Duration::from_secs(10);
/// Share that the fit of a pool's rates keeps at each sample: shapes change when replicas are replaced.
pub(crate) const SHAPE_KEPT: f64 = 0.998;
/// The same for the line of decoding steps: paces come in dozens a second.
pub(crate) const STEPS_KEPT: f64 = 0.99;
/// Share of each answer in running means and in the fit of a replica's slowness: some twenty are remembered.
pub(crate) const LEARNED: f64 = 0.05;
/// Answers whose lengths are remembered.
pub(crate) const ANSWERS: usize = 1024;
/// Answers before the tails of a ratio mean anything, or a share of tokens found does; ends after which a full batch is risked to
/// hold one more.
pub(crate) const ENOUGH_ANSWERS: u32 = 32;
/// Ends in a row with prompts waiting before a batch limit is believed.
pub(crate) const ENOUGH_ENDS: u32 = 12;
/// First tokens that come closer together were computed in one step: an engine sends them one after the other.
pub(crate) const ONE_STEP: Duration = Duration::from_millis(3);
/// Content events over which a stream's pace is taken: one alone is noise.
pub(crate) const PACE_EVENTS: u64 = 8;
/// Seconds over which admission counts what was placed: some dozens of requests of most fleets.
pub(crate) const ADMITTED: f64 = 3.0;
