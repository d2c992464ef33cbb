//! What engines publish of their KV caches, before scripted replicas with scripted publishers.

#[path = "kv_events/publisher.rs"]
mod publisher;

use std::net::SocketAddr;

use rmpv::Value;
use serde_json::json;
use tokenway::config::{Config, KvEvents, PolicyName};

use self::publisher::Publisher;
use crate::support::client::Client;
use crate::support::replica::{Gate, Replica};
use crate::support::{Gateway, PATH, config, soon, until, wire};

const BLOCK: u64 = 16;
/// Tokens of every prompt here, and of its answer: 32 blocks, and 33 with the answer.
const PROMPT: u64 = 520;
const ANSWER: u64 = 20;

/// A gateway before one engine that publishes.
struct Scene {
    gateway: Gateway,
    engine: Engine,
}

/// A replica with its publisher.
struct Engine {
    replica: Replica,
    publisher: Publisher,
}

fn follow(config: &mut Config, port: Option<u16>, replay_port: Option<u16>, listen: Option<SocketAddr>) {
    config.pools[0].kv_events = Some(KvEvents { port, replay_port, listen });
}

impl Scene {
    async fn start(has_replay: bool) -> Self {
        Self::with(has_replay, |_| ()).await
    }

    async fn with(has_replay: bool, before: impl Fn(&Engine)) -> Self {
        let engine = Engine { replica: Replica::start().await, publisher: Publisher::start().await };
        let mut config = config::of(&[&engine.replica]);
        let replay_port = has_replay.then_some(engine.publisher.replay_port);
        follow(&mut config, Some(engine.publisher.port), replay_port, None);
        before(&engine);
        let gateway = Gateway::start(config).await;
        engine.publisher.subscribed().await;
        Self { gateway, engine }
    }

    async fn counted(&self, family: &str, label: &str, count: f64) {
        counted(&self.gateway, family, label, count).await;
    }

    /// Waits until its engine is known to hold so many blocks, on the GPU and in tiers alone.
    async fn holds(&self, in_gpu: usize, in_tiers: usize) {
        let held = |medium| self.gateway.sum("tokenway_kv_events_blocks", &[medium]);
        let expected = (in_gpu as f64, in_tiers as f64);
        until(&format!("{expected:?} are held"), || (held("gpu"), held("other")) == expected).await;
    }

    /// Sends a prompt and publishes what it stores meanwhile; returns how much of it was predicted to be cached.
    async fn ask(&self, prompt: &str, cached: u64, stores: Option<(u64, &[u64])>) -> f64 {
        self.engine.ask(&self.gateway, prompt, cached, stores).await
    }

    async fn predicted(&self, prompt: &str) -> f64 {
        self.ask(prompt, 0, None).await
    }
}

impl Engine {
    async fn ask(&self, gateway: &Gateway, prompt: &str, cached: u64, stores: Option<(u64, &[u64])>) -> f64 {
        let before = gateway.sum("tokenway_prefix_tokens_total", &["predicted"]);
        let joined = gateway.sum("tokenway_kv_events_prompts_total", &["found"]);
        let gate = Gate::new();
        let answer = wire::json(200, &answer(cached));
        self.replica.next(wire::behind(&gate, answer));
        let asked = self.replica.count() + 1;
        let mut client: Client = gateway.client().await;
        client.post(PATH, &[], body(prompt).as_bytes()).await;
        self.replica.got(asked).await;
        if let Some((number, hashes)) = stores {
            let events = gateway.sum("tokenway_kv_events_total", &["stored"]);
            self.publisher.send(number, batch([stored(None, hashes)]));
            counted(gateway, "tokenway_kv_events_total", "stored", events + 1.0).await;
        }
        gate.cancel();
        assert_eq!(soon("the answer", client.reply()).await.status(), 200);
        gateway.idle().await;
        if stores.is_some() {
            counted(gateway, "tokenway_kv_events_prompts_total", "found", joined + 1.0).await;
        }
        gateway.sum("tokenway_prefix_tokens_total", &["predicted"]) - before
    }
}

async fn counted(gateway: &Gateway, family: &str, label: &str, count: f64) {
    until(&format!("{family} {label} is {count}"), || gateway.sum(family, &[label]) >= count).await;
}

fn body(prompt: &str) -> String {
    let words = format!("{prompt} ").repeat(2000 / (prompt.len() + 1));
    json!({ "model": "tiny", "messages": [{ "role": "user", "content": words }] }).to_string()
}

fn answer(cached: u64) -> String {
    json!({
        "id": "c", "object": "chat.completion", "model": "tiny",
        "choices": [{ "index": 0, "message": { "role": "assistant", "content": "yes" }, "finish_reason": "stop" }],
        "usage": {
            "prompt_tokens": PROMPT, "completion_tokens": ANSWER, "total_tokens": PROMPT + ANSWER,
            "prompt_tokens_details": { "cached_tokens": cached },
        },
    })
    .to_string()
}

fn list(values: impl IntoIterator<Item = Value>) -> Value {
    Value::Array(values.into_iter().collect())
}

fn batch(events: impl IntoIterator<Item = Value>) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, &list([Value::from(1.0), list(events), Value::from(0)])).unwrap();
    bytes
}

fn hashes(of: u64) -> Vec<u64> {
    (1..=(PROMPT + ANSWER - 1) / BLOCK).map(|block| of * 1000 + block).collect()
}

/// Of prompts with a `cache_salt`, which only the GPU's events have.
fn stored(parent: Option<u64>, hashes: &[u64]) -> Value {
    let salts = list(hashes.iter().map(|_| list([Value::from("salt")])));
    stored_in("GPU", parent, hashes, salts)
}

/// What a tier publishes that describes its blocks.
fn described(medium: &str, hashes: &[u64]) -> Value {
    stored_in(medium, None, hashes, Value::Nil)
}

/// What vLLM's tiers publish of a block unless they are told to describe it.
fn undescribed(hash: u64) -> Value {
    let fields = [
        ("type", Value::from("BlockStored")),
        ("block_hashes", list([Value::from(hash)])),
        ("token_ids", list([])),
        ("block_size", Value::from(0)),
        ("medium", Value::from("CPU")),
    ];
    map(fields)
}

fn stored_in(medium: &str, parent: Option<u64>, hashes: &[u64], extra_keys: Value) -> Value {
    let tokens = hashes.iter().flat_map(|hash| (0..BLOCK).map(move |token| Value::from(hash * 16 + token)));
    map([
        ("type", Value::from("BlockStored")),
        ("block_hashes", list(hashes.iter().map(|hash| Value::from(*hash)))),
        ("parent_block_hash", parent.map_or(Value::Nil, Value::from)),
        ("token_ids", list(tokens)),
        ("block_size", Value::from(BLOCK)),
        ("medium", Value::from(medium)),
        ("extra_keys", extra_keys),
    ])
}

fn map<const N: usize>(fields: [(&str, Value); N]) -> Value {
    Value::Map(fields.into_iter().map(|(name, value)| (Value::from(name), value)).collect())
}

fn removed(hashes: &[u64], medium: &str) -> Value {
    let hashes = list(hashes.iter().map(|hash| Value::from(*hash)));
    list([Value::from("BlockRemoved"), hashes, Value::from(medium)])
}

fn cleared() -> Value {
    list([Value::from("AllBlocksCleared")])
}

/// All of the prompt's whole blocks but what its last token is in.
const WHOLE: f64 = (PROMPT - 1 - (PROMPT - 1) % BLOCK) as f64;

#[tokio::test]
async fn an_evicted_prompt_is_predicted_to_be_uncached() {
    let scene = Scene::start(false).await;
    assert_eq!(scene.ask("one", 0, Some((0, &hashes(1)))).await, 0.0);
    assert_eq!(scene.predicted("one").await, WHOLE);
    scene.counted("tokenway_kv_events_complete", "", 1.0).await;

    // Another medium's loss is no loss, and half of a prompt may go.
    let half = &hashes(1)[16..];
    scene.engine.publisher.send(1, batch([removed(half, "CPU"), removed(half, "GPU")]));
    scene.counted("tokenway_kv_events_total", "removed", 2.0).await;
    let left = scene.predicted("one").await;
    assert!((224.0..=256.0).contains(&left), "{left}");
    scene.engine.publisher.send(2, batch([removed(&hashes(1)[..16], "GPU")]));
    scene.counted("tokenway_kv_events_total", "removed", 3.0).await;
    until("nothing is held", || scene.gateway.sum("tokenway_kv_events_blocks", &["gpu"]) == 0.0).await;
    // It was sent again meanwhile, and stored nothing that anybody saw.
    scene.engine.publisher.send(3, batch([cleared()]));
    scene.counted("tokenway_kv_events_total", "cleared", 1.0).await;
    assert_eq!(scene.predicted("one").await, 0.0);
}

#[tokio::test]
async fn a_salted_prompt_is_gone_with_the_last_tier_that_holds_it() {
    let scene = Scene::start(false).await;
    let (publisher, blocks) = (&scene.engine.publisher, hashes(1));
    scene.ask("one", 0, Some((0, &blocks))).await;
    publisher.send(1, batch([described("CPU", &blocks), described("STORAGE", &blocks)]));
    publisher.send(2, batch([removed(&blocks, "GPU")]));
    scene.holds(0, blocks.len()).await;
    publisher.send(3, batch([removed(&blocks, "CPU")]));
    scene.counted("tokenway_kv_events_total", "removed", 2.0).await;
    assert_eq!(scene.predicted("one").await, WHOLE, "it is in storage");
    publisher.send(4, batch([removed(&blocks, "STORAGE")]));
    scene.holds(0, 0).await;
    assert_eq!(scene.predicted("one").await, 0.0);
}

#[tokio::test]
async fn a_tier_that_names_its_blocks_by_hash_alone_keeps_what_the_gpu_evicts() {
    let scene = Scene::start(false).await;
    let (publisher, blocks) = (&scene.engine.publisher, hashes(1));
    scene.ask("one", 0, Some((0, &blocks))).await;
    publisher.send(1, batch(blocks.iter().map(|hash| undescribed(*hash))));
    publisher.send(2, batch([removed(&blocks, "GPU")]));
    scene.holds(0, blocks.len()).await;
    assert_eq!(scene.gateway.sum("tokenway_kv_events_total", &["undecodable"]), 0.0);
    assert_eq!(scene.predicted("one").await, WHOLE);
    publisher.send(3, batch([removed(&blocks, "CPU")]));
    scene.holds(0, 0).await;
    assert_eq!(scene.predicted("one").await, 0.0);
}

#[tokio::test]
async fn what_tiers_hold_is_not_bounded_by_the_size_of_the_gpu() {
    let scene = Scene::with(false, |engine| {
        engine.replica.show_page(Some(&wire::METRICS.replace("\"1000\"", "\"40\"")));
    })
    .await;
    let publisher = &scene.engine.publisher;
    let size = || scene.gateway.replicas()[0].signals.and_then(|signals| signals.page.total_blocks);
    until("its size is known", || size() == Some(40)).await;
    for at in 0..8 {
        let (number, blocks) = (3 * at, hashes(at + 1));
        scene.ask(&format!("prompt {at}"), 0, Some((number, &blocks))).await;
        publisher.send(number + 1, batch([described("CPU", &blocks)]));
        publisher.send(number + 2, batch([removed(&blocks, "GPU")]));
        scene.holds(0, blocks.len() * (at as usize + 1)).await;
    }
    for at in 0..8 {
        assert_eq!(scene.predicted(&format!("prompt {at}")).await, WHOLE, "{at}");
    }
}

#[tokio::test]
async fn what_a_replica_stored_right_after_it_became_ready_is_kept() {
    let scene = Scene::start(false).await;
    scene.ask("one", 0, Some((0, &hashes(1)))).await;
    // Counted when the follower looks at its replicas the next time, and finds this one ready.
    scene.counted("tokenway_kv_events_blocks", "gpu", hashes(1).len() as f64).await;
    assert_eq!(scene.predicted("one").await, WHOLE);
}

#[tokio::test]
async fn an_emptied_cache_and_another_process_are_forgotten_whole() {
    let scene = Scene::start(false).await;
    scene.ask("one", 0, Some((0, &hashes(1)))).await;
    assert_eq!(scene.predicted("one").await, WHOLE);
    scene.engine.publisher.send(1, batch([cleared()]));
    scene.counted("tokenway_kv_events_total", "cleared", 1.0).await;
    assert_eq!(scene.ask("one", 0, Some((2, &hashes(1)))).await, 0.0);
    assert_eq!(scene.predicted("one").await, WHOLE);
    // The numbers begin again on a new connection: another process.
    scene.engine.publisher.restart();
    scene.engine.publisher.send_raw(b"\xff");
    scene.counted("tokenway_kv_events_connected", "", 1.0).await;
    scene.engine.publisher.subscribed().await;
    until("numbers begin again", || {
        scene.engine.publisher.send(0, batch([]));
        scene.gateway.sum("tokenway_kv_events_gaps_total", &["restarted"]) >= 1.0
    })
    .await;
    assert_eq!(scene.predicted("one").await, 0.0);
}

#[tokio::test]
async fn what_was_stored_before_and_in_a_gap_is_replayed() {
    let scene = Scene::with(true, |engine| engine.publisher.keep(0, batch([stored(None, &hashes(7))]))).await;
    scene.counted("tokenway_kv_events_total", "stored", 1.0).await;
    scene.counted("tokenway_kv_events_complete", "", 1.0).await;
    scene.ask("one", 0, Some((1, &hashes(1)))).await;
    scene.engine.publisher.keep(2, batch([removed(&hashes(1), "GPU")]));
    scene.engine.publisher.send(3, batch([removed(&hashes(7), "GPU")]));
    scene.counted("tokenway_kv_events_gaps_total", "replayed", 1.0).await;
    assert_eq!(scene.engine.publisher.replays(), [0, 2]);
    scene.counted("tokenway_kv_events_total", "removed", 2.0).await;
    assert_eq!(scene.predicted("one").await, 0.0);
    scene.counted("tokenway_kv_events_complete", "", 1.0).await;
}

#[tokio::test]
async fn a_gap_that_cannot_be_filled_leaves_the_estimate() {
    let scene = Scene::start(false).await;
    scene.ask("one", 0, Some((0, &hashes(1)))).await;
    scene.engine.publisher.send(5, batch([removed(&hashes(1)[..3], "GPU")]));
    scene.counted("tokenway_kv_events_gaps_total", "lost", 1.0).await;
    scene.counted("tokenway_kv_events_total", "removed", 1.0).await;
    assert_eq!(scene.gateway.sum("tokenway_kv_events_complete", &[]), 0.0);
    assert!(scene.predicted("one").await > 0.0, "believed as without events");
}

#[tokio::test]
async fn a_publisher_that_lies_is_counted_and_left_while_requests_go_on() {
    let scene = Scene::start(false).await;
    let publisher = &scene.engine.publisher;
    scene.ask("one", 0, Some((0, &hashes(1)))).await;
    publisher.send(1, b"GET / HTTP/1.1".to_vec());
    let claims = map([
        ("type", Value::from("BlockStored")),
        ("block_hashes", list([Value::from(1)])),
        ("token_ids", list([])),
        ("block_size", Value::from(u64::MAX)),
    ]);
    publisher.send(1, batch([claims, list([Value::from("BlockMoved")])]));
    scene.counted("tokenway_kv_events_total", "skipped", 1.0).await;
    scene.counted("tokenway_kv_events_total", "undecodable", 2.0).await;
    assert_eq!(scene.predicted("one").await, WHOLE);
    // A frame of 2^62 bytes ends the connection, and another is made.
    publisher.send_raw(&[2, 0x40, 0, 0, 0, 0, 0, 0, 0]);
    publisher.subscribed().await;
    until("it is followed again", || {
        publisher.send(2, batch([removed(&hashes(1), "GPU")]));
        scene.gateway.sum("tokenway_kv_events_total", &["removed"]) >= 1.0
    })
    .await;
    scene.counted("tokenway_kv_events_connected", "", 1.0).await;
}

#[tokio::test]
async fn engines_that_connect_are_told_apart_by_topic_and_a_reload_ends_it() {
    let at = { std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap() };
    let (replicas, mut config) = config::fresh::<2>().await;
    config.routes[0].policy = PolicyName::Prefix;
    let without = config.clone();
    let gateway = Gateway::start(config.clone()).await;
    follow(&mut config, None, None, Some(at));
    gateway.app.reload(std::sync::Arc::new(config)).unwrap();
    let mut engines = Vec::new();
    for replica in replicas {
        let publisher = Publisher::connect(at, &format!("kv@{}", replica.name())).await;
        engines.push(Engine { replica, publisher });
    }
    for engine in &engines {
        engine.publisher.subscribed().await;
        engine.publisher.send(0, batch([]));
    }
    counted(&gateway, "tokenway_kv_events_connected", "", 2.0).await;

    // The first of them gets the prompt; which one that is shows in who was asked.
    let answered = wire::json(200, &answer(0));
    for engine in &engines {
        engine.replica.always(answered.clone());
    }
    assert_eq!(gateway.post(PATH, &body("one")).await.status(), 200);
    let home = engines.iter().position(|engine| engine.replica.count() == 1).unwrap();
    engines[home].publisher.send(1, batch([stored(None, &hashes(1))]));
    counted(&gateway, "tokenway_kv_events_blocks", "gpu", 33.0).await;
    // The other one has the same blocks by another's doing, under hashes of its own.
    let other = &engines[1 - home];
    let foreign: Vec<u64> = hashes(1);
    other.publisher.send(1, batch([stored(None, &foreign)]));
    counted(&gateway, "tokenway_kv_events_blocks", "gpu", 66.0).await;
    counted(&gateway, "tokenway_kv_events_prompts_total", "found", 1.0).await;
    engines[home].publisher.send(2, batch([cleared()]));
    counted(&gateway, "tokenway_kv_events_total", "cleared", 1.0).await;
    assert_eq!(gateway.post(PATH, &body("one")).await.status(), 200);
    assert_eq!(other.replica.count(), 1, "where it is cached now, though the gateway never sent it there");

    gateway.app.reload(std::sync::Arc::new(without)).unwrap();
    until("nobody is followed", || gateway.sum("tokenway_kv_events_connected", &[]) == 0.0).await;
    assert_eq!(gateway.post(PATH, &body("one")).await.status(), 200);
}
