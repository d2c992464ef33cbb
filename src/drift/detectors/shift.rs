//! An hour that is not like its other days: a step in the median of a measure, or in its 90th percentile alone.
//!
//! Two hours in a row must be up by a quarter and by five scales of what hours differ by, so that a single busy hour
//! is none, and by more than nobody would care for. Catches what is too small to be a surge and too quick to be a drift
//! over days. Pure comparison of closed hours.

use super::hours::{Hour, Hours, Ordinary};

/// Two hours that were out of the ordinary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shifted {
    /// What moved.
    pub(super) part: Part,
    /// Value of the last hour, in seconds.
    pub(super) now: f64,
    /// What is ordinary for it.
    pub(super) ordinary: f64,
    /// Hours that the baseline rests on.
    pub(super) baseline_hours: usize,
}

/// Which part of the distribution moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The median, and with it all else.
    Median,
    /// The slowest tenth, with the median where it was.
    Slowest,
}

/// Judges the last two closed hours; `least` seconds more are worth a word. A baseline of its own needs a day; an inherited
/// one (a new revision) has it.
pub(super) fn judge(hours: &Hours, least: f64) -> Option<Shifted> {
    let mut latest = hours.latest();
    let (last, before) = (latest.next()?, latest.next()?);
    if last.index != before.index + 1 || !hours.has_a_day() {
        return None;
    }
    let (last, before) = (compare(hours, last)?, compare(hours, before)?);
    let shifted = if last.median.is_out && before.median.is_out {
        Some(last.shifted(Part::Median))
    } else if last.p90.is_out && before.p90.is_out && last.median.excess.abs() < FLAT {
        Some(last.shifted(Part::Slowest))
    } else {
        None
    };
    shifted.filter(|shifted| shifted.now - shifted.ordinary >= least)
}

/// Seconds of TTFT that are worth a word.
pub(super) const LEAST_TTFT: f64 = 0.01;
/// Seconds of inter-token latency.
pub(super) const LEAST_ITL: f64 = 0.001;

/// Whether a shift that was found still goes on: the last hour is up by half of what finding it takes.
pub(super) fn goes_on(hours: &Hours) -> bool {
    let last = hours.latest().next().and_then(|hour| compare(hours, hour));
    last.is_some_and(|last| last.median.excess.max(last.p90.excess) >= BAR.ln() / 2.0)
}

struct Compared {
    median: Side,
    p90: Side,
    baseline_hours: usize,
}

struct Side {
    is_out: bool,
    excess: f64,
    now: f64,
    ordinary: f64,
}

impl Compared {
    fn shifted(&self, part: Part) -> Shifted {
        let side = match part {
            Part::Median => &self.median,
            Part::Slowest => &self.p90,
        };
        Shifted {
            part,
            now: side.now.exp(),
            ordinary: side.ordinary.exp(),
            baseline_hours: self.baseline_hours,
        }
    }
}

fn compare(hours: &Hours, hour: &Hour) -> Option<Compared> {
    let ordinary = hours.ordinary(hour.index, APART).filter(Ordinary::is_enough)?;
    let side = |now: f64, usual: f64, noise: f64, loss: f64| {
        let chance = (loss * ordinary.spread).powi(2) / hour.count as f64;
        let excess = now - usual;
        let is_out = excess >= BAR.ln() && excess >= SURE * (chance + noise * noise).sqrt();
        Side { is_out, excess, now, ordinary: usual }
    };
    Some(Compared {
        median: side(hour.median, ordinary.median, ordinary.noise.0, 1.25),
        p90: side(hour.p90, ordinary.p90, ordinary.noise.1, 1.8),
        baseline_hours: ordinary.hours,
    })
}

/// Hours between the hour that is judged and its baseline.
const APART: i64 = 4;
const BAR: f64 = 1.25;
const SURE: f64 = 5.0;
const FLAT: f64 = 0.15;

#[cfg(test)]
mod tests {
    use super::*;

    fn hours(value: impl Fn(u32) -> f64) -> Option<Shifted> {
        let mut hours = Hours::default();
        for minute in 0..3 * 24 * 60 {
            (0..5).for_each(|i| {
                let wide = if i == 4 { 2.0 } else { 1.0 };
                hours.add(f64::from(minute) * 60.0, value(minute) * wide);
            });
        }
        hours.advance(3.0 * 86_400.0);
        judge(&hours, 0.01)
    }

    #[test]
    fn two_hours_up_are_a_shift_and_one_is_not() {
        assert_eq!(hours(|_| 0.1), None);
        assert_eq!(hours(|minute| if minute >= 71 * 60 { 0.2 } else { 0.1 }), None);
        let found = hours(|minute| if minute >= 70 * 60 { 0.16 } else { 0.1 }).unwrap();
        assert_eq!(found.part, Part::Median);
        assert_eq!(hours(|minute| if minute >= 70 * 60 { 0.005 } else { 0.003 }), None, "two milliseconds");
        assert!((found.now - 0.16).abs() < 0.01 && (found.ordinary - 0.1).abs() < 0.01, "{found:?}");
    }
}
