//! Answers that are wrong under a status of success, or under none: relayed as they are, and never counted as good.

use super::{CHAT, PATH, UNARY};
use crate::support::client::Reply;
use crate::support::replica::Step;
use crate::support::{Gateway, wire};

const RESPONSES: &str = "/v1/responses";

/// A head without a body: a length is not allowed everywhere.
fn bare(status_line: &str, headers: &str) -> Vec<Step> {
    vec![Step::Raw(format!("HTTP/1.1 {status_line}\r\n{headers}\r\n").into_bytes())]
}

async fn call(gateway: &Gateway, method: &str, path: &str, body: &str) -> Reply {
    let reply = gateway.ask(method, path, &[], body).await;
    gateway.idle().await;
    reply
}

/// Requests of this outcome, and attempts at replicas.
fn counted(gateway: &Gateway, outcome: &str) -> [f64; 2] {
    let label = format!(r#"outcome="{outcome}""#);
    ["tokenway_requests_total", "tokenway_replica_requests_total"]
        .map(|family| gateway.sum(family, &[&label]))
}

#[tokio::test]
async fn a_wrong_answer_that_none_replaces_is_relayed_and_counted_as_failed() {
    let engine = r#"{"error":{"message":"no upstream","type":"InternalServerError","code":500}}"#;
    let bare_words = r#"{"error":"no upstream"}"#;
    let rejected = r#"{"error":{"message":"too long","type":"BadRequestError","code":400}}"#;
    let see = "content-length: 0\r\nlocation: https://example.com/\r\n";
    let embeddings = r#"{"model":"tiny","input":"hi"}"#;
    for (what, script, status, text, outcome) in [
        ("302", bare("302 Found", see), 302, "", "failed"),
        ("307 with a page", wire::json(307, "{}"), 307, "{}", "failed"),
        ("304", bare("304 Not Modified", ""), 304, "", "failed"),
        ("204", bare("204 No Content", ""), 204, "", "failed"),
        ("nothing", wire::json(200, ""), 200, "", "failed"),
        ("error", wire::json(200, engine), 200, engine, "failed"),
        ("bare error", wire::json(200, bare_words), 200, bare_words, "failed"),
        ("rejection", wire::json(200, rejected), 200, rejected, "client_error"),
        ("no error", wire::json(200, r#"{"error":null}"#), 200, r#"{"error":null}"#, "ok"),
        ("empty error", wire::json(200, r#"{"error":{}}"#), 200, r#"{"error":{}}"#, "ok"),
    ] {
        for (path, request) in [(PATH, UNARY), (RESPONSES, embeddings), ("/v1/embeddings", embeddings)] {
            let ([replica], gateway) = Gateway::before(|_| {}).await;
            replica.always(script.clone());
            let reply = call(&gateway, "POST", path, request).await;
            assert_eq!((reply.status(), reply.text()), (status, text), "{what}, {path}");
            assert!(reply.body.is_complete, "{what}, {path}");
            assert_eq!(counted(&gateway, outcome), [1.0, 1.0], "{what}, {path}");
        }
    }
}

#[tokio::test]
async fn an_error_under_200_to_a_stream_s_client_is_counted_as_failed() {
    let error = r#"{"error":{"message":"no upstream","type":"InternalServerError","code":502}}"#;
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    replica.always(wire::json(200, error));
    let reply = call(&gateway, "POST", PATH, CHAT).await;
    assert_eq!((reply.status(), reply.text()), (200, error));
    assert_eq!(counted(&gateway, "failed"), [1.0, 1.0]);
}

#[tokio::test]
async fn a_handshake_that_is_answered_without_one_is_counted_as_failed() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    let upgrade = [
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    for (status, outcome) in [(302, "failed"), (200, "failed"), (404, "client_error")] {
        replica.next(wire::json(status, "{}"));
        let before = counted(&gateway, outcome);
        let reply = gateway.ask("GET", "/v1/realtime?model=tiny", &upgrade, b"").await;
        gateway.idle().await;
        assert_eq!((reply.status(), reply.text()), (status, "{}"));
        assert_eq!(counted(&gateway, outcome), before.map(|count| count + 1.0), "{status}");
    }
}

#[tokio::test]
async fn no_content_and_a_stored_error_are_good_where_they_may_be_asked_for() {
    let ([replica], gateway) =
        Gateway::before(|config| config.server.extra_paths = vec!["/v1/things".into()]).await;
    let made = r#"{"id":"resp_1","object":"response","status":"queued","error":null}"#;
    replica.next(wire::json(200, made));
    call(&gateway, "POST", RESPONSES, r#"{"model":"tiny","input":"hi","background":true}"#).await;
    let failed = r#"{"id":"resp_1","status":"failed","error":{"code":"server_error","message":"boom"}}"#;
    let none = bare("204 No Content", "");
    let unchanged = bare("304 Not Modified", "");
    for (method, path, script, status) in [
        ("GET", "/v1/responses/resp_1", wire::json(200, failed), 200),
        ("GET", "/v1/responses/resp_1", unchanged, 304),
        ("DELETE", "/v1/responses/resp_1", none.clone(), 204),
        ("POST", "/v1/responses/resp_1/cancel", none.clone(), 204),
        ("POST", "/v1/things", none.clone(), 204),
        ("OPTIONS", PATH, none, 204),
    ] {
        replica.next(script);
        let before = counted(&gateway, "ok");
        assert_eq!(call(&gateway, method, path, "").await.status(), status, "{method} {path}");
        assert_eq!(counted(&gateway, "ok"), before.map(|count| count + 1.0), "{method} {path}");
    }
}

fn event(kind: &str, number: u8, members: &str) -> String {
    format!("event: {kind}\ndata: {{\"type\":\"{kind}\",\"sequence_number\":{number}{members}}}\n\n")
}

#[tokio::test]
async fn a_stored_response_s_stream_is_judged_like_the_one_that_made_it() {
    let made = event("response.created", 0, r#","response":{"id":"resp_1","status":"in_progress"}"#);
    let begun = format!("{made}{}", event("response.output_text.delta", 1, r#","delta":"hi""#));
    let failed =
        r#","response":{"id":"resp_1","status":"failed","error":{"code":"server_error","message":"boom"}}"#;
    let rejected = r#","error":{"code":400,"message":"no such tool","type":"BadRequestError"}"#;
    let whole = r#","response":{"id":"resp_1","status":"completed"}"#;
    for (what, end, outcome) in [
        ("whole", event("response.completed", 2, whole), "ok"),
        ("failed", event("response.failed", 2, failed), "failed"),
        ("error", event("error", 2, r#","code":"server_error","message":"boom""#), "failed"),
        ("rejected", event("error", 2, rejected), "client_error"),
        ("no end", String::new(), "failed"),
    ] {
        let ([replica], gateway) = Gateway::before(|_| {}).await;
        replica.next(wire::json(200, r#"{"id":"resp_1","object":"response","status":"completed"}"#));
        call(&gateway, "POST", RESPONSES, r#"{"model":"tiny","input":"hi"}"#).await;
        // Split where reads may split it.
        let (head, tail) = begun.split_at(begun.len() - 9);
        replica.always(wire::stream([head, &*format!("{tail}{end}")]));
        let before = counted(&gateway, outcome);
        call(&gateway, "POST", RESPONSES, r#"{"model":"tiny","input":"hi","stream":true}"#).await;
        assert_eq!(counted(&gateway, outcome), before.map(|count| count + 1.0), "{what}, made");
        let reply = call(&gateway, "GET", "/v1/responses/resp_1?stream=true", "").await;
        assert_eq!(reply.text(), begun.clone() + &end, "{what}: as the engine sent it");
        assert!(reply.body.is_complete, "{what}");
        assert_eq!(counted(&gateway, outcome), before.map(|count| count + 2.0), "{what}, resumed");
    }
}

#[tokio::test]
async fn a_client_that_leaves_at_the_end_of_a_stored_response_s_stream_has_seen_it() {
    let failed = event("response.failed", 0, r#","response":{"id":"resp_1","error":{"message":"boom"}}"#);
    let whole = event("response.completed", 0, r#","response":{"id":"resp_1","status":"completed"}"#);
    for (end, outcome) in [(failed, "failed"), (whole, "ok")] {
        let ([replica], gateway) = Gateway::before(|_| {}).await;
        replica.next(wire::json(200, r#"{"id":"resp_1","object":"response","status":"completed"}"#));
        call(&gateway, "POST", RESPONSES, r#"{"model":"tiny","input":"hi"}"#).await;
        let before = counted(&gateway, outcome);
        // An engine may leave the body open behind it.
        replica.next(vec![wire::sse_head(), wire::event(end), Step::Hang]);
        let mut client = gateway.client().await;
        client.send("GET", "/v1/responses/resp_1?stream=true", &[], b"").await;
        client.head().await;
        client.read_until("}}\n\n").await;
        drop(client);
        replica.abandoned(1).await;
        gateway.idle().await;
        assert_eq!(counted(&gateway, outcome), before.map(|count| count + 1.0), "{outcome}");
    }
}

#[tokio::test]
async fn nothing_left_of_a_stored_response_s_stream_is_no_failure() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    replica.next(wire::json(200, r#"{"id":"resp_1","object":"response","status":"completed"}"#));
    call(&gateway, "POST", RESPONSES, r#"{"model":"tiny","input":"hi"}"#).await;
    replica.next(wire::stream([": nothing after 7\n\n"]));
    let reply = call(&gateway, "GET", "/v1/responses/resp_1?stream=true&starting_after=7", "").await;
    assert!(reply.body.is_complete);
    assert_eq!(counted(&gateway, "ok"), [2.0, 2.0]);
}
