//! The control plane's judges: they learn from records and never sit on the line.
//!
//! [`drift`] tells when latency or availability leaves its baseline and what most likely did it. It is pure: time is an
//! argument, so that the same code runs live and in `tokenway replay --drift`. [`watch`] runs it in a gateway.

pub mod drift;
pub mod watch;
