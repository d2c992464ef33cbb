//! Prompts that kill engines: one that was in flight at two replica deaths is refused for a while.
//!
//! A broken attempt makes its prompt a suspect; the prober confirms the death, or the suspicion lapses.

use std::time::Duration;

use dashmap::DashMap;
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::replica::Life;
use crate::clock::Stamp;

/// Suspected prompts of one pool, by the hash of the whole prompt.
#[derive(Debug, Default)]
pub(super) struct PoisonPrompts {
    suspects: Mutex<Vec<Suspect>>,
    deaths: DashMap<u64, Deaths>,
}

/// A prompt that was in flight when an attempt broke.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    prompt: u64,
    at: Stamp,
    life: Life,
}

/// The replica deaths at which a prompt was in flight.
#[derive(Debug, Default)]
struct Deaths {
    of: SmallVec<[Life; 2]>,
    last: Stamp,
}

impl PoisonPrompts {
    /// An attempt with this prompt broke.
    pub(super) fn suspect(&self, prompt: u64, life: Life, now: Stamp) {
        let mut suspects = self.suspects.lock();
        suspects.retain(|suspect| now.since(suspect.at) < SUSPECT_FOR);
        if suspects.len() < MAX_SUSPECTS {
            suspects.push(Suspect { prompt, at: now, life });
        }
    }

    /// The replica in this slot is dead: its suspects were in flight at a death.
    pub(super) fn confirm(&self, slot: usize, now: Stamp) {
        self.suspects.lock().retain(|suspect| {
            let is_confirmed = suspect.life.slot == slot && now.since(suspect.at) < SUSPECT_FOR;
            if is_confirmed {
                let mut deaths = self.deaths.entry(suspect.prompt).or_default();
                // One death counts once, however many streams of a prompt it broke and whenever.
                if !deaths.of.contains(&suspect.life) {
                    deaths.of.push(suspect.life);
                }
                deaths.last = now;
            }
            !is_confirmed
        });
        self.deaths.retain(|_, deaths| now.since(deaths.last) < REFUSED_FOR);
    }

    /// How much longer a prompt is refused; `None` below two deaths.
    pub(super) fn refused_for(&self, prompt: u64, now: Stamp) -> Option<Duration> {
        if self.deaths.is_empty() {
            return None;
        }
        let deaths = self.deaths.get(&prompt)?;
        let left = REFUSED_FOR.checked_sub(now.since(deaths.last))?;
        (deaths.of.len() >= 2).then_some(left)
    }
}

/// A death is confirmed within this time of the broken attempt.
const SUSPECT_FOR: Duration = Duration::from_secs(15);
const REFUSED_FOR: Duration = Duration::from_secs(600);
const MAX_SUSPECTS: usize = 10_000;
