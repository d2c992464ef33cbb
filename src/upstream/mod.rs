//! The half of the gateway that talks to replicas: connections, headers in both directions.

pub mod budget;
pub mod call;
pub mod connect;
pub mod headers;
pub mod pool;
