//! p99 of TTFT over its SLO for more than a minute.
//!
//! p99 is over the bound when more than 1 % of the requests are. At eight requests a minute one slow request is more than
//! that: the share must be over 1 % beyond chance, within one, five or thirty minutes, and stay so for a minute. Counts
//! in slots of ten seconds; each request has its own bound.

use crate::stats::{Ring, ln_binomial_tail};

/// Counts of the last half hour.
#[derive(Clone, Debug, Default)]
pub(super) struct SloSlots {
    slots: Ring<Slot>,
    over_since: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    all: u32,
    over: u32,
    /// When the first and the last request over its bound ended.
    first_over: f64,
    last_over: f64,
}

/// p99 is over the SLO.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SloBreach {
    /// Seconds.
    pub(super) lasted: f64,
    /// Share of the window's requests over their bound.
    pub(super) share: f64,
    /// Requests of the window.
    pub(super) requests: f64,
}

impl SloSlots {
    /// Takes a TTFT and its bound.
    pub(super) fn add(&mut self, at: f64, ttft: f64, bound: f64) {
        let slot = self.slots.at((at / SLOT).floor() as i64, MAX_SLOTS);
        slot.all += 1;
        if ttft > bound {
            if slot.over == 0 {
                slot.first_over = at;
            }
            slot.over += 1;
            slot.last_over = at;
        }
    }

    /// Judges the windows that end now.
    pub(super) fn judge(&mut self, at: f64) -> Option<SloBreach> {
        let Some(window) = WINDOWS.into_iter().find_map(|slots| self.breached(at, slots)) else {
            self.over_since = None;
            return None;
        };
        let since = *self.over_since.get_or_insert(window.first_over);
        // A burst of seconds stays in the windows for minutes, but it did not last for them.
        let lasted = window.last_over - since;
        let (over, requests) = (f64::from(window.over), f64::from(window.all));
        (lasted > MIN_DURATION).then_some(SloBreach { lasted, share: over / requests, requests })
    }

    /// The sum of the last slots, if their p99 is over the bound.
    fn breached(&self, at: f64, slots: i64) -> Option<Slot> {
        let now = (at / SLOT).floor() as i64;
        let inside = || self.slots.range(now - slots + 1, i64::MAX).map(|(_, slot)| slot);
        let mut with_over = inside().filter(|slot| slot.over > 0);
        let first = with_over.next()?;
        let window = Slot {
            all: inside().map(|slot| slot.all).sum(),
            over: inside().map(|slot| slot.over).sum(),
            first_over: first.first_over,
            last_over: with_over.next_back().unwrap_or(first).last_over,
        };
        let (over, all) = (f64::from(window.over), f64::from(window.all));
        (over >= MIN_OVER && ln_binomial_tail(over, all, ALLOWED_SHARE) <= MAX_LN_CHANCE).then_some(window)
    }
}

/// Seconds.
const SLOT: f64 = 10.0;
/// Half an hour.
const MAX_SLOTS: i64 = 180;
/// One minute, five and thirty, in slots: a few requests a minute need the last.
const WINDOWS: [i64; 3] = [6, 30, MAX_SLOTS];
/// p99: 1 % may be over.
pub(super) const ALLOWED_SHARE: f64 = 0.01;
/// Logarithm of the probability of the count at the allowed share.
const MAX_LN_CHANCE: f64 = -9.0;
/// Requests over their bound: two, a minute apart after an idle hour, are improbable and yet no state of affairs.
const MIN_OVER: f64 = 5.0;
/// Seconds.
const MIN_DURATION: f64 = 60.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds from the start of trouble to the finding; `slow` of a hundred requests are over the bound for `lasts`.
    fn found(per_minute: u32, slow: u32, lasts: f64) -> Option<f64> {
        let mut slots = SloSlots::default();
        for request in 0..60 * per_minute {
            let at = f64::from(request) * 60.0 / f64::from(per_minute);
            let trouble = at - 1200.0;
            let is_slow = (0.0..lasts).contains(&trouble) && request % 100 < slow;
            slots.add(at, if is_slow { 0.9 } else { 0.1 }, 0.5);
            if slots.judge(at).is_some() {
                return Some(trouble);
            }
        }
        None
    }

    #[test]
    fn found_after_a_minute_and_not_for_a_single_slow_request() {
        for per_minute in [8, 60, 600] {
            let after = found(per_minute, 100, 600.0).unwrap();
            assert!((60.0..120.0).contains(&after), "{per_minute}: {after}");
            assert_eq!(found(per_minute, 100, 7.0), None, "{per_minute}");
        }
        assert_eq!(found(1, 100, 200.0), None, "four slow ones on an idle gateway");
        assert_eq!(found(600, 1, 3000.0), None);
        assert!(found(600, 10, 3000.0).is_some_and(|after| after < 120.0));
    }
}
