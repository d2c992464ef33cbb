//! Admission control: whether a request is placed now, waits, degrades to another route, or is refused.
//!
//! [`rule`] decides, from routing's prediction and the route's rules. [`WaitQueue`] is the queue of a route: earliest
//! deadline first, in bounded lanes. Both are pure: the same code decides live and in simulated time. [`RouteQueue`] runs
//! one for the live gateway, where tasks sleep until they are called. Nothing in here chooses a replica.

mod queue;
mod refusal;
mod ruling;
mod ticket;

pub use self::queue::{Position, WaitQueue, WaitReason, Waiter};
pub use self::refusal::Refusal;
pub use self::ruling::{Outlook, Rules, Ruling, rule};
pub use self::ticket::{MAX_STAYS, ROUND_EVERY, RouteQueue, Ticket};
