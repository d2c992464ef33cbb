//! The baselines of all detectors as plain values, for a file.
//!
//! Saved is what takes longer than minutes to learn: blocks, hours, what is usual for a replica, error budgets, and the
//! findings that hold, with what they are held against. What is read back is checked: no part of the future, no empty part,
//! no unknown bucket.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::active::ActiveFinding;
use super::blocks::BlockHistory;
use super::burn::{BadRequests, HoursOfDay};
use super::finding::{Fact, Finding, SeriesName};
use super::hours::{HourHistory, HourSummary, hour_index};
use super::kind::Kind;
use super::mute::Mute;
use super::observation::NOT_SERVED;
use super::replicas::ReplicaHistory;
use super::series::RouteSeries;
use super::slow::TailBound;
use super::table::{HOUR, MAX_FINDINGS, PARTS};
use super::{Detectors, Settings};
use crate::diagnosis::{Causes, Onset, SavedCause, Snapshot};
use crate::state_file::Version;
use crate::stats::Counts;

/// Baselines of all series.
#[derive(Debug, Deserialize, Serialize)]
pub struct Saved {
    version: Version<2>,
    /// Seconds; other blocks are other baselines.
    block: f64,
    series: Vec<SavedSeries>,
    /// What nobody is told of, for a while.
    #[serde(default)]
    pub(crate) mutes: Vec<Mute>,
}

#[derive(Debug, Deserialize, Serialize)]
struct SavedSeries {
    route: String,
    revision: String,
    first_seen: f64,
    last_seen: f64,
    ttft: Vec<SavedPart>,
    ttft_hours: Vec<HourSummary>,
    #[serde(default)]
    prompts: Vec<SavedPart>,
    itl: Vec<SavedPart>,
    itl_hours: Vec<HourSummary>,
    replicas: Vec<SavedReplica>,
    #[serde(default)]
    predecessor: Option<String>,
    #[serde(default)]
    burn: BadRequests<60>,
    #[serde(default)]
    hours_of_day: HoursOfDay,
    #[serde(default)]
    findings: Vec<SavedFinding>,
}

#[derive(Debug, Deserialize, Serialize)]
struct SavedFinding {
    at: f64,
    last_seen: f64,
    kind: Kind,
    replica: Option<String>,
    cause: Option<SavedCause>,
    evidence: Vec<(Cow<'static, str>, Fact)>,
    acknowledged: bool,
    before: Snapshot,
    #[serde(default)]
    onset: Option<Onset>,
    bound: Option<TailBound>,
}

#[derive(Debug, Deserialize, Serialize)]
struct SavedReplica {
    name: String,
    parts: Vec<SavedPart>,
    usual: Vec<(f64, f64)>,
    /// Whether those compare the same work.
    #[serde(default)]
    usual_by_work: bool,
}

/// Index of a part, and its buckets: lower edge in microseconds and count.
type SavedPart = (i64, Vec<(u32, u32)>);

impl Detectors {
    /// What is worth keeping over a restart.
    pub fn save(&self) -> Saved {
        let series = self.series.iter().map(|series| SavedSeries {
            route: series.route.to_string(),
            revision: series.revision.to_string(),
            first_seen: series.first_seen,
            last_seen: series.last_seen,
            ttft: save_blocks(&series.ttft.blocks),
            ttft_hours: series.ttft.hours.past().copied().collect(),
            prompts: save_blocks(&series.prompts),
            itl: save_blocks(&series.itl.blocks),
            itl_hours: series.itl.hours.past().copied().collect(),
            replicas: series
                .replica_names
                .iter()
                .zip(&series.replicas)
                .filter(|(_, replica)| series.last_seen - replica.last_seen < KEPT_UNSEEN)
                .map(|(name, replica)| save_replica(name, replica))
                .collect(),
            predecessor: series.predecessor.as_deref().map(str::to_owned),
            burn: series.failed.clone(),
            hours_of_day: series.hours_of_day.clone(),
            findings: series.active.entries().iter().map(save_finding).collect(),
        });
        Saved { version: Version, block: self.settings.block, series: series.collect(), mutes: Vec::new() }
    }

    /// Index of the part of a block that `now` lies in.
    fn latest_part(&self, now: f64) -> i64 {
        (now * PARTS as f64 / self.settings.block).floor() as i64
    }

    /// Takes up what was saved, before anything is observed; returns the number of series. `now` bounds what is believed:
    /// a clock that ran ahead must not freeze a series.
    pub fn restore(&mut self, saved: Saved, now: f64) -> usize {
        let is_ours = saved.block == self.settings.block;
        if !is_ours || !self.series.is_empty() {
            return 0;
        }
        let file = File { now, latest: self.latest_part(now) };
        for saved in saved.series.iter().take(self.settings.max_series) {
            let series = file.restore_series(saved, &self.settings);
            self.insert(series);
        }
        self.series.len()
    }
}

/// What to believe of a file.
struct File {
    now: f64,
    /// Index of the first part that lies in the future.
    latest: i64,
}

impl File {
    fn restore_series(&self, saved: &SavedSeries, settings: &Settings) -> RouteSeries {
        let now = self.now;
        let mut series = RouteSeries::new(&saved.route, &saved.revision, saved.first_seen.min(now), settings);
        series.last_seen = saved.last_seen.min(now);
        self.restore_blocks(&mut series.ttft.blocks, &saved.ttft);
        self.restore_blocks(&mut series.prompts, &saved.prompts);
        series.predecessor = saved.predecessor.as_deref().map(Arc::from);
        series.failed = saved.burn.clone().up_to(now);
        series.hours_of_day = saved.hours_of_day.clone().up_to(now);
        let findings = saved.findings.iter().take(MAX_FINDINGS);
        series.active.restore(findings.map(|finding| self.restore_finding(saved, finding)).collect());
        self.restore_blocks(&mut series.itl.blocks, &saved.itl);
        series.ttft.hours = restore_hours(&saved.ttft_hours, now);
        series.itl.hours = restore_hours(&saved.itl_hours, now);
        // Files of before had the requests that no replica served as one.
        let replicas = saved.replicas.iter().filter(|replica| replica.name != NOT_SERVED);
        for saved in replicas.take(settings.max_replicas_per_series) {
            let index = series.replica_index(&saved.name, series.last_seen, settings);
            if let Some(replica) = index.and_then(|index| series.replicas.get_mut(index)) {
                self.restore_blocks(&mut replica.blocks, &saved.parts);
                replica.restore_usual(&saved.usual, saved.usual_by_work);
            }
        }
        series
    }

    fn restore_finding(&self, series: &SavedSeries, saved: &SavedFinding) -> ActiveFinding {
        let first = saved.cause.as_ref().map(SavedCause::case);
        let finding = Finding {
            at: saved.at.min(self.now),
            kind: saved.kind,
            series: SeriesName {
                route: series.route.as_str().into(),
                revision: series.revision.as_str().into(),
                replica: saved.replica.as_deref().map(Arc::from),
            },
            causes: Causes { first, runner_up: None },
            evidence: saved.evidence.clone(),
            is_acknowledged: saved.acknowledged,
        };
        let last_seen = saved.last_seen.min(self.now);
        ActiveFinding {
            finding,
            last_seen,
            before: saved.before.clone(),
            onset: saved.onset,
            bound: saved.bound,
        }
    }

    fn restore_blocks(&self, blocks: &mut BlockHistory, parts: &[SavedPart]) {
        for (index, buckets) in parts.iter().filter(|(index, _)| (0..self.latest).contains(index)) {
            if let Some(part) = Counts::restore(buckets) {
                blocks.restore(*index, part);
            }
        }
    }
}

fn save_finding(active: &ActiveFinding) -> SavedFinding {
    let finding = &active.finding;
    SavedFinding {
        at: finding.at,
        last_seen: active.last_seen,
        kind: finding.kind,
        replica: finding.series.replica.as_deref().map(str::to_owned),
        cause: finding.causes.first.as_ref().map(SavedCause::of),
        evidence: finding.evidence.clone(),
        acknowledged: finding.is_acknowledged,
        before: active.before.clone(),
        onset: active.onset,
        bound: active.bound,
    }
}

fn restore_hours(saved: &[HourSummary], now: f64) -> HourHistory {
    let mut hours = HourHistory::default();
    saved.iter().filter(|hour| hour.index < hour_index(now)).for_each(|hour| hours.restore(*hour));
    hours
}

fn save_blocks(blocks: &BlockHistory) -> Vec<SavedPart> {
    blocks.parts().map(|(index, part)| (index, part.buckets().to_vec())).collect()
}

fn save_replica(name: &str, replica: &ReplicaHistory) -> SavedReplica {
    let (usual, usual_by_work) = replica.usual();
    SavedReplica { name: name.to_owned(), parts: save_blocks(&replica.blocks), usual, usual_by_work }
}

/// Seconds: replicas that served nothing for so long, while others of the series did, are gone.
const KEPT_UNSEEN: f64 = 24.0 * HOUR;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::{Case, Diagnosis, Tier};
    use crate::drift::detectors::Observation;

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

    #[test]
    fn a_restarted_gateway_knows_what_is_ordinary() {
        let mut before = Detectors::new(Settings::default());
        assert_eq!(run(&mut before, 0.0, 3.0 * DAY, 1.0), [""; 0]);
        let text = serde_json::to_string(&before.save()).unwrap();
        let mut after = Detectors::new(Settings::default());
        assert_eq!(after.restore(serde_json::from_str(&text).unwrap(), 3.0 * DAY), 1);
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
        let text = serde_json::to_string(&before.save()).unwrap();
        let mut after = Detectors::new(Settings::default());
        after.restore(serde_json::from_str(&text).unwrap(), 3.0 * DAY + 600.0);
        let known = after.active().next().unwrap();
        assert_eq!((known.id(), known.is_acknowledged), (id.clone(), true));
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
        let known = &before.series[0].active.entries()[0];
        let causes = Causes::of(vec![case.with("ratio", f64::INFINITY)]);
        let finding = Finding { causes, ..known.finding.clone() };
        let (before, last_seen) = (known.before.clone(), known.last_seen);
        let known = ActiveFinding { finding, last_seen, before, onset: known.onset, bound: known.bound };
        saved.series[0].findings = vec![save_finding(&known)];
        let text = serde_json::to_string(&saved).unwrap();
        let mut after = Detectors::new(Settings::default());
        after.restore(serde_json::from_str(&text).unwrap(), 3.0 * DAY + 600.0);
        let found = after.active().next().unwrap();
        assert_eq!(found.diagnosis(), Diagnosis::Replica);
        assert!(found.facts().any(|fact| fact == ("replicas_affected", Fact::Number(1.0))));
    }

    #[test]
    fn what_cannot_be_is_not_believed() {
        let hour = |index: i64| {
            format!("{{\"index\":{index},\"count\":9,\"median\":-3,\"center\":-3,\"p90\":-2,\"spread\":0.4}}")
        };
        let text = format!(
            "{{\"version\":2,\"block\":86400,\"series\":[{{\"route\":\"chat\",\"revision\":\"r1\",\"first_seen\":1e30,\
             \"last_seen\":0,\"ttft\":[[1,[]],[2,[[5,1],[4,1]]],[9223372036854775807,[[5,1]]],[-9,[[5,1]]]],\
             \"ttft_hours\":[{},{}],\"residual\":[],\"itl\":[],\"itl_hours\":[],\"replicas\":[]}}]}}",
            hour(3),
            hour(i64::MAX)
        );
        let mut detectors = Detectors::new(Settings::default());
        assert_eq!(detectors.restore(serde_json::from_str(&text).unwrap(), 10.0 * DAY), 1);
        let saved = detectors.save();
        assert_eq!((saved.series[0].ttft.len(), saved.series[0].ttft_hours.len()), (0, 1));
        assert_eq!(run(&mut detectors, 10.0 * DAY, 10.1 * DAY, 1.0), [""; 0]);
    }

    #[test]
    fn a_file_of_another_version_is_not_read() {
        let error = serde_json::from_str::<Saved>(r#"{"version":1,"block":86400,"series":[]}"#).unwrap_err();
        assert!(error.to_string().contains("version 1, not 2"), "{error}");
    }

    #[test]
    fn other_blocks_are_other_baselines() {
        let mut before = Detectors::new(Settings::default());
        run(&mut before, 0.0, DAY, 1.0);
        let settings = Settings { block: 3600.0, ..Settings::default() };
        assert_eq!(Detectors::new(settings).restore(before.save(), DAY), 0);
    }
}
