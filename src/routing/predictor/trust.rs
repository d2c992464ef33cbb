//! Whether lessons may be taken with the cached tokens that were predicted, or wait for those that the engine reports.
//!
//! A lesson is a time and the work that took it. The work is known at the first token only as far as the index knows what the
//! engine has cached; the engine's own count comes with the end of the answer. While the index is right, waiting would only
//! make learning slow. After a restart of the gateway in front of warm engines, or beside a second gateway, it is not: then
//! every prompt seems to be computed in no time.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::units::Tokens;

/// How far reports of cached tokens were off of late. Of reports that come together one may be lost.
#[derive(Debug, Default)]
pub(super) struct Trust {
    /// Mean error as a share of the prompt, as bits of a float.
    error: AtomicU32,
    reports: AtomicU32,
    is_lost: AtomicBool,
}

/// What a report changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrustChange {
    /// Nothing.
    None,
    /// Nothing that was learned so far can be believed.
    Refuted,
}

impl Trust {
    /// Whether lessons wait for reports.
    #[inline]
    pub(super) fn waits(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// An engine found `cached` tokens of a prompt where `predicted` were expected.
    pub(super) fn note(&self, prompt: Tokens, predicted: Tokens, cached: Tokens) -> TrustChange {
        if prompt.0 == 0 {
            return TrustChange::None;
        }
        let cached = cached.0.min(prompt.0);
        let off = cached.abs_diff(predicted.0).saturating_sub(BLOCK) as f32 / prompt.0 as f32;
        let error = f32::from_bits(self.error.load(Ordering::Relaxed));
        let error = error + LEARNED * (off.min(1.0) - error);
        self.error.store(error.to_bits(), Ordering::Relaxed);
        let reports = self.reports.fetch_add(1, Ordering::Relaxed);
        if error > LOST_FROM && !self.is_lost.swap(true, Ordering::Relaxed) && reports < YOUNG {
            return TrustChange::Refuted;
        }
        if error < REGAINED_BELOW {
            self.is_lost.store(false, Ordering::Relaxed);
        }
        TrustChange::None
    }
}

/// Tokens by which every prediction may be off: a block of the largest engines.
const BLOCK: u64 = 128;
/// Share of a report in the mean.
const LEARNED: f32 = 0.125;
/// Mean share of a prompt: two prompts that were cached unknown to us, ...
const LOST_FROM: f32 = 0.2;
/// ... and a dozen of which all was known.
const REGAINED_BELOW: f32 = 0.05;
/// Reports after which a loss of trust is a change, and no sign that all before was wrong.
const YOUNG: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn note(trust: &Trust, predicted: u64, cached: u64) -> TrustChange {
        trust.note(Tokens(4000), Tokens(predicted), Tokens(cached))
    }

    #[test]
    fn a_warm_engine_refutes_what_was_learned_before_its_first_reports_and_a_known_one_is_believed() {
        let trust = Trust::default();
        let refuted = (0..4).filter(|_| note(&trust, 0, 3900) == TrustChange::Refuted).count();
        assert_eq!((refuted, trust.waits()), (1, true));
        for _ in 0..30 {
            assert_eq!(note(&trust, 3000, 3100), TrustChange::None);
        }
        assert!(!trust.waits());
        for _ in 0..10 {
            assert_eq!(note(&trust, 3900, 0), TrustChange::None, "what was learned before stays");
        }
        assert!(trust.waits());
    }

    #[test]
    fn nonsense_is_an_error_of_one_prompt_at_most() {
        let trust = Trust::default();
        note(&trust, 0, u64::MAX);
        note(&trust, u64::MAX, 0);
        assert_eq!(trust.note(Tokens(0), Tokens(9), Tokens(9)), TrustChange::None);
        assert!(f32::from_bits(trust.error.load(Ordering::Relaxed)) <= 1.0);
    }
}
