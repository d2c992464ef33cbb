//! The workloads, and what each one measures.
//!
//! The goals beside the figures are the project's bounds for the ratio gateway / floor. They are printed, not
//! enforced: a busy machine would fail them for reasons of its own.

use std::time::Duration;

use hdrhistogram::Histogram;
use tokenway::clock::Clock;

use crate::Failure;
use crate::engine::{Engine, Pace};
use crate::load::{self, Plan};
use crate::proxy::Proxy;

/// One measured value of one run.
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) value: f64,
    /// Upper bound of gateway / floor, where the project set one.
    pub(crate) goal: Option<f64>,
}

/// What the client does and how fast the engine answers.
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    plan: Plan,
    pace: Pace,
    measure: Measure,
}

#[derive(Clone, Copy)]
enum Measure {
    CpuPerEvent,
    CpuPerRequest,
    Burst,
    FirstEvent,
}

impl Workload {
    /// All of them; `is_quick` makes them shorter, not lighter.
    pub(crate) fn all(is_quick: bool) -> [Self; 4] {
        let (rounds, tokens) = if is_quick { (1, 50) } else { (2, 100) };
        let paced = Pace { step: Duration::from_millis(20), tokens };
        let ramp = Duration::from_millis(500);
        let stream = |connections: usize| Plan {
            connections,
            requests: connections * rounds,
            ramp,
            stream_tokens: Some(tokens),
        };
        let few = if is_quick { 4_000 } else { 20_000 };
        [
            // 200 streams, an event every 20 ms each: 10,000 events a second.
            Self { name: "streams", plan: stream(200), pace: paced, measure: Measure::CpuPerEvent },
            Self {
                name: "unary",
                plan: Plan { connections: 32, requests: few, ramp: Duration::ZERO, stream_tokens: None },
                pace: paced,
                measure: Measure::CpuPerRequest,
            },
            // 500 arrivals in half a second, on new connections.
            Self { name: "burst", plan: stream(500), pace: paced, measure: Measure::Burst },
            // Nothing follows the only event, so a proxy that waits to fill a packet shows it here.
            Self {
                name: "first_event",
                plan: Plan {
                    connections: 2,
                    requests: few / 10,
                    ramp: Duration::ZERO,
                    stream_tokens: Some(1),
                },
                pace: Pace { step: Duration::ZERO, tokens: 1 },
                measure: Measure::FirstEvent,
            },
        ]
    }

    /// Runs it once through `proxy`.
    pub(crate) async fn run(
        &self,
        engine: &Engine,
        proxy: &Proxy,
        clock: Clock,
    ) -> Result<Vec<Figure>, Failure> {
        engine.set(Pace { step: Duration::ZERO, tokens: 4 });
        let warm_up = Plan { connections: 32, requests: 200, ramp: Duration::ZERO, stream_tokens: Some(4) };
        load::run(proxy.address, warm_up, clock).await?;
        engine.set(self.pace);
        let before = proxy.cpu_time()?;
        let tally = load::run(proxy.address, self.plan, clock).await?;
        let burnt = proxy.cpu_time()?.since(&before);
        if tally.errors > 0 {
            return Err(format!(
                "{} through {}: {} of {} requests failed, first: {}",
                self.name,
                proxy.name,
                tally.errors,
                self.plan.requests,
                tally.first_error.unwrap_or_default()
            )
            .into());
        }
        let cpu = |per: u64| burnt.as_secs_f64() * 1e6 / (per.max(1) as f64);
        Ok(match self.measure {
            Measure::CpuPerEvent => vec![
                figure("CPU per event", "us", cpu(tally.events), Some(1.25)),
                figure("event delay p99", "ms", quantile(&tally.delay, 0.99), None),
            ],
            Measure::CpuPerRequest => vec![
                figure("CPU per request", "us", cpu(tally.requests), Some(1.6)),
                figure("latency p50", "ms", quantile(&tally.total, 0.5), None),
                figure("latency p99", "ms", quantile(&tally.total, 0.99), None),
            ],
            Measure::Burst => vec![
                figure("TTFT p50", "ms", quantile(&tally.ttft, 0.5), Some(1.5)),
                figure("TTFT p99", "ms", quantile(&tally.ttft, 0.99), Some(1.5)),
                figure("event delay p50", "ms", quantile(&tally.delay, 0.5), None),
                figure("event delay p99", "ms", quantile(&tally.delay, 0.99), Some(1.5)),
                figure("CPU per event", "us", cpu(tally.events), None),
            ],
            Measure::FirstEvent => vec![
                figure("event delay p50", "ms", quantile(&tally.delay, 0.5), None),
                figure("event delay p99", "ms", quantile(&tally.delay, 0.99), None),
            ],
        })
    }
}

fn figure(name: &'static str, unit: &'static str, value: f64, goal: Option<f64>) -> Figure {
    Figure { name, unit, value, goal }
}

/// In milliseconds, of a histogram in nanoseconds.
fn quantile(histogram: &Histogram<u64>, q: f64) -> f64 {
    histogram.value_at_quantile(q) as f64 / 1e6
}
