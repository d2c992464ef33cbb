//! What is wrong, in one sentence: route, stage, and who stands out; pure.
//!
//! A route is bad when more than 1 % of its requests missed their SLO over five minutes, at least five of them, and the
//! last minute still does: the thresholds of the alert for TTFT p99. Where nothing can be measured it is unknown. The cause
//! is the stage that most misses are blamed on; [`peers`] compares those who took part, [`sentence`] words it.

mod sentence;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::diagnosis::engines::Ways;
pub(super) use crate::diagnosis::peers::{Cause, Outlier, RouteFigures, WindowFigures};
use crate::diagnosis::table::{EMPTIER, EMPTY, MISSES as MIN_MISSES};
use crate::diagnosis::{engines, peers};
use crate::fleet::status::{ReplicaState, ReplicaStatus};
use crate::labels::labels;
use crate::observe::history::Slot;
use crate::observe::lag::Lateness;
use crate::observe::slo::Missed;
use crate::stage::Stage;

labels! {
    /// Whether a route keeps its SLO.
    pub(super) enum Status {
        Ok = "ok",
        Bad = "bad",
        /// Too few requests.
        Unknown = "unknown",
    }
}

#[derive(Clone, Debug)]
pub(super) struct Verdict {
    pub(super) route: Arc<str>,
    pub(super) status: Status,
    pub(super) sentence: String,
    /// Length of the window that the figures are from, in seconds.
    pub(super) window: u64,
    pub(super) cause: Option<Cause>,
    pub(super) outliers: Vec<Outlier>,
    /// What no SLO counts and yet is not as it was.
    pub(super) hint: Option<String>,
}

pub(super) fn judge(figures: &RouteFigures) -> Verdict {
    let status = status(figures);
    let (of_window, window) = window(figures);
    let slot = &of_window.slot;
    let cause = cause(slot, figures);
    // While the SLO is kept, differences in time are noise: only who fails, or is out, is named.
    // A gateway without CPU sees everybody late: until it has some, it names only who is later than that explains.
    let is_starved = figures.lateness.is_starved();
    let to_explain = cause.as_ref().filter(|_| status != Status::Ok && !is_starved);
    let mut outliers = peers::find(figures, slot, to_explain);
    let blames_itself = status == Status::Bad && is_starved;
    let beyond = cause.as_ref().filter(|_| blames_itself).and_then(|cause| peers::beyond_lag(figures, cause));
    let named = if blames_itself { beyond.as_slice() } else { &outliers };
    let sentence = sentence::of_route(figures, status, of_window, cause.as_ref(), named);
    outliers.retain(|known| beyond.as_ref().is_none_or(|beyond| beyond.name != known.name));
    outliers.splice(0..0, beyond);
    let hint = sentence::of_rejected(figures);
    let sentence = hint.iter().fold(sentence, |sentence, hint| format!("{sentence}; {hint}"));
    Verdict { route: Arc::clone(&figures.route), status, sentence, window, cause, outliers, hint }
}

/// The last minute, if enough went wrong in it, or if it has enough requests while nothing did; else the last five.
pub(super) fn window(figures: &RouteFigures) -> (&WindowFigures, u64) {
    let (minute, five) = (&figures.minute.slot, &figures.five.slot);
    let is_enough =
        minute.all_missed() >= MIN_MISSES || (five.all_missed() == 0 && minute.judged() >= MIN_JUDGED);
    if is_enough { (&figures.minute, 60) } else { (&figures.five, 300) }
}

/// Share of misses among the judged; `None` without any.
pub(super) fn missed_share(slot: &Slot) -> Option<f64> {
    (slot.judged() > 0).then(|| f64::from(slot.all_missed()) / f64::from(slot.judged()))
}

/// Misses as a multiple of those that the SLO allows.
pub(super) fn burn(slot: &Slot) -> Option<f64> {
    missed_share(slot).map(|share| share / ALLOWED_SHARE)
}

/// Whether no replica is there for its requests; one that is scaled to zero lacks none.
fn is_down(figures: &RouteFigures) -> bool {
    let is_ready = |status: &ReplicaStatus| status.state == ReplicaState::Ready;
    figures.absent.is_some() || !figures.replicas.is_empty() && !figures.replicas.iter().any(is_ready)
}

/// Worst first: without a replica, then by burn, then by traffic; last those without any.
pub(super) fn worst_first(one: (&RouteFigures, &Verdict), other: (&RouteFigures, &Verdict)) -> Ordering {
    let requests = |figures: &RouteFigures| window(figures).0.slot.requests;
    let rank = |(figures, verdict): (&RouteFigures, &Verdict)| match verdict.status {
        Status::Bad => 0,
        Status::Unknown if requests(figures) == 0 => 3,
        Status::Unknown => 1,
        Status::Ok => 2,
    };
    let urgency = |(figures, verdict): (&RouteFigures, &Verdict)| match verdict.status {
        Status::Bad if is_down(figures) => f64::INFINITY,
        Status::Bad => burn(&figures.five.slot).unwrap_or_default(),
        Status::Unknown | Status::Ok => 0.0,
    };
    let by_urgency = rank(one).cmp(&rank(other)).then(urgency(other).total_cmp(&urgency(one)));
    let by_traffic = requests(other.0).cmp(&requests(one.0));
    by_urgency.then(by_traffic).then_with(|| one.1.route.cmp(&other.1.route))
}

fn status(figures: &RouteFigures) -> Status {
    if is_down(figures) {
        return Status::Bad;
    }
    let (minute, five) = (&figures.minute.slot, &figures.five.slot);
    let is_over = |slot: &Slot| missed_share(slot).is_some_and(|share| share > ALLOWED_SHARE);
    let goes_on = minute.judged() < MIN_JUDGED || is_over(minute);
    // Few in number, but those who are stuck now are no accident of the last five minutes, nor is half of all.
    let is_half = missed_share(five).is_some_and(|share| share >= 0.5) && five.judged() >= MIN_JUDGED;
    let are_enough = five.all_missed() >= MIN_MISSES || figures.stuck >= MIN_STUCK || is_half;
    if are_enough && is_over(five) && goes_on || emptier(figures).is_some() {
        Status::Bad
    } else if five.judged() < MIN_JUDGED {
        Status::Unknown
    } else {
        Status::Ok
    }
}

/// Shares of answers without text, now and before, where all of a route's answers may be so and none stands out.
fn emptier(figures: &RouteFigures) -> Option<(f64, f64)> {
    let (minute, before) = (&figures.minute.slot, &figures.before.0);
    let (now, usual) = (minute.empty_share(), before.empty_share());
    let is_it = minute.empty >= MIN_MISSES && before.requests >= MIN_JUDGED;
    (is_it && now >= EMPTY && now >= EMPTIER * usual).then_some((now, usual))
}

/// Whether most requests of the last minute are errors of their clients, and it was not so before: a name, a key or a template that
/// changed looks like that, and no SLO counts it.
fn are_rejected(figures: &RouteFigures) -> bool {
    let (minute, before) = (&figures.minute.slot, &figures.before.0);
    let (now, usual) = (minute.rejected_share(), before.rejected_share());
    minute.rejected >= MIN_MISSES && before.requests >= MIN_JUDGED && now > 0.5 && now >= EMPTIER * usual
}

fn cause(slot: &Slot, figures: &RouteFigures) -> Option<Cause> {
    let replicas = &figures.replicas;
    let (reason, _) = largest(Missed::ALL.iter().copied().zip(slot.missed))?;
    let missed_in = || slot.missed_in.iter().map(|(stage, missed)| (stage, *missed));
    // Of two causes at once the sentence has the larger, and not what is missed by one with the stage of the other.
    let of_reason = largest(missed_in().filter(|(stage, _)| reason.may_be_in(*stage)));
    let ((stage, misses), reason) = (of_reason.or_else(|| largest(missed_in()))?, reason.as_str());
    // Until a replica's speed is learned, a wait for its first token counts as prefill.
    let is_by_scrape =
        stage == Stage::Prefill && engines::waiting(replicas) >= QUEUED * replicas.len() as f64;
    let ways = if reason == "ttft" { engines::ways(slot, stage, replicas) } else { Ways::default() };
    let (stage, misses) = match is_by_scrape {
        true => (Stage::EngineQueue, misses + slot.missed_in[Stage::EngineQueue]),
        false => (stage, misses),
    };
    Some(Cause { stage, misses, reason, is_by_scrape, ways })
}

/// Misses by stage, those of the cause where it places them.
pub(super) fn missed_in(slot: &Slot, cause: Option<&Cause>) -> BTreeMap<String, u32> {
    let is_of = |cause: &&Cause, stage| stage == cause.stage || cause.is_by_scrape && stage == Stage::Prefill;
    let mut all = BTreeMap::new();
    for (stage, missed) in slot.missed_in.iter().filter(|(_, missed)| **missed > 0) {
        let place = cause.filter(|cause| is_of(cause, stage)).map_or(stage.as_str(), Cause::place);
        *all.entry(place.to_owned()).or_default() += missed;
    }
    all
}

fn largest<T>(counts: impl DoubleEndedIterator<Item = (T, u32)>) -> Option<(T, u32)> {
    // The first of equals.
    counts.rev().max_by_key(|(_, count)| *count).filter(|(_, count)| *count > 0)
}

/// One sentence over all routes, the worst first, of a gateway that runs as late as this.
pub(super) fn overall(verdicts: &[Verdict], lateness: Lateness) -> (Status, String) {
    let of = |status| verdicts.iter().filter(move |verdict| verdict.status == status);
    let bad: Vec<_> = of(Status::Bad).collect();
    match &bad[..] {
        [] => {}
        [one] => return (Status::Bad, one.sentence.clone()),
        [first, rest @ ..] => {
            let others: Vec<&str> = rest.iter().map(|verdict| &*verdict.route).collect();
            return (Status::Bad, format!("{}. Also bad: {}", first.sentence, others.join(", ")));
        }
    }
    let starved = lateness.is_starved().then(|| sentence::of_lateness(lateness));
    let outliers = verdicts.iter().filter(|one| !one.outliers.is_empty() || one.hint.is_some());
    let hints: Vec<String> =
        starved.into_iter().chain(outliers.map(|verdict| verdict.sentence.clone())).collect();
    let ok = of(Status::Ok).count();
    let status = if ok > 0 { Status::Ok } else { Status::Unknown };
    let text = match (ok, verdicts.len()) {
        (_, 0) => "no route is configured".to_owned(),
        (0, _) => "too few requests to judge".to_owned(),
        (1, 1) => "the route keeps its SLO".to_owned(),
        (ok, all) if ok == all => format!("all {all} routes keep their SLO"),
        (ok, all) => {
            format!("{ok} of {all} routes keep their SLO, the others have too few requests to judge")
        }
    };
    if hints.is_empty() { (status, text) } else { (status, format!("{text}. {}", hints.join(". "))) }
}

/// A p99 bound allows this share of misses.
const ALLOWED_SHARE: f64 = 0.01;
/// Requests that are stuck at the same time.
const MIN_STUCK: usize = 2;
const MIN_JUDGED: u32 = 5;
/// Waiting requests per replica that make a wait a queue's.
const QUEUED: f64 = 2.0;

#[cfg(test)]
mod tests;
