//! fleet

pub mod status;
