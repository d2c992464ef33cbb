//! Trace-driven simulation: a request trace against a policy, on a fleet of engine models, in simulated time.
//!
//! `trace` reads, `workload` makes traffic of it, `run` is the clockwork, `gateway` is the product's own routing in it
//! and `tally` counts. The yardsticks of other projects are in `simulate::peers`. Everything is pure and single
//! threaded: a run is a function of its trace, its scenario and its dispatcher.

mod contest;
mod dispatch;
mod engine_file;
mod fit;
mod gateway;
mod hardware;
mod held;
mod run;
mod tally;
mod trace;
mod workload;

pub use contest::{Contender, Entrant, Race, Setting, contest};
pub use dispatch::{Admission, Dispatcher, Ended, Incoming, Placement, RequestId, Truth, Verdict};
pub use engine_file::{EngineFile, EngineFileError};
pub use fit::{Fit, FitError, Recorded, Recording, fit};
pub use gateway::Gateway;
pub use hardware::qwen_32b_on_two_h100;
pub use run::{Scenario, run};
pub use tally::{Figures, Prediction};
pub use trace::{BLOCK_TOKENS, Trace, TraceError, TraceRequest};
pub use workload::Demand;

#[cfg(test)]
mod tests;
