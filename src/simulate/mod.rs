//! Adapters between the product and its simulator (`tokenway-sim`): routing for replays, per-replica figures for the demo.
//!
//! The data path must not import this module or that crate.

mod elastic;
#[cfg(test)]
mod overload;
mod product_router;
#[cfg(test)]
mod restarts;
mod scoreboard;
mod standings;

pub use elastic::{Conductor, Elastic, ElasticFleet, Judged, Life};
pub use product_router::{ProductRouter, ReplayedRoute};
pub use scoreboard::{DemoRow, DemoStats};
