//! Several gateways before the same replicas, through Redis or Valkey (`[cluster]`): each publishes what it decides and follows the
//! others, so that all route nearly as one.
//!
//! The broker is in front of no request: notices go into a bounded queue, and without the broker each gateway routes alone.
//! `wire` is what is sent, `peers` what is made of it, `service` the task that holds the connection. A gateway without a broker keeps
//! what it knows for its own next start (`snapshot`).

mod budgets;
mod connected;
mod journal;
mod keys;
mod link;
mod peers;
mod pins;
mod places;
mod refusals;
mod service;
mod snapshot;
mod speeds;
mod standings;
mod topics;
mod trial;
mod wire;

pub use self::link::{Link, LinkError};
pub use self::service::{Deps, start};
pub use self::snapshot::Snapshot;
pub use self::topics::{Shown, Topics};
pub use self::trial::{Unusable, try_broker};

use std::time::Duration;

use crate::background::until;
use crate::config::Secret;
use crate::fleet::registry::Fleet;

/// Whether two gateways hash alike, without giving the seed away.
fn fingerprint(seed: &Secret) -> u32 {
    let digest = <sha2::Sha256 as sha2::Digest>::digest(seed.reveal().as_bytes());
    digest.first_chunk().copied().map_or(0, u32::from_le_bytes)
}

/// Lets sources name their replicas, and then the first scrapes come, which show since when each engine runs.
async fn wait_for_pages(fleet: &Fleet) {
    let fails = |(since, _): &(Duration, _)| *since > PAGES_WITHIN;
    let all_named =
        || fleet.sources().iter().all(|one| one.age.is_some() || one.failing.as_ref().is_some_and(fails));
    // What is not there by then is routed to without what was known.
    until(SOURCES_WITHIN, PAGES_EVERY, all_named).await;
    let all_shown = || fleet.pools().iter().all(|pool| pool.replicas().iter().all(|one| one.is_scraped()));
    until(PAGES_WITHIN, PAGES_EVERY, all_shown).await;
}

/// Between two batches of a gateway that has something to publish.
const FLUSH_EVERY: Duration = Duration::from_millis(20);
/// Between two batches of a gateway that has nothing to publish.
const HEARTBEAT: Duration = Duration::from_millis(500);
const PAGES_EVERY: Duration = Duration::from_millis(50);
const PAGES_WITHIN: Duration = Duration::from_secs(2);
/// A list of a large cluster, or a name that is tried again.
const SOURCES_WITHIN: Duration = Duration::from_secs(10);
