//! Parts that a file may describe and that are not built yet.
//!
//! Their keys parse from the first release, and a file that asks for one is refused: better a plain word at the start
//! than a canary that never judges. A value that asks for nothing new (a switch that is off, defaults written out)
//! passes. When a part is built, its entry here goes and its reader comes.

use toml::de::DeValue;

use super::section::{Item, Section};

/// A key whose part is not built.
pub(super) struct Unbuilt {
    key: &'static str,
    /// Keys of its table, where it is one.
    known: &'static [&'static str],
    /// What it may say all the same.
    harmless: &'static [(&'static str, &'static str)],
    instead: &'static str,
}

/// Refuses what the section asks for in vain.
pub(super) fn refuse(section: &Section<'_>, parts: &[Unbuilt]) {
    for part in parts {
        let Some(item) = section.get(part.key) else { continue };
        let is_table = matches!(item.value, DeValue::Table(_)) && !part.known.is_empty();
        let opened = if is_table { item.section(part.key) } else { None };
        for key in part.known {
            opened.as_ref().and_then(|inner| inner.get(key));
        }
        let is_harmless = match opened {
            Some(inner) => !part.harmless.is_empty() && inner.items().all(|item| part.allows(&item)),
            None => part.allows(&item),
        };
        if !is_harmless {
            item.fault_at_key(format!("{} is not supported yet", part.key), part.instead);
        }
    }
}

impl Unbuilt {
    fn allows(&self, item: &Item<'_>) -> bool {
        self.harmless.iter().any(|(key, value)| *key == item.key && item.is_written(value))
    }
}

/// Of a pool.
pub(super) const POOL: &[Unbuilt] = &[
    Unbuilt { key: "dns", known: &[], harmless: &[], instead: LIST_REPLICAS },
    Unbuilt { key: "file", known: &[], harmless: &[], instead: LIST_REPLICAS },
    Unbuilt {
        key: "kubernetes",
        known: &["namespace", "service", "port"],
        harmless: &[],
        instead: LIST_REPLICAS,
    },
    Unbuilt {
        key: "warmup",
        known: &["requests", "slow_start"],
        harmless: &[("requests", "4"), ("slow_start", "30s")],
        instead: "remove [pool.warmup]; a replica takes traffic once a probe proved it",
    },
    Unbuilt {
        key: "keep_alive",
        known: &["interval"],
        harmless: &[],
        instead: "remove [pool.keep_alive]; [pool.probe] asks idle replicas every interval",
    },
];

/// Of a route.
pub(super) const ROUTE: &[Unbuilt] = &[
    Unbuilt {
        key: "migrate",
        known: &[],
        harmless: &[("migrate", "false")],
        instead: "remove it; a stream that breaks after its first token ends with an error event",
    },
    Unbuilt {
        key: "hedge",
        known: &["after", "budget"],
        harmless: &[],
        instead: "remove it; [retry] covers replicas that fail before the first token",
    },
    Unbuilt {
        key: "canary",
        known: &[
            "pool",
            "steps",
            "max_cold_start",
            "max_ttft_ratio",
            "max_itl_ratio",
            "max_error_ratio_increase",
            "false_rollback_rate",
            "on_breach",
        ],
        harmless: &[],
        instead: "remove [route.canary]; split traffic by the weights of the route's pools",
    },
];

/// Of a replica.
pub(super) const REPLICA: &[Unbuilt] = &[Unbuilt {
    key: "zone",
    known: &[],
    harmless: &[],
    instead: "remove it; replicas are chosen without regard to zones",
}];

/// Of a tenant.
pub(super) const TENANT: &[Unbuilt] = &[
    Unbuilt {
        key: "weight",
        known: &[],
        harmless: &[("weight", "1")],
        instead: "remove it; all tenants have the same share",
    },
    Unbuilt {
        key: "priority",
        known: &[],
        harmless: &[("priority", "0")],
        instead: "remove it; requests of all tenants wait in one order",
    },
    Unbuilt {
        key: "limits",
        known: &["requests_per_minute", "tokens_per_minute", "concurrency"],
        harmless: &[],
        instead: "remove it; tenants are distinguished, without limits",
    },
];

/// Of the telemetry.
pub(super) const TELEMETRY: &[Unbuilt] = &[Unbuilt {
    key: "content",
    known: &[],
    harmless: &[("content", "false")],
    instead: "remove it; spans carry no prompt and no answer text",
}];

const LIST_REPLICAS: &str = "list the replicas: replicas = [\"http://127.0.0.1:8001\"]";
