//! Several gateways before the same replicas, through Redis or Valkey (`[cluster]`): each publishes what it decides and follows the
//! others, so that all route nearly as one.
//!
//! The broker is in front of no request: notices go into a bounded queue, and without the broker each gateway routes alone.
//! `wire` is what is sent, `peers` what is made of it, `service` the task that holds the connection.

mod budgets;
mod journal;
mod keys;
mod link;
mod peers;
mod pins;
mod places;
mod refusals;
mod service;
mod speeds;
mod standings;
mod topics;
mod trial;
mod wire;

pub use self::link::{Link, LinkError};
pub use self::service::{Deps, start};
pub use self::topics::{Shown, Topics};
pub use self::trial::{Unusable, try_broker};

/// Between two batches of a gateway that has something to publish.
const FLUSH_EVERY: std::time::Duration = std::time::Duration::from_millis(20);
/// Between two batches of a gateway that has nothing to publish.
const HEARTBEAT: std::time::Duration = std::time::Duration::from_millis(500);
