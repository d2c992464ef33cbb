//! Answers that are wrong under a status of success, or under none: relayed as they are, and never counted as good.

use super::matrix::sum;
use super::{CHAT, PATH, UNARY};
use crate::support::client::Reply;
use crate::support::replica::{Replica, Step};
use crate::support::{Gateway, config, wire};

const RESPONSES: &str = "/v1/responses";

/// A head without a body: a length is not allowed everywhere.
fn bare(status_line: &str, headers: &str) -> Vec<Step> {
    vec![Step::Raw(format!("HTTP/1.1 {status_line}\r\n{headers}\r\n").into_bytes())]
}

async fn call(gateway: &Gateway, method: &str, path: &str, body: &str) -> Reply {
    let mut client = gateway.client().await;
    client.send(method, path, &[], body.as_bytes()).await;
    let reply = client.reply().await;
    gateway.idle().await;
    reply
}

/// Requests of this outcome, and attempts at replicas.
fn counted(gateway: &Gateway, outcome: &str) -> [f64; 2] {
    let page = gateway.app.gateway.observer.metrics().render(&[]);
    let label = format!(r#"outcome="{outcome}""#);
    ["tokenway_requests_total", "tokenway_replica_requests_total"].map(|family| sum(&page, family, &label))
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
            let replica = Replica::start().await;
            replica.always(script.clone());
            let gateway = Gateway::start(config::of(&[&replica])).await;
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
    let replica = Replica::start().await;
    replica.always(wire::json(200, error));
    let gateway = Gateway::start(config::of(&[&replica])).await;
    let reply = call(&gateway, "POST", PATH, CHAT).await;
    assert_eq!((reply.status(), reply.text()), (200, error));
    assert_eq!(counted(&gateway, "failed"), [1.0, 1.0]);
}

#[tokio::test]
async fn a_handshake_that_is_answered_without_one_is_counted_as_failed() {
    let replica = Replica::start().await;
    let gateway = Gateway::start(config::of(&[&replica])).await;
    let upgrade = [
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    for (status, outcome) in [(302, "failed"), (200, "failed"), (404, "client_error")] {
        replica.next(wire::json(status, "{}"));
        let before = counted(&gateway, outcome);
        let mut client = gateway.client().await;
        client.send("GET", "/v1/realtime?model=tiny", &upgrade, b"").await;
        let reply = client.reply().await;
        gateway.idle().await;
        assert_eq!((reply.status(), reply.text()), (status, "{}"));
        assert_eq!(counted(&gateway, outcome), before.map(|count| count + 1.0), "{status}");
    }
}

#[tokio::test]
async fn no_content_and_a_stored_error_are_good_where_they_may_be_asked_for() {
    let replica = Replica::start().await;
    let mut config = config::of(&[&replica]);
    config.server.extra_paths = vec!["/v1/things".into()];
    let gateway = Gateway::start(config).await;
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
