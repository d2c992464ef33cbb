//! Copies of requests for a canary at its shadow step: whatever becomes of them, clients notice nothing.

use tokenway::fleet::status::ReplicaState;

use super::{CHAT, PATH, clean};
use crate::support::replica::{Replica, Step};
use crate::support::{Gateway, config, until, wire};

/// A baseline and a canary that gets a copy of every request.
struct Shadowed {
    baseline: Replica,
    canary: Replica,
    gateway: Gateway,
}

impl Shadowed {
    async fn start(shadow: &str) -> Self {
        let [baseline, canary] = Replica::several().await;
        let shadow = format!("shadow = {{ weight = 100, soak = \"1h\"{shadow} }}");
        let gateway = Gateway::start(config::with_canary(&baseline, &canary, &shadow)).await;
        let this = Self { baseline, canary, gateway };
        this.copy(10_000);
        this
    }

    fn copy(&self, share: u32) {
        self.gateway.app.gateway.shadows.by_canary.of(&"*".into(), &"new".into()).share.set(share);
    }

    /// Copies that ended so, or were not sent for this reason.
    fn copies(&self, outcome: &str) -> u64 {
        let is_it = format!("outcome=\"{outcome}\"");
        self.gateway.sum("tokenway_canary_shadow_requests_total", &[&is_it]) as u64
    }

    async fn copied(&self, outcome: &str, count: u64) {
        until(outcome, || self.copies(outcome) == count).await;
    }
}

#[tokio::test]
async fn the_canary_gets_a_copy_under_its_own_id_and_trace_and_the_client_the_baseline_s_answer() {
    let shadowed = Shadowed::start("").await;
    shadowed.canary.always(wire::chat_stream(&["quite", "another"]));
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let reply =
        shadowed.gateway.post_with(PATH, &[("x-request-id", "mine"), ("traceparent", trace)], CHAT).await;
    assert_eq!((reply.status(), reply.text(), reply.body.is_complete), (200, &*clean(), true));
    assert_eq!(reply.field("x-request-id"), Some("mine"));
    shadowed.copied("ok", 1).await;
    let (original, copy) = (shadowed.baseline.only(), shadowed.canary.only());
    assert_eq!((copy.line(), copy.text()), (original.line(), original.text()));
    assert_eq!(copy.header("x-request-id"), Some("mine-shadow"));
    let is_theirs = |head: Option<&str>| head.unwrap().contains("0af7651916cd43dd8448eb211c80319c");
    assert!(is_theirs(original.header("traceparent")) && !is_theirs(copy.header("traceparent")));
    shadowed.gateway.idle().await;

    // One request, one answer of the baseline, in all that is counted for clients.
    let page = shadowed.gateway.page();
    let of_clients = |line: &&str| {
        let counts = [
            "tokenway_requests_total{",
            "tokenway_time_to_first_token_seconds_count{",
            "tokenway_replica_requests_total{",
        ];
        counts.iter().any(|name| line.starts_with(name)) && !line.ends_with(" 0")
    };
    let counted: Vec<_> = page.lines().filter(of_clients).collect();
    assert!(
        !counted.is_empty() && counted.iter().all(|line| line.ends_with(" 1") && !line.contains("\"new\"")),
        "{counted:?}"
    );
    assert!(page.contains("tokenway_canary_shadow_time_to_first_token_seconds_count{pool=\"new\",revision=\"new\",route=\"*\"} 1"), "{page}");
}

#[tokio::test]
async fn whatever_the_canary_does_with_its_copy_the_client_s_answer_is_the_same() {
    let shadowed = Shadowed::start("").await;
    let (dead, error) = (
        wire::json(503, "{}"),
        wire::json(500, r#"{"error":{"message":"no","type":"InternalServerError"}}"#),
    );
    let scripts = [
        dead,
        error,
        wire::json(302, "{}"),
        wire::json(200, r#"{"error":{"message":"no"}}"#),
        vec![Step::Close],
        vec![Step::Reset],
        wire::begun_then("a", [Step::Reset]),
        wire::begun_then("a", [wire::event(wire::ENGINE_DEAD), Step::End]),
        vec![Step::Raw(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\nhi".to_vec(),
        )],
    ];
    for (done, script) in (1..).zip(scripts) {
        shadowed.canary.next(script);
        let reply = shadowed.gateway.post(PATH, CHAT).await;
        assert_eq!((reply.status(), reply.text(), reply.body.is_complete), (200, &*clean(), true));
        assert_eq!(reply.field("x-tokenway-replica"), Some(&*shadowed.baseline.name()));
        shadowed.copied("failed", done).await;
        assert_eq!(
            shadowed.gateway.state_of(&shadowed.canary),
            ReplicaState::Ready,
            "only the judge holds it against it"
        );
    }
    assert!(!shadowed.gateway.page().contains("tokenway_retries_total{"));

    // No prompt is suspected of killing engines, so that the next client is served.
    shadowed.canary.stop_listening().await;
    let reply = shadowed.gateway.post(PATH, CHAT).await;
    assert_eq!((reply.status(), reply.text()), (200, &*clean()));
}

#[tokio::test]
async fn copies_at_a_canary_that_hangs_are_bounded_and_clients_do_not_wait_for_them() {
    let shadowed = Shadowed::start(", max_concurrent = 2").await;
    shadowed.canary.always(vec![wire::sse_head(), wire::event(wire::ROLE), Step::Hang]);
    for _ in 0..5 {
        let reply = shadowed.gateway.post(PATH, CHAT).await;
        assert_eq!((reply.text(), reply.body.is_complete), (&*clean(), true));
    }
    shadowed.copied("over_max_concurrent", 3).await;
    shadowed.canary.got(2).await;
    assert_eq!(shadowed.canary.count(), 2);
    // The end of the gateway does not wait for them either.
    shadowed.gateway.app.stop(std::time::Duration::from_secs(4)).await;
    shadowed.canary.abandoned(2).await;
}

#[tokio::test]
async fn bodies_of_copies_are_bounded_together() {
    let shadowed = Shadowed::start(", max_bytes = \"1KiB\"").await;
    let long = CHAT.replace("\"hi\"", &format!("\"{}\"", "x".repeat(2000)));
    let reply = shadowed.gateway.post(PATH, &long).await;
    assert_eq!(reply.text(), clean());
    shadowed.copied("over_max_bytes", 1).await;
    shadowed.gateway.post(PATH, CHAT).await;
    shadowed.copied("ok", 1).await;
    assert_eq!(shadowed.canary.only().text(), CHAT);
}

#[tokio::test]
async fn what_an_engine_keeps_is_not_copied_and_without_a_share_nothing_is() {
    let shadowed = Shadowed::start("").await;
    let answer = r#"{"id":"resp_1","object":"response","status":"completed","output":[]}"#;
    shadowed.baseline.always(wire::json(200, answer));
    shadowed.canary.always(wire::json(200, answer));
    for body in [
        r#"{"model":"tiny","input":"hi"}"#,
        r#"{"model":"tiny","input":"hi","store":true}"#,
        r#"{"model":"tiny","input":"hi","store":false,"background":true}"#,
        r#"{"model":"tiny","input":"hi","store":false,"tools":[{"type":"mcp","server_label":"s"}]}"#,
    ] {
        assert_eq!(shadowed.gateway.post("/v1/responses", body).await.status(), 200);
    }
    shadowed.copied("stored", 4).await;
    assert_eq!(shadowed.gateway.call("GET", "/v1/responses/resp_1").await.status(), 200);
    let previous = r#"{"model":"tiny","input":"hi","store":false,"previous_response_id":"resp_1"}"#;
    assert_eq!(shadowed.gateway.post("/v1/responses", previous).await.status(), 200);
    assert_eq!(shadowed.gateway.post("/tokenize", r#"{"model":"tiny","prompt":"x"}"#).await.status(), 200);
    assert_eq!(shadowed.canary.count(), 0);
    let stateless = r#"{"model":"tiny","input":"hi","store":false}"#;
    assert_eq!(shadowed.gateway.post("/v1/responses", stateless).await.status(), 200);
    shadowed.copied("ok", 1).await;
    assert_eq!(shadowed.canary.only().text(), stateless);
    shadowed.copy(0);
    assert_eq!(shadowed.gateway.post("/v1/responses", stateless).await.status(), 200);
    shadowed.gateway.idle().await;
    assert_eq!(shadowed.canary.count(), 1);
}

#[tokio::test]
async fn what_fetches_cached_blocks_of_another_engine_is_not_copied() {
    let shadowed = Shadowed::start("").await;
    let with = |member: &str| CHAT.replacen('{', &format!("{{{member},"), 1);
    for params in [
        r#""kv_transfer_params":{"do_remote_prefill":true,"remote_engine_id":"p1"}"#,
        r#""kv_transfer_params" : {}"#,
    ] {
        assert_eq!(shadowed.gateway.post(PATH, &with(params)).await.text(), clean());
    }
    shadowed.copied("own_params", 2).await;
    assert_eq!((shadowed.baseline.count(), shadowed.canary.count()), (2, 0));
    let said = CHAT.replace("\"hi\"", r#""what is \"kv_transfer_params\"?""#);
    for (done, body) in (1..).zip([with(r#""kv_transfer_params":null"#), said]) {
        assert_eq!(shadowed.gateway.post(PATH, &body).await.text(), clean());
        shadowed.copied("ok", done).await;
    }
}

#[tokio::test]
async fn a_copy_ends_when_its_client_leaves_and_is_held_against_nobody() {
    let shadowed = Shadowed::start(", max_concurrent = 1").await;
    let silent = || vec![wire::sse_head(), wire::event(wire::ROLE), Step::Hang];
    let begun = || wire::begun_then("x", [Step::Hang]);
    for (done, (script, said)) in (1..).zip([(silent(), None), (begun(), Some("\"x\""))]) {
        shadowed.baseline.next(if said.is_some() { begun() } else { silent() });
        shadowed.canary.next(script);
        let mut client = shadowed.gateway.sent(PATH, CHAT).await;
        shadowed.canary.got(done).await;
        if let Some(said) = said {
            client.head().await;
            client.read_until(said).await;
            let seen = "tokenway_canary_shadow_time_to_first_token_seconds_count{pool=\"new\",revision=\"new\",route=\"*\"} 1";
            until("the copy's first token", || shadowed.gateway.page().contains(seen)).await;
        }
        drop(client);
        shadowed.baseline.abandoned(done).await;
        shadowed.canary.abandoned(done).await;
        shadowed.copied("canceled", done as u64).await;
    }
    assert_eq!((shadowed.copies("failed"), shadowed.copies("ok")), (0, 0));
    assert_eq!(shadowed.gateway.state_of(&shadowed.canary), ReplicaState::Ready);

    // Its place is free again; and a copy outlives its client's answer, once that is complete.
    shadowed.canary.next(wire::begun_then("slow", [Step::Hang]));
    assert_eq!(shadowed.gateway.post(PATH, CHAT).await.text(), clean());
    shadowed.canary.got(3).await;
    shadowed.gateway.post(PATH, CHAT).await;
    shadowed.copied("over_max_concurrent", 1).await;
    shadowed.canary.abandoned(2).await;
}
