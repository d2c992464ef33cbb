//! Two gateways before the same replicas, with a real Redis between them.

mod budgets;
mod check;
mod health;
mod sentinels;
mod speeds;
mod stored;
mod warm;

use std::collections::HashSet;
use std::time::Duration;

use tokenway::config::{Budget, Config, OnLoss, PolicyName, Tenant, Window};

use crate::support::client::Client;
use crate::support::redis::Redis;
use crate::support::replica::{Gate, Replica, Step};
use crate::support::{Gateway, PATH, config, soon, until, wire};

fn config_of(redis: &Redis, replicas: &[Replica], policy: PolicyName) -> Config {
    let mut config = config::of(&replicas.iter().collect::<Vec<_>>());
    config.routes[0].policy = policy;
    config.cluster = Some(redis.cluster());
    config
}

/// Two gateways that follow each other.
async fn pair(redis: &Redis, replicas: &[Replica], policy: PolicyName) -> [Gateway; 2] {
    let start = async || Gateway::start(config_of(redis, replicas, policy)).await;
    let both = [start().await, start().await];
    follow_each_other(&both).await;
    both
}

async fn follow_each_other(gateways: &[Gateway; 2]) {
    let is_followed = || gateways.iter().all(|one| one.sum("tokenway_cluster_peers", &[]) == 1.0);
    until("each follows the other", is_followed).await;
}

/// The broker ends, and they see it.
async fn lost(redis: &mut Redis, gateways: &[Gateway]) {
    redis.kill();
    let is_seen = || gateways.iter().all(|one| one.sum("tokenway_cluster_connected", &[]) == 0.0);
    until("the loss is seen", is_seen).await;
}

/// Everything that one published has been taken in by the other.
async fn in_step([one, other]: &[Gateway; 2]) {
    let of = |gateway: &Gateway, direction| gateway.sum("tokenway_cluster_notices_total", &[direction]);
    let is_in_step = || of(one, "sent") == of(other, "received") && of(other, "sent") == of(one, "received");
    let mut before = None;
    loop {
        // A batch is due every 20 ms: what just ended is in none yet, and a busy broker may not have taken the last one.
        tokio::time::sleep(Duration::from_millis(60)).await;
        until("what one knows the other knows", is_in_step).await;
        let sent = of(one, "sent") + of(other, "sent");
        if before.replace(sent) == Some(sent) {
            return;
        }
    }
}

fn body(prompt: &str) -> String {
    format!(r#"{{"model":"tiny","stream":true,"messages":[{{"role":"user","content":"{prompt}"}}]}}"#)
}

#[tokio::test]
async fn a_conversation_that_changes_its_gateway_with_every_turn_stays_on_its_replica() {
    let (redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    let gateways = pair(&redis, &replicas, PolicyName::Prefix).await;
    let mut homes = HashSet::new();
    for conversation in 0..12 {
        let mut prompt = format!("{conversation} lorem ").repeat(600);
        let mut used = HashSet::new();
        for turn in 0..4 {
            let reply = gateways[(conversation + turn) % 2].post(PATH, &body(&prompt)).await;
            used.insert(reply.replica());
            if turn > 0 {
                let decision = reply.field("x-tokenway-decision").unwrap();
                assert!(decision.contains("reason=prefix"), "{conversation} {turn}: {decision}");
            }
            in_step(&gateways).await;
            prompt.push_str(&format!("turn {turn} ").repeat(100));
        }
        assert_eq!(used.len(), 1, "{conversation}: {used:?}");
        homes.extend(used);
    }
    assert!(homes.len() > 1, "conversations spread: {homes:?}");
}

#[tokio::test]
async fn requests_of_the_other_gateway_count_as_load_until_they_end() {
    let (redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    let gateways = pair(&redis, &replicas, PolicyName::LeastLoaded).await;
    let gate = Gate::new();
    for replica in &replicas {
        replica.next(wire::begun_then("a", [Step::Wait(gate.clone()), wire::event(wire::FINISH), Step::End]));
    }
    let mut clients: Vec<Client> = Vec::new();
    let mut used = HashSet::new();
    for gateway in [&gateways[0], &gateways[0], &gateways[1]] {
        let mut client = gateway.sent(PATH, &body("hi")).await;
        let head = client.head().await;
        used.insert(head.header("x-tokenway-replica").unwrap().to_owned());
        clients.push(client);
        in_step(&gateways).await;
    }
    assert_eq!(used.len(), 3, "the second gateway takes the replica that the first one left idle: {used:?}");
    let own: u64 = gateways[1].replicas().iter().map(|replica| replica.inflight).sum();
    assert_eq!(own, 1, "its own requests are its own");
    gate.cancel();
    for mut client in clients {
        client.rest().await;
    }
    in_step(&gateways).await;
    for gateway in &gateways {
        let pools = gateway.app.fleet.pools();
        let left: u64 = pools
            .iter()
            .flat_map(|pool| pool.replicas().iter().map(|r| r.target.load.inflight()).collect::<Vec<_>>())
            .sum();
        assert_eq!(left, 0);
    }
}

#[tokio::test]
async fn a_broker_that_is_killed_fails_no_request_and_is_back_within_five_seconds() {
    let (mut redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    // By prefix alone: engines that answer at once teach `latency` that a hit saves nothing.
    let gateways = pair(&redis, &replicas, PolicyName::Prefix).await;
    let ask = async |n: usize| {
        for at in 0..n {
            let reply = gateways[at % 2].post(PATH, &body(&format!("{at} lorem ").repeat(200))).await;
            reply.replica();
        }
    };
    ask(20).await;
    lost(&mut redis, &gateways).await;
    let page = gateways[0].page();
    assert!(!page.contains("tokenway_cluster_lag_seconds{"), "the broker is away");
    ask(60).await;
    let dropped = || {
        gateways.iter().all(|one| one.sum("tokenway_cluster_notices_dropped_total", &["disconnected"]) > 0.0)
    };
    until("what could not be sent is counted", dropped).await;
    // Long enough for the longest pause between two attempts.
    tokio::time::sleep(Duration::from_secs(4)).await;
    redis.start_again().await;
    let back = tokio::time::timeout(Duration::from_secs(5), follow_each_other(&gateways)).await;
    assert!(back.is_ok(), "each follows the other again within 5 s");
    ask(20).await;
    in_step_after_loss(&gateways).await;
}

async fn in_step_after_loss(gateways: &[Gateway; 2]) {
    let prompt = "again lorem ".repeat(600);
    let home = gateways[0].post(PATH, &body(&prompt)).await.replica();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(gateways[1].post(PATH, &body(&format!("{prompt} more"))).await.replica(), home);
}

#[tokio::test]
async fn without_a_broker_a_gateway_starts_and_serves_alone() {
    let (mut redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    redis.kill();
    let gateway = soon("a start", Gateway::start(config_of(&redis, &replicas, PolicyName::Latency))).await;
    gateway.post(PATH, &body("hi")).await.replica();
    assert_eq!(gateway.sum("tokenway_cluster_connected", &[]), 0.0);
    redis.start_again().await;
    until("it finds the broker", || gateway.sum("tokenway_cluster_connected", &[]) == 1.0).await;
}

#[tokio::test]
async fn messages_of_others_and_of_other_versions_are_counted_and_change_nothing() {
    let (redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    let gateways = pair(&redis, &replicas, PolicyName::Latency).await;
    // Another application's, another version's, one of a gateway that ends in the middle, and a place that nobody has.
    for message in ["{job:1}", r#""TW\x09aaaaaaaabbbbcccc""#, r#""TW\x02aaaaaaaabbbbcccc\x01\x20short""#] {
        assert!(redis.ask(&format!("PUBLISH tokenway:notices {message}")).await.unwrap().starts_with(":2"));
    }
    let are_counted = || {
        gateways.iter().all(|one| one.sum("tokenway_cluster_notices_dropped_total", &["unreadable"]) == 3.0)
    };
    until("they are counted", are_counted).await;
    // Two notices of kinds that only a newer gateway knows.
    let newer = r#""TW\x02aaaaaaaabbbbcccc\xc8\x02xx\xc9\x00""#;
    assert!(redis.ask(&format!("PUBLISH tokenway:notices {newer}")).await.unwrap().starts_with(":2"));
    let are_counted = || {
        let skipped = |one: &Gateway| one.sum("tokenway_cluster_notices_dropped_total", &["unknown_kind"]);
        gateways.iter().all(|one| skipped(one) == 2.0)
    };
    until("those of a newer gateway are counted", are_counted).await;
    let prompt = "lorem ipsum ".repeat(600);
    let home = gateways[0].post(PATH, &body(&prompt)).await.replica();
    in_step(&gateways).await;
    assert_eq!(gateways[1].post(PATH, &body(&format!("{prompt} more"))).await.replica(), home);
}

#[tokio::test]
async fn clusters_of_two_names_share_a_broker_and_nothing_else() {
    let (redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    let start = async |name: &str| {
        let mut config = config_of(&redis, &replicas, PolicyName::Latency);
        config.cluster.as_mut().unwrap().name = name.into();
        Gateway::start(config).await
    };
    let (one, other) = (start("a").await, start("b").await);
    until("both are connected", || {
        [&one, &other].iter().all(|g| g.sum("tokenway_cluster_connected", &[]) == 1.0)
    })
    .await;
    one.post(PATH, &body("hi")).await.replica();
    until("it is published", || one.sum("tokenway_cluster_notices_total", &["sent"]) == 3.0).await;
    assert_eq!(
        (
            other.sum("tokenway_cluster_peers", &[]),
            other.sum("tokenway_cluster_notices_total", &["received"])
        ),
        (0.0, 0.0)
    );
}

#[tokio::test]
async fn clusters_in_two_databases_of_a_broker_share_nothing() {
    let (redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    let start = async |database| {
        let mut config = config_of(&redis, &replicas, PolicyName::Latency);
        config.cluster.as_mut().unwrap().url.database = database;
        Gateway::start(config).await
    };
    let zero = start(0).await;
    let both = [start(1).await, start(1).await];
    follow_each_other(&both).await;
    let other = start(2).await;
    until("it is connected", || other.sum("tokenway_cluster_connected", &[]) == 1.0).await;
    both[0].post(PATH, &body("hi")).await.replica();
    in_step(&both).await;
    for stranger in [&zero, &other] {
        let received = stranger.sum("tokenway_cluster_notices_total", &["received"]);
        assert_eq!((stranger.sum("tokenway_cluster_peers", &[]), received), (0.0, 0.0));
    }
    // As in earlier versions.
    let subscribed = redis.ask("PUBSUB NUMSUB tokenway:notices").await.unwrap();
    assert!(subscribed.ends_with(":1\r\n"), "{subscribed}");
}

/// One tenant with a budget of so many requests a month, for both gateways.
async fn with_budget(redis: &Redis, replicas: &[Replica], requests: u64, on_loss: OnLoss) -> Gateway {
    Gateway::start(budgeted(redis, replicas, requests, on_loss)).await
}

/// Two that know of each other.
async fn two_with_budget(
    redis: &Redis,
    replicas: &[Replica],
    requests: u64,
    on_loss: OnLoss,
) -> [Gateway; 2] {
    let start = async || with_budget(redis, replicas, requests, on_loss).await;
    let gateways = [start().await, start().await];
    follow_each_other(&gateways).await;
    gateways
}

fn budgeted(redis: &Redis, replicas: &[Replica], requests: u64, on_loss: OnLoss) -> Config {
    let mut config = config_of(redis, replicas, PolicyName::LeastLoaded);
    let budget = Budget { window: Window::Month, requests: Some(requests), ..Budget::default() };
    config.tenants = vec![Tenant { budgets: vec![budget], ..config::tenant("acme", "k") }];
    config.cluster.as_mut().unwrap().on_loss = on_loss;
    config
}

/// Status of a request of the tenant.
async fn status(gateway: &Gateway) -> u16 {
    let mut client = gateway.sent_as("k", PATH, &body("hi")).await;
    client.reply().await.status()
}

#[tokio::test]
async fn a_budget_holds_over_two_gateways_within_two_percent_and_through_a_loss_of_the_broker() {
    const LIMIT: u64 = 300;
    let (mut redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    let gateways = two_with_budget(&redis, &replicas, LIMIT, OnLoss::Open).await;
    let used = async |n: usize| {
        let one = async |gateway| {
            let mut ok = 0;
            for _ in 0..n {
                ok += u64::from(status(gateway).await == 200);
            }
            ok
        };
        let (first, second) = tokio::join!(one(&gateways[0]), one(&gateways[1]));
        first + second
    };
    let mut all = used(40).await;
    // What is used meanwhile is known again when the broker, which has lost everything, is back.
    lost(&mut redis, &gateways).await;
    all += used(40).await;
    assert_eq!(all, 160, "nothing was refused");
    redis.start_again().await;
    follow_each_other(&gateways).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    all += used(150).await;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(60)).await;
        all += used(1).await;
    }
    assert!((LIMIT..=LIMIT + LIMIT / 50).contains(&all), "{all} of {LIMIT}");
}

#[tokio::test]
async fn a_closed_budget_refuses_without_a_broker_what_no_lease_covers() {
    let (mut redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    redis.kill();
    let gateway = with_budget(&redis, &replicas, 100, OnLoss::Closed).await;
    assert_eq!(status(&gateway).await, 429);
    redis.start_again().await;
    until("it finds the broker", || gateway.sum("tokenway_cluster_connected", &[]) == 1.0).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(status(&gateway).await, 200);
}

#[tokio::test]
async fn a_broker_that_is_back_for_a_moment_makes_no_gateway_the_only_one() {
    let (mut redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    let gateways = two_with_budget(&redis, &replicas, 60, OnLoss::Closed).await;
    let [gateway, other] = gateways;
    assert_eq!(status(&gateway).await, 200);
    // Until then it holds more gateways for possible.
    tokio::time::sleep(Duration::from_millis(700)).await;
    redis.kill();
    until("the loss is seen", || gateway.sum("tokenway_cluster_connected", &[]) == 0.0).await;
    // As one that finds the broker a moment later.
    drop(other);
    redis.start_again().await;
    until("it is back", || gateway.sum("tokenway_cluster_connected", &[]) == 1.0).await;
    redis.kill();
    until("it is away", || gateway.sum("tokenway_cluster_connected", &[]) == 0.0).await;
    let mut admitted = 0;
    while status(&gateway).await == 200 {
        admitted += 1;
    }
    assert!((20..=30).contains(&admitted), "{admitted} of 59, for two gateways");
}

/// Its broker refuses to write, or no more.
async fn full(redis: &Redis, is_full: bool) {
    redis.ask("CONFIG SET maxmemory-policy noeviction").await.unwrap();
    let set = redis.ask(&format!("CONFIG SET maxmemory {}", u8::from(is_full))).await.unwrap();
    assert!(set.starts_with("+OK"), "{set}");
}

#[tokio::test]
async fn a_full_broker_is_as_one_that_is_away_for_budgets_until_it_has_room() {
    let (redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    let gateways = two_with_budget(&redis, &replicas, 20, OnLoss::Open).await;
    assert_eq!(status(&gateways[0]).await, 200);
    full(&redis, true).await;
    for n in 0..15 {
        tokio::time::sleep(Duration::from_millis(60)).await;
        assert_eq!(status(&gateways[0]).await, 200, "{n}: more than its half of what is left");
    }
    assert!(gateways.iter().all(|one| one.sum("tokenway_cluster_connected", &[]) == 1.0), "no lost one");
    full(&redis, false).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut left = 0;
    while status(&gateways[1]).await == 200 {
        left += 1;
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    assert_eq!(left, 4, "the other one knows what was used");

    full(&redis, true).await;
    redis.ask("FLUSHALL").await.unwrap();
    let closed = with_budget(&redis, &replicas, 100, OnLoss::Closed).await;
    until("it finds the broker", || closed.sum("tokenway_cluster_connected", &[]) == 1.0).await;
    assert_eq!(status(&closed).await, 200, "nothing has been refused to it yet");
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(status(&closed).await, 429, "there is no lease");
    full(&redis, false).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(status(&closed).await, 200);
}
