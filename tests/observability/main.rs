//! What operators see: metrics, spans, logs, findings, the page, alerts.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

mod alerting;
mod drift;
mod engine_spans;
mod observe;
mod otlp_metrics;
mod support;
