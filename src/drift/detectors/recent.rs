//! The last five minutes of a measure, and a doubling in them.
//!
//! The newest values, as many of the window as score highest, each against the baseline of its hour of the day. While the
//! baseline is not of the same hour of other days, a doubling must also be unexplained: by a load that the baseline has
//! not seen (a load test is no drift) and by the prediction. Values reach the baseline only when they leave the window.

use std::collections::VecDeque;

use super::hours::{HourBaseline, HourHistory, hour_index};
use super::table::{FEW, HOUR, KNOWN_LOAD, LASTS, MAX_VALUES, MOST, StepRow, WINDOW};
use crate::stats::{median, trimmed_mean};

/// The last five minutes of one measure.
#[derive(Clone, Debug)]
pub(super) struct RecentWindow {
    /// All of them, or an even sample: of each group of requests one.
    values: VecDeque<RecentValue>,
    /// Requests of a group.
    stride: u32,
    /// When the newest group began.
    began: f64,
    /// Chooses among them: every fourth of four replicas by turns would be one and the same replica.
    random: fastrand::Rng,
    /// Baseline of this hour: a comparison of 200 hours is too dear for every tick.
    baseline: Option<(i64, HourBaseline)>,
    /// Centre of the hour before, where other days know it: a batch that ends at the full hour is in the window still.
    before: Option<f64>,
}

impl Default for RecentWindow {
    fn default() -> Self {
        // A fixed seed: the same requests have the same findings.
        let random = fastrand::Rng::with_seed(1);
        Self { values: VecDeque::new(), stride: 1, began: 0.0, random, baseline: None, before: None }
    }
}

/// One value, as a logarithm.
#[derive(Clone, Copy, Debug)]
struct RecentValue {
    at: f64,
    ln: f64,
    /// That it stands for, itself included.
    requests: u32,
    /// Logarithm of the value over its prediction.
    residual: Option<f64>,
    /// Unknown in some recorded traces.
    replica: Option<usize>,
}

/// A latency far above its baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Doubling {
    /// Seconds.
    pub(super) now: f64,
    /// Seconds.
    pub(super) baseline: f64,
    /// TTFT over its prediction, where most requests have one.
    pub(super) over_predicted: Option<f64>,
    /// Seconds since the oldest of the values.
    pub(super) window: f64,
    values: usize,
    /// That they stand for.
    pub(super) requests: u64,
    /// Difference of logarithms over its standard error.
    pub(super) z: f64,
    /// Hours that the baseline rests on; 0 is the hour in progress.
    pub(super) baseline_hours: usize,
    pub(super) baseline_requests: f64,
}

impl RecentWindow {
    /// Takes a value in seconds; what leaves the window goes to `hours`.
    pub(super) fn add(
        &mut self,
        at: f64,
        value: f64,
        replica: Option<usize>,
        predicted: Option<f64>,
        hours: &mut HourHistory,
    ) {
        self.advance(at, hours);
        let ln = value.max(1e-6).ln();
        let residual = predicted.filter(|p| *p > 0.0).map(|predicted| ln - predicted.ln());
        let new = RecentValue { at, ln, requests: 1, residual, replica };
        match self.values.back_mut().filter(|newest| newest.requests < self.stride) {
            Some(newest) if at - self.began < MAX_GROUP => {
                let requests = newest.requests + 1;
                // Each of them is as likely to be the one that is kept.
                let kept = if self.random.u32(..requests) == 0 { new } else { *newest };
                *newest = RecentValue { requests, ..kept };
                return;
            }
            // Fewer requests come than did.
            Some(_) => self.stride /= 2,
            None => {}
        }
        self.began = at;
        self.values.push_back(new);
        if self.values.len() > MAX_VALUES {
            self.thin();
        }
    }

    /// Keeps one of every two values.
    fn thin(&mut self) {
        self.stride = self.stride.saturating_mul(2);
        let random = &mut self.random;
        let one_of = |pair: &[RecentValue]| {
            let requests = pair.iter().map(|value| value.requests).sum();
            random.choice(pair).map(|kept| RecentValue { requests, ..*kept })
        };
        self.values = self.values.make_contiguous().chunks(2).filter_map(one_of).collect();
    }

    /// Moves values that have left the window to `hours`.
    pub(super) fn advance(&mut self, at: f64, hours: &mut HourHistory) {
        while let Some(oldest) = self.values.front().copied().filter(|value| value.at <= at - WINDOW) {
            self.values.pop_front();
            hours.add(oldest.at, oldest.ln.exp(), oldest.requests);
        }
        // An hour stays open until its last values have left the window.
        hours.advance(at - WINDOW);
    }

    /// Judges the values that end now.
    pub(super) fn judge(&mut self, at: f64, hours: &HourHistory, row: &StepRow) -> Option<Doubling> {
        if self.values.len() < FEW {
            return None;
        }
        let baseline = self.baseline(at, hours).filter(HourBaseline::is_sufficient)?;
        let doubling = self.strongest(at, &baseline, row)?;
        let is_beyond_noise = doubling.z >= row.z;
        let is_noticeable = doubling.now - doubling.baseline >= row.delta;
        let is_explained = || !baseline.is_same_hour && self.is_explained(&doubling, &baseline, row);
        (is_beyond_noise && is_noticeable && !is_explained()).then_some(doubling)
    }

    /// The newest values with the highest z-score: how long a doubling has lasted is not known beforehand.
    fn strongest(&self, at: f64, baseline: &HourBaseline, row: &StepRow) -> Option<Doubling> {
        let min_excess = row.ratio.ln();
        // A value counts for a doubling and a spread: a few very slow requests are a tail.
        let max_excess = 2.0_f64.ln() + baseline.spread;
        let (mut sum, mut squares, mut requests) = (0.0, 0.0, 0);
        let mut best: Option<Doubling> = None;
        for (index, value) in self.values.iter().rev().enumerate() {
            let excess = (value.ln - self.usual(value, baseline)).clamp(-max_excess, max_excess);
            sum += excess;
            squares += excess * excess;
            requests += u64::from(value.requests);
            let values = index + 1;
            let count = values as f64;
            let mean = sum / count;
            let has_lasted = values >= FEW && at - value.at >= LASTS;
            if !has_lasted || mean < min_excess {
                continue;
            }
            // The wider of the hours' spread and what is seen, with the hours' as its prior.
            let deviations = (squares - count * mean * mean).max(0.0);
            let usual = baseline.spread.powi(2);
            let seen = (deviations + FEW as f64 * usual) / (FEW as f64 + count - 1.0);
            let z = mean / (seen.max(usual) / count + baseline.median.scale.powi(2)).sqrt();
            if best.is_none_or(|best| z > best.z) {
                best = Some(Doubling {
                    now: (baseline.center + mean).exp(),
                    baseline: baseline.center.exp(),
                    over_predicted: None,
                    window: at - value.at,
                    values,
                    requests,
                    z,
                    baseline_hours: baseline.hours,
                    baseline_requests: baseline.requests,
                });
            }
        }
        best.map(|best| Doubling { over_predicted: self.over_predicted(best.values), ..best })
    }

    /// TTFT over its prediction for the newest values, where most have one.
    fn over_predicted(&self, values: usize) -> Option<f64> {
        let residuals: Vec<f64> =
            self.values.iter().rev().take(values).filter_map(|value| value.residual).collect();
        let is_most = residuals.len() as f64 >= MOST * values as f64;
        trimmed_mean(residuals).filter(|_| is_most).map(f64::exp)
    }

    /// Whether a load that the baseline has not seen, or the prediction, explains it.
    fn is_explained(&self, doubling: &Doubling, baseline: &HourBaseline, row: &StepRow) -> bool {
        let per_minute = doubling.requests as f64 * 60.0 / doubling.window;
        per_minute > KNOWN_LOAD * baseline.requests_per_minute()
            || doubling.over_predicted.is_some_and(|ratio| ratio < row.clear())
    }

    /// Centre of the window over its baseline.
    pub(super) fn ratio(&mut self, at: f64, hours: &HourHistory) -> Option<f64> {
        let baseline = self.baseline(at, hours)?;
        let excess = |value: &RecentValue| value.ln - self.usual(value, &baseline);
        trimmed_mean(self.since(at - WINDOW).map(excess).collect()).map(f64::exp)
    }

    /// Requests in the window over those of the baseline; `None` where the baseline is the hour in progress.
    pub(super) fn load_ratio(&mut self, at: f64, hours: &HourHistory) -> Option<f64> {
        let usual = self.baseline(at, hours)?.requests_per_hour;
        let now = self.requests_since(at - WINDOW) * HOUR / WINDOW;
        (usual > 0.0).then(|| now / usual)
    }

    /// Whether a doubling that was found goes on.
    pub(super) fn goes_on(&mut self, at: f64, hours: &HourHistory, row: &StepRow) -> bool {
        self.ratio(at, hours).is_some_and(|ratio| ratio >= row.clear())
    }

    /// Centre of the newest values without those of one replica, over the baseline.
    pub(super) fn ratio_without(
        &mut self,
        replica: usize,
        since: f64,
        at: f64,
        hours: &HourHistory,
    ) -> Option<f64> {
        let baseline = self.baseline(at, hours)?;
        let excess = |value: &RecentValue| value.ln - self.usual(value, &baseline);
        let others = self.since(since).filter(|value| value.replica != Some(replica));
        trimmed_mean(others.map(excess).collect()).map(f64::exp)
    }

    /// Medians of one replica's values and of their ratios to the prediction (logarithms), where there are a few.
    pub(super) fn of_replica(&self, replica: usize) -> Option<(f64, Option<f64>)> {
        let own = || self.values.iter().filter(|value| value.replica == Some(replica));
        let values: Vec<f64> = own().map(|value| value.ln).collect();
        let residuals: Vec<f64> = own().filter_map(|value| value.residual).collect();
        let is_known = residuals.len() as f64 >= MOST * values.len() as f64;
        Some((median(&values).filter(|_| 2 * values.len() >= FEW)?, median(&residuals).filter(|_| is_known)))
    }

    fn since(&self, from: f64) -> impl Iterator<Item = &RecentValue> {
        self.values.iter().rev().take_while(move |value| value.at > from)
    }

    fn requests_since(&self, from: f64) -> f64 {
        self.since(from).map(|value| f64::from(value.requests)).sum()
    }

    fn baseline(&mut self, at: f64, hours: &HourHistory) -> Option<HourBaseline> {
        let index = hour_index(at);
        if let Some((of, baseline)) = self.baseline
            && of == index
            && baseline.hours > 0
            && baseline.is_sufficient()
        {
            return Some(baseline);
        }
        let baseline = hours.baseline(index, 1)?;
        self.baseline = Some((index, baseline));
        let before = hours.baseline(index - 1, 1).filter(|before| before.is_same_hour);
        self.before = before.map(|before| before.center);
        Some(baseline)
    }

    /// Centre of a value's hour; `baseline` is that of this hour.
    fn usual(&self, value: &RecentValue, baseline: &HourBaseline) -> f64 {
        let is_of_before = self.baseline.is_some_and(|(index, _)| hour_index(value.at) < index);
        self.before.filter(|_| is_of_before).unwrap_or(baseline.center)
    }
}

/// Seconds of the longest group, eight times those of one where values have just become too many.
const MAX_GROUP: f64 = 8.0 * WINDOW / MAX_VALUES as f64;

#[cfg(test)]
mod tests {
    use super::super::table::MINUTES;
    use super::*;

    /// Seconds of TTFT, requests per hour, and prediction over TTFT.
    type Traffic = (f64, f64, Option<f64>);

    /// Lognormal TTFT around `of(at)`; when a doubling is found.
    fn found(of: impl Fn(f64) -> Traffic, end: f64) -> Option<(f64, Doubling)> {
        found_from(0.0, of, end)
    }

    /// The same, judged from `start` on.
    fn found_from(start: f64, of: impl Fn(f64) -> Traffic, end: f64) -> Option<(f64, Doubling)> {
        let mut random = fastrand::Rng::with_seed(3);
        let (mut recent, mut hours, mut at, mut tick) =
            (RecentWindow::default(), HourHistory::default(), 0.0, start);
        while at < end {
            let (ttft, per_hour, share) = of(at);
            let ttft = ttft * (0.47 * crate::stats::normal(&mut random)).exp();
            let predicted = share.map(|share| share * ttft);
            recent.add(at, ttft, Some(0), predicted, &mut hours);
            if at >= tick {
                tick = at + 5.0;
                if let Some(doubling) = recent.judge(at, &hours, &MINUTES) {
                    return Some((at, doubling));
                }
            }
            at += HOUR / per_hour;
        }
        None
    }

    #[test]
    fn a_doubling_is_found_within_five_minutes_and_half_of_it_is_not() {
        for per_hour in [500.0, 2000.0, 20_000.0] {
            let grows = |factor: f64| {
                found(|at| (if at < 6.0 * HOUR { 0.06 } else { factor * 0.06 }, per_hour, None), 6.25 * HOUR)
            };
            let (at, doubling) = grows(2.0).unwrap();
            assert!((0.0..300.0).contains(&(at - 6.0 * HOUR)), "{per_hour}: {doubling:?}");
            assert_eq!(grows(1.3), None, "{per_hour}");
        }
    }

    #[test]
    fn a_busy_series_is_judged_by_all_of_its_window() {
        let begins = 0.75 * HOUR;
        for per_second in [5.0, 60.0, 200.0] {
            let grows = |after: f64, lasts: f64, factor: f64| {
                let from = begins + after;
                let ttft = |at: f64| if (from..from + lasts).contains(&at) { factor * 0.1 } else { 0.1 };
                found(|at| (ttft(at), per_second * HOUR, None), from + 280.0).map(|found| (found, from))
            };
            // Whatever part of five minutes it begins in.
            for after in [2.0, 40.0, 150.0] {
                assert_eq!(grows(after, 20.0, 3.0), None, "{per_second}/s: a hiccup after {after} s");
                let ((at, doubling), from) = grows(after, 250.0, 2.0).unwrap();
                assert!(at - from < 90.0, "{per_second}/s, after {after} s: {} s, {doubling:?}", at - from);
                let share = doubling.requests as f64 / (per_second * doubling.window);
                assert!((0.9..1.1).contains(&share), "{per_second}/s: {doubling:?}");
            }
        }
    }

    #[test]
    fn what_a_busy_window_keeps_stands_for_all_of_it() {
        let (mut recent, mut hours) = (RecentWindow::default(), HourHistory::default());
        let mut at = 0.0;
        for (until, per_second) in [(1.5 * HOUR, 20.0), (2.0 * HOUR, 60.0)] {
            let mut replica = 0;
            while at < until {
                recent.add(at, 0.1, Some(replica % 4), None, &mut hours);
                (at, replica) = (at + 1.0 / per_second, replica + 1);
            }
        }
        assert!(recent.values.len() <= MAX_VALUES);
        let load = recent.load_ratio(at, &hours).unwrap();
        assert!((load - 3.0).abs() < 0.05, "{load}");
        assert!((0..4).all(|replica| recent.of_replica(replica).is_some()), "each by turns");
        let shares = [0, 1, 2, 3].map(|of| recent.values.iter().filter(|v| v.replica == Some(of)).count());
        let fair = recent.values.len() / 4;
        assert!(shares.iter().all(|share| (fair / 2..2 * fair).contains(share)), "{shares:?}");
        let closed = hours.last().unwrap().count as f64;
        assert!((closed / (20.0 * HOUR) - 1.0).abs() < 0.001, "{closed} requests in the first hour");
        // Quiet again, it keeps one of two.
        let quiet_from = at;
        while at < quiet_from + WINDOW {
            recent.add(at, 0.1, None, None, &mut hours);
            at += 1.0;
        }
        assert!(recent.values.len() >= 140, "{}", recent.values.len());
    }

    #[test]
    fn a_young_series_is_judged_by_a_baseline_worth_the_name() {
        let doubled_at = |minutes: f64, per_hour: f64| {
            let until = minutes * 60.0;
            let found = found(|at| (if at < until { 0.06 } else { 0.15 }, per_hour, None), until + 600.0);
            found.map(|(at, _)| at - until)
        };
        assert!(doubled_at(50.0, 2000.0).is_some_and(|after| (0.0..300.0).contains(&after)));
        assert_eq!(doubled_at(20.0, 2000.0), None, "twenty minutes");
        assert_eq!(doubled_at(50.0, 60.0), None, "fifty requests");
    }

    #[test]
    fn a_load_test_on_a_young_gateway_is_no_surge() {
        let begins = 0.8 * HOUR;
        let run = |before: Traffic, after: Traffic| {
            found(|at| if at < begins { before } else { after }, begins + 1200.0).is_some()
        };
        assert!(!run((0.005, 600.0, None), (0.012, 600.0, None)), "nobody feels it");
        assert!(!run((0.02, 300.0, None), (0.08, 20_000.0, None)), "a load that was never seen");
        assert!(run((0.02, 300.0, None), (0.08, 300.0, None)), "the same load");
        assert!(!run((0.02, 300.0, Some(1.0)), (0.08, 300.0, Some(0.9))), "as predicted");
        assert!(run((0.02, 300.0, Some(1.0)), (0.08, 300.0, Some(0.4))), "not as predicted");
        for [before, after] in [[1.0, 3.0], [1.0, 5.0], [1.0, 10.0], [0.5, 2.0], [2.0, 20.0], [5.0, 50.0]] {
            let [before, after] = [(0.1, before * HOUR, None), (0.2, after * HOUR, None)];
            assert!(!run(before, after), "{before:?}, then {after:?}");
        }
    }

    #[test]
    fn a_nightly_batch_is_usual_from_its_first_minute_to_its_last() {
        for end in [3.0, 4.0] {
            let ttft = |at: f64| if (2.0..end).contains(&(at / HOUR % 24.0)) { 0.2 } else { 0.1 };
            let judged = found_from(96.0 * HOUR, |at| (ttft(at), 1000.0, None), 120.0 * HOUR);
            assert_eq!(judged, None, "until {end}");
        }
    }

    #[test]
    fn an_hour_that_other_days_know_is_judged_whatever_the_load() {
        let begins = 51.5 * HOUR;
        let of = |at: f64| if at < begins { (0.06, 300.0, Some(1.0)) } else { (0.15, 900.0, Some(1.0)) };
        assert!(found(of, begins + 300.0).is_some_and(|(_, doubling)| doubling.baseline_hours > 0));
    }
}
