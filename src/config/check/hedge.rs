//! `hedge` of a route: when a second replica is asked, and for which share of the requests at most.

use crate::config::{Hedge, HedgeAfter, PolicyName};

use super::section::{Item, Section};
use super::values::{Form, POSITIVE_DURATION};

/// Reads `hedge`; `policy` is the route's.
pub(super) fn hedge(route: &Section<'_>, policy: PolicyName) -> Option<Hedge> {
    let section = route.section("hedge", "hedge");
    if !section.is_present() {
        return None;
    }
    let budget = section.ratio("budget").unwrap_or(DEFAULT_BUDGET);
    if let Some(item) = section.get("budget").filter(|_| budget <= 0.0) {
        item.fault(
            "budget is zero, so that nothing is ever hedged",
            "write a share such as 0.02, or remove hedge",
        );
    }
    if section.get("after").is_none() {
        section.fault("hedge does not say when", AFTER.hint);
    }
    let after = section.parse("after", &AFTER)?;
    if let Some(item) = section.get("after").filter(|_| matches!(after, HedgeAfter::Quantile(_))) {
        expect_prediction(policy, &item);
    }
    Some(Hedge { after, budget })
}

fn expect_prediction(policy: PolicyName, item: &Item<'_>) {
    if policy != PolicyName::Latency {
        item.fault(
            format!(
                "policy \"{}\" predicts no time to first token, which has no percentile then",
                policy.as_str()
            ),
            "use policy = \"latency\", or a duration: after = \"2s\"",
        );
    }
}

/// A percentile or a duration.
const AFTER: Form<HedgeAfter> = Form {
    noun: "a percentile or a duration",
    hint: "write a percentile of the prediction (\"p50\" to \"p99.9\") or a duration: after = \"p99\", after = \"2s\"",
    parse: after,
};

fn after(text: &str) -> Result<HedgeAfter, String> {
    match text.strip_prefix('p') {
        Some(percent) => match percent.parse::<f64>() {
            Ok(percent) if (50.0..=99.9).contains(&percent) => {
                Ok(HedgeAfter::Quantile((percent * 10.0).round() / 1000.0))
            }
            _ => Err(format!("\"{text}\" is not a percentile from p50 to p99.9")),
        },
        None => (POSITIVE_DURATION.parse)(text).map(HedgeAfter::Delay),
    }
}

const DEFAULT_BUDGET: f64 = 0.02;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::check::check_str;

    #[test]
    fn a_percentile_or_a_duration() {
        for (text, expected) in [
            ("p99", Some(HedgeAfter::Quantile(0.99))),
            ("p50", Some(HedgeAfter::Quantile(0.5))),
            ("p99.9", Some(HedgeAfter::Quantile(0.999))),
            ("500ms", Some(HedgeAfter::Delay(Duration::from_millis(500)))),
            ("p100", None),
            ("p10", None),
            ("p", None),
            ("99", None),
            ("0s", None),
        ] {
            assert_eq!(after(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn faults_of_hedge() {
        let file = |route: &str| {
            format!(
                "[[pool]]\nname = \"p\"\nreplicas = [\"http://127.0.0.1:1\"]\n[[route]]\nmodel = \"m\"\n{route}\n"
            )
        };
        for (route, expected) in [
            ("hedge = { after = \"p99\", budget = 0.02 }", None),
            ("hedge = { after = \"p99\" }", None),
            ("hedge = { after = \"1s\" }\npolicy = \"round_robin\"", None),
            ("hedge = { budget = 0.02 }", Some("f.toml:6:9: hedge does not say when")),
            (
                "hedge = { after = \"p99\", budget = 0 }",
                Some("f.toml:6:35: budget is zero, so that nothing is ever hedged"),
            ),
            (
                "hedge = { after = \"p101\" }",
                Some("f.toml:6:19: \"p101\" is not a percentile from p50 to p99.9"),
            ),
            (
                "hedge = { after = \"p99\" }\npolicy = \"round_robin\"",
                Some(
                    "f.toml:6:19: policy \"round_robin\" predicts no time to first token, which has no percentile then",
                ),
            ),
            ("migrate = 1", Some("f.toml:6:11: migrate: expected true or false, found a whole number")),
            ("migrate = true", None),
        ] {
            let told = check_str("f.toml", &file(route), &|_| None)
                .err()
                .and_then(|faults| faults.iter().next().map(ToString::to_string));
            let line = told.as_deref().and_then(|text| text.lines().next());
            assert_eq!(line, expected, "{route}");
        }
    }
}
