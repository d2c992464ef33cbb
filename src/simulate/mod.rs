//! Adapters between the product and its simulator (`tokenway-sim`): routing for replays.
//!
//! The data path must not import this module or that crate.

mod gateways;
mod product_router;
mod standings;

pub use gateways::ReplayedGateways;
#[cfg(test)]
pub(crate) use product_router::page;
pub use product_router::{ProductRouter, ReplayedPrefill, ReplayedRoute};
pub use standings::Standings;
