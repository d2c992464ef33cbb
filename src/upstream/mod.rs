//! The replica side: connections, headers in both directions, budgets of attempts.

pub mod answer_body;
pub(crate) mod budget;
pub mod call;
pub mod connect;
pub(crate) mod headers;
pub mod http1;
pub(crate) mod pool;
mod resolve;
pub mod socket;
pub(crate) mod streamed;
