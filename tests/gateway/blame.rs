//! Who is blamed for a failure: a replica is left only with evidence, a prompt is refused only after two deaths.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

mod sick;
mod spared;

use std::num::NonZeroUsize;
use std::time::Duration;

use tokenway::config::Config;
use tokenway::fleet::status::ReplicaState;

use crate::support::replica::{Gate, Probes, Replica, Step};
use crate::support::{CHAT, Gateway, PATH, config, until, wire};

/// A gateway whose next request goes to the first of the two replicas it returns.
async fn pair(edit: impl FnOnce(&mut Config)) -> (Gateway, Replica, Replica) {
    let ([one, two], gateway) = Gateway::before(edit).await;
    gateway.post(PATH, &CHAT.replace("hi", "whose turn is it?")).await;
    if one.count() == 1 { (gateway, two, one) } else { (gateway, one, two) }
}

#[tokio::test]
async fn the_last_ready_replica_is_never_left_for_failed_requests_alone() {
    let ([one, two], gateway) = Gateway::before(|_| {}).await;
    for replica in [&one, &two] {
        replica.always(wire::json(503, "{}"));
    }
    for _ in 0..8 {
        assert_eq!(gateway.post(PATH, CHAT).await.status(), 503);
        let ready = gateway.replicas().iter().filter(|r| r.state == ReplicaState::Ready).count();
        assert!(ready >= 1, "{:?}", gateway.replicas());
    }
    assert!(one.count() + two.count() >= 8);
}

#[tokio::test]
async fn failures_aimed_at_a_replica_by_a_stored_response_do_not_eject_it() {
    let ([one, two], gateway) = Gateway::before(|_| {}).await;
    let made = |id: &str| wire::json(200, &format!(r#"{{"id":"{id}","object":"response"}}"#));
    for id in ["resp_1", "resp_2"] {
        for replica in [&one, &two] {
            replica.always(made(id));
        }
        assert_eq!(gateway.post("/v1/responses", r#"{"model":"tiny","input":"hi"}"#).await.status(), 200);
    }
    for replica in [&one, &two] {
        replica.always(wire::json(500, "{}"));
    }
    for id in ["resp_1", "resp_2"] {
        let body = format!(r#"{{"model":"tiny","input":"x","previous_response_id":"{id}"}}"#);
        for _ in 0..12 {
            assert_eq!(gateway.post("/v1/responses", &body).await.status(), 500);
            assert!(gateway.replicas().iter().all(|replica| replica.state == ReplicaState::Ready));
        }
    }
    assert!(one.count() > 12 && two.count() > 12, "each was aimed at");
}

#[tokio::test]
async fn a_prompt_that_was_in_flight_at_two_replica_deaths_is_refused() {
    let (all, gateway) = Gateway::before::<3>(|config| config.pools[0].ejection.max_share = 1.0).await;
    for replica in &all {
        replica.always(vec![Step::StopListening, Step::Reset]);
    }
    let poison = CHAT.replace("hi", "die");
    assert_eq!(gateway.post(PATH, &poison).await.code(), "replica_failed");
    let dead = || gateway.replicas().iter().filter(|r| r.state == ReplicaState::Unreachable).count();
    until("two replicas are found dead", || dead() == 2).await;
    let reply = gateway.post(PATH, &poison).await;
    assert_eq!((reply.status(), &*reply.code()), (503, "suspected_poison"));
    assert_eq!(all.iter().map(|r| r.count()).sum::<usize>(), 2);
    assert!(reply.field("retry-after").is_some());
    let last = all.iter().find(|r| r.count() == 0).unwrap();
    last.next(wire::chat_stream(&["a"]));
    let harmless = CHAT.replace("hi", "live");
    assert_eq!(gateway.post(PATH, &harmless).await.status(), 200, "others are not refused");
}

/// A grammar, a bias, a penalty: what kills engines may stand beside a prompt that others send, too. Each try has another id.
#[tokio::test]
async fn what_killed_two_replicas_is_refused_with_its_parameters_and_to_its_tenant_alone() {
    let (all, mut config) = config::fresh::<3>().await;
    config.pools[0].ejection.max_share = 1.0;
    config.tenants = vec![config::tenant("a", "key-a"), config::tenant("b", "key-b")];
    let gateway = Gateway::start(config).await;
    for replica in &all {
        replica.answers(|request| match request.text().contains("logit_bias") {
            true => vec![Step::StopListening, Step::Reset],
            false => wire::chat_stream(&["a"]),
        });
    }
    assert_eq!(gateway.post_as("key-a", PATH, CHAT).await.status(), 200, "the prompt is harmless");
    let poison = |n: u32| {
        let ids = format!(r#""request_id":"r{n}","user":"u{n}","metadata":{{"trace_id":"{n}"}},"seed":{n}"#);
        CHAT.replace(r#""stream""#, &format!(r#""logit_bias":{{"7":1e9}},{ids},"stream""#))
    };
    assert_eq!(gateway.post_as("key-a", PATH, &poison(1)).await.code(), "replica_failed");
    let dead = || gateway.replicas().iter().filter(|r| r.state == ReplicaState::Unreachable).count();
    until("two replicas are found dead", || dead() == 2).await;
    assert_eq!(gateway.post_as("key-a", PATH, &poison(2)).await.code(), "suspected_poison");
    for key in ["key-a", "key-b"] {
        assert_eq!(gateway.post_as(key, PATH, CHAT).await.status(), 200, "{key}");
    }
    all.iter().for_each(|replica| _ = replica.always(wire::chat_stream(&["a"])));
    assert_eq!(
        gateway.post_as("key-b", PATH, &poison(3)).await.status(),
        200,
        "another tenant's may do no harm"
    );
    assert_eq!(gateway.post_as("key-a", PATH, &poison(4)).await.code(), "suspected_poison");
}

#[tokio::test]
async fn a_prompt_of_one_stream_that_fell_silent_is_no_poison() {
    let fast = |config: &mut Config| config.pools[0].scrape_interval = Duration::from_millis(100);
    let (gateway, bad, good) = pair(fast).await;
    bad.next(wire::begun_then("x", [Step::StopListening, Step::Hang]));
    let reply = gateway.post(PATH, CHAT).await;
    assert!(!reply.body.is_complete);
    bad.listen_again().await;
    gateway.ready().await;
    let reply = gateway.post(PATH, CHAT).await;
    assert_eq!((reply.status(), good.count()), (200, 2), "{}", reply.text());
}

#[tokio::test]
async fn one_death_counts_once_however_many_streams_of_a_prompt_it_took() {
    let (gateway, bad, good) = pair(|_| ()).await;
    let gate = Gate::new();
    let later = Gate::new();
    bad.next(wire::begun_then("x", [Step::Wait(gate.clone()), Step::StopListening, Step::Reset]));
    bad.next(wire::begun_then("x", [Step::Wait(later.clone()), Step::Reset]));
    let mut clients = Vec::new();
    for count in 1..=2 {
        let client = gateway.begun(PATH, CHAT).await;
        // In between it is the other one's turn.
        if count == 1 {
            gateway.post(PATH, &CHAT.replace("hi", "a turn")).await;
        }
        bad.got(count).await;
        clients.push(client);
    }
    gate.cancel();
    until("the replica is found dead", || gateway.state_of(&bad) == ReplicaState::Unreachable).await;
    later.cancel();
    for mut client in clients {
        assert!(!client.rest().await.is_complete);
    }
    // The second stream has it looked at again, and found as dead as before.
    for request in 1..=20 {
        let before = good.count();
        let reply = gateway.post(PATH, CHAT).await;
        assert_eq!((reply.status(), good.count()), (200, before + 1), "{request}: {}", reply.text());
    }
}

#[tokio::test]
async fn a_replica_whose_connections_are_all_taken_is_busy_and_not_left() {
    let (gateway, one, two) = pair(|config| {
        config.pools[0].max_connections = NonZeroUsize::MIN;
        config.routes[0].timeouts.connect = Duration::from_millis(50);
    })
    .await;
    let gate = Gate::new();
    let end = wire::ending(wire::FINISH);
    let mut clients = Vec::new();
    for replica in [&one, &two] {
        replica.next(wire::begun_then("x", wire::behind(&gate, end.to_vec())));
        clients.push(gateway.begun(PATH, CHAT).await);
    }
    for _ in 0..8 {
        let reply = gateway.post(PATH, CHAT).await;
        assert_eq!((reply.status(), &*reply.code()), (504, "timeout_connect"));
    }
    assert!(gateway.replicas().iter().all(|r| r.state == ReplicaState::Ready), "{:?}", gateway.replicas());
    gate.cancel();
    for mut client in clients {
        assert!(client.rest().await.is_complete);
    }
    gateway.idle().await;
}

/// Nothing is retried as started work: a failure that was sent again for free shows as none.
fn without_retries(replica: &Replica) -> Config {
    let mut config = config::of(&[replica]);
    config.retry.budget = 0.0;
    config.retry.min_per_second = 0;
    config
}

#[tokio::test]
async fn a_connection_that_the_engine_closed_while_it_was_idle_is_nobody_s_failure() {
    let replica = Replica::start().await;
    let gateway = Gateway::start(without_retries(&replica)).await;
    let mut once = wire::chat_stream(&["a"]);
    once.push(Step::Close);
    replica.always(once);
    for count in 1..=20 {
        let reply = gateway.post(PATH, CHAT).await;
        assert_eq!((reply.status(), reply.body.is_complete), (200, true));
        replica.closed_after(count).await;
        gateway.idle().await;
    }
    assert_eq!(replica.count(), 20);
}

#[tokio::test]
async fn a_connection_that_the_engine_closes_under_a_request_is_nobody_s_failure() {
    let replica = Replica::start().await;
    let gateway = Gateway::start(without_retries(&replica)).await;
    for closing in [Step::Reset, Step::Close] {
        // The first answer leaves its connection idle; the next request meets the engine's close.
        replica.next(wire::chat_stream(&["a"])).next(vec![closing]);
        for _ in 0..2 {
            let reply = gateway.post(PATH, CHAT).await;
            assert_eq!((reply.status(), reply.body.is_complete), (200, true));
            gateway.idle().await;
        }
    }
    assert_eq!((replica.count(), gateway.state_of(&replica)), (6, ReplicaState::Ready));
}

#[tokio::test]
async fn a_replica_that_dies_over_a_request_on_an_idle_connection_is_blamed() {
    let ([replica, other], gateway) = Gateway::before(|_| {}).await;
    for replica in [&replica, &other] {
        replica.next(wire::chat_stream(&["a"])).always(vec![Step::StopListening, Step::Reset]);
    }
    while replica.count() + other.count() < 2 {
        assert_eq!(gateway.post(PATH, CHAT).await.status(), 200);
    }
    gateway.idle().await;
    let poison = CHAT.replace("hi", "die");
    assert_eq!(gateway.post(PATH, &poison).await.status(), 502);
    let dead = || gateway.replicas().iter().filter(|r| r.state == ReplicaState::Unreachable).count();
    until("both replicas are found dead", || dead() == 2).await;
    for replica in [&replica, &other] {
        replica.listen_again().await;
    }
    until("both replicas are back", || dead() == 0).await;
    assert_eq!(gateway.post(PATH, &poison).await.code(), "suspected_poison");
}

/// A unary request of each API whose answer may quote client and model.
fn unary_paths() -> [(&'static str, &'static str); 4] {
    let messages = r#"{"model":"tiny","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}"#;
    [
        (PATH, messages),
        ("/v1/completions", r#"{"model":"tiny","prompt":"hi"}"#),
        ("/v1/messages", messages),
        ("/v1/responses", r#"{"model":"tiny","input":"hi"}"#),
    ]
}

#[tokio::test]
async fn words_of_a_client_or_a_model_make_no_answer_a_failure() {
    let aborted = r#"{"finish_reason":"abort"}"#;
    let answers = [
        format!(
            r#"{{"id":"r","status":"completed","metadata":{aborted},"tools":[{{"parameters":{aborted}}}]}}"#
        ),
        format!(
            r#"{{"id":"m","stop_reason":"tool_use","content":[{{"type":"tool_use","input":{aborted}}}]}}"#
        ),
        format!(
            r#"{{"id":"c","choices":[{{"message":{{"content":"a","x":{aborted}}},"finish_reason":"stop"}}],"x":{aborted}}}"#
        ),
    ];
    for (path, request) in unary_paths() {
        let (gateway, one, two) = pair(|_| ()).await;
        for answer in &answers {
            for replica in [&one, &two] {
                replica.always(wire::json(200, answer));
            }
            for _ in 0..2 {
                let reply = gateway.post(path, request).await;
                assert_eq!((reply.status(), reply.text()), (200, &**answer), "{path}");
            }
        }
        assert_eq!(one.count() + two.count(), 7, "{path}: nothing is generated twice");
        assert!(gateway.replicas().iter().all(|r| r.state == ReplicaState::Ready), "{path}");
        gateway.idle().await;
    }
}

#[tokio::test]
async fn a_success_that_is_no_answer_is_answered_by_another_replica() {
    let paths = unary_paths().into_iter().chain([("/v1/embeddings", r#"{"model":"tiny","input":"hi"}"#)]);
    for (path, request) in paths {
        let (gateway, one, two) = pair(|_| ()).await;
        one.always(vec![Step::Raw(wire::whole(200, "text/html", "<h1>It works!</h1>"))]);
        two.always(wire::json(200, "{}"));
        for _ in 0..2 {
            let reply = gateway.post(path, request).await;
            assert_eq!((reply.status(), reply.text()), (200, "{}"), "{path}");
        }
        let (gateway, one, two) = pair(|_| ()).await;
        one.always(wire::json(200, ""));
        two.always(wire::json(200, "{}"));
        for _ in 0..4 {
            let reply = gateway.post(path, request).await;
            assert_eq!((reply.status(), reply.text()), (200, "{}"), "{path}");
        }
        two.always(wire::json(200, ""));
        let reply = gateway.post(path, request).await;
        assert_eq!((reply.status(), reply.text()), (200, ""), "{path}: what the engines answer is relayed");
        gateway.idle().await;
    }
}

#[tokio::test]
async fn an_engine_s_error_that_quotes_somebody_ejects_nobody_and_is_relayed() {
    let quotes = [
        "Invalid grammar: \\\"the pool is draining\\\"",
        "EngineDeadError, said the prompt",
        "boom: EngineCore encountered an issue. See stack trace (above) for the root cause.",
        "cannot schedule new futures after shutdown, shutting down",
    ];
    let (gateway, one, two) = pair(|_| ()).await;
    for code in [400, 500] {
        for quote in quotes {
            let error =
                format!(r#"{{"error":{{"message":"{quote}","type":"x","param":null,"code":{code}}}}}"#);
            let event = format!("data: {error}\n\n");
            let told = [
                (200, [&event, wire::DONE].concat(), wire::stream([&*event, wire::DONE])),
                (500, error.clone(), wire::json(500, &error)),
            ];
            for (status, text, script) in told {
                for replica in [&one, &two] {
                    replica.always(script.clone());
                }
                for _ in 0..2 {
                    let reply = gateway.post(PATH, CHAT).await;
                    assert_eq!((reply.status(), reply.text()), (status, &*text), "{quote}");
                }
            }
            // How often it fails is another matter.
            for replica in [&one, &two] {
                replica.always(wire::chat_stream(&["a"]));
            }
            for _ in 0..40 {
                assert_eq!(gateway.post(PATH, CHAT).await.status(), 200);
            }
            assert!(gateway.replicas().iter().all(|r| r.state == ReplicaState::Ready), "{code}: {quote}");
        }
    }
}

#[tokio::test]
async fn an_engine_that_says_that_it_is_dead_is_left_when_its_probe_fails_too() {
    let told = [
        wire::stream([wire::ENGINE_DEAD, wire::DONE]),
        wire::json(500, wire::SHUTTING_DOWN),
        wire::stream([wire::ROLE, wire::ABORTED, wire::DONE]),
    ];
    for told in told {
        let (gateway, bad, good) = pair(|_| ()).await;
        let before = bad.probed();
        bad.next(told.clone());
        assert_eq!(gateway.post(PATH, CHAT).await.status(), 200);
        assert_eq!((bad.count(), good.count()), (1, 2), "answered elsewhere");
        until("a probe is sent at once", || bad.probed() > before).await;
        assert_eq!(gateway.state_of(&bad), ReplicaState::Ready, "the probe was answered");

        bad.probes(Probes::Says("application/json", r#"{"error":{}}"#));
        bad.always(told);
        let mut asked = 0;
        while gateway.state_of(&bad) != ReplicaState::Ejected && asked < 5_000 {
            let reply = gateway.post(PATH, &CHAT.replace("hi", &format!("request {asked}"))).await;
            assert!(reply.text().contains("[DONE]") && !reply.text().contains("error"), "{}", reply.text());
            asked += 1;
        }
        assert_eq!(gateway.state_of(&bad), ReplicaState::Ejected);
        gateway.idle().await;
    }
}

#[tokio::test]
async fn requests_that_the_engine_rejects_never_make_it_look_ill() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    for status in [400, 404, 422, 429, 500] {
        replica.always(wire::json(status, "{}"));
        for _ in 0..4 {
            assert_eq!(gateway.post(PATH, CHAT).await.status(), status);
        }
    }
    assert_eq!(gateway.state_of(&replica), ReplicaState::Ready);
    gateway.idle().await;
}
