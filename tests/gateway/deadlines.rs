//! Deadlines, silent replicas, slow clients and the drain: what is cut, when, and with which error.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::Value;
use tokenway::config::{Config, Timeouts};
use tokenway::fleet::status::ReplicaState;

use crate::support::client::{Body, Client, Http2, read_http2};
use crate::support::replica::{Gate, Probes, Replica, Step};
use crate::support::{CHAT, Gateway, PATH, UNARY, config, soon, until, wire};

const SHORT: Duration = Duration::from_millis(300);

fn timeouts(replica: &Replica, edit: impl FnOnce(&mut Timeouts)) -> Config {
    let mut config = config::of(&[replica]);
    edit(&mut config.routes[0].timeouts);
    config
}

/// The code of the error event that a cut chat stream ends with, after what was relayed.
fn code_of(body: &Body, relayed: &str) -> String {
    assert!(!body.is_complete, "an incomplete answer looks complete");
    let text = std::str::from_utf8(&body.bytes).unwrap();
    let event = text.strip_prefix(relayed).unwrap_or_else(|| panic!("{text:?}"));
    let data = event.strip_prefix("data: ").and_then(|event| event.strip_suffix("\n\n"));
    let data: Value = serde_json::from_str(data.unwrap_or_else(|| panic!("{event:?}"))).unwrap();
    data["error"]["code"].as_str().unwrap().to_owned()
}

fn begun() -> String {
    [wire::ROLE, &wire::content("x")].concat()
}

#[tokio::test]
async fn a_stream_without_content_in_time_is_504_and_not_retried() {
    let ([one, two], gateway) = Gateway::before(|config| config.routes[0].timeouts.first_token = SHORT).await;
    let beat = Gate::new();
    let silent = [
        vec![Step::Hang],
        vec![wire::sse_head(), wire::event(wire::ROLE), wire::event(": keep-alive\n\n"), Step::Wait(beat)],
    ];
    for (at, script) in silent.into_iter().enumerate() {
        one.always(script.clone());
        two.always(script);
        let reply = gateway.post(PATH, CHAT).await;
        assert_eq!((reply.status(), &*reply.code()), (504, "timeout_first_token"));
        assert_eq!(reply.json()["error"]["type"], "timeout_error");
        assert!(reply.text().contains("0.3 s"), "{}", reply.text());
        assert_eq!(one.count() + two.count(), at + 1, "a deadline runs over all attempts");
    }
    until("the engine's work is cancelled", || gateway.inflight() == 0).await;
    gateway.idle().await;
}

#[tokio::test]
async fn first_token_does_not_apply_to_unary_answers() {
    let replica = Replica::start().await;
    let gateway = Gateway::start(timeouts(&replica, |t| t.first_token = Duration::from_millis(1))).await;
    let gate = replica.held(wire::json(200, "{}"));
    let mut client = gateway.sent(PATH, UNARY).await;
    replica.got(1).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    gate.cancel();
    assert_eq!(client.reply().await.status(), 200);
}

#[tokio::test]
async fn an_answer_that_takes_too_long_is_504() {
    let replica = Replica::start().await;
    let gateway = Gateway::start(timeouts(&replica, |t| t.total = SHORT)).await;
    for body in [UNARY, CHAT] {
        replica.next(vec![Step::Hang]);
        let reply = gateway.post(PATH, body).await;
        assert_eq!((reply.status(), &*reply.code()), (504, "timeout_total"));
    }
    replica.abandoned(2).await;
    gateway.idle().await;
}

#[tokio::test]
async fn a_stream_that_takes_too_long_ends_with_an_error_event() {
    let replica = Replica::start().await;
    let gateway = Gateway::start(timeouts(&replica, |t| t.total = SHORT)).await;
    replica.next(wire::begun_then("x", [Step::Hang]));
    let reply = gateway.post(PATH, CHAT).await;
    assert_eq!(reply.status(), 200);
    assert_eq!(code_of(&reply.body, &begun()), "timeout_total");
    replica.abandoned(1).await;
    gateway.idle().await;
    assert_eq!(gateway.state_of(&replica), ReplicaState::Ready);
}

#[tokio::test]
async fn a_client_may_lower_the_total_deadline_where_the_route_lets_it() {
    let ([replica], gateway) = Gateway::before(|config| config.routes[0].client_may.timeout = true).await;
    // More than a duration holds is no bound.
    let reply = gateway.post_with(PATH, &[("x-request-timeout", "99999999999999999999")], UNARY).await;
    assert_eq!(reply.status(), 200);
    replica.always(vec![Step::Hang]);
    for (wish, status, code, why) in [
        ("0.2", 504, "timeout_total", "no complete answer within 0.2 s (x-request-timeout)"),
        ("soon", 400, "invalid_request", "must be a positive number of seconds"),
    ] {
        let reply = gateway.post_with(PATH, &[("x-request-timeout", wish)], UNARY).await;
        assert_eq!((reply.status(), &*reply.code()), (status, code));
        assert!(reply.text().contains(why), "{}", reply.text());
    }
    // In mid-stream it ends as an error event.
    replica.next(wire::begun_then("x", [Step::Hang]));
    let mut client = gateway.client().await;
    client.post(PATH, &[("x-request-timeout", "1")], CHAT.as_bytes()).await;
    let reply = client.reply().await;
    assert!(
        reply.status() == 200 && reply.text().contains("within 1 s (x-request-timeout)"),
        "{}",
        reply.text()
    );
    // It says as much of route and replica as a client that leaves.
    gateway.idle().await;
    let count = |family, outcome| gateway.sum(family, &[&format!("outcome=\"{outcome}\"")]);
    for family in ["tokenway_requests_total", "tokenway_replica_requests_total"] {
        assert_eq!((count(family, "canceled"), count(family, "failed")), (2.0, 0.0), "{family}");
    }
}

#[tokio::test]
async fn a_replica_that_accepts_no_connection_in_time_is_504() {
    let replica = Replica::start().await;
    let mut config = timeouts(&replica, |t| t.connect = SHORT);
    config.pools[0].max_connections = std::num::NonZeroUsize::MIN;
    let gateway = Gateway::start(config).await;
    replica.next(wire::begun_then("x", [Step::Hang]));
    let mut first = gateway.client().await;
    first.post(PATH, &[], CHAT.as_bytes()).await;
    first.head().await;
    let reply = gateway.post(PATH, CHAT).await;
    assert_eq!((reply.status(), &*reply.code()), (504, "timeout_connect"));
    assert!(reply.text().contains("taken"), "{}", reply.text());
    assert_eq!(replica.count(), 1);
    let failed = gateway.sum("tokenway_replica_requests_total", &["outcome=\"failed\""]);
    assert_eq!(failed, 0.0, "nothing was sent that could have failed there");
}

#[tokio::test]
async fn silence_between_tokens_ends_a_stream_and_comments_do_not_feed_it() {
    let replica = Replica::start().await;
    let gateway = Gateway::start(timeouts(&replica, |t| t.inter_token = SHORT)).await;
    replica.next(wire::begun_then("x", [Step::Hang]));
    let reply = gateway.post(PATH, CHAT).await;
    assert_eq!(code_of(&reply.body, &begun()), "timeout_inter_token");

    // Comments, empty deltas and role chunks go on for ever; none of them is a token.
    let mut filler = Vec::new();
    for _ in 0..20_000 {
        filler.extend([wire::event(": ping\n\n"), wire::event(wire::ROLE), Step::Tick]);
    }
    replica.next(wire::begun_then("x", filler));
    let reply = gateway.post(PATH, CHAT).await;
    let text = std::str::from_utf8(&reply.body.bytes).unwrap();
    assert!(text.contains(": ping\n\n"), "{text}");
    let (_, last) = text.trim_end().rsplit_once("\n\ndata: ").unwrap();
    let error: Value = serde_json::from_str(last).unwrap();
    assert_eq!(error["error"]["code"], "timeout_inter_token", "{text}");
    assert!(!reply.body.is_complete);
    replica.abandoned(2).await;
    gateway.idle().await;
}

#[tokio::test]
async fn content_feeds_the_inter_token_deadline() {
    let replica = Replica::start().await;
    let gateway = Gateway::start(timeouts(&replica, |t| t.inter_token = Duration::from_millis(500))).await;
    let mut script = wire::begun("x");
    for _ in 0..100 {
        script.extend([wire::event(wire::content("y")), Step::Tick]);
    }
    script.extend(wire::ending(wire::FINISH));
    replica.next(script);
    let reply = gateway.post(PATH, CHAT).await;
    assert!(reply.body.is_complete, "{}", reply.text());
}

#[tokio::test]
async fn a_deadline_behind_a_heartbeat_is_an_error_event() {
    let replica = Replica::start().await;
    let mut config = timeouts(&replica, |t| t.first_token = SHORT);
    config.server.heartbeat = Some(Duration::from_millis(50));
    let gateway = Gateway::start(config).await;
    replica.next(vec![Step::Hang]);
    let reply = gateway.post(PATH, CHAT).await;
    assert_eq!(reply.status(), 200);
    let text = reply.text().trim_start_matches(": heartbeat\n\n").to_owned();
    let body = Body { bytes: text.into_bytes(), ..reply.body };
    assert_eq!(code_of(&body, ""), "timeout_first_token");
    replica.abandoned(1).await;
    gateway.idle().await;
}

#[tokio::test]
async fn a_silent_stream_ends_early_when_its_replica_refuses_connections() {
    let ([replica], gateway) =
        Gateway::before(|config| config.pools[0].scrape_interval = Duration::from_millis(100)).await;
    replica.next(wire::begun_then("x", [Step::StopListening, Step::Hang]));
    let reply = gateway.post(PATH, CHAT).await;
    assert_eq!(code_of(&reply.body, &begun()), "replica_failed");
    assert!(reply.text().contains("silent"), "{}", reply.text());
    gateway.idle().await;
}

/// As an engine that drains: its listener is closed, and what it began goes on.
#[tokio::test]
async fn a_stream_that_goes_on_behind_a_closed_listener_comes_whole_though_it_stalls() {
    let ([replica], gateway) =
        Gateway::before(|config| config.pools[0].scrape_interval = Duration::from_millis(100)).await;
    let closed = Gate::new();
    let mut script = wire::begun_then("x", [Step::StopListening, Step::Wait(closed.clone())]);
    for _ in 0..80 {
        script.extend([wire::event(wire::content("y")), Step::Tick]);
    }
    script.extend((0..200).map(|_| Step::Tick));
    script.extend(wire::ending(wire::FINISH));
    replica.next(script);
    let mut client = gateway.begun(PATH, CHAT).await;
    until("it is refused", || gateway.state_of(&replica) == ReplicaState::Unreachable).await;
    closed.cancel();
    let body = client.rest().await;
    assert!(body.is_complete, "{}", String::from_utf8_lossy(&body.bytes));
    gateway.idle().await;
}

/// As when a pod is deleted: it leaves the list, and its process ends with sockets open.
#[tokio::test]
async fn a_silent_stream_ends_early_when_its_replica_was_removed_before_it_refused_connections() {
    let [left, stays] = Replica::several().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("replicas.json");
    crate::discovery::write(&path, &[&left]);
    let mut config = config::of(&[]);
    config.pools[0].discovery.file = Some(path.clone());
    config.pools[0].probe.interval = Duration::from_secs(60);
    let gateway = Gateway::start(config).await;
    left.next(wire::begun_then("x", [Step::StopListening, Step::Hang]));
    let mut client = gateway.begun(PATH, CHAT).await;
    crate::discovery::write(&path, &[&stays]);
    let is_left = || gateway.replicas().iter().any(|one| one.state == ReplicaState::Draining);
    until("it is draining", is_left).await;
    let body = client.rest().await;
    assert_eq!(code_of(&body, &begun()), "replica_failed");
    gateway.idle().await;
}

#[tokio::test]
async fn a_request_without_content_is_retried_when_its_replica_refuses_connections() {
    let ([one, two], gateway) =
        Gateway::before(|config| config.pools[0].scrape_interval = Duration::from_millis(100)).await;
    gateway.post(PATH, CHAT).await;
    let (bad, good) = if one.count() == 1 { (&two, &one) } else { (&one, &two) };
    bad.next(vec![wire::sse_head(), wire::event(wire::ROLE), Step::StopListening, Step::Hang]);
    let reply = gateway.post(PATH, CHAT).await;
    assert_eq!((reply.status(), reply.text()), (200, &*wire::chat_events(&["a", "b"]).concat()));
    assert_eq!((bad.count(), good.count()), (1, 2));
    bad.abandoned(1).await;
    gateway.idle().await;
}

#[tokio::test]
async fn a_frozen_engine_behind_green_health_is_found_by_a_probe_that_does_not_come_back() {
    let replica = Replica::start().await;
    let mut config = timeouts(&replica, |t| t.inter_token = Duration::from_secs(4));
    config.pools[0].probe.timeout = Duration::from_millis(200);
    let gateway = Gateway::start(config).await;
    replica.next(wire::begun_then("x", [Step::Hang]));
    let mut client = gateway.begun(PATH, CHAT).await;
    replica.probes(Probes::CompletionsUnanswered);
    let body = client.rest().await;
    assert_eq!(code_of(&body, &begun()), "replica_failed", "not the hard timer");
    gateway.idle().await;
}

#[tokio::test]
async fn a_stream_that_is_only_slow_is_left_alone_while_probes_come_back() {
    let replica = Replica::start().await;
    let gateway = Gateway::start(timeouts(&replica, |t| t.inter_token = Duration::from_secs(1))).await;
    let gate = Gate::new();
    let end = wire::ending(wire::FINISH);
    replica.next(wire::begun_then("x", wire::behind(&gate, end.to_vec())));
    let mut client = gateway.begun(PATH, CHAT).await;
    let before = replica.probed();
    until("silence asks for a probe", || replica.probed() > before).await;
    gate.cancel();
    assert!(client.rest().await.is_complete);
}

#[tokio::test]
async fn a_client_that_reads_nothing_stops_the_replica_and_is_cut() {
    let replica = Replica::start().await;
    let gateway = Gateway::start(timeouts(&replica, |t| {
        t.client_stall = Duration::from_millis(700);
        // A client's slowness is never the replica's: this must not fire.
        t.inter_token = Duration::from_millis(500);
    }))
    .await;
    let event = wire::content(&"x".repeat(16 * 1024));
    replica.next(wire::begun_then("x", [Step::Flood(event.into_bytes(), FLOOD)]));
    let mut client = Client::connect_narrow(gateway.addr());
    client.post(PATH, &[], CHAT.as_bytes()).await;
    replica.abandoned(1).await;
    assert!(replica.flooded() < FLOOD / 2, "{} bytes went somewhere", replica.flooded());
    gateway.idle().await;
    client.until_closed().await;
    assert_eq!(gateway.state_of(&replica), ReplicaState::Ready, "it is not the replica's fault");
}

#[tokio::test]
async fn a_slow_client_gets_everything_and_feeds_no_token_deadline() {
    let replica = Replica::start().await;
    let gateway = Gateway::start(timeouts(&replica, |t| t.inter_token = Duration::from_millis(400))).await;
    let event = wire::content(&"x".repeat(16 * 1024));
    let end = wire::ending(wire::FINISH);
    let flood = Step::Flood(event.clone().into_bytes(), FLOOD / 4);
    replica.next(wire::begun_then("x", [vec![flood], end.to_vec()].concat()));
    let mut client = Client::connect_narrow(gateway.addr());
    client.post(PATH, &[], CHAT.as_bytes()).await;
    assert_eq!(client.head().await.status, 200);
    let mut last = usize::MAX;
    until("the replica is held up", || std::mem::replace(&mut last, replica.flooded()) == replica.flooded())
        .await;
    // Longer than `inter_token`: time that passes while the client is waited for.
    tokio::time::sleep(Duration::from_millis(800)).await;
    let body = client.rest().await;
    assert!(body.is_complete && body.bytes.ends_with(wire::DONE.as_bytes()));
    let events = memchr::memmem::find_iter(&body.bytes, "\n\n").count();
    let sent = (FLOOD / 4).div_ceil(wire::chunk(event.as_bytes()).len());
    assert_eq!(events, sent + 4, "role, first content, finish and done are the others");
    gateway.idle().await;
}

#[tokio::test]
async fn a_drain_lets_streams_finish_and_refuses_new_requests() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    let gate = Gate::new();
    let end =
        [wire::event(wire::content("y")), wire::event(wire::FINISH), wire::event(wire::DONE), Step::End];
    replica.next(wire::begun_then("x", wire::behind(&gate, end.to_vec())));
    let mut client = gateway.begun(PATH, CHAT).await;

    let app = Arc::clone(&gateway.app);
    let drain = async move { app.drain(Duration::ZERO).await };
    let test = async {
        until("the drain began", || gateway.app.gateway.drain.refuses()).await;
        let health = gateway.call("GET", "/health").await;
        assert_eq!((health.status(), health.field("connection")), (503, Some("close")));
        let refused = gateway.post(PATH, CHAT).await;
        assert_eq!((refused.status(), &*refused.code()), (503, "draining"));
        assert_eq!(refused.json()["error"]["type"], "overloaded_error");
        assert!(refused.field("retry-after").is_some());
        gate.cancel();
        let body = client.rest().await;
        assert!(body.is_complete);
        assert!(String::from_utf8(body.bytes).unwrap().ends_with(wire::DONE));
    };
    soon("drain", async { tokio::join!(drain, test) }).await;
    assert_eq!(replica.count(), 1);
}

#[tokio::test]
async fn during_the_delay_of_a_drain_requests_are_served_and_connections_close() {
    let ([_replica], gateway) = Gateway::before(|_| {}).await;
    let mut kept = gateway.client().await;
    kept.post(PATH, &[], UNARY.as_bytes()).await;
    assert!(kept.reply().await.body.is_complete);
    gateway.app.begin_drain();
    assert_eq!(gateway.call("GET", "/health").await.status(), 503);
    kept.post(PATH, &[], UNARY.as_bytes()).await;
    let reply = kept.reply().await;
    assert_eq!((reply.status(), reply.field("connection")), (200, Some("close")));
    kept.until_closed().await;
}

#[tokio::test]
async fn streams_that_outlive_the_drain_end_with_an_error_event() {
    let ([replica], gateway) =
        Gateway::before(|config| config.server.drain_timeout = Duration::from_millis(100)).await;
    replica.always(wire::begun_then("x", [Step::Hang]));
    let mut client = gateway.begun(PATH, CHAT).await;
    let mut http2 = Http2::connect(gateway.addr()).await;
    let response = http2.post(PATH, CHAT).await;
    replica.next(vec![Step::Hang]);
    let mut waiting = gateway.client().await;
    waiting.post(PATH, &[], CHAT.as_bytes()).await;
    replica.got(3).await;

    let test = async {
        let (body, http2, waiting) =
            tokio::join!(client.rest(), read_http2(response.into_body()), waiting.reply());
        assert_eq!(code_of(&body, &begun()), "drain_timeout");
        let http2 = Body { bytes: http2.0, is_complete: http2.1.is_none() };
        assert_eq!(code_of(&http2, &begun()), "drain_timeout");
        assert_eq!((waiting.status(), &*waiting.code()), (503, "drain_timeout"));
    };
    soon("drain", async { tokio::join!(gateway.app.drain(Duration::ZERO), test) }).await;
    replica.abandoned(3).await;
    assert_eq!(gateway.inflight(), 0);
}

#[tokio::test]
async fn what_a_second_signal_cuts_was_cut_by_the_gateway_and_not_by_its_client() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    replica.always(wire::begun_then("x", [Step::Hang]));
    let _client = gateway.begun(PATH, CHAT).await;
    replica.always(vec![Step::Hang]);
    let mut waiting = gateway.client().await;
    waiting.post(PATH, &[], UNARY.as_bytes()).await;
    replica.got(2).await;
    let mut gone = gateway.client().await;
    gone.post(PATH, &[], UNARY.as_bytes()).await;
    replica.got(3).await;
    drop(gone);
    replica.abandoned(1).await;

    gateway.app.begin_drain();
    soon("the end", gateway.app.stop(Duration::ZERO)).await;
    gateway.idle().await;
    let page = gateway.page();
    let ends = page.lines().filter(|line| line.starts_with("tokenway_requests_total{"));
    let ends: Vec<_> = ends.filter(|line| line.ends_with(" 1")).collect();
    let count = |code: &str, outcome: &str| {
        let parts = [format!("code=\"{code}\""), format!("outcome=\"{outcome}\"")];
        ends.iter().filter(|line| parts.iter().all(|part| line.contains(part))).count()
    };
    let counted =
        [("200", "failed"), ("503", "failed"), ("499", "canceled")].map(|(code, end)| count(code, end));
    assert_eq!((counted, ends.len()), ([1, 1, 1], 3), "{ends:#?}");
}

#[tokio::test]
async fn a_client_that_stops_in_its_body_is_408_and_reaches_nobody() {
    let replica = Replica::start().await;
    let gateway = Gateway::start(timeouts(&replica, |t| t.client_stall = SHORT)).await;
    for framing in [("content-length", "100"), ("transfer-encoding", "chunked")] {
        let mut client = gateway.client().await;
        client.write("POST", PATH, &[framing], b"5\r\n{\"mod\r\n").await;
        let reply = client.reply().await;
        assert_eq!((reply.status(), &*reply.code()), (408, "timeout_client_stall"));
        client.until_closed().await;
    }
    let mut client = gateway.client().await;
    client.write("POST", PATH, &[("content-length", "100")], b"{").await;
    until("the request is there", || gateway.app.gateway.requests.load(Ordering::Relaxed) == 1).await;
    drop(client);
    gateway.idle().await;
    assert_eq!(replica.count(), 0);
}

#[tokio::test]
async fn a_deadline_cuts_a_stream_whose_client_reads_nothing() {
    let replica = Replica::start().await;
    let gateway = Gateway::start(timeouts(&replica, |t| t.total = Duration::from_millis(700))).await;
    let event = wire::content(&"x".repeat(16 * 1024));
    replica.next(wire::begun_then("x", [Step::Flood(event.into_bytes(), FLOOD)]));
    let mut client = Client::connect_narrow(gateway.addr());
    client.post(PATH, &[], CHAT.as_bytes()).await;
    replica.abandoned(1).await;
    gateway.idle().await;
    client.until_closed().await;
}

#[tokio::test]
async fn a_large_unary_answer_is_bounded_by_the_deadlines_too() {
    let replica = Replica::start().await;
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let large = vec![Step::Raw(head.to_vec()), Step::Chunk(vec![b'x'; 2 << 20])];
    let gateway = Gateway::start(timeouts(&replica, |t| {
        t.total = Duration::from_secs(1);
        t.client_stall = SHORT;
    }))
    .await;
    replica.next([large.clone(), vec![Step::Hang]].concat());
    let reply = gateway.post(PATH, UNARY).await;
    assert_eq!((reply.status(), reply.body.is_complete), (200, false));
    replica.abandoned(1).await;

    replica.next([large, vec![Step::Flood(vec![b'x'; 1 << 16], FLOOD)]].concat());
    let mut client = Client::connect_narrow(gateway.addr());
    client.post(PATH, &[], UNARY.as_bytes()).await;
    replica.abandoned(2).await;
    gateway.idle().await;
    client.until_closed().await;
}

/// More than all buffers between a replica and a client hold.
const FLOOD: usize = 64 << 20;

/// An engine without a page, or with one that tells no tokens: its probes are what shows that it works.
#[tokio::test]
async fn a_call_of_a_tool_may_be_written_in_silence_as_long_as_probes_are_answered() {
    let replica = Replica::start().await;
    let mut config = timeouts(&replica, |t| t.inter_token = SHORT);
    config.pools[0].probe.interval = Duration::from_millis(10);
    let gateway = Gateway::start(config).await;
    let gate = Gate::new();
    let rest = [vec![wire::event(wire::FINISH)], wire::ending(": end\n\n")].concat();
    replica.next([wire::begun("x"), wire::behind(&gate, rest)].concat());
    let with_tools = CHAT.replacen('{', r#"{"tools":[{"type":"function","function":{"name":"f"}}],"#, 1);
    let mut client = gateway.sent(PATH, &with_tools).await;
    replica.got(1).await;
    let probed = replica.probed();
    until("several deadlines have passed", || replica.probed() > probed + 150).await;
    gate.cancel();
    let reply = client.reply().await;
    assert!(reply.body.is_complete && reply.text().contains("[DONE]"), "{}", reply.text());
    gateway.idle().await;
}
