//! Some 2,000 requests whose framing two parsers could read differently, and what of them reaches a replica.
//!
//! The promise: exactly the one intended request, framed by the gateway, or nothing. The intended body is a small
//! chat request; the bytes behind it would be a second request (`x-smuggled`) to a parser that is led astray, and
//! must never arrive as one. Nothing a client sends makes the gateway answer 5xx or die.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::listener_support::replica::fault;
use crate::listener_support::{CHAT, Gateway, raw};
use crate::support::replica::Received;

/// One client connection's bytes.
struct Vector {
    what: String,
    bytes: Vec<u8>,
}

/// What it sends: a head with these fields, and what comes after it.
struct Parts {
    version: &'static str,
    fields: Vec<Vec<u8>>,
    body: Vec<u8>,
}

impl Parts {
    fn bytes(&self, number: usize) -> Vec<u8> {
        let line = format!("POST /v1/chat/completions HTTP/{}", self.version);
        let mut bytes = format!("{line}\r\nHost: gateway\r\nX-Vector: {number}\r\n").into_bytes();
        for field in &self.fields {
            bytes.extend(field);
            bytes.extend(b"\r\n");
        }
        bytes.extend(b"\r\n");
        bytes.extend(&self.body);
        bytes
    }
}

fn chunked() -> Vec<u8> {
    format!("{:x}\r\n{CHAT}\r\n0\r\n\r\n", CHAT.len()).into_bytes()
}

/// What a second parser would take for a request of its own.
fn stowaway() -> Vec<u8> {
    raw::post("/v1/completions", "X-Smuggled: 1\r\n", r#"{"model":"m","prompt":"smuggled"}"#).into_bytes()
}

fn content_length(length: usize) -> Vec<u8> {
    format!("Content-Length: {length}").into_bytes()
}

/// `byte` in ten places around `Transfer-Encoding: chunked`.
fn odd_transfer_encodings(byte: u8) -> [Vec<u8>; 10] {
    let spell = |parts: [&str; 2]| {
        let mut field = parts[0].as_bytes().to_vec();
        field.push(byte);
        field.extend(parts[1].as_bytes());
        field
    };
    [
        spell(["", "Transfer-Encoding: chunked"]),
        spell(["Transfer", "Encoding: chunked"]),
        spell(["Transfer-Encoding", ": chunked"]),
        spell(["Transfer-Encoding:", "chunked"]),
        spell(["Transfer-Encoding: ", "chunked"]),
        spell(["Transfer-Encoding: chu", "nked"]),
        spell(["Transfer-Encoding: chunked", ""]),
        spell(["Transfer-Encoding: chunked", "x"]),
        spell(["X-Other: a", "Transfer-Encoding: chunked"]),
        spell(["Transfer-Encoding: identity", "chunked"]),
    ]
}

const ODD_BYTES: [u8; 13] = [0x01, 0x04, 0x08, 0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x1f, 0x20, 0x7f, 0xa0, 0xff];

/// Other ways to write it, most of which are none.
const ODD_CODINGS: &[&str] = &[
    "Transfer-Encoding: chunked",
    "transfer-encoding: CHUNKED",
    "TRANSFER-ENCODING:chunked",
    "Transfer-Encoding:\tchunked\t",
    "Transfer-Encoding: chunked, chunked",
    "Transfer-Encoding: cow, chunked",
    "Transfer-Encoding: chunked, cow",
    "Transfer-Encoding: identity",
    "Transfer-Encoding: chunked, identity",
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding: \"chunked\"",
    "Transfer-Encoding: 'chunked'",
    "Transfer-Encoding: chunked;q=1",
    "Transfer-Encoding: ,chunked",
    "Transfer-Encoding: chunked,",
    "Transfer-Encoding: ",
    "Transfer-Encoding",
    "Transfer_Encoding: chunked",
    "Transfer Encoding: chunked",
    "Transfer-Encodin: chunked",
    "Transfer-Encoding: xchunked",
    "Transfer-Encoding: chunked\r\n cow",
    "Transfer-Encoding:\r\n chunked",
    "X: y\r\n Transfer-Encoding: chunked",
    "Transfer-Encoding: cow\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: cow",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    "Connection: transfer-encoding\r\nTransfer-Encoding: chunked",
    "Connection: content-length, close",
    "TE: chunked",
    "Content-Encoding: chunked",
    "Trailer: content-length",
    "Upgrade: h2c\r\nConnection: upgrade, http2-settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__",
];

/// The ways in which a coding field meets content lengths: what that is called, and what is sent.
fn framings(coding: &[u8]) -> Vec<(&'static str, Parts)> {
    let (coding, chunked) = (coding.to_vec(), chunked());
    let whole: Vec<u8> = [chunked.clone(), stowaway()].concat();
    let (all, inner, size_line) =
        (content_length(whole.len()), content_length(chunked.len()), content_length(4));
    let (json, none) = (content_length(CHAT.len()), content_length(0));
    let plain = CHAT.as_bytes().to_vec();
    let te = b"Transfer-Encoding: chunked".to_vec();
    let parts = |version, fields, body| Parts { version, fields, body };
    vec![
        ("alone", parts("1.1", vec![coding.clone()], chunked.clone())),
        ("alone, 1.0", parts("1.0", vec![coding.clone()], chunked.clone())),
        ("after CL of all", parts("1.1", vec![all.clone(), coding.clone()], whole.clone())),
        ("before CL of all", parts("1.1", vec![coding.clone(), all.clone()], whole.clone())),
        ("after CL of all, 1.0", parts("1.0", vec![all, coding.clone()], whole)),
        ("after CL of chunks", parts("1.1", vec![inner.clone(), coding.clone()], chunked.clone())),
        ("before CL of chunks", parts("1.1", vec![coding.clone(), inner], chunked.clone())),
        ("after CL of a size line", parts("1.1", vec![size_line.clone(), coding.clone()], chunked.clone())),
        ("before CL of a size line", parts("1.1", vec![coding.clone(), size_line], chunked.clone())),
        ("after CL 0", parts("1.1", vec![none.clone(), coding.clone()], chunked.clone())),
        ("before CL 0", parts("1.1", vec![coding.clone(), none], chunked.clone())),
        ("after CL of JSON", parts("1.1", vec![json.clone(), coding.clone()], plain.clone())),
        ("before CL of JSON", parts("1.1", vec![coding.clone(), json], plain)),
        ("after TE", parts("1.1", vec![te.clone(), coding.clone()], chunked.clone())),
        ("before TE", parts("1.1", vec![coding, te], chunked)),
    ]
}

fn odd_lengths() -> Vec<Vec<u8>> {
    let n = CHAT.len();
    let mut fields: Vec<Vec<u8>> = [
        format!("Content-Length: {n}\r\nContent-Length: {n}"),
        format!("Content-Length: {n}\r\nContent-Length: {}", n + 1),
        format!("Content-Length: {n}\r\nContent-Length: 0"),
        format!("Content-Length: 0\r\nContent-Length: {n}"),
        format!("Content-Length: {n}, {n}"),
        format!("Content-Length: {n},"),
        format!("Content-Length: +{n}"),
        format!("Content-Length: -{n}"),
        format!("Content-Length: 0{n}"),
        format!("Content-Length: 0x{n:x}"),
        format!("Content-Length: {n}.0"),
        format!("Content-Length: {n}e0"),
        format!("Content-Length: {n} 1"),
        format!("Content-Length: \"{n}\""),
        format!("Content-Length: {n}\r\n 1"),
        format!("Content-Length:\r\n {n}"),
        format!("Content_Length: {n}"),
        format!("Content-Length : {n}"),
        "Content-Length: ".into(),
        "Content-Length: 18446744073709551616".into(),
        format!("Content-Length: 1844674407370955161{n}"),
        format!("content-length: {n}\r\nCONTENT-LENGTH: {}", n - 1),
    ]
    .into_iter()
    .map(String::into_bytes)
    .collect();
    for byte in ODD_BYTES {
        for (before, after) in [
            ("", format!("Content-Length: {n}")),
            ("Content-Length", format!(": {n}")),
            ("Content-Length:", format!("{n}")),
            ("Content-Length: 1", format!("{n}")),
            ("X-Other: a", format!("Content-Length: {n}")),
        ] {
            fields.push([before.as_bytes(), &[byte], after.as_bytes()].concat());
        }
        fields.push([format!("Content-Length: {n}").as_bytes(), &[byte]].concat());
    }
    fields
}

/// Chunked bodies that are a little wrong.
fn odd_chunks() -> Vec<Vec<u8>> {
    let n = CHAT.len();
    let mut bodies: Vec<Vec<u8>> = [
        format!("0x{n:x}\r\n{CHAT}\r\n0\r\n\r\n"),
        format!("+{n:x}\r\n{CHAT}\r\n0\r\n\r\n"),
        format!("-{n:x}\r\n{CHAT}\r\n0\r\n\r\n"),
        format!(" {n:x}\r\n{CHAT}\r\n0\r\n\r\n"),
        format!("{n:x} \r\n{CHAT}\r\n0\r\n\r\n"),
        format!("{n:x};a=b\r\n{CHAT}\r\n0\r\n\r\n"),
        format!("{n:x};a=\"\r\n{CHAT}\r\n0\r\n\r\n"),
        format!("{n:x};\n{CHAT}\r\n0\r\n\r\n"),
        format!("{n:x}\n{CHAT}\r\n0\r\n\r\n"),
        format!("{n:x}\r{CHAT}\r\n0\r\n\r\n"),
        format!("{n:x}\r\n{CHAT}\n0\r\n\r\n"),
        format!("{n:x}\r\n{CHAT}0\r\n\r\n"),
        format!("{n:x}\r\n{CHAT}\r\n0\r\n"),
        format!("{n:x}\r\n{CHAT}\r\n0\n\n"),
        format!("{n:x}\r\n{CHAT}\r\n"),
        format!("{n:x}\r\n{CHAT}\r\n00000\r\n\r\n"),
        format!("{n:x}\r\n{CHAT}\r\n0\r\nContent-Length: 5\r\nX-Smuggled: 1\r\n\r\n"),
        format!("{n:x}\r\n{CHAT}\r\n0\r\nbad trailer\r\n\r\n"),
        format!("{n:x}\r\n{CHAT}\r\n-1\r\n\r\n"),
        format!("00000000000000000000{n:x}\r\n{CHAT}\r\n0\r\n\r\n"),
        format!("1000000000000000{n:x}\r\n{CHAT}\r\n0\r\n\r\n"),
        format!("fffffffffffffffff\r\n{CHAT}\r\n0\r\n\r\n"),
        format!("ffffffffffffffff\r\n{CHAT}\r\n0\r\n\r\n"),
        format!("{:x}\r\n{CHAT}\r\n0\r\n\r\n", n + 1),
        format!("{:x}\r\n{CHAT}\r\n0\r\n\r\n", n - 1),
        format!("g\r\n{CHAT}\r\n0\r\n\r\n"),
        format!("\r\n{n:x}\r\n{CHAT}\r\n0\r\n\r\n"),
        format!("{n:x};{}\r\n{CHAT}\r\n0\r\n\r\n", "e".repeat(40_000)),
    ]
    .into_iter()
    .map(String::into_bytes)
    .collect();
    for byte in ODD_BYTES {
        let size = format!("{n:x}").into_bytes();
        let rest = format!("\r\n{CHAT}\r\n0\r\n\r\n").into_bytes();
        bodies.push([&[byte], &size[..], &rest].concat());
        bodies.push([&size[..], &[byte], &rest].concat());
        bodies.push([&size[..], b";a", &[byte], &rest].concat());
        bodies.push([&size[..], b"\r\n", CHAT.as_bytes(), &[byte], b"\r\n0\r\n\r\n"].concat());
        bodies.push([&size[..], b"\r\n", CHAT.as_bytes(), b"\r\n0", &[byte], b"\r\n\r\n"].concat());
    }
    bodies
}

/// Heads whose request line or host is a little wrong, in front of a body that is framed as it should be.
const ODD_HEADS: &[&str] = &[
    "POST  /v1/chat/completions HTTP/1.1\r\nHost: gateway",
    "POST /v1/chat/completions  HTTP/1.1\r\nHost: gateway",
    "POST\t/v1/chat/completions\tHTTP/1.1\r\nHost: gateway",
    " POST /v1/chat/completions HTTP/1.1\r\nHost: gateway",
    "POST /v1/chat/completions HTTP/1.2\r\nHost: gateway",
    "POST /v1/chat/completions HTTP/2.0\r\nHost: gateway",
    "POST /v1/chat/completions http/1.1\r\nHost: gateway",
    "POST /v1/chat/completions HTTP/1.1 x\r\nHost: gateway",
    "POST /v1/chat/completions\r\nHost: gateway",
    "POST v1/chat/completions HTTP/1.1\r\nHost: gateway",
    "POST * HTTP/1.1\r\nHost: gateway",
    "POST gateway:80 HTTP/1.1\r\nHost: gateway",
    "POST http://evil/v1/chat/completions HTTP/1.1\r\nHost: gateway",
    "POST http://user@gateway/v1/chat/completions HTTP/1.1\r\nHost: gateway",
    "POST //v1/chat/completions HTTP/1.1\r\nHost: gateway",
    "POST /v1/../v1/chat/completions HTTP/1.1\r\nHost: gateway",
    "POST /v1/chat%2fcompletions HTTP/1.1\r\nHost: gateway",
    "POST /v1/chat/completions%00 HTTP/1.1\r\nHost: gateway",
    "POST /v1/chat/completions HTTP/1.1",
    "POST /v1/chat/completions HTTP/1.1\r\nHost:",
    "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nHost: gateway",
    "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\n evil",
    "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway, evil",
    "POST /v1/chat/completions HTTP/1.1\r\nHost: gate way",
    "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway/",
    "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway:99999",
    "POST /v1/chat/completions HTTP/1.1\r\nHost : gateway",
    "POST /v1/chat/completions HTTP/1.1\r\n: gateway",
    "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nx",
    "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nx: a\rb: c",
    "post /v1/chat/completions HTTP/1.1\r\nHost: gateway",
    "PRI * HTTP/2.0\r\nHost: gateway",
    "CONNECT gateway:80 HTTP/1.1\r\nHost: gateway",
];

/// Whether a head names both fields in a spelling that a parser could take for them.
fn has_two_framings(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes).to_ascii_lowercase();
    // A bare LF ends lines and heads as well.
    let head = text.lines().take_while(|line| !line.is_empty());
    let starts = |name: &str| head.clone().any(|line| line.starts_with(name));
    starts("content-length:") && starts("transfer-encoding:")
}

fn vectors() -> Vec<Vector> {
    let mut all = Vec::new();
    let mut add = |what: String, parts: Parts| {
        let bytes = parts.bytes(all.len());
        all.push(Vector { what, bytes });
    };
    let parts = |fields, body| Parts { version: "1.1", fields, body };
    let te = || b"Transfer-Encoding: chunked".to_vec();
    let odd = ODD_BYTES.into_iter().flat_map(odd_transfer_encodings);
    for coding in odd.chain(ODD_CODINGS.iter().map(|c| c.as_bytes().to_vec())) {
        for (how, parts) in framings(&coding) {
            add(format!("{:?} {how}", coding.escape_ascii().to_string()), parts);
        }
    }
    for field in odd_lengths() {
        let what = field.escape_ascii().to_string();
        add(what.clone(), parts(vec![field.clone()], CHAT.into()));
        add(format!("{what}, then TE"), parts(vec![field, te()], chunked()));
    }
    for body in odd_chunks() {
        add(format!("chunks {:.60}", body.escape_ascii().to_string()), parts(vec![te()], body));
    }
    for head in ODD_HEADS {
        let fields = format!("X-Vector: {}\r\nContent-Length: {}", all.len(), CHAT.len());
        let bytes = format!("{head}\r\n{fields}\r\n\r\n{CHAT}").into_bytes();
        all.push(Vector { what: head.escape_debug().to_string(), bytes });
    }
    all
}

/// Statuses of the answers in these bytes; bodies here never hold a status line.
fn statuses(bytes: &[u8]) -> Vec<u16> {
    let begins = memchr::memmem::find_iter(bytes, b"HTTP/1.");
    let status = |at: usize| std::str::from_utf8(bytes.get(at + 9..at + 12)?).ok()?.parse().ok();
    // A message may speak of HTTP/1.1, without a number behind it.
    begins.filter_map(status).collect()
}

/// What is wrong with a request that reached the replica; `None` when it is as intended.
fn wrong(seen: &Received) -> Option<String> {
    if let Some(fault) = fault(seen) {
        return Some(fault);
    }
    let is_whole = seen.line() == "POST /v1/chat/completions HTTP/1.1"
        && (seen.body.is_empty() || seen.body == CHAT.as_bytes())
        && seen.header("x-vector").is_some();
    if !is_whole || !seen.all("x-smuggled").is_empty() {
        return Some(format!("not the intended request: {seen:?}"));
    }
    None
}

#[tokio::test]
async fn of_every_ambiguous_request_the_replica_sees_the_intended_one_or_none() {
    let gateway = Gateway::with(|c| {
        // What waits for bytes that never come shall not keep the test waiting.
        c.server.header_timeout = Duration::from_secs(2);
        c.server.keep_alive = Duration::from_secs(2);
        c.routes[0].timeouts.client_stall = Duration::from_millis(500);
    })
    .await;
    let vectors = vectors();
    assert!(vectors.len() > 2000, "{}", vectors.len());
    let total = vectors.len();
    let (addr, places) = (gateway.addr(), Arc::new(Semaphore::new(48)));
    let mut running = JoinSet::new();
    for vector in vectors {
        let place = Arc::clone(&places).acquire_owned().await.unwrap();
        running.spawn(async move {
            let _place = place;
            let mut client = raw::Client::connect(addr).await;
            // A last request makes the gateway close what it would keep open.
            let last = b"GET /version HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n";
            client.send_raw([&vector.bytes[..], last].concat()).await;
            let is_twofold = has_two_framings(&vector.bytes);
            (vector.what, is_twofold, client.until_closed().await)
        });
    }
    let (mut served, mut refused) = (0, 0);
    while let Some(done) = running.join_next().await {
        let (what, is_twofold, answer) = done.unwrap();
        let statuses = statuses(&answer);
        assert!(statuses.iter().all(|s| (200..500).contains(s)), "{what}: {statuses:?}");
        assert!(!statuses.is_empty(), "{what}: no answer at all");
        if statuses[0] == 200 {
            assert!(!is_twofold, "{what}: served with two framings");
            served += 1;
        } else {
            let reason = br#"{"error":{"code":""#;
            let says = memchr::memmem::find(&answer, reason).is_some();
            assert!(says, "{what}: no reason in {}", String::from_utf8_lossy(&answer));
            refused += 1;
        }
    }
    let mut numbers = HashSet::new();
    for seen in gateway.replica.seen() {
        assert_eq!(wrong(&seen), None);
        assert!(numbers.insert(seen.header("x-vector").unwrap().to_owned()), "twice: {seen:?}");
    }
    assert_eq!(served + refused, total);
    assert_eq!(served, numbers.len(), "an answer for each request that arrived, and for no other");
    // Legal spellings exist among them, and most are not.
    assert!(served > 20 && refused > 1000, "{served} served, {refused} refused");
    gateway.is_well().await;
}
