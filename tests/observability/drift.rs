//! Drift from outside: `tokenway replay --drift` on traces, the webhook and the admin API of a running gateway.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value as Json;
use tokenway::admin::{AdminState, serve};
use tokenway::app::observers::Observers;
use tokenway::cli::replay_drift::{self, ReplayDriftError};
use tokenway::config::{Config, DriftState, Endpoint};
use tokenway::observe::Observer;
use tokenway::record::{Outcome, Record};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::support;
use crate::support::{Collector, config, get, observers, record, until, value};

const DAY: f64 = 86_400.0;
const FILE: &str = "[slo.interactive]\nttft = \"500ms\"\n[[pool]]\nname = \"p\"\nreplicas = [\"http://127.0.0.1:1\"]\n\
                    [[route]]\nname = \"chat\"\nmodel = \"m\"\nslo = \"interactive\"\n";

/// One request of a trace, before anything happens to it.
#[derive(Clone)]
struct Line {
    t: f64,
    revision: &'static str,
    replica: &'static str,
    ttft: f64,
    itl: f64,
    prompt: u32,
    outcome: &'static str,
}

/// A month of a route, as [`days`].
fn month(seed: u64, change: impl Fn(&mut Line, f64, f64)) -> String {
    days(30, seed, change)
}

/// Days of a route at 200 requests an hour on four replicas: median 60 ms, p99 180 ms; `change` gets each request with its day and a
/// standard normal number. What happens on day 10 is found within two more.
fn days(count: u32, seed: u64, change: impl Fn(&mut Line, f64, f64)) -> String {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut text = String::new();
    // A wall clock's epoch, at midnight.
    let start = 20_300.0 * DAY;
    for request in 0..count * 24 * 200 {
        let day = f64::from(request) / 4800.0;
        let normal = (-2.0 * (1.0 - random.f64()).ln()).sqrt() * (std::f64::consts::TAU * random.f64()).cos();
        let mut line = Line {
            t: start + day * DAY,
            revision: "r1",
            replica: ["a", "b", "c", "d"][random.usize(..4)],
            ttft: 0.06 * (0.472 * normal).exp(),
            itl: 0.02 * (0.9 + 0.2 * random.f64()),
            prompt: 500 + random.u32(..500),
            outcome: "ok",
        };
        change(&mut line, day, normal);
        let ttft = if line.outcome == "ok" { format!("{:.5}", line.ttft) } else { "null".to_owned() };
        writeln!(
            text,
            "{{\"t\":{:.3},\"route\":\"chat\",\"revision\":\"{}\",\"replica\":\"{}\",\"ttft\":{ttft},\"itl\":{:.5},\
             \"prompt_tokens\":{},\"outcome\":\"{}\"}}",
            line.t, line.revision, line.replica, line.itl, line.prompt, line.outcome
        )
        .unwrap();
    }
    text
}

fn replay(trace: &str) -> Result<Vec<Json>, ReplayDriftError> {
    replay_with(trace, FILE)
}

fn replay_with(trace: &str, config: &str) -> Result<Vec<Json>, ReplayDriftError> {
    let directory = tempfile::tempdir().unwrap();
    let (file, path) = (directory.path().join("gateway.toml"), directory.path().join("trace.jsonl"));
    fs::write(&file, config).unwrap();
    fs::write(&path, trace).unwrap();
    let mut out = Vec::new();
    replay_drift::run(&path, &file, &mut out)?;
    let lines = String::from_utf8(out).unwrap();
    Ok(lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

/// The first finding of a kind, with the day of the trace on which it was made.
fn first<'a>(found: &'a [Json], kind: &str) -> Option<(&'a Json, f64)> {
    let finding = found.iter().find(|finding| finding["kind"] == kind)?;
    Some((finding, finding["t"].as_f64().unwrap() / DAY - 20_300.0))
}

#[test]
fn a_quiet_month_is_silent() {
    assert_eq!(replay(&month(1, |_, _, _| {})).unwrap(), [Json::Null; 0]);
}

#[test]
fn a_tail_that_grows_for_eleven_days_is_found_in_the_first_eight() {
    let trace = month(2, |line, day, normal| {
        let p99 = 180.0 + 60.0 * ((day - 14.0) / 11.0).clamp(0.0, 1.0);
        line.ttft = 0.06 * ((p99 / 60.0_f64).ln() / 2.3263 * normal).exp();
    });
    let found = replay(&trace).unwrap();
    let (finding, day) = first(&found, "ttft_tail_drift").unwrap_or_else(|| panic!("{found:?}"));
    assert!((14.0..22.0).contains(&day), "{day}");
    assert_eq!(finding["diagnosis"], "infrastructure_variability");
    assert_eq!(finding["series"]["route"], "chat");
    assert_eq!(finding["evidence"]["p50"], "flat", "{finding}");
    assert!(finding["evidence"]["baseline_days"].as_f64().unwrap() >= 7.0, "{finding}");
}

#[test]
fn a_tail_that_more_long_prompts_account_for_is_a_change_of_traffic_and_ends_with_it() {
    let trace = month(8, |line, day, normal| {
        let long = if (14.0..20.0).contains(&day) { 0.05 } else { 0.01 };
        if (normal * 1e4).rem_euclid(1.0) < long {
            line.ttft += 0.4;
            line.prompt = 16_000;
        }
    });
    let found = replay(&trace).unwrap();
    let (finding, _) = first(&found, "ttft_tail_drift").unwrap_or_else(|| panic!("{found:?}"));
    assert_eq!(finding["diagnosis"], "traffic_mix", "{finding}");
    assert_eq!(finding["runner_up"]["diagnosis"], "infrastructure_variability");
    let evidence = |name: &str| finding["evidence"][name].as_f64().unwrap();
    assert!(evidence("long_prompt_share") > 1.25 * evidence("long_prompt_share_before"), "{finding}");
}

#[test]
fn a_doubling_on_a_new_revision_is_found_and_blamed_on_it() {
    let trace = days(12, 3, |line, day, _| {
        if day >= 10.5 {
            line.revision = "r2";
            line.ttft *= 2.2;
        }
    });
    let found = replay(&trace).unwrap();
    let (finding, day) = first(&found, "ttft_doubled").unwrap_or_else(|| panic!("{found:?}"));
    assert!((day - 10.5) * DAY < 600.0 && day >= 10.5, "{day}");
    assert_eq!((&finding["diagnosis"], &finding["series"]["revision"]), (&"revision".into(), &"r2".into()));
    assert_eq!(finding["evidence"]["revision_before"], "r1");
}

#[test]
fn more_load_hours_after_a_deploy_is_not_blamed_on_the_revision() {
    let (deploy, busy) = (10.5, 10.5 + 3.0 / 24.0);
    let trace = days(12, 3, |line, day, _| {
        if day >= deploy {
            line.revision = "r2";
        }
        // 2.2 times the requests an hour for some hours, and then none until the trace has caught up.
        if (busy..busy + 0.3).contains(&day) {
            line.t -= (day - busy) * DAY * (1.0 - 1.0 / 2.2);
            // The queues grow with it, a quarter of an hour later.
            line.ttft *= if day >= busy + 0.03 { 2.4 } else { 1.0 };
        }
    });
    let found = replay(&trace).unwrap();
    let (finding, day) = first(&found, "ttft_doubled").unwrap_or_else(|| panic!("{found:?}"));
    assert!((busy..busy + 0.1).contains(&day), "{day}");
    assert_eq!(finding["diagnosis"], "capacity", "{finding}");
    assert!(found.iter().all(|finding| finding["diagnosis"] != "revision"), "{found:?}");
}

/// Days of embeddings at 200 requests an hour: no stream, no first token; answers take `slower(day)` times as long.
fn embeddings(count: u32, tokens: Option<u32>, slower: impl Fn(f64) -> f64) -> Vec<Json> {
    let trace = days(count, 9, |line, day, _| line.ttft *= slower(day));
    let with = tokens.map_or(String::new(), |tokens| format!("\"output_tokens\":{tokens},"));
    let in_one_piece =
        trace.replace("\"ttft\":", &format!("{with}\"duration\":")).replace("\"itl\":", "\"gap\":");
    replay(&in_one_piece).unwrap()
}

#[test]
fn embeddings_whose_durations_double_are_found() {
    let doubled = |day: f64| if day >= 10.5 { 2.2 } else { 1.0 };
    let found = embeddings(12, None, doubled);
    let (_, day) = first(&found, "ttft_doubled").unwrap_or_else(|| panic!("{found:?}"));
    assert!((day - 10.5) * DAY < 600.0 && day >= 10.5, "{day}");
    let found = embeddings(12, Some(8), doubled);
    let (_, day) = first(&found, "itl_shift").unwrap_or_else(|| panic!("{found:?}"));
    assert!((day - 10.5) * DAY < 600.0 && day >= 10.5, "{day}");
    assert_eq!(embeddings(30, None, |_| 1.0), [Json::Null; 0]);
}

#[test]
fn longer_prompts_that_the_slo_allows_for_are_no_drift() {
    let trace = month(3, |line, day, _| {
        if day >= 10.5 {
            (line.prompt, line.ttft) = (9 * line.prompt, 2.9 * line.ttft);
        }
    });
    let bound = "ttft = { base = \"500ms\", per_prompt_token = \"0.2ms\" }";
    let found = replay_with(&trace, &FILE.replace("ttft = \"500ms\"", bound)).unwrap();
    assert!(first(&found, "ttft_doubled").is_none() && first(&found, "ttft_shift").is_none(), "{found:?}");
    assert!(first(&replay(&trace).unwrap(), "ttft_doubled").is_some(), "by a bound that does not grow");
}

#[test]
fn one_slow_replica_is_named() {
    let trace = days(12, 4, |line, day, _| {
        if day >= 10.0 && line.replica == "c" {
            line.ttft *= 2.0;
        }
    });
    let found = replay(&trace).unwrap();
    let (finding, day) = first(&found, "replica_slow").unwrap_or_else(|| panic!("{found:?}"));
    assert!((10.0..10.5).contains(&day), "{day}");
    assert_eq!((&finding["diagnosis"], &finding["series"]["replica"]), (&"replica".into(), &"c".into()));
    assert_eq!(finding["evidence"]["replicas"], serde_json::json!(["c"]));
}

#[test]
fn minutes_over_the_slo_and_failing_hours_are_found() {
    let trace = month(5, |line, day, normal| {
        let second = (day * DAY) % DAY;
        if (10.4..10.42).contains(&day) {
            line.ttft += 2.0;
        }
        let is_peak = (14.0 * 3600.0..15.0 * 3600.0).contains(&second);
        if is_peak && normal > 2.2 {
            line.outcome = "failed";
        }
    });
    let found = replay(&trace).unwrap();
    let (over, day) = first(&found, "ttft_p99_over_slo").unwrap_or_else(|| panic!("{found:?}"));
    assert!((day - 10.4) * DAY < 600.0, "{day}");
    assert!(over["evidence"]["share_over_slo"].as_f64().unwrap() > 0.01);
    let (hour, _) = first(&found, "availability_hour").unwrap_or_else(|| panic!("{found:?}"));
    assert_eq!(hour["evidence"]["hour_of_day_utc"], 14.0);
    assert!(first(&found, "availability_burn").is_none(), "six failures a day burn no budget: {found:?}");
}

#[test]
fn requests_that_no_replica_served_are_no_replica_s_fault() {
    let trace = days(12, 7, |line, day, _| {
        if (10.4..10.45).contains(&day) {
            (line.revision, line.replica, line.outcome) = ("none", "none", "failed");
        }
    });
    let found = replay(&trace).unwrap();
    let (burn, day) = first(&found, "availability_burn").unwrap_or_else(|| panic!("{found:?}"));
    assert!((10.4..10.5).contains(&day), "{day}");
    assert_eq!(burn["diagnosis"], "unknown", "{burn}");
    let compared = (&burn["evidence"]["replicas_judged"], &burn["evidence"]["replicas"]);
    assert_eq!(compared, (&Json::Null, &Json::Null), "none had a request since: {burn}");
}

#[test]
fn failures_are_one_replica_s_where_its_peers_do_not_fail_as_much() {
    // Of two replicas each third request fails, from the middle of day 10 on: at both, or at one.
    let burn = |seed, is_sick: fn(&str) -> bool| {
        let trace = days(12, seed, |line, day, normal| {
            line.replica = if matches!(line.replica, "a" | "b") { "a" } else { "b" };
            if (10.5..10.52).contains(&day) && normal > 0.4 && is_sick(line.replica) {
                line.outcome = "failed";
            }
        });
        let found = replay(&trace).unwrap();
        first(&found, "availability_burn").unwrap_or_else(|| panic!("{found:?}")).0.clone()
    };
    for seed in 11..17 {
        let of_both = burn(seed, |_| true);
        assert_ne!(of_both["diagnosis"], "replica", "seed {seed}: {of_both}");
        let of_one = burn(seed, |name| name == "b");
        assert_eq!(of_one["diagnosis"], "replica", "seed {seed}: {of_one}");
        assert_eq!(of_one["evidence"]["replicas"], serde_json::json!(["b"]));
    }
}

#[test]
fn jitter_of_tokens_is_told_from_slow_tokens() {
    let trace = days(12, 6, |line, day, normal| {
        if day >= 10.0 && normal > 0.8 {
            line.itl *= 5.0;
        }
    });
    let found = replay(&trace).unwrap();
    let (finding, _) = first(&found, "itl_jitter").unwrap_or_else(|| panic!("{found:?}"));
    // Requests alone do not tell what held the tokens up.
    assert_eq!((&finding["diagnosis"], &finding["runner_up"]), (&"unknown".into(), &Json::Null));
}

#[test]
fn a_line_that_is_no_record_is_told_with_its_number() {
    let good = "{\"t\":1,\"route\":\"chat\",\"outcome\":\"ok\"}\n";
    let error = replay(&format!("{good}\n{good}{{\"t\":oops}}\n")).unwrap_err().to_string();
    assert!(error.contains("trace.jsonl:4: "), "{error}");
    let directory = tempfile::tempdir().unwrap();
    let missing = replay_drift::run(Path::new("/nowhere.jsonl"), directory.path(), &mut Vec::new());
    assert!(missing.is_err());
}

/// A webhook that keeps what it gets and answers with this status; `None` never answers.
async fn webhook(status: Option<u16>) -> (SocketAddr, Arc<Mutex<Vec<String>>>, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (bodies, connections) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
    let (sink, counter) = (Arc::clone(&bodies), Arc::clone(&connections));
    TaskTracker::new().spawn(async move {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            counter.fetch_add(1, Ordering::SeqCst);
            let Some(status) = status else {
                held.push(stream);
                continue;
            };
            let mut text = Vec::new();
            loop {
                let mut chunk = [0; 4096];
                let read = stream.read(&mut chunk).await.unwrap_or(0);
                text.extend_from_slice(&chunk[..read]);
                let all = String::from_utf8_lossy(&text).into_owned();
                let length = all
                    .to_lowercase()
                    .split("content-length: ")
                    .nth(1)
                    .and_then(|rest| rest.split("\r\n").next()?.parse::<usize>().ok());
                let body = all.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
                if read == 0 || body.as_ref().is_some_and(|body| Some(body.len()) >= length) {
                    sink.lock().push(all);
                    break;
                }
            }
            let _ = stream
                .write_all(format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n").as_bytes())
                .await;
        }
    });
    (address, bodies, connections)
}

fn with_webhook(address: SocketAddr) -> Config {
    let mut config = config();
    config.drift.webhook = Some(Endpoint {
        is_tls: false,
        host: "127.0.0.1".into(),
        port: address.port(),
        base_path: "/api/v2/alerts".into(),
    });
    config
}

/// A hundred good requests, then twenty that fail: an hour's budget many times over.
fn outage(observer: &Observer) {
    let failed = Record { outcome: Outcome::Failed, ..record() };
    for request in 0..120 {
        observer.record(&Arc::new(if request < 100 { record() } else { failed.clone() }));
    }
}

#[tokio::test]
async fn a_finding_reaches_the_webhook_the_admin_api_and_the_metrics() {
    let (address, bodies, _) = webhook(Some(200)).await;
    let config = with_webhook(address);
    let Observers { observer, drift, rollouts, scale } = observers(&config);
    outage(&observer);
    // Judged every five seconds.
    let posted = || bodies.lock().iter().any(|body| body.contains("availability_burn"));
    tokio::time::timeout(Duration::from_secs(60), async {
        while !posted() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
    .expect("posted within a minute");
    let text = bodies.lock()[0].clone();
    assert!(text.starts_with("POST /api/v2/alerts HTTP/1.1\r\n"), "{text}");
    let alerts: Json = serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap();
    let alert = &alerts[0];
    assert_eq!(alert["labels"]["alertname"], "TokenwayDrift");
    assert_eq!(alert["labels"]["route"], "chat");
    assert!(alert["startsAt"].as_str().unwrap() < alert["endsAt"].as_str().unwrap(), "{alert}");
    assert!(alert["annotations"]["evidence"].as_str().unwrap().contains("burn_rate"), "{alert}");

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let admin = listener.local_addr().unwrap();
    let state = AdminState {
        control: Arc::new(support::Gateway::new(config)),
        observer: Arc::clone(&observer),
        drift,
        rollouts,
        scale,
        keys: support::no_keys(),
    };
    let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
    tracker.spawn(serve(listener, Arc::new(state), tracker.clone(), stop.clone()));
    let (status, _, body) = get(admin, "/api/drift").await;
    let drift: Json = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &drift["active"][0]["kind"]), (200, &"availability_burn".into()), "{body}");
    assert_eq!(drift["series"], 1);
    let page = observer.metrics.render(&[]);
    let labels =
        r#"{diagnosis="unknown",kind="availability_burn",replica="none",revision="v1",route="chat"}"#;
    assert_eq!(value(&page, &format!("tokenway_drift_active{labels}")), Some(1.0), "{page}");
    until(|| {
        let page = observer.metrics.render(&[]);
        value(&page, r#"tokenway_drift_webhook_posts_total{result="sent"}"#).is_some_and(|sent| sent >= 1.0)
    })
    .await;
    let id = drift["active"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(alert["labels"]["finding"], id.as_str());
    assert!(alert["labels"]["instance"].is_string() && alert["labels"]["diagnosis"].is_null(), "{alert}");

    // Known: its alert ends and its gauge goes, and it is shown all the same.
    assert_eq!(post(admin, &format!("/api/drift/{id}/acknowledge"), "").await, 200);
    let (_, _, body) = get(admin, "/api/drift").await;
    let shown: Json = serde_json::from_str(&body).unwrap();
    assert_eq!(shown["active"][0]["acknowledged"], true, "{body}");
    assert_eq!(value(&observer.metrics.render(&[]), &format!("tokenway_drift_active{labels}")), None);
    until(|| {
        let last = bodies.lock().last().cloned().unwrap_or_default();
        let posted: Json = serde_json::from_str(last.split_once("\r\n\r\n").unwrap().1).unwrap();
        // Before, the end was minutes ahead of the start.
        posted[0]["endsAt"].as_str() < alert["endsAt"].as_str()
    })
    .await;
    assert_eq!(post(admin, "/api/drift/0000/reset", "").await, 404);
    assert_eq!(post(admin, "/api/v1/drift/mute", r#"{"route":"chat","for":"1h"}"#).await, 200);
    assert_eq!(post(admin, "/api/drift/mute", r#"{"kind":"slowness","for":"1h"}"#).await, 400);
    let (status, body) = post_with_body(admin, "/api/v1/drift/mute", r#"{"route":"chta","for":"1h"}"#).await;
    let refused: Json = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &refused["error"]["code"]), (404, &"unknown_route".into()), "{body}");
    assert_eq!(refused["error"]["message"], "there is no route chta; there are chat", "{body}");
    let (_, _, body) = get(admin, "/api/drift").await;
    let shown: Json = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (&shown["active"][0]["muted"], &shown["mutes"][0]["route"]),
        (&true.into(), &"chat".into()),
        "{body}"
    );
    assert_eq!(post(admin, &format!("/api/drift/{id}/reset"), "").await, 200);
    let (_, _, body) = get(admin, "/api/drift").await;
    assert_eq!(serde_json::from_str::<Json>(&body).unwrap()["active"], serde_json::json!([]), "{body}");
    stop.cancel();
}

/// The status of a POST to the admin port.
async fn post(admin: SocketAddr, path: &str, body: &str) -> u16 {
    post_with_body(admin, path, body).await.0
}

/// Status and body of the answer to a POST to the admin port.
async fn post_with_body(admin: SocketAddr, path: &str, body: &str) -> (u16, String) {
    let mut stream = tokio::net::TcpStream::connect(admin).await.unwrap();
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nx-tokenway-admin: 1\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{body}"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[tokio::test]
async fn a_broken_state_is_moved_aside_and_findings_survive_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sub/drift.json");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "{\"version\":1,").unwrap();
    let mut config = config();
    config.drift.state = DriftState::At(path.clone());
    let before = observers(&config);
    outage(&before.observer);
    until(|| !before.drift.board().read().active.is_empty()).await;
    before.shutdown(Duration::from_secs(5), Duration::from_secs(5)).await;
    assert!(path.with_file_name("drift.json.corrupt").exists());
    let after = observers(&config);
    until(|| !after.drift.board().read().active.is_empty()).await;
    let ids = [&before, &after].map(|one| one.drift.board().read().active[0].id());
    assert_eq!(ids[0], ids[1]);
}

#[tokio::test]
async fn a_webhook_that_hangs_holds_nothing_up() {
    let (address, _, connections) = webhook(None).await;
    let Observers { observer, drift, .. } = observers(&with_webhook(address));
    outage(&observer);
    tokio::time::timeout(Duration::from_secs(60), async {
        while connections.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
    .expect("asked within a minute");
    // While the post hangs, requests are taken in and findings stand.
    outage(&observer);
    until(|| !drift.board().read().active.is_empty()).await;
    let page = observer.metrics.render(&[]);
    assert_eq!(value(&page, "tokenway_drift_observations_dropped_total"), Some(0.0));
}

/// The routes of root spans that a collector got.
fn kept(collector: &Collector) -> usize {
    let received = collector.received.lock();
    let spans = received.iter().flat_map(|(_, export)| &export.resource_spans);
    let spans = spans.flat_map(|of| &of.scope_spans).flat_map(|of| &of.spans);
    spans.filter(|span| span.name.starts_with("chat")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finding_goes_out_as_an_event_and_its_series_traces_are_kept() {
    let collector = Collector::start(true).await;
    let mut config = config();
    config.telemetry.otlp = Some(collector.otlp());
    config.telemetry.sampling.keep.push(tokenway::config::Keep::Drift);
    let Observers { observer, drift, .. } = observers(&config);
    outage(&observer);
    tokio::time::timeout(Duration::from_secs(60), async {
        while collector.logs.lock().is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
    .expect("exported within a minute");
    let export = collector.logs.lock()[0].resource_logs[0].clone();
    let service = export.resource.unwrap();
    assert!(service.attributes.iter().any(|attribute| attribute.key == "service.name"));
    let event = &export.scope_logs[0].log_records[0];
    assert_eq!((event.event_name.as_str(), event.severity_text.as_str()), ("tokenway.drift", "ERROR"));
    let names: Vec<&str> = event.attributes.iter().map(|attribute| attribute.key.as_str()).collect();
    for name in ["tokenway.drift.kind", "tokenway.drift.diagnosis", "tokenway.route", "tokenway.revision"] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    assert!(names.contains(&"tokenway.drift.evidence.burn_rate"), "{names:?}");
    until(|| {
        let page = observer.metrics.render(&[]);
        value(&page, r#"tokenway_drift_events_total{result="sent"}"#).is_some_and(|sent| sent >= 1.0)
    })
    .await;

    // From here on, what is of the series is kept, and nothing else is.
    assert_eq!(kept(&collector), 0, "nothing else asks for it");
    until(|| !drift.board().read().active.is_empty()).await;
    observer.record(&Arc::new(record()));
    observer.record(&Arc::new(Record { route: "other".into(), ..record() }));
    observer.shutdown(Duration::from_secs(20)).await;
    assert_eq!(kept(&collector), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_hangs_costs_counted_events() {
    let collector = Collector::start(false).await;
    let mut config = config();
    let timeout = Duration::from_millis(50);
    config.telemetry.otlp.insert(collector.otlp()).traces.timeout = timeout;
    let Observers { observer, drift, .. } = observers(&config);
    outage(&observer);
    tokio::time::timeout(Duration::from_secs(60), async {
        let failed = || {
            let page = observer.metrics.render(&[]);
            value(&page, r#"tokenway_drift_events_total{result="failed"}"#)
        };
        while failed() != Some(1.0) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
    .expect("given up within a minute");
    assert!(!drift.board().read().active.is_empty());
}
