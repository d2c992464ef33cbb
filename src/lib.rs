//! Tokenway: a latency-aware inference gateway in front of vLLM replicas.
//!
//! The path of a request, in the order of reading:
//!
//! 1. [`listener`] accepts a connection; every wait has a deadline.
//! 2. [`gateway::Gateway`] takes a request from its head to its response.
//! 3. [`gateway::prepare`] reads the body once ([`request::body`]), finds the tenant ([`request::tenant`]), the fields
//!    that matter ([`request::fields`]) and the prompt ([`request::prompt`]).
//! 4. [`gateway::picker`] asks [`routing`], which is pure, for a replica of the [`fleet`], and reserves its load. A
//!    request that should not be sent at once waits in the queue of its route ([`admission`]), or is refused.
//! 5. [`gateway::exchange`] sends it ([`gateway::attempt`]), and again to another replica where that is safe.
//! 6. [`gateway::reply`] makes the head, [`relay::stream`] the body: bytes pass unchanged and are timed.
//! 7. `observe::record_guard` carries the [`record`] along and emits it once, when the body is dropped.
//! 8. [`observe`] turns records into metrics, spans and the access log.
//!
//! Beside that path: [`config`] (checked before anything runs), [`fleet`] (probes and scrapes), [`relay::watch`]
//! (deadlines of streams), [`identity`] (keys of
//! the token issuer), [`cluster`] (other gateways), [`epp`] (Envoy's endpoint picker), [`drift`], [`admin`], [`simulate`] (joins the crate `tokenway-sim`), [`app`] (wiring) and
//! [`cli`]. The order in which modules may import each other is in `docs/architecture.md`.

pub mod admin;
pub mod admission;
pub(crate) mod api;
pub mod app;
pub mod autoscale;
pub mod background;
pub mod cli;
pub mod clock;
pub mod cluster;
pub mod config;
pub(crate) mod debug;
pub mod diagnosis;
pub mod digits;
pub mod drift;
pub mod epp;
pub(crate) mod error;
pub mod fleet;
pub mod gateway;
pub mod identity;
pub mod kv_events;
pub(crate) mod labels;
pub mod listener;
pub mod observe;
pub mod record;
pub mod relay;
pub mod request;
pub mod rollout;
pub mod routing;
pub mod simulate;
pub mod stage;
pub mod state_file;
pub mod stats;
pub mod units;
pub mod upstream;
pub(crate) mod whole_file;
