//! A simulated vLLM replica on a socket: an engine in real time behind vLLM's HTTP API, broken on request.
//!
//! `wire` speaks HTTP, `driver` runs the engine against the clock, `faults` keeps what is broken, `request_log` what
//! arrived. [`start`] gives a handle on all of it.

mod config;
mod driver;
mod faults;
mod replica;
mod request_log;
mod tokens;
mod wire;

pub use config::SimConfig;
pub use faults::{Fault, FaultKind};
pub use replica::{SimReplica, start};
pub use request_log::{LoggedRequest, RequestState, SimStats};
