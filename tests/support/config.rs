//! Configurations as files write them: ordinary routes, deadlines short enough to wait for.

use sha2::{Digest, Sha256};
use tokenway::config::{Config, Pool, ReplicaSpec, Route, Tenant};

use super::quiet::{NO_WARMUP, checked};
use super::replica::Replica;

const SERVER: &str = r#"
[server]
listen = "127.0.0.1:0"
body_limit = "1MiB"
body_memory = "64MiB"
max_connections = 1000
drain_delay = "0s"
drain_timeout = "30s"
[admin]
listen = "127.0.0.1:0"
[retry]
budget = 0.2
min_per_second = 10
[routing]
seed = "test"
[timeouts]
first_token = "30s"
inter_token = "30s"
total = "60s"
client_stall = "30s"
[slo.standard]
"#;

// Own requests come out of turn when there is a reason; their routine is not what is tested here.
const POOL: &str = r#"
scrape_interval = "60s"
max_connections = 64
[pool.probe]
interval = "60s"
timeout = "500ms"
kind = "completion"
prompt = "hi"
"#;

const ROUTE: &str = r#"
policy = "round_robin"
client_may = []
ask_usage = false
"#;

/// One pool of these replicas, one route `*`.
pub fn of(replicas: &[&Replica]) -> Config {
    let mut config = checked(&format!("{SERVER}{}{}", pools(1), route_text("*", &[0])));
    config.pools = vec![pool("default", replicas)];
    config
}

/// A baseline with a canary, which has these keys beside its steps.
pub fn with_canary(baseline: &Replica, canary: &Replica, keys: &str) -> Config {
    let section =
        format!("[route.canary]\npool = \"1\"\n{keys}\nsteps = [{{ weight = 10, soak = \"1h\" }}]\n");
    let mut config = checked(&format!("{SERVER}{}{}{section}", pools(2), route_text("*", &[0])));
    config.pools = vec![pool("default", &[baseline]), pool("new", &[canary])];
    config
}

/// So many replicas, and the configuration before them.
pub async fn fresh<const N: usize>() -> ([Replica; N], Config) {
    let replicas = Replica::several().await;
    let config = of(&replicas.each_ref());
    (replicas, config)
}

/// The same, changed like this.
pub async fn before<const N: usize>(change: impl FnOnce(&mut Config)) -> ([Replica; N], Config) {
    let (replicas, mut config) = fresh().await;
    change(&mut config);
    (replicas, config)
}

/// A tenant with one key.
pub fn tenant(name: &str, key: &str) -> Tenant {
    Tenant { name: name.into(), key_digests: vec![Sha256::digest(key).into()], ..Tenant::default() }
}

pub fn pool(name: &str, replicas: &[&Replica]) -> Pool {
    let spec = |replica: &&Replica| ReplicaSpec {
        name: replica.name().into(),
        endpoint: replica.endpoint(),
        zone: None,
    };
    let replicas = replicas.iter().map(spec).collect();
    Pool { name: name.into(), revision: name.into(), replicas, ..checked(&pools(1)).pools.remove(0) }
}

/// A route for this model over these pools; `*` is every model.
pub fn route(model: &str, pools_of: &[usize]) -> Route {
    let most = pools_of.iter().copied().max().unwrap_or(0);
    checked(&format!("{SERVER}{}{}", pools(most + 1), route_text(model, pools_of))).routes.remove(0)
}

/// This many pools, with their places as names.
fn pools(count: usize) -> String {
    let pool =
        |at| format!("[[pool]]\nname = \"{at}\"\nreplicas = [\"http://127.0.0.1:1\"]\n{POOL}{NO_WARMUP}");
    (0..count).map(pool).collect()
}

fn route_text(model: &str, pools: &[usize]) -> String {
    let pools: String = pools.iter().map(|at| format!("{{ name = \"{at}\", weight = 1 }},")).collect();
    format!("[[route]]\nmodel = \"{model}\"\npools = [{pools}]\n{ROUTE}")
}
