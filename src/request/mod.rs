//! What a request asks for: its dialect, its fields, its prompt's identity and size, its tenant.
//!
//! [`body`] reads it whole, bounded and once; everything else here is pure and borrows from its bytes, which are
//! forwarded as they came.

pub mod api_keys;
pub mod arriving;
pub mod body;
pub mod body_memory;
pub mod cache_salt;
mod canonical;
pub mod chain;
pub mod class;
pub mod continuation;
pub mod dialect;
pub mod engine_priority;
pub mod fields;
pub mod handoff;
pub mod json;
pub mod jwt;
pub mod makeup;
pub mod multipart;
mod parameters;
pub mod pieces;
pub mod prompt;
pub mod prompt_size;
pub(crate) mod rare;
pub mod ratio;
pub mod splice;
pub mod tenant;
pub mod trace_context;
mod uploads;
