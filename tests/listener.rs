//! The data port over HTTP/1.1, looked at from outside: deadlines, limits, heads that are refused, drain.
//!
//! What odd framing does is in `smuggling.rs`, HTTP/2 in `listener_http2.rs`, certificates in `tls.rs`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

mod listener_support;

use std::num::NonZeroUsize;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use listener_support::raw::{self, Client, post};
use listener_support::{CHAT, Gateway, STREAM, soon, until};

const CHAT_PATH: &str = "/v1/chat/completions";
const GET_VERSION: &str = "GET /version HTTP/1.1\r\nhost: gateway\r\n\r\n";

#[tokio::test]
async fn a_request_reaches_the_replica_reframed_and_its_answer_comes_back() {
    let gateway = Gateway::start().await;
    let reply = raw::ask(gateway.addr(), CHAT_PATH, CHAT).await;
    assert_eq!(reply.status, 200);
    assert!(reply.body.contains("hello"), "{reply:?}");
    assert!(reply.field("x-request-id").is_some() && reply.field("server-timing").is_some());
    let seen = gateway.replica.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].fault, None);
    assert_eq!(seen[0].body, CHAT.as_bytes());
    assert_ne!(seen[0].field("host"), Some("gateway"));
}

#[tokio::test]
async fn a_connection_that_sends_no_head_is_closed_after_header_timeout() {
    let gateway = Gateway::with(|c| c.server.header_timeout = Duration::from_millis(200)).await;
    let mut silent = Client::connect(gateway.addr()).await;
    let mut slow = Client::connect(gateway.addr()).await;
    slow.send("POST /v1/chat/completions HTTP/1.1\r\nhost: ga").await;
    let mut preface = Client::connect(gateway.addr()).await;
    preface.send("PRI * HT").await;
    assert!(silent.is_closed().await && slow.is_closed().await && preface.is_closed().await);
    assert!(gateway.replica.seen().is_empty());
}

#[tokio::test]
async fn a_later_head_is_due_from_its_first_byte_however_often_a_byte_comes() {
    let gateway = Gateway::with(|c| c.server.header_timeout = Duration::from_millis(300)).await;
    let mut client = Client::connect(gateway.addr()).await;
    client.send(GET_VERSION).await;
    assert_eq!(client.reply().await.status, 200);
    // Slowloris: a byte now and then, for ever.
    client.send("GET /version HTTP/1.1\r\nx-slow: ").await;
    let trickle = async {
        let mut tick = tokio::time::interval(Duration::from_millis(20));
        loop {
            tick.tick().await;
            client.send("a").await;
            if client.has_ended().await {
                return;
            }
        }
    };
    soon("the slow head is cut", trickle).await;
}

#[tokio::test]
async fn an_idle_connection_outlives_header_timeout_and_ends_after_keep_alive() {
    let gateway = Gateway::with(|c| {
        c.server.header_timeout = Duration::from_millis(200);
        c.server.keep_alive = Duration::from_millis(2500);
    })
    .await;
    let mut idle = Client::connect(gateway.addr()).await;
    idle.send(GET_VERSION).await;
    assert_eq!(idle.reply().await.status, 200);
    // A head that nobody finishes ends after header_timeout: by then that time is over for the idle one too.
    for _ in 0..2 {
        let mut slow = Client::connect(gateway.addr()).await;
        slow.send("GET /ver").await;
        assert!(slow.is_closed().await);
    }
    idle.send(GET_VERSION).await;
    assert_eq!(idle.reply().await.status, 200);
    assert!(idle.is_closed().await);
}

#[tokio::test]
async fn a_slow_answer_is_cut_by_neither_bound() {
    let gateway = Gateway::with(|c| {
        c.server.header_timeout = Duration::from_millis(100);
        c.server.keep_alive = Duration::from_millis(100);
    })
    .await;
    let mut busy = Client::connect(gateway.addr()).await;
    busy.send(post(CHAT_PATH, "x-script: gated\r\n", STREAM)).await;
    assert!(busy.head().await.starts_with("HTTP/1.1 200"));
    for _ in 0..3 {
        // The time that cuts a silent connection passes.
        assert!(Client::connect(gateway.addr()).await.is_closed().await);
        gateway.replica.let_go(1);
        assert!(busy.chunk().await.is_some_and(|c| !c.is_empty()));
    }
    while busy.chunk().await.expect("a whole stream") != b"" {}
}

#[tokio::test]
async fn a_body_that_stops_is_answered_408() {
    let gateway = Gateway::with(|c| c.routes[0].timeouts.client_stall = Duration::from_millis(150)).await;
    let mut client = Client::connect(gateway.addr()).await;
    client.send("POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{").await;
    let reply = client.reply().await;
    assert_eq!((reply.status, reply.code().as_str()), (408, "timeout_client_stall"));
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn connections_past_max_connections_wait_for_a_free_place() {
    let gateway = Gateway::with(|c| c.server.max_connections = NonZeroUsize::new(2).unwrap()).await;
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut client = Client::connect(gateway.addr()).await;
        client.send(GET_VERSION).await;
        assert_eq!(client.reply().await.status, 200);
        open.push(client);
    }
    let mut third = Client::connect(gateway.addr()).await;
    third.send(GET_VERSION).await;
    let early = tokio::time::timeout(Duration::from_millis(200), third.head()).await;
    assert!(early.is_err(), "served past the limit");
    open.pop();
    assert_eq!(third.reply().await.status, 200);
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_their_order() {
    let gateway = Gateway::start().await;
    let mut client = Client::connect(gateway.addr()).await;
    let head = |id: &str| format!("x-request-id: {id}\r\n");
    let stream = post(CHAT_PATH, &format!("{}x-script: gated\r\n", head("one")), STREAM);
    let bad = post(CHAT_PATH, &head("two"), "{");
    let good = post(CHAT_PATH, &head("three"), CHAT);
    client.send(format!("{stream}{bad}{good}{GET_VERSION}")).await;
    gateway.replica.let_go(3);
    let mut answers = Vec::new();
    for _ in 0..4 {
        let reply = client.reply().await;
        assert!(reply.is_whole);
        answers.push((reply.status, reply.field("x-request-id").unwrap_or_default().to_owned()));
    }
    let reported: Vec<_> = answers.iter().map(|(status, id)| (*status, id.as_str())).collect();
    assert_eq!(reported[..3], [(200, "one"), (400, "two"), (200, "three")]);
    assert_eq!(reported[3].0, 200);
    assert_eq!(gateway.replica.seen().len(), 2);
}

#[tokio::test]
async fn heads_that_break_http_rules_are_refused() {
    let gateway = Gateway::start().await;
    let host = "host: gateway\r\n";
    let rows: &[(&str, String, u16)] = &[
        ("no host", String::new(), 400),
        ("two hosts", format!("{host}{host}"), 400),
        ("two hosts that differ", format!("{host}host: other\r\n"), 400),
        ("a host that is none", "host: a b,c\r\n".into(), 400),
        ("a host with userinfo", "host: user@gateway\r\n".into(), 400),
        ("an unknown coding", format!("{host}transfer-encoding: cow, chunked\r\n"), 400),
        ("chunked twice", format!("{host}transfer-encoding: chunked, chunked\r\n"), 400),
        (
            "an unknown coding on a line of its own",
            format!("{host}transfer-encoding: cow\r\ntransfer-encoding: chunked\r\n"),
            400,
        ),
        ("gzip", format!("{host}content-encoding: gzip\r\ncontent-length: 2\r\n"), 415),
        (
            "gzip after identity",
            format!("{host}content-encoding: identity, gzip\r\ncontent-length: 2\r\n"),
            415,
        ),
        ("an unknown expectation", format!("{host}expect: cake\r\ncontent-length: 2\r\n"), 417),
        (
            "an unknown expectation after a known one",
            format!("{host}expect: 100-continue\r\nexpect: cake\r\ncontent-length: 2\r\n"),
            417,
        ),
    ];
    for (what, fields, status) in rows {
        let reply =
            raw::exchange(gateway.addr(), format!("POST {CHAT_PATH} HTTP/1.1\r\n{fields}\r\n{{}}")).await;
        assert_eq!(reply.status, *status, "{what}: {reply:?}");
        assert!(!reply.code().is_empty(), "{what}: {reply:?}");
    }
    assert!(gateway.replica.seen().is_empty());
}

#[tokio::test]
async fn an_absolute_target_is_served_for_its_own_host_and_refused_for_another() {
    let gateway = Gateway::start().await;
    let ask = |target: &str| post(target, "", CHAT);
    let evil = raw::exchange(gateway.addr(), ask("http://evil.example/v1/chat/completions")).await;
    assert_eq!(evil.status, 400, "{evil:?}");
    let own = raw::exchange(gateway.addr(), ask("http://gateway/v1/chat/completions?a=b")).await;
    assert_eq!(own.status, 200, "{own:?}");
    let seen = gateway.replica.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].line(), "POST /v1/chat/completions?a=b HTTP/1.1");
}

#[tokio::test]
async fn a_request_with_two_framings_is_refused_and_its_connection_closes() {
    let gateway = Gateway::start().await;
    let body = format!("{:x}\r\n{CHAT}\r\n0\r\n\r\n", CHAT.len());
    let (length, coding) =
        (format!("Content-Length: {}\r\n", body.len()), "Transfer-Encoding: chunked\r\n".to_owned());
    let twice = |fields: [&str; 2]| {
        format!("POST {CHAT_PATH} HTTP/1.1\r\nhost: gateway\r\n{}\r\n{body}", fields.concat())
    };
    for fields in [[&*length, &*coding], [&coding, &length]] {
        let mut client = Client::connect(gateway.addr()).await;
        // Also behind requests that were served, and with one behind it that must not be.
        let before = [post(CHAT_PATH, "", CHAT), post(CHAT_PATH, "", CHAT)].concat();
        client.send(format!("{before}{}{GET_VERSION}", twice(fields))).await;
        assert_eq!((client.reply().await.status, client.reply().await.status), (200, 200));
        let refusal = client.reply().await;
        assert_eq!((refusal.status, refusal.code().as_str()), (400, "ambiguous_framing"), "{refusal:?}");
        assert_eq!(refusal.field("connection"), Some("close"));
        assert!(refusal.field("x-request-id").is_some() && refusal.field("server-timing").is_some());
        assert!(client.is_closed().await);
    }
    assert_eq!(gateway.replica.seen().len(), 4);
    assert_eq!(gateway.open_requests(), 0);
}

#[tokio::test]
async fn what_clients_say_of_their_way_here_passes_and_is_never_believed() {
    let gateway = Gateway::start().await;
    let fields = "x-forwarded-for: 203.0.113.9\r\nx-forwarded-proto: https\r\nforwarded: for=203.0.113.9\r\n";
    assert_eq!(raw::exchange(gateway.addr(), post(CHAT_PATH, fields, CHAT)).await.status, 200);
    let seen = gateway.replica.seen().remove(0);
    // Unchanged, and nothing added to them.
    assert_eq!(seen.all("x-forwarded-for"), ["203.0.113.9"]);
    assert_eq!(seen.all("x-forwarded-proto"), ["https"]);
    assert_eq!(seen.all("forwarded"), ["for=203.0.113.9"]);
    assert_eq!(seen.all("via").len(), 1);
}

#[tokio::test]
async fn other_methods_are_405_on_listed_paths_and_404_elsewhere() {
    let gateway = Gateway::start().await;
    for method in ["TRACE", "PUT", "DELETE", "PATCH", "PROPFIND", "BREW", "post"] {
        let call = |path: &str| format!("{method} {path} HTTP/1.1\r\nhost: gateway\r\n\r\n");
        let listed = raw::exchange(gateway.addr(), call(CHAT_PATH)).await;
        assert_eq!((listed.status, listed.code().as_str()), (405, "method_not_allowed"), "{method}");
        assert_eq!(listed.field("allow"), Some("GET, HEAD, OPTIONS, POST"));
        let elsewhere = raw::exchange(gateway.addr(), call("/sleep")).await;
        assert_eq!((elsewhere.status, elsewhere.code().as_str()), (404, "unknown_path"), "{method}");
    }
    let tunnel = raw::exchange(gateway.addr(), "CONNECT inside:22 HTTP/1.1\r\nhost: inside:22\r\n\r\n").await;
    assert_eq!(tunnel.status, 404, "{tunnel:?}");
    let models = raw::ask(gateway.addr(), "/v1/models", "{}").await;
    assert_eq!((models.status, models.field("allow")), (405, Some("GET, HEAD, OPTIONS")));
    assert!(gateway.replica.seen().is_empty());
}

#[tokio::test]
async fn an_upgrade_is_not_offered_to_the_replica() {
    let gateway = Gateway::start().await;
    let fields =
        |to: &str| format!("connection: upgrade, x-secret\r\nupgrade: {to}\r\nx-secret: 1\r\nx-kept: 1\r\n");
    let reply = raw::exchange(gateway.addr(), post(CHAT_PATH, &fields("websocket"), CHAT)).await;
    assert_eq!((reply.status, reply.code().as_str()), (400, "upgrade_not_supported"));
    let reply = raw::exchange(gateway.addr(), post(CHAT_PATH, &fields("h2c"), CHAT)).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let seen = gateway.replica.seen().remove(0);
    assert_eq!(
        (seen.fault.as_deref(), seen.field("x-secret"), seen.field("x-kept")),
        (None, None, Some("1"))
    );
}

#[tokio::test]
async fn too_large_a_body_is_refused_before_its_upload() {
    let gateway = Gateway::with(|c| c.server.body_limit = 1000).await;
    let mut client = Client::connect(gateway.addr()).await;
    let head = format!("POST {CHAT_PATH} HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: ");
    client.send(format!("{head}1001\r\n\r\n")).await;
    let reply = client.reply().await;
    assert_eq!((reply.status, reply.code().as_str()), (413, "body_limit"), "no 100 before it");
    assert!(client.is_closed().await);

    let mut client = Client::connect(gateway.addr()).await;
    client.send(format!("{head}{}\r\n\r\n", CHAT.len())).await;
    assert_eq!(client.reply().await.status, 100);
    client.send(CHAT).await;
    assert_eq!(client.reply().await.status, 200);

    let mut client = Client::connect(gateway.addr()).await;
    client
        .send(format!("POST {CHAT_PATH} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3e9\r\n"))
        .await;
    client.send("x".repeat(1001)).await;
    assert_eq!(client.reply().await.status, 413);
    assert_eq!(gateway.replica.seen().len(), 1);
}

#[tokio::test]
async fn oversized_heads_are_refused() {
    let gateway = Gateway::start().await;
    let many: String = (0..200).map(|n| format!("x-{n}: 1\r\n")).collect();
    let long = format!("x-long: {}\r\n", "a".repeat(300_000));
    for fields in [many, long] {
        let reply = raw::exchange(gateway.addr(), post(CHAT_PATH, &fields, CHAT)).await;
        assert_eq!((reply.status, reply.code().as_str()), (431, "head_too_large"), "{reply:?}");
    }
    let query = "q".repeat(70_000);
    let reply = raw::exchange(gateway.addr(), post(&format!("{CHAT_PATH}?{query}"), "", CHAT)).await;
    assert!(matches!((reply.status, reply.code().as_str()), (414, "uri_too_long") | (431, "head_too_large")));
    assert!(gateway.replica.seen().is_empty());
    gateway.is_well().await;
}

#[tokio::test]
async fn a_head_that_is_no_http_is_told_so_and_the_connection_closes() {
    let gateway = Gateway::start().await;
    let heads = ["hello\r\n\r\n", "GET / HTTP/1.1\r\nbad name: 1\r\n\r\n", "GET /\x01 HTTP/1.1\r\n\r\n"];
    for head in heads {
        let mut client = Client::connect(gateway.addr()).await;
        client.send(head).await;
        let reply = client.reply().await;
        assert_eq!((reply.status, reply.code().as_str()), (400, "malformed_head"), "{head:?}: {reply:?}");
        assert!(reply.field("x-request-id").is_some() && reply.field("server-timing").is_some(), "{reply:?}");
        assert!(client.is_closed().await);
    }
    // Also behind a request that was answered.
    let mut client = Client::connect(gateway.addr()).await;
    client.send(post(CHAT_PATH, "", CHAT)).await;
    assert_eq!(client.reply().await.status, 200);
    client.send("hello\r\n\r\n").await;
    assert_eq!(client.reply().await.code(), "malformed_head");
    gateway.is_well().await;
}

#[tokio::test]
async fn a_client_that_sends_its_whole_body_before_it_reads_sees_that_it_was_too_large() {
    let gateway = Gateway::with(|c| c.server.body_limit = 1000).await;
    let mut socket = TcpStream::connect(gateway.addr()).await.unwrap();
    // More than the sockets' buffers hold, so that a reset would meet it halfway.
    let body = "x".repeat(16 << 20);
    let (head, body) = post(CHAT_PATH, "", &body)
        .split_once("\r\n\r\n")
        .map(|(h, b)| (format!("{h}\r\n\r\n"), b.to_owned()))
        .unwrap();
    socket.write_all(head.as_bytes()).await.unwrap();
    socket.readable().await.unwrap();
    socket.write_all(body.as_bytes()).await.unwrap();
    let reply = Client::over(socket).reply().await;
    assert_eq!((reply.status, reply.code().as_str()), (413, "body_limit"));
    gateway.is_well().await;
}

#[tokio::test]
async fn trailers_never_become_headers() {
    let gateway = Gateway::start().await;
    let head = format!(
        "POST {CHAT_PATH} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntrailer: authorization, x-trailer\r\nte: trailers\r\n\r\n"
    );
    let body = format!(
        "{:x}\r\n{CHAT}\r\n0\r\nauthorization: Bearer x\r\nx-trailer: 1\r\nhost: evil\r\n\r\n",
        CHAT.len()
    );
    assert_eq!(raw::exchange(gateway.addr(), format!("{head}{body}")).await.status, 200);
    let seen = gateway.replica.seen().remove(0);
    assert_eq!((seen.fault.as_deref(), seen.body.as_slice()), (None, CHAT.as_bytes()));
    assert!(seen.field("authorization").is_none() && seen.field("x-trailer").is_none());
}

#[tokio::test]
async fn a_client_that_takes_nothing_loses_its_connection_after_client_stall() {
    let gateway = Gateway::with(|c| c.routes[0].timeouts.client_stall = Duration::from_millis(300)).await;
    let socket = TcpStream::connect(gateway.addr()).await.unwrap();
    socket2::SockRef::from(&socket).set_recv_buffer_size(8 * 1024).unwrap();
    let mut client = Client::over(socket);
    client.send(post(CHAT_PATH, "x-script: flood\r\n", STREAM)).await;
    assert!(client.head().await.starts_with("HTTP/1.1 200"));
    until("the replica is let go", || gateway.replica.busy() == 0).await;
    until("the request is over", || gateway.open_requests() == 0).await;
    gateway.is_well().await;
}

#[tokio::test]
async fn a_drain_closes_each_connection_with_its_next_answer_and_cuts_no_stream() {
    let gateway = Gateway::start().await;
    let mut stream = Client::connect(gateway.addr()).await;
    stream.send(post(CHAT_PATH, "x-script: gated\r\n", STREAM)).await;
    stream.head().await;
    let mut idle = Client::connect(gateway.addr()).await;
    idle.send(GET_VERSION).await;
    assert_eq!(idle.reply().await.field("connection"), None);

    gateway.app.begin_drain();
    idle.send(post(CHAT_PATH, "", CHAT)).await;
    let last = idle.reply().await;
    assert_eq!((last.status, last.field("connection")), (200, Some("close")));
    assert!(idle.is_closed().await);
    let health = raw::exchange(gateway.addr(), "GET /health HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!((health.status, health.field("connection")), (503, Some("close")));

    let app = std::sync::Arc::clone(&gateway.app);
    let drain = tokio_util::task::TaskTracker::new();
    drain.spawn(async move { app.drain(Duration::ZERO).await });
    until("new requests are refused", || gateway.app.gateway.drain.refuses()).await;
    let refused = raw::ask(gateway.addr(), CHAT_PATH, CHAT).await;
    assert_eq!((refused.status, refused.code().as_str()), (503, "draining"));
    gateway.replica.let_go(3);
    let mut text = String::new();
    while let Some(chunk) = stream.chunk().await.filter(|c| !c.is_empty()) {
        text += &String::from_utf8_lossy(&chunk);
    }
    assert!(text.contains("fourth") && text.ends_with("[DONE]\n\n"), "{text}");
    drain.close();
    soon("the drain ends", drain.wait()).await;
    assert!(TcpStream::connect(gateway.addr()).await.is_err(), "still accepting");
}

#[tokio::test]
async fn an_idle_connection_is_closed_when_the_drain_delay_is_over() {
    let gateway = Gateway::start().await;
    let mut idle = Client::connect(gateway.addr()).await;
    idle.send(GET_VERSION).await;
    assert_eq!(idle.reply().await.status, 200);
    gateway.app.drain(Duration::ZERO).await;
    assert!(idle.is_closed().await);
}

#[tokio::test]
async fn control_endpoints_of_an_engine_are_404_and_never_reached() {
    let gateway = Gateway::start().await;
    for path in CONTROL_PATHS {
        for call in [post(path, "", "{}"), format!("GET {path} HTTP/1.1\r\nhost: gateway\r\n\r\n")] {
            let reply = raw::exchange(gateway.addr(), call).await;
            assert_eq!((reply.status, reply.code().as_str()), (404, "unknown_path"), "{path}");
        }
    }
    assert!(gateway.replica.seen().is_empty(), "{:?}", gateway.replica.seen());
}

/// Paths of real engines that change or expose them, and ways to spell a listed path so that two parsers differ.
const CONTROL_PATHS: &[&str] = &[
    "/sleep",
    "/wake_up",
    "/is_sleeping",
    "/reset_prefix_cache",
    "/reset_mm_cache",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/pause",
    "/resume",
    "/is_paused",
    "/collective_rpc",
    "/invocations",
    "/ping",
    "/server_info",
    "/load",
    "/metrics",
    "/docs",
    "/openapi.json",
    "/start_profile",
    "/stop_profile",
    "/scale_elastic_ep",
    "/is_scaling_elastic_ep",
    "/inference/v1/generate",
    "/init_weight_transfer_engine",
    "/update_weights",
    "/get_world_size",
    "/generate",
    "/abort_requests",
    "/",
    "//v1/chat/completions",
    "/v1/chat/completions/",
    "/v1//chat/completions",
    "/v1/chat/completions/../../../sleep",
    "/v1/chat/completions/%2e%2e/%2e%2e/%2e%2e/sleep",
    "/v1/chat/%2e/completions",
    "/%76%31/chat/completions",
    "/v1/chat%2fcompletions",
    "/v1/chat/completions;a=b",
    "/v1/chat/completions%00",
    "/V1/chat/completions",
    "/v1/chat/completions%20",
    "/v1\\chat\\completions",
    "/sleep?x=/v1/chat/completions",
    "/v1/models/",
    "/v1/models/m",
    "/health/",
];
