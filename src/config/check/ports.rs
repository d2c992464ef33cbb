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

pub(in crate::config) const PORTS_HINT: &str =
    "give server.listen, admin.listen, admin.metrics_listen and telemetry.engine_spans.listen a port each";
