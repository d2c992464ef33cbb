//! Transcriptions as streams: chunks like those of a chat, asked for by a field of a form.

use std::time::Duration;

use tokenway::config::Config;

use super::Pair;
use crate::support::client::Reply;
use crate::support::replica::{Replica, Step};
use crate::support::{FORM, Gateway, config, wire};

const PATH: &str = "/v1/audio/transcriptions";
const SHORT: Duration = Duration::from_millis(300);

fn chunk(choices: &str) -> String {
    format!(
        "data: {{\"id\":\"trsc-1\",\"object\":\"transcription.chunk\",\"created\":1,\"model\":\"tiny\",\"choices\":[{choices}]}}\n\n"
    )
}

fn text(text: &str) -> String {
    chunk(&format!(r#"{{"delta":{{"content":"{text}"}},"finish_reason":null,"stop_reason":null}}"#))
}

/// vLLM ends each piece of a long recording so.
fn stop() -> String {
    chunk(r#"{"delta":{"content":""},"finish_reason":"stop","stop_reason":null}"#)
}

fn usage() -> String {
    let counts = r#"{"prompt_tokens":30,"total_tokens":37,"completion_tokens":7}"#;
    chunk("").replace("}\n\n", &format!(",\"usage\":{counts}}}\n\n"))
}

fn done() -> String {
    wire::DONE.to_owned()
}

/// A transcription of two pieces.
fn events() -> Vec<String> {
    vec![text("one"), stop(), text(" two"), stop(), usage(), done()]
}

async fn post_as(gateway: &Gateway, path: &str, stream: &str) -> Reply {
    let field = |name: &str, value: &str| {
        format!("--B\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    let file =
        "--B\r\ncontent-disposition: form-data; name=\"file\"; filename=\"stream\"\r\n\r\nRIFF\u{0}\r\n";
    let form = format!("{file}{}{}--B--\r\n", field("model", "tiny"), field("stream", stream));
    let reply = gateway.post_with(path, &[("content-type", FORM)], form).await;
    gateway.idle().await;
    reply
}

async fn post(gateway: &Gateway) -> Reply {
    post_as(gateway, PATH, "true").await
}

async fn one(configure: impl FnOnce(&mut Config)) -> (Replica, Gateway) {
    let ([replica], gateway) = Gateway::before(configure).await;
    (replica, gateway)
}

#[tokio::test]
async fn a_transcription_that_fails_before_its_first_text_is_retried_elsewhere_and_not_seen() {
    let abort = chunk(r#"{"delta":{"content":""},"finish_reason":"abort"}"#);
    for (name, script) in [
        ("engine died", wire::stream([wire::ENGINE_DEAD, wire::DONE])),
        ("engine shut down", wire::stream([&*abort, wire::DONE])),
        ("ended in order with nothing told", wire::stream([wire::DONE])),
        ("ended at once", vec![wire::sse_head(), Step::End]),
        ("broke off at once", vec![wire::sse_head(), Step::Close]),
    ] {
        let pair = Pair::start(script).await;
        pair.good.next(wire::stream(events()));
        let reply = post(&pair.gateway).await;
        assert_eq!(pair.bad.count(), 1, "{name}");
        assert_eq!((reply.status(), reply.text()), (200, &*events().concat()), "{name}");
        assert_eq!(reply.field("x-tokenway-replica"), Some(&*pair.good.name()), "{name}");
    }
}

#[tokio::test]
async fn a_transcription_that_breaks_behind_its_first_text_ends_with_an_error_and_is_no_success() {
    let (replica, gateway) = one(|_| {}).await;
    let cases = [
        ("broke off", vec![text("one")], Step::Close),
        ("broke off between two pieces", vec![text("one"), stop()], Step::Close),
        ("ended without its end", vec![text("one"), stop()], Step::End),
        ("engine died", vec![text("one"), wire::ENGINE_DEAD.to_owned(), done()], Step::End),
    ];
    let count = cases.len() as f64;
    for (name, events, last) in cases {
        let mut script = wire::stream(&events);
        script.pop();
        script.push(last);
        replica.next(script);
        let reply = post(&gateway).await;
        assert!(!reply.body.is_complete, "{name}: {}", reply.text());
        assert!(reply.text().starts_with(&text("one")) && !reply.text().contains("[DONE]"), "{name}");
        assert!(reply.text().contains(r#""type":"upstream_error""#), "{name}: {}", reply.text());
    }
    let failed = gateway.sum("tokenway_requests_total", &[r#"outcome="failed""#]);
    assert_eq!((failed, gateway.sum("tokenway_goodput_requests_total", &[])), (count, 0.0));
}

#[tokio::test]
async fn a_transcription_keeps_the_deadlines_of_streams() {
    let (replica, gateway) = one(|config| config.routes[0].timeouts.first_token = SHORT).await;
    replica.next(vec![wire::sse_head(), Step::Hang]);
    let reply = post(&gateway).await;
    assert_eq!((reply.status(), &*reply.code()), (504, "timeout_first_token"));

    let (replica, gateway) = one(|config| config.routes[0].timeouts.inter_token = SHORT).await;
    replica.next(vec![wire::sse_head(), wire::event(text("one")), Step::Hang]);
    let reply = post(&gateway).await;
    assert!(!reply.body.is_complete && reply.text().contains("timeout_inter_token"), "{}", reply.text());
}

#[tokio::test]
async fn the_first_text_and_the_tokens_of_a_transcription_are_counted() {
    let (replica, gateway) = one(|_| {}).await;
    for (path, stream) in [(PATH, "true"), ("/v1/audio/translations", "1")] {
        replica.next(wire::stream(events()));
        let reply = post_as(&gateway, path, stream).await;
        assert!(reply.body.is_complete);
        assert_eq!(reply.text(), events().concat());
        assert!(reply.field("server-timing").unwrap().contains("first_token;dur="));
    }
    let tokens = |kind: &str| gateway.sum("tokenway_tenant_tokens_total", &[&format!("kind=\"{kind}\"")]);
    assert_eq!((tokens("input"), tokens("output")), (60.0, 14.0));
    assert_eq!(gateway.sum("tokenway_time_to_first_token_seconds_count", &[]), 2.0);
    assert_eq!(gateway.sum("tokenway_goodput_requests_total", &[]), 2.0);
}

#[tokio::test]
async fn silence_is_a_whole_transcription_and_openai_s_own_events_are_read_like_chunks() {
    let (replica, gateway) = one(|_| {}).await;
    let event = |event: &str| format!("data: {{\"type\":\"transcript.text.{event}}}\n\n");
    let delta = event(r#"delta","delta":"one""#);
    let end = event(r#"done","text":"one","usage":{"type":"tokens","input_tokens":30,"output_tokens":7}"#);
    for events in [vec![stop(), done()], vec![end.clone()], vec![delta.clone(), end]] {
        replica.next(wire::stream(&events));
        let reply = post(&gateway).await;
        assert!(reply.body.is_complete && reply.status() == 200, "{}", reply.text());
        assert_eq!(reply.text(), events.concat());
    }
    assert_eq!(gateway.sum("tokenway_tenant_tokens_total", &[r#"kind="output""#]), 14.0);
    replica.next(wire::stream([delta]));
    assert!(!post(&gateway).await.body.is_complete);
    replica.next(wire::json(200, r#"{"text":"one"}"#));
    assert_eq!(post_as(&gateway, PATH, "false").await.text(), r#"{"text":"one"}"#);
}

#[tokio::test]
async fn a_replica_that_fails_every_upload_is_left() {
    let text = wire::json(200, r#"{"text":"one"}"#);
    let pair = Pair::start_with(|config| config.retry.attempts = 0, text.clone()).await;
    let upload = async |n: usize| {
        let form = format!(
            "--B\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\ntiny\r\n\
             --B\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nRIFF{n}\r\n--B--\r\n"
        );
        pair.gateway.post_with(PATH, &[("content-type", FORM)], form).await.status()
    };
    pair.good.always(text.clone());
    pair.bad.always(text);
    for n in 0..20 {
        assert_eq!(upload(n).await, 200);
    }
    pair.bad.always(wire::json(500, r#"{"error":{"message":"no"}}"#));
    let mut failed = 0;
    for n in 20..120 {
        failed += usize::from(upload(n).await != 200);
    }
    assert!((1..=10).contains(&failed), "{failed} of a hundred failed");
}

#[tokio::test]
async fn a_page_is_no_transcription() {
    let page = vec![Step::Raw(wire::whole(200, "text/html", "<h1>It works!</h1>"))];
    let text = vec![Step::Raw(wire::whole(200, "text/plain", "WEBVTT"))];
    let [one, two] = Replica::several().await;
    one.always(page);
    two.always(text);
    let gateway = Gateway::start(config::of(&[&one, &two])).await;
    for _ in 0..6 {
        let reply = post_as(&gateway, PATH, "false").await;
        assert_eq!((reply.status(), reply.text()), (200, "WEBVTT"));
    }
    assert!(one.count() > 0, "it was asked");
    // whisper.cpp's server calls its plain text so.
    one.always(vec![Step::Raw(wire::whole(200, "text/html; charset=utf-8", " one two\n"))]);
    two.always(vec![Step::Raw(wire::whole(200, "text/html; charset=utf-8", " one two\n"))]);
    let reply = post_as(&gateway, PATH, "false").await;
    assert_eq!((reply.status(), reply.text()), (200, " one two\n"));
}

/// As faster-whisper's server and its forks send them: no type, no reason, no `[DONE]`.
#[tokio::test]
async fn segments_that_name_no_type_end_with_their_body_and_are_cut_where_that_is() {
    for events in [
        ["data: {\"text\":\"one\"}\n\n", "data: {\"text\":\" two\"}\n\n"],
        ["data: one\n\n", "data: two\n\n"],
    ] {
        let (replica, gateway) = one(|_| ()).await;
        replica.next([vec![wire::sse_head()], events.map(wire::event).to_vec(), vec![Step::End]].concat());
        let reply = post(&gateway).await;
        assert_eq!((reply.status(), reply.text()), (200, &*events.concat()));
        replica.next([vec![wire::sse_head()], events.map(wire::event).to_vec(), vec![Step::Close]].concat());
        assert!(post(&gateway).await.text().contains("error"), "it broke off");
        assert_eq!(replica.count(), 2, "not sent twice");
    }
}
