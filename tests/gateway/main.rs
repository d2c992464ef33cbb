//! The gateway in this process, before scripted replicas: what clients, fleet and configuration see of it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

mod admission;
mod bill;
mod blame;
mod cluster;
mod cluster_keys;
mod content;
mod deadlines;
mod discovery;
mod epp;
mod failures;
mod hook;
mod kv_events;
mod label_bounds;
mod life;
mod outside;
mod relay;
mod relay_stream;
mod responses;
mod routing;
mod slo;
mod standby;
#[path = "../support/mod.rs"]
mod support;
mod teaching;
mod tenants;
mod truth;
