//! How long KV takes from the replica that computed a prompt to the one that decodes it, and which pairs of replicas can do it.
//!
//! One fit for all pairs of a route: seconds of a transfer, and more per thousand tokens. The first transfer of a pair shakes
//! hands first, which takes seconds: it is learned apart, and priced at a part, because it is paid once. A pair whose transfer
//! failed is avoided for a while that doubles with each failure in a row; then one request tries it again. So is one that has a
//! transfer late, as long as it is: what is sent after it would wait as well.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{RwLock, RwLockReadGuard};

use super::fit::{Fit, dot};
use crate::clock::Stamp;
use crate::routing::float::MAX_SPAN;
use crate::routing::tuning::{memories, prices, priors};
use crate::units::Tokens;

/// What is known of transfers between the replicas of two pools. A replica is its [`crate::routing::rendezvous::identity`].
#[derive(Debug)]
pub struct Transfers(RwLock<Book>);

#[derive(Debug)]
struct Book {
    fit: Fit<2>,
    /// Of the fit: seconds of a transfer, and of a thousand tokens.
    rates: [f64; 2],
    /// Seconds that the first transfer of a pair takes beyond that.
    handshake: f64,
    pairs: HashMap<Pair, State>,
}

/// The replica that computes, and the one that decodes.
pub type Pair = (u64, u64);

#[derive(Debug, Default)]
struct State {
    has_worked: bool,
    /// In a row.
    failures: u32,
    avoided_until: Stamp,
    /// From when on each transfer that is under way is late.
    due: Vec<Stamp>,
}

impl State {
    fn is_avoided(&self, now: Stamp) -> bool {
        now < self.avoided_until || self.due.iter().any(|due| *due < now)
    }
}

/// A transfer that is under way, until it is dropped.
#[derive(Debug)]
pub struct UnderWay {
    transfers: Arc<Transfers>,
    pair: Pair,
    due: Stamp,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut book = self.transfers.0.write();
        let Some(state) = book.pairs.get_mut(&self.pair) else { return };
        if let Some(at) = state.due.iter().position(|due| *due == self.due) {
            state.due.swap_remove(at);
        }
    }
}

impl Default for Transfers {
    fn default() -> Self {
        let fit = Fit::new(1.0 - memories::LEARNED);
        let (rates, handshake) = (priors::TRANSFER, priors::HANDSHAKE);
        Self(RwLock::new(Book { fit, rates, handshake, pairs: HashMap::new() }))
    }
}

impl Transfers {
    /// What is known from this replica on; holds a read lock.
    pub fn from(&self, prefill: u64, now: Stamp) -> Links<'_> {
        Links { book: self.0.read(), prefill, now }
    }

    /// A transfer begins, whose first token is expected after so many seconds. `None` for a pair that has still to shake hands:
    /// how long that takes is not known.
    pub fn begin(self: &Arc<Self>, pair: Pair, expected: f64, now: Stamp) -> Option<UnderWay> {
        let mut book = self.0.write();
        let state = book.pairs.get_mut(&pair).filter(|state| state.has_worked)?;
        let due = now.after(LATE_AFTER).after(Duration::try_from_secs_f64(LATE_TIMES * expected).ok()?);
        state.due.push(due);
        Some(UnderWay { transfers: Arc::clone(self), pair, due })
    }

    /// A transfer of `tokens` worked; `seconds` is absent where it was not timed.
    pub fn worked(&self, pair: Pair, tokens: Tokens, seconds: Option<f64>) {
        let mut book = self.0.write();
        if book.pairs.len() >= MAX_PAIRS {
            book.pairs.clear();
        }
        let state = book.pairs.entry(pair).or_default();
        let is_first = !std::mem::replace(&mut state.has_worked, true);
        (state.failures, state.avoided_until) = (0, Stamp::default());
        let Some(seconds) = seconds.filter(|seconds| seconds.is_finite()) else { return };
        let causes = causes(tokens);
        if is_first {
            let beyond = (seconds - dot(&book.rates, &causes)).max(0.0);
            book.handshake += HANDSHAKE_LEARNED * (beyond - book.handshake);
        } else {
            book.fit.observe(&causes, seconds, &priors::TRANSFER);
            book.rates = book.fit.rates(&priors::TRANSFER);
        }
    }

    /// A transfer failed: the pair is avoided, for longer each time, until one has worked. Whether it was the first in a row.
    pub fn failed(&self, pair: Pair, now: Stamp) -> bool {
        let mut book = self.0.write();
        let state = book.pairs.entry(pair).or_default();
        state.failures = state.failures.saturating_add(1);
        let longer = 1 << state.failures.min(MAX_DOUBLINGS).saturating_sub(1);
        state.avoided_until = now.after(memories::RECENT * longer);
        state.has_worked = false;
        state.failures == 1
    }

    /// A request tries a pair that had failed: others wait for what becomes of it.
    pub fn tries(&self, pair: Pair, now: Stamp) {
        if self.0.read().pairs.get(&pair).is_some_and(|state| state.failures > 0)
            && let Some(state) = self.0.write().pairs.get_mut(&pair)
        {
            state.avoided_until = now.after(memories::RECENT);
        }
    }
}

/// What is known of transfers from one replica.
#[derive(Debug)]
pub struct Links<'a> {
    book: RwLockReadGuard<'a, Book>,
    prefill: u64,
    now: Stamp,
}

impl Links<'_> {
    /// Predicted seconds of a transfer to a replica. Far above any other price where the pair is avoided.
    pub fn seconds(&self, decode: u64, tokens: Tokens) -> f64 {
        let transfer = dot(&self.book.rates, &causes(tokens));
        match self.book.pairs.get(&(self.prefill, decode)) {
            _ if self.is_avoided(decode) => transfer + MAX_SPAN.as_secs_f64(),
            Some(state) if state.has_worked => transfer,
            _ => transfer + prices::HANDSHAKE_SHARE * self.book.handshake,
        }
    }

    /// Whether its last transfer to a replica failed, a short while ago, or one that is under way is late. A replica of both pools has
    /// nothing to fetch from itself.
    pub fn is_avoided(&self, decode: u64) -> bool {
        let state = || self.book.pairs.get(&(self.prefill, decode));
        decode == self.prefill || state().is_some_and(|state| state.is_avoided(self.now))
    }
}

fn causes(tokens: Tokens) -> [f64; 2] {
    [1.0, tokens.0 as f64 / 1000.0]
}

/// Longer than a full batch delays a transfer that nothing is wrong with, ...
const LATE_AFTER: Duration = Duration::from_secs(2);
/// ... and as many times what was expected of queue and transfer.
pub const LATE_TIMES: f64 = 4.0;
/// Up to 10 s · 2⁵, some five minutes.
const MAX_DOUBLINGS: u32 = 6;
/// Handshakes are few.
const HANDSHAKE_LEARNED: f64 = 0.3;
/// Beyond any two pools that see each other's traffic.
const MAX_PAIRS: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::seconds as at;

    #[test]
    fn seconds_per_token_are_learned_and_a_handshake_is_no_part_of_them() {
        let transfers = Transfers::default();
        transfers.worked((1, 2), Tokens(1500), Some(6.0));
        for round in 0..40 {
            let tokens = 500 + 100 * (round % 20);
            transfers.worked((1, 2), Tokens(tokens), Some(0.05 + 0.0001 * tokens as f64));
        }
        let links = transfers.from(1, at(1));
        for tokens in [1000, 4000] {
            let expected = 0.05 + 0.0001 * tokens as f64;
            let seconds = links.seconds(2, Tokens(tokens));
            assert!((seconds - expected).abs() < 0.1 * expected, "{seconds} for {tokens}");
        }
        let (new, known) = (links.seconds(3, Tokens(1000)), links.seconds(2, Tokens(1000)));
        assert!(new > known + 0.05 && new < known + 1.0, "{new} {known}");
    }

    #[test]
    fn a_pair_is_avoided_while_one_of_its_transfers_is_late() {
        let transfers = Arc::new(Transfers::default());
        let is_avoided = |now| transfers.from(1, at(now)).is_avoided(2);
        assert!(transfers.begin((1, 2), 0.1, at(0)).is_none(), "hands are still to be shaken");
        transfers.worked((1, 2), Tokens(10), None);
        let [first, second] = [10, 11].map(|now| transfers.begin((1, 2), 0.5, at(now)));
        assert!(!is_avoided(14) && is_avoided(15));
        assert!(!transfers.from(3, at(15)).is_avoided(2), "the pair, not the replica");
        drop(first);
        assert!(!is_avoided(15) && is_avoided(16));
        drop(second);
        assert!(!is_avoided(16));
        assert!(transfers.from(2, at(16)).is_avoided(2), "itself");
    }

    #[test]
    fn a_pair_that_failed_is_avoided_until_it_is_tried_and_works() {
        let transfers = Transfers::default();
        let is_avoided = |now| transfers.from(1, at(now)).is_avoided(2);
        assert!(!is_avoided(0));
        assert!(transfers.failed((1, 2), at(100)));
        assert!(is_avoided(109) && !is_avoided(110) && !transfers.from(1, at(105)).is_avoided(3));
        assert!(transfers.from(1, at(105)).seconds(2, Tokens(10)) > 1e3);
        transfers.tries((1, 2), at(110));
        assert!(is_avoided(111), "one at a time");
        assert!(!transfers.failed((1, 2), at(112)), "avoided since the first");
        assert!(is_avoided(131) && !is_avoided(132), "twice as long");
        transfers.tries((1, 2), at(132));
        transfers.worked((1, 2), Tokens(10), None);
        assert!(!is_avoided(133));
        for _ in 0..40 {
            transfers.failed((1, 2), at(200));
        }
        assert!(is_avoided(500) && !is_avoided(521), "five minutes at most");
    }
}
