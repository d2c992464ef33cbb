//! What an engine calls its figures, and where it answers: data, so that an engine's rename is a change of the configuration.
//!
//! `pool.engine` names a built-in profile ([`EngineKind`]); `[pool.engine_profile]` overrides single entries of it. A figure has a
//! list of [`FigureSource`]s, the first that the page has counts; without any the engine does not tell it. Names are those of the
//! engines' own documentation (docs/operations.md has the table).

use std::sync::Arc;

use crate::labels::labels;

labels! {
    /// The engines with a built-in profile.
    pub enum EngineKind {
        /// vLLM's own server.
        Vllm = "vllm",
        /// SGLang's own server, started with `--enable-metrics`.
        Sglang = "sglang",
        /// vLLM behind Ray Serve LLM; figures are those of one Ray node.
        RayServe = "ray_serve",
        /// Triton with TensorRT-LLM behind its OpenAI frontend.
        Triton = "triton",
        /// TorchServe; it tells counters and latencies, no load.
        Torchserve = "torchserve",
        /// An engine that speaks the OpenAI API and tells nothing else.
        Generic = "generic",
    }

    /// A figure of an engine, by its key in `[pool.engine_profile]`, in logs and on the admin API.
    pub enum Figure {
        /// Requests in the batch.
        Running = "running",
        /// Requests that wait for a place in it.
        Waiting = "waiting",
        /// Share of the KV cache that running requests hold, 0 to 1.
        KvCacheUsage = "kv_cache_usage",
        /// The same in blocks, for engines that tell no share.
        KvBlocksUsed = "kv_blocks_used",
        /// Blocks of the KV cache.
        KvBlocks = "kv_blocks",
        /// Tokens in a block.
        BlockTokens = "block_tokens",
        /// Requests that run at once at most.
        BatchLimit = "batch_limit",
        /// Prompt tokens looked up in the prefix cache, since the start.
        CacheQueries = "cache_queries",
        /// Those of them that were found there.
        CacheHits = "cache_hits",
        /// The share that was found of late, for engines without the two counters.
        CacheHitRatio = "cache_hit_ratio",
        /// Whether prefix caching is on: a label with `true`, `false`, or a number.
        PrefixCaching = "prefix_caching",
        /// Requests put back from the batch into the queue, since the start.
        Preemptions = "preemptions",
        /// Generated tokens, since the start.
        GeneratedTokens = "generated_tokens",
        /// Sum of all times to first token in seconds.
        TtftSum = "ttft_sum",
        /// How many there were.
        TtftCount = "ttft_count",
        /// Transfers of KV that it fetched from other engines, since the start.
        KvTransfers = "kv_transfers",
        /// Sum of their durations in seconds.
        KvTransferSeconds = "kv_transfer_seconds",
        /// Bytes that they moved.
        KvTransferBytes = "kv_transfer_bytes",
        /// Transfers that failed.
        KvTransferFailures = "kv_transfer_failures",
        /// Requests whose KV nobody fetched in time.
        KvExpired = "kv_expired",
        /// Unix time of the process's start: another value means another process.
        ProcessStart = "process_start",
    }
}

impl EngineKind {
    /// `max_tokens` of completions where the client gives none (OpenAI's own default); `None` where the engine has another or none.
    pub fn completions_max_tokens(self) -> Option<u64> {
        self.continues_chats().then_some(16)
    }

    /// Whether it is known to continue a last message of the assistant (`continue_final_message`).
    pub fn continues_chats(self) -> bool {
        matches!(self, Self::Vllm | Self::Sglang | Self::RayServe)
    }

    /// Whether it keeps the end of a text to itself while stop strings may begin there: one character less than the longest has.
    pub fn holds_back_stops(self) -> bool {
        matches!(self, Self::Vllm | Self::RayServe)
    }

    /// Whether it keeps cached prompts of different `cache_salt`s apart.
    pub fn takes_cache_salt(self) -> bool {
        matches!(self, Self::Vllm | Self::RayServe | Self::Sglang)
    }

    /// Whether it counts in no chunk of a stream (`continuous_usage_stats`) whose client turned `include_usage` off.
    pub fn counts_only_beside_usage(self) -> bool {
        matches!(self, Self::Vllm | Self::RayServe)
    }

    /// The profile that [`EngineProfile::default`] stands for where nothing is overridden.
    pub fn profile(self) -> EngineProfile {
        let (metrics_port, health_path, rows): (_, _, Rows) = match self {
            Self::Vllm => (None, "/health", VLLM),
            Self::Sglang => (None, "/health", SGLANG),
            Self::RayServe => (Some(8080), "/-/healthz", RAY_SERVE),
            Self::Triton => (Some(8002), "/health/ready", TRITON),
            // It tells no load; whoever adds metrics of his own names them in `[pool.engine_profile]`.
            Self::Torchserve => (Some(8082), "/ping", &[]),
            Self::Generic => (None, "/health", &[]),
        };
        let only: &[_] =
            if self == Self::Sglang { &[("tp_rank", "0"), ("pp_rank", "0"), ("priority", "")] } else { &[] };
        EngineProfile {
            metrics_path: Some("/metrics".into()),
            metrics_port,
            health_path: health_path.into(),
            models_path: "/v1/models".into(),
            only: only.iter().map(|(label, value)| ((*label).into(), (*value).into())).collect(),
            sources: table(rows),
        }
    }
}

/// Where a figure is found on a metrics page.
#[derive(Clone, Debug, PartialEq)]
pub enum FigureSource {
    /// The value of the series with this name and these labels; several are combined.
    Value {
        /// Name of the metric.
        name: Arc<str>,
        /// Labels that a series must have.
        labels: Box<[(Arc<str>, Arc<str>)]>,
    },
    /// The number in a label of the series with this name: how Prometheus tells configuration.
    Label {
        /// Name of the metric.
        name: Arc<str>,
        /// Name of the label.
        label: Arc<str>,
    },
    /// A number that the engine does not tell and that does not change.
    Constant(f64),
}

/// How to read one kind of engine.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineProfile {
    /// Below the replica's URL; with a port of its own at the root of that port. `None`: nothing is scraped.
    pub metrics_path: Option<Arc<str>>,
    /// Port of the metrics page where it is not the replica's.
    pub metrics_port: Option<u16>,
    /// What `probe.kind = "health"` asks.
    pub health_path: Arc<str>,
    /// The engine's list of models, in the form of OpenAI.
    pub models_path: Arc<str>,
    /// Series with one of these labels and another value are left out: copies of what another rank tells.
    pub only: Vec<(Arc<str>, Arc<str>)>,
    /// Sources of each figure, the preferred one first.
    pub sources: Vec<(Figure, Vec<FigureSource>)>,
}

impl Default for EngineProfile {
    fn default() -> Self {
        EngineKind::Vllm.profile()
    }
}

impl Figure {
    /// Whether the ranks of one page are averaged: shares, and sizes that all ranks have alike. Counts are summed.
    pub fn is_mean(self) -> bool {
        matches!(
            self,
            Self::KvCacheUsage
                | Self::BlockTokens
                | Self::CacheHitRatio
                | Self::PrefixCaching
                | Self::ProcessStart
        )
    }

    /// Whether only some engines of a kind have it: those that move KV.
    pub fn is_optional(self) -> bool {
        matches!(
            self,
            Self::KvTransfers
                | Self::KvTransferSeconds
                | Self::KvTransferBytes
                | Self::KvTransferFailures
                | Self::KvExpired
        )
    }
}

impl FigureSource {
    /// Reads `name`, `name{label="value"}` or `name{label}`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let not_one = || format!("\"{text}\" is not a metric");
        let (name, labels) = match text.split_once('{') {
            None => (text, None),
            Some((name, rest)) => (name, Some(rest.strip_suffix('}').ok_or_else(not_one)?)),
        };
        if !is_name(name) {
            return Err(not_one());
        }
        let Some(labels) = labels else {
            return Ok(Self::Value { name: name.into(), labels: Box::default() });
        };
        if is_name(labels) {
            return Ok(Self::Label { name: name.into(), label: labels.into() });
        }
        let pair = |pair: &str| {
            let (label, value) = pair.split_once('=')?;
            let value = value.strip_prefix('"')?.strip_suffix('"')?;
            (is_name(label) && !value.contains(['"', '\\'])).then(|| (label.into(), value.into()))
        };
        let labels: Option<Box<[_]>> = labels.split(',').map(pair).collect();
        Ok(Self::Value { name: name.into(), labels: labels.ok_or_else(not_one)? })
    }
}

fn is_name(text: &str) -> bool {
    let is_first = |c: char| c.is_ascii_alphabetic() || c == '_' || c == ':';
    text.starts_with(is_first) && text.chars().all(|c| is_first(c) || c.is_ascii_digit())
}

fn table(rows: &[(Figure, &[&str])]) -> Vec<(Figure, Vec<FigureSource>)> {
    let source = |text: &&str| match text.parse() {
        Ok(number) => FigureSource::Constant(number),
        Err(_) => FigureSource::parse(text).expect("invariant: a test reads every built-in source"),
    };
    rows.iter().map(|(figure, sources)| (*figure, sources.iter().map(source).collect())).collect()
}

type Rows = &'static [(Figure, &'static [&'static str])];

/// vLLM 0.32, and the names that older versions had.
const VLLM: Rows = &[
    (Figure::Running, &["vllm:num_requests_running"]),
    (Figure::Waiting, &["vllm:num_requests_waiting"]),
    (Figure::KvCacheUsage, &["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"]),
    (
        Figure::KvBlocks,
        &["vllm:cache_config_info{num_gpu_blocks_override}", "vllm:cache_config_info{num_gpu_blocks}"],
    ),
    (Figure::BlockTokens, &["vllm:cache_config_info{block_size}"]),
    (Figure::PrefixCaching, &["vllm:cache_config_info{enable_prefix_caching}"]),
    (Figure::CacheQueries, &["vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"]),
    (Figure::CacheHits, &["vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"]),
    (Figure::Preemptions, &["vllm:num_preemptions_total"]),
    (Figure::GeneratedTokens, &["vllm:generation_tokens_total"]),
    (Figure::TtftSum, &["vllm:time_to_first_token_seconds_sum"]),
    (Figure::TtftCount, &["vllm:time_to_first_token_seconds_count"]),
    (Figure::KvTransfers, &["vllm:nixl_xfer_time_seconds_count"]),
    (Figure::KvTransferSeconds, &["vllm:nixl_xfer_time_seconds_sum"]),
    (Figure::KvTransferBytes, &["vllm:nixl_bytes_transferred_sum"]),
    (Figure::KvTransferFailures, &["vllm:nixl_num_failed_transfers_total"]),
    (Figure::KvExpired, &["vllm:nixl_num_kv_expired_reqs_total"]),
    (Figure::ProcessStart, &["process_start_time_seconds"]),
];
/// SGLang counts its cache in tokens: a block is one token, unless a page size is set.
const SGLANG: Rows = &[
    (Figure::Running, &["sglang:num_running_reqs"]),
    (Figure::Waiting, &["sglang:num_queue_reqs"]),
    (Figure::KvCacheUsage, &["sglang:token_usage"]),
    (Figure::KvBlocks, &["sglang:max_total_num_tokens"]),
    (Figure::BlockTokens, &["1"]),
    (Figure::CacheQueries, &["sglang:prompt_tokens_total"]),
    (Figure::CacheHits, &["sglang:cached_tokens_total"]),
    (Figure::CacheHitRatio, &["sglang:cache_hit_rate"]),
    (Figure::GeneratedTokens, &["sglang:generation_tokens_total"]),
    (Figure::TtftSum, &["sglang:time_to_first_token_seconds_sum"]),
    (Figure::TtftCount, &["sglang:time_to_first_token_seconds_count"]),
    (Figure::ProcessStart, &["process_start_time_seconds"]),
];
/// Ray writes vLLM's names with a prefix and without colons, and counters in both an old and a new form.
const RAY_SERVE: Rows = &[
    (Figure::Running, &["ray_vllm_num_requests_running", "ray_serve_replica_processing_queries"]),
    (Figure::Waiting, &["ray_vllm_num_requests_waiting", "ray_serve_deployment_queued_queries"]),
    (Figure::KvCacheUsage, &["ray_vllm_kv_cache_usage_perc"]),
    (Figure::KvBlocks, &["ray_vllm_cache_config_info{num_gpu_blocks}"]),
    (Figure::BlockTokens, &["ray_vllm_cache_config_info{block_size}"]),
    (Figure::PrefixCaching, &["ray_vllm_cache_config_info{enable_prefix_caching}"]),
    (Figure::CacheQueries, &["ray_vllm_prefix_cache_queries_total", "ray_vllm_prefix_cache_queries"]),
    (Figure::CacheHits, &["ray_vllm_prefix_cache_hits_total", "ray_vllm_prefix_cache_hits"]),
    (Figure::Preemptions, &["ray_vllm_num_preemptions_total", "ray_vllm_num_preemptions"]),
    (Figure::GeneratedTokens, &["ray_vllm_generation_tokens_total", "ray_vllm_generation_tokens"]),
    (Figure::TtftSum, &["ray_vllm_time_to_first_token_seconds_sum"]),
    (Figure::TtftCount, &["ray_vllm_time_to_first_token_seconds_count"]),
];
/// TensorRT-LLM's batch manager.
const TRITON: Rows = &[
    (Figure::Running, &["nv_trt_llm_request_metrics{request_type=\"scheduled\"}"]),
    (
        Figure::Waiting,
        &["nv_trt_llm_request_metrics{request_type=\"waiting\"}", "nv_inference_pending_request_count"],
    ),
    (Figure::KvCacheUsage, &["nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\"}"]),
    (Figure::KvBlocksUsed, &["nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"used\"}"]),
    (Figure::KvBlocks, &["nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"max\"}"]),
    (Figure::BlockTokens, &["nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"tokens_per\"}"]),
    (Figure::BatchLimit, &["nv_trt_llm_request_metrics{request_type=\"max\"}"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_source_is_one() {
        for kind in EngineKind::ALL {
            for (figure, sources) in kind.profile().sources {
                assert!(!sources.is_empty(), "{}: {}", kind.as_str(), figure.as_str());
            }
        }
    }

    #[test]
    fn sources_are_written_as_prometheus_writes_them() {
        let value = |name: &str, labels: &[(&str, &str)]| {
            let labels = labels.iter().map(|(label, value)| ((*label).into(), (*value).into())).collect();
            Ok(FigureSource::Value { name: name.into(), labels })
        };
        let label = Ok(FigureSource::Label { name: "c_info".into(), label: "block_size".into() });
        for (text, expected) in [
            ("vllm:n_total", value("vllm:n_total", &[])),
            ("m{a=\"x\",b=\"\"}", value("m", &[("a", "x"), ("b", "")])),
            ("c_info{block_size}", label),
        ] {
            assert_eq!(FigureSource::parse(text), expected, "{text}");
        }
        for text in ["", "9lives", "a b", "m{", "m{}", "m{a=x}", "m{a=\"x\"", "m{a=\"x\\\"\"}", "m{a=\"x\"}}"]
        {
            assert!(FigureSource::parse(text).is_err(), "{text}");
        }
    }
}
