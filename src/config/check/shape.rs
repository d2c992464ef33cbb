//! What every key of a configuration is read as, noted while it is read: the source of the JSON Schema.
//!
//! A second, hand-written list of keys would differ from the checker sooner or later. Here the checker itself notes
//! each key that it requests and each type that it takes it for; `config/schema` turns that into a schema.

use std::collections::{BTreeMap, BTreeSet};

/// A value of the schema: a key of a section, or what stands in its list or free table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::config) struct Place<'a> {
    /// How messages call the section.
    pub(in crate::config) header: &'static str,
    pub(in crate::config) key: &'a str,
    /// The value itself or one below it.
    pub(in crate::config) within: Within,
}

/// Where below its key a value stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::config) enum Within {
    /// It is the key's value.
    Itself,
    /// It is an entry of the key's list.
    List,
    /// It is a value of the key's table, whose keys are free.
    Table,
}

/// One type that a value is taken for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::config) enum Kind {
    Text {
        /// How to write it; empty where any text does.
        hint: &'static str,
    },
    /// One of these.
    Word(Vec<&'static str>),
    Boolean,
    Integer {
        least: i64,
        most: i64,
    },
    /// From 0 to 1.
    Ratio,
    Number,
    List,
    /// A table whose keys are free.
    Table,
    /// A table with the keys of a section.
    Section {
        header: &'static str,
    },
}

/// Everything that was read, by place.
#[derive(Debug, Default)]
pub(in crate::config) struct Shapes {
    kinds: BTreeMap<(&'static str, String, Within), BTreeSet<Kind>>,
    required: BTreeSet<(&'static str, &'static str)>,
}

impl Shapes {
    /// Notes a type of a value.
    pub(super) fn record(&mut self, place: Place<'_>, kind: Kind) {
        let kinds = self.kinds.entry((place.header, place.key.to_owned(), place.within)).or_default();
        // Text of a certain form says more than text.
        if matches!(kind, Kind::Text { hint: "" }) && kinds.iter().any(|k| matches!(k, Kind::Text { .. })) {
            return;
        }
        kinds.insert(kind);
    }

    /// Notes that a section has a key.
    pub(super) fn know(&mut self, header: &'static str, key: &'static str) {
        self.kinds.entry((header, key.to_owned(), Within::Itself)).or_default();
    }

    /// Notes that a section needs a key.
    pub(super) fn require(&mut self, header: &'static str, key: &'static str) {
        self.required.insert((header, key));
    }

    /// Every key, with the header of its section.
    pub(in crate::config) fn keys(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let own = self.kinds.keys().filter(|(_, _, within)| *within == Within::Itself);
        own.map(|(header, key, _)| (*header, key.as_str()))
    }

    /// The types of a value; none where nothing reads it further.
    pub(in crate::config) fn kinds(&self, place: Place<'_>) -> impl Iterator<Item = &Kind> {
        self.kinds.get(&(place.header, place.key.to_owned(), place.within)).into_iter().flatten()
    }

    /// Whether a section needs a key, whatever else it has.
    pub(in crate::config) fn is_required(&self, header: &str, key: &str) -> bool {
        self.required.contains(&(header, key))
    }
}
