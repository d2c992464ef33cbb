//! The relay: an engine's answer on its way to the client, untouched, with a clock beside it.
//!
//! Everything in these files but the body adaptor is pure: bytes and stamps go in, facts come out. Nothing here
//! reads a clock, owns a socket or spawns; the same code runs live, in tests and in simulated time.
//!
//! In reading order: [`frame`] finds where events end, [`sse`] feeds whole events to [`classify`] (with
//! [`template`] as its short cut), [`usage`] keeps what an answer told of itself, [`timeline`] turns content
//! events into latency, [`withhold`] and [`failure`] are the only places where a stream's bytes change.

pub mod body;
pub mod classify;
mod cut;
pub mod failure;
pub mod frame;
pub mod heartbeat;
pub mod large;
mod late;
mod openai;
pub mod pace;
pub mod pins;
pub mod reader;
pub mod sse;
pub mod stream;
pub mod template;
pub mod timeline;
mod typed;
pub mod usage;
pub mod watch;
pub mod withhold;
