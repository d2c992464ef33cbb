//! The product's routing and admission in simulated time, against engines of the simulator.

mod cold;
#[allow(dead_code, reason = "the bench uses the rest")]
#[path = "../../benches/scaling/elastic.rs"]
mod elastic;
mod overload;
mod restarts;
