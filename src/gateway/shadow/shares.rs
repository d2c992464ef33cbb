//! How much of a route's requests is copied for its canary, and how many copies there may be at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio_util::sync::CancellationToken;

use crate::config::CanaryShadow;
use crate::routing::{ByCanary, CanaryShare, GOLDEN, WHOLE, rendezvous};

/// Shadow steps of all canaries.
#[derive(Debug, Default)]
pub struct Shadows {
    /// Each canary's own.
    pub by_canary: ByCanary<Shadow>,
    /// Copies end when it is cancelled.
    pub(super) stop: CancellationToken,
}

/// The shadow step of one canary.
#[derive(Debug, Default)]
pub struct Shadow {
    /// Of the requests that are copied.
    pub share: CanaryShare,
    turn: AtomicU64,
    /// Copies under way, ...
    copies: AtomicUsize,
    /// ... and the bytes of their bodies.
    bytes: AtomicUsize,
}

impl Shadows {
    /// Copies end when `stop` is cancelled.
    pub fn new(stop: CancellationToken) -> Self {
        Self { by_canary: ByCanary::default(), stop }
    }
}

impl Shadow {
    /// Whether this request is copied. Those of one conversation are, or are not, together: its next turn finds the last one's
    /// prompt in the canary's cache, as it does in the baseline's.
    pub(super) fn is_due(&self, conversation: Option<u64>) -> bool {
        let share = self.share.get();
        if share == 0 {
            return false;
        }
        let point = match conversation {
            Some(key) => rendezvous::unit(rendezvous::rank(key, OWN_CIRCLE)),
            None => rendezvous::unit(self.turn.fetch_add(GOLDEN, Ordering::Relaxed)),
        };
        point * f64::from(WHOLE) < f64::from(share)
    }

    /// A place for a copy with a body of so many bytes, or which bound it is over.
    pub(super) fn reserve(
        self: &Arc<Self>,
        limits: &CanaryShadow,
        bytes: usize,
    ) -> Result<Place, &'static str> {
        let within = |counter: &AtomicUsize, more: usize, most: usize| {
            let add = |now: usize| now.checked_add(more).filter(|sum| *sum <= most);
            counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
        };
        if !within(&self.copies, 1, limits.max_concurrent) {
            return Err("over_max_concurrent");
        }
        let mut place = Place { shadow: Arc::clone(self), bytes: 0 };
        if !within(&self.bytes, bytes, limits.max_bytes) {
            return Err("over_max_bytes");
        }
        place.bytes = bytes;
        Ok(place)
    }
}

/// What a copy holds; given back on drop.
#[derive(Debug)]
pub(super) struct Place {
    shadow: Arc<Shadow>,
    bytes: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shadow.copies.fetch_sub(1, Ordering::Relaxed);
        self.shadow.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Conversations are dealt to copies apart from how they are dealt to pools.
const OWN_CIRCLE: u64 = 0x005a_d0b5;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_share_of_requests_is_copied_and_conversations_as_a_whole() {
        let shadow = Shadow::default();
        assert!((0..100).all(|_| !shadow.is_due(None)));
        shadow.share.set(500);
        let copied = (0..1000).filter(|_| shadow.is_due(None)).count();
        assert!((48..=52).contains(&copied), "{copied} of 1000");
        let conversations = (0..10_000).filter(|key| shadow.is_due(Some(*key))).count();
        assert!((400..600).contains(&conversations), "{conversations} of 10000");
        assert!((0..100).all(|key| shadow.is_due(Some(key)) == shadow.is_due(Some(key))));
        shadow.share.set(WHOLE);
        assert!((0..100).all(|key| shadow.is_due(Some(key)) && shadow.is_due(None)));
    }

    #[test]
    fn copies_and_their_bytes_are_bounded_and_given_back() {
        let limits = CanaryShadow {
            weight: 5,
            soak: Duration::from_secs(1),
            min_requests: 1,
            max_concurrent: 2,
            max_bytes: 100,
        };
        let shadow = Arc::new(Shadow::default());
        let first = shadow.reserve(&limits, 60).unwrap();
        assert_eq!(shadow.reserve(&limits, 60).unwrap_err(), "over_max_bytes");
        let second = shadow.reserve(&limits, 40).unwrap();
        assert_eq!(shadow.reserve(&limits, 0).unwrap_err(), "over_max_concurrent");
        drop((first, second));
        let left = (shadow.copies.load(Ordering::Relaxed), shadow.bytes.load(Ordering::Relaxed));
        assert_eq!(left, (0, 0));
    }
}
