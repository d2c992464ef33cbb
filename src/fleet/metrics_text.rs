//! Parses the figures that routing needs from an engine's `/metrics` page.
//!
//! The page is some 50 kB, so it is scanned line by line for known names without building the rest. With data
//! parallelism a page has one series per `engine`: counts are summed, usage is the maximum. Unknown or malformed lines
//! are skipped.

/// Figures of one page; `None` where the series is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineFigures {
    /// `vllm:num_requests_running`
    pub running: Option<f64>,
    /// `vllm:num_requests_waiting`
    pub waiting: Option<f64>,
    /// `vllm:kv_cache_usage_perc`, 0 to 1 (older engines: `vllm:gpu_cache_usage_perc`).
    pub kv_cache_usage: Option<f64>,
    /// `block_size` of `vllm:cache_config_info`, in tokens.
    pub block_tokens: Option<u64>,
    /// `num_gpu_blocks` of `vllm:cache_config_info`, over all engines of the page.
    pub total_blocks: Option<u64>,
    /// `vllm:num_preemptions_total`
    pub preemptions: Option<f64>,
    /// `vllm:time_to_first_token_seconds_sum`
    pub ttft_sum: Option<f64>,
    /// `vllm:time_to_first_token_seconds_count`
    pub ttft_count: Option<f64>,
    /// Tokens computed and generated so far, and steps where they are counted: moves while the engine core does.
    pub work_done: Option<f64>,
    /// `process_start_time_seconds`: another value means another process.
    pub process_start: Option<f64>,
}

/// Parses a page in the Prometheus text format.
#[must_use]
pub fn parse(page: &str) -> EngineFigures {
    let mut figures = EngineFigures::default();
    for line in page.lines() {
        if let Some((name, labels, value)) = series(line) {
            figures.take(name, labels, value);
        }
    }
    figures
}

impl EngineFigures {
    fn take(&mut self, name: &str, labels: &str, value: f64) {
        match name {
            "vllm:num_requests_running" => add(&mut self.running, value),
            "vllm:num_requests_waiting" => add(&mut self.waiting, value),
            "vllm:kv_cache_usage_perc" | "vllm:gpu_cache_usage_perc" => {
                self.kv_cache_usage = Some(self.kv_cache_usage.unwrap_or(0.0).max(value).clamp(0.0, 1.0));
            }
            "vllm:cache_config_info" => {
                self.block_tokens = label(labels, "block_size").or(self.block_tokens);
                let blocks = label(labels, "num_gpu_blocks_override").or(label(labels, "num_gpu_blocks"));
                if let Some(blocks) = blocks {
                    self.total_blocks = Some(self.total_blocks.unwrap_or(0).saturating_add(blocks));
                }
            }
            "vllm:num_preemptions_total" => add(&mut self.preemptions, value),
            "vllm:time_to_first_token_seconds_sum" => add(&mut self.ttft_sum, value),
            "vllm:time_to_first_token_seconds_count" => add(&mut self.ttft_count, value),
            "vllm:prompt_tokens_total"
            | "vllm:generation_tokens_total"
            | "vllm:iteration_tokens_total_count" => add(&mut self.work_done, value),
            "process_start_time_seconds" => self.process_start = Some(value),
            _ => {}
        }
    }
}

fn add(sum: &mut Option<f64>, value: f64) {
    if value >= 0.0 {
        *sum = Some(sum.unwrap_or(0.0) + value);
    }
}

/// Splits `name{labels} value`; `None` for comments, unknown names and malformed lines.
fn series(line: &str) -> Option<(&str, &str, f64)> {
    if !line.starts_with("vllm:") && !line.starts_with("process_start") {
        return None;
    }
    let (key, value) = line.trim_end().rsplit_once(' ')?;
    let value: f64 = value.parse().ok().filter(|v: &f64| v.is_finite())?;
    match key.split_once('{') {
        Some((name, labels)) => Some((name, labels.strip_suffix('}')?, value)),
        None => Some((key, "", value)),
    }
}

fn label(labels: &str, name: &str) -> Option<u64> {
    let quoted = labels.split(',').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
    quoted.trim_matches('"').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_of_one_page_are_added_up() {
        let page = "# HELP vllm:num_requests_running x\n\
            vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3.0\n\
            vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 2.0\n\
            vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 7.0\n\
            vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.5\n\
            vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"100\",num_gpu_blocks_override=\"None\"} 1.0\n\
            vllm:num_preemptions_total{engine=\"0\"} 1.0\nvllm:num_preemptions_total{engine=\"1\"} 2.0\n\
            vllm:prompt_tokens_total{engine=\"0\"} 100.0\nvllm:generation_tokens_total{engine=\"0\"} 20.0\n\
            vllm:iteration_tokens_total_count{engine=\"0\"} 7.0\n\
            vllm:time_to_first_token_seconds_sum{engine=\"0\"} 2.5\n\
            vllm:time_to_first_token_seconds_count{engine=\"0\"} 10.0\n\
            process_start_time_seconds 1.7e9\n";
        assert_eq!(
            parse(page),
            EngineFigures {
                running: Some(5.0),
                waiting: Some(7.0),
                kv_cache_usage: Some(0.5),
                block_tokens: Some(16),
                total_blocks: Some(100),
                preemptions: Some(3.0),
                ttft_sum: Some(2.5),
                ttft_count: Some(10.0),
                work_done: Some(127.0),
                process_start: Some(1.7e9),
            }
        );
    }

    #[test]
    fn malformed_lines_are_skipped() {
        for page in
            ["", "vllm:num_requests_running", "vllm:num_requests_running{ NaN", "<html>", "vllm:x{} 1"]
        {
            assert_eq!(parse(page), EngineFigures::default(), "{page}");
        }
    }
}
