//! Load report in a response header (ORCA): `endpoint-load-metrics: JSON {"named_metrics":{…}}`.
//!
//! vLLM reports waiting requests and KV-cache usage with unary responses where the request asks for it, at the cost of a
//! walk over all its metrics and a log line. So it is requested only while a scrape is overdue. Malformed reports are
//! ignored; routing decides their weight.

use std::collections::HashMap;

use serde::Deserialize;

use crate::routing::LoadReport;

/// Parses the header's value; at most [`MAX_BYTES`] of it are read.
pub(crate) fn parse(value: &[u8]) -> Option<LoadReport> {
    let json = value.get(..MAX_BYTES.min(value.len()))?.strip_prefix(b"JSON ")?;
    let report: Report<'_> = serde_json::from_slice(json).ok()?;
    let figure =
        |name| report.named_metrics.get(name).copied().filter(|value| value.is_finite() && *value >= 0.0);
    let kv_cache_usage = figure("kv_cache_usage_perc").filter(|usage| *usage <= 1.0);
    Some(LoadReport { waiting: figure("num_requests_waiting")?, kv_cache_usage })
}

#[derive(Deserialize)]
struct Report<'a> {
    #[serde(borrow)]
    named_metrics: HashMap<&'a str, f64>,
}

/// Reports have some 200 bytes; a longer value is cut, hence malformed.
const MAX_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_engine_sends_and_ignores_malformed_reports() {
        let cases = [
            (
                r#"JSON {"named_metrics": {"kv_cache_usage_perc": 0.4, "num_requests_waiting": 3.0}}"#,
                Some((3.0, Some(0.4))),
            ),
            (
                r#"JSON {"named_metrics": {"num_requests_waiting": 0, "other": 7}, "cpu": 1}"#,
                Some((0.0, None)),
            ),
            (
                r#"JSON {"named_metrics": {"num_requests_waiting": 2, "kv_cache_usage_perc": 40}}"#,
                Some((2.0, None)),
            ),
            (r#"JSON {"named_metrics": {"num_requests_waiting": -1}}"#, None),
            (r#"JSON {"named_metrics": {"num_requests_waiting": "many"}}"#, None),
            (r#"JSON {"named_metrics": {"num_requests_waiting": NaN}}"#, None),
            (r#"JSON {"named_metrics": {"kv_cache_usage_perc": 0.4}}"#, None),
            ("TEXT named_metrics.num_requests_waiting=3", None),
            ("JSON ", None),
            ("", None),
            ("JSON [[[[[[[[", None),
        ];
        for (value, expected) in cases {
            let found = parse(value.as_bytes()).map(|report| (report.waiting, report.kv_cache_usage));
            assert_eq!(found, expected, "{value}");
        }
        assert_eq!(parse(&[0xFF; 100_000]), None);
    }
}
