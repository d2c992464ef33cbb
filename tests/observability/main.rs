//! What operators see: metrics, spans, logs, findings, the page, alerts.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

// The fixture of the room is shared with its unit tests, which find these at the root.
use tokenway::{clock, record, request, units};

mod alerting;
mod drift;
mod engine_spans;
mod observe;
mod otlp_metrics;
mod support;
