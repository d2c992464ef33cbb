//! Which pool of a route a request goes to: shares by weight.
//!
//! A session stays with its pool while the weights allow (weighted rendezvous: a change of weights moves only
//! the sessions that it must); everything else is dealt out evenly, so that a canary of 10 % gets one request in
//! ten, not a random number of them. It chooses pools, never replicas.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::rendezvous;

/// The share of a route's new requests that its canary gets, or gets copies of; zero until it is set. Changes take effect with the next
/// request.
#[derive(Debug, Default)]
pub struct CanaryShare(AtomicU32);

impl CanaryShare {
    /// Sets it, in ten thousandths.
    pub fn set(&self, share: u32) {
        self.0.store(share.min(WHOLE), Ordering::Relaxed);
    }

    /// In ten thousandths.
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What the canaries have by route and pool: their shares, or their shadow steps. It outlives a reload.
#[derive(Debug, Default)]
pub struct ByCanary<T>(Mutex<HashMap<CanaryKey, Arc<T>>>);

/// Names of the route and the pool.
type CanaryKey = (Arc<str>, Arc<str>);

impl<T: Default> ByCanary<T> {
    /// That of one canary.
    pub fn of(&self, route: &Arc<str>, pool: &Arc<str>) -> Arc<T> {
        Arc::clone(self.0.lock().entry((Arc::clone(route), Arc::clone(pool))).or_default())
    }

    /// Whether a pool has one as a canary of which this is so.
    pub fn any(&self, pool: &str, is: impl Fn(&T) -> bool) -> bool {
        self.0.lock().iter().any(|((_, canary), its)| **canary == *pool && is(its))
    }

    /// Forgets the others, unless a table still holds them.
    pub fn retain(&self, is_known: impl Fn(&str, &str) -> bool) {
        let is_used = |its: &Arc<_>| Arc::strong_count(its) > 1;
        self.0.lock().retain(|(route, pool), its| is_known(route, pool) || is_used(its));
    }
}

/// The pools of one route with their weights.
#[derive(Debug)]
pub struct PoolWheel {
    weights: Box<[u32]>,
    /// Hashes of their names: a session keeps its pool wherever that stands in the list.
    keys: Box<[u64]>,
    /// Place of the canary's pool; its share goes before the weights.
    canary: Option<(usize, Arc<CanaryShare>)>,
    turn: AtomicU64,
}

impl PoolWheel {
    /// A wheel over pools in the order of the route, by name and weight.
    pub fn new<'n>(pools: impl IntoIterator<Item = (&'n str, u32)>) -> Self {
        let (keys, weights): (Vec<_>, Vec<_>) = pools
            .into_iter()
            .map(|(name, weight)| (rendezvous::identity(SEED, name.as_bytes()), weight))
            .unzip();
        Self { weights: weights.into(), keys: keys.into(), canary: None, turn: AtomicU64::new(0) }
    }

    /// The same with a canary, which gets its share whatever its weight; the others divide the rest by their weights.
    #[must_use]
    pub fn with_canary(mut self, place: usize, share: Arc<CanaryShare>) -> Self {
        self.canary = Some((place, share));
        self
    }

    /// Whether the pool is a canary beside others that serve.
    pub fn tries(&self, place: usize) -> bool {
        self.canary.as_ref().is_some_and(|(canary, share)| *canary == place && share.get() < WHOLE)
    }

    /// Whether a pool gets requests as things are.
    pub fn uses(&self, place: usize) -> bool {
        self.shares().any(|(pool, weight)| pool == place && weight > 0)
    }

    /// Whether a pool may get requests: as things are, or while those that do cannot take them.
    pub fn may_use(&self, place: usize) -> bool {
        self.uses(place) || self.fallbacks().any(|pool| pool == place)
    }

    /// Each pool's share of new requests as things are, 0 to 1, in the order of the route.
    pub fn fractions(&self) -> Vec<f64> {
        let total: u64 = self.shares().map(|(_, weight)| weight).sum();
        self.shares().map(|(_, weight)| weight as f64 / total.max(1) as f64).collect()
    }

    /// The pools that serve while a promoted canary is down: what it replaced is better than an error, for as long as it is there.
    fn fallbacks(&self) -> impl Iterator<Item = usize> {
        let is_promoted = self.canary.as_ref().is_some_and(|(_, share)| share.get() == WHOLE);
        self.weights
            .iter()
            .enumerate()
            .filter(move |(_, weight)| **weight > 0 && is_promoted)
            .map(|(pool, _)| pool)
    }

    /// Weights with the canary's share applied.
    fn shares(&self) -> impl Iterator<Item = (usize, u64)> {
        let canary = self.canary.as_ref().map(|(place, share)| (*place, u64::from(share.get())));
        let weights = || self.weights.iter().map(|weight| u64::from(*weight)).enumerate();
        let baseline: u64 =
            weights().filter(|(pool, _)| canary.is_none_or(|(c, _)| c != *pool)).map(|(_, w)| w).sum();
        weights().map(move |(pool, weight)| match canary {
            None => (pool, weight),
            Some((place, share)) if place == pool => (pool, share * baseline),
            Some((_, share)) => (pool, (u64::from(WHOLE) - share) * weight),
        })
    }

    /// The place of the chosen pool among the route's; `None` when no pool with a weight is available.
    pub fn choose(&self, session: Option<u64>, is_available: impl Fn(usize) -> bool) -> Option<usize> {
        let open = || self.shares().filter(|(pool, weight)| *weight > 0 && is_available(*pool));
        let chosen = match session {
            Some(key) => self.by_session(key, open()),
            None => by_turn(self.turn.fetch_add(GOLDEN, Ordering::Relaxed), open),
        };
        chosen.or_else(|| self.fallbacks().find(|pool| is_available(*pool)))
    }

    fn by_session(&self, session: u64, open: impl Iterator<Item = (usize, u64)>) -> Option<usize> {
        // The smallest of exponential variates with these rates: each pool wins with its share of the weights.
        let wait = |pool: usize, weight: u64| {
            let key = self.keys.get(pool).copied().unwrap_or_default();
            -rendezvous::unit(rendezvous::rank(session, key)).ln() / weight as f64
        };
        open.map(|(pool, weight)| (pool, wait(pool, weight)))
            .min_by(|(_, a), (_, b)| a.total_cmp(b))
            .map(|(pool, _)| pool)
    }
}

fn by_turn<I: Iterator<Item = (usize, u64)>>(turn: u64, open: impl Fn() -> I) -> Option<usize> {
    let total: u64 = open().map(|(_, weight)| weight).sum();
    // The turn is a fraction of 2^64: this is the same fraction of the total.
    let mut point = u64::try_from((u128::from(turn) * u128::from(total)) >> 64).ok()?;
    for (pool, weight) in open() {
        if point < weight {
            return Some(pool);
        }
        point -= weight;
    }
    None
}

/// The same on all gateways.
const SEED: u64 = 0;
/// All requests.
pub const WHOLE: u32 = 10_000;
/// 2^64 divided by the golden ratio: multiples of it fill the circle as evenly as any sequence does.
pub const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

#[cfg(test)]
mod tests {
    use super::*;

    fn wheel(weights: &[u32]) -> PoolWheel {
        PoolWheel::new(["a", "b", "c"].into_iter().zip(weights.iter().copied()))
    }

    fn counts(wheel: &PoolWheel, requests: u64, session: impl Fn(u64) -> Option<u64>) -> Vec<u64> {
        let mut counts = vec![0; wheel.weights.len()];
        for request in 0..requests {
            counts[wheel.choose(session(request), |_| true).unwrap()] += 1;
        }
        counts
    }

    #[test]
    fn requests_are_dealt_by_weight_almost_exactly() {
        let cases: [&[u32]; 4] = [&[1], &[90, 10], &[1, 1, 1], &[100, 0, 50]];
        for weights in cases {
            let total: u32 = weights.iter().sum();
            let found = counts(&wheel(weights), 300, |_| None);
            for (count, weight) in found.iter().zip(weights) {
                let due = 300.0 * f64::from(*weight) / f64::from(total);
                assert!((*count as f64 - due).abs() <= 3.0, "{found:?} for {weights:?}");
            }
        }
    }

    #[test]
    fn sessions_are_shared_by_weight_and_move_only_towards_what_gained() {
        let before = wheel(&[90, 10, 0]);
        let after = wheel(&[90, 20, 0]);
        let share = counts(&before, 10_000, Some)[1];
        assert!((850..1150).contains(&share), "{share} of 10000 sessions");
        for session in 0..2000 {
            let old = before.choose(Some(session), |_| true);
            let new = after.choose(Some(session), |_| true);
            assert!(old == new || new == Some(1), "session {session} moved from {old:?} to {new:?}");
        }
    }

    #[test]
    fn a_session_keeps_its_pool_wherever_that_stands_in_the_list() {
        let before = wheel(&[0, 50, 50]);
        let after = PoolWheel::new([("c", 50), ("b", 50)]);
        for session in 0..2000 {
            let old = before.choose(Some(session), |_| true).map(|at| ["a", "b", "c"][at]);
            let new = after.choose(Some(session), |_| true).map(|at| ["c", "b"][at]);
            assert_eq!(old, new, "session {session}");
        }
    }

    #[test]
    fn a_canary_gets_its_share_and_the_others_divide_the_rest() {
        let share = Arc::new(CanaryShare::default());
        let wheel = wheel(&[30, 90, 0]).with_canary(2, Arc::clone(&share));
        assert_eq!(counts(&wheel, 100, Some)[2], 0);
        assert!(!wheel.uses(2) && wheel.uses(0));
        share.set(2000);
        let found = counts(&wheel, 1000, |_| None);
        for (count, due) in found.iter().zip([200.0, 600.0, 200.0]) {
            assert!((*count as f64 - due).abs() <= 4.0, "{found:?}");
        }
        let before: Vec<_> = (0..1000).map(|s| wheel.choose(Some(s), |_| true)).collect();
        assert_eq!(wheel.fractions(), [0.2, 0.6, 0.2]);
        share.set(5000);
        let after: Vec<_> = (0..1000).map(|s| wheel.choose(Some(s), |_| true)).collect();
        assert!(before.iter().zip(&after).all(|(a, b)| a == b || *b == Some(2)));
        share.set(10_000);
        assert_eq!(counts(&wheel, 100, |_| None), [0, 0, 100]);
        assert_eq!(wheel.choose(None, |pool| pool != 2), Some(0), "what it replaced takes over");
        assert_eq!(
            [0, 1, 2].map(|pool| (wheel.uses(pool), wheel.may_use(pool))),
            [(false, true), (false, true), (true, true)]
        );
        share.set(0);
        assert_eq!(wheel.choose(None, |pool| pool == 2), None);
        assert!(!wheel.may_use(2));
    }

    #[test]
    fn what_is_not_available_gets_nothing() {
        let open = wheel(&[50, 50, 0]);
        for session in [None, Some(1), Some(2), Some(3)] {
            assert_eq!(open.choose(session, |pool| pool != 0), Some(1));
            assert_eq!(open.choose(session, |pool| pool == 2), None);
            assert_eq!(wheel(&[]).choose(session, |_| true), None);
        }
    }
}
