//! Stored responses: any gateway sends a follow-up where its response is.

use std::sync::Arc;
use std::time::Duration;

use tokenway::config::PolicyName;
use tokio::task::JoinSet;

use super::{config_of, follow_each_other, full, lost, pair};
use crate::routing::follow_up;
use crate::support::client::Reply;
use crate::support::redis::Redis;
use crate::support::replica::Replica;
use crate::support::{Gateway, config, soon, until, wire};

const RESPONSES: &str = "/v1/responses";

async fn ask(gateway: &Gateway, key: &str, body: &str) -> Reply {
    let mut client = gateway.sent_as(key, RESPONSES, body).await;
    client.reply().await
}

/// Makes a response with this id; returns its replica.
async fn make(gateway: &Gateway, replicas: &[Replica], id: &str) -> String {
    answer(replicas, id);
    let reply = ask(gateway, "k", r#"{"model":"tiny","input":"hi"}"#).await;
    answer(replicas, "resp_of_a_follow_up");
    reply.replica()
}

/// Every response has this id from now on.
fn answer(replicas: &[Replica], id: &str) {
    let whole = format!(
        r#"{{"id":"{id}","object":"response","model":"tiny","status":"completed","output":[],"usage":{{"input_tokens":5,"output_tokens":3}}}}"#
    );
    for replica in replicas {
        replica.always(wire::json(200, &whole));
    }
}

#[tokio::test]
async fn a_follow_up_through_another_gateway_goes_where_its_response_is() {
    let (redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    let gateways = pair(&redis, &replicas, PolicyName::RoundRobin).await;
    for round in 0..9 {
        let id = format!("resp_{round}");
        let maker = make(&gateways[round % 2], &replicas, &id).await;
        // At once: what the other made a moment ago may be on its way.
        let other = &gateways[(round + 1) % 2];
        assert_eq!(ask(other, "k", &follow_up(&id)).await.replica(), maker);
        assert_eq!(other.ask("GET", &format!("{RESPONSES}/{id}"), &[], "").await.replica(), maker);
    }
}

#[tokio::test]
async fn many_follow_ups_at_once_are_all_asked_for() {
    let (redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    let gateways = pair(&redis, &replicas, PolicyName::RoundRobin).await;
    let (tenant, url): (Arc<str>, Arc<str>) = ("acme".into(), "http://127.0.0.1:1".into());
    let ids: Vec<String> = (0..1_000).map(|n| format!("resp_{n}")).collect();
    let [made, asked] = gateways.each_ref().map(|gateway| Arc::clone(&gateway.app.gateway.pins));
    ids.iter().for_each(|id| made.remember(&tenant, id, &url));
    let mut questions = JoinSet::new();
    for id in ids.clone() {
        let (asked, tenant) = (Arc::clone(&asked), Arc::clone(&tenant));
        questions.spawn(async move { asked.fetch(&tenant, &id).await });
    }
    questions.join_all().await;
    let known = ids.iter().filter(|id| asked.replica_of(&tenant, id).is_some()).count();
    assert_eq!(known, ids.len());
}

#[tokio::test]
async fn a_broker_that_becomes_a_read_only_replica_is_left_until_it_is_master_again() {
    let (redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    let gateways = pair(&redis, &replicas, PolicyName::RoundRobin).await;
    // As managed brokers fail over: connections stay, and the name leads elsewhere.
    assert!(redis.ask("REPLICAOF 127.0.0.1 1").await.unwrap().starts_with("+OK"));
    let maker = make(&gateways[0], &replicas, "resp_meanwhile").await;
    until("its write is refused", || gateways[0].sum("tokenway_cluster_connected", &[]) == 0.0).await;
    assert!(redis.ask("REPLICAOF NO ONE").await.unwrap().starts_with("+OK"));
    follow_each_other(&gateways).await;
    assert_eq!(ask(&gateways[1], "k", &follow_up("resp_meanwhile")).await.replica(), maker);
}

#[tokio::test]
async fn a_gateway_that_starts_later_and_one_that_lost_its_broker_know_them() {
    let (mut redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    let first = Gateway::start(config_of(&redis, &replicas, PolicyName::RoundRobin)).await;
    until("it is connected", || first.sum("tokenway_cluster_connected", &[]) == 1.0).await;
    let maker = make(&first, &replicas, "resp_before").await;
    // The broker loses everything: what its makers know they give it again.
    redis.kill();
    until("the loss is seen", || first.sum("tokenway_cluster_connected", &[]) == 0.0).await;
    let meanwhile = make(&first, &replicas, "resp_meanwhile").await;
    redis.start_again().await;
    let second = Gateway::start(config_of(&redis, &replicas, PolicyName::RoundRobin)).await;
    let gateways = [first, second];
    follow_each_other(&gateways).await;
    assert_eq!(ask(&gateways[1], "k", &follow_up("resp_before")).await.replica(), maker);
    assert_eq!(ask(&gateways[1], "k", &follow_up("resp_meanwhile")).await.replica(), meanwhile);
    // Without a broker a known one is served, and one that may be another gateway's is to be asked for again, without a wait.
    lost(&mut redis, &gateways).await;
    assert_eq!(ask(&gateways[1], "k", &follow_up("resp_before")).await.replica(), maker);
    let clock = gateways[1].app.gateway.clock;
    let asked = clock.now();
    let refused = ask(&gateways[1], "k", &follow_up("resp_unknown")).await;
    assert_eq!((refused.status(), &*refused.code()), (503, "cluster_unreachable"));
    assert_eq!(refused.field("retry-after"), Some("1"));
    assert!(clock.now().since(asked) < Duration::from_millis(100));
    gateways[1].idle().await;
    let page = gateways[1].page();
    let is_refused = |line: &str| line.contains("outcome=\"refused\"") && line.ends_with(" 1");
    assert!(page.lines().any(|line| line.starts_with("tokenway_requests_total{") && is_refused(line)));
}

#[tokio::test]
async fn a_gateway_that_has_just_begun_asks_for_what_it_does_not_know_once_it_is_connected() {
    let (redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    let first = Gateway::start(config_of(&redis, &replicas, PolicyName::RoundRobin)).await;
    until("it is connected", || first.sum("tokenway_cluster_connected", &[]) == 1.0).await;
    let maker = make(&first, &replicas, "resp_before").await;
    let is_written = async {
        while !redis.ask("KEYS tokenway:pin:*").await.unwrap().starts_with("*1") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon("it is written", is_written).await;
    let second = Gateway::start(config_of(&redis, &replicas, PolicyName::RoundRobin)).await;
    assert_eq!(ask(&second, "k", &follow_up("resp_before")).await.replica(), maker);
}

#[tokio::test]
async fn a_response_of_another_tenant_is_unknown_at_every_gateway() {
    let (redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    let start = async || {
        let mut config = config_of(&redis, &replicas, PolicyName::RoundRobin);
        config.tenants = vec![config::tenant("acme", "k"), config::tenant("other", "x")];
        Gateway::start(config).await
    };
    let gateways = [start().await, start().await];
    follow_each_other(&gateways).await;
    let maker = make(&gateways[0], &replicas, "resp_1").await;
    for gateway in &gateways {
        let refused = ask(gateway, "x", &follow_up("resp_1")).await;
        assert_eq!((refused.status(), &*refused.code()), (404, "previous_response_not_found"));
        assert_eq!(ask(gateway, "k", &follow_up("resp_1")).await.replica(), maker);
    }
    let kept = redis.ask("KEYS *").await.unwrap();
    assert!(kept.contains("tokenway:pin:") && !kept.contains("resp_1") && !kept.contains("acme"), "{kept}");
}

#[tokio::test]
async fn responses_that_a_full_broker_refused_are_known_once_it_has_room() {
    let (redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    let gateways = pair(&redis, &replicas, PolicyName::RoundRobin).await;
    let before = make(&gateways[1], &replicas, "resp_before").await;
    let is_written = async {
        while redis.ask("KEYS tokenway:pin:*").await.unwrap().starts_with("*0") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon("it is written", is_written).await;
    full(&redis, true).await;
    let mut made = Vec::new();
    for n in 0..3 {
        made.push(make(&gateways[0], &replicas, &format!("resp_{n}")).await);
    }
    let are_refused = async {
        let rejected = |line: &str| {
            let fields = line.strip_prefix("cmdstat_set:")?.split(',');
            fields.filter_map(|field| field.strip_prefix("rejected_calls=")?.parse::<usize>().ok()).next()
        };
        while redis.ask("INFO commandstats").await.unwrap().lines().find_map(rejected) < Some(made.len()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon("the broker refuses them", are_refused).await;
    assert_eq!(
        ask(&gateways[0], "k", &follow_up("resp_before")).await.replica(),
        before,
        "what the broker has it still gives"
    );
    full(&redis, false).await;
    for (n, maker) in made.iter().enumerate() {
        assert_eq!(ask(&gateways[1], "k", &follow_up(&format!("resp_{n}"))).await.replica(), *maker);
    }
}
