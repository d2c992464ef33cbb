//! How fast the streams of one replica move of late: mean time per token, and for how long it has been an outlier.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::outliers::{SLOW, TOO_SLOW};
use crate::clock::Stamp;
use crate::record::Gap;

/// Recent pace of a replica's streams; lock-free, a lost update is one second of one stream.
#[derive(Debug, Default)]
pub struct Speed {
    /// Seconds per token, as bits.
    itl: AtomicU64,
    noted_at: AtomicU64,
    /// Looks in a row at which it was slow, and too slow.
    slow_looks: AtomicU32,
    too_slow_looks: AtomicU32,
}

impl Speed {
    /// The gaps of one stream, merged about once a second.
    pub fn note(&self, gaps: &[Gap], now: Stamp) {
        let tokens: u32 = gaps.iter().map(|gap| gap.tokens.unwrap_or(1).max(1)).sum();
        if tokens == 0 {
            return;
        }
        let mean = gaps.iter().map(|gap| gap.length.as_secs_f64()).sum::<f64>() / f64::from(tokens);
        let itl = match self.itl(now) {
            Some(before) => before + LEARNED * (mean - before),
            None => mean,
        };
        self.itl.store(itl.to_bits(), Ordering::Relaxed);
        self.noted_at.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Mean seconds per token; `None` without streams of late.
    pub fn itl(&self, now: Stamp) -> Option<f64> {
        let at = Stamp::from_nanos(self.noted_at.load(Ordering::Relaxed));
        let is_fresh = at != Stamp::default() && now.since(at) < VALID_FOR;
        is_fresh.then(|| f64::from_bits(self.itl.load(Ordering::Relaxed)))
    }

    /// Notes one look at its slowness beside its peers: what lasts counts.
    pub fn looked(&self, slowness: f64) -> Lasting {
        let slow = count(&self.slow_looks, slowness >= SLOW);
        let too_slow = count(&self.too_slow_looks, slowness >= TOO_SLOW);
        if too_slow >= OUT_AFTER {
            Lasting::TooSlow
        } else if slow >= SLOW_AFTER {
            Lasting::Slow
        } else {
            Lasting::Ordinary
        }
    }

    /// Starts to count anew.
    pub fn forget(&self) {
        self.slow_looks.store(0, Ordering::Relaxed);
        self.too_slow_looks.store(0, Ordering::Relaxed);
    }
}

/// What the looks of the last seconds have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    Ordinary,
    /// It should get less than its share.
    Slow,
    /// It should get nothing.
    TooSlow,
}

fn count(looks: &AtomicU32, is_so: bool) -> u32 {
    if is_so {
        return looks.fetch_add(1, Ordering::Relaxed) + 1;
    }
    looks.store(0, Ordering::Relaxed);
    0
}

/// Between two looks.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Three seconds.
const SLOW_AFTER: u32 = 15;
/// Ten seconds.
const OUT_AFTER: u32 = 50;
/// Weight of one second of one stream.
const LEARNED: f64 = 0.3;
const VALID_FOR: Duration = Duration::from_secs(10);
