//! Admission control: whether a request is placed now, waits, degrades to another route, or is refused.
//!
//! [`TenantLimiter`] holds tenants to their rates. [`rule`] decides on the rest, from routing's prediction and the route's
//! rules. [`WaitQueue`] is the queue of a pool: all its routes, fair between tenants, earliest deadline first. Both are pure:
//! the same code decides live and in simulated time. [`PoolQueue`] runs one for the live gateway, where tasks sleep until
//! they are called. Nothing in here chooses a replica.

mod aging;
mod amounts;
mod budget;
mod calendar;
mod claims;
mod flow;
mod lease;
mod limit_reached;
mod outlook;
mod pace;
mod queue;
mod refusal;
mod ruling;
mod tenant;
mod ticket;
mod usage;
mod virtual_time;
mod wait;
mod waiter;

#[cfg(test)]
mod tests;

pub use self::aging::grows_old_after;
pub use self::amounts::{Amounts, Kind};
pub use self::budget::Ledger;
pub use self::claims::{Claim, Others, Wish};
pub use self::flow::Position;
pub use self::lease::{ByKind, Sharing};
pub use self::outlook::{Deferral, Outlook};
pub use self::queue::{Entered, Line, WaitQueue};
pub use self::refusal::{Exceeded, Refusal};
pub use self::ruling::{DegradeRule, Rules, Ruling, rule};
pub use self::tenant::{Admission, Demand, EngineCharge, Ledgers, TenantLimiter, TenantPermit};
pub use self::ticket::{PoolQueue, ROUND_EVERY, Ticket, TurnOnDrop};
pub use self::wait::EndOfWait;
pub use self::waiter::{Share, WaitReason, Waiter};

/// Calls of one round.
const MAX_STAYS: usize = 64;
