//! `[[tenant.budget]]`: what a tenant may use in a window of the calendar.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value as Json, json};
use toml::de::DeTable;

use super::Overrides;
use super::check::codec::{Own, SWITCH, Word};
use super::check::section::{Checking, Item, Section};
use super::check::values::MODEL;
use super::declare::{Declared, section};
use super::zone::{ZONE, Zone};
use crate::labels::labels;

section! {
    /// any number of them; what is absent is unlimited
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Budget for "[[tenant.budget]]", optional {
        /// minute, hour, day, week (from Monday) or month, by the calendar
        window: Window as Word("window"), default "month";
        /// where days begin: "UTC", "Europe/Berlin" (with its daylight saving, by the system's tzdata), or "+02:00"
        time_zone: Zone as ZONE, default "UTC";
        /// of prompts and answers
        tokens: Option<u64> as 1..=MAX, example 50000000;
        /// of prompts, cached ones included
        input_tokens: Option<u64> as 1..=MAX, example 40000000;
        /// of prompts, as far as the engine had them cached; never predicted, charged at the end
        cached_tokens: Option<u64> as 1..=MAX, example 30000000;
        /// of answers
        output_tokens: Option<u64> as 1..=MAX, example 10000000;
        /// requests
        requests: Option<u64> as 1..=MAX, example 100000;
        /// of engines: prefill and decode of its requests, or all of a unary answer's time there if neither is reported, also where requests of one batch share a replica; never predicted, charged at the end
        engine_seconds: Option<u64> as 1..=MAX, example 36000;
        /// of this model only, as clients ask for it
        model: Option<Arc<str>> as MODEL, example "llama-8b";
        /// 429 when it is spent; false: only metrics, headers and log show it
        hard: bool as SWITCH, default true;
    }
}

labels! {
    /// A stretch of the calendar.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Window {
        /// From the full minute.
        Minute = "minute",
        /// From the full hour.
        Hour = "hour",
        /// From midnight.
        Day = "day",
        /// From Monday.
        Week = "week",
        /// From the first.
        #[default]
        Month = "month",
    }
}

impl Budget {
    /// Whether it bounds anything.
    pub fn has_limit(&self) -> bool {
        let tokens = [self.tokens, self.input_tokens, self.cached_tokens, self.output_tokens];
        tokens.into_iter().chain([self.requests, self.engine_seconds]).any(|limit| limit.is_some())
    }

    /// Whether it holds for requests of a model.
    pub fn is_of(&self, model: &str) -> bool {
        self.model.as_deref().is_none_or(|own| own == model)
    }
}

fn budget(item: &Item<'_>) -> Option<Budget> {
    let section = item.section(Budget::DECLARATION.header)?;
    let budget = Budget::read(&section, &Budget::default());
    if !budget.has_limit() {
        section.fault(NO_LIMIT, LIMITS_HINT);
    }
    Some(budget)
}

/// As [`budgets_of`] reads them.
pub(crate) fn write_budgets<S: Serializer>(budgets: &[Budget], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(budgets.iter().map(Budget::view))
}

pub(crate) fn read_budgets<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Budget>, D::Error> {
    budgets_of(&Vec::deserialize(from)?).map_err(serde::de::Error::custom)
}

/// Reads budgets that stand in no file, such as those of a key, as JSON writes them.
///
/// # Errors
/// What is wrong with the first that is none.
pub fn budgets_of(budgets: &[Json]) -> Result<Vec<Budget>, String> {
    let mut text = String::new();
    for budget in budgets {
        let keys = budget.as_object().ok_or_else(|| format!("{budget} is no object"))?;
        text.push_str("[[budget]]\n");
        for (key, value) in keys.iter().filter(|(_, value)| !value.is_null()) {
            // A string of JSON is one of TOML, and so are numbers and booleans; lists and objects fail by their type.
            text.push_str(&format!("{} = {}\n", json!(key), value));
        }
    }
    let tree = DeTable::parse(&text).map_err(|error| error.message().to_owned())?;
    let overrides = Overrides::default();
    let checking = Checking::new(Path::new(""), &|_| None, &overrides);
    let root = Section::open(&checking, "budget", 0..0, Some(tree.get_ref()));
    let sections = root.sections("budget", Budget::DECLARATION.header);
    let read = sections.iter().map(|section| Budget::read(section, &Budget::default())).collect();
    drop((sections, root));
    match checking.faults.take().into_iter().next() {
        Some((_, fault)) => Err(format!("{}; {}", fault.message, fault.hint)),
        None => Ok(read),
    }
}

/// One that the file has.
pub(super) const BUDGET: Own<Budget> = Own { read: budget, show: |budget| budget.view() };
/// What is wrong with a budget that bounds nothing.
pub const NO_LIMIT: &str = "a budget without a limit";
const LIMITS_HINT: &str =
    "add tokens, input_tokens, cached_tokens, output_tokens, requests or engine_seconds";
const MAX: i64 = 1_000_000_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check::check_with_pool;

    #[test]
    fn a_budget_without_a_limit_is_a_fault() {
        let tenant = "[[tenant]]\nname = \"t\"\nkey_sha256 = []\n[[tenant.budget]]\nwindow = \"day\"\n";
        let check = |more: &str| check_with_pool(&format!("{tenant}{more}"));
        assert!(check("requests = 5\n").is_ok());
        let faults = check("model = \"m\"\n").unwrap_err().to_string();
        assert!(faults.contains("f.toml:7:") && faults.contains("a budget without a limit"), "{faults}");
        assert!(faults.contains("tokens"), "a hint: {faults}");
        assert!(
            budgets_of(&[json!({ "window": "day" })]).is_ok(),
            "keys that were made before stay readable"
        );
        assert_eq!(budgets_of(&[json!({ "tokens": 5 })]).unwrap()[0].tokens, Some(5));
    }
}
