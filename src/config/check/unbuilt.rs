//! Parts that a file may describe and that are not built yet.
//!
//! Their keys parse from the first release, and a file that uses one is refused: better an error at the start
//! than a setting that does nothing. A value that changes nothing (a switch that is off) passes. When a part is
//! built, its entry here goes and its reader comes.

use super::section::{Item, Section};
use super::shape::Kind;

/// A key whose part is not built.
pub(super) struct Unbuilt {
    key: &'static str,
    /// What it may say all the same.
    harmless: &'static [(&'static str, &'static str)],
    instead: &'static str,
}

/// Refuses the keys of a section that need an unbuilt feature.
pub(super) fn refuse(section: &Section<'_>, parts: &[Unbuilt]) {
    for part in parts {
        section.record(part.key, Kind::Unbuilt);
        let Some(item) = section.get(part.key) else { continue };
        if !part.allows(&item) {
            item.fault_at_key(format!("{} is not supported yet", part.key), part.instead);
        }
    }
}

impl Unbuilt {
    const fn key(key: &'static str, instead: &'static str) -> Self {
        Self { key, harmless: &[], instead }
    }

    const fn unless(self, harmless: &'static [(&'static str, &'static str)]) -> Self {
        Self { harmless, ..self }
    }

    fn allows(&self, item: &Item<'_>) -> bool {
        self.harmless.iter().any(|(key, value)| *key == item.key && item.is_written(value))
    }
}

/// Of the telemetry.
pub(super) const TELEMETRY: &[Unbuilt] =
    &[Unbuilt::key("content", "remove it; spans carry no prompt and no answer text")
        .unless(&[("content", "false")])];
