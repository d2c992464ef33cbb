//! One series (a route on one revision): what is known of it, by measure and by replica.
//!
//! Holds the data only: `judge` asks the detectors, `report` makes findings.

use std::sync::Arc;

use super::Settings;
use super::active::ActiveFindings;
use super::blocks::BlockHistory;
use super::burn::{BadRequests, HoursOfDay};
use super::hours::HourHistory;
use super::kind::{Kind, Subject};
use super::observation::{NOT_SERVED, Observation};
use super::recent::RecentWindow;
use super::replicas::ReplicaHistory;
use super::table::{HOUR, MAX_REPLICAS};
use crate::diagnosis::SignalHistory;

/// A series and all that is known of it.
#[derive(Clone, Debug)]
pub(super) struct RouteSeries {
    pub(super) route: Arc<str>,
    pub(super) revision: Arc<str>,
    pub(super) first_seen: f64,
    pub(super) last_seen: f64,
    /// Of a standby pool.
    pub(super) is_standby: bool,
    /// The revision whose baselines it inherited.
    pub(super) predecessor: Option<Arc<str>>,
    pub(super) ttft: Measure,
    /// Lengths of prompts, in thousands of tokens.
    pub(super) prompts: BlockHistory,
    pub(super) itl: Measure,
    /// First tokens, and those over their bound.
    pub(super) late: BadRequests<10>,
    /// Requests, and those that failed.
    pub(super) failed: BadRequests<60>,
    pub(super) hours_of_day: HoursOfDay,
    pub(super) signals: SignalHistory,
    pub(super) replicas: Vec<ReplicaHistory>,
    pub(super) judged: JudgedUntil,
    pub(super) active: ActiveFindings,
}

/// One latency of a series: by days, by hours, and its last minutes.
#[derive(Clone, Debug)]
pub(super) struct Measure {
    pub(super) blocks: BlockHistory,
    pub(super) hours: HourHistory,
    pub(super) recent: RecentWindow,
    /// The last hour whose shift was judged.
    pub(super) judged: Option<i64>,
}

impl Measure {
    pub(super) fn new(blocks: BlockHistory) -> Self {
        Self { blocks, hours: HourHistory::default(), recent: RecentWindow::default(), judged: None }
    }

    /// Inherits the baselines and not the last minutes.
    fn successor(&self) -> Self {
        Self { hours: self.hours.clone(), ..Self::new(self.blocks.clone()) }
    }

    fn add(&mut self, at: f64, value: f64, replica: Option<usize>, predicted: Option<f64>) {
        self.blocks.add(at, value);
        self.recent.add(at, value, replica, predicted, &mut self.hours);
    }

    /// The last five minutes over their baseline.
    pub(super) fn ratio(&mut self, at: f64) -> Option<f64> {
        self.recent.ratio(at, &self.hours)
    }

    /// Index of the last closed hour.
    pub(super) fn last_hour(&self) -> Option<i64> {
        self.hours.last().map(|hour| hour.index)
    }
}

/// Indices of what the slower detectors have judged last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct JudgedUntil {
    pub(super) minute: Option<i64>,
    pub(super) quarter: Option<i64>,
    pub(super) hour: Option<i64>,
    pub(super) part: Option<i64>,
}

impl RouteSeries {
    pub(super) fn new(route: &str, revision: &str, at: f64, settings: &Settings) -> Self {
        Self {
            route: route.into(),
            revision: revision.into(),
            first_seen: at,
            last_seen: at,
            is_standby: false,
            predecessor: None,
            ttft: Measure::new(settings.blocks()),
            prompts: settings.blocks(),
            itl: Measure::new(settings.blocks()),
            late: BadRequests::default(),
            failed: BadRequests::default(),
            hours_of_day: HoursOfDay::default(),
            signals: SignalHistory::default(),
            replicas: Vec::new(),
            judged: JudgedUntil::default(),
            active: ActiveFindings::default(),
        }
    }

    /// A new revision of this route: inherits the baselines of latency and nothing else.
    pub(super) fn successor(&self, revision: &str, at: f64, settings: &Settings) -> Self {
        Self {
            predecessor: Some(Arc::clone(&self.revision)),
            ttft: self.ttft.successor(),
            prompts: self.prompts.clone(),
            itl: self.itl.successor(),
            ..Self::new(&self.route, revision, at, settings)
        }
    }

    pub(super) fn measure(&mut self, subject: Subject) -> &mut Measure {
        if subject == Subject::Itl { &mut self.itl } else { &mut self.ttft }
    }

    pub(super) fn observe(&mut self, observation: &Observation<'_>, settings: &Settings) {
        let at = observation.at;
        self.last_seen = at;
        let mut index = |name| (name != NOT_SERVED).then(|| self.replica_index(name, at, settings)).flatten();
        let (replica, waited_at) =
            (index(observation.replica), index(observation.waited_at.unwrap_or(observation.replica)));
        let is_bad = observation.is_bad();
        if let Some(is_bad) = is_bad {
            self.failed.add(at, is_bad);
            self.hours_of_day.add(at, is_bad);
            if let Some(replica) = replica.and_then(|index| self.replicas.get_mut(index)) {
                replica.attempt(at, is_bad);
            }
        }
        for name in observation.failed_at {
            let index = self.replica_index(name, at, settings);
            if let Some(replica) = index.and_then(|index| self.replicas.get_mut(index)) {
                replica.attempt(at, true);
            }
        }
        if let Some(itl) = observation.itl {
            self.itl.add(at, itl, replica, None);
        }
        if let Some(prompt) = observation.prompt {
            self.prompts.add(at, prompt / 1000.0);
        }
        let ttft = observation.ttft.map(|ttft| observation.scale() * ttft);
        let residual = observation.residual();
        if let Some(ttft) = ttft {
            self.ttft.add(at, ttft, waited_at, residual.map(|residual| ttft / residual));
        }
        let is_late = observation.ttft.zip(observation.ttft_bound).map(|(ttft, (bound, _))| ttft > bound);
        if let Some(is_late) = is_late {
            self.late.add(at, is_late);
        }
        let Some(replica) = waited_at.and_then(|index| self.replicas.get_mut(index)) else { return };
        is_late.into_iter().for_each(|is_late| replica.late.add(at, is_late));
        if let Some(ttft) = ttft {
            replica.add(at, ttft, residual);
        }
    }

    /// Index of a replica that served a request at `at`. Where there is no room it takes the place of the one unseen for longest: pods
    /// change their names with each deployment. `None` where all have served recently: it counts in the series, and is not judged.
    pub(super) fn replica_index(&mut self, replica: &str, at: f64, settings: &Settings) -> Option<usize> {
        let known = self.replicas.iter().position(|known| *known.name == *replica);
        let index = known.or_else(|| self.place_of(replica, at, settings))?;
        if let Some(known) = self.replicas.get_mut(index) {
            known.last_seen = known.last_seen.max(at);
        }
        Some(index)
    }

    fn place_of(&mut self, replica: &str, at: f64, settings: &Settings) -> Option<usize> {
        let new = ReplicaHistory::new(replica.into(), settings.blocks());
        if self.replicas.len() < MAX_REPLICAS {
            self.replicas.push(new);
            return Some(self.replicas.len() - 1);
        }
        let all = self.replicas.iter_mut().enumerate();
        let (index, unseen) = all.min_by(|(_, a), (_, b)| a.last_seen.total_cmp(&b.last_seen))?;
        let is_gone = at - unseen.last_seen >= UNSEEN;
        is_gone.then(|| {
            *unseen = new;
            index
        })
    }

    /// What a finding of this kind compares with is forgotten: what is now becomes usual.
    pub(super) fn forget_baseline(&mut self, kind: Kind, settings: &Settings) {
        match (kind, kind.row().subject) {
            (Kind::TtftP99OverSlo, _) => self.late = BadRequests::default(),
            (Kind::ReplicaSlow, _) => self.replicas.iter_mut().for_each(ReplicaHistory::reset),
            (Kind::AvailabilityHour, _) => self.hours_of_day = HoursOfDay::default(),
            (_, Subject::Availability) => self.failed = BadRequests::default(),
            (_, Subject::Itl) => self.itl = Measure::new(settings.blocks()),
            (_, Subject::Ttft) => {
                self.ttft = Measure::new(settings.blocks());
                self.replicas.iter_mut().for_each(|replica| replica.blocks = settings.blocks());
            }
        }
    }
}

/// A replica that has served nothing for so long is in no window that is judged.
const UNSEEN: f64 = 2.0 * HOUR;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_replica_takes_the_place_of_one_that_is_long_gone_and_never_another_s_name() {
        let settings = Settings::default();
        let mut series = RouteSeries::new("r", "v", 0.0, &settings);
        let mut names: Vec<String> = (0..MAX_REPLICAS).map(|n| format!("r{n}")).collect();
        for (at, name) in names.iter().enumerate() {
            assert_eq!(series.replica_index(name, 0.0, &settings), Some(at));
        }
        assert_eq!(series.replica_index("new", HOUR, &settings), None, "all may be in a window still");
        for (at, name) in names.iter().enumerate().skip(1) {
            assert_eq!(series.replica_index(name, HOUR, &settings), Some(at));
        }
        assert_eq!(series.replica_index("new", 2.0 * HOUR, &settings), Some(0));
        let gone = std::mem::replace(&mut names[0], "new".to_owned());
        assert!(series.replicas.iter().map(|replica| &*replica.name).eq(&names));
        assert_eq!(series.replica_index(&gone, 2.0 * HOUR, &settings), None);
    }
}
