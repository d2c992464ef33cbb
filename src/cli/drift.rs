//! `tokenway drift URL`: lists findings, and says of them that they are known, over, or not to be told of.

use std::io::{self, Write};

use clap::{Args, Subcommand};
use serde_json::{Value as Json, json};

use super::admin_client::{AdminArgs, AdminClient, AskError, segment};
use super::{EXIT_FAILED, EXIT_OK};

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
///
/// # Errors
/// When `out` or `err` cannot be written.
pub fn run(
    args: &DriftArgs,
    env: &dyn Fn(&str) -> Option<String>,
    (out, err): (&mut dyn Write, &mut dyn Write),
) -> io::Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = AdminClient::new(&args.admin, env)
        .and_then(|client| runtime.block_on(carry_out(&client, args.order.as_ref())));
    match answer {
        Ok(answer) => print(args.order.as_ref(), &answer, out).map(|()| EXIT_OK),
        Err(error) => writeln!(err, "error: {error}").map(|()| EXIT_FAILED),
    }
}

async fn carry_out(client: &AdminClient, order: Option<&DriftOrder>) -> Result<Json, AskError> {
    match order {
        None => client.get("/api/v1/drift").await,
        Some(DriftOrder::Ack { id, undo }) => {
            let path = format!("/api/v1/drift/{}/acknowledge", segment(id));
            client.post(&path, Some(&json!({ "undo": undo }))).await
        }
        Some(DriftOrder::Reset { id }) => {
            client.post(&format!("/api/v1/drift/{}/reset", segment(id)), None).await
        }
        Some(DriftOrder::Mute { route, kind, r#for }) => {
            let mute = json!({ "route": route, "kind": kind, "for": r#for });
            client.post("/api/v1/drift/mute", Some(&mute)).await
        }
    }
}

fn print(order: Option<&DriftOrder>, answer: &Json, out: &mut dyn Write) -> io::Result<()> {
    let text = |json: &Json| json.as_str().unwrap_or("any").to_owned();
    match order {
        None => list(answer, out),
        Some(DriftOrder::Mute { .. }) => {
            let (route, kind) = (text(&answer["route"]), text(&answer["kind"]));
            writeln!(out, "muted: route {route}, kind {kind}, until {}", text(&answer["until"]))
        }
        Some(DriftOrder::Ack { undo: true, .. }) => writeln!(out, "no longer acknowledged: {}", line(answer)),
        Some(DriftOrder::Ack { .. }) => writeln!(out, "acknowledged: {}", line(answer)),
        Some(DriftOrder::Reset { .. }) => writeln!(out, "ended, its baseline begins anew: {}", line(answer)),
    }
}

fn list(answer: &Json, out: &mut dyn Write) -> io::Result<()> {
    let active = answer["active"].as_array().map(Vec::as_slice).unwrap_or_default();
    if active.is_empty() {
        return writeln!(out, "no finding holds; {} series have a baseline", answer["series"]);
    }
    for finding in active {
        writeln!(out, "{}", line(finding))?;
        facts(out, "evidence", &finding["evidence"])?;
        if let Some(next) = finding["runner_up"]["diagnosis"].as_str() {
            facts(out, &format!("else {next}"), &finding["runner_up"]["evidence"])?;
        }
    }
    Ok(())
}

/// One finding: `ID kind route/revision[/replica]: diagnosis (since …)`.
fn line(finding: &Json) -> String {
    let of = |json: &Json| json.as_str().unwrap_or_default().to_owned();
    let series = &finding["series"];
    let replica = series["replica"].as_str().map_or_else(String::new, |replica| format!("/{replica}"));
    let mut said = Vec::new();
    for mark in ["acknowledged", "muted"] {
        if finding[mark] == true {
            said.push(format!(", {mark}"));
        }
    }
    format!(
        "{} {} {}/{}{replica}: {} (since {}{})",
        of(&finding["id"]),
        of(&finding["kind"]),
        of(&series["route"]),
        of(&series["revision"]),
        of(&finding["diagnosis"]),
        of(&finding["time"]),
        said.concat()
    )
}

fn facts(out: &mut dyn Write, what: &str, facts: &Json) -> io::Result<()> {
    let Some(facts) = facts.as_object() else { return Ok(()) };
    let rounded = |value: &Json| match value.as_f64() {
        Some(number) => format!("{number:.4}").trim_end_matches('0').trim_end_matches('.').to_owned(),
        None => value.to_string(),
    };
    let facts: Vec<String> = facts.iter().map(|(name, value)| format!("{name} {}", rounded(value))).collect();
    writeln!(out, "  {what}: {}", facts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_listed_with_its_evidence_and_the_runner_up() {
        let answer = json!({ "series": 1, "active": [{
            "id": "00ff", "kind": "ttft_doubled", "series": { "route": "chat", "revision": "r1", "replica": null },
            "diagnosis": "capacity", "time": "2026-01-01T00:00:00Z", "acknowledged": true, "muted": false,
            "evidence": { "ratio": 2.5, "replicas": ["a"] },
            "runner_up": { "diagnosis": "contention", "evidence": { "itl_ratio": 1.25 } },
        }] });
        let mut out = Vec::new();
        print(None, &answer, &mut out).unwrap();
        let expected = "00ff ttft_doubled chat/r1: capacity (since 2026-01-01T00:00:00Z, acknowledged)\n  \
                        evidence: ratio 2.5, replicas [\"a\"]\n  else contention: itl_ratio 1.25\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
