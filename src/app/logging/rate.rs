//! Limits the log on stderr by the place in the code that logs, so that no client can fill it.
//!
//! Each place may write a burst of lines at once and a few a second in the long run; what is left out is counted, and said
//! with the next line of that place. What an operator turns on (debug, trace) has no limit but the queue's.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter};

use super::StderrLines;
use crate::clock::{Clock, Stamp};
use crate::stats::{Refill, TokenBucket};

/// The limit, as a filter of the layer that writes.
pub(super) struct RateLimit {
    lines: Arc<StderrLines>,
    clock: Clock,
    places: Mutex<HashMap<Identifier, Lines>>,
}

/// Lines of one place.
#[derive(Clone, Copy, Debug, Default)]
struct Lines {
    bucket: TokenBucket,
    left_out: u64,
}

impl RateLimit {
    pub(super) fn new(lines: Arc<StderrLines>) -> Self {
        Self { lines, clock: Clock::start(), places: Mutex::default() }
    }

    /// Whether a place may write now; with how many lines were left out before.
    fn take(&self, place: Identifier) -> Option<u64> {
        let now = self.clock.now();
        self.places.lock().entry(place).or_default().take(now)
    }
}

impl Lines {
    fn take(&mut self, now: Stamp) -> Option<u64> {
        if self.bucket.take(1.0, &LIMIT, now).is_err() {
            self.left_out += 1;
            return None;
        }
        Some(std::mem::take(&mut self.left_out))
    }
}

impl<S: Subscriber> Filter<S> for RateLimit {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let place = event.metadata();
        if *place.level() > Level::INFO {
            return true;
        }
        let Some(left_out) = self.take(place.callsite()) else {
            self.lines.dropped.rate.fetch_add(1, Ordering::Relaxed);
            return false;
        };
        if left_out > 0 {
            self.lines.note_left_out(left_out, place, &self.clock);
        }
        true
    }
}

const LIMIT: Refill = Refill { burst: 20.0, per_second: 2.0 };

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_flood_is_a_burst_and_then_two_lines_a_second() {
        let start = Stamp::default();
        let mut lines = Lines::default();
        let taken = (0..60_000).map(|n| lines.take(start.after(Duration::from_micros(n * 50))));
        let (mut written, mut counted) = (0, 0);
        for left_out in taken.flatten() {
            written += 1;
            counted += left_out;
        }
        assert!((20..=26).contains(&written), "{written}");
        let after = lines.take(start.after(Duration::from_secs(60))).unwrap();
        assert_eq!(written + counted + after, 60_000);
    }
}
