//! Parts that a file may describe and that are not built yet.
//!
//! Their keys parse from the first release, and a file that uses one is refused: better an error at the start
//! than a canary that never judges. A value that changes nothing (a switch that is off, defaults written out)
//! passes. When a part is built, its entry here goes and its reader comes.

use super::section::{Item, Section};
use super::shape::Kind;

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
        let is_table = !part.known.is_empty();
        if !is_table {
            section.record(part.key, Kind::Unbuilt);
        }
        let Some(item) = section.get(part.key) else { continue };
        let opened = if is_table { item.section(part.key) } else { None };
        if is_table && opened.is_none() {
            continue;
        }
        for key in part.known {
            if let Some(inner) = &opened {
                inner.get(key);
                inner.record(key, Kind::Unbuilt);
            }
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

/// Of a route.
pub(super) const ROUTE: &[Unbuilt] = &[Unbuilt::table(
    "canary",
    &[
        "pool",
        "steps",
        "max_cold_start",
        "max_ttft_ratio",
        "max_itl_ratio",
        "max_error_ratio_increase",
        "false_rollback_rate",
        "on_breach",
    ],
    "remove [route.canary]; split traffic by the weights of the route's pools",
)];

/// Of the telemetry.
pub(super) const TELEMETRY: &[Unbuilt] =
    &[Unbuilt::key("content", "remove it; spans carry no prompt and no answer text")
        .unless(&[("content", "false")])];
