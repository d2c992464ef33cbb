//! Bytes per token of one model, and tokens of its media, learned from the engine's `usage`.
//!
//! The gateway has no tokenizer; these numbers turn prompt bytes into estimated tokens. Each kind of text has its own
//! ([`Makeup`]), so that prompts in one script do not change the estimates of prompts in another. They start at four, move quickly
//! at first and slowly later, and are moved little by short prompts, whose token count is mostly chat template. Token-id prompts
//! never come here: they are counted. The bytes of an image, a sound or a file do not give its tokens: one mean for all kinds, as a
//! request may hold several, and the engine counts their sum.

use std::array::from_fn;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::request::makeup::{KINDS, LETTERS, Makeup};
use crate::units::Tokens;

/// Learned ratios; lock-free for readers and writers.
#[derive(Debug)]
pub struct TokenRatio {
    kinds: [Learning; KINDS],
    /// Of all prompts together.
    mean: Learning,
    /// Tokens of a medium.
    medium: Learning,
}

impl Default for TokenRatio {
    fn default() -> Self {
        Self {
            kinds: from_fn(|_| Learning::from(INITIAL)),
            mean: INITIAL.into(),
            medium: UNSEEN_MEDIUM.into(),
        }
    }
}

impl TokenRatio {
    /// Learns from a text prompt that the engine counted as `tokens`. What no tokenizer could have counted (images, counting
    /// errors) is ignored.
    pub fn observe(&self, text: &Makeup, tokens: Tokens) {
        let sample = text.kinds().iter().sum::<u64>() as f32 / tokens.0 as f32;
        if !PLAUSIBLE.contains(&sample) {
            return;
        }
        let share = (tokens.0 as f32 / FULL_WEIGHT_TOKENS).min(1.0);
        self.mean.learn(sample, share, &RATIO);
        let expected = self.tokens(text);
        let factor = (expected / tokens.0 as f64) as f32;
        for ((at, learning), bytes) in self.kinds.iter().enumerate().zip(text.kinds()) {
            let ratio = learning.ratio();
            // Each kind answers for as much of the difference as it was expected to have of the tokens.
            let part = (*bytes as f64 / f64::from(ratio) / expected) as f32;
            let plausible = if at == LETTERS { WORDS } else { PLAUSIBLE };
            learning.learn(
                (ratio * factor).clamp(*plausible.start(), *plausible.end()),
                share * part,
                &RATIO,
            );
        }
    }

    /// Tokens in a text, at least one unless it is empty.
    pub fn estimate(&self, text: &Makeup) -> Tokens {
        Tokens(self.tokens(text).ceil() as u64)
    }

    /// Tokens of images, sounds and files.
    pub(super) fn estimate_media(&self, media: u32) -> Tokens {
        Tokens((f64::from(self.medium.ratio()) * f64::from(media)) as u64)
    }

    /// `media` of them took `tokens`.
    pub(super) fn observe_media(&self, media: u32, tokens: Tokens) {
        self.medium.learn((tokens.0 as f64 / f64::from(media)) as f32, 1.0, &MEDIA);
    }

    /// The mean over all prompts.
    pub fn bytes_per_token(&self) -> f64 {
        f64::from(self.mean.ratio())
    }

    /// What was learned, to be kept: each ratio with its weight.
    pub fn save(&self) -> Vec<(f32, f32)> {
        self.all()
            .map(|one| Learned::unpack(one.0.load(Ordering::Relaxed)))
            .map(|one| (one.ratio, one.weight))
            .collect()
    }

    /// Takes over what was kept, unless it has learned itself or that is nothing it may have learned.
    pub fn restore(&self, saved: &[(f32, f32)]) {
        let is_sound = |&(ratio, weight): &(f32, f32)| {
            ratio > 0.0 && ratio < MOST_MEDIA && (0.0..=RATIO.memory).contains(&weight)
        };
        let has_learned = Learned::unpack(self.mean.0.load(Ordering::Relaxed)).weight > 0.0;
        if has_learned || saved.len() != KINDS + 2 || !saved.iter().all(is_sound) {
            return;
        }
        for (one, &(ratio, weight)) in self.all().zip(saved) {
            one.0.store(Learned { ratio, weight }.pack(), Ordering::Relaxed);
        }
    }

    fn all(&self) -> impl Iterator<Item = &Learning> {
        self.kinds.iter().chain([&self.mean, &self.medium])
    }

    fn tokens(&self, text: &Makeup) -> f64 {
        let each = self.kinds.iter().zip(text.kinds());
        each.map(|(learning, bytes)| *bytes as f64 / f64::from(learning.ratio())).sum()
    }
}

/// One learned ratio.
#[derive(Debug)]
struct Learning(AtomicU64);

/// How a ratio is learned, in observations.
struct Pace {
    /// As many count as the initial guess.
    prior: f32,
    /// As many are remembered.
    memory: f32,
}

impl From<f32> for Learning {
    fn from(initial: f32) -> Self {
        Self(AtomicU64::new(Learned { ratio: initial, weight: 0.0 }.pack()))
    }
}

impl Learning {
    fn ratio(&self) -> f32 {
        Learned::unpack(self.0.load(Ordering::Relaxed)).ratio
    }

    fn learn(&self, sample: f32, share: f32, pace: &Pace) {
        let learn = |bits| {
            let Learned { ratio, weight } = Learned::unpack(bits);
            let weight = (weight + share).min(pace.memory);
            let ratio = ratio + (sample - ratio) * share / (weight + pace.prior);
            Some(Learned { ratio, weight }.pack())
        };
        let _never_refused = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, learn);
    }
}

/// Both halves live in one word, so that no reader sees one without the other.
struct Learned {
    ratio: f32,
    weight: f32,
}

impl Learned {
    fn pack(&self) -> u64 {
        u64::from(self.ratio.to_bits()) << 32 | u64::from(self.weight.to_bits())
    }

    fn unpack(bits: u64) -> Self {
        let [r0, r1, r2, r3, w0, w1, w2, w3] = bits.to_be_bytes();
        Self { ratio: f32::from_be_bytes([r0, r1, r2, r3]), weight: f32::from_be_bytes([w0, w1, w2, w3]) }
    }
}

/// English text in most vocabularies.
const INITIAL: f32 = 4.0;

/// Below lie prompts that are all template, above none that a tokenizer makes.
const PLAUSIBLE: RangeInclusive<f32> = 0.5..=24.0;

/// Of letters: random ones at one end, long words at the other.
const WORDS: RangeInclusive<f32> = 2.0..=6.0;

/// A prompt of this many tokens counts in full.
const FULL_WEIGHT_TOKENS: f32 = 512.0;

const RATIO: Pace = Pace { prior: 1.0, memory: 50.0 };

/// Tokens of a medium until one was counted.
const UNSEEN_MEDIUM: f32 = 1024.0;

/// Tokens that no medium takes.
const MOST_MEDIA: f32 = 1e7;

const MEDIA: Pace = Pace { prior: 0.0, memory: 10.0 };

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Makeup {
        let mut makeup = Makeup::default();
        makeup.add(text);
        makeup
    }

    fn letters(bytes: u64) -> Makeup {
        let mut makeup = Makeup::default();
        makeup.add_bytes(bytes);
        makeup
    }

    #[test]
    fn starts_at_four_and_rounds_up() {
        let ratio = TokenRatio::default();
        for (bytes, tokens) in [(0, 0), (1, 1), (4, 1), (5, 2), (4096, 1024)] {
            assert_eq!(ratio.estimate(&letters(bytes)), Tokens(tokens), "{bytes}");
        }
    }

    #[test]
    fn converges_on_what_the_engine_counts() {
        let ratio = TokenRatio::default();
        let near = |tokens, to: u64| ratio.estimate(&letters(tokens)).0.abs_diff(to) < 30;
        for _ in 0..100 {
            ratio.observe(&letters(6000), Tokens(2000));
        }
        assert!(near(6000, 2000) && (ratio.bytes_per_token() - 3.0).abs() < 0.05, "{ratio:?}");
        for _ in 0..300 {
            ratio.observe(&letters(10_000), Tokens(2000));
        }
        assert!(near(10_000, 2000) && (ratio.bytes_per_token() - 5.0).abs() < 0.05, "{ratio:?}");
    }

    #[test]
    fn what_was_learned_is_kept_and_takes_the_place_of_nothing_else() {
        let ratio = TokenRatio::default();
        (0..100).for_each(|_| ratio.observe(&letters(10_000), Tokens(2000)));
        let (saved, next) = (ratio.save(), TokenRatio::default());
        for absurd in [&saved[1..], &[(0.0, 1.0); KINDS + 2], &[(f32::NAN, 1.0); KINDS + 2]] {
            next.restore(absurd);
            assert_eq!(next.estimate(&letters(10_000)), Tokens(2500));
        }
        next.restore(&saved);
        assert_eq!(next.estimate(&letters(10_000)), ratio.estimate(&letters(10_000)));
        next.restore(&TokenRatio::default().save());
        assert_eq!(next.save(), saved);
    }

    #[test]
    fn one_script_says_nothing_of_another() {
        let english = of(&"The quick brown fox jumps over the lazy dog. ".repeat(100));
        let chinese = of(&"\u{654f}\u{6377}\u{7684}\u{68d5}".repeat(400));
        let (emoji, spaces) = (of(&"\u{1f600}".repeat(1000)), of(&" ".repeat(8000)));
        let all = [(&english, 1000), (&chinese, 1600), (&emoji, 3000), (&spaces, 400)];
        let ratio = TokenRatio::default();
        for (text, tokens) in all {
            for _ in 0..200 {
                ratio.observe(text, Tokens(tokens));
            }
        }
        for (text, tokens) in [(&english, 1000_u64), (&chinese, 1600), (&emoji, 3000)] {
            let estimate = ratio.estimate(text).0;
            assert!(estimate.abs_diff(tokens) * 5 <= tokens, "{estimate} of {tokens}: {ratio:?}");
        }
        // Tokens that no text has: what it is made of bounds what others can make of it.
        for _ in 0..500 {
            ratio.observe(&english, Tokens(240));
        }
        assert!(ratio.estimate(&english).0 >= 500, "{ratio:?}");
    }

    #[test]
    fn short_prompts_move_it_little() {
        let ratio = TokenRatio::default();
        ratio.observe(&letters(10), Tokens(10));
        assert!((ratio.bytes_per_token() - 4.0).abs() < 0.1, "{ratio:?}");
    }

    #[test]
    fn absurd_counts_are_ignored() {
        let ratio = TokenRatio::default();
        for (bytes, tokens) in [(0, 0), (0, 5), (5, 0), (u64::MAX, 1), (1, u64::MAX), (u64::MAX, 0)] {
            ratio.observe(&letters(bytes), Tokens(tokens));
        }
        assert!((ratio.bytes_per_token() - 4.0).abs() < f64::EPSILON);
    }
}
