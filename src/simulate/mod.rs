//! What joins the product to its simulator (`tokenway-sim`): the routing in replays, the demo's view of a fleet.
//!
//! Nothing on the gateway's data path may import this module or that crate.

mod product_router;
mod scoreboard;

pub use product_router::{ProductRouter, ReplayedRoute};
pub use scoreboard::{DemoRow, DemoStats};
