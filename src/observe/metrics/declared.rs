//! One metric family as its row of the table states it.

use super::buckets::Edges;
use super::foreseen::{Foreseen, Tails};

/// One family, as a row of the table states it.
#[derive(Debug)]
pub(super) struct Declared {
    pub(super) name: &'static str,
    /// `counter`, `amount` (a counter of fractions), `gauge`, `level` (a gauge of whole numbers) or `histogram`.
    pub(super) kind: &'static str,
    pub(super) help: &'static str,
    pub(super) labels: &'static [Label],
    /// Label values behind the group's key that exist from the start, where they follow from the configuration.
    pub(super) zero: Option<fn(&Foreseen) -> Tails>,
    pub(super) edges: Option<fn(&Edges) -> &[f64]>,
}

/// A label, and its values where they are all known: a counter with such labels starts at zero.
#[derive(Debug)]
pub(super) struct Label {
    pub(super) name: &'static str,
    pub(super) values: &'static [&'static str],
}

impl Declared {
    pub(super) fn label_names(&self) -> Vec<&'static str> {
        self.labels.iter().map(|label| label.name).collect()
    }

    /// Values behind a key of `key` labels that exist before their first event; only counters have any.
    pub(super) fn zeros(&self, key: usize, foreseen: &Foreseen) -> Tails {
        if self.kind != "counter" {
            return Vec::new();
        }
        if let Some(zero) = self.zero {
            return zero(foreseen);
        }
        let mut tails = vec![Vec::new()];
        for label in self.labels.iter().skip(key) {
            let extended = tails
                .iter()
                .flat_map(|tail| label.values.iter().map(move |value| [&tail[..], &[*value]].concat()));
            tails = extended.collect();
        }
        tails
    }
}

#[cfg(test)]
impl Declared {
    /// Its row of `docs/metric-families.md`.
    pub(super) fn document(&self) -> String {
        let quoted =
            |names: &[&str]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let labels = self.labels.iter().map(|label| match label.values {
            [] => quoted(&[label.name]),
            values => format!("{}: {}", quoted(&[label.name]), quoted(values)),
        });
        let kind = match self.kind {
            "level" => "gauge",
            "amount" => "counter",
            kind => kind,
        };
        format!("| `{}` | {kind} | {} | {} |\n", self.name, labels.collect::<Vec<_>>().join("; "), self.help)
    }
}
