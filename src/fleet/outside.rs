//! What an outside pool (`[pool.outside]`) may still get: its own limits, whoever asks.

use parking_lot::Mutex;

use super::pool::PoolState;
use crate::clock::Stamp;
use crate::config::Outside;
use crate::stats::{Refill, TokenBucket};
use crate::units::Tokens;

/// What it got, kept over reloads.
#[derive(Debug, Default)]
pub(super) struct OutsideUse(Mutex<[TokenBucket; 2]>);

impl PoolState {
    /// Whether it may get another request: always, unless it is an outside one at its limit.
    #[must_use]
    pub fn has_room(&self, now: Stamp) -> bool {
        let config = self.config.load();
        let Some(outside) = &config.outside else { return true };
        let buckets = self.outside.0.lock();
        limits(outside).into_iter().zip(&*buckets).all(|(per_minute, bucket)| {
            per_minute.is_none_or(|most| bucket.check(1.0, &Refill::per_minute(most), now).is_ok())
        })
    }

    /// It gets a request with a prompt of that length.
    pub fn charge_outside(&self, prompt: Tokens, now: Stamp) {
        let config = self.config.load();
        let Some(outside) = &config.outside else { return };
        let mut buckets = self.outside.0.lock();
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
