//! From one pool's load over time to the number of replicas to ask for. Pure: time is an argument.
//!
//! Up at once, down slowly: what is asked for is the highest number that was needed within `scale_down_after`. Ejected
//! replicas exist and serve nothing, so as many are asked for beside those that are needed. Where answers do not show their cost, what
//! waits and what runs at once decide ([`Unmeasured`]).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::forecast::Forecast;
use super::judge::{Limit, needed, outcome};
use crate::api::scale::{PoolScale, ScaleLoad, ScalePrediction, ScaleTerms};
use crate::config::{Scale, TtftBound};
use crate::fleet::demand::{EngineLoad, PoolLoad};
use crate::fleet::status::ReplicaState;
use crate::units::Tokens;

/// What a pool is held to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Target {
    /// `[pool.scale]`
    pub scale: Scale,
    /// Bounds on TTFT of its routes' SLO classes.
    pub ttft: Vec<TtftBound>,
    /// The strictest bound on TPOT of its routes.
    pub tpot: Option<Duration>,
}

/// What is asked for, and why.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recommendation {
    /// As the admin API answers.
    pub(crate) scale: PoolScale,
}

impl Recommendation {
    /// Replicas to ask for.
    pub fn replicas(&self) -> usize {
        self.scale.desired_replicas
    }
}

/// One pool over time.
#[derive(Debug, Default)]
pub struct Scaler {
    forecast: Forecast,
    arrivals: Option<u64>,
    /// When a request came or ran last.
    active: Option<f64>,
    /// The first look.
    began: Option<f64>,
    /// (seconds, needed), falling: the head is the highest within the window.
    past: VecDeque<(f64, usize)>,
    /// (seconds, waiting), rising: the head is the least of late.
    waiting: VecDeque<(f64, f64)>,
    /// The same of predicted TTFT over its bound, and of what the model finds needed.
    pressure: VecDeque<(f64, f64)>,
    modelled: VecDeque<(f64, f64)>,
    /// Means over about a minute.
    running: Mean,
    explained: Mean,
    own: Mean,
    foreign: Mean,
    running_each: Mean,
    cold_starts: ColdStarts,
    unmeasured: Unmeasured,
}

impl Scaler {
    /// Takes a look at `now` seconds, which never fall.
    pub fn look(&mut self, now: f64, wall: SystemTime, load: &PoolLoad, target: &Target) -> Recommendation {
        let scale = &target.scale;
        let before = self.arrivals.replace(load.arrivals);
        let arrived = before.map_or(0, |before| load.arrivals.saturating_sub(before));
        self.forecast.note(now, arrived as f64);
        self.cold_starts.note(&load.engines);
        let measured = self.cold_starts.typical();
        let cold_start = measured.unwrap_or(scale.cold_start);
        let ready: Vec<&EngineLoad> = load.engines.iter().filter(|engine| engine.is_ready()).collect();
        let count = |is_it: fn(ReplicaState) -> bool| load.engines.iter().filter(|e| is_it(e.state)).count();
        let waiting = load.queued as f64 + ready.iter().filter_map(|engine| engine.waiting).sum::<f64>();
        let least = scale.least(wall, cold_start).max(usize::from(load.is_for_canary));
        let replicas = |engines: usize| engines.div_ceil(load.engines_per_replica);
        let starting = replicas(count(ReplicaState::is_coming));
        let listening = count(|state| matches!(state, ReplicaState::Probing | ReplicaState::Warming));
        let coming = if scale.min_replicas == 0 { replicas(listening) } else { starting };
        let expected = self.forecast.expected(now, cold_start.as_secs_f64());
        let mut answer = PoolScale {
            ejected_replicas: replicas(count(|state| state == ReplicaState::Ejected)),
            max_replicas: scale.max_replicas,
            min_replicas: least,
            pool: load.pool.to_string(),
            predicted_ttft: load.predicted_ttft.map(|ttft| ttft.as_secs_f64()),
            ready_replicas: replicas(ready.len()),
            starting_replicas: starting,
            terms: ScaleTerms {
                arrival_growth: expected.growth,
                arrival_rate: expected.rate,
                cold_start: cold_start.as_secs_f64(),
                cold_start_measured: measured.is_some(),
                standing_waiting: windowed_min(&mut self.waiting, now, waiting),
                unexplained_running: 1.0,
                ..ScaleTerms::default()
            },
            waiting_per_replica: waiting / ready.len().max(1) as f64,
            ..PoolScale::default()
        };
        // Those that were asked for: listed ones of a pool that may be at zero count once something listens there.
        let there = answer.ready_replicas + coming;
        let inflight: f64 = load
            .engines
            .iter()
            .map(|engine| engine.inflight.max(engine.running.unwrap_or(0.0) as u64) as f64)
            .sum();
        let is_asked = arrived > 0 || inflight + waiting > 0.0;
        // What is there at the start may have had requests just before.
        if is_asked || (self.active.is_none() && there > 0) {
            self.active = Some(now);
        }
        let is_idle = self.active.is_none_or(|active| now - active >= scale.idle_after.as_secs_f64());
        let is_young = now - *self.began.get_or_insert(now) < MINUTE;
        let seen = Activity { is_idle, is_young, there };
        if self.judge(now, load, &ready, target, &mut answer).is_none() {
            let running = inflight - (waiting - load.queued as f64);
            let crowd = Crowd { waiting, running, per_replica: load.engines_per_replica.max(1), there };
            (answer.needed_replicas, answer.reason) = self.unmeasured.look(now, &ready, crowd);
        }
        self.decide(now, target, seen, &mut answer);
        answer.terms.predicted = answer.terms.load.as_ref().zip(load.typical).and_then(|(load, typical)| {
            outcome(load, typical.round_trip, answer.desired_replicas.max(1)).ok()
        });
        Recommendation { scale: answer }
    }

    /// What to ask for, within bounds and window.
    fn decide(&mut self, now: f64, target: &Target, seen: Activity, answer: &mut PoolScale) {
        let (least, most) = (answer.min_replicas, answer.max_replicas);
        let (needed, why) = (answer.needed_replicas, std::mem::take(&mut answer.reason));
        // What is sick and still there counts for the orchestrator and not for us; but if all are, more would be as sick.
        let beside = if answer.ready_replicas == 0 { 0 } else { answer.ejected_replicas };
        // Whom the last request woke stays asked for as long as one without requests does, however long it takes to start.
        let needed = if seen.is_idle { 0 } else { needed.max(1) };
        let asked = (needed + if needed > 0 { beside } else { 0 }).clamp(least, most);
        let kept = target.scale.scale_down_after.as_secs_f64();
        // What was asked before a restart, and at which rates, is not known: it is taken for right.
        let there = if seen.is_young { seen.there.clamp(least, most) } else { 0 };
        let asked_now = asked.max(there);
        let highest = windowed(&mut self.past, (now, asked_now), kept, |before| before <= asked_now);
        let replicas = if seen.is_idle { asked } else { highest }.clamp(least, most);
        answer.reason = match () {
            () if self.active.is_none() && replicas == 0 => {
                "nothing is there, and no request came yet".to_owned()
            }
            () if seen.is_idle && self.active.is_some() && replicas == least => {
                format!("no request for {:.0} s", target.scale.idle_after.as_secs_f64())
            }
            () if seen.is_young && replicas > asked && replicas == there => {
                format!("{there} were there when the gateway started; now {why}")
            }
            () if asked == most && needed + beside > most => {
                format!("{why}; max_replicas allows no more than {most}")
            }
            () if replicas > asked => {
                format!("{replicas} were needed within the last {kept:.0} s; now {why}")
            }
            () if asked > needed + beside => {
                format!("min_replicas, a window or a canary asks for {least}; {why}")
            }
            () if beside > 0 => format!("{why}; and {beside} ejected serve nothing"),
            () => why,
        };
        (answer.desired_replicas, answer.needed_replicas) = (replicas, needed);
    }

    /// Replicas that load needs, and why; `None` before anything is measured.
    fn judge(
        &mut self,
        now: f64,
        load: &PoolLoad,
        ready: &[&EngineLoad],
        target: &Target,
        answer: &mut PoolScale,
    ) -> Option<()> {
        let per_replica = load.engines_per_replica.max(1);
        let typical = load.typical?;
        let (most_replicas, terms) = (answer.max_replicas, &mut answer.terms);
        // What is there beyond our own: other gateways, also those that are followed, or clients that go around us.
        let beyond = |engine: &&EngineLoad| engine.foreign + engine.followed as f64;
        let foreign = self.foreign.note(now, ready.iter().map(beyond).sum());
        let own = |engine: &&EngineLoad| engine.inflight.saturating_sub(engine.followed) as f64;
        let own = self.own.note(now, ready.iter().map(own).sum());
        terms.backlog_rate = terms.standing_waiting / terms.cold_start.clamp(MIN_DRAIN, MAX_DRAIN);
        let mean = |figure: fn(&EngineLoad) -> Option<f64>| {
            let all: Vec<f64> = ready.iter().filter_map(|engine| figure(engine)).collect();
            (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
        };
        // Over the same minute as those of others: an engine that is idle at this moment would make them many short ones.
        let running = mean(|engine| Some(engine.running.unwrap_or(engine.inflight as f64))).unwrap_or(0.0);
        let running = self.running_each.note(now, running);
        let decode = typical.output * (typical.step + typical.per_sequence * running);
        let alone = typical.round_trip + typical.prefill + decode;
        // They stay as long as ours do (Little), behind others' prompts; where we have none, as long as on an idle engine.
        let stay = alone.max(if terms.arrival_rate > 0.0 { own / terms.arrival_rate } else { 0.0 });
        terms.foreign_rate = if stay > 0.0 { foreign / stay } else { 0.0 };
        let prompt = Tokens(typical.uncached as u64);
        let strictest =
            target.ttft.iter().map(|bound| bound.for_prompt(prompt).as_secs_f64()).min_by(f64::total_cmp);
        let mut judged = ScaleLoad {
            rate: terms.arrival_rate + terms.foreign_rate,
            decode_step: typical.step,
            decode_step_per_sequence: typical.per_sequence,
            output_tokens: typical.output,
            prefill: typical.prefill,
            batch_limit: mean(|engine| engine.batch_limit.map(|limit| limit as f64)),
            cache_tokens: mean(|engine| engine.cache_tokens.map(|tokens| tokens as f64)),
            context_tokens: mean(|engine| engine.context).unwrap_or(typical.uncached + typical.output / 2.0),
            ttft_bound: strictest,
            // What is not decoded has no time per token.
            tpot_bound: target.tpot.filter(|_| typical.output > 1.0).map(|bound| bound.as_secs_f64()),
        };
        terms.unexplained_running = self.unexplained(now, &judged, typical.round_trip, ready);
        // Answers are longer, or steps slower, than was learned.
        judged.output_tokens *= terms.unexplained_running;
        judged.rate = judged.rate + terms.arrival_growth + terms.backlog_rate;
        // One more than is allowed says that what is allowed is not enough.
        let most = (most_replicas + 1).saturating_mul(per_replica);
        let (by_model, limit) = needed(&judged, typical.round_trip, most);
        let serving = ready.iter().map(|engine| engine.share.clamp(0.0, 1.0)).sum::<f64>();
        // More than serve once that has stood.
        let standing = windowed_min(&mut self.modelled, now, by_model as f64) as usize;
        let by_model = by_model.min(serving.ceil() as usize).max(standing);
        // What the model does not know shows in the prediction: more than is there, at most twice as much at a time.
        let pressure = match (strictest, load.predicted_ttft) {
            (Some(bound), Some(predicted)) if bound > 0.0 => predicted.as_secs_f64() / bound,
            _ => 0.0,
        };
        let pressure = windowed_min(&mut self.pressure, now, pressure).min(MAX_STEP);
        let by_ttft = if pressure > 1.0 { (serving * pressure).ceil() as usize } else { 0 };
        let engines = by_model.max(by_ttft).min(most);
        // A gateway that waits for CPU takes its own lateness for that of engines, and takes in fewer requests than come.
        let believed = if load.is_starved {
            let (least, most) = (serving.ceil() as usize, (serving * MAX_STEP).ceil().max(1.0) as usize);
            engines.clamp(least.min(most), most)
        } else {
            engines
        };
        let is_doubted = believed != engines;
        let engines = believed;
        let replicas = engines.div_ceil(per_replica);
        answer.reason = if by_ttft > by_model {
            format!(
                "predicted TTFT is {pressure:.1} times the bound for {WINDOW:.0} s: {replicas} for {serving:.1} that serve"
            )
        } else if replicas > most_replicas {
            format!("{:.2} requests a second need more than {most_replicas}: {}", judged.rate, limit.as_str())
        } else if limit == Limit::None {
            format!("{:.2} requests a second: {}", judged.rate, limit.as_str())
        } else {
            format!("{:.2} requests a second need {replicas}: with fewer {}", judged.rate, limit.as_str())
        };
        if is_doubted {
            answer.reason.push_str("; the gateway itself waits for CPU: from what serves to twice that");
        }
        answer.needed_replicas = replicas;
        answer.terms.load = Some(judged);
        Some(())
    }

    /// How many times as many sequences run as the model explains, over about a minute: 1 to [`MAX_UNEXPLAINED`].
    fn unexplained(&mut self, now: f64, judged: &ScaleLoad, round_trip: f64, ready: &[&EngineLoad]) -> f64 {
        let running = |engine: &&EngineLoad| engine.running.unwrap_or(engine.inflight as f64);
        let running = self.running.note(now, ready.iter().map(running).sum());
        // Engines count a prompt that is computed, or that has begun to wait for it, as running.
        let spread = |outcome: ScalePrediction| {
            let utilisation = outcome.prefill_utilisation;
            (outcome.running_per_replica + utilisation / (1.0 - utilisation)) * ready.len() as f64
        };
        let Some(explained) =
            outcome(judged, round_trip, ready.len()).ok().map(spread).filter(|_| !ready.is_empty())
        else {
            return 1.0;
        };
        let explained = self.explained.note(now, explained);
        if running < FEW { 1.0 } else { (running / explained.max(FEW)).clamp(1.0, MAX_UNEXPLAINED) }
    }
}

/// A pool whose answers do not show their cost, as whole answers that count no tokens: what is there; more where it has not been
/// enough for a while, by what waits beside what runs; and no more than there is to run at once, where engines report what waits.
#[derive(Debug, Default)]
struct Unmeasured {
    /// Ready engines at the last look.
    ready: usize,
    /// (seconds, waiting) since as many were ready, as [`windowed_min`] has it.
    waiting: VecDeque<(f64, f64)>,
    /// The most requests that one engine ran while none waited there, or no more than it runs while others stand waiting.
    each: f64,
}

/// Requests at a pool.
#[derive(Clone, Copy, Debug)]
struct Crowd {
    waiting: f64,
    running: f64,
    /// Engines of a replica.
    per_replica: usize,
    /// Replicas that were asked for.
    there: usize,
}

impl Unmeasured {
    fn look(&mut self, now: f64, ready: &[&EngineLoad], crowd: Crowd) -> (usize, String) {
        let Crowd { waiting, running, per_replica, there } = crowd;
        // What waited before the last one came shows nothing of as many as there are now.
        if ready.len() > self.ready {
            self.waiting.clear();
        }
        self.ready = ready.len();
        let standing = windowed_min(&mut self.waiting, now, waiting);
        let free = ready.iter().filter(|engine| engine.waiting == Some(0.0));
        self.each = free.filter_map(|engine| engine.running).fold(self.each, f64::max);
        let full = ready.iter().filter(|engine| engine.waiting > Some(0.0));
        let full = full.filter_map(|engine| engine.running).fold(0.0, f64::max);
        if standing > 0.0 && full > 0.0 {
            self.each = if self.each > 0.0 { self.each.min(full) } else { full };
        }
        let replicas = ready.len().div_ceil(per_replica) as f64;
        let pressed = (replicas * (1.0 + standing / running.max(1.0)).min(MAX_STEP)).ceil() as usize;
        if pressed > there {
            let reason = format!(
                "at least {standing:.0} requests have waited for {WINDOW:.0} s beside {running:.0} that run, and no answer tells its cost: {pressed}"
            );
            return (pressed, reason);
        }
        let is_reported = !ready.is_empty() && ready.iter().all(|engine| engine.waiting.is_some());
        let at_once = (((running + waiting) / self.each.max(1.0)).ceil() as usize).div_ceil(per_replica);
        if is_reported && self.each > 0.0 && at_once < there {
            let (now, each) = (running + waiting, self.each);
            let reason =
                format!("{now:.0} requests at once, and one engine runs {each:.0} without a wait: {at_once}");
            return (at_once, reason);
        }
        (there, "no answer has been measured yet: as many as there are".to_owned())
    }
}

/// What a look saw.
#[derive(Clone, Copy, Debug)]
struct Activity {
    /// No request for long enough to scale to zero.
    is_idle: bool,
    /// Rates of its own are not known yet.
    is_young: bool,
    /// Replicas that were asked for.
    there: usize,
}

/// Notes a value; the least within [`WINDOW`]: what stands, and not what passes. 0 until the window is full, also after a time in which
/// the gateway stood still and did not look.
fn windowed_min(past: &mut VecDeque<(f64, f64)>, now: f64, value: f64) -> f64 {
    let value = if value.is_finite() { value.max(0.0) } else { 0.0 };
    if past.back().is_none_or(|(last, _)| now - last > WINDOW / 2.0) {
        past.clear();
        past.push_back((now, 0.0));
    }
    windowed(past, (now, value), WINDOW, |before| before >= value && before > 0.0)
}

/// Notes a value in place of those that it makes void; the first one within `kept` seconds.
fn windowed<T: Copy>(
    past: &mut VecDeque<(f64, T)>,
    (now, value): (f64, T),
    kept: f64,
    is_void: impl Fn(T) -> bool,
) -> T {
    while past.back().is_some_and(|(_, before)| is_void(*before)) {
        past.pop_back();
    }
    past.push_back((now, value));
    while past.front().is_some_and(|(at, _)| now - at > kept) {
        past.pop_front();
    }
    past.front().map_or(value, |(_, first)| *first)
}

/// An exponential mean over about a minute.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    at: Option<f64>,
    mean: f64,
}

impl Mean {
    fn note(&mut self, now: f64, value: f64) -> f64 {
        if value.is_finite() {
            let weight = self.at.map_or(1.0, |before| 1.0 - (-(now - before).max(0.0) / MINUTE).exp());
            self.mean += weight * (value - self.mean);
            self.at = Some(now);
        }
        self.mean
    }
}

/// Cold starts of late, over all replicas.
#[derive(Debug, Default)]
struct ColdStarts {
    counted: HashMap<Arc<str>, u64>,
    latest: VecDeque<Duration>,
}

impl ColdStarts {
    fn note(&mut self, engines: &[EngineLoad]) {
        self.counted.retain(|name, _| engines.iter().any(|engine| engine.replica == *name));
        for engine in engines {
            let before = self.counted.insert(Arc::clone(&engine.replica), engine.cold_starts.count);
            self.latest.extend(engine.cold_starts.since(before.unwrap_or(0)));
        }
        while self.latest.len() > KEPT_COLD_STARTS {
            self.latest.pop_front();
        }
    }

    /// The longest but one in ten: a forecast that reaches too far costs less than one that is too short.
    fn typical(&self) -> Option<Duration> {
        let mut sorted: Vec<_> = self.latest.iter().copied().collect();
        sorted.sort_unstable();
        sorted.get((sorted.len() * 9).div_ceil(10).checked_sub(1)?).copied()
    }
}

/// Seconds in which what is least counts as standing.
const WINDOW: f64 = 15.0;
const MINUTE: f64 = 60.0;
/// Seconds in which a backlog is to be worked off.
const MIN_DRAIN: f64 = 15.0;
const MAX_DRAIN: f64 = 120.0;
/// At most so many times as many as serve for late first tokens: what is asked for shows its effect only after a cold start.
const MAX_STEP: f64 = 2.0;
/// A model that is off by more has learned nothing.
const MAX_UNEXPLAINED: f64 = 3.0;
/// Running sequences that say nothing.
const FEW: f64 = 4.0;
const KEPT_COLD_STARTS: usize = 20;

#[cfg(test)]
mod tests;
