//! What one gateway left, another asks for itself.

use std::time::Duration;

use tokenway::config::PolicyName;
use tokenway::fleet::status::ReplicaState;

use super::{PATH, body, config_of, follow_each_other, in_step, pair};
use crate::support::redis::Redis;
use crate::support::replica::{Probes, Replica, Step};
use crate::support::{Gateway, until, wire};

/// Requests with different prompts, until the gateway has left the replica, which fails every one.
async fn eject(gateway: &Gateway, replica: &Replica) {
    replica.always(wire::json(500, "{}"));
    // With its share it gets few of them, and an answered probe may have it back, on trial, before the next look.
    let was_left = || entered(gateway, replica, ReplicaState::Ejected) > 0;
    for at in 0..5_000 {
        gateway.post(PATH, &body(&format!("{at} lorem"))).await;
        if was_left() {
            break;
        }
    }
    assert!(was_left(), "{:?}", gateway.replicas());
    replica.always(wire::chat_stream(&["a", "b"]));
}

/// How often the gateway had it enter a state.
fn entered(gateway: &Gateway, replica: &Replica, state: ReplicaState) -> u64 {
    let status = gateway.replicas().into_iter().find(|status| *status.replica == *replica.name());
    let at = ReplicaState::ALL.iter().position(|one| *one == state);
    status.zip(at).map_or(0, |(status, at)| status.life.entered[at])
}

#[tokio::test]
async fn a_dead_replica_is_left_by_the_gateway_that_had_no_request_for_it() {
    let (redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    let gateways = pair(&redis, &replicas, PolicyName::RoundRobin).await;
    replicas[0].stop_listening().await;
    for _ in 0..3 {
        gateways[0].post(PATH, &body("hi")).await.replica();
    }
    for gateway in &gateways {
        until("both have left it", || gateway.state_of(&replicas[0]) == ReplicaState::Unreachable).await;
    }
    replicas[0].listen_again().await;
    for gateway in &gateways {
        until("each finds it again", || gateway.state_of(&replicas[0]) == ReplicaState::Ready).await;
    }
}

#[tokio::test]
async fn a_gateway_whose_requests_fail_takes_no_replica_from_one_that_gets_answers() {
    let (redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    let gateways = pair(&redis, &replicas, PolicyName::RoundRobin).await;
    let asked = replicas[0].probed();
    eject(&gateways[0], &replicas[0]).await;
    in_step(&gateways).await;
    until("the other asks the replica itself", || replicas[0].probed() > asked).await;
    // It answered: a part of the traffic comes back at once, and never was it left.
    let mut tries = 0;
    while gateways[1].post(PATH, &body(&format!("{tries} ipsum"))).await.replica() != replicas[0].name() {
        tries += 1;
        assert!(tries < 300, "its own probe was answered");
    }
    let status = gateways[1].replicas();
    let doubted = status.iter().find(|status| *status.replica == *replicas[0].name()).unwrap();
    assert_eq!(doubted.state, ReplicaState::Ready);
    assert_eq!(entered(&gateways[1], &replicas[0], ReplicaState::Ejected), 0);
}

#[tokio::test]
async fn until_its_own_probe_is_answered_a_gateway_prefers_others_to_a_replica_that_another_left() {
    let (redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    let mut config = config_of(&redis, &replicas, PolicyName::RoundRobin);
    // The doubt lasts for two of them: longer than a busy machine takes for what follows.
    config.pools[0].probe.timeout = Duration::from_secs(30);
    let gateways = [Gateway::start(config.clone()).await, Gateway::start(config).await];
    follow_each_other(&gateways).await;
    replicas[0].probes(Probes::CompletionsUnanswered);
    eject(&gateways[0], &replicas[0]).await;
    let is_doubted = || {
        let status = gateways[1].replicas();
        status.iter().any(|one| *one.replica == *replicas[0].name() && one.failure_ratio > 0.0)
    };
    until("the other has heard of it", is_doubted).await;
    for _ in 0..9 {
        assert_ne!(gateways[1].post(PATH, &body("hi")).await.replica(), replicas[0].name());
    }
    replicas[0].probes(Probes::Answered);
}

#[tokio::test]
async fn the_only_replica_is_used_whatever_another_gateway_found() {
    let (redis, replica) = (Redis::start().await, Replica::start().await);
    let mut one = config_of(&redis, std::slice::from_ref(&replica), PolicyName::RoundRobin);
    let other = one.clone();
    // At the other gateway its pool has a second one, so that it may be ejected there.
    let second = Replica::start().await;
    one.pools = vec![crate::support::config::pool("default", &[&replica, &second])];
    let gateways = [Gateway::start(one).await, Gateway::start(other).await];
    follow_each_other(&gateways).await;
    replica.probes(Probes::CompletionsUnanswered);
    eject(&gateways[0], &replica).await;
    until("it is heard of", || gateways[1].sum("tokenway_cluster_notices_total", &["received"]) > 0.0).await;
    assert_eq!(gateways[1].post(PATH, &body("hi")).await.replica(), replica.name());
}

#[tokio::test]
async fn a_prompt_that_killed_two_replicas_of_one_gateway_is_refused_by_the_other() {
    let (redis, replicas) = (Redis::start().await, Replica::several::<4>().await);
    let start = async || {
        let mut config = config_of(&redis, &replicas, PolicyName::RoundRobin);
        config.pools[0].ejection.max_share = 1.0;
        Gateway::start(config).await
    };
    let gateways = [start().await, start().await];
    follow_each_other(&gateways).await;
    for replica in &replicas {
        replica.answers(|request| match request.text().contains("die") {
            true => vec![Step::StopListening, Step::Reset],
            false => wire::chat_stream(&["a"]),
        });
    }
    assert_eq!(gateways[0].post(PATH, &body("die")).await.code(), "replica_failed");
    let dead = |gateway: &Gateway| {
        let all = gateway.replicas();
        all.iter().filter(|replica| replica.state == ReplicaState::Unreachable).count()
    };
    for gateway in &gateways {
        until("both have found two replicas dead", || dead(gateway) == 2).await;
    }
    in_step(&gateways).await;
    for gateway in &gateways {
        assert_eq!(gateway.post(PATH, &body("die")).await.code(), "suspected_poison");
        assert_eq!(gateway.post(PATH, &body("live")).await.status(), 200, "others are not refused");
    }
}
