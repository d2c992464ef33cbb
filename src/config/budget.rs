//! `[[tenant.budget]]`: what a tenant may use in a window of the calendar.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use toml::de::DeTable;

use super::Overrides;
use super::check::codec::{Own, Switch, Word};
use super::check::section::{Checking, Item, Section};
use super::check::values::MODEL;
use super::declare::{Declared, section};

section! {
    /// any number of them; what is absent is unlimited
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Budget for "[[tenant.budget]]", optional {
        /// minute, hour, day, week (from Monday) or month, by the calendar
        window: Window as WINDOW, default "month";
        /// where days begin: UTC, or "+02:00", without daylight saving
        time_zone: i32 as ZONE, default "UTC";
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
        /// of this model only, as clients ask for it
        model: Option<Arc<str>> as MODEL, example "llama-8b";
        /// 429 when it is spent; false: only metrics, headers and log show it
        hard: bool as Switch, default true;
    }
}

/// A stretch of the calendar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Window {
    /// From the full minute.
    Minute,
    /// From the full hour.
    Hour,
    /// From midnight.
    Day,
    /// From Monday.
    Week,
    /// From the first.
    #[default]
    Month,
}

impl Window {
    /// Its word in the file and in labels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        WINDOWS.iter().find(|(_, window)| *window == self).map_or("month", |(word, _)| word)
    }
}

impl Budget {
    /// Whether it holds for requests of a model.
    #[must_use]
    pub fn is_of(&self, model: &str) -> bool {
        self.model.as_deref().is_none_or(|own| own == model)
    }
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

fn zone(item: &Item<'_>) -> Option<i32> {
    let text = item.text()?;
    let offset = offset(text);
    if offset.is_none() {
        item.fault(
            format!("{text:?} is no offset from UTC"),
            "write \"UTC\", or hours and minutes: \"+02:00\"",
        );
    }
    offset
}

/// Seconds ahead of UTC.
fn offset(text: &str) -> Option<i32> {
    if text == "UTC" {
        return Some(0);
    }
    let (sign, rest) = (text.get(..1)?, text.get(1..)?);
    let (hours, minutes) = rest.split_once(':').filter(|(h, m)| h.len() == 2 && m.len() == 2)?;
    let (hours, minutes): (i32, i32) = (hours.parse().ok()?, minutes.parse().ok()?);
    let is_valid = (0..=14).contains(&hours) && (0..60).contains(&minutes);
    let seconds = hours * 3600 + minutes * 60;
    match sign {
        "+" if is_valid => Some(seconds),
        "-" if is_valid => Some(-seconds),
        _ => None,
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what a codec shows of any value")]
fn show_zone(seconds: &i32) -> Json {
    let (sign, minutes) = (if *seconds < 0 { '-' } else { '+' }, seconds.abs() / 60);
    json!(format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60))
}

const ZONE: Own<i32> = Own { read: zone, show: show_zone };
const WINDOW: Word<Window> = Word("window", WINDOWS);
const WINDOWS: &[(&str, Window)] = &[
    ("minute", Window::Minute),
    ("hour", Window::Hour),
    ("day", Window::Day),
    ("week", Window::Week),
    ("month", Window::Month),
];
const MAX: i64 = 1_000_000_000_000_000;
