//! What an engine tells of its load along with an answer (ORCA): `endpoint-load-metrics: JSON {"named_metrics":{…}}`.
//!
//! vLLM tells its waiting requests and its use of KV cache with unary answers that were asked for it, and makes a walk over
//! all its metrics and a log line of it. So it is asked only while the last scrape is overdue: then the page is slow or
//! gone, and a header is the only news there is. Anything malformed is nothing told. How much it weighs is routing's affair.

use std::collections::HashMap;

use serde::Deserialize;

use crate::routing::LoadReport;

/// Reads the header's value.
#[must_use]
pub fn parse(value: &[u8]) -> Option<LoadReport> {
    let json = value.get(..LONGEST.min(value.len()))?.strip_prefix(b"JSON ")?;
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

/// A report has a hundred bytes or two; a longer one is cut, and then malformed.
const LONGEST: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_what_the_engine_sends_and_nothing_malformed() {
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
