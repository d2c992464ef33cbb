//! Exemplars: one traced request for each histogram bucket.
//!
//! Only requests whose spans are kept become exemplars, so that the link leads somewhere. Kept beside the histograms,
//! because the metrics library has none; found again by the family's name and label values when a page is written.

use std::collections::HashMap;
use std::time::SystemTime;

use parking_lot::Mutex;

/// A traced request and its value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Exemplar {
    pub(super) trace_id: u128,
    pub(super) value: f64,
    pub(super) at: SystemTime,
}

/// The last request of every bucket.
#[derive(Default)]
pub(super) struct Exemplars(Mutex<HashMap<SeriesKey, BucketExemplars>>);

/// Name of the family and its label values, in the order of the label names.
type SeriesKey = (&'static str, Box<[Box<str>]>);
type BucketExemplars = Box<[Option<Exemplar>]>;

impl Exemplars {
    /// Makes a request the exemplar of its bucket. `edges`: the family's upper bounds; `labels`: name and value.
    pub(super) fn note(
        &self,
        family: &'static str,
        labels: &mut [(&str, &str)],
        edges: &[f64],
        exemplar: Exemplar,
    ) {
        // As the registry hands labels out.
        labels.sort_unstable_by_key(|(name, _)| *name);
        let key = (family, labels.iter().map(|(_, value)| Box::from(*value)).collect());
        let bucket = edges.partition_point(|edge| *edge < exemplar.value);
        let mut series = self.0.lock();
        if series.len() >= MAX_SERIES && !series.contains_key(&key) {
            return;
        }
        let buckets = series.entry(key).or_insert_with(|| vec![None; edges.len() + 1].into());
        if let Some(slot) = buckets.get_mut(bucket) {
            *slot = Some(exemplar);
        }
    }

    /// Forgets the series of all other revisions.
    pub(super) fn forget_revisions(&self, is_kept: impl Fn(&str) -> bool) {
        self.0
            .lock()
            .retain(|(_, values), _| values.get(REVISION_AT).is_none_or(|revision| is_kept(revision)));
    }

    /// The exemplars of a series, one entry a bucket; empty for families without exemplars.
    pub(super) fn of<'a>(
        &self,
        family: &str,
        values: impl Iterator<Item = &'a str>,
    ) -> Box<[Option<Exemplar>]> {
        let Some(family) = FAMILIES.iter().find(|known| **known == family) else { return Box::default() };
        let key: SeriesKey = (*family, values.map(Box::from).collect());
        self.0.lock().get(&key).cloned().unwrap_or_default()
    }
}

pub(super) const TTFT: &str = "tokenway_time_to_first_token_seconds";
pub(super) const DURATION: &str = "tokenway_request_duration_seconds";
const FAMILIES: [&str; 2] = [TTFT, DURATION];
/// Of label `revision` among the names of either, sorted: class, model, revision, route, tenant.
const REVISION_AT: usize = 2;
/// Of the revisions that are in use.
const MAX_SERIES: usize = 2_000;
