//! Trace replay: recorded requests through a router and a fleet of engines, in simulated time.
//!
//! `trace` reads, `workload` scales a trace to the fleet, `run` is the event loop, `tally` counts, `grid` runs many
//! settings. Implement [`Router`] to bring a router of your own; those of other projects are in [`crate::rivals`].
//! A run is a function of its trace, its scenario and its router.

mod engine_file;
mod fit;
mod grid;
mod hardware;
mod router;
mod run;
mod tally;
mod trace;
mod transfers;
mod workload;

pub use engine_file::{EngineFile, EngineFileError};
pub use fit::{Fit, FitError, Recorded, Recording, fit};
pub use grid::run_grid;
pub use hardware::{qwen_32b_on_two_a100, qwen_32b_on_two_h100};
pub use router::{Arrival, Bounds, Ended, Fleet, Legs, RequestId, Router};
pub use run::{Scenario, run};
pub use tally::{Figures, Measured, Prediction};
pub use trace::{BLOCK_TOKENS, Trace, TraceError, TraceRequest};
pub use transfers::KvNetwork;
pub use workload::Demand;

#[cfg(test)]
mod tests;
