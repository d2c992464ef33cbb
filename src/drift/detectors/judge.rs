//! Asks the detectors of a series, each when its data can have changed: every tick, quarter of an hour, hour, sixth of a
//! block.

use super::Settings;
use super::finding::Finding;
use super::hours::hour_index;
use super::kind::{Kind, Subject};
use super::replicas::{self, ReplicaHistory, quarter_index};
use super::series::RouteSeries;
use super::shift::{Shift, ShiftedPart};
use super::slow::{self, MedianMove, SlowDrift};
use super::table::{HOUR, HOURS, ITL_TAIL, LATE_BUDGET, MINUTES, P99, TAIL, WORKBOOK};
use super::{report, shift};

/// Lets time pass until `at`, judges what is due and pushes what is new to `out`.
pub(super) fn tick(series: &mut RouteSeries, at: f64, settings: &Settings, out: &mut Vec<Finding>) {
    for measure in [&mut series.ttft, &mut series.itl] {
        measure.recent.advance(at, &mut measure.hours);
    }
    minutes(series, at, settings, out);
    let quarter = quarter_index(at);
    if series.judged.quarter.replace(quarter).is_some_and(|judged| judged < quarter) {
        let slow = replicas::judge(&mut series.replicas, quarter - 1);
        let found: Vec<_> = slow.iter().map(|slow| report::slow_replica(series, at, slow)).collect();
        series.active.raise(found, out);
        let is_slow = |replica: &&ReplicaHistory| replica.is_slow && at - replica.last_seen < HOUR;
        for replica in series.replicas.iter().filter(is_slow) {
            series.active.renew_replica(at, &replica.name);
        }
    }
    let hour = hour_index(at);
    if series.judged.hour.replace(hour).is_some_and(|judged| judged < hour) {
        let bad = series.hours_of_day.judge(at, settings.error_budget);
        let found = bad.map(|bad| report::bad_hour(series, at, &bad));
        series.active.raise(found, out);
    }
    shifts(series, at, out);
    days(series, at, settings, out);
    series.active.expire(at);
    let minute = (at / 60.0).floor() as i64;
    if series.judged.minute.replace(minute) != Some(minute) {
        report::look_again(series, at);
    }
}

/// What shows within minutes.
fn minutes(series: &mut RouteSeries, at: f64, settings: &Settings, out: &mut Vec<Finding>) {
    for (subject, kind, row) in
        [(Subject::Ttft, Kind::TtftDoubled, MINUTES), (Subject::Itl, Kind::ItlShift, MINUTES.of_tokens())]
    {
        let is_known = series.active.count(kind) > 0;
        let measure = series.measure(subject);
        if is_known && measure.recent.goes_on(at, &measure.hours, &row) {
            series.active.renew(at, kind);
        } else if !is_known && let Some(doubling) = measure.recent.judge(at, &measure.hours, &row) {
            let found = report::doubling(series, at, kind, &doubling);
            series.active.raise([found], out);
        }
    }
    let late = series.late.judge(at, &P99, LATE_BUDGET);
    let found = late.map(|late| report::late(series, at, &late));
    series.active.raise(found, out);
    // A trickle has no failure for hours, and lasts.
    let row = series.active.of(Kind::AvailabilityBurn).and_then(report::row_of);
    if row.is_some_and(|row| series.failed.goes_on(at, row, settings.error_budget)) {
        series.active.renew(at, Kind::AvailabilityBurn);
    }
    let burn = series.failed.judge(at, &WORKBOOK, settings.error_budget);
    let found = burn.map(|burn| report::budget_burn(series, at, &burn));
    series.active.raise(found, out);
}

/// Closed hours against other days.
fn shifts(series: &mut RouteSeries, at: f64, out: &mut Vec<Finding>) {
    for (subject, kinds, row) in [
        (Subject::Ttft, [Kind::TtftShift, Kind::TtftShift], HOURS),
        (Subject::Itl, [Kind::ItlShift, Kind::ItlJitter], HOURS.of_tokens()),
    ] {
        let measure = series.measure(subject);
        let hour = measure.last_hour();
        if std::mem::replace(&mut measure.judged, hour) == hour {
            continue;
        }
        let shift = shift::judge(&measure.hours, &row);
        let day_before = measure.hours.past().rev().nth(24).map(|hour| hour.median);
        if shift::goes_on(&measure.hours, &row) {
            kinds.into_iter().for_each(|kind| series.active.renew(at, kind));
        }
        let is_of_prompts = |shift: &Shift| {
            let tail = replicas::tail_without_colder(&series.replicas, day_before);
            let is_ttft_tail = subject == Subject::Ttft && shift.part == ShiftedPart::Tail;
            is_ttft_tail && tail.is_some_and(|tail| tail < row.clear() * shift.baseline)
        };
        let found = shift.filter(|shift| !is_of_prompts(shift)).map(|shift| {
            let kind = if shift.part == ShiftedPart::Median { kinds[0] } else { kinds[1] };
            report::shift(series, at, kind, &shift)
        });
        series.active.raise(found, out);
    }
}

/// Tails over days, when a part of a block was closed.
fn days(series: &mut RouteSeries, at: f64, settings: &Settings, out: &mut Vec<Finding>) {
    let route = [&mut series.ttft.blocks, &mut series.prompts, &mut series.itl.blocks];
    let replicas = series.replicas.iter_mut().map(|replica| &mut replica.blocks);
    route.into_iter().chain(replicas).for_each(|blocks| blocks.advance(at));
    let part = series.ttft.blocks.parts().newest();
    if part == series.judged.part {
        return;
    }
    series.judged.part = part;
    let is_known = [Kind::TtftTailDrift, Kind::TtftDrift].iter().any(|kind| series.active.count(*kind) > 0);
    let drift = slow::judge(&series.ttft.blocks, &settings.slow(TAIL)).filter(|_| !is_known);
    let found = drift.map(|drift| report::slow_drift(series, at, ttft_kind(&drift), &drift, settings));
    series.active.raise(found, out);
    let drift = slow::judge(&series.itl.blocks, &settings.slow(ITL_TAIL));
    let found = drift.map(|drift| report::slow_drift(series, at, Kind::ItlDrift, &drift, settings));
    series.active.raise(found, out);
    series.active.recover(at, &series.ttft.blocks, &series.itl.blocks);
}

fn ttft_kind(drift: &SlowDrift) -> Kind {
    if drift.median == MedianMove::Moved { Kind::TtftDrift } else { Kind::TtftTailDrift }
}
