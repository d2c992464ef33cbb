//! What becomes of a request that should not be sent at once: it waits, another route answers, or it is refused.
//!
//! [`rule`] says which, from what routing predicts and what the route wants. [`WaitQueue`] is the queue of a route: earliest
//! deadline first, lanes, bounds. Both are pure: the same code decides live and in simulated time. [`RouteQueue`] is a queue
//! in operation, where tasks sleep until they are called. Nothing in here chooses a replica.

mod queue;
mod refusal;
mod ruling;
mod ticket;

pub use self::queue::{Position, WaitQueue, WaitReason, Waiter};
pub use self::refusal::Refusal;
pub use self::ruling::{Outlook, Rules, Ruling, rule};
pub use self::ticket::{MAX_STAYS, ROUND_EVERY, RouteQueue, Ticket};
