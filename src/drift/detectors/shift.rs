//! A step in the median of a measure, or in its 90th percentile alone, against the same hours of other days.
//!
//! Two hours in a row must exceed the threshold, so that a single busy hour is none. Finds what is too small for a
//! doubling and too quick for a drift over days.

use super::hours::{HourBaseline, HourHistory, HourSummary};
use super::table::{BASELINE_GAP, StepRow};
use crate::diagnosis::table::UNMOVED;
use crate::stats::{MEDIAN_ERROR, Noise, P90_ERROR};

/// Two hours above their baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shift {
    pub(super) part: ShiftedPart,
    /// Value of the last hour, in seconds.
    pub(super) now: f64,
    /// Its baseline, in seconds.
    pub(super) baseline: f64,
    /// Hours that the baseline rests on.
    pub(super) baseline_hours: usize,
}

/// Which part of the distribution moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShiftedPart {
    Median,
    /// The 90th percentile, with the median where it was.
    Tail,
}

/// Judges the last two closed hours. The baseline needs a day; a new revision inherits one.
pub(super) fn judge(hours: &HourHistory, row: &StepRow) -> Option<Shift> {
    let mut latest = hours.past().rev();
    let (last, before) = (latest.next()?, latest.next()?);
    if last.index != before.index + 1 || !hours.has_a_day() {
        return None;
    }
    let (last, before) = (Comparison::of(hours, last)?, Comparison::of(hours, before)?);
    let exceeds = |excess: &Excess| {
        let delta = excess.now.exp() - excess.baseline.exp();
        row.is_exceeded(excess.ln_ratio(), excess.error, delta)
    };
    let (part, excess) = if exceeds(&last.median) && exceeds(&before.median) {
        (ShiftedPart::Median, last.median)
    } else if exceeds(&last.p90) && exceeds(&before.p90) && last.median.ln_ratio().abs() < UNMOVED.ln() {
        (ShiftedPart::Tail, last.p90)
    } else {
        return None;
    };
    let (now, baseline) = (excess.now.exp(), excess.baseline.exp());
    Some(Shift { part, now, baseline, baseline_hours: last.baseline_hours })
}

/// Whether a shift that was found goes on.
pub(super) fn goes_on(hours: &HourHistory, row: &StepRow) -> bool {
    let last = hours.last().and_then(|hour| Comparison::of(hours, hour));
    last.is_some_and(|last| last.median.ln_ratio().max(last.p90.ln_ratio()) >= row.clear().ln())
}

struct Comparison {
    median: Excess,
    p90: Excess,
    baseline_hours: usize,
}

/// One quantile against its baseline; logarithms of seconds.
#[derive(Clone, Copy)]
struct Excess {
    now: f64,
    baseline: f64,
    /// Standard error of the difference.
    error: f64,
}

impl Comparison {
    fn of(hours: &HourHistory, hour: &HourSummary) -> Option<Self> {
        let baseline = hours.baseline(hour.index, BASELINE_GAP).filter(HourBaseline::is_sufficient)?;
        // What hours differ by, and the error of a quantile of so few values.
        let excess = |now: f64, usual: Noise, quantile_error: f64| {
            let of_few = (quantile_error * baseline.spread).powi(2) / hour.count as f64;
            Excess { now, baseline: usual.center, error: (usual.scale.powi(2) + of_few).sqrt() }
        };
        Some(Self {
            median: excess(hour.median, baseline.median, MEDIAN_ERROR),
            p90: excess(hour.p90, baseline.p90, P90_ERROR),
            baseline_hours: baseline.hours,
        })
    }
}

impl Excess {
    fn ln_ratio(&self) -> f64 {
        self.now - self.baseline
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::HOURS;
    use super::*;

    fn hours(value: impl Fn(u32) -> f64) -> Option<Shift> {
        let mut hours = HourHistory::default();
        for minute in 0..3 * 24 * 60 {
            (0..5).for_each(|i| {
                let wide = if i == 4 { 2.0 } else { 1.0 };
                hours.add(f64::from(minute) * 60.0, value(minute) * wide, 1);
            });
        }
        hours.advance(3.0 * 86_400.0);
        judge(&hours, &HOURS)
    }

    #[test]
    fn two_hours_up_are_a_shift_and_one_is_not() {
        assert_eq!(hours(|_| 0.1), None);
        assert_eq!(hours(|minute| if minute >= 71 * 60 { 0.2 } else { 0.1 }), None);
        let found = hours(|minute| if minute >= 70 * 60 { 0.16 } else { 0.1 }).unwrap();
        assert_eq!(found.part, ShiftedPart::Median);
        assert_eq!(hours(|minute| if minute >= 70 * 60 { 0.005 } else { 0.003 }), None, "two milliseconds");
        assert!((found.now - 0.16).abs() < 0.01 && (found.baseline - 0.1).abs() < 0.01, "{found:?}");
    }
}
