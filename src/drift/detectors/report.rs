//! Makes findings of what detectors saw: the replicas affected, when it began, the diagnosis, the evidence.
//!
//! One function for each detector. Whether there is a finding is decided before.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use super::Settings;
use super::active::ActiveFinding;
use super::burn::{BadHour, Burn};
use super::finding::{Fact, Finding, SeriesName};
use super::kind::{Horizon, Kind, Subject};
use super::recent::Doubling;
use super::replicas::{ReplicaHistory, SlowReplica};
use super::series::RouteSeries;
use super::shift::{Shift, ShiftedPart};
use super::slow::{self, MedianMove, SlowDrift};
use super::table::{BurnRow, HOUR, LATE_BUDGET, LOOKED_AT, PARTS, StepRow, TAIL, WINDOW, WORKBOOK};
use crate::diagnosis::figures::Count;
use crate::diagnosis::table::{BUSIER, DIFFERS, LONGER, UNMOVED};
use crate::diagnosis::{Case, Causes, Diagnosis, Onset, SignalChange, Signals, Tier, of_changes};
use crate::observe::lag::STARVED;

/// What is known of a finding.
struct Seen {
    kind: Kind,
    affected: Affected,
    onset: Onset,
    /// What the shape of the distribution or of the day says.
    shape: Vec<Case>,
    /// Numbers and names, in order of importance.
    evidence: Vec<(Cow<'static, str>, Fact)>,
}

impl Seen {
    /// Of something that began at `onset` at the earliest, in seconds, and within `minutes` of that.
    fn new(kind: Kind, affected: Affected, onset: f64, minutes: i64) -> Self {
        let earliest = minute_of(onset);
        Self::again(kind, affected, Onset { earliest, latest: earliest + minutes })
    }

    /// Of something that is known.
    fn again(kind: Kind, affected: Affected, onset: Onset) -> Self {
        Self { kind, affected, onset, shape: Vec::new(), evidence: Vec::new() }
    }

    fn fact(mut self, name: &'static str, fact: impl Into<Fact>) -> Self {
        self.evidence.push((Cow::Borrowed(name), fact.into()));
        self
    }

    /// Adds a known fact.
    fn maybe(self, name: &'static str, fact: Option<impl Into<Fact>>) -> Self {
        match fact {
            Some(fact) => self.fact(name, fact),
            None => self,
        }
    }

    fn with(mut self, case: Option<Case>) -> Self {
        self.shape.extend(case);
        self
    }

    /// With the tail alone up: something that few requests meet.
    fn tail_alone(self, is_median_flat: bool) -> Self {
        let case = Case::new(Diagnosis::InfrastructureVariability, Tier::Shape).with("p50_is_flat", 1.0);
        self.with(is_median_flat.then_some(case))
    }

    fn diagnose(&self, series: &mut RouteSeries, at: f64, changes: &[SignalChange]) -> Causes {
        let row = self.kind.row();
        let mut cases = self.shape.clone();
        let (judged, affected) = (self.affected.judged, self.affected.names.len());
        if self.kind == Kind::ReplicaSlow || (judged >= 2 && affected == 1) {
            let case = Case::new(Diagnosis::Replica, Tier::Alone).with("replicas_affected", affected as f64);
            cases.push(case.with("replicas_compared", judged as f64));
        } else if series.active.count(Kind::ReplicaSlow) == 1 && row.subject == Subject::Ttft {
            cases.push(Case::new(Diagnosis::Replica, Tier::Change).with("slow_replicas", 1.0));
        }
        // Requests alone tell of a change of load, and of slower tokens.
        let by_requests = [by_requests(series, at)];
        let changes = match (row.horizon, row.subject) {
            (Horizon::Days, _) | (_, Subject::Availability) => &[],
            (_, Subject::Ttft) if changes.is_empty() && self.kind != Kind::ReplicaSlow => &by_requests[..],
            _ => changes,
        };
        if row.horizon != Horizon::Days && row.subject != Subject::Availability {
            cases.extend(of_gateway(series, at));
        }
        let deploy = series.predecessor.is_some().then(|| minute_of(series.first_seen));
        // What several have is no fault of the one that still has the figures of when all were slow.
        let is_possible = |case: &Case| affected <= 1 || case.tier != Tier::Alone;
        let of_changes = of_changes(changes, Some(self.onset), deploy, minute_of(at));
        cases.extend(of_changes.into_iter().filter(is_possible));
        Causes::of(cases)
    }

    fn finding(mut self, series: &mut RouteSeries, at: f64) -> ActiveFinding {
        let minute = minute_of(at);
        let before = series.signals.before(self.onset.earliest.min(minute - GAP));
        let changes = series.signals.changes_from(&before, minute);
        let causes = self.diagnose(series, at, &changes);
        let began = (minute - self.onset.earliest) as f64 * 60.0;
        self = self.fact("began_seconds_before", began);
        for (name, fact) in self.affected.facts() {
            self = self.fact(name, fact);
        }
        if let Some(before) = &series.predecessor {
            let age = at - series.first_seen;
            self = self.fact("revision_before", &**before).fact("revision_age_seconds", age);
        }
        let name = SeriesName {
            route: Arc::clone(&series.route),
            revision: Arc::clone(&series.revision),
            replica: None,
        };
        let finding = Finding {
            at,
            kind: self.kind,
            series: name,
            causes,
            evidence: self.evidence,
            is_acknowledged: false,
        };
        ActiveFinding { finding, last_seen: at, before, onset: self.onset, bound: None }
    }
}

pub(super) fn doubling(series: &mut RouteSeries, at: f64, kind: Kind, doubling: &Doubling) -> ActiveFinding {
    let Doubling { now, baseline, .. } = *doubling;
    let names = match kind.row().subject {
        Subject::Itl => ["now", "baseline"],
        _ => ["ttft", "baseline_ttft"],
    };
    let onset = at - doubling.window;
    let affected = Affected::now(series, at, onset, kind, now / baseline);
    Seen::new(kind, affected, onset, 0)
        .fact(names[0], now)
        .fact(names[1], baseline)
        .fact("ratio", now / baseline)
        .fact("window_seconds", doubling.window)
        .fact("requests", doubling.requests as f64)
        .fact("baseline_hours", doubling.baseline_hours as f64)
        .fact("baseline_requests", doubling.baseline_requests)
        .maybe("ttft_over_predicted", doubling.over_predicted)
        .finding(series, at)
}

pub(super) fn late(series: &mut RouteSeries, at: f64, late: &Burn) -> ActiveFinding {
    let ttft = series.ttft.ratio(at);
    let onset = at - late.lasted;
    let affected = Affected::by_share(series, |replica| replica.late.since(onset).collect());
    Seen::new(Kind::TtftP99OverSlo, affected, onset, 0)
        .tail_alone(ttft.is_some_and(|ratio| ratio < UNMOVED))
        .fact("share_over_slo", late.count.share())
        .fact("allowed_share", LATE_BUDGET)
        .fact("lasted_seconds", late.lasted)
        .fact("requests", late.count.all)
        .maybe("ttft_p50_ratio", ttft)
        .finding(series, at)
}

pub(super) fn shift(series: &mut RouteSeries, at: f64, kind: Kind, shift: &Shift) -> ActiveFinding {
    let affected = Affected::now(series, at, at - WINDOW, kind, shift.now / shift.baseline);
    let signal = match kind.row().subject {
        Subject::Itl => |signals: &Signals| signals.itl,
        _ => |signals: &Signals| signals.ttft,
    };
    // It began in the first of two hours, or in the one before, as far as requests tell.
    let began = series.signals.onset(minute_of(at), signal);
    let (onset, minutes) = began.map_or((at - 3.0 * HOUR, 60), |minute| (minute as f64 * 60.0, 0));
    let quantile = match shift.part {
        ShiftedPart::Median => 0.5,
        ShiftedPart::Tail => 0.9,
    };
    Seen::new(kind, affected, onset, minutes)
        .tail_alone(shift.part == ShiftedPart::Tail && kind.row().subject == Subject::Ttft)
        .fact("quantile", quantile)
        .fact("now", shift.now)
        .fact("baseline", shift.baseline)
        .fact("ratio", shift.now / shift.baseline)
        .fact("window_seconds", 7200.0)
        .fact("baseline_hours", shift.baseline_hours as f64)
        .finding(series, at)
}

pub(super) fn slow_replica(series: &mut RouteSeries, at: f64, slow: &SlowReplica) -> ActiveFinding {
    let name = series.replicas.get(slow.replica).map(|replica| Arc::clone(&replica.name));
    let gpu_throttled = name.as_ref().and_then(|name| series.signals.gpu_throttled(name, minute_of(at)));
    let names = name.clone().into_iter().collect();
    let affected = Affected { judged: series.replicas.len(), names, ..Affected::default() };
    let mut found = Seen::new(Kind::ReplicaSlow, affected, at - HOUR, 0)
        .fact("ttft_p50", slow.now)
        .fact("peers_p50", slow.others)
        .fact("ratio", slow.ratio)
        .fact("compared", if slow.is_by_work { "ttft_over_predicted" } else { "ttft" })
        .fact("window_seconds", 3600.0)
        .maybe("gpu_clocks_throttled", gpu_throttled)
        .finding(series, at);
    found.finding.series.replica = name;
    found
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
    // More long prompts than before, enough of them to account for the slow requests.
    let more_slow = (drift.exceedance_ratio - 1.0) * (1.0 - drift.quantile);
    let prompts = slow::large_share(&series.prompts, &settings.slow(TAIL))
        .filter(|(now, before)| *now >= LONGER * before && now - before >= more_slow / 2.0);
    let mix = prompts.map(|(now, before)| {
        Case::new(Diagnosis::TrafficMix, Tier::Change)
            .with("long_prompt_share", now)
            .with("long_prompt_share_before", before)
    });
    // Days are known by their parts.
    let part = settings.block / PARTS as f64;
    let onset = at - drift.window as f64 * settings.block - part;
    let found = Seen::new(kind, affected, onset, (2.0 * part / 60.0) as i64)
        .with(mix)
        .tail_alone(drift.median == MedianMove::Flat && kind.row().subject == Subject::Ttft)
        .fact("quantile", drift.quantile)
        .fact("now", drift.now)
        .fact("baseline", drift.baseline)
        .fact("exceedance_ratio", drift.exceedance_ratio)
        .fact("p50", drift.median.as_str())
        .fact("p50_ratio", drift.median_ratio)
        .fact("score", drift.score)
        .fact("window_days", drift.window as f64)
        .fact("baseline_days", drift.baseline_blocks as f64)
        .finding(series, at);
    ActiveFinding { bound: Some(drift.bound), ..found }
}

pub(super) fn budget_burn(series: &mut RouteSeries, at: f64, burn: &Burn) -> ActiveFinding {
    let onset = at - burn.lasted;
    let affected = Affected::by_share(series, |replica| replica.failures_since(onset, at));
    Seen::new(Kind::AvailabilityBurn, affected, onset, 0)
        .fact("burn_rate", burn.rate)
        .fact(LONG_WINDOW, burn.long)
        .fact("short_window_seconds", burn.short)
        .fact("requests", burn.count.all)
        .fact("failed", burn.count.bad)
        .finding(series, at)
}

/// The row by which a burn was found.
pub(super) fn row_of(finding: &Finding) -> Option<&'static BurnRow> {
    let (_, long) = finding.evidence.iter().find(|(name, _)| *name == LONG_WINDOW)?;
    WORKBOOK.iter().find(|row| *long == Fact::Number(row.long as f64))
}

pub(super) fn bad_hour(series: &mut RouteSeries, at: f64, bad: &BadHour) -> ActiveFinding {
    let load = series.hours_of_day.load_ratio(bad.hour);
    let peak = Case::new(Diagnosis::Capacity, Tier::Shape).with("load_of_this_hour_ratio", load);
    Seen::new(Kind::AvailabilityHour, Affected::default(), at - bad.days as f64 * 86_400.0, 0)
        .with((load > UNMOVED).then_some(peak))
        .fact("hour_of_day_utc", bad.hour as f64)
        .fact("availability", bad.availability)
        .fact("availability_of_other_hours", bad.elsewhere)
        .fact("days", bad.days as f64)
        .fact("requests", bad.count.all)
        .fact("failed", bad.count.bad)
        .finding(series, at)
}

/// Diagnoses what was found a short while ago anew, by the signals of now against those before it began: what changes later has not caused it.
pub(super) fn look_again(series: &mut RouteSeries, at: f64) {
    for index in 0..series.active.0.len() {
        let Some(active) = series.active.0.get(index) else { return };
        let kind = active.finding.kind;
        let (row, found_at) = (kind.row(), active.finding.at);
        let is_due = found_at < at && at - found_at <= LOOKED_AT;
        if row.horizon == Horizon::Days || kind == Kind::ReplicaSlow || !is_due {
            continue;
        }
        let onset = active.onset;
        let since = onset.earliest as f64 * 60.0;
        let changes = series.signals.changes_from(&active.before, minute_of(at));
        let ratio = series.ttft.ratio(at).unwrap_or(1.0);
        let affected = match (kind, row.subject) {
            (_, Subject::Availability) => {
                Affected::by_share(series, |replica| replica.failures_since(since, at))
            }
            (Kind::TtftP99OverSlo, _) => {
                Affected::by_share(series, |replica| replica.late.since(since).collect())
            }
            _ => Affected::now(series, at, since, kind, ratio),
        };
        let (facts, is_shared) = (affected.facts(), affected.is_shared);
        let causes = Seen::again(kind, affected, onset).diagnose(series, at, &changes);
        if let Some(active) = series.active.0.get_mut(index) {
            let finding = &mut active.finding;
            if is_shared && finding.diagnosis() == Diagnosis::Replica {
                // What all replicas do by now speaks against none of them.
                finding.causes = causes;
            } else {
                finding.causes.revise(causes);
            }
            for (name, fact) in facts {
                match finding.evidence.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, known)) => *known = fact,
                    None => finding.evidence.push((name.into(), fact)),
                }
            }
        }
    }
}

/// A gateway without CPU sees everybody late.
fn of_gateway(series: &RouteSeries, at: f64) -> Option<Case> {
    let late = series.signals.gateway_late(minute_of(at)).filter(|late| *late >= STARVED)?;
    Some(Case::new(Diagnosis::Gateway, Tier::Lateness).with("gateway_late_share", late))
}

/// The last five minutes against this hour of the day, by the series' own requests.
fn by_requests(series: &mut RouteSeries, at: f64) -> SignalChange {
    let load = series.ttft.recent.load_ratio(at, &series.ttft.hours).unwrap_or(1.0);
    let before = Signals { requests: 1.0, ttft: Some(1.0), itl: Some(1.0), ..Signals::default() };
    let itl = series.itl.ratio(at).filter(|_| load < BUSIER);
    let now = Signals { requests: load, ttft: series.ttft.ratio(at), itl, ..Signals::default() };
    SignalChange { before, now, ..SignalChange::default() }
}

/// Replicas that could be judged, and those of them that are affected.
#[derive(Clone, Debug, Default)]
struct Affected {
    judged: usize,
    names: Vec<Arc<str>>,
    /// Each of several fails at least half as often as the worst.
    is_shared: bool,
}

impl Affected {
    /// For the evidence; none where no replica could be judged.
    fn facts(&self) -> Vec<(&'static str, Fact)> {
        if self.judged == 0 {
            return Vec::new();
        }
        let names = self.names.iter().map(ToString::to_string).collect();
        vec![("replicas_judged", Fact::from(self.judged as f64)), ("replicas", Fact::Names(names))]
    }

    /// `is_affected` is `None` for a replica that cannot be judged.
    fn of(series: &RouteSeries, is_affected: impl Fn(usize, &ReplicaHistory) -> Option<bool>) -> Self {
        let mut affected = Self::default();
        for (index, replica) in series.replicas.iter().enumerate() {
            let Some(is_affected) = is_affected(index, replica) else { continue };
            affected.judged += 1;
            if is_affected {
                affected.names.push(Arc::clone(&replica.name));
            }
        }
        affected
    }

    /// By the median of the last five minutes: up by half of the series' own ratio, and for its work.
    fn now(series: &mut RouteSeries, at: f64, onset: f64, kind: Kind, ratio: f64) -> Self {
        if kind.row().subject != Subject::Ttft {
            return Self::default();
        }
        let min_rise = ratio.max(DIFFERS).ln() / 2.0;
        // A replica without a past of its own (new with its revision) is compared with the series a day ago.
        let of_series = series.ttft.hours.past().rev().nth(24).map(|hour| hour.median);
        let mut affected = Self::of(series, |index, replica| {
            let (now, over_work) = series.ttft.recent.of_replica(index)?;
            let has_risen = now - replica.usual_median().or(of_series)? >= min_rise;
            Some(has_risen && over_work.is_none_or(|over| over >= UNMOVED.ln()))
        });
        // One alone is the cause only where the others are unmoved: chance picks one out of few requests, and minutes from before the
        // onset hide that the others have risen since.
        let RouteSeries { ttft, replicas, .. } = series;
        if let [name] = affected.names.as_slice()
            && let Some(index) = replicas.iter().position(|replica| replica.name == *name)
            && [(at - WINDOW, UNMOVED), (onset.max(at - WINDOW), min_rise.exp())].into_iter().any(
                |(since, moved)| {
                    let others = ttft.recent.ratio_without(index, since, at, &ttft.hours);
                    others.is_none_or(|ratio| ratio >= moved)
                },
            )
        {
            affected.judged = 0;
        }
        affected
    }

    /// By their own tails over days, less strictly: the series is known to drift. One alone only where it drifts by itself, too: of
    /// several that do, chance hides all but one.
    fn for_days(series: &RouteSeries, settings: &Settings) -> Self {
        let by = |row: StepRow| {
            let setup = settings.slow(row);
            Self::of(series, |_, replica| {
                (replica.blocks.age() > 0).then(|| slow::judge(&replica.blocks, &setup).is_some())
            })
        };
        let mut affected = by(StepRow { z: 0.0, ..TAIL });
        if affected.names.len() == 1 && by(TAIL).names.is_empty() {
            affected.judged = 0;
        }
        affected
    }

    /// By their bad requests since it began, by slot: at least the series' share.
    fn by_share(series: &RouteSeries, bad_of: impl Fn(&ReplicaHistory) -> Vec<(i64, Count)>) -> Self {
        let of =
            |replica: &ReplicaHistory| bad_of(replica).into_iter().map(|(_, count)| count).sum::<Count>();
        let all: Count = series.replicas.iter().map(of).sum();
        let mut affected = Self::of(series, |_, replica| {
            let own = of(replica);
            (own.all >= 1.0).then_some(own.bad >= 1.0 && own.bad * all.all >= all.bad * own.all)
        });
        // Beside failures elsewhere only: a single one long ago makes an onset, and most since were well.
        let slots = series.replicas.iter().flat_map(&bad_of);
        let bad: HashSet<i64> = slots.filter(|(_, count)| count.bad > 0.0).map(|(slot, _)| slot).collect();
        let beside = |replica: &ReplicaHistory| {
            let slots = bad_of(replica).into_iter().filter(|(slot, _)| bad.contains(slot));
            Some(slots.map(|(_, count)| count).sum::<Count>()).filter(|count| count.all >= 1.0)
        };
        let shares = series.replicas.iter().filter_map(beside).map(Count::share);
        let (least, most) =
            shares.clone().fold((1.0, 0.0), |(a, b): (f64, f64), share| (a.min(share), b.max(share)));
        if shares.count() > 1 && most > 0.0 && 2.0 * least >= most {
            let all = Self::of(series, |_, replica| beside(replica).map(|_| true));
            return Self { is_shared: true, ..all };
        }
        // Of two that are alike one is above their share: one alone is the cause where that is no chance.
        if let [name] = affected.names.as_slice()
            && let Some(replica) = series.replicas.iter().find(|replica| replica.name == *name)
            && !of(replica).exceeds_the_rest(all)
        {
            affected.judged = 0;
        }
        affected
    }
}

/// Minutes before a finding that are not taken for the time before: what is found was seen within one window, and may have
/// begun in the one before.
const GAP: i64 = (2.0 * WINDOW / 60.0) as i64;

fn minute_of(at: f64) -> i64 {
    (at / 60.0).floor() as i64
}

/// Of a burn: its row.
const LONG_WINDOW: &str = "long_window_seconds";
