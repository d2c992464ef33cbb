//! Answers that are a client's own affair, or a moment's, and what they cost the replica that gave them.

use std::sync::Arc;
use std::time::Duration;

use tokenway::config::{PolicyName, Secret};
use tokenway::fleet::status::{ReplicaState, ReplicaStatus};

use super::sick::four;
use super::{CHAT, PATH};
use crate::support::replica::{Replica, Step};
use crate::support::{Gateway, config, until, wire};

const WHOLE: &str = r#"{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2}}"#;

fn of(gateway: &Gateway, replica: &Replica) -> ReplicaStatus {
    gateway.replicas().into_iter().find(|one| *one.replica == *replica.name()).unwrap()
}

/// Status of the answer to a tenant's turn of a session.
async fn turn(gateway: &Gateway, session: &str, text: &str) -> u16 {
    let headers = [("authorization", "Bearer key"), ("x-session-id", session)];
    gateway.post_with(PATH, &headers, CHAT.replace("hi", text)).await.status()
}

/// Asks until it is found, where it is to be; else for some seconds, in which it would have been.
async fn is_found(ask: impl AsyncFn(u32) -> bool, is_to_be: bool) -> bool {
    let asking = async {
        for n in 0.. {
            if ask(n).await {
                break;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(if is_to_be { 20 } else { 3 }), asking).await.is_ok()
}

/// A filter in front of the engines that turns requests away by what they say, or one replica that turns our key away.
#[tokio::test]
async fn a_request_that_engines_forbid_speaks_against_nobody_unless_the_key_is_ours() {
    let ours = || Some(Secret::new("ours"));
    for (key, status, is_left) in [(None, 403, false), (ours(), 403, true), (None, 401, true)] {
        let ([one, two], mut config) = config::fresh().await;
        config.tenants = vec![config::tenant("a", "key")];
        config.routes[0].policy = PolicyName::Session;
        config.pools[0].engine_api_key.clone_from(&key);
        let gateway = Gateway::start(config).await;
        assert_eq!(turn(&gateway, "theirs", "fine").await, 200);
        let home = if one.count() == 1 { &one } else { &two };
        for replica in [&one, &two].into_iter().filter(|one| !is_left || one.addr == home.addr) {
            replica.answers(move |request| match request.text().contains("forbidden") {
                true => wire::json(status, "{}"),
                false => wire::chat_stream(&["a"]),
            });
        }
        let is_any_left = || gateway.replicas().iter().any(|one| one.state != ReplicaState::Ready);
        let ask = async |n: u32| {
            // A session of its own: one that stays together leaves a replica that turns it away.
            turn(&gateway, &format!("{n}"), &format!("forbidden {n}")).await;
            is_any_left()
        };
        assert_eq!(
            is_found(ask, is_left).await,
            is_left,
            "{status} {}: {:?}",
            key.is_some(),
            gateway.replicas()
        );
        assert_eq!(turn(&gateway, "others", "fine").await, 200);
        gateway.idle().await;
    }
}

#[tokio::test]
async fn a_replica_that_turns_every_request_away_gets_less_and_is_not_left() {
    let (gateway, replicas) = four(PolicyName::RoundRobin).await;
    let [full, ..] = replicas.as_slice() else { panic!("four replicas") };
    let ask = async |text: String| gateway.post(PATH, &CHAT.replace("hi", &text)).await.status();
    // A stream that moves there shows that it works.
    let moving = std::iter::repeat_n([Step::Tick, wire::event(wire::content("x"))], 3000).flatten();
    full.next(wire::begun_then("x", moving.chain([Step::Hang])));
    full.always(wire::json(429, "{}"));
    let mut streams = Vec::new();
    while full.busy() == 0 {
        let mut stream = gateway.client().await;
        stream.post(PATH, &[], CHAT.as_bytes()).await;
        stream.head().await;
        streams.push(stream);
    }
    let turned_away = async {
        let mut n = 0;
        while of(&gateway, full).traffic_share > 0.2 {
            n += 1;
            ask(format!("request {n}")).await;
        }
    };
    crate::support::soon("its share falls", turned_away).await;
    let status = of(&gateway, full);
    assert_eq!((status.state, status.failure_ratio), (ReplicaState::Ready, 0.0), "{status:?}");
    assert!(replicas[1..].iter().all(|other| of(&gateway, other).traffic_share == 1.0));
    drop(streams);
    gateway.idle().await;
}

/// What every replica turns away is a load that the pool cannot take.
#[tokio::test]
async fn a_pool_that_is_full_keeps_its_replicas_and_their_shares() {
    let (gateway, replicas) = four(PolicyName::RoundRobin).await;
    let ask = async |text: String| gateway.post(PATH, &CHAT.replace("hi", &text)).await.status();
    for n in 0..8 {
        assert_eq!(ask(format!("before {n}")).await, 200);
    }
    for replica in &replicas {
        replica.always(wire::json(429, "{}"));
    }
    for n in 0..24 {
        assert_eq!(ask(format!("request {n}")).await, 429);
    }
    let is_kept = |one: &ReplicaStatus| one.state == ReplicaState::Ready && one.traffic_share > 0.5;
    until("all keep their shares", || gateway.replicas().iter().all(is_kept)).await;
    gateway.idle().await;
    // It is no client's fault: it counts against goodput and wakes somebody.
    let failed = gateway.page().lines().any(|line| {
        line.starts_with("tokenway_requests_total{")
            && line.contains("outcome=\"failed\"")
            && line.contains("code=\"429\"")
            && line.ends_with(" 24")
    });
    assert!(failed, "{}", gateway.page());
}

/// Without a page nothing shows that an engine writes a long answer; a probe does.
#[tokio::test]
async fn a_client_that_leaves_long_answers_has_an_engine_without_a_page_probed_and_not_left() {
    let ([one, two], mut config) = config::fresh().await;
    for replica in [&one, &two] {
        replica.show_page(None);
        replica.answers(|request| match request.text().contains("long") {
            true => vec![Step::Hang],
            false => wire::json(200, WHOLE),
        });
    }
    config.routes[0].policy = PolicyName::Session;
    let gateway = Gateway::start(config).await;
    let whole = |text: &str| CHAT.replace(r#""stream":true"#, r#""stream":false"#).replace("hi", text);
    let ask = async |session: &str, text: &str| {
        let mut client = gateway.client().await;
        client.post(PATH, &[("x-session-id", session)], whole(text).as_bytes()).await;
        client
    };
    let home = async |session: &str| {
        let reply = ask(session, "short").await.reply().await;
        reply.field("x-tokenway-replica").unwrap().to_owned()
    };
    let theirs = home("theirs").await;
    let (busy, mut n) = (if one.name() == theirs { &one } else { &two }, 0);
    while home(&format!("session {n}")).await == theirs {
        n += 1;
    }
    // So many that it is known what an answer takes.
    let mut client = gateway.client().await;
    for _ in 0..300 {
        client.post(PATH, &[], whole("short").as_bytes()).await;
        assert_eq!(client.reply().await.status(), 200);
    }
    let (before, probed) = (busy.count(), busy.probed());
    let mut leaving = Vec::new();
    for n in 0..4 {
        leaving.push(ask("theirs", &format!("long {n}")).await);
    }
    busy.got(before + 4).await;
    // The patience of their clients, longer than any pause that says nothing.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    home(&format!("session {n}")).await;
    drop(leaving);
    gateway.idle().await;
    until("it is probed", || busy.probed() > probed).await;
    let status = of(&gateway, busy);
    assert_eq!((status.state, status.traffic_share), (ReplicaState::Ready, 1.0), "{status:?}");
}

#[tokio::test]
async fn a_share_of_zero_ejects_nobody_and_a_small_one_still_one() {
    for (max_share, is_left) in [(0.0, false), (0.01, true)] {
        let (gateway, replicas) = four(PolicyName::RoundRobin).await;
        let mut config = (*gateway.app.gateway.table.load().config).clone();
        config.pools[0].ejection.max_share = max_share;
        gateway.app.reload(Arc::new(config)).unwrap();
        replicas[0].always(wire::json(500, "{}"));
        let ask = async |n: u32| {
            gateway.post(PATH, &CHAT.replace("hi", &format!("request {n}"))).await;
            gateway.state_of(&replicas[0]) != ReplicaState::Ready
        };
        assert_eq!(is_found(ask, is_left).await, is_left, "{max_share}");
        let share = of(&gateway, &replicas[0]).traffic_share;
        assert!(is_left || share < 0.5, "it gets little all the same: {share}");
        gateway.idle().await;
    }
}

/// A client that asks for what no replica grants, where all of its requests go to one.
#[tokio::test]
async fn a_client_whose_wrong_requests_stay_together_costs_its_replica_nothing() {
    let (gateway, replicas) = four(PolicyName::Session).await;
    for replica in &replicas {
        replica.answers(|request| match request.text().contains("wrong") {
            true => wire::json(400, "{}"),
            false => wire::chat_stream(&["a"]),
        });
    }
    for n in 0..40 {
        assert_eq!(turn(&gateway, &format!("{n}"), &format!("fine {n}")).await, 200);
    }
    for n in 0..120 {
        assert_eq!(turn(&gateway, "theirs", &format!("wrong {n}")).await, 400);
        assert_eq!(turn(&gateway, &format!("{n}"), &format!("fine {n}")).await, 200);
    }
    let is_kept = |one: &ReplicaStatus| one.state == ReplicaState::Ready && one.traffic_share == 1.0;
    assert!(gateway.replicas().iter().all(is_kept), "{:?}", gateway.replicas());
    let seen: usize = replicas.iter().map(Replica::count).sum();
    assert!(seen <= 280 + 120 / 3, "{seen}: few are asked twice");
    assert!(!gateway.page().contains("refused_alone"));
    gateway.idle().await;
}

/// One client's requests that its replica alone refuses: an image that only that one cannot fetch.
#[tokio::test]
async fn one_conversation_that_a_replica_alone_refuses_costs_it_nothing() {
    let (replicas, mut config) = config::fresh::<4>().await;
    config.routes[0].policy = PolicyName::Session;
    config.retry.min_per_second = 100;
    let gateway = Gateway::start(config).await;
    for n in 0..40 {
        turn(&gateway, &format!("{n}"), &format!("fine {n}")).await;
    }
    for replica in &replicas {
        let name = replica.name();
        replica.answers(move |request| match request.text().contains(&format!("not at {name}.")) {
            true => wire::json(400, "{}"),
            false => wire::chat_stream(&["a"]),
        });
    }
    let before = replicas.each_ref().map(Replica::count);
    turn(&gateway, "theirs", "whose is it?").await;
    let home = replicas.iter().zip(before).find(|(replica, before)| replica.count() > *before).unwrap().0;
    let mut answered = 0;
    for n in 0..40 {
        let status = turn(&gateway, "theirs", &format!("{n}, not at {}.", home.name())).await;
        answered += usize::from(status == 200);
    }
    assert!(answered > 30, "{answered} of 40 had the answer of another");
    let status = of(&gateway, home);
    assert_eq!((status.state, status.traffic_share), (ReplicaState::Ready, 1.0), "{status:?}");
    gateway.idle().await;
}
