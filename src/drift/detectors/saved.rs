//! The baselines of all detectors as plain values, for a file.
//!
//! Saved is what takes longer than minutes to learn: blocks, hours, what is usual for a replica, error budgets, and the
//! findings that hold, with what they are held against. What is read back is checked: no part of the future, no empty part,
//! no unknown bucket.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::active::ActiveFindings;
use super::burn::{BadRequests, HoursOfDay};
use super::hours::{HourHistory, HourSummary};
use super::mute::Mute;
use super::replicas::ReplicaHistory;
use super::series::RouteSeries;
use super::table::{HOUR, MAX_FINDINGS, MAX_REPLICAS, MAX_SERIES};
use super::{Detectors, Settings};
use crate::state_file::Version;
use crate::stats::{Counts, Ring};

/// Baselines of all series.
#[derive(Debug, Deserialize, Serialize)]
pub struct Saved {
    version: Version<3>,
    /// Seconds; other blocks are other baselines.
    block: f64,
    series: Vec<SavedSeries>,
    /// What nobody is told of, for a while.
    pub(crate) mutes: Vec<Mute>,
}

#[derive(Debug, Deserialize, Serialize)]
struct SavedSeries {
    route: Arc<str>,
    revision: Arc<str>,
    first_seen: f64,
    last_seen: f64,
    #[serde(default)]
    is_standby: bool,
    predecessor: Option<Arc<str>>,
    ttft: Ring<Counts>,
    ttft_hours: Vec<HourSummary>,
    prompts: Ring<Counts>,
    itl: Ring<Counts>,
    itl_hours: Vec<HourSummary>,
    replicas: Vec<SavedReplica>,
    burn: BadRequests<60>,
    hours_of_day: HoursOfDay,
    findings: ActiveFindings,
}

#[derive(Debug, Deserialize, Serialize)]
struct SavedReplica {
    name: Arc<str>,
    parts: Ring<Counts>,
    usual: VecDeque<(f64, f64)>,
    /// Whether those compare the same work.
    usual_by_work: bool,
}

impl Detectors {
    /// What is worth keeping over a restart.
    pub fn save(&self) -> Saved {
        let series = self.series.iter().map(SavedSeries::of).collect();
        Saved { version: Version, block: self.settings.block, series, mutes: Vec::new() }
    }

    /// Takes up what was saved, before anything is observed; returns the number of series. `now` bounds what is believed:
    /// a clock that ran ahead must not freeze a series.
    pub fn restore(&mut self, saved: Saved, now: f64) -> usize {
        let is_ours = saved.block == self.settings.block;
        if !is_ours || !self.series.is_empty() {
            return 0;
        }
        for saved in saved.series.into_iter().take(MAX_SERIES) {
            let series = saved.restored(now, &self.settings);
            self.insert(series);
        }
        self.series.len()
    }
}

impl SavedSeries {
    fn of(series: &RouteSeries) -> Self {
        let is_kept = |replica: &&ReplicaHistory| series.last_seen - replica.last_seen < KEPT_UNSEEN;
        Self {
            route: Arc::clone(&series.route),
            revision: Arc::clone(&series.revision),
            first_seen: series.first_seen,
            last_seen: series.last_seen,
            is_standby: series.is_standby,
            predecessor: series.predecessor.clone(),
            ttft: series.ttft.blocks.parts().clone(),
            ttft_hours: series.ttft.hours.past().copied().collect(),
            prompts: series.prompts.parts().clone(),
            itl: series.itl.blocks.parts().clone(),
            itl_hours: series.itl.hours.past().copied().collect(),
            replicas: series.replicas.iter().filter(is_kept).map(SavedReplica::of).collect(),
            burn: series.failed.clone(),
            hours_of_day: series.hours_of_day.clone(),
            findings: series.active.clone(),
        }
    }

    fn restored(mut self, now: f64, settings: &Settings) -> RouteSeries {
        let mut series = RouteSeries::new(&self.route, &self.revision, self.first_seen.min(now), settings);
        let blocks = |parts: &Ring<Counts>| settings.blocks().restored(parts, now);
        series.last_seen = self.last_seen.min(now);
        (series.is_standby, series.predecessor) = (self.is_standby, self.predecessor);
        (series.ttft.blocks, series.ttft.hours) =
            (blocks(&self.ttft), HourHistory::restored(&self.ttft_hours, now));
        (series.itl.blocks, series.itl.hours) =
            (blocks(&self.itl), HourHistory::restored(&self.itl_hours, now));
        series.prompts = blocks(&self.prompts);
        series.failed = self.burn.up_to(now);
        series.hours_of_day = self.hours_of_day.up_to(now);
        self.findings.0.truncate(MAX_FINDINGS);
        for active in &mut self.findings.0 {
            (active.finding.at, active.last_seen) = (active.finding.at.min(now), active.last_seen.min(now));
        }
        series.active = self.findings;
        // What was over before the start is not published again.
        series.active.expire(now);
        for saved in self.replicas.into_iter().take(MAX_REPLICAS) {
            let index = series.replica_index(&saved.name, series.last_seen, settings);
            if let Some(replica) = index.and_then(|index| series.replicas.get_mut(index)) {
                replica.blocks = blocks(&saved.parts);
                (replica.usual, replica.is_usual_by_work) = (saved.usual, saved.usual_by_work);
            }
        }
        series
    }
}

impl SavedReplica {
    fn of(replica: &ReplicaHistory) -> Self {
        Self {
            name: Arc::clone(&replica.name),
            parts: replica.blocks.parts().clone(),
            usual: replica.usual.clone(),
            usual_by_work: replica.is_usual_by_work,
        }
    }
}

/// Seconds: replicas that served nothing for so long, while others of the series did, are gone.
const KEPT_UNSEEN: f64 = 24.0 * HOUR;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::{Case, Causes, Diagnosis, Tier};
    use crate::drift::detectors::{Fact, Observation};

    const DAY: f64 = 86_400.0;

    fn run(detectors: &mut Detectors, from: f64, to: f64, factor: f64) -> Vec<&'static str> {
        let mut random = fastrand::Rng::with_seed(from as u64 + 1);
        let (mut at, mut new) = (from, Vec::new());
        while at < to {
            let ttft = 0.06 * factor * (0.47 * crate::stats::normal(&mut random)).exp();
            let observation = Observation {
                replica: if random.bool() { "a" } else { "b" },
                ttft: Some(ttft),
                itl: Some(0.02),
                ..Observation::of("chat", "r1", at)
            };
            detectors.observe(&observation, &mut new);
            at += 7.2;
        }
        new.iter().map(|finding| finding.kind.as_str()).collect()
    }

    /// Detectors of a gateway that was restarted at `at`.
    fn restarted(saved: &Saved, at: f64) -> Detectors {
        let text = serde_json::to_string(saved).unwrap();
        let mut detectors = Detectors::new(Settings::default());
        assert_eq!(detectors.restore(serde_json::from_str(&text).unwrap(), at), 1);
        detectors
    }

    #[test]
    fn a_restarted_gateway_knows_what_is_ordinary() {
        let mut before = Detectors::new(Settings::default());
        assert_eq!(run(&mut before, 0.0, 3.0 * DAY, 1.0), [""; 0]);
        let mut after = restarted(&before.save(), 3.0 * DAY);
        assert_eq!(run(&mut after, 3.0 * DAY, 3.0 * DAY + 600.0, 2.0), ["ttft_doubled"]);
        let mut forgetful = Detectors::new(Settings::default());
        assert_eq!(run(&mut forgetful, 3.0 * DAY, 3.0 * DAY + 600.0, 2.0), [""; 0]);
    }

    #[test]
    fn a_finding_survives_a_restart_with_what_was_said_of_it() {
        let mut before = Detectors::new(Settings::default());
        assert_eq!(run(&mut before, 0.0, 3.0 * DAY, 1.0), [""; 0]);
        assert_eq!(run(&mut before, 3.0 * DAY, 3.0 * DAY + 600.0, 2.0), ["ttft_doubled"]);
        let id = before.active().next().unwrap().id();
        assert!(before.acknowledge(&id, true).is_some());
        let mut after = restarted(&before.save(), 3.0 * DAY + 600.0);
        let known = after.active().next().unwrap();
        assert_eq!((known.id(), known.is_acknowledged), (id.clone(), true));
        let late = restarted(&before.save(), 3.0 * DAY + 4200.0);
        assert_eq!(late.active().count(), 0, "its half hour is over");
        let evidence = &before.active().next().unwrap().evidence;
        assert!(known.evidence.iter().map(|(name, _)| name).eq(evidence.iter().map(|(name, _)| name)));
        assert_eq!(run(&mut after, 3.0 * DAY + 600.0, 3.0 * DAY + 900.0, 2.0), [""; 0], "it is known");
        assert!(after.reset(&id).is_some_and(|ended| ended.id() == id));
        assert_eq!(after.active().count(), 0);
        assert_eq!(run(&mut after, 3.0 * DAY + 900.0, 3.0 * DAY + 3600.0, 2.0), [""; 0], "this is usual now");
    }

    #[test]
    fn the_numbers_of_a_cause_survive_a_restart() {
        let mut before = Detectors::new(Settings::default());
        run(&mut before, 0.0, 3.0 * DAY, 1.0);
        run(&mut before, 3.0 * DAY, 3.0 * DAY + 600.0, 2.0);
        let mut saved = before.save();
        let case = Case::new(Diagnosis::Replica, Tier::Alone).with("replicas_affected", 1.0);
        saved.series[0].findings.0[0].finding.causes = Causes::of(vec![case.with("ratio", f64::INFINITY)]);
        let after = restarted(&saved, 3.0 * DAY + 600.0);
        let found = after.active().next().unwrap();
        assert_eq!(found.diagnosis(), Diagnosis::Replica);
        assert!(found.facts().any(|fact| fact == ("replicas_affected", Fact::Number(1.0))));
    }

    #[test]
    fn what_cannot_be_is_not_believed() {
        let hour = |index: i64| {
            format!(
                "{{\"index\":{index},\"count\":9,\"median\":-3,\"center\":-3,\"p90\":-2,\"spread\":0.4,\"minutes\":60}}"
            )
        };
        let text = format!(
            "{{\"version\":3,\"block\":86400,\"mutes\":[],\"series\":[{{\"route\":\"chat\",\"revision\":\"r1\",\"first_seen\":1e30,\
             \"last_seen\":0,\"ttft\":[[1,[]],[2,[[5,1],[4,1]]],[9223372036854775807,[[5,1]]],[-9,[[5,1]]]],\
             \"ttft_hours\":[{},{}],\"prompts\":[],\"itl\":[],\"itl_hours\":[],\"replicas\":[],\"burn\":{{\"slots\":[]}},\
             \"hours_of_day\":{{\"hours\":{:?}}},\"findings\":[]}}]}}",
            hour(3),
            hour(i64::MAX),
            [[0; 0]; 24]
        );
        let mut detectors = Detectors::new(Settings::default());
        assert_eq!(detectors.restore(serde_json::from_str(&text).unwrap(), 10.0 * DAY), 1);
        let saved = detectors.save();
        assert_eq!((saved.series[0].ttft.iter().count(), saved.series[0].ttft_hours.len()), (0, 1));
        assert_eq!(run(&mut detectors, 10.0 * DAY, 10.1 * DAY, 1.0), [""; 0]);
    }

    #[test]
    fn a_file_of_another_version_is_not_read() {
        let error = serde_json::from_str::<Saved>(r#"{"version":2,"block":86400,"series":[],"mutes":[]}"#)
            .unwrap_err();
        assert!(error.to_string().contains("version 2, not 3"), "{error}");
    }

    #[test]
    fn other_blocks_are_other_baselines() {
        let mut before = Detectors::new(Settings::default());
        run(&mut before, 0.0, DAY, 1.0);
        let settings = Settings { block: 3600.0, ..Settings::default() };
        assert_eq!(Detectors::new(settings).restore(before.save(), DAY), 0);
    }
}
