//! `tokenway drift URL`: lists findings; acknowledges, resets and mutes them.

use std::collections::BTreeMap;
use std::io;

use clap::{Args, Subcommand};

use super::admin_client::{AdminArgs, AdminClient, AskError};
use super::{Outputs, print};
use crate::api::drift::{Acknowledgement, Drift, Fact, Finding, Mute, MuteOrder};
use crate::config::check::parse_duration;
use crate::config::segment;

/// Arguments of `tokenway drift`.
#[derive(Args, Clone, Debug)]
pub struct DriftArgs {
    #[command(flatten)]
    admin: AdminArgs,
    #[command(subcommand)]
    order: Option<DriftOrder>,
}

/// Operation on findings; without one they are listed.
#[derive(Clone, Debug, Subcommand)]
enum DriftOrder {
    /// Acknowledge: stays listed, stops alerting
    Ack {
        /// As `tokenway drift URL` lists it
        id: String,
        /// Withdraw the acknowledgement
        #[arg(long)]
        undo: bool,
    },
    /// Make the present the new baseline
    Reset {
        /// As `tokenway drift URL` lists it
        id: String,
    },
    /// Mute alerts of matching findings for a time
    Mute {
        /// Name of a route [default: every route]
        #[arg(long, value_name = "NAME")]
        route: Option<String>,
        /// Kind of finding, such as ttft_shift [default: every kind]
        #[arg(long, value_name = "KIND")]
        kind: Option<String>,
        /// How long, such as 2h; 0s ends a mute
        #[arg(long, value_name = "DURATION")]
        r#for: String,
    },
}

/// Asks the gateway and prints what it says. The result is the exit code.
pub fn run(args: &DriftArgs, env: &dyn Fn(&str) -> Option<String>, outputs: Outputs<'_>) -> io::Result<u8> {
    print(carry_out(args, env), outputs)
}

async fn carry_out(args: &DriftArgs, env: &dyn Fn(&str) -> Option<String>) -> Result<String, AskError> {
    let client = AdminClient::new(&args.admin.url, &args.admin.token, env)?;
    Ok(match &args.order {
        None => list(&client.get("/api/v1/drift").await?),
        Some(DriftOrder::Ack { id, undo }) => {
            let path = format!("/api/v1/drift/{}/acknowledge", segment(id));
            let finding = client.send(&path, &Acknowledgement { undo: *undo }).await?;
            let done = if *undo { "no longer acknowledged" } else { "acknowledged" };
            format!("{done}: {}\n", line(&finding))
        }
        Some(DriftOrder::Reset { id }) => {
            let finding = client.post(&format!("/api/v1/drift/{}/reset", segment(id))).await?;
            format!("ended, its baseline begins anew: {}\n", line(&finding))
        }
        Some(DriftOrder::Mute { route, kind, r#for }) => {
            let order = MuteOrder { route: route.clone(), kind: kind.clone(), r#for: r#for.clone() };
            let mute = client.send("/api/v1/drift/mute", &order).await?;
            let done = if parse_duration(r#for).is_ok_and(|span| span.is_zero()) {
                "no longer muted"
            } else {
                "muted"
            };
            format!("{done}: {}\n", muted(&mute))
        }
    })
}

fn list(drift: &Drift) -> String {
    let mut text = String::new();
    if drift.active.is_empty() {
        text.push_str(&format!("no finding holds; {} series have a baseline\n", drift.series));
    }
    for mute in &drift.mutes {
        text.push_str(&format!("muted: {}\n", muted(mute)));
    }
    for finding in &drift.active {
        text.push_str(&format!("{}\n", line(finding)));
        text.push_str(&facts("evidence", &finding.evidence));
        if let Some(next) = &finding.runner_up {
            text.push_str(&facts(&format!("else {}", next.diagnosis), &next.evidence));
        }
    }
    text
}

fn muted(Mute { route, kind, until }: &Mute) -> String {
    let any = |name: &Option<String>| name.clone().unwrap_or_else(|| "any".to_owned());
    format!("route {}, kind {}, until {until}", any(route), any(kind))
}

/// One finding: `ID kind route/revision[/replica]: diagnosis (since …)`.
fn line(finding: &Finding) -> String {
    let Finding { id, kind, series, diagnosis, .. } = finding;
    let replica = series.replica.as_ref().map_or_else(String::new, |replica| format!("/{replica}"));
    let marks = [(finding.acknowledged, ", acknowledged"), (finding.muted == Some(true), ", muted")];
    let marks: String = marks.iter().filter(|(holds, _)| *holds).map(|(_, mark)| *mark).collect();
    let time = finding.time.as_deref().unwrap_or_default();
    format!("{id} {kind} {}/{}{replica}: {diagnosis} (since {time}{marks})", series.route, series.revision)
}

fn facts(what: &str, facts: &BTreeMap<String, Fact>) -> String {
    let facts: Vec<String> = facts.iter().map(|(name, fact)| format!("{name} {fact}")).collect();
    format!("  {what}: {}\n", facts.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_finding_is_listed_with_its_evidence_and_the_runner_up() {
        let answer = json!({ "series": 1, "mutes": [{ "route": "chat", "kind": null, "until": "2026-01-02T00:00:00Z" }], "active": [{
            "id": "00ff", "kind": "ttft_doubled", "series": { "route": "chat", "revision": "r1", "replica": null },
            "diagnosis": "capacity", "time": "2026-01-01T00:00:00Z", "acknowledged": true, "muted": false,
            "evidence": { "ratio": 2.5, "replicas": ["a"] },
            "runner_up": { "diagnosis": "contention", "evidence": { "itl_ratio": 1.25 } },
        }] });
        let expected = "muted: route chat, kind any, until 2026-01-02T00:00:00Z\n00ff ttft_doubled chat/r1: capacity (since 2026-01-01T00:00:00Z, acknowledged)\n  \
                        evidence: ratio 2.5, replicas [\"a\"]\n  else contention: itl_ratio 1.25\n";
        assert_eq!(list(&serde_json::from_value(answer).unwrap()), expected);
    }
}
