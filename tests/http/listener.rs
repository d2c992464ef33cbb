//! The data port over HTTP/1.1, looked at from outside: deadlines, limits, heads that are refused, drain.
//!
//! What odd framing does is in `smuggling.rs`, HTTP/2 in `listener_http2.rs`, certificates in `tls.rs`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

use std::num::NonZeroUsize;
use std::time::Duration;

use tokenway::clock::Clock;
use tokenway::listener::{
    self, Acceptor, ClientStream, ConnectionLimit, ConnectionLimits, Handler, HeadFault, KillSwitch, Peer,
    Serving, UserTimeout,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::listener_support::frames::{Connection, DATA, HEADERS, RST_STREAM, headers};
use crate::listener_support::raw::{self, Client, post};
use crate::listener_support::{CHAT, Gateway, STREAM, replica, soon, until};

const CHAT_PATH: &str = "/v1/chat/completions";
const GET_VERSION: &str = "GET /version HTTP/1.1\r\nhost: gateway\r\n\r\n";

#[tokio::test]
async fn a_request_reaches_the_replica_reframed_and_its_answer_comes_back() {
    let gateway = Gateway::start().await;
    let reply = raw::ask(gateway.addr(), CHAT_PATH, CHAT).await;
    assert_eq!(reply.status(), 200);
    assert!(reply.text().contains("hello"), "{reply:?}");
    assert!(reply.field("x-request-id").is_some() && reply.field("server-timing").is_some());
    let seen = gateway.replica.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(replica::fault(&seen[0]), None);
    assert_eq!(seen[0].body, CHAT.as_bytes());
    assert_ne!(seen[0].header("host"), Some("gateway"));
}

#[tokio::test]
async fn a_connection_that_sends_no_head_is_closed_after_header_timeout() {
    let gateway = Gateway::with(|c| c.server.header_timeout = Duration::from_millis(200)).await;
    let mut silent = Client::connect(gateway.addr()).await;
    let mut slow = raw::sent(gateway.addr(), "POST /v1/chat/completions HTTP/1.1\r\nhost: ga").await;
    let mut preface = raw::sent(gateway.addr(), "PRI * HT").await;
    assert!(silent.is_closed().await && slow.is_closed().await && preface.is_closed().await);
    assert!(gateway.replica.seen().is_empty());
}

#[tokio::test]
async fn a_later_head_is_due_from_its_first_byte_however_often_a_byte_comes() {
    let gateway = Gateway::with(|c| c.server.header_timeout = Duration::from_millis(300)).await;
    let mut client = raw::sent(gateway.addr(), GET_VERSION).await;
    assert_eq!(client.reply().await.status(), 200);
    // Slowloris: a byte now and then, for ever.
    client.send_raw("GET /version HTTP/1.1\r\nx-slow: ").await;
    let trickle = async {
        let mut tick = tokio::time::interval(Duration::from_millis(20));
        loop {
            tick.tick().await;
            client.send_raw("a").await;
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
    let mut idle = raw::sent(gateway.addr(), GET_VERSION).await;
    assert_eq!(idle.reply().await.status(), 200);
    // A head that nobody finishes ends after header_timeout: by then that time is over for the idle one too.
    for _ in 0..2 {
        let mut slow = raw::sent(gateway.addr(), "GET /ver").await;
        assert!(slow.is_closed().await);
    }
    idle.send_raw(GET_VERSION).await;
    assert_eq!(idle.reply().await.status(), 200);
    assert!(idle.is_closed().await);
}

#[tokio::test]
async fn a_slow_answer_is_cut_by_neither_bound() {
    let gateway = Gateway::with(|c| {
        c.server.header_timeout = Duration::from_millis(100);
        c.server.keep_alive = Duration::from_millis(100);
    })
    .await;
    let mut busy = raw::sent(gateway.addr(), post(CHAT_PATH, "x-script: gated\r\n", STREAM)).await;
    assert!(busy.head().await.text.starts_with("HTTP/1.1 200"));
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
    let mut client =
        raw::sent(gateway.addr(), "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{")
            .await;
    let reply = client.reply().await;
    assert_eq!((reply.status(), reply.code().as_str()), (408, "timeout_client_stall"));
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn connections_past_max_connections_wait_for_a_free_place() {
    let gateway = Gateway::with(|c| c.server.max_connections = NonZeroUsize::new(2).unwrap()).await;
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut client = raw::sent(gateway.addr(), GET_VERSION).await;
        assert_eq!(client.reply().await.status(), 200);
        open.push(client);
    }
    let mut third = raw::sent(gateway.addr(), GET_VERSION).await;
    let early = tokio::time::timeout(Duration::from_millis(200), third.head()).await;
    assert!(early.is_err(), "served past the limit");
    open.pop();
    assert_eq!(third.reply().await.status(), 200);
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_their_order() {
    let gateway = Gateway::start().await;
    let mut client = Client::connect(gateway.addr()).await;
    let head = |id: &str| format!("x-request-id: {id}\r\n");
    let stream = post(CHAT_PATH, &format!("{}x-script: gated\r\n", head("one")), STREAM);
    let bad = post(CHAT_PATH, &head("two"), "{");
    let good = post(CHAT_PATH, &head("three"), CHAT);
    client.send_raw(format!("{stream}{bad}{good}{GET_VERSION}")).await;
    gateway.replica.let_go(3);
    let mut answers = Vec::new();
    for _ in 0..4 {
        let reply = client.reply().await;
        assert!(reply.body.is_complete);
        answers.push((reply.status(), reply.field("x-request-id").unwrap_or_default().to_owned()));
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
        assert_eq!(reply.status(), *status, "{what}: {reply:?}");
        assert!(!reply.code().is_empty(), "{what}: {reply:?}");
    }
    let models = raw::exchange(gateway.addr(), "GET /v1/models HTTP/1.1\r\n\r\n".to_owned()).await;
    assert_eq!((models.status(), models.code().as_str()), (400, "invalid_request"), "{models:?}");
    let health = raw::exchange(gateway.addr(), "GET /health HTTP/1.1\r\n\r\n".to_owned()).await;
    assert_eq!(health.status(), 200, "load balancers may leave the host out: {health:?}");
    assert!(gateway.replica.seen().is_empty());
}

#[tokio::test]
async fn an_absolute_target_is_served_for_its_own_host_and_refused_for_another() {
    let gateway = Gateway::start().await;
    let ask = |target: &str| post(target, "", CHAT);
    let evil = raw::exchange(gateway.addr(), ask("http://evil.example/v1/chat/completions")).await;
    assert_eq!(evil.status(), 400, "{evil:?}");
    let own = raw::exchange(gateway.addr(), ask("http://gateway/v1/chat/completions?a=b")).await;
    assert_eq!(own.status(), 200, "{own:?}");
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
        client.send_raw(format!("{before}{}{GET_VERSION}", twice(fields))).await;
        assert_eq!((client.reply().await.status(), client.reply().await.status()), (200, 200));
        let refusal = client.reply().await;
        assert_eq!((refusal.status(), refusal.code().as_str()), (400, "ambiguous_framing"), "{refusal:?}");
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
    assert_eq!(raw::exchange(gateway.addr(), post(CHAT_PATH, fields, CHAT)).await.status(), 200);
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
        assert_eq!((listed.status(), listed.code().as_str()), (405, "method_not_allowed"), "{method}");
        assert_eq!(listed.field("allow"), Some("GET, HEAD, OPTIONS, POST"));
        let elsewhere = raw::exchange(gateway.addr(), call("/sleep")).await;
        assert_eq!((elsewhere.status(), elsewhere.code().as_str()), (404, "unknown_path"), "{method}");
    }
    let tunnel = raw::exchange(gateway.addr(), "CONNECT inside:22 HTTP/1.1\r\nhost: inside:22\r\n\r\n").await;
    assert_eq!(tunnel.status(), 404, "{tunnel:?}");
    let models = raw::ask(gateway.addr(), "/v1/models", "{}").await;
    assert_eq!((models.status(), models.field("allow")), (405, Some("GET, HEAD, OPTIONS")));
    assert!(gateway.replica.seen().is_empty());
}

#[tokio::test]
async fn an_upgrade_is_not_offered_to_the_replica() {
    let gateway = Gateway::start().await;
    let fields =
        |to: &str| format!("connection: upgrade, x-secret\r\nupgrade: {to}\r\nx-secret: 1\r\nx-kept: 1\r\n");
    let reply = raw::exchange(gateway.addr(), post(CHAT_PATH, &fields("websocket"), CHAT)).await;
    assert_eq!((reply.status(), reply.code().as_str()), (400, "upgrade_not_supported"));
    let reply = raw::exchange(gateway.addr(), post(CHAT_PATH, &fields("h2c"), CHAT)).await;
    assert_eq!(reply.status(), 200, "{reply:?}");
    let seen = gateway.replica.seen().remove(0);
    assert_eq!(
        (replica::fault(&seen).as_deref(), seen.header("x-secret"), seen.header("x-kept")),
        (None, None, Some("1"))
    );
}

#[tokio::test]
async fn too_large_a_body_is_refused_before_its_upload() {
    let gateway = Gateway::with(|c| c.server.body_limit = 1000).await;
    let mut client = Client::connect(gateway.addr()).await;
    let head = format!("POST {CHAT_PATH} HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: ");
    client.send_raw(format!("{head}1001\r\n\r\n")).await;
    let reply = client.reply().await;
    assert_eq!((reply.status(), reply.code().as_str()), (413, "body_limit"), "no 100 before it");
    assert!(client.is_closed().await);

    let mut client = raw::sent(gateway.addr(), format!("{head}{}\r\n\r\n", CHAT.len())).await;
    assert_eq!(client.reply().await.status(), 100);
    client.send_raw(CHAT).await;
    assert_eq!(client.reply().await.status(), 200);

    let mut client = Client::connect(gateway.addr()).await;
    let chunked =
        format!("POST {CHAT_PATH} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3e9\r\n");
    client.send_raw(chunked).await;
    client.send_raw("x".repeat(1001)).await;
    assert_eq!(client.reply().await.status(), 413);
    assert_eq!(gateway.replica.seen().len(), 1);
}

#[tokio::test]
async fn oversized_heads_are_refused() {
    let gateway = Gateway::start().await;
    let many: String = (0..200).map(|n| format!("x-{n}: 1\r\n")).collect();
    let long = format!("x-long: {}\r\n", "a".repeat(300_000));
    for fields in [many, long] {
        let reply = raw::exchange(gateway.addr(), post(CHAT_PATH, &fields, CHAT)).await;
        assert_eq!((reply.status(), reply.code().as_str()), (431, "head_too_large"), "{reply:?}");
        assert!(reply.text().contains("64 KiB that always fit"), "{reply:?}");
    }
    // That is what the message promises.
    let fits = format!("x-long: {}\r\n", "a".repeat(65_000));
    assert_eq!(raw::exchange(gateway.addr(), post(CHAT_PATH, &fits, CHAT)).await.status(), 200);
    let query = "q".repeat(70_000);
    let reply = raw::exchange(gateway.addr(), post(&format!("{CHAT_PATH}?{query}"), "", CHAT)).await;
    assert!(matches!(
        (reply.status(), reply.code().as_str()),
        (414, "uri_too_long") | (431, "head_too_large")
    ));
    assert_eq!(gateway.replica.seen().len(), 1);
    gateway.is_well().await;
}

#[tokio::test]
async fn a_head_that_is_no_http_is_told_so_and_the_connection_closes() {
    let gateway = Gateway::start().await;
    let heads = ["hello\r\n\r\n", "GET / HTTP/1.1\r\nbad name: 1\r\n\r\n", "GET /\x01 HTTP/1.1\r\n\r\n"];
    for head in heads {
        let mut client = raw::sent(gateway.addr(), head).await;
        let reply = client.reply().await;
        assert_eq!((reply.status(), reply.code().as_str()), (400, "malformed_head"), "{head:?}: {reply:?}");
        assert!(reply.field("x-request-id").is_some() && reply.field("server-timing").is_some(), "{reply:?}");
        assert!(client.is_closed().await);
    }
    // Also behind a request that was answered.
    let mut client = raw::sent(gateway.addr(), post(CHAT_PATH, "", CHAT)).await;
    assert_eq!(client.reply().await.status(), 200);
    client.send_raw("hello\r\n\r\n").await;
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
    assert_eq!((reply.status(), reply.code().as_str()), (413, "body_limit"));
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
    assert_eq!(raw::exchange(gateway.addr(), format!("{head}{body}")).await.status(), 200);
    let seen = gateway.replica.seen().remove(0);
    assert_eq!((replica::fault(&seen).as_deref(), seen.body.as_slice()), (None, CHAT.as_bytes()));
    assert!(seen.header("authorization").is_none() && seen.header("x-trailer").is_none());
}

#[tokio::test]
async fn a_client_that_takes_nothing_loses_its_connection_after_client_stall() {
    let gateway = Gateway::with(|c| c.routes[0].timeouts.client_stall = Duration::from_millis(300)).await;
    let socket = TcpStream::connect(gateway.addr()).await.unwrap();
    socket2::SockRef::from(&socket).set_recv_buffer_size(8 * 1024).unwrap();
    let mut client = Client::over(socket);
    client.send_raw(post(CHAT_PATH, "x-script: flood\r\n", STREAM)).await;
    assert!(client.head().await.text.starts_with("HTTP/1.1 200"));
    until("the replica is let go", || gateway.replica.busy() == 0).await;
    until("the request is over", || gateway.open_requests() == 0).await;
    gateway.is_well().await;
}

#[tokio::test]
async fn a_drain_closes_each_connection_with_its_next_answer_and_cuts_no_stream() {
    let gateway = Gateway::start().await;
    let mut stream = raw::sent(gateway.addr(), post(CHAT_PATH, "x-script: gated\r\n", STREAM)).await;
    stream.head().await;
    let mut idle = raw::sent(gateway.addr(), GET_VERSION).await;
    assert_eq!(idle.reply().await.field("connection"), None);

    gateway.app.begin_drain();
    idle.send_raw(post(CHAT_PATH, "", CHAT)).await;
    let last = idle.reply().await;
    assert_eq!((last.status(), last.field("connection")), (200, Some("close")));
    assert!(idle.is_closed().await);
    let health = raw::exchange(gateway.addr(), "GET /health HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!((health.status(), health.field("connection")), (503, Some("close")));

    let app = std::sync::Arc::clone(&gateway.app);
    let drain = TaskTracker::new();
    drain.spawn(async move { app.drain(Duration::ZERO).await });
    until("new requests are refused", || gateway.app.gateway.drain.refuses()).await;
    let refused = raw::ask(gateway.addr(), CHAT_PATH, CHAT).await;
    assert_eq!((refused.status(), refused.code().as_str()), (503, "draining"));
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
async fn a_first_request_on_its_way_when_the_drain_delay_is_over_is_answered() {
    let gateway = Gateway::start().await;
    let mut fresh = Client::connect(gateway.addr()).await;
    let mut settled = Client::connect(gateway.addr()).await;
    // Both are accepted.
    settled.send_raw(GET_VERSION).await;
    assert_eq!(settled.reply().await.status(), 200);
    let app = std::sync::Arc::clone(&gateway.app);
    let drain = tokio::task::JoinSet::from_iter([async move { app.drain(Duration::ZERO).await }]);
    assert!(settled.is_closed().await, "the delay is over");
    fresh.send_raw(post(CHAT_PATH, "", CHAT)).await;
    let reply = fresh.reply().await;
    assert_eq!((reply.status(), reply.field("connection")), (503, Some("close")));
    soon("the drain ends", drain.join_all()).await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_when_the_drain_delay_is_over() {
    let gateway = Gateway::start().await;
    let mut idle = raw::sent(gateway.addr(), GET_VERSION).await;
    assert_eq!(idle.reply().await.status(), 200);
    gateway.app.drain(Duration::ZERO).await;
    assert!(idle.is_closed().await);
}

#[tokio::test]
async fn uploads_that_declare_much_and_send_little_cost_nobody_anything() {
    let gateway = Gateway::with(|c| {
        c.server.body_limit = 1 << 20;
        c.server.body_memory = 4 << 20;
    })
    .await;
    let head = format!("POST {CHAT_PATH} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{{", 1 << 20);
    let mut hogs = Vec::new();
    for _ in 0..32 {
        hogs.push(raw::sent(gateway.addr(), &head).await);
    }
    until("all are being read", || gateway.open_requests() == 32).await;
    gateway.is_well().await;
    drop(hogs);
    until("they are over", || gateway.open_requests() == 0).await;
    assert_eq!(gateway.outcomes("canceled", "499"), 32.0, "clients that left in the middle");
    assert_eq!(gateway.outcomes("client_error", "400"), 0.0);
}

#[tokio::test]
async fn half_uploads_that_fill_the_memory_finish_one_after_the_other() {
    let gateway = Gateway::with(|c| {
        c.server.body_limit = 1 << 20;
        c.server.body_memory = 4 << 20;
    })
    .await;
    let text = "x".repeat((1 << 20) - 200);
    let call =
        post(CHAT_PATH, "", &format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}"#));
    let half = call.len() / 2;
    let mut clients = Vec::new();
    for _ in 0..6 {
        clients.push(raw::sent(gateway.addr(), &call[..half]).await);
    }
    until("all have begun", || gateway.open_requests() == 6).await;
    let ends = clients.into_iter().map(|mut client| {
        let rest = call[half..].to_owned();
        async move {
            client.send_raw(rest).await;
            client.reply().await.status()
        }
    });
    let mut running = tokio::task::JoinSet::new();
    ends.for_each(|end| drop(running.spawn(end)));
    assert_eq!(running.join_all().await, [200; 6]);
}

#[tokio::test]
async fn small_requests_pass_while_uploads_hold_the_memory() {
    // The small ones' part is 4 MiB: more than the eight take of it while they are small themselves.
    let gateway = Gateway::with(|c| {
        c.server.body_limit = 8 << 20;
        c.server.body_memory = 64 << 20;
    })
    .await;
    let head = format!("POST {CHAT_PATH} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", 8 << 20);
    let unfinished = head + &" ".repeat((8 << 20) - 1);
    let mut hogs = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (mut hog, unfinished) = (Client::connect(gateway.addr()).await, unfinished.clone());
        hogs.spawn(async move {
            hog.send_raw(unfinished).await;
            hog.reply().await.status()
        });
    }
    until("all are being read", || gateway.open_requests() == 8).await;
    // Until one of them has waited for too long, so that the memory was full meanwhile.
    let refused = loop {
        let mut client = Client::connect(gateway.addr()).await;
        for _ in 0..8 {
            client.send_raw(post(CHAT_PATH, "", CHAT)).await;
            assert_eq!(client.reply().await.status(), 200);
        }
        if let Some(ended) = hogs.try_join_next() {
            break ended.unwrap();
        }
    };
    assert!([408, 503].contains(&refused), "{refused}");
}

#[tokio::test]
async fn a_slow_upload_gets_a_408_that_says_which_limit() {
    let stalled = |change: fn(&mut tokenway::config::Config)| async move {
        let gateway = Gateway::with(change).await;
        let mut client = Client::connect(gateway.addr()).await;
        client
            .send_raw(format!("POST {CHAT_PATH} HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{{"))
            .await;
        let reply = client.reply().await;
        assert!(client.is_closed().await);
        assert_eq!(gateway.outcomes("client_error", "408"), 1.0);
        (reply.status(), reply.code())
    };
    let late = stalled(|c| c.server.body_timeout = Duration::from_millis(200)).await;
    assert_eq!(late, (408, "body_timeout".to_owned()));
    let paused = stalled(|c| c.routes[0].timeouts.client_stall = Duration::from_millis(200)).await;
    assert_eq!(paused, (408, "timeout_client_stall".to_owned()));
}

#[tokio::test]
async fn every_early_refusal_of_a_large_upload_can_be_read() {
    let gateway = Gateway::start().await;
    let body = "x".repeat(8 << 20);
    for (call, status) in [
        (post("/nothing", "", &body), 404),
        (post(CHAT_PATH, "content-encoding: gzip\r\n", &body), 415),
        (post(CHAT_PATH, "", &body).replacen("POST", "PUT", 1), 405),
        (post(CHAT_PATH, "", &body), 413),
    ] {
        let mut client = Client::connect(gateway.addr()).await;
        // All of it before anything is read.
        client.send_raw(call).await;
        let reply = client.reply().await;
        assert_eq!(
            (reply.status(), reply.field("connection")),
            (status, Some("close")),
            "{}",
            reply.head.text
        );
    }
    // A small one is read along, and its connection goes on.
    let mut client = Client::connect(gateway.addr()).await;
    for _ in 0..2 {
        client.send_raw(post("/nothing", "", CHAT)).await;
        let reply = client.reply().await;
        assert_eq!((reply.status(), reply.field("connection")), (404, None));
    }
    gateway.is_well().await;
}

#[tokio::test]
async fn a_large_unary_answer_is_complete_with_its_last_byte_and_a_short_one_is_the_replicas_fault() {
    let gateway = Gateway::start().await;
    let mut client = Client::connect(gateway.addr()).await;
    for _ in 0..2 {
        client.send_raw(post(CHAT_PATH, "x-script: large\r\n", CHAT)).await;
        let reply = client.reply().await;
        assert_eq!(
            (reply.status(), reply.body.bytes.len(), reply.body.is_complete),
            (200, replica::LARGE, true)
        );
    }
    client.send_raw(post(CHAT_PATH, "x-script: large-error\r\n", CHAT)).await;
    assert_eq!(client.reply().await.status(), 500);
    client.send_raw(post(CHAT_PATH, "x-script: large-cut\r\n", CHAT)).await;
    assert!(!client.reply().await.body.is_complete);
    until("all are over", || gateway.open_requests() == 0).await;
    assert_eq!((gateway.outcomes("ok", "200"), gateway.outcomes("failed", "500")), (2.0, 1.0));
    assert_eq!((gateway.outcomes("failed", "200"), gateway.outcomes("canceled", "200")), (1.0, 0.0));
}

#[tokio::test]
async fn a_client_that_pipelines_and_leaves_is_noticed() {
    // Not by these: they are longer than the test waits.
    let gateway = Gateway::with(|c| {
        c.server.header_timeout = Duration::from_secs(60);
        c.server.keep_alive = Duration::from_secs(60);
    })
    .await;
    let silent = post(CHAT_PATH, "x-script: silent\r\n", CHAT);
    let further = post(CHAT_PATH, "", CHAT);
    for (n, pieces) in [
        vec![silent.clone(), further.clone()],
        vec![format!("{silent}{further}")],
        vec![format!("{silent}{}", &further[..20])],
        vec![further.clone(), format!("{silent}{}", &further[..1])],
    ]
    .into_iter()
    .enumerate()
    {
        let mut client = Client::connect(gateway.addr()).await;
        let (first, rest) = pieces.split_first().unwrap();
        client.send_raw(first).await;
        if *first == further {
            assert_eq!(client.reply().await.status(), 200);
        } else {
            until("it is at the replica", || gateway.replica.busy() == 1).await;
        }
        for piece in rest {
            client.send_raw(piece).await;
        }
        until("it is at the replica", || gateway.replica.busy() == 1).await;
        drop(client);
        until("the replica is let go", || gateway.replica.busy() == 0).await;
        until("the request is over", || gateway.open_requests() == 0).await;
        assert_eq!(gateway.outcomes("canceled", "499"), (n + 1) as f64);
    }
}

#[tokio::test]
async fn an_http10_client_sees_a_reset_of_a_broken_stream_and_the_end_of_a_whole_one() {
    let gateway = Gateway::start().await;
    let call = |script: &str| {
        post(CHAT_PATH, &format!("x-script: {script}\r\n"), STREAM).replacen("HTTP/1.1", "HTTP/1.0", 1)
    };
    gateway.replica.let_go(3);
    let mut client = raw::sent(gateway.addr(), call("gated")).await;
    let whole = String::from_utf8(client.until_closed().await).unwrap();
    assert!(whole.contains("fourth") && whole.ends_with("[DONE]\n\n"), "{whole}");

    let mut socket = TcpStream::connect(gateway.addr()).await.unwrap();
    socket.write_all(call("broken").as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    let end = soon("the end", socket.read_to_end(&mut seen)).await;
    let seen = String::from_utf8(seen).unwrap();
    assert!(seen.contains("first") && seen.contains("\"error\""), "{seen}");
    assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
}

/// A handler with a bug, in its answer or in the body of one.
#[derive(Clone)]
struct Buggy;

/// Without end, or panics.
struct BuggyBody(bool);

impl hyper::body::Body for BuggyBody {
    type Data = bytes::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<bytes::Bytes>, Self::Error>>> {
        assert!(self.0, "a bug in a body");
        std::task::Poll::Ready(Some(Ok(hyper::body::Frame::data("more".into()))))
    }
}

type BuggyReply = http::Response<http_body_util::Either<BuggyBody, http_body_util::Empty<bytes::Bytes>>>;

impl Handler for Buggy {
    type Body = http_body_util::Either<BuggyBody, http_body_util::Empty<bytes::Bytes>>;
    type Connection = ();
    type Stream<S: ClientStream> = S;

    fn hold<S: ClientStream>(stream: S) -> S {
        stream
    }

    async fn handle(
        &self,
        request: http::Request<hyper::body::Incoming>,
        _: KillSwitch,
        (): &(),
    ) -> BuggyReply {
        assert_ne!(request.uri().path(), "/answer", "a bug in an answer");
        if request.uri().path() == "/body" {
            return http::Response::new(http_body_util::Either::Left(BuggyBody(false)));
        }
        if request.uri().path() == "/endless" {
            return http::Response::new(http_body_util::Either::Left(BuggyBody(true)));
        }
        http::Response::new(http_body_util::Either::Right(http_body_util::Empty::new()))
    }

    fn reject(&self, _: HeadFault) -> http::Response<bytes::Bytes> {
        http::Response::default()
    }

    fn refuse(&self, _: HeadFault) -> BuggyReply {
        self.panicked()
    }

    fn panicked(&self) -> BuggyReply {
        let mut reply = http::Response::new(http_body_util::Either::Right(http_body_util::Empty::new()));
        *reply.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
        reply
    }

    fn opened(&self, _: Peer) {}
}

#[tokio::test]
async fn a_reload_changes_how_long_connections_wait_for_clients_that_take_nothing() {
    let mut gateway = Gateway::with(|c| c.routes[0].timeouts.client_stall = Duration::from_secs(2)).await;
    let waits = |gateway: &Gateway| gateway.app.serving.user_timeout.get();
    assert_eq!(waits(&gateway), Duration::from_secs(17));
    gateway.config.routes[0].timeouts.client_stall = Duration::from_secs(60);
    gateway.app.reload(std::sync::Arc::new(gateway.config.clone())).unwrap();
    assert_eq!(waits(&gateway), Duration::from_secs(75), "later than the deadline of the request");
}

#[tokio::test]
async fn a_panic_is_a_500_on_its_request_and_counted() {
    let gateway = Gateway::start().await;
    let socket = listener::bind(([127, 0, 0, 1], 0).into()).unwrap();
    let addr = socket.local_addr().unwrap();
    let (clock, metrics) = (Clock::start(), &gateway.app.gateway.observer.metrics);
    let limits = ConnectionLimits::new(&gateway.config);
    let panics = metrics.families.process.panics.clone();
    let timeout = UserTimeout::new(Duration::from_secs(3600));
    let (connections, stopped) = (TaskTracker::new(), CancellationToken::new());
    let serving = Serving::new(limits, timeout.clone(), clock, connections.clone(), stopped, panics);
    let limit = ConnectionLimit { connections: 10, name: "the test", waiting: None, closes_idle: false };
    let acceptor = Acceptor::new(socket, limit, clock);
    serving.tracker.clone().spawn(listener::accept_loop(acceptor, serving, Buggy));
    let mut client = Client::connect(addr).await;
    for (path, status) in [("/answer", 500), ("/well", 200), ("/answer", 500)] {
        client.send_raw(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n")).await;
        assert_eq!(client.reply().await.status(), status, "{path}");
    }
    client.send_raw("GET /body HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let cut = client.until_closed().await;
    assert!(!cut.ends_with(b"0\r\n\r\n"), "a broken body looks whole: {}", String::from_utf8_lossy(&cut));

    let mut client = Connection::open(addr).await;
    for (stream, path, kind) in [(1, "/answer", HEADERS), (3, "/body", RST_STREAM), (5, "/well", HEADERS)] {
        client.send(&headers(stream, "GET", path, &[], true)).await;
        client.until(kind, stream).await;
    }
    assert_eq!(gateway.sum("tokenway_panics_total", &[]), 5.0);

    let open = connections.len();
    let mut unread = Client::connect(addr).await;
    unread.send_raw("GET /well HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!((unread.reply().await.status(), connections.len()), (200, open + 1));

    // A body that no deadline of a request watches, and clients that open their window once. The timeout changes under both.
    timeout.set(Duration::from_millis(300));
    unread.send_raw("GET /endless HTTP/1.1\r\nhost: a\r\n\r\n").await;
    until("what is not read is let go", || connections.len() == open).await;
    client.send(&headers(7, "GET", "/endless", &[], true)).await;
    client.until(DATA, 7).await;
    client.until(RST_STREAM, 7).await;
    client.send(&headers(9, "GET", "/well", &[], true)).await;
    client.until(HEADERS, 9).await;
}

#[tokio::test]
async fn past_max_connections_clients_wait_and_a_gauge_says_so() {
    let gateway = Gateway::with(|c| c.server.max_connections = NonZeroUsize::new(2).unwrap()).await;
    let first = Client::connect(gateway.addr()).await;
    let mut second = raw::sent(gateway.addr(), GET_VERSION).await;
    assert_eq!(second.reply().await.status(), 200);
    until("the limit shows", || gateway.sum("tokenway_connections_waiting", &[]) == 1.0).await;
    let mut third = raw::sent(gateway.addr(), GET_VERSION).await;
    drop(first);
    assert_eq!(third.reply().await.status(), 200);
    drop((second, third));
    until("there is room again", || gateway.sum("tokenway_connections_waiting", &[]) == 0.0).await;
}

#[tokio::test]
async fn control_endpoints_of_an_engine_are_404_and_never_reached() {
    let gateway = Gateway::start().await;
    for path in CONTROL_PATHS {
        for call in [post(path, "", "{}"), format!("GET {path} HTTP/1.1\r\nhost: gateway\r\n\r\n")] {
            let reply = raw::exchange(gateway.addr(), call).await;
            assert_eq!((reply.status(), reply.code().as_str()), (404, "unknown_path"), "{path}");
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
    "/sleep?x=/v1/chat/completions",
    "/v1/chat/completions/%2e%2e/%2e%2e/%2e%2e/sleep",
    "/v1/chat/%2e/completions",
    "/%76%31/chat/completions",
    "/v1/chat%2fcompletions",
    "/v1/chat/completions;a=b",
    "/v1/chat/completions%00",
    "/V1/chat/completions",
    "/v1/chat/completions%20",
    "/v1\\chat\\completions",
    "/v1/models/",
    "/health/",
];
