//! What a request says: its dialect, its fields, its prompt's identity and size, and who asks.
//!
//! Everything here is pure and borrows from the body, which is forwarded as it came. The body itself is read
//! elsewhere, bounded and once.

mod canonical;
pub mod chain;
pub mod class;
pub mod dialect;
pub mod fields;
pub mod json;
pub mod prompt;
pub mod ratio;
pub mod splice;
pub mod tenant;
