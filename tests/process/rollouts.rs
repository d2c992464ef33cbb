//! Canaries from outside: the binary in front of two simulated revisions, and the judge on synthetic traffic.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a failed expectation fails the test"
)]

#[path = "../../benches/rollout/traffic.rs"]
mod traffic;

use std::borrow::Cow;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use tempfile::TempDir;
use tokenway::config::Canary;
use tokenway::config::check::check_str;

use crate::serve_support::client::{connect, exchange, request};
use crate::serve_support::{Fleet, Gateway, Process, chat, get, post_chat, replace, until};
use traffic::{Revision, run, run_late};

fn defaults() -> Canary {
    let text = "[[pool]]\nname = \"a\"\nreplicas = [\"http://127.0.0.1:1\"]\n[[pool]]\nname = \"b\"\n\
                replicas = [\"http://127.0.0.1:2\"]\n[[route]]\nmodel = \"m\"\npools = [\"a\"]\n[route.canary]\npool = \"b\"\n\
                steps = [{ weight = 10, soak = \"1h\" }]\n";
    check_str("f.toml", text, &|_| None).unwrap().routes[0].canary.clone().unwrap()
}

/// Canary requests until the verdict, sorted; those without one are left out.
fn verdicts(revision: Revision, rate: f64, seeds: u64, requests: u64) -> Vec<(u64, Cow<'static, str>)> {
    let bounds = defaults();
    let mut found: Vec<_> =
        (0..seeds).filter_map(|seed| run(&bounds, revision, rate, seed, requests).stopped).collect();
    found.sort_unstable();
    let at = |share: f64| found.get((share * seeds as f64) as usize).map(|(requests, _)| *requests);
    println!(
        "{revision:?}: {} of {seeds} stopped within {requests} canary requests, median {:?}, p90 {:?}",
        found.len(),
        at(0.5),
        at(0.9)
    );
    found
}

#[test]
fn fine_revisions_stay_under_drifting_overdispersed_load() {
    let stopped = verdicts(Revision::Fine, 100.0, 20, 3000);
    assert!(stopped.len() <= 1, "{stopped:?}");
}

#[test]
fn a_longer_tail_is_found_within_thirteen_hundred_requests_at_the_median() {
    let found = verdicts(Revision::Tail, 100.0, 24, 10_000);
    assert!(found.len() >= 23, "{found:?}");
    // The median over a thousand seeds is in docs/rollouts.md.
    assert!(found[12].0 <= 1300, "{found:?}");
    assert!(found.iter().all(|(_, test)| *test == "ttft_p99"), "{found:?}");
}

#[test]
fn what_is_slow_for_long_prompts_only_is_found_in_four_thousand_requests() {
    let found = verdicts(Revision::LongPrompts, 100.0, 20, 4000);
    assert_eq!(found.len(), 20, "{found:?}");
}

#[test]
fn a_fast_but_failing_revision_and_slow_tokens_are_found() {
    let found = verdicts(Revision::Failing, 100.0, 10, 10_000);
    assert!(found.len() == 10 && found.iter().all(|(_, test)| *test == "errors"), "{found:?}");
    let found = verdicts(Revision::SlowTokens, 100.0, 10, 4000);
    let is_pace = |test: &str| ["itl_p99", "tpot_p50"].contains(&test);
    assert!(found.len() == 10 && found.iter().all(|(_, test)| is_pace(test)), "{found:?}");
}

#[test]
fn with_two_requests_a_second_a_broken_or_stuck_revision_is_found_in_some_dozen_and_a_fine_one_stays() {
    let found = verdicts(Revision::Broken, 2.0, 10, 25);
    assert!(found.len() == 10 && found.iter().all(|(_, test)| *test == "errors"), "{found:?}");
    let found = verdicts(Revision::Stuck, 2.0, 10, 80);
    assert_eq!(found.len(), 10, "{found:?}");
    let stopped = verdicts(Revision::Fine, 2.0, 20, 1000);
    assert!(stopped.is_empty(), "{stopped:?}");
}

#[test]
fn one_revision_is_not_taken_for_another_because_of_who_its_conversations_are() {
    let stopped = verdicts(Revision::Sticky, 8.0, 20, 600);
    assert!(stopped.is_empty(), "{stopped:?}");
    let found = verdicts(Revision::StickyBroken, 8.0, 10, 200);
    assert_eq!(found.len(), 10, "{found:?}");
}

#[test]
fn a_breach_after_good_hours_is_found_within_twice_the_requests_of_a_fresh_one() {
    // The median of fewer is chance.
    const SEEDS: u64 = 40;
    let bounds = defaults();
    let median = |good| {
        let found = (0..SEEDS).filter_map(|seed| {
            let ending = run_late(&bounds, Revision::SlowTokens, 100.0, seed, [good, 10_000]);
            ending.stopped.filter(|_| !ending.is_false)
        });
        let mut found: Vec<_> = found.map(|(requests, _)| requests).collect();
        found.sort_unstable();
        found.get(SEEDS as usize / 2).copied()
    };
    let (fresh, late) = (median(0).unwrap(), median(5000).unwrap());
    println!("fresh {fresh}, late {late}");
    assert!(late <= 2 * fresh, "{fresh} {late}");
}

#[test]
fn what_hangs_is_short_or_slow_without_a_stream_is_found() {
    for revision in [Revision::Hanging, Revision::Short, Revision::SlowUnary] {
        let found = verdicts(revision, 100.0, 8, 1000);
        assert_eq!(found.len(), 8, "{revision:?} {found:?}");
    }
}

#[test]
fn what_clients_suffer_is_a_number_of_requests_at_any_rate() {
    let found = verdicts(Revision::Broken, 1500.0, 10, 120);
    assert_eq!(found.len(), 10, "{found:?}");
}

/// Clients that ask until they are stopped, each answer complete or counted as failed.
struct Clients {
    stop: Arc<AtomicBool>,
    failed: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Clients {
    fn start(data: &str) -> Self {
        let (stop, failed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads = (0..6).map(|client| {
            let (stop, failed, data) = (Arc::clone(&stop), Arc::clone(&failed), data.to_owned());
            std::thread::spawn(move || {
                let mut request = 0_u32;
                while !stop.load(Ordering::Relaxed) {
                    request += 1;
                    let answer = post_chat(&data, &chat("sim", &format!("{client} {request}"), 6), "key");
                    if answer.status != 200 || !answer.is_complete_stream() {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        });
        let threads = threads.collect();
        Self { stop, failed, threads }
    }

    /// Ends them; returns the number of failed requests.
    fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        self.failed.load(Ordering::Relaxed)
    }
}

/// Two revisions of these flags, and the file of a canary from one to the other.
pub(super) fn revisions(new: &[&str], canary: &str) -> ([Fleet; 2], TempDir, PathBuf) {
    let fleets = [Fleet::start(&[]), Fleet::start(new)];
    let folder = TempDir::new().unwrap();
    let file = file(folder.path(), &fleets[0], &fleets[1], canary);
    (fleets, folder, file)
}

pub(super) fn file(folder: &Path, old: &Fleet, new: &Fleet, canary: &str) -> PathBuf {
    file_of(folder, old, &new.toml(), canary)
}

pub(super) fn file_of(folder: &Path, old: &Fleet, new: &str, canary: &str) -> PathBuf {
    let file = folder.join("gateway.toml");
    let text = format!(
        "[[pool]]\nname = \"old\"\nreplicas = {}\n[[pool]]\nname = \"new\"\nrevision = \"r2\"\n\
         revision_info = {{ image = \"vllm:2\" }}\nreplicas = {}\n[[route]]\nname = \"chat\"\nmodel = \"sim\"\npools = [\"old\"]\n\
         [route.canary]\npool = \"new\"\nstate = \"canary.json\"\n{canary}\n",
        old.toml(),
        new
    );
    replace(&file, &text);
    file
}

/// What a bad revision does with the requests of clients; it lists its model and answers probes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fault {
    Hangs,
    /// Of three requests it answers two.
    HangsAtTimes,
    /// A stream that ends at once, without content.
    Empty,
    /// An error object with status 200.
    ErrorObject,
    /// Another model name.
    NotFound,
    /// Something that the request names is missing.
    LacksAnImage,
}

/// Requests at replicas that hang at times.
static ASKED: AtomicU64 = AtomicU64::new(0);

/// A replica with a fault, for as long as the test runs.
pub(super) fn faulty(fault: Fault) -> String {
    faulty_as(fault, "sim")
}

/// The same, which lists `model`.
fn faulty_as(fault: Fault, model: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("[\"http://{}\"]", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for connection in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || serve_faulty(connection, fault, model));
        }
    });
    url
}

fn serve_faulty(mut connection: TcpStream, fault: Fault, model: &str) {
    let mut read = BufReader::new(connection.try_clone().unwrap());
    let (mut head, mut length) = (String::new(), 0);
    while read.read_line(&mut head).is_ok_and(|n| n > 2) {
        let line = head.lines().last().unwrap_or_default().to_lowercase();
        length = line.strip_prefix("content-length: ").map_or(length, |n| n.parse().unwrap());
    }
    let mut body = vec![0; length];
    read.read_exact(&mut body).unwrap_or_default();
    let is_stream = String::from_utf8_lossy(&body).contains("\"stream\":true");
    let whole = r#"{"id":"x","object":"chat.completion","model":"sim","choices":[{"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}"#;
    let list = format!(r#"{{"object":"list","data":[{{"id":"{model}","object":"model"}}]}}"#);
    let (status, kind, body) = match fault {
        _ if head.starts_with("GET /v1/models") => (200, "json", &*list),
        _ if head.starts_with("GET") => (404, "json", "{}"),
        _ if head.to_lowercase().contains("x-tokenway-probe") && is_stream => (
            200,
            "stream",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
        ),
        _ if head.to_lowercase().contains("x-tokenway-probe") => (200, "json", whole),
        Fault::HangsAtTimes if !ASKED.fetch_add(1, Ordering::Relaxed).is_multiple_of(3) => (
            200,
            "stream",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a b c d e f\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":6}}\n\ndata: [DONE]\n\n",
        ),
        Fault::Hangs | Fault::HangsAtTimes => {
            let _ = read.read_to_end(&mut Vec::new());
            return;
        }
        Fault::Empty => (
            200,
            "stream",
            "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
        ),
        Fault::ErrorObject => (200, "json", r#"{"error":{"message":"no","type":"x","code":500}}"#),
        Fault::LacksAnImage => (
            404,
            "json",
            r#"{"error":{"message":"The image at this URL was not found.","type":"NotFoundError","param":null,"code":404}}"#,
        ),
        Fault::NotFound => (
            404,
            "json",
            r#"{"error":{"message":"The model `sim` does not exist.","type":"NotFoundError","param":"model","code":404}}"#,
        ),
    };
    let kind = if kind == "stream" { "text/event-stream" } else { "application/json" };
    let _ = write!(
        connection,
        "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
}

/// Six clients that wait for 300 ms at most.
fn impatient(data: &str, is_stream: bool) -> Clients {
    let stop = Arc::<AtomicBool>::default();
    let threads = (0..6).map(|client| {
        let (stop, data) = (Arc::clone(&stop), data.to_owned());
        std::thread::spawn(move || {
            for request_number in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let body = serde_json::json!({ "model": "sim", "stream": is_stream, "max_tokens": 6,
                    "messages": [{ "role": "user", "content": format!("{client} {request_number}") }] });
                let mut connection = connect(&data).unwrap();
                connection.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
                let body = body.to_string();
                connection.write_all(request("POST", "/v1/chat/completions", "", &body).as_bytes()).unwrap();
                let _ = connection.read_to_end(&mut Vec::new());
            }
        })
    });
    let threads = threads.collect();
    Clients { stop, failed: Arc::default(), threads }
}

#[test]
fn revisions_that_hang_say_nothing_or_know_another_model_are_rolled_back() {
    for (fault, is_stream, test) in [
        (Fault::Hangs, true, "ttft_"),
        (Fault::Hangs, false, "ttft_"),
        (Fault::Empty, true, "errors"),
        (Fault::ErrorObject, false, "errors"),
        (Fault::NotFound, true, "model"),
    ] {
        let old = Fleet::start(&[]);
        let folder = TempDir::new().unwrap();
        let file = file_of(folder.path(), &old, &faulty(fault), "steps = [{ weight = 30, soak = \"1s\" }]");
        let gateway = Gateway::ready_with(&file);
        let clients = impatient(&gateway.data, is_stream);
        // Short steps pause it for want of answers, and it is judged all the same.
        let ended = wait_for("the verdict", &gateway, |canary| canary["state"] == "rolled_back");
        clients.stop();
        let reason = ended["reason"].as_str().unwrap();
        assert!(reason.starts_with(test), "{fault:?}: {ended}");
        stop_gateway(gateway);
    }
}

#[test]
fn a_path_that_no_engine_serves_says_nothing_of_a_canary() {
    let (_fleets, _folder, file) = revisions(&[], "steps = [{ weight = 50, soak = \"1h\" }]");
    let gateway = Gateway::ready_with(&file);
    // The baseline has answered for the model, at another path.
    for _ in 0..20 {
        assert_eq!(post_chat(&gateway.data, &chat("sim", "hello", 2), "key").status, 200);
    }
    let ask = request("POST", "/classify", "", r#"{"model":"sim","input":"x"}"#);
    for _ in 0..20 {
        let answer = exchange(connect(&gateway.data).unwrap(), &ask);
        assert_eq!(answer.status, 404, "{answer:?}");
    }
    // Requests are seen in their order.
    let both = wait_for("all are seen", &gateway, |canary| {
        canary["requests"]["canary"].as_u64() > Some(0)
            && canary["requests"]["canary"]
                .as_u64()
                .zip(canary["requests"]["baseline"].as_u64())
                .map(|(a, b)| a + b)
                >= Some(40)
    });
    assert_eq!(both["state"], "running", "{both}");
    stop_gateway(gateway);
}

#[test]
fn a_reload_with_fewer_steps_keeps_the_last_and_a_verdict_outlasts_its_section() {
    let two = "steps = [{ weight = 20, soak = \"1h\" }, { weight = 50, soak = \"1h\" }]";
    let (_fleets, folder, file) = revisions(&[], two);
    let state = folder.path().join("canary.json");
    let gateway = Gateway::ready_with(&file);
    until("a saved state", || state.exists().then_some(()));
    stop_gateway(gateway);
    let mut saved: Json = serde_json::from_slice(&std::fs::read(&state).unwrap()).unwrap();
    saved["routes"]["chat"]["plan"]["step"] = 1.into();
    std::fs::write(&state, saved.to_string()).unwrap();
    let gateway = Gateway::ready_with(&file);
    assert_eq!(canary(&gateway)["step"], 2, "it is read");

    let text = std::fs::read_to_string(&file).unwrap();
    replace(&file, &text.replace(two, "steps = [{ weight = 5, soak = \"1h\" }]"));
    let fewer = wait_for("the reload", &gateway, |canary| canary["weight"] != 50.0);
    assert_eq!((&fewer["state"], &fewer["weight"]), (&"running".into(), &5.0.into()), "{fewer}");

    assert_eq!(act(&gateway, "rollback").0, 200);
    let rolled_back = canary(&gateway);
    assert_eq!(rolled_back["report"]["reason"], "rolled back by hand", "{rolled_back}");
    let (before, section) = text.split_once("[route.canary]").unwrap();
    replace(&file, before);
    wait_for("the section is gone", &gateway, Json::is_null);
    replace(&file, &format!("{before}[route.canary]{section}"));
    let back = wait_for("the section is back", &gateway, |canary| !canary.is_null());
    assert_eq!(back["state"], "rolled_back", "{back}");
    stop_gateway(gateway);
}

#[test]
fn a_verdict_on_a_revision_outlasts_the_name_of_its_route() {
    let (_fleets, _folder, file) = revisions(&[], "steps = [{ weight = 20, soak = \"1h\" }]");
    let gateway = Gateway::ready_with(&file);
    assert_eq!(act(&gateway, "rollback").0, 200);
    let text = std::fs::read_to_string(&file).unwrap();
    let rename = |name: &str| replace(&file, &text.replace("name = \"chat\"", &format!("name = {name:?}")));
    rename("talk");
    let renamed = wait_for("the new name", &gateway, |canary| canary["route"] == "talk");
    assert_eq!((&renamed["state"], &renamed["weight"]), (&"rolled_back".into(), &0.0.into()), "{renamed}");
    stop_gateway(gateway);
    // The same where only its file knows.
    rename("speech");
    let gateway = Gateway::ready_with(&file);
    assert_eq!(canary(&gateway)["state"], "rolled_back", "{}", canary(&gateway));
    replace(&file, &text.replace("\"r2\"", "\"r3\""));
    wait_for("another revision begins", &gateway, |canary| canary["state"] == "running");
    stop_gateway(gateway);
}

#[test]
fn a_state_file_that_breaks_under_the_gateway_loses_the_verdict_of_no_route() {
    let (_fleets, folder, file) = revisions(&[], "steps = [{ weight = 20, soak = \"1h\" }]");
    let text = std::fs::read_to_string(&file).unwrap();
    let (_, section) = text.split_once("[[route]]\nname = \"chat\"\nmodel = \"sim\"").unwrap();
    replace(&file, &format!("{text}[[route]]\nname = \"talk\"\nmodel = \"talk\"{section}"));
    let state = folder.path().join("canary.json");
    let routes = || {
        let kept: Json = serde_json::from_slice(&std::fs::read(&state).ok()?).ok()?;
        Some(kept["routes"].as_object()?.len())
    };
    let gateway = Gateway::ready_with(&file);
    assert_eq!(act(&gateway, "rollback").0, 200);
    until("both routes are kept", || (routes() == Some(2)).then_some(()));
    std::fs::write(&state, "{").unwrap();
    until("they are kept again", || (routes() == Some(2)).then_some(()));
    stop_gateway(gateway);
    let gateway = Gateway::ready_with(&file);
    assert_eq!(canary(&gateway)["state"], "rolled_back", "{}", canary(&gateway));
    stop_gateway(gateway);
}

pub(super) fn canary(gateway: &Gateway) -> Json {
    let listed: Json = serde_json::from_str(&get(&gateway.admin, "/api/canaries").body).unwrap();
    listed["canaries"][0].clone()
}

/// Waits for longer than other tests of the binary do: evidence takes its time.
pub(super) fn wait_for(what: &str, gateway: &Gateway, holds: impl Fn(&Json) -> bool) -> Json {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let now = canary(gateway);
        if holds(&now) {
            return now;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}: {now}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub(super) fn act(gateway: &Gateway, action: &str) -> (u16, String) {
    let path = format!("/api/canaries/chat/{action}");
    let answer =
        exchange(connect(&gateway.admin).unwrap(), &request("POST", &path, "x-tokenway-admin: 1\r\n", ""));
    (answer.status, answer.body)
}

#[test]
fn the_turns_of_a_conversation_stay_on_one_revision_without_a_session_id() {
    let (_fleets, _folder, file) = revisions(&[], "steps = [{ weight = 50, soak = \"1h\" }]");
    let text = std::fs::read_to_string(&file).unwrap();
    replace(&file, &format!("[server]\nroute_info_headers = true\n{text}"));
    let gateway = Gateway::ready_with(&file);
    until("the canary serves", || {
        let listed: Json = serde_json::from_str(&get(&gateway.admin, "/api/fleet").body).unwrap();
        let all = listed["replicas"].as_array().unwrap().clone();
        all.iter().all(|replica| replica["state"] == "ready").then_some(())
    });
    let mut of_canary = 0;
    for conversation in 0..16 {
        let mut messages = vec![
            serde_json::json!({ "role": "system", "content": "the same for all" }),
            serde_json::json!({ "role": "user", "content": format!("question {conversation}") }),
        ];
        let mut revisions = Vec::new();
        for turn in 0..3 {
            let body =
                serde_json::json!({ "model": "sim", "stream": true, "max_tokens": 2, "messages": messages });
            let answer = post_chat(&gateway.data, &body.to_string(), "key");
            assert_eq!(answer.status, 200);
            revisions.push(answer.head.to_lowercase().contains("x-tokenway-revision: r2"));
            messages.push(serde_json::json!({ "role": "assistant", "content": format!("answer {turn}") }));
            messages.push(serde_json::json!({ "role": "user", "content": format!("and {turn}?") }));
        }
        assert!(revisions.iter().all(|one| *one == revisions[0]), "{conversation}: {revisions:?}");
        of_canary += usize::from(revisions[0]);
    }
    assert!((1..16).contains(&of_canary), "{of_canary} of 16 conversations");
    stop_gateway(gateway);
}

pub(super) fn stop_gateway(mut gateway: Gateway) {
    gateway.process.signal("INT");
    assert_eq!(gateway.process.exit_code(), 0);
}

#[test]
fn a_slow_revision_is_rolled_back_with_a_report_and_stays_so_over_a_restart() {
    let (_fleets, _folder, file) =
        revisions(&["--step-ms", "60"], "steps = [{ weight = 30, soak = \"1h\" }]");
    let gateway = Gateway::ready_with(&file);
    let clients = Clients::start(&gateway.data);
    let stopped = wait_for("the verdict", &gateway, |canary| canary["state"] != "running");
    assert_eq!(clients.stop(), 0, "nobody notices");
    assert_eq!(stopped["state"], "rolled_back", "{stopped}");
    assert_eq!(
        (&stopped["route"], &stopped["pool"], &stopped["revision"]),
        (&"chat".into(), &"new".into(), &"r2".into())
    );
    let report = &stopped["report"];
    assert_eq!(report["revision_info"]["image"], "vllm:2");
    assert!(report["worst_requests"][0]["trace_id"].is_string(), "{report}");
    assert!(
        report["percentiles"].as_array().unwrap().iter().any(|line| {
            line["measure"] == "itl" && line["canary"]["p50"].as_f64() > line["baseline"]["p50"].as_f64()
        }),
        "{report}"
    );
    let before = canary(&gateway)["requests"].clone();
    for _ in 0..20 {
        assert_eq!(post_chat(&gateway.data, &chat("sim", "after", 2), "key").status, 200);
    }
    assert_eq!(gateway.metric("tokenway_canary_breaches_total"), 1.0);
    stop_gateway(gateway);

    let gateway = Gateway::ready_with(&file);
    let again = canary(&gateway);
    assert_eq!((&again["state"], &again["reason"]), (&stopped["state"], &stopped["reason"]));
    assert_eq!(again["requests"], before);
    assert_eq!(act(&gateway, "resume").0, 409, "rolled back is final for the revision");
    stop_gateway(gateway);
}

/// Requests of one route and pool, from the page of metrics.
fn requests_at(gateway: &Gateway, revision: &str) -> f64 {
    let page = get(&gateway.admin, "/metrics").body;
    let of_revision = format!("revision=\"{revision}\"");
    let lines = page
        .lines()
        .filter(|line| line.starts_with("tokenway_requests_total{") && line.contains(&of_revision));
    lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
}

#[test]
fn a_slow_revision_is_rolled_back_at_its_shadow_step_before_any_client_got_it() {
    let steps = "shadow = { weight = 50, soak = \"1h\" }\nsteps = [{ weight = 30, soak = \"1h\" }]";
    let (_fleets, _folder, file) = revisions(&["--step-ms", "60"], steps);
    let gateway = Gateway::ready_with(&file);
    let url = format!("http://{}", gateway.admin);
    let (code, out, _) = Process::run(&["canary", &url]);
    assert_eq!(code, 0);
    assert!(out.contains("state=running step=0/1 weight=0% shadow=50%"), "{out}");
    let clients = Clients::start(&gateway.data);
    let stopped = wait_for("the verdict", &gateway, |canary| canary["state"] != "running");
    assert_eq!(clients.stop(), 0, "nobody notices");
    assert_eq!((&stopped["state"], &stopped["step"]), (&"rolled_back".into(), &0.into()), "{stopped}");
    assert_eq!(stopped["requests"]["canary"], 0);
    assert!(stopped["requests"]["shadow"].as_u64() > Some(0), "{stopped}");
    let report = &stopped["report"];
    assert_eq!(
        (&report["step"], &report["shadow_weight"], &report["weight"]),
        (&0.into(), &50.into(), &0.into())
    );
    assert!(report["worst_requests"][0]["request_id"].as_str().unwrap().ends_with("-shadow"), "{report}");
    assert_eq!(requests_at(&gateway, "r2"), 0.0);
    assert!(requests_at(&gateway, "old") > 0.0);
    stop_gateway(gateway);
}

#[test]
fn a_revision_that_leaves_copies_unanswered_never_gets_to_clients() {
    let old = Fleet::start(&[]);
    let folder = TempDir::new().unwrap();
    let steps = "shadow = { weight = 50, soak = \"1s\", min_requests = 20 }\nsteps = [{ weight = 40, soak = \"1h\" }]";
    let file = file_of(folder.path(), &old, &faulty(Fault::HangsAtTimes), steps);
    let gateway = Gateway::ready_with(&file);
    let clients = Clients::start(&gateway.data);
    let ended = wait_for("the verdict", &gateway, |canary| canary["state"] == "rolled_back");
    assert_eq!(clients.stop(), 0);
    assert_eq!((&ended["step"], &ended["requests"]["canary"]), (&0.into(), &0.into()), "{ended}");
    assert!(ended["reason"].as_str().unwrap().starts_with("ttft_"), "{ended}");
    stop_gateway(gateway);
}

#[test]
fn a_revision_under_another_name_is_rolled_back_at_its_first_404() {
    // The baseline answers nothing before: its engines list the model.
    let (old, new) = (faulty(Fault::Hangs), faulty_as(Fault::NotFound, "other"));
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("gateway.toml");
    let text = format!(
        "[[pool]]\nname = \"old\"\nreplicas = {old}\n[[pool]]\nname = \"new\"\nrevision = \"r2\"\nreplicas = {new}\n\
         [[route]]\nname = \"chat\"\nmodel = \"sim\"\npools = [\"old\"]\n[route.canary]\npool = \"new\"\n\
         steps = [{{ weight = 90, soak = \"1h\" }}]\n"
    );
    replace(&file, &text);
    let gateway = Gateway::ready_with(&file);
    let clients = impatient(&gateway.data, true);
    let ended = wait_for("the verdict", &gateway, |canary| canary["state"] == "rolled_back");
    clients.stop();
    assert!(ended["reason"].as_str().unwrap().starts_with("model: "), "{ended}");
    // Six clients that are refused at once send thousands a second: it is milliseconds, and no tick of the judge.
    assert!(ended["requests"]["canary"].as_u64() <= Some(100), "{ended}");
    stop_gateway(gateway);
}

#[test]
fn a_revision_that_misses_what_a_request_names_is_not_stopped_for_want_of_a_model() {
    let old = Fleet::start(&[]);
    let folder = TempDir::new().unwrap();
    let new = faulty(Fault::LacksAnImage);
    let file = file_of(folder.path(), &old, &new, "steps = [{ weight = 50, soak = \"1h\" }]");
    let gateway = Gateway::ready_with(&file);
    let clients = impatient(&gateway.data, false);
    let seen = wait_for("requests of both", &gateway, |canary| {
        let asked = |side: &str| canary["requests"][side].as_u64();
        asked("canary") > Some(20) && asked("baseline") > Some(20)
    });
    clients.stop();
    assert_eq!(seen["state"], "running", "{seen}");
    stop_gateway(gateway);
}

#[test]
fn a_fine_revision_goes_on_from_its_shadow_step_to_clients_over_a_restart_in_between() {
    // Seconds of traffic are a verdict on medians; one on a 99th percentile takes hundreds of answers of a quiet machine.
    let steps = "shadow = { weight = 30, soak = \"12s\", min_requests = 20 }\nsteps = [{ weight = 40, soak = \"1h\" }]\n\
                 max_ttft_ratio = { p50 = 3.0 }\nmax_itl_ratio = { p50 = 3.0 }";
    let (_fleets, _folder, file) = revisions(&[], steps);
    let gateway = Gateway::ready_with(&file);
    let clients = Clients::start(&gateway.data);
    let before = wait_for("copies", &gateway, |canary| {
        canary["soaked"].as_f64() > Some(1.0) && canary["requests"]["shadow"] != 0
    });
    assert_eq!(clients.stop(), 0);
    assert_eq!(
        (&before["state"], &before["step"], &before["requests"]["canary"]),
        (&"running".into(), &0.into(), &0.into())
    );
    assert_eq!(requests_at(&gateway, "r2"), 0.0);
    stop_gateway(gateway);

    let gateway = Gateway::ready_with(&file);
    let again = canary(&gateway);
    assert!(again["requests"]["shadow"].as_u64() >= before["requests"]["shadow"].as_u64(), "{again}");
    assert!(again["soaked"].as_f64() >= before["soaked"].as_f64(), "{again}");
    let clients = Clients::start(&gateway.data);
    let first = wait_for("the first step", &gateway, |canary| {
        canary["step"] == 1 && canary["requests"]["canary"] != 0
    });
    assert_eq!(clients.stop(), 0);
    assert_eq!((&first["weight"], &first["shadow_weight"]), (&40.0.into(), &0.0.into()), "{first}");
    assert!(requests_at(&gateway, "r2") > 0.0);
    stop_gateway(gateway);

    let gateway = Gateway::ready_with(&file);
    assert_eq!(canary(&gateway)["step"], 1, "the shadow step is over for good");
    stop_gateway(gateway);
}

#[test]
fn a_fine_revision_is_promoted_over_a_restart_in_the_middle_without_a_failed_request() {
    // Bounds on medians, as above.
    let steps = "steps = [{ weight = 20, soak = \"12s\" }, { weight = 50, soak = \"12s\" }]\n\
                 max_ttft_ratio = { p50 = 3.0 }\nmax_itl_ratio = { p50 = 3.0 }";
    let (_fleets, _folder, file) = revisions(&[], steps);
    let gateway = Gateway::ready_with(&file);
    let clients = Clients::start(&gateway.data);
    wait_for("the second step", &gateway, |canary| canary["step"] == 2);
    assert_eq!(clients.stop(), 0);
    stop_gateway(gateway);

    let gateway = Gateway::ready_with(&file);
    assert_eq!((&canary(&gateway)["step"], &canary(&gateway)["state"]), (&2.into(), &"running".into()));
    let clients = Clients::start(&gateway.data);
    let promoted = wait_for("the promotion", &gateway, |canary| canary["state"] != "running");
    assert_eq!(clients.stop(), 0);
    assert_eq!((&promoted["state"], &promoted["weight"]), (&"promoted".into(), &100.0.into()), "{promoted}");
    let answer = post_chat(&gateway.data, &chat("sim", "hello", 2), "key");
    assert_eq!(answer.status, 200);
    stop_gateway(gateway);
}

#[test]
fn an_operator_pauses_resumes_promotes_and_rolls_back() {
    let (_fleets, _folder, file) = revisions(&[], "steps = [{ weight = 10, soak = \"1h\" }]");
    let gateway = Gateway::ready_with(&file);
    for (action, state, shares) in [
        ("pause", "paused", [0.9, 0.1]),
        ("resume", "running", [0.9, 0.1]),
        ("promote", "promoted", [0.0, 1.0]),
        ("rollback", "rolled_back", [1.0, 0.0]),
    ] {
        let (status, body) = act(&gateway, action);
        assert_eq!(status, 200, "{action}: {body}");
        assert_eq!(canary(&gateway)["state"], state);
        let routes: Json = serde_json::from_str(&get(&gateway.admin, "/api/routes").body).unwrap();
        let pools = routes["routes"][0]["pools"].as_array().unwrap();
        let dealt: Vec<_> = pools.iter().map(|pool| (&pool["pool"], pool["share"].as_f64())).collect();
        let expected = [(&"old".into(), Some(shares[0])), (&"new".into(), Some(shares[1]))];
        assert_eq!(dealt, expected, "{action}: {routes}");
    }
    assert_eq!(act(&gateway, "explode").0, 404);
    let url = format!("http://{}", gateway.admin);
    let (code, out, _) = Process::run(&["canary", &url, "promote"]);
    assert_eq!(code, 0);
    assert!(out.contains("chat") && out.contains("promoted"), "{out}");
    let (code, _, err) = Process::run(&["canary", &url, "pause", "--route", "chat"]);
    assert_eq!(code, 1);
    assert!(err.contains("cannot be paused"), "{err}");
    until("the gauge", || {
        get(&gateway.admin, "/metrics").body.contains("state=\"promoted\"} 1").then_some(())
    });
    stop_gateway(gateway);
}
