//! The data port over HTTP/2 with prior knowledge: streams end one by one, floods end the connection, a drain
//! ends it politely. Frames are written and read one at a time, so that what is granted is what the test says.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

use std::time::Duration;

use tokio::net::TcpStream;

use crate::listener_support::frames::{
    Connection, DATA, GOAWAY, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS, frame, headers, is_ok, reset,
    window_update,
};
use crate::listener_support::raw::Client;
use crate::listener_support::replica::{MEDIUM, fault};
use crate::listener_support::{CHAT, Gateway, STREAM, until};

const CHAT_PATH: &str = "/v1/chat/completions";

/// The body of a stream to its end.
async fn body(connection: &mut Connection, stream: u32) -> String {
    let mut bytes = Vec::new();
    loop {
        let frame = connection.until(DATA, stream).await;
        bytes.extend(&frame.payload);
        if frame.ends_stream() {
            return String::from_utf8(bytes).unwrap();
        }
    }
}

#[tokio::test]
async fn prior_knowledge_is_served_and_streams_share_a_connection() {
    let gateway = Gateway::start().await;
    let mut client = Connection::open(gateway.addr()).await;
    client.post(1, "gated", STREAM).await;
    assert!(is_ok(&client.until(HEADERS, 1).await));
    client.post(3, "unary", CHAT).await;
    assert!(is_ok(&client.until(HEADERS, 3).await));
    assert!(body(&mut client, 3).await.contains("hello"));
    gateway.replica.let_go(3);
    assert!(body(&mut client, 1).await.ends_with("[DONE]\n\n"));
    for seen in gateway.replica.seen() {
        assert_eq!(fault(&seen), None, "{seen:?}");
    }
}

#[tokio::test]
async fn client_stall_resets_only_its_stream_and_the_others_go_on() {
    let gateway = Gateway::with(|c| c.routes[0].timeouts.client_stall = Duration::from_millis(400)).await;
    let mut client = Connection::open(gateway.addr()).await;
    client.post(1, "gated", STREAM).await;
    assert!(is_ok(&client.until(HEADERS, 1).await));
    client.until(DATA, 1).await;
    // The window of stream 3 is never opened again, that of the connection is wide.
    client.post(3, "flood", STREAM).await;
    let cut = client.until(RST_STREAM, 3).await;
    assert_eq!(cut.reason(), 8, "CANCEL");
    until("the flooding replica is let go", || gateway.replica.busy() == 1).await;
    gateway.replica.let_go(3);
    let rest = body(&mut client, 1).await;
    assert!(rest.contains("fourth") && rest.ends_with("[DONE]\n\n"), "{rest}");
    // The connection takes new streams as well.
    client.post(5, "unary", CHAT).await;
    assert!(is_ok(&client.until(HEADERS, 5).await));
    until("nothing is left behind", || gateway.open_requests() == 0).await;
}

#[tokio::test]
async fn an_answer_that_nobody_takes_ends_alone_after_keep_alive() {
    let gateway = Gateway::with(|c| c.server.keep_alive = Duration::from_millis(300)).await;
    let mut client = Connection::open(gateway.addr()).await;
    // SETTINGS_INITIAL_WINDOW_SIZE: no stream may send before it is allowed to.
    client.send(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])).await;
    client.post(1, "gated", STREAM).await;
    client.send(&window_update(1, 1 << 20)).await;
    client.until(DATA, 1).await;
    client.send(&headers(3, "GET", "/version", &[], true)).await;
    client.post(5, "unary", CHAT).await;
    let mut cut = Vec::new();
    while cut.len() < 2 {
        let frame = client.next().await.expect("the connection stays open");
        if frame.kind == RST_STREAM {
            cut.push(frame.stream);
        }
    }
    cut.sort_unstable();
    assert_eq!(cut, [3, 5]);
    until("only the stream is left", || gateway.open_requests() == 1).await;
    gateway.replica.let_go(3);
    assert!(body(&mut client, 1).await.ends_with("[DONE]\n\n"));
}

#[tokio::test]
async fn answers_of_any_kind_that_nobody_takes_end_by_client_stall() {
    let gateway = Gateway::with(|c| c.routes[0].timeouts.client_stall = Duration::from_millis(300)).await;
    let mut client = Connection::open(gateway.addr()).await;
    // SETTINGS_INITIAL_WINDOW_SIZE: nothing may be sent on any stream.
    client.send(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])).await;
    let scripts = [("unary", CHAT), ("medium", CHAT), ("large", CHAT), ("flood", STREAM)];
    for (n, (script, body)) in scripts.into_iter().enumerate() {
        client.post(1 + 2 * n as u32, script, body).await;
    }
    let mut cut = Vec::new();
    while cut.len() < 4 {
        let frame = client.next().await.expect("the connection stays open");
        if frame.kind == RST_STREAM {
            cut.push(frame.stream);
        }
    }
    cut.sort_unstable();
    assert_eq!(cut, [1, 3, 5, 7]);
    until("nothing is left behind", || gateway.open_requests() == 0 && gateway.replica.busy() == 0).await;
    assert_eq!(gateway.outcomes("canceled", "200"), 4.0);
    assert_eq!(gateway.sum("tokenway_timeouts_total", &["timer=\"client_stall\""]), 4.0);
}

#[tokio::test]
async fn a_held_answer_comes_whole_through_small_windows_with_and_without_memory_for_it() {
    for body_memory in [64 << 20, 1 << 20] {
        let gateway = Gateway::with(|c| c.server.body_memory = body_memory).await;
        let mut client = Connection::open(gateway.addr()).await;
        client.post(1, "medium", CHAT).await;
        assert!(is_ok(&client.until(HEADERS, 1).await));
        let mut taken = 0;
        loop {
            let frame = client.until(DATA, 1).await;
            taken += frame.payload.len();
            if frame.ends_stream() {
                break;
            }
            let more = u32::try_from(frame.payload.len()).unwrap();
            client.send(&[window_update(0, more), window_update(1, more)].concat()).await;
        }
        assert_eq!(taken, MEDIUM);
        until("it is over", || gateway.open_requests() == 0).await;
        assert_eq!(gateway.outcomes("ok", "200"), 1.0);
    }
}

#[tokio::test]
async fn a_stream_that_its_client_resets_is_over_at_the_replica_too() {
    let gateway = Gateway::start().await;
    let mut client = Connection::open(gateway.addr()).await;
    client.post(1, "gated", STREAM).await;
    client.until(DATA, 1).await;
    client.post(3, "silent", CHAT).await;
    until("both are at the replica", || gateway.replica.busy() == 2).await;
    client.send(&reset(1)).await;
    client.send(&reset(3)).await;
    until("the replica is let go", || gateway.replica.busy() == 0).await;
    until("the requests are over", || gateway.open_requests() == 0).await;
}

/// A proxy's clients share one connection: what some of them do must not end the others' streams.
#[tokio::test]
async fn clients_of_a_proxy_that_leave_come_or_send_by_the_thousand_cut_nobody() {
    let gateway = Gateway::start().await;
    let mut proxy = Connection::open(gateway.addr()).await;
    proxy.post(1, "gated", STREAM).await;
    proxy.until(DATA, 1).await;
    let upload = headers(4003, "POST", CHAT_PATH, &[("content-type", "application/json")], false);
    let left = (3..2003).step_by(2).map(|stream| {
        let head = headers(stream, "POST", CHAT_PATH, &[("content-type", "application/json")], false);
        [head, reset(stream)].concat()
    });
    proxy.send(&left.collect::<Vec<_>>().concat()).await;
    let at_once = (2003..4003).step_by(2);
    let asked = at_once.clone().map(|stream| headers(stream, "GET", "/health", &[], true));
    proxy.send(&asked.collect::<Vec<_>>().concat()).await;
    proxy.send(&[upload, frame(DATA, 0, 4003, b" ").repeat(6000)].concat()).await;
    let mut answered = 0;
    while answered < at_once.len() {
        let frame = proxy.next().await.expect("the connection stays open");
        assert!(!matches!(frame.kind, RST_STREAM | GOAWAY), "{frame:?}");
        answered += usize::from(is_ok(&frame) && frame.stream >= 2003);
    }
    gateway.replica.let_go(3);
    assert!(body(&mut proxy, 1).await.ends_with("[DONE]\n\n"));
}

#[tokio::test]
async fn a_flood_of_resets_leaves_no_work_behind() {
    let gateway = Gateway::start().await;
    let mut bystander = Connection::open(gateway.addr()).await;
    bystander.post(1, "gated", STREAM).await;
    bystander.until(DATA, 1).await;
    let mut flood = Connection::open(gateway.addr()).await;
    let mut bytes = Vec::new();
    for stream in (1..20_000).step_by(2) {
        let fields = [("content-type", "application/json"), ("x-script", "silent")];
        bytes.extend(headers(stream, "POST", CHAT_PATH, &fields, false));
        bytes.extend(frame(DATA, 1, stream, CHAT.as_bytes()));
        bytes.extend(reset(stream));
    }
    bytes.extend(headers(20_001, "GET", "/version", &[], true));
    flood.send(&bytes).await;
    // By how much of it one read brings its connection is ended, or not.
    while let Some(frame) = flood.next().await {
        if frame.kind == GOAWAY {
            assert_eq!(frame.reason(), 11, "ENHANCE_YOUR_CALM");
        }
        if is_ok(&frame) {
            break;
        }
    }
    until("only the bystander's work is left", || gateway.replica.busy() == 1).await;
    until("only the bystander's record is open", || gateway.open_requests() == 1).await;
    gateway.replica.let_go(3);
    assert!(body(&mut bystander, 1).await.ends_with("[DONE]\n\n"));
    gateway.is_well().await;
}

#[tokio::test]
async fn a_continuation_flood_and_a_header_bomb_end_their_connection_only() {
    const CONTINUATION: u8 = 9;
    let gateway = Gateway::start().await;
    let mut flood = Connection::open(gateway.addr()).await;
    flood.send(&frame(HEADERS, 0, 1, &[])).await;
    let part = frame(CONTINUATION, 0, 1, &[0, 3, b'x', b'-', b'a', 1, b'1'].repeat(1000));
    for _ in 0..1000 {
        flood.send(&part).await;
    }
    while flood.next().await.is_some() {}
    let mut bomb = Connection::open(gateway.addr()).await;
    let value = "v".repeat(120);
    let names: Vec<String> = (0..120).map(|n| format!("x-{n}")).collect();
    let fields: Vec<_> = names.iter().map(|name| (name.as_str(), value.as_str())).collect();
    // 20 kB of fields are no bomb, three times as much is.
    bomb.send(&headers(1, "GET", "/version", &fields, true)).await;
    assert!(is_ok(&bomb.until(HEADERS, 1).await));
    let big = fields.repeat(3);
    let block = headers(3, "GET", "/version", &big, true).split_off(9);
    let (first, rest) = block.split_at(16_000);
    bomb.send(&frame(HEADERS, 1, 3, first)).await;
    for (at, part) in rest.chunks(16_000).enumerate() {
        let is_last = (at + 1) * 16_000 >= rest.len();
        bomb.send(&frame(CONTINUATION, if is_last { 4 } else { 0 }, 3, part)).await;
    }
    let refusal = loop {
        match bomb.next().await {
            Some(frame) if frame.stream == 3 || frame.kind == GOAWAY => break Some(frame),
            Some(_) => {}
            None => break None,
        }
    };
    assert!(refusal.is_none_or(|frame| !is_ok(&frame)), "a header list of 60 kB was served");
    assert!(gateway.replica.seen().is_empty());
    gateway.is_well().await;
}

#[tokio::test]
async fn expect_is_answered_before_the_body_and_a_refusal_comes_without_it() {
    let gateway = Gateway::with(|c| c.server.body_limit = 1000).await;
    let mut client = Connection::open(gateway.addr()).await;
    // Another stream's events are on the connection meanwhile.
    client.post(1, "gated", STREAM).await;
    client.until(DATA, 1).await;
    let length = CHAT.len().to_string();
    let expecting = |length| [("expect", "100-continue"), ("content-length", length), ("x-script", "unary")];
    client.send(&headers(3, "POST", CHAT_PATH, &expecting(&length), false)).await;
    let interim = client.until(HEADERS, 3).await;
    assert_eq!(interim.payload, b"\x08\x03100", "literal, not indexed");
    assert!(!interim.ends_stream());
    client.send(&frame(DATA, 1, 3, CHAT.as_bytes())).await;
    assert!(is_ok(&client.until(HEADERS, 3).await));
    assert!(body(&mut client, 3).await.contains("hello"));
    // Too large, and on a path that is not served: refused before the upload.
    let mut refused = Vec::new();
    for (stream, path) in [(5, CHAT_PATH), (7, "/sleep"), (9, CHAT_PATH)] {
        client.send(&headers(stream, "POST", path, &expecting("1001"), false)).await;
        let refusal = loop {
            let frame = client.next().await.unwrap();
            // In the flight of an answer it would cost curl and httpx the answer.
            assert!(frame.kind != RST_STREAM || !refused.contains(&frame.stream), "{}", frame.stream);
            if (frame.kind, frame.stream) == (HEADERS, stream) {
                break frame;
            }
        };
        assert_ne!(refusal.payload, interim.payload, "{path}");
        assert!(!is_ok(&refusal), "{path}");
        assert_ne!(body(&mut client, stream).await, "", "{path}");
        refused.push(stream);
    }
    gateway.replica.let_go(3);
    assert!(body(&mut client, 1).await.ends_with("[DONE]\n\n"));
    assert_eq!(gateway.replica.seen().len(), 2);
}

#[tokio::test]
async fn an_answer_to_head_has_a_length_and_no_body() {
    let gateway = Gateway::start().await;
    let mut client = Connection::open(gateway.addr()).await;
    for (stream, path) in [(1, "/health"), (5, "/v1/models"), (9, "/no/such/path"), (13, CHAT_PATH)] {
        client.send(&headers(stream, "HEAD", path, &[], true)).await;
        let head = client.until(HEADERS, stream).await;
        assert!(head.ends_stream(), "{path}");
        client.send(&headers(stream + 2, "GET", path, &[], true)).await;
        assert!(!client.until(HEADERS, stream + 2).await.ends_stream(), "{path}");
        assert_ne!(body(&mut client, stream + 2).await, "", "{path}");
    }
}

#[tokio::test]
async fn floods_of_small_frames_hurt_nobody_else() {
    let gateway = Gateway::start().await;
    let mut bystander = Connection::open(gateway.addr()).await;
    bystander.post(1, "gated", STREAM).await;
    bystander.until(DATA, 1).await;
    let (ping, settings) = (frame(PING, 0, 0, &[7; 8]), frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]));
    // Opened and never ended: no window for an answer, no bytes of a body.
    let open = headers(1, "POST", CHAT_PATH, &[("content-type", "application/json")], false);
    let empty = [open, frame(DATA, 0, 1, &[]).repeat(20_000)].concat();
    let acks = frame(PING, 1, 0, &[9; 8]).repeat(20_000);
    let window = window_update(0, 0).repeat(1000);
    for flood in [ping.repeat(20_000), settings.repeat(20_000), empty, acks, window] {
        let mut attacker = Connection::open(gateway.addr()).await;
        attacker.send(&flood).await;
        // It may be cut or go on; either way it reads none of the answers.
        bystander.post(3, "unary", CHAT).await;
        assert!(is_ok(&bystander.until(HEADERS, 3).await));
        body(&mut bystander, 3).await;
        drop(attacker);
        bystander = {
            gateway.replica.let_go(3);
            assert!(body(&mut bystander, 1).await.ends_with("[DONE]\n\n"));
            let mut next = Connection::open(gateway.addr()).await;
            next.post(1, "gated", STREAM).await;
            next.until(DATA, 1).await;
            next
        };
    }
    gateway.replica.let_go(3);
    body(&mut bystander, 1).await;
    until("nothing is left behind", || gateway.open_requests() == 0 && gateway.replica.busy() == 0).await;
}

#[tokio::test]
async fn a_client_may_send_256_kib_of_a_body_ahead_and_no_more() {
    let gateway = Gateway::start().await;
    let mut client = Connection::silent(gateway.addr()).await;
    let settings = client.settings().await;
    assert_eq!(settings.get(&4), Some(&262_144), "initial window of a stream: {settings:?}");
    assert_eq!(settings.get(&3), Some(&4096), "concurrent streams");
    assert_eq!(settings.get(&6), Some(&32_768), "header list");
}

#[tokio::test]
async fn a_host_unlike_the_authority_is_refused() {
    let gateway = Gateway::start().await;
    let mut client = Connection::open(gateway.addr()).await;
    client.send(&headers(1, "POST", CHAT_PATH, &[("host", "evil")], true)).await;
    assert!(!is_ok(&client.until(HEADERS, 1).await));
    client.send(&headers(3, "POST", CHAT_PATH, &[("host", "gateway")], true)).await;
    assert!(is_ok(&client.until(HEADERS, 3).await));
    assert_eq!(gateway.replica.seen().len(), 1);
}

#[tokio::test]
async fn a_declared_length_unlike_the_data_reaches_no_replica() {
    let gateway = Gateway::start().await;
    let mut client = Connection::open(gateway.addr()).await;
    for (stream, declared) in [(1, "4"), (3, "4000"), (5, "0")] {
        let fields = [("content-length", declared), ("content-type", "application/json")];
        client.send(&headers(stream, "POST", CHAT_PATH, &fields, false)).await;
        client.send(&frame(DATA, 1, stream, CHAT.as_bytes())).await;
        let end = loop {
            let frame = client.next().await.expect("the connection stays open");
            if frame.stream == stream {
                break frame;
            }
        };
        assert!(!is_ok(&end), "content-length {declared}");
    }
    for name in ["transfer-encoding", "connection", "upgrade"] {
        let mut client = Connection::open(gateway.addr()).await;
        client.send(&headers(1, "POST", CHAT_PATH, &[(name, "chunked")], false)).await;
        client.send(&frame(DATA, 1, 1, CHAT.as_bytes())).await;
        let first = client.next().await;
        assert!(first.is_none_or(|frame| !is_ok(&frame)), "{name} was accepted");
    }
    assert!(gateway.replica.seen().is_empty(), "{:?}", gateway.replica.seen());
}

#[tokio::test]
async fn a_drain_says_goaway_and_lets_open_streams_end() {
    let gateway = Gateway::start().await;
    let mut client = Connection::open(gateway.addr()).await;
    client.post(1, "gated", STREAM).await;
    client.until(DATA, 1).await;
    gateway.app.begin_drain();
    assert_eq!(client.until(GOAWAY, 0).await.reason(), 0, "NO_ERROR");
    gateway.replica.let_go(3);
    assert!(body(&mut client, 1).await.ends_with("[DONE]\n\n"));
    while client.next().await.is_some() {}
}

#[tokio::test]
async fn a_connection_opened_while_draining_is_served_and_told_to_go() {
    let gateway = Gateway::start().await;
    gateway.app.begin_drain();
    let mut client = Connection::open(gateway.addr()).await;
    client.post(1, "unary", CHAT).await;
    let (mut was_served, mut was_notified) = (false, false);
    while let Some(frame) = client.next().await {
        was_served |= is_ok(&frame);
        was_notified |= frame.kind == GOAWAY;
    }
    assert!(was_served && was_notified, "served: {was_served}, notified: {was_notified}");
}

/// As clients of gRPC do.
#[tokio::test]
async fn a_client_that_waits_for_the_settings_is_served_while_draining() {
    let gateway = Gateway::start().await;
    gateway.app.begin_drain();
    let mut client = Connection::open(gateway.addr()).await;
    client.send(&frame(PING, 0, 0, &[7; 8])).await;
    loop {
        let frame = client.read().await.unwrap();
        assert_ne!(frame.kind, GOAWAY, "it has asked for nothing yet");
        if frame.kind == PING {
            break;
        }
    }
    client.post(1, "unary", CHAT).await;
    assert!(is_ok(&client.until(HEADERS, 1).await));
    while client.next().await.is_some() {}
}

#[tokio::test]
async fn a_preface_in_pieces_is_an_http2_connection_like_any_other() {
    let gateway = Gateway::with(|c| {
        c.server.header_timeout = Duration::from_millis(700);
        c.server.keep_alive = Duration::from_secs(8);
    })
    .await;
    let socket = TcpStream::connect(gateway.addr()).await.unwrap();
    socket.set_nodelay(true).unwrap();
    let mut client = Connection::over(socket);
    let (first, rest) = PREFACE.split_at(7);
    client.send(first).await;
    // Another connection is served meanwhile: the first piece was read alone.
    gateway.is_well().await;
    client.send(rest).await;
    client.begin().await;
    client.post(1, "unary", CHAT).await;
    assert!(is_ok(&client.until(HEADERS, 1).await));
    body(&mut client, 1).await;
    // What comes between requests is no head: the connection is idle for longer than a head may take.
    client.send(&window_update(0, 1)).await;
    assert!(Client::connect(gateway.addr()).await.is_closed().await);
    assert!(Client::connect(gateway.addr()).await.is_closed().await);
    client.post(3, "unary", CHAT).await;
    assert!(is_ok(&client.until(HEADERS, 3).await));
    gateway.app.begin_drain();
    assert_eq!(client.until(GOAWAY, 0).await.reason(), 0);
}
