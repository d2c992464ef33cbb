//! What replicas and sources run on.

use std::sync::Arc;

use crate::background::Background;
use crate::clock::Clock;
use crate::routing::{ByCanary, CanaryShare};
use crate::upstream::connect::Connector;

/// What replicas and sources run on.
#[derive(Clone, Debug)]
pub(in crate::fleet) struct Deps {
    pub(in crate::fleet) connector: Connector,
    pub(in crate::fleet) clock: Clock,
    pub(in crate::fleet) background: Background,
    /// Whose traffic is a canary's.
    pub(in crate::fleet) canaries: Arc<ByCanary<CanaryShare>>,
}
