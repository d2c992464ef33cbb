//! `[pool.warmup]`, `[pool.keep_alive]` and `pool.lora`: what a replica is asked before it takes traffic, and while nobody
//! else asks it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::check::codec::{List, Own, SWITCH, Word};
use super::check::section::{Item, Section};
use super::check::values::{DURATION, INTERVAL, MODEL, POSITIVE_DURATION};
use super::declare::section;
use crate::labels::labels;

section! {
    /// what a replica is asked after its first answer and before it takes traffic (docs/fleet.md)
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct WarmUp for "[pool.warmup]" {
        /// of each length; 0: none
        requests: u32 as 0..=64, default 4;
        /// for all of it; what is not answered then is reported, and the replica takes traffic
        timeout: Duration as POSITIVE_DURATION, default "30s";
        /// its share of the traffic rises over this time at most; 0s: all at once
        slow_start: Duration as DURATION, default "30s";
        /// short (at most 64 tokens), medium, long: of `[classes]`
        lengths: Vec<WarmUpLength> as List(Word("prompt class")), default ["short"];
        /// system prompts to have cached: `["You are …"]`
        prompts: Vec<Arc<str>> as PROMPTS, default [];
        /// what engines compile on first use: `["logprobs", "guided"]`
        features: Vec<WarmUpFeature> as List(Word("warm-up feature")), default [];
    }
}

labels! {
    /// `pool.warmup.lengths`: a prompt class.
    pub enum WarmUpLength {
        /// Half of `classes.short` tokens, at most 64.
        Short = "short",
        /// Half of `classes.medium` tokens.
        Medium = "medium",
        /// `classes.medium` tokens and a quarter.
        Long = "long",
    }

    /// `pool.warmup.features`
    pub enum WarmUpFeature {
        /// A completion with `logprobs`.
        Logprobs = "logprobs",
        /// A chat completion with a JSON schema as `response_format`.
        Guided = "guided",
    }
}

/// `pool.lora`: adapters of the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lora {
    /// Whether the gateway loads those that a replica does not list.
    pub load: bool,
    /// Paths as the engines see them, by the adapter's name.
    pub adapters: BTreeMap<Arc<str>, Arc<str>>,
}

pub(super) fn keep_alive(pool: &Section<'_>) -> Option<Duration> {
    let section = pool.section("keep_alive", "[pool.keep_alive]");
    let interval = section.parse("interval", &INTERVAL);
    if section.is_present() && section.get("interval").is_none() {
        section.fault("[pool.keep_alive] has no \"interval\"", "interval = \"45s\"");
    }
    interval
}

pub(super) fn lora(pool: &Section<'_>) -> Lora {
    let section = pool.section("lora", "pool.lora");
    let load = section.value("load", &SWITCH).unwrap_or(false);
    let mut adapters = BTreeMap::new();
    if let Some(item) = section.get("adapters") {
        for entry in item.entries("a table", LORA_HINT) {
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

fn prompts(item: &Item<'_>) -> Option<Vec<Arc<str>>> {
    let prompts = item.list();
    if let Some(item) = prompts.get(MAX_PROMPTS) {
        item.fault(
            format!("more than {MAX_PROMPTS} prompts"),
            "name those that most requests begin with: the others are cached by the first request",
        );
    }
    Some(prompts.iter().filter_map(|item| item.text()).map(Into::into).collect())
}

/// Of prompts the number is shown.
const PROMPTS: Own<Vec<Arc<str>>> = Own { read: prompts, show: |prompts| json!(prompts.len()) };
/// Each is a request before the replica takes traffic.
const MAX_PROMPTS: usize = 64;
const LORA_HINT: &str = "name them with their paths on the engines: \
    lora = { load = true, adapters = { sql = \"/adapters/sql\" } }";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check::{check_with_pool, faults_with_pool};

    fn pool(more: &str) -> crate::config::Pool {
        check_with_pool(more).unwrap().pools.remove(0)
    }

    #[test]
    fn without_a_word_a_few_small_requests_warm_a_replica_up() {
        let pool = pool("");
        let seconds = Duration::from_secs;
        assert_eq!(
            pool.warmup,
            WarmUp {
                requests: 4,
                timeout: seconds(30),
                slow_start: seconds(30),
                lengths: vec![WarmUpLength::Short],
                prompts: vec![],
                features: vec![],
            }
        );
        assert_eq!((pool.keep_alive, pool.lora), (None, Lora::default()));
    }

    #[test]
    fn everything_can_be_said() {
        let pool = pool(
            "lora = { load = true, adapters = { sql = \"/a/sql\" } }\n[pool.warmup]\nrequests = 0\nslow_start = \"0s\"\n\
             lengths = [\"short\", \"long\"]\nprompts = [\"You are\"]\nfeatures = [\"logprobs\", \"guided\"]\n\
             [pool.keep_alive]\ninterval = \"45s\"",
        );
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
            ("[pool.keep_alive]\ninterval = \"1ms\"", "f.toml:5:12: \"1ms\" is less than 10ms"),
            ("[pool.probe]\ninterval = \"9ms\"", "f.toml:5:12: \"9ms\" is less than 10ms"),
            ("scrape_interval = \"10us\"", "f.toml:4:19: \"10us\" is less than 10ms"),
            ("lora = { load = true }", "f.toml:4:8: pool.lora names no adapters"),
        ] {
            let faults = faults_with_pool(text);
            assert!(faults[0].starts_with(expected), "{faults:?}");
        }
    }
}
