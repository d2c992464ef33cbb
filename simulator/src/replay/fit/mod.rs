//! Fits the engine model's coefficients to a real engine: a recorded run against one replica in, an engine file out.
//!
//! The recorded requests are submitted to the model at their send times, with the prompt tokens that the real engine had
//! cached preloaded; the search minimises the error of TTFT and TPOT. Every second request is held out and only judged.
//! What HTTP, tokenizing and the network add to a TTFT is fitted beside the coefficients and is no part of the engine.

mod recording;
mod simplex;

use std::time::Duration;

use serde::Serialize;

use crate::engine::{CostModel, Engine, EngineConfig, EngineEvent, Work};
use crate::time::Stamp;

pub use self::recording::{Recorded, Recording};
use super::engine_file::EngineFile;

/// The result of a fit.
#[derive(Clone, Debug, Serialize)]
pub struct Fit {
    /// The fitted engine.
    pub engine: EngineFile,
    /// Seconds of a TTFT that are spent outside of the engine.
    pub overhead_s: f64,
    /// Error on the requests of the search.
    pub fitted: FitError,
    /// Error on the held-out requests.
    pub held_out: FitError,
}

/// Relative errors |model / measured - 1|.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FitError {
    /// Requests judged.
    pub requests: usize,
    /// Median, TTFT.
    pub ttft_p50: f64,
    /// 90th percentile, TTFT.
    pub ttft_p90: f64,
    /// Median, TPOT.
    pub tpot_p50: f64,
    /// 90th percentile, TPOT.
    pub tpot_p90: f64,
    /// Median model / measured, TTFT: the bias.
    pub ttft_ratio: f64,
    /// Median model / measured, TPOT.
    pub tpot_ratio: f64,
}

/// Searches the coefficients of an engine with the limits (batch, step, KV cache) of `start`.
#[must_use]
pub fn fit(recording: &Recording, start: &EngineConfig) -> Fit {
    let engine = EngineConfig { block_size: FINE_BLOCK, num_blocks: MAX_BLOCKS, ..start.clone() };
    let parameters = |prices: &[f64]| Prices::from_logs(prices);
    let loss = |logs: &[f64]| {
        let prices = parameters(logs);
        let modelled = simulate(recording, &prices.over(&engine), prices.overhead);
        loss(recording, &modelled)
    };
    let best = parameters(&simplex::minimise(loss, &first_guess(recording).logs()));
    let modelled = simulate(recording, &best.over(&engine), best.overhead);
    let judged = |odd: bool| error(recording, &modelled, |at| (at % 2 == 1) == odd);
    Fit { engine: best.file(start), overhead_s: best.overhead, fitted: judged(false), held_out: judged(true) }
}

/// The searched coefficients, in seconds.
#[derive(Clone, Copy, Debug)]
struct Prices {
    step: f64,
    step_per_seq: f64,
    prompt_token: f64,
    attention: f64,
    context: f64,
    overhead: f64,
}

impl Prices {
    fn logs(&self) -> [f64; 6] {
        let Self { step, step_per_seq, prompt_token, attention, context, overhead } = *self;
        [step, step_per_seq, prompt_token, attention, context, overhead].map(f64::ln)
    }

    /// Logarithms keep every price above zero and make all orders of magnitude equally wide.
    fn from_logs(logs: &[f64]) -> Self {
        let price = |at: usize| logs.get(at).map_or(MIN_PRICE, |log| log.exp()).clamp(MIN_PRICE, 10.0);
        Self {
            step: price(0),
            step_per_seq: price(1),
            prompt_token: price(2),
            attention: price(3),
            context: price(4),
            overhead: price(5),
        }
    }

    fn over(&self, engine: &EngineConfig) -> EngineConfig {
        let cost = CostModel {
            step: Duration::from_secs_f64(self.step),
            step_per_seq: Duration::from_secs_f64(self.step_per_seq),
            prefill_tokens_per_second: self.prompt_token.recip(),
            attention_seconds: self.attention,
            context_seconds: self.context,
            jitter: 0.0,
        };
        EngineConfig { cost, ..engine.clone() }
    }

    fn file(&self, limits: &EngineConfig) -> EngineFile {
        EngineFile {
            max_num_seqs: Some(limits.max_num_seqs),
            max_batched_tokens: Some(limits.max_batched_tokens),
            kv_tokens: Some(limits.num_blocks * limits.block_size),
            step_s: Some(self.step),
            step_per_seq_s: Some(self.step_per_seq),
            prompt_token_s: Some(self.prompt_token),
            attention_pair_s: Some(self.attention),
            context_token_s: Some(self.context),
            jitter: None,
        }
    }
}

/// The fastest TPOT is a step, the lower-quartile TTFT per token a prompt.
fn first_guess(recording: &Recording) -> Prices {
    let requests = &recording.requests;
    let fastest = requests.iter().filter_map(Recorded::tpot).fold(f64::INFINITY, f64::min);
    let step = if fastest.is_finite() { fastest } else { 0.02 }.max(1e-5);
    let per_token = |request: &Recorded| request.ttft() / (request.uncached() as f64 + 1.0);
    let mut rates: Vec<f64> = requests.iter().map(per_token).collect();
    rates.sort_by(f64::total_cmp);
    let prompt_token = rates.get(rates.len() / 4).copied().unwrap_or(1e-4).max(1e-8);
    Prices {
        step,
        step_per_seq: step / 50.0,
        prompt_token,
        attention: prompt_token / 20_000.0,
        context: step / 100_000.0,
        overhead: 0.005,
    }
}

/// The model's times for one recorded request, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Modelled {
    ttft: f64,
    tpot: Option<f64>,
}

fn simulate(recording: &Recording, config: &EngineConfig, overhead: f64) -> Vec<Modelled> {
    let mut engine = Engine::new(config.clone(), 1);
    let mut events: Vec<EngineEvent> = Vec::new();
    let mut owners = Vec::new();
    for (at, request) in recording.requests.iter().enumerate() {
        let sent = Stamp::default().after(Duration::from_secs_f64(request.sent));
        engine.advance(sent, &mut events);
        let blocks = (request.cached_tokens / config.block_size) as usize;
        let chain: Vec<u64> = (0..blocks as u64).map(|block| ((at as u64) << 32) | block).collect();
        let work = Work { chain, prompt: request.prompt_tokens, output: request.output_tokens };
        engine.preload(&work);
        if engine.submit(sent, work).is_ok() {
            owners.push(at);
        }
    }
    while let Some(next) = engine.next_event_at() {
        engine.advance(next, &mut events);
    }
    let mut times = vec![(Stamp::default(), Stamp::default()); recording.requests.len()];
    for event in events {
        let owner = usize::try_from(event.job.0).ok().and_then(|job| owners.get(job)).copied();
        let Some(time) = owner.and_then(|owner| times.get_mut(owner)) else { continue };
        if event.index == 0 {
            time.0 = event.at;
        }
        time.1 = event.at;
    }
    let seconds = |stamp: Stamp| stamp.as_nanos() as f64 / 1e9;
    let modelled = |(request, (first, last)): (&Recorded, (Stamp, Stamp))| Modelled {
        ttft: (seconds(first) - request.sent).max(0.0) + overhead,
        tpot: (request.output_tokens > 1)
            .then(|| last.since(first).as_secs_f64() / (request.output_tokens - 1) as f64),
    };
    recording.requests.iter().zip(times).map(modelled).collect()
}

/// Mean |ln(model / measured)| over the requests of the search: a factor of two counts alike up and down, and an outlier
/// weighs little.
fn loss(recording: &Recording, modelled: &[Modelled]) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for (request, times) in recording.requests.iter().zip(modelled).step_by(2) {
        sum += off(times.ttft, request.ttft());
        count += 1.0;
        if let (Some(model), Some(measured)) = (times.tpot, request.tpot()) {
            sum += off(model, measured);
            count += 1.0;
        }
    }
    sum / f64::max(count, 1.0)
}

fn off(model: f64, measured: f64) -> f64 {
    (model.max(1e-6) / measured.max(1e-6)).ln().abs()
}

fn error(recording: &Recording, modelled: &[Modelled], counts: impl Fn(usize) -> bool) -> FitError {
    let pairs = || recording.requests.iter().zip(modelled).enumerate().filter(|(at, _)| counts(*at));
    let ttft = pairs().map(|(_, (request, times))| times.ttft / request.ttft().max(1e-6)).collect();
    let tpot = |(_, (request, times)): (usize, (&Recorded, &Modelled))| Some(times.tpot? / request.tpot()?);
    let (ttft, tpot) = (Ratios::new(ttft), Ratios::new(pairs().filter_map(tpot).collect()));
    FitError {
        requests: ttft.0.len(),
        ttft_p50: ttft.error(0.5),
        ttft_p90: ttft.error(0.9),
        tpot_p50: tpot.error(0.5),
        tpot_p90: tpot.error(0.9),
        ttft_ratio: ttft.median(),
        tpot_ratio: tpot.median(),
    }
}

/// Ratios of model to measured, ascending.
struct Ratios(Vec<f64>);

impl Ratios {
    fn new(mut ratios: Vec<f64>) -> Self {
        ratios.sort_by(f64::total_cmp);
        Self(ratios)
    }

    fn median(&self) -> f64 {
        self.0.get(self.0.len() / 2).copied().unwrap_or(0.0)
    }

    fn error(&self, share: f64) -> f64 {
        let errors = Self::new(self.0.iter().map(|ratio| (ratio - 1.0).abs()).collect());
        let rank = (share * errors.0.len() as f64).ceil() as usize;
        errors.0.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
    }
}

/// vLLM's own, so that reported cached tokens are whole blocks.
const FINE_BLOCK: u64 = 16;
/// The recording has what was cached, so the model must not evict.
const MAX_BLOCKS: u64 = 1 << 24;
const MIN_PRICE: f64 = 1e-13;

#[cfg(test)]
mod tests {
    use super::*;

    /// What an engine with these prices would have recorded.
    fn recorded_by(truth: &Prices) -> Recording {
        let mut random = fastrand::Rng::with_seed(5);
        let mut sent = 0.0;
        let mut requests: Vec<Recorded> = (0..48)
            .map(|_| {
                sent += 0.2 * -random.f64().max(1e-9).ln();
                let prompt_tokens = 50 + random.u64(..4_000);
                let cached_tokens = if random.bool() { (prompt_tokens / 2) / 16 * 16 } else { 0 };
                let output_tokens = 2 + random.u64(..12);
                Recorded { prompt_tokens, cached_tokens, output_tokens, sent, first_token: 0.0, end: 0.0 }
            })
            .collect();
        let engine =
            EngineConfig { block_size: FINE_BLOCK, num_blocks: MAX_BLOCKS, ..EngineConfig::default() };
        let recording = Recording { requests: requests.clone() };
        let modelled = simulate(&recording, &truth.over(&engine), truth.overhead);
        for (request, times) in requests.iter_mut().zip(modelled) {
            request.first_token = request.sent + times.ttft;
            let gaps = (request.output_tokens - 1) as f64;
            request.end = request.first_token + times.tpot.unwrap() * gaps;
        }
        Recording { requests }
    }

    #[test]
    fn prices_are_found_again() {
        let truth = Prices {
            step: 0.03,
            step_per_seq: 8e-4,
            prompt_token: 1.4e-4,
            attention: 8e-9,
            context: 2e-7,
            overhead: 0.012,
        };
        let found = fit(&recorded_by(&truth), &EngineConfig::default());
        assert!(found.held_out.ttft_p50 < 0.05 && found.held_out.tpot_p50 < 0.05, "{found:?}");
        assert!((0.95..1.05).contains(&found.held_out.ttft_ratio), "{found:?}");
        let price = |price: Option<f64>, truth: f64| price.unwrap() / truth;
        assert!((0.7..1.4).contains(&price(found.engine.step_s, truth.step)), "{found:?}");
        assert!((0.7..1.4).contains(&price(found.engine.prompt_token_s, truth.prompt_token)), "{found:?}");
        assert_eq!(found.fitted.requests + found.held_out.requests, 48);
    }
}
