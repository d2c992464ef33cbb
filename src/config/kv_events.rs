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
    let own = KvEvents::open(section);
    let events = KvEvents::read(&own, &KvEvents::default());
    if !own.is_present() {
        return None;
    }
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
