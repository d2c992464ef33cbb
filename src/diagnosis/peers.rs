//! Who differs from the others: a replica, a revision, or whose load has grown ([`super::growth`]); pure.
//!
//! A revision is compared with the others of the same route or with those that it replaced, the times of a replica with
//! those of its pool and revision ([`super::others`]), a tenant and a class with their own share before the last minute.
//! Whoever does not differ is not named: then the cause is shared.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::engines::{self, Ways};
use super::figures::{Count, seconds, share};
use super::growth::grown;
use super::others::{Others, others_of, peers_of};
use super::table::{
    DEMOTED, DIFFERS, DIFFERS_FROM_USUAL, EMPTIER, EMPTY, FAILING, FAILURES_OF_ONE, FAR_SLOWER, FEW,
    MIN_DIFFERENCE, MISSES, NOISE, QUEUE, TOKENS,
};
use crate::fleet::status::{ReplicaState, ReplicaStatus};
use crate::labels::OTHER;
use crate::observe::history::{Dimension, Part, Slot};
use crate::observe::lag::Lateness;
use crate::stage::Stage;
use crate::stats::{Counts, Mean, upper_quantile};

#[derive(Default)]
pub(crate) struct RouteFigures {
    /// Label `route`.
    pub(crate) route: Arc<str>,
    pub(crate) minute: WindowFigures,
    /// Last five minutes.
    pub(crate) five: WindowFigures,
    pub(crate) hour: Slot,
    /// The last calm minutes, or else the nine before the last one, and how many seconds they are.
    pub(crate) before: (Slot, f64),
    /// How long the gateway has run.
    pub(crate) uptime: Duration,
    /// Replicas of its pools as they are now.
    pub(crate) replicas: Vec<ReplicaStatus>,
    /// It is to have replicas and none is known; why, where a source of them fails.
    pub(crate) absent: Option<String>,
    /// Requests that wait for what is past its bound, and how long the oldest has waited.
    pub(crate) overdue: (usize, Duration),
    /// How long ago the oldest request came that has missed a bound and has not ended, whether it waits for that or not.
    pub(crate) missing_for: Option<Duration>,
    /// Those that wait and whose bound has passed for seconds.
    pub(crate) stuck: usize,
    /// How long the oldest of those has waited, by the replica that it was sent to.
    pub(crate) stuck_at: HashMap<Arc<str>, Duration>,
    /// What came in the last seconds.
    pub(crate) recent: Slot,
    /// How late the gateway itself ran in the last minute.
    pub(crate) lateness: Lateness,
}

#[derive(Clone, Default)]
pub(crate) struct WindowFigures {
    pub(crate) slot: Slot,
    pub(crate) ttft: Counts,
    pub(crate) itl: Counts,
}

/// Where the misses come from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cause {
    /// The stage that most misses are blamed on.
    pub(crate) stage: Stage,
    /// Misses blamed on it.
    pub(crate) misses: u32,
    /// The most frequent reason of a miss.
    pub(crate) reason: &'static str,
    /// Blamed by the engines' queues as scraped: the gateway has not learned to split the wait yet.
    pub(crate) is_by_scrape: bool,
    /// Where replicas are to blame by the way to their engines alone it is that, whatever the stage.
    pub(crate) ways: Ways,
}

impl Cause {
    /// The stage, or that between gateway and engine.
    pub(crate) fn place(&self) -> &'static str {
        if self.ways.far.is_empty() { self.stage } else { Stage::EngineOther }.as_str()
    }
}

/// An outlier among its peers, with the evidence.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outlier {
    pub(crate) dimension: Dimension,
    pub(crate) name: Arc<str>,
    pub(crate) evidence: String,
    /// Whether it is unlike the others: several that are out for one reason are not.
    pub(crate) stands_out: bool,
}

impl Outlier {
    fn new(dimension: Dimension, name: Arc<str>, evidence: String) -> Self {
        Self { dimension, name, evidence, stands_out: true }
    }
}

/// Outliers, the replicas first.
pub(crate) fn find(figures: &RouteFigures, slot: &Slot, cause: Option<&Cause>) -> Vec<Outlier> {
    let is_by_chance = |status: &ReplicaStatus| {
        let (own, rest) = failures_beside(status, &figures.replicas, slot);
        own.bad >= f64::from(FEW) && is_shared(own, rest)
    };
    let is_any_ready = figures.replicas.iter().any(|status| status.state == ReplicaState::Ready);
    // Where all fail, one is the first to be ejected.
    let is_named = |status: &&ReplicaStatus| {
        status.state != ReplicaState::Ejected || !is_any_ready || !is_by_chance(status)
    };
    let mut out: Vec<_> =
        figures.replicas.iter().filter(is_named).filter(|status| is_out(status, figures.uptime)).collect();
    let mut found = by_reason(&mut out, is_any_ready);
    let hangs = |status| silent(status, figures).or_else(|| stuck(status, figures));
    found.extend(figures.replicas.iter().filter_map(hangs));
    // They stand out where there is another to compare with.
    for far in cause.filter(|cause| cause.ways.near > 0).map_or(&[][..], |cause| &cause.ways.far) {
        let name = Arc::clone(&far.replica);
        add(&mut found, Some(Outlier::new(Dimension::Replica, name, far.evidence())));
    }
    let compared = cause.map_or_else(Compared::new, |cause| compared(slot, cause, &figures.replicas));
    let in_each = || [None].into_iter().chain(compared.iter().copied().map(Some));
    let is_out = |apart: &Outlier| out.iter().any(|status| status.replica == apart.name);
    for stage in in_each() {
        add(&mut found, replica_apart(slot, &figures.replicas, stage).filter(|apart| !is_out(apart)));
    }
    for status in &figures.replicas {
        let failing = demoted(status, &figures.replicas, slot).or_else(|| back(status));
        add(&mut found, failing.filter(|_| !is_by_chance(status)));
    }
    in_each().for_each(|stage| add(&mut found, revision_apart(slot, figures, stage)));
    if let Some(cause) = cause.filter(|cause| cause.ways.far.is_empty()) {
        add(&mut found, longest_queue(&figures.replicas, cause));
        let is_load =
            [Stage::Admit, Stage::EngineQueue, Stage::Prefill, Stage::Decode].contains(&cause.stage);
        if is_load {
            for dimension in [Dimension::Tenant, Dimension::Class] {
                let grown = grown(&figures.minute.slot, (&figures.before.0, figures.before.1), dimension);
                add(&mut found, grown.map(|(name, evidence)| Outlier::new(dimension, name, evidence)));
            }
        }
    }
    if let Some(cause) = cause.filter(|_| found.is_empty()) {
        // What it asks for, or how it reads, is then what is slow.
        let misses = |name: &Arc<str>, part: &Part| {
            let others = Others::beside(others_of(slot.parts_of(Dimension::Tenant), name));
            misses_more(part, &others, cause.stage)
        };
        add(&mut found, compare(slot, Dimension::Tenant, misses));
    }
    found.truncate(MAX_OUTLIERS);
    found
}

/// The replica that has all of several misses in a stage that is not the gateway's.
pub(crate) fn with_all_misses<'a>(slot: &'a Slot, cause: &Cause) -> Option<&'a Arc<str>> {
    let all = slot.missed_in[cause.stage];
    let mut parts = slot.parts_of(Dimension::Replica).filter(|(name, _)| ***name != *OTHER);
    let found = parts.find(|(_, part)| part.missed_in[cause.stage] == all).filter(|_| all >= FEW);
    found.map(|(name, _)| name).filter(|_| !cause.stage.is_of_gateway())
}

/// The replica that is later than the others by more than a starved gateway can have made it, in the last minute, while they are on time.
pub(crate) fn beyond_lag(figures: &RouteFigures, cause: &Cause) -> Option<Outlier> {
    // Any other stage has no bound on how often it waits for a thread.
    let is_of_prompts = matches!(cause.stage, Stage::EngineQueue | Stage::Prefill);
    let (slot, stage) = (&figures.minute.slot, cause.stage);
    if !is_of_prompts || !compared(slot, cause, &figures.replicas).contains(&stage) {
        return None;
    }
    let outlier = replica_apart(slot, &figures.replicas, Some(stage))?;
    let missed = |part: &Part| part.missed_in[stage];
    let own = slot.of(Dimension::Replica, &outlier.name)?;
    let others = others_of(slot.parts_of(Dimension::Replica), &outlier.name);
    let late: u32 = others.iter().map(|other| missed(other)).sum();
    let judged: u32 = others.iter().map(|other| other.judged).sum();
    // As many of theirs as of its own were not late: a starved gateway spares no replica.
    let are_on_time = late < FEW && judged >= late + missed(own);
    let slowest = others.iter().filter_map(|other| other.mean(stage)).reduce(f64::max)?;
    let is_beyond = own.mean(stage)? - slowest >= WAKES * figures.lateness.worst.as_secs_f64();
    (missed(own) >= MISSES && are_on_time && is_beyond).then_some(outlier)
}

/// The stages in which replicas and revisions are compared: that of the cause first, and each in which many of the misses are, as two may
/// be sick in different ways. Who waits in the gateway waits for the engines: then it is each of theirs.
/// What else the gateway takes is no replica's, whatever requests happened to go there next. Whose way is long is no slower engine, and
/// neither is it compared with the others.
fn compared(slot: &Slot, cause: &Cause, replicas: &[ReplicaStatus]) -> Compared {
    if !cause.ways.far.is_empty() || engines::are_all_full(replicas) {
        return Compared::new();
    }
    let has_many = |stage| stage == cause.stage || 4 * slot.missed_in[stage] >= slot.all_missed().max(1);
    let is_held = has_many(Stage::Admit);
    let is_shared_queue = engines::queue_alike(replicas);
    let is_compared = |stage: &Stage| {
        let is_of_engines = has_many(*stage) || is_held && AT_ENGINE.contains(stage);
        is_of_engines && !stage.is_of_gateway() && !(is_shared_queue && *stage == Stage::EngineQueue)
    };
    let mut stages: Compared = Stage::ALL.iter().copied().filter(is_compared).collect();
    stages.sort_by_key(|stage| *stage != cause.stage);
    stages
}

type Compared = SmallVec<[Stage; 4]>;

/// Adds one that is not named yet.
fn add(found: &mut Vec<Outlier>, more: Option<Outlier>) {
    let is_new = |more: &Outlier| {
        !found.iter().any(|known| known.dimension == more.dimension && known.name == more.name)
    };
    let more = more.filter(is_new);
    found.extend(more);
}

fn replica(status: &ReplicaStatus, evidence: String) -> Outlier {
    Outlier::new(Dimension::Replica, Arc::clone(&status.replica), evidence)
}

/// Each that is out where those are few; else the first of those that are out for one reason, most of them first.
fn by_reason(out: &mut [&ReplicaStatus], is_any_ready: bool) -> Vec<Outlier> {
    let why = |status: &ReplicaStatus| (status.state as usize, Arc::clone(&status.reason));
    out.sort_by_key(|status| why(status));
    let are_few = is_any_ready && out.len() <= NAMED;
    let mut groups: Vec<_> = out.chunk_by(|a, b| !are_few && why(a) == why(b)).collect();
    if groups.len() > MAX_OUTLIERS {
        groups = out.chunk_by(|a, b| a.state == b.state).collect();
    }
    groups.sort_by_key(|group| Reverse(group.len()));
    let of = |group: &&[&ReplicaStatus]| {
        let (first, others) = group.split_first()?;
        let more = match others.len() {
            0 => String::new(),
            1 => " (1 other is too)".to_owned(),
            n => format!(" ({n} others are too)"),
        };
        let found = replica(first, format!("is {}: {}{more}", first.state.as_str(), first.reason));
        Some(Outlier { stands_out: is_any_ready && others.is_empty(), ..found })
    };
    groups.iter().filter_map(of).collect()
}

fn is_out(status: &ReplicaStatus, uptime: Duration) -> bool {
    let state = status.state;
    let is_out = !matches!(state, ReplicaState::Ready | ReplicaState::NotServing | ReplicaState::Draining);
    // One that joins is no fault; one that does not get through its start, or was there before, is.
    let was_ready = times_in(status, ReplicaState::Ready) > 0;
    let was_there_at_start = status.life.since + FOUND_WITHIN >= uptime;
    let joins_within = if was_there_at_start { FOUND_WITHIN } else { JOINS_WITHIN };
    let is_newcomer = state.is_coming() && !was_ready && status.life.since < joins_within;
    is_out && !is_newcomer
}

/// How often it has come into a state since it was found.
fn times_in(status: &ReplicaStatus, state: ReplicaState) -> u64 {
    status.life.entered[state as usize]
}

/// Was ejected and is back: until it has shown that it stays, users are served by the others and the fault may still be there.
fn back(status: &ReplicaStatus) -> Option<Outlier> {
    let ejections = times_in(status, ReplicaState::Ejected);
    let is_back = status.state == ReplicaState::Ready && ejections > 0 && status.life.since < SETTLED;
    let seconds = status.life.since.as_secs();
    is_back.then(|| replica(status, format!("was ejected ({ejections} so far), and is back for {seconds} s")))
}

/// Whether requests ended at a replica, or tokens came.
fn came_of(slot: &Slot, replica: &Arc<str>) -> bool {
    slot.of(Dimension::Replica, replica).is_some_and(|part| part.requests > 0 || part.itl.count > 0.0)
}

/// Has requests that wait, and nothing came of it for a minute while it did before.
fn silent(status: &ReplicaStatus, figures: &RouteFigures) -> Option<Outlier> {
    let now = came_of(&figures.minute.slot, &status.replica);
    let before = came_of(&figures.before.0, &status.replica);
    // What is in flight there may be of other routes.
    let has_traffic = figures.minute.slot.requests > 0 || figures.overdue.0 > 0;
    // Where nothing was asked for a minute nothing came of it either.
    let waits = status.inflight >= 2 && status.quiet >= STUCK;
    let is_silent = status.state == ReplicaState::Ready && waits && has_traffic && !now && before;
    is_silent.then(|| {
        let (inflight, quiet) = (status.inflight, seconds(status.quiet.as_secs_f64()));
        replica(status, format!("has {inflight} requests in flight and nothing came of it for {quiet}"))
    })
}

/// Has a request that is long overdue, and nothing came of it lately while the others answered.
fn stuck(status: &ReplicaStatus, figures: &RouteFigures) -> Option<Outlier> {
    let waited = figures.stuck_at.get(&status.replica)?;
    let came = |name: &Arc<str>| came_of(&figures.recent, name);
    // What came of another that holds late requests as well came before it hung.
    let answers = |other: &Arc<str>| came(other) && !figures.stuck_at.contains_key(other);
    let others =
        figures.replicas.iter().any(|other| other.replica != status.replica && answers(&other.replica));
    let is_stuck =
        status.state == ReplicaState::Ready && *waited >= STUCK && others && !came(&status.replica);
    is_stuck.then(|| {
        let waited = seconds(waited.as_secs_f64());
        replica(status, format!("a request has waited there for {waited}, and nothing came of it lately"))
    })
}

/// Gets little traffic, because it fails more than its pool's others; slow start alone is no fault, and neither is what fails at all.
fn demoted(status: &ReplicaStatus, all: &[ReplicaStatus], slot: &Slot) -> Option<Outlier> {
    let gets_little = status.traffic_share < DEMOTED && !status.life.is_in_slow_start;
    if status.state != ReplicaState::Ready || !(gets_little || status.is_on_trial) {
        return None;
    }
    let ratios = peers_of(status, all).map(|peer| peer.failure_ratio);
    let usual = upper_quantile(&mut ratios.collect::<Vec<_>>(), 0.5);
    let (own, rest) = failures_beside(status, all, slot);
    let is_failing = status.failure_ratio >= FAILING
        && status.failure_ratio >= DIFFERS * usual.unwrap_or_default()
        && !is_shared(own, rest);
    let is_little = is_failing && gets_little;
    if !(is_little || status.is_on_trial) {
        return None;
    }
    let why = match status.failure_ratio {
        ratio if is_failing => format!("{} of its last answers failed", share(ratio)),
        _ => "its failures had ejected it, and it is on trial".to_owned(),
    };
    let evidence = if is_little {
        format!("is given {} of its ordinary traffic: {why}", share(status.traffic_share))
    } else {
        format!("gets one request at a time: {why}")
    };
    Some(replica(status, evidence))
}

/// Failures at a replica, and at its peers.
fn failures_beside(status: &ReplicaStatus, all: &[ReplicaStatus], slot: &Slot) -> (Count, Count) {
    let failures = |of: &ReplicaStatus| slot.of(Dimension::Replica, &of.replica).map(failures_of);
    (failures(status).unwrap_or_default(), peers_of(status, all).filter_map(failures).sum())
}

/// The replica that differs most from the others.
fn replica_apart(slot: &Slot, replicas: &[ReplicaStatus], stage: Option<Stage>) -> Option<Outlier> {
    compare(slot, Dimension::Replica, |name, part| {
        differs(part, &Others::of_replica(name, slot, replicas), stage)
    })
}

/// The revision that differs most from the others, and not by one of its replicas alone.
fn revision_apart(slot: &Slot, figures: &RouteFigures, stage: Option<Stage>) -> Option<Outlier> {
    let found = compare(slot, Dimension::Revision, |name, part| {
        differs(part, &Others::of_revision(name, slot, &figures.before.0), stage)
    });
    found.filter(|it| !is_of_one_replica(&it.name, slot, figures, stage))
}

/// The one that differs most.
fn compare(
    slot: &Slot,
    dimension: Dimension,
    differs: impl Fn(&Arc<str>, &Part) -> Option<(f64, String)>,
) -> Option<Outlier> {
    // What several share is compared with, and none to look at.
    let named = slot.parts_of(dimension).filter(|(name, _)| ***name != *OTHER);
    let found = named.filter_map(|(name, part)| {
        let (strength, evidence) = differs(name, part)?;
        Some((strength, Outlier::new(dimension, Arc::clone(name), evidence)))
    });
    found.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, outlier)| outlier)
}

/// How much its requests fail, miss or take longer in the stage than those of the others, and in what.
fn differs(part: &Part, others: &Others<'_>, stage: Option<Stage>) -> Option<(f64, String)> {
    if others.all.is_empty() {
        return None;
    }
    let named = answers_nothing(part, others).or_else(|| fails(part, others));
    named.or_else(|| {
        let stage = stage.filter(|stage| !is_explained(part, others, *stage))?;
        is_slower(part, others, stage).or_else(|| misses_more(part, others, stage))
    })
}

/// Whether a revision is like the others without one of its replicas: then that one is sick, and the revision is not.
fn is_of_one_replica(name: &Arc<str>, slot: &Slot, figures: &RouteFigures, stage: Option<Stage>) -> bool {
    let Some(revision) = slot.of(Dimension::Revision, name) else { return false };
    let others = Others::of_revision(name, slot, &figures.before.0);
    let own = figures.replicas.iter().filter(|status| status.revision == *name);
    let mut rests = own.filter_map(|status| revision.without(slot.of(Dimension::Replica, &status.replica)?));
    rests.any(|rest| differs(&rest, &others, stage).is_none())
}

fn answers_nothing(part: &Part, others: &Others<'_>) -> Option<(f64, String)> {
    let of = |part: &Part| Count::new(part.empty, part.answers);
    let (own, rest) = (of(part), others.all.iter().map(|other| of(other)).sum::<Count>());
    let alike = others.alike.iter().map(|other| of(other)).sum::<Count>();
    let is_it = part.empty >= FEW
        && !is_shared(own, alike)
        && own.share() >= EMPTY
        && own.share() >= EMPTIER * rest.share()
        && own.exceeds(rest);
    is_it.then(|| {
        let evidence = format!(
            "answers {} of its requests with no text, {} {}",
            share(own.share()),
            others.called,
            share(rest.share())
        );
        (f64::from(part.empty) * 100.0, evidence)
    })
}

/// Failed attempts, of all that have an end.
fn failures_of(part: &Part) -> Count {
    Count::new(part.failures, part.answers.saturating_sub(part.empty) + part.failures)
}

/// Whether the others fail as well, and it no more than by chance: it gets less traffic for it all the same.
fn is_shared(own: Count, rest: Count) -> bool {
    rest.bad > 0.0 && !own.exceeds(rest)
}

fn fails(part: &Part, others: &Others<'_>) -> Option<(f64, String)> {
    let of_all = |others: &[&Part]| others.iter().map(|other| failures_of(other)).sum::<Count>();
    let (own, rest, alike) = (failures_of(part), of_all(&others.all), of_all(&others.alike));
    let all = own.bad + rest.bad;
    let is_of_one = own.bad >= f64::from(FEW) && own.bad >= FAILURES_OF_ONE * all;
    let is_it = is_of_one && !is_shared(own, rest) && !is_shared(own, alike);
    is_it.then(|| {
        let words = match &part.engine_error {
            Some(words) => format!(" (\u{201c}{words}\u{201d})"),
            None if 2 * part.empty >= part.failures => " (answers with no text)".to_owned(),
            None => String::new(),
        };
        let evidence = format!("{} of {all} failed attempts are its own{words}", part.failures);
        (f64::from(part.failures) * 100.0, evidence)
    })
}

/// Whether the wait for first tokens is that of its work: prefix affinity sends one replica the colder prompts.
fn is_explained(part: &Part, others: &Others<'_>, stage: Stage) -> bool {
    let pair_by = |work: fn(&Part) -> Mean| {
        let mut rest: Vec<f64> = others.alike.iter().filter_map(|other| work(other).value()).collect();
        work(part).value().zip(upper_quantile(&mut rest, 0.5))
    };
    // Not every policy predicts.
    let pair = pair_by(others.over_work).or_else(|| pair_by(|part| part.per_token));
    let is_of_prompts = matches!(stage, Stage::EngineQueue | Stage::Prefill);
    is_of_prompts && pair.is_some_and(|(own, usual)| own < DIFFERS_FROM_USUAL * usual)
}

fn is_slower(part: &Part, others: &Others<'_>, stage: Stage) -> Option<(f64, String)> {
    let of = |part: &Part| -> Option<f64> {
        let enough = part.stages[stage].count >= f64::from(FEW);
        let itl = (stage == Stage::Decode).then(|| part.itl.value()).flatten();
        itl.or_else(|| part.mean(stage).filter(|_| enough))
    };
    let (own, mut rest) = (of(part)?, others.alike.iter().filter_map(|other| of(other)).collect::<Vec<_>>());
    // The upper median: where two of three are slow, neither stands out.
    let usual = upper_quantile(&mut rest, 0.5)?;
    let missed = part.missed_in[stage];
    // A mean over hundreds of tokens is no hiccup.
    let by_token = stage == Stage::Decode && part.itl.count >= TOKENS;
    let is_far = own - usual >= MIN_DIFFERENCE.min(usual * 2.0).max(NOISE);
    // Tokens of the calm minute before are in the mean of one that has just become slow.
    let is_late = || {
        by_token && own - usual >= NOISE && late_of(part, stage).exceeds(late_of_all(&others.alike, stage))
    };
    let is_it = missed >= if by_token && own >= FAR_SLOWER * usual { FEW } else { MISSES }
        && own >= DIFFERS * usual
        && (is_far || is_late());
    is_it.then(|| {
        let (its, theirs, called) = (seconds(own), seconds(usual), &others.called);
        let evidence = match stage {
            Stage::Decode if part.itl.count > 0.0 => format!("takes {its} for a token, {called} {theirs}"),
            _ => format!("has {its} of {} on average, {called} {theirs}", stage.as_str()),
        };
        (own / usual.max(1e-4), evidence)
    })
}

/// Answers that came too late: those that were wrong are [`fails`]'s.
fn late_of(part: &Part, stage: Stage) -> Count {
    Count::new(part.missed_in[stage].saturating_sub(part.wrong_in[stage]), part.judged)
}

fn late_of_all(parts: &[&Part], stage: Stage) -> Count {
    parts.iter().map(|part| late_of(part, stage)).sum()
}

fn misses_more(part: &Part, others: &Others<'_>, stage: Stage) -> Option<(f64, String)> {
    let (own, rest) = (late_of(part, stage), late_of_all(&others.alike, stage));
    let (rate, usual) = (own.share(), rest.share());
    let is_known = own.bad >= f64::from(MISSES) && rest.all >= f64::from(MISSES);
    let is_it = is_known && rate >= 2.0 * usual && rate - usual >= 0.1 && own.exceeds(rest);
    let strength = rate / usual.max(0.01);
    is_it.then(|| {
        let (rate, usual, called) = (share(rate), share(usual), &others.called);
        let evidence = format!("misses {rate} of its requests, {called} {usual}");
        (strength, evidence)
    })
}

/// The replica with a queue while the others have none.
fn longest_queue(replicas: &[ReplicaStatus], cause: &Cause) -> Option<Outlier> {
    if cause.stage != Stage::EngineQueue || replicas.len() < 2 {
        return None;
    }
    let mut queues: Vec<(f64, &ReplicaStatus)> =
        replicas.iter().filter_map(|status| Some((engines::queue(status)?, status))).collect();
    queues.sort_by(|a, b| b.0.total_cmp(&a.0));
    let [(longest, status), (next, _), ..] = &queues[..] else { return None };
    let is_far_longer = *longest >= QUEUE && *longest >= 3.0 * next.max(1.0);
    // Full caches put requests back into the queue of whichever engine lacks a block first.
    let is_it = is_far_longer && !engines::queue_alike(replicas) && !engines::are_all_full(replicas);
    is_it.then(|| replica(status, format!("has {longest:.0} waiting in its engine, the next {next:.0}")))
}

/// In one state of its start: a large model takes minutes to load.
const JOINS_WITHIN: Duration = Duration::from_secs(600);
/// The same where the gateway has just started: it finds a fleet that serves, and whoever does not is no newcomer.
const FOUND_WITHIN: Duration = Duration::from_secs(20);
const MAX_OUTLIERS: usize = 6;
/// Replicas that are out, of which each is named.
const NAMED: usize = 2;
/// Where requests hold the places in the engines for which others wait.
const AT_ENGINE: [Stage; 3] = [Stage::EngineQueue, Stage::Prefill, Stage::Decode];
/// Waits for a thread between a request's last byte and its first token: to send it, and to read the answer.
const WAKES: f64 = 2.0;
/// A wait that is no long prompt beside others'.
const STUCK: Duration = Duration::from_secs(10);
/// Some ejections long.
const SETTLED: Duration = Duration::from_secs(120);
