//! `[pool.warmup]`, `[pool.keep_alive]` and `pool.lora`.

use std::time::Duration;

use crate::config::{Lora, WarmUp, WarmUpFeature, WarmUpLength};

use super::section::Section;
use super::values::{DURATION, MODEL, POSITIVE_DURATION};

/// Reads `[pool.warmup]`.
pub(super) fn warmup(pool: &Section<'_>) -> WarmUp {
    let section = pool.section("warmup", "[pool.warmup]");
    let words = |key, what, known: &[(&'static str, WarmUpLength)]| {
        let items = section.get(key)?.list();
        Some(items.iter().filter_map(|item| item.one_of(what, known)).collect())
    };
    let features = section.list("features");
    let prompts = section.list("prompts");
    if let Some(item) = prompts.get(MAX_PROMPTS) {
        item.fault(
            format!("more than {MAX_PROMPTS} prompts"),
            "name those that most requests begin with: the others are cached by the first request",
        );
    }
    WarmUp {
        requests: section.integer("requests", 0..=64).unwrap_or(4),
        timeout: section.parse("timeout", &POSITIVE_DURATION).unwrap_or(Duration::from_secs(30)),
        slow_start: section.parse("slow_start", &DURATION).unwrap_or(Duration::from_secs(30)),
        lengths: words("lengths", "prompt class", LENGTHS).unwrap_or_else(|| vec![WarmUpLength::Short]),
        prompts: prompts.iter().filter_map(|item| item.text()).map(Into::into).collect(),
        features: features
            .iter()
            .filter_map(|item| item.one_of("warm-up feature", &WarmUpFeature::ALL))
            .collect(),
    }
}

/// Reads `[pool.keep_alive]`.
pub(super) fn keep_alive(pool: &Section<'_>) -> Option<Duration> {
    let section = pool.section("keep_alive", "[pool.keep_alive]");
    let interval = section.parse("interval", &POSITIVE_DURATION);
    if section.is_present() && section.get("interval").is_none() {
        section.fault("[pool.keep_alive] has no \"interval\"", "interval = \"45s\"");
    }
    interval
}

/// Reads `pool.lora`.
pub(super) fn lora(pool: &Section<'_>) -> Lora {
    let section = pool.section("lora", "pool.lora");
    let load = section.boolean("load").unwrap_or(false);
    let mut adapters = std::collections::BTreeMap::new();
    if let Some(item) = section.get("adapters") {
        if item.value.as_table().is_none() {
            item.wrong_type("a table", LORA_HINT);
        }
        for entry in item.entries() {
            if let Err(message) = (MODEL.parse)(entry.key) {
                entry.fault_at_key(message, MODEL.hint);
            }
            if let Some(path) = entry.text() {
                adapters.insert(entry.key.into(), path.into());
            }
        }
    }
    if section.is_present() && adapters.is_empty() {
        section.fault("pool.lora names no adapters", LORA_HINT);
    }
    Lora { load, adapters }
}

const LENGTHS: &[(&str, WarmUpLength)] =
    &[("short", WarmUpLength::Short), ("medium", WarmUpLength::Medium), ("long", WarmUpLength::Long)];
/// Each is a request before the replica takes traffic.
const MAX_PROMPTS: usize = 64;
const LORA_HINT: &str = "name them with their paths on the engines: \
    lora = { load = true, adapters = { sql = \"/adapters/sql\" } }";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check::check_str;

    fn check(more: &str) -> Result<crate::config::Pool, String> {
        let text = format!("[[pool]]\nname = \"p\"\nreplicas = [\"http://127.0.0.1:1\"]\n{more}\n");
        let first = |faults: crate::config::diagnostics::Diagnostics| {
            faults.iter().next().map(ToString::to_string).unwrap_or_default()
        };
        let mut config = check_str("f.toml", &text, &|_| None).map_err(first)?;
        Ok(config.pools.remove(0))
    }

    #[test]
    fn without_a_word_a_few_small_requests_warm_a_replica_up() {
        let pool = check("").unwrap();
        let seconds = Duration::from_secs;
        assert_eq!(
            pool.warmup,
            WarmUp {
                requests: 4,
                timeout: seconds(30),
                slow_start: seconds(30),
                lengths: vec![WarmUpLength::Short],
                ..WarmUp::default()
            }
        );
        assert_eq!((pool.keep_alive, pool.lora), (None, Lora::default()));
    }

    #[test]
    fn everything_can_be_said() {
        let pool = check(
            "lora = { load = true, adapters = { sql = \"/a/sql\" } }\n[pool.warmup]\nrequests = 0\nslow_start = \"0s\"\n\
             lengths = [\"short\", \"long\"]\nprompts = [\"You are\"]\nfeatures = [\"logprobs\", \"guided\"]\n\
             [pool.keep_alive]\ninterval = \"45s\"",
        )
        .unwrap();
        assert_eq!(pool.warmup.lengths, [WarmUpLength::Short, WarmUpLength::Long]);
        assert_eq!(pool.warmup.features, [WarmUpFeature::Logprobs, WarmUpFeature::Guided]);
        assert!(pool.warmup.slow_start.is_zero() && pool.lora.load);
        assert_eq!(pool.keep_alive, Some(Duration::from_secs(45)));
        assert_eq!(pool.lora.adapters.get("sql").map(|path| &**path), Some("/a/sql"));
    }

    #[test]
    fn faults_have_their_place() {
        for (text, expected) in [
            ("[pool.warmup]\nlengths = [\"shrot\"]", "f.toml:5:12: unknown prompt class \"shrot\""),
            ("[pool.warmup]\nfeatures = [\"tools\"]", "f.toml:5:13: unknown warm-up feature \"tools\""),
            ("[pool.warmup]\nrequests = 65", "f.toml:5:12: requests is out of range"),
            ("[pool.keep_alive]", "f.toml:4:1: [pool.keep_alive] has no \"interval\""),
            ("lora = { load = true }", "f.toml:4:8: pool.lora names no adapters"),
        ] {
            let told = check(text).unwrap_err();
            assert!(told.starts_with(expected), "{told}");
        }
    }
}
