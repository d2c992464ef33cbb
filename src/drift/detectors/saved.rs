//! The baselines of all detectors as plain values, for a file.
//!
//! Only what takes days to learn is saved: blocks, hours, what is usual for a replica. Windows of minutes and findings
//! are not. What is read back is believed only as far as it can be checked: no part of the future, no empty part.

use serde::{Deserialize, Serialize};

use super::blocks::Blocks;
use super::histogram::{BINS, Sparse};
use super::hours::{Hour, Hours};
use super::peers::Peer;
use super::series::Series;
use super::{Detectors, Observation, Settings};
use crate::record::Outcome;

/// What the detectors know.
#[derive(Debug, Deserialize, Serialize)]
pub struct Saved {
    version: u32,
    /// Other blocks are other baselines.
    block: f64,
    series: Vec<SavedSeries>,
}

#[derive(Debug, Deserialize, Serialize)]
struct SavedSeries {
    route: String,
    revision: String,
    first_seen: f64,
    last_seen: f64,
    ttft: Vec<SavedPart>,
    ttft_hours: Vec<Hour>,
    residual: Vec<SavedPart>,
    itl: Vec<SavedPart>,
    itl_hours: Vec<Hour>,
    replicas: Vec<SavedPeer>,
}

#[derive(Debug, Deserialize, Serialize)]
struct SavedPeer {
    name: String,
    parts: Vec<SavedPart>,
    usual: Vec<(f64, f64)>,
}

/// Its index and its bins.
type SavedPart = (i64, Vec<(u16, u32)>);

impl Detectors {
    /// What is worth keeping over a restart.
    #[must_use]
    pub fn save(&self) -> Saved {
        let series = self.series.iter().zip(&self.last_seen);
        let series = series.map(|(series, last_seen)| SavedSeries {
            route: series.route.to_string(),
            revision: series.revision.to_string(),
            first_seen: series.first_seen,
            last_seen: *last_seen,
            ttft: parts(&series.ttft),
            ttft_hours: series.ttft_hours.past().copied().collect(),
            residual: parts(&series.residual),
            itl: parts(&series.itl),
            itl_hours: series.itl_hours.past().copied().collect(),
            replicas: series
                .names
                .iter()
                .zip(&series.peers)
                .map(|(name, peer)| saved_peer(name, peer))
                .collect(),
        });
        Saved { version: VERSION, block: self.settings.block, series: series.collect() }
    }

    /// Takes up what was saved, before anything is observed; returns how many series it was. `now` bounds what is
    /// believed: a clock that ran ahead must not freeze a series.
    pub fn restore(&mut self, saved: Saved, now: f64) -> usize {
        let is_ours = saved.version == VERSION && saved.block == self.settings.block;
        if !is_ours || !self.series.is_empty() {
            return 0;
        }
        for saved in saved.series.into_iter().take(self.settings.series) {
            let seen = Observation {
                at: saved.first_seen.min(now),
                route: &saved.route,
                revision: &saved.revision,
                replica: "none",
                ttft: None,
                itl: None,
                predicted: None,
                ttft_bound: None,
                outcome: Outcome::Canceled,
            };
            let mut series = Series::new(&seen, &self.settings);
            restore_into(&mut series, &saved, (now, &self.settings));
            self.place(series, saved.last_seen.min(now));
        }
        self.series.len()
    }
}

fn restore_into(series: &mut Series, saved: &SavedSeries, now: (f64, &Settings)) {
    let (now, settings) = now;
    let latest = (now * super::blocks::PARTS as f64 / settings.block).floor() as i64;
    for (blocks, parts) in [
        (&mut series.ttft, &saved.ttft),
        (&mut series.residual, &saved.residual),
        (&mut series.itl, &saved.itl),
    ] {
        restore_blocks(blocks, parts, latest);
    }
    series.ttft_hours = restored_hours(&saved.ttft_hours, now);
    series.itl_hours = restored_hours(&saved.itl_hours, now);
    for replica in saved.replicas.iter().take(settings.replicas_per_series) {
        let place = series.place(&replica.name, settings);
        if let Some(peer) = series.peers.get_mut(place) {
            restore_blocks(&mut peer.blocks, &replica.parts, latest);
            peer.restore_usual(&replica.usual);
        }
    }
}

fn restored_hours(saved: &[Hour], now: f64) -> Hours {
    let latest = (now / super::hours::HOUR).floor() as i64;
    let mut hours = Hours::default();
    saved.iter().filter(|hour| hour.index < latest).for_each(|hour| hours.restore(*hour));
    hours
}

fn restore_blocks(blocks: &mut Blocks, parts: &[SavedPart], latest: i64) {
    for (index, bins) in parts.iter().filter(|(index, _)| (0..latest).contains(index)) {
        let known = bins.iter().copied().filter(|(bin, count)| usize::from(*bin) < BINS && *count > 0);
        let bins: Box<[(u16, u32)]> = known.collect();
        let total: u64 = bins.iter().map(|(_, count)| u64::from(*count)).sum();
        if total > 0 && bins.is_sorted_by(|a, b| a.0 < b.0) {
            blocks.restore(*index, Sparse { bins, total });
        }
    }
}

fn parts(blocks: &Blocks) -> Vec<SavedPart> {
    blocks.parts().map(|(index, part)| (*index, part.bins.to_vec())).collect()
}

fn saved_peer(name: &str, peer: &Peer) -> SavedPeer {
    SavedPeer { name: name.to_owned(), parts: parts(&peer.blocks), usual: peer.usual().collect() }
}

const VERSION: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: f64 = 86_400.0;

    fn run(detectors: &mut Detectors, from: f64, to: f64, factor: f64) -> Vec<&'static str> {
        let mut random = fastrand::Rng::with_seed(from as u64 + 1);
        let (mut at, mut new) = (from, Vec::new());
        while at < to {
            let ttft = 0.06 * factor * (0.47 * super::super::scale::normal(&mut random)).exp();
            let observation = Observation {
                at,
                route: "chat",
                revision: "r1",
                replica: if random.bool() { "a" } else { "b" },
                ttft: Some(ttft),
                itl: Some(0.02),
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
    fn other_blocks_are_other_baselines() {
        let mut before = Detectors::new(Settings::default());
        run(&mut before, 0.0, DAY, 1.0);
        let settings = Settings { block: 3600.0, ..Settings::default() };
        assert_eq!(Detectors::new(settings).restore(before.save(), DAY), 0);
    }
}
