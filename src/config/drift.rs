//! `[drift]`: what latency and availability are held against.
//!
//! The bounds here are those of the statistics: a baseline shorter than three blocks teaches no scale, and one of more
//! than a hundred would be kept in memory for nothing.

use std::time::Duration;

use serde_json::json;

use super::check::codec::{Own, SHARE, WEBHOOK};
use super::check::section::{Item, Section};
use super::check::shape::Kind;
use super::check::values::POSITIVE_DURATION;
use super::declare::{Below, Declared, section};
use super::{DriftState, Endpoint};

section! {
    /// latency and availability held against their own past; see docs/drift.md; restart
    #[derive(Clone, Debug, PartialEq)]
    pub struct Drift for "[drift]" {
        /// slow drift is judged by blocks: a day is what load repeats by
        block: Duration as POSITIVE_DURATION, default "24h";
        /// younger series use what there is, and say so
        baseline: Baseline as Below, default { from = "35d", to = "7d" };
        /// target share of requests that succeed; burn rates are of its error budget
        availability: f64 as SHARE, default 0.999;
        /// findings as alerts; off unless given
        webhook: Option<Endpoint> as WEBHOOK, example "http://127.0.0.1:9093/api/v2/alerts";
        /// baselines and findings over restarts; by default `drift-<admin port>.json` in `$STATE_DIRECTORY`, `$XDG_STATE_HOME/tokenway`, `~/.local/state/tokenway`, or beside this file; false keeps none
        state: DriftState as STATE, empty "drift.json";
    }
}

section! {
    #[derive(Clone, Debug, PartialEq)]
    pub struct Baseline for "drift.baseline" {
        /// its start, before now
        from: Duration as POSITIVE_DURATION, default "35d";
        /// its end, before now
        to: Duration as POSITIVE_DURATION, default "7d";
    }
}

pub(super) fn drift(root: &Section<'_>) -> Drift {
    let section = Drift::open(root);
    let drift = Drift::read(&section, &Drift::default());
    let hint = "a day is what load repeats by: block = \"24h\"";
    section.fault_if(drift.block < MIN_BLOCK, &["block"], "drift.block is under a minute", hint);
    if let Some(message) = contradiction(drift.block, drift.baseline.from, drift.baseline.to) {
        let hint = "write how long ago it begins and ends: { from = \"35d\", to = \"7d\" }";
        section.fault_if(true, &["baseline", "block"], message, hint);
    }
    let is_far = !TARGETS.contains(&drift.availability);
    let message = "drift.availability must be from 0.5 to 0.999999";
    section.fault_if(is_far, &["availability"], message, "three nines are 0.999");
    drift
}

/// A path, `false` or `"off"` for none, or `true` for the usual one.
fn state(item: &Item<'_>) -> Option<DriftState> {
    item.accepts([Kind::Boolean, Kind::Text { hint: "" }]);
    match (item.value.as_bool(), item.value.as_str()) {
        (Some(true), _) => Some(DriftState::Default),
        (Some(false), _) | (_, Some("off")) => Some(DriftState::Off),
        _ => item.state_path().map(DriftState::At),
    }
}

fn contradiction(block: Duration, from: Duration, to: Duration) -> Option<String> {
    let blocks = |span: Duration| span.as_secs_f64() / block.as_secs_f64();
    if blocks(to) < MIN_BLOCKS {
        Some("drift.baseline.to is under three blocks: a drift would be part of its own baseline".to_owned())
    } else if blocks(from) < blocks(to) + MIN_BLOCKS {
        Some("drift.baseline.from must be at least three blocks before drift.baseline.to".to_owned())
    } else if blocks(from) > MAX_BLOCKS {
        Some("drift.baseline.from is more than a hundred blocks ago".to_owned())
    } else {
        None
    }
}

const STATE: Own<DriftState> =
    Own { read: state, show: |state| json!(state.path().map(|path| path.display().to_string())) };
const TARGETS: std::ops::RangeInclusive<f64> = 0.5..=0.999_999;
const MIN_BLOCK: Duration = Duration::from_secs(60);
const MIN_BLOCKS: f64 = 3.0;
const MAX_BLOCKS: f64 = 100.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check::check_str;

    #[test]
    fn no_file_of_state_is_named_off() {
        for (written, expected) in [
            ("false", DriftState::Off),
            ("\"off\"", DriftState::Off),
            ("\"/tmp/off\"", DriftState::At("/tmp/off".into())),
        ] {
            let text = format!(
                "[[pool]]\nname = \"p\"\nreplicas = [\"http://a:1\"]\n[[route]]\nmodel = \"m\"\npools = [\"p\"]\n[drift]\nstate = {written}\n"
            );
            assert_eq!(check_str("f.toml", &text, &|_| None).unwrap().drift.state, expected, "{written}");
        }
    }
}
