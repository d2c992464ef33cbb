//! What the engines' own figures mean for a wait: who queues, whose cache is full, and what is not theirs; pure.

use std::sync::Arc;

use super::figures::seconds;
use super::table::{FEW, MAJORITY, MIN_DIFFERENCE};
use crate::fleet::status::ReplicaStatus;
use crate::observe::history::{Dimension, Slot};
use crate::stage::Stage;

/// A replica whose first tokens are late between gateway and engine.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Far {
    pub(crate) replica: Arc<str>,
    /// Seconds of a first token that the engine does not know of, and what it takes by its own count.
    pub(crate) between: f64,
    pub(crate) own: f64,
}

impl Far {
    pub(crate) fn evidence(&self) -> String {
        let Self { between, own, .. } = self;
        format!("its first tokens take {} more than its engine counts ({})", seconds(*between), seconds(*own))
    }
}

/// Requests that wait in the engines, as last scraped.
pub(crate) fn waiting(replicas: &[ReplicaStatus]) -> f64 {
    replicas.iter().filter_map(|status| status.signals.as_ref()?.waiting).sum()
}

/// Requests that run in the engines, as last scraped.
pub(crate) fn running(replicas: &[ReplicaStatus]) -> f64 {
    replicas.iter().filter_map(|status| status.signals.as_ref()?.running).sum()
}

/// The replicas to blame for most misses in a stage at the engine, whose engines have no queue and whose first tokens are soon.
pub(crate) fn far(slot: &Slot, stage: Stage, replicas: &[ReplicaStatus]) -> Vec<Far> {
    let at = stage as usize;
    if !matches!(stage, Stage::EngineQueue | Stage::Prefill | Stage::EngineOther) {
        return Vec::new();
    }
    let part = |name: &Arc<str>| slot.parts.get(&(Dimension::Replica, Arc::clone(name)));
    let missed = |name: &Arc<str>| part(name).and_then(|part| part.missed_in.get(at)).copied().unwrap_or(0);
    let found: Vec<Far> = replicas
        .iter()
        .filter(|status| missed(&status.replica) > 0)
        .filter_map(|status| {
            let waiting = status.signals.as_ref()?.waiting?;
            let own = status.counters?.recent_ttft?;
            let part = part(&status.replica)?;
            let seen = part.first_tokens.0 / f64::from(part.first_tokens.1.max(1));
            let between = seen - own;
            let is_far = waiting < 1.0
                && part.first_tokens.1 >= FEW
                && between >= MIN_DIFFERENCE.max(MATTERS * slot.mean_bound().unwrap_or_default())
                && between >= MAJORITY * seen;
            is_far.then(|| Far { replica: Arc::clone(&status.replica), between, own })
        })
        .collect();
    let theirs: u32 = found.iter().map(|far| missed(&far.replica)).sum();
    let all = slot.missed_in.get(at).copied().unwrap_or(0);
    if f64::from(theirs) > MAJORITY * f64::from(all) { found } else { Vec::new() }
}

/// Replicas that put requests back for want of cache, with the share in use and the preemptions a second.
fn full(replicas: &[ReplicaStatus]) -> impl Iterator<Item = (&ReplicaStatus, f64, f64)> {
    replicas.iter().filter_map(|status| {
        let usage = status.signals.as_ref()?.kv_cache_usage?;
        let preemptions = status.counters?.recent_preemptions?;
        (preemptions >= PREEMPTS && usage >= FULL).then_some((status, usage, preemptions))
    })
}

/// Whether all caches are full: then whose streams are put back first is chance.
pub(crate) fn are_all_full(replicas: &[ReplicaStatus]) -> bool {
    !replicas.is_empty() && full(replicas).count() == replicas.len()
}

/// Whose caches are full, in words.
pub(crate) fn full_caches(replicas: &[ReplicaStatus]) -> Option<String> {
    let full: Vec<_> = full(replicas).collect();
    let usage = full.iter().map(|(_, usage, _)| usage * 100.0).reduce(f64::max)?;
    let preemptions: f64 = full.iter().map(|(.., preemptions)| preemptions).sum();
    let whose = match &full[..] {
        [(status, ..)] => format!("the KV cache of {} is", status.replica),
        some if some.len() == replicas.len() => "the KV caches of all replicas are".to_owned(),
        some => format!("the KV caches of {} of {} replicas are", some.len(), replicas.len()),
    };
    Some(format!("{whose} full ({usage:.0} %), {preemptions:.1} preemptions a second"))
}

/// Share of the bound on first tokens from which the way to an engine matters.
const MATTERS: f64 = 0.25;
/// Preemptions a second of one engine, and its share of cache in use.
const PREEMPTS: f64 = 0.05;
const FULL: f64 = 0.8;
