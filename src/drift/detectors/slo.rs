//! p99 of TTFT over its SLO for more than a minute.
//!
//! p99 is over the bound when more than a hundredth of the requests is. At eight requests a minute one slow request is
//! more than that and says nothing: the share must be over a hundredth beyond chance, in the last minute, five or
//! thirty, by more than a handful, and stay so for a minute. Counts in slots of ten seconds; each request has its own bound.

use std::collections::VecDeque;

use super::scale::ln_binomial_tail;

/// Counts of the last half hour.
#[derive(Clone, Debug, Default)]
pub(super) struct SloWatch {
    slots: VecDeque<Slot>,
    over_since: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    index: i64,
    all: u32,
    over: u32,
    /// When the first and the last of them came.
    span: Option<(f64, f64)>,
}

/// p99 is over the SLO.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct OverSlo {
    /// For how long, in seconds.
    pub(super) lasted: f64,
    /// Share of the window's requests over their bound.
    pub(super) share: f64,
    /// Requests of the window.
    pub(super) requests: f64,
}

impl SloWatch {
    /// Takes a TTFT and its bound.
    pub(super) fn add(&mut self, at: f64, ttft: f64, bound: f64) {
        let index = (at / SLOT).floor() as i64;
        if self.slots.back().is_none_or(|slot| slot.index < index) {
            self.slots.push_back(Slot { index, ..Slot::default() });
        }
        while self.slots.front().is_some_and(|slot| slot.index <= index - SLOTS) {
            self.slots.pop_front();
        }
        let Some(slot) = self.slots.back_mut() else { return };
        slot.all += 1;
        if ttft > bound {
            slot.over += 1;
            slot.span = Some((slot.span.map_or(at, |(first, _)| first), at));
        }
    }

    /// Judges the windows that end now.
    pub(super) fn judge(&mut self, at: f64) -> Option<OverSlo> {
        let now = (at / SLOT).floor() as i64;
        let seen = WINDOWS.into_iter().find_map(|slots| {
            let inside = || self.slots.iter().filter(move |slot| slot.index > now - slots);
            let all: u32 = inside().map(|slot| slot.all).sum();
            let over: u32 = inside().map(|slot| slot.over).sum();
            let (all, over) = (f64::from(all), f64::from(over));
            let first = inside().find_map(|slot| slot.span)?.0;
            let last = inside().filter_map(|slot| slot.span).next_back()?.1;
            let is_over = over >= FEWEST && ln_binomial_tail(over, all, SHARE) <= SURE;
            is_over.then_some(((first, last), over / all, all))
        });
        let Some(((first, last), share, requests)) = seen else {
            self.over_since = None;
            return None;
        };
        let since = *self.over_since.get_or_insert(first);
        // A burst of a few seconds stays in the windows for minutes, but it did not last for them.
        let lasted = last - since;
        (lasted > LASTS).then_some(OverSlo { lasted, share, requests })
    }
}

const SLOT: f64 = 10.0;
const SLOTS: i64 = 180;
/// One minute, five and thirty, in slots: at a few requests a minute only the last can tell.
const WINDOWS: [i64; 3] = [6, 30, SLOTS];
/// p99: a hundredth may be over.
const SHARE: f64 = 0.01;
/// Logarithm of the chance at which it is none.
const SURE: f64 = -9.0;
/// Requests over their bound: two that come a minute apart after an idle hour are improbable, and no state of affairs.
const FEWEST: f64 = 5.0;
const LASTS: f64 = 60.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds from the start of trouble to the finding; `slow` of a hundred requests are over the bound for `lasts`.
    fn found(per_minute: u32, slow: u32, lasts: f64) -> Option<f64> {
        let mut watch = SloWatch::default();
        for request in 0..60 * per_minute {
            let at = f64::from(request) * 60.0 / f64::from(per_minute);
            let trouble = at - 1200.0;
            let is_slow = (0.0..lasts).contains(&trouble) && request % 100 < slow;
            watch.add(at, if is_slow { 0.9 } else { 0.1 }, 0.5);
            if watch.judge(at).is_some() {
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
