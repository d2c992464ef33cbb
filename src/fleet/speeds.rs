//! What was learned of the speed of a pool and its replicas, with the length of its tokens, for another gateway or the next start.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::pool::PoolState;
use super::replica::Replica;
use super::status::START_TOLERANCE;
use crate::clock::Stamp;
use crate::routing::notice::place;
use crate::routing::{SavedPool, SavedSpeed};
use crate::state_file::Version;

/// Speeds of one pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoolSpeeds {
    version: Version<1>,
    pool: SavedPool,
    replicas: Vec<ReplicaSpeed>,
    /// Bytes per token; none in what former versions kept.
    #[serde(default)]
    ratio: Vec<(f32, f32)>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct ReplicaSpeed {
    /// [`place`] of the replica.
    place: u64,
    /// Start of its process, seconds since 1970, where its page has that.
    start: Option<f64>,
    speed: SavedSpeed,
}

impl PoolState {
    /// What it has learned; `None` while that is little.
    pub fn speeds(&self, now: Stamp) -> Option<PoolSpeeds> {
        let model = &self.dispatcher.model;
        if model.pool.is_young() {
            return None;
        }
        let of = |replica: &Replica| {
            Some(ReplicaSpeed {
                place: place(&self.name, replica.target.identity),
                start: replica.process_start(),
                speed: model.save_replica(replica.slot(), now)?,
            })
        };
        let replicas = self.replicas().iter().filter_map(|replica| of(replica)).collect();
        Some(PoolSpeeds { version: Version, pool: model.pool.save(), replicas, ratio: self.ratio.save() })
    }

    /// Takes over what was learned elsewhere or before, but of replicas that restarted since; returns of how many it did. A pool that
    /// has learned itself takes nothing.
    pub fn take_speeds(&self, speeds: &PoolSpeeds, now: Stamp) -> Option<usize> {
        let model = &self.dispatcher.model;
        if !model.pool.is_young() || !model.pool.restore(&speeds.pool) {
            return None;
        }
        self.ratio.restore(&speeds.ratio);
        let bytes_per_token = self.ratio.bytes_per_token();
        let known: HashMap<u64, &ReplicaSpeed> =
            speeds.replicas.iter().map(|known| (known.place, known)).collect();
        let mut taken = 0;
        for replica in self.replicas().iter() {
            self.dispatcher.learn_cache(&replica.target, bytes_per_token);
            let Some(known) = known.get(&place(&self.name, replica.target.identity)) else { continue };
            let is_another = known
                .start
                .zip(replica.process_start())
                .is_some_and(|(before, start)| (before - start).abs() > START_TOLERANCE);
            if !is_another && model.restore_replica(replica.slot(), &known.speed, now) {
                taken += 1;
            }
        }
        Some(taken)
    }
}
