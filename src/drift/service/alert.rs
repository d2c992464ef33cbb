//! Findings as alerts of Alertmanager's v2 API.
//!
//! Alertmanager resolves an alert that is not repeated. Findings are sent again while they hold, each time with an end some
//! minutes ahead, so that a gateway that is gone leaves no alert behind.

use serde_json::{Value as Json, json};

use crate::clock;
use crate::drift::detectors::Finding;
use crate::observe::rfc3339;

/// One alert of the gateway `instance`; it ends at `until` unless it is repeated. With `instance` among its labels the end of
/// one gateway's finding does not end another's; `finding` is the same for all of them, to group by. The diagnosis is none of
/// the labels: it may change while the finding holds, and would make another alert of it.
pub(super) fn alert(finding: &Finding, instance: &str, until: f64) -> Json {
    let series = &finding.series;
    let mut labels = json!({
        "alertname": "TokenwayDrift",
        "service": "tokenway",
        "instance": instance,
        "kind": finding.kind.as_str(),
        "finding": finding.id(),
        "severity": if finding.kind.is_urgent() { "critical" } else { "warning" },
        "route": &*series.route,
        "revision": &*series.revision,
    });
    let place = match &series.replica {
        Some(replica) => {
            labels["replica"] = json!(&**replica);
            format!("replica {replica} of route {}", series.route)
        }
        None => format!("route {} on revision {}", series.route, series.revision),
    };
    let summary = format!("{} at {place}: {}", finding.kind.as_str(), finding.diagnosis().as_str());
    json!({
        "labels": labels,
        "annotations": {
            "summary": summary,
            "diagnosis": finding.diagnosis().as_str(),
            "runner_up": finding.causes.runner_up.as_ref().map_or("none", |case| case.cause.as_str()),
            "evidence": json!(finding.to_api().evidence).to_string(),
        },
        "startsAt": rfc3339::utc(clock::wall(finding.at)),
        "endsAt": rfc3339::utc(clock::wall(until)),
    })
}
