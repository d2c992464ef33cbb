//! request

pub mod dialect;
