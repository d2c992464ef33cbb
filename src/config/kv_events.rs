//! `[pool.kv_events]`: what engines publish of their KV caches.

use std::net::SocketAddr;

use super::check::section::Section;
use super::check::values::ADDRESS;
use super::declare::{Declared, section};
use super::{EngineKind, Pool};

section! {
    /// follows what vLLM publishes of its KV cache (--kv-events-config): what was evicted, and what others put there
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct KvEvents for "[pool.kv_events]", optional {
        /// on each replica's host; engine r of a URL publishes at port + r; without it each is asked (/kv_event_sources)
        port: Option<u16> as 1..=65_535, example 5557;
        /// where missed events are asked for again, on each replica's host
        replay_port: Option<u16> as 1..=65_535, example 5558;
        /// where engines connect whose endpoint is "tcp://HOST:PORT"; each with a topic of its own
        listen: Option<SocketAddr> as ADDRESS, example "0.0.0.0:5557";
    }
}

/// Reads `[pool.kv_events]`, and what must hold of a pool that has it.
pub(super) fn kv_events(section: &Section<'_>, pool: &Pool) -> Option<KvEvents> {
    let (own, events) = KvEvents::opened(section)?;
    if pool.engine != EngineKind::Vllm {
        own.fault("only vLLM publishes KV events", "remove [pool.kv_events], or set engine = \"vllm\"");
    }
    if events.port.is_some() && events.port == events.replay_port {
        own.fault(
            "port and replay_port are the same",
            "write the ports of endpoint and replay_endpoint in --kv-events-config",
        );
    }
    Some(events)
}

#[cfg(test)]
mod tests {
    use crate::config::check::check_with_pool;

    #[test]
    fn what_cannot_be_followed_is_refused() {
        let read = |events: &str| {
            let config = check_with_pool(&format!("[pool.kv_events]\n{events}\n")).unwrap();
            config.pools[0].kv_events.clone()
        };
        let events = read("port = 5557\nreplay_port = 5558").unwrap();
        assert_eq!((events.port, events.replay_port, events.listen), (Some(5557), Some(5558), None));
        assert!(read("").is_some(), "each replica is asked");
        for (pool, events, words) in [
            ("engine = \"sglang\"", "", "only vLLM publishes KV events"),
            ("", "port = 5557\nreplay_port = 5557", "port and replay_port are the same"),
            ("", "port = 0", "port"),
            ("", "listen = \"5557\"", "listen"),
            ("", "ports = 1", "ports"),
        ] {
            let rest = format!("{pool}\n[pool.kv_events]\n{events}\n");
            let fault = check_with_pool(&rest).unwrap_err().to_string();
            assert!(fault.contains(words), "{fault}");
        }
    }
}
