//! What followers of KV events work with.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::background::Background;
use crate::clock::Clock;
use crate::fleet::registry::Fleet;
use crate::gateway::Gateway;
use crate::upstream::connect::Connector;

/// What followers work with.
#[derive(Clone)]
pub struct Deps {
    /// The pools.
    pub fleet: Arc<Fleet>,
    /// Its metrics.
    pub gateway: Arc<Gateway>,
    /// Without TLS: ZeroMQ has none of it.
    pub connector: Connector,
    /// Where they run, ...
    pub background: Background,
    /// ... and their end.
    pub stopped: CancellationToken,
    /// The gateway's.
    pub clock: Clock,
}
