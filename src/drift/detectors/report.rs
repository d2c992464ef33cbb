//! Makes findings of what detectors saw: the replicas affected, the symptoms, the diagnosis, the evidence.
//!
//! One function for each detector. Whether there is a finding is decided before.

use std::sync::Arc;

use super::Settings;
use super::active::ActiveFinding;
use super::availability::{BadHour, BudgetBurn};
use super::diagnose::Symptoms;
use super::finding::{Evidence, Fact, Finding, Kind, SeriesName};
use super::recent::Doubling;
use super::replicas::{ReplicaHistory, SlowReplica};
use super::series::RouteSeries;
use super::shift::{Shift, ShiftedPart};
use super::slo::{ALLOWED_SHARE, SloBreach};
use super::slow::{self, MedianMove, SlowDrift};
use super::thresholds::SLOW_SCORE_AFFECTED;

pub(super) fn doubling(series: &mut RouteSeries, at: f64, doubling: &Doubling) -> ActiveFinding {
    let min_rise = (doubling.now / doubling.baseline).ln() / 2.0;
    let affected = Affected::now(series, min_rise).confirmed(series, at, doubling.window);
    let symptoms = symptoms(series, at, Kind::TtftDoubled.onset(at), &affected);
    let evidence = Evidence::default()
        .with("ttft", doubling.now)
        .with("baseline_ttft", doubling.baseline)
        .with("ratio", doubling.now / doubling.baseline)
        .with("window_seconds", doubling.window)
        .with("requests", doubling.requests as f64)
        .with("baseline_hours", doubling.baseline_hours as f64)
        .with("baseline_requests", doubling.baseline_requests)
        .maybe("ttft_over_predicted", doubling.over_predicted);
    finding(series, at, Kind::TtftDoubled, &symptoms, evidence, affected)
}

pub(super) fn slo_breach(series: &mut RouteSeries, at: f64, breach: &SloBreach) -> ActiveFinding {
    let affected = Affected::now(series, MIN_RISE.ln()).confirmed(series, at, CONFIRMING_WINDOW);
    let mut symptoms = symptoms(series, at, Kind::TtftP99OverSlo.onset(at), &affected);
    let ttft = series.ttft.ratio(at);
    symptoms.is_median_flat = ttft.is_some_and(|ratio| ratio < UNMOVED);
    let evidence = Evidence::default()
        .with("share_over_slo", breach.share)
        .with("allowed_share", ALLOWED_SHARE)
        .with("lasted_seconds", breach.lasted)
        .with("requests", breach.requests)
        .maybe("ttft_p50_ratio", ttft);
    finding(series, at, Kind::TtftP99OverSlo, &symptoms, evidence, affected)
}

pub(super) fn ttft_shift(series: &mut RouteSeries, at: f64, shift: &Shift) -> ActiveFinding {
    let affected = Affected::for_an_hour(series).confirmed(series, at, CONFIRMING_WINDOW);
    let mut symptoms = symptoms(series, at, Kind::TtftShift.onset(at), &affected);
    symptoms.is_median_flat = shift.part == ShiftedPart::Tail;
    finding(series, at, Kind::TtftShift, &symptoms, shift_evidence(shift), affected)
}

pub(super) fn itl_shift(series: &mut RouteSeries, at: f64, shift: &Shift) -> ActiveFinding {
    let kind = match shift.part {
        ShiftedPart::Median => Kind::ItlShift,
        ShiftedPart::Tail => Kind::ItlJitter,
    };
    let affected = Affected::default();
    let symptoms = symptoms(series, at, kind.onset(at), &affected);
    finding(series, at, kind, &symptoms, shift_evidence(shift), affected)
}

fn shift_evidence(shift: &Shift) -> Evidence {
    let quantile = match shift.part {
        ShiftedPart::Median => 0.5,
        ShiftedPart::Tail => 0.9,
    };
    Evidence::default()
        .with("quantile", quantile)
        .with("now", shift.now)
        .with("baseline", shift.baseline)
        .with("ratio", shift.now / shift.baseline)
        .with("window_seconds", 7200.0)
        .with("baseline_hours", shift.baseline_hours as f64)
}

pub(super) fn slow_replica(series: &RouteSeries, at: f64, slow: &SlowReplica) -> ActiveFinding {
    let name = series.replica_names.get(slow.replica);
    let gpu_throttled = name.and_then(|name| series.signals.gpu_throttled(name, minute_of(at)));
    let evidence = Evidence::default()
        .with("ttft_p50", slow.now)
        .with("peers_p50", slow.others)
        .with("ratio", slow.ratio)
        .with("window_seconds", 3600.0)
        .maybe("gpu_clocks_throttled", gpu_throttled);
    of_replica(series, at, Kind::ReplicaSlow, slow.replica, evidence)
}

pub(super) fn slow_drift(
    series: &mut RouteSeries,
    at: f64,
    kind: Kind,
    drift: &SlowDrift,
    settings: &Settings,
) -> ActiveFinding {
    let affected = match kind {
        Kind::ItlDrift => Affected::default(),
        _ => Affected::for_days(series, settings),
    };
    let onset = at - drift.window as f64 * settings.block;
    let mut symptoms = symptoms(series, at, onset, &affected);
    symptoms.is_median_flat = drift.median == MedianMove::Flat;
    // The load of minutes does not explain a drift of days.
    symptoms.load = None;
    symptoms.long_prompts = slow::large_share(&series.prompts, &settings.slow(0.0));
    symptoms.more_slow = Some((drift.exceedance_ratio - 1.0) * (1.0 - drift.quantile));
    let found = finding(series, at, kind, &symptoms, drift_evidence(drift), affected);
    ActiveFinding { bound: Some(drift.bound), ..found }
}

fn drift_evidence(drift: &SlowDrift) -> Evidence {
    let median = match drift.median {
        MedianMove::Flat => "flat",
        MedianMove::Moved => "moved",
        MedianMove::Unclear => "unclear",
    };
    Evidence::default()
        .with("quantile", drift.quantile)
        .with("now", drift.now)
        .with("baseline", drift.baseline)
        .with("exceedance_ratio", drift.exceedance_ratio)
        .with("p50", median)
        .with("p50_ratio", drift.median_ratio)
        .with("score", drift.score)
        .with("window_days", drift.window as f64)
        .with("baseline_days", drift.baseline_blocks as f64)
}

pub(super) fn budget_burn(series: &mut RouteSeries, at: f64, burn: &BudgetBurn) -> ActiveFinding {
    let affected = Affected::failing(series, burn.count.bad as f64 / burn.count.all.max(1) as f64);
    let symptoms = symptoms(series, at, at - burn.long_window, &affected);
    let evidence = Evidence::default()
        .with("burn_rate", burn.rate)
        .with("long_window_seconds", burn.long_window)
        .with("short_window_seconds", burn.short_window)
        .with("requests", burn.count.all as f64)
        .with("failed", burn.count.bad as f64);
    finding(series, at, Kind::AvailabilityBurn, &symptoms, evidence, affected)
}

pub(super) fn bad_hour(series: &mut RouteSeries, at: f64, bad: &BadHour) -> ActiveFinding {
    let affected = Affected::default();
    let mut symptoms = symptoms(series, at, at - bad.days as f64 * 86_400.0, &affected);
    symptoms.load = Some(series.hours_of_day.load_ratio(bad.hour));
    let evidence = Evidence::default()
        .with("hour_of_day_utc", bad.hour as f64)
        .with("availability", bad.availability)
        .with("availability_of_other_hours", bad.elsewhere)
        .with("days", bad.days as f64)
        .with("requests", bad.count.all as f64)
        .with("failed", bad.count.bad as f64);
    finding(series, at, Kind::AvailabilityHour, &symptoms, evidence, affected)
}

/// Replicas that could be judged, and those of them that are affected.
#[derive(Clone, Debug, Default)]
struct Affected {
    judged: usize,
    names: Vec<Arc<str>>,
}

impl Affected {
    /// `is_affected` is `None` for a replica that cannot be judged.
    fn of(series: &RouteSeries, is_affected: impl Fn(usize, &ReplicaHistory) -> Option<bool>) -> Self {
        let mut affected = Self::default();
        for (index, (replica, name)) in series.replicas.iter().zip(&series.replica_names).enumerate() {
            let Some(is_affected) = is_affected(index, replica) else { continue };
            affected.judged += 1;
            if is_affected {
                affected.names.push(Arc::clone(name));
            }
        }
        affected
    }

    /// By the median of the last five minutes: up by at least `min_rise` (logarithm).
    fn now(series: &RouteSeries, min_rise: f64) -> Self {
        // A replica without a past of its own (new with its revision) is compared with the series a day ago.
        let of_series = series.ttft.hours.past().rev().nth(24).map(|hour| hour.median);
        Self::of(series, |index, replica| {
            let now = series.ttft.recent.median_of_replica(index)?;
            Some(now - replica.usual_median().or(of_series)? >= min_rise)
        })
    }

    /// By the median of the last hour against what is usual for the replica.
    fn for_an_hour(series: &RouteSeries) -> Self {
        Self::of(series, |_, replica| {
            Some(replica.last_hour()?.ln - replica.usual_median()? >= MIN_RISE_FOR_AN_HOUR.ln())
        })
    }

    /// By their own tails over days, less strictly: the series is known to drift.
    fn for_days(series: &RouteSeries, settings: &Settings) -> Self {
        let setup = settings.slow(SLOW_SCORE_AFFECTED);
        Self::of(series, |_, replica| {
            (replica.blocks.age() > 0).then(|| slow::judge(&replica.blocks, &setup).is_some())
        })
    }

    /// By their failures: at least the series' share.
    fn failing(series: &RouteSeries, share: f64) -> Self {
        Self::of(series, |_, replica| {
            let (all, bad) = (replica.recent_requests, replica.recent_failures);
            (all >= 1.0).then_some(bad >= 1.0 && bad >= share * all)
        })
    }

    /// One replica alone is the cause only where the others are unmoved: chance picks one out of few requests.
    fn confirmed(mut self, series: &mut RouteSeries, at: f64, window: f64) -> Self {
        let [name] = self.names.as_slice() else { return self };
        let Some(index) = series.replica_names.iter().position(|other| other == name) else { return self };
        let others = series.ttft.recent.ratio_without(index, at - window, at, &series.ttft.hours);
        if others.is_none_or(|ratio| ratio >= UNMOVED) {
            self.judged = 0;
        }
        self
    }
}

/// `onset`: when it began, at the earliest.
fn symptoms(series: &mut RouteSeries, at: f64, onset: f64, affected: &Affected) -> Symptoms {
    Symptoms {
        replicas: affected.judged,
        affected: affected.names.len(),
        has_slow_replica: series.active.count(Kind::ReplicaSlow) == 1,
        onset_after_revision: series.predecessor.as_ref().map(|_| onset - series.first_seen),
        load: series.ttft.recent.load_ratio(at, &series.ttft.hours),
        itl: series.itl.ratio(at),
        ..Symptoms::default()
    }
}

/// Diagnoses what lasts anew, by the signals of now against those before it began.
pub(super) fn look_again(series: &mut RouteSeries, at: f64) {
    let lasting: Vec<(usize, Kind, f64)> = series
        .active
        .entries()
        .iter()
        .enumerate()
        .filter(|(_, active)| active.finding.kind.has_signals() && active.finding.at < at)
        .map(|(index, active)| (index, active.finding.kind, active.finding.at))
        .collect();
    for (index, kind, found_at) in lasting {
        let affected = match kind {
            Kind::ItlShift | Kind::ItlJitter => Affected::default(),
            _ => Affected::now(series, MIN_RISE.ln()).confirmed(series, at, CONFIRMING_WINDOW),
        };
        let mut symptoms = symptoms(series, at, kind.onset(found_at), &affected);
        let Some(active) = series.active.entries_mut().get_mut(index) else { continue };
        symptoms.changes = series.signals.changes_from(&active.before, minute_of(at));
        active.finding.causes.revise(symptoms.diagnose(kind));
    }
}

fn minute_of(at: f64) -> i64 {
    (at / 60.0).floor() as i64
}

/// A finding about one replica.
fn of_replica(
    series: &RouteSeries,
    at: f64,
    kind: Kind,
    replica: usize,
    evidence: Evidence,
) -> ActiveFinding {
    let name = series.replica_names.get(replica).cloned();
    let affected = Affected { judged: series.replicas.len(), names: name.clone().into_iter().collect() };
    let symptoms = Symptoms { replicas: affected.judged, affected: 1, ..Symptoms::default() };
    let mut found = finding(series, at, kind, &symptoms, evidence, affected);
    found.finding.series.replica = name;
    found
}

fn finding(
    series: &RouteSeries,
    at: f64,
    kind: Kind,
    symptoms: &Symptoms,
    evidence: Evidence,
    affected: Affected,
) -> ActiveFinding {
    let before = series.signals.before(minute_of(at) - kind.began_before());
    let changes = series.signals.changes_from(&before, minute_of(at));
    let mut evidence = evidence;
    if affected.judged > 0 {
        evidence = evidence
            .with("replicas_judged", affected.judged as f64)
            .with("replicas", Fact::Names(affected.names));
    }
    if let Some(before) = &series.predecessor {
        evidence =
            evidence.with("revision_before", &**before).with("revision_age_seconds", at - series.first_seen);
    }
    let series = SeriesName {
        route: Arc::clone(&series.route),
        revision: Arc::clone(&series.revision),
        replica: None,
    };
    let causes = Symptoms { changes, ..symptoms.clone() }.diagnose(kind);
    let finding = Finding { at, kind, series, causes, evidence: evidence.0, is_acknowledged: false };
    ActiveFinding { finding, last_seen: at, before, bound: None }
}

impl Kind {
    /// Whether the signals of the last hours speak of it.
    fn has_signals(self) -> bool {
        !self.is_of_days() && !matches!(self, Self::AvailabilityBurn | Self::ReplicaSlow)
    }

    /// When what is found at `at` began, at the earliest.
    fn onset(self, at: f64) -> f64 {
        at - self.began_before() as f64 * 60.0
    }

    /// Minutes before it is found, in which it may have begun.
    fn began_before(self) -> i64 {
        match self {
            Self::TtftShift | Self::ItlShift | Self::ItlJitter => 130,
            _ => 10,
        }
    }
}

/// Ratio of a replica's median to its usual one, within minutes and for an hour.
const MIN_RISE: f64 = 1.3;
const MIN_RISE_FOR_AN_HOUR: f64 = 1.2;
/// A median below this ratio has not moved.
const UNMOVED: f64 = 1.2;
/// Seconds over which the other replicas are compared.
const CONFIRMING_WINDOW: f64 = 300.0;
