//! `[telemetry.content]` and `[hook]`: who reads prompts and answers beside the engines.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use regex::Regex;
use serde_json::json;

use super::check::admission::own_names;
use super::check::codec::{LOG, List, NAMED, Own, SWITCH, Word};
use super::check::section::{Item, Section};
use super::check::values::{POSITIVE_DURATION, SIZE, TARGET};
use super::declare::{Declared, section};
use super::{Endpoint, OnLoss, Route};

section! {
    /// prompts and answers of tenants with content = true, on routes with content = true; restart
    #[derive(Clone, Debug, PartialEq)]
    pub struct Content for "[telemetry.content]", optional {
        /// as JSON lines; mode 0600
        file: Option<PathBuf> as LOG, example "content.jsonl";
        /// true sends them as log records (gen_ai.client.inference.operation.details) to the collector of [telemetry.otlp]
        otlp: bool as SWITCH, default false;
        /// regular expressions; what they match is written as [redacted]
        redact: Vec<Pattern> as List(PATTERN), empty ["[\\w.+-]+@[\\w-]+\\.[\\w.]+"];
        /// of a prompt, and of an answer; the rest is cut
        max_entry: usize as SIZE, default "64KiB";
        /// at which a file becomes FILE.1, and a new one begins
        max_file: usize as SIZE, default "100MiB";
        /// that are kept, FILE included; the oldest goes first
        files: u32 as 1..=1000, default 5;
    }
}

section! {
    /// asks an HTTP service of yours (docs/tenants.md) about every request; restart
    #[derive(Clone, Debug, PartialEq)]
    pub struct Hook for "[hook]", optional {
        /// gets each request before it is sent, and allows or refuses it
        before: Option<Endpoint> as TARGET, example "http://127.0.0.1:9100/before";
        /// gets each answer when it has ended; the client waits for nothing
        after: Option<Endpoint> as TARGET, example "http://127.0.0.1:9100/after";
        /// names of routes, or models where no route has that name; default: all; follow a reload
        routes: Option<Vec<Arc<str>>> as List(NAMED), example ["llama-8b"];
        /// for one answer of the service
        timeout: Duration as POSITIVE_DURATION, default "1s";
        /// without an answer in time: "closed" refuses with 503, "open" goes ahead unasked
        on_failure: OnLoss as Word("on_failure"), default "closed";
        /// of a body; a larger request counts as a failure, a larger answer is cut
        max_body: usize as SIZE, default "1MiB";
    }
}

impl Hook {
    /// What a reload keeps of it: all but its routes, which may have other names by then.
    pub(super) fn kept(&self, new: Option<&Self>) -> Self {
        let routes = new.unwrap_or(self).routes.clone();
        Self { routes, ..self.clone() }
    }

    /// Whether it is asked about requests of the route of that name.
    pub fn is_for(&self, route: &str) -> bool {
        self.routes.as_ref().is_none_or(|routes| routes.iter().any(|known| **known == *route))
    }
}

/// A regular expression, matched in linear time.
#[derive(Clone, Debug)]
pub struct Pattern(Regex);

impl Pattern {
    /// The compiled expression.
    pub fn regex(&self) -> &Regex {
        &self.0
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

/// Reads `[telemetry.content]`; `has_collector`: some collector takes log records.
pub(super) fn content(telemetry: &Section<'_>, has_collector: bool) -> Option<Content> {
    // The key was a switch once; what it switched off stays off.
    if telemetry.get("content").is_some_and(|item| item.is_written("false")) {
        return None;
    }
    let (section, content) = Content::opened(telemetry)?;
    if section.get("file").is_none() && !content.otlp {
        section.fault(
            "[telemetry.content] has neither \"file\" nor otlp = true",
            "write file = \"content.jsonl\", on a disk with room for all that is kept, or otlp = true",
        );
    }
    if content.otlp && !has_collector {
        section.fault(
            "[telemetry.content] has otlp = true, and no collector takes log records",
            "set telemetry.otlp.endpoint to its base URL, without /v1/traces at another path",
        );
    }
    Some(content)
}

pub(super) fn hook(root: &Section<'_>, routes: &[Route]) -> Option<Hook> {
    let (section, mut hook) = Hook::opened(root)?;
    if section.get("before").is_none() && section.get("after").is_none() {
        section.fault(
            "[hook] has neither \"before\" nor \"after\"",
            "write before = \"http://127.0.0.1:9100/before\" or after = \"http://127.0.0.1:9100/after\"",
        );
    }
    hook.routes = hook.routes.map(|_| own_names(&section, routes));
    Some(hook)
}

fn pattern(item: &Item<'_>) -> Option<Pattern> {
    let text = item.text()?;
    match Regex::new(text) {
        Ok(regex) if regex.is_match("") => {
            item.fault("this expression matches where there is nothing", "write one that needs a character");
            None
        }
        Ok(regex) => Some(Pattern(regex)),
        Err(error) => {
            let line = error.to_string().lines().last().unwrap_or_default().trim().to_owned();
            item.fault(format!("no regular expression: {line}"), PATTERN_HINT);
            None
        }
    }
}

const PATTERN: Own<Pattern> = Own { read: pattern, show: |pattern| json!(pattern.0.as_str()) };
const PATTERN_HINT: &str =
    "write it as Rust's regex has it (no look-around, no back references), each \\ twice: \"\\\\d{16}\"";
