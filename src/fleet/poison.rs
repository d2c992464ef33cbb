//! Requests that kill engines: one that was in flight at two replica deaths is refused for a while.
//!
//! A request is known by its tenant, its prompt and its parameters: what kills may stand beside a prompt that others send as well,
//! and each try may have another id in its body. An attempt that breaks as in a crash makes its request a suspect; the prober
//! confirms the death, or the suspicion lapses. A request that was answered anywhere is none: popular ones are in flight wherever
//! a replica is restarted. Nor is one that shares its deaths with others, as all do that are retried from one dying replica to
//! the next.
//!
//! Gateways before the same replicas share the deaths of a `[cluster]`: n of them would lose 2n engines to one request otherwise.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::replica::Life;
use crate::clock::Stamp;
use crate::request::body::NO_BODY;

/// Suspected requests of one pool, by the hash of tenant, prompt and parameters.
#[derive(Debug)]
pub struct PoisonRequests {
    suspects: Mutex<Vec<Suspect>>,
    deaths: DashMap<u64, Deaths>,
    /// There was one: until then no request looks into the map, which locks each of its shards to find whether it is empty.
    has_deaths: AtomicBool,
    /// Requests that were answered recently, each at the place that its hash names, where a later one takes it over: the hash, with an
    /// [`Answered`] in its lowest bits.
    answered: Box<[AtomicU64]>,
}

/// A request that was in flight when an attempt broke.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    request: u64,
    at: Stamp,
    life: Life,
}

/// The replica deaths at which a request was in flight.
#[derive(Debug, Default)]
struct Deaths {
    of: SmallVec<[Death; 2]>,
    last: Stamp,
}

#[derive(Clone, Copy, Debug)]
struct Death {
    /// Names the URL: all engines behind one die together.
    url: u64,
    /// The life that ended, where this gateway's own attempt broke.
    life: Option<Life>,
    at: Stamp,
}

impl Deaths {
    /// One death counts once, however many streams of a request it broke and whenever. Another gateway does not know the life, and finds the
    /// death sooner or later than this one.
    fn add(&mut self, death: Death) {
        let is_same = |known: &Death| match (known.life, death.life) {
            (Some(known), Some(life)) if known.slot == life.slot => known == life,
            _ => known.url == death.url && death.at.since(known.at) < SUSPECT_FOR,
        };
        if !self.of.iter().any(is_same) {
            self.of.push(death);
        }
        self.last = death.at;
    }
}

impl Default for PoisonRequests {
    fn default() -> Self {
        Self {
            suspects: Mutex::default(),
            deaths: DashMap::new(),
            has_deaths: AtomicBool::new(false),
            answered: (0..ANSWERED).map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

impl PoisonRequests {
    /// An attempt with this request broke.
    pub(super) fn suspect(&self, request: u64, life: Life, now: Stamp) {
        // Nothing in a handshake kills an engine.
        if request == NO_BODY || self.has_answered(request) {
            return;
        }
        let mut suspects = self.suspects.lock();
        suspects.retain(|suspect| now.since(suspect.at) < SUSPECT_FOR);
        if suspects.len() < MAX_SUSPECTS {
            suspects.push(Suspect { request, at: now, life });
        }
    }

    /// The replica in this slot gave the whole answer to this request.
    pub(super) fn answered(&self, request: u64, slot: usize) {
        let in_a_row = self.last_answered(request).map_or(0, |last| last.in_a_row);
        self.note(request, Answered { slot, in_a_row: (in_a_row + 1).min(IN_A_ROW) });
        if self.has_deaths.load(Ordering::Relaxed) {
            self.deaths.remove(&request);
        }
    }

    /// Whether this request was answered recently.
    pub fn has_answered(&self, request: u64) -> bool {
        self.last_answered(request).is_some()
    }

    /// The replica in this slot failed this request. Returns whether that is the replica's doing: the others answer the request, one time
    /// after the other. One that fails a request which it was the last to answer shows that it is the request's.
    pub(super) fn failed_alone(&self, request: u64, slot: usize) -> bool {
        let Some(last) = self.last_answered(request) else { return false };
        if last.slot == slot {
            self.note(request, Answered { in_a_row: 0, ..last });
        }
        last.slot != slot && last.in_a_row >= IN_A_ROW
    }

    fn note(&self, request: u64, answered: Answered) {
        if let Some(place) = self.place(request) {
            place.store(request & !OWN_BITS | answered.bits(), Ordering::Relaxed);
        }
    }

    fn last_answered(&self, request: u64) -> Option<Answered> {
        let bits = self.place(request).filter(|_| request != NO_BODY)?.load(Ordering::Relaxed);
        Answered::of(bits).filter(|_| bits & !OWN_BITS == request & !OWN_BITS)
    }

    fn place(&self, request: u64) -> Option<&AtomicU64> {
        self.answered.get(request as usize % ANSWERED)
    }

    /// The replica in this slot, of this URL, is dead: its suspects were in flight at a death. Returns them, for the other gateways.
    pub(super) fn confirm(&self, slot: usize, url: u64, now: Stamp) -> Vec<u64> {
        let mut confirmed = Vec::new();
        self.suspects.lock().retain(|suspect| {
            let is_confirmed = suspect.life.slot == slot && now.since(suspect.at) < SUSPECT_FOR;
            if is_confirmed && !self.has_answered(suspect.request) {
                let death = Death { url, life: Some(suspect.life), at: now };
                self.add(suspect.request, death);
                confirmed.push(suspect.request);
            }
            !is_confirmed
        });
        self.deaths.retain(|_, deaths| now.since(deaths.last) < REFUSED_FOR);
        confirmed
    }

    fn add(&self, request: u64, death: Death) {
        self.has_deaths.store(true, Ordering::Relaxed);
        self.deaths.entry(request).or_default().add(death);
    }

    /// Another gateway had this request at a replica of this URL when that died.
    pub fn heard(&self, request: u64, url: u64, now: Stamp) {
        if request != NO_BODY && !self.has_answered(request) && self.deaths.len() < MAX_SUSPECTS {
            self.add(request, Death { url, life: None, at: now });
        }
    }

    /// How much longer a request is refused; `None` below two deaths, or where it shares them with others.
    pub fn refused_for(&self, request: u64, now: Stamp) -> Option<Duration> {
        if !self.has_deaths.load(Ordering::Relaxed) {
            return None;
        }
        let left = {
            let deaths = self.deaths.get(&request)?;
            let left = REFUSED_FOR.checked_sub(now.since(deaths.last))?;
            (deaths.of.len() >= 2).then_some(left)?
        };
        let alike = self.deaths.iter().filter(|deaths| deaths.of.len() >= 2).take(MAX_ALIKE + 1).count();
        (alike <= MAX_ALIKE).then_some(left)
    }
}

/// Who answered a request last, and how often it was answered in a row.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Answered {
    slot: usize,
    /// Up to [`IN_A_ROW`].
    in_a_row: u64,
}

impl Answered {
    /// In [`OWN_BITS`], never zero, which is no answer.
    fn bits(self) -> u64 {
        self.in_a_row << SLOT_BITS | (self.slot as u64 + 1) & SLOTS
    }

    fn of(bits: u64) -> Option<Self> {
        let slot = usize::try_from(bits & SLOTS).ok()?.checked_sub(1)?;
        Some(Self { slot, in_a_row: (bits & OWN_BITS) >> SLOT_BITS })
    }
}

/// A death is confirmed within this time of the broken attempt.
const SUSPECT_FOR: Duration = Duration::from_secs(15);
const REFUSED_FOR: Duration = Duration::from_secs(600);
const MAX_SUSPECTS: usize = 10_000;
/// Requests with two deaths each, above which none of them stands out.
const MAX_ALIKE: usize = 2;
/// Answered requests that are remembered: 64 KiB for a pool.
const ANSWERED: usize = 8192;
/// Answers in a row by which a request that fails elsewhere is not to blame: one that is answered half of the time has as many by chance
/// once in 256 times.
const IN_A_ROW: u64 = 8;
/// There are fewer slots.
const SLOT_BITS: u32 = 12;
const SLOTS: u64 = (1 << SLOT_BITS) - 1;
/// The lowest bits of a hash, most of which its place has.
const OWN_BITS: u64 = (1 << (SLOT_BITS + 4)) - 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::seconds as at;

    fn die(poison: &PoisonRequests, slot: usize, requests: &[u64]) {
        for request in requests {
            poison.suspect(*request, Life { slot, number: 1 }, at(1));
        }
        poison.confirm(slot, slot as u64, at(2));
    }

    #[test]
    fn what_has_no_body_is_no_suspect() {
        let poison = PoisonRequests::default();
        // Another request takes the place of what was answered.
        poison.answered(ANSWERED as u64, 0);
        (0..2).for_each(|slot| die(&poison, slot, &[NO_BODY]));
        assert_eq!(poison.refused_for(NO_BODY, at(3)), None);
    }

    #[test]
    fn two_deaths_refuse_a_request_until_it_is_answered() {
        let poison = PoisonRequests::default();
        die(&poison, 0, &[7, 8]);
        assert_eq!(poison.refused_for(7, at(3)), None);
        die(&poison, 1, &[7]);
        assert!(poison.refused_for(7, at(3)).is_some());
        assert_eq!(poison.refused_for(8, at(3)), None);
        poison.answered(7, 0);
        assert_eq!(poison.refused_for(7, at(3)), None);
    }

    #[test]
    fn engines_behind_one_url_die_once() {
        let (poison, other) = (PoisonRequests::default(), PoisonRequests::default());
        let die = |slot: usize, url: u64, from: u64| {
            poison.suspect(7, Life { slot, number: 1 }, at(from));
            poison
                .confirm(slot, url, at(from + 1))
                .into_iter()
                .for_each(|one| other.heard(one, url, at(from + 1)));
        };
        let is_refused = || [&poison, &other].map(|gateway| gateway.refused_for(7, at(9)).is_some());
        (0..4).for_each(|slot| die(slot, 1, 1));
        assert_eq!(is_refused(), [false; 2], "four ranks of one server");
        die(4, 2, 4);
        assert_eq!(is_refused(), [true; 2]);
    }

    #[test]
    fn a_popular_request_that_was_answered_before_is_no_suspect() {
        let poison = PoisonRequests::default();
        poison.answered(7, 0);
        for slot in 0..3 {
            die(&poison, slot, &[7]);
        }
        assert_eq!(poison.refused_for(7, at(3)), None);
    }

    #[test]
    fn requests_that_died_together_twice_do_not_stand_out() {
        let (poison, other) = (PoisonRequests::default(), PoisonRequests::default());
        let requests = || 1..=120;
        for slot in 0..2 {
            for request in requests() {
                poison.suspect(request, Life { slot, number: 1 }, at(1));
            }
            for request in poison.confirm(slot, slot as u64, at(2)).into_iter().rev() {
                other.heard(request, slot as u64, at(2));
            }
        }
        let is_refused =
            |gateway: &PoisonRequests| requests().any(|one| gateway.refused_for(one, at(3)).is_some());
        assert!(!is_refused(&poison) && !is_refused(&other), "here as at another gateway");
    }

    #[test]
    fn a_replica_is_to_blame_for_a_request_that_another_one_answers() {
        let poison = PoisonRequests::default();
        assert!(!poison.failed_alone(7, 0), "no answer yet");
        let answer = |times: u64| (0..times).for_each(|_| poison.answered(7, 1));
        answer(IN_A_ROW - 1);
        assert!(!poison.failed_alone(7, 0), "by chance");
        answer(1);
        assert!(poison.failed_alone(7, 0) && poison.failed_alone(7, 2));
        assert!(!poison.failed_alone(7, 1), "it answered that itself");
        answer(1);
        assert!(!poison.failed_alone(7, 0), "both fail it");
        assert!(poison.has_answered(7));
        answer(IN_A_ROW);
        assert!(poison.failed_alone(7, 0), "that one answers again");
    }
}
