//! Responses that an engine keeps: who made one, from its first event on, however it was sent and whoever answered.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

use crate::support::client::Reply;
use crate::support::replica::Replica;
use crate::support::{Gateway, config, wire};

const RESPONSES: &str = "/v1/responses";

fn replica_of(reply: &Reply) -> String {
    assert_eq!(reply.status(), 200, "{}", reply.text());
    reply.head.header("x-tokenway-replica").unwrap().to_owned()
}

#[tokio::test]
async fn a_response_too_large_to_be_held_is_found_again_where_it_was_made() {
    let (one, two) = (Replica::start().await, Replica::start().await);
    let gateway = Gateway::start(config::of(&[&one, &two])).await;
    let text = "x".repeat(3 << 20);
    for round in 0..3 {
        let id = format!("resp_{round}");
        let large =
            format!(r#"{{"id":"{id}","object":"response","status":"completed","output":["{text}"]}}"#);
        for replica in [&one, &two] {
            replica.always(wire::json(200, &large));
        }
        let maker = replica_of(&gateway.post(RESPONSES, r#"{"model":"tiny","input":"hi"}"#).await);
        gateway.idle().await;
        for replica in [&one, &two] {
            replica.always(wire::json(200, "{}"));
        }
        for _ in 0..2 {
            let follow_up = format!(r#"{{"model":"tiny","input":"so","previous_response_id":"{id}"}}"#);
            assert_eq!(replica_of(&gateway.post(RESPONSES, &follow_up).await), maker);
            assert_eq!(replica_of(&gateway.call("GET", &format!("{RESPONSES}/{id}")).await), maker);
        }
    }
}
