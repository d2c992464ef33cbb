//! Harm: how many running streams a stall would push over their bound on mean time per output token.
//!
//! A prefill holds up every stream of its replica. A stream that has run for a while faster than its bound has slack for
//! that; a young one has none, and a short answer never wins it back. For each stream the chance of ending over its
//! bound follows from its slack and from how long answers are ([`lengths`]); summed over a replica's streams, for stalls from
//! nothing to minutes, that is a [`Curve`] of sixteen numbers, made beside the request path and read on it in nanoseconds.

pub(super) mod lengths;

use self::lengths::Survival;

/// Expected streams over their bound, by seconds of stall.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Curve(pub [f32; POINTS]);

/// One running stream, as far as its bound is concerned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    /// Tokens it has brought.
    pub(super) tokens: f32,
    /// Seconds since its first token.
    pub(super) elapsed: f32,
    /// Its bound: mean seconds per token.
    pub(super) bound: f32,
    /// Seconds a token takes where nothing stalls it.
    pub(super) step: f32,
}

impl Curve {
    /// Expected streams over their bound after a stall of `seconds`.
    #[inline]
    pub fn at(&self, seconds: f32) -> f32 {
        read(|at| self.0.get(at).copied(), seconds)
    }

    /// Adds a stream.
    pub(super) fn add(&mut self, stream: &Running, survival: &Survival) {
        // Slower than its bound even undisturbed: no stall makes a difference any more.
        let spare = stream.bound - stream.step;
        if spare <= 0.0 {
            return;
        }
        let alive = survival.at(stream.tokens);
        if alive <= 0.0 {
            return;
        }
        // A stall is felt only by an answer that goes on.
        let goes_on = survival.at(stream.tokens + 1.0) / alive;
        let behind = stream.elapsed - stream.tokens * stream.step + stream.bound;
        for (harm, stall) in self.0.iter_mut().zip(STALLS) {
            // Whoever ends before this many tokens ends over its bound.
            let safe_from = (behind + stall) / spare;
            if safe_from > stream.tokens + 1.0 {
                *harm += (goes_on - survival.at(safe_from) / alive).max(0.0);
            }
        }
    }
}

/// Reads a curve, wherever its points are kept.
#[inline]
pub(super) fn read(point: impl Fn(usize) -> Option<f32>, seconds: f32) -> f32 {
    let x = (seconds * (1.0 / FIRST)).clamp(0.0, STALLS[POINTS - 1] / FIRST);
    // Between powers of two the mantissa says how far: no logarithm is needed.
    let (at, part) = if x < 1.0 {
        (0, x)
    } else {
        let bits = x.to_bits();
        ((bits >> 23) as usize - 126, (bits & 0x007F_FFFF) as f32 * (1.0 / 8_388_608.0))
    };
    let low = point(at).unwrap_or(0.0);
    let high = point(at + 1).unwrap_or(low);
    low + (high - low) * part
}

/// Seconds of stall at each point of the curve. A table: every refresh walks it for every stream.
const STALLS: [f32; POINTS] = {
    let mut stalls = [0.0; POINTS];
    let mut point = 1;
    while point < POINTS {
        stalls[point] = FIRST * (1_u32 << (point - 1)) as f32;
        point += 1;
    }
    stalls
};

/// Points of a curve: none, 10 ms, 20 ms, … 164 s.
pub const POINTS: usize = 16;
/// Seconds of slack per token for which the curve of a fresh stream is made: any other only stretches it.
pub(super) const FRESH_SPARE: f64 = 0.1;
/// Seconds: a stall of less than a decoding step harms nobody.
const FIRST: f32 = 0.01;

#[cfg(test)]
mod tests {
    use super::lengths::Lengths;
    use super::*;

    fn survival() -> Survival {
        let mut lengths = Lengths::default();
        (0..1024).for_each(|i| lengths.observe(1 + i % 400));
        lengths.survival()
    }

    fn curve(streams: &[Running]) -> Curve {
        let mut curve = Curve::default();
        streams.iter().for_each(|s| curve.add(s, &survival()));
        curve
    }

    const YOUNG: Running = Running { tokens: 1.0, elapsed: 0.0, bound: 0.1, step: 0.02 };

    #[test]
    fn is_the_chance_of_ending_before_the_stall_is_made_up_for() {
        // (4 s + 0.1 - 0.02) / 0.08 = 51 tokens are needed: about 51 of 400 answers are shorter.
        let harm = curve(&[YOUNG]).at(4.0);
        assert!((harm - 51.0 / 400.0).abs() < 0.03, "{harm}");
        assert!((curve(&[YOUNG; 7]).at(4.0) - 7.0 * harm).abs() < 0.01);
    }

    #[test]
    fn who_has_run_fast_has_slack_and_who_has_run_slowly_has_none() {
        let at = |elapsed| Running { tokens: 100.0, elapsed, ..YOUNG };
        let (fast, slow) = (curve(&[at(2.0)]), curve(&[at(9.9)]));
        assert!(fast.at(4.0) < 0.01, "{fast:?}");
        assert!(slow.at(4.0) > 0.1, "{slow:?}");
        assert!(fast.at(24.0) - fast.at(4.0) > 0.1, "longer stalls use up any slack");
    }

    #[test]
    fn what_is_lost_anyway_adds_no_harm() {
        let hopeless = Running { step: 0.2, ..YOUNG };
        assert_eq!(curve(&[hopeless]).at(10.0), 0.0);
    }

    #[test]
    fn never_falls_and_reads_between_its_points() {
        let curve = curve(&[YOUNG, Running { tokens: 50.0, elapsed: 3.0, ..YOUNG }]);
        let mut last = 0.0;
        for i in 0..2000 {
            let harm = curve.at(i as f32 * 0.1);
            assert!(harm >= last - 1e-6, "{harm} after {last}");
            last = harm;
        }
        for (stall, harm) in STALLS.into_iter().zip(curve.0) {
            assert!((curve.at(stall) - harm).abs() < 1e-5, "{harm} after {stall} s");
        }
        assert_eq!(curve.at(f32::INFINITY), curve.0[POINTS - 1]);
        assert!(curve.at(f32::NAN).is_finite() || curve.at(f32::NAN).is_nan());
    }
}
