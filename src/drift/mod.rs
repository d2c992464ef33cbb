//! Drift detection: latency and availability of routes compared with their own past.
//!
//! [`detectors`] judge and diagnose; they are pure, so `tokenway replay --drift` runs the same code. [`service`] is the
//! task that feeds them with records and publishes findings: admin API, metrics, log, webhook, OTLP.

pub mod detectors;
pub mod service;
