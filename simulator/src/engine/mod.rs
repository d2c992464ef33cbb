//! The engine model: continuous batching with chunked prefill and a prefix cache. Pure: no runtime, no
//! sockets, no clock; time is an argument.
//!
//! Time passes in steps, as in vLLM. At the start of a step the scheduler gives every running sequence its
//! next token to compute, fills the rest of the token budget with prompt chunks, first come first served, and
//! knows from that how long the step takes. At its end every sequence whose KV is complete emits one token.
//! So a long prompt slows the decoding of its neighbours, and a full cache preempts the youngest.

mod blocks;
mod cost;
mod inspect;
mod job;
mod stats;

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Stamp;

use blocks::BlockCache;
use job::Sequence;

pub use blocks::chain;
pub use cost::{CostModel, StepLoad};
pub use inspect::{Gauges, Pending};
pub use job::{EngineEvent, JobId, Unservable, Work};
pub use stats::{Buckets, EngineStats, ITL_BOUNDS, TTFT_BOUNDS};

/// Size and speed of an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// Sequences in the batch at most.
    pub max_num_seqs: usize,
    /// Tokens of one step at most, over all sequences: longer prompts are computed in chunks.
    pub max_batched_tokens: u64,
    /// How long a step takes.
    pub cost: CostModel,
    /// A prompt is admitted only when all of it fits, not only its first chunk
    /// (vLLM's `--scheduler-reserve-full-isl`).
    pub admits_whole_prompts: bool,
    /// Tokens in a KV block.
    pub block_size: u64,
    /// KV blocks.
    pub num_blocks: u64,
}

impl Default for EngineConfig {
    /// About an 8B model on one data-centre GPU.
    fn default() -> Self {
        Self {
            max_num_seqs: 32,
            max_batched_tokens: 2_048,
            cost: CostModel::default(),
            admits_whole_prompts: false,
            block_size: 16,
            num_blocks: 4_096,
        }
    }
}

/// One engine. The same calls at the same times give the same events.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    random: fastrand::Rng,
    next_id: u64,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    cache: BlockCache,
    step_ends: Option<Stamp>,
    slowdown: f64,
    stats: EngineStats,
}

impl Engine {
    /// An idle engine with an empty cache.
    #[must_use]
    pub fn new(config: EngineConfig, seed: u64) -> Self {
        let cache = BlockCache::new(config.num_blocks);
        Self {
            config,
            random: fastrand::Rng::with_seed(seed),
            next_id: 0,
            waiting: VecDeque::new(),
            running: Vec::new(),
            cache,
            step_ends: None,
            slowdown: 1.0,
            stats: EngineStats::new(),
        }
    }

    /// Queues a job. Call [`Engine::advance`] for `now` first, so that no past step schedules it.
    ///
    /// # Errors
    /// The work does not fit into the KV cache, or has no output.
    pub fn submit(&mut self, now: Stamp, work: Work) -> Result<JobId, Unservable> {
        self.enqueue(now, work, false)
    }

    /// Like [`Engine::submit`], with the KV of the prompt, which another engine has computed.
    ///
    /// # Errors
    /// The work does not fit into the KV cache, or has no output.
    pub fn submit_fetched(&mut self, now: Stamp, work: Work) -> Result<JobId, Unservable> {
        self.enqueue(now, work, true)
    }

    fn enqueue(&mut self, now: Stamp, work: Work, is_fetched: bool) -> Result<JobId, Unservable> {
        let Work { chain, prompt, output } = work;
        let (tokens, capacity) = (prompt.saturating_add(output), self.capacity());
        if tokens > capacity || output == 0 {
            return Err(Unservable { tokens, capacity });
        }
        let id = JobId(self.next_id);
        self.next_id += 1;
        self.waiting.push_back(Sequence {
            id,
            chain,
            prompt,
            output,
            computed: 0,
            scheduled: 0,
            emitted: 0,
            is_fetched,
            cached: None,
            submitted: now,
            last_token: None,
            blocks: blocks::Holding::default(),
        });
        if self.step_ends.is_none() {
            self.start_step(now);
        }
        Ok(id)
    }

    /// Puts the blocks of a prompt into the prefix cache as if a job had left them there, as far as blocks are free.
    pub fn preload(&mut self, work: &Work) {
        let full = usize::try_from(work.prompt / self.config.block_size).unwrap_or(usize::MAX);
        self.cache.preload(&work.chain[..full.min(work.chain.len())]);
    }

    /// Drops a job, waiting or running; its slot and blocks are free for the next step.
    pub fn cancel(&mut self, id: JobId) {
        if let Some(place) = self.running.iter().position(|s| s.id == id) {
            let mut gone = self.running.remove(place);
            self.cache.release(&mut gone.blocks);
            self.stats.canceled += 1;
        } else if let Some(place) = self.waiting.iter().position(|s| s.id == id) {
            self.waiting.remove(place);
            self.stats.canceled += 1;
        }
    }

    /// End of the step in progress; `None` while idle.
    #[must_use]
    pub fn next_event_at(&self) -> Option<Stamp> {
        self.step_ends
    }

    /// Runs the steps that end until `now`; their tokens are appended to `out`, oldest first.
    pub fn advance(&mut self, now: Stamp, out: &mut Vec<EngineEvent>) {
        while let Some(end) = self.step_ends.filter(|end| *end <= now) {
            self.finish_step(end, out);
            self.start_step(end);
        }
    }

    /// Delays the step in progress: the engine stood still for `pause`.
    pub fn postpone(&mut self, pause: Duration) {
        self.step_ends = self.step_ends.map(|end| end.after(pause));
    }

    /// Multiplies the time of every later step by `factor`.
    pub fn set_slowdown(&mut self, factor: f64) {
        self.slowdown = factor.clamp(0.001, 1e6);
    }

    /// Restarts the process: no jobs, an empty cache, counters at zero. Job ids go on.
    pub fn reset(&mut self) {
        self.waiting.clear();
        self.running.clear();
        self.cache = BlockCache::new(self.config.num_blocks);
        self.step_ends = None;
        self.stats = EngineStats::new();
    }

    /// Tokens that fit into the KV cache.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.config.num_blocks.saturating_mul(self.config.block_size)
    }

    /// Counters and gauges of this moment.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        EngineStats { gauges: self.gauges(), ..self.stats.clone() }
    }

    fn start_step(&mut self, now: Stamp) {
        let mut budget = self.config.max_batched_tokens;
        let preempted = self.stats.preemptions;
        self.schedule_running(&mut budget);
        if self.stats.preemptions == preempted {
            // A sequence that was just preempted must not be admitted again in the same step.
            self.schedule_waiting(&mut budget);
        }
        let mut load = StepLoad::default();
        self.running.iter().for_each(|sequence| load.add(sequence));
        self.step_ends = (load.tokens > 0).then(|| now.after(self.step_time(&load)));
    }

    fn step_time(&mut self, load: &StepLoad) -> Duration {
        let cost = &self.config.cost;
        let jitter = 1.0 + cost.jitter * (self.random.f64() * 2.0 - 1.0);
        let seconds = cost.step_seconds(load) * self.slowdown * jitter.max(0.0);
        Duration::try_from_secs_f64(seconds).unwrap_or(cost.step)
    }

    /// Running sequences first, in order of admission. One that finds no block for its next tokens preempts the youngest.
    fn schedule_running(&mut self, budget: &mut u64) {
        let mut next = 0;
        while next < self.running.len() {
            let sequence = &mut self.running[next];
            let tokens = sequence.missing().min(*budget);
            let blocks = (sequence.computed + tokens).div_ceil(self.config.block_size);
            if self.cache.grow(&mut sequence.blocks, blocks) {
                sequence.scheduled = tokens;
                *budget -= tokens;
                next += 1;
            } else {
                self.preempt_youngest(budget);
            }
        }
    }

    fn preempt_youngest(&mut self, budget: &mut u64) {
        let Some(mut victim) = self.running.pop() else { return };
        self.cache.release(&mut victim.blocks);
        *budget += std::mem::take(&mut victim.scheduled);
        victim.computed = 0;
        victim.is_fetched = false;
        self.stats.preemptions += 1;
        self.waiting.push_front(victim);
    }

    fn schedule_waiting(&mut self, budget: &mut u64) {
        while *budget > 0 && self.running.len() < self.config.max_num_seqs {
            let Some(first) = self.waiting.front_mut() else { return };
            // The last token is always computed: its result is the next token.
            let findable = (first.target().saturating_sub(1) / self.config.block_size) as usize;
            let head = &first.chain[..findable.min(first.chain.len())];
            let hits = self.cache.lookup(head);
            let found = hits as u64 * self.config.block_size;
            let cached = if first.is_fetched { found.max(first.target() - 1) } else { found };
            let tokens = (first.target() - cached).min(*budget);
            let blocks = (cached + tokens).div_ceil(self.config.block_size);
            let whole = first.target().div_ceil(self.config.block_size);
            if self.config.admits_whole_prompts && !self.cache.has_room(&head[..hits], whole) {
                return;
            }
            let Some(holding) = self.cache.admit(&head[..hits], blocks) else { return };
            first.blocks = holding;
            first.computed = cached;
            first.scheduled = tokens;
            *budget -= tokens;
            if first.cached.is_none() {
                // As vLLM counts what came from elsewhere: not at all.
                let found = if first.is_fetched { 0 } else { found };
                first.cached = Some(found);
                self.stats.prefix_queries += first.prompt;
                self.stats.prefix_hits += found;
            }
            self.running.extend(self.waiting.pop_front());
        }
    }

    fn finish_step(&mut self, end: Stamp, out: &mut Vec<EngineEvent>) {
        let block = self.config.block_size;
        for sequence in &mut self.running {
            let computed = std::mem::take(&mut sequence.scheduled);
            if computed == 0 {
                continue;
            }
            sequence.computed += computed;
            let full = (sequence.computed / block) as usize;
            self.cache.publish(&mut sequence.blocks, &sequence.chain, full);
            if sequence.missing() == 0 {
                out.push(emit(sequence, end, &mut self.stats));
            }
        }
        let cache = &mut self.cache;
        let before = self.running.len();
        self.running.retain_mut(|sequence| {
            let goes_on = sequence.emitted < sequence.output;
            if !goes_on {
                cache.release(&mut sequence.blocks);
            }
            goes_on
        });
        self.stats.finished += (before - self.running.len()) as u64;
    }
}

fn emit(sequence: &mut Sequence, at: Stamp, stats: &mut EngineStats) -> EngineEvent {
    match sequence.last_token.replace(at) {
        None => {
            stats.prompt_tokens += sequence.prompt;
            stats.ttft.observe(at.since(sequence.submitted));
        }
        Some(previous) => stats.itl.observe(at.since(previous)),
    }
    stats.generation_tokens += 1;
    let index = sequence.emitted;
    sequence.emitted += 1;
    EngineEvent {
        job: sequence.id,
        at,
        index,
        is_last: sequence.emitted == sequence.output,
        cached: sequence.cached.unwrap_or(0),
    }
}

#[cfg(test)]
mod tests;
