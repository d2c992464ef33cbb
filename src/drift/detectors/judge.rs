//! Asks the detectors of a series, each when its data can have changed: every tick, quarter of an hour, hour, sixth of a
//! block.

use super::Settings;
use super::finding::{Finding, Kind};
use super::hours::{HourHistory, hour_index};
use super::replicas::{self, QUARTER};
use super::series::RouteSeries;
use super::slow::{self, MedianMove, SlowDrift};
use super::thresholds::{
    ITL_SHIFT, SLOW_SCORE, SLOW_SCORE_BESIDE_RESIDUALS, SLOW_SCORE_ITL, SLOW_SCORE_REPLICA, TTFT_SHIFT,
};
use super::{report, shift};

/// Lets time pass until `at`, judges what is due and pushes what is new to `out`.
pub(super) fn tick(series: &mut RouteSeries, at: f64, settings: &Settings, out: &mut Vec<Finding>) {
    series.ttft_recent.advance(at, &mut series.ttft_hours);
    series.itl_recent.advance(at, &mut series.itl_hours);
    minutes(series, at, settings, out);
    let quarter = (at / QUARTER).floor() as i64;
    if series.judged.quarter.replace(quarter).is_some_and(|judged| judged < quarter) {
        for slow in replicas::judge(&mut series.replicas, quarter - 1) {
            let finding = report::slow_replica(series, at, &slow);
            series.active.raise(at, finding, out);
        }
    }
    let hour = hour_index(at);
    if series.judged.hour.replace(hour).is_some_and(|judged| judged < hour) {
        if let Some(bad) = series.hours_of_day.judge(at, settings.error_budget) {
            let finding = report::bad_hour(series, at, &bad);
            series.active.raise(at, finding, out);
        }
        series.decay();
    }
    shifts(series, at, out);
    days(series, at, settings, out);
    series.active.expire(at);
}

/// What shows within minutes.
fn minutes(series: &mut RouteSeries, at: f64, settings: &Settings, out: &mut Vec<Finding>) {
    if series.active.count(Kind::TtftDoubled) > 0 {
        if series.ttft_recent.goes_on(at, &series.ttft_hours) {
            series.active.renew(at, Kind::TtftDoubled);
        }
    } else if let Some(doubling) = series.ttft_recent.judge(at, &series.ttft_hours) {
        let finding = report::doubling(series, at, &doubling);
        series.active.raise(at, finding, out);
    }
    if let Some(breach) = series.slo.judge(at) {
        let finding = report::slo_breach(series, at, &breach);
        series.active.raise(at, finding, out);
    }
    if let Some(burn) = series.burn.judge(at, settings.error_budget) {
        let finding = report::budget_burn(series, at, &burn);
        series.active.raise(at, finding, out);
    }
}

/// Closed hours against other days.
fn shifts(series: &mut RouteSeries, at: f64, out: &mut Vec<Finding>) {
    let last = |hours: &HourHistory| hours.last().map(|hour| hour.index);
    let hour = last(&series.ttft_hours);
    if hour != series.judged.ttft_hour {
        series.judged.ttft_hour = hour;
        if shift::goes_on(&series.ttft_hours, &TTFT_SHIFT) {
            series.active.renew(at, Kind::TtftShift);
        }
        if let Some(shift) = shift::judge(&series.ttft_hours, &TTFT_SHIFT) {
            let finding = report::ttft_shift(series, at, &shift);
            series.active.raise(at, finding, out);
        }
    }
    let hour = last(&series.itl_hours);
    if hour != series.judged.itl_hour {
        series.judged.itl_hour = hour;
        if shift::goes_on(&series.itl_hours, &ITL_SHIFT) {
            series.active.renew(at, Kind::ItlShift);
            series.active.renew(at, Kind::ItlJitter);
        }
        if let Some(shift) = shift::judge(&series.itl_hours, &ITL_SHIFT) {
            let finding = report::itl_shift(series, at, &shift);
            series.active.raise(at, finding, out);
        }
    }
}

/// Tails over days, when a part of a block was closed.
fn days(series: &mut RouteSeries, at: f64, settings: &Settings, out: &mut Vec<Finding>) {
    let route = [&mut series.ttft, &mut series.residual, &mut series.itl];
    let replicas = series.replicas.iter_mut().map(|replica| &mut replica.blocks);
    route.into_iter().chain(replicas).for_each(|blocks| blocks.advance(at));
    let part = series.ttft.last_closed();
    if part == series.judged.part {
        return;
    }
    series.judged.part = part;
    if let Some((kind, drift)) = slow_ttft(series, settings) {
        let finding = report::slow_drift(series, at, kind, &drift, settings);
        series.active.raise(at, finding, out);
    } else {
        days_of_replicas(series, at, settings, out);
    }
    if let Some(drift) = slow::judge(&series.itl, &settings.slow(SLOW_SCORE_ITL)) {
        let finding = report::slow_drift(series, at, Kind::ItlDrift, &drift, settings);
        series.active.raise(at, finding, out);
    }
}

/// The drift of TTFT, or of TTFT over its prediction where there is one.
fn slow_ttft(series: &RouteSeries, settings: &Settings) -> Option<(Kind, SlowDrift)> {
    let score = if series.is_predicted() { SLOW_SCORE_BESIDE_RESIDUALS } else { SLOW_SCORE };
    if let Some(drift) = slow::judge(&series.ttft, &settings.slow(score)) {
        return Some((ttft_kind(&drift), drift));
    }
    if !series.is_predicted() {
        return None;
    }
    Some((Kind::ResidualDrift, slow::judge(&series.residual, &settings.slow(SLOW_SCORE))?))
}

fn days_of_replicas(series: &mut RouteSeries, at: f64, settings: &Settings, out: &mut Vec<Finding>) {
    let is_known =
        [Kind::TtftTailDrift, Kind::TtftDrift].into_iter().any(|kind| series.active.count(kind) > 0);
    if series.replicas.len() < 2 || is_known {
        return;
    }
    let setup = settings.slow(SLOW_SCORE_REPLICA);
    let drifts = series.replicas.iter().map(|replica| slow::judge(&replica.blocks, &setup));
    let drifts: Vec<Option<SlowDrift>> = drifts.collect();
    for (replica, drift) in drifts.iter().enumerate() {
        if let Some(drift) = drift {
            let finding = report::slow_drift_of_replica(series, at, ttft_kind(drift), replica, drift);
            series.active.raise(at, finding, out);
        }
    }
}

fn ttft_kind(drift: &SlowDrift) -> Kind {
    if drift.median == MedianMove::Moved { Kind::TtftDrift } else { Kind::TtftTailDrift }
}
