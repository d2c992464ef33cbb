//! The replicas: identity, state, and what their engines report.
//!
//! Control plane: probes, scrapes and state changes are published as immutable snapshots and atomics that the data path
//! reads.

pub(crate) mod adapters;
pub(crate) mod arrivals;
pub mod demand;
pub mod discovery;
pub(crate) mod engine;
pub mod gpu;
mod gpu_scrape;
pub(crate) mod health;
pub(crate) mod identity;
pub(crate) mod life;
pub mod metrics_text;
pub(crate) mod model_list;
pub mod objectives;
pub(crate) mod outside;
mod pages;
pub(crate) mod pick;
mod poison;
pub(crate) mod pool;
mod probe;
mod probe_answer;
mod probe_request;
pub(crate) mod promise;
mod prove;
pub(crate) mod registry;
pub(crate) mod replica;
mod scrape;
pub(crate) mod speeds;
pub mod status;
pub(crate) mod stream_defaults;
mod warmup;
