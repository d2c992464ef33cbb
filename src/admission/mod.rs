//! What becomes of a request that should not be sent at once: it waits, another route answers, or it is refused.
//!
//! [`rule`] says which, from what routing predicts and what the route wants. [`Room`] is the waiting room of a route:
//! earliest deadline first, lanes, bounds. Both are pure: the same code decides live and in simulated time.
//! [`WaitingRoom`] is a room in operation, where tasks sleep until they are called. Nothing in here chooses a replica.

mod refusal;
mod room;
mod ruling;
mod waiting;

pub use self::refusal::Refusal;
pub use self::room::{Guest, Kind, Limits, Place, Room};
pub use self::ruling::{Outlook, Rules, Ruling, rule};
pub use self::waiting::{Seat, WaitingRoom};
