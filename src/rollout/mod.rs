//! Canaries: a revision takes a route over step by step, and loses it when it is worse than the one beside it.
//!
//! [`judge`] compares the two, [`plan`] walks the steps; both are pure. [`service`] is the task that feeds them with first
//! tokens and records, sets the shares that the data path reads, and reports: admin API, metrics, log, webhook.

#[cfg(test)]
mod fixture;
pub mod judge;
pub mod plan;
pub mod service;
