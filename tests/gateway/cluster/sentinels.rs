//! Sentinels that name the broker: real ones, and silent ones.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use tempfile::TempDir;
use tokenway::config::{Broker, Cluster, Endpoint, PolicyName};

use super::config_of;
use crate::support::redis::Redis;
use crate::support::replica::Replica;
use crate::support::{Gateway, until};

/// A gateway whose broker these sentinels name.
async fn before(sentinels: &[SocketAddr], redis: &Redis) -> Gateway {
    let endpoint = |addr: &SocketAddr| {
        let host = addr.ip().to_string().into();
        Endpoint { is_tls: false, host, port: addr.port(), base_path: "".into() }
    };
    let endpoints = sentinels.iter().map(endpoint).collect();
    let url = Broker { endpoints, master: Some("main".into()), ..Broker::default() };
    let mut config = config_of(redis, &[Replica::start().await], PolicyName::LeastLoaded);
    config.cluster = Some(Cluster { url, ..Cluster::default() });
    Gateway::start(config).await
}

async fn finds_its_broker(gateway: &Gateway) {
    until("the broker is found", || gateway.sum("tokenway_cluster_connected", &[]) == 1.0).await;
}

#[tokio::test]
async fn sentinels_that_are_silent_at_the_head_of_the_list_hold_up_none() {
    let (redis, folder) = (Redis::start().await, TempDir::new().unwrap());
    let sentinel = Redis::sentinel_of(redis.addr, folder.path()).await;
    // The kernel takes connections, and nothing reads them.
    let silent = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let [one, other] = silent.each_ref().map(|silent| silent.local_addr().unwrap());
    finds_its_broker(&before(&[one, other, sentinel.addr], &redis).await).await;
}

#[tokio::test]
async fn a_sentinel_that_has_yet_to_learn_of_a_new_master_holds_up_none() {
    let (redis, former) = (Redis::start().await, Redis::start().await);
    let [folder, other_folder] = [(); 2].map(|()| TempDir::new().unwrap());
    for server in [&redis, &former] {
        // A copy passes through files.
        server.ask(&format!("CONFIG SET dir {}", folder.path().display())).await.unwrap();
    }
    former.ask(&format!("REPLICAOF 127.0.0.1 {}", redis.addr.port())).await.unwrap();
    let late = Redis::sentinel_of(former.addr, folder.path()).await;
    let sentinel = Redis::sentinel_of(redis.addr, other_folder.path()).await;
    finds_its_broker(&before(&[late.addr, sentinel.addr], &redis).await).await;
}
