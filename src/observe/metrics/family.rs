//! A metric family with a bound on its label sets.
//!
//! Labels come from configuration and fixed tables, but their product can be large. Past the bounds, values are replaced
//! by `other`, so that no configuration can make the gateway or Prometheus run out of memory. A handle is found by a hash
//! of its label values under a read lock; who counts several events of one label set for each request keeps the handle
//! (see `series`).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::BuildHasher as _;

use parking_lot::RwLock;
use prometheus::core::{MetricVec, MetricVecBuilder};
use prometheus::{GaugeVec, IntCounterVec};

use super::declare::{Build, Handle, Maker};
use super::declared::Declared;
use super::foreseen::Foreseen;
use crate::labels::{LabelHasher, OTHER};

/// Distinct values of one label besides `other`.
pub(super) const MAX_VALUES: usize = 199;
/// Label sets of one family, those with `other` included.
const MAX_SETS: usize = 5_000;
/// Of these, reserved for label sets with folded names.
const RESERVED: usize = 1_000;
/// Labels that name something and are folded one group after the other, each with the number of sets up to which that is enough. What
/// happened (`outcome`, `code`, `kind`, `reason`, `stage`) is never folded: sums by it would be wrong.
const FOLDED: [(&[&str], usize); 3] = [
    (&["tenant"], MAX_SETS - RESERVED / 2),
    (&["class", "revision", "model", "replica", "prefill", "decode"], MAX_SETS - RESERVED / 10),
    (&["route", "pool", "to"], usize::MAX),
];

/// Label sets of one family up to which those without an event are created.
const MAX_ZEROS: usize = MAX_SETS / 2;

/// What a family needs of the three vector types, whose builders are not public.
pub trait Vector {
    /// A metric of one label set.
    type Metric: Clone;

    /// The metric of these label values, which is created where there is none.
    fn metric(&self, values: &[&str]) -> prometheus::Result<Self::Metric>;
    fn forget(&self, values: &[&str]) -> prometheus::Result<()>;
}

impl<B: MetricVecBuilder> Vector for MetricVec<B>
where
    B::M: Clone,
{
    type Metric = B::M;

    fn metric(&self, values: &[&str]) -> prometheus::Result<B::M> {
        self.get_metric_with_label_values(values)
    }

    fn forget(&self, values: &[&str]) -> prometheus::Result<()> {
        self.remove_label_values(values)
    }
}

/// A vector of metrics with `N` labels that hands out at most [`MAX_SETS`] label sets.
pub struct Family<V: Vector, const N: usize> {
    vec: V,
    declared: &'static Declared,
    hasher: LabelHasher,
    sets: RwLock<LabelSets<V::Metric>>,
    overflow: IntCounterVec,
}

struct LabelSets<M> {
    /// By a hash of their values, as in the library itself.
    sets: HashMap<u64, LabelSet<M>, LabelHasher>,
    /// For each label: its values besides `other`, with the number of sets that have them.
    uses: Vec<HashMap<Box<str>, usize>>,
}

struct LabelSet<M> {
    values: Box<[Box<str>]>,
    metric: M,
}

impl<V: Vector, const N: usize> Family<V, N> {
    pub(super) fn new(vec: V, declared: &'static Declared, overflow: IntCounterVec) -> Self {
        let sets = LabelSets { sets: HashMap::default(), uses: vec![HashMap::new(); N] };
        Self { vec, declared, hasher: LabelHasher::default(), sets: RwLock::new(sets), overflow }
    }

    /// The metric of these label values, or of the set that replaces them.
    pub fn get(&self, values: [&str; N]) -> V::Metric {
        if let Some(metric) = self.known(&values) {
            return metric;
        }
        let mut known = self.sets.write();
        if let Some(metric) = self.admit(&mut known, &values, MAX_SETS - RESERVED) {
            return metric;
        }
        self.overflowed();
        // First the labels that are full themselves.
        let mut folded = values;
        for (label, value) in folded.iter_mut().enumerate() {
            if !known.has_room(label, value) {
                *value = OTHER;
            }
        }
        let mut metric = self.admit(&mut known, &folded, MAX_SETS - RESERVED);
        for (names, limit) in FOLDED {
            if metric.is_some() {
                break;
            }
            for (label, value) in self.declared.labels.iter().zip(&mut folded) {
                if names.contains(&label.name) {
                    *value = OTHER;
                }
            }
            metric = self.admit(&mut known, &folded, limit);
        }
        metric.unwrap_or_else(|| self.metric(&[OTHER; N]))
    }

    /// The metric of exactly these values; `None` (and counted) where there is no room for it. For gauges,
    /// which cannot share a label set.
    fn get_exact(&self, values: [&str; N]) -> Option<V::Metric> {
        let metric = self.known(&values).or_else(|| self.admit(&mut self.sets.write(), &values, MAX_SETS));
        if metric.is_none() {
            self.overflowed();
        }
        metric
    }

    /// Removes a label set, which makes room for another.
    pub fn remove(&self, values: [&str; N]) {
        let mut known = self.sets.write();
        if known.forget(self.hash(&values)).is_some() {
            let _ = self.vec.forget(&values);
        }
    }

    // Copies of it were 30 KB of the binary.
    #[inline(never)]
    fn forget_where(&self, is_gone: &dyn Fn(&[Box<str>]) -> bool) {
        let mut known = self.sets.write();
        let gone: Vec<u64> =
            known.sets.iter().filter(|(_, set)| is_gone(&set.values)).map(|(hash, _)| *hash).collect();
        for values in gone.into_iter().filter_map(|hash| known.forget(hash)) {
            let values: Vec<&str> = values.iter().map(|value| &**value).collect();
            let _ = self.vec.forget(&values);
        }
    }

    /// Whether a label has this value, or room for it; what does not fit is counted.
    pub(super) fn takes(&self, label: usize, value: &str) -> bool {
        let takes = self.sets.read().has_room(label, value);
        if !takes {
            self.overflowed();
        }
        takes
    }

    fn known(&self, values: &[&str]) -> Option<V::Metric> {
        self.sets.read().sets.get(&self.hash(values)).map(|set| set.metric.clone())
    }

    /// The metric of these values, which is created if there is room.
    fn admit(&self, known: &mut LabelSets<V::Metric>, values: &[&str], limit: usize) -> Option<V::Metric> {
        let hash = self.hash(values);
        if let Some(set) = known.sets.get(&hash) {
            return Some(set.metric.clone());
        }
        let has_room = |(label, value): (usize, &&str)| known.has_room(label, value);
        if known.sets.len() >= limit || !values.iter().enumerate().all(has_room) {
            return None;
        }
        let metric = self.metric(values);
        known.insert(hash, values, metric.clone());
        Some(metric)
    }

    fn metric(&self, values: &[&str]) -> V::Metric {
        self.vec.metric(values).expect(ONE_VALUE_EACH)
    }

    fn hash(&self, values: &[&str]) -> u64 {
        self.hasher.hash_one(values)
    }

    fn overflowed(&self) {
        self.overflow.with_label_values(&[self.declared.name]).inc();
    }
}

impl<V: Vector + Build, const N: usize> Handle for Family<V, N> {
    fn register(maker: &Maker<'_>, declared: &'static Declared) -> Self {
        Self::new(maker.make(declared), declared, maker.overflow())
    }

    /// Those of its label sets that begin with the key; none in a family that is half full, whose room is for what happens.
    fn start(&self, key: &[&str], foreseen: &Foreseen) {
        for tail in self.declared.zeros(key.len(), foreseen) {
            let values: Vec<&str> = key.iter().copied().chain(tail).collect();
            self.admit(&mut self.sets.write(), &values, MAX_ZEROS);
        }
    }

    fn forget(&self, key: &[&str]) {
        self.forget_where(&|values| key.iter().zip(values).all(|(key, value)| *key == &**value));
    }

    fn forget_values(&self, label: &str, is_kept: &dyn Fn(&str) -> bool) {
        let label = self.declared.labels.iter().position(|known| known.name == label);
        let Some(label) = label else { return };
        self.forget_where(&|values| values.get(label).is_some_and(|value| !is_kept(value)));
    }
}

impl<const N: usize> Family<GaugeVec, N> {
    /// Sets the gauge of exactly these values; `None` removes it.
    pub fn set(&self, values: [&str; N], value: Option<f64>) {
        match value {
            Some(value) => {
                if let Some(gauge) = self.get_exact(values) {
                    gauge.set(value);
                }
            }
            None => self.remove(values),
        }
    }

    /// Sets every gauge that exists by its label values.
    pub(super) fn set_all(&self, value: impl Fn([&str; N]) -> f64) {
        for set in self.sets.read().sets.values() {
            set.metric
                .set(value(std::array::from_fn(|at| set.values.get(at).map_or(OTHER, |value| &**value))));
        }
    }
}

impl<const N: usize> Family<IntCounterVec, N> {
    /// Counts one.
    pub fn inc(&self, values: [&str; N]) {
        self.get(values).inc();
    }

    /// Counts `n`.
    pub fn inc_by(&self, values: [&str; N], n: u64) {
        self.get(values).inc_by(n);
    }

    /// Sets the counter of exactly these values to a total counted elsewhere. One that fell began anew.
    pub(super) fn set_total(&self, values: [&str; N], total: u64) {
        let Some(counter) = self.get_exact(values) else { return };
        if total < counter.get() {
            counter.reset();
        }
        counter.inc_by(total - counter.get());
    }
}

impl<M> LabelSets<M> {
    fn insert(&mut self, hash: u64, values: &[&str], metric: M) {
        let values: Box<[Box<str>]> = values.iter().map(|value| Box::from(*value)).collect();
        for (uses, value) in self.uses.iter_mut().zip(&values).filter(|(_, value)| &***value != OTHER) {
            *uses.entry(value.clone()).or_default() += 1;
        }
        self.sets.insert(hash, LabelSet { values, metric });
    }

    fn has_room(&self, label: usize, value: &str) -> bool {
        let fits = |uses: &HashMap<_, _>| uses.len() < MAX_VALUES || uses.contains_key(value);
        value == OTHER || self.uses.get(label).is_some_and(fits)
    }

    /// Removes the set and returns its values.
    fn forget(&mut self, hash: u64) -> Option<Box<[Box<str>]>> {
        let LabelSet { values, .. } = self.sets.remove(&hash)?;
        for (uses, value) in self.uses.iter_mut().zip(&values) {
            if let Entry::Occupied(mut count) = uses.entry(value.clone()) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
        }
        Some(values)
    }
}

const ONE_VALUE_EACH: &str = "invariant: the table gives each family one value for each of its labels";

#[cfg(test)]
mod tests {
    use prometheus::Opts;

    use super::super::declared::Label;
    use super::*;

    macro_rules! family {
        ($($label:literal),*) => {{
            const DECLARED: Declared = Declared {
                name: "f",
                kind: "counter",
                help: "x",
                labels: &[$(Label { name: $label, values: &[] }),*],
                zero: None,
                edges: None,
            };
            let overflow = IntCounterVec::new(Opts::new("overflow_total", "x"), &["family"]).unwrap();
            let vec = IntCounterVec::new(Opts::new("f_total", "x"), &[$($label),*]).unwrap();
            Family::<_, { [$($label),*].len() }>::new(vec, &DECLARED, overflow)
        }};
    }

    #[test]
    fn a_label_has_at_most_two_hundred_values() {
        let family = family!("tenant");
        for i in 0..300 {
            family.inc([&format!("t{i}")]);
        }
        assert_eq!(family.sets.read().sets.len(), 200);
        assert_eq!(family.get([OTHER]).get(), 101);
        assert_eq!(family.overflow.with_label_values(&["f"]).get(), 101);
        family.inc(["t0"]);
        assert_eq!(family.get(["t0"]).get(), 2, "values that exist stay themselves");
    }

    #[test]
    fn a_full_family_folds_the_tenant_first_and_never_exceeds_its_bound() {
        let family = family!("route", "tenant");
        for route in 0..150 {
            for tenant in 0..150 {
                family.inc([&format!("r{route}"), &format!("t{tenant}")]);
            }
        }
        let sets = family.sets.read().sets.len();
        assert!(sets <= MAX_SETS, "{sets}");
        assert!(family.known(&["r149", OTHER]).is_some(), "route survives");
        let total: u64 = 150 * 150;
        let other: u64 = (0..150).map(|r| family.get([&format!("r{r}"), OTHER]).get()).sum();
        assert_eq!(other, total - 4_000, "nothing is lost");
    }

    #[test]
    fn what_happened_is_never_folded() {
        let family = family!("route", "class", "tenant", "outcome");
        let names: Vec<_> = (0..190).map(|n| n.to_string()).collect();
        let all = || names.iter().flat_map(|route| names.iter().map(move |tenant| (route, tenant)));
        for (route, tenant) in all() {
            family.inc([route, ["short", "long"][tenant.len() % 2], tenant, "ok"]);
        }
        for outcome in ["client_error", "failed", "refused"] {
            names.iter().for_each(|route| family.inc([route, "short", "0", outcome]));
        }
        let sets = family.sets.read();
        let sum = |is_it: &dyn Fn(&[Box<str>]) -> bool| -> u64 {
            sets.sets.values().filter(|set| is_it(&set.values)).map(|set| set.metric.get()).sum()
        };
        assert!(sets.sets.len() <= MAX_SETS);
        for (outcome, expected) in
            [("ok", 190 * 190), ("client_error", 190), ("failed", 190), ("refused", 190)]
        {
            assert_eq!(sum(&|values| &*values[3] == outcome), expected, "{outcome}");
        }
        let failed = |values: &[Box<str>]| &*values[0] == "7" && &*values[3] == "client_error";
        assert_eq!(sum(&failed), 1, "its route survives");
    }

    #[test]
    fn zeros_leave_half_of_the_room_to_what_happens() {
        let family = family!("route", "tenant");
        for (route, tenant) in (0..60).flat_map(|route| (0..60).map(move |tenant| (route, tenant))) {
            family.start(&[&format!("r{route}"), &format!("t{tenant}")], &Foreseen::default());
        }
        assert_eq!(family.sets.read().sets.len(), MAX_ZEROS);
        family.inc(["r59", "t59"]);
        assert!(family.known(&["r59", "t59"]).is_some());
        assert_eq!(family.overflow.with_label_values(&["f"]).get(), 0);
    }

    #[test]
    fn removed_sets_make_room() {
        let family = family!("replica");
        for i in 0..199 {
            assert!(family.get_exact([&format!("r{i}")]).is_some());
        }
        assert!(family.get_exact(["late"]).is_none());
        family.remove(["r7"]);
        assert!(family.get_exact(["late"]).is_some());
        assert_eq!(family.get(["r8"]).get(), 0);
    }

    #[test]
    fn a_key_is_forgotten_with_all_its_sets() {
        let family = family!("pool", "replica", "state");
        for (pool, replica, state) in [("p", "a", "x"), ("p", "a", "y"), ("p", "b", "x"), ("q", "a", "x")] {
            family.inc([pool, replica, state]);
        }
        family.forget(&["p", "a"]);
        assert_eq!(family.sets.read().sets.len(), 2);
        assert_eq!(family.get(["p", "a", "x"]).get(), 0, "begins anew");
        assert_eq!(family.get(["p", "b", "x"]).get(), 1);
    }
}
