//! What a placement costs, in seconds: the request itself, and everybody else. The formula, in the words of `docs/routing.md`:
//!
//! ```text
//! cost  =  wait + base + prefill + transfer − copy
//!                                           predicted TTFT, without what a shared prefix will save others
//!       +  o · (work − copy)                delay of those who come next: prefill at the pool's usual speed
//!       +  0.15 · (decode − (1.2 − 0.2 · shared) · least)⁺
//!                                           own answer and what it adds to those there, beyond the best's; without a bound on
//!                                           TPOT with the time that they stand still for its prefill
//!       +  10 s · (harm + stalled + slowed + late + failure)
//!                                           streams that its prefill and its decoding push over their bound on TPOT, itself
//!                                           included, or over that on their gaps (where another pool could compute the
//!                                           prompt), the chance that this first token misses its bound, the more where by
//!                                           more (`miss`), and the chance that there is no answer
//! ```
//!
//! A hit is worth what it saves, twice, and more where a queue stands (`backlog`). What many prompts share is computed once
//! more on behalf of all that will find it there: one of them pays its share only. A prompt goes where the streams can bear
//! it; without a bound on TPOT the time that they stand still counts as decoding.

use super::backlog::others_wait;
use super::float::{fast_max, float};
use super::hazard::FRESH_SPARE;
use super::miss::MissCurve;
use super::predictor::Queue;
use super::{Candidate, Eligible, Estimate, LoadView, PoolView, Query, Terms, Work, longest};
use crate::record::Addends;
use crate::routing::tuning::{prices, priors};
use crate::units::Tokens;

/// What is at stake for one request, the same at every candidate.
pub(super) struct Stakes<'a> {
    query: &'a Query<'a>,
    pool: PoolView,
    /// Slowness of an average replica.
    usual: f64,
    /// Prompts that wait per replica of the fleet.
    standing: f64,
    /// Seconds that it has waited, and one over its TTFT bound; the bound is infinite where it has none.
    waited: f64,
    per_bound: f64,
    /// Seconds per token; infinite where unbounded.
    tpot: f64,
    /// Seconds between two tokens; infinite where unbounded. And the share of a stream's bound that one longer gap uses up.
    gap: f64,
    per_gap: f64,
    /// The most of it that one prefill may use up: all, where another pool could compute the prompt instead.
    most_gaps: f64,
    /// The longest hit, and the share of computing what is lacking of it that others will use.
    longest: Tokens,
    used_by_others: f64,
}

impl<'a> Stakes<'a> {
    pub(super) fn of(query: &'a Query<'a>, candidates: &[Candidate<'_>]) -> Self {
        let slo = &query.aim.slo;
        let sharing = query.index.sharing(longest(&query.ask.prompt, candidates), query.aim.now);
        // As many come as came, and each replica gets its part of them.
        let others = sharing / float(candidates.len() as u64).max(1.0);
        let pool = query.model.pool.view().bounded(query.ask.sampling.max_tokens);
        let (percent, gap) = slo
            .itl
            .iter()
            .last()
            .map_or((0, f64::INFINITY), |(percent, bound)| (percent, bound.as_secs_f64()));
        let per_gap = 1.0 / (1.0 + (1.0 - f64::from(percent) / 100.0) * pool.answers.output);
        Self {
            query,
            pool,
            gap,
            per_gap,
            most_gaps: if query.ask.is_quote { 1.0 } else { per_gap },
            usual: query.model.pool.average.slowness.load(),
            standing: query.model.backlog.standing.load(),
            waited: query.aim.waited.as_secs_f64(),
            per_bound: slo.ttft.map_or(0.0, |bound| 1.0 / bound.as_secs_f64().max(1e-3)),
            tpot: slo.tpot.map_or(f64::INFINITY, |bound| bound.as_secs_f64()),
            longest: candidates.iter().map(|candidate| candidate.hit).max().unwrap_or_default(),
            used_by_others: others / (1.0 + others),
        }
    }

    /// Prices every candidate.
    pub(super) fn price(&self, candidates: &mut [Candidate<'_>]) {
        let (mut with_room, mut of_all) = (Least::default(), Least::default());
        for candidate in candidates.iter_mut() {
            candidate.decoding = 0.0;
            let terms = self.terms(candidate);
            (candidate.cost, candidate.ttft, candidate.decoding) =
                (terms.cost.total(), terms.seconds(), terms.decode);
            candidate.wait = terms.wait;
            // An engine that takes as long for each prompt, however many there are, looks like one whose queue never empties: of a queue
            // its own page must have shown something, unless its places are configured.
            candidate.own_wait = if candidate.has_queued { terms.own_wait } else { 0.0 };
            let one = Least { decode: terms.decode, opened: terms.shared };
            of_all = of_all.or(one);
            if terms.slot_wait <= 0.0 {
                with_room = with_room.or(one);
            }
        }
        // The speed of a full batch is taken: whoever waits for a place there keeps the next one from it, and as many are left to
        // the slower replicas as before.
        let least = if with_room.decode < f64::INFINITY { with_room } else { of_all };
        // A replica that lacks nothing but what many share stays idle for as long as each of them finds its own way short enough.
        let tolerance = 1.0 + (prices::DECODE_TOLERANCE - 1.0) * (1.0 - least.opened);
        for candidate in candidates {
            candidate.decoding =
                prices::DECODE_WEIGHT * fast_max(candidate.decoding - tolerance * least.decode, 0.0);
            candidate.cost += candidate.decoding;
        }
    }

    /// What the request would meet at a candidate, and what that costs: its decoding what [`Self::price`] found, a comparison.
    pub(super) fn terms(&self, candidate: &Candidate<'_>) -> Terms {
        let now = self.query.aim.now;
        let (estimate, load) = (self.query.model.estimate(candidate.slot, now), candidate.load.view());
        let lacking = self.query.ask.prompt.tokens.saturating_sub(candidate.hit);
        let (work, transfer) = match &self.query.ask.elsewhere {
            None => (Work::of(lacking, candidate.hit), 0.0),
            Some(elsewhere) => (Work::default(), (elsewhere.transfer)(candidate.identity, lacking)),
        };
        let output = self.pool.answers.output;
        let queue = Queue {
            own: &load,
            foreign: &candidate.foreign,
            batch_limit: candidate.batch_limit,
            lacking: candidate.memory.map_or(0.0, |memory| memory.lacking(&load, lacking, output)),
            head_age: load.head_age(now),
        };
        let mut terms = estimate.terms(&self.pool, &queue, work);
        terms.transfer = transfer;
        terms.adapter = if candidate.lacks_adapter { prices::ADAPTER_LOAD } else { 0.0 };
        let steps = self.steps(candidate, &load, &estimate);
        terms.shared = self.shared(candidate, &work);
        // Those there stand still while it is computed, whether or not `harm` finds that they can bear it.
        let stall = terms.prefill * (1.0 - terms.shared);
        let slower = output * steps.added / 2.0;
        terms.decode = output * steps.after + candidate.requests * (slower + stall);
        let slow = MissCurve::TPOT.missed(steps.after / self.tpot);
        // Itself, and what its sequence adds to each of the streams there.
        let running = float(load.decoding()) + candidate.foreign.running();
        let slower = running * steps.added / self.tpot;
        // Those there are taken to be bound as this one is.
        let gaps = terms.prefill / self.gap - 1.0;
        terms.stalled = running * fast_max(self.per_gap * gaps, 0.0).min(self.most_gaps);
        terms.slowed = self.pool.answers.goes_on * (slow.price() + slower * slow.slope());
        // Streams that lose their bound by the steps alone lose it once, ...
        terms.harm = self.harm(candidate, &terms, &load, estimate.step(load.context)) * (1.0 - slow.chance);
        // ... and no wait gives them slack.
        terms.slack = fast_max(1.0 - steps.after / self.tpot, 0.0);
        let used = (self.waited + terms.seconds()) * self.per_bound;
        let late = MissCurve::TTFT.missed(used);
        terms.late = late.chance;
        let copy = terms.prefill * terms.shared;
        // What many share is opened on behalf of all of them: who opens it is late by its own part.
        let late = if copy > 0.0 { MissCurve::TTFT.missed(used - copy * self.per_bound) } else { late };
        // A slow replica's second is not the fleet's: what others could have had of it is work, at the pool's usual speed.
        let usual = self.usual * self.pool.work(&work) * (1.0 - terms.shared);
        terms.cost = Addends {
            wait: terms.wait,
            prefill: terms.prefill,
            base: terms.base,
            adapter: terms.adapter,
            transfer: terms.transfer,
            others: others_wait(self.standing) * usual - copy,
            decoding: candidate.decoding,
            harm: prices::MISS_COST * (terms.harm + terms.stalled + terms.slowed),
            late: prices::MISS_COST * late.price(),
            failure: prices::MISS_COST * (1.0 - candidate.success),
        };
        terms
    }

    /// Whether a candidate would have lost, or tied, without the tokens that it has cached beyond those of every other.
    pub(super) fn is_won_by_hit(&self, winner: &Candidate<'_>, others: &Eligible<'_>) -> bool {
        let others = || others.iter().map(|(_, one)| one).filter(|one| one.slot != winner.slot);
        let hit = others().map(|other| other.hit).min().unwrap_or(winner.hit);
        let without = self.terms(&Candidate { hit, ..*winner });
        let enough = without.cost.total() + tolerance(without.seconds());
        others().any(|other| other.cost <= enough)
    }

    /// The share of what is to be computed there that another replica has, as far as others will use it.
    #[inline]
    fn shared(&self, candidate: &Candidate<'_>, work: &Work) -> f64 {
        let copied = self.longest.saturating_sub(candidate.hit).0.min(work.tokens);
        self.used_by_others * float(copied) / fast_max(float(work.tokens), 1.0)
    }

    /// A decoding step there without this request, and with it when half of its answer is written. Those that wait or are of
    /// others are taken to be like this one.
    #[inline]
    fn steps(&self, candidate: &Candidate<'_>, load: &LoadView, estimate: &Estimate) -> Steps {
        let context = float(self.query.ask.prompt.tokens.0) + self.pool.answers.output / 2.0;
        let sequence = estimate.sequence(&self.pool, context);
        let added = f64::from(self.query.ask.sampling.n.max(1)) * sequence;
        let unseen = fast_max(candidate.requests - float(load.decoding()), 0.0);
        let before = estimate.step(load.context) + unseen * sequence;
        Steps { after: before + added, added }
    }

    /// Streams that this prefill is expected to push over their bound.
    #[inline]
    fn harm(&self, candidate: &Candidate<'_>, terms: &Terms, load: &LoadView, step: f64) -> f64 {
        let anyway = (terms.wait - terms.slot_wait) as f32;
        let ours = f64::from(candidate.load.harm(anyway, terms.prefill as f32));
        // Streams of others are taken to be like ours.
        let harmed = ours * (1.0 + candidate.foreign.running() / fast_max(float(load.decoding()), 1.0));
        if load.bounded == 0 {
            return harmed;
        }
        // Those that wait will have begun when this one is computed: without any slack, and bounded as this one is.
        let spare = self.tpot - step;
        let stall = if spare > 0.0 { terms.prefill * FRESH_SPARE / spare } else { 0.0 };
        harmed + load.bounded as f64 * f64::from(self.pool.fresh.at(stall as f32))
    }
}

/// By how much two costs may differ and say the same.
pub(super) fn tolerance(ttft: f64) -> f64 {
    fast_max(priors::JITTER, priors::ERROR * ttft)
}

/// The least decoding, in seconds, and the share of the prompt's computing there that others will use.
#[derive(Clone, Copy)]
struct Least {
    decode: f64,
    opened: f64,
}

impl Default for Least {
    fn default() -> Self {
        Self { decode: f64::INFINITY, opened: 0.0 }
    }
}

impl Least {
    fn or(self, other: Self) -> Self {
        if other.decode < self.decode { other } else { self }
    }
}

/// A decoding step, in seconds.
struct Steps {
    /// With the request.
    after: f64,
    /// What it adds.
    added: f64,
}
