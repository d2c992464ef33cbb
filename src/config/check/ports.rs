//! The gateway's own ports: no two at one address.

use std::net::SocketAddr;

use crate::config::Config;

use super::section::Section;

/// Reports two ports of ours at one address. Where flags name one, the addresses are known later.
pub(super) fn expect_ports_apart(root: &Section<'_>, config: &Config) {
    let overrides = root.checking.overrides;
    let flags = [overrides.listen, overrides.admin_listen, overrides.admin_metrics_listen];
    if flags.iter().any(Option::is_some) {
        return;
    }
    let (data, admin, metrics) = (config.server.listen, config.admin.listen, config.admin.metrics_listen);
    let place = |section: &'static str| root.get(section).and_then(|item| item.peek("listen", 0));
    if let Some(metrics) = metrics.filter(|it| is_one_port(*it, data) || is_one_port(*it, admin))
        && let Some(item) = root.get("admin").and_then(|item| item.peek("metrics_listen", 0))
    {
        item.fault(one_port(metrics), PORTS_HINT);
    }
    if is_one_port(data, admin)
        && let Some(item) = place("admin").or_else(|| place("server"))
    {
        item.fault(one_port(admin), PORTS_HINT);
    }
    let spans = root.get("telemetry").and_then(|item| item.peek("engine_spans", 0)?.peek("listen", 0));
    if let (Some(item), Some(engine_spans)) = (spans, &config.telemetry.engine_spans)
        && [data, admin].into_iter().chain(metrics).any(|other| is_one_port(engine_spans.listen, other))
    {
        item.fault(one_port(engine_spans.listen), PORTS_HINT);
    }
    // Pools may share one: each engine has a topic.
    let engine_spans = config.telemetry.engine_spans.as_ref().map(|spans| spans.listen);
    for (at, pool) in config.pools.iter().enumerate() {
        let item = root.get("pool").and_then(|pools| pools.peek("kv_events", at)?.peek("listen", 0));
        let others = || [data, admin].into_iter().chain(metrics).chain(engine_spans);
        if let (Some(item), Some(listen)) = (item, pool.kv_events.as_ref().and_then(|events| events.listen))
            && others().any(|other| is_one_port(listen, other))
        {
            item.fault(one_port(listen), PORTS_HINT);
        }
    }
}

/// Whether two listeners cannot both be bound: every address includes each.
pub(in crate::config) fn is_one_port(one: SocketAddr, other: SocketAddr) -> bool {
    let overlap = one.ip() == other.ip()
        || (one.is_ipv6() == other.is_ipv6() && (one.ip().is_unspecified() || other.ip().is_unspecified()));
    one.port() == other.port() && one.port() != 0 && overlap
}

/// What is wrong with an address that another listener has.
pub(in crate::config) fn one_port(addr: SocketAddr) -> String {
    format!("{addr} is taken by another port of this configuration")
}

pub(in crate::config) const PORTS_HINT: &str = "give server.listen, admin.listen, admin.metrics_listen, telemetry.engine_spans.listen and pool.kv_events.listen a port each";

#[cfg(test)]
mod tests {
    use crate::config::check::check_str;

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
