//! Parts of a configuration that every gateway under test has: no output, no tasks of its own between requests.

use tokenway::config::Config;
use tokenway::config::check::check_str;

/// No access log, no spans out or in, and the bounds of prompt classes.
const QUIET: &str = r#"
[classes]
short = 512
medium = 4096
[telemetry]
access_log = "off"
[telemetry.sampling]
routine = 0.0
max_per_second = 1_000_000
keep = []
"#;

/// Replicas take traffic after one answer. The table of `[[pool]]` comes before it.
pub(crate) const NO_WARMUP: &str = r#"
[pool.warmup]
requests = 0
timeout = "1ms"
slow_start = "0s"
lengths = []
"#;

/// What the file says, without a word in any log.
pub(crate) fn checked(file: &str) -> Config {
    let text = format!("{QUIET}{file}");
    check_str("test.toml", &text, &|_| None).unwrap_or_else(|faults| panic!("{faults}"))
}
