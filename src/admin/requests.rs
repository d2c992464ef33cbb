//! `/api/requests`: the slowest and the failed of the last hour, and each with its stages, attempts and decision.
//!
//! No text of a prompt or an answer is kept anywhere, so there is none here.

use std::cmp::Reverse;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use serde::Deserialize;

use super::decisions::chosen;
use super::error::AdminError;
use super::query::{Admin, Answer, Asked, one_of, parse_limit};
use crate::api::requests::{Attempt, Bounds, Choice, Request, RequestDetail, Requests, StageTime};
use crate::clock::Stamp;
use crate::observe::history::{Kept, Why};
use crate::observe::judgement::Judgement;
use crate::observe::slo::Missed;
use crate::observe::stages::Stage;
use crate::observe::{Observer, rfc3339};
use crate::record::{self, AttemptCause, Outcome, Record, SloBounds};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RequestsQuery {
    route: Option<String>,
    tenant: Option<String>,
    revision: Option<String>,
    replica: Option<String>,
    outcome: Option<String>,
    stage: Option<String>,
    missed: Option<bool>,
    limit: Option<String>,
    after: Option<String>,
}

pub(super) async fn requests(State(admin): Admin, Asked(query): Asked<RequestsQuery>) -> Answer<Requests> {
    one_of("outcome", query.outcome.as_deref(), Outcome::LABELS)?;
    one_of("stage", query.stage.as_deref(), Stage::LABELS)?;
    let limit = parse_limit(query.limit.as_deref(), DEFAULT_LIMIT, MAX_LIMIT)?;
    let observer = &admin.observer;
    let kept = observer.history().kept(observer.clock.now());
    let after = query.after.as_deref().map(parse_cursor).transpose()?;
    let mut page: Vec<(&Kept, Judgement)> = kept
        .iter()
        .filter(|kept| after.is_none_or(|after| cursor_of(&kept.record) < after))
        .map(|kept| (kept, Judgement::of(&kept.record)))
        .filter(|(kept, judgement)| query.wants(&kept.record, judgement))
        .take(limit + 1)
        .collect();
    let has_more = page.len() > limit;
    page.truncate(limit);
    let next = page.last().filter(|_| has_more).map(|(kept, _)| {
        let (end, id) = cursor_of(&kept.record);
        format!("{end:x}.{id:x}")
    });
    let requests = page.iter().map(|(kept, judgement)| summary(observer, kept, judgement)).collect();
    Ok(Json(Requests { next, requests }))
}

pub(super) async fn request(State(admin): Admin, Path(id): Path<String>) -> Answer<RequestDetail> {
    let observer = &admin.observer;
    let mut known = observer.history().kept(observer.clock.now());
    let latest = observer.decisions.latest().into_iter();
    known.extend(latest.map(|record| Kept { record, slow: 0.0, why: Why::Slow }));
    let (first, others) = of_id(&id, &known)?;
    let others = others.into_iter().take(MAX_OTHERS);
    let others = others.map(|kept| summary(observer, kept, &Judgement::of(&kept.record))).collect();
    Ok(Json(RequestDetail { others, ..detail(observer, first) }))
}

/// The requests of an id, or of a beginning that is no other's: what failed first, then the newest. Retries of a client share its id.
fn of_id<'k>(id: &str, known: &'k [Kept]) -> Result<(&'k Kept, Vec<&'k Kept>), AdminError> {
    // Traces and spans are found by their id too: it is what a span or an exemplar has.
    let trace = |record: &Record| format!("{:032x}", record.trace.trace_id);
    let is_it = |record: &Record| *record.request_id == *id || trace(record) == id || span(record) == id;
    let begins = |record: &Record| record.request_id.starts_with(id) || trace(record).starts_with(id);
    let those =
        |wanted: &dyn Fn(&Record) -> bool| Vec::from_iter(known.iter().filter(|kept| wanted(&kept.record)));
    let mut found = those(&is_it);
    if found.is_empty() {
        if id.len() < MIN_PREFIX {
            return Err(AdminError::InvalidQuery(format!(
                "{id} is too short for a beginning of an id: give the first {MIN_PREFIX} characters, or more"
            )));
        }
        found = those(&begins);
        let mut ids = found.iter().map(|kept| &kept.record.request_id);
        let first = ids.next().ok_or(AdminError::UnknownRequest)?;
        if let Some(other) = ids.find(|other| *other != first) {
            return Err(AdminError::InvalidQuery(format!(
                "{id} begins several ids, such as {first} and {other}"
            )));
        }
    }
    found.sort_by_key(|kept| {
        let is_good = kept.record.outcome == Outcome::Ok;
        (kept.record.outcome != Outcome::Failed, is_good, Reverse(cursor_of(&kept.record)))
    });
    // The newest are kept twice, where they are slow or failed.
    found.dedup_by_key(|kept| kept.record.trace.root);
    let first = found.first().copied().ok_or(AdminError::UnknownRequest)?;
    Ok((first, found.split_off(1)))
}

fn span(record: &Record) -> String {
    format!("{:016x}", record.trace.root)
}

impl RequestsQuery {
    fn wants(&self, record: &Record, judgement: &Judgement) -> bool {
        let is = |wanted: &Option<String>, label: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| label == Some(wanted))
        };
        let tried =
            |wanted: &String| record.attempts.iter().any(|attempt| *attempt.served.replica == **wanted);
        is(&self.route, Some(&record.route))
            && is(&self.tenant, Some(&record.tenant))
            && is(&self.revision, Some(record.revision()))
            && is(&self.outcome, Some(record.outcome.as_str()))
            && is(&self.stage, judgement.blamed.map(Stage::as_str))
            && self.replica.as_ref().is_none_or(tried)
            && self.missed.is_none_or(|missed| missed == judgement.missed().is_some())
    }
}

/// Place in the list, which is newest first: the end, and the root span where two ended at once.
fn cursor_of(record: &Record) -> (u64, u64) {
    (record.at.end.as_nanos(), record.trace.root)
}

fn parse_cursor(text: &str) -> Result<(u64, u64), AdminError> {
    let parsed = text
        .split_once('.')
        .and_then(|(end, id)| Some((u64::from_str_radix(end, 16).ok()?, u64::from_str_radix(id, 16).ok()?)));
    parsed.ok_or_else(|| AdminError::InvalidQuery("after is the next of the page before".to_owned()))
}

fn summary(observer: &Observer, kept: &Kept, judgement: &Judgement) -> Request {
    let record = &kept.record;
    Request {
        attempts: record.attempts.len(),
        class: record.class.as_str().to_owned(),
        duration: record.duration().as_secs_f64(),
        error: record.error.map(str::to_owned),
        kept: kept.why.as_str().to_owned(),
        model: record.model.to_string(),
        outcome: record.outcome.as_str().to_owned(),
        replica: record.served().map(|served| served.replica.to_string()),
        request_id: record.request_id.to_string(),
        revision: record.revision().to_owned(),
        route: record.route.to_string(),
        slo_missed: judgement.missed().map(Missed::as_str).map(str::to_owned),
        slo_missed_in: judgement.blamed.map(Stage::as_str).map(str::to_owned),
        slow: kept.slow,
        span_id: span(record),
        status: record.status,
        tenant: record.tenant.to_string(),
        time: rfc3339::utc(observer.clock.wall(record.at.head)),
        tpot: seconds(record.tpot()),
        ttft: seconds(record.ttft()),
    }
}

fn detail(observer: &Observer, kept: &Kept) -> RequestDetail {
    let (record, judgement) = (&kept.record, Judgement::of(&kept.record));
    let since_head = |at: Stamp| at.since(record.at.head).as_secs_f64();
    RequestDetail {
        request: summary(observer, kept, &judgement),
        attempts_made: record.attempts.iter().map(|made| attempt(record, made)).collect(),
        bounds: bounds(&record.slo),
        cached_tokens: record.tokens.cached.map(|tokens| tokens.0),
        decision: choice(record),
        degraded_from: record.degraded_from.as_deref().map(str::to_owned),
        estimated_prompt_tokens: record.estimated_input.0,
        first_token_at: record.at.first_token.map(since_head),
        held: record.held.as_secs_f64(),
        longest_gap: record.longest_gap.as_secs_f64(),
        longest_gap_at: record.longest_gap_at.map(since_head),
        migration_refused: record.migration_refused.map(str::to_owned),
        migrations: record.migrations,
        others: Vec::new(),
        output_tokens: record.tokens.output.map(|tokens| tokens.0),
        prompt_tokens: record.tokens.input.map(|tokens| tokens.0),
        relay_blocked: record.relay_blocked.as_secs_f64(),
        stages: stages(record, &judgement),
        stream: record.is_stream,
        trace_id: format!("{:032x}", record.trace.trace_id),
    }
}

fn bounds(slo: &SloBounds) -> Bounds {
    Bounds {
        e2e: seconds(slo.e2e),
        itl: slo.itl.iter().map(|(percent, bound)| (format!("p{percent}"), bound.as_secs_f64())).collect(),
        tpot: seconds(slo.tpot),
        ttft: seconds(slo.ttft),
    }
}

/// One after the other: each starts where the one before ends.
fn stages(record: &Record, judgement: &Judgement) -> Vec<StageTime> {
    let mut start = Duration::ZERO;
    let stages = judgement.stages.iter().map(|time| {
        let budget = record.stage_budget.as_ref().and_then(|budget| budget.share(time.stage));
        let shown = StageTime {
            budget: seconds(budget),
            duration: time.duration.as_secs_f64(),
            over_budget: judgement.over_budget.contains(&time.stage),
            source: time.source.as_str().to_owned(),
            stage: time.stage.as_str().to_owned(),
            start: start.as_secs_f64(),
        };
        start += time.duration;
        shown
    });
    stages.collect()
}

fn attempt(record: &Record, attempt: &record::Attempt) -> Attempt {
    let since_head = |at: Stamp| at.since(record.at.head).as_secs_f64();
    Attempt {
        canceled: attempt.is_canceled,
        cause: attempt.cause.as_str().to_owned(),
        connected: attempt.connected.map(since_head),
        end: Some(since_head(record.end_of(attempt))),
        empty: attempt.is_empty,
        engine_error: attempt.engine_error.as_deref().map(str::to_owned),
        error: attempt.error.or(attempt.broken).map(str::to_owned),
        expected_prefill: attempt.expected.map(|expected| expected.prefill.as_secs_f64()),
        expected_queue: attempt.expected.map(|expected| expected.queue.as_secs_f64()),
        head: attempt.head.map(since_head),
        pool: attempt.served.pool.to_string(),
        replica: attempt.served.replica.to_string(),
        revision: attempt.served.revision.to_string(),
        start: since_head(attempt.start),
        status: attempt.status,
    }
}

fn choice(record: &Record) -> Option<Choice> {
    let decision = record.decision.as_ref()?;
    // Attempts stand in the order of their ends: a hedge that lost is before the one that it was for.
    let decoding = record.attempts.iter().find(|attempt| {
        !matches!(attempt.cause, AttemptCause::Prefill | AttemptCause::Hedge | AttemptCause::Migration)
    });
    let served = decoding.or(record.attempts.first()).map(|attempt| &*attempt.served);
    Some(Choice { chosen: chosen(record, decision, served), explained: !decision.weighed.is_empty() })
}

fn seconds(span: Option<Duration>) -> Option<f64> {
    span.map(|span| span.as_secs_f64())
}

const DEFAULT_LIMIT: usize = 50;
/// Characters of an id that may stand for all of it.
const MIN_PREFIX: usize = 4;
const MAX_LIMIT: usize = 500;
/// Requests that are listed beside another of the same id.
const MAX_OTHERS: usize = 20;
