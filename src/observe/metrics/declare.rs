//! How [`families!`] declares a metric family, and what follows from it.
//!
//! One row gives a family its typed handle, its registration with help and labels, the series that exist before their
//! first event, and its row in `docs/metric-families.md`. The rows themselves are in [`super::table`].

use prometheus::core::Collector;
use prometheus::{
    CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    Opts, Registry,
};

use super::buckets::Edges;
use super::declared::{Declared, Label};
use super::foreseen::Foreseen;

pub(super) struct Maker<'a> {
    registry: &'a Registry,
    edges: &'a Edges,
    overflow: IntCounterVec,
    #[cfg(test)]
    pub(super) declared: std::cell::RefCell<Vec<&'static Declared>>,
}

impl<'a> Maker<'a> {
    pub(super) fn new(registry: &'a Registry, edges: &'a Edges) -> Self {
        let overflow = IntCounterVec::build(&OVERFLOW, &[]).expect(TABLE_IS_VALID);
        let maker = Self {
            registry,
            edges,
            overflow,
            #[cfg(test)]
            declared: std::cell::RefCell::default(),
        };
        registry.register(Box::new(maker.overflow.clone())).expect(TABLE_IS_VALID);
        maker
    }

    /// Counts what the bounds of a family fold.
    pub(super) fn overflow(&self) -> IntCounterVec {
        self.overflow.clone()
    }

    pub(super) fn make<M: Build>(&self, declared: &'static Declared) -> M {
        #[cfg(test)]
        self.declared.borrow_mut().push(declared);
        let buckets = declared.edges.map_or(&[][..], |edges| edges(self.edges));
        let metric = M::build(declared, buckets).expect(TABLE_IS_VALID);
        self.registry.register(Box::new(metric.clone())).expect(TABLE_IS_VALID);
        metric
    }
}

/// A metric of the library, made of its declaration.
pub(super) trait Build: Collector + Clone + 'static {
    fn build(declared: &Declared, buckets: &[f64]) -> prometheus::Result<Self>;
}

macro_rules! build {
    ($($Metric:ident: |$declared:ident, $buckets:ident| $make:expr;)*) => {$(
        impl Build for $Metric {
            fn build($declared: &Declared, $buckets: &[f64]) -> prometheus::Result<Self> {
                $make
            }
        }
    )*};
}

build! {
    IntCounter: |declared, _buckets| Self::with_opts(opts(declared));
    IntGauge: |declared, _buckets| Self::with_opts(opts(declared));
    Gauge: |declared, _buckets| Self::with_opts(opts(declared));
    Histogram: |declared, buckets| Self::with_opts(histogram(declared, buckets));
    IntCounterVec: |declared, _buckets| Self::new(opts(declared), &declared.label_names());
    CounterVec: |declared, _buckets| Self::new(opts(declared), &declared.label_names());
    GaugeVec: |declared, _buckets| Self::new(opts(declared), &declared.label_names());
    HistogramVec: |declared, buckets| Self::new(histogram(declared, buckets), &declared.label_names());
}

fn opts(declared: &Declared) -> Opts {
    Opts::new(declared.name, declared.help)
}

fn histogram(declared: &Declared, buckets: &[f64]) -> HistogramOpts {
    HistogramOpts::new(declared.name, declared.help).buckets(buckets.to_vec())
}

/// The handle of a declared family: a metric without labels, or a [`Family`](super::family::Family).
pub(super) trait Handle {
    fn register(maker: &Maker<'_>, declared: &'static Declared) -> Self
    where
        Self: Sized;
    /// Creates the series of a key that exist before their first event.
    fn start(&self, _key: &[&str], _foreseen: &Foreseen) {}
    /// Removes all series of a key.
    fn forget(&self, _key: &[&str]) {}
    /// Removes all series with other values of this label.
    fn forget_values(&self, _label: &str, _is_kept: &dyn Fn(&str) -> bool) {}
}

impl<M: Build> Handle for M {
    fn register(maker: &Maker<'_>, declared: &'static Declared) -> Self {
        maker.make(declared)
    }
}

/// Families that share their first labels, the key.
pub(super) trait Group {
    const KEY: &'static [&'static str];

    fn families(&self) -> Vec<&dyn Handle>;

    fn start(&self, key: &[&str], foreseen: &Foreseen) {
        self.families().iter().for_each(|family| family.start(key, foreseen));
    }

    fn forget(&self, key: &[&str]) {
        self.families().iter().for_each(|family| family.forget(key));
    }

    fn forget_values(&self, label: &str, is_kept: &dyn Fn(&str) -> bool) {
        self.families().iter().for_each(|family| family.forget_values(label, is_kept));
    }
}

/// Declares families:
///
/// ```text
/// group: Type [key labels of all its families] {
///     kind(buckets of a histogram) handle "name" [more labels, label = its values] zero function "help";
/// }
/// ```
///
/// A family without labels is a metric of the library, else a [`Family`]. A counter starts at zero where the values of
/// all labels behind the key are stated, or those that `zero` names: without a key at once, else with `start`.
macro_rules! families {
    ($(#[$doc:meta])* $vis:vis struct $All:ident {
        $($(#[$group_doc:meta])* $group_vis:vis $group:ident: $Group:ident $key:tt { $($rows:tt)* })*
    }) => {
        $(#[$doc])*
        $vis struct $All {
            $($(#[$group_doc])* $group_vis $group: $Group,)*
        }

        impl $All {
            pub(super) fn new(maker: &Maker<'_>) -> Self {
                let all = Self { $($group: $Group::new(maker),)* };
                $(if $Group::KEY.is_empty() {
                    all.$group.start(&[], &Foreseen::default());
                })*
                all
            }
        }

        $(families!(@group [$(#[$group_doc])*] $group_vis $Group $key { $($rows)* });)*
    };
    (@group [$($doc:tt)*] $vis:vis $Group:ident $key:tt {
        $($kind:ident $(($edges:ident))? $field:ident $name:literal
            [$($label:ident $(= $values:expr)?),*] $(zero $zero:ident)? $help:literal;)*
    }) => {
        $($doc)*
        $vis struct $Group {
            $(#[doc = $help] $vis $field: families!(@type $kind $key [$($label),*]),)*
        }

        impl $Group {
            fn new(maker: &Maker<'_>) -> Self {
                Self {
                    $($field: {
                        const DECLARED: Declared = Declared {
                            name: $name,
                            kind: stringify!($kind),
                            help: $help,
                            labels: families!(@labels $key [$($label $(= $values)?),*]),
                            zero: families!(@option $($zero)?),
                            edges: families!(@option $(|edges| &edges.$edges)?),
                        };
                        Handle::register(maker, &DECLARED)
                    },)*
                }
            }
        }

        impl Group for $Group {
            const KEY: &'static [&'static str] = families!(@names $key);

            fn families(&self) -> Vec<&dyn Handle> {
                vec![$(&self.$field),*]
            }
        }
    };
    (@type counter [] []) => { IntCounter };
    (@type gauge [] []) => { Gauge };
    (@type level [] []) => { IntGauge };
    (@type histogram [] []) => { Histogram };
    (@type counter $key:tt $labels:tt) => { Family<IntCounterVec, { families!(@count $key $labels) }> };
    (@type amount $key:tt $labels:tt) => { Family<CounterVec, { families!(@count $key $labels) }> };
    (@type gauge $key:tt $labels:tt) => { Family<GaugeVec, { families!(@count $key $labels) }> };
    (@type histogram $key:tt $labels:tt) => { Family<HistogramVec, { families!(@count $key $labels) }> };
    (@count [$($key:ident),*] [$($label:ident),*]) => { [$(stringify!($key),)* $(stringify!($label)),*].len() };
    (@names [$($key:ident),*]) => { &[$(stringify!($key)),*] };
    (@labels [$($key:ident),*] [$($label:ident $(= $values:expr)?),*]) => {
        &[
            $(Label { name: stringify!($key), values: &[] },)*
            $(Label { name: stringify!($label), values: families!(@values $($values)?) }),*
        ]
    };
    (@values) => { &[] };
    (@values $values:expr) => { $values };
    (@option) => { None };
    (@option $($some:tt)+) => { Some($($some)+) };
}
pub(super) use families;

/// Counts what the bounds of [`Family`] fold; itself has as many series as there are families.
pub(super) const OVERFLOW: Declared = Declared {
    name: "tokenway_metric_overflow_total",
    kind: "counter",
    help: "Label sets folded into the value other, by metric family.",
    labels: &[Label { name: "family", values: &[] }],
    zero: None,
    edges: None,
};

const TABLE_IS_VALID: &str = "invariant: the table's names and labels are valid and distinct (tested)";

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;

    use super::super::family::Family;
    use super::*;

    families! {
        /// Families of this test.
        struct Sample {
            /// Without a key.
            attempts: Attempts [] {
                counter tried "tokenway_tried_total" [result = &["won", "lost"]]
                    "Attempts of a test.";
            }
            /// By pool.
            by_pool: ByPool [pool] {
                counter found "tokenway_found_total" [kind = &["a"]]
                    "Things that a pool found.";
                counter named "tokenway_named_total" [name]
                    "By names that nobody knows before.";
                gauge depth "tokenway_depth" []
                    "How deep a pool is.";
            }
        }
    }

    #[test]
    fn a_family_declared_once_is_registered_described_documented_and_starts_at_zero() {
        let (registry, edges) = (Registry::new(), Edges::default());
        let maker = Maker::new(&registry, &edges);
        let sample = Sample::new(&maker);
        let page = || TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        assert_eq!(
            page(),
            "# HELP tokenway_tried_total Attempts of a test.\n\
             # TYPE tokenway_tried_total counter\n\
             tokenway_tried_total{result=\"lost\"} 0\n\
             tokenway_tried_total{result=\"won\"} 0\n"
        );
        sample.attempts.tried.inc(["won"]);
        sample.by_pool.start(&["llama"], &Foreseen::default());
        sample.by_pool.depth.set(["llama"], Some(2.0));
        sample.by_pool.named.inc(["llama", "x"]);
        for line in [
            "tokenway_tried_total{result=\"won\"} 1",
            "tokenway_found_total{kind=\"a\",pool=\"llama\"} 0",
            "tokenway_named_total{name=\"x\",pool=\"llama\"} 1",
            "tokenway_depth{pool=\"llama\"} 2",
        ] {
            assert!(page().lines().any(|found| found == line), "{line}: {}", page());
        }
        sample.by_pool.forget(&["llama"]);
        assert!(!page().contains("llama"), "{}", page());
        let rows: String = maker.declared.take().iter().map(|family| family.document()).collect();
        assert_eq!(
            rows,
            "| `tokenway_tried_total` | counter | `result`: `won`, `lost` | Attempts of a test. |\n\
             | `tokenway_found_total` | counter | `pool`; `kind`: `a` | Things that a pool found. |\n\
             | `tokenway_named_total` | counter | `pool`; `name` | By names that nobody knows before. |\n\
             | `tokenway_depth` | gauge | `pool` | How deep a pool is. |\n"
        );
    }
}
