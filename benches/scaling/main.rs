//! `cargo bench --bench scaling`: replicas that come and go, in simulated time.
//!
//! `-- cold`: what a cold replica adds to the p99 of its pool in its first minute, beside the simplest rivals.
//! `-- hpa [SECONDS…] [TRACE…]`: missed SLOs and replica-hours of the scaler and of Kubernetes' HPA, on a daily curve and on recorded traces.
//! The figures are in `docs/results.md`.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program of its own"
)]

mod cold;
mod elastic;
mod hpa;
mod traffic;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    match args.split_first() {
        Some((what, _)) if what == "cold" => cold::print(),
        Some((what, files)) if what == "hpa" => hpa::print(files),
        _ => {
            cold::print();
            hpa::print(&[]);
        }
    }
}
