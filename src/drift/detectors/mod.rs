//! Latency and availability compared with their own past, with a diagnosis.
//!
//! [`Detectors`] takes one [`Observation`] per ended request and returns [`Finding`]s. It is pure: no clock, no socket, no
//! thread; the same observations give the same findings, live and in `tokenway replay --drift`. Memory is bounded by the
//! number of series and replicas, not by requests. False alarms and delays are in `docs/drift.md`; `benches/drift` holds
//! them to thresholds.

mod active;
mod blocks;
mod burn;
mod finding;
mod hours;
mod judge;
mod kind;
mod mute;
mod observation;
mod recent;
mod replicas;
mod report;
mod saved;
mod series;
mod shift;
mod slow;
pub(super) mod table;

use std::collections::HashMap;
use std::sync::Arc;

use self::blocks::BlockHistory;
pub use self::finding::{Fact, Finding, SeriesName};
pub use self::kind::Kind;
pub use self::mute::Mute;
pub(crate) use self::mute::put as put_mute;
pub use self::observation::{NOT_SERVED, Observation, itl_of_whole};
pub use self::saved::Saved;
use self::series::RouteSeries;
use self::slow::SlowSetup;
use self::table::{HOUR, MAX_REPLICAS, MAX_SERIES, StepRow, TICK};
use crate::diagnosis::Signals;
use crate::labels::LabelHasher;

/// Baseline, error budget and bounds of the detectors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Seconds of a block, the unit of slow drift.
    pub block: f64,
    /// Start of the baseline, in seconds before now.
    pub baseline_from: f64,
    /// End of the baseline, in seconds before now.
    pub baseline_to: f64,
    /// Share of requests that may fail.
    pub error_budget: f64,
}

impl From<&crate::config::Drift> for Settings {
    fn from(drift: &crate::config::Drift) -> Self {
        Self {
            block: drift.block.as_secs_f64(),
            baseline_from: drift.baseline.from.as_secs_f64(),
            baseline_to: drift.baseline.to.as_secs_f64(),
            error_budget: 1.0 - drift.availability,
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        let day = 24.0 * HOUR;
        Self { block: day, baseline_from: 35.0 * day, baseline_to: 7.0 * day, error_budget: 0.001 }
    }
}

impl Settings {
    fn blocks(&self) -> BlockHistory {
        BlockHistory::new(self.block, self.baseline_from + self.block)
    }

    fn slow(&self, row: StepRow) -> SlowSetup {
        let blocks = |seconds: f64| (seconds / self.block).round().max(1.0) as usize;
        SlowSetup { from: blocks(self.baseline_from), to: blocks(self.baseline_to), row }
    }
}

/// All detectors of all series.
#[derive(Debug)]
pub struct Detectors {
    settings: Settings,
    series: Vec<RouteSeries>,
    /// Index of a series by route and revision.
    indices: HashMap<Arc<str>, HashMap<Arc<str>, usize, LabelHasher>, LabelHasher>,
    now: f64,
    last_tick: i64,
    has_left_out: bool,
}

impl Detectors {
    /// Detectors without any baseline.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            series: Vec::new(),
            indices: HashMap::default(),
            now: f64::NEG_INFINITY,
            last_tick: i64::MIN,
            has_left_out: false,
        }
    }

    /// Takes one request. Time never goes back: a late observation counts as one of now.
    pub fn observe(&mut self, observation: &Observation<'_>, out: &mut Vec<Finding>) {
        self.advance(observation.at, out);
        let observation = Observation { at: self.now, ..*observation };
        let own = || self.indices.get(observation.route).and_then(|of| of.get(observation.revision)).copied();
        let known = match observation.revision {
            // Counts against the revision that serves the route, if one ever has.
            NOT_SERVED => self.latest_of(observation.route).or_else(own),
            _ => own(),
        };
        let index = known.or_else(|| self.admit(&observation));
        match index.and_then(|index| self.series.get_mut(index)) {
            Some(series) => series.observe(&observation, &self.settings),
            None => self.has_left_out = true,
        }
    }

    /// Takes a minute of a replica's signals; without any, diagnosis goes by requests alone.
    pub fn signals(&mut self, series: &SeriesName, at: f64, signals: &Signals) {
        let index = self.indices.get(&series.route).and_then(|revisions| revisions.get(&series.revision));
        let known = index.and_then(|index| self.series.get_mut(*index));
        if let (Some(known), Some(replica)) = (known, &series.replica) {
            let minute = (at / 60.0).floor() as i64;
            known.signals.add(minute, replica, signals, MAX_REPLICAS);
        }
    }

    /// Judges what ended up to `at`, without waiting for the next tick.
    pub fn judge(&mut self, at: f64, out: &mut Vec<Finding>) {
        self.now = self.now.max(at);
        self.last_tick = (self.now / TICK).floor() as i64;
        if self.now.is_finite() {
            self.tick(self.now, out);
        }
    }

    /// Findings that hold now.
    pub fn active(&self) -> impl Iterator<Item = &Finding> {
        self.series.iter().flat_map(|series| &series.active.0).map(|active| &active.finding)
    }

    /// Somebody knows of the finding `id`, or does no longer; `None` where it does not hold.
    pub fn acknowledge(&mut self, id: &str, is_acknowledged: bool) -> Option<Finding> {
        let mut all = self.series.iter_mut().flat_map(|series| &mut series.active.0);
        let found = &mut all.find(|active| active.finding.id() == id)?.finding;
        found.is_acknowledged = is_acknowledged;
        Some(found.clone())
    }

    /// Ends the finding `id` and forgets what it was compared with; `None` where it does not hold.
    pub fn reset(&mut self, id: &str) -> Option<Finding> {
        let (series, found) = self
            .series
            .iter_mut()
            .find_map(|series| series.active.remove(id).map(|found| (series, found)))?;
        series.forget_baseline(found.kind, &self.settings);
        Some(found)
    }

    /// Whether there were more series than are judged since this was asked last.
    pub fn has_left_out(&mut self) -> bool {
        std::mem::take(&mut self.has_left_out)
    }

    /// The number of series with a baseline.
    pub fn series(&self) -> usize {
        self.series.len()
    }

    /// Judges at every tick up to `at`; ticks that were slept through are one.
    fn advance(&mut self, at: f64, out: &mut Vec<Finding>) {
        self.now = self.now.max(at);
        let tick = (self.now / TICK).floor() as i64;
        if tick > self.last_tick {
            self.last_tick = tick;
            self.tick(tick as f64 * TICK, out);
        }
    }

    fn tick(&mut self, at: f64, out: &mut Vec<Finding>) {
        self.series.iter_mut().for_each(|series| judge::tick(series, at, &self.settings, out));
    }

    /// The series of a route that was seen last, those of standby pools apart.
    fn latest_of(&self, route: &str) -> Option<usize> {
        let revisions = self.indices.get(route)?.iter();
        let served = revisions.filter(|(revision, _)| ***revision != *NOT_SERVED);
        let indices = served.map(|(_, index)| *index).filter(|index| !self.series[*index].is_standby);
        indices.max_by(|a, b| self.series[*a].last_seen.total_cmp(&self.series[*b].last_seen))
    }

    /// Begins a series, with the baselines of the route's revision before it unless its pool stands by. `None` where all that there is room for are in use: if
    /// they took turns, none would ever have a baseline.
    fn admit(&mut self, observation: &Observation<'_>) -> Option<usize> {
        let is_unseen = |series: &RouteSeries| observation.at - series.last_seen >= HOUR;
        if self.series.len() >= MAX_SERIES && !self.series.iter().any(is_unseen) {
            return None;
        }
        let Observation { at, route, revision, is_standby, .. } = *observation;
        let predecessor = self.latest_of(route).filter(|_| !is_standby);
        let series = match predecessor.and_then(|index| self.series.get(index)) {
            Some(predecessor) => predecessor.successor(revision, at, &self.settings),
            None => RouteSeries { is_standby, ..RouteSeries::new(route, revision, at, &self.settings) },
        };
        Some(self.insert(series))
    }

    /// Adds a series, in place of the one unseen for longest when there are too many; its index.
    fn insert(&mut self, series: RouteSeries) -> usize {
        let (route, revision) = (Arc::clone(&series.route), Arc::clone(&series.revision));
        let index = if self.series.len() < MAX_SERIES {
            self.series.push(series);
            self.series.len() - 1
        } else {
            let last_seen = |index: &usize| self.series[*index].last_seen;
            let oldest = (0..self.series.len()).min_by(|a, b| last_seen(a).total_cmp(&last_seen(b)));
            let index = oldest.unwrap_or(0);
            let gone = std::mem::replace(&mut self.series[index], series);
            if let Some(revisions) = self.indices.get_mut(&gone.route) {
                revisions.remove(&gone.revision);
            }
            self.indices.retain(|_, revisions| !revisions.is_empty());
            index
        };
        self.indices.entry(route).or_default().insert(revision, index);
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::Cow;

    use crate::diagnosis::Diagnosis;
    use crate::record::Outcome;

    fn failed(revision: &'static str, at: f64) -> Observation<'static> {
        Observation { outcome: Outcome::Failed, ..Observation::of("chat", revision, at) }
    }

    #[test]
    fn requests_that_nothing_served_share_a_series_and_their_failures_are_found() {
        let (mut detectors, mut found) = (Detectors::new(Settings::default()), Vec::new());
        for n in 0..1000 {
            detectors.observe(&failed(NOT_SERVED, f64::from(n)), &mut found);
        }
        assert_eq!(detectors.series(), 1);
        assert!(found.iter().any(|finding| finding.kind.as_str() == "availability_burn"), "{found:?}");
        detectors.observe(&failed("v1", 1000.0), &mut found);
        detectors.observe(&failed(NOT_SERVED, 1001.0), &mut found);
        assert_eq!((detectors.series(), detectors.has_left_out()), (2, false));
    }

    #[test]
    fn a_pool_that_is_down_is_no_fault_of_the_replica_with_less_of_the_traffic_before() {
        let (mut detectors, mut found) = (Detectors::new(Settings::default()), Vec::new());
        for n in 0..3000_u32 {
            // Long before, a single failure.
            let (is_down, has_failed) = (n >= 2400, n == 600);
            let replica = if n % if is_down { 2 } else { 10 } == 0 { "r1" } else { "r0" };
            let outcome = if is_down || has_failed { Outcome::Failed } else { Outcome::Ok };
            let one = Observation { replica, outcome, ..failed("v1", f64::from(n)) };
            detectors.observe(&one, &mut found);
        }
        let burn = found.iter().find(|one| one.kind == Kind::AvailabilityBurn).unwrap();
        assert_ne!(burn.diagnosis(), Diagnosis::Replica, "{burn:?}");
        assert!(detectors.active().all(|one| one.diagnosis() != Diagnosis::Replica));
    }

    #[test]
    fn a_trickle_of_one_replica_s_failures_is_one_finding_until_it_has_recovered() {
        let (mut detectors, mut found) = (Detectors::new(Settings::default()), Vec::new());
        let mut run = |days: std::ops::Range<u32>, fails: bool| {
            for n in days.start * 2880..days.end * 2880 {
                let replica = ["r0", "r1", "r2", "r3"][n as usize % 4];
                // One in 100 minutes.
                let outcome = if fails && n % 200 == 1 { Outcome::Failed } else { Outcome::Ok };
                let one = Observation { replica, outcome, ..failed("v1", 30.0 * f64::from(n)) };
                detectors.observe(&one, &mut found);
            }
            let found = found.iter().filter(|one| one.kind == Kind::AvailabilityBurn);
            let causes: Vec<_> = found.map(Finding::diagnosis).collect();
            (causes, detectors.active().count())
        };
        assert_eq!(run(0..2, false), (vec![], 0));
        assert_eq!(run(2..8, true), (vec![Diagnosis::Replica], 1));
        assert_eq!(run(8..9, false), (vec![Diagnosis::Replica], 0));
    }

    #[test]
    fn a_slow_replica_is_one_finding_over_a_night_with_too_few_requests_to_judge_it() {
        let (mut detectors, mut found) = (Detectors::new(Settings::default()), Vec::new());
        let mut run = |hours: std::ops::Range<u32>, slower: f64, per_hour: u32| {
            for n in hours.start * per_hour..hours.end * per_hour {
                let at = f64::from(n) * HOUR / f64::from(per_hour);
                for replica in ["r0", "r1", "r2"] {
                    let slower = if replica == "r1" { slower } else { 1.0 };
                    let ttft = Some(0.2 * slower * (0.9 + 0.1 * f64::from(n % 3)));
                    let one = Observation { replica, ttft, ..Observation::of("chat", "v1", at) };
                    detectors.observe(&one, &mut found);
                }
            }
            let slow = |one: &&Finding| one.kind == Kind::ReplicaSlow;
            (found.iter().filter(slow).count(), detectors.active().filter(slow).count())
        };
        assert_eq!(run(0..10, 1.0, 120), (0, 0));
        assert_eq!(run(10..16, 1.8, 120), (1, 1));
        assert_eq!(run(16..22, 1.8, 10), (1, 1), "at night");
        assert_eq!(run(22..26, 1.8, 120), (1, 1));
        assert_eq!(run(26..30, 1.0, 120), (1, 0));
    }

    #[test]
    fn failures_before_an_answer_are_charged_to_the_replica_that_failed() {
        let (mut detectors, mut found) = (Detectors::new(Settings::default()), Vec::new());
        let sick: [Arc<str>; 1] = ["r1".into()];
        for n in 0..3600_u32 {
            let is_late = n >= 1800 && n % 4 == 0;
            let one = Observation {
                replica: "r0",
                ttft: Some(if is_late { 1.5 } else { 0.1 }),
                ttft_bound: Some((0.5, 0.5)),
                waited_at: is_late.then_some("r1"),
                failed_at: if is_late { &sick } else { &[] },
                ..Observation::of("chat", "v1", f64::from(n))
            };
            let other =
                Observation { replica: "r1", waited_at: None, failed_at: &[], ttft: Some(0.1), ..one };
            detectors.observe(&one, &mut found);
            detectors.observe(&other, &mut found);
        }
        let late = detectors.active().find(|one| one.kind == Kind::TtftP99OverSlo).unwrap();
        let replicas = late.evidence.iter().find(|(name, _)| *name == "replicas").map(|(_, fact)| fact);
        assert_eq!(replicas, Some(&Fact::Names(vec!["r1".into()])), "{late:?}");
    }

    #[test]
    fn a_standby_pool_is_not_compared_with_the_usual_one() {
        let (mut detectors, mut found) = (Detectors::new(Settings::default()), Vec::new());
        let mut run = |seconds: std::ops::Range<u32>, revision, is_standby, ttft| {
            for n in seconds {
                // Half of it and twice as much, evenly.
                let ttft = Some(ttft * f64::from(n % 4 + 1) / 2.0);
                let one = Observation { is_standby, ttft, ..Observation::of("chat", revision, f64::from(n)) };
                detectors.observe(&one, &mut found);
            }
            found.iter().map(|finding| finding.kind.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(run(0..7200, "r1", false, 0.1), [""; 0]);
        assert_eq!(run(7200..9000, "b1", true, 0.3), [""; 0]);
        // What follows the usual pool's revision is compared with that.
        assert_eq!(run(9000..9600, "r2", false, 0.3), ["ttft_doubled"]);
    }

    /// Two replicas of a route with a bound of half a second, a request of each a second, and their signals at the end of each minute.
    fn minutes(
        detectors: &mut Detectors,
        minutes: std::ops::Range<u32>,
        ttft: f64,
        signals: &dyn Fn(&str) -> Signals,
    ) -> Option<Diagnosis> {
        let mut found = Vec::new();
        for second in minutes.flat_map(|minute| (0..60).map(move |second| f64::from(60 * minute + second))) {
            for replica in ["r0", "r1"] {
                let (ttft, ttft_bound) = (Some(ttft), Some((0.5, 0.5)));
                let one = Observation { replica, ttft, ttft_bound, ..Observation::of("chat", "v1", second) };
                detectors.observe(&one, &mut found);
                if second % 60.0 == 59.0 {
                    let series = SeriesName {
                        route: "chat".into(),
                        revision: "v1".into(),
                        replica: Some(replica.into()),
                    };
                    let signals = Signals { requests: 60.0, ttft: Some(ttft.unwrap()), ..signals(replica) };
                    detectors.signals(&series, second, &signals);
                }
            }
        }
        detectors.active().find(|one| one.kind == Kind::TtftP99OverSlo).map(Finding::diagnosis)
    }

    #[test]
    fn what_all_replicas_have_is_no_fault_of_the_one_with_slower_tokens_and_of_a_starved_gateway_its_own() {
        let calm = Signals { itl: Some(0.02), prompt: Some(500.0), ..Signals::default() };
        let slow = |gateway_late| {
            let mut detectors = Detectors::new(Settings::default());
            minutes(&mut detectors, 0..60, 0.1, &|_| calm);
            minutes(&mut detectors, 60..66, 1.0, &|replica| {
                let itl = Some(if replica == "r0" { 0.04 } else { 0.02 });
                Signals { itl, gateway_late, ..calm }
            })
        };
        assert!(slow(Some(0.01)).is_some_and(|cause| cause != Diagnosis::Replica));
        assert_eq!(slow(Some(0.4)), Some(Diagnosis::Gateway));
    }

    #[test]
    fn what_changes_long_after_a_finding_has_not_caused_it() {
        let calm = Signals { itl: Some(0.02), prompt: Some(500.0), ..Signals::default() };
        let slower = Signals { itl: Some(0.035), ..calm };
        let mut detectors = Detectors::new(Settings::default());
        assert_eq!(minutes(&mut detectors, 0..60, 0.1, &|_| calm), None);
        assert_eq!(minutes(&mut detectors, 60..66, 1.0, &|_| slower), Some(Diagnosis::Contention));
        let longer = Signals { prompt: Some(4000.0), ..slower };
        minutes(&mut detectors, 66..75, 1.0, &|_| slower);
        assert_eq!(minutes(&mut detectors, 75..90, 1.0, &|_| longer), Some(Diagnosis::Contention));
    }

    #[test]
    fn a_finding_names_the_replica_that_a_later_look_found() {
        let (mut detectors, mut found) = (Detectors::new(Settings::default()), Vec::new());
        let mut run = |seconds: std::ops::Range<u32>, fails: &dyn Fn(&str, u32) -> bool| {
            for n in seconds {
                for replica in ["r0", "r1", "r2"] {
                    let outcome = if fails(replica, n) { Outcome::Failed } else { Outcome::Ok };
                    let one = Observation { replica, outcome, ..failed("v1", f64::from(n)) };
                    detectors.observe(&one, &mut found);
                }
            }
            let active: Vec<Finding> = detectors.active().cloned().collect();
            active.into_iter().find(|one| one.kind == Kind::AvailabilityBurn)
        };
        assert!(run(0..1200, &|_, _| false).is_none());
        let names = |finding: &Finding| {
            let is_names = |(name, _): &&(Cow<'static, str>, Fact)| *name == "replicas";
            format!("{:?}", finding.evidence.iter().find(is_names).map(|(_, fact)| fact))
        };
        let one = run(1200..1500, &|replica, n| replica == "r1" && n % 3 == 0).unwrap();
        assert!((one.diagnosis(), names(&one).contains("r1")) == (Diagnosis::Replica, true), "{one:?}");
        assert!(!names(&one).contains("r0"), "{one:?}");
        let all = run(1500..2400, &|_, n| n % 2 == 0).unwrap();
        assert!(all.diagnosis() != Diagnosis::Replica, "{all:?}");
    }
}
