//! Latency of one stream, from the arrivals of its content events.
//!
//! Stamps are arguments, so the same code runs live, in tests and in simulated time. A gap is the time between the
//! arrivals of two consecutive content events of one choice; events that came in one read arrived together, so a gap of
//! zero is a gap like any other. Gaps leave in small batches while the stream runs, so that an incident shows
//! while it lasts; only what needs the final token count (inter-token latency without counts in the stream)
//! waits for the end.
//!
//! A stamp is an arrival only while we are polled. A gap in which a slow client held us up is not observed, nor are those
//! beside events that waited meanwhile: hyper reads on only when it is polled, so what waited in the socket comes after
//! a poll that found nothing. Only when nothing came for a while are stamps arrivals again.

use std::time::Duration;

use smallvec::SmallVec;

use crate::clock::Stamp;
use crate::record::{Gap, Gaps};
use crate::relay::deferred_gaps::DeferredGaps;

/// TTFT, gaps and stalls of one stream. What an ordinary event touches comes first: between two events of a stream its
/// memory has left the cache, and each cache line costs a miss.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Timeline {
    paused: Moment,
    first_token: Moment,
    last_token: Moment,
    /// Of choice 0; the others are in `more_choices`.
    choice: ChoiceClock,
    batch: Vec<Packed>,
    last_flush: Stamp,
    content_events: u64,
    longest_gap: Duration,
    is_behind: bool,
    /// Since when, while behind, there was nothing to read.
    found_nothing: Moment,
    /// When the client took bytes again.
    resumed: Moment,
    longest_gap_at: Moment,
    first_byte: Moment,
    blocked: Duration,
    more_choices: Vec<ChoiceClock>,
    late: DeferredGaps,
}

/// The last content event of one choice.
#[derive(Clone, Copy, Debug, Default)]
struct ChoiceClock {
    last: Moment,
    events: u32,
    /// It had waited for a slow client, so its stamp is no arrival.
    is_late: bool,
}

/// A stamp that may not have come: half the size of an `Option<Stamp>`.
#[derive(Clone, Copy, Debug)]
struct Moment(Stamp);

impl Moment {
    const NEVER: Self = Self(Stamp::from_nanos(u64::MAX));

    fn get(self) -> Option<Stamp> {
        (self.0 != Self::NEVER.0).then_some(self.0)
    }
}

impl Default for Moment {
    fn default() -> Self {
        Self::NEVER
    }
}

/// A [`Gap`] in eight bytes: its length in nanoseconds below, its tokens above. Longer gaps than 18 minutes and more
/// tokens than 16 million in one event do not exist.
#[derive(Clone, Copy, Debug)]
struct Packed(u64);

impl Packed {
    fn new(length: Duration, tokens: Option<u32>) -> Self {
        let length = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX).min(MAX_NANOS);
        let tokens = tokens.map_or(0, |n| u64::from(n).saturating_add(1).min(MAX_TOKENS));
        Self(tokens << NANOS_BITS | length)
    }

    fn gap(self) -> Gap {
        let tokens = (self.0 >> NANOS_BITS).checked_sub(1).and_then(|n| u32::try_from(n).ok());
        Gap { length: Duration::from_nanos(self.0 & MAX_NANOS), tokens }
    }
}

impl Timeline {
    /// Bytes of the answering replica arrived; only the first call counts.
    pub fn byte(&mut self, at: Stamp) {
        if self.first_byte.get().is_none() {
            self.first_byte = Moment(at);
        }
    }

    /// A content event arrived. `tokens` are those it brought, where the engine counts them in the stream. Returns whether
    /// it was the first of the stream: the first token.
    pub fn content(&mut self, at: Stamp, choice: u32, tokens: Option<u32>) -> bool {
        let is_first = self.first_token.get().is_none();
        if is_first {
            self.first_token = Moment(at);
            self.last_flush = at;
            self.batch.reserve_exact(BATCH);
        }
        self.last_token = Moment(at);
        self.content_events = self.content_events.saturating_add(1);

        let is_late = self.is_behind && !self.is_caught_up(at);
        self.is_behind = is_late;
        let Some(clock) = self.choice(choice) else { return is_first };
        let events = clock.events.saturating_add(1);
        let before = std::mem::replace(clock, ChoiceClock { last: Moment(at), events, is_late });
        if let (Some(last), false, false) = (before.last.get(), before.is_late, is_late) {
            self.gap(at.since(last), at, tokens);
        }
        is_first
    }

    /// Whether gaps are to be merged now: the batch is full, or it is a second since the last time. Ask after every
    /// content event, and by a timer while the stream is silent.
    #[inline]
    pub fn should_flush(&self, now: Stamp) -> bool {
        self.batch.len() >= BATCH || (!self.batch.is_empty() && now.since(self.last_flush) >= FLUSH_EVERY)
    }

    /// Hands out the gaps since the last time.
    pub fn flush(&mut self, now: Stamp, mut merge: impl FnMut(Gaps<'_>)) {
        self.last_flush = now;
        let mut gaps: SmallVec<[Gap; BATCH]> = SmallVec::new();
        for batch in self.batch.chunks(BATCH) {
            gaps.clear();
            gaps.extend(batch.iter().map(|packed| packed.gap()));
            for gap in gaps.iter().filter(|gap| gap.tokens.is_none()) {
                self.late.push(gap.length);
            }
            merge(Gaps { gaps: &gaps, late_itl: &[], is_filling: false });
        }
        self.batch.clear();
    }

    /// The stream ends without its end, while its client waits for more. What it has waited by then is a gap, where it is longer than all
    /// before: the next event would have made it no shorter, and a replica that stops in the middle would otherwise leave no trace.
    pub fn left_waiting(&mut self, now: Stamp) {
        let is_held_up = self.is_behind || self.paused.get().is_some();
        let Some(last) = self.last_token.get().filter(|_| !is_held_up) else { return };
        let waited = now.since(last);
        if waited > self.longest_gap {
            self.gap(waited, now, None);
        }
    }

    /// At the stream's end: hands out the rest, with the gaps that waited for the token count. Their tokens are the
    /// mean of the stream's gaps, in whole tokens; one where no count came at all.
    pub fn finish(&mut self, now: Stamp, output_tokens: Option<u64>, mut merge: impl FnMut(Gaps<'_>)) {
        self.flush(now, &mut merge);
        let mut tokens = TokensOfGaps::new(output_tokens, self.content_events, self.choices());
        let mut batch: SmallVec<[(Duration, u32); BATCH]> = SmallVec::new();
        for gap in self.late.drain() {
            batch.push((gap, tokens.next()));
            if batch.len() == BATCH {
                merge(Gaps { gaps: &[], late_itl: &batch, is_filling: false });
                batch.clear();
            }
        }
        if !batch.is_empty() {
            merge(Gaps { gaps: &[], late_itl: &batch, is_filling: false });
        }
    }

    /// Another engine continues the stream: its first content, as `leg` has it, comes behind what came before. A read of several
    /// events has one arrival, so that the gap across the break is one observation.
    pub fn join(&mut self, leg: &Self) {
        self.paused = Moment::NEVER;
        self.is_behind = false;
        let (Some(first), Some(last)) = (leg.first_token.get(), leg.last_token.get()) else { return };
        for event in 0..leg.content_events.min(BATCH as u64) {
            self.content(if event == 0 { first } else { last }, 0, None);
        }
    }

    /// A frame was handed to hyper: until [`Self::resume`] the replica is not read from.
    pub fn pause(&mut self, now: Stamp) {
        if self.paused.get().is_none() {
            self.paused = Moment(now);
        }
    }

    /// hyper polls us again. Returns how long it had not, if that was long enough to be the client's doing.
    pub fn resume(&mut self, now: Stamp) -> Option<Duration> {
        let held = now.since(std::mem::take(&mut self.paused).get()?);
        if held < HELD_UP {
            return None;
        }
        self.blocked += held;
        self.is_behind = true;
        (self.resumed, self.found_nothing) = (Moment(now), Moment::NEVER);
        self.choice.is_late = true;
        self.more_choices.iter_mut().for_each(|clock| clock.is_late = true);
        Some(held)
    }

    /// A poll found nothing of the replica to read.
    #[inline]
    pub fn found_nothing(&mut self, now: Stamp) {
        if self.is_behind {
            self.found_nothing = Moment(now);
        }
    }

    /// Whether what arrives now has not waited.
    fn is_caught_up(&self, now: Stamp) -> bool {
        let since = |moment: Moment| moment.get().map_or(Duration::ZERO, |at| now.since(at));
        since(self.found_nothing) >= HELD_UP || since(self.resumed) >= BACKLOG
    }

    /// Arrival of the first content event.
    #[inline]
    pub fn first_token(&self) -> Option<Stamp> {
        self.first_token.get()
    }

    /// Arrival of the last content event.
    pub fn last_token(&self) -> Option<Stamp> {
        self.last_token.get()
    }

    /// Content events so far.
    pub fn content_events(&self) -> u64 {
        self.content_events
    }

    /// Choices that brought content, at least one.
    #[inline]
    pub fn choices(&self) -> u64 {
        1 + self.more_choices.len() as u64
    }

    /// Choices that were written side by side, on the mean: content events of all over those of the longest; at least 1.
    pub fn side_by_side(&self) -> f64 {
        let others = self.more_choices.iter().map(|clock| clock.events);
        let longest = others.fold(self.choice.events, u32::max).max(1);
        (self.content_events as f64 / f64::from(longest)).max(1.0)
    }

    /// Longest observed gap of one choice, and when it ended.
    pub fn longest_gap(&self) -> (Duration, Option<Stamp>) {
        (self.longest_gap, self.longest_gap_at.get())
    }

    /// Time in which the client's slowness held the stream up until `now`, a pause that goes on included.
    pub fn blocked(&self, now: Stamp) -> Duration {
        let goes_on = self.paused.get().map(|at| now.since(at)).filter(|held| *held >= HELD_UP);
        self.blocked + goes_on.unwrap_or_default()
    }

    fn gap(&mut self, length: Duration, at: Stamp, tokens: Option<u32>) {
        if length > self.longest_gap {
            self.longest_gap = length;
            self.longest_gap_at = Moment(at);
        }
        self.batch.push(Packed::new(length, tokens));
    }

    fn choice(&mut self, index: u32) -> Option<&mut ChoiceClock> {
        let Some(place) = usize::try_from(index).ok()?.checked_sub(1) else { return Some(&mut self.choice) };
        if place >= MAX_CHOICES {
            return None;
        }
        if self.more_choices.len() <= place {
            self.more_choices.resize(place + 1, ChoiceClock::default());
        }
        self.more_choices.get_mut(place)
    }
}

/// Shares the tokens of an answer over the gaps between its content events: whole ones, that add up. Each choice begins with the one
/// token of its prefill, which ends no gap, however many an engine puts into its later events.
struct TokensOfGaps {
    tokens: u128,
    gaps: u128,
    shared: u128,
}

impl TokensOfGaps {
    /// One to each gap where the engine did not count.
    fn new(output: Option<u64>, events: u64, choices: u64) -> Self {
        let gaps = events.saturating_sub(choices).max(1);
        let tokens = output.map_or(gaps, |output| output.saturating_sub(choices));
        Self { tokens: tokens.into(), gaps: gaps.into(), shared: 0 }
    }

    /// Of the next gap, at least one.
    fn next(&mut self) -> u32 {
        let before = self.tokens * self.shared / self.gaps;
        self.shared += 1;
        let own = self.tokens * self.shared / self.gaps - before;
        u32::try_from(own).unwrap_or(u32::MAX).max(1)
    }
}

const BATCH: usize = 64;
const FLUSH_EVERY: Duration = Duration::from_secs(1);
/// A busy core polls a few milliseconds late without any client being slow.
const HELD_UP: Duration = Duration::from_millis(5);
/// Longer than it takes to read what buffers hold.
const BACKLOG: Duration = Duration::from_millis(100);
const MAX_CHOICES: usize = 1023;
const NANOS_BITS: u32 = 40;
const MAX_NANOS: u64 = (1 << NANOS_BITS) - 1;
const MAX_TOKENS: u64 = (1 << (u64::BITS - NANOS_BITS)) - 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::millis as ms;

    #[derive(Default)]
    struct Seen {
        icl: Vec<u64>,
        tokens: Vec<Option<u32>>,
        late: Vec<(u64, u32)>,
    }

    impl Seen {
        fn merge(&mut self, gaps: Gaps<'_>) {
            let millis = |gap: Duration| u64::try_from(gap.as_millis()).unwrap();
            self.icl.extend(gaps.gaps.iter().map(|gap| millis(gap.length)));
            self.tokens.extend(gaps.gaps.iter().map(|gap| gap.tokens));
            self.late.extend(gaps.late_itl.iter().map(|(gap, n)| (millis(*gap), *n)));
        }
    }

    fn run(events: &[(u64, u32, Option<u32>)], output: Option<u64>) -> (Timeline, Seen) {
        let (mut timeline, mut seen) = (Timeline::default(), Seen::default());
        for (at, choice, tokens) in events {
            timeline.content(ms(*at), *choice, *tokens);
            if timeline.should_flush(ms(*at)) {
                timeline.flush(ms(*at), |gaps| seen.merge(gaps));
            }
        }
        let end = timeline.last_token().unwrap_or_default();
        timeline.finish(end, output, |gaps| seen.merge(gaps));
        (timeline, seen)
    }

    #[test]
    fn choices_that_end_early_are_not_written_side_by_side() {
        let side_by_side = |counts: &[u64]| {
            let mut timeline = Timeline::default();
            for (choice, events) in counts.iter().enumerate() {
                for event in 0..*events {
                    timeline.content(ms(20 * event), choice as u32, None);
                }
            }
            timeline.side_by_side()
        };
        assert_eq!(side_by_side(&[]), 1.0);
        assert_eq!(side_by_side(&[50]), 1.0);
        assert_eq!(side_by_side(&[50, 50, 50, 50]), 4.0);
        assert_eq!(side_by_side(&[2, 50, 2, 2]), 56.0 / 50.0);
    }

    #[test]
    fn itl_waits_for_the_count_and_icl_does_not() {
        let events = [(100, 0, None), (120, 0, None), (120, 0, None), (180, 0, None)];
        // The first event has the token of its prefill, whatever the later ones have.
        let cases = [
            (Some(9), [2, 3, 3]),
            (Some(31), [10, 10, 10]),
            (Some(4), [1, 1, 1]),
            (Some(5), [1, 1, 2]),
            (Some(0), [1, 1, 1]),
            (None, [1, 1, 1]),
        ];
        for (output, [a, b, c]) in cases {
            let (timeline, seen) = run(&events, output);
            assert_eq!(seen.icl, [20, 0, 60]);
            assert_eq!(seen.late, [(20, a), (0, b), (60, c)], "{output:?}");
            assert_eq!(timeline.longest_gap(), (Duration::from_millis(60), Some(ms(180))));
            assert_eq!((timeline.first_token(), timeline.last_token()), (Some(ms(100)), Some(ms(180))));
        }
    }

    #[test]
    fn counts_that_come_with_the_events_are_observed_at_once() {
        let (_, seen) = run(&[(0, 0, Some(1)), (40, 0, Some(4)), (80, 0, Some(2))], Some(7));
        assert_eq!((seen.icl, seen.tokens, seen.late), (vec![40, 40], vec![Some(4), Some(2)], vec![]));
    }

    #[test]
    fn gaps_are_taken_for_each_choice() {
        let (timeline, seen) = run(&[(0, 0, None), (1, 1, None), (20, 0, None), (31, 1, None)], None);
        assert_eq!(seen.icl, [20, 30]);
        assert_eq!(timeline.content_events(), 4);
        let (_, seen) = run(&[(0, u32::MAX, None), (9, u32::MAX, None)], None);
        assert!(seen.icl.is_empty());
    }

    #[test]
    fn gaps_leave_when_a_second_is_over_or_the_batch_is_full() {
        let mut timeline = Timeline::default();
        timeline.content(ms(0), 0, None);
        assert!(!timeline.should_flush(ms(5000)), "one event has no gap");
        timeline.content(ms(400), 0, None);
        assert!(!timeline.should_flush(ms(999)) && timeline.should_flush(ms(1000)));
        timeline.flush(ms(1000), |gaps| assert_eq!(gaps.gaps.len(), 1));
        for i in 0..BATCH as u64 {
            assert!(!timeline.should_flush(ms(1001)));
            timeline.content(ms(1000 + i), 0, None);
        }
        assert!(timeline.should_flush(ms(1064)));
    }

    #[test]
    fn what_a_slow_client_held_up_is_not_observed() {
        let mut timeline = Timeline::default();
        let mut seen = Seen::default();
        timeline.content(ms(0), 0, None);
        timeline.content(ms(20), 0, None);
        timeline.pause(ms(20));
        assert_eq!(timeline.resume(ms(21)), None, "an ordinary turn of the loop");
        timeline.content(ms(40), 0, None);
        timeline.pause(ms(40));
        assert_eq!(timeline.blocked(ms(540)), ms(500).since(ms(0)), "a client that never asks again");
        assert_eq!(timeline.resume(ms(1040)), Some(Duration::from_secs(1)));
        timeline.found_nothing(ms(1040));
        timeline.content(ms(1040), 0, None);
        timeline.content(ms(1041), 0, None);
        timeline.found_nothing(ms(1041));
        timeline.content(ms(1055), 0, None);
        timeline.content(ms(1075), 0, None);
        timeline.finish(ms(1075), None, |gaps| seen.merge(gaps));
        assert_eq!(seen.icl, [20, 20, 20]);
        assert_eq!(timeline.blocked(ms(1075)), Duration::from_secs(1));
        assert_eq!(timeline.longest_gap().0, Duration::from_millis(20));
    }

    #[test]
    fn what_a_client_waited_when_it_left_is_a_gap_where_none_was_longer() {
        for (left, held_up, gaps) in [
            (4_040, false, vec![20, 20, 4_000]),
            (60, false, vec![20, 20]),
            (55, false, vec![20, 20]),
            (4_040, true, vec![20, 20]),
        ] {
            let (mut timeline, mut seen) = (Timeline::default(), Seen::default());
            (0..3).for_each(|event| _ = timeline.content(ms(20 * event), 0, None));
            if held_up {
                timeline.pause(ms(40));
            }
            timeline.left_waiting(ms(left));
            timeline.finish(ms(left), None, |gaps| seen.merge(gaps));
            assert_eq!(seen.icl, gaps, "left at {left} ms");
            assert_eq!(timeline.longest_gap().0, Duration::from_millis(*gaps.last().unwrap()));
        }
        let mut timeline = Timeline::default();
        timeline.left_waiting(ms(4_000));
        assert_eq!(timeline.longest_gap().0, Duration::ZERO, "no token came: the wait is TTFT's");
    }

    #[test]
    fn stamps_are_arrivals_again_when_nothing_waits_any_more_or_the_backlog_is_read() {
        for (quiet, step, observed) in [(true, 20, 2), (false, 1, 100)] {
            let (mut timeline, mut seen) = (Timeline::default(), Seen::default());
            timeline.content(ms(0), 0, None);
            timeline.pause(ms(0));
            timeline.resume(ms(3000));
            for n in 0..if quiet { 3 } else { 200 } {
                if quiet {
                    timeline.found_nothing(ms(3000 + n * step));
                }
                timeline.content(ms(3010 + n * step), 0, None);
            }
            timeline.finish(ms(4000), None, |gaps| seen.merge(gaps));
            assert!(
                seen.icl.iter().all(|gap| *gap == step),
                "the three seconds are the client's: {:?}",
                seen.icl
            );
            assert!(seen.icl.len().abs_diff(observed) < 12, "{}", seen.icl.len());
        }
    }
}
