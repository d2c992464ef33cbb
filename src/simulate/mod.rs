//! The simulated engine: one model, used by `tokenway sim`, `tokenway demo`, `tokenway replay` and tests.
//!
//! `engine` is pure and decides what comes out when; `wire` speaks like vLLM on a socket; `driver` lets the
//! one live in real time under the other; `faults` breaks it on request; `traffic` plays the clients. `replay` runs
//! fleets of engines through traces in simulated time, against the product's routing or the yardsticks in `peers`.
//! Nothing on the gateway's data path may import this module.

mod client;
mod config;
mod driver;
pub mod engine;
mod faults;
pub mod peers;
pub mod replay;
mod replica;
mod scoreboard;
mod seen;
mod tokens;
mod traffic;
mod wire;

pub use config::SimConfig;
pub use faults::{Fault, FaultKind};
pub use replica::{SimReplica, start};
pub use scoreboard::{DemoRow, DemoStats};
pub use seen::{Seen, SeenOutcome, SimStats};
pub use traffic::{TrafficConfig, TrafficStats, TrafficSummary, run as run_traffic};
