//! The relay: passes an engine's answer to the client unchanged and measures it.
//!
//! Pure (bytes and stamps in, facts out; the same code runs live, in tests and in simulated time): [`frame`] finds where
//! SSE events end, [`sse`] reads whole events by the shapes of their dialects ([`template`] is its fast path), [`usage`] keeps what an
//! answer says of itself ([`answer_ends`]: one that is not read whole), [`timeline`] turns content events into latencies,
//! [`itl_slo`] checks them against the SLO.
//! [`usage_filter`] and [`error_event`] are the only places where a stream's bytes change.
//!
//! [`ws_frames`] tells where a WebSocket's frames end, [`verdict`] how a request ends by an answer that is relayed as it is.
//!
//! With sockets and timers: [`reader`] polls the engine's body, [`stream`] and [`large_body`] are the bodies that hyper
//! polls ([`body`]), [`heartbeat`] fills their pauses, [`watch`] enforces their deadlines from one task.

pub mod aborting;
pub mod answer_ends;
pub mod body;
mod chunk;
mod deferred_gaps;
mod delivered;
pub mod error_event;
pub mod frame;
pub mod heartbeat;
pub mod itl_slo;
pub mod large_body;
pub mod migration;
mod openai;
mod oversized;
pub mod pins;
pub mod pump;
pub mod reader;
mod segment;
pub mod sse;
pub mod stream;
pub mod stream_state;
pub mod template;
pub mod timeline;
pub mod transcript;
mod typed;
pub mod usage;
pub mod usage_filter;
pub mod verdict;
pub mod watch;
pub mod whole_body;
pub mod whole_events;
pub mod ws_frames;
