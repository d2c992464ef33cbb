//! `/metrics`: the families of vLLM's page that gateways and autoscalers read, under its names and labels.

use std::fmt::Write;

use crate::engine::{Buckets, EngineStats, Gauges};
use crate::server::config::SimConfig;

/// The page. `started` is in Unix seconds.
pub(super) fn page(config: &SimConfig, stats: &EngineStats, started: f64) -> String {
    let mut page = Page { out: String::with_capacity(8_192), labels: labels(config), started };
    page.process();
    let Gauges { running, waiting, kv_cache_usage, .. } = stats.gauges;
    page.gauge("num_requests_running", "Number of requests in model execution batches.", running as f64);
    page.gauge("num_requests_waiting", "Number of requests waiting to be processed.", waiting as f64);
    page.waiting_by_reason(waiting);
    page.gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", kv_cache_usage);
    page.counters(stats);
    page.finished(stats);
    page.histogram(
        "time_to_first_token_seconds",
        "Histogram of time to first token in seconds.",
        &stats.ttft,
    );
    page.histogram("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", &stats.itl);
    page.cache_config(config);
    page.out
}

struct Page {
    out: String,
    labels: String,
    started: f64,
}

impl Page {
    fn process(&mut self) {
        let started = self.started;
        self.family(
            "process_start_time_seconds",
            "gauge",
            "Start time of the process since unix epoch in seconds.",
        );
        self.line(format_args!("process_start_time_seconds {started:?}"));
    }

    fn counters(&mut self, stats: &EngineStats) {
        let rows = [
            (
                "prefix_cache_queries",
                "Prefix cache queries, in terms of number of queried tokens.",
                stats.prefix_queries,
            ),
            (
                "prefix_cache_hits",
                "Prefix cache hits, in terms of number of cached tokens.",
                stats.prefix_hits,
            ),
            ("num_preemptions", "Cumulative number of preemption from the engine.", stats.preemptions),
            ("prompt_tokens", "Number of prefill tokens processed.", stats.prompt_tokens),
            ("generation_tokens", "Number of generation tokens processed.", stats.generation_tokens),
        ];
        for (name, help, value) in rows {
            let (labels, started) = (self.labels.clone(), self.started);
            self.family(&format!("vllm:{name}_total"), "counter", help);
            self.line(format_args!("vllm:{name}_total{{{labels}}} {:?}", value as f64));
            self.family(&format!("vllm:{name}_created"), "gauge", help);
            self.line(format_args!("vllm:{name}_created{{{labels}}} {started:?}"));
        }
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        let labels = self.labels.clone();
        self.family(&format!("vllm:{name}"), "gauge", help);
        self.line(format_args!("vllm:{name}{{{labels}}} {value:?}"));
    }

    fn waiting_by_reason(&mut self, waiting: usize) {
        let labels = self.labels.clone();
        self.family("vllm:num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.");
        for (reason, value) in [("capacity", waiting as f64), ("deferred", 0.0)] {
            self.line(format_args!(
                "vllm:num_requests_waiting_by_reason{{{labels},reason=\"{reason}\"}} {value:?}"
            ));
        }
    }

    /// A client that leaves is counted nowhere, as measured with vLLM.
    fn finished(&mut self, stats: &EngineStats) {
        let labels = self.labels.clone();
        self.family("vllm:request_success_total", "counter", "Count of successfully processed requests.");
        let rows = [("stop", 0.0), ("length", stats.finished as f64), ("abort", 0.0), ("error", 0.0)];
        for (reason, value) in rows {
            self.line(format_args!(
                "vllm:request_success_total{{engine=\"0\",finished_reason=\"{reason}\",{}}} {value:?}",
                labels.trim_start_matches("engine=\"0\",")
            ));
        }
    }

    fn histogram(&mut self, name: &str, help: &str, buckets: &Buckets) {
        let labels = self.labels.clone();
        self.family(&format!("vllm:{name}"), "histogram", help);
        let model = labels.trim_start_matches("engine=\"0\",").to_owned();
        for (bound, count) in buckets.bounds.iter().zip(&buckets.counts) {
            let count = *count as f64;
            self.line(format_args!("vllm:{name}_bucket{{engine=\"0\",le=\"{bound:?}\",{model}}} {count:?}"));
        }
        let count = buckets.count as f64;
        self.line(format_args!("vllm:{name}_bucket{{engine=\"0\",le=\"+Inf\",{model}}} {count:?}"));
        self.line(format_args!("vllm:{name}_count{{{labels}}} {count:?}"));
        self.line(format_args!("vllm:{name}_sum{{{labels}}} {:?}", buckets.sum));
    }

    fn cache_config(&mut self, config: &SimConfig) {
        let (block, blocks) = (config.engine.block_size, config.engine.num_blocks);
        self.family("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig");
        self.line(format_args!(
            "vllm:cache_config_info{{_block_size_resolved=\"True\",block_size=\"{block}\",cache_dtype=\"auto\",\
             enable_prefix_caching=\"True\",engine=\"0\",gpu_memory_utilization=\"0.92\",\
             num_cpu_blocks=\"None\",num_gpu_blocks=\"{blocks}\",num_gpu_blocks_override=\"None\",\
             prefix_caching_hash_algo=\"sha256\"}} 1.0"
        ));
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.out, "{line}");
    }
}

fn labels(config: &SimConfig) -> String {
    let model = config.model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("engine=\"0\",model_name=\"{model}\"")
}
