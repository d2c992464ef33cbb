//! What came of every request of a run, and the figures that are made of it.
//!
//! A request is good when it met every bound that applies to it; one that was refused or failed never is, and all that
//! came count, the first ones to cold caches included. TPOT is that of answers of two tokens and more.

use std::time::Duration;

use serde::Serialize;

use crate::clock::Stamp;
use crate::config::{Slo, TtftBound};
use crate::units::Tokens;

use super::dispatch::RequestId;
use super::workload::Arrival;

/// One request's fate.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    arrived: Stamp,
    placed: Option<Stamp>,
    predicted_ttft: Option<Duration>,
    first_token: Option<Stamp>,
    last_token: Stamp,
    tokens: u64,
    /// Prompt tokens that the engine had cached.
    pub(super) cached: Tokens,
    is_refused: bool,
    is_failed: bool,
}

impl Flight {
    pub(super) fn new(arrived: Stamp) -> Self {
        Self {
            arrived,
            placed: None,
            predicted_ttft: None,
            first_token: None,
            last_token: arrived,
            tokens: 0,
            cached: Tokens(0),
            is_refused: false,
            is_failed: false,
        }
    }

    pub(super) fn placed(&mut self, at: Stamp, predicted_ttft: Option<Duration>) {
        self.placed = Some(at);
        self.predicted_ttft = predicted_ttft;
    }

    pub(super) fn token(&mut self, at: Stamp) {
        self.first_token.get_or_insert(at);
        self.last_token = at;
        self.tokens += 1;
    }

    pub(super) fn refuse(&mut self) {
        self.is_refused = true;
    }

    pub(super) fn fail(&mut self) {
        self.is_failed = true;
    }

    fn ttft(&self) -> Option<Duration> {
        Some(self.first_token?.since(self.arrived))
    }

    fn tpot(&self) -> Option<Duration> {
        let gaps = u32::try_from(self.tokens.checked_sub(1)?).ok().filter(|gaps| *gaps > 0)?;
        Some(self.last_token.since(self.first_token?) / gaps)
    }

    fn is_good(&self, slo: &Slo, prompt: Tokens) -> bool {
        let within = |value: Option<Duration>, bound: Option<Duration>| match (value, bound) {
            (Some(value), Some(bound)) => value <= bound,
            _ => true,
        };
        let bound = slo.ttft.map(|bound: TtftBound| bound.for_prompt(prompt));
        self.first_token.is_some()
            && within(self.ttft(), bound)
            && within(self.tpot(), slo.tpot)
            && within(Some(self.last_token.since(self.arrived)), slo.e2e)
    }
}

/// A run's flights.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    flights: Vec<Flight>,
    work: Vec<f64>,
    /// How often the dispatcher was asked.
    pub(super) decisions: u64,
}

impl Tally {
    pub(super) fn new(replicas: usize, flights: impl Iterator<Item = Flight>) -> Self {
        Self { flights: flights.collect(), work: vec![0.0; replicas], decisions: 0 }
    }

    pub(super) fn flight(&mut self, request: RequestId) -> &mut Flight {
        &mut self.flights[request.index()]
    }

    pub(super) fn worked(&mut self, replica: usize, seconds: f64) {
        self.work[replica] += seconds;
    }

    /// The run in figures; `arrivals` are the run's, `span` is the time over which they came.
    pub(super) fn figures(&self, arrivals: &[Arrival<'_>], slo: &Slo, span: Duration) -> Figures {
        let prompt = |at: usize| arrivals.get(at).map_or(0, |arrival| arrival.request.prompt);
        let requests = self.flights.len().max(1) as f64;
        let good = self.flights.iter().enumerate();
        let good = good.filter(|(at, flight)| flight.is_good(slo, Tokens(prompt(*at)))).count() as f64;
        let looked_up: u64 = (0..self.flights.len()).map(prompt).sum();
        let cached: u64 = self.flights.iter().map(|flight| flight.cached.0).sum();
        let share =
            |fate: fn(&Flight) -> bool| self.flights.iter().filter(|f| fate(f)).count() as f64 / requests;
        let ttft = Quantiles::of(self.flights.iter().filter_map(Flight::ttft));
        let tpot = Quantiles::of(self.flights.iter().filter_map(Flight::tpot));
        let held = Quantiles::of(self.flights.iter().filter_map(|f| Some(f.placed?.since(f.arrived))));
        Figures {
            requests: self.flights.len(),
            ttft_p50_s: ttft.at(0.5),
            ttft_p90_s: ttft.at(0.9),
            ttft_p99_s: ttft.at(0.99),
            tpot_p50_s: tpot.at(0.5),
            tpot_p99_s: tpot.at(0.99),
            violations: 1.0 - good / requests,
            ttft_violations: self.missing(slo, prompt, |slo| Slo { ttft: slo.ttft, ..Slo::default() }),
            tpot_violations: self.missing(slo, prompt, |slo| Slo { tpot: slo.tpot, ..Slo::default() }),
            goodput: good / requests,
            goodput_per_second: good / span.as_secs_f64(),
            hit_rate: cached as f64 / looked_up.max(1) as f64,
            load_spread: self.spread(),
            decisions: self.decisions,
            held_share: share(|f| f.placed.is_some_and(|placed| placed > f.arrived)),
            held_p50_s: held.at(0.5),
            held_p99_s: held.at(0.99),
            refused: share(|f| f.is_refused),
            failed: share(|f| f.is_failed),
            prediction: self.prediction(),
        }
    }

    fn missing(&self, slo: &Slo, prompt: impl Fn(usize) -> u64, only: fn(&Slo) -> Slo) -> f64 {
        let bound = only(slo);
        let flights = self.flights.iter().enumerate();
        let missed = flights.filter(|(at, flight)| !flight.is_good(&bound, Tokens(prompt(*at)))).count();
        missed as f64 / self.flights.len().max(1) as f64
    }

    /// Most prompt work at a replica over the mean.
    fn spread(&self) -> f64 {
        let mean = self.work.iter().sum::<f64>() / self.work.len().max(1) as f64;
        if mean > 0.0 { self.work.iter().copied().fold(0.0, f64::max) / mean } else { 1.0 }
    }

    fn prediction(&self) -> Option<Prediction> {
        let ratio = |flight: &Flight| {
            let predicted = flight.predicted_ttft?.as_secs_f64();
            let actual = flight.first_token?.since(flight.placed?).as_secs_f64();
            (actual > 0.0).then_some(predicted / actual)
        };
        let ratios: Vec<f64> = self.flights.iter().filter_map(ratio).collect();
        if ratios.is_empty() {
            return None;
        }
        let errors = Quantiles::new(ratios.iter().map(|ratio| (ratio - 1.0).abs()).collect());
        let bias = Quantiles::new(ratios).at(0.5);
        Some(Prediction { error_p50: errors.at(0.5), error_p90: errors.at(0.9), ratio_p50: bias })
    }
}

/// A run in figures: seconds and shares of all requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// How many came.
    pub requests: usize,
    /// Median time to first token, time in the gateway included.
    pub ttft_p50_s: f64,
    /// Its 90th percentile.
    pub ttft_p90_s: f64,
    /// Its 99th percentile.
    pub ttft_p99_s: f64,
    /// Median mean time per output token.
    pub tpot_p50_s: f64,
    /// Its 99th percentile.
    pub tpot_p99_s: f64,
    /// Share that missed the SLO, refused and failed ones included.
    pub violations: f64,
    /// Share without a first token in time.
    pub ttft_violations: f64,
    /// Share that missed the TPOT bound or had no answer.
    pub tpot_violations: f64,
    /// Share that met the SLO.
    pub goodput: f64,
    /// Those for each second of traffic.
    pub goodput_per_second: f64,
    /// Prompt tokens found cached, of all.
    pub hit_rate: f64,
    /// Prompt work at the replica that had most, over the mean.
    pub load_spread: f64,
    /// How often a dispatcher was asked: more than the requests where it holds some.
    pub decisions: u64,
    /// Share that was held in the gateway.
    pub held_share: f64,
    /// Median time from arrival to placement.
    pub held_p50_s: f64,
    /// Its 99th percentile.
    pub held_p99_s: f64,
    /// Share that was refused.
    pub refused: f64,
    /// Share that no engine could serve.
    pub failed: f64,
    /// How well TTFT was predicted, where it was.
    pub prediction: Option<Prediction>,
}

/// Predicted against actual TTFT, from the decision.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// Median of |predicted / actual - 1|.
    pub error_p50: f64,
    /// Its 90th percentile.
    pub error_p90: f64,
    /// Median of predicted / actual.
    pub ratio_p50: f64,
}

struct Quantiles(Vec<f64>);

impl Quantiles {
    fn of(spans: impl Iterator<Item = Duration>) -> Self {
        Self::new(spans.map(|span| span.as_secs_f64()).collect())
    }

    fn new(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    /// The smallest value that is at least as large as this share of all; zero where there is none.
    fn at(&self, share: f64) -> f64 {
        let rank = (share * self.0.len() as f64).ceil() as usize;
        self.0.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
    }
}
