//! Telemetry without any output: the default of every gateway under test.

use tokenway::config::{AccessLog, Sampling, Telemetry};

/// No access log, no spans out or in.
pub(super) fn telemetry() -> Telemetry {
    Telemetry {
        stages_by_tenant: true,
        ttft_by_tenant: true,
        access_log: AccessLog::Off,
        otlp: None,
        otlp_metrics: None,
        engine_spans: None,
        sampling: Sampling {
            max_per_second: u32::MAX,
            routine: 0.0,
            keep_error: false,
            keep_slo_miss: false,
            keep_tail: false,
            keep_retry: false,
            keep_drift: false,
            keep_canary: false,
        },
    }
}
