//! A metric family with a bound on its label sets.
//!
//! Labels come from configuration and fixed tables, but their product can be large. Past the bounds, values are replaced
//! by `other`, so that no configuration can make the gateway or Prometheus run out of memory. Resolving a handle is slow
//! and happens once per series (see `series`); observing through it is an atomic addition.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;
use prometheus::core::{MetricVec, MetricVecBuilder};
use prometheus::{GaugeVec, IntCounterVec};

/// Label value that replaces those beyond the bounds.
pub(super) const OTHER: &str = "other";

/// Distinct values of one label besides `other`.
const MAX_VALUES: usize = 199;
/// Label sets of one family, those with `other` included.
const MAX_SETS: usize = 5_000;
/// Of these, reserved for label sets whose tenant is `other`.
const RESERVED: usize = 500;

/// What a family needs of the three vector types, whose builders are not public.
pub(super) trait Vector {
    type Metric;

    fn metric(&self, values: &[&str]) -> prometheus::Result<Self::Metric>;
    fn forget(&self, values: &[&str]) -> prometheus::Result<()>;
}

impl<B: MetricVecBuilder> Vector for MetricVec<B> {
    type Metric = B::M;

    fn metric(&self, values: &[&str]) -> prometheus::Result<B::M> {
        self.get_metric_with_label_values(values)
    }

    fn forget(&self, values: &[&str]) -> prometheus::Result<()> {
        self.remove_label_values(values)
    }
}

/// A vector of metrics that hands out at most [`MAX_SETS`] label sets.
pub(super) struct Family<V> {
    vec: V,
    name: &'static str,
    labels: &'static [&'static str],
    sets: Mutex<LabelSets>,
    overflow: IntCounterVec,
}

/// Existing label sets.
struct LabelSets {
    sets: HashSet<Vec<Box<str>>>,
    /// For each label: its values besides `other`, with the number of sets that have them.
    uses: Vec<HashMap<Box<str>, usize>>,
}

impl<V: Vector> Family<V> {
    /// Bounds `vec`, whose labels are `labels`.
    pub(super) fn new(
        vec: V,
        name: &'static str,
        labels: &'static [&'static str],
        overflow: IntCounterVec,
    ) -> Self {
        Self { vec, name, labels, sets: Mutex::new(LabelSets::new(labels.len())), overflow }
    }

    /// The metric of these label values, or of the set that replaces them.
    pub(super) fn get(&self, values: &[&str]) -> V::Metric {
        let (folded, fits) = self.fold(values);
        if !fits {
            self.overflow.with_label_values(&[self.name]).inc();
        }
        self.metric(&folded)
    }

    /// The metric of exactly these values; `None` (and counted) where there is no room for it. For gauges,
    /// which cannot share a label set.
    pub(super) fn get_exact(&self, values: &[&str]) -> Option<V::Metric> {
        if self.sets.lock().admit(values, MAX_SETS) {
            return Some(self.metric(values));
        }
        self.overflow.with_label_values(&[self.name]).inc();
        None
    }

    /// Removes a label set, which makes room for another.
    pub(super) fn remove(&self, values: &[&str]) {
        if self.sets.lock().forget(values) {
            let _ = self.vec.forget(values);
        }
    }

    fn metric(&self, values: &[&str]) -> V::Metric {
        self.vec
            .metric(values)
            .expect("invariant: the table gives each family one value for each of its labels")
    }

    fn fold<'a>(&self, values: &[&'a str]) -> (Vec<&'a str>, bool) {
        let mut known = self.sets.lock();
        if known.admit(values, MAX_SETS - RESERVED) {
            return (values.to_vec(), true);
        }
        // First the labels that are full themselves, then the tenant, which has the most values.
        let mut folded: Vec<&'a str> = values
            .iter()
            .enumerate()
            .map(|(label, value)| if known.has_room(label, value) { *value } else { OTHER })
            .collect();
        if known.admit(&folded, MAX_SETS - RESERVED) {
            return (folded, false);
        }
        for (name, value) in self.labels.iter().zip(&mut folded) {
            if *name == "tenant" {
                *value = OTHER;
            }
        }
        if known.admit(&folded, MAX_SETS - 1) {
            return (folded, false);
        }
        (vec![OTHER; values.len()], false)
    }
}

impl Family<GaugeVec> {
    /// Sets the gauge of exactly these values; `None` removes it.
    pub(super) fn set(&self, values: &[&str], value: Option<f64>) {
        match value {
            Some(value) => {
                if let Some(gauge) = self.get_exact(values) {
                    gauge.set(value);
                }
            }
            None => self.remove(values),
        }
    }
}

impl Family<IntCounterVec> {
    /// Sets the counter of exactly these values to a total that somebody else counts. One that fell began anew.
    pub(super) fn set_total(&self, values: &[&str], total: u64) {
        let Some(counter) = self.get_exact(values) else { return };
        if total < counter.get() {
            counter.reset();
        }
        counter.inc_by(total - counter.get());
    }
}

impl LabelSets {
    fn new(labels: usize) -> Self {
        Self { sets: HashSet::new(), uses: vec![HashMap::new(); labels] }
    }

    /// Adds the set if there is room; whether it exists now.
    fn admit(&mut self, values: &[&str], limit: usize) -> bool {
        let set: Vec<Box<str>> = values.iter().map(|v| Box::from(*v)).collect();
        if self.sets.contains(&set) {
            return true;
        }
        if self.sets.len() >= limit || !values.iter().enumerate().all(|(l, v)| self.has_room(l, v)) {
            return false;
        }
        for (uses, value) in self.uses.iter_mut().zip(&set).filter(|(_, value)| &***value != OTHER) {
            *uses.entry(value.clone()).or_default() += 1;
        }
        self.sets.insert(set)
    }

    fn has_room(&self, label: usize, value: &str) -> bool {
        let fits = |uses: &HashMap<_, _>| uses.len() < MAX_VALUES || uses.contains_key(value);
        value == OTHER || self.uses.get(label).is_some_and(fits)
    }

    /// Removes the set; whether it existed.
    fn forget(&mut self, values: &[&str]) -> bool {
        let set: Vec<Box<str>> = values.iter().map(|v| Box::from(*v)).collect();
        if !self.sets.remove(&set) {
            return false;
        }
        for (uses, value) in self.uses.iter_mut().zip(set) {
            if let Entry::Occupied(mut count) = uses.entry(value) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Opts;

    use super::*;

    fn family(labels: &'static [&'static str]) -> Family<IntCounterVec> {
        let overflow = IntCounterVec::new(Opts::new("overflow_total", "x"), &["family"]).unwrap();
        Family::new(IntCounterVec::new(Opts::new("f_total", "x"), labels).unwrap(), "f", labels, overflow)
    }

    #[test]
    fn a_label_has_at_most_two_hundred_values() {
        let family = family(&["tenant"]);
        for i in 0..300 {
            family.get(&[&format!("t{i}")]).inc();
        }
        assert_eq!(family.sets.lock().sets.len(), 200);
        assert_eq!(family.get(&[OTHER]).get(), 101);
        assert_eq!(family.overflow.with_label_values(&["f"]).get(), 101);
        family.get(&["t0"]).inc();
        assert_eq!(family.get(&["t0"]).get(), 2, "values that exist stay themselves");
    }

    #[test]
    fn a_full_family_folds_the_tenant_first_and_never_exceeds_its_bound() {
        let family = family(&["route", "tenant"]);
        for route in 0..150 {
            for tenant in 0..150 {
                family.get(&[&format!("r{route}"), &format!("t{tenant}")]).inc();
            }
        }
        let known = family.sets.lock();
        assert!(known.sets.len() <= MAX_SETS, "{}", known.sets.len());
        assert!(known.sets.contains(&vec![Box::from("r149"), Box::from(OTHER)]), "route survives");
        drop(known);
        let total: u64 = 150 * 150;
        let other: u64 = (0..150).map(|r| family.get(&[&format!("r{r}"), OTHER]).get()).sum();
        assert_eq!(other, total - 4_500, "nothing is lost");
    }

    #[test]
    fn removed_sets_make_room() {
        let family = family(&["replica"]);
        for i in 0..199 {
            assert!(family.get_exact(&[&format!("r{i}")]).is_some());
        }
        assert!(family.get_exact(&["late"]).is_none());
        family.remove(&["r7"]);
        assert!(family.get_exact(&["late"]).is_some());
        assert_eq!(family.get(&["r8"]).get(), 0);
    }
}
