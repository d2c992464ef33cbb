//! Parts that a file may describe and that are not built yet.
//!
//! Their keys parse from the first release, and a file that uses one is refused: better an error at the start
//! than a canary that never judges. A value that changes nothing (a switch that is off, defaults written out)
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

/// Refuses the keys of a section that need an unbuilt feature.
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
    const fn key(key: &'static str, instead: &'static str) -> Self {
        Self { key, known: &[], harmless: &[], instead }
    }

    const fn table(key: &'static str, known: &'static [&'static str], instead: &'static str) -> Self {
        Self { key, known, harmless: &[], instead }
    }

    const fn unless(self, harmless: &'static [(&'static str, &'static str)]) -> Self {
        Self { harmless, ..self }
    }

    fn allows(&self, item: &Item<'_>) -> bool {
        self.harmless.iter().any(|(key, value)| *key == item.key && item.is_written(value))
    }
}

/// Of a pool.
pub(super) const POOL: &[Unbuilt] = &[
    Unbuilt::key("dns", LIST_REPLICAS),
    Unbuilt::key("file", LIST_REPLICAS),
    Unbuilt::table("kubernetes", &["namespace", "service", "port"], LIST_REPLICAS),
    Unbuilt::table(
        "warmup",
        &["requests", "slow_start"],
        "remove [pool.warmup]; a replica takes traffic once a probe proved it",
    )
    .unless(&[("requests", "4"), ("slow_start", "30s")]),
    Unbuilt::table(
        "keep_alive",
        &["interval"],
        "remove [pool.keep_alive]; [pool.probe] asks idle replicas every interval",
    ),
];

/// Of a replica.
pub(super) const REPLICA: &[Unbuilt] =
    &[Unbuilt::key("zone", "remove it; replicas are chosen without regard to zones")];

/// Of the telemetry.
pub(super) const TELEMETRY: &[Unbuilt] =
    &[Unbuilt::key("content", "remove it; spans carry no prompt and no answer text")
        .unless(&[("content", "false")])];

const LIST_REPLICAS: &str = "list the replicas: replicas = [\"http://127.0.0.1:8001\"]";
