//! What the engines' own figures mean for a wait: who queues, whose cache is full, and what is not theirs; pure.

use std::sync::Arc;
use std::time::Duration;

use super::figures::seconds;
use super::table::{DIFFERS, FEW, MAJORITY, MIN_DIFFERENCE, NOISE};
use crate::fleet::status::{KvCounters, MOST_OF_A_WAIT, ReplicaStatus, Way};
use crate::observe::history::{Dimension, Part, Slot};
use crate::stage::Stage;
use crate::stats::{Mean, upper_quantile};

/// A replica whose first tokens are late between gateway and engine.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Far {
    pub(crate) replica: Arc<str>,
    pub(crate) way: Way,
}

impl Far {
    pub(crate) fn evidence(&self) -> String {
        let Way { seen, in_engine, .. } = self.way;
        format!(
            "its first tokens take {}, of which its engine has {} at most",
            seconds(seen),
            seconds(in_engine)
        )
    }
}

/// Requests that wait in the engines, as last scraped.
pub(crate) fn waiting(replicas: &[ReplicaStatus]) -> f64 {
    replicas.iter().filter_map(|status| status.signals.as_ref()?.page.waiting).sum()
}

/// Requests that run in the engines, as last scraped.
pub(crate) fn running(replicas: &[ReplicaStatus]) -> f64 {
    replicas.iter().filter_map(|status| status.signals.as_ref()?.page.running).sum()
}

/// Requests that wait in an engine on average over the last scrapes: one that waits at a moment is no queue.
pub(crate) fn queue(status: &ReplicaStatus) -> Option<f64> {
    let on_average = status.counters.and_then(|counters| counters.recent_waiting);
    on_average.or_else(|| status.signals.as_ref()?.page.waiting)
}

/// Whether most engines have a queue: then whose is the longest at a moment, or whose requests wait longest, is chance.
pub(crate) fn queue_alike(replicas: &[ReplicaStatus]) -> bool {
    let mut queues: Vec<f64> = replicas.iter().filter_map(queue).collect();
    queues.sort_by(f64::total_cmp);
    let Some(longest) = queues.pop() else { return false };
    upper_quantile(&mut queues, 0.5).is_some_and(|usual| usual >= (longest / OUTSTANDING).max(QUEUED))
}

/// Replicas by the way to their engines.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Ways {
    /// To blame for most misses in the stage.
    pub(crate) far: Vec<Far>,
    /// How many are known to be near.
    pub(crate) near: usize,
}

/// The replicas to blame for most misses in a stage at the engine, whose engines have no queue and whose first tokens are soon. Where
/// every way is long, requests on it hold the places for which others wait in the gateway.
pub(crate) fn ways(slot: &Slot, stage: Stage, replicas: &[ReplicaStatus]) -> Ways {
    if !matches!(stage, Stage::Admit | Stage::EngineQueue | Stage::Prefill | Stage::EngineOther) {
        return Ways::default();
    }
    let missed = |name: &Arc<str>| slot.of(Dimension::Replica, name).map_or(0, |part| part.missed_in[stage]);
    let matters = MIN_DIFFERENCE.max(MATTERS * slot.bound.value().unwrap_or_default());
    let is_far = |way: &Way| way.outside().is_some_and(|outside| outside >= matters);
    let is_near = |way: &Way| way.seen - way.counted < matters.max(MOST_OF_A_WAIT * way.seen);
    let known = || replicas.iter().filter_map(|status| Some((status, status.counters?.way?)));
    // What came before the last seconds may be of before the onset: it shows no replica to be near where others have come since.
    let has_come = known().any(|(_, way)| way.span < LATEST);
    let mut ways = Ways::default();
    for (status, way) in known() {
        let Some(waiting) = queue(status) else { continue };
        if is_near(&way) {
            ways.near += usize::from(!has_come || way.span < LATEST);
        } else if is_far(&way) && waiting < 1.0 && missed(&status.replica) > 0 {
            ways.far.push(Far { replica: Arc::clone(&status.replica), way });
        }
    }
    if stage == Stage::Admit && ways.near > 0 {
        return Ways::default();
    }
    let theirs: u32 = ways.far.iter().map(|far| missed(&far.replica)).sum();
    let all = slot.missed_in[stage];
    if f64::from(theirs) > MAJORITY * f64::from(all) { ways } else { Ways::default() }
}

/// The stage that takes longer than before by most, in words: what waits in the gateway waits for it.
pub(crate) fn slower(now: &Slot, before: &Slot) -> Option<String> {
    let sum = |slot: &Slot, of: &dyn Fn(&Part) -> Mean| {
        let mut sum = Mean::default();
        slot.parts_of(Dimension::Replica).for_each(|(_, part)| sum += of(part));
        sum.value().filter(|_| sum.count >= FEW.into())
    };
    let by = |what: &'static str, matters: f64, of: &dyn Fn(&Part) -> Mean| {
        let (now, before) = (sum(now, of)?, sum(before, of)?);
        let is_it = now >= DIFFERS * before && now - before >= matters;
        is_it.then(|| {
            (now / before.max(NOISE), format!("{what} takes {}, {} before", seconds(now), seconds(before)))
        })
    };
    let matters = MIN_DIFFERENCE.max(MATTERS * now.bound.value().unwrap_or_default());
    let stages = [
        by("engine_queue", matters, &|part| part.stages[Stage::EngineQueue]),
        by("prefill", matters, &|part| part.stages[Stage::Prefill]),
        by("a token", NOISE, &|part| part.itl),
    ];
    stages.into_iter().flatten().max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, words)| words)
}

/// Replicas that put requests back for want of cache, with the share in use and the preemptions a second.
fn full(replicas: &[ReplicaStatus]) -> impl Iterator<Item = (&ReplicaStatus, f64, f64)> {
    replicas.iter().filter_map(|status| {
        let usage = status.signals.as_ref()?.page.kv_cache_usage?;
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

/// KV that did not reach its engines in the last minute, in words: by their own counts, so that it is seen where requests were
/// served all the same.
pub(crate) fn lost_kv(replicas: &[ReplicaStatus]) -> Option<String> {
    let recent = |status: &ReplicaStatus| status.counters?.recent_kv;
    let worst = |of: fn(&KvCounters) -> f64| {
        let counted = replicas.iter().filter_map(|status| Some((status, of(&recent(status)?))));
        counted.filter(|(_, count)| *count >= 1.0).max_by(|a, b| a.1.total_cmp(&b.1))
    };
    if let Some((status, failed)) = worst(|kv| kv.failed) {
        return Some(format!("{failed:.0} KV transfers to {} failed in the last minute", status.replica));
    }
    let (status, expired) = worst(|kv| kv.expired)?;
    Some(format!("KV of {expired:.0} requests expired at {} in the last minute", status.replica))
}

/// Share of the bound on first tokens from which the way to an engine matters.
const MATTERS: f64 = 0.25;
/// Length of the shortest spans: pages of engines are kept every ten seconds.
const LATEST: Duration = Duration::from_secs(20);
/// Preemptions a second of one engine, and its share of cache in use.
const PREEMPTS: f64 = 0.05;
const FULL: f64 = 0.8;
/// Requests that wait on average in an engine that has a queue: more often than not there is one.
const QUEUED: f64 = 0.5;
/// How many times as long as the others' the one queue is that stands out.
const OUTSTANDING: f64 = 10.0;
