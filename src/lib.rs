//! Tokenway: a latency-aware inference gateway in front of vLLM replicas.
//!
//! The path of a request, in the order of reading:
//!
//! 1. [`listener`] accepts a connection and bounds its every wait.
//! 2. [`gateway`] is the line: one function from head to response ([`gateway::Gateway`]).
//! 3. [`gateway::prepare`] reads the body once ([`request::body`]), finds out who asks ([`request::tenant`]),
//!    what for ([`request::fields`]) and which prompt it is ([`request::prompt`]).
//! 4. [`gateway::picker`] asks [`routing`], which is pure, for a replica of the [`fleet`], and marks its load.
//!    What should not be sent at once waits in the room of its route ([`admission`]), or is refused.
//! 5. [`gateway::exchange`] sends ([`upstream::attempt`]) and tries again elsewhere where that is safe.
//! 6. [`gateway::reply`] makes the head, [`relay::stream`] the body: bytes untouched, a clock beside them.
//! 7. [`journal`] carries the [`record`] along and reports it once, from the drop of the body.
//! 8. [`observe`] reads records: metrics, spans, access log.
//!
//! Beside the line: [`config`] (checked before anything runs), [`fleet`] (probes and scrapes), [`relay::watch`]
//! (deadlines from outside the bodies), [`admin`], [`simulate`] (what joins the crate `tokenway-sim` to it), [`app`] (wiring) and
//! [`cli`].

pub mod admin;
pub mod admission;
pub mod app;
pub mod cli;
pub mod clock;
pub mod config;
pub mod digits;
pub mod drift;
pub mod error;
pub mod fleet;
pub mod gateway;
pub mod listener;
pub mod observe;
pub mod record;
pub mod relay;
pub mod request;
pub mod routing;
pub mod simulate;
pub mod stage;
pub mod units;
pub mod upstream;
