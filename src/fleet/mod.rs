//! The replicas: who they are, whether they are ready, what their engines say.
//!
//! Control plane: probes, scrapes and state changes happen here and are published as immutable snapshots and
//! atomics that the data path reads.

pub mod call;
pub mod load_report;
pub mod metrics_text;
pub mod pick;
mod poison;
pub mod pool;
pub mod probe;
pub mod registry;
pub mod replica;
pub mod scrape;
pub mod status;
pub mod vitals;
