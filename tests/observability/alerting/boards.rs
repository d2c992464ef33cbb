//! What panels show, by promtool.

use std::fs;

use super::{dashboards, promtool};

/// Series with their values at every minute, and what a panel shows at the third.
type Shown<'a> = (&'a [(&'a str, &'a str)], u32);

fn shows(panel: &str, cases: &[Shown]) {
    let query = dashboards().into_iter().find(|query| query.place == panel).unwrap();
    let query = serde_json::Value::from(query.text.replace("$job", ".*"));
    let directory = tempfile::tempdir().unwrap();
    let mut file = "evaluation_interval: 1m\ntests:\n".to_owned();
    for (series, shown) in cases {
        file.push_str("  - interval: 1m\n    input_series:\n");
        for (series, values) in *series {
            file.push_str(&format!("      - {{ series: '{series}', values: '{values}' }}\n"));
        }
        file.push_str(&format!(
            "    promql_expr_test:\n      - expr: {query}\n        eval_time: 3m\n        exp_samples: [{{ value: {shown} }}]\n"
        ));
    }
    let path = directory.path().join("panel.yml");
    fs::write(&path, &file).unwrap();
    let Some((is_good, said)) = promtool(&["test", "rules", path.to_str().unwrap()]) else { return };
    assert!(is_good, "{said}\n{file}");
}

#[test]
fn a_replica_that_two_gateways_call_differently_counts_once_as_not_ready() {
    let one = r#"tokenway_pool_replicas{instance="g0", pool="p", state="ejected"}"#;
    let other = r#"tokenway_pool_replicas{instance="g1", pool="p", state="starting"}"#;
    let of_another_pool = r#"tokenway_pool_replicas{instance="g1", pool="q", state="starting"}"#;
    let drained = r#"tokenway_pool_replicas{instance="g0", pool="p", state="draining"}"#;
    let not_serving = r#"tokenway_pool_replicas{instance="g0", pool="p", state="not_serving"}"#;
    shows(
        "fleet.json, panel Replicas not ready",
        &[
            (&[(one, "1x5"), (other, "1x5")], 1),
            (&[(one, "1x5"), (other, "2x5"), (of_another_pool, "1x5")], 3),
            (&[(one, "0x5"), (other, "0x5"), (drained, "1x5")], 0),
            (&[(not_serving, "1x5"), (drained, "1x5")], 1),
            (&[], 0),
        ],
    );
}
