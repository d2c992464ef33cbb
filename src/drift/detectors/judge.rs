//! Asks the detectors of a series, each when its data can have changed: every tick, quarter of an hour, hour, sixth of a
//! block.

use super::Settings;
use super::finding::{Finding, Kind};
use super::hours::hour_index;
use super::replicas::{self, QUARTER};
use super::series::RouteSeries;
use super::slow::{self, MedianMove, SlowDrift};
use super::thresholds::{ITL_SHIFT, SLOW_SCORE, SLOW_SCORE_ITL, TTFT_SHIFT};
use super::{report, shift};

/// Lets time pass until `at`, judges what is due and pushes what is new to `out`.
pub(super) fn tick(series: &mut RouteSeries, at: f64, settings: &Settings, out: &mut Vec<Finding>) {
    for measure in [&mut series.ttft, &mut series.itl] {
        measure.recent.advance(at, &mut measure.hours);
    }
    minutes(series, at, settings, out);
    let quarter = (at / QUARTER).floor() as i64;
    if series.judged.quarter.replace(quarter).is_some_and(|judged| judged < quarter) {
        let slow = replicas::judge(&mut series.replicas, quarter - 1);
        let found: Vec<_> = slow.iter().map(|slow| report::slow_replica(series, at, slow)).collect();
        series.active.raise(found, out);
    }
    let hour = hour_index(at);
    if series.judged.hour.replace(hour).is_some_and(|judged| judged < hour) {
        let bad = series.hours_of_day.judge(at, settings.error_budget);
        let found = bad.map(|bad| report::bad_hour(series, at, &bad));
        series.active.raise(found, out);
        series.decay();
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
    let ttft = &mut series.ttft;
    if series.active.count(Kind::TtftDoubled) == 0 {
        let doubling = ttft.recent.judge(at, &ttft.hours);
        let found = doubling.map(|doubling| report::doubling(series, at, &doubling));
        series.active.raise(found, out);
    } else if ttft.recent.goes_on(at, &ttft.hours) {
        series.active.renew(at, Kind::TtftDoubled);
    }
    let breach = series.slo.judge(at);
    let found = breach.map(|breach| report::slo_breach(series, at, &breach));
    series.active.raise(found, out);
    let burn = series.burn.judge(at, settings.error_budget);
    let found = burn.map(|burn| report::budget_burn(series, at, &burn));
    series.active.raise(found, out);
}

/// Closed hours against other days.
fn shifts(series: &mut RouteSeries, at: f64, out: &mut Vec<Finding>) {
    let hour = series.ttft.last_hour();
    if hour != series.judged.ttft_hour {
        series.judged.ttft_hour = hour;
        if shift::goes_on(&series.ttft.hours, &TTFT_SHIFT) {
            series.active.renew(at, Kind::TtftShift);
        }
        let shift = shift::judge(&series.ttft.hours, &TTFT_SHIFT);
        let found = shift.map(|shift| report::ttft_shift(series, at, &shift));
        series.active.raise(found, out);
    }
    let hour = series.itl.last_hour();
    if hour != series.judged.itl_hour {
        series.judged.itl_hour = hour;
        if shift::goes_on(&series.itl.hours, &ITL_SHIFT) {
            series.active.renew(at, Kind::ItlShift);
            series.active.renew(at, Kind::ItlJitter);
        }
        let shift = shift::judge(&series.itl.hours, &ITL_SHIFT);
        let found = shift.map(|shift| report::itl_shift(series, at, &shift));
        series.active.raise(found, out);
    }
}

/// Tails over days, when a part of a block was closed.
fn days(series: &mut RouteSeries, at: f64, settings: &Settings, out: &mut Vec<Finding>) {
    let route = [&mut series.ttft.blocks, &mut series.prompts, &mut series.itl.blocks];
    let replicas = series.replicas.iter_mut().map(|replica| &mut replica.blocks);
    route.into_iter().chain(replicas).for_each(|blocks| blocks.advance(at));
    let part = series.ttft.blocks.last_closed();
    if part == series.judged.part {
        return;
    }
    series.judged.part = part;
    let is_known = [Kind::TtftTailDrift, Kind::TtftDrift].iter().any(|kind| series.active.count(*kind) > 0);
    let drift = slow::judge(&series.ttft.blocks, &settings.slow(SLOW_SCORE)).filter(|_| !is_known);
    let found = drift.map(|drift| report::slow_drift(series, at, ttft_kind(&drift), &drift, settings));
    series.active.raise(found, out);
    let drift = slow::judge(&series.itl.blocks, &settings.slow(SLOW_SCORE_ITL));
    let found = drift.map(|drift| report::slow_drift(series, at, Kind::ItlDrift, &drift, settings));
    series.active.raise(found, out);
    series.active.recover(at, &series.ttft.blocks, &series.itl.blocks);
}

fn ttft_kind(drift: &SlowDrift) -> Kind {
    if drift.median == MedianMove::Moved { Kind::TtftDrift } else { Kind::TtftTailDrift }
}
