//! The product's routing and admission in simulated time, against engines of the simulator: apart from tests with deadlines,
//! whose cores these would take.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

mod cold;
#[allow(dead_code, reason = "the bench uses the rest")]
#[path = "../../benches/scaling/elastic.rs"]
mod elastic;
mod flood;
mod gateways;
mod overload;
mod restarts;
mod watched;
