//! Makes findings of what detectors saw: gathers the context, the diagnosis and the evidence.
//!
//! One function for each kind of detector. Nothing here decides whether there is a finding.

use std::sync::Arc;

use super::Settings;
use super::availability::{BadHour, Burning};
use super::diagnose::Context;
use super::finding::{Evidence, Fact, Finding, Kind, SeriesName};
use super::peers::SlowPeer;
use super::scale::median;
use super::series::Series;
use super::shift::{Part, Shifted};
use super::signals::Move;
use super::slo::OverSlo;
use super::slow::{self, SlowDrift};
use super::surge::Surged;

pub(super) fn doubled(series: &mut Series, at: f64, surged: &Surged) -> Finding {
    let mut moved = moved(series, (surged.now / surged.ordinary).ln() / 2.0);
    moved.keep_to_one(series, at, surged.window);
    let context = context(series, at, &moved);
    let evidence = Evidence::default()
        .with("ttft", surged.now)
        .with("baseline_ttft", surged.ordinary)
        .with("ratio", surged.now / surged.ordinary)
        .with("window_seconds", surged.window)
        .with("requests", surged.requests as f64)
        .with("baseline_hours", surged.baseline_hours as f64)
        .with("baseline_requests", surged.baseline_requests)
        .maybe("ttft_over_predicted", surged.over_predicted);
    finish(series, (at, Kind::TtftDoubled), &context, evidence, moved)
}

pub(super) fn over_slo(series: &mut Series, at: f64, over: &OverSlo) -> Finding {
    let mut moved = moved(series, MOVED.ln());
    moved.keep_to_one(series, at, 300.0);
    let mut context = context(series, at, &moved);
    let ttft = series.surge.ratio(at, &series.ttft_hours);
    context.is_median_flat = ttft.is_some_and(|ratio| ratio < FLAT);
    let evidence = Evidence::default()
        .with("share_over_slo", over.share)
        .with("allowed_share", 0.01)
        .with("lasted_seconds", over.lasted)
        .with("requests", over.requests)
        .maybe("ttft_p50_ratio", ttft);
    finish(series, (at, Kind::TtftP99OverSlo), &context, evidence, moved)
}

pub(super) fn ttft_shift(series: &mut Series, at: f64, shifted: &Shifted) -> Finding {
    let mut moved = moved_for_an_hour(series);
    moved.keep_to_one(series, at, 300.0);
    let mut context = context(series, at, &moved);
    context.is_median_flat = shifted.part == Part::Slowest;
    finish(series, (at, Kind::TtftShift), &context, shift_evidence(shifted), moved)
}

pub(super) fn itl_shift(series: &mut Series, at: f64, shifted: &Shifted) -> Finding {
    let context = context(series, at, &Moved::default());
    let kind = match shifted.part {
        Part::Median => Kind::ItlShift,
        Part::Slowest => Kind::ItlJitter,
    };
    finish(series, (at, kind), &context, shift_evidence(shifted), Moved::default())
}

fn shift_evidence(shifted: &Shifted) -> Evidence {
    let quantile = match shifted.part {
        Part::Median => 0.5,
        Part::Slowest => 0.9,
    };
    Evidence::default()
        .with("quantile", quantile)
        .with("now", shifted.now)
        .with("baseline", shifted.ordinary)
        .with("ratio", shifted.now / shifted.ordinary)
        .with("window_seconds", 7200.0)
        .with("baseline_hours", shifted.baseline_hours as f64)
}

pub(super) fn slow_replica(series: &mut Series, at: f64, slow: &SlowPeer) -> Finding {
    let name = series.names.get(slow.replica).cloned();
    let moved = Moved { replicas: series.peers.len(), affected: name.clone().into_iter().collect() };
    let evidence = Evidence::default()
        .with("ttft_p50", slow.now)
        .with("peers_p50", slow.others)
        .with("ratio", slow.ratio)
        .with("window_seconds", 3600.0);
    let context = Context { replicas: moved.replicas, affected: 1, ..Context::default() };
    let mut finding = finish(series, (at, Kind::ReplicaSlow), &context, evidence, moved);
    finding.series.replica = name;
    finding
}

pub(super) fn slow_drift(
    series: &mut Series,
    found: (f64, Kind),
    drift: &SlowDrift,
    settings: &Settings,
) -> Finding {
    let (at, kind) = found;
    let moved = match kind {
        Kind::ItlDrift => Moved::default(),
        _ => drifting(series, settings),
    };
    let mut context = context(series, at, &moved);
    context.is_median_flat = drift.median() == "flat";
    // Arrivals of the last minutes say nothing of days.
    context.load = None;
    finish(series, found, &context, drift_evidence(drift), moved)
}

pub(super) fn slow_drift_of_replica(series: &mut Series, found: (f64, usize), drift: &SlowDrift) -> Finding {
    let name = series.names.get(found.1).cloned();
    let moved = Moved { replicas: series.peers.len(), affected: name.clone().into_iter().collect() };
    let kind = if drift.median() == "moved" { Kind::TtftDrift } else { Kind::TtftTailDrift };
    let context = Context { replicas: moved.replicas, affected: 1, ..Context::default() };
    let mut finding = finish(series, (found.0, kind), &context, drift_evidence(drift), moved);
    finding.series.replica = name;
    finding
}

fn drift_evidence(drift: &SlowDrift) -> Evidence {
    Evidence::default()
        .with("quantile", drift.quantile)
        .with("now", drift.now)
        .with("baseline", drift.threshold)
        .with("exceedance_ratio", drift.exceedance_ratio)
        .with("p50", drift.median())
        .with("p50_ratio", drift.median_shift.0.exp())
        .with("score", drift.score)
        .with("window_days", drift.window as f64)
        .with("baseline_days", drift.baseline_blocks as f64)
}

pub(super) fn burning(series: &mut Series, at: f64, burning: &Burning) -> Finding {
    let moved = failing(series, burning.count.bad as f64 / burning.count.all.max(1) as f64);
    let context = context(series, at, &moved);
    let evidence = Evidence::default()
        .with("burn_rate", burning.rate)
        .with("long_window_seconds", burning.windows.0)
        .with("short_window_seconds", burning.windows.1)
        .with("requests", burning.count.all as f64)
        .with("failed", burning.count.bad as f64);
    finish(series, (at, Kind::AvailabilityBurn), &context, evidence, moved)
}

pub(super) fn bad_hour(series: &mut Series, at: f64, bad: &BadHour) -> Finding {
    let mut context = context(series, at, &Moved::default());
    context.load = Some(series.hours_of_day.load_ratio(bad.hour));
    let evidence = Evidence::default()
        .with("hour_of_day_utc", bad.hour as f64)
        .with("availability", bad.availability)
        .with("availability_of_other_hours", bad.elsewhere)
        .with("days", bad.days as f64)
        .with("requests", bad.count.all as f64)
        .with("failed", bad.count.bad as f64);
    finish(series, (at, Kind::AvailabilityHour), &context, evidence, Moved::default())
}

/// Replicas that could be judged, and those that moved.
#[derive(Clone, Debug, Default)]
struct Moved {
    replicas: usize,
    affected: Vec<Arc<str>>,
}

impl Moved {
    /// One replica is the cause only if all others are as ever: few requests make a lone replica of any of them.
    fn keep_to_one(&mut self, series: &mut Series, at: f64, window: f64) {
        let [name] = self.affected.as_slice() else { return };
        let Some(place) = series.names.iter().position(|other| other == name) else { return };
        let ordinary = series.surge.ordinary(at, &series.ttft_hours);
        let others = ordinary.and_then(|o| series.surge.ratio_without(place, at - window, o.center));
        if others.is_none_or(|ratio| ratio >= FLAT) {
            self.replicas = 0;
        }
    }
}

/// Replicas whose last five minutes are up by at least `by` (logarithm).
fn moved(series: &Series, by: f64) -> Moved {
    let mut moved = Moved::default();
    for (place, (peer, name)) in series.peers.iter().zip(&series.names).enumerate() {
        let Some(now) = series.surge.of_replica(place) else { continue };
        // A replica without a past of its own (new with its revision) is held against the series.
        let Some(usual) = peer.usual_median().or(series.ttft_hours.latest().nth(24).map(|hour| hour.median))
        else {
            continue;
        };
        moved.replicas += 1;
        if now - usual >= by {
            moved.affected.push(Arc::clone(name));
        }
    }
    moved
}

/// Replicas whose last hour is slower than is usual for them.
fn moved_for_an_hour(series: &Series) -> Moved {
    let mut moved = Moved::default();
    for (peer, name) in series.peers.iter().zip(&series.names) {
        let (Some((now, _)), Some(usual)) = (peer.last_hour(), peer.usual_median()) else { continue };
        moved.replicas += 1;
        if now - usual >= MOVED_FOR_AN_HOUR.ln() {
            moved.affected.push(Arc::clone(name));
        }
    }
    moved
}

/// Replicas whose own tail drifts, judged less strictly: the series has been found to.
fn drifting(series: &Series, settings: &Settings) -> Moved {
    let setup = settings.slow(LENIENT);
    let mut moved = Moved::default();
    for (peer, name) in series.peers.iter().zip(&series.names) {
        moved.replicas += usize::from(peer.blocks.age() > 0);
        if slow::judge(&peer.blocks, &setup).is_some() {
            moved.affected.push(Arc::clone(name));
        }
    }
    moved
}

/// Replicas whose requests fail.
fn failing(series: &Series, share: f64) -> Moved {
    let mut moved = Moved::default();
    for (peer, name) in series.peers.iter().zip(&series.names) {
        let (all, bad) = peer.recent;
        moved.replicas += usize::from(all >= 1.0);
        if bad >= 1.0 && bad >= share * all {
            moved.affected.push(Arc::clone(name));
        }
    }
    moved
}

fn context(series: &mut Series, at: f64, moved: &Moved) -> Context {
    Context {
        replicas: moved.replicas,
        affected: moved.affected.len(),
        has_slow_replica: series.slow_replicas() == 1,
        revision_age: series.follows.as_ref().map(|_| at - series.first_seen),
        is_median_flat: false,
        load: series.surge.load_ratio(at, &series.ttft_hours),
        itl: series.itl_window.ratio(at, &series.itl_hours),
        moves: series.book.moves((at / 60.0).floor() as i64).into_iter().map(|(_, moved)| moved).collect(),
    }
}

fn finish(
    series: &Series,
    found: (f64, Kind),
    context: &Context,
    evidence: Evidence,
    moved: Moved,
) -> Finding {
    let (at, kind) = found;
    let mut evidence = evidence.maybe("load_ratio", context.load).maybe("itl_p50_ratio", context.itl);
    let middle =
        |pick: fn(&Move) -> Option<f64>| median(&context.moves.iter().filter_map(pick).collect::<Vec<_>>());
    evidence = evidence
        .maybe("waiting_change", middle(|moved| moved.waiting))
        .maybe("hit_rate_ratio", middle(|moved| moved.hit_rate))
        .maybe("preemptions_change", middle(|moved| moved.preemptions))
        .maybe("kv_cache_usage", middle(|moved| moved.kv_now))
        .maybe("engine_ttft_ratio", middle(|moved| moved.engine_ttft));
    if moved.replicas > 0 {
        evidence = evidence.with("replicas_judged", moved.replicas as f64);
        evidence.0.push(("replicas", Fact::Names(moved.affected)));
    }
    if let (Some(before), Some(age)) = (&series.follows, context.revision_age) {
        evidence = evidence.with("revision_before", &**before).with("revision_age_seconds", age);
    }
    Finding {
        at,
        kind,
        series: SeriesName {
            route: Arc::clone(&series.route),
            revision: Arc::clone(&series.revision),
            replica: None,
        },
        diagnosis: context.diagnose(kind),
        evidence: evidence.0,
    }
}

/// A replica's median up by this has moved.
const MOVED: f64 = 1.3;
/// Or by this, for an hour.
const MOVED_FOR_AN_HOUR: f64 = 1.2;
/// A median within this has not.
const FLAT: f64 = 1.2;
const LENIENT: f64 = 1.0;
