//! Faults injected into fleets of simulated engines, and the diagnosis of each.
//!
//! A fault changes the engines or the traffic, never a signal: what the diagnosis sees comes out of queues, batches, caches
//! and preemptions of the engine model. Four engines, prefix affinity weighed against load, prompts with shared prefixes;
//! parameters are drawn anew for each fleet.

use std::collections::HashMap;
use std::time::Duration;

use tokenway::diagnosis::{Diagnosis, SignalHistory, Signals, diagnose_against, diagnose_signals};
use tokenway_sim::engine::{CostModel, Engine, EngineConfig, EngineEvent, JobId, Work};
use tokenway_sim::time::Stamp;

/// A fault and its diagnosis.
pub(crate) const FAULTS: [(Fault, Diagnosis); 12] = [
    (Fault::Contention, Diagnosis::Contention),
    (Fault::KvPressure, Diagnosis::KvPressure),
    (Fault::OneSlow, Diagnosis::Replica),
    (Fault::ConfigChange, Diagnosis::Configuration),
    (Fault::MoreLoad, Diagnosis::Capacity),
    (Fault::ColdStarts, Diagnosis::ColdStarts),
    (Fault::LongPrompts, Diagnosis::TrafficMix),
    (Fault::LongAnswers, Diagnosis::TrafficMix),
    (Fault::SharesLess, Diagnosis::TrafficMix),
    (Fault::Network, Diagnosis::PreprocessingOrNetwork),
    (Fault::QuietHours, Diagnosis::Unknown),
    (Fault::Nothing, Diagnosis::Unknown),
];

/// Two faults at once: either is right, anything else is wrong.
pub(crate) const PAIRS: [([Fault; 2], [Diagnosis; 2]); 4] = [
    ([Fault::MoreLoad, Fault::Contention], [Diagnosis::Capacity, Diagnosis::Contention]),
    ([Fault::LongPrompts, Fault::MoreLoad], [Diagnosis::TrafficMix, Diagnosis::Capacity]),
    ([Fault::Contention, Fault::KvPressure], [Diagnosis::Contention, Diagnosis::KvPressure]),
    ([Fault::OneSlow, Fault::MoreLoad], [Diagnosis::Replica, Diagnosis::Capacity]),
];

/// What else is the case while the fault is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    /// Four replicas, all of it seen by one gateway.
    Ordinary,
    TwoReplicas,
    EightReplicas,
    /// The gateway restarts three minutes into the fault, with its state file.
    Restarted,
    /// A new revision took over twenty minutes before the fault, as it does every day.
    Deployed,
    /// And without one.
    Forgetful,
}

pub(crate) const SETTINGS: [Setting; 6] = [
    Setting::Ordinary,
    Setting::TwoReplicas,
    Setting::EightReplicas,
    Setting::Restarted,
    Setting::Deployed,
    Setting::Forgetful,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Three or four hosts are shared: steps take longer.
    Contention,
    /// Other tenants of the cards leave a small part of the KV cache.
    KvPressure,
    /// One host is throttled.
    OneSlow,
    /// All engines restart with another batch limit or chunk size.
    ConfigChange,
    MoreLoad,
    /// Engines restart one after the other, with empty caches and slow first minutes.
    ColdStarts,
    /// Prompts of half as long again to three times the length, at the same rate.
    LongPrompts,
    /// Answers of twice to four times the length.
    LongAnswers,
    /// Prompts begin differently: few prefixes are shared.
    SharesLess,
    /// Every request takes longer to arrive at its engine.
    Network,
    /// Half the traffic, as at a weekend.
    QuietHours,
    Nothing,
}

/// The diagnosis, seven minutes after the faults.
pub(crate) fn diagnose(faults: &[Fault], setting: Setting, seed: u64) -> Diagnosis {
    let replicas = match setting {
        Setting::TwoReplicas => 2,
        Setting::EightReplicas => 8,
        _ => 4,
    };
    let mut fleet = Fleet::new(seed, replicas);
    let mut history = SignalHistory::default();
    for minute in 0..BEFORE {
        fleet.minute(minute, &mut history);
    }
    let before = history.before(BEFORE as i64 - 1);
    faults.iter().for_each(|fault| fleet.inject(*fault));
    for minute in BEFORE..BEFORE + AFTER {
        // A rolling restart: each minute another engine starts, and compiles while it serves.
        if faults.contains(&Fault::ColdStarts) {
            let one = (minute - BEFORE) as usize % replicas;
            fleet.engines.iter_mut().for_each(|engine| engine.set_slowdown(1.0));
            fleet.restart(one);
            fleet.engines[one].set_slowdown(5.0);
        }
        if matches!(setting, Setting::Restarted | Setting::Forgetful) && minute == BEFORE + RESTARTS_AFTER {
            history = SignalHistory::default();
        }
        fleet.minute(minute, &mut history);
    }
    let now = (BEFORE + AFTER - 1) as i64;
    let causes = match setting {
        Setting::Forgetful => diagnose_signals(&history, now),
        Setting::Deployed => diagnose_against(&history, &before, Some(BEFORE as i64 - 20), now),
        _ => diagnose_against(&history, &before, None, now),
    };
    causes.diagnosis()
}

struct Fleet {
    random: fastrand::Rng,
    config: EngineConfig,
    engines: Vec<Engine>,
    live: HashMap<(usize, JobId), LiveRequest>,
    minutes: Vec<ReplicaMinute>,
    prefixes: Vec<Vec<u32>>,
    /// Requests per second.
    rate: f64,
    /// Tokens of a prompt beyond its prefix, and of an answer: least and range.
    own: (usize, usize),
    output: (usize, usize),
    /// Seconds on the way to an engine.
    way: f64,
    names: Vec<String>,
    next_token: u32,
}

struct LiveRequest {
    sent: Stamp,
    prompt: u64,
    output: u64,
    last_token: Option<Stamp>,
    /// Requests without a first token there before it.
    ahead: f64,
    /// Sum and number of the shares of such requests that waited, by the pages since then.
    queued: (f64, f64),
}

/// One replica in the minute in progress.
#[derive(Default)]
struct ReplicaMinute {
    requests: f64,
    ttft: Vec<f64>,
    gaps: Vec<f64>,
    prompt_tokens: f64,
    cached_tokens: f64,
    output_tokens: f64,
    /// Sums over the requests: by the gateway's model of the engine, as long as it says.
    queue: f64,
    prefill: f64,
    connect: f64,
    /// Of the engine's counter, at the minute's start.
    preemptions_before: u64,
    has_started: bool,
    /// Sums over the engine's gauges.
    waiting: f64,
    kv_cache_usage: f64,
}

impl Fleet {
    fn new(seed: u64, replicas: usize) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let config = EngineConfig {
            max_num_seqs: 16 + random.usize(..17),
            cost: CostModel {
                prefill_tokens_per_second: 4_000.0 + 4_000.0 * random.f64(),
                step: Duration::from_millis(20 + random.u64(..15)),
                ..CostModel::default()
            },
            num_blocks: 3_000 + random.u64(..1_000),
            ..EngineConfig::default()
        };
        let engines = (0..replicas as u64).map(|at| Engine::new(config.clone(), seed * 7 + at)).collect();
        let mut prefix = || (0..320 + random.usize(..320)).map(|_| random.u32(..)).collect();
        let prefixes = (0..64).map(|_| prefix()).collect();
        let rate = (3.5 + 1.5 * random.f64()) * replicas as f64 / 4.0;
        let minutes = (0..replicas).map(|_| ReplicaMinute::default()).collect();
        let names = (0..replicas).map(|replica| format!("r{replica}")).collect();
        Self {
            random,
            config,
            engines,
            live: HashMap::new(),
            minutes,
            prefixes,
            rate,
            own: (60, 240),
            output: (20, 100),
            way: 0.001,
            names,
            next_token: 0,
        }
    }

    /// One minute of traffic; its signals go to the history.
    fn minute(&mut self, minute: u64, history: &mut SignalHistory) {
        let (mut at, end) = (minute as f64 * 60.0, (minute + 1) as f64 * 60.0);
        let mut next_scrape = at;
        while at < end {
            at += -(1.0 - self.random.f64()).ln() / self.rate;
            while next_scrape < at.min(end) {
                self.advance(next_scrape);
                self.scrape();
                next_scrape += SCRAPE_EVERY;
            }
            self.advance(at.min(end));
            if at < end {
                self.send(stamp(at));
            }
        }
        for replica in 0..self.engines.len() {
            let signals = self.signals(replica);
            history.add(minute as i64, &self.names[replica], &signals, self.names.len());
        }
    }

    fn scrape(&mut self) {
        for (engine, minute) in self.engines.iter().zip(&mut self.minutes) {
            let gauges = engine.gauges();
            minute.waiting += gauges.waiting as f64;
            minute.kv_cache_usage += gauges.kv_cache_usage;
        }
        let waiting: Vec<f64> = self.engines.iter().map(|engine| engine.gauges().waiting as f64).collect();
        let awaiting: Vec<f64> = (0..waiting.len()).map(|replica| self.awaiting(replica)).collect();
        for ((replica, _), request) in self.live.iter_mut().filter(|(_, one)| one.last_token.is_none()) {
            let share = (waiting[*replica] / awaiting[*replica]).min(1.0);
            request.queued = (request.queued.0 + share, request.queued.1 + 1.0);
        }
    }

    /// Requests of a replica without a first token.
    fn awaiting(&self, replica: usize) -> f64 {
        let of = |((at, _), request): &(&(usize, JobId), &LiveRequest)| {
            *at == replica && request.last_token.is_none()
        };
        self.live.iter().filter(of).count() as f64
    }

    /// Closes a replica's minute.
    fn signals(&mut self, replica: usize) -> Signals {
        let preemptions = self.engines[replica].stats().preemptions;
        let next = ReplicaMinute { preemptions_before: preemptions, ..ReplicaMinute::default() };
        let minute = std::mem::replace(&mut self.minutes[replica], next);
        let scrapes = 60.0 / SCRAPE_EVERY;
        let firsts = minute.ttft.len() as f64;
        let mean = |sum: f64| (firsts > 0.0).then(|| sum / firsts);
        Signals {
            requests: minute.requests,
            held: mean(0.0),
            connect: mean(minute.connect),
            queue: mean(minute.queue),
            prefill: mean(minute.prefill),
            other: mean(0.0),
            prompt: mean(minute.prompt_tokens),
            output: mean(minute.output_tokens),
            ttft: quantile(minute.ttft, 0.5),
            itl: quantile(minute.gaps, 0.5),
            hit_rate: (minute.prompt_tokens > 0.0).then(|| minute.cached_tokens / minute.prompt_tokens),
            waiting: Some(minute.waiting / scrapes),
            kv_cache_usage: Some(minute.kv_cache_usage / scrapes),
            preemptions: Some(preemptions.saturating_sub(minute.preemptions_before) as f64),
            batch_limit: Some(self.config.max_num_seqs as f64),
            has_started: minute.has_started,
            ..Signals::default()
        }
    }

    fn send(&mut self, now: Stamp) {
        let (prefix, job) = self.job();
        let replica = self.choose(prefix);
        self.minutes[replica].requests += 1.0;
        let ahead = self.awaiting(replica);
        let Work { prompt, output, .. } = job;
        if let Ok(id) = self.engines[replica].submit(now, job) {
            let request =
                LiveRequest { sent: now, prompt, output, last_token: None, ahead, queued: (0.0, 0.0) };
            self.live.insert((replica, id), request);
        }
    }

    /// A popular prefix and a prompt of its own.
    fn job(&mut self) -> (usize, Work) {
        let skewed = self.random.f64() * self.random.f64();
        let prefix = (skewed * self.prefixes.len() as f64) as usize;
        let mut tokens = self.prefixes[prefix].clone();
        let own = self.own.0 + self.random.usize(..self.own.1);
        let output = self.output.0 + self.random.usize(..self.output.1);
        tokens.extend((0..own + output).map(|_| {
            self.next_token = self.next_token.wrapping_add(1);
            self.next_token
        }));
        let prompt = tokens.len() - output;
        (prefix, Work::of(&tokens, prompt, 0, self.config.block_size))
    }

    /// The prefix's home, unless another replica has much less to do.
    fn choose(&self, prefix: usize) -> usize {
        let load = |at: usize| self.live.keys().filter(|(replica, _)| *replica == at).count();
        let home = prefix % self.engines.len();
        let idle = (0..self.engines.len()).min_by_key(|at| load(*at)).unwrap_or(home);
        if load(home) > load(idle) + 6 { idle } else { home }
    }

    fn advance(&mut self, seconds: f64) {
        let mut events = Vec::new();
        for replica in 0..self.engines.len() {
            self.engines[replica].advance(stamp(seconds), &mut events);
            events.drain(..).for_each(|event| self.take(replica, &event));
        }
    }

    fn take(&mut self, replica: usize, event: &EngineEvent) {
        let Some(request) = self.live.get_mut(&(replica, event.job)) else { return };
        let minute = &mut self.minutes[replica];
        match request.last_token.replace(event.at) {
            None => {
                let wait = event.at.since(request.sent).as_secs_f64();
                let uncached = request.prompt.saturating_sub(event.cached) as f64;
                let cost = &self.config.cost;
                let expected = uncached / cost.prefill_tokens_per_second + cost.step.as_secs_f64();
                // As `observe::stages` has it.
                let queue = match request.queued {
                    (_, 0.0) => (wait - 1.5 * expected).max(0.0) * request.ahead / (request.ahead + 1.0),
                    (sum, pages) => wait * sum / pages,
                };
                minute.ttft.push(wait + self.way);
                minute.connect += self.way;
                minute.queue += queue;
                minute.prefill += wait - queue;
                minute.prompt_tokens += request.prompt as f64;
                minute.cached_tokens += event.cached as f64;
                minute.output_tokens += request.output as f64;
            }
            Some(last) => minute.gaps.push(event.at.since(last).as_secs_f64()),
        }
        if event.is_last {
            self.live.remove(&(replica, event.job));
        }
    }

    fn inject(&mut self, fault: Fault) {
        let factor = 1.5 + self.random.f64();
        match fault {
            Fault::Contention => {
                let most = (self.engines.len() * 3).div_ceil(4);
                let hosts = most + self.random.usize(..=self.engines.len() - most);
                self.engines.iter_mut().take(hosts).for_each(|engine| engine.set_slowdown(factor));
            }
            Fault::OneSlow => {
                let one = self.random.usize(..self.engines.len());
                self.engines[one].set_slowdown(factor);
            }
            Fault::KvPressure => {
                let left = 0.03 + 0.05 * self.random.f64();
                self.config.num_blocks = (self.config.num_blocks as f64 * left) as u64;
                self.replace(false);
            }
            Fault::ConfigChange => {
                if self.random.bool() {
                    self.config.max_num_seqs = 3;
                } else {
                    self.config.max_batched_tokens = 48;
                }
                self.replace(true);
            }
            Fault::LongPrompts => self.stretch_prompts(factor),
            Fault::LongAnswers => self.output.1 = (self.output.1 as f64 * 2.0 * factor) as usize,
            Fault::SharesLess => {
                let prefix = self.prefixes[0].len();
                self.prefixes.iter_mut().for_each(|prefix| prefix.truncate(16));
                self.own.0 += prefix;
            }
            Fault::Network => self.way += 0.05 * factor,
            Fault::QuietHours => self.rate *= 0.4 + 0.2 * self.random.f64(),
            Fault::Nothing => {}
            Fault::MoreLoad => self.rate *= 1.6 + 0.6 * self.random.f64(),
            // Minute by minute: see `diagnose`.
            Fault::ColdStarts => {}
        }
    }

    fn stretch_prompts(&mut self, factor: f64) {
        let shared = self.prefixes.iter().map(Vec::len).sum::<usize>() / self.prefixes.len();
        let whole = shared + self.own.0 + self.own.1 / 2;
        self.own.0 += (whole as f64 * (factor - 1.0)) as usize;
    }

    /// New engines by the changed configuration; `is_restart` as far as the gateway sees.
    fn replace(&mut self, is_restart: bool) {
        for replica in 0..self.engines.len() {
            self.engines[replica] = Engine::new(self.config.clone(), self.random.u64(..));
            self.live.retain(|(at, _), _| *at != replica);
            self.minutes[replica].preemptions_before = 0;
            self.minutes[replica].has_started = is_restart;
        }
    }

    fn restart(&mut self, replica: usize) {
        self.engines[replica].reset();
        // Its requests are sent again elsewhere, or fail: either way they are gone from here.
        self.live.retain(|(at, _), _| *at != replica);
        self.minutes[replica].preemptions_before = 0;
        self.minutes[replica].has_started = true;
    }
}

fn quantile(mut values: Vec<f64>, q: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get((values.len().saturating_sub(1) as f64 * q) as usize).copied()
}

fn stamp(seconds: f64) -> Stamp {
    Stamp::from_nanos((seconds * 1e9) as u64)
}

/// Minutes before the fault, and until the diagnosis.
const BEFORE: u64 = 25;
const AFTER: u64 = 7;
/// Minutes of the fault after which the gateway restarts.
const RESTARTS_AFTER: u64 = 3;
/// Seconds.
const SCRAPE_EVERY: f64 = 1.0;
