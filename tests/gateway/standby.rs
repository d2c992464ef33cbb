//! Where requests go that no pool of their route can take: to its standby pool, or to the route that it degrades to.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::admission::large_and_small;
use crate::support::replica::{Probes, Replica, Step};
use crate::support::{Gateway, PATH, config, observer, soon, until, wire};
use tokenway::app::App;
use tokenway::app::foundation::Foundation;
use tokenway::clock::Clock;
use tokenway::config::{Config, PolicyName, QueueLimits, Slo, TtftBound, WeightedPool};
use tokenway::fleet::status::ReplicaState;
use tokenway::observe::metrics::StreamKey;
use tokenway::observe::{Judgement, Tap};
use tokenway::record::{Gaps, Record};
use tokenway::routing::CanaryShare;
use tokio::runtime::Handle;

const BODY: &str = r#"{"model":"tiny","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;

/// Its first route refuses what no replica can begin to answer within 150 ms.
fn bounded(config: &mut Config, queue: QueueLimits) {
    let route = &mut config.routes[0];
    (route.queue, route.slo, route.policy) = (Some(queue), "strict".into(), PolicyName::Latency);
    let ttft = TtftBound { base: Duration::from_millis(150), per_prompt_token: Duration::ZERO };
    config.slo.insert("strict".into(), Slo { ttft: Some(ttft), ..Slo::default() });
}

/// A route over a local pool with a standby pool behind it.
async fn with_standby(queue: Option<QueueLimits>) -> (Gateway, Replica, Replica) {
    let [local, cloud] = Replica::several().await;
    let mut config = config::of(&[&local]);
    config.pools.push(tokenway::config::Pool { standby: true, ..config::pool("cloud", &[&cloud]) });
    config.routes[0].pools.push(WeightedPool { pool: 1, weight: 0 });
    match queue {
        Some(queue) => bounded(&mut config, queue),
        None => config.routes[0].policy = PolicyName::Latency,
    }
    let gateway = Gateway::start(config).await;
    (gateway, local, cloud)
}

async fn answered_by(gateway: &Gateway) -> String {
    let reply = gateway.post(PATH, BODY).await;
    assert_eq!(reply.status(), 200, "{}", reply.text());
    reply.field("x-tokenway-revision").unwrap().to_owned()
}

/// Requests that the standby pool got for a reason.
fn taken(gateway: &Gateway, reason: &str) -> f64 {
    let labels = format!(r#"{{pool="cloud",reason="{reason}",route="*"}}"#);
    gateway.sum("tokenway_standby_requests_total", &[&labels])
}

#[tokio::test]
async fn a_standby_pool_takes_over_when_no_other_is_left_and_nothing_before() {
    let (gateway, _local, cloud) = with_standby(None).await;
    for _ in 0..20 {
        assert_eq!(answered_by(&gateway).await, "default");
    }
    assert_eq!((cloud.count(), taken(&gateway, "down")), (0, 0.0));
    // Without a connection that is still open to the replica that goes.
    let (gateway, local, cloud) = with_standby(None).await;
    local.stop_listening().await;
    for _ in 0..20 {
        assert_eq!(answered_by(&gateway).await, "cloud", "not one of them failed");
    }
    gateway.idle().await;
    assert_eq!(taken(&gateway, "down"), 20.0, "with the first, which found out and was sent again");
    local.listen_again().await;
    assert_eq!(answered_by(&gateway).await, "cloud", "back only after a while");
    cloud.stop_listening().await;
    let back = async {
        while gateway.post(PATH, BODY).await.status() != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon("the local pool takes over from a standby pool that is gone", back).await;
}

#[tokio::test]
async fn a_pool_that_stands_still_is_left_where_its_standby_pool_is_well() {
    let [one, two, cloud] = Replica::several().await;
    let mut config = config::of(&[&one, &two]);
    config.pools.push(tokenway::config::Pool { standby: true, ..config::pool("cloud", &[&cloud]) });
    config.routes[0].pools.push(WeightedPool { pool: 1, weight: 0 });
    let gateway = Gateway::start(config).await;
    let local = [one, two];
    local.iter().for_each(|replica| _ = replica.always(wire::chat_stream(&["a"])));
    for _ in 0..20 {
        assert_eq!(answered_by(&gateway).await, "default");
    }
    for replica in &local {
        replica.probes(Probes::Unanswered);
        // What has it probed.
        replica.next(wire::begun_then("x", [Step::Reset]));
    }
    let before = local.each_ref().map(Replica::count);
    while std::iter::zip(&local, before).any(|(replica, before)| replica.count() == before) {
        gateway.post(PATH, BODY).await;
    }
    until("both are left", || local.iter().all(|replica| gateway.state_of(replica) != ReplicaState::Ready))
        .await;
    assert_eq!(answered_by(&gateway).await, "cloud");
}

#[tokio::test]
async fn what_a_queue_refuses_goes_to_the_standby_pool() {
    let queue = QueueLimits { max_requests: 0, ..QueueLimits::default() };
    let (gateway, local, cloud) = with_standby(Some(queue)).await;
    let slow = [vec![Step::Tick; 30], wire::chat_stream(&["x"])].concat();
    local.always(slow);
    for _ in 0..9 {
        answered_by(&gateway).await;
        gateway.idle().await;
    }
    assert!(local.count() > 0 && cloud.count() > 0, "{} {}", local.count(), cloud.count());
    assert_eq!(taken(&gateway, "full"), cloud.count() as f64);
    assert_eq!(taken(&gateway, "down"), 0.0);
}

#[tokio::test]
async fn a_route_without_a_replica_degrades_as_well() {
    let ([large, _small], mut config) = large_and_small().await;
    config.routes[0].policy = PolicyName::Latency;
    let gateway = Gateway::start(config).await;
    large.stop_listening().await;
    for _ in 0..5 {
        let reply = gateway.post(PATH, BODY).await;
        assert_eq!(reply.status(), 200, "{}", reply.text());
        assert_eq!(reply.field("x-tokenway-degraded-from"), Some("tiny"));
    }
}

#[tokio::test]
async fn what_a_queue_refuses_goes_to_the_route_that_it_degrades_to() {
    let ([large, small], mut config) = large_and_small().await;
    bounded(&mut config, QueueLimits { max_requests: 0, ..QueueLimits::default() });
    let gateway = Gateway::start(config).await;
    // Twice the bound in truth: what is predicted below one and a half times it is refused.
    let slow = [vec![Step::Tick; 20], wire::chat_stream(&["x"])].concat();
    large.always(slow);
    let mut handed = 0;
    for _ in 0..9 {
        let reply = gateway.post(PATH, BODY).await;
        assert_eq!(reply.status(), 200, "{}", reply.text());
        handed += usize::from(reply.field("x-tokenway-degraded-from") == Some("tiny"));
        gateway.idle().await;
    }
    assert!(large.count() > 0 && handed > 0, "{} {handed}", large.count());
    assert_eq!(handed, small.count());
}

/// Its canary has all traffic.
async fn promoted(config: Config) -> Gateway {
    with_share(config, 10_000).await
}

/// Its canary has so many ten thousandths of the traffic.
async fn with_share(config: Config, share: u32) -> Gateway {
    let clock = Clock::start();
    let observer = observer(&config, clock, None);
    let foundation = Foundation::lay(Arc::new(config), clock, Handle::current()).unwrap();
    foundation.carried_over.canaries.of(&"*".into(), &"new".into()).set(share);
    let gateway = Gateway { app: Arc::new(App::on(foundation, observer)) };
    gateway.ready().await;
    gateway
}

/// Keeps which revision answered each request, and whether that filled its cache; and whether it did so between their tokens.
#[derive(Default)]
struct Fills(Mutex<Vec<(String, bool)>>, Mutex<Vec<bool>>);

impl Tap for Fills {
    fn gaps(&self, _: &StreamKey, gaps: &Gaps<'_>) {
        self.1.lock().push(gaps.is_filling && gaps.itl().count() > 0);
    }

    fn record(&self, record: &Arc<Record>, _: &Judgement) {
        self.0.lock().push((record.revision().to_owned(), record.is_filling()));
    }
}

/// A route with a canary, what sets its share, and what is seen.
async fn watched(config: Config) -> (Gateway, Arc<CanaryShare>, Arc<Fills>) {
    let (clock, seen) = (Clock::start(), Arc::<Fills>::default());
    let observer = observer(&config, clock, Some(Arc::clone(&seen) as _));
    let foundation = Foundation::lay(Arc::new(config), clock, Handle::current()).unwrap();
    let share = foundation.carried_over.canaries.of(&"*".into(), &"new".into());
    let gateway = Gateway { app: Arc::new(App::on(foundation, observer)) };
    gateway.ready().await;
    (gateway, share, seen)
}

fn long_prompt(text: &str) -> String {
    let text = text.repeat(400);
    format!(r#"{{"model":"tiny","stream":true,"messages":[{{"role":"user","content":"{text}"}}]}}"#)
}

#[tokio::test]
async fn a_canary_that_never_computes_what_the_baseline_has_cached_fills_nothing() {
    let [baseline, canary] = Replica::several().await;
    let mut config = config::with_canary(&baseline, &canary, "");
    config.routes[0].timeouts.first_token = Duration::from_secs(3);
    let (gateway, share, seen) = watched(config).await;
    assert_eq!(gateway.post(PATH, &long_prompt("lorem ")).await.status(), 200);
    canary.always(vec![Step::Hang]);
    share.set(10_000);
    assert_eq!(gateway.post(PATH, &long_prompt("lorem ")).await.status(), 504);
    gateway.idle().await;
    assert_eq!(*seen.0.lock(), [("default".to_owned(), false), ("new".to_owned(), false)]);
}

#[tokio::test]
async fn what_a_canary_computes_because_its_cache_is_new_is_known_for_that() {
    let [baseline, canary] = Replica::several().await;
    let (gateway, share, seen) = watched(config::with_canary(&baseline, &canary, "")).await;
    let counted = r#"data: {"id":"c1","choices":[],"usage":{"prompt_tokens":900,"completion_tokens":2}}"#;
    let texts = [
        wire::content("a"),
        wire::content("b"),
        wire::FINISH.to_owned(),
        format!("{counted}\n\n"),
        wire::DONE.to_owned(),
    ];
    for replica in [&baseline, &canary] {
        replica.always(wire::stream(texts.clone()));
    }
    for (part, text) in [(0, "lorem "), (10_000, "ipsum "), (10_000, "lorem "), (10_000, "lorem ")] {
        share.set(part);
        assert_eq!(gateway.post(PATH, &long_prompt(text)).await.status(), 200);
        gateway.idle().await;
    }
    let expected = [("default", false), ("new", false), ("new", true), ("new", false)];
    let expected = expected.map(|(revision, is_filling)| (revision.to_owned(), is_filling));
    assert!(
        seen.1.lock().iter().any(|is_filling| *is_filling),
        "of a stream whose tokens were counted at its end"
    );
    assert_eq!(*seen.0.lock(), expected, "new to both, the baseline's alone, and its own by then");
}

#[tokio::test]
async fn a_replica_of_the_revision_before_never_serves_as_the_canary() {
    let [baseline, former, next] = Replica::several().await;
    let mut config = config::with_canary(&baseline, &former, "");
    config.pools[1].revision = "r2".into();
    let gateway = promoted(config.clone()).await;
    assert_eq!((answered_by(&gateway).await, former.count()), ("r2".to_owned(), 1));
    // Another revision, whose replica is not there yet.
    next.stop_listening().await;
    config.pools[1] = config::pool("new", &[&next]);
    config.pools[1].revision = "r3".into();
    gateway.app.reload(Arc::new(config)).unwrap();
    assert_eq!((answered_by(&gateway).await, former.count()), ("default".to_owned(), 1));
}

#[tokio::test]
async fn a_promoted_canary_that_is_down_leaves_the_gateway_ready_while_its_baseline_serves() {
    let [baseline, canary] = Replica::several().await;
    let gateway = promoted(config::with_canary(&baseline, &canary, "")).await;
    // Without a connection that is still open to the replica that goes.
    canary.stop_listening().await;
    assert_eq!(answered_by(&gateway).await, "default", "the documented fallback");
    until("the canary is left", || gateway.state_of(&canary) == ReplicaState::Unreachable).await;
    assert_eq!(answered_by(&gateway).await, "default");
    assert_eq!(gateway.call("GET", "/health").await.status(), 200);
    baseline.stop_listening().await;
    baseline.always(vec![Step::Close]);
    assert_ne!(gateway.post(PATH, BODY).await.status(), 200);
    until("both are left", || gateway.state_of(&baseline) == ReplicaState::Unreachable).await;
    assert_eq!(gateway.call("GET", "/health").await.status(), 503);
    let refused = gateway.post(PATH, BODY).await;
    for replica in [&canary, &baseline] {
        assert!(refused.text().contains(&replica.name()), "{}", refused.text());
    }
}

#[tokio::test]
async fn what_the_queue_of_a_canary_refuses_is_answered_by_its_baseline() {
    let [baseline, canary] = Replica::several().await;
    let mut config = config::with_canary(&baseline, &canary, "");
    config.pools[1].revision = "r2".into();
    bounded(&mut config, QueueLimits { max_requests: 0, ..QueueLimits::default() });
    let gateway = with_share(config, 5_000).await;
    canary.always([vec![Step::Tick; 30], wire::chat_stream(&["x"])].concat());
    let mut by_baseline = 0;
    for n in 0..20 {
        // Conversations stay with a side.
        let reply = gateway.post(PATH, &BODY.replace("hi", &format!("hi {n}"))).await;
        assert_eq!(reply.status(), 200, "{}", reply.text());
        by_baseline += usize::from(reply.field("x-tokenway-revision") == Some("default"));
        gateway.idle().await;
    }
    assert!(
        canary.count() > 0 && by_baseline > 10,
        "half are the canary's: {by_baseline} {}",
        canary.count()
    );
}
