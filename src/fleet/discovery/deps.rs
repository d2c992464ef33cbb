//! What replicas and sources run on.

use crate::background::Background;
use crate::clock::Clock;
use crate::upstream::connect::Connector;

/// What replicas and sources run on.
#[derive(Clone, Debug)]
pub(in crate::fleet) struct Deps {
    pub(in crate::fleet) connector: Connector,
    pub(in crate::fleet) clock: Clock,
    pub(in crate::fleet) background: Background,
}
