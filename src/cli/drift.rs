//! `tokenway drift URL`: lists findings, and says of them that they are known, over, or not to be told of.

use std::io::{self, Write};
use std::time::Duration;

use bytes::Bytes;
use clap::{Args, Subcommand};
use http::{Method, Request, StatusCode, header};
use serde_json::{Value as Json, json};
use tokio_util::task::TaskTracker;

use crate::config::Endpoint;
use crate::config::check::parse_endpoint;
use crate::upstream::call::{CallError, exchange};
use crate::upstream::connect::Connector;

/// Arguments of `tokenway drift`.
#[derive(Args, Clone, Debug)]
pub struct DriftArgs {
    /// Admin port of the gateway
    #[arg(value_name = "URL", value_parser = parse_endpoint)]
    url: Endpoint,
    /// Token of the admin port
    #[arg(long, env = "TOKENWAY_ADMIN_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    token: Option<String>,
    #[command(subcommand)]
    order: Option<DriftOrder>,
}

/// What is said of findings; without one they are listed.
#[derive(Clone, Debug, Subcommand)]
enum DriftOrder {
    /// Somebody knows of it: no more alerts while it lasts
    Ack {
        /// As `tokenway drift URL` lists it
        id: String,
        /// Take it back
        #[arg(long)]
        undo: bool,
    },
    /// It is over: what is now is usual
    Reset {
        /// As `tokenway drift URL` lists it
        id: String,
    },
    /// No alerts of such findings for a while
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

/// Why nothing was listed or said.
#[derive(Debug, thiserror::Error)]
pub enum DriftOrderError {
    /// The gateway did not answer.
    #[error("{url}: {error}")]
    Call {
        /// Its admin port.
        url: Endpoint,
        /// Why.
        error: CallError,
    },
    /// It refused.
    #[error("{url} answered {status}: {message}")]
    Refused {
        /// Its admin port.
        url: Endpoint,
        /// With what.
        status: StatusCode,
        /// In its words.
        message: String,
    },
    /// TLS of the client.
    #[error("tls: {0}")]
    Tls(#[from] rustls::Error),
    /// The request cannot be written.
    #[error("{0}")]
    Request(#[from] http::Error),
    /// No runtime, or nothing to print to.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Asks the gateway and prints what it says.
///
/// # Errors
/// [`DriftOrderError`].
pub fn run(args: &DriftArgs, out: &mut dyn Write) -> Result<(), DriftOrderError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = runtime.block_on(ask(args))?;
    print(args.order.as_ref(), &answer, out)?;
    Ok(())
}

async fn ask(args: &DriftArgs) -> Result<Json, DriftOrderError> {
    let (method, path, body) = request_of(args.order.as_ref());
    let mut request = Request::builder().method(method).uri(path).header("x-tokenway-admin", "1");
    if let Some(token) = &args.token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Bytes::from(body.map_or_else(String::new, |body| body.to_string())))?;
    let connector = Connector::new(TaskTracker::new())?;
    let answer = exchange(&connector, &args.url, request, TIMEOUT).await;
    let answer = answer.map_err(|error| DriftOrderError::Call { url: args.url.clone(), error })?;
    let body: Json = serde_json::from_slice(answer.body()).unwrap_or_default();
    if answer.status().is_success() {
        return Ok(body);
    }
    let message = body["error"]["message"].as_str().unwrap_or("no gateway's answer").to_owned();
    Err(DriftOrderError::Refused { url: args.url.clone(), status: answer.status(), message })
}

fn request_of(order: Option<&DriftOrder>) -> (Method, String, Option<Json>) {
    match order {
        None => (Method::GET, "/api/v1/drift".to_owned(), None),
        Some(DriftOrder::Ack { id, undo }) => {
            let body = json!({ "undo": undo });
            (Method::POST, format!("/api/v1/drift/{}/acknowledge", segment(id)), Some(body))
        }
        Some(DriftOrder::Reset { id }) => {
            (Method::POST, format!("/api/v1/drift/{}/reset", segment(id)), None)
        }
        Some(DriftOrder::Mute { route, kind, r#for }) => {
            let body = json!({ "route": route, "kind": kind, "for": r#for });
            (Method::POST, "/api/v1/drift/mute".to_owned(), Some(body))
        }
    }
}

/// An id is hexadecimal; what else was typed must not become another path.
fn segment(id: &str) -> String {
    id.chars().filter(char::is_ascii_alphanumeric).collect()
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

const TIMEOUT: Duration = Duration::from_secs(10);

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

    #[test]
    fn an_id_cannot_leave_its_place_in_the_path() {
        let reset = DriftOrder::Reset { id: "../drain?x".to_owned() };
        assert_eq!(request_of(Some(&reset)).1, "/api/v1/drift/drainx/reset");
    }
}
