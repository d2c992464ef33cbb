//! What operators see: metrics, spans, logs, findings, the page, alerts.

mod alerting;
mod drift;
mod engine_spans;
mod observe;
mod otlp_metrics;
mod support;
