//! What passes through the gateway and what does not: bytes, framing, headers, credentials, errors of its own.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

mod dropin;

use std::time::Duration;

use http::StatusCode;
use tokenway::config::{Secret, Tenant};

use crate::support::client::{Http2, read_http2};
use crate::support::replica::{Gate, Replica, Step};
use crate::support::{CHAT, Gateway, PATH, UNARY, config, wire};

#[tokio::test]
async fn the_request_body_reaches_the_replica_byte_for_byte() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    let bodies = [
        " {\"messages\" :\t[ ], \"model\":\"t\\u0069ny\",\n\"unknown\":{\"z\":1e400,\"a\":[null]} , \"x\":\"\\ud83d\\ude00é\"}\r\n",
        r#"{"stream":true,"model":"tiny","seed":1,"seed":2,"n":1.0,"vllm_xargs":{"":""}}"#,
    ];
    for (at, body) in bodies.iter().enumerate() {
        assert_eq!(gateway.post(PATH, body).await.status(), 200);
        let received = &replica.received()[at];
        assert_eq!(received.text(), *body);
        assert_eq!(received.header("content-length"), Some(&*body.len().to_string()));
    }
}

#[tokio::test]
async fn a_body_behind_a_byte_order_mark_is_read_and_sent_without_it() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    let body = r#"{"model":"tiny","messages":[],"stream":true}"#;
    let answer = gateway.post(PATH, &format!("\u{feff}{body}")).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    assert_eq!(replica.received()[0].text(), body);
}

#[tokio::test]
async fn a_chunked_request_body_is_sent_with_a_length() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    let mut client = gateway.client().await;
    let (first, second) = UNARY.split_at(20);
    let chunked =
        [wire::chunk(first.as_bytes()), wire::chunk(second.as_bytes()), b"0\r\n\r\n".to_vec()].concat();
    client.write("POST", PATH, &[("transfer-encoding", "chunked")], &chunked).await;
    assert_eq!(client.reply().await.status(), 200);
    let received = replica.only();
    assert_eq!(received.text(), UNARY);
    assert_eq!(received.header("content-length"), Some(&*UNARY.len().to_string()));
    assert_eq!(received.header("transfer-encoding"), None);
}

#[tokio::test]
async fn only_end_to_end_headers_reach_the_replica() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    let headers = [
        ("connection", "keep-alive, x-hop"),
        ("x-hop", "1"),
        ("keep-alive", "timeout=9"),
        ("te", "trailers"),
        ("proxy-authorization", "Basic x"),
        ("accept-encoding", "gzip, br"),
        ("x-tokenway-probe", "1"),
        ("x-tokenway-replica", "mine"),
        ("x-custom", "one"),
        ("x-custom", "two"),
        ("user-agent", "test"),
        ("x-request-id", "my-id.1"),
    ];
    let reply = gateway.post_with(&format!("{PATH}?a=%2F&b"), &headers, UNARY).await;
    let received = replica.only();
    assert_eq!(received.line(), format!("POST {PATH}?a=%2F&b HTTP/1.1"));
    assert_eq!(received.header("host"), Some(&*replica.name()));
    assert_eq!(received.header("accept-encoding"), Some("identity"));
    assert_eq!(received.header("x-request-id"), Some("my-id.1"));
    assert_eq!(received.header("user-agent"), Some("test"));
    assert_eq!(received.all("x-custom"), ["one", "two"]);
    for gone in ["connection", "x-hop", "keep-alive", "te", "proxy-authorization", "x-tokenway-probe"] {
        assert_eq!(received.header(gone), None, "{gone} crossed");
    }
    assert_eq!(received.header("x-tokenway-replica"), None);
    assert_eq!(reply.field("x-request-id"), Some("my-id.1"));
}

#[tokio::test]
async fn a_cookie_that_came_in_pieces_is_one_field_upstream() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    let mut client = gateway.client().await;
    client.post(PATH, &[("cookie", "a=1"), ("cookie", "b=2; c=3")], UNARY.as_bytes()).await;
    assert_eq!(client.reply().await.status(), 200);
    assert_eq!(replica.only().header("cookie"), Some("a=1; b=2; c=3"));
}

#[tokio::test]
async fn the_client_s_credential_is_forwarded_replaced_or_removed() {
    let replica = Replica::start().await;
    let cases = [
        (false, None, Some("Bearer client-key")),
        (false, Some("engine-key"), Some("Bearer engine-key")),
        (true, None, None),
        (true, Some("engine-key"), Some("Bearer engine-key")),
    ];
    for (at, (has_tenants, engine_key, expected)) in cases.into_iter().enumerate() {
        let mut config = config::of(&[&replica]);
        config.tenants = if has_tenants { vec![config::tenant("a", "client-key")] } else { Vec::new() };
        config.pools[0].engine_api_key = engine_key.map(Secret::new);
        let gateway = Gateway::start(config).await;
        let mut client = gateway.client().await;
        let headers = [("authorization", "Bearer client-key"), ("x-api-key", "client-key")];
        client.post(PATH, &headers, UNARY.as_bytes()).await;
        assert_eq!(client.reply().await.status(), 200);
        let received = &replica.received()[at];
        assert_eq!(received.header("authorization"), expected);
        let is_forwarded = !has_tenants && engine_key.is_none();
        assert_eq!(received.header("x-api-key").is_some(), is_forwarded);
    }
}

#[tokio::test]
async fn a_wrong_key_is_401_in_the_dialect_s_shape_and_reaches_nobody() {
    let ([replica], gateway) =
        Gateway::before(|config| config.tenants = vec![config::tenant("a", "k")]).await;
    let reply = gateway.post(PATH, UNARY).await;
    assert_eq!((reply.status(), &*reply.code()), (401, "invalid_api_key"));
    let reply = gateway.post("/v1/messages", UNARY).await;
    assert_eq!(reply.status(), 401);
    assert_eq!(reply.json()["type"], "error");
    assert_eq!(reply.json()["error"]["type"], "authentication_error");
    assert_eq!(replica.count(), 0);
}

#[tokio::test]
async fn a_stream_passes_byte_for_byte_however_it_is_cut() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    let mut events = wire::chat_events(&["grüße", "😀 \\n", "c"]);
    events.insert(2, ": keep-alive\n\n".to_owned());
    let whole = events.concat();
    for size in [1, 7, 64, whole.len()] {
        replica.next(wire::stream(whole.as_bytes().chunks(size)));
        let reply = gateway.post(PATH, CHAT).await;
        assert_eq!(reply.text(), whole, "chunks of {size}");
        assert!(reply.body.is_complete);
    }
    gateway.idle().await;
}

#[tokio::test]
async fn a_stream_passes_byte_for_byte_over_http2() {
    let ([_replica], gateway) = Gateway::before(|_| {}).await;
    let mut client = Http2::connect(gateway.addr()).await;
    let response = client.post(PATH, CHAT).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["x-accel-buffering"], "no");
    let (bytes, error) = read_http2(response.into_body()).await;
    assert_eq!(String::from_utf8(bytes).unwrap(), wire::chat_events(&["a", "b"]).concat());
    assert!(error.is_none());
    gateway.idle().await;
}

#[tokio::test]
async fn every_event_arrives_before_the_next_one_is_sent() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    let gates: Vec<Gate> = (0..3).map(|_| Gate::new()).collect();
    let mut script = wire::begun("0");
    for (at, gate) in gates.iter().enumerate() {
        script.extend([Step::Wait(gate.clone()), wire::event(wire::content(&(at + 1).to_string()))]);
    }
    script.extend(wire::ending(wire::FINISH));
    replica.next(script);
    let mut client = gateway.begun(PATH, CHAT).await;
    client.read_until("\"content\":\"0\"").await;
    for (at, gate) in gates.iter().enumerate() {
        gate.cancel();
        client.read_until(&format!("\"content\":\"{}\"", at + 1)).await;
    }
    assert!(client.rest().await.is_complete);
}

#[tokio::test]
async fn a_unary_answer_passes_with_its_status_and_headers() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    let body = "{ \"id\":\"c1\",\"choices\":[{\"finish_reason\":\"stop\"}] }\n";
    replica.next(wire::json(200, body));
    let reply = gateway.post(PATH, UNARY).await;
    assert_eq!((reply.status(), reply.text()), (200, body));
    assert_eq!(reply.field("server"), Some("uvicorn"));
    assert_eq!(reply.field("content-type"), Some("application/json"));
    assert_eq!(reply.field("x-accel-buffering"), None);
    gateway.idle().await;
}

#[tokio::test]
async fn an_answer_may_have_hundreds_of_headers() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    let fields: String = (0..250).map(|at| format!("x-field-{at}: {at}\r\n")).collect();
    let answer =
        format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{fields}content-length: 2\r\n\r\n{{}}");
    replica.next(vec![Step::Raw(answer.into_bytes())]);
    let reply = gateway.post(PATH, UNARY).await;
    assert_eq!((reply.status(), replica.count()), (200, 1));
    assert_eq!(reply.field("x-field-249"), Some("249"));
}

#[tokio::test]
async fn a_205_has_no_content_and_the_next_answer_is_the_next() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    replica.next(vec![Step::Raw(wire::whole(205, "application/json", "{\"a\":1}"))]);
    let mut client = gateway.client().await;
    for (status, body) in [(205, ""), (200, "{}")] {
        client.post(PATH, &[], UNARY.as_bytes()).await;
        let reply = client.reply().await;
        assert_eq!((reply.status(), reply.text(), reply.body.is_complete), (status, body, true));
        replica.next(wire::json(200, "{}"));
    }
}

#[tokio::test]
async fn a_large_unary_answer_is_relayed_whole() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    let body = format!("{{\"data\":\"{}\"}}", "x".repeat(5 << 20));
    replica.next(wire::json(200, &body));
    let reply = gateway.post("/v1/embeddings", r#"{"model":"tiny","input":"a"}"#).await;
    assert_eq!(reply.status(), 200);
    assert!(reply.text() == body, "{} bytes of {}", reply.body.bytes.len(), body.len());
    assert!(reply.body.is_complete);
    gateway.idle().await;
}

#[tokio::test]
async fn asked_usage_is_spliced_in_and_its_chunk_is_withheld() {
    let ([replica], gateway) = Gateway::before(|config| config.routes[0].ask_usage = true).await;
    let mut events = wire::chat_events(&["a"]);
    let without = events.concat();
    events.insert(3, wire::USAGE.to_owned());
    let with = events.concat();

    for (at, size) in [(0, 5), (1, with.len())] {
        replica.next(wire::stream(with.as_bytes().chunks(size)));
        let reply = gateway.post(PATH, CHAT).await;
        assert_eq!(reply.text(), without);
        assert!(reply.body.is_complete);
        let sent = r#"{"stream_options":{"include_usage":true},"model":"tiny","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;
        let received: serde_json::Value = serde_json::from_slice(&replica.received()[at].body).unwrap();
        assert_eq!(received, serde_json::from_str::<serde_json::Value>(sent).unwrap());
    }

    let with_options = |options: &str| {
        CHAT.replace("\"stream\":true", &format!("\"stream\":true,\"stream_options\":{options}"))
    };
    replica.next(wire::stream(&events));
    let off = r#"{"include_usage":false,"continuous_usage_stats":true}"#;
    assert_eq!(gateway.post(PATH, &with_options(off)).await.text(), without, "as vLLM answers it");
    let sent = r#"{"include_usage":true,"continuous_usage_stats":false}"#;
    assert_eq!(replica.received()[2].text(), with_options(sent));

    let own = with_options(r#"{"include_usage":true}"#);
    replica.next(wire::stream(&events));
    let reply = gateway.post(PATH, &own).await;
    assert_eq!(reply.text(), with, "a client that asked for usage keeps it");
    assert_eq!(replica.received()[3].text(), own);

    replica.next(wire::json(200, "{}"));
    gateway.post(PATH, UNARY).await;
    assert_eq!(replica.received()[4].text(), UNARY, "nothing is asked of a unary answer");
}

#[tokio::test]
async fn a_route_s_model_name_is_translated_in_place() {
    let ([replica], mut config) = config::fresh().await;
    config.routes = vec![config::route("alias", &[0])];
    config.routes[0].upstream_model = Some("tiny".into());
    let gateway = Gateway::start(config).await;
    let body = r#"{ "x" : [1.0], "model" : "alias" , "stream":true}"#;
    assert_eq!(gateway.post(PATH, body).await.status(), 200);
    assert_eq!(replica.only().text(), r#"{ "x" : [1.0], "model" : "tiny" , "stream":true}"#);
    let models = gateway.call("GET", "/v1/models").await.json();
    assert_eq!(models["data"][0]["id"], "alias");
}

#[tokio::test]
async fn every_response_tells_its_id_and_its_timing() {
    let ([replica], gateway) =
        Gateway::before(|config| config.routes[0].policy = tokenway::config::PolicyName::Latency).await;

    let stream = gateway.post(PATH, CHAT).await.head;
    assert_eq!(stream.header("x-accel-buffering"), Some("no"));
    assert_eq!(stream.header("cache-control"), Some("no-cache"));
    assert_eq!(stream.header("x-tokenway-replica"), Some(&*replica.name()), "not what the engine claims");
    assert_eq!(stream.header("x-tokenway-revision"), Some("default"));
    let decision = stream.header("x-tokenway-decision").unwrap();
    assert!(decision.starts_with("policy=latency; reason=only; predicted_ttft_ms="), "{decision}");
    assert!(decision.ends_with("; candidates=1"), "{decision}");
    let timing = stream.header("server-timing").unwrap();
    for stage in ["read", "admit", "route", "connect", "first_token", "prefill"] {
        assert!(timing.contains(&format!("{stage};dur=")), "{timing}");
    }

    let unknown = gateway.call("GET", "/nowhere").await;
    let health = gateway.call("GET", "/health").await;
    let refused = gateway.post(PATH, "{").await;
    for reply in [unknown, health, refused] {
        assert_eq!(reply.field("x-request-id").map(str::len), Some(32));
        assert!(reply.field("server-timing").is_some_and(|timing| timing.starts_with("read;dur=")));
    }
    let reply = gateway.ask("GET", "/health", &[("x-request-id", "not harmless: \"")], b"").await;
    assert_eq!(reply.field("x-request-id").map(str::len), Some(32));
}

#[tokio::test]
async fn route_info_headers_can_be_switched_off() {
    let ([_replica], gateway) = Gateway::before(|config| config.server.route_info_headers = false).await;
    let head = gateway.post(PATH, CHAT).await.head;
    assert!(!head.text.to_ascii_lowercase().contains("x-tokenway-"), "{}", head.text);
}

#[tokio::test]
async fn bad_requests_are_refused_before_any_replica_sees_them() {
    let ([replica], mut config) = config::fresh().await;
    config.server.body_limit = 4096;
    config.routes = vec![config::route("tiny", &[0]), config::route("other", &[0])];
    let gateway = Gateway::start(config).await;
    let large = format!("{{\"model\":\"tiny\",\"x\":\"{}\"}}", "x".repeat(1 << 20));
    let cases = [
        ("POST", "/v1/nothing", UNARY, 404, "unknown_path"),
        ("PUT", "/v1/nothing", UNARY, 404, "unknown_path"),
        ("PUT", PATH, UNARY, 405, "method_not_allowed"),
        ("POST", "/health", UNARY, 405, "method_not_allowed"),
        ("POST", PATH, r#"{"model":"tiny","model":"tiny"}"#, 400, "invalid_request"),
        ("POST", PATH, r#"{"model":"tiny","mod\u0065l":"other"}"#, 400, "invalid_request"),
        ("POST", PATH, r#"{"model":"tiny","stream":true,"stream":false}"#, 400, "invalid_request"),
        ("POST", PATH, r#"{"model":"tiny",}"#, 400, "invalid_request"),
        ("POST", PATH, "[]", 400, "invalid_request"),
        ("POST", PATH, r#"{"model":"tiny","temperature":NaN}"#, 400, "invalid_request"),
        ("POST", PATH, r#"{"messages":[]}"#, 400, "missing_model"),
        ("POST", PATH, "", 400, "missing_model"),
        ("POST", PATH, r#"{"model":"nobody's"}"#, 404, "model_not_found"),
        ("POST", PATH, &large, 413, "body_limit"),
    ];
    for (method, path, body, status, code) in cases {
        let reply = gateway.ask(method, path, &[], body).await;
        let shown: String = body.chars().take(60).collect();
        assert_eq!((reply.status(), &*reply.code()), (status, code), "{method} {path} {shown}");
    }
    let reply = gateway.post("/v1/messages", r#"{"model":"nobody's"}"#).await;
    assert_eq!(reply.json()["type"], "error");
    assert_eq!(replica.count(), 0);
    gateway.idle().await;
}

#[tokio::test]
async fn a_body_that_is_no_utf8_is_refused_with_its_place() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    let reply = gateway.post_with(PATH, &[], b"{\"model\":\n\"\xff\"}").await;
    assert_eq!((reply.status(), &*reply.code()), (400, "invalid_request"));
    assert!(reply.text().contains("line 2 column 2"), "{}", reply.text());
    assert_eq!(replica.count(), 0);
}

#[tokio::test]
async fn a_heartbeat_sends_the_head_and_comments_until_the_answer_comes() {
    let ([replica], gateway) =
        Gateway::before(|config| config.server.heartbeat = Some(Duration::from_millis(50))).await;
    let gate = Gate::new();
    let events = wire::chat_events(&["a"]);
    let mut script = wire::stream(&events);
    script.insert(1, Step::Wait(gate.clone()));
    replica.next(script);
    let mut client = gateway.client().await;
    client.post(PATH, &[("x-request-id", "beats")], CHAT.as_bytes()).await;
    let head = client.head().await;
    assert_eq!(head.status, 200);
    assert_eq!(head.header("content-type"), Some("text/event-stream; charset=utf-8"));
    assert_eq!(head.header("x-accel-buffering"), Some("no"));
    assert_eq!(head.header("x-request-id"), Some("beats"));
    assert!(head.header("server-timing").is_some(), "{}", head.text);
    client.read_until(": heartbeat\n\n: heartbeat\n\n").await;
    gate.cancel();
    let rest = client.rest().await;
    let text = String::from_utf8(rest.bytes).unwrap();
    assert_eq!(text.trim_start_matches(": heartbeat\n\n"), events.concat());
    assert!(rest.is_complete);
    gateway.idle().await;
}

#[tokio::test]
async fn a_heartbeat_fills_the_pauses_of_an_answer() {
    let ([replica], gateway) =
        Gateway::before(|config| config.server.heartbeat = Some(Duration::from_millis(50))).await;
    let gate = Gate::new();
    let events = wire::chat_events(&["a", "b"]);
    let (begun, rest) = events.split_at(2);
    let mut script = wire::stream(&events);
    script.insert(1 + begun.len(), Step::Wait(gate.clone()));
    replica.next(script);
    let mut client = gateway.begun(PATH, CHAT).await;
    client.read_until(": heartbeat\n\n: heartbeat\n\n").await;
    gate.cancel();
    let left = client.rest().await;
    let text = String::from_utf8(left.bytes).unwrap();
    assert_eq!(text.trim_start_matches(": heartbeat\n\n"), rest.concat());
    assert!(left.is_complete);
    gateway.idle().await;
}

#[tokio::test]
async fn connections_to_a_replica_are_used_again_after_complete_answers() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    for answer in [wire::chat_stream(&["a"]), wire::json(200, "{}"), wire::json(400, "{}")] {
        replica.next(answer);
        gateway.post(PATH, CHAT).await;
        gateway.idle().await;
    }
    assert_eq!(replica.connections(), 1);
}

#[tokio::test]
async fn other_dialects_pass_byte_for_byte() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    for path in
        ["/v1/embeddings", "/v1/rerank", "/score", "/pooling", "/tokenize", "/v1/messages/count_tokens"]
    {
        replica.next(wire::json(200, "{\"ok\" : 1}"));
        let body = r#"{"model":"tiny","input":["a"],"query":"q"}"#;
        let reply = gateway.post(path, body).await;
        assert_eq!((reply.status(), reply.text()), (200, "{\"ok\" : 1}"), "{path}");
        assert_eq!(replica.received().last().unwrap().text(), body);
    }
    gateway.idle().await;
}

#[tokio::test]
async fn a_replica_may_live_below_a_base_path() {
    let ([replica], gateway) =
        Gateway::before(|config| config.pools[0].replicas[0].endpoint.base_path = "/engines/a".into()).await;
    assert_eq!(gateway.post(&format!("{PATH}?x=1"), UNARY).await.status(), 200);
    assert_eq!(replica.only().line(), format!("POST /engines/a{PATH}?x=1 HTTP/1.1"));
}

#[tokio::test]
async fn a_request_that_comes_around_again_is_refused() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    gateway.post(PATH, UNARY).await;
    let via = replica.only().header("via").unwrap().to_owned();
    for (via, status) in [(&*format!("1.1 other, {via}"), 508), ("1.1 other", 200)] {
        assert_eq!(gateway.post_with(PATH, &[("via", via)], UNARY).await.status(), status);
    }
}

#[tokio::test]
async fn a_tenant_sees_and_uses_its_own_routes_only() {
    let ([_replica], mut config) = config::fresh().await;
    config.routes = vec![config::route("mine", &[0]), config::route("theirs", &[0])];
    config.tenants = vec![Tenant { routes: Some(vec!["mine".into()]), ..config::tenant("a", "k") }];
    let gateway = Gateway::start(config).await;
    let key = [("authorization", "Bearer k")];
    for (model, status) in [("mine", 200), ("theirs", 404)] {
        let reply = gateway.post_with(PATH, &key, UNARY.replace("tiny", model)).await;
        assert_eq!(reply.status(), status, "{model}");
    }
    let models = gateway.ask("GET", "/v1/models", &key, b"").await.json();
    assert_eq!(models["data"].as_array().map(Vec::len), Some(1));
    assert_eq!(models["data"][0]["id"], "mine");
    assert_eq!(gateway.call("GET", "/v1/models").await.status(), 401);
}

#[tokio::test]
async fn in_flight_counts_return_to_zero_after_any_mix_of_ends() {
    let ([one, two], mut config) = config::fresh().await;
    config.routes[0].timeouts.first_token = Duration::from_millis(300);
    config.routes[0].timeouts.total = Duration::from_millis(600);
    let gateway = Gateway::start(config).await;
    let scripts = [
        wire::chat_stream(&["a"]),
        vec![Step::Reset],
        wire::begun_then("x", [Step::Close]),
        wire::begun_then("x", [Step::Hang]),
        wire::json(200, "{}"),
        wire::json(400, "{}"),
        wire::json(503, "{}"),
        vec![Step::Hang],
        vec![wire::sse_head(), wire::event(wire::ROLE), Step::Hang],
    ];
    let mut clients = Vec::new();
    for at in 0..90 {
        for replica in [&one, &two] {
            replica.next(scripts[at % scripts.len()].clone());
        }
        clients.push(gateway.sent(PATH, if at % 4 == 0 { UNARY } else { CHAT }).await);
    }
    // Every third leaves at once, some in the middle; the others wait for what comes.
    for (at, mut client) in clients.into_iter().enumerate() {
        match at % 3 {
            0 => drop(client),
            1 if at % 2 == 0 => assert!(client.head().await.status >= 200),
            _ => drop(client.read_some().await),
        }
    }
    gateway.idle().await;
    assert!(gateway.replicas().iter().all(|r| r.inflight_prompt_tokens == 0));
}
