//! `/api/decisions`: the last decisions beside what happened, and the candidates of one.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;

use super::query::{Admin, Answer, Asked, parse_limit};
use crate::api::decisions::{Candidate, Chosen, Decision, Decisions, Way};
use crate::observe::decisions::KEPT;
use crate::observe::judgement::Judgement;
use crate::observe::slo::Missed;
use crate::observe::stages::Stage;
use crate::observe::{Observer, rfc3339};
use crate::record::{DecisionSummary, Record, Served, Weighed};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DecisionsQuery {
    route: Option<String>,
    limit: Option<String>,
}

pub(super) async fn decisions(State(admin): Admin, Asked(query): Asked<DecisionsQuery>) -> Answer<Decisions> {
    let limit = parse_limit(query.limit.as_deref(), KEPT, KEPT)?;
    let latest = admin.observer.decisions.latest();
    let wanted =
        latest.iter().filter(|record| query.route.as_deref().is_none_or(|route| *record.route == *route));
    let decisions = wanted.filter_map(|record| decision(&admin.observer, record)).take(limit).collect();
    Ok(Json(Decisions { decisions }))
}

fn decision(observer: &Observer, record: &Record) -> Option<Decision> {
    let decision = record.decision.as_ref()?;
    let judgement = Judgement::of(record);
    let routed = record.at.routed.unwrap_or(record.at.head);
    Some(Decision {
        attempts: record.attempts.len(),
        cached_tokens: record.tokens.cached.map(|cached| cached.0),
        chosen: chosen(record, decision, record.served()),
        class: record.class.as_str().to_owned(),
        cold: decision.is_cold,
        model: record.model.to_string(),
        outcome: record.outcome.as_str().to_owned(),
        over_budget: judgement.over_budget.iter().map(|stage| stage.as_str().to_owned()).collect(),
        request_id: record.request_id.to_string(),
        route: record.route.to_string(),
        slo_missed: judgement.missed().map(Missed::as_str).map(str::to_owned),
        slo_missed_in: judgement.blamed.map(Stage::as_str).map(str::to_owned),
        time: rfc3339::utc(observer.clock.wall(routed)),
        ttft: record.ttft().map(|ttft| ttft.as_secs_f64()),
    })
}

/// How `replica` was chosen.
pub(super) fn chosen(record: &Record, decision: &DecisionSummary, replica: Option<&Served>) -> Chosen {
    Chosen {
        candidates: decision.candidates,
        policy: decision.policy.to_owned(),
        predicted_hit_tokens: decision.predicted_hit.0,
        predicted_ttft: decision.predicted_ttft.map(|ttft| ttft.as_secs_f64()),
        reason: decision.reason.to_owned(),
        replica: replica.map(|served| served.replica.to_string()),
        waited: decision.waited.as_secs_f64(),
        way: way(record),
        weighed: decision.weighed.iter().map(candidate).collect(),
        why: decision.why(),
    }
}

/// Where the prompt was computed.
fn way(record: &Record) -> Option<Way> {
    let ways = record.ways.as_ref()?;
    Some(Way {
        apart: ways.apart.map(|cost| cost.total()),
        apart_decode: ways.apart.map(|cost| cost.decode),
        apart_prefill: ways.apart.map(|cost| cost.prefill),
        apart_transfer: ways.apart.map(|cost| cost.transfer),
        reason: ways.reason.to_owned(),
        replica: record.prefill_leg().map(|leg| leg.served.replica.to_string()),
        together: ways.together,
        transfer: ways.transfer.map(|took| took.as_secs_f64()),
        way: ways.way().to_owned(),
    })
}

fn candidate(weighed: &Weighed) -> Candidate {
    let cost = weighed.cost.named().into_iter().map(|(name, seconds)| (name.to_owned(), seconds));
    Candidate {
        chosen: weighed.is_chosen,
        cost: weighed.cost.total(),
        cost_seconds: cost.collect(),
        harm: weighed.harm,
        late: weighed.late,
        predicted_hit_by: if weighed.is_counted { "kv_events" } else { "estimate" }.to_owned(),
        predicted_hit_tokens: weighed.predicted_hit.0,
        predicted_ttft: weighed.predicted_ttft.as_secs_f64(),
        prefill: weighed.cost.prefill,
        replica: weighed.replica.to_string(),
        wait: weighed.cost.wait,
    }
}
