//! Learned speeds: a gateway that starts knows them from the others.

use tokenway::config::PolicyName;

use super::{PATH, body, config_of};
use crate::support::redis::Redis;
use crate::support::replica::Replica;
use crate::support::{Gateway, soon, until};

/// Seconds to the first token of a mean prompt, by replica.
fn ttfts(gateway: &Gateway) -> Vec<Option<f64>> {
    let pools = gateway.app.fleet.pools();
    let now = gateway.app.gateway.clock.now();
    let model = &pools[0].dispatcher.model;
    (0..3).map(|slot| model.typical_speed(slot, now).map(|[ttft, _]| ttft)).collect()
}

#[tokio::test]
async fn a_gateway_that_starts_knows_the_speeds_that_another_has_learned_and_a_lost_broker_is_written_again()
{
    let (mut redis, replicas) = (Redis::start().await, Replica::several::<3>().await);
    let first = Gateway::start(config_of(&redis, &replicas, PolicyName::RoundRobin)).await;
    let learn = async {
        let mut n = 0;
        while n < 60 || ttfts(&first).iter().any(Option::is_none) {
            n += 1;
            assert_eq!(first.post(PATH, &body(&format!("{n} lorem ").repeat(50))).await.status(), 200);
        }
    };
    // Answers teach at the next look at their replica.
    soon("every replica is known", learn).await;
    let learned = ttfts(&first);
    redis.kill();
    until("the loss is seen", || first.sum("tokenway_cluster_connected", &[]) == 0.0).await;
    redis.start_again().await;
    let is_written = async {
        while !redis.ask("EXISTS tokenway:speeds:default").await.unwrap().starts_with(":1") {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    soon("they are written again", is_written).await;
    let second = Gateway::start(config_of(&redis, &replicas, PolicyName::RoundRobin)).await;
    until("they are known", || ttfts(&second).iter().all(Option::is_some)).await;
    for (own, known) in learned.iter().flatten().zip(ttfts(&second).iter().flatten()) {
        // Engines that answer at once are known roughly; without what the other learned they are not known at all.
        assert!((0.1..10.0).contains(&(own / known)), "{learned:?} {:?}", ttfts(&second));
    }
    // What is no such figure is ignored.
    assert!(redis.ask(r#"SET tokenway:speeds:default "{\"version\":1}""#).await.unwrap().starts_with("+OK"));
    let third = Gateway::start(config_of(&redis, &replicas, PolicyName::RoundRobin)).await;
    until("it is connected", || third.sum("tokenway_cluster_connected", &[]) == 1.0).await;
    assert_eq!(third.post(PATH, &body("hi")).await.status(), 200);
}
