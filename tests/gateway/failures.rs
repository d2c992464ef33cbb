//! What becomes of a request when its replica, its client or an engine fails, before and after the first token.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

mod apart;
mod audio;
mod bugs;
mod hedge;
mod matrix;
mod migration;
mod shadow;
mod wrong;

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokenway::config::Config;
use tokenway::fleet::status::ReplicaState;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::support::client::{Body, Http2, Reply, read_http2};
use crate::support::replica::{Replica, Step};
use crate::support::{CHAT, Gateway, PATH, Records, UNARY, config, until, wire};

/// Two replicas behind a round-robin gateway: the first request goes to `bad`.
struct Pair {
    bad: Replica,
    good: Replica,
    gateway: Gateway,
}

impl Pair {
    async fn start(script: Vec<Step>) -> Self {
        Self::start_with(|_| {}, script).await
    }

    async fn start_with(configure: impl FnOnce(&mut Config), script: Vec<Step>) -> Self {
        let ([one, two], gateway) = Gateway::before(configure).await;
        // Whose turn it is first is the policy's affair.
        gateway.post(PATH, CHAT).await;
        let (bad, good) = if one.count() == 1 { (two, one) } else { (one, two) };
        bad.next(script);
        Self { bad, good, gateway }
    }

    /// Sends a request to the bad replica.
    async fn post(&self, body: &str) -> Reply {
        let reply = self.gateway.post(PATH, body).await;
        assert_eq!(self.bad.count(), 1, "the bad replica got the request");
        self.gateway.idle().await;
        reply
    }

    /// Requests that the good replica got since the start.
    fn good_requests(&self) -> usize {
        self.good.count() - 1
    }
}

/// The clean answer of a replica without a script.
fn clean() -> String {
    wire::chat_events(&["a", "b"]).concat()
}

#[tokio::test]
async fn failures_before_the_first_content_are_retried_elsewhere_and_not_seen() {
    let role_only = || vec![wire::sse_head(), wire::event(wire::ROLE)];
    let then = |steps: &[Step]| [role_only(), steps.to_vec()].concat();
    let half = |text: &str| wire::event(&text[..text.len() / 2]);
    let cases = [
        ("closed before the head", vec![Step::Close]),
        ("reset before the head", vec![Step::Reset]),
        ("half a head", vec![Step::Raw(b"HTTP/1.1 200 OK\r\ncontent-ty".to_vec()), Step::Close]),
        ("no HTTP at all", vec![Step::Raw(b"SSH-2.0-x\r\n\r\n".to_vec()), Step::Close]),
        (
            "a compressed stream",
            vec![
                Step::Raw(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n\r\n\x1f\x8b".to_vec(),
                ),
                Step::Close,
            ],
        ),
        ("closed after the role", then(&[Step::Close])),
        ("reset after the role", then(&[Step::Reset])),
        ("ended after the role", then(&[Step::End])),
        ("closed inside the first content", then(&[half(&wire::content("zz")), Step::Close])),
        ("engine died", then(&wire::ending(wire::ENGINE_DEAD))),
        ("engine died at once", wire::stream([wire::ENGINE_DEAD, wire::DONE])),
        ("engine shut down", then(&wire::ending(wire::ABORTED))),
        ("ended in order with nothing told", then(&[wire::event(wire::DONE), Step::End])),
        ("502", wire::json(502, "bad gateway")),
        ("503", wire::json(503, r#"{"error":{}}"#)),
        ("504", wire::json(504, "")),
        ("shutting down", wire::json(500, wire::SHUTTING_DOWN)),
    ];
    for (name, script) in cases {
        let pair = Pair::start(script).await;
        let reply = pair.post(CHAT).await;
        assert_eq!((reply.status(), reply.text()), (200, &*clean()), "{name}");
        assert!(reply.body.is_complete, "{name}");
        assert_eq!(reply.field("x-tokenway-replica"), Some(&*pair.good.name()), "{name}");
        assert_eq!(pair.good_requests(), 1, "{name}");
        assert_eq!(pair.good.received()[1].text(), CHAT, "{name}");
    }
}

#[tokio::test]
async fn a_truncated_unary_answer_is_retried_elsewhere_and_not_seen() {
    let whole = wire::whole(200, "application/json", r#"{"id":"x"}"#);
    let chunked = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let cases = [
        vec![Step::Raw(whole[..whole.len() - 3].to_vec()), Step::Close],
        vec![Step::Raw(chunked.to_vec()), wire::event("{\"id\""), Step::Reset],
        // A process that died leaves half a document in a framing that is whole, or none that would show it.
        wire::json(200, r#"{"id":"x","choices":[{"message":{"content":"ha"#),
        vec![
            Step::Raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{\"id\":\"x\"".to_vec()),
            Step::Close,
        ],
        // What an engine that is shut down makes of it: whole JSON of half an answer.
        wire::json(200, r#"{"id":"x","choices":[{"message":{"content":"ha"},"finish_reason":"abort"}]}"#),
    ];
    for script in cases {
        let pair = Pair::start(script).await;
        pair.good.next(wire::json(200, r#"{"id":"good"}"#));
        let reply = pair.post(UNARY).await;
        assert_eq!((reply.status(), reply.text()), (200, r#"{"id":"good"}"#));
    }
}

/// The Messages API has no word for an answer that its engine gave up: the reason is missing.
#[tokio::test]
async fn an_answer_of_messages_that_was_given_up_is_not_whole() {
    const MESSAGES: &str = "/v1/messages";
    let request = |stream: bool| {
        format!(
            r#"{{"model":"tiny","stream":{stream},"max_tokens":9,"messages":[{{"role":"user","content":"hi"}}]}}"#
        )
    };
    let whole = |text: &str, reason: &str| {
        format!(r#"{{"id":"m","type":"message","content":[{{"type":"text","text":"{text}"}}]{reason}}}"#)
    };
    // vLLM leaves out what is null.
    for no_reason in ["", r#","stop_reason":null"#] {
        let pair = Pair::start(wire::json(200, &whole("ha", no_reason))).await;
        let good = whole("hand", r#","stop_reason":"end_turn""#);
        pair.good.next(wire::json(200, &good));
        let reply = pair.gateway.post(MESSAGES, &request(false)).await;
        assert_eq!((reply.status(), reply.text()), (200, &*good));
    }

    let event = |kind: &str, more: &str| format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{more}}}\n\n");
    let events = |text: Option<&str>, reason: &str| {
        let delta = |text| {
            event(
                "content_block_delta",
                &format!(r#","index":0,"delta":{{"type":"text_delta","text":"{text}"}}"#),
            )
        };
        let ended = event(
            "message_delta",
            &format!(r#","delta":{{"stop_reason":{reason}}},"usage":{{"output_tokens":1}}"#),
        );
        let start = event("message_start", r#","message":{"id":"m","content":[],"stop_reason":null}"#);
        [start, text.map_or_else(String::new, delta), ended, event("message_stop", "")]
    };
    let good = events(Some("hand"), "\"end_turn\"");
    let pair = Pair::start(wire::stream(events(None, "null"))).await;
    pair.good.next(wire::stream(good.clone()));
    assert_eq!(pair.gateway.post(MESSAGES, &request(true)).await.text(), good.concat());

    let ([replica], gateway) = Gateway::before(|_| {}).await;
    replica.always(wire::stream(events(Some("ha"), "null")));
    let reply = gateway.post(MESSAGES, &request(true)).await;
    assert!(
        reply.text().contains("event: error") && !reply.text().contains("message_stop"),
        "{}",
        reply.text()
    );
}

#[tokio::test]
async fn an_answer_whose_framing_has_two_readings_is_not_relayed() {
    let head = |fields: &str| format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{fields}\r\n");
    let both = "content-length: 5\r\ntransfer-encoding: chunked\r\n";
    for (what, answer) in [
        ("both", format!("{}5\r\nhello\r\n0\r\n\r\n", head(both))),
        ("another coding", head("transfer-encoding: gzip, chunked\r\n") + "0\r\n\r\n"),
        ("101", "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n".to_owned()),
    ] {
        let ([replica], gateway) = Gateway::before(|_| {}).await;
        replica.always(vec![Step::Raw(answer.into_bytes()), Step::Hang]);
        let reply = gateway.post(PATH, UNARY).await;
        let error: Value = serde_json::from_str(reply.text()).unwrap();
        assert_eq!(
            (reply.status(), error["error"]["code"].as_str()),
            (502, Some("replica_failed")),
            "{what}"
        );
        assert!(reply.body.is_complete, "{what}");
        gateway.idle().await;
    }
}

#[tokio::test]
async fn a_broken_stream_is_a_reset_to_a_client_without_chunks() {
    let length = CHAT.len();
    let head = format!(
        "POST {PATH} HTTP/1.0\r\nhost: a\r\nconnection: keep-alive\r\ncontent-length: {length}\r\n\r\n"
    );
    let read = async |gateway: &Gateway| {
        let mut socket = TcpStream::connect(gateway.addr()).await.unwrap();
        socket.write_all(format!("{head}{CHAT}").as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        let end = crate::support::soon("the end", socket.read_to_end(&mut bytes)).await;
        (String::from_utf8(bytes).unwrap(), end.map_err(|error| error.kind()))
    };
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    let (answer, end) = read(&gateway).await;
    assert!(answer.starts_with("HTTP/1.0 200") && answer.ends_with(&clean()), "{answer}");
    assert!(end.is_ok());
    assert!(!answer.to_lowercase().contains("keep-alive"), "its end is the connection's: {answer}");
    let part = [wire::sse_head(), wire::event(wire::content("a")), Step::Reset];
    replica.next(part.to_vec());
    let (answer, end) = read(&gateway).await;
    assert_eq!(end, Err(std::io::ErrorKind::ConnectionReset), "{answer}");
    gateway.idle().await;
}

#[tokio::test]
async fn a_large_answer_of_a_given_length_is_no_reset_to_a_client_without_chunks() {
    let replica = Replica::start().await;
    let body = format!("{{\"object\":\"list\",\"data\":\"{}\"}}", "x".repeat(3 << 19));
    replica.next(wire::json(200, &body));
    let gateway = Gateway::start(config::of(&[&replica])).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(32 * 1024).unwrap();
    let mut socket = socket.connect(gateway.addr()).await.unwrap();
    let head = format!("POST {PATH} HTTP/1.0\r\nhost: a\r\ncontent-length: {}\r\n\r\n", UNARY.len());
    socket.write_all(format!("{head}{UNARY}").as_bytes()).await.unwrap();
    let is_open = || gateway.sum("tokenway_open_connections", &[]) > 0.0;
    until("the connection is open", is_open).await;
    // Slow enough that the gateway is done with its connection while the kernel still has some of the answer.
    let (mut bytes, mut piece) = (Vec::new(), [0; 16 * 1024]);
    while is_open() {
        let read = crate::support::soon("more", socket.read(&mut piece)).await.unwrap();
        bytes.extend_from_slice(&piece[..read]);
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    crate::support::soon("the end", socket.read_to_end(&mut bytes)).await.unwrap();
    assert!(bytes.ends_with(body.as_bytes()), "{} bytes", bytes.len());
}

#[tokio::test]
async fn a_large_unary_answer_that_breaks_off_does_not_look_complete() {
    let start = vec![b'x'; 2 << 20];
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let pair = Pair::start(vec![Step::Raw(head.to_vec()), Step::Chunk(start), Step::Close]).await;
    let reply = pair.post(UNARY).await;
    assert_eq!(reply.status(), 200);
    assert!(!reply.body.is_complete);
    assert_eq!(pair.good_requests(), 0);
}

#[tokio::test]
async fn an_engine_s_own_answer_is_relayed_verbatim_and_not_retried() {
    for status in [400, 401, 404, 422, 429, 500] {
        let body = format!("{{\"error\":{{\"message\":\"said {status}\",\"code\":{status}}}}}");
        for request in [CHAT, UNARY] {
            let pair = Pair::start(wire::json(status, &body)).await;
            let reply = pair.post(request).await;
            assert_eq!((reply.status(), reply.text()), (status, &*body));
            assert_eq!(pair.good_requests(), 0);
            assert_eq!(pair.gateway.state_of(&pair.bad), ReplicaState::Ready);
        }
    }
}

/// An engine's own error before content; no content at all; an end without `[DONE]`.
#[tokio::test]
async fn a_stream_that_says_how_it_ends_is_complete_as_it_is() {
    let without_done = [wire::ROLE, &wire::content("x"), wire::FINISH];
    for events in
        [&[wire::ENGINE_ERROR, wire::DONE][..], &[wire::ROLE, wire::FINISH, wire::DONE], &without_done]
    {
        let pair = Pair::start(wire::stream(events)).await;
        let reply = pair.post(CHAT).await;
        assert_eq!((reply.status(), reply.text()), (200, &*events.concat()));
        assert!(reply.body.is_complete);
        assert_eq!(pair.good_requests(), 0);
    }
}

#[tokio::test]
async fn started_work_is_retried_once_and_the_last_complete_answer_is_relayed() {
    let (all, gateway) = Gateway::before::<3>(|_| {}).await;
    let requests = || all.iter().map(Replica::count).sum::<usize>();

    for replica in &all {
        replica.always(wire::json(503, r#"{"error":{"message":"full"}}"#));
    }
    let reply = gateway.post(PATH, CHAT).await;
    assert_eq!((reply.status(), reply.text()), (503, r#"{"error":{"message":"full"}}"#));
    assert_eq!(requests(), 2, "one retry, though a third replica is left");

    for replica in &all {
        replica.always(vec![Step::Reset]);
    }
    let reply = gateway.post(PATH, CHAT).await;
    assert_eq!((reply.status(), &*reply.code()), (502, "replica_failed"));
    assert_eq!(reply.json()["error"]["type"], "upstream_error");
    assert_eq!(requests(), 4);
    gateway.idle().await;
}

#[tokio::test]
async fn a_refused_connection_goes_to_the_next_replica_and_the_replica_is_left_until_it_is_back() {
    let pair = Pair::start(Vec::new()).await;
    pair.bad.stop_listening().await;
    let reply = pair.gateway.post(PATH, CHAT).await;
    assert_eq!((reply.status(), reply.text()), (200, &*clean()));
    assert_eq!(pair.gateway.state_of(&pair.bad), ReplicaState::Unreachable);
    for _ in 0..4 {
        assert_eq!(pair.gateway.post(PATH, CHAT).await.status(), 200);
    }
    assert_eq!(pair.good_requests(), 5);
    pair.bad.listen_again().await;
    until("the replica is back", || pair.gateway.state_of(&pair.bad) == ReplicaState::Ready).await;
}

#[tokio::test]
async fn when_nobody_is_left_the_client_learns_it() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    replica.stop_listening().await;
    let reply = gateway.post(PATH, CHAT).await;
    assert_eq!((reply.status(), &*reply.code()), (502, "replica_failed"));
    assert!(reply.json()["error"]["message"].as_str().unwrap().contains("refused"), "{}", reply.text());

    until("the replica is left", || gateway.state_of(&replica) == ReplicaState::Unreachable).await;
    let reply = gateway.post(PATH, CHAT).await;
    assert_eq!((reply.status(), &*reply.code()), (503, "no_ready_replica"));
    assert_eq!(reply.json()["error"]["type"], "overloaded_error");
    assert!(reply.text().contains("connection refused"), "{}", reply.text());
    assert!(reply.field("retry-after").is_some());
    assert_eq!(gateway.call("GET", "/health").await.status(), 503);

    replica.listen_again().await;
    gateway.ready().await;
    assert_eq!(gateway.post(PATH, CHAT).await.status(), 200);
    gateway.idle().await;
}

#[tokio::test]
async fn without_a_budget_started_work_is_not_retried_and_unsent_work_is() {
    let ([one, two], mut config) = config::fresh().await;
    config.retry.budget = 0.0;
    config.retry.min_per_second = 0;
    let gateway = Gateway::start(config).await;
    for replica in [&one, &two] {
        replica.always(vec![Step::Close]);
    }
    let reply = gateway.post(PATH, CHAT).await;
    assert_eq!((reply.status(), &*reply.code()), (502, "replica_failed"));
    assert_eq!(one.count() + two.count(), 1);

    one.stop_listening().await;
    two.always(wire::chat_stream(&["a", "b"]));
    for _ in 0..2 {
        let reply = gateway.post(PATH, CHAT).await;
        assert_eq!((reply.status(), reply.text()), (200, &*clean()), "one of the two met the refusal first");
    }
    gateway.idle().await;
}

/// How a stream may break after its first content.
fn breaks() -> Vec<(&'static str, Vec<Step>)> {
    let half = &wire::content("y")[..20];
    vec![
        ("closed", vec![Step::Close]),
        ("reset", vec![Step::Reset]),
        ("ended without a finish reason", vec![Step::End]),
        ("closed inside an event", vec![wire::event(half), Step::Close]),
        ("ended inside an event", vec![wire::event(half), Step::End]),
        ("engine error, in its old form", wire::ending(wire::FLAT_ERROR)),
        ("engine died", wire::ending(wire::ENGINE_DEAD)),
        ("engine shut down", wire::ending(wire::ABORTED)),
        ("engine error", wire::ending(wire::ENGINE_ERROR)),
        (
            "engine error and done at once",
            vec![wire::event([wire::ENGINE_ERROR, wire::DONE].concat()), Step::End],
        ),
    ]
}

/// Checks the end of a broken chat stream: what was relayed, one error event, nothing after it.
fn assert_broken(text: &str, relayed: &str, code: &str, name: &str) {
    let event = text.strip_prefix(relayed).unwrap_or_else(|| panic!("{name}: {text}"));
    let data = event.strip_prefix("data: ").and_then(|e| e.strip_suffix("\n\n"));
    let data: Value = serde_json::from_str(data.unwrap_or_else(|| panic!("{name}: {event:?}"))).unwrap();
    assert_eq!(data["error"]["code"], code, "{name}");
    assert!(data["error"]["message"].is_string() && data["error"]["param"].is_null(), "{name}");
    assert!(!text.contains("[DONE]"), "{name}");
}

#[tokio::test]
async fn a_stream_that_breaks_after_content_ends_with_an_error_event_and_an_abort_and_no_retry() {
    for (name, broken, asks) in breaks().into_iter().flat_map(|(n, b)| [(n, b.clone(), false), (n, b, true)])
    {
        let asking = |config: &mut Config| config.routes[0].ask_usage = asks;
        let pair = Pair::start_with(asking, wire::begun_then("x", broken)).await;
        let reply = pair.post(CHAT).await;
        assert_eq!(reply.status(), 200);
        assert!(!reply.body.is_complete, "{name}: an incomplete answer looks complete");
        let relayed = [wire::ROLE, &wire::content("x")].concat();
        assert_broken(reply.text(), &relayed, "replica_failed", name);
        pair.gateway.idle().await;
        let record = pair.gateway.app.gateway.observer.decisions.latest().remove(0);
        assert_eq!(record.bytes_out, reply.body.bytes.len() as u64, "{name}: with the error event");
        assert_eq!(pair.good_requests(), 0, "{name}");
    }
}

#[tokio::test]
async fn a_broken_stream_is_reset_on_http2() {
    for (name, broken) in breaks() {
        let pair = Pair::start(wire::begun_then("x", broken)).await;
        let mut client = Http2::connect(pair.gateway.addr()).await;
        let (bytes, error) = read_http2(client.post(PATH, CHAT).await.into_body()).await;
        let relayed = [wire::ROLE, &wire::content("x")].concat();
        assert_broken(std::str::from_utf8(&bytes).unwrap(), &relayed, "replica_failed", name);
        assert!(error.is_some(), "{name}: an incomplete answer looks complete");
        pair.gateway.idle().await;
    }
}

#[tokio::test]
async fn the_error_event_starts_on_a_fresh_line_where_the_engine_stopped_inside_an_event() {
    let cut = wire::content("cut");
    let split = wire::ENGINE_ERROR.split_at(20);
    let cases = [
        ("inside a line", vec![wire::event(&cut[..30]), Step::Close]),
        ("behind a line", vec![wire::event(&cut[..cut.len() - 1]), Step::Close]),
        ("an error event in two pieces", vec![wire::event(split.0), wire::event(split.1), Step::End]),
    ];
    for (name, then) in cases {
        let pair = Pair::start(wire::begun_then("x", then)).await;
        let reply = pair.post(CHAT).await;
        let events: Vec<&str> = reply.text().split("\n\n").filter(|event| !event.is_empty()).collect();
        let last =
            events.last().unwrap().strip_prefix("data: ").unwrap_or_else(|| panic!("{name}: {events:?}"));
        let last: Value = serde_json::from_str(last).unwrap_or_else(|_| panic!("{name}: {events:?}"));
        assert_eq!(last["error"]["code"], "replica_failed", "{name}");
        assert!(!reply.body.is_complete, "{name}");
    }
}

#[tokio::test]
async fn a_split_error_event_breaks_the_stream_also_where_the_usage_chunk_is_withheld() {
    let ([replica], gateway) = Gateway::before(|config| config.routes[0].ask_usage = true).await;
    let (first, second) = wire::ENGINE_ERROR.split_at(20);
    let then = [wire::event(first), wire::event(second), wire::event(wire::DONE), Step::End];
    replica.next(wire::begun_then("x", then));
    let reply = gateway.post(PATH, CHAT).await;
    let relayed = [wire::ROLE, &wire::content("x")].concat();
    assert_broken(reply.text(), &relayed, "replica_failed", "split error event");
    assert!(!reply.body.is_complete);
}

#[tokio::test]
async fn a_broken_stream_with_a_declared_length_tells_it_too() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    let begun = [wire::ROLE, &wire::content("x")].concat();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n";
    let head = head.replace("{}", &(begun.len() + 40).to_string());
    replica.next(vec![Step::Raw(head.into_bytes()), Step::Raw(begun.clone().into_bytes()), Step::Close]);
    let reply = gateway.post(PATH, CHAT).await;
    assert_broken(reply.text(), &begun, "replica_failed", "declared length");
    assert!(!reply.body.is_complete);
}

#[tokio::test]
async fn a_stream_is_complete_with_its_own_end_whatever_becomes_of_its_body() {
    let plain = |_: &mut Config| {};
    let asking = |config: &mut Config| config.routes[0].ask_usage = true;
    let migrating = |config: &mut Config| config.routes[0].migrate = true;
    let configs: [&dyn Fn(&mut Config); 3] = [&plain, &asking, &migrating];
    let empty = [wire::ROLE.to_owned(), wire::FINISH.to_owned(), wire::DONE.to_owned()];
    for configure in configs {
        for events in [wire::chat_events(&["x"]), empty.to_vec()] {
            for then in [Step::Hang, Step::Reset, Step::Close] {
                let mut script = wire::stream(&events);
                script.pop();
                script.push(then.clone());
                let pair = Pair::start_with(configure, script).await;
                let reply = pair.post(CHAT).await;
                assert_eq!((reply.text(), reply.body.is_complete), (&*events.concat(), true), "{then:?}");
                assert_eq!(pair.good_requests(), 0);
                assert_eq!(pair.gateway.state_of(&pair.bad), ReplicaState::Ready);
                assert_eq!(pair.gateway.ended("failed"), 0.0, "{then:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_at_the_stream_s_end_got_its_answer() {
    let mut script = wire::chat_stream(&["x"]);
    script.pop();
    script.push(Step::Hang);
    let pair = Pair::start(script).await;
    let mut client = pair.gateway.begun(PATH, CHAT).await;
    client.read_until(wire::DONE).await;
    drop(client);
    pair.gateway.idle().await;
    assert!(pair.gateway.ended("ok") > 0.0 && pair.gateway.ended("canceled") == 0.0);
}

#[tokio::test]
async fn the_last_content_reaches_the_client_of_an_engine_that_falls_silent_behind_it() {
    let last = wire::content("c").replace("\"finish_reason\":null", "\"finish_reason\":\"stop\"");
    for then in [Step::Hang, Step::Reset] {
        let asking = |config: &mut Config| {
            config.routes[0].ask_usage = true;
            config.routes[0].timeouts.inter_token = Duration::from_millis(300);
        };
        let script = wire::begun_then("a", [wire::event(&last), then]);
        let pair = Pair::start_with(asking, script).await;
        let reply = pair.post(CHAT).await;
        let relayed = [wire::ROLE, &wire::content("a"), &last].concat();
        assert!(reply.text().starts_with(&relayed), "{}", reply.text());
        assert!(reply.text()[relayed.len()..].starts_with("data: {\"error\""), "{}", reply.text());
        assert!(!reply.body.is_complete);
    }
}

#[tokio::test]
async fn what_an_engine_rejects_after_content_is_told_in_its_own_words() {
    let error = "data: {\"error\": {\"message\":\"bad regex\",\"type\":\"BadRequestError\",\"param\":null,\"code\":400}}\n\n";
    let (head, tail) = error.split_at(25);
    for migrate in [false, true] {
        for pieces in [vec![error.to_owned()], vec![head.to_owned(), tail.to_owned()]] {
            let configure = |config: &mut Config| config.routes[0].migrate = migrate;
            let mut script = wire::begun("x");
            script.extend(pieces.iter().map(wire::event));
            script.extend([wire::event(wire::DONE), Step::End]);
            let pair = Pair::start_with(configure, script).await;
            let reply = pair.post(CHAT).await;
            assert_eq!(reply.text(), [wire::ROLE, &wire::content("x"), error].concat());
            assert!(!reply.body.is_complete, "half an answer does not look whole");
            assert_eq!((pair.good_requests(), pair.gateway.state_of(&pair.bad)), (0, ReplicaState::Ready));
            assert!(pair.gateway.ended("client_error") > 0.0 && pair.gateway.ended("failed") == 0.0);
            let status = pair.gateway.replicas().into_iter().find(|r| *r.replica == *pair.bad.name());
            assert_eq!(status.unwrap().failure_ratio, 0.0, "it is not the replica's fault");
        }
    }
}

#[tokio::test]
async fn a_broken_messages_stream_ends_with_an_event_of_its_kind() {
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\"}}\n\n";
    let delta = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\
                 \"delta\":{\"type\":\"text_delta\",\"text\":\"x\"}}\n\n";
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    for (_, broken) in breaks().into_iter().take(5) {
        let script = vec![wire::sse_head(), wire::event(start), wire::event(delta)];
        replica.next([script, broken].concat());
        let reply = gateway.post("/v1/messages", CHAT).await;
        let event = reply.text().strip_prefix(&*[start, delta].concat()).unwrap();
        let data: Value = serde_json::from_str(event.strip_prefix("event: error\ndata: ").unwrap()).unwrap();
        assert_eq!((&data["type"], &data["error"]["type"]), (&"error".into(), &"api_error".into()));
        assert!(!reply.body.is_complete);
    }
}

#[tokio::test]
async fn work_that_acts_at_the_engine_is_sent_once() {
    let stored = r#"{"model":"tiny","input":"hi","store":true}"#;
    let background = r#"{"model":"tiny","input":"hi","background":true}"#;
    let plain = r#"{"model":"tiny","input":"hi","store":false}"#;
    let default = r#"{"model":"tiny","input":"hi"}"#;
    let cut = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{".to_vec();
    let extra = |config: &mut Config| config.server.extra_paths = vec!["/v1/custom".into()];
    for (path, body, is_once) in [
        ("/v1/responses", stored, true),
        ("/v1/responses", background, true),
        ("/v1/custom", r#"{"model":"tiny"}"#, true),
        ("/v1/responses", plain, false),
        ("/v1/responses", default, false),
    ] {
        for (script, status) in [
            (vec![Step::Reset], 502),
            (wire::json(503, "{}"), 503),
            (vec![Step::Raw(cut.clone()), Step::Close], 502),
        ] {
            let pair = Pair::start_with(extra, script).await;
            pair.good.always(wire::json(200, r#"{"id":"resp_1","object":"response"}"#));
            let reply = pair.gateway.post(path, body).await;
            assert_eq!(reply.status(), if is_once { status } else { 200 }, "{path} {body}");
            assert_eq!(pair.good.count(), if is_once { 1 } else { 2 }, "{path} {body}");
        }
        let pair = Pair::start_with(extra, Vec::new()).await;
        pair.good.always(wire::json(200, "{}"));
        pair.bad.stop_listening().await;
        assert_eq!(pair.gateway.post(path, body).await.status(), 200, "it was not sent: {path} {body}");
    }
}

#[tokio::test]
async fn a_broken_responses_stream_ends_with_response_failed_and_the_next_number() {
    let created = "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\
                   \"response\":{\"id\":\"resp_1\",\"model\":\"tiny\"}}\n\n";
    let delta = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\
                 \"sequence_number\":1,\"delta\":\"x\"}\n\n";
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    let own = "event: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":2,\
               \"response\":{\"id\":\"resp_1\",\"error\":{\"code\":\"server_error\",\"message\":\"boom\"}}}\n\n";
    let failed = vec![wire::event(own), Step::End];
    for broken in breaks().into_iter().take(5).map(|(_, broken)| broken).chain([failed]) {
        let script = vec![wire::sse_head(), wire::event(created), wire::event(delta)];
        replica.next([script, broken].concat());
        let body = r#"{"model":"tiny","stream":true,"input":"hi"}"#;
        let reply = gateway.post("/v1/responses", body).await;
        let event = reply.text().strip_prefix(&*[created, delta].concat()).unwrap();
        let data = event.strip_prefix("event: response.failed\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["sequence_number"], 2);
        assert_eq!(data["response"]["id"], "resp_1");
        assert_eq!(data["response"]["error"]["code"], "replica_failed");
        assert!(!reply.body.is_complete);
    }
}

/// What a client gets behind the heartbeat of a gateway whose replica does this after it.
async fn behind_a_heartbeat(then: Vec<Step>) -> (Gateway, Replica, Body) {
    let ([replica], gateway) =
        Gateway::before(|config| config.server.heartbeat = Some(Duration::from_millis(50))).await;
    let gate = replica.held(then);
    let mut client = gateway.sent(PATH, CHAT).await;
    assert_eq!(client.head().await.status, 200);
    client.read_until(": heartbeat\n\n").await;
    gate.cancel();
    let rest = client.rest().await;
    gateway.idle().await;
    (gateway, replica, rest)
}

#[tokio::test]
async fn a_failure_behind_a_heartbeat_is_an_error_event() {
    let (_gateway, _replica, rest) = behind_a_heartbeat(vec![Step::Close]).await;
    assert!(!rest.is_complete);
    let text = String::from_utf8(rest.bytes).unwrap();
    assert_broken(text.trim_start_matches(": heartbeat\n\n"), "", "replica_failed", "behind a heartbeat");
}

#[tokio::test]
async fn json_behind_a_heartbeat_is_reported_as_what_it_is() {
    let json = r#"{"id":"c","choices":[{"message":{"content":"whole"},"finish_reason":"stop"}]}"#;
    let (gateway, _replica, rest) = behind_a_heartbeat(wire::json(200, json)).await;
    let text = std::str::from_utf8(&rest.bytes).unwrap();
    assert_broken(text.trim_start_matches(": heartbeat\n\n"), "", "replica_failed", "behind a heartbeat");
    assert!(text.contains("answered application/json where a stream had begun"), "{text}");
    gateway.idle().await;
}

#[tokio::test]
async fn what_an_engine_rejects_behind_a_heartbeat_is_told_in_its_own_words() {
    let error_body =
        "{\"error\":\n{\"message\":\"too long\",\"type\":\"BadRequestError\",\"param\":null,\"code\":400}}";
    let (gateway, replica, rest) = behind_a_heartbeat(wire::json(400, error_body)).await;
    let text = String::from_utf8(rest.bytes).unwrap();
    let event = text.trim_start_matches(": heartbeat\n\n");
    assert_eq!(event, format!("data: {}\n\n", error_body.replace('\n', " ")));
    assert_eq!(gateway.state_of(&replica), ReplicaState::Ready, "it is not the replica's fault");
}

#[tokio::test]
async fn a_client_that_leaves_before_the_head_ends_the_work_of_the_engine() {
    for script in [vec![Step::Hang], vec![wire::sse_head(), wire::event(wire::ROLE), Step::Hang]] {
        for body in [CHAT, UNARY] {
            let ([replica], gateway) = Gateway::before(|_| {}).await;
            replica.next(script.clone());
            let client = gateway.sent(PATH, body).await;
            replica.got(1).await;
            drop(client);
            replica.abandoned(1).await;
            gateway.idle().await;
            assert_eq!(gateway.state_of(&replica), ReplicaState::Ready, "it is not the replica's fault");
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_mid_stream_ends_the_work_of_the_engine() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    replica.next(wire::begun_then("x", [Step::Hang]));
    let mut client = gateway.begun(PATH, CHAT).await;
    client.read_until("\"x\"").await;
    assert_eq!(gateway.replicas()[0].inflight, 1);
    drop(client);
    replica.abandoned(1).await;
    gateway.idle().await;
}

#[tokio::test]
async fn an_http2_client_that_leaves_ends_the_work_of_the_engine() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    replica.next(wire::begun_then("x", [Step::Hang]));
    let mut client = Http2::connect(gateway.addr()).await;
    drop(client.post(PATH, CHAT).await);
    replica.abandoned(1).await;
    let second = client.post(PATH, CHAT).await;
    let (bytes, error) = read_http2(second.into_body()).await;
    assert_eq!((String::from_utf8(bytes).unwrap(), error.is_none()), (clean(), true));
    gateway.idle().await;
}

#[tokio::test]
async fn a_client_that_leaves_behind_a_heartbeat_ends_the_work_of_the_engine() {
    let ([replica], gateway) =
        Gateway::before(|config| config.server.heartbeat = Some(Duration::from_millis(50))).await;
    replica.next(vec![Step::Hang]);
    let client = gateway.begun(PATH, CHAT).await;
    drop(client);
    replica.abandoned(1).await;
    gateway.idle().await;
    let page = gateway.page();
    let ends =
        page.lines().filter(|line| line.starts_with("tokenway_requests_total{") && !line.ends_with(" 0"));
    let ends: Vec<_> = ends.collect();
    assert!(ends.len() == 1 && ends[0].contains(r#"code="200""#) && ends[0].contains("canceled"), "{ends:?}");
}

#[tokio::test]
async fn a_response_head_that_is_no_http_is_named_for_what_it_is() {
    for (head, why) in [
        ("this is no HTTP\r\n\r\n".to_owned(), "no valid HTTP"),
        ("HTTP/1.1 200 OK\r\nx: a\r\n folded\r\ncontent-length: 0\r\n\r\n".to_owned(), "no valid HTTP"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok".to_owned(), "no valid HTTP"),
        (format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(300)), "a head over 256 headers or 64 KiB"),
    ] {
        let ([replica], gateway) = Gateway::before(|_| {}).await;
        replica.always(vec![Step::Raw(head.clone().into()), Step::Close]);
        let reply = gateway.post(PATH, CHAT).await;
        assert_eq!((reply.status(), &*reply.code()), (502, "replica_failed"), "{head}");
        let told = reply.text();
        assert!(
            told.contains(&format!("replica {} answered with", replica.name())) && told.contains(why),
            "{told}"
        );
    }
}

#[tokio::test]
async fn what_follows_the_break_of_a_stream_is_no_gap_of_its_engine() {
    let replica = Replica::start().await;
    let seen = Arc::<Records>::default();
    let gateway = Gateway::start_observed(config::of(&[&replica]), Some(Arc::clone(&seen) as _));
    gateway.ready().await;
    replica.next(vec![wire::sse_head(), wire::event(wire::content("x")), Step::Close]);
    let reply = gateway.post(PATH, CHAT).await;
    assert!(reply.text().contains("error"), "{}", reply.text());
    gateway.idle().await;
    let record = Arc::clone(&seen.0.lock()[0]);
    let lasted = record.at.end.since(record.at.first_token.unwrap());
    // The client gets so long to read the error event.
    let grace = Duration::from_millis(20);
    assert!(record.longest_gap + grace <= lasted, "{:?} of {lasted:?}", record.longest_gap);
}
