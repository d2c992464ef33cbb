//! What `n` replicas would mean for a load, and the smallest `n` that holds every bound. Pure.
//!
//! An engine does two things at once. It computes prompts, one after the other: a server with utilisation `rate × prefill / n`.
//! And it decodes: by Little's law `rate × time in the batch` sequences run, whose steps take longer the more of them there are and the
//! more of each step prompts take. Both answers come in closed form, so every `n` is tried until one holds.

use crate::api::scale::{ScaleLoad, ScalePrediction};
use crate::labels::labels;

labels! {
    /// What would break first with one replica less.
    pub(super) enum Limit {
        /// Even one replica has capacity to spare.
        None = "one replica has capacity to spare",
        /// Prompts would take all of the engines' time.
        Prefill = "prompts would keep the engines busy all of the time",
        /// Decoding could not keep up.
        Decode = "decoding would not keep up",
        /// The batch would be full.
        Batch = "the batches would be full",
        /// The KV cache would be full.
        Cache = "the KV caches would be full",
        /// More than 1 % of first tokens would be late.
        Ttft = "more than 1 % of first tokens would miss the bound on TTFT",
        /// Tokens would come too slowly.
        Tpot = "tokens would miss the bound on TPOT",
    }
}

/// The smallest number of engines, from 1 to `most`, that holds every bound, and what one less would break. `most` where none does.
pub(super) fn needed(load: &ScaleLoad, round_trip: f64, most: usize) -> (usize, Limit) {
    let mut broken = Limit::None;
    for n in 1..=most.max(1) {
        match outcome(load, round_trip, n).and_then(|outcome| within(load, round_trip, &outcome)) {
            Ok(()) => return (n, broken),
            Err(limit) => broken = limit,
        }
    }
    (most.max(1), broken)
}

/// What `n` engines mean for a load: sequences with two standard deviations of the pool's for fluctuation, and the TTFT that 99 % of
/// requests stay within.
///
/// # Errors
/// The limit at which no steady state exists.
pub(super) fn outcome(load: &ScaleLoad, round_trip: f64, n: usize) -> Result<ScalePrediction, Limit> {
    let engines = n.max(1) as f64;
    let ScaleLoad { prefill, decode_step: step, decode_step_per_sequence: per_sequence, .. } = *load;
    let rate = load.rate.max(0.0) / engines;
    let utilisation = rate * prefill;
    if utilisation >= MAX_UTILISATION {
        return Err(Limit::Prefill);
    }
    // Concurrency c = rate × output × (step + per_sequence × c) / (1 − utilisation), solved for c.
    let tokens = rate * load.output_tokens;
    let spare = 1.0 - utilisation - tokens * per_sequence;
    if spare <= 1.0 - MAX_UTILISATION {
        return Err(Limit::Decode);
    }
    let mean = tokens * step / spare;
    // Arrivals are Poisson at best: the pool's concurrency has a standard deviation of its square root.
    let peak = mean + SAFETY_DEVIATIONS * (mean / engines).sqrt();
    let pace = (step + per_sequence * peak) / (1.0 - utilisation);
    Ok(ScalePrediction {
        itl: pace,
        prefill_utilisation: utilisation,
        running_per_replica: peak,
        ttft_p99: round_trip
            + prefill
            + pace
            + late_wait(utilisation, prefill + step + per_sequence * mean, engines),
    })
}

/// Whether every bound holds.
fn within(load: &ScaleLoad, round_trip: f64, outcome: &ScalePrediction) -> Result<(), Limit> {
    if load.batch_limit.is_some_and(|limit| outcome.running_per_replica > limit) {
        return Err(Limit::Batch);
    }
    if load
        .cache_tokens
        .is_some_and(|tokens| outcome.running_per_replica * load.context_tokens > tokens * MAX_CACHE_USAGE)
    {
        return Err(Limit::Cache);
    }
    // A bound that an idle engine misses is not held by more of them, and one that it nearly misses by any number at all.
    let step = load.decode_step;
    let held = |bound: f64| if bound < step { step * UNBOUND_SLACK } else { bound.max(step * TPOT_SLACK) };
    if load.tpot_bound.is_some_and(|bound| outcome.itl > held(bound)) {
        return Err(Limit::Tpot);
    }
    let idle = round_trip + load.prefill + step;
    if load.ttft_bound.is_some_and(|bound| outcome.ttft_p99 > bound.max(idle * UNBOUND_SLACK)) {
        return Err(Limit::Ttft);
    }
    Ok(())
}

/// The wait that 1 % of prompts exceed, in seconds: those before them, in a queue before `engines` servers of this utilisation with
/// a mean service of `service` seconds. The mean wait is Sakasegawa's for M/G/n, its tail an exponential.
fn late_wait(utilisation: f64, service: f64, engines: f64) -> f64 {
    if utilisation <= 0.0 || service <= 0.0 {
        return 0.0;
    }
    let waits = utilisation.powf((2.0 * (engines + 1.0)).sqrt() - 1.0);
    if waits <= LATE_SHARE {
        return 0.0;
    }
    let of_those = service * VARIABILITY / (engines * (1.0 - utilisation));
    of_those * (waits / LATE_SHARE).ln()
}

/// Above this there is no steady state to speak of, whatever the bounds.
const MAX_UTILISATION: f64 = 0.9;
/// Square-root staffing: capacity for the mean and so many standard deviations.
const SAFETY_DEVIATIONS: f64 = 2.0;
/// Above this share of the KV cache engines preempt.
const MAX_CACHE_USAGE: f64 = 0.9;
/// Share of first tokens that may be late.
const LATE_SHARE: f64 = 0.01;
/// (1 + squared coefficient of variation) / 2 of prompts' lengths: that of an exponential and half as much again.
const VARIABILITY: f64 = 1.5;
/// A bound that even an idle engine does not hold is taken for this multiple of what that takes.
const UNBOUND_SLACK: f64 = 2.0;
/// One that an idle engine just holds, for this multiple of a step: prompts may take a fifth of the engines' time then.
const TPOT_SLACK: f64 = 1.25;

/// 100 ms of prefill, 200 tokens at 10 ms and 0.5 ms more for each sequence.
#[cfg(test)]
pub(super) fn typical() -> crate::routing::Typical {
    crate::routing::Typical {
        uncached: 1000.0,
        output: 200.0,
        prefill: 0.1,
        step: 0.01,
        per_sequence: 0.0005,
        round_trip: 0.01,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(rate: f64) -> ScaleLoad {
        ScaleLoad {
            rate,
            context_tokens: 1100.0,
            decode_step: 0.01,
            decode_step_per_sequence: 0.0005,
            output_tokens: 200.0,
            prefill: 0.1,
            ..ScaleLoad::default()
        }
    }

    fn needed(load: &ScaleLoad, most: usize) -> (usize, Limit) {
        super::needed(load, 0.01, most)
    }

    fn outcome(load: &ScaleLoad, n: usize) -> Result<ScalePrediction, Limit> {
        super::outcome(load, 0.01, n)
    }

    #[test]
    fn more_load_never_needs_fewer_replicas_and_each_bound_can_be_the_one_that_counts() {
        let bounded = |rate| ScaleLoad { ttft_bound: Some(1.0), tpot_bound: Some(0.03), ..load(rate) };
        let all: Vec<usize> = (0..200).map(|rate| needed(&bounded(f64::from(rate) / 2.0), 512).0).collect();
        assert!(all.is_sorted(), "{all:?}");
        assert_eq!((all[0], needed(&bounded(0.0), 512).1), (1, Limit::None));
        // One replica decodes 5 × 200 tokens a second at most: 10 ms of step for 20 sequences at once.
        let limits = |load: ScaleLoad| needed(&load, 512).1;
        assert_eq!(limits(load(20.0)), Limit::Decode);
        assert_eq!(limits(ScaleLoad { batch_limit: Some(4.0), ..load(20.0) }), Limit::Batch);
        assert_eq!(limits(ScaleLoad { cache_tokens: Some(5_000.0), ..load(20.0) }), Limit::Cache);
        assert_eq!(limits(ScaleLoad { tpot_bound: Some(0.013), ..load(20.0) }), Limit::Tpot);
        assert_eq!(limits(ScaleLoad { ttft_bound: Some(0.25), ..load(20.0) }), Limit::Ttft);
        let long = ScaleLoad { prefill: 2.0, output_tokens: 2.0, ..load(20.0) };
        assert_eq!(limits(long), Limit::Prefill);
    }

    #[test]
    fn a_bound_that_an_idle_engine_misses_asks_for_no_more_of_them() {
        let found = needed(&ScaleLoad { tpot_bound: Some(0.005), ..load(2.0) }, 512);
        assert!(found.0 <= 2, "{found:?}");
    }

    #[test]
    fn a_bound_that_an_idle_engine_just_holds_asks_for_no_fleet() {
        let near = |decode_step| {
            let load = ScaleLoad { decode_step, tpot_bound: Some(0.04), prefill: 0.15, ..load(10.0) };
            needed(&load, 2048).0
        };
        let found = [0.025, 0.03, 0.032, 0.036, 0.038, 0.039_99].map(near);
        assert!(found.is_sorted() && found[5] <= 2 * found[1], "{found:?}");
        assert!(near(0.040_01) <= found[1], "one that it misses asks for less");
    }

    #[test]
    fn little_s_law_holds_in_what_is_predicted() {
        let load = load(10.0);
        let found = outcome(&load, 4).unwrap();
        let mean = {
            // Without the fluctuation: c + 2 √(c / 4) = peak.
            let root = (found.running_per_replica + 0.25).sqrt() - 0.5;
            root * root
        };
        let pace = (0.01 + 0.0005 * mean) / (1.0 - found.prefill_utilisation);
        assert!((mean - 10.0 / 4.0 * 200.0 * pace).abs() < 1e-6, "{mean} {pace}");
        assert!((found.prefill_utilisation - 0.25).abs() < 1e-9);
    }

    #[test]
    fn a_large_pool_needs_less_slack_than_a_small_one() {
        let per_replica = |rate: f64| {
            let load = ScaleLoad { ttft_bound: Some(0.5), batch_limit: Some(16.0), ..load(rate) };
            rate / needed(&load, 512).0 as f64
        };
        assert!(per_replica(100.0) > 1.15 * per_replica(4.0), "{} {}", per_replica(100.0), per_replica(4.0));
    }

    #[test]
    fn nothing_that_can_be_measured_gives_nonsense() {
        let figures = [0.0, 1e-12, 1.0, 1e12];
        for rate in figures {
            for prefill in figures {
                for output in figures {
                    let (ttft_bound, tpot_bound, output_tokens) = (Some(0.0), Some(0.0), output);
                    let load = ScaleLoad { prefill, output_tokens, ttft_bound, tpot_bound, ..load(rate) };
                    let (n, _) = needed(&load, 7);
                    assert!((1..=7).contains(&n));
                    if let Ok(found) = outcome(&load, n) {
                        let all =
                            [found.prefill_utilisation, found.running_per_replica, found.itl, found.ttft_p99];
                        assert!(all.iter().all(|figure| figure.is_finite()), "{found:?}");
                    }
                }
            }
        }
        // A bound that no number of replicas holds does not want the fleet's end.
        assert!(needed(&ScaleLoad { ttft_bound: Some(0.001), ..load(5.0) }, 512).0 < 10);
    }
}
