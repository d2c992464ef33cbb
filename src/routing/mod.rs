//! Chooses the replica for a request: pure, from a request's prefix chain and a snapshot of the candidates.
//!
//! The order of a decision: [`PoolWheel`] picks the pool of the route; the caller makes a [`Candidate`] of each of
//! its ready replicas; [`decide`] looks the prompt up in the [`PrefixIndex`], says what each candidate would have
//! to do, and asks the route's [`Policy`]. Then the caller notes it at once, before anything is sent:
//! [`LoadGuard::reserve`] and [`PrefixIndex::insert`], so that the next decision sees this one. What came of it is
//! learned by [`PoolModel::observe`]. [`judge`] adds whether to act on it now. No clock, socket or runtime in here:
//! the same code runs in simulated time.

mod backlog;
mod cache_counters;
mod candidate;
mod decision;
mod dispatcher;
mod expected;
mod float;
mod followed;
mod foreign;
mod hazard;
mod load;
mod memory;
mod miss;
pub mod notice;
pub mod policies;
mod pools;
mod predictor;
pub mod prefix_index;
mod prompt;
mod query;
pub mod rendezvous;
pub mod reports;
#[cfg(test)]
mod scenarios;
mod score;
mod slots;
pub mod target;
pub(crate) mod tuning;
mod verdict;
pub mod ways;
mod work;

pub use self::backlog::Waiting;
pub use self::cache_counters::CacheFigures;
pub use self::candidate::Candidate;
use self::candidate::longest;
pub use self::decision::{Decision, MAX_LOGGED, cheapest, decide};
pub use self::dispatcher::{Assignment, Dispatcher, Judged};
pub use self::expected::Expected;
pub(crate) use self::float::span;
pub use self::followed::{Followed, FollowedRequests};
pub use self::foreign::Foreign;
pub use self::hazard::{Curve, POINTS};
pub use self::load::{
    LoadGuard, LoadView, Pace, Placement, REFRESH_EVERY, Refreshed, ReplicaLoad, TimingSample,
};
pub use self::policies::{Choice, Eligible, Policy, Reason};
pub use self::pools::{ByCanary, CanaryShare, GOLDEN, PoolWheel, WHOLE};
pub use self::predictor::{
    Calibration, Estimate, LATE_TIMES, Links, MeanRequest, Pair, PoolModel, PoolView, SavedPool, SavedSpeed,
    Terms, Transfers, Typical, UnderWay,
};
pub use self::prefix_index::PrefixIndex;
pub use self::prompt::Prompt;
pub use self::query::{Aim, Ask, Elsewhere, Query, Sampling};
pub use self::slots::SlotSet;
pub use self::target::{EngineLimits, EnginePage, EngineSignals, Target};
pub use self::verdict::Verdict;
pub use self::ways::{Offers, Quote};
pub use self::work::Work;
