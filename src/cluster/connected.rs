//! The broker while it is connected, and what each part of the gateway works with there.

use std::sync::atomic::AtomicBool;

use redis::aio::MultiplexedConnection;

use super::link::Link;
use super::refusals::Refused;
use crate::clock::Clock;
use crate::fleet::registry::Fleet;

/// One connection, and the gateway that holds it.
#[derive(Clone, Copy)]
pub(super) struct Connected<'c> {
    pub(super) link: &'c Link,
    /// `cluster.name`
    pub(super) cluster: &'c str,
    /// This gateway in hashes of the broker.
    pub(super) field: &'c str,
    pub(super) fleet: &'c Fleet,
    pub(super) clock: Clock,
    pub(super) refused: &'c Refused,
    /// Whether another gateway was found to have the same name.
    pub(super) has_twin: &'c AtomicBool,
}

impl Connected<'_> {
    /// For one command after the other.
    pub(super) fn connection(&self) -> MultiplexedConnection {
        self.link.connection.clone()
    }
}
