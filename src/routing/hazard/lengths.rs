//! How long answers are: the share of them that reaches a given number of tokens, learned from the last 1,024.
//!
//! Counted in bins of a quarter of an octave, so that a look-up is a few bits of a float and no search. Before answers are
//! known a gentle exponential stands in. It does not tell routes apart: one pool, one distribution.

use std::array::from_fn;

use crate::routing::tuning::{memories, priors};

/// Recent answers by length, counted so that every answer can publish what is known: no sum runs over the bins.
#[derive(Debug)]
pub(in crate::routing) struct Lengths {
    recent: Vec<u8>,
    next: usize,
    /// Answers since [`Lengths::changed`] found some.
    unseen: usize,
    /// Answers that reach each bin.
    reached: [u32; BINS + 1],
    /// Tokens of all answers, each taken for the middle of its bin and without its first one. Exact: edges are short binary fractions.
    tokens: f64,
    /// What stands in for answers at each edge: exponentials take longer than everything else that an answer teaches.
    prior: [f32; BINS + 1],
    /// The same of `tokens`.
    prior_tokens: f64,
}

/// The survival function as it stood when it was taken: plain values.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::routing) struct Survival {
    /// Share of answers that have at least as many tokens as the bin's lower edge; one more for the last upper edge.
    reach: [f32; BINS + 1],
    pub(in crate::routing) mean: f32,
}

impl Default for Lengths {
    fn default() -> Self {
        let count = priors::ANSWERS as f32;
        let prior = from_fn(|bin| count * (-(edge(bin) - 1.0) / (priors::ANSWER_TOKENS as f32)).exp());
        // The area under the survival function.
        let area = |bin: usize| (edge(bin + 1) - edge(bin)) * f32::midpoint(prior[bin], prior[bin + 1]);
        let prior_tokens = (0..BINS).map(|bin| f64::from(area(bin))).sum();
        Self {
            recent: Vec::new(),
            next: 0,
            unseen: 0,
            reached: [0; BINS + 1],
            tokens: 0.0,
            prior,
            prior_tokens,
        }
    }
}

impl Lengths {
    /// Learns from a complete answer.
    pub(in crate::routing) fn observe(&mut self, tokens: u64) {
        let (bin, _) = place(tokens.clamp(1, MOST) as f32);
        // There are fewer bins than a byte has values.
        let bin = u8::try_from(bin).unwrap_or(u8::MAX);
        self.add(bin);
        self.unseen += 1;
        if self.recent.len() < memories::ANSWERS {
            self.recent.push(bin);
            return;
        }
        if let Some(slot) = self.recent.get_mut(self.next) {
            let old = usize::from(std::mem::replace(slot, bin));
            self.reached[..=old].iter_mut().for_each(|count| *count -= 1);
            self.tokens -= middle(old);
        }
        self.next = (self.next + 1) % memories::ANSWERS;
    }

    fn add(&mut self, bin: u8) {
        let bin = usize::from(bin);
        self.reached[..=bin].iter_mut().for_each(|count| *count += 1);
        self.tokens += middle(bin);
    }

    /// The bins of the answers that count, in their order.
    pub(in crate::routing) fn save(&self) -> Vec<u8> {
        let (newer, older) = self.recent.split_at(self.next.min(self.recent.len()));
        [older, newer].concat()
    }

    /// Of saved bins.
    pub(in crate::routing) fn restored(bins: &[u8]) -> Self {
        let mut lengths = Self::default();
        let known = bins.iter().filter(|bin| usize::from(**bin) < BINS);
        for bin in known.take(memories::ANSWERS) {
            lengths.add(*bin);
            lengths.recent.push(*bin);
        }
        lengths
    }

    /// What is known now, once enough is new: one answer in a thousand moves a curve by less than it takes to make it anew.
    pub(in crate::routing) fn changed(&mut self) -> Option<Survival> {
        let is_due = self.unseen * PARTS >= self.recent.len();
        is_due.then(|| {
            self.unseen = 0;
            self.survival()
        })
    }

    /// What is known now.
    pub(in crate::routing) fn survival(&self) -> Survival {
        let total = self.recent.len() as f32 + (priors::ANSWERS as f32);
        let share = 1.0 / total;
        let reach = from_fn(|bin| (self.reached[bin] as f32 + self.prior[bin]) * share);
        // An answer has at least one token.
        let mean = 1.0 + (self.tokens + self.prior_tokens) as f32 * share;
        Survival { reach, mean }
    }
}

impl Survival {
    /// Share of answers of at least so many tokens.
    #[inline]
    pub(in crate::routing) fn at(&self, tokens: f32) -> f32 {
        let (bin, part) = place(tokens.clamp(1.0, MOST as f32));
        let (low, high) = (self.reach[bin], self.reach[bin + 1]);
        low + (high - low) * part
    }
}

/// The bin of a number from 1 to [`MOST`], and how far into it the number lies.
#[inline]
fn place(tokens: f32) -> (usize, f32) {
    let bits = tokens.to_bits();
    let bin = (bits >> (23 - SUB_BITS)) as usize - (127 << SUB_BITS);
    let part = (bits & ((1 << (23 - SUB_BITS)) - 1)) as f32 / (1 << (23 - SUB_BITS)) as f32;
    (bin.min(BINS - 1), part)
}

/// Where a bin begins: [`place`] the other way round.
fn edge(bin: usize) -> f32 {
    f32::from_bits(((bin + (127 << SUB_BITS)) as u32) << (23 - SUB_BITS))
}

/// Tokens behind the first one in the middle of a bin.
fn middle(bin: usize) -> f64 {
    f64::midpoint(edge(bin).into(), edge(bin + 1).into()) - 1.0
}

/// New answers are enough where they are one in this many of those that count.
const PARTS: usize = 32;
/// Bins of a quarter of an octave: finer ones would be empty.
const SUB_BITS: usize = 2;
/// Answers of up to a million tokens.
const BINS: usize = 21 << SUB_BITS;
const MOST: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(answers: impl IntoIterator<Item = u64>) -> Survival {
        let mut lengths = Lengths::default();
        answers.into_iter().for_each(|n| lengths.observe(n));
        lengths.survival()
    }

    #[test]
    fn an_edge_lies_in_its_own_bin() {
        for bin in 0..BINS {
            assert_eq!(place(edge(bin)), (bin, 0.0));
        }
    }

    #[test]
    fn follows_what_was_seen() {
        let survival = learned((0..1024).map(|i| 1 + i % 512));
        for (tokens, share) in [(1.0, 1.0), (128.0, 0.75), (256.0, 0.5), (384.0, 0.25), (512.0, 0.0)] {
            assert!((survival.at(tokens) - share).abs() < 0.03, "{tokens}: {}", survival.at(tokens));
        }
    }

    #[test]
    fn the_mean_is_that_of_what_was_seen() {
        for (answers, mean) in
            [(Vec::new(), 257.0), (vec![300; 2000], 300.0), ((0..1024).map(|i| 1 + i % 512).collect(), 256.5)]
        {
            let found = learned(answers).mean;
            assert!((found / mean - 1.0).abs() < 0.12, "{found} instead of {mean}");
        }
        assert!(learned([1; 2000]).mean < 5.0);
    }

    #[test]
    fn the_past_is_forgotten() {
        let survival = learned((0..5000).map(|_| 9000).chain((0..1024).map(|_| 10)));
        assert!(survival.at(100.0) < 0.02 && survival.at(8.0) > 0.98);
    }

    #[test]
    fn never_rises_whatever_was_seen() {
        for survival in [learned([]), learned([0, 1, u64::MAX, 1 << 20, 77]), learned([3; 2000])] {
            let mut last = 1.0;
            for i in 0..400 {
                let now = survival.at(1.05f32.powi(i));
                assert!((0.0..=last).contains(&now), "{now} after {last}");
                last = now;
            }
        }
    }
}
