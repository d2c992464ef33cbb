//! Simulated vLLM: an engine model, a server that speaks vLLM's wire over it, and trace replay in simulated time.
//!
//! - [`engine`] is the model: continuous batching, chunked prefill, prefix cache. Pure; time is an argument.
//! - [`kv_transfer`] is what it takes to move KV from one engine to another.
//! - [`server`] runs an engine in real time behind vLLM's HTTP API, with faults on request.
//! - [`traffic`] plays chat clients against any OpenAI endpoint.
//! - [`replay`] runs fleets of engines through recorded traces, faster than real time. A [`replay::Router`] stands
//!   between arrivals and engines; `replay::fit` fits the model to a real engine.
//! - [`rivals`] are routers re-implemented from other projects, for comparison.
//!
//! Tokenway depends on this crate, never the other way round: nothing here knows how Tokenway routes.

pub mod engine;
pub mod kv_transfer;
pub mod replay;
pub mod rivals;
pub mod server;
pub mod time;
pub mod traffic;
