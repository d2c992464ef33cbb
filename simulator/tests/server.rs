//! The simulated server over real sockets, against bytes recorded from vLLM.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on ends here")]

mod raw;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokenway_sim::engine::{CostModel, EngineConfig};
use tokenway_sim::kv_transfer::KvTransfer;
use tokenway_sim::server::{Fault, FaultKind, RequestState, SimConfig, SimReplica, start};
use tokenway_sim::traffic::{TrafficConfig, TrafficStats, run_traffic};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use raw::{Connection, Exchange, eventually, exchange, fixture};

struct Sim {
    replica: SimReplica,
    _end: DropGuard,
}

impl Sim {
    async fn start(config: SimConfig) -> Self {
        let end = CancellationToken::new();
        let addr = SocketAddr::from(([127, 0, 0, 1], 0));
        let replica = start(config, addr, &TaskTracker::new(), end.clone()).await.unwrap();
        Self { replica, _end: end.drop_guard() }
    }

    async fn post(&self, path: &str, body: &Value) -> Exchange {
        exchange(self.replica.addr(), "POST", path, &[JSON], body.to_string().as_bytes()).await
    }

    async fn get(&self, path: &str) -> Exchange {
        exchange(self.replica.addr(), "GET", path, &[], b"").await
    }

    async fn open(&self, body: &Value) -> Connection {
        Connection::send(self.replica.addr(), "POST", CHAT, &[JSON], body.to_string().as_bytes()).await
    }
}

const JSON: &str = "content-type: application/json";
const CHAT: &str = "/v1/chat/completions";

fn fast() -> SimConfig {
    let engine = EngineConfig {
        cost: CostModel {
            prefill_tokens_per_second: 1e6,
            step: Duration::from_millis(2),
            step_per_seq: Duration::ZERO,
            ..CostModel::default()
        },
        ..EngineConfig::default()
    };
    SimConfig { model: "tiny".into(), engine, max_model_len: 8192, ..SimConfig::default() }
}

fn chat(max_tokens: u64) -> Value {
    json!({"model": "tiny", "messages": [{"role": "user", "content": "Tell me of the sea."}],
           "max_tokens": max_tokens, "stream": true})
}

fn with(mut body: Value, more: Value) -> Value {
    let more = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    body
}

fn prompt(more: Value) -> Value {
    with(json!({"model": "tiny", "prompt": "The quick brown fox", "max_tokens": 8}), more)
}

#[tokio::test]
async fn answers_have_the_keys_the_framing_and_the_headers_of_recorded_ones() {
    let sim = Sim::start(fast()).await;
    let usage = json!({"stream_options": {"include_usage": true}});
    let continuous = json!({"stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    let unary = json!({"stream": false});
    let input = json!({"model": "tiny", "input": "The sea.", "max_output_tokens": 6});
    let messages = with(chat(6), json!({"stream": false}));
    let text = json!({"model": "tiny", "prompt": "The fox", "return_token_strs": true});
    let cases = [
        ("chat_stream", CHAT, chat(8)),
        ("chat_stream_usage", CHAT, with(chat(8), usage.clone())),
        ("chat_stream_usage_continuous", CHAT, with(chat(8), continuous)),
        ("chat_stream_token_ids", CHAT, with(chat(3), json!({"return_token_ids": true}))),
        ("chat_stream_n2", CHAT, with(with(chat(4), json!({"n": 2})), usage.clone())),
        ("chat_nonstream", CHAT, with(chat(8), unary)),
        ("completions_stream", "/v1/completions", prompt(json!({"stream": true}))),
        ("completions_stream_usage", "/v1/completions", with(prompt(json!({"stream": true})), usage)),
        ("completions_nonstream", "/v1/completions", prompt(json!({}))),
        ("responses_stream", "/v1/responses", with(input.clone(), json!({"stream": true}))),
        ("responses_nonstream", "/v1/responses", input),
        ("messages_stream", "/v1/messages", with(messages.clone(), json!({"stream": true}))),
        ("messages_nonstream", "/v1/messages", messages.clone()),
        ("messages_count_tokens", "/v1/messages/count_tokens", messages),
        ("tokenize_prompt", "/tokenize", text),
        ("detokenize", "/detokenize", json!({"model": "tiny", "tokens": [1, 2]})),
    ];
    for (name, path, body) in cases {
        let (ours, recorded) = (sim.post(path, &body).await, fixture(name));
        assert_eq!(ours.status, recorded.status, "{name}");
        assert_eq!(ours.header_names(), recorded.header_names(), "{name}");
        assert_eq!(ours.header("content-type"), recorded.header("content-type"), "{name}");
        assert_eq!(ours.shapes(), recorded.shapes(), "{name}");
    }
}

#[tokio::test]
async fn every_event_is_a_chunk_of_its_own() {
    let sim = Sim::start(fast()).await;
    let ours = sim.post(CHAT, &chat(8)).await;
    assert_eq!(ours.chunks.len(), fixture("chat_stream").chunks.len());
    assert!(ours.chunks.iter().all(|chunk| chunk.starts_with(b"data: ") && chunk.ends_with(b"\n\n")));
    assert!(ours.is_complete);
}

#[tokio::test]
async fn errors_are_byte_for_byte_those_of_the_recordings() {
    let sim = Sim::start(fast()).await;
    let nope = json!({"model": "nope"});
    let long = json!({"model": "tiny", "messages": [{"role": "user", "content": "x".repeat(40_000)}]});
    let cases = [
        ("err_bad_param", CHAT, with(chat(4), json!({"temperature": -3.0}))),
        ("err_bad_type", CHAT, with(chat(4), json!({"max_tokens": "many"}))),
        ("err_completions_bad", "/v1/completions", json!({"model": "tiny"})),
        ("err_max_tokens_too_big", CHAT, chat(9000)),
        ("err_messages_bad", "/v1/messages", with(chat(4), nope.clone())),
        ("err_missing_messages", CHAT, json!({"model": "tiny"})),
        ("err_responses_bad", "/v1/responses", with(json!({"input": "x"}), nope.clone())),
        (
            "err_stream_options_without_stream",
            CHAT,
            with(chat(4), json!({"stream": false, "stream_options": {"include_usage": true}})),
        ),
        ("err_too_long", CHAT, long),
        ("err_unknown_model", CHAT, with(chat(4), nope)),
    ];
    for (name, path, body) in cases {
        let (ours, recorded) = (sim.post(path, &body).await, fixture(name));
        assert_eq!((ours.status, ours.text()), (recorded.status, recorded.text()), "{name}");
    }
    let at = sim.replica.addr();
    let cases = [
        ("err_method", exchange(at, "GET", CHAT, &[], b"").await),
        ("get_404", exchange(at, "GET", "/nope", &[], b"").await),
        ("err_empty_body", exchange(at, "POST", CHAT, &[JSON], b"").await),
        ("err_content_type", exchange(at, "POST", CHAT, &["content-type: text/plain"], b"{}").await),
    ];
    for (name, ours) in cases {
        let recorded = fixture(name);
        assert_eq!((ours.status, ours.text()), (recorded.status, recorded.text()), "{name}");
        assert_eq!(ours.header_names(), recorded.header_names(), "{name}");
    }
    let broken = exchange(at, "POST", CHAT, &[JSON], b"{\"model\": \"tiny\", }").await;
    assert_eq!((broken.status, broken.shapes()), (400, fixture("err_bad_json").shapes()));
}

#[tokio::test]
async fn the_same_seed_says_the_same_and_the_request_id_names_the_answer() {
    let (one, two) = (Sim::start(fast()).await, Sim::start(fast()).await);
    let other = Sim::start(SimConfig { seed: 9, ..fast() }).await;
    let (first, second) = (one.post(CHAT, &chat(20)).await, two.post(CHAT, &chat(20)).await);
    assert_eq!(first.content(), second.content());
    assert_ne!(first.content(), other.post(CHAT, &chat(20)).await.content());
    let body = chat(2).to_string();
    let headers = [JSON, "x-request-id: gw-7"];
    let named = exchange(one.replica.addr(), "POST", CHAT, &headers, body.as_bytes()).await;
    assert_eq!(named.header("x-request-id"), Some("gw-7"));
    assert!(named.text().contains(r#""id":"chatcmpl-gw-7""#));
}

#[tokio::test]
async fn a_repeated_prompt_is_reported_as_cached_but_not_under_another_salt() {
    let sim = Sim::start(fast()).await;
    let body = json!({"model": "tiny", "max_tokens": 1,
                      "messages": [{"role": "user", "content": "the sea ".repeat(100)}]});
    let cached = |answer: Exchange| answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    assert_eq!(cached(sim.post(CHAT, &body).await), json!(0));
    assert_eq!(cached(sim.post(CHAT, &body).await), json!(192));
    let salted = with(body.clone(), json!({"cache_salt": "s"}));
    assert_eq!(cached(sim.post(CHAT, &salted).await), json!(0));
    let message = sim.post("/v1/messages", &body).await.json();
    assert_eq!(message["usage"]["cache_read_input_tokens"], json!(192));
    let metrics = sim.get("/metrics").await.text();
    assert!(
        metrics.contains("vllm:prefix_cache_hits_total{engine=\"0\",model_name=\"tiny\"} 384.0"),
        "{metrics}"
    );
}

#[tokio::test]
async fn the_head_comes_before_the_first_token_and_a_queue_shows_in_the_metrics() {
    let sim = Sim::start(fast()).await;
    sim.replica.set_fault(Fault::new(FaultKind::Freeze)).await;
    let mut waiting = sim.open(&chat(3)).await;
    assert_eq!(waiting.head().await.status, 200);
    let _other = sim.open(&chat(3)).await;
    assert_eq!(sim.get("/health").await.status, 200);
    eventually("two requests in the engine", || {
        let gauges = sim.replica.engine_stats().gauges;
        gauges.running + gauges.waiting == 2
    })
    .await;
    let page = sim.get("/metrics").await.text();
    assert!(page.contains("vllm:num_requests_waiting{engine=\"0\",model_name=\"tiny\"} 1.0"), "{page}");
    assert!(page.contains("block_size=\"16\"") && page.contains("num_gpu_blocks=\"4096\""));
    sim.replica.clear_faults().await.unwrap();
    assert!(waiting.rest().await.is_complete);
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_work() {
    let sim = Sim::start(fast()).await;
    for stream in [true, false] {
        let body = with(chat(8000), json!({"stream": stream}));
        let client = sim.open(&body).await;
        eventually("the request runs", || sim.replica.engine_stats().gauges.running == 1).await;
        drop(client);
        eventually("the engine is idle", || sim.replica.engine_stats().gauges.running == 0).await;
    }
    eventually("both are entered as canceled", || sim.replica.stats().canceled == 2).await;
    assert_eq!(sim.replica.engine_stats().canceled, 2);
}

#[tokio::test]
async fn what_arrived_is_logged_with_its_digest() {
    let sim = Sim::start(fast()).await;
    sim.post("/v1/completions", &prompt(json!({}))).await;
    let log = sim.get("/sim/requests").await.json();
    let seen = &log["last"][0];
    assert_eq!((&seen["path"], &seen["outcome"]), (&json!("/v1/completions"), &json!("served")));
    assert_eq!(seen["body_bytes"], json!(prompt(json!({})).to_string().len()));
    assert_eq!(seen["body_sha256"].as_str().unwrap().len(), 64);
    assert_eq!(sim.replica.stats().last[0].outcome, RequestState::Served);
}

#[tokio::test]
async fn a_key_guards_v1_only() {
    let sim = Sim::start(SimConfig { api_key: Some("k".into()), ..fast() }).await;
    let denied = sim.get("/v1/models").await;
    assert_eq!((denied.status, denied.text().as_str()), (401, r#"{"error":"Unauthorized"}"#));
    assert_eq!(sim.get("/health").await.status, 200);
    let at = sim.replica.addr();
    let models = exchange(at, "GET", "/v1/models", &["authorization: Bearer k"], b"").await;
    let recorded: Value =
        serde_json::from_slice(include_bytes!("../../tests/fixtures/vllm/v1_models.body")).unwrap();
    assert_eq!(raw::shape(&models.json()), raw::shape(&recorded));
}

#[tokio::test]
async fn tools_echo_stop_strings_and_batches_are_spoken() {
    let sim = Sim::start(fast()).await;
    let tools = json!({"tools": [{"type": "function", "function": {"name": "look", "parameters": {}}}],
                       "tool_choice": "required"});
    let called = sim.post(CHAT, &with(chat(4), tools)).await;
    let arguments: String = called
        .events()
        .iter()
        .filter_map(|e| e["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"].as_str())
        .collect();
    assert!(serde_json::from_str::<Value>(&arguments).unwrap()["text"].is_string());
    assert!(
        called.text().contains(r#""name":"look""#) && called.text().contains("tool_calls\",\"stop_reason")
    );

    let echoed = sim.post("/v1/completions", &prompt(json!({"echo": true}))).await.json();
    assert!(echoed["choices"][0]["text"].as_str().unwrap().starts_with("The quick brown fox "));

    let whole = sim.post("/v1/completions", &prompt(json!({}))).await.json();
    let text = whole["choices"][0]["text"].as_str().unwrap();
    let stopped = sim.post("/v1/completions", &prompt(json!({"stop": &text[10..14]}))).await.json();
    let choice = &stopped["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &json!(text[10..14])));
    assert!(text.starts_with(choice["text"].as_str().unwrap()));

    let batch = prompt(json!({"prompt": ["a", "b"], "n": 2}));
    assert_eq!(sim.post("/v1/completions", &batch).await.json()["choices"].as_array().unwrap().len(), 4);
}

#[tokio::test]
async fn the_other_endpoints_answer() {
    let sim = Sim::start(fast()).await;
    let documents = json!({"model": "tiny", "query": "sea", "documents": ["a ship", "a tree"]});
    let cases = [
        ("/v1/embeddings", json!({"model": "tiny", "input": ["a", "b"]}), "data"),
        ("/v1/rerank", documents.clone(), "results"),
        ("/rerank", documents, "results"),
        ("/v1/score", json!({"model": "tiny", "text_1": "a", "text_2": ["b", "c"]}), "data"),
        ("/score", json!({"model": "tiny", "text_1": "a", "text_2": ["b", "c"]}), "data"),
        ("/v1/classify", json!({"model": "tiny", "input": ["a", "b"]}), "data"),
        ("/pooling", json!({"model": "tiny", "input": ["a", "b"]}), "data"),
    ];
    for (path, body, field) in cases {
        let answer = sim.post(path, &body).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        assert_eq!(answer.json()[field].as_array().unwrap().len(), 2, "{path}");
    }
    assert_eq!(sim.get("/version").await.text(), r#"{"version":"0.32.0"}"#);
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_a_used_one_is_not() {
    let sim = Sim::start(SimConfig { keep_alive: Duration::from_millis(50), ..fast() }).await;
    let mut idle = Connection::keep(sim.replica.addr(), "GET", "/health").await;
    assert_eq!(idle.head().await.status, 200);
    assert!(!idle.rest().await.is_reset);
    let answered = sim.post(CHAT, &chat(100)).await;
    assert!(answered.is_complete, "longer than the idle limit");
}

#[tokio::test]
async fn traffic_is_answered_and_its_sessions_hit_the_cache() {
    let sim = Sim::start(SimConfig { model: "sim".into(), ..fast() }).await;
    let (stats, tracker, end) =
        (Arc::new(TrafficStats::default()), TaskTracker::new(), CancellationToken::new());
    let config = TrafficConfig { base_url: sim.replica.url(), rate: 200.0, ..TrafficConfig::default() };
    tracker.spawn(run_traffic(config, stats.clone(), tracker.clone(), end.clone()));
    eventually("thirty answers", || stats.summary().ok >= 30).await;
    let summary = stats.summary();
    // What a busy machine leaves no time to ask is skipped; what is asked is answered.
    assert_eq!(summary.failed, 0);
    assert!(summary.ttft_p50.is_some() && summary.gap_p99.is_some());
    eventually("most of what is asked for cached", || {
        let engine = sim.replica.engine_stats();
        engine.prefix_hits * 2 > engine.prefix_queries
    })
    .await;
    end.cancel();
    tracker.close();
    tracker.wait().await;
    eventually("those under way are canceled", || sim.replica.stats().in_flight == 0).await;
}

mod faults {
    use super::*;

    async fn under(kind: FaultKind, after: u64) -> Sim {
        let sim = Sim::start(fast()).await;
        sim.replica.set_fault(Fault::new(kind).after(after)).await;
        sim
    }

    fn contents(answer: &Exchange) -> usize {
        answer.events().iter().filter(|e| e["choices"][0]["delta"]["content"].as_str() > Some("")).count()
    }

    #[tokio::test]
    async fn cut_ends_the_connection_after_n_events_without_the_last_chunk() {
        let sim = under(FaultKind::Cut, 3).await;
        let broken = sim.post(CHAT, &chat(10)).await;
        assert_eq!((broken.status, contents(&broken), broken.is_complete), (200, 3, false));
        assert!(!broken.is_reset);
        let at_the_end = sim.post(CHAT, &chat(3)).await;
        assert_eq!((contents(&at_the_end), at_the_end.is_complete), (3, false));
        let unary = sim.post(CHAT, &with(chat(10), json!({"stream": false}))).await;
        assert!(!unary.is_complete && unary.text().starts_with(r#"{"id":"#));
    }

    #[tokio::test]
    async fn reset_before_head_sends_a_reset_and_no_byte() {
        let sim = under(FaultKind::ResetBeforeHead, 0).await;
        let mut connection = sim.open(&chat(3)).await;
        assert!(connection.is_reset_at_once().await);
    }

    #[tokio::test]
    async fn stall_goes_silent_with_the_socket_open_while_comments_go_on() {
        let sim = under(FaultKind::Stall, 2).await;
        let comments = Fault { interval_ms: 5, ..Fault::new(FaultKind::KeepaliveComments) };
        sim.replica.set_fault(comments).await;
        let mut stream = sim.open(&chat(10)).await;
        assert_eq!(stream.head().await.status, 200);
        let seen = stream.read_until(b": keep-alive\n\n\r\nE\r\n: keep-alive").await;
        assert_eq!(seen.matches("data: ").count(), 3, "the role chunk and two tokens: {seen}");
    }

    #[tokio::test]
    async fn error_faults_answer_as_recorded_and_as_often_as_asked() {
        let sim = Sim::start(fast()).await;
        sim.replica.set_fault(Fault::new(FaultKind::Error503).times(1)).await;
        let busy = sim.post(CHAT, &chat(2)).await;
        let recorded = fixture("err_queue_full_503");
        assert_eq!((busy.status, busy.text()), (503, recorded.text()));
        assert_eq!(busy.header_names(), recorded.header_names(), "no retry-after");
        assert_eq!(sim.post(CHAT, &chat(2)).await.status, 200);
        let own = with(chat(2), json!({"sim_fault": {"kind": "error_500"}}));
        assert_eq!(sim.post(CHAT, &own).await.status, 500);
        assert_eq!(sim.post(CHAT, &with(chat(2), json!({"sim_fault": 7}))).await.status, 400);
    }

    #[tokio::test]
    async fn a_dying_engine_answers_200_with_an_error_event_and_done_then_500() {
        let sim = under(FaultKind::EngineDeath, 2).await;
        let died = sim.post(CHAT, &chat(10)).await;
        let recorded = fixture("engine_death_stream");
        assert_eq!((died.status, died.is_complete), (200, true));
        assert_eq!(died.chunks[3..], recorded.chunks[recorded.chunks.len() - 2..]);
        let later = sim.post(CHAT, &chat(2)).await;
        assert_eq!((later.status, later.text()), (500, fixture("engine_death_nonstream").text()));
        assert_eq!(sim.get("/health").await.status, 503);
        sim.replica.restart().await.unwrap();
        assert!(sim.post(CHAT, &chat(2)).await.is_complete);
    }

    #[tokio::test]
    async fn after_sigterm_streams_are_silent_and_connects_refused() {
        let sim = Sim::start(fast()).await;
        let mut stream = sim.open(&chat(2000)).await;
        stream.head().await;
        stream.read_until(b"content\":\" ").await;
        let mut idle = Connection::keep(sim.replica.addr(), "GET", "/health").await;
        idle.head().await;
        sim.replica.set_fault(Fault::new(FaultKind::Sigterm)).await;
        assert!(!idle.rest().await.is_reset, "idle connections get a FIN");
        assert!(tokio::net::TcpStream::connect(sim.replica.addr()).await.is_err());
        assert_eq!(sim.replica.stats().in_flight, 1, "the stream is neither served nor canceled");
        sim.replica.restart().await.unwrap();
        assert!(!stream.rest().await.is_complete);
        assert!(sim.post(CHAT, &chat(2)).await.is_complete);
    }

    #[tokio::test]
    async fn a_crash_drops_everything_and_a_restart_comes_back_empty() {
        let sim = Sim::start(fast()).await;
        let mut stream = sim.open(&chat(2000)).await;
        stream.head().await;
        let crash = exchange(sim.replica.addr(), "POST", "/sim/fault", &[], br#"{"kind":"crash"}"#).await;
        assert_eq!(crash.status, 200, "the control request itself is answered");
        assert!(!stream.rest().await.is_complete);
        assert!(tokio::net::TcpStream::connect(sim.replica.addr()).await.is_err());
        sim.replica.restart().await.unwrap();
        assert!(sim.post(CHAT, &chat(2)).await.is_complete);
        assert_eq!(sim.replica.engine_stats().finished, 1);
    }

    #[tokio::test]
    async fn a_draining_replica_finishes_what_runs_and_refuses_new_work_under_green_health() {
        let sim = Sim::start(fast()).await;
        let mut stream = sim.open(&chat(50)).await;
        stream.head().await;
        exchange(sim.replica.addr(), "POST", "/sim/fault", &[], br#"{"kind":"drain"}"#).await;
        let refused = sim.post(CHAT, &chat(2)).await;
        assert_eq!(refused.status, 500);
        assert!(refused.text().contains("cannot schedule new futures after shutdown"));
        assert_eq!(sim.get("/health").await.status, 200);
        assert!(stream.rest().await.is_complete);
        exchange(sim.replica.addr(), "DELETE", "/sim/fault", &[], b"").await;
        assert_eq!(sim.post(CHAT, &chat(2)).await.status, 200);
    }

    #[tokio::test]
    async fn a_timed_fault_heals_by_itself() {
        let sim = Sim::start(fast()).await;
        sim.replica.set_fault(Fault { duration_ms: Some(20), ..Fault::new(FaultKind::Refuse) }).await;
        let at = sim.replica.addr();
        raw::eventually_async("it listens again", async || tokio::net::TcpStream::connect(at).await.is_ok())
            .await;
        assert!(sim.post(CHAT, &chat(2)).await.is_complete);
    }

    #[tokio::test]
    async fn a_hanging_request_is_taken_and_never_answered() {
        let sim = under(FaultKind::Hang, 0).await;
        let client = sim.open(&chat(2)).await;
        eventually("it arrived", || sim.replica.stats().in_flight == 1).await;
        drop(client);
        eventually("its client left", || sim.replica.stats().canceled == 1).await;
    }
}

#[tokio::test]
async fn kv_computed_by_one_replica_is_decoded_by_another() {
    let ms = Duration::from_millis;
    let kv_transfer = KvTransfer { handshake: ms(50), base: ms(5), per_token: ms(0), lost_after: ms(30) };
    let config = || SimConfig { kv_transfer, ..fast() };
    let (one, other) = (Sim::start(config()).await, Sim::start(config()).await);
    let body = |more: Value| with(chat(8), with(json!({"stream": false}), more));
    let keep = json!({"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": true, "do_remote_prefill": false}});
    let alone = one.post(CHAT, &body(json!({}))).await.json();
    let computed = one.post(CHAT, &body(keep)).await.json();
    let params = computed["kv_transfer_params"].clone();
    assert_eq!(params["do_remote_prefill"], true, "{computed}");
    let fetched = other.post(CHAT, &body(json!({"kv_transfer_params": params}))).await.json();
    assert_eq!(fetched["choices"], alone["choices"]);
    assert_eq!(fetched["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert!(fetched["kv_transfer_params"].is_null());

    one.replica.set_fault(Fault::new(FaultKind::Crash)).await;
    let lost = other.post(CHAT, &body(json!({"kv_transfer_params": params}))).await;
    assert_eq!(
        (lost.status, &*lost.text()),
        (
            500,
            r#"{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}"#
        )
    );
    let stream = other.post(CHAT, &with(chat(8), json!({"kv_transfer_params": params}))).await;
    assert_eq!((stream.status, stream.content().as_str()), (200, ""));
    assert!(stream.text().contains("Internal server error") && stream.text().ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn engines_that_meet_in_a_room_wait_for_the_one_that_computes() {
    let ms = Duration::from_millis;
    let kv_transfer = KvTransfer { handshake: ms(5), base: ms(5), per_token: ms(0), lost_after: ms(30) };
    let config = || SimConfig { kv_transfer, ..fast() };
    let (one, other) = (Sim::start(config()).await, Sim::start(config()).await);
    let alone = one.post(CHAT, &with(chat(8), json!({"stream": false}))).await.json();
    let room = json!({"stream": false, "bootstrap_host": "127.0.0.1", "bootstrap_port": one.replica.addr().port(), "bootstrap_room": 7});
    let (body, first) = (with(chat(8), room.clone()), with(chat(1), room));
    let (decoded, computed) = tokio::join!(other.post(CHAT, &body), one.post(CHAT, &first));
    let decoded = decoded.json();
    assert_eq!((computed.status, &decoded["choices"]), (200, &alone["choices"]));
    assert_eq!(decoded["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "it came from elsewhere");
}
