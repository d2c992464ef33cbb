//! `/api/v1/fleet`: every replica, every pool's calibration, every source of replicas.

use std::collections::BTreeMap;

use crate::routing::Calibration;

answers! {
    struct Fleet {
        pools: Vec<FleetPool>,
        replicas: Vec<Replica>,
        sources: Vec<Source>,
    }

    struct FleetPool {
        /// Over all its replicas.
        calibration: Option<Calibration>,
        pool: String,
    }

    struct Replica {
        /// Figures that its engine's profile expects and its page does not have.
        absent_figures: Vec<String>,
        /// LoRA adapters that it holds, the latest used first.
        adapters: Vec<String>,
        calibration: Option<Calibration>,
        /// Open ones, idle ones included.
        connections: u64,
        /// Recent failures as a fraction of all answers.
        failure_ratio: f64,
        gpu: Option<Gpu>,
        inflight: u64,
        /// Uncached prompt tokens of requests before their first token.
        inflight_prompt_tokens: u64,
        life: Life,
        models: Vec<String>,
        /// Ejected for failed requests: gets few until answers prove it.
        on_trial: bool,
        pool: String,
        probe_failures: u64,
        /// Why it is in its state, for people.
        reason: String,
        /// Of the last minute.
        recent: Recent,
        replica: String,
        revision: String,
        scrape_failures: u64,
        signals: Option<Signals>,
        /// In its state.
        since: Option<f64>,
        state: String,
        /// Of its ordinary traffic, 0 to 1.
        traffic_share: f64,
        url: String,
        zone: Option<String>,
    }

    /// What a replica answered in the last minute.
    struct Recent {
        /// Attempts that failed.
        failed: u32,
        /// Mean of the gaps.
        itl: Option<f64>,
        /// Requests that missed their SLO.
        missed: u32,
        per_second: f64,
        /// Prompts that it computed for another replica included.
        requests: u32,
        /// Of its pool's requests, 0 to 1.
        share: Option<f64>,
        /// p50 and p99 of time per output token.
        tpot: Option<[f64; 2]>,
        /// p50.
        ttft: Option<f64>,
        ttft_p99: Option<f64>,
    }

    /// What a replica went through since it was configured.
    struct Life {
        cold_starts: u64,
        /// Entries into each state.
        entered: BTreeMap<String, u64>,
        in_slow_start: bool,
        /// Models and adapters that its routes promise and its engine does not list, or lists shorter than its peers do.
        lacks: Vec<String>,
        last_cold_start: Option<f64>,
        warm_up: Option<WarmUp>,
    }

    /// The last warm-up.
    struct WarmUp {
        /// Answers that were not as they should be, a few words each.
        problems: Vec<String>,
        requests: u32,
        slowest: f64,
        took: f64,
    }

    /// Figures of the engine's metrics page.
    struct Signals {
        /// Of these figures.
        age: Option<f64>,
        batch_limit: Option<u64>,
        block_tokens: Option<u64>,
        /// 0 to 1.
        kv_cache_usage: Option<f64>,
        running: Option<f64>,
        total_blocks: Option<u64>,
        waiting: Option<f64>,
    }

    /// Figures of a replica's GPUs.
    struct Gpu {
        /// Reasons that slow a busy GPU down.
        clocks_throttled: Option<Vec<String>>,
        gpus: u32,
        memory_free_bytes: Option<f64>,
        memory_used_bytes: Option<f64>,
        /// 0 to 1.
        utilization: Option<f64>,
        /// The last XID error; 0 is none.
        xid: Option<u32>,
    }

    /// A source of a pool's replicas.
    struct Source {
        /// Since its last good answer.
        age: Option<f64>,
        error: Option<String>,
        failing_for: Option<f64>,
        failures: u64,
        /// Replicas that serve although no source names them any more, because nothing that is named is ready.
        kept: usize,
        pool: String,
        /// `static`, `admin`, `file`, `dns` or `kubernetes`.
        source: String,
        /// Replicas that it names.
        targets: usize,
    }
}
