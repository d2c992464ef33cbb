//! The verdict in words: figures first, then stage, then who stands out.

use std::sync::Arc;

use super::{Cause, MIN_JUDGED, Outlier, RouteFigures, Status, WindowFigures, are_rejected, emptier};
use crate::diagnosis::engines;
use crate::diagnosis::figures::seconds;
use crate::diagnosis::peers;
use crate::fleet::status::{ReplicaState, ReplicaStatus};
use crate::observe::history::{Dimension, Slot};
use crate::observe::lag::Lateness;
use crate::stage::Stage;

/// What is to be said of a route.
pub(super) fn of_route(
    figures: &RouteFigures,
    status: Status,
    window: &WindowFigures,
    cause: Option<&Cause>,
    outliers: &[Outlier],
) -> String {
    let (route, slot) = (&figures.route, &window.slot);
    let is_ready = figures.replicas.iter().any(|status| status.state == ReplicaState::Ready);
    let mut parts = Vec::new();
    match (status, cause) {
        (Status::Bad, _) if !is_ready => parts.push(match &figures.absent {
            None => "no replica is ready".to_owned(),
            Some(why) if why.is_empty() => "no replica is known".to_owned(),
            Some(why) => format!("no replica is known: {why}"),
        }),
        (Status::Bad, Some(cause)) => {
            parts.push(headline(window, cause));
            parts.push(evident(slot, cause).unwrap_or_else(|| blame(slot, cause)));
        }
        (Status::Bad, None) | (Status::Unknown, None) => {
            parts.push(nothing(figures).unwrap_or_else(|| few(figures)));
        }
        (Status::Unknown, Some(_)) => {
            parts.push(format!(
                "{} of {} requests missed their SLO, too few to judge",
                slot.all_missed(),
                slot.judged()
            ));
        }
        (Status::Ok, _) => parts.push(good(figures)),
    }
    if let Some(cause) = cause.filter(|_| status == Status::Bad) {
        let (waiting, running) = (engines::waiting(&figures.replicas), engines::running(&figures.replicas));
        if cause.stage == Stage::EngineQueue && waiting >= 1.0 {
            parts.push(format!("{waiting:.0} requests wait in the engines, {running:.0} run"));
        }
        // What waits in the gateway waits for the engines.
        let at_engine = [Stage::Admit, Stage::EngineQueue, Stage::Prefill, Stage::Decode];
        if at_engine.contains(&cause.stage) && cause.ways.far.is_empty() {
            parts.extend(engines::full_caches(&figures.replicas));
        }
        if cause.stage == Stage::Admit && !outliers.iter().any(|outlier| outlier.dimension.is_engine()) {
            parts.extend(engines::slower(slot, &figures.before.0));
        }
        if [Stage::KvTransfer, Stage::Prefill].contains(&cause.stage) {
            parts.extend(engines::lost_kv(&figures.replicas));
        }
    }
    match figures.overdue {
        (0, _) => {}
        (1, oldest) => {
            parts.push(format!("1 request is late and still waits, for {}", seconds(oldest.as_secs_f64())));
        }
        (late, oldest) => parts.push(format!(
            "{late} requests are late and still wait, the oldest for {}",
            seconds(oldest.as_secs_f64())
        )),
    }
    if status == Status::Bad && figures.lateness.is_starved() {
        parts.insert(0, of_lateness(figures.lateness));
        if outliers.is_empty() {
            return format!("{route}: {}", parts.join("; "));
        }
    }
    // What still waits may be at another.
    let all_at =
        cause.filter(|_| figures.overdue.0 == 0).and_then(|cause| peers::with_all_misses(slot, cause));
    let is_of_replicas = status == Status::Bad && !cause.is_some_and(found_none_ready);
    parts.extend(who(figures, is_of_replicas, outliers, (slot, all_at)));
    format!("{route}: {}", parts.join("; "))
}

/// What a gateway without CPU makes everybody wait for.
pub(super) fn of_lateness(Lateness { worst, late }: Lateness) -> String {
    let (share, worst) = (late * 100.0, seconds(worst.as_secs_f64()));
    format!("the gateway itself waits for CPU {share:.0} % of the time, up to {worst}")
}

fn headline(window: &WindowFigures, cause: &Cause) -> String {
    let slot = &window.slot;
    let (missed, judged) = (slot.all_missed(), slot.judged());
    let of = |what: &str| format!("{missed} of {judged} requests {what}");
    match cause.reason {
        "ttft" => match (window.ttft.quantile(0.99), slot.bound.value()) {
            // Those that wait have no TTFT yet, and bounds differ by tenant and prompt: p99 may be within their mean.
            (Some(p99), Some(bound)) if p99 > bound => {
                format!("TTFT p99 {} against {}", seconds(p99), seconds(bound))
            }
            _ => of("had no first token in time"),
        },
        "itl" | "tpot" => match window.itl.quantile(0.99) {
            Some(p99) => {
                format!("{}, ITL p99 {}", of("were slower per token than their SLO allows"), seconds(p99))
            }
            None => of("were slower per token than their SLO allows"),
        },
        "refused" => of("were refused or missed their SLO"),
        "error" => of("failed or missed their SLO"),
        "empty" => of("got no text or missed their SLO"),
        _ => of("took longer than their SLO allows"),
    }
}

fn blame(slot: &Slot, cause: &Cause) -> String {
    let by = if cause.is_by_scrape { " (by the engines' own count)" } else { "" };
    let which = if cause.ways.far.is_empty() { "" } else { " (network, or the engines' own servers)" };
    format!("{} of {} misses in {}{by}{which}", cause.misses, slot.all_missed(), cause.place())
}

/// What means more than a stage: an engine's own words of what failed, and nothing of answers that are empty.
fn evident(slot: &Slot, cause: &Cause) -> Option<String> {
    match cause.reason {
        "refused" if found_none_ready(cause) => {
            Some(format!("{} of {} misses found no replica ready", cause.misses, slot.all_missed()))
        }
        "empty" => Some("the engines end those answers at once".to_owned()),
        "error" => {
            let replicas = slot.parts_of(Dimension::Replica);
            let failed = replicas.max_by_key(|(name, part)| (part.failures, *name));
            let words = failed.and_then(|(_, part)| part.engine_error.as_ref());
            words.map(|words| format!("the engine reports \u{201c}{words}\u{201d}"))
        }
        _ => None,
    }
}

fn nothing(figures: &RouteFigures) -> Option<String> {
    let (now, before) = emptier(figures)?;
    let minute = &figures.minute.slot;
    let (now, before) = (now * 100.0, before * 100.0);
    Some(format!(
        "{} of {} answers have no text ({now:.0} %, {before:.0} % before)",
        minute.empty, minute.requests
    ))
}

/// Where most requests are turned away for reasons of their own, unlike before.
pub(super) fn of_rejected(figures: &RouteFigures) -> Option<String> {
    let (minute, before) = (&figures.minute.slot, figures.before.0.rejected_share() * 100.0);
    let (rejected, all) = (minute.rejected, minute.requests);
    are_rejected(figures)
        .then(|| format!("{rejected} of {all} requests ended with a 4xx ({before:.0} % before)"))
}

fn few(figures: &RouteFigures) -> String {
    match figures.five.slot.judged() {
        0 => "no requests in the last five minutes".to_owned(),
        judged if judged < MIN_JUDGED => {
            format!("{judged} requests in the last five minutes, too few to judge")
        }
        judged => format!("{judged} requests in the last five minutes"),
    }
}

fn good(figures: &RouteFigures) -> String {
    let (five, minute) = (&figures.five.slot, &figures.minute.slot);
    let missed = five.all_missed();
    let met = format!("{} of {} requests within their SLO", five.good, five.judged());
    if missed > 0 && minute.all_missed() == 0 { format!("{met}, no miss in the last minute") } else { met }
}

/// Refused before any replica had them.
fn found_none_ready(cause: &Cause) -> bool {
    cause.reason == "refused" && cause.stage == Stage::Route
}

/// Names each outlier, or the fact that there is none where the replicas have a part in it.
fn who(
    figures: &RouteFigures,
    is_of_replicas: bool,
    outliers: &[Outlier],
    (slot, all_at): (&Slot, Option<&Arc<str>>),
) -> Vec<String> {
    let named = outliers.iter().map(|outlier| match outlier.dimension {
        Dimension::Class => format!("{} {}", outlier.name, outlier.evidence),
        _ if !outlier.stands_out => {
            format!("{} {} {}", outlier.dimension.as_str(), outlier.name, outlier.evidence)
        }
        Dimension::Replica => format!("replica {} stands out: {}", outlier.name, outlier.evidence),
        Dimension::Revision => format!("revision {} stands out: {}", outlier.name, outlier.evidence),
        Dimension::Tenant => format!("tenant {} {}", outlier.name, outlier.evidence),
    });
    let mut named: Vec<String> = named.collect();
    let has_engine = outliers.iter().any(|outlier| outlier.dimension.is_engine());
    if is_of_replicas && !has_engine {
        let alike = match (&figures.replicas[..], all_at) {
            ([], _) => return named,
            ([one], _) => format!("its only replica is {}", one.replica),
            // It does not differ clearly, and yet none shares it.
            (_, Some(replica)) => format!("all at replica {replica}"),
            (all, None) => {
                let took_part = |one: &&ReplicaStatus| slot.of(Dimension::Replica, &one.replica).is_some();
                let asked: Vec<_> = all.iter().filter(took_part).collect();
                match asked[..] {
                    [one] => format!("only replica {} had requests", one.replica),
                    // What was refused by the gateway is no replica's.
                    [_, _, ..] if asked.len() < all.len() => {
                        format!("shared by the {} of {} replicas that had requests", asked.len(), all.len())
                    }
                    _ => format!("shared by all {} replicas", all.len()),
                }
            }
        };
        named.insert(0, alike);
    }
    named
}
