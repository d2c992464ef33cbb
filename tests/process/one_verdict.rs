//! Canaries over two gateways of one cluster, with a real Redis between them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use tokenway::clock::Clock;

use super::redis::Redis;
use super::rollouts::{Fault, act, canary, faulty, file, file_of, stop_gateway, wait_for};
use crate::serve_support::{Fleet, Gateway, chat, post_chat, replace, until};

/// What the broker of the gateway's tests needs of them.
pub(super) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let within = tokio::time::timeout(Duration::from_secs(10), future).await;
    within.unwrap_or_else(|_| panic!("still waiting: {what}"))
}

struct Broker {
    redis: Redis,
    runtime: tokio::runtime::Runtime,
}

impl Broker {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { redis: runtime.block_on(Redis::start()), runtime }
    }

    fn ask(&self, command: &str) -> String {
        self.runtime.block_on(self.redis.ask(command)).unwrap()
    }

    fn start_again(&mut self) {
        self.runtime.block_on(self.redis.start_again());
    }
}

/// The file of a gateway of the cluster, without a state of its own.
fn clustered(file: PathBuf, broker: &Broker) -> PathBuf {
    let text = std::fs::read_to_string(&file).unwrap().replace("state = \"canary.json\"\n", "");
    let head = "[server]\nroute_info_headers = true\n[routing]\nseed = \"s\"\n[cluster]\n";
    replace(&file, &format!("{head}url = \"redis://{}\"\n{text}", broker.redis.addr));
    file
}

/// With its state beside the file.
fn with_state(file: PathBuf) -> PathBuf {
    let text = std::fs::read_to_string(&file).unwrap();
    replace(&file, &text.replace("pool = \"new\"\nsteps", "pool = \"new\"\nstate = \"canary.json\"\nsteps"));
    file
}

/// One whose state, beside the file, is at the second step.
fn start_at_second_step(file: &Path) -> Gateway {
    let (state, first) = (file.with_file_name("canary.json"), Gateway::ready_with(file));
    until("a saved state", || state.exists().then_some(()));
    stop_gateway(first);
    let mut saved: serde_json::Value = serde_json::from_slice(&std::fs::read(&state).unwrap()).unwrap();
    saved["routes"]["chat"]["plan"]["step"] = 1.into();
    std::fs::write(&state, saved.to_string()).unwrap();
    Gateway::ready_with(file)
}

fn is_rolled_back(gateway: &Gateway) -> serde_json::Value {
    wait_for("the rollback", gateway, |canary| canary["state"] == "rolled_back")
}

const STEPS: &str = "steps = [{ weight = 50, soak = \"1h\" }, { weight = 80, soak = \"1h\" }]";

#[test]
fn a_verdict_holds_at_all_gateways_over_a_restart_and_over_a_loss_of_the_broker() {
    let (mut broker, old, new) = (Broker::start(), Fleet::start(&[]), Fleet::start(&[]));
    let folder = TempDir::new().unwrap();
    let file = clustered(file(folder.path(), &old, &new, STEPS), &broker);
    let (first, second) = (Gateway::ready_with(&file), Gateway::ready_with(&file));
    assert_eq!(act(&first, "rollback").0, 200);
    let clock = Clock::start();
    let acted = clock.now();
    let followed = is_rolled_back(&second);
    assert!(clock.now().since(acted) < Duration::from_secs(3));
    assert_eq!(followed["reason"], "rolled back by hand");
    // It starts anew, knows nothing of its own, and gives the canary no request at all.
    stop_gateway(second);
    let second = Gateway::ready_with(&file);
    for n in 0..30 {
        let answer = post_chat(&second.data, &chat("sim", &format!("{n}"), 2), "key");
        assert!(
            answer.status == 200 && !answer.head.to_lowercase().contains("revision: r2"),
            "{}",
            answer.head
        );
    }
    is_rolled_back(&second);
    // What an operator decides meanwhile is known when the broker, which has lost everything, is back.
    broker.redis.kill();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(act(&first, "promote").0, 200);
    assert_eq!(canary(&second)["state"], "rolled_back", "alone it keeps what it knows");
    broker.start_again();
    wait_for("the promotion", &second, |canary| canary["state"] == "promoted");
    assert_eq!(canary(&first)["state"], "promoted");
    stop_gateway(first);
    stop_gateway(second);
}

#[test]
fn a_breach_that_one_gateway_sees_stops_the_canary_at_the_one_that_sees_nothing() {
    let (broker, old) = (Broker::start(), Fleet::start(&[]));
    let folder = TempDir::new().unwrap();
    let file = clustered(file_of(folder.path(), &old, &faulty(Fault::NotFound), STEPS), &broker);
    let (first, second) = (Gateway::ready_with(&file), Gateway::ready_with(&file));
    for n in 0..200 {
        post_chat(&first.data, &chat("sim", &format!("{n}"), 2), "key");
        if canary(&first)["state"] == "rolled_back" {
            break;
        }
    }
    let (own, followed) = (is_rolled_back(&first), is_rolled_back(&second));
    assert!(own["reason"].as_str().unwrap().starts_with("model"), "{own}");
    assert_eq!(own["reason"], followed["reason"]);
    // The step that it found the other at is followed as well, where it started later.
    let follows =
        r#"canary follows another gateway's verdict","route":"chat","revision":"r2","state":"rolled_back""#;
    until("the line of the one that follows", || (second.process.err.count(follows) > 0).then_some(()));
    assert_eq!(second.process.err.count(follows), 1);
    stop_gateway(first);
    stop_gateway(second);
}

#[test]
fn a_canary_that_waits_for_its_pods_begins_at_all_gateways_where_it_is_resumed_at_one() {
    let (broker, old, new) = (Broker::start(), Fleet::start(&[]), Fleet::start(&[]));
    let folder = TempDir::new().unwrap();
    let group = |(at, url): (usize, &String)| serde_json::json!({ "targets": [url], "labels": { "__meta_kubernetes_pod_uid": format!("u{at}") } });
    let pods: Vec<_> = new.urls.iter().enumerate().map(group).collect();
    std::fs::write(folder.path().join("pods.json"), serde_json::json!(pods).to_string()).unwrap();
    let discovered = "[]\nfile = \"pods.json\"";
    let file = clustered(file_of(folder.path(), &old, discovered, STEPS), &broker);
    let gateways = [Gateway::ready_with(&file), Gateway::ready_with(&file)];
    let serves =
        |canary: &serde_json::Value| canary["weight"] == 50.0 && canary["soaked"].as_f64() > Some(0.0);
    gateways.iter().for_each(|gateway| _ = wait_for("the first revision serves", gateway, serves));
    assert_eq!(act(&gateways[0], "rollback").0, 200);
    gateways.iter().for_each(|gateway| _ = is_rolled_back(gateway));
    let text = std::fs::read_to_string(&file).unwrap();
    replace(&file, &text.replace("revision = \"r2\"", "revision = \"r3\""));
    for gateway in &gateways {
        wait_for("it waits", gateway, |canary| {
            canary["reason"].as_str().unwrap().contains("waits for replicas")
        });
    }
    assert_eq!(act(&gateways[0], "resume").0, 200);
    gateways.iter().for_each(|gateway| _ = wait_for("the next one serves", gateway, serves));
    gateways.into_iter().for_each(stop_gateway);
}

#[test]
fn a_gateway_whose_state_is_lost_gives_the_canary_nothing_until_another_knows_better() {
    let (mut broker, old, new) = (Broker::start(), Fleet::start(&[]), Fleet::start(&[]));
    let folders = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let [own, file] = [&folders[0], &folders[1]]
        .map(|folder| with_state(clustered(file(folder.path(), &old, &new, STEPS), &broker)));
    let first = Gateway::ready_with(&own);
    broker.redis.kill();
    std::fs::write(folders[1].path().join("canary.json"), "{").unwrap();
    let second = Gateway::ready_with(&file);
    let waits = canary(&second);
    // Past the time for which it waits for the others' word.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(
        (&canary(&second)["state"], &canary(&second)["weight"]),
        (&"paused".into(), &0.0.into()),
        "{waits}"
    );
    broker.start_again();
    let now = wait_for("the first one's step", &second, |canary| canary["state"] == "running");
    assert_eq!((&now["step"], &now["weight"]), (&1.into(), &50.0.into()), "{now}");
    assert_eq!(canary(&first)["state"], "running", "what is lost is no verdict");
    stop_gateway(first);
    stop_gateway(second);
}

#[test]
fn a_gateway_that_starts_takes_the_step_that_another_is_at() {
    let (broker, old, new) = (Broker::start(), Fleet::start(&[]), Fleet::start(&[]));
    let folders = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let first =
        start_at_second_step(&with_state(clustered(file(folders[0].path(), &old, &new, STEPS), &broker)));
    let is_second = |canary: &serde_json::Value| canary["step"] == 2 && canary["weight"] == 80.0;
    wait_for("its own step", &first, is_second);
    // It has no state, and no other source than the broker.
    let second = Gateway::ready_with(&clustered(file(folders[1].path(), &old, &new, STEPS), &broker));
    let clock = Clock::start();
    let asked = clock.now();
    let now = wait_for("the step", &second, is_second);
    assert!(clock.now().since(asked) < Duration::from_secs(3) && now["state"] == "running", "{now}");
    stop_gateway(first);
    stop_gateway(second);
}

#[test]
fn what_a_gateway_showed_before_its_restart_holds_up_no_shortened_rollout() {
    let (broker, old, new) = (Broker::start(), Fleet::start(&[]), Fleet::start(&[]));
    let folder = TempDir::new().unwrap();
    let file = with_state(clustered(file(folder.path(), &old, &new, STEPS), &broker));
    let first = start_at_second_step(&file);
    wait_for("its step is shown", &first, |canary| canary["step"] == 2);
    until("the broker has it", || broker.ask(&format!("HVALS {TOPIC}")).contains("\"step\":1").then_some(()));
    stop_gateway(first);
    let text = std::fs::read_to_string(&file).unwrap();
    replace(&file, &text.replace(STEPS, "steps = [{ weight = 50, soak = \"1h\" }]"));
    let first = Gateway::ready_with(&file);
    wait_for("it soaks", &first, |canary| canary["soaked"].as_f64() > Some(2.0));
    stop_gateway(first);
}

#[test]
fn a_promoted_revision_serves_from_the_start_whether_or_not_the_broker_is_there() {
    let (mut broker, old, new) = (Broker::start(), Fleet::start(&[]), Fleet::start(&[]));
    let folder = TempDir::new().unwrap();
    let file = with_state(clustered(file(folder.path(), &old, &new, STEPS), &broker));
    let gateway = Gateway::ready_with(&file);
    assert_eq!(act(&gateway, "promote").0, 200);
    stop_gateway(gateway);
    broker.redis.kill();
    drop(old);
    let gateway = Gateway::ready_with(&file);
    let answer = post_chat(&gateway.data, &chat("sim", "hello", 2), "key");
    assert!(answer.status == 200, "{} {}", answer.head, answer.body);
    stop_gateway(gateway);
}

#[test]
fn what_gateways_showed_that_are_gone_for_a_week_is_dropped_and_nothing_else() {
    let (broker, old, new) = (Broker::start(), Fleet::start(&[]), Fleet::start(&[]));
    let folder = TempDir::new().unwrap();
    let gateway = Gateway::ready_with(&clustered(file(folder.path(), &old, &new, STEPS), &broker));
    let shows = |field: &str| broker.ask(&format!("HEXISTS {TOPIC} {field}")).starts_with(":1");
    // A peer of an earlier version notes nowhere when it renewed its text: the text moves, and that is enough.
    for field in ["gone", "recent", "earlier-version"] {
        broker.ask(&format!("HSET {TOPIC} {field} \"1 {{}}\""));
    }
    for field in ["gone", "earlier-version"] {
        broker.ask(&format!("ZADD tokenway:renewed:canary:chat 1000 {field}"));
    }
    let mut beat = 1;
    until("the text of one that is gone is dropped", || {
        beat += 1;
        broker.ask(&format!("HSET {TOPIC} earlier-version \"{beat} {{}}\""));
        (!shows("gone")).then_some(())
    });
    assert!(shows("recent") && shows("earlier-version"));
    assert!(broker.ask(&format!("HLEN {TOPIC}")).starts_with(":3"), "and its own");
    stop_gateway(gateway);
}

#[test]
fn a_full_broker_is_in_the_log_when_it_begins_to_refuse_and_when_it_ends() {
    let (broker, old, new) = (Broker::start(), Fleet::start(&[]), Fleet::start(&[]));
    let folder = TempDir::new().unwrap();
    let gateway = Gateway::ready_with(&clustered(file(folder.path(), &old, &new, STEPS), &broker));
    broker.ask("CONFIG SET maxmemory 1");
    let what = "verdicts on canaries are not shared";
    gateway.process.err.line_with(&format!("cluster: the broker refuses; {what}"));
    broker.ask("CONFIG SET maxmemory 0");
    let back = gateway.process.err.line_with("cluster: the broker takes writes again");
    assert!(back.contains(what), "{back}");
    assert_eq!(gateway.process.err.count("cluster: the broker refuses"), 1);
    stop_gateway(gateway);
}

#[test]
fn a_gateway_without_a_canary_has_no_complaint_about_the_broker() {
    let (broker, old) = (Broker::start(), Fleet::start(&[]));
    let folder = TempDir::new().unwrap();
    let file = clustered(file(folder.path(), &old, &Fleet::start(&[]), STEPS), &broker);
    let text = std::fs::read_to_string(&file).unwrap();
    replace(&file, text.split_once("[route.canary]").unwrap().0);
    let gateway = Gateway::ready_with(&file);
    let beats = || broker.ask("INFO commandstats").split("cmdstat_publish:calls=").nth(1).map(beats_of);
    // Half a second each: what is looked after at the start was looked after.
    until("it has published for six seconds", || (beats()? >= 12).then_some(()));
    assert_eq!(gateway.process.err.count("cluster: the broker refuses"), 0);
    stop_gateway(gateway);
}

fn beats_of(text: &str) -> u64 {
    text.split(',').next().unwrap().parse().unwrap()
}

const TOPIC: &str = "tokenway:canary:chat";
