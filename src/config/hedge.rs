//! `hedge` of a route: when a second replica is asked, and for which share of the requests at most.

use std::time::Duration;

use serde_json::Value as Json;

use super::PolicyName;
use super::check::codec::{SHARE, Shown};
use super::check::section::Section;
use super::check::values::{Form, POSITIVE_DURATION};
use super::declare::{Declared, section};

section! {
    /// a second replica for requests whose first token is overdue
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct Hedge for "route.hedge", optional {
        /// no first token by this percentile (p50 to p99.9) of its prediction, or after this long ("2s")
        after: HedgeAfter as AFTER, required "p99";
        /// at most this share of the route's requests, above 0
        budget: f64 as SHARE, default 0.02;
    }
}

/// When a first token is overdue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HedgeAfter {
    /// Later than this share of first tokens comes after its prediction, 0 to 1.
    Quantile(f64),
    /// This long after the request was sent.
    Delay(Duration),
}

impl Shown for HedgeAfter {
    fn shown(&self) -> Json {
        match self {
            Self::Quantile(share) => format!("p{}", (share * 1000.0).round() / 10.0).into(),
            Self::Delay(delay) => delay.shown(),
        }
    }
}

/// Reads `hedge`; `policy` is the route's.
pub(super) fn hedge(route: &Section<'_>, policy: PolicyName) -> Option<Hedge> {
    let (section, hedge) = Hedge::opened(route)?;
    let hint = "write a share such as 0.02, or remove hedge";
    let message = "budget is zero, so that nothing is ever hedged";
    section.fault_if(hedge.budget <= 0.0, &["budget"], message, hint);
    match (section.get("after"), hedge.after) {
        (None, _) => section.fault("hedge has no \"after\"", AFTER.hint),
        (Some(item), HedgeAfter::Quantile(_)) if policy != PolicyName::Latency => {
            let policy = policy.as_str();
            item.fault(
                format!("policy \"{policy}\" predicts no time to first token, which has no percentile then"),
                "use policy = \"latency\", or a duration: after = \"2s\"",
            );
        }
        _ => {}
    }
    Some(hedge)
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check::faults_with_pool;

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
        for (route, expected) in [
            ("hedge = { after = \"p99\", budget = 0.02 }", None),
            ("hedge = { after = \"p99\" }", None),
            ("hedge = { after = \"1s\" }\npolicy = \"round_robin\"", None),
            ("hedge = { budget = 0.02 }", Some("f.toml:6:9: hedge has no \"after\"")),
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
            let faults = faults_with_pool(&format!("[[route]]\nmodel = \"m\"\n{route}\n"));
            assert_eq!(faults.first().map(String::as_str), expected, "{route}");
        }
    }
}
