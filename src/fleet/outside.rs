//! What an outside pool (`[pool.outside]`) may still get: its own limits, whoever asks.

use parking_lot::Mutex;

use crate::clock::Stamp;
use crate::config::Outside;
use crate::stats::{Refill, TokenBucket};
use crate::units::Tokens;

/// What it got, kept over reloads.
#[derive(Debug, Default)]
pub(super) struct OutsideUse(Mutex<[TokenBucket; 2]>);

impl OutsideUse {
    /// Whether a request fits into the limits.
    pub(super) fn has_room(&self, outside: &Outside, now: Stamp) -> bool {
        let buckets = self.0.lock();
        limits(outside).into_iter().zip(&*buckets).all(|(per_minute, bucket)| {
            per_minute.is_none_or(|most| bucket.check(1.0, &Refill::per_minute(most), now).is_ok())
        })
    }

    /// A request with a prompt of that length goes there.
    pub(super) fn charge(&self, outside: &Outside, prompt: Tokens, now: Stamp) {
        let mut buckets = self.0.lock();
        let amounts = [1.0, prompt.0 as f64];
        for ((per_minute, bucket), amount) in limits(outside).into_iter().zip(&mut *buckets).zip(amounts) {
            if let Some(most) = per_minute {
                bucket.charge(amount, &Refill::per_minute(most), now);
            }
        }
    }
}

fn limits(outside: &Outside) -> [Option<u64>; 2] {
    [outside.requests_per_minute, outside.tokens_per_minute]
}
