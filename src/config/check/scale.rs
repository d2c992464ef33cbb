//! `[pool.scale]`: bounds on the number of replicas that the gateway asks for.

use std::str::FromStr;

use croner::Cron;

use crate::config::{ColdWait, MAX_REPLICAS, Scale, ScaleWindow};

use super::section::Section;
use super::values::{DURATION, Form, POSITIVE_DURATION, SIZE};

/// Reads `[pool.scale]`.
pub(super) fn scale(pool: &Section<'_>) -> Scale {
    let section = pool.section("scale", "[pool.scale]");
    let default = Scale::default();
    let most = i64::try_from(MAX_REPLICAS).unwrap_or(i64::MAX);
    let scale = Scale {
        min_replicas: section.integer("min_replicas", 0..=most).unwrap_or(default.min_replicas),
        max_replicas: section.integer("max_replicas", 1..=most).unwrap_or(default.max_replicas),
        idle_after: section.parse("idle_after", &POSITIVE_DURATION).unwrap_or(default.idle_after),
        scale_down_after: section
            .parse("scale_down_after", &POSITIVE_DURATION)
            .unwrap_or(default.scale_down_after),
        cold_start: section.parse("cold_start", &POSITIVE_DURATION).unwrap_or(default.cold_start),
        windows: windows(&section),
        wait: wait(&section),
    };
    if scale.min_replicas > scale.max_replicas
        && let Some(item) = section.get("min_replicas").or_else(|| section.get("max_replicas"))
    {
        item.fault("min_replicas is above max_replicas", "write min_replicas = 1, max_replicas = 8");
    }
    if scale.windows.iter().any(|window| window.min_replicas > scale.max_replicas)
        && let Some(item) = section.get("windows")
    {
        item.fault(
            "a window asks for more than max_replicas",
            "raise max_replicas, or lower the window's number",
        );
    }
    scale
}

fn wait(scale: &Section<'_>) -> ColdWait {
    let section = scale.section("wait", "[pool.scale.wait]");
    let default = ColdWait::default();
    let heartbeat = section.parse("heartbeat", &DURATION);
    ColdWait {
        max_requests: section.integer("max_requests", 0..=1_000_000).unwrap_or(default.max_requests),
        max_bytes: section.parse("max_bytes", &SIZE).unwrap_or(default.max_bytes),
        max_wait: section.parse("max_wait", &POSITIVE_DURATION).unwrap_or(default.max_wait),
        heartbeat: heartbeat.map_or(default.heartbeat, |every| (!every.is_zero()).then_some(every)),
    }
}

fn windows(section: &Section<'_>) -> Vec<ScaleWindow> {
    let items = section.list("windows");
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
        let least = inner.integer("min_replicas", 1..=i64::try_from(MAX_REPLICAS).unwrap_or(i64::MAX));
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
    windows
}

fn cron(text: &str) -> Result<Cron, String> {
    let fields = text.split_whitespace().count();
    if fields != 5 && !text.starts_with('@') {
        return Err(format!("\"{text}\" has {fields} fields, and a cron expression five"));
    }
    Cron::from_str(text).map_err(|error| format!("\"{text}\" is no cron expression: {error}"))
}

const CRON: Form<Cron> = Form { noun: "a cron expression", hint: CRON_HINT, parse: cron };
const CRON_HINT: &str =
    "write minute, hour, day, month and weekday, in UTC: \"0 8 * * mon-fri\" is every working day at 08:00";
const WINDOW_HINT: &str =
    "windows = [{ start = \"0 8 * * mon-fri\", end = \"0 18 * * mon-fri\", min_replicas = 4 }]";
/// They are looked at every second.
const MAX_WINDOWS: usize = 32;

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::config::check::check_str;

    fn check(more: &str) -> Result<Scale, String> {
        let text = format!("[[pool]]\nname = \"p\"\nreplicas = [\"http://127.0.0.1:1\"]\n{more}\n");
        let first = |faults: crate::config::diagnostics::Diagnostics| {
            faults.iter().next().map(ToString::to_string).unwrap_or_default()
        };
        let mut config = check_str("f.toml", &text, &|_| None).map_err(first)?;
        Ok(config.pools.remove(0).scale)
    }

    #[test]
    fn without_a_word_a_pool_never_scales_to_zero() {
        let scale = check("").unwrap();
        assert_eq!(scale, Scale::default());
        assert_eq!((scale.min_replicas, scale.max_replicas), (1, MAX_REPLICAS));
    }

    #[test]
    fn a_window_raises_the_least_number_before_it_begins() {
        let scale = check(
            "[pool.scale]\nmin_replicas = 0\nmax_replicas = 8\n\
             windows = [{ start = \"0 8 * * mon-fri\", end = \"0 18 * * mon-fri\", min_replicas = 4 }]",
        )
        .unwrap();
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
            let told = check(text).unwrap_err();
            assert!(told.starts_with(expected), "{told}");
        }
    }
}
