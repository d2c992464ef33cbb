//! Tokenway: a latency-aware inference gateway.

pub mod admin;
pub mod admission;
pub mod app;
pub mod cli;
pub mod clock;
pub mod config;
pub mod error;
pub mod fleet;
pub mod gateway;
pub mod journal;
pub mod listener;
pub mod observe;
pub mod record;
pub mod relay;
pub mod request;
pub mod routing;
pub mod simulate;
pub mod units;
pub mod upstream;
