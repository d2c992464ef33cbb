//! The gateway's own ports: no two at one address.

use std::net::SocketAddr;

use crate::config::Config;

use super::section::{Item, Section};

/// Reports two ports of ours at one address. Where flags name one, the addresses are known later.
pub(super) fn expect_ports_apart(root: &Section<'_>, config: &Config) {
    let overrides = root.checking.overrides;
    let flags = [overrides.listen, overrides.admin_listen, overrides.admin_metrics_listen];
    if flags.iter().any(Option::is_some) {
        return;
    }
    let own: [(Option<SocketAddr>, &[&str]); 4] = [
        (Some(config.server.listen), &["server", "listen"]),
        (Some(config.admin.listen), &["admin", "listen"]),
        (config.admin.metrics_listen, &["admin", "metrics_listen"]),
        (config.telemetry.engine_spans.map(|spans| spans.listen), &["telemetry", "engine_spans", "listen"]),
    ];
    let mut taken = Vec::new();
    for (listen, path) in own {
        let Some(listen) = listen else { continue };
        // Where the file has no such key, that of the data port meets its default.
        let item = root.peek(path, 0).or_else(|| root.peek(&["server", "listen"], 0));
        expect_free(listen, item, &taken);
        taken.push(listen);
    }
    // Pools may share one: each engine has a topic.
    for (at, pool) in config.pools.iter().enumerate() {
        if let Some(listen) = pool.kv_events.as_ref().and_then(|events| events.listen) {
            expect_free(listen, root.peek(&["pool", "kv_events", "listen"], at), &taken);
        }
    }
}

fn expect_free(listen: SocketAddr, item: Option<Item<'_>>, taken: &[SocketAddr]) {
    if let Some(item) = item.filter(|_| taken.iter().any(|other| is_one_port(listen, *other))) {
        item.fault(one_port(listen), PORTS_HINT);
    }
}

/// Whether two listeners cannot both be bound: an address of all includes each of its family, and `[::]` those of IPv4.
pub(in crate::config) fn is_one_port(one: SocketAddr, other: SocketAddr) -> bool {
    let includes = |all: SocketAddr, one: SocketAddr| {
        all.ip() == one.ip() || (all.ip().is_unspecified() && (all.is_ipv6() || one.is_ipv4()))
    };
    one.port() == other.port() && one.port() != 0 && (includes(one, other) || includes(other, one))
}

/// What is wrong with an address that another listener has.
pub(in crate::config) fn one_port(addr: SocketAddr) -> String {
    format!("{addr} is taken by another port of this configuration")
}

pub(in crate::config) const PORTS_HINT: &str = "give server.listen, admin.listen, admin.metrics_listen, telemetry.engine_spans.listen and pool.kv_events.listen a port each";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check::check_str;

    #[test]
    fn an_address_of_all_includes_others() {
        for (one, other, is_one) in [
            ("0.0.0.0:1", "127.0.0.1:1", true),
            ("[::]:1", "127.0.0.1:1", true),
            ("[::]:1", "0.0.0.0:1", true),
            ("[::]:1", "[::1]:1", true),
            ("0.0.0.0:1", "[::1]:1", false),
            ("[::]:1", "127.0.0.1:2", false),
        ] {
            let [one, other] = [one, other].map(|addr| addr.parse().unwrap());
            assert_eq!([is_one_port(one, other), is_one_port(other, one)], [is_one; 2], "{one} {other}");
        }
    }

    #[test]
    fn every_listener_has_an_address_of_its_own() {
        let check = |head: &str, pools: &str| {
            let text = format!("{head}\n{pools}");
            check_str("f.toml", &text, &|_| None).map(|_| ()).map_err(|faults| faults.to_string())
        };
        let pool = |name: &str, listen: &str| {
            format!(
                "[[pool]]\nname = \"{name}\"\nreplicas = [\"http://{name}:1\"]\n[pool.kv_events]\nlisten = \"{listen}\"\n"
            )
        };
        let apart = "[server]\nlisten = \"127.0.0.1:8080\"\n[admin]\nlisten = \"127.0.0.1:9090\"\nmetrics_listen = \"127.0.0.1:9091\"\n\
                     [telemetry.engine_spans]\nlisten = \"127.0.0.1:4319\"";
        assert_eq!(check(apart, &pool("p", "0.0.0.0:5557")), Ok(()));
        let shared = pool("p", "0.0.0.0:5557") + &pool("q", "0.0.0.0:5557");
        let route = "[[route]]\nmodel = \"m\"\npools = [\"p\", \"q\"]\n";
        assert_eq!(check(apart, &(shared + route)), Ok(()), "each engine has a topic");
        for taken in ["127.0.0.1:8080", "0.0.0.0:9090", "127.0.0.1:9091", "127.0.0.1:4319"] {
            let fault = check(apart, &pool("p", taken)).unwrap_err();
            assert!(fault.starts_with("f.toml:12:") && fault.contains("is taken by another port"), "{fault}");
            assert!(fault.contains("kv_events.listen"), "a hint: {fault}");
        }
    }
}
