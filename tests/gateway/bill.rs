//! What requests cost their tenants: limits, budgets, metrics and the bill agree.

use std::time::{Duration, SystemTime};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;
use tokenway::admission::Amounts;
use tokenway::config::{Budget, EngineSpansConfig, Hook, Tenant, Window};
use tokenway::observe::usage::Used;

use crate::support::client::{Client, Reply};
use crate::support::replica::{Gate, Probes, Received, Replica, Step};
use crate::support::{Gateway, PATH, config, until, wire};

/// Some five hundred tokens.
const WORDS: usize = 400;

fn budget() -> Budget {
    Budget { tokens: Some(100_000), requests: Some(100), window: Window::Month, ..Budget::default() }
}

fn tenant(budget: Budget) -> Tenant {
    Tenant { budgets: vec![budget], ..config::tenant("a", "a") }
}

async fn start(budget: Budget) -> ([Replica; 1], Gateway) {
    Gateway::before(|config| config.tenants = vec![tenant(budget)]).await
}

async fn posting(gateway: &Gateway, path: &str, body: &str) -> Client {
    gateway.sent_as("a", path, body).await
}

async fn asking_at(gateway: &Gateway, path: &str, is_stream: bool) -> Client {
    let words = "word ".repeat(WORDS);
    let body = format!(
        r#"{{"model":"tiny","stream":{is_stream},"max_tokens":9,"messages":[{{"role":"user","content":"{words}"}}]}}"#
    );
    posting(gateway, path, &body).await
}

async fn asking(gateway: &Gateway, is_stream: bool) -> Client {
    asking_at(gateway, PATH, is_stream).await
}

async fn ask(gateway: &Gateway, is_stream: bool) -> Reply {
    let reply = asking(gateway, is_stream).await.reply().await;
    gateway.idle().await;
    reply
}

fn wall_now(gateway: &Gateway) -> SystemTime {
    let clock = gateway.app.gateway.clock;
    clock.wall(clock.now())
}

/// Of the tenant's budget.
fn charged(gateway: &Gateway) -> Amounts {
    let now = wall_now(gateway);
    let mut ledgers = gateway.app.gateway.tenants.ledgers(now).tenants;
    ledgers.get_mut("a").map_or(Amounts::default(), |ledger| ledger.used(&budget(), now))
}

/// What `tokenway usage` has.
fn billed(gateway: &Gateway) -> Used {
    let until = wall_now(gateway) + Duration::from_secs(3600);
    let usage = &gateway.app.gateway.observer.metrics.usage;
    let (sums, _) = usage.sum(SystemTime::UNIX_EPOCH, until, |_, payer| (0, payer.clone()));
    let mut total = Used::default();
    sums.values().for_each(|used| total.add(used));
    total
}

/// Tokens of prompts and of answers: by the budget, the bill and the metric, which are the same.
fn tokens(gateway: &Gateway) -> (u64, u64) {
    let family = "tokenway_tenant_tokens_total";
    let metric = |kind: &str| gateway.sum(family, &[&format!("kind=\"{kind}\"")]) as u64;
    let (of_budget, of_bill) = (charged(gateway), billed(gateway));
    let all = (of_budget.input, of_budget.output);
    assert_eq!((of_bill.input, of_bill.output), all, "the bill is by {of_bill:?}");
    assert_eq!((metric("input"), metric("output")), all, "by the metric");
    all
}

const ANSWER: &str = r#"{"id":"c","object":"chat.completion","model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":50,"completion_tokens":10}}"#;
const REFUSED: &str = r#"{"error":{"message":"no","type":"BadRequestError","param":null,"code":400}}"#;

#[tokio::test]
async fn the_time_of_a_whole_answer_at_its_engine_is_charged_and_billed() {
    let slow = [vec![Step::Tick; 105], wire::json(200, ANSWER)].concat();
    let second = Budget { engine_seconds: Some(1), window: Window::Month, ..Budget::default() };
    let ([replica], gateway) = start(second).await;
    replica.always(slow);
    assert_eq!(ask(&gateway, false).await.status(), 200);
    let spent = ask(&gateway, false).await;
    assert_eq!((spent.status(), &*spent.code()), (429, "budget"), "{}", spent.text());
    let of_budget = charged(&gateway).engine_ms as f64 / 1e3;
    let used = billed(&gateway);
    let of_bill = (used.prefill_us + used.decode_us + used.engine_other_us) as f64 / 1e6;
    let metric = gateway.sum("tokenway_tenant_engine_seconds_total", &["stage=\"engine_other\""]);
    assert!(metric > 1.0 && (metric - of_bill).abs() < 1e-3, "{metric} and {of_bill}");
    assert!((of_budget - of_bill).abs() < 2e-3, "{of_budget} and {of_bill}");
}

/// What the engine reports of a request that it served with this head: little work, and the rest in its queue.
fn engine_span(head: &Received) -> Vec<u8> {
    let parts: Vec<_> = head.header("traceparent").unwrap().split('-').collect();
    let times = [("time_in_queue", 0.9), ("time_in_model_prefill", 0.05), ("time_in_model_decode", 0.05)];
    let attributes = times.map(|(name, seconds)| KeyValue {
        key: format!("gen_ai.latency.{name}"),
        value: Some(AnyValue { value: Some(Value::DoubleValue(seconds)) }),
        ..KeyValue::default()
    });
    let span = Span {
        trace_id: u128::from_str_radix(parts[1], 16).unwrap().to_be_bytes().into(),
        parent_span_id: u64::from_str_radix(parts[2], 16).unwrap().to_be_bytes().into(),
        span_id: vec![1; 8],
        attributes: attributes.to_vec(),
        ..Span::default()
    };
    let scope = ScopeSpans { spans: vec![span], ..ScopeSpans::default() };
    let resource_spans = vec![ResourceSpans { scope_spans: vec![scope], ..ResourceSpans::default() }];
    ExportTraceServiceRequest { resource_spans }.encode_to_vec()
}

#[tokio::test]
async fn a_budget_counts_the_time_that_the_engine_reports_as_the_bill_does() {
    let ([replica], mut config) = config::fresh().await;
    replica.always([vec![Step::Tick; 105], wire::json(200, ANSWER)].concat());
    let seconds = Budget { engine_seconds: Some(1), window: Window::Month, ..Budget::default() };
    config.tenants = vec![tenant(seconds)];
    config.telemetry.sampling.routine = 1.0;
    config.telemetry.engine_spans = Some(EngineSpansConfig { listen: "127.0.0.1:0".parse().unwrap() });
    let gateway = Gateway::start(config).await;
    assert_eq!(ask(&gateway, false).await.status(), 200);
    assert!(charged(&gateway).engine_ms > 1000, "as long as nothing better is known");

    let receiver = gateway.app.gateway.observer.engine_spans_address().unwrap();
    let mut engine = Client::connect(receiver).await;
    let of_protobuf = ("content-type", "application/x-protobuf");
    engine.post("/v1/traces", &[of_protobuf], &engine_span(&replica.received().pop().unwrap())).await;
    assert_eq!(engine.reply().await.status(), 200);
    assert_eq!(charged(&gateway).engine_ms, 100);
    let used = billed(&gateway);
    assert_eq!((used.prefill_us + used.decode_us + used.engine_other_us) / 1000, 100);
    assert_eq!(ask(&gateway, false).await.status(), 200, "nine tenths of its second are left");
    // Its spans have not come by the end.
    gateway.app.stop(Duration::ZERO).await;
    let used = billed(&gateway);
    assert!((used.prefill_us + used.decode_us + used.engine_other_us) / 1000 > 1100, "{used:?}");
}

#[tokio::test]
async fn an_answer_that_is_an_error_costs_a_request_and_no_tokens() {
    let ([replica], gateway) = start(budget()).await;
    let event = format!("data: {REFUSED}\n\n");
    let mut left = Vec::new();
    for (is_stream, script) in [
        (false, wire::json(400, REFUSED)),
        (true, wire::json(400, REFUSED)),
        (false, wire::json(500, REFUSED)),
        (true, wire::stream([&*event, wire::DONE])),
        (false, wire::json(400, REFUSED)),
    ] {
        replica.always(script);
        let reply = ask(&gateway, is_stream).await;
        assert!(reply.text().contains("error"), "{} {}", reply.status(), reply.text());
        let header = |name: &str| reply.field(name).unwrap().parse::<u64>().unwrap();
        left.push((header("x-ratelimit-remaining-tokens"), header("x-ratelimit-remaining-requests")));
    }
    assert!(left[0].0 < 100_000 - WORDS as u64, "while it runs its prompt is held: {left:?}");
    assert!(left.iter().all(|(tokens, _)| *tokens == left[0].0), "{left:?}");
    assert_eq!(left[4].1, 95, "as requests they count");
    assert_eq!((tokens(&gateway), charged(&gateway).engine_ms), ((0, 0), 0));
    replica.always(wire::json(200, ANSWER));
    assert_eq!(ask(&gateway, false).await.status(), 200);
    assert_eq!(tokens(&gateway), (50, 10), "by the engine's usage");
}

#[tokio::test]
async fn what_a_hook_refuses_costs_nothing() {
    let [replica, service] = Replica::several().await;
    replica.always(wire::json(200, ANSWER));
    service.probes(Probes::Scripted);
    service.always(wire::json(200, r#"{"allow":false,"status":422}"#));
    let mut config = config::of(&[&replica]);
    config.tenants = vec![tenant(Budget { requests: Some(1), ..Budget::default() })];
    config.tenants[0].limits.requests_per_minute = Some(1);
    config.hook = Some(Hook { before: Some(service.endpoint()), ..Hook::default() });
    let gateway = Gateway::start(config).await;
    for _ in 0..3 {
        let reply = ask(&gateway, false).await;
        assert_eq!((reply.status(), &*reply.code()), (422, "hook_refused"), "{}", reply.text());
    }
    service.always(wire::json(200, r#"{"allow":true}"#));
    assert_eq!(ask(&gateway, false).await.status(), 200, "the one request is left");
    assert_eq!(ask(&gateway, false).await.status(), 429);
}

/// Others' answers teach how many tokens an event has; what a tenant pays is bounded by its own text.
#[tokio::test]
async fn a_stream_without_usage_is_billed_by_its_text_whatever_others_had_in_an_event() {
    let ([replica], gateway) = start(budget()).await;
    let usage =
        r#"data: {"choices":[],"usage":{"prompt_tokens":5,"total_tokens":305,"completion_tokens":300}}"#;
    let mut events = wire::chat_events(&["x", "y"]);
    let end = events.len() - 1;
    events.insert(end, format!("{usage}\n\n"));
    for _ in 0..20 {
        replica.next(wire::stream(&events));
        assert_eq!(ask(&gateway, true).await.status(), 200);
    }
    let before = tokens(&gateway).1;
    assert_eq!(before, 20 * 300);
    replica.next(wire::chat_stream(&["x", "y", "z"]));
    ask(&gateway, true).await;
    let little = tokens(&gateway).1 - before;
    assert!((3..=6).contains(&little), "three events of a letter: {little}");
    let long = "lorem ipsum ".repeat(40);
    replica.next(wire::chat_stream(&[&long, &long, &long]));
    ask(&gateway, true).await;
    let much = tokens(&gateway).1 - before - little;
    assert!((180..=720).contains(&much), "three events of 480 letters: {much}");
}

#[tokio::test]
async fn streams_without_usage_are_billed_by_what_budgets_count() {
    let ([replica], gateway) = start(budget()).await;
    replica.next(wire::chat_stream(&["x", "y", "z"]));
    assert_eq!(ask(&gateway, true).await.status(), 200);
    let (input, output) = tokens(&gateway);
    assert!(input > WORDS as u64 && output == 3, "by the estimated prompt and the events: {input}, {output}");

    let gate = Gate::new();
    replica.next(wire::begun_then("x", [wire::event(wire::content("y")), Step::Wait(gate.clone())]));
    let mut client = asking(&gateway, true).await;
    client.head().await;
    client.read_until("\"y\"").await;
    drop(client);
    gateway.idle().await;
    gate.cancel();
    assert_eq!(tokens(&gateway), (2 * input, output + 2), "its client left");

    replica.next(wire::begun_then("x", [Step::Close]));
    ask(&gateway, true).await;
    assert_eq!(tokens(&gateway), (3 * input, output + 3), "it broke after content");

    replica.next(wire::stream([wire::ROLE, &wire::content("x"), wire::FINISH, wire::USAGE, wire::DONE]));
    ask(&gateway, true).await;
    assert_eq!(tokens(&gateway), (3 * input + 9, output + 5), "the engine's usage is better");

    let counted =
        |text: &str| wire::content(text).replace("\"index\":0,", "\"index\":0,\"token_ids\":[1,2,3,4],");
    let gate = Gate::new();
    let held_back = wire::event(counted(""));
    replica.next(wire::begun_then("x", [wire::event(counted("y")), held_back, Step::Wait(gate.clone())]));
    let mut client = asking(&gateway, true).await;
    client.head().await;
    client.read_until("[1,2,3,4],\"delta\":{\"content\":\"\"").await;
    drop(client);
    gateway.idle().await;
    gate.cancel();
    assert_eq!(tokens(&gateway), (4 * input + 9, output + 13), "ids count what has no text as well");
}

/// Claude Code counts each prompt before it sends it.
#[tokio::test]
async fn what_no_engine_computes_costs_no_tokens_and_is_not_refused_for_them() {
    let small = Budget { tokens: Some(600), window: Window::Month, hard: true, ..Budget::default() };
    let ([replica], gateway) = start(small).await;
    replica.always(wire::json(200, r#"{"input_tokens":500,"count":500}"#));
    let count = async || {
        for path in ["/v1/messages/count_tokens", "/tokenize"] {
            let reply = asking_at(&gateway, path, false).await.reply().await;
            assert_eq!(reply.status(), 200, "{path}: {}", reply.text());
            gateway.idle().await;
        }
    };
    count().await;
    assert_eq!((tokens(&gateway), charged(&gateway).requests), ((0, 0), 2));
    replica.next(wire::json(200, &ANSWER.replace("50", "900")));
    assert_eq!(ask(&gateway, false).await.status(), 200);
    assert_eq!(ask(&gateway, false).await.status(), 429);
    count().await;
    assert_eq!(tokens(&gateway), (900, 10));
}

#[tokio::test]
async fn whole_answers_without_usage_are_billed_by_their_text() {
    let ([replica], gateway) = start(budget()).await;
    let answer = |message: &str| {
        let head = r#"{"id":"c","object":"chat.completion","model":"tiny","choices":[{"index":0,"message":"#;
        wire::json(200, &format!(r#"{head}{{"role":"assistant",{message}}},"finish_reason":"stop"}}]}}"#))
    };
    replica.next(answer(&format!(r#""content":"{}""#, "word ".repeat(40))));
    assert_eq!(ask(&gateway, false).await.status(), 200);
    let (input, output) = tokens(&gateway);
    assert!(input > WORDS as u64 && (40..=60).contains(&output), "of 200 bytes: {input}, {output}");

    let audio = "A".repeat(4000);
    replica.next(answer(&format!(r#""content":null,"audio":{{"data":"{audio}"}}"#)));
    ask(&gateway, false).await;
    assert_eq!(tokens(&gateway), (2 * input, output), "audio is no text");

    replica.next(wire::json(200, ANSWER));
    ask(&gateway, false).await;
    assert_eq!(tokens(&gateway), (2 * input + 50, output + 10), "the engine's usage is better");

    let item = r#"{"id":"msg_1","type":"message","role":"assistant","status":"completed","content":[{"type":"output_text","text":"","annotations":[],"logprobs":null}]}"#;
    replica.next(wire::json(200, &format!(r#"{{"id":"r","object":"response","output":[{item}]}}"#)));
    posting(&gateway, RESPONSES, r#"{"model":"tiny","input":"x"}"#).await.reply().await;
    gateway.idle().await;
    assert_eq!(tokens(&gateway).1, output + 10, "the names around no text are none");
}

/// By the pace of 20 ms a token that is assumed of an engine that has not shown its own, until its `max_tokens` of 9 are reached.
#[tokio::test]
async fn a_whole_answer_that_its_client_leaves_is_charged_what_its_engine_had_the_time_to_write() {
    let ([replica], gateway) = Gateway::before(|config| {
        config.tenants = vec![tenant(budget())];
        config.routes[0].client_may.timeout = true;
    })
    .await;
    replica.always(vec![Step::Hang]);
    let leaves = async |client: Client| {
        let clock = gateway.app.gateway.clock;
        let sent = clock.now();
        until("nine tokens would be written", || clock.now().since(sent) > Duration::from_millis(800)).await;
        drop(client);
        gateway.idle().await;
    };
    leaves(asking(&gateway, false).await).await;
    let (input, output) = tokens(&gateway);
    assert!(input > WORDS as u64 && output == 9, "{input}, {output}");

    let body = r#"{"model":"tiny","max_tokens":9,"n":3,"messages":[{"role":"user","content":"x"}]}"#;
    let headers = [("authorization", "Bearer a"), ("x-request-timeout", "1")];
    assert_eq!(gateway.post_with(PATH, &headers, body).await.status(), 504);
    gateway.idle().await;
    let (input, output) = (tokens(&gateway).0, 4 * 9);
    assert_eq!(tokens(&gateway).1, output, "its own deadline passed, and it asked for three");

    leaves(asking(&gateway, true).await).await;
    assert!(tokens(&gateway).0 > input);
    assert_eq!(tokens(&gateway).1, output, "a stream whose first token has not come");

    let tools = r#""tools":[{"type":"function","function":{"name":"f"}}]"#;
    let body = format!(r#"{{"model":"tiny","stream":true,"max_tokens":9,{tools},"messages":[]}}"#);
    replica.always([vec![wire::sse_head(), wire::event(wire::ROLE)], vec![Step::Hang]].concat());
    leaves(posting(&gateway, PATH, &body).await).await;
    assert_eq!(tokens(&gateway).1, output + 9, "the engine's parser held them back");
}

#[tokio::test]
async fn a_large_answer_that_its_client_leaves_before_its_count_is_charged_by_its_text() {
    let ([replica], gateway) = start(budget()).await;
    let answer = ANSWER.replace(r#""x""#, &format!("\"{}\"", "word ".repeat(40)));
    let (content, usage) = answer.split_at(answer.find(r#","finish_reason""#).unwrap());
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let begun = format!(r#"{content},"logprobs":["{}"#, "é".repeat(1 << 20));
    let begun = vec![Step::Raw(head.to_vec()), Step::Chunk(begun.into_bytes())];
    let rest = vec![Step::Chunk(format!("\"]{usage}").into_bytes()), Step::End];
    let gate = Gate::new();
    replica.next([begun.clone(), wire::behind(&gate, rest.clone())].concat());
    let mut client = asking(&gateway, false).await;
    client.head().await;
    client.read_until("logprobs").await;
    drop(client);
    gateway.idle().await;
    gate.cancel();
    let (input, output) = tokens(&gateway);
    assert!(input > WORDS as u64 && (40..=60).contains(&output), "of 200 bytes: {input}, {output}");
    replica.next([begun, rest].concat());
    assert_eq!(ask(&gateway, false).await.status(), 200);
    assert_eq!(tokens(&gateway), (input + 50, output + 10), "the engine's usage is better");
}

#[tokio::test]
async fn a_hard_budget_holds_against_many_prompts_and_lets_a_usual_answer_in_while_it_is_unspent() {
    let hundred = Budget { output_tokens: Some(100), window: Window::Month, ..Budget::default() };
    let ([replica], gateway) = start(hundred).await;
    let (prompts, chats) =
        (vec![r#""x""#; 20].join(","), vec![r#"[{"role":"user","content":"x"}]"#; 20].join(","));
    for (path, body) in [
        ("/v1/completions", format!(r#"{{"model":"tiny","max_tokens":10,"prompt":[{prompts}]}}"#)),
        ("/v1/chat/completions/batch", format!(r#"{{"model":"tiny","max_tokens":10,"messages":[{chats}]}}"#)),
    ] {
        let refused = posting(&gateway, path, &body).await.reply().await;
        assert_eq!((refused.status(), &*refused.code()), (429, "budget"), "{path}");
    }
    replica.always(wire::json(200, ANSWER));
    for used in [10, 20] {
        let open = r#"{"model":"tiny","messages":[{"role":"user","content":"how long it gets is open"}]}"#;
        assert_eq!(posting(&gateway, PATH, open).await.reply().await.status(), 200);
        gateway.idle().await;
        assert_eq!(charged(&gateway).output, used);
    }
    assert_eq!(billed(&gateway).requests, 2, "refused ones are not billed");
}

#[tokio::test]
async fn the_reasons_for_which_chats_of_a_batch_ended_are_counted() {
    let ([replica], gateway) = start(budget()).await;
    let choice = r#"{"index":0,"message":{"content":"x"},"finish_reason":"length"}"#;
    let answer = format!(
        r#"{{"id":"batch-1","model":"tiny","choices":[{choice},{choice}],"usage":{{"prompt_tokens":2}}}}"#
    );
    replica.next(wire::json(200, &answer));
    let chats =
        r#"{"model":"tiny","messages":[[{"role":"user","content":"x"}],[{"role":"user","content":"y"}]]}"#;
    let reply = posting(&gateway, "/v1/chat/completions/batch", chats).await.reply().await;
    assert_eq!((reply.status(), reply.text()), (200, &*answer));
    gateway.idle().await;
    assert_eq!(gateway.sum("tokenway_finish_reasons_total", &[r#"reason="length""#]), 1.0);
}

const RESPONSES: &str = "/v1/responses";

/// Reads `/v1/responses/resp_1`.
async fn read(gateway: &Gateway, query: &str) -> Reply {
    let mut client = gateway.client().await;
    client.write("GET", &format!("{RESPONSES}/resp_1{query}"), &[("authorization", "Bearer a")], b"").await;
    let reply = client.reply().await;
    gateway.idle().await;
    reply
}

#[tokio::test]
async fn a_response_in_the_background_is_billed_once_when_it_is_read() {
    let ([replica], gateway) = start(budget()).await;
    let response = |status: &str, usage: &str| {
        let head = r#"{"id":"resp_1","object":"response","model":"tiny","output":[]"#;
        format!(r#"{head},"status":"{status}","usage":{usage}}}"#)
    };
    let usage = r#"{"input_tokens":50,"output_tokens":900,"total_tokens":950}"#;
    let body = r#"{"model":"tiny","background":true,"input":"hello there"}"#;
    for is_stream in [false, true] {
        let (_, before) = tokens(&gateway);
        replica.next(wire::json(200, &response("queued", "null")));
        assert_eq!(posting(&gateway, RESPONSES, body).await.reply().await.status(), 200);
        gateway.idle().await;
        replica.next(wire::json(
            200,
            &response("in_progress", r#"{"input_tokens":0,"output_tokens":0,"total_tokens":0}"#),
        ));
        assert_eq!(read(&gateway, "").await.status(), 200);
        assert_eq!(tokens(&gateway).1, before, "nothing was written yet");
        let completed = response("completed", usage);
        let event = format!(
            "event: response.completed\ndata: {{\"type\":\"response.completed\",\"sequence_number\":9,\
             \"response\":{completed}}}\n\n"
        );
        for _ in 0..2 {
            replica.next(if is_stream { wire::stream([&event]) } else { wire::json(200, &completed) });
            let query = if is_stream { "?stream=true" } else { "" };
            assert_eq!(read(&gateway, query).await.status(), 200);
        }
        let rounds = 1 + u64::from(is_stream);
        assert_eq!(tokens(&gateway), (50 * rounds, 900 * rounds), "as a stream: {is_stream}");
    }
}

#[tokio::test]
async fn a_spent_budget_keeps_nobody_from_an_answer_that_was_written_for_it() {
    let small = Budget { tokens: Some(100), window: Window::Month, ..Budget::default() };
    let ([replica], gateway) = start(small).await;
    let head = r#"{"id":"resp_1","object":"response","model":"tiny","output":[]"#;
    let body = r#"{"model":"tiny","background":true,"input":"hello there"}"#;
    replica.next(wire::json(200, &format!(r#"{head},"status":"queued","usage":null}}"#)));
    assert_eq!(posting(&gateway, RESPONSES, body).await.reply().await.status(), 200);
    gateway.idle().await;
    let usage = r#"{"input_tokens":50,"output_tokens":900}"#;
    replica.always(wire::json(200, &format!(r#"{head},"status":"completed","usage":{usage}}}"#)));
    for _ in 0..2 {
        assert_eq!(read(&gateway, "").await.status(), 200);
    }
    assert_eq!(charged(&gateway).output, 900);
    let refused = posting(&gateway, RESPONSES, body).await.reply().await;
    assert_eq!((refused.status(), &*refused.code()), (429, "budget"));
}

#[tokio::test]
async fn a_response_whose_client_left_is_billed_for_the_rest_when_it_is_read() {
    let ([replica], gateway) = start(budget()).await;
    let created = "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\
                   \"response\":{\"id\":\"resp_1\",\"model\":\"tiny\"}}\n\n";
    let delta = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\
                 \"sequence_number\":1,\"delta\":\"x\"}\n\n";
    replica.next(vec![wire::sse_head(), wire::event(created), wire::event(delta), Step::Hang]);
    let body = r#"{"model":"tiny","background":true,"stream":true,"input":"hello there"}"#;
    let mut client = posting(&gateway, RESPONSES, body).await;
    client.head().await;
    client.read_until("text.delta").await;
    drop(client);
    gateway.idle().await;
    assert_eq!(tokens(&gateway).1, 1, "what was delivered");
    replica.next(wire::json(
        200,
        r#"{"id":"resp_1","model":"tiny","output":[],"status":"completed","usage":{"input_tokens":50,"output_tokens":900}}"#,
    ));
    read(&gateway, "").await;
    assert_eq!(tokens(&gateway), (50, 900));
}

const MESSAGES: &str = "/v1/messages";
const MESSAGE_START: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\
    \"type\":\"message\",\"role\":\"assistant\",\"content\":[],\"model\":\"tiny\",\"stop_reason\":null,\
    \"usage\":{\"input_tokens\":22,\"output_tokens\":0}}}\n\n";
const MESSAGE_END: &str = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\
    \"usage\":{\"input_tokens\":22,\"output_tokens\":9}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";

/// A message that has begun with two events of content.
fn begun_message(then: impl IntoIterator<Item = Step>) -> Vec<Step> {
    let delta = |text: &str| {
        wire::event(format!(
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":0,\
             \"delta\":{{\"type\":\"text_delta\",\"text\":\"{text}\"}}}}\n\n"
        ))
    };
    let begun = [wire::sse_head(), wire::event(MESSAGE_START), delta("x"), delta("y")];
    begun.into_iter().chain(then).collect()
}

#[tokio::test]
async fn a_message_that_ends_early_is_billed_by_what_was_delivered() {
    let ([replica], gateway) = start(budget()).await;
    let gate = Gate::new();
    replica.next(begun_message([Step::Wait(gate.clone())]));
    let mut client = asking_at(&gateway, MESSAGES, true).await;
    client.head().await;
    client.read_until("\"y\"").await;
    drop(client);
    gateway.idle().await;
    gate.cancel();
    assert_eq!(tokens(&gateway), (22, 2), "its client left");

    replica.next(begun_message([Step::Close]));
    asking_at(&gateway, MESSAGES, true).await.reply().await;
    gateway.idle().await;
    assert_eq!(tokens(&gateway), (44, 4), "it broke after content");

    replica.next(begun_message([wire::event(MESSAGE_END), Step::End]));
    assert_eq!(asking_at(&gateway, MESSAGES, true).await.reply().await.status(), 200);
    gateway.idle().await;
    assert_eq!(tokens(&gateway), (66, 13), "the engine's usage is better");
}

#[tokio::test]
async fn vectors_and_scores_are_billed_by_the_engines_usage() {
    let usage =
        r#"{"prompt_tokens":5000,"total_tokens":5000,"completion_tokens":0,"prompt_tokens_details":null}"#;
    let vectors = |bytes: usize| {
        let vector = "0.125,".repeat(bytes / 6) + "1";
        format!(
            r#"{{"id":"e","object":"list","model":"tiny","data":[{{"index":0,"embedding":[{vector}]}}],"usage":{usage}}}"#
        )
    };
    // vLLM's rerank has its usage in front of documents, which may quote anything.
    let ranks = |texts: usize| {
        let text = r#"\"usage\":{\"prompt_tokens\":7}}"#.repeat(texts);
        format!(
            r#"{{"id":"r","model":"tiny","usage":{usage},"results":[{{"index":0,"document":{{"text":"{text}"}},"relevance_score":0.5}}]}}"#
        )
    };
    let cohere = r#"{"id":"e","embeddings":{"float":[[0.1]]},"texts":["x"],"meta":{"api_version":{"version":"2"},"tokens":{"input_tokens":5000}}}"#;
    let embed = r#"{"model":"tiny","input":"x"}"#;
    let rank = r#"{"model":"tiny","query":"x","documents":["y"]}"#;
    for (path, body, answer) in [
        ("/v1/embeddings", embed, vectors(60)),
        ("/v1/embeddings", embed, vectors(100_000)),
        ("/v1/embeddings", embed, vectors(3 << 20)),
        ("/v2/embed", embed, cohere.to_owned()),
        ("/rerank", rank, ranks(1)),
        ("/v1/rerank", rank, ranks(1_000)),
        ("/v2/rerank", rank, ranks(100_000)),
        ("/v1/rerank", rank, r#"{"results":[],"usage":{"total_tokens":5000}}"#.to_owned()),
        ("/v1/score", rank, format!(r#"{{"data":[{{"index":0,"score":0.5}}],"usage":{usage}}}"#)),
        (PATH, r#"{"model":"tiny","messages":[]}"#, vectors(3 << 20)),
    ] {
        let ([replica], gateway) = start(budget()).await;
        replica.always(wire::json(200, &answer));
        let reply = posting(&gateway, path, body).await.reply().await;
        assert_eq!((reply.status(), reply.text().len()), (200, answer.len()), "{path}");
        gateway.idle().await;
        assert_eq!(tokens(&gateway), (5000, 0), "{path} of {} bytes", answer.len());
        let all = gateway.sum("tokenway_tokens_total", &["kind=\"input_unknown\""]);
        assert!((all - 5000.0).abs() < 1e-9, "{path}: {all}");
    }
}

#[tokio::test]
async fn a_stored_response_that_is_read_again_is_not_billed_again() {
    let ([replica], gateway) = start(budget()).await;
    let response = r#"{"id":"resp_1","object":"response","model":"tiny","status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"x"}]}],"usage":{"input_tokens":50,"output_tokens":10,"total_tokens":60}}"#;
    replica.always(wire::json(200, response));
    let made = posting(&gateway, "/v1/responses", r#"{"model":"tiny","input":"x"}"#).await.reply().await;
    assert_eq!(made.status(), 200);
    gateway.idle().await;
    assert_eq!(tokens(&gateway), (50, 10));
    let reply = gateway.ask("GET", "/v1/responses/resp_1", &[("authorization", "Bearer a")], b"").await;
    assert_eq!(reply.status(), 200);
    gateway.idle().await;
    assert_eq!(tokens(&gateway), (50, 10));
}
