//! Requests whose first token is overdue, on a route with `hedge`: one answer, of whoever spoke first, and nothing left behind.

use std::time::Duration;

use tokenway::config::{Hedge, HedgeAfter};
use tokenway::fleet::status::ReplicaState;

use super::{CHAT, PATH, Pair, clean};
use crate::support::replica::{Gate, Step};
use crate::support::{Gateway, wire};

async fn pair(budget: f64, script: Vec<Step>) -> Pair {
    let hedge = Hedge { after: HedgeAfter::Delay(Duration::from_millis(30)), budget };
    Pair::start_with(|config| config.routes[0].hedge = Some(hedge), script).await
}

/// `won`, `lost`, `failed`
fn hedges(gateway: &Gateway) -> [u64; 3] {
    let count = |result| gateway.sum("tokenway_hedges_total", &[&format!("result=\"{result}\"")]) as u64;
    ["won", "lost", "failed"].map(count)
}

/// First tokens that a replica's own series has.
fn first_tokens(gateway: &Gateway, replica: &str) -> u64 {
    gateway.sum("tokenway_replica_time_to_first_token_seconds_count", &[replica]) as u64
}

fn silent() -> Vec<Step> {
    vec![wire::sse_head(), wire::event(wire::ROLE), Step::Hang]
}

#[tokio::test]
async fn the_second_replica_answers_where_the_first_says_nothing() {
    let pair = pair(1.0, silent()).await;
    let [before, late] = [&pair.good, &pair.bad].map(|replica| first_tokens(&pair.gateway, &replica.name()));
    let reply = pair.post(CHAT).await;
    assert_eq!((reply.status(), reply.text(), reply.body.is_complete), (200, &*clean(), true));
    assert_eq!(reply.field("x-tokenway-replica"), Some(&*pair.good.name()));
    pair.bad.abandoned(1).await;
    assert_eq!(hedges(&pair.gateway), [1, 0, 0]);
    assert_eq!(first_tokens(&pair.gateway, &pair.good.name()), before, "the other's silence would be in it");
    assert_eq!(
        first_tokens(&pair.gateway, &pair.bad.name()),
        late + 1,
        "it was silent for that long at least"
    );
    assert_eq!(pair.gateway.state_of(&pair.bad), ReplicaState::Ready, "the loser is not charged");
    assert!(!pair.gateway.page().contains("tokenway_retries_total{") && pair.gateway.ended("failed") == 0.0);
}

#[tokio::test]
async fn the_first_replica_answers_where_it_speaks_first_all_the_same() {
    let (gate, mut script) = (Gate::new(), wire::chat_stream(&["a", "b"]));
    script.insert(1, Step::Wait(gate.clone()));
    let pair = pair(1.0, script).await;
    pair.good.next(silent());
    let mut client = pair.gateway.sent(PATH, CHAT).await;
    pair.good.got(2).await;
    gate.cancel();
    let reply = client.reply().await;
    assert_eq!((reply.text(), reply.body.is_complete), (&*clean(), true));
    assert_eq!(reply.field("x-tokenway-replica"), Some(&*pair.bad.name()));
    pair.good.abandoned(1).await;
    pair.gateway.idle().await;
    assert_eq!(hedges(&pair.gateway), [0, 1, 0]);
    assert_eq!(first_tokens(&pair.gateway, &pair.bad.name()), 1, "late as it was");
}

#[tokio::test]
async fn an_instant_refusal_of_the_second_replica_is_no_answer() {
    for refusal in [
        wire::json(503, "{}"),
        wire::json(500, "{}"),
        wire::json(404, "{}"),
        wire::json(200, r#"{"error":"no"}"#),
        wire::stream([wire::ENGINE_ERROR, wire::DONE]),
        vec![Step::Close],
    ] {
        let (gate, mut script) = (Gate::new(), wire::chat_stream(&["a", "b"]));
        script.insert(1, Step::Wait(gate.clone()));
        let pair = pair(1.0, script).await;
        pair.good.next(refusal);
        let mut client = pair.gateway.sent(PATH, CHAT).await;
        pair.good.got(2).await;
        gate.cancel();
        let reply = client.reply().await;
        assert_eq!((reply.status(), reply.text()), (200, &*clean()));
        pair.gateway.idle().await;
        let [won, lost, failed] = hedges(&pair.gateway);
        // Which of the two came first is the machine's affair; that the refusal was not relayed is not.
        assert_eq!((won, lost + failed), (0, 1));
    }
}

#[tokio::test]
async fn the_budget_is_a_share_of_the_requests_without_a_floor() {
    let script = [vec![Step::Tick; 10], wire::chat_stream(&["a", "b"])].concat();
    let pair = pair(0.02, script).await;
    let reply = pair.post(CHAT).await;
    assert_eq!(reply.text(), clean());
    assert_eq!((pair.good_requests(), hedges(&pair.gateway)), (0, [0, 0, 0]));
}

#[tokio::test]
async fn a_response_that_is_stored_is_not_asked_for_twice() {
    let answer = wire::json(200, r#"{"id":"resp_1","object":"response"}"#);
    let pair = pair(1.0, [vec![Step::Tick; 12], answer].concat()).await;
    let body = r#"{"model":"tiny","input":"hi","stream":true,"background":true,"store":true}"#;
    assert_eq!(pair.gateway.post("/v1/responses", body).await.status(), 200);
    assert_eq!((pair.good.count(), hedges(&pair.gateway)), (1, [0, 0, 0]));
}
