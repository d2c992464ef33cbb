//! The replica side: connections, headers in both directions, budgets of attempts.

pub(crate) mod budget;
pub mod call;
pub mod connect;
pub(crate) mod headers;
pub(crate) mod pool;
mod resolve;
pub(crate) mod streamed;
