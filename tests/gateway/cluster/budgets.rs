//! Shared budgets at a gateway that does not know yet what the others took.

use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tokenway::config::OnLoss;

use super::{PATH, body, budgeted, follow_each_other, full, status, two_with_budget, with_budget};
use crate::cluster_keys::state;
use crate::support::redis::Redis;
use crate::support::replica::{Gate, Replica};
use crate::support::{Gateway, soon, until, wire};

const LIMIT: u64 = 60;

/// How many of so many requests at once are answered.
async fn burst(gateway: &Gateway, requests: usize) -> usize {
    let mut clients = Vec::new();
    for _ in 0..requests {
        clients.push(gateway.client().await);
    }
    for client in &mut clients {
        client.post(PATH, &[("authorization", "Bearer k")], body("hi").as_bytes()).await;
    }
    let mut answered = 0;
    for mut client in clients {
        answered += usize::from(client.reply().await.status() == 200);
    }
    answered
}

/// Places of what is counted in a gateway's field.
const OUTPUT: usize = 2;
const REQUESTS: usize = 3;

/// What the broker knows of the tenant's requests, of all gateways.
async fn known(redis: &Redis) -> u64 {
    amount(redis, REQUESTS).await
}

async fn amount(redis: &Redis, place: usize) -> u64 {
    let fields =
        "EVAL \"return redis.call('hvals', redis.call('keys', 'tokenway:budget:*')[1] or 'none')\" 0";
    let fields = redis.ask(fields).await.unwrap();
    let amount = |line: &str| line.split(' ').nth(place)?.parse::<u64>().ok();
    fields.lines().filter_map(amount).sum()
}

/// How far each gateway may go.
async fn leases(redis: &Redis) -> Vec<String> {
    let fields =
        "EVAL \"return redis.call('hvals', redis.call('keys', 'tokenway:budget-lease:*')[1] or 'none')\" 0";
    let fields = redis.ask(fields).await.unwrap();
    fields.lines().filter(|line| line.split(' ').count() == 7).map(str::to_owned).collect()
}

/// Both gateways use all of it, and the broker knows.
async fn spend(gateways: &[Gateway; 2], redis: &Redis) {
    let spending = async {
        let mut turns = gateways.iter().cycle();
        while known(redis).await < LIMIT {
            burst(turns.next().unwrap(), 10).await;
        }
    };
    soon("the budget is spent", spending).await;
}

async fn follows(gateway: &Gateway, peers: f64) {
    until("it follows the others", || gateway.sum("tokenway_cluster_peers", &[]) == peers).await;
}

#[tokio::test]
async fn a_gateway_that_joins_lets_one_request_at_most_into_a_spent_budget() {
    let (redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    let start = async || with_budget(&redis, &replicas, LIMIT, OnLoss::Open).await;
    let gateways = [start().await, start().await];
    follow_each_other(&gateways).await;
    spend(&gateways, &redis).await;
    let late = start().await;
    follows(&late, 2.0).await;
    let over = burst(&late, 40).await;
    assert!(over <= 1, "{over} of 40");
}

#[tokio::test]
async fn a_broker_that_forgets_gives_nothing_back() {
    let (redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    let gateways = two_with_budget(&redis, &replicas, LIMIT, OnLoss::Open).await;
    spend(&gateways, &redis).await;
    let [left, gone] = gateways;
    drop(gone);
    let knows = async || {
        left.post_as("k", PATH, &body("hi")).await.field("x-ratelimit-remaining-requests") == Some("0")
    };
    soon("it knows", async { while !knows().await {} }).await;
    redis.ask("FLUSHALL").await.unwrap();
    soon("the broker knows of it", async { while known(&redis).await == 0 {} }).await;
    assert_eq!(burst(&left, 10).await, 0);
}

#[tokio::test]
async fn a_gateway_that_joins_refuses_none_of_a_burst_that_fits() {
    let (redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    let gateways = two_with_budget(&redis, &replicas, 1000, OnLoss::Open).await;
    for gateway in &gateways {
        assert_eq!(burst(gateway, 40).await, 40);
    }
}

#[tokio::test]
async fn a_closed_gateway_that_starts_refuses_nothing_before_the_broker_has_answered() {
    let (redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    redis.ask("CLIENT PAUSE 400 ALL").await.unwrap();
    let gateway = with_budget(&redis, &replicas, 1000, OnLoss::Closed).await;
    assert_eq!(burst(&gateway, 5).await, 5);
}

#[tokio::test]
async fn a_broker_that_falls_silent_holds_no_request_for_long() {
    let (redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    let gateway = with_budget(&redis, &replicas, 1000, OnLoss::Open).await;
    until("it is connected", || gateway.sum("tokenway_cluster_connected", &[]) == 1.0).await;
    redis.ask("CLIENT PAUSE 60000 ALL").await.unwrap();
    assert_eq!(soon("all are answered", burst(&gateway, 5)).await, 5, "counted alone before it is given up");
    until("the loss is seen", || gateway.sum("tokenway_cluster_connected", &[]) == 0.0).await;
    assert_eq!(burst(&gateway, 5).await, 5, "alone");
}

#[tokio::test]
async fn what_a_gateway_took_before_it_lost_its_state_is_not_written_over() {
    let (redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    let [folder, empty] = [(); 2].map(|()| TempDir::new().unwrap());
    let other = with_budget(&redis, &replicas, LIMIT, OnLoss::Open).await;
    let gateways = [other, with_state(&redis, &replicas, folder.path()).await];
    follow_each_other(&gateways).await;
    spend(&gateways, &redis).await;
    let [other, before] = gateways;
    before.app.stop(Duration::ZERO).await;
    let again = with_state(&redis, &replicas, empty.path()).await;
    follows(&again, 1.0).await;
    let watching = async {
        for _ in 0..200 {
            let known = known(&redis).await;
            assert!(known >= LIMIT, "the other gateway would find {known} taken of {LIMIT}");
        }
    };
    let (first, ()) = tokio::join!(burst(&again, 1), watching);
    let over = first + burst(&again, 40).await;
    assert!(over <= 1, "{over} of 41");
    assert_eq!(status(&other).await, 429);
}

/// The second of two gateways would count them for the rest of the month, and so would the first when it is back.
#[tokio::test]
async fn what_requests_under_way_have_reserved_is_not_left_with_the_broker() {
    let (redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    let gateway = with_budget(&redis, &replicas, LIMIT, OnLoss::Open).await;
    until("it is connected", || gateway.sum("tokenway_cluster_connected", &[]) == 1.0).await;
    let gate = Gate::new();
    for replica in &replicas {
        replica.always(wire::begun_then("x", wire::behind(&gate, wire::ending(wire::FINISH))));
    }
    let mut client = gateway.client().await;
    let long = body("hi").replace("\"stream\"", "\"max_tokens\":500,\"stream\"");
    client.post(PATH, &[("authorization", "Bearer k")], long.as_bytes()).await;
    soon("it is known there", async { while leases(&redis).await.is_empty() {} }).await;
    let used = amount(&redis, OUTPUT).await;
    assert!(used < 20, "a gateway that is killed now finds {used} used");
    gate.cancel();
    assert_eq!(client.reply().await.status(), 200);
    gateway.idle().await;
    gateway.app.stop(Duration::from_secs(1)).await;
    let left = amount(&redis, OUTPUT).await;
    assert!(left < 20, "{left}");
}

#[tokio::test]
async fn a_gateway_that_moves_to_another_host_with_its_state_counts_nothing_twice() {
    let (redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    let folder = TempDir::new().unwrap();
    let before = with_state(&redis, &replicas, folder.path()).await;
    until("it is connected", || before.sum("tokenway_cluster_connected", &[]) == 1.0).await;
    assert_eq!(burst(&before, 40).await, 40);
    soon("the broker knows", async { while known(&redis).await < 40 {} }).await;
    before.app.stop(Duration::from_secs(1)).await;
    drop(before);
    // As it would have been written there.
    let file = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path());
    let file = file.into_iter().find(|file| file.to_string_lossy().contains("budgets")).unwrap();
    let mut kept: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let here = kept["gateway"].as_str().unwrap().to_owned();
    kept["gateway"] = "elsewhere:1".into();
    std::fs::write(&file, kept.to_string()).unwrap();
    let moving = format!(
        "EVAL \"local key = redis.call('keys', 'tokenway:budget:*')[1] redis.call('hset', key, 'elsewhere:1', \
         redis.call('hget', key, '{here}')) return redis.call('hdel', key, '{here}')\" 0"
    );
    assert!(redis.ask(&moving).await.unwrap().contains('1'));
    let again = with_state(&redis, &replicas, folder.path()).await;
    until("it is connected", || again.sum("tokenway_cluster_connected", &[]) == 1.0).await;
    assert_eq!(burst(&again, 30).await, 20, "of {LIMIT}, 40 of which were used");
}

#[tokio::test]
async fn bursts_at_two_gateways_use_a_hard_budget_up_and_no_more() {
    let (redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    let gateways = two_with_budget(&redis, &replicas, LIMIT, OnLoss::Closed).await;
    // One has nothing to do, and leaves its share to the other.
    assert_eq!(burst(&gateways[0], 1).await, 1);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let first = burst(&gateways[1], 30).await;
    let (one, other) = tokio::join!(burst(&gateways[0], 50), burst(&gateways[1], 50));
    assert_eq!(first, 30, "of {LIMIT} for two");
    let mut all = (1 + first + one + other) as u64;
    soon("it is used up", async {
        while all < LIMIT {
            all += burst(&gateways[0], 1).await as u64;
        }
    })
    .await;
    assert_eq!(all, LIMIT, "{one} and {other}");
    let (one, other) = tokio::join!(burst(&gateways[0], 5), burst(&gateways[1], 5));
    assert_eq!((one, other), (0, 0), "and no more");
}

/// With a name that outlasts a restart, whatever the folder holds.
async fn with_state(redis: &Redis, replicas: &[Replica], folder: &Path) -> Gateway {
    let mut config = budgeted(redis, replicas, LIMIT, OnLoss::Open);
    config.state = state(folder);
    Gateway::start(config).await
}

#[tokio::test]
async fn a_broker_that_takes_no_writes_takes_no_shares_either() {
    let (redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    let gateways = two_with_budget(&redis, &replicas, 40, OnLoss::Closed).await;
    assert_eq!(status(&gateways[0]).await, 200);
    tokio::time::sleep(Duration::from_millis(200)).await;
    full(&redis, true).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    for n in 0..15 {
        assert_eq!(status(&gateways[0]).await, 200, "{n}: its half");
    }
    let mut more = 0;
    while status(&gateways[0]).await == 200 {
        more += 1;
    }
    assert!(more < 10, "{more} beyond its half");
}
