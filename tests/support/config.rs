//! Configurations built in code: ordinary routes, deadlines short enough to wait for.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tokenway::config::{
    Admin, Classes, ClientMay, Config, EngineKind, ModelMatch, PolicyName, Pool, Probe, ProbeKind,
    ReplicaSpec, Retry, Route, Secret, Server, Slo, Timeouts, WeightedPool,
};
use tokenway::units::Tokens;

use super::quiet;
use super::replica::Replica;

/// One pool of these replicas, one route `*`.
pub fn of(replicas: &[&Replica]) -> Config {
    Config {
        server: server(),
        admin: Admin { listen: ([127, 0, 0, 1], 0).into(), token: None },
        retry: Retry { attempts: 2, budget: 0.2, min_per_second: 10 },
        slo: BTreeMap::from([("standard".into(), Slo::default())]),
        seed: Secret::new("test"),
        classes: Classes { short: Tokens(512), medium: Tokens(4096) },
        pools: vec![pool("default", replicas)],
        routes: vec![route("*", &[0])],
        tenants: Vec::new(),
        jwt: None,
        drift: Default::default(),
        telemetry: quiet::telemetry(),
    }
}

pub fn pool(name: &str, replicas: &[&Replica]) -> Pool {
    let spec = |replica: &&Replica| ReplicaSpec {
        name: replica.name().into(),
        endpoint: replica.endpoint(),
        zone: None,
    };
    Pool {
        name: name.into(),
        revision: name.into(),
        discovery: Default::default(),
        data_parallel: Default::default(),
        revision_info: BTreeMap::new(),
        engine: EngineKind::Vllm,
        engine_profile: Arc::new(EngineKind::Vllm.profile()),
        replicas: replicas.iter().map(spec).collect(),
        tls: None,
        engine_api_key: None,
        // Own requests come out of turn when there is a reason; their routine is not what is tested here.
        dcgm: Default::default(),
        scrape_interval: Duration::from_secs(60),
        max_connections: NonZeroUsize::new(64).unwrap(),
        max_num_seqs: None,
        queue_target: None,
        probe: Probe {
            interval: Duration::from_secs(60),
            timeout: Duration::from_millis(500),
            kind: ProbeKind::Completion,
            prompt: "hi".into(),
        },
        warmup: Default::default(),
        keep_alive: None,
        lora: Default::default(),
        max_ejected_share: 0.5,
        scale: Default::default(),
    }
}

/// A route for this model over these pools; `*` is every model.
pub fn route(model: &str, pools: &[usize]) -> Route {
    Route {
        name: model.into(),
        model: if model == "*" { ModelMatch::Any } else { ModelMatch::Named(model.into()) },
        upstream_model: None,
        required: true,
        pools: pools.iter().map(|pool| WeightedPool { pool: *pool, weight: 1 }).collect(),
        policy: PolicyName::RoundRobin,
        slo: "standard".into(),
        client_may: ClientMay::default(),
        stage_budget: None,
        ask_usage: false,
        migrate: false,
        hedge: None,
        timeouts: Timeouts {
            connect: Duration::from_secs(1),
            first_token: Duration::from_secs(30),
            inter_token: Duration::from_secs(30),
            total: Duration::from_secs(60),
            client_stall: Duration::from_secs(30),
        },
        queue: None,
        degrade: None,
        canary: None,
    }
}

fn server() -> Server {
    Server {
        listen: ([127, 0, 0, 1], 0).into(),
        tls: None,
        body_limit: 1 << 20,
        body_memory: 64 << 20,
        body_timeout: Duration::from_secs(60),
        body_min_rate: 16 << 10,
        header_timeout: Duration::from_secs(10),
        keep_alive: Duration::from_secs(75),
        tls_handshake_timeout: Duration::from_secs(5),
        max_connections: NonZeroUsize::new(1000).unwrap(),
        drain_delay: Duration::ZERO,
        drain_timeout: Duration::from_secs(30),
        heartbeat: None,
        route_info_headers: true,
        extra_paths: Vec::new(),
        root_path: String::new(),
        cors_origins: None,
        trust_headers: Vec::new(),
    }
}
