//! What is fuzzed: one function a parser, each with a second opinion where there is one.
//!
//! A function panics on a wrong result. `fuzz_targets/` gives them to libFuzzer, `tests/fuzz.rs` replays the corpus and
//! mutates it on stable. Everything here comes from outside: clients, engines, issuers, configuration files.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a wrong result must end the run; a binary uses one of them"
)]

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use smallvec::SmallVec;
use tokenway::config::check::check_str;
use tokenway::config::{EngineKind, Figure, Jwks, Jwt};
use tokenway::fleet::metrics_text;
use tokenway::gateway::request_id;
use tokenway::listener::framing::RequestFraming;
use tokenway::relay::sse::Scanner;
use tokenway::relay::stream_state::Echo;
use tokenway::relay::usage_filter::{AskedUsage, UsageFilter};
use tokenway::relay::whole_events::WholeEvents;
use tokenway::request::body::check_head;
use tokenway::request::dialect::{BodyForm, Dialect};
use tokenway::request::fields;
use tokenway::request::json::Cursor;
use tokenway::request::jwt::{KeySet, TokenKeys};
use tokenway::request::splice::{Edits, splice as spliced};
use tokenway::request::trace_context;

const DIALECTS: [Dialect; 6] = [
    Dialect::Chat,
    Dialect::Completions,
    Dialect::Responses,
    Dialect::Messages,
    Dialect::Embeddings,
    Dialect::Rerank,
];

/// The dialect that the first byte stands for, and the rest.
fn dialect_of(data: &[u8]) -> Option<(Dialect, &[u8])> {
    let (first, rest) = data.split_first()?;
    Some((DIALECTS[usize::from(*first) % DIALECTS.len()], rest))
}

/// Pieces of growing and shrinking size, which depend on the data alone.
fn pieces(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut left = data;
    let mut seed = Sha256::digest(data)[0];
    std::iter::from_fn(move || {
        seed = seed.wrapping_mul(29).wrapping_add(7);
        let size = usize::from(seed % 23) + 1;
        let (piece, rest) = left.split_at(size.min(left.len()));
        left = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

/// The event stream scanner: the same facts however reads split it, and events end where the standard says.
pub fn sse(data: &[u8]) {
    let Some((dialect, stream)) = dialect_of(data) else { return };
    let scan = |parts: &mut dyn Iterator<Item = &[u8]>| {
        let (mut scanner, mut facts, mut end) = (Scanner::new(dialect, Echo::Off), Vec::new(), 0);
        let mut read = 0;
        for part in parts {
            let result = scanner.feed(part, |fact, at| {
                assert!(at <= part.len());
                facts.push(format!("{fact:?}"));
            });
            if result.end > 0 {
                end = read + result.end;
            }
            read += part.len();
        }
        (facts, scanner.finish(true), scanner.finish(false), scanner.tail(), end)
    };
    let whole = scan(&mut std::iter::once(stream));
    let split = scan(&mut pieces(stream));
    assert_eq!((&whole.0, whole.1, whole.2, whole.3), (&split.0, split.1, split.2, split.3));
    if !stream.starts_with(b"\xef\xbb\xbf") {
        assert_eq!(whole.4, last_event_end(stream), "end of the last event");
    }
}

/// Where the last event ends: behind the line end of an empty line (WHATWG HTML §9.2.6).
fn last_event_end(stream: &[u8]) -> usize {
    let (mut end, mut line, mut at) = (0, 0, 0);
    while at < stream.len() {
        let next = match stream[at] {
            b'\r' if stream.get(at + 1) == Some(&b'\n') => at + 2,
            b'\r' | b'\n' => at + 1,
            _ => {
                at += 1;
                continue;
            }
        };
        if at == line {
            end = next;
        }
        (line, at) = (next, next);
    }
    end
}

/// The filter of the usage chunk: the same bytes however frames split them, and without a fingerprint to give back none that
/// were not there.
pub fn usage_filter(data: &[u8]) {
    let Some((_, stream)) = dialect_of(data) else { return };
    let asked = AskedUsage {
        is_sure: data[0] & 0x80 != 0,
        has_several_choices: data[0] & 0x40 != 0,
        fingerprint: None,
    };
    let filter = |parts: &mut dyn Iterator<Item = &[u8]>| {
        let (mut filter, mut passed) = (UsageFilter::new(asked.clone()), Vec::new());
        let (mut scanner, mut events) = (Scanner::new(Dialect::Chat, Echo::Off), WholeEvents::default());
        let mut out = SmallVec::new();
        for part in parts {
            let end = scanner.feed(part, |_, _| {}).end;
            filter.filter(events.cut(Bytes::copy_from_slice(part), end), &mut out);
        }
        filter.filter(events.rest(), &mut out);
        out.extend(filter.release());
        out.iter().for_each(|bytes| passed.extend_from_slice(bytes));
        passed
    };
    let whole = filter(&mut std::iter::once(stream));
    assert_eq!(whole, filter(&mut pieces(stream)));
    if memchr::memmem::find(stream, b"fingerprint").is_none() {
        let mut rest = stream.iter();
        assert!(whole.iter().all(|byte| rest.any(|given| given == byte)), "bytes were added or moved");
    }
}

/// The JSON cursor accepts what serde accepts, with the same bounds.
pub fn json(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut cursor = Cursor::new(text);
    let ours = cursor.value().and_then(|value| cursor.end().map(|()| value));
    let theirs = serde_json::from_str::<&RawValue>(text);
    match (ours, theirs) {
        (Ok(ours), Ok(theirs)) => assert_eq!(ours.text(), theirs.get()),
        (Err(_), Err(_)) => {}
        // Both bound the depth, serde at 128 levels.
        _ if depth(text) > 100 => {}
        (ours, theirs) => panic!("{ours:?} against {theirs:?}"),
    }
}

fn depth(text: &str) -> usize {
    text.bytes().filter(|byte| matches!(byte, b'[' | b'{')).count()
}

/// A spliced body is the client's JSON but for the two fields.
pub fn splice(data: &[u8]) {
    for ask_running in [false, true] {
        splice_with(data, ask_running);
    }
}

fn splice_with(data: &[u8], ask_running: bool) {
    let Some((dialect, body)) = dialect_of(data) else { return };
    let body = Bytes::copy_from_slice(body);
    let Ok(fields) = fields::parse(dialect, &body) else { return };
    let edits = Edits {
        model: Some("engine/\"model\""),
        request_id: Some("own"),
        cache_salt: Some("ours"),
        priority: Some(1),
        ask_usage: true,
        ask_running,
        counts_only_beside_usage: true,
    };
    let after = spliced(dialect, &body, &fields, edits);
    let sent = after.body.whole();
    let (Ok(mut before), Ok(mut result)) =
        (serde_json::from_slice::<Value>(&body), serde_json::from_slice::<Value>(&sent))
    else {
        // Numbers and depths that serde does not take, on both sides.
        assert_eq!(
            serde_json::from_slice::<Value>(&body).is_err(),
            serde_json::from_slice::<Value>(&sent).is_err()
        );
        return;
    };
    if fields.model.is_some() || dialect.body_form() == BodyForm::Json {
        assert_eq!(result["model"], "engine/\"model\"");
    }
    assert_eq!((&result["cache_salt"], &result["priority"]), (&"ours".into(), &1.into()));
    if after.asks_usage {
        assert_eq!(result["stream_options"]["include_usage"], true);
    }
    if after.asks_usage && !after.asks_running {
        assert_ne!(result["stream_options"]["continuous_usage_stats"], true);
    }
    if after.asks_running {
        assert_eq!(result["stream_options"]["include_usage"], true);
        assert_eq!(result["stream_options"]["continuous_usage_stats"], true);
    }
    for json in [&mut before, &mut result] {
        let ours = ["model", "stream_options", "cache_salt", "priority"];
        json.as_object_mut().unwrap().retain(|key, _| !ours.contains(&key.as_str()));
    }
    assert_eq!(before, result);
}

/// An engine's metrics page.
pub fn metrics(data: &[u8]) {
    let page = String::from_utf8_lossy(data);
    for kind in EngineKind::ALL {
        let figures = metrics_text::parse(&page, &kind.profile(), None);
        assert!(figures.kv_cache_usage().is_none_or(|usage| (0.0..=1.0).contains(&usage)), "{figures:?}");
        for figure in Figure::ALL {
            assert!(figures.get(figure).is_none_or(|value| value.is_finite() && value >= 0.0), "{figures:?}");
        }
    }
}

/// A configuration file: checked, or refused with places that exist in it.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // A file may name others, and some devices never end.
    if ["/dev", "/proc", "/sys"].iter().any(|path| text.contains(path)) {
        return;
    }
    if let Err(faults) = check_str("f.toml", text, &|_| None) {
        let lines = text.lines().count().max(1);
        for fault in faults.iter() {
            assert!((1..=lines + 1).contains(&fault.line), "{fault}");
            assert!(fault.column > 0 && !fault.message.is_empty() && !fault.hint.is_empty(), "{fault}");
        }
        assert!(!faults.to_string().is_empty());
    }
}

/// The framing of a connection against httparse's reading of it.
pub fn framing(data: &[u8]) {
    let mut ours = RequestFraming::default();
    ours.read(data);
    let mut split = RequestFraming::default();
    pieces(data).for_each(|piece| split.read(piece));
    assert_eq!(ours.first_ambiguous(), split.first_ambiguous());
    let (mut rest, mut number) = (data, 0);
    while let Some((is_ambiguous, after)) = next_request(rest) {
        number += 1;
        let found = ours.first_ambiguous();
        if is_ambiguous {
            assert_eq!(found, Some(number), "a request with two framings");
            return;
        }
        assert!(
            found.is_none_or(|first| first > number),
            "request {number} has one framing, found {found:?}"
        );
        let Some(after) = after else { return };
        rest = after;
    }
}

/// Whether the first request has both fields, and what follows it; `None` where hyper would refuse it or waits for more.
fn next_request(data: &[u8]) -> Option<(bool, Option<&[u8]>)> {
    let mut headers = [httparse::EMPTY_HEADER; 100];
    let mut request = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(length) = request.parse(data).ok()? else { return None };
    let rest = &data[length..];
    let values = |name: &str| -> Vec<&[u8]> {
        request.headers.iter().filter(|h| h.name.eq_ignore_ascii_case(name)).map(|h| h.value).collect()
    };
    let (lengths, codings) = (values("content-length"), values("transfer-encoding"));
    if !codings.is_empty() && !lengths.is_empty() {
        return Some((true, None));
    }
    if let [coding] = codings[..] {
        return Some((false, coding.eq_ignore_ascii_case(b"chunked").then(|| after_chunks(rest)).flatten()));
    }
    match lengths[..] {
        [] if codings.is_empty() => Some((false, Some(rest))),
        [length] => {
            let digits = std::str::from_utf8(length).ok().filter(|l| l.bytes().all(|b| b.is_ascii_digit()));
            let length: usize = digits.and_then(|digits| digits.parse().ok())?;
            Some((false, rest.get(length..)))
        }
        _ => None,
    }
}

fn after_chunks(mut data: &[u8]) -> Option<&[u8]> {
    loop {
        // httparse takes a size without digits for zero; hyper, whose reading counts, refuses it.
        data.first().filter(|first| first.is_ascii_hexdigit())?;
        let httparse::Status::Complete((skip, size)) = httparse::parse_chunk_size(data).ok()? else {
            return None;
        };
        data = data.get(skip..)?;
        if size == 0 {
            let mut trailers = [httparse::EMPTY_HEADER; 16];
            let parsed = httparse::parse_headers(data, &mut trailers).ok()?;
            let httparse::Status::Complete((length, _)) = parsed else { return None };
            return data.get(length..);
        }
        data = data.get(usize::try_from(size).ok()?..)?.strip_prefix(b"\r\n")?;
    }
}

/// A request head as hyper's parser gives it: checked without a panic, its identity harmless.
pub fn head(data: &[u8]) {
    let mut headers = [httparse::EMPTY_HEADER; 100];
    let mut request = httparse::Request::new(&mut headers);
    let Ok(httparse::Status::Complete(_)) = request.parse(data) else { return };
    let Ok(uri) = request.path.unwrap_or_default().parse::<http::Uri>() else { return };
    let mut map = HeaderMap::new();
    for header in request.headers.iter() {
        let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(header.name.as_bytes()), HeaderValue::from_bytes(header.value))
        else {
            return;
        };
        map.append(name, value);
    }
    let version = if request.version == Some(1) { http::Version::HTTP_11 } else { http::Version::HTTP_10 };
    let is_accepted = check_head(version, &uri, &map).is_ok();
    if is_accepted && version == http::Version::HTTP_11 {
        assert_eq!(map.get_all(http::header::HOST).iter().count(), 1);
        assert!(map.get_all(http::header::TRANSFER_ENCODING).iter().count() <= 1);
    }
    let id = request_id(&map);
    let is_harmless = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    assert!((1..=64).contains(&id.len()) && id.bytes().all(is_harmless), "{id}");
    let _ = trace_context::trace_of(&map, Some(0.5));
    let _ = Dialect::of_path(uri.path(), &[]);
}

/// A bearer token or a key set from outside: nothing unsigned is accepted.
pub fn token(data: &[u8]) {
    static KEYS: OnceLock<TokenKeys> = OnceLock::new();
    let keys = KEYS.get_or_init(|| {
        let keys = TokenKeys::default();
        keys.configure(Some(&Jwt {
            issuer: "i".into(),
            audience: vec!["a".into()],
            jwks: Jwks::File("none".into()),
            tenant_claim: "tenant".into(),
            algorithms: vec!["ES256".parse().unwrap(), "RS256".parse().unwrap(), "EdDSA".parse().unwrap()],
            leeway: Duration::ZERO,
            refresh: Duration::from_secs(1),
        }));
        let set = include_bytes!("corpus/token/keys");
        keys.publish(KeySet::parse(set).unwrap());
        keys
    });
    let digest: [u8; 32] = Sha256::digest(data).into();
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    // Nobody has the private keys.
    assert!(keys.verify(data, digest, now).is_err());
    let _ = KeySet::parse(data);
}
