//! `/api/slo`: the verdict over each route, with the numbers behind it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;

use super::query::Admin;
use super::verdict::{self, Outlier, RouteFigures, Status, Verdict};
use super::{AdminState, assets};
use crate::api::slo::{
    BoundMeans, Burn, Goodput, MissCause, NotReady, Quantiles, ReplicaCounts, RouteVerdict, Slo, StandingOut,
};
use crate::clock::Stamp;
use crate::config::{Config, Route};
use crate::fleet::status::{ReplicaState, ReplicaStatus};
use crate::observe::history::{Dimension, Slot};
use crate::observe::latency::{Measure, SLOTS, Step};
use crate::observe::overdue::Late;
use crate::observe::rfc3339;
use crate::observe::slo::Missed;
use crate::stats::Counts;

pub(super) async fn slo(State(admin): Admin) -> Json<Slo> {
    Json(summary(&admin))
}

/// The verdict over all routes, as `/api/slo` and the live events show it.
pub(super) fn summary(admin: &AdminState) -> Slo {
    let (clock, config) = (admin.observer.clock, admin.control.config());
    let (now, fleet) = (clock.now(), admin.control.replicas());
    let metrics = &admin.observer.metrics;
    let (mut overdue, lateness) = (metrics.overdue.by_route(now), metrics.lag.of_minute(now));
    let judged = config.routes.iter().map(|route| {
        let late = overdue.remove(&route.name).unwrap_or_default();
        let figures = RouteFigures { lateness, ..figures(admin, &config, route, &fleet, &late, now) };
        let verdict = verdict::judge(&figures);
        ((route, figures), verdict)
    });
    let mut judged: Vec<_> = judged.collect();
    judged.sort_by(|((_, one), own), ((_, other), its)| verdict::worst_first((one, own), (other, its)));
    let (figures, verdicts): (Vec<_>, Vec<_>) = judged.into_iter().unzip();
    let (status, sentence) = verdict::overall(&verdicts, lateness);
    Slo {
        page: assets::fingerprint(),
        replicas: replicas(&fleet),
        routes: figures
            .iter()
            .zip(&verdicts)
            .map(|((of, figures), verdict)| route(figures, verdict, (admin, &config, of), now))
            .collect(),
        sentence,
        status: status.as_str().to_owned(),
        time: rfc3339::utc(clock.wall(now)),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

fn replicas(fleet: &[ReplicaStatus]) -> ReplicaCounts {
    let not_ready: Vec<_> = fleet.iter().filter(|status| status.state != ReplicaState::Ready).collect();
    let shown = not_ready.iter().take(MAX_NOT_READY).map(|status| NotReady {
        pool: status.pool.to_string(),
        reason: status.reason.to_string(),
        replica: status.replica.to_string(),
        state: status.state.as_str().to_owned(),
    });
    ReplicaCounts { all: fleet.len(), not_ready: shown.collect(), ready: fleet.len() - not_ready.len() }
}

fn figures(
    admin: &AdminState,
    config: &Config,
    route: &Route,
    fleet: &[ReplicaStatus],
    late: &[Late],
    now: Stamp,
) -> RouteFigures {
    let history = admin.observer.history().of(&route.name);
    let mut figures = RouteFigures { route: Arc::clone(&route.name), ..RouteFigures::default() };
    let newest = Step::TenSeconds.slot(now);
    for (number, slot) in history.slots(Step::TenSeconds, SLOTS - 1, now) {
        let age = newest - number;
        if age > IN_MINUTE {
            figures.before.0.merge(&slot);
            figures.before.1 += Step::TenSeconds.seconds() as f64;
        }
        for (window, oldest) in [
            (&mut figures.minute.slot, IN_MINUTE),
            (&mut figures.five.slot, IN_FIVE),
            (&mut figures.recent, RECENT),
        ] {
            if age <= oldest {
                window.merge(&slot);
            }
        }
    }
    figures.missing_for = late.iter().map(|late| now.since(late.since)).max();
    // What has missed a bound and has not ended is a miss now, also where its first token came too late.
    for late in late.iter().filter(|late| late.waits_for.is_some()) {
        let waited = now.since(late.since);
        figures.overdue = (figures.overdue.0 + 1, figures.overdue.1.max(waited));
        if late.by < STUCK_AFTER {
            continue;
        }
        figures.stuck += 1;
        if let Some(asked) = &late.asked {
            let longest = figures.stuck_at.entry(Arc::clone(&asked.replica)).or_default();
            *longest = (*longest).max(waited);
        }
    }
    for late in late {
        for window in [&mut figures.minute, &mut figures.five] {
            window.slot.add_late(late);
        }
    }
    for (window, slots) in [(&mut figures.minute, IN_MINUTE), (&mut figures.five, IN_FIVE)] {
        let counts = |measure| {
            let windows = &admin.observer.windows;
            windows.of(&route.name, None, measure, Step::TenSeconds, (newest - slots, newest))
        };
        (window.ttft, window.itl) = (counts(Measure::Ttft), counts(Measure::Itl));
    }
    let (calm, seconds) = history.calm();
    if seconds >= MIN_CALM {
        figures.before = (calm, seconds);
    }
    figures.uptime = now.since(Stamp::from_nanos(0));
    for (_, slot) in history.slots(Step::Minute, SLOTS - 1, now) {
        figures.hour.merge(&slot);
    }
    let pools: Vec<_> = config.pools_of(route).collect();
    let is_its = |name: &Arc<str>| pools.iter().any(|pool| pool.name == *name);
    figures.replicas = fleet.iter().filter(|status| is_its(&status.pool)).cloned().collect();
    if figures.replicas.is_empty() && pools.iter().any(|pool| pool.scale.min_replicas > 0) {
        let sources = admin.control.sources().into_iter().filter(|source| is_its(&source.pool));
        let failing = sources.filter_map(|source| Some(format!("{}: {}", source.source, source.failing?.1)));
        figures.absent = Some(failing.collect::<Vec<_>>().join("; "));
    }
    figures
}

fn route(
    figures: &RouteFigures,
    verdict: &Verdict,
    (admin, config, route): (&AdminState, &Config, &Route),
    now: Stamp,
) -> RouteVerdict {
    let (of_window, _) = verdict::window(figures);
    let slot = &of_window.slot;
    let seconds = Step::TenSeconds.lasted(verdict.window, now);
    let newest = Step::TenSeconds.slot(now);
    let oldest = newest - verdict.window.cast_signed() / Step::TenSeconds.seconds().cast_signed();
    let windows = &admin.observer.windows;
    let tpot = windows.of(&route.name, None, Measure::Tpot, Step::TenSeconds, (oldest, newest));
    let tpot_bound = config.slo.get(&route.slo).and_then(|slo| slo.tpot);
    let is_bad = verdict.status == Status::Bad;
    RouteVerdict {
        bound: BoundMeans { tpot: tpot_bound.map(|bound| bound.as_secs_f64()), ttft: slot.bound.value() },
        burn: Burn {
            hour: verdict::burn(&figures.hour),
            minute: verdict::burn(&figures.minute.slot),
            five_minutes: verdict::burn(&figures.five.slot),
        },
        cause: cause(verdict, slot),
        goodput: Goodput {
            good: slot.good,
            judged: slot.judged(),
            missed: slot.all_missed(),
            per_second: f64::from(slot.good) / seconds,
            requests: slot.requests,
            requests_per_second: f64::from(slot.requests) / seconds,
            share: verdict::missed_share(slot).map(|share| 1.0 - share),
        },
        itl: quantiles(&of_window.itl),
        missed: named(Missed::LABELS.iter().copied().zip(slot.missed)),
        missed_in: verdict::missed_in(slot, verdict.cause.as_ref()),
        route: figures.route.to_string(),
        sentence: verdict.sentence.clone(),
        since: is_bad.then(|| bad_for(admin, &route.name, figures.missing_for, now)).flatten(),
        standing_out: standing_out(verdict).map(outlier).collect(),
        status: verdict.status.as_str().to_owned(),
        tpot: quantiles(&tpot),
        ttft: quantiles(&of_window.ttft),
        window: verdict.window,
    }
}

/// Seconds since the first miss after the last pause of a minute.
fn bad_for(admin: &AdminState, route: &Arc<str>, missing_for: Option<Duration>, now: Stamp) -> Option<f64> {
    let history = admin.observer.history().of(route);
    let missed = |step: Step| -> Vec<i64> {
        let slots = history.slots(step, SLOTS - 1, now).into_iter().rev();
        slots.filter(|(_, slot)| slot.all_missed() > 0).map(|(number, _)| number).collect()
    };
    let first = first_missed(&missed(Step::TenSeconds), &missed(Step::Minute), now);
    let counted = first.map(|at| now.since(at).as_secs_f64());
    counted.into_iter().chain(missing_for.map(|since| since.as_secs_f64())).reduce(f64::max)
}

/// When that was, by the slots that have misses, newest first. A minute that the ten seconds reach into would put it at its own start.
fn first_missed(ten_seconds: &[i64], minutes: &[i64], now: Stamp) -> Option<Stamp> {
    let kept_from = 10 * (Step::TenSeconds.slot(now) - (SLOTS - 1));
    let minutes = minutes.iter().filter(|number| (*number + 1) * 60 <= kept_from);
    let ten_seconds = ten_seconds.iter().map(|number| (Step::TenSeconds, *number));
    let mut oldest: Option<Stamp> = None;
    for (step, number) in ten_seconds.chain(minutes.map(|number| (Step::Minute, *number))) {
        let last = step.slot(oldest.unwrap_or(now));
        if (last - number) * step.seconds().cast_signed() > PAUSE {
            break;
        }
        let start = Stamp::from_nanos(number.cast_unsigned() * step.seconds() * 1_000_000_000);
        oldest = Some(oldest.map_or(start, |known| known.min(start)));
    }
    oldest
}

/// Of what occurred.
fn named<'a>(counts: impl Iterator<Item = (&'a str, u32)>) -> BTreeMap<String, u32> {
    counts.filter(|(_, count)| *count > 0).map(|(name, count)| (name.to_owned(), count)).collect()
}

fn cause(verdict: &Verdict, slot: &Slot) -> Option<MissCause> {
    let cause = verdict.cause.as_ref()?;
    let replicas = standing_out(verdict).filter(|outlier| outlier.dimension == Dimension::Replica);
    Some(MissCause {
        by_scrape: cause.is_by_scrape,
        misses: cause.misses,
        reason: cause.reason.to_owned(),
        replicas: replicas.map(outlier).collect(),
        share: f64::from(cause.misses) / f64::from(slot.all_missed().max(1)),
        stage: cause.place().to_owned(),
    })
}

fn standing_out(verdict: &Verdict) -> impl Iterator<Item = &Outlier> {
    verdict.outliers.iter().filter(|outlier| outlier.stands_out)
}

fn outlier(outlier: &Outlier) -> StandingOut {
    StandingOut {
        dimension: outlier.dimension.as_str().to_owned(),
        evidence: outlier.evidence.clone(),
        name: outlier.name.to_string(),
    }
}

fn quantiles(values: &Counts) -> Quantiles {
    Quantiles {
        count: values.count(),
        p50: values.quantile(0.5),
        p95: values.quantile(0.95),
        p99: values.quantile(0.99),
    }
}

/// Calm seconds that show what is usual; else the last minutes do.
const MIN_CALM: f64 = 30.0;
/// Past its bound for this long, a request that still waits is no jitter.
const STUCK_AFTER: Duration = Duration::from_secs(2);
/// Slots of 10 s before the current one.
const RECENT: i64 = 1;
const IN_MINUTE: i64 = 6;
const IN_FIVE: i64 = 30;
const MAX_NOT_READY: usize = 50;
/// Seconds without a miss that end an incident.
const PAUSE: i64 = 60;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::seconds as at;

    #[test]
    fn misses_begin_where_the_first_one_was_and_an_hour_back_to_the_minute() {
        assert_eq!(first_missed(&[6, 5], &[1, 0], at(61)), Some(at(50)));
        assert_eq!(first_missed(&[6], &[1], at(125)), Some(at(60)), "a pause of less than a minute");
        assert_eq!(first_missed(&[5], &[0], at(125)), None, "and of more");
        let (newest, ten_minutes) = (Step::TenSeconds.slot(at(3599)), Vec::from_iter(0..SLOTS));
        let all: Vec<i64> = ten_minutes.iter().map(|ago| newest - ago).collect();
        let minutes: Vec<i64> = (20..60).rev().collect();
        assert_eq!(first_missed(&all, &minutes, at(3599)), Some(at(20 * 60)));
        assert_eq!(first_missed(&[], &[], at(3599)), None);
    }
}
