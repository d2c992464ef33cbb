//! How many sequences an engine runs at once, by our own streams: with S places the first token of the next one comes only when
//! another ends.
//!
//! Not every prompt without a first token waits for a place: it may be on its way, computed, or prepared by the server before the engine.
//! So an engine's page that shows no queue stands for it that none does, until about the next page.
//!
//! While prompts wait without a pause through as many ends as ever ran together, no more than those run: that is the limit,
//! known within one generation of streams. Sooner, where first tokens come late again and again, each as soon after the end of one of the
//! most that ever ran as its prompt takes to compute. It is a lower bound on what fits, by Little's law never below what the engine did
//! at that time, so it is tried again: after [`memories::ENOUGH_ANSWERS`] ends one more is let in, and whatever runs beyond the limit raises it.

use crate::clock::Stamp;
use crate::routing::tuning::{memories, priors};

/// Requests on an engine's page.
#[derive(Clone, Copy, Debug)]
pub(in crate::routing) struct Shown {
    pub(in crate::routing) running: u32,
    pub(in crate::routing) waiting: u32,
}

/// What ends and first tokens of one replica have shown.
#[derive(Debug, Default)]
pub(super) struct Concurrency {
    /// Most that ran at once.
    pub(super) peak: u32,
    limit: Option<u32>,
    /// Ends since prompts wait without a pause, and the most that ran meanwhile.
    ends: u32,
    top: u32,
    /// Ends since one more than the limit was last let in.
    untried: u32,
    /// First tokens in a row that seem to have waited for an end.
    handed_over: u32,
    /// Until then no prompt waits for a place, by the engine's page.
    unqueued_until: Stamp,
}

impl Concurrency {
    /// A first token came; with it `running` sequences run.
    pub(super) fn began(&mut self, running: u32) {
        self.peak = self.peak.max(running);
        self.top = self.top.max(running);
        if self.limit.is_some_and(|limit| running > limit) {
            self.limit = Some(running + running / 4 + 1);
            (self.ends, self.untried) = (0, 0);
        }
    }

    /// The engine's page, where `ours` are in flight; the next one is due at `next`. With nothing in its queue it shows that no prompt of
    /// ours waits for a place where all of ours run, or clearly fewer than have run since it last did: what is on no page has not come to
    /// the engine. A server that holds back what its engine has no place for leaves all places taken.
    pub(super) fn paged(&mut self, shown: Shown, ours: usize, next: Stamp) {
        let running = shown.running;
        if shown.waiting > 0 {
            self.unqueued_until = Stamp::default();
            return;
        }
        if running as usize >= ours || self.top > running + running / 4 + 1 {
            self.rested();
            self.unqueued_until = next;
        }
        if self.limit.take_if(|limit| running > *limit).is_some() {
            self.handed_over = 0;
        }
    }

    /// Whether the engine's page stands for it that no prompt waits for a place.
    pub(super) fn is_unqueued(&self, at: Stamp) -> bool {
        at <= self.unqueued_until
    }

    /// One of `running` sequences ended while prompts had no first token.
    pub(super) fn ended(&mut self, running: u32, at: Stamp) {
        let was_tried =
            self.untried >= memories::ENOUGH_ANSWERS && self.limit.is_some_and(|limit| running >= limit);
        self.untried = if was_tried { 0 } else { self.untried + 1 };
        if self.is_unqueued(at) {
            return;
        }
        self.top = self.top.max(running);
        self.ends += 1;
        if self.ends >= self.top.max(memories::ENOUGH_ENDS) {
            if self.limit.replace(self.top) != Some(self.top) {
                self.untried = 0;
            }
            (self.ends, self.top) = (0, 0);
        }
    }

    /// A first token came after the end of one of the most that ever ran at once; `is_explained`: late, and as soon after that end as
    /// its prompt takes.
    pub(super) fn handed_over(&mut self, is_explained: bool) {
        self.handed_over = if is_explained { self.handed_over + 1 } else { 0 };
        if self.handed_over >= priors::CHANGE.unsigned_abs() && self.limit.is_none() {
            self.limit = Some(self.peak);
        }
    }

    /// No prompt waits: what ends from now on held up nobody.
    pub(super) fn rested(&mut self) {
        (self.ends, self.top) = (0, 0);
    }

    /// The limit as decisions should take it; zero while it is not known.
    pub(super) fn limit(&self) -> u32 {
        self.limit.map_or(0, |limit| limit + u32::from(self.untried >= memories::ENOUGH_ANSWERS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Full batches of `places`: each end lets one more begin, and prompts always wait.
    fn saturated(seen: &mut Concurrency, places: u32, ends: u32) {
        for _ in 0..ends {
            seen.ended(places, Stamp::from_nanos(1));
            seen.began(places);
        }
    }

    #[test]
    fn is_known_after_a_generation_of_streams_with_prompts_waiting() {
        for (places, ends) in [(2, 12), (64, 64)] {
            let mut seen = Concurrency::default();
            (1..=places).for_each(|running| seen.began(running));
            saturated(&mut seen, places, ends - 1);
            assert_eq!((seen.limit(), seen.peak), (0, places));
            saturated(&mut seen, places, 1);
            assert_eq!(seen.limit(), places);
        }
    }

    #[test]
    fn nothing_is_concluded_while_nobody_waits() {
        let mut seen = Concurrency::default();
        for _ in 0..100 {
            saturated(&mut seen, 3, 5);
            seen.rested();
        }
        assert_eq!(seen.limit(), 0);
    }

    #[test]
    fn one_more_is_tried_now_and_then_and_what_runs_beyond_raises_it() {
        let mut seen = Concurrency::default();
        saturated(&mut seen, 4, 12);
        seen.rested();
        for ends in [11, 11, 10] {
            seen.rested();
            saturated(&mut seen, 4, ends);
        }
        assert_eq!(seen.limit(), 5, "tried");
        saturated(&mut seen, 4, 1);
        assert_eq!(seen.limit(), 4, "it had to wait for an end");
        seen.began(5);
        assert_eq!(seen.limit(), 7);
        saturated(&mut seen, 3, 12);
        assert_eq!(seen.limit(), 5, "the most that ran meanwhile");
        saturated(&mut seen, 3, 12);
        assert_eq!(seen.limit(), 3, "fewer fit than before");
    }
}
