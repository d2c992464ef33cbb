//! Which answers teach the predictor, and what is asked of a replica that computes no prompt for it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokenway::config::{Config, Hedge, HedgeAfter, PolicyName};
use tokenway::fleet::status::ReplicaState;
use tokenway::routing::Dispatcher;

use crate::admission::{QUEUE, chat, one_at_a_time};
use crate::support::replica::{Gate, Replica, Step};
use crate::support::{CHAT, Gateway, PATH, config, until, wire};

const BATCH: &str = "/v1/chat/completions/batch";
const COUNT: &str = "/v1/messages/count_tokens";

const ONE_CHAT: &str = r#"{"model":"tiny","messages":[[{"role":"user","content":"a"}]]}"#;
/// Of a path that computes no prompt.
const COUNTED: &str = r#"{"input_tokens":9,"count":9,"tokens":[]}"#;

fn by_latency(replicas: &[&Replica]) -> Config {
    let mut config = config::of(replicas);
    config.routes[0].policy = PolicyName::Latency;
    config
}

/// Requests that autoscaling takes for demand.
fn arrivals(gateway: &Gateway) -> u64 {
    gateway.app.fleet.loads(gateway.app.gateway.clock.now())[0].arrivals
}

/// Takes in what its answers have taught so far, which is due while something runs: then `holds` is asked.
async fn learned(gateway: &Gateway, replica: &Replica, holds: impl Fn(&Dispatcher) -> bool) {
    let (gate, expected) = (Gate::new(), replica.count() + 1);
    replica.next(wire::behind(&gate, wire::json(200, COUNTED)));
    let mut client = gateway.sent(BATCH, ONE_CHAT).await;
    replica.got(expected).await;
    let pool = Arc::clone(&gateway.app.fleet.pools()[0]);
    let is_refreshed = || !pool.replicas()[0].target.load.is_stale(gateway.app.gateway.clock.now());
    until("what was learned", || is_refreshed() && holds(&pool.dispatcher)).await;
    gate.cancel();
    assert_eq!(client.reply().await.status(), 200);
    gateway.idle().await;
}

fn messages(text: &str) -> String {
    format!(r#"{{"model":"tiny","messages":[{{"role":"user","content":"{text}"}}]}}"#)
}

#[tokio::test]
async fn a_prompt_is_computed_when_the_engine_names_the_role_whatever_text_it_holds_back() {
    let replica = Replica::start().await;
    let gateway = Gateway::start(by_latency(&[&replica])).await;
    let waiting = || gateway.replicas()[0].inflight_prompt_tokens;
    for (more, is_computed) in [(r#","tools":[{"type":"function"}]"#, true), ("", false)] {
        let gate = Gate::new();
        let held = [wire::sse_head(), wire::event(wire::ROLE), Step::Wait(gate.clone())];
        let rest = [wire::content("x").as_str(), wire::FINISH, wire::DONE].map(wire::event);
        replica.next([held.to_vec(), rest.to_vec(), vec![Step::End]].concat());
        let expected = replica.count() + 1;
        let body =
            format!(r#"{{"model":"tiny","stream":true,"messages":[{{"role":"user","content":"x"}}]{more}}}"#);
        let mut client = gateway.sent(PATH, &body).await;
        replica.got(expected).await;
        if is_computed {
            until("its prompt is computed", || waiting() == 0).await;
        } else {
            assert!(waiting() > 0);
        }
        gate.cancel();
        assert!(client.reply().await.body.is_complete);
        gateway.idle().await;
    }
}

async fn transcribe(gateway: &Gateway) {
    let body = "--b\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\ntiny\r\n--b--\r\n";
    let headers = [("content-type", "multipart/form-data; boundary=b")];
    assert_eq!(gateway.post_with("/v1/audio/transcriptions", &headers, body).await.status(), 200);
}

#[tokio::test]
async fn only_answers_that_come_with_the_end_of_prefill_teach_and_only_prompts_are_demand() {
    let replica = Replica::start().await;
    let gateway = Gateway::start(by_latency(&[&replica])).await;
    replica.next(wire::json(200, r#"{"id":"resp_1","object":"response","status":"queued","output":[]}"#));
    let made = gateway.post("/v1/responses", r#"{"model":"tiny","background":true,"input":"hi"}"#).await;
    assert_eq!(made.status(), 200);
    gateway.idle().await;
    assert_eq!(arrivals(&gateway), 1);

    replica.always(wire::json(200, COUNTED));
    let long = "lorem ipsum ".repeat(300);
    for _ in 0..12 {
        for (path, body) in [
            (COUNT, messages(&long)),
            ("/tokenize", messages(&long)),
            ("/detokenize", r#"{"model":"tiny","tokens":[1,2,3]}"#.to_owned()),
        ] {
            assert_eq!(gateway.post(path, &body).await.status(), 200);
        }
        assert_eq!(gateway.call("GET", "/v1/responses/resp_1").await.status(), 200);
    }
    gateway.idle().await;
    assert_eq!(arrivals(&gateway), 1, "they need no engine");

    for _ in 0..12 {
        transcribe(&gateway).await;
        assert_eq!(gateway.post(BATCH, ONE_CHAT).await.status(), 200);
    }
    gateway.idle().await;
    // None of them came with the end of a prefill.
    learned(&gateway, &replica, |dispatcher| !dispatcher.model.pool.is_taught()).await;
    replica.always(wire::json(200, r#"{"data":[],"usage":{"prompt_tokens":9}}"#));
    // When the engine turned to the first one, behind a batch, is not known.
    for _ in 0..2 {
        gateway.post("/v1/embeddings", r#"{"model":"tiny","input":"hi"}"#).await;
        gateway.idle().await;
    }
    learned(&gateway, &replica, |dispatcher| dispatcher.model.pool.is_taught()).await;
}

#[tokio::test]
async fn prompts_without_an_answer_are_planned_for_with_one_token_and_a_single_block_is_no_cache() {
    let ([replica], mut config) = config::fresh().await;
    config.routes[0].policy = PolicyName::Latency;
    config.pools[0].scrape_interval = Duration::from_millis(20);
    // vLLM for a model without attention, or an encoder.
    let page = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n\
        vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1\"} 1\n";
    replica.show_page(Some(page));
    let gateway = Gateway::start(config).await;
    let load = || gateway.app.fleet.loads(gateway.app.gateway.clock.now()).remove(0);
    let embed = r#"{"model":"tiny","input":"lorem ipsum"}"#;
    replica.always(wire::json(200, r#"{"data":[],"usage":{"prompt_tokens":9}}"#));
    for _ in 0..9 {
        gateway.post("/v1/embeddings", embed).await;
        gateway.idle().await;
    }
    // What an answer taught is taken in while something runs.
    let gate = replica.held(wire::json(200, r#"{"data":[],"usage":{"prompt_tokens":9}}"#));
    let mut client = gateway.sent("/v1/embeddings", embed).await;
    until("prompts were timed", || load().typical.is_some()).await;
    assert_eq!(load().typical.unwrap().output, 1.0);
    gate.cancel();
    assert_eq!(client.reply().await.status(), 200);
    until("the page was read", || load().engines[0].running.is_some()).await;
    assert_eq!(load().engines[0].cache_tokens, None);
    replica.always(wire::chat_stream(&["a"]));
    assert_eq!(gateway.post(PATH, &chat("tiny", "x")).await.status(), 200);
    gateway.idle().await;
    let mixed = load().typical.unwrap().output;
    assert!((5.0..100.0).contains(&mixed), "one of eleven has an answer: {mixed}");
}

#[tokio::test]
async fn prompts_that_an_engine_refuses_are_no_demand_however_long_they_are() {
    let ([replica], gateway) = Gateway::before(|config| config.routes[0].policy = PolicyName::Latency).await;
    let mean = || gateway.app.fleet.pools()[0].arrivals.mean().work.tokens;
    replica.always(wire::chat_stream(&["a"]));
    assert_eq!(gateway.post(PATH, CHAT).await.status(), 200);
    gateway.idle().await;
    let (usual, long) = (mean(), CHAT.replace("hi", &"lorem ipsum ".repeat(20_000)));
    let too_long =
        r#"{"error":{"message":"This model's maximum context length is 32768 tokens.","code":400}}"#;
    replica.always(wire::json(400, too_long));
    for _ in 0..5 {
        assert_eq!(gateway.post(PATH, &long).await.status(), 400);
    }
    gateway.idle().await;
    assert_eq!(mean(), usual);
    replica.always(wire::chat_stream(&["a"]));
    assert_eq!(gateway.post(PATH, &long).await.status(), 200);
    gateway.idle().await;
    assert!(mean() > usual + 1_000, "{usual}, then {}", mean());
}

#[tokio::test]
async fn what_a_hedge_answered_is_demand_as_well() {
    let ([one, two], mut config) = config::fresh().await;
    config.routes[0].policy = PolicyName::Latency;
    config.routes[0].hedge = Some(Hedge { after: HedgeAfter::Delay(Duration::from_millis(1)), budget: 1.0 });
    let gateway = Gateway::start(config).await;
    let is_asked = Arc::new(AtomicBool::new(false));
    for replica in [&one, &two] {
        let is_asked = Arc::clone(&is_asked);
        replica.answers(move |_| match is_asked.swap(true, Ordering::SeqCst) {
            true => wire::chat_stream(&["a"]),
            false => vec![Step::Hang],
        });
    }
    assert_eq!(gateway.post(PATH, CHAT).await.status(), 200);
    gateway.idle().await;
    assert_eq!((one.count(), two.count()), (1, 1));
    assert!(gateway.app.fleet.pools()[0].arrivals.mean().work.tokens > 0);
}

#[tokio::test]
async fn answers_are_as_long_as_they_were_where_no_engine_counts_their_tokens() {
    let whole = r#"{"id":"c1","choices":[{"index":0,"message":{"role":"assistant","content":"a b c"},"finish_reason":"stop"}]}"#;
    for (answer, body) in [
        (wire::chat_stream(&["a", " b", " c"]), CHAT.to_owned()),
        (wire::json(200, whole), chat("tiny", "x")),
    ] {
        let replica = Replica::start().await;
        let gateway = Gateway::start(by_latency(&[&replica])).await;
        let length = || gateway.app.fleet.pools()[0].dispatcher.expected_output().0;
        let assumed = length();
        replica.always(answer);
        for _ in 0..40 {
            assert_eq!(gateway.post(PATH, &body).await.status(), 200);
            gateway.idle().await;
        }
        assert!(assumed > 200 && length() < 60, "{assumed}, then {}", length());
    }
}

#[tokio::test]
async fn counting_a_prompt_puts_it_into_no_cache() {
    for path in [COUNT, "/tokenize"] {
        let ([one, two], gateway) =
            Gateway::before(|config| config.routes[0].policy = PolicyName::Prefix).await;
        for replica in [&one, &two] {
            replica.next(wire::json(200, COUNTED));
        }
        let text = "lorem ipsum ".repeat(1000);
        assert_eq!(gateway.post(path, &messages(&text)).await.status(), 200);
        gateway.idle().await;
        let reply = gateway.post(PATH, &chat("tiny", &text)).await;
        let decision = reply.field("x-tokenway-decision").unwrap();
        assert!(!decision.contains("reason=prefix"), "{path}: {decision}");
    }
}

#[tokio::test]
async fn counting_a_prompt_waits_for_no_place_in_a_batch_and_takes_none() {
    let ([replica], mut config) = config::fresh().await;
    one_at_a_time(&mut config);
    config.routes[0].queue = Some(QUEUE);
    let gateway = Gateway::start(config).await;
    assert_eq!(gateway.post(PATH, &chat("tiny", "lesson")).await.status(), 200);
    gateway.idle().await;
    let (counting, gate) = (Gate::new(), Gate::new());
    replica.next(wire::behind(&counting, wire::json(200, COUNTED)));
    let mut client = gateway.sent(COUNT, &messages(&"lorem ipsum ".repeat(1000))).await;
    replica.got(2).await;
    replica.next(wire::behind(&gate, wire::chat_stream(&["first"])));
    let mut first = gateway.sent(PATH, &chat("tiny", "first")).await;
    replica.got(3).await;
    replica.next(wire::json(200, COUNTED));
    assert_eq!(gateway.post(COUNT, &messages("second")).await.status(), 200, "the engine is full");
    counting.cancel();
    gate.cancel();
    assert_eq!((client.reply().await.status(), first.reply().await.status()), (200, 200));
    gateway.idle().await;
}

#[tokio::test]
async fn the_whole_answer_of_a_batch_is_no_late_first_token() {
    let ([one, two], mut config) = config::fresh().await;
    let after = HedgeAfter::Delay(Duration::from_millis(1));
    config.routes[0].hedge = Some(Hedge { after, budget: 1.0 });
    let gateway = Gateway::start(config).await;
    for replica in [&one, &two] {
        replica.always([vec![Step::Tick; 5], wire::json(200, r#"{"choices":[]}"#)].concat());
    }
    transcribe(&gateway).await;
    assert_eq!(gateway.post(BATCH, ONE_CHAT).await.status(), 200);
    gateway.idle().await;
    assert_eq!(one.count() + two.count(), 2, "each was asked of one replica");
}

#[tokio::test]
async fn a_prompt_that_was_counted_is_no_less_suspected_of_killing_engines() {
    let (replicas, mut config) = config::fresh::<3>().await;
    config.pools[0].ejection.max_share = 1.0;
    let gateway = Gateway::start(config).await;
    for replica in &replicas {
        replica.answers(|request| {
            let is_count = request.line().contains(COUNT);
            if is_count { wire::json(200, COUNTED) } else { vec![Step::StopListening, Step::Reset] }
        });
    }
    for _ in 0..3 {
        assert_eq!(gateway.post(COUNT, &messages("die")).await.status(), 200);
    }
    gateway.idle().await;
    assert_eq!(gateway.post(PATH, &chat("tiny", "die")).await.code(), "replica_failed");
    let dead = || gateway.replicas().iter().filter(|one| one.state == ReplicaState::Unreachable).count();
    until("two replicas are found dead", || dead() == 2).await;
    let reply = gateway.post(PATH, &chat("tiny", "die")).await;
    assert_eq!((reply.status(), &*reply.code()), (503, "suspected_poison"), "the third one lives");
}
