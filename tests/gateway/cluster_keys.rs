//! API keys that one gateway makes or revokes, in force in the others of its `[cluster]`; with a real Redis.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokenway::app::App;
use tokenway::app::foundation::Foundation;
use tokenway::clock::Clock;
use tokenway::config::load::{Source, load};
use tokenway::config::{Overrides, Secret, StatePlace, Tenant, parse_endpoint};
use tokenway::identity::KeyStore;
use tokenway::request::api_keys::ApiKey;
use tokio::runtime::Handle;

use crate::support::redis::Redis;
use crate::support::replica::Replica;
use crate::support::{Gateway, PATH, config, observer, soon, until};

/// A gateway, and where its keys are made.
struct Keyed {
    gateway: Gateway,
    keys: Arc<KeyStore>,
}

impl Keyed {
    /// Of one tenant without keys of its own; with a folder its keys outlast it.
    async fn start(redis: &Redis, replica: &Replica, seed: &str, folder: Option<&TempDir>) -> Self {
        let mut config = config::of(&[replica]);
        config.tenants = vec![Tenant { name: "acme".into(), ..Tenant::default() }];
        config.cluster = Some(redis.cluster());
        config.routing.seed = Secret::new(seed);
        config.state = folder.and_then(|folder| state(folder.path()));
        let clock = Clock::start();
        let observer = observer(&config, clock, None);
        let foundation = Foundation::lay(Arc::new(config), clock, Handle::current()).unwrap();
        let keys = Arc::clone(&foundation.keys);
        let gateway = Gateway { app: Arc::new(App::on(foundation, observer)) };
        gateway.ready().await;
        Self { gateway, keys }
    }

    /// Makes a key, and returns what clients send.
    fn make(&self, name: &str) -> String {
        let key = ApiKey { tenant: "acme".into(), name: name.into(), ..ApiKey::default() };
        self.keys.make(key).unwrap().0.reveal().to_owned()
    }

    async fn status(&self, key: &str) -> u16 {
        let body = r#"{"model":"tiny","stream":true,"messages":[]}"#;
        self.gateway.post_as(key, PATH, body).await.status()
    }

    /// Whether it answers with this status before the time is over.
    async fn answers(&self, key: &str, status: u16, within: Duration) {
        let asking = async {
            while self.status(key).await != status {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(tokio::time::timeout(within, asking).await.is_ok(), "no {status} within {within:?}");
    }

    fn is_connected(&self) -> bool {
        let page = self.gateway.page();
        page.lines().any(|line| line == "tokenway_cluster_connected{cluster=\"tokenway\"} 1")
    }
}

/// Where a gateway keeps its state in a folder.
pub(crate) fn state(folder: &Path) -> Option<StatePlace> {
    let overrides = Overrides { admin_listen: "127.0.0.1:1".parse().ok(), ..Overrides::default() };
    let env = |name: &str| (name == "STATE_DIRECTORY").then(|| folder.to_str().unwrap().to_owned());
    let source = Source::Upstreams(vec![parse_endpoint("http://127.0.0.1:1").unwrap()]);
    load(&source, &overrides, &env).unwrap().state
}

/// A command on the hash of keys of whatever seed.
fn of_hash(command: &str, pattern: &str) -> String {
    let name = format!("redis.call('keys', 'tokenway:keys:{pattern}')[1] or 'none'");
    format!("EVAL \"return redis.call('{command}', {name})\" 0")
}

/// A look a quarter of a second, and a machine that others use.
const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_key_is_in_force_in_every_gateway_and_a_revoked_one_in_none() {
    let (redis, replica) = (Redis::start().await, Replica::start().await);
    let [one, other] =
        [Keyed::start(&redis, &replica, "s", None).await, Keyed::start(&redis, &replica, "s", None).await];
    until("both are connected", || one.is_connected() && other.is_connected()).await;
    let key = one.make("ci");
    assert_eq!(one.status(&key).await, 200, "at once where it was made");
    other.answers(&key, 200, SOON).await;
    let seen = redis.ask(&of_hash("hgetall", "????????????????")).await.unwrap();
    assert!(seen.contains("acme") && !seen.contains(&key), "digests, and no secret: {seen}");
    let late = Keyed::start(&redis, &replica, "s", None).await;
    late.answers(&key, 200, SOON).await;
    // Where it was not made.
    other.keys.revoke("acme", "ci", 100).unwrap();
    for gateway in [&one, &late] {
        gateway.answers(&key, 401, SOON).await;
    }
    let again = one.make("ci");
    other.answers(&again, 200, SOON).await;
    assert_eq!(other.status(&key).await, 401, "another key of the same name");
}

#[tokio::test]
async fn what_changes_while_the_broker_is_dead_is_in_force_when_it_is_back_without_its_memory() {
    let (mut redis, replica) = (Redis::start().await, Replica::start().await);
    let [one, other] =
        [Keyed::start(&redis, &replica, "s", None).await, Keyed::start(&redis, &replica, "s", None).await];
    until("both are connected", || one.is_connected() && other.is_connected()).await;
    let [kept, gone] = [one.make("kept"), one.make("gone")];
    other.answers(&kept, 200, SOON).await;
    other.answers(&gone, 200, SOON).await;
    redis.kill();
    until("the loss is seen", || !one.is_connected() && !other.is_connected()).await;
    let made = one.make("made");
    one.keys.revoke("acme", "gone", 100).unwrap();
    assert_eq!((one.status(&made).await, one.status(&gone).await), (200, 401), "local changes hold at once");
    assert_eq!((other.status(&made).await, other.status(&gone).await), (401, 200), "and are local");
    redis.start_again().await;
    until("both are back", || one.is_connected() && other.is_connected()).await;
    other.answers(&made, 200, SOON).await;
    other.answers(&gone, 401, SOON).await;
    assert_eq!(other.status(&kept).await, 200);
    assert_eq!(one.status(&gone).await, 401, "the other one, which still had it, brings it back nowhere");
}

#[tokio::test]
async fn a_gateway_that_was_away_brings_no_revoked_key_back() {
    let (redis, replica, folder) = (Redis::start().await, Replica::start().await, TempDir::new().unwrap());
    let one = Keyed::start(&redis, &replica, "s", None).await;
    let away = Keyed::start(&redis, &replica, "s", Some(&folder)).await;
    let key = away.make("ci");
    one.answers(&key, 200, SOON).await;
    away.gateway.app.stop(Duration::ZERO).await;
    one.keys.revoke("acme", "ci", 100).unwrap();
    soon("the broker knows it", async {
        while redis.ask(&of_hash("hlen", "*:revoked")).await.unwrap() != ":1\r\n" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let back = Keyed::start(&redis, &replica, "s", Some(&folder)).await;
    back.answers(&key, 401, 2 * SOON).await;
    assert_eq!(one.status(&key).await, 401);
}

#[tokio::test]
async fn a_key_that_is_not_signed_with_the_seed_is_none() {
    let (redis, replica) = (Redis::start().await, Replica::start().await);
    let [one, stranger] = [
        Keyed::start(&redis, &replica, "s", None).await,
        Keyed::start(&redis, &replica, "another", None).await,
    ];
    until("both are connected", || one.is_connected() && stranger.is_connected()).await;
    let forged = stranger.make("forged");
    let own = one.make("own");
    tokio::time::sleep(SOON).await;
    assert_eq!((one.status(&forged).await, stranger.status(&own).await), (401, 401));
    assert_eq!((one.status(&own).await, stranger.status(&forged).await), (200, 200));
}

#[tokio::test]
async fn keys_and_revocations_outlive_another_seed() {
    let (redis, replica) = (Redis::start().await, Replica::start().await);
    let [folder, other_folder, as_it_was] = [(); 3].map(|()| TempDir::new().unwrap());
    let one = Keyed::start(&redis, &replica, "old", Some(&folder)).await;
    let away = Keyed::start(&redis, &replica, "old", Some(&other_folder)).await;
    let [key, gone] = [one.make("key"), one.make("gone")];
    away.answers(&key, 200, SOON).await;
    away.answers(&gone, 200, SOON).await;
    let file = |folder: &TempDir| state(folder.path()).unwrap().file("keys");
    std::fs::copy(file(&other_folder), file(&as_it_was)).unwrap();
    away.gateway.app.stop(Duration::ZERO).await;
    one.keys.revoke("acme", "gone", 100).unwrap();
    one.answers(&gone, 401, SOON).await;
    one.gateway.app.stop(Duration::ZERO).await;

    let one = Keyed::start(&redis, &replica, "new", Some(&folder)).await;
    let back = Keyed::start(&redis, &replica, "new", Some(&as_it_was)).await;
    back.answers(&gone, 401, SOON).await;
    let fresh = Keyed::start(&redis, &replica, "new", None).await;
    fresh.answers(&key, 200, SOON).await;
    assert_eq!((one.status(&key).await, one.status(&gone).await), (200, 401));
}

#[tokio::test]
async fn an_entry_that_is_no_gateways_is_written_over() {
    let (redis, replica, folder) = (Redis::start().await, Replica::start().await, TempDir::new().unwrap());
    let one = Keyed::start(&redis, &replica, "s", Some(&folder)).await;
    let [key, gone] = [one.make("key"), one.make("gone")];
    let other = Keyed::start(&redis, &replica, "s", None).await;
    other.answers(&gone, 200, SOON).await;
    one.keys.revoke("acme", "gone", 100).unwrap();
    other.answers(&gone, 401, SOON).await;
    one.gateway.app.stop(Duration::ZERO).await;
    other.gateway.app.stop(Duration::ZERO).await;
    let forge = "for _, name in ipairs(redis.call('keys', 'tokenway:keys*')) do \
                 if redis.call('type', name).ok == 'hash' then \
                 for _, field in ipairs(redis.call('hkeys', name)) do redis.call('hset', name, field, 'forged') end \
                 end end return 1";
    assert_eq!(redis.ask(&format!("EVAL \"{forge}\" 0")).await.unwrap(), ":1\r\n");
    let one = Keyed::start(&redis, &replica, "s", Some(&folder)).await;
    until("it is back", || one.is_connected()).await;
    let fresh = Keyed::start(&redis, &replica, "s", None).await;
    fresh.answers(&key, 200, SOON).await;
    assert_eq!(fresh.status(&gone).await, 401);
}

#[tokio::test]
async fn a_broker_without_room_takes_no_key_and_revocations_still_come_through() {
    let (redis, replica) = (Redis::start().await, Replica::start().await);
    let [one, other] =
        [Keyed::start(&redis, &replica, "s", None).await, Keyed::start(&redis, &replica, "s", None).await];
    until("both are connected", || one.is_connected() && other.is_connected()).await;
    let before = one.make("before");
    other.answers(&before, 200, SOON).await;
    for command in ["CONFIG SET maxmemory-policy noeviction", "CONFIG SET maxmemory 1"] {
        assert!(redis.ask(command).await.unwrap().starts_with("+OK"));
    }
    let made = one.make("made");
    tokio::time::sleep(SOON).await;
    assert_eq!(
        (one.status(&made).await, other.status(&made).await),
        (200, 401),
        "in force where it was made"
    );
    assert_eq!(other.status(&before).await, 200);
    assert!(one.is_connected() && other.is_connected(), "a full broker is no lost one");
    redis.ask("CONFIG SET maxmemory 0").await.unwrap();
    other.answers(&made, 200, SOON).await;
}

#[tokio::test]
async fn keys_and_revocations_that_the_broker_lost_are_written_again() {
    let (redis, replica) = (Redis::start().await, Replica::start().await);
    let one = Keyed::start(&redis, &replica, "s", None).await;
    let [key, gone] = [one.make("key"), one.make("gone")];
    let other = Keyed::start(&redis, &replica, "s", None).await;
    other.answers(&key, 200, SOON).await;
    one.keys.revoke("acme", "gone", 100).unwrap();
    other.answers(&gone, 401, SOON).await;
    // Evicted, as a full broker does: the counter of changes stays.
    for hash in ["????????????????", "*:revoked"] {
        // Each looks four times a second, and once more after a change.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(redis.ask(&of_hash("del", hash)).await.unwrap(), ":1\r\n");
        soon("it is written again", async {
            while redis.ask(&of_hash("hlen", hash)).await.unwrap() != ":1\r\n" {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }
    let late = Keyed::start(&redis, &replica, "s", None).await;
    late.answers(&key, 200, SOON).await;
    assert_eq!(late.status(&gone).await, 401);
}
