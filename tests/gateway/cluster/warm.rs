//! Warm restarts: a gateway that starts finds the prompts that are cached.

use std::time::{Duration, SystemTime};

use tokenway::clock::Clock;
use tokenway::config::PolicyName;
use tokenway::fleet::status::ReplicaState;

use super::{PATH, body, config_of, follow_each_other, pair};
use crate::support::redis::Redis;
use crate::support::replica::Replica;
use crate::support::{Gateway, soon, until, wire};

/// A page of an engine that has run for so long.
fn page(since: Duration) -> String {
    let clock = Clock::start();
    let start = clock.wall(clock.now()).duration_since(SystemTime::UNIX_EPOCH).unwrap() - since;
    format!("{}\nprocess_start_time_seconds {}\n", wire::METRICS, start.as_secs_f64())
}

async fn old_replicas() -> [Replica; 3] {
    let replicas = Replica::several::<3>().await;
    replicas.iter().for_each(|replica| replica.show_page(Some(&page(Duration::from_secs(3600)))));
    replicas
}

fn prompt(conversation: usize) -> String {
    format!("{conversation} lorem ").repeat(600)
}

/// Replicas of twelve conversations.
async fn begin(gateway: &Gateway, redis: &Redis) -> Vec<String> {
    // What is decided before is not written.
    until("it is connected", || gateway.sum("tokenway_cluster_connected", &[]) == 1.0).await;
    let mut homes = Vec::new();
    for conversation in 0..12 {
        homes.push(gateway.post(PATH, &body(&prompt(conversation))).await.replica());
    }
    assert!(homes.iter().any(|home| *home != homes[0]), "conversations spread: {homes:?}");
    // Decisions are written once a second.
    let is_written = async {
        while !redis.ask("EXISTS tokenway:decisions").await.unwrap().starts_with(":1") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep(Duration::from_millis(1200)).await;
    };
    soon("decisions are written", is_written).await;
    homes
}

/// The same by a gateway that has ended then.
async fn before_the_restart(redis: &Redis, replicas: &[Replica]) -> Vec<String> {
    let gateway = Gateway::start(config_of(redis, replicas, PolicyName::Prefix)).await;
    let homes = begin(&gateway, redis).await;
    gateway.app.stop(Duration::ZERO).await;
    homes
}

/// Decisions on the conversations that are continued and do not go to their replica because of the prefix.
async fn missed(gateway: &Gateway, homes: &[String]) -> Vec<String> {
    let mut missed = Vec::new();
    for (conversation, home) in homes.iter().enumerate() {
        let reply = gateway.post(PATH, &body(&format!("{} more", prompt(conversation)))).await;
        let decision = reply.field("x-tokenway-decision").unwrap();
        if !decision.contains("reason=prefix") || reply.replica() != *home {
            missed.push(format!("{conversation} of {home}: {decision}"));
        }
    }
    missed
}

/// Until what is cached was read: a request of that gateway alone would teach it.
async fn read(gateway: &Gateway) {
    until("it is connected", || gateway.sum("tokenway_cluster_connected", &[]) == 1.0).await;
    let held = || {
        let pools = gateway.app.fleet.pools();
        (0..3).map(|slot| pools[0].dispatcher.index.held(slot)).sum::<usize>()
    };
    let mut before = 0;
    until("the index is filled", || held() > 0).await;
    while std::mem::replace(&mut before, held()) != held() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn the_only_gateway_finds_its_prompts_after_a_restart() {
    let (redis, replicas) = (Redis::start().await, old_replicas().await);
    let homes = before_the_restart(&redis, &replicas).await;
    let after = Gateway::start(config_of(&redis, &replicas, PolicyName::Prefix)).await;
    read(&after).await;
    assert_eq!(missed(&after, &homes).await, [""; 0]);
}

#[tokio::test]
async fn prompts_on_later_pages_of_the_journal_are_found() {
    let (redis, replicas) = (Redis::start().await, old_replicas().await);
    let homes = before_the_restart(&redis, &replicas).await;
    // More than two pages of what is no gateway's come first.
    let moved = "local key = 'tokenway:decisions' local all = redis.call('xrange', key, '-', '+') redis.call('del', key) \
                 for n = 1, 40 do redis.call('xadd', key, '*', 'd', 'x') end \
                 for _, entry in ipairs(all) do redis.call('xadd', key, '*', unpack(entry[2])) end return 1";
    assert_eq!(redis.ask(&format!("EVAL \"{moved}\" 0")).await.unwrap(), ":1\r\n");
    let after = Gateway::start(config_of(&redis, &replicas, PolicyName::Prefix)).await;
    read(&after).await;
    assert_eq!(missed(&after, &homes).await, [""; 0]);
}

#[tokio::test]
async fn prompts_are_found_where_a_source_names_the_replicas_only_after_the_start() {
    let (redis, replicas) = (Redis::start().await, old_replicas().await);
    let homes = before_the_restart(&redis, &replicas).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("replicas.json");
    let mut config = config_of(&redis, &replicas, PolicyName::Prefix);
    config.pools[0].replicas.clear();
    config.pools[0].discovery.file = Some(path.clone());
    let after = Gateway::start_unready(config);
    until("it is connected", || after.sum("tokenway_cluster_connected", &[]) == 1.0).await;
    // As long as the name of a Service takes that is asked for again.
    tokio::time::sleep(Duration::from_millis(400)).await;
    crate::discovery::write(&path, &replicas.iter().collect::<Vec<_>>());
    let is_ready = || after.replicas().iter().filter(|one| one.state == ReplicaState::Ready).count() == 3;
    until("all are ready", is_ready).await;
    read(&after).await;
    assert_eq!(missed(&after, &homes).await, [""; 0]);
}

#[tokio::test]
async fn one_of_two_gateways_finds_the_prompts_of_both_after_a_restart() {
    let (redis, replicas) = (Redis::start().await, old_replicas().await);
    let [first, second] = pair(&redis, &replicas, PolicyName::Prefix).await;
    let homes = begin(&first, &redis).await;
    second.app.stop(Duration::ZERO).await;
    let after = Gateway::start(config_of(&redis, &replicas, PolicyName::Prefix)).await;
    read(&after).await;
    let both = [first, after];
    follow_each_other(&both).await;
    assert_eq!(missed(&both[1], &homes).await, [""; 0]);
}

#[tokio::test]
async fn a_replica_that_restarted_since_has_lost_its_prompts() {
    let (redis, replicas) = (Redis::start().await, old_replicas().await);
    let homes = before_the_restart(&redis, &replicas).await;
    replicas[0].show_page(Some(&page(Duration::ZERO)));
    let after = Gateway::start(config_of(&redis, &replicas, PolicyName::Prefix)).await;
    read(&after).await;
    let pools = after.app.fleet.pools();
    let held = (0..3).map(|slot| pools[0].dispatcher.index.held(slot) > 0).collect::<Vec<_>>();
    let had = replicas.iter().map(|one| homes.contains(&one.name())).collect::<Vec<_>>();
    assert!(had[0] && !held[0], "its cache is empty: {had:?} {held:?}");
    assert_eq!(held[1..], had[1..]);
}
