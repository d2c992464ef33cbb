//! Drift: latency and availability held against their own past, with a diagnosis.
//!
//! [`Detectors`] takes one [`Observation`] for each ended request and hands out [`Finding`]s. It is pure: no clock, no
//! socket, no thread; the same observations give the same findings, live and in `tokenway replay --drift`. Memory is
//! bounded by the number of series and replicas, not by requests. How often each detector cries wolf, and how soon it
//! finds what is there, is measured in `docs/drift.md`.

mod availability;
mod blocks;
mod diagnose;
mod finding;
mod histogram;
mod hours;
mod observation;
mod peers;
mod saved;
mod scale;
mod series;
mod shift;
mod signals;
mod slo;
mod slow;
#[cfg(test)]
mod study;
mod surge;
mod verdicts;

use std::collections::HashMap;
use std::sync::Arc;

pub use self::finding::{Diagnosis, Fact, Finding, Kind, SeriesName};
pub use self::observation::Observation;
pub use self::saved::Saved;
use self::series::Series;
pub use self::signals::Signals;

/// What the detectors hold things against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Seconds of a block, by which slow drift is judged.
    pub block: f64,
    /// The baseline begins so many seconds ago.
    pub from: f64,
    /// And ends so many seconds ago.
    pub to: f64,
    /// Share of requests that may fail.
    pub budget: f64,
    /// Series (route and revision) that are watched; the longest unseen one makes room.
    pub series: usize,
    /// Replicas that are told apart in a series.
    pub replicas_per_series: usize,
}

impl From<&crate::config::Drift> for Settings {
    fn from(drift: &crate::config::Drift) -> Self {
        Self {
            block: drift.block.as_secs_f64(),
            from: drift.from.as_secs_f64(),
            to: drift.to.as_secs_f64(),
            budget: 1.0 - drift.availability,
            ..Self::default()
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        const DAY: f64 = 86_400.0;
        Self {
            block: DAY,
            from: 35.0 * DAY,
            to: 7.0 * DAY,
            budget: 0.001,
            series: 64,
            replicas_per_series: 64,
        }
    }
}

/// All detectors of all series.
#[derive(Debug)]
pub struct Detectors {
    settings: Settings,
    series: Vec<Series>,
    last_seen: Vec<f64>,
    places: HashMap<Arc<str>, HashMap<Arc<str>, usize>>,
    now: f64,
    ticked: i64,
}

impl Detectors {
    /// Detectors that know nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            series: Vec::new(),
            last_seen: Vec::new(),
            places: HashMap::new(),
            now: f64::NEG_INFINITY,
            ticked: i64::MIN,
        }
    }

    /// Takes one request. Time never goes back: an observation that is late counts as one of now.
    pub fn observe(&mut self, observation: &Observation<'_>, out: &mut Vec<Finding>) {
        self.advance(observation.at, out);
        let observation = Observation { at: self.now, ..*observation };
        let known = match observation.revision {
            // Nobody served it: it counts against whoever serves the route.
            NO_REVISION => self.latest_of(observation.route),
            revision => self.places.get(observation.route).and_then(|of| of.get(revision)).copied(),
        };
        let place = known.unwrap_or_else(|| self.admit(&observation));
        if let (Some(series), Some(seen)) = (self.series.get_mut(place), self.last_seen.get_mut(place)) {
            *seen = self.now;
            series.observe(&observation, &self.settings);
        }
    }

    /// Takes a minute of a replica's signals; without any, diagnosis goes by what requests tell.
    pub fn signals(&mut self, series: &SeriesName, at: f64, signals: &Signals) {
        let place = self.places.get(&series.route).and_then(|revisions| revisions.get(&series.revision));
        let Some(series_of) = place.and_then(|place| self.series.get_mut(*place)) else { return };
        let minute = (at / 60.0).floor() as i64;
        let most = self.settings.replicas_per_series;
        if let Some(replica) = &series.replica {
            series_of.book.add(minute, replica, signals, most);
        }
    }

    /// Lets time pass until `at`.
    pub fn advance(&mut self, at: f64, out: &mut Vec<Finding>) {
        self.now = self.now.max(at);
        let tick = (self.now / TICK).floor() as i64;
        if tick > self.ticked {
            self.ticked = tick;
            let at = tick as f64 * TICK;
            self.series.iter_mut().for_each(|series| series.tick(at, &self.settings, out));
        }
    }

    /// Judges what came since the last look, without waiting for the next half minute.
    pub fn look(&mut self, at: f64, out: &mut Vec<Finding>) {
        self.now = self.now.max(at);
        self.ticked = (self.now / TICK).floor() as i64;
        let at = self.now;
        if at.is_finite() {
            self.series.iter_mut().for_each(|series| series.tick(at, &self.settings, out));
        }
    }

    /// Findings that hold now.
    pub fn active(&self) -> impl Iterator<Item = &Finding> {
        self.series.iter().flat_map(Series::active)
    }

    /// How many series are watched.
    #[must_use]
    pub fn series(&self) -> usize {
        self.series.len()
    }

    /// The series of a route that was seen last.
    fn latest_of(&self, route: &str) -> Option<usize> {
        let revisions = self.places.get(route)?.iter();
        let places = revisions.filter(|(revision, _)| ***revision != *NO_REVISION).map(|(_, place)| *place);
        places.max_by(|a, b| self.last_seen[*a].total_cmp(&self.last_seen[*b]))
    }

    /// A place for a series that is new: one of its own, or that of the longest unseen.
    fn admit(&mut self, observation: &Observation<'_>) -> usize {
        let latest = self.latest_of(observation.route);
        let series = match latest.and_then(|place| self.series.get(place)) {
            Some(before) => before.succeeded_by(observation, &self.settings),
            None => Series::new(observation, &self.settings),
        };
        self.place(series, self.now)
    }

    /// Gives a series a place.
    fn place(&mut self, series: Series, seen: f64) -> usize {
        let (route, revision) = (Arc::clone(&series.route), Arc::clone(&series.revision));
        let place = if self.series.len() < self.settings.series.max(1) {
            self.series.push(series);
            self.last_seen.push(seen);
            self.series.len() - 1
        } else {
            let oldest =
                (0..self.series.len()).min_by(|a, b| self.last_seen[*a].total_cmp(&self.last_seen[*b]));
            let place = oldest.unwrap_or(0);
            let gone = std::mem::replace(&mut self.series[place], series);
            if let Some(revisions) = self.places.get_mut(&gone.route) {
                revisions.remove(&gone.revision);
            }
            self.places.retain(|_, revisions| !revisions.is_empty());
            self.last_seen[place] = seen;
            place
        };
        self.places.entry(route).or_default().insert(revision, place);
        place
    }
}

/// The revision of a request that nobody served.
const NO_REVISION: &str = "none";
/// Seconds between two looks of the quickest detectors.
const TICK: f64 = 30.0;
