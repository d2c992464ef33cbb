//! The binary as a child process: commands, signals, files, rollouts.

mod autoscale;
mod replay;
mod rollouts;
mod serve;
#[path = "../serve_support/mod.rs"]
mod serve_support;
