//! Responses that an engine keeps: who made one, from its first event on, however it was sent and whoever answered.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

use crate::admission::{degrading, slow, until_degraded};
use crate::support::replica::{Gate, Step};
use crate::support::{Gateway, wire};

const RESPONSES: &str = "/v1/responses";

fn event(kind: &str, number: u64, more: &str) -> Step {
    wire::event(format!(
        "event: {kind}\ndata: {{\"type\":\"{kind}\",\"sequence_number\":{number},{more}}}\n\n"
    ))
}

fn created(id: &str) -> Step {
    let response = format!(r#""response":{{"id":"{id}","object":"response","status":"queued","output":[]}}"#);
    event("response.created", 0, &response)
}

#[tokio::test]
async fn a_response_too_large_to_be_held_is_found_again_where_it_was_made() {
    let ([one, two], gateway) = Gateway::before(|_| {}).await;
    let text = "x".repeat(3 << 20);
    for round in 0..3 {
        let id = format!("resp_{round}");
        let large =
            format!(r#"{{"id":"{id}","object":"response","status":"completed","output":["{text}"]}}"#);
        for replica in [&one, &two] {
            replica.always(wire::json(200, &large));
        }
        let maker = gateway.post(RESPONSES, r#"{"model":"tiny","input":"hi"}"#).await.replica();
        gateway.idle().await;
        for replica in [&one, &two] {
            replica.always(wire::json(200, "{}"));
        }
        for _ in 0..2 {
            let follow_up = format!(r#"{{"model":"tiny","input":"so","previous_response_id":"{id}"}}"#);
            assert_eq!(gateway.post(RESPONSES, &follow_up).await.replica(), maker);
            assert_eq!(gateway.call("GET", &format!("{RESPONSES}/{id}")).await.replica(), maker);
        }
    }
}

#[tokio::test]
async fn elsewhere_a_previous_response_is_a_member_that_engines_do_not_know() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    for (path, body) in [
        ("/v1/chat/completions", r#"{"model":"tiny","messages":[],"previous_response_id":"resp_1"}"#),
        ("/v1/embeddings", r#"{"model":"tiny","input":"x","previous_response_id":"resp_1"}"#),
    ] {
        replica.next(wire::json(200, "{}"));
        assert_eq!(gateway.post(path, body).await.status(), 200, "{path}");
        assert_eq!(replica.received().pop().unwrap().text(), body);
    }
}

#[tokio::test]
async fn a_response_of_the_route_that_stood_in_is_continued_there() {
    let (gateway, large, small) = degrading(None, Vec::new()).await;
    large.always(slow());
    until_degraded(&gateway, &large, &small).await;
    small.next(wire::json(200, r#"{"id":"resp_1","object":"response","status":"completed","output":[]}"#));
    let made = gateway.post(RESPONSES, r#"{"model":"tiny","input":"hi"}"#).await;
    assert_eq!(made.replica(), small.name());
    gateway.idle().await;
    small.always(wire::json(200, "{}"));
    for (model, from) in [("tiny", Some("tiny")), ("small", None)] {
        let body =
            |model: &str| format!(r#"{{"model":"{model}","input":"so","previous_response_id":"resp_1"}}"#);
        let reply = gateway.post(RESPONSES, &body(model)).await;
        assert_eq!(reply.replica(), small.name(), "{model}");
        assert_eq!(reply.field("x-tokenway-degraded-from"), from);
        assert_eq!(small.received().pop().unwrap().text(), body("meta/small"));
    }
    gateway.idle().await;
}

#[tokio::test]
async fn a_client_of_a_stored_stream_has_its_id_at_once_and_may_leave() {
    let ([one, two], gateway) = Gateway::before(|_| {}).await;
    let gate = Gate::new();
    for replica in [&one, &two] {
        replica.always(vec![
            wire::sse_head(),
            created("resp_1"),
            Step::Wait(gate.clone()),
            event("response.output_text.delta", 1, r#""delta":"x""#),
            event("response.completed", 2, r#""response":{"id":"resp_1","status":"completed"}"#),
            Step::End,
        ]);
    }
    let body = r#"{"model":"tiny","stream":true,"background":true,"input":"hi"}"#;
    let mut client = gateway.sent(RESPONSES, body).await;
    let maker = client.head().await.header("x-tokenway-replica").unwrap().to_owned();
    client.read_until("resp_1").await;
    drop(client);
    gateway.idle().await;
    for replica in [&one, &two] {
        replica.always(wire::json(200, "{}"));
    }
    for _ in 0..2 {
        assert_eq!(gateway.call("GET", "/v1/responses/resp_1").await.replica(), maker);
    }
    gate.cancel();
}

#[tokio::test]
async fn a_resumed_stream_whose_replica_dies_ends_with_a_failed_response() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    replica.next(wire::json(200, r#"{"id":"resp_1","object":"response","status":"in_progress"}"#));
    gateway.post(RESPONSES, r#"{"model":"tiny","background":true,"input":"hi"}"#).await;
    for half in ["", "event: response.output_text.delta\ndata: {\"ty"] {
        replica.next(vec![
            wire::sse_head(),
            event("response.output_text.delta", 4, r#""delta":"x""#),
            wire::event(format!(": still here\n\n{half}")),
            Step::Reset,
        ]);
        let reply = gateway.call("GET", "/v1/responses/resp_1?stream=true&starting_after=3").await;
        assert!(!reply.body.is_complete, "an incomplete answer never looks complete");
        let (_, last) = reply.text().rsplit_once("event: response.failed\ndata: ").unwrap();
        let failed: serde_json::Value = serde_json::from_str(last.trim_end()).unwrap();
        assert_eq!(
            (failed["sequence_number"].as_u64(), &failed["response"]["id"]),
            (Some(5), &"resp_1".into())
        );
        assert_eq!(failed["response"]["error"]["code"], "replica_failed");
    }
}
