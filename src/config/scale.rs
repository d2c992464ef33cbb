//! `[pool.scale]`: bounds on the number of replicas that the gateway asks for.

use std::str::FromStr;
use std::time::{Duration, SystemTime};

use croner::Cron;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Value as Json, json};

use super::MAX_REPLICAS;
use super::check::codec::Own;
use super::check::section::Item;
use super::check::values::{Form, OFF_AT_ZERO, POSITIVE_DURATION, SIZE};
use super::declare::{Below, Declared, section};

section! {
    #[derive(Clone, Debug, PartialEq)]
    pub struct Scale for "[pool.scale]" {
        /// never fewer are asked for; 0: none while nobody asks for the pool
        min_replicas: usize as 0..=MOST, default 1;
        /// never more
        max_replicas: usize as 1..=MOST, default 2048;
        /// with min_replicas = 0: none are asked for when no request came for so long
        idle_after: Duration as POSITIVE_DURATION, default "15m";
        /// fewer are asked for when no more were needed for so long; more at once
        scale_down_after: Duration as POSITIVE_DURATION, default "5m";
        /// how long a replica takes to become warm, until that was measured
        cold_start: Duration as POSITIVE_DURATION, default "2m";
        /// more at certain hours (cron, UTC), from one cold start before
        windows: Vec<ScaleWindow> as WINDOWS, empty [{ start = "0 8 * * mon-fri", end = "0 18 * * mon-fri", min_replicas = 4 }];
        /// how requests wait for the first replica
        wait: ColdWait as Below, section {};
    }
}

section! {
    /// with min_replicas = 0: requests wait here while no replica is ready, instead of a 503
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ColdWait for "[pool.scale.wait]" {
        /// of one route; 0: refuse at once
        max_requests: usize as 0..=1_000_000, default 1000;
        /// of their bodies
        max_bytes: usize as SIZE, default "256MiB";
        /// `timeouts.first_token` begins when the wait is over, `timeouts.total` does not
        max_wait: Duration as POSITIVE_DURATION, default "10m";
        /// SSE comments to streams that wait; 0s: none
        heartbeat: Option<Duration> as OFF_AT_ZERO, default "15s";
    }
}

/// `pool.scale.windows`: from each time that `start` names to the next that `end` names, in UTC.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaleWindow {
    /// Cron expression.
    pub start: Cron,
    /// Cron expression.
    pub end: Cron,
    /// Never fewer meanwhile.
    pub min_replicas: usize,
}

impl ScaleWindow {
    /// Whether a time is within, or it begins at most `lead` later. It is within where no end came after the last start.
    pub fn is_open(&self, at: SystemTime, lead: Duration) -> bool {
        let at = Timestamp::try_from(at).unwrap_or_default().to_zoned(TimeZone::UTC);
        let last = |cron: &Cron| cron.find_previous_occurrence(&at, true).ok();
        let is_within = last(&self.start).is_some_and(|start| last(&self.end).is_none_or(|end| end <= start));
        let next = self.start.find_next_occurrence(&at, false);
        is_within || next.is_ok_and(|next| at.duration_until(&next).unsigned_abs() <= lead)
    }
}

impl Scale {
    /// How requests wait for the first replica; `None` where the pool is not to be without one.
    pub fn cold_wait(&self) -> Option<&ColdWait> {
        (self.min_replicas == 0 && self.wait.max_requests > 0).then_some(&self.wait)
    }

    /// The least number from now until `lead` later, so that replicas are warm when a window begins.
    pub fn least(&self, now: SystemTime, lead: Duration) -> usize {
        let open = self.windows.iter().filter(|window| window.is_open(now, lead));
        let least = open.map(|window| window.min_replicas).max().unwrap_or(0).max(self.min_replicas);
        least.min(self.max_replicas)
    }
}

/// `[pool.scale]`, whose numbers fit each other.
pub(super) const SCALE: Own<Scale> = Own { read: scale, show: Declared::view };

fn scale(item: &Item<'_>) -> Option<Scale> {
    let section = item.section(Scale::DECLARATION.header)?;
    let scale = Scale::read(&section, &Scale::default());
    section.fault_if(
        scale.min_replicas > scale.max_replicas,
        &["min_replicas", "max_replicas"],
        "min_replicas is above max_replicas",
        "write min_replicas = 1, max_replicas = 8",
    );
    section.fault_if(
        scale.windows.iter().any(|window| window.min_replicas > scale.max_replicas),
        &["windows"],
        "a window asks for more than max_replicas",
        "raise max_replicas, or lower the window's number",
    );
    Some(scale)
}

fn windows(item: &Item<'_>) -> Option<Vec<ScaleWindow>> {
    let items = item.list();
    if let Some(item) = items.get(MAX_WINDOWS) {
        item.fault(
            format!("more than {MAX_WINDOWS} windows"),
            "a cron expression can name several hours and days",
        );
    }
    let mut windows = Vec::new();
    for item in &items {
        let Some(inner) = item.section("pool.scale.windows") else { continue };
        let (start, end) = (inner.require("start", &CRON), inner.require("end", &CRON));
        let least = inner.value("min_replicas", &(1..=MOST));
        if inner.get("min_replicas").is_none() {
            inner.fault("the window has no \"min_replicas\"", WINDOW_HINT);
        }
        if let (Some(start), Some(end), Some(min_replicas)) = (start, end, least) {
            if start == end {
                inner.fault("the window ends when it starts", WINDOW_HINT);
            }
            windows.push(ScaleWindow { start, end, min_replicas });
        }
    }
    Some(windows)
}

fn cron(text: &str) -> Result<Cron, String> {
    let fields = text.split_whitespace().count();
    if fields != 5 && !text.starts_with('@') {
        return Err(format!("\"{text}\" has {fields} fields, and a cron expression five"));
    }
    let cron = Cron::from_str(text).map_err(|error| format!("\"{text}\" is no cron expression: {error}"))?;
    let first = cron.find_next_occurrence(&Timestamp::UNIX_EPOCH.to_zoned(TimeZone::UTC), false);
    first.map(|_| cron).map_err(|_| format!("\"{text}\" is a time that never comes"))
}

fn show_windows(windows: &[ScaleWindow]) -> Json {
    let window = |window: &ScaleWindow| json!({ "start": window.start.as_str(), "end": window.end.as_str(), "min_replicas": window.min_replicas });
    windows.iter().map(window).collect()
}

const WINDOWS: Own<Vec<ScaleWindow>> = Own { read: windows, show: |windows| show_windows(windows) };
const CRON: Form<Cron> = Form { noun: "a cron expression", hint: CRON_HINT, parse: cron };
const CRON_HINT: &str =
    "write minute, hour, day, month and weekday, in UTC: \"0 8 * * mon-fri\" is every working day at 08:00";
const WINDOW_HINT: &str =
    "windows = [{ start = \"0 8 * * mon-fri\", end = \"0 18 * * mon-fri\", min_replicas = 4 }]";
const MOST: i64 = MAX_REPLICAS as i64;
/// They are looked at every second.
const MAX_WINDOWS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check::{check_with_pool, faults_with_pool};

    fn scale(more: &str) -> Scale {
        check_with_pool(more).unwrap().pools.remove(0).scale
    }

    #[test]
    fn without_a_word_a_pool_never_scales_to_zero() {
        let scale = scale("");
        assert_eq!(scale, Scale::default());
        assert_eq!((scale.min_replicas, scale.max_replicas), (1, MAX_REPLICAS));
    }

    #[test]
    fn a_window_raises_the_least_number_before_it_begins() {
        let scale = scale(
            "[pool.scale]\nmin_replicas = 0\nmax_replicas = 8\n\
             windows = [{ start = \"0 8 * * mon-fri\", end = \"0 18 * * mon-fri\", min_replicas = 4 }]",
        );
        let lead = Duration::from_secs(180);
        // 1970-01-01 was a Thursday.
        let at = |day: u64, hour: u64, minute: u64| {
            SystemTime::UNIX_EPOCH + Duration::from_secs(day * 86_400 + hour * 3600 + minute * 60)
        };
        for (day, hour, minute, expected) in [
            (0, 7, 0, 0),
            (0, 7, 58, 4),
            (0, 8, 0, 4),
            (0, 12, 0, 4),
            (0, 17, 59, 4),
            (0, 18, 0, 0),
            (2, 12, 0, 0),
            (4, 9, 0, 4),
        ] {
            assert_eq!(scale.least(at(day, hour, minute), lead), expected, "day {day} {hour}:{minute}");
        }
        // A window that is shorter than the lead is over at its end, not at its start.
        let lead = Duration::from_secs(12 * 3600);
        assert_eq!([19, 21].map(|hour| scale.least(at(0, hour, 0), lead)), [0, 4]);
        assert_eq!(scale.least(at(1, 7, 59), lead), 4);
    }

    #[test]
    fn a_start_within_a_window_does_not_end_it() {
        for (start, end, open, shut) in [
            // 1970-01-01 was a Thursday.
            (
                "0 0 * * mon-fri",
                "0 18 * * fri",
                [0, 17, 24 + 17, 4 * 24 + 10],
                [24 + 18, 2 * 24, 3 * 24 + 23],
            ),
            ("0 2,3 * * *", "0 5 * * *", [2, 3, 4, 26], [1, 5, 6]),
            ("0 8 * * thu", "0 18 * * *", [8, 9, 17, 7 * 24 + 8], [7, 18, 24 + 10]),
        ] {
            let scale = scale(&format!(
                "[pool.scale]\nwindows = [{{ start = \"{start}\", end = \"{end}\", min_replicas = 4 }}]"
            ));
            let least = |hour: u64| {
                scale.least(SystemTime::UNIX_EPOCH + Duration::from_secs(hour * 3600), Duration::ZERO)
            };
            assert_eq!((open.map(least), shut.map(least)), ([4; 4], [1; 3]), "{start} to {end}");
        }
    }

    #[test]
    fn faults_have_their_place() {
        for (text, expected) in [
            ("[pool.scale]\nmin_replicas = -1", "f.toml:5:16: min_replicas is out of range"),
            ("[pool.scale]\nmax_replicas = 0", "f.toml:5:16: max_replicas is out of range"),
            (
                "[pool.scale]\nmin_replicas = 4\nmax_replicas = 2",
                "f.toml:5:16: min_replicas is above max_replicas",
            ),
            ("[pool.scale]\nidle_after = \"0s\"", "f.toml:5:14: "),
            ("[pool.scale.wait]\nmax_wait = \"0s\"", "f.toml:5:12: "),
            ("[pool.scale]\nmin_replica = 1", "f.toml:5:1: unknown key \"min_replica\""),
            (
                "[pool.scale]\nwindows = [{ start = \"0 25 * * *\", end = \"0 8 * * *\", min_replicas = 2 }]",
                "f.toml:5:22: \"0 25 * * *\" is no cron expression",
            ),
            (
                "[pool.scale]\nwindows = [{ start = \"0 0 30 2 *\", end = \"0 8 * * *\", min_replicas = 2 }]",
                "f.toml:5:22: \"0 0 30 2 *\" is a time that never comes",
            ),
            (
                "[pool.scale]\nwindows = [{ start = \"0 8 * *\", end = \"0 8 * * *\", min_replicas = 2 }]",
                "f.toml:5:22: \"0 8 * *\" has 4 fields",
            ),
            (
                "[pool.scale]\nwindows = [{ start = \"0 8 * * *\", end = \"0 9 * * *\" }]",
                "f.toml:5:12: the window has no \"min_replicas\"",
            ),
            (
                "[pool.scale]\nwindows = [{ start = \"0 8 * * *\", end = \"0 8 * * *\", min_replicas = 1 }]",
                "f.toml:5:12: the window ends when it starts",
            ),
            (
                "[pool.scale]\nmax_replicas = 2\nwindows = [{ start = \"0 8 * * *\", end = \"0 9 * * *\", min_replicas = 3 }]",
                "f.toml:6:11: a window asks for more than max_replicas",
            ),
        ] {
            let faults = faults_with_pool(text);
            assert!(faults[0].starts_with(expected), "{faults:?}");
        }
    }
}
