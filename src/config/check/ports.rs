//! The gateway's own ports: no two at one address.

use std::net::SocketAddr;

use crate::config::Config;

use super::section::Section;

/// Reports two ports of ours at one address. Where flags name one, the addresses are known later.
pub(super) fn expect_ports_apart(root: &Section<'_>, config: &Config) {
    let overrides = root.checking.overrides;
    if overrides.listen.is_some() || overrides.admin_listen.is_some() {
        return;
    }
    let place = |section: &'static str| root.get(section).and_then(|item| item.peek("listen", 0));
    if is_one_port(config.server.listen, config.admin.listen)
        && let Some(item) = place("admin").or_else(|| place("server"))
    {
        item.fault(one_port(config.admin.listen), PORTS_HINT);
    }
    let spans = root.get("telemetry").and_then(|item| item.peek("engine_spans", 0)?.peek("listen", 0));
    if let (Some(item), Some(engine_spans)) = (spans, &config.telemetry.engine_spans)
        && [config.server.listen, config.admin.listen]
            .iter()
            .any(|other| is_one_port(engine_spans.listen, *other))
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
    "give server.listen, admin.listen and telemetry.engine_spans.listen a port each";
