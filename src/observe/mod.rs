//! observe
pub mod access_log;
pub mod attributes;
#[cfg(test)]
mod fixture;
pub mod metrics;
pub mod rfc3339;
pub mod slo;
pub mod stages;
pub mod trace_context;
pub mod windows;
