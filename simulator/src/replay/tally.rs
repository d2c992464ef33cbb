//! What came of every request of a run, and the figures made of it.
//!
//! A request is good when it met every bound that applies to it. Refused and failed ones never are, and every request
//! counts, those that met cold caches included. TPOT needs two tokens.

use std::time::Duration;

use serde::Serialize;

use crate::time::Stamp;

use super::router::{Bounds, RequestId};
use super::workload::Planned;

/// What was measured of one request.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// When it came, or was due.
    pub arrived: Stamp,
    /// Prompt tokens.
    pub prompt: u64,
    /// When it was sent; `None` where it was refused.
    pub sent: Option<Stamp>,
    /// TTFT that the router predicted.
    pub predicted_ttft: Option<Duration>,
    /// When its first token came.
    pub first_token: Option<Stamp>,
    /// When its last token came.
    pub last_token: Stamp,
    /// Tokens of the answer.
    pub tokens: u64,
    /// Gaps between its tokens that are longer than the bound on ITL.
    pub late_gaps: u64,
    /// Prompt tokens that the engine had cached, of the one that computed the prompt; `None` where it did not say.
    pub cached: Option<u64>,
    /// Its prompt was computed by a replica that did not decode it.
    pub is_apart: bool,
    /// It has no complete answer.
    pub is_failed: bool,
}

impl Measured {
    fn new(planned: &Planned<'_>) -> Self {
        Self {
            arrived: planned.at,
            prompt: planned.request.prompt,
            last_token: planned.at,
            ..Self::default()
        }
    }

    pub(super) fn send(&mut self, at: Stamp, predicted_ttft: Option<Duration>) {
        debug_assert!(self.sent.is_none() || self.is_apart, "a request is sent once");
        self.sent.get_or_insert(at);
        self.predicted_ttft = predicted_ttft;
    }

    pub(super) fn token(&mut self, at: Stamp, itl_bound: Option<Duration>) {
        if self.first_token.replace(self.first_token.unwrap_or(at)).is_some() {
            let gap = at.since(self.last_token);
            self.late_gaps += u64::from(itl_bound.is_some_and(|bound| gap > bound));
        }
        self.last_token = at;
        self.tokens += 1;
    }

    /// No engine could serve it.
    pub(super) fn fail(&mut self) {
        self.is_failed = true;
    }

    /// From when it came, or was due.
    pub fn ttft(&self) -> Option<Duration> {
        Some(self.first_token?.since(self.arrived))
    }

    /// `None` of an answer that broke off: how many tokens came is not known.
    pub fn tpot(&self) -> Option<Duration> {
        if self.is_failed {
            return None;
        }
        let gaps = u32::try_from(self.tokens.checked_sub(1)?).ok().filter(|gaps| *gaps > 0)?;
        Some(self.last_token.since(self.first_token?) / gaps)
    }

    /// Nearest rank: of fewer than a hundred gaps none may be late.
    fn keeps_itl(&self) -> bool {
        let gaps = self.tokens.saturating_sub(1);
        self.late_gaps <= gaps - (99 * gaps).div_ceil(100)
    }

    fn is_good(&self, bounds: &Bounds) -> bool {
        let within = |value: Option<Duration>, bound: Option<Duration>| match (value, bound) {
            (Some(value), Some(bound)) => value <= bound,
            _ => true,
        };
        self.first_token.is_some()
            && !self.is_failed
            && within(self.ttft(), bounds.ttft_of(self.prompt))
            && within(self.tpot(), bounds.tpot)
            && (bounds.itl_p99.is_none() || self.keeps_itl())
            && within(Some(self.last_token.since(self.arrived)), bounds.e2e)
    }
}

/// A run's measurements.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    requests: Vec<Measured>,
    served: Vec<Served>,
}

/// What a replica did for the requests that it was sent.
#[derive(Clone, Copy, Debug, Default)]
struct Served {
    requests: f64,
    /// Of prompts and answers.
    tokens: f64,
    /// Of prompt work.
    seconds: f64,
}

impl Tally {
    pub(super) fn new(replicas: usize, plan: &[Planned<'_>]) -> Self {
        Self { requests: plan.iter().map(Measured::new).collect(), served: vec![Served::default(); replicas] }
    }

    pub(super) fn request(&mut self, request: RequestId) -> &mut Measured {
        &mut self.requests[request.index()]
    }

    /// A replica served a request of `tokens`, with `seconds` of prompt work.
    pub(super) fn served(&mut self, replica: usize, tokens: u64, seconds: f64) {
        let served = &mut self.served[replica];
        served.requests += 1.0;
        served.tokens += tokens as f64;
        served.seconds += seconds;
    }

    pub(super) fn figures(&self, bounds: &Bounds, decisions: u64) -> Figures {
        let all = &self.requests;
        let count = |is: &dyn Fn(&Measured) -> bool| all.iter().filter(|request| is(request)).count() as f64;
        let requests = all.len().max(1) as f64;
        let share = |is: &dyn Fn(&Measured) -> bool| count(is) / requests;
        let missing = |bounds: Bounds| share(&|r| !r.is_good(&bounds));
        let good = count(&|r| r.is_good(bounds));
        let looked_up: u64 = all.iter().filter(|r| r.cached.is_some()).map(|r| r.prompt).sum();
        let cached: u64 = all.iter().filter_map(|r| r.cached).sum();
        let end = all.iter().map(|r| r.last_token.max(r.arrived)).max().unwrap_or_default();
        let ttft = Quantiles::of(all.iter().filter_map(Measured::ttft));
        let tpot = Quantiles::of(all.iter().filter_map(Measured::tpot));
        let held = Quantiles::of(all.iter().filter_map(|r| Some(r.sent?.since(r.arrived))));
        Figures {
            requests: all.len(),
            ttft_p50_s: ttft.at(0.5),
            ttft_p90_s: ttft.at(0.9),
            ttft_p99_s: ttft.at(0.99),
            tpot_p50_s: tpot.at(0.5),
            tpot_p90_s: tpot.at(0.9),
            tpot_p99_s: tpot.at(0.99),
            violations: 1.0 - good / requests,
            ttft_violations: missing(Bounds { tpot: None, itl_p99: None, e2e: None, ..*bounds }),
            tpot_violations: missing(Bounds { tpot: bounds.tpot, ..Bounds::default() }),
            itl_violations: missing(Bounds { itl_p99: bounds.itl_p99, ..Bounds::default() }),
            goodput: good / requests,
            goodput_per_second: good / end.since(Stamp::default()).as_secs_f64(),
            hit_rate: cached as f64 / looked_up as f64,
            load_spread: self.spread(|served| served.seconds),
            requests_spread: self.spread(|served| served.requests),
            tokens_spread: self.spread(|served| served.tokens),
            decisions,
            held_share: share(&|r| r.sent.is_some_and(|sent| sent > r.arrived)),
            held_p50_s: held.at(0.5),
            held_p99_s: held.at(0.99),
            refused: share(&|r| r.sent.is_none()),
            failed: share(&|r| r.is_failed),
            apart: share(&|r| r.is_apart),
            prediction: self.prediction(),
        }
    }

    /// The largest share of a replica over the mean.
    fn spread(&self, share: impl Fn(&Served) -> f64) -> f64 {
        let mean = self.served.iter().map(&share).sum::<f64>() / self.served.len().max(1) as f64;
        if mean > 0.0 { self.served.iter().map(share).fold(0.0, f64::max) / mean } else { 1.0 }
    }

    fn prediction(&self) -> Option<Prediction> {
        let ratio = |request: &Measured| {
            let predicted = request.predicted_ttft?.as_secs_f64();
            let actual = request.first_token?.since(request.sent?).as_secs_f64();
            (actual > 0.0).then_some(predicted / actual)
        };
        let ratios: Vec<f64> = self.requests.iter().filter_map(ratio).collect();
        if ratios.is_empty() {
            return None;
        }
        let errors = Quantiles::new(ratios.iter().map(|ratio| (ratio - 1.0).abs()).collect());
        let bias = Quantiles::new(ratios).at(0.5);
        Some(Prediction { error_p50: errors.at(0.5), error_p90: errors.at(0.9), ratio_p50: bias })
    }
}

/// A run in figures: seconds and shares of all requests. A figure that no request has is not a number; JSON has it as null.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Requests that arrived.
    pub requests: usize,
    /// Median TTFT, waiting in the router included.
    pub ttft_p50_s: f64,
    /// Its 90th percentile.
    pub ttft_p90_s: f64,
    /// Its 99th percentile.
    pub ttft_p99_s: f64,
    /// Median TPOT.
    pub tpot_p50_s: f64,
    /// Its 90th percentile.
    pub tpot_p90_s: f64,
    /// Its 99th percentile.
    pub tpot_p99_s: f64,
    /// Share that missed a bound, refused and failed ones included.
    pub violations: f64,
    /// Share without a first token in time.
    pub ttft_violations: f64,
    /// Share that missed the TPOT bound or had no answer.
    pub tpot_violations: f64,
    /// Share that missed the bound on its own ITL, or had no answer.
    pub itl_violations: f64,
    /// Share that met every bound.
    pub goodput: f64,
    /// Requests that met every bound, per second until the last of all had ended.
    pub goodput_per_second: f64,
    /// Prompt tokens found cached, as a share of those of which it is known.
    pub hit_rate: f64,
    /// Largest prompt work of a replica over the mean.
    pub load_spread: f64,
    /// Most requests of a replica over the mean.
    pub requests_spread: f64,
    /// Most tokens of a replica, of prompts and answers, over the mean.
    pub tokens_spread: f64,
    /// How often the router chose: more than once for a request that waited.
    pub decisions: u64,
    /// Share that waited in the router.
    pub held_share: f64,
    /// Median wait in the router.
    pub held_p50_s: f64,
    /// Its 99th percentile.
    pub held_p99_s: f64,
    /// Share that was never sent.
    pub refused: f64,
    /// Share that no engine could serve.
    pub failed: f64,
    /// Share whose prompts were computed by replicas that did not decode them.
    pub apart: f64,
    /// Absent where the router predicts nothing.
    pub prediction: Option<Prediction>,
}

impl Figures {
    /// Those of requests that were measured elsewhere, in the order of arrival.
    #[must_use]
    pub fn of(requests: Vec<Measured>, bounds: &Bounds) -> Self {
        Tally { requests, served: Vec::new() }.figures(bounds, 0)
    }
}

/// Predicted against actual TTFT, both from the moment of sending.
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

    /// Between the two values around the place, as numpy and with it `vllm bench serve` and aiperf have it (definition 7 of Hyndman and
    /// Fan 1996); not a number without values.
    fn at(&self, share: f64) -> f64 {
        let place = share * self.0.len().saturating_sub(1) as f64;
        let value = |at: f64| self.0.get(at as usize).copied().unwrap_or(f64::NAN);
        let (below, above) = (value(place.floor()), value(place.ceil()));
        below + place.fract() * (above - below)
    }
}
