//! Prompts computed by one replica and decoded by another (`[route.prefill]`): one answer, whatever becomes of either leg.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokenway::config::{
    Config, Connector, EngineKind, Outside, PolicyName, Pool, Prefill, PrefillWhen, WeightedPool,
};

use tokenway::fleet::status::ReplicaState;

use super::{CHAT, PATH, UNARY, clean};
use crate::support::client::Reply;
use crate::support::replica::{Gate, Received, Replica, Step};
use crate::support::{Gateway, config, until, wire};

const PARAMS: &str =
    r#"{"do_remote_prefill":true,"remote_engine_id":"e1","remote_block_ids":[[1, 2]],"remote_port":5600}"#;

/// What the prefill replica answers.
fn computed() -> Vec<Step> {
    computed_by("e1")
}

fn computed_by(engine: &str) -> Vec<Step> {
    let params = PARAMS.replace("e1", engine);
    wire::json(
        200,
        &format!(
            r#"{{"id":"p","usage":{{"prompt_tokens":40,"completion_tokens":1,"prompt_tokens_details":{{"cached_tokens":32}}}},"kv_transfer_params":{params}}}"#
        ),
    )
}

fn keys(when: PrefillWhen) -> Prefill {
    Prefill { pool_name: "prefill".into(), when, ..Prefill::default() }
}

/// A gateway whose route computes prompts at `prefill` and decodes at `decode`.
async fn start(prefill: &[&Replica], decode: &[&Replica], keys: Prefill) -> Gateway {
    let gateway = Gateway::start_unready(configured(prefill, decode, keys));
    let are_ready =
        || gateway.replicas().iter().filter(|r| &*r.pool == "default").all(|r| r.state.as_str() == "ready");
    until("the decoding replicas are ready", are_ready).await;
    gateway
}

fn configured(prefill: &[&Replica], decode: &[&Replica], keys: Prefill) -> Config {
    let mut config = config::of(decode);
    config.pools[0].revision = "r".into();
    let mut pool = config::pool("prefill", prefill);
    pool.revision = "r".into();
    config.pools.push(pool);
    config.routes[0].prefill = Some(Prefill { pool: 1, ..keys });
    config
}

struct Two {
    prefill: Replica,
    decode: Replica,
    gateway: Gateway,
}

impl Two {
    async fn start() -> Self {
        Self::with(keys(PrefillWhen::Always)).await
    }

    async fn with(keys: Prefill) -> Self {
        let [prefill, decode] = Replica::several().await;
        prefill.always(computed());
        let gateway = start(&[&prefill], &[&decode], keys).await;
        gateway.ready().await;
        Self { prefill, decode, gateway }
    }

    async fn post(&self, path: &str, body: &str) -> Reply {
        let reply = self.gateway.post(path, body).await;
        self.gateway.idle().await;
        reply
    }
}

/// So many requests, one after the other, are answered as if nothing were the matter.
async fn answers(gateway: &Gateway, count: usize) {
    for _ in 0..count {
        assert_eq!(gateway.post(PATH, CHAT).await.text(), clean());
        gateway.idle().await;
    }
}

/// Requests by way and reason.
fn ways(gateway: &Gateway) -> Vec<String> {
    let page = gateway.page();
    let of = |line: &str| {
        let labels = line.strip_prefix("tokenway_prefill_requests_total{")?;
        let (labels, count) = labels.split_once("} ")?;
        let value = |name: &str| {
            labels
                .split(',')
                .find_map(|label| label.strip_prefix(name))?
                .strip_prefix("=\"")?
                .strip_suffix('"')
        };
        Some(format!("{} {} {count}", value("way")?, value("reason")?))
    };
    let mut ways: Vec<String> = page.lines().filter_map(of).collect();
    ways.sort();
    ways
}

fn total(gateway: &Gateway, family: &str, label: &str) -> u64 {
    gateway.sum(family, &[label]) as u64
}

/// Requests that the prefill pool got, by how they ended.
fn prefill_ended(gateway: &Gateway, outcome: &str) -> u64 {
    let labels = [r#"pool="prefill""#, &format!("outcome=\"{outcome}\"")];
    gateway.sum("tokenway_replica_requests_total", &labels) as u64
}

/// A pool may name all of the fleet's engines, and so may the other one.
#[tokio::test]
async fn a_replica_of_both_pools_fetches_nothing_from_itself() {
    for policy in [PolicyName::Latency, PolicyName::RoundRobin] {
        let [one, two] = Replica::several().await;
        for replica in [&one, &two] {
            let (first, decoded) = (computed_by(&replica.name()), wire::chat_stream(&["a"]));
            replica.answers(move |request| match request.text().contains(r#""do_remote_decode":true"#) {
                true => first.clone(),
                false => decoded.clone(),
            });
        }
        let mut config = configured(&[&one, &two], &[&one, &two], keys(PrefillWhen::Always));
        config.routes[0].policy = policy;
        let gateway = Gateway::start(config).await;
        for n in 0..12 {
            let body = CHAT.replace("hi", &format!("{n}"));
            assert_eq!(gateway.post(PATH, &body).await.status(), 200);
            gateway.idle().await;
        }
        let fetched_from = |by: &Replica, from: &Replica| {
            let engine = format!(r#""remote_engine_id":"{}""#, from.name());
            by.received().iter().filter(|request| request.text().contains(&engine)).count()
        };
        assert_eq!([&one, &two].map(|replica| fetched_from(replica, replica)), [0; 2], "{policy:?}");
        assert_eq!(fetched_from(&one, &two) + fetched_from(&two, &one), 12, "{policy:?}");
    }
}

/// The client's body with the object of the prefill answer.
fn decoding(body: &str) -> String {
    format!("{{\"kv_transfer_params\":{PARAMS},{}", &body[1..])
}

/// Of a real pair: the path, the name of the bound on tokens, what the prefill engine answers, and the stream of the decoding one.
const RECORDED: [(&str, &str, &str, &str); 4] = [
    (
        PATH,
        "max_tokens",
        include_str!("../../fixtures/vllm/pd/prefill-chat.json"),
        include_str!("../../fixtures/vllm/pd/decode-chat.sse"),
    ),
    (
        "/v1/completions",
        "max_tokens",
        include_str!("../../fixtures/vllm/pd/prefill-completions.json"),
        include_str!("../../fixtures/vllm/pd/decode-completions.sse"),
    ),
    (
        "/v1/messages",
        "max_tokens",
        include_str!("../../fixtures/vllm/pd/prefill-messages.json"),
        include_str!("../../fixtures/vllm/pd/decode-messages.sse"),
    ),
    (
        "/v1/responses",
        "max_output_tokens",
        include_str!("../../fixtures/vllm/pd/prefill-responses.json"),
        include_str!("../../fixtures/vllm/pd/decode-responses.sse"),
    ),
];

#[tokio::test]
async fn both_legs_make_one_answer_byte_for_byte_on_every_path() {
    let two = Two::start().await;
    let whole = r#"{"id":"d", "x":[1, 2],"usage":{"prompt_tokens":40,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":0}}}"#;
    let stream = r#"{"model":"tiny","stream":true,"max_tokens":9,"messages":[],"prompt":"hi","input":"hi"}"#;
    for (path, limit, computed, events) in RECORDED {
        let params =
            serde_json::from_str::<serde_json::Value>(computed).unwrap()["kv_transfer_params"].clone();
        for (body, script, expected) in [
            (stream.to_owned(), wire::stream([events]), events),
            (stream.replace("\"stream\":true,", ""), wire::json(200, whole), whole),
        ] {
            two.prefill.next(wire::json(200, computed));
            two.decode.next(script);
            let reply = two.post(path, &body).await;
            assert_eq!(
                (reply.status(), reply.text(), reply.body.is_complete),
                (200, expected, true),
                "{path}"
            );
            let (asked, decoded) = (two.prefill.received(), two.decode.received());
            let (asked, decoded) = (asked.last().unwrap(), decoded.last().unwrap());
            assert_eq!(asked.line(), decoded.line());
            // The object as it came, and then the client's bytes.
            let (object, rest) = decoded
                .text()
                .strip_prefix("{\"kv_transfer_params\":")
                .unwrap()
                .split_once("},\"model\"")
                .unwrap();
            assert_eq!(serde_json::from_str::<serde_json::Value>(&format!("{object}}}")).unwrap(), params);
            assert!(computed.contains(&format!("{object}}}")), "{path}: the object's own bytes");
            assert_eq!(format!("{{\"model\"{rest}"), body);
            let asked: serde_json::Value = serde_json::from_slice(&asked.body).unwrap();
            assert_eq!(asked[limit], 1, "{asked}");
            assert!(!asked["stream"].as_bool().unwrap_or(false) && asked["stream_options"].is_null());
            assert_eq!(asked["kv_transfer_params"]["do_remote_decode"], true);
        }
    }
    assert_eq!((two.prefill.count(), two.decode.count()), (8, 8));
    assert_eq!(ways(&two.gateway), ["apart always 8"]);
    // The decoding engine says that it found nothing; of the prompts' 1,280 cached tokens messages and responses tell.
    assert_eq!(total(&two.gateway, "tokenway_prefix_tokens_total", "kind=\"reported\""), 4 * 1280);
    assert_eq!(total(&two.gateway, "tokenway_kv_transfers_total", ""), 8);
    assert_eq!(total(&two.gateway, "tokenway_retries_total", ""), 0);
}

/// A decoding replica has no prompt to compute: none of what it waits for KV is taken for that.
#[tokio::test]
async fn the_wait_for_kv_is_the_transfer_s_from_the_first_request_on() {
    let two = Two::start().await;
    let events = [wire::sse_head(), Step::Tick, Step::Tick]
        .into_iter()
        .chain(wire::chat_stream(&["a"]).into_iter().skip(1));
    two.decode.always(events.collect());
    assert_eq!(two.post(PATH, CHAT).await.status(), 200);
    let moved = two.gateway.sum("tokenway_kv_transfer_seconds_sum", &[]);
    assert!(moved >= 0.02, "{moved}");
}

#[tokio::test]
async fn what_one_replica_has_to_answer_alone_is_sent_to_it_untouched() {
    let two = Two::start().await;
    let own = CHAT.replace("\"stream\"", "\"kv_transfer_params\":{\"mine\":1},\"stream\"");
    for (body, reason) in [
        (own, "own_params"),
        (CHAT.replace("\"stream\"", "\"n\":2,\"stream\""), "choices"),
        (CHAT.replace("\"stream\"", "\"prompt_logprobs\":1,\"stream\""), "logprobs"),
    ] {
        let reply = two.post(PATH, &body).await;
        assert_eq!((reply.status(), reply.text()), (200, &*clean()));
        assert_eq!(two.decode.received().last().unwrap().text(), body);
        assert!(ways(&two.gateway).contains(&format!("together {reason} 1")), "{:?}", ways(&two.gateway));
    }
    assert_eq!(two.prefill.count(), 0);
}

/// vLLM stores a response without `store` only where its operator has switched that on: then it is found where it was decoded.
#[tokio::test]
async fn a_response_stays_in_one_place_where_its_client_asks_for_it_to_be_stored() {
    let made = r#"{"id":"resp_1","object":"response","model":"tiny","status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"x"}]}]}"#;
    for (store, way) in [
        ("\"store\":true,", "together stored 1"),
        ("\"background\":true,", "together stored 1"),
        ("", "apart always 1"),
        ("\"store\":null,", "apart always 1"),
        ("\"store\":false,", "apart always 1"),
    ] {
        let two = Two::start().await;
        two.decode.always(wire::json(200, made));
        let reply = two.post("/v1/responses", &format!(r#"{{"model":"tiny",{store}"input":"hi"}}"#)).await;
        assert_eq!((reply.status(), reply.text()), (200, made), "{store}");
        assert_eq!(ways(&two.gateway), [way], "{store}");
        let asked = two.prefill.count();
        assert_eq!(two.gateway.ask("GET", "/v1/responses/resp_1", &[], "").await.text(), made, "{store}");
        assert_eq!((two.prefill.count(), two.decode.count()), (asked, 2), "{store}");
    }
}

#[tokio::test]
async fn never_and_too_few_tokens_stay_in_one_place() {
    let short = Prefill { min_uncached_tokens: 10_000, ..keys(PrefillWhen::Always) };
    for (keys, reason) in [(keys(PrefillWhen::Never), "never"), (short, "short")] {
        let two = Two::with(keys).await;
        assert_eq!(two.post(PATH, CHAT).await.text(), clean());
        assert_eq!((two.prefill.count(), two.decode.only().text()), (0, CHAT));
        assert_eq!(ways(&two.gateway), [format!("together {reason} 1")]);
    }
}

#[tokio::test]
async fn a_shared_store_needs_the_order_alone() {
    let two = Two::with(Prefill { connector: Connector::Shared, ..keys(PrefillWhen::Always) }).await;
    two.prefill.next(wire::json(200, r#"{"id":"p"}"#));
    assert_eq!(two.post(PATH, CHAT).await.text(), clean());
    assert_eq!(two.decode.only().text(), CHAT);
    assert!(!two.prefill.only().text().contains("kv_transfer_params"));
    assert_eq!(ways(&two.gateway), ["apart always 1"]);
}

#[tokio::test]
async fn a_prefill_replica_that_fails_costs_the_client_nothing() {
    let huge = format!(r#"{{"id":"{}","kv_transfer_params":{{}}}}"#, "x".repeat(2 << 20));
    let dead = r#"{"error":{"message":"no","type":"InternalServerError","param":null,"code":500}}"#;
    for (name, script, reason) in [
        ("closed", vec![Step::Close], "prefill_failed"),
        ("reset", vec![Step::Reset], "prefill_failed"),
        ("503", wire::json(503, "{}"), "prefill_failed"),
        ("500", wire::json(500, "{}"), "prefill_failed"),
        ("full", wire::json(429, "{}"), "prefill_failed"),
        ("an error under 200", wire::json(200, dead), "prefill_failed"),
        ("400", wire::json(400, r#"{"error":{"message":"no"}}"#), "prefill_refused"),
        ("no object", wire::json(200, r#"{"id":"p"}"#), "no_params"),
        ("null", wire::json(200, r#"{"kv_transfer_params":null}"#), "no_params"),
        ("not JSON", wire::json(200, "what?"), "no_params"),
        ("half of it", wire::json(200, r#"{"kv_transfer_params":{"a":1}"#), "prefill_failed"),
        ("2 MiB", wire::json(200, &huge), "no_params"),
        ("a stream", wire::chat_stream(&["x"]), "no_params"),
    ] {
        let two = Two::start().await;
        two.prefill.next(script);
        let reply = two.post(PATH, CHAT).await;
        assert_eq!((reply.status(), reply.text()), (200, &*clean()), "{name}");
        assert_eq!(two.decode.only().text(), CHAT, "{name}");
        assert_eq!(ways(&two.gateway), [format!("together {reason} 1")], "{name}");
        let outcome = match reason {
            "prefill_failed" => "failed",
            "prefill_refused" => "client_error",
            _ => "ok",
        };
        let ended = ["ok", "client_error", "failed"].map(|outcome| prefill_ended(&two.gateway, outcome));
        assert_eq!((prefill_ended(&two.gateway, outcome), ended.iter().sum()), (1, 1), "{name}: {ended:?}");
        let asked = two.prefill.count();
        two.post(PATH, CHAT).await;
        let is_closed = reason == "no_params";
        assert_eq!(
            two.prefill.count() == asked,
            is_closed,
            "{name}: a pool that makes no object is left alone"
        );
    }
}

/// Some engines keep KV only of answers that end at their limit of tokens: what that shows is of this prompt.
#[tokio::test]
async fn a_prompt_that_brings_no_object_of_its_own_closes_the_prefill_replica_for_nobody_else() {
    let chat = |reason: &str| {
        format!(
            r#"{{"id":"p","choices":[{{"index":0,"message":{{"role":"assistant","content":""}},"finish_reason":"{reason}"}}],"usage":{{"prompt_tokens":40,"completion_tokens":1}}}}"#
        )
    };
    let message = |reason: &str| {
        format!(
            r#"{{"id":"p","type":"message","role":"assistant","content":[],"stop_reason":"{reason}","usage":{{"input_tokens":40,"output_tokens":1}}}}"#
        )
    };
    let large = format!(r#"{{"id":"p","kv_transfer_params":{{"a":"{}"}}}}"#, "x".repeat(1 << 19));
    let messages = r#"{"model":"tiny","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}"#;
    for (name, path, body, answer, is_closed) in [
        ("it stopped", PATH, CHAT, chat("stop"), false),
        ("at its limit", PATH, CHAT, chat("length"), true),
        ("a message that stopped", "/v1/messages", messages, message("end_turn"), false),
        ("a message at its limit", "/v1/messages", messages, message("max_tokens"), true),
        ("too large an object", PATH, CHAT, large, false),
    ] {
        let two = Two::start().await;
        two.prefill.next(wire::json(200, &answer));
        two.post(path, body).await;
        assert_eq!(two.decode.only().text(), body, "{name}");
        assert_eq!(ways(&two.gateway), ["together no_params 1"], "{name}");
        two.post(PATH, CHAT).await;
        let expected = ["apart always 1", "together no_params 1"];
        let now = ways(&two.gateway);
        assert_eq!(now == expected, !is_closed, "{name}: {now:?}");
    }
}

#[tokio::test]
async fn a_prefill_replica_without_the_object_is_left_alone_and_not_its_whole_pool() {
    let [one, two, decode] = Replica::several().await;
    // Whichever is asked first.
    let is_first = Arc::new(AtomicBool::new(true));
    for replica in [&one, &two] {
        let is_first = Arc::clone(&is_first);
        replica.answers(move |_| match is_first.swap(false, Ordering::Relaxed) {
            true => wire::json(200, r#"{"id":"p"}"#),
            false => computed(),
        });
    }
    let gateway = start(&[&one, &two], &[&decode], keys(PrefillWhen::Always)).await;
    gateway.ready().await;
    answers(&gateway, 4).await;
    let mut asked = [one.count(), two.count()];
    asked.sort_unstable();
    assert_eq!(
        (asked, &*ways(&gateway)),
        ([1, 3], &["apart always 3".into(), "together no_params 1".into()][..])
    );
    // And the pool once it is true of all.
    is_first.store(true, Ordering::Relaxed);
    answers(&gateway, 2).await;
    assert_eq!(one.count() + two.count(), 5);
    assert_eq!(ways(&gateway), ["apart always 3", "together no_params 3"]);
}

#[tokio::test]
async fn another_prefill_replica_is_asked_where_the_first_fails() {
    let [one, two, decode] = Replica::several().await;
    for replica in [&one, &two] {
        replica.always(computed());
    }
    let gateway = start(&[&one, &two], &[&decode], keys(PrefillWhen::Always)).await;
    gateway.ready().await;
    one.next(vec![Step::Close]);
    two.next(vec![Step::Close]);
    assert_eq!(gateway.post(PATH, CHAT).await.text(), clean());
    gateway.idle().await;
    assert_eq!(one.count() + two.count(), 2, "one failed, and the retry rule allows one more");
    assert_eq!(decode.only().text(), CHAT);
    let reply = gateway.post(PATH, CHAT).await;
    assert_eq!((reply.text(), decode.count()), (&*clean(), 2));
    assert_eq!(decode.received()[1].text(), decoding(CHAT));
}

#[tokio::test]
async fn without_a_ready_prefill_replica_the_route_works_all_the_same() {
    let [prefill, decode] = Replica::several().await;
    prefill.stop_listening().await;
    let gateway = start(&[&prefill], &[&decode], keys(PrefillWhen::Always)).await;
    assert_eq!(gateway.post(PATH, CHAT).await.text(), clean());
    gateway.idle().await;
    assert_eq!((decode.only().text(), &*ways(&gateway)), (CHAT, &["together no_replica 1".to_owned()][..]));
    let pools = gateway.app.fleet.pools();
    let asked = pools.iter().map(|pool| (&*pool.name, pool.arrivals.count())).collect::<Vec<_>>();
    assert_eq!(asked, [("default", 1), ("prefill", 1)], "it is demand on both: a pool at zero has to grow");
}

#[tokio::test]
async fn a_prompt_that_prefill_engines_die_of_is_computed_where_it_was_answered() {
    let [one, two, decode] = Replica::several().await;
    let mut config = configured(&[&one, &two], &[&decode], keys(PrefillWhen::Always));
    config.pools[1].ejection.max_share = 1.0;
    let gateway = Gateway::start_unready(config);
    gateway.ready().await;
    for replica in [&one, &two] {
        replica.always(vec![Step::StopListening, Step::Reset]);
    }
    assert_eq!(gateway.post(PATH, CHAT).await.text(), clean());
    let dead = || gateway.replicas().iter().filter(|r| r.state == ReplicaState::Unreachable).count();
    until("both prefill replicas are found dead", || dead() == 2).await;
    for replica in [&one, &two] {
        replica.always(computed()).listen_again().await;
    }
    until("both are back", || dead() == 0).await;
    gateway.ready().await;
    let before = one.count() + two.count();
    let reply = gateway.post(PATH, CHAT).await;
    assert_eq!((reply.status(), reply.text()), (200, &*clean()), "not refused");
    gateway.idle().await;
    assert_eq!(one.count() + two.count(), before, "and not sent to where it killed");
}

#[tokio::test]
async fn a_prefill_that_hangs_leaves_time_to_compute_it_elsewhere() {
    let [prefill, decode] = Replica::several().await;
    let mut config = configured(&[&prefill], &[&decode], keys(PrefillWhen::Always));
    config.routes[0].timeouts.first_token = Duration::from_millis(600);
    let gateway = Gateway::start(config).await;
    for (body, script, expected) in [
        (CHAT, wire::chat_stream(&["a", "b"]), clean()),
        (UNARY, wire::json(200, r#"{"id":"d"}"#), r#"{"id":"d"}"#.to_owned()),
    ] {
        prefill.next(vec![Step::Hang]);
        decode.next(script);
        let reply = gateway.post(PATH, body).await;
        assert_eq!((reply.status(), reply.text()), (200, &*expected));
        assert_eq!(decode.received().last().unwrap().text(), body);
    }
    prefill.abandoned(2).await;
    gateway.idle().await;
    assert_eq!(ways(&gateway), ["together prefill_late 2"]);
    assert_eq!(prefill_ended(&gateway, "failed"), 2);
    assert_eq!(total(&gateway, "tokenway_timeouts_total", ""), 0, "no timer of the configuration has passed");
}

#[tokio::test]
async fn kv_that_does_not_come_leaves_time_to_compute_it_in_place() {
    let [prefill, decode] = Replica::several().await;
    prefill.always(computed());
    let mut config = configured(&[&prefill], &[&decode], keys(PrefillWhen::Always));
    config.routes[0].timeouts.first_token = Duration::from_millis(600);
    let gateway = Gateway::start(config).await;
    decode.next(vec![Step::Hang]);
    let reply = gateway.post(PATH, CHAT).await;
    assert_eq!((reply.status(), reply.text()), (200, &*clean()));
    decode.abandoned(1).await;
    gateway.idle().await;
    assert_eq!(ways(&gateway), ["together transfer_failed 1"]);
    assert_eq!(total(&gateway, "tokenway_timeouts_total", ""), 0, "no timer of the configuration has passed");
}

#[tokio::test]
async fn a_lost_transfer_is_computed_in_place_and_the_pair_avoided() {
    let lost = || wire::stream([wire::ROLE, wire::ENGINE_ERROR, wire::DONE]);
    let error = r#"{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}"#;
    let whole = r#"{"id":"d"}"#;
    for (body, script, then, expected) in [
        (CHAT, lost(), wire::chat_stream(&["a", "b"]), clean()),
        (UNARY, wire::json(500, error), wire::json(200, whole), whole.to_owned()),
        (UNARY, wire::json(502, "{}"), wire::json(200, whole), whole.to_owned()),
        (UNARY, wire::json(504, "{}"), wire::json(200, whole), whole.to_owned()),
    ] {
        let two = Two::start().await;
        two.decode.next(script).next(then.clone());
        let reply = two.post(PATH, body).await;
        assert_eq!((reply.status(), reply.text(), reply.body.is_complete), (200, &*expected, true));
        let sent: Vec<String> = two.decode.received().iter().map(|one| one.text().to_owned()).collect();
        assert_eq!(sent, [decoding(body), body.to_owned()]);
        assert_eq!(ways(&two.gateway), ["together transfer_failed 1"]);
        two.decode.next(then);
        assert_eq!(two.post(PATH, body).await.text(), expected);
        assert_eq!((two.prefill.count(), two.decode.count()), (1, 3));
        assert_eq!(ways(&two.gateway), ["together avoided 1", "together transfer_failed 1"]);
    }
}

#[tokio::test]
async fn nothing_is_sent_after_a_transfer_that_is_late() {
    let two = Two::start().await;
    two.decode.next(wire::chat_stream(&["a", "b"]));
    assert_eq!(two.post(PATH, CHAT).await.text(), clean());
    two.decode.next(vec![wire::sse_head(), Step::Hang]).always(wire::chat_stream(&["a", "b"]));
    let stalled = two.gateway.sent(PATH, CHAT).await;
    until("the KV is fetched", || two.decode.count() == 2).await;
    while !ways(&two.gateway).contains(&"together avoided 1".to_owned()) {
        assert_eq!(two.gateway.post(PATH, CHAT).await.text(), clean());
    }
    drop(stalled);
    two.decode.abandoned(1).await;
    two.gateway.idle().await;
    let before = two.prefill.count();
    assert_eq!(two.post(PATH, CHAT).await.text(), clean());
    assert_eq!(two.prefill.count(), before + 1, "nothing is late any more");
}

#[tokio::test]
async fn a_decoding_replica_that_hangs_is_not_asked_again_while_another_is_ready() {
    let [prefill, one, two] = Replica::several().await;
    prefill.always(computed());
    let mut config = configured(&[&prefill], &[&one, &two], keys(PrefillWhen::Always));
    config.routes[0].timeouts.first_token = Duration::from_secs(4);
    let gateway = Gateway::start(config).await;
    one.always(vec![wire::sse_head(), Step::Hang]);
    two.always(vec![wire::sse_head(), Step::Hang]);
    let mut client = gateway.sent(PATH, CHAT).await;
    until("one hangs", || one.count() + two.count() == 1).await;
    let other = if one.count() == 0 { &one } else { &two };
    other.always(wire::chat_stream(&["a", "b"]));
    let reply = client.reply().await;
    assert_eq!((reply.status(), reply.text()), (200, &*clean()));
    assert_eq!((one.count(), two.count()), (1, 1));
    gateway.idle().await;
    assert_eq!(ways(&gateway), ["together transfer_failed 1"]);
}

#[tokio::test]
async fn an_error_of_the_decoding_replica_is_the_client_s_where_no_other_can_take_the_request() {
    let two = Two::start().await;
    let error =
        r#"{"error":{"message":"overloaded","type":"ServiceUnavailableError","param":null,"code":503}}"#;
    two.decode.next(wire::json(503, error)).next(wire::json(503, error));
    let reply = two.post(PATH, UNARY).await;
    assert_eq!((reply.status(), reply.text()), (503, error));
}

#[tokio::test]
async fn what_the_engine_says_of_a_request_is_the_client_s_to_read() {
    let two = Two::start().await;
    let refusal = r#"{"error":{"message":"too long","type":"BadRequestError","param":null,"code":400}}"#;
    two.prefill.next(wire::json(400, refusal));
    two.decode.next(wire::json(400, refusal));
    let reply = two.post(PATH, CHAT).await;
    assert_eq!((reply.status(), reply.text()), (400, refusal));
}

#[tokio::test]
async fn kv_that_no_replica_was_asked_to_fetch_is_fetched_and_thrown_away() {
    let [prefill, one, two] = Replica::several().await;
    prefill.always(computed());
    let gateway = start(&[&prefill], &[&one, &two], keys(PrefillWhen::Always)).await;
    gateway.ready().await;
    one.stop_listening().await;
    for _ in 0..2 {
        assert_eq!(gateway.post(PATH, CHAT).await.text(), clean());
    }
    until("it is counted", || total(&gateway, "tokenway_kv_released_total", "result=\"fetched\"") == 1).await;
    gateway.idle().await;
    let received = two.received();
    let released: Vec<_> = received.iter().filter(|request| is_release(request)).collect();
    assert_eq!((released.len(), received.len(), prefill.count()), (1, 3, 3));
    let body: serde_json::Value = serde_json::from_slice(&released[0].body).unwrap();
    let params: serde_json::Value = serde_json::from_str(PARAMS).unwrap();
    assert_eq!(
        (&body["kv_transfer_params"], &body["max_tokens"], &body["stream"]),
        (&params, &1.into(), &false.into())
    );
}

fn is_release(request: &Received) -> bool {
    request.header("x-request-id").unwrap().ends_with("-release")
}

/// [`configured`], with an outside provider and a pool of another revision as standbys, in this order before the route's own.
fn with_standbys(prefill: &Replica, decode: &[&Replica], standbys: [(&str, &Replica); 2]) -> Config {
    let mut config = configured(&[prefill], decode, keys(PrefillWhen::Always));
    for (at, (name, replica)) in standbys.into_iter().enumerate() {
        let mut pool = Pool { standby: true, ..config::pool(name, &[replica]) };
        if name == "provider" {
            // Even if it is called the same there.
            pool.revision = "r".into();
            let model = "gpt-x".into();
            pool.outside = Some(Outside { model, requests_per_minute: None, tokens_per_minute: None });
            pool.engine = EngineKind::Generic;
            pool.engine_profile = EngineKind::Generic.profile().into();
        }
        config.routes[0].pools.insert(at, WeightedPool { pool: config.pools.len(), weight: 0 });
        config.pools.push(pool);
    }
    config.routes[0].outside = true;
    config
}

#[tokio::test]
async fn kv_leaves_neither_the_house_nor_its_revision() {
    for is_provider_first in [true, false] {
        let [prefill, provider, other] = Replica::several().await;
        let [one, two] = Replica::several().await;
        prefill.always(computed());
        let mut standbys = [("provider", &provider), ("other", &other)];
        standbys.sort_unstable_by_key(|(name, _)| (*name == "provider") != is_provider_first);
        let gateway = Gateway::start(with_standbys(&prefill, &[&one, &two], standbys)).await;
        one.stop_listening().await;
        for _ in 0..2 {
            assert_eq!(gateway.post(PATH, CHAT).await.text(), clean());
        }
        let fetched = || total(&gateway, "tokenway_kv_released_total", "result=\"fetched\"") == 1;
        until("it is counted", fetched).await;
        gateway.idle().await;
        assert_eq!((provider.count(), other.count()), (0, 0));
        assert_eq!(two.received().iter().filter(|request| is_release(request)).count(), 1);
    }
}

#[tokio::test]
async fn a_provider_gets_no_second_leg_once_it_is_all_that_is_left() {
    let [prefill, provider, other] = Replica::several().await;
    let own = Replica::start().await;
    prefill.always(computed());
    let standbys = [("provider", &provider), ("other", &other)];
    let gateway = Gateway::start(with_standbys(&prefill, &[&own], standbys)).await;
    own.stop_listening().await;
    assert_eq!(gateway.post(PATH, CHAT).await.text(), clean());
    assert_eq!(provider.only().text(), CHAT.replace("tiny", "gpt-x"));
}

#[tokio::test]
async fn kv_that_no_replica_can_fetch_is_counted() {
    let two = Two::start().await;
    two.decode.stop_listening().await;
    assert!(two.post(PATH, CHAT).await.status() >= 500);
    until("it is counted", || total(&two.gateway, "tokenway_kv_released_total", "result=\"failed\"") == 1)
        .await;
    assert_eq!(total(&two.gateway, "tokenway_kv_released_total", "result=\"fetched\""), 0);
}

/// A prompt of one token waits for no queue.
#[tokio::test]
async fn kv_is_released_by_a_replica_that_has_prompts_to_compute() {
    let [prefill, decode] = Replica::several().await;
    let mut config = configured(&[&prefill], &[&decode], keys(PrefillWhen::Always));
    config.routes[0].policy = PolicyName::Latency;
    config.routes[0].timeouts.connect = Duration::from_secs(1);
    config.pools[0].max_connections = std::num::NonZeroUsize::MIN;
    let gateway = Gateway::start(config).await;
    let in_place = CHAT.replace("\"stream\"", "\"n\":2,\"stream\"");
    decode.next([vec![Step::Tick], wire::chat_stream(&["a", "b"])].concat());
    assert_eq!(gateway.post(PATH, &in_place).await.status(), 200);
    gateway.idle().await;
    let (computes, decodes) = (Gate::new(), Gate::new());
    prefill.next(wire::behind(&computes, computed()));
    let mut client = gateway.sent(PATH, CHAT).await;
    prefill.got(1).await;
    // The only connection, and seconds of work.
    decode.next(wire::behind(&decodes, wire::chat_stream(&["a", "b"])));
    let mut busy = gateway.client().await;
    let long = "word ".repeat(100_000);
    busy.post(PATH, &[], in_place.replace("\"hi\"", &format!("\"{long}\"")).as_bytes()).await;
    decode.got(2).await;
    computes.cancel();
    assert_eq!(client.reply().await.status(), 504, "no connection was free in time");
    until("it is counted", || total(&gateway, "tokenway_kv_released_total", "result") == 1).await;
    decodes.cancel();
    assert_eq!(busy.reply().await.status(), 200);
}

/// Its engine lets the blocks go; a second reader would read another prompt's.
#[tokio::test]
async fn kv_that_a_replica_was_asked_to_fetch_is_fetched_by_no_other() {
    let two = Two::start().await;
    two.decode.next(vec![Step::Hang]);
    let client = two.gateway.sent(PATH, CHAT).await;
    two.decode.got(1).await;
    drop(client);
    two.decode.abandoned(1).await;
    two.gateway.idle().await;
    assert_eq!((two.prefill.count(), two.decode.count()), (1, 1));
    assert_eq!(total(&two.gateway, "tokenway_kv_released_total", "result"), 0);
}

/// Nothing was fetched by a replica that took no request.
#[tokio::test]
async fn kv_that_a_decoding_replica_turned_away_is_released() {
    let refusal = r#"{"error":{"message":"max_tokens is too large","code":400}}"#;
    for status in [400, 429, 503] {
        let two = Two::start().await;
        two.decode.next(wire::json(status, refusal));
        let reply = two.post(PATH, CHAT).await;
        assert_eq!((reply.status(), reply.text()), (200, &*clean()), "{status}: computed in place");
        let fetched = || total(&two.gateway, "tokenway_kv_released_total", "result=\"fetched\"") == 1;
        until("it is fetched for nobody", fetched).await;
        assert_eq!(
            total(&two.gateway, "tokenway_kv_transfers_total", ""),
            0,
            "{status}: no transfer was tried"
        );
        assert_eq!(ways(&two.gateway), ["together decode_refused 1"], "{status}");
        assert_eq!(two.post(PATH, CHAT).await.text(), clean());
        assert_eq!(
            ways(&two.gateway),
            ["apart always 1", "together decode_refused 1"],
            "{status}: the pair is not avoided"
        );
    }
}

#[tokio::test]
async fn a_client_that_leaves_while_its_prompt_is_computed_stops_that() {
    let two = Two::start().await;
    two.prefill.next(vec![Step::Hang]);
    let client = two.gateway.sent(PATH, CHAT).await;
    two.prefill.got(1).await;
    drop(client);
    two.prefill.abandoned(1).await;
    two.gateway.idle().await;
    assert_eq!((two.decode.count(), total(&two.gateway, "tokenway_kv_released_total", "result")), (0, 0));
}

#[tokio::test]
async fn a_decoding_replica_that_dies_is_replaced_after_both_legs_again() {
    let [prefill, one, two] = Replica::several().await;
    prefill.always(computed());
    let gateway = start(&[&prefill], &[&one, &two], keys(PrefillWhen::Always)).await;
    gateway.ready().await;
    one.next(vec![Step::Close]);
    let mut texts = Vec::new();
    for _ in 0..2 {
        texts.push(gateway.post(PATH, CHAT).await.text().to_owned());
    }
    assert_eq!(texts, [clean(), clean()]);
    gateway.idle().await;
    assert_eq!((prefill.count(), &*ways(&gateway)), (3, &["apart always 2".to_owned()][..]));
    assert_eq!(total(&gateway, "tokenway_retries_total", ""), 1, "both legs again are a retry");
}

#[tokio::test]
async fn an_error_of_the_request_in_a_stream_is_no_word_on_its_transfer() {
    let two = Two::start().await;
    let error =
        "data: {\"error\":{\"message\":\"no\",\"type\":\"BadRequestError\",\"param\":null,\"code\":400}}\n\n";
    two.decode.next(wire::stream([error, wire::DONE]));
    let reply = two.post(PATH, CHAT).await;
    assert!(reply.text().contains("BadRequestError"), "{}", reply.text());
    assert_eq!(total(&two.gateway, "tokenway_kv_transfers_total", ""), 0);
}

#[tokio::test]
async fn turns_pass_only_with_requests_that_are_placed() {
    for policy in [PolicyName::RoundRobin, PolicyName::LeastLoaded] {
        let (prefill, decode) = (Replica::start().await, Replica::several::<3>().await);
        let gateway = always_apart(&prefill, &decode, policy).await;
        answers(&gateway, 9).await;
        let counts: Vec<_> = decode.iter().map(Replica::count).collect();
        assert_eq!((counts, prefill.count()), (vec![3, 3, 3], 9), "{policy:?}");
    }
}

#[tokio::test]
async fn a_pair_whose_transfer_failed_is_avoided_by_policies_without_prices() {
    for policy in [PolicyName::RoundRobin, PolicyName::LeastLoaded] {
        let (prefill, decode) = (Replica::start().await, Replica::several::<2>().await);
        let gateway = always_apart(&prefill, &decode, policy).await;
        decode[0].next(wire::stream([wire::ROLE, wire::ENGINE_ERROR, wire::DONE]));
        answers(&gateway, 8).await;
        let fetched = |replica: &Replica| {
            replica.received().iter().filter(|one| one.text().contains("do_remote_prefill")).count()
        };
        assert_eq!((fetched(&decode[0]), fetched(&decode[1])), (1, 7), "{policy:?}");
    }
}

/// A gateway that has each prompt computed at `prefill`.
async fn always_apart(prefill: &Replica, decode: &[Replica], policy: PolicyName) -> Gateway {
    prefill.always(computed());
    let decode: Vec<&Replica> = decode.iter().collect();
    let mut config = configured(&[prefill], &decode, keys(PrefillWhen::Always));
    config.routes[0].policy = policy;
    Gateway::start(config).await
}

fn at_once() -> Prefill {
    Prefill { connector: Connector::Sglang, bootstrap_port: 9000, ..keys(PrefillWhen::Always) }
}

/// What SGLang's prefill engine answers once the KV has moved.
fn moved() -> Vec<Step> {
    wire::json(
        200,
        r#"{"id":"p","usage":{"prompt_tokens":40,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":32}}}"#,
    )
}

#[tokio::test]
async fn engines_of_sglang_are_asked_at_once_and_meet_in_one_room() {
    let two = Two::with(at_once()).await;
    let (first, second) = (Gate::new(), Gate::new());
    two.prefill.next(wire::behind(&first, moved()));
    two.decode.next(wire::behind(&second, wire::chat_stream(&["a", "b"])));
    let mut client = two.gateway.sent(PATH, CHAT).await;
    two.prefill.got(1).await;
    two.decode.got(1).await;
    first.cancel();
    second.cancel();
    let reply = client.reply().await;
    assert_eq!((reply.status(), reply.text()), (200, &*clean()), "the decoding engine's answer");
    two.gateway.idle().await;
    let (asked, decoded) = (two.prefill.only(), two.decode.only());
    let head = r#"{"bootstrap_host":"127.0.0.1","bootstrap_port":9000,"bootstrap_room":"#;
    let (room, rest) = decoded.text().strip_prefix(head).unwrap().split_once(',').unwrap();
    assert_eq!(format!("{{{rest}"), CHAT, "and then the client's bytes");
    let asked: serde_json::Value = serde_json::from_slice(&asked.body).unwrap();
    assert_eq!((&asked["max_tokens"], &asked["stream"]), (&1.into(), &false.into()));
    assert_eq!(asked["bootstrap_room"].to_string(), room);
    assert_eq!(ways(&two.gateway), ["apart always 1"]);
    // The next request meets in a room of its own.
    two.prefill.next(moved());
    assert_eq!(two.post(PATH, CHAT).await.text(), clean());
    assert!(!two.decode.received()[1].text().contains(room));
}

#[tokio::test]
async fn a_prefill_engine_of_sglang_that_answers_last_has_computed_its_prompt() {
    let two = Two::with(at_once()).await;
    let gate = two.prefill.held(moved());
    assert_eq!(two.gateway.post(PATH, CHAT).await.text(), clean());
    until("the record is closed", || !ways(&two.gateway).is_empty()).await;
    gate.cancel();
    two.gateway.idle().await;
    assert_eq!((prefill_ended(&two.gateway, "ok"), prefill_ended(&two.gateway, "canceled")), (1, 0));
}

#[tokio::test]
async fn a_prefill_engine_of_sglang_that_fails_takes_its_decoding_leg_along() {
    for (name, script, reason) in [
        ("closed", vec![Step::Close], "prefill_failed"),
        ("500", wire::json(500, "{}"), "prefill_failed"),
        ("400", wire::json(400, r#"{"error":{"message":"no"}}"#), "prefill_refused"),
    ] {
        let two = Two::with(at_once()).await;
        let gate = two.prefill.held(script);
        two.decode.next(vec![Step::Hang]).next(wire::chat_stream(&["a", "b"]));
        let mut client = two.gateway.sent(PATH, CHAT).await;
        two.decode.got(1).await;
        gate.cancel();
        let reply = client.reply().await;
        assert_eq!((reply.status(), reply.text()), (200, &*clean()), "{name}");
        two.decode.abandoned(1).await;
        two.gateway.idle().await;
        assert_eq!(two.decode.received()[1].text(), CHAT, "{name}: computed in place");
        assert_eq!(ways(&two.gateway), [format!("together {reason} 1")], "{name}");
    }
}

#[tokio::test]
async fn a_decoding_engine_of_sglang_that_refuses_ends_its_prefill_leg() {
    let two = Two::with(at_once()).await;
    two.prefill.next(vec![Step::Hang]);
    two.decode.next(wire::json(400, "{}"));
    two.post(PATH, CHAT).await;
    two.prefill.abandoned(1).await;
    two.gateway.idle().await;
}

#[tokio::test]
async fn a_client_that_leaves_ends_both_legs_of_sglang() {
    let two = Two::with(at_once()).await;
    two.prefill.next(vec![Step::Hang]);
    two.decode.next(vec![Step::Hang]);
    let client = two.gateway.sent(PATH, CHAT).await;
    two.prefill.got(1).await;
    two.decode.got(1).await;
    drop(client);
    two.prefill.abandoned(1).await;
    two.decode.abandoned(1).await;
    two.gateway.idle().await;
    assert_eq!((two.prefill.count(), two.decode.count()), (1, 1));
}
