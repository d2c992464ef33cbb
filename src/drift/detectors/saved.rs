//! The baselines of all detectors as plain values, for a file.
//!
//! Saved is what takes longer than minutes to learn: blocks, hours, what is usual for a replica, error budgets, and the
//! findings that hold, with what they are held against. What is read back is checked: no part of the future, no empty part,
//! no unknown bucket. Files of version 1 had other buckets, and are read too.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::active::ActiveFinding;
use super::availability::{BurnWindows, HoursOfDay};
use super::blocks::{BlockHistory, PARTS};
use super::cause::{Case, Causes, SavedCause};
use super::finding::{Fact, Finding, Kind, SeriesName};
use super::hours::{HourHistory, HourSummary, hour_index};
use super::mute::Mute;
use super::replicas::ReplicaHistory;
use super::series::RouteSeries;
use super::signals::Snapshot;
use super::slow::TailBound;
use super::{Detectors, Settings};
use crate::stats::{Counts, Histogram};

/// Baselines of all series.
#[derive(Debug, Deserialize, Serialize)]
pub struct Saved {
    version: u32,
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
    burn: BurnWindows,
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
    evidence: Vec<(String, SavedFact)>,
    acknowledged: bool,
    before: Snapshot,
    bound: Option<TailBound>,
}

#[derive(Debug, Deserialize, Serialize)]
struct SavedReplica {
    name: String,
    parts: Vec<SavedPart>,
    usual: Vec<(f64, f64)>,
}

/// Index of a part, and its buckets: lower edge in microseconds (in version 1 the number of the bin), and count.
type SavedPart = (i64, Vec<(u32, u32)>);

#[derive(Debug, Deserialize, Serialize)]
#[serde(untagged)]
enum SavedFact {
    Number(f64),
    Word(String),
    Names(Vec<String>),
}

impl From<&Fact> for SavedFact {
    fn from(fact: &Fact) -> Self {
        match fact {
            Fact::Number(number) => Self::Number(*number),
            Fact::Word(word) => Self::Word(word.to_string()),
            Fact::Names(names) => Self::Names(names.iter().map(ToString::to_string).collect()),
        }
    }
}

impl From<&SavedFact> for Fact {
    fn from(saved: &SavedFact) -> Self {
        match saved {
            SavedFact::Number(number) => Self::Number(*number),
            SavedFact::Word(word) => Self::Word(word.as_str().into()),
            SavedFact::Names(names) => Self::Names(names.iter().map(|name| name.as_str().into()).collect()),
        }
    }
}

impl Detectors {
    /// What is worth keeping over a restart.
    #[must_use]
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
                .map(|(name, replica)| save_replica(name, replica))
                .collect(),
            predecessor: series.predecessor.as_deref().map(str::to_owned),
            burn: series.burn.clone(),
            hours_of_day: series.hours_of_day.clone(),
            findings: series.active.entries().iter().map(save_finding).collect(),
        });
        Saved { version: VERSION, block: self.settings.block, series: series.collect(), mutes: Vec::new() }
    }

    /// Index of the part of a block that `now` lies in.
    fn latest_part(&self, now: f64) -> i64 {
        (now * PARTS as f64 / self.settings.block).floor() as i64
    }

    /// Takes up what was saved, before anything is observed; returns the number of series. `now` bounds what is believed:
    /// a clock that ran ahead must not freeze a series.
    pub fn restore(&mut self, saved: Saved, now: f64) -> usize {
        let is_ours = (1..=VERSION).contains(&saved.version) && saved.block == self.settings.block;
        if !is_ours || !self.series.is_empty() {
            return 0;
        }
        let file = File { version: saved.version, now, latest: self.latest_part(now) };
        for saved in saved.series.iter().take(self.settings.max_series) {
            let series = file.restore_series(saved, &self.settings);
            self.insert(series);
        }
        self.series.len()
    }
}

/// How to read a file, and what to believe of it.
struct File {
    version: u32,
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
        series.burn = saved.burn.clone().up_to(now);
        series.hours_of_day = saved.hours_of_day.clone().up_to(now);
        let findings = saved.findings.iter().take(MAX_FINDINGS);
        series.active.restore(findings.map(|finding| self.restore_finding(saved, finding)).collect());
        self.restore_blocks(&mut series.itl.blocks, &saved.itl);
        series.ttft.hours = restore_hours(&saved.ttft_hours, now);
        series.itl.hours = restore_hours(&saved.itl_hours, now);
        for saved in saved.replicas.iter().take(settings.max_replicas_per_series) {
            let index = series.replica_index(&saved.name, settings);
            if let Some(replica) = series.replicas.get_mut(index) {
                self.restore_blocks(&mut replica.blocks, &saved.parts);
                replica.restore_usual(&saved.usual);
            }
        }
        series
    }

    fn restore_finding(&self, series: &SavedSeries, saved: &SavedFinding) -> ActiveFinding {
        let first = saved.cause.map(|known| Case::new(known.cause, known.grounds));
        let evidence = saved.evidence.iter().map(|(name, fact)| (Cow::Owned(name.clone()), fact.into()));
        let finding = Finding {
            at: saved.at.min(self.now),
            kind: saved.kind,
            series: SeriesName {
                route: series.route.as_str().into(),
                revision: series.revision.as_str().into(),
                replica: saved.replica.as_deref().map(Arc::from),
            },
            causes: Causes { first, runner_up: None },
            evidence: evidence.collect(),
            is_acknowledged: saved.acknowledged,
        };
        let bound = saved.bound.map(|bound| match self.version {
            1 => TailBound { from: (edge_of_bin(f64::from(bound.from)) * 1e6) as u32, ..bound },
            _ => bound,
        });
        let last_seen = saved.last_seen.min(self.now);
        ActiveFinding { finding, last_seen, before: saved.before.clone(), bound }
    }

    fn restore_blocks(&self, blocks: &mut BlockHistory, parts: &[SavedPart]) {
        for (index, buckets) in parts.iter().filter(|(index, _)| (0..self.latest).contains(index)) {
            let part = if self.version == 1 { of_bins(buckets) } else { Counts::restore(buckets) };
            if let Some(part) = part {
                blocks.restore(*index, part);
            }
        }
    }
}

/// Counts of bins as version 1 had them, spread evenly over each; `None` where none is known or they are out of order.
fn of_bins(bins: &[(u32, u32)]) -> Option<Counts> {
    let mut histogram = Histogram::default();
    for (bin, count) in bins.iter().filter(|(bin, _)| *bin < BINS) {
        for quarter in 0..4_u32 {
            let middle = edge_of_bin(f64::from(*bin) + (f64::from(quarter) + 0.5) / 4.0);
            histogram.add(Duration::from_secs_f64(middle), count.saturating_add(quarter) / 4);
        }
    }
    let is_valid = bins.is_sorted_by(|a, b| a.0 < b.0) && histogram.count() > 0;
    is_valid.then(|| histogram.take().coarse())
}

/// Lower edge of a bin of version 1, in seconds: 20 to an octave, from 10 microseconds on.
fn edge_of_bin(bin: f64) -> f64 {
    1e-5 * (bin / 20.0).exp2()
}

fn save_finding(active: &ActiveFinding) -> SavedFinding {
    let finding = &active.finding;
    SavedFinding {
        at: finding.at,
        last_seen: active.last_seen,
        kind: finding.kind,
        replica: finding.series.replica.as_deref().map(str::to_owned),
        cause: finding
            .causes
            .first
            .as_ref()
            .map(|case| SavedCause { cause: case.cause, grounds: case.grounds }),
        evidence: finding.evidence.iter().map(|(name, fact)| (name.to_string(), fact.into())).collect(),
        acknowledged: finding.is_acknowledged,
        before: active.before.clone(),
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
    SavedReplica {
        name: name.to_owned(),
        parts: save_blocks(&replica.blocks),
        usual: replica.usual().collect(),
    }
}

const VERSION: u32 = 2;
/// Bins of version 1.
const BINS: u32 = 560;
/// Findings of a series that are believed: one of each kind, and one for each replica.
const MAX_FINDINGS: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drift::detectors::Observation;
    use crate::record::Outcome;

    const DAY: f64 = 86_400.0;

    fn run(detectors: &mut Detectors, from: f64, to: f64, factor: f64) -> Vec<&'static str> {
        let mut random = fastrand::Rng::with_seed(from as u64 + 1);
        let (mut at, mut new) = (from, Vec::new());
        while at < to {
            let ttft = 0.06 * factor * (0.47 * crate::stats::normal(&mut random)).exp();
            let observation = Observation {
                at,
                route: "chat",
                revision: "r1",
                replica: if random.bool() { "a" } else { "b" },
                ttft: Some(ttft),
                itl: Some(0.02),
                prompt: None,
                predicted: None,
                ttft_bound: None,
                outcome: Outcome::Ok,
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
    fn what_cannot_be_is_not_believed() {
        let hour = |index: i64| {
            format!("{{\"index\":{index},\"count\":9,\"median\":-3,\"center\":-3,\"p90\":-2,\"spread\":0.4}}")
        };
        let text = format!(
            "{{\"version\":1,\"block\":86400,\"series\":[{{\"route\":\"chat\",\"revision\":\"r1\",\"first_seen\":1e30,\
             \"last_seen\":0,\"ttft\":[[1,[[60000,3]]],[2,[[5,1],[4,1]]],[9223372036854775807,[[5,1]]],[-9,[[5,1]]]],\
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
    fn a_file_of_version_1_keeps_its_distributions() {
        let mut before = Detectors::new(Settings::default());
        run(&mut before, 0.0, 2.0 * DAY, 1.0);
        let mut old = before.save();
        // Bin 277 begins at 0.148 s.
        (old.version, old.series[0].ttft) = (1, vec![(3, vec![(240, 30), (277, 7), (300, 3)])]);
        let mut after = Detectors::new(Settings::default());
        assert_eq!(after.restore(old, 2.0 * DAY), 1);
        let parts: Vec<_> = after.series[0].ttft.blocks.parts().collect();
        let [(3, part)] = parts[..] else { panic!("one part") };
        assert_eq!((part.count(), part.count_from(130_000)), (40, 10));
        let in_bin = 1e-5 * (240.5_f64 / 20.0).exp2();
        assert!((part.ln_quantile(0.4).unwrap().exp() / in_bin - 1.0).abs() < 0.02);
    }

    #[test]
    fn other_blocks_are_other_baselines() {
        let mut before = Detectors::new(Settings::default());
        run(&mut before, 0.0, DAY, 1.0);
        let settings = Settings { block: 3600.0, ..Settings::default() };
        assert_eq!(Detectors::new(settings).restore(before.save(), DAY), 0);
    }
}
