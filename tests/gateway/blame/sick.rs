//! One sick replica among healthy ones: what it costs the clients, and who is left alone.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tokenway::config::{Config, PolicyName};
use tokenway::fleet::status::{ReplicaState, ReplicaStatus};

use super::{CHAT, PATH};
use crate::support::replica::{Gate, Probes, Received, Replica, Step};
use crate::support::{Gateway, config, until, wire};

const MISSING: &str = r#"{"error":{"message":"The model `tiny` does not exist.","type":"NotFoundError","param":"model","code":404}}"#;
const FAULTS: [&str; 8] = ["500", "404 model", "HTML", "error event", "503", "reset", "302", "error 200"];

/// What a sick replica answers at once; its probes are fine.
fn fault(name: &str) -> Vec<Step> {
    match name {
        "500" => wire::json(500, r#"{"error":{"message":"boom"}}"#),
        "404 model" => wire::json(404, MISSING),
        "HTML" => vec![Step::Raw(wire::whole(200, "text/html; charset=utf-8", "<h1>It works!</h1>"))],
        "error event" => wire::stream([wire::ENGINE_ERROR, wire::DONE]),
        "503" => wire::json(503, "{}"),
        "302" => wire::json(302, "{}"),
        "error 200" => wire::json(200, r#"{"error":{"message":"boom"}}"#),
        _ => vec![Step::Reset],
    }
}

pub(super) async fn four(policy: PolicyName) -> (Gateway, [Replica; 4]) {
    let (replicas, mut config) = config::fresh::<4>().await;
    config.routes[0].policy = policy;
    // As in a deployment: what is ejected is looked at again soon.
    config.pools[0].probe.interval = Duration::from_secs(10);
    (Gateway::start(config).await, replicas)
}

/// Failed answers of these requests, one after the other, each with a prompt of its own.
async fn failed(gateway: &Gateway, requests: std::ops::Range<usize>) -> usize {
    let mut failed = 0;
    for request in requests {
        let reply = gateway.post(PATH, &CHAT.replace("hi", &format!("request {request}"))).await;
        failed += usize::from(
            reply.status() != 200 || !reply.text().contains("[DONE]") || reply.text().contains("error"),
        );
    }
    failed
}

#[tokio::test]
async fn a_replica_that_fails_fast_costs_a_handful_of_requests() {
    for policy in [PolicyName::RoundRobin, PolicyName::LeastLoaded, PolicyName::Latency] {
        for name in FAULTS {
            let (gateway, replicas) = four(policy).await;
            assert_eq!(failed(&gateway, 0..20).await, 0, "{name}");
            replicas[0].always(fault(name));
            let before = replicas[0].count();
            let failed = failed(&gateway, 20..140).await;
            let seen = replicas[0].count() - before;
            assert!(failed <= 8 && seen <= 20, "{policy:?}, {name}: {failed} failed, {seen} went there");
            gateway.idle().await;
        }
    }
}

#[tokio::test]
async fn a_replica_is_ejected_with_the_words_of_its_engine() {
    let (gateway, replicas) = four(PolicyName::RoundRobin).await;
    let [sick, ..] = replicas.as_slice() else { panic!("four replicas") };
    sick.probes(Probes::Refused(500));
    let reports = r#"{"error":{"message":"CUDA error: device-side assert triggered","code":500}}"#;
    sick.always(wire::json(500, reports));
    let mut asked = 0;
    while gateway.state_of(sick) != ReplicaState::Ejected && asked < 5_000 {
        failed(&gateway, asked..asked + 1).await;
        asked += 1;
    }
    let status = gateway.replicas().into_iter().find(|one| *one.replica == *sick.name()).unwrap();
    assert_eq!(status.state, ReplicaState::Ejected);
    assert!(status.reason.contains("(engine error: \u{201c}CUDA error"), "{}", status.reason);
    gateway.idle().await;
}

/// Whole answers of a model that ends at once: a stream, and in one piece.
fn nothing() -> [(Vec<Step>, String, &'static str); 2] {
    let piece = r#"{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":""},"finish_reason":"stop"}],"usage":{"completion_tokens":1}}"#;
    [
        (wire::stream([wire::ROLE, wire::FINISH, wire::DONE]), CHAT.to_owned(), "delta\":{\"content\":\"a"),
        (wire::json(200, piece), CHAT.replace(r#""stream":true,"#, ""), r#""content":"a""#),
    ]
}

#[tokio::test]
async fn a_replica_that_answers_nothing_is_left_and_clients_get_the_text_of_others() {
    for policy in [PolicyName::RoundRobin, PolicyName::Latency] {
        for (empty, request, text) in nothing() {
            let (gateway, replicas) = four(policy).await;
            let piece = r#"{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}]}"#;
            for replica in &replicas {
                let good = if request == CHAT { wire::chat_stream(&["a"]) } else { wire::json(200, piece) };
                replica.always(good);
            }
            let lacking = async |requests: std::ops::Range<usize>| {
                let mut lacking = 0;
                for n in requests {
                    let reply = gateway.post(PATH, &request.replace("hi", &format!("request {n}"))).await;
                    assert_eq!(reply.status(), 200);
                    lacking += usize::from(!reply.text().contains(text));
                }
                lacking
            };
            assert_eq!(lacking(0..40).await, 0);
            replicas[0].always(empty);
            let before = replicas[0].count();
            let lacking = lacking(40..200).await;
            let seen = replicas[0].count() - before;
            assert!(lacking <= 3 && seen <= 12, "{policy:?}: {lacking} got nothing, {seen} went there");
            let page = gateway.app.gateway.observer.metrics.render(&gateway.replicas());
            assert!(page.contains("tokenway_replica_empty_answers_total{"), "{page}");
            let is_retried = page.contains(r#"tokenway_retries_total{reason="empty_answer"}"#);
            assert!(is_retried || seen < 3, "{policy:?}: {seen} went there\n{page}");
            gateway.idle().await;
        }
    }
}

#[tokio::test]
async fn what_every_replica_answers_with_nothing_is_asked_once_and_speaks_against_none() {
    for (empty, request, _) in nothing() {
        let (gateway, replicas) = four(PolicyName::RoundRobin).await;
        for replica in &replicas {
            replica.always(empty.clone());
        }
        for n in 0..60 {
            let reply = gateway.post(PATH, &request.replace("hi", &format!("request {n}"))).await;
            assert_eq!(reply.status(), 200);
        }
        let seen: usize = replicas.iter().map(Replica::count).sum();
        assert_eq!(seen, 60);
        assert!(gateway.replicas().iter().all(|r| r.state == ReplicaState::Ready && r.traffic_share == 1.0));
        gateway.idle().await;
    }
}

#[tokio::test]
async fn a_replica_that_wants_another_key_than_ours_is_left() {
    let (replicas, mut config) = config::fresh::<4>().await;
    config.tenants = vec![config::tenant("a", "key")];
    let gateway = Gateway::start(config).await;
    replicas[0].always(wire::json(401, r#"{"error":"Unauthorized"}"#));
    let mut refused = 0;
    for request in 0..60 {
        let body = CHAT.replace("hi", &format!("request {request}"));
        refused += usize::from(gateway.post_as("key", PATH, &body).await.status() != 200);
    }
    assert!((1..=8).contains(&refused), "{refused} of 60 refused: the client's key stays with the gateway");
    gateway.idle().await;
}

#[tokio::test]
async fn two_sick_of_four_are_both_left_and_a_healed_one_comes_back_on_trial() {
    let (gateway, replicas) = four(PolicyName::RoundRobin).await;
    for replica in &replicas[..2] {
        replica.always(fault("500"));
    }
    assert!(failed(&gateway, 20..140).await <= 16);
    replicas[0].always(wire::chat_stream(&["a"]));
    let of = |at: usize| gateway.replicas().into_iter().find(|r| *r.replica == *replicas[at].name()).unwrap();
    until("it comes back", || of(0).state == ReplicaState::Ready).await;
    failed(&gateway, 140..200).await;
    assert!(of(0).state == ReplicaState::Ready && !of(0).is_on_trial, "{:?}", of(0));
    gateway.idle().await;
}

#[tokio::test]
async fn a_client_whose_streams_break_everywhere_keeps_no_healed_replica_out() {
    let (gateway, replicas) = four(PolicyName::RoundRobin).await;
    let by_client = |received: &Received| {
        let is_hers = String::from_utf8_lossy(&received.body).contains("hers");
        if is_hers { wire::begun_then("x", [Step::Reset]) } else { wire::chat_stream(&["a"]) }
    };
    replicas[1..].iter().for_each(|replica| replica.answers(by_client));
    replicas[0].always(fault("500"));
    let of = |at: usize| gateway.replicas().into_iter().find(|r| *r.replica == *replicas[at].name()).unwrap();
    let mut sent = 0;
    while of(0).state == ReplicaState::Ready && sent < 5000 {
        failed(&gateway, sent..sent + 1).await;
        sent += 1;
    }
    replicas[0].answers(by_client);
    until("it comes back", || of(0).state == ReplicaState::Ready).await;
    for n in 0..150 {
        failed(&gateway, sent + n..sent + n + 1).await;
        gateway.post(PATH, &CHAT.replace("hi", &format!("hers {n}"))).await;
    }
    for at in 0..4 {
        assert!(of(at).state == ReplicaState::Ready && !of(at).is_on_trial, "{:?}", of(at));
    }
    gateway.idle().await;
}

#[tokio::test]
async fn a_model_that_one_replica_lacks_is_asked_of_another() {
    let (gateway, replicas) = four(PolicyName::RoundRobin).await;
    replicas[0].always(fault("404 model"));
    assert_eq!(failed(&gateway, 0..12).await, 0);
    for replica in &replicas {
        replica.always(fault("404 model"));
    }
    let reply = gateway.post(PATH, CHAT).await;
    assert_eq!((reply.status(), reply.text()), (404, MISSING), "the engines' own answer");
    gateway.idle().await;
}

#[tokio::test]
async fn a_trial_that_fails_is_answered_by_another_replica() {
    for name in FAULTS {
        let (replicas, mut config) = config::fresh::<4>().await;
        config.routes[0].policy = PolicyName::RoundRobin;
        // Its probes are fine: it is back on trial all the time.
        config.pools[0].probe.interval = Duration::from_millis(20);
        config.retry.min_per_second = 1000;
        let gateway = Gateway::start(config).await;
        replicas[0].always(fault(name));
        let of_sick = || gateway.replicas().into_iter().find(|r| *r.replica == *replicas[0].name()).unwrap();
        let is_known = |sick: ReplicaStatus| sick.is_on_trial || sick.state != ReplicaState::Ready;
        let (mut cost, mut sent) = (0, 0);
        while !is_known(of_sick()) && cost < 10 {
            sent += 1;
            cost += failed(&gateway, sent..sent + 1).await;
        }
        let before = replicas[0].count();
        let mut asked = 0;
        while replicas[0].count() < before + 3 && asked < 5_000 {
            assert_eq!(failed(&gateway, asked..asked + 1).await, 0, "{name}, request {asked}");
            asked += 1;
        }
        assert!(asked < 5_000, "{name}: it was not tried again");
    }
}

#[tokio::test]
async fn what_one_client_gets_and_what_all_replicas_answer_says_nothing_about_any() {
    for policy in [PolicyName::RoundRobin, PolicyName::Session] {
        for (status, body) in [(400, "{}"), (422, "{}"), (404, r#"{"detail":"Not Found"}"#), (500, "{}")] {
            let (gateway, replicas) = four(policy).await;
            for replica in &replicas {
                replica.always(wire::json(status, body));
            }
            for _ in 0..40 {
                assert_eq!(gateway.post(PATH, CHAT).await.status(), status);
            }
            for replica in gateway.replicas() {
                assert_eq!(replica.state, ReplicaState::Ready, "{policy:?} {status}: {replica:?}");
                assert!(status == 500 || replica.traffic_share == 1.0, "{policy:?} {status}: {replica:?}");
            }
        }
    }
}

/// A load test, samples of one prompt: there is no second prompt that could fail.
#[tokio::test]
async fn a_replica_that_breaks_the_prompt_that_others_answer_is_left() {
    for policy in [PolicyName::RoundRobin, PolicyName::Latency] {
        let (gateway, replicas) = four(policy).await;
        replicas.iter().for_each(|replica| _ = replica.always(wire::chat_stream(&["a", "b"])));
        replicas[0].always(wire::begun_then("x", [wire::event(wire::content("y")), Step::Reset]));
        let mut broken = 0;
        for _ in 0..20 {
            // As many at once as there are replicas: each gets some.
            let mut clients = Vec::new();
            for _ in 0..8 {
                clients.push(gateway.sent(PATH, CHAT).await);
            }
            for mut client in clients {
                broken += usize::from(!client.reply().await.body.is_complete);
            }
        }
        assert!(broken <= 12, "{policy:?}: {broken} of 160");
    }
}

/// Where each of the conversations goes with its next turn.
async fn homes(gateway: &Gateway, turn: usize) -> Vec<String> {
    let mut homes = Vec::new();
    for conversation in 0..12 {
        let history = format!("{conversation} lorem ipsum ").repeat(400);
        let body = CHAT.replace("hi", &format!("{history}{}", " and then?".repeat(turn)));
        let reply = gateway.post(PATH, &body).await;
        homes.push(reply.field("x-tokenway-replica").unwrap().to_owned());
        gateway.idle().await;
    }
    homes
}

#[tokio::test]
async fn one_request_that_fails_moves_no_conversation_from_its_cache() {
    let (gateway, replicas) = four(PolicyName::Prefix).await;
    homes(&gateway, 0).await;
    let before = homes(&gateway, 1).await;
    let home = before.first().unwrap();
    let sick = replicas.iter().find(|replica| replica.name() == *home).unwrap();
    // A client whose request always fails asks again and again.
    let history = "0 lorem ipsum ".repeat(400);
    for _ in 0..3 {
        sick.next(fault("500"));
        let reply = gateway.post(PATH, &CHAT.replace("hi", &format!("{history} divide by zero"))).await;
        assert_eq!((reply.status(), reply.field("x-tokenway-replica")), (500, Some(&**home)));
        gateway.idle().await;
    }
    assert_eq!(homes(&gateway, 2).await, before);
    let shares = gateway.replicas().into_iter().map(|replica| replica.traffic_share);
    assert!(shares.into_iter().all(|share| share == 1.0));
}

#[tokio::test]
async fn a_replica_whose_tokens_are_slow_is_neither_ejected_nor_passed_over() {
    let (gateway, replicas) = four(PolicyName::RoundRobin).await;
    let stream = |ticks: usize| {
        let token = [vec![Step::Tick; ticks], vec![wire::event(wire::content("x"))]].concat();
        let tokens = std::iter::repeat_n(token, 480 / ticks).flatten();
        let end = wire::ending(wire::FINISH);
        wire::begun_then("x", tokens.chain(end))
    };
    let mut clients = Vec::new();
    for (replica, ticks) in replicas.iter().zip([120, 4, 4, 4]) {
        replica.next(stream(ticks));
        clients.push(gateway.begun(PATH, CHAT).await);
    }
    for mut client in clients {
        assert!(client.rest().await.is_complete);
        for replica in gateway.replicas() {
            assert_eq!((replica.state, replica.traffic_share), (ReplicaState::Ready, 1.0), "{replica:?}");
        }
    }
}

#[tokio::test]
async fn the_only_replica_of_a_pool_keeps_serving_what_it_can() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    for _ in 0..10 {
        replica.next(fault("500"));
        assert_eq!(gateway.post(PATH, CHAT).await.status(), 500);
        assert_eq!(gateway.post(PATH, CHAT).await.status(), 200);
    }
    assert_eq!(gateway.state_of(&replica), ReplicaState::Ready);
    gateway.idle().await;
}

#[tokio::test]
async fn a_full_queue_is_busy_while_streams_move_there_and_a_failure_without() {
    let (gateway, replicas) = four(PolicyName::LeastLoaded).await;
    let gate = Gate::new();
    let moving = std::iter::repeat_n([wire::event(wire::content("x")), Step::Tick], 100).flatten();
    let end = wire::ending(wire::FINISH);
    replicas[0].next(wire::begun_then("x", moving.chain([Step::Wait(gate.clone())]).chain(end)));
    let mut clients = Vec::new();
    while replicas[0].count() == 0 {
        clients.push(gateway.begun(PATH, CHAT).await);
    }
    replicas[0].always(wire::json(503, r#"{"error":{"message":"queue is full"}}"#));
    assert_eq!(failed(&gateway, 140..200).await, 0, "another replica takes what it refuses");
    assert_eq!(gateway.state_of(&replicas[0]), ReplicaState::Ready);
    gate.cancel();
    for mut client in clients {
        assert!(client.rest().await.is_complete);
    }
    gateway.idle().await;
}

#[tokio::test]
async fn a_stream_that_is_answered_by_a_page_is_a_failed_attempt() {
    let ([replica], gateway) = Gateway::before(|_| {}).await;
    replica.next(fault("HTML"));
    let reply = gateway.post(PATH, CHAT).await;
    assert_eq!((reply.status(), &*reply.code()), (502, "replica_failed"));
    assert!(reply.text().contains("text/html"), "{}", reply.text());
    replica.next(wire::json(200, r#"{"id":"whole"}"#));
    let reply = gateway.post(PATH, CHAT).await;
    assert_eq!((reply.status(), reply.text()), (200, r#"{"id":"whole"}"#), "JSON is an answer");
    gateway.idle().await;
}

#[tokio::test]
async fn a_prompt_that_was_answered_is_no_poison_however_many_replicas_are_restarted_under_it() {
    let (all, gateway) = Gateway::before::<3>(|config| config.pools[0].ejection.max_share = 1.0).await;
    assert_eq!(gateway.post(PATH, CHAT).await.status(), 200);
    for replica in &all {
        replica.next(vec![Step::StopListening, Step::Reset]);
        let before = replica.count();
        while replica.count() == before {
            let reply = gateway.post(PATH, CHAT).await;
            assert_eq!(reply.status(), 200, "{}", reply.text());
        }
        until("it is found dead", || gateway.state_of(replica) == ReplicaState::Unreachable).await;
        replica.listen_again().await;
        gateway.ready().await;
    }
    assert_eq!(gateway.post(PATH, CHAT).await.status(), 200);
    gateway.idle().await;
}

#[tokio::test]
async fn a_reload_that_renames_replicas_and_changes_limits_refuses_nothing() {
    let [one, two] = Replica::several().await;
    let base = config::of(&[&one, &two]);
    let gateway = Gateway::start(base.clone()).await;
    for round in 0..20_usize {
        let mut config: Config = base.clone();
        let pool = &mut config.pools[0];
        pool.revision = format!("r{round}").into();
        pool.max_connections = NonZeroUsize::new(1 + round).unwrap();
        for (at, replica) in pool.replicas.iter_mut().enumerate() {
            replica.name = format!("gpu-{round}-{at}").into();
        }
        if round % 3 == 2 {
            // Another name of the pool is another pool of the same replicas.
            pool.name = format!("pool-{round}").into();
        }
        gateway.app.reload(Arc::new(config)).unwrap();
        let reply = gateway.post(PATH, CHAT).await;
        assert_eq!(reply.status(), 200, "{}", reply.text());
        let name = reply.field("x-tokenway-replica").unwrap();
        assert!(name.starts_with(&format!("gpu-{round}-")), "{name}");
        assert_eq!(reply.field("x-tokenway-revision"), Some(&*format!("r{round}")));
    }
    gateway.idle().await;
}

#[tokio::test]
async fn a_lower_limit_of_connections_is_in_force_after_a_reload() {
    let ([replica], mut config) = config::fresh().await;
    config.routes[0].timeouts.connect = Duration::from_millis(50);
    let gateway = Gateway::start(config.clone()).await;
    let gate = Gate::new();
    let end = wire::ending(wire::FINISH);
    let script = wire::begun_then("x", wire::behind(&gate, end.to_vec()));
    let mut clients = Vec::new();
    for _ in 0..3 {
        replica.next(script.clone());
        clients.push(gateway.begun(PATH, CHAT).await);
    }
    config.pools[0].max_connections = NonZeroUsize::new(3).unwrap();
    gateway.app.reload(Arc::new(config.clone())).unwrap();
    let reply = gateway.post(PATH, CHAT).await;
    assert_eq!((reply.status(), &*reply.code()), (504, "timeout_connect"));
    assert!(reply.text().contains("pool.max_connections"), "{}", reply.text());
    config.pools[0].max_connections = NonZeroUsize::new(4).unwrap();
    gateway.app.reload(Arc::new(config)).unwrap();
    assert_eq!(gateway.post(PATH, CHAT).await.status(), 200);
    gate.cancel();
    for mut client in clients {
        assert!(client.rest().await.is_complete);
    }
    gateway.idle().await;
}

/// Asks at once, each for so long as its client waits; returns how many got nothing.
async fn impatient(gateway: &Arc<Gateway>, requests: std::ops::Range<usize>) -> usize {
    let mut all = tokio::task::JoinSet::new();
    for request in requests {
        let gateway = Arc::clone(gateway);
        all.spawn(async move {
            let body = CHAT.replace("hi", &format!("request {request}"));
            tokio::time::timeout(Duration::from_millis(1500), gateway.post(PATH, &body)).await.is_ok()
        });
    }
    all.join_all().await.into_iter().filter(|is_answered| !is_answered).count()
}

#[tokio::test]
async fn a_replica_that_hangs_while_impatient_clients_leave_is_left_by_round_robin() {
    let (gateway, replicas) = four(PolicyName::RoundRobin).await;
    // Its probes are fine.
    let [hung, ..] = replicas.as_slice() else { panic!("four replicas") };
    hung.always(vec![Step::Hang]);
    let gateway = Arc::new(gateway);
    let mut asked = 0;
    while gateway.state_of(hung) == ReplicaState::Ready && asked < 64 {
        impatient(&gateway, asked..asked + 16).await;
        asked += 16;
    }
    let status = gateway.replicas().into_iter().find(|status| *status.replica == *hung.name()).unwrap();
    assert!(status.life.entered[5] > 0, "never ejected: {status:?}");
    // A trial now and then, at growing distances, and not every fourth request.
    let before = hung.count();
    let mut lost = 0;
    for request in 0..60 {
        lost += impatient(&gateway, 1000 + request..1001 + request).await;
    }
    assert!(hung.count() - before <= 6 && lost <= 6, "{lost} of 60, {} there", hung.count() - before);
    gateway.idle().await;
}

#[tokio::test]
async fn a_stopped_replica_gets_no_more_requests_once_its_page_stays_away() {
    let ([stopped, _other], mut config) = config::fresh().await;
    config.pools[0].scrape_interval = Duration::from_millis(100);
    config.pools[0].probe.timeout = Duration::from_secs(10);
    let gateway = Gateway::start(config).await;
    assert_eq!(failed(&gateway, 0..4).await, 0);
    let (asked, probed) = (stopped.count(), stopped.probed());
    assert_eq!(asked, 2, "round robin");
    stopped.probes(Probes::Unanswered);
    until("it is probed at once", || stopped.probed() > probed).await;
    // Nobody knows what a whole answer takes, so that none that is late would have said anything.
    assert_eq!(failed(&gateway, 4..12).await, 0);
    assert_eq!(stopped.count(), asked);
    assert_eq!(gateway.state_of(&stopped), ReplicaState::Ready, "its probe has time yet");
}

#[tokio::test]
async fn whole_answers_that_wait_at_a_stopped_replica_come_from_another() {
    let ([stopped, other], gateway) =
        Gateway::before(|config| config.pools[0].scrape_interval = Duration::from_millis(100)).await;
    stopped.always(vec![Step::Hang]);
    other.always(wire::json(200, r#"{"choices":[{"message":{"content":"a"}}]}"#));
    let whole = CHAT.replace(r#""stream":true"#, r#""stream":false"#);
    let both = async { tokio::join!(gateway.post(PATH, &whole), gateway.post(PATH, &whole)) };
    let stops = async {
        stopped.got(1).await;
        stopped.probes(Probes::Unanswered);
    };
    let ((one, two), ()) = tokio::join!(both, stops);
    assert_eq!((one.status(), two.status()), (200, 200));
    assert_eq!((stopped.count(), other.count()), (1, 2));
}

#[tokio::test]
async fn where_all_replicas_stand_still_for_a_moment_their_requests_are_waited_for() {
    let (replicas, gateway) =
        Gateway::before(|config| config.pools[0].scrape_interval = Duration::from_millis(100)).await;
    let replicas: [Replica; 2] = replicas;
    let gate = Gate::new();
    let whole = wire::json(200, r#"{"choices":[{"message":{"content":"a"}}]}"#);
    replicas.iter().for_each(|replica| _ = replica.always(wire::behind(&gate, whole.clone())));
    let asked = CHAT.replace(r#""stream":true"#, r#""stream":false"#);
    let both = async { tokio::join!(gateway.post(PATH, &asked), gateway.post(PATH, &asked)) };
    let stall = async {
        for replica in &replicas {
            replica.got(1).await;
            replica.probes(Probes::Unanswered);
        }
        let looks = replicas.each_ref().map(|replica| replica.probed() + 6);
        until("probes stay away again and again", || {
            replicas.iter().zip(looks).all(|(replica, looks)| replica.probed() >= looks)
        })
        .await;
        for replica in &replicas {
            assert_eq!(gateway.state_of(replica), ReplicaState::Ready, "there is nowhere better to go");
        }
        gate.cancel();
    };
    let ((one, two), ()) = tokio::join!(both, stall);
    assert_eq!((one.status(), two.status()), (200, 200));
    assert_eq!(replicas.each_ref().map(Replica::count), [1, 1], "nothing was cut or sent twice");
}

/// In overload a probe waits behind the queue of whichever engine is asked.
#[tokio::test]
async fn a_replica_whose_streams_move_keeps_its_turn_while_probes_wait_there() {
    let (replicas, mut config) = config::fresh::<4>().await;
    config.pools[0].probe.interval = Duration::from_millis(100);
    let gateway = Gateway::start(config).await;
    let busy = &replicas[0];
    let moving = std::iter::repeat_n([wire::event(wire::content("x")), Step::Tick], 1000).flatten();
    busy.next(wire::begun_then("x", moving));
    let mut clients = Vec::new();
    while busy.count() == 0 {
        clients.push(gateway.begun(PATH, CHAT).await);
    }
    busy.probes(Probes::CompletionsUnanswered);
    let of = || gateway.replicas().into_iter().find(|one| *one.replica == *busy.name()).unwrap();
    let failed = of().failures.probes;
    until("a probe was not answered", || of().failures.probes > failed).await;
    let before = replicas.each_ref().map(Replica::count);
    for n in 0..8 {
        gateway.post(PATH, &CHAT.replace("hi", &format!("{n}"))).await;
    }
    let got = std::array::from_fn(|at| replicas[at].count() - before[at]);
    assert_eq!(got, [2; 4], "busy is not down");
}

#[tokio::test]
async fn a_replica_that_leaves_some_requests_without_an_answer_is_left_where_nothing_is_predicted() {
    let ([sick, well], gateway) = Gateway::before(|config| {
        config.routes[0].timeouts.first_token = Duration::from_millis(500);
        config.pools[0].probe.interval = Duration::from_secs(10);
    })
    .await;
    let slowly = std::iter::repeat_n(Step::Tick, 8).chain(wire::chat_stream(&["a"])).collect::<Vec<_>>();
    well.always(wire::chat_stream(&["a"]));
    sick.answers(move |request| match request.text().contains("response_format") {
        true => vec![Step::Hang],
        false => slowly.clone(),
    });
    let gateway = Arc::new(gateway);
    let guided = CHAT.replace(r#""stream""#, r#""response_format":{"type":"json_object"},"stream""#);
    let is_left = || gateway.state_of(&sick) != ReplicaState::Ready;
    let mut was_left = false;
    for round in 0..20 {
        if was_left {
            break;
        }
        let mut asked = tokio::task::JoinSet::new();
        for n in 0..8 {
            let (gateway, body) =
                (Arc::clone(&gateway), guided.replace("hi", &format!("guided {round} {n}")));
            asked.spawn(async move { gateway.post(PATH, &body).await.status() });
        }
        let others = async {
            for n in 0..12 {
                gateway.post(PATH, &CHAT.replace("hi", &format!("other {round} {n}"))).await;
                was_left |= is_left();
            }
        };
        tokio::join!(asked.join_all(), others);
    }
    assert!(was_left, "it answers others all the while");
}

#[tokio::test]
async fn impatient_clients_of_a_replica_that_works_speak_against_nobody() {
    let (gateway, replicas) = four(PolicyName::RoundRobin).await;
    let [busy, ..] = replicas.as_slice() else { panic!("four replicas") };
    // One stream moves there, and everybody else waits.
    let moving = std::iter::repeat_n([Step::Tick, wire::event(wire::content("x"))], 400).flatten();
    busy.next(wire::begun_then("x", moving.chain([Step::Hang])));
    busy.always(vec![Step::Hang]);
    let mut stream = gateway.client().await;
    stream.post(PATH, &[], CHAT.as_bytes()).await;
    stream.head().await;
    let gateway = Arc::new(gateway);
    assert!(impatient(&gateway, 0..24).await > 4);
    assert!(busy.count() > 4);
    assert_eq!(gateway.state_of(busy), ReplicaState::Ready);
    drop(stream);
    gateway.idle().await;
}

const REFUSAL: &str = r#"{"error":{"message":"\"auto\" tool choice requires --enable-auto-tool-choice","type":"BadRequestError","code":400}}"#;

#[tokio::test]
async fn a_replica_that_refuses_what_others_answer_is_left_and_clients_get_those_answers() {
    for (policy, status) in
        [(PolicyName::RoundRobin, 400), (PolicyName::Latency, 400), (PolicyName::Latency, 501)]
    {
        let (gateway, replicas) = four(policy).await;
        assert_eq!(failed(&gateway, 0..40).await, 0);
        replicas[0].always(wire::json(status, REFUSAL));
        let before = replicas[0].count();
        let failed = failed(&gateway, 40..200).await;
        let seen = replicas[0].count() - before;
        assert!(failed <= 3 && seen <= 16, "{policy:?}: {failed} refused, {seen} went there");
        let of = |replica: &Replica| {
            gateway.replicas().into_iter().find(|one| *one.replica == *replica.name()).unwrap()
        };
        let sick = of(&replicas[0]);
        assert_eq!((sick.state, sick.failure_ratio), (ReplicaState::Ready, 0.0), "{policy:?}");
        assert!(replicas[1..].iter().all(|other| of(other).traffic_share == 1.0));
        let page = gateway.page();
        let is_retried = page.contains(r#"tokenway_retries_total{reason="refused_alone"}"#);
        assert!((is_retried && sick.traffic_share < 0.5) || seen < 4, "{policy:?}: {sick:?}\n{page}");
        gateway.idle().await;
    }
}

/// The same, of one prompt that all others answer.
#[tokio::test]
async fn a_prompt_that_one_replica_alone_refuses_is_answered_by_others() {
    let (gateway, replicas) = four(PolicyName::RoundRobin).await;
    replicas.iter().for_each(|replica| _ = replica.always(wire::chat_stream(&["a"])));
    for _ in 0..40 {
        assert_eq!(gateway.post(PATH, CHAT).await.status(), 200);
    }
    replicas[0].always(wire::json(400, REFUSAL));
    let mut refused = 0;
    for _ in 0..160 {
        refused += usize::from(gateway.post(PATH, CHAT).await.status() != 200);
    }
    assert!(refused <= 3, "{refused} of 160");
}
