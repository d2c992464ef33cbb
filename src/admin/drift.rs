//! Findings of drift, and an operator's actions on them: acknowledge, close, mute.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};

use super::AdminState;
use super::error::AdminError;
use super::query::{Admin, Answer, Sent};
use crate::api::drift::{self as api, Acknowledgement, Drift, MuteOrder};
use crate::clock;
use crate::config::check::parse_duration;
use crate::drift::detectors::{Finding, Kind, Mute};
use crate::drift::service::Busy;
use crate::observe::rfc3339;

pub(super) async fn findings(State(admin): Admin) -> Json<Drift> {
    let found = admin.drift.board().read();
    let now = admin.drift.now();
    let show = |one: &Finding| shown(one, &found.mutes, now);
    let mutes = found.mutes.iter().filter(|mute| now < mute.until);
    Json(Drift {
        active: found.active.iter().map(show).collect(),
        mutes: mutes.map(shown_mute).collect(),
        recent: found.recent.iter().map(show).collect(),
        series: found.series,
    })
}

fn shown(finding: &Finding, mutes: &[Mute], now: f64) -> api::Finding {
    api::Finding {
        muted: Some(mutes.iter().any(|mute| mute.covers(finding, now))),
        time: Some(rfc3339::utc(clock::wall(finding.at))),
        ..finding.to_api()
    }
}

fn shown_mute(mute: &Mute) -> api::Mute {
    api::Mute {
        kind: mute.kind.map(Kind::as_str).map(str::to_owned),
        route: mute.route.clone(),
        until: rfc3339::utc(clock::wall(mute.until)),
    }
}

/// POST `/drift/{id}/acknowledge`: `{"undo":true}` takes it back.
pub(super) async fn acknowledge(
    State(admin): Admin,
    Path(id): Path<String>,
    Sent(body): Sent,
) -> Answer<api::Finding> {
    let request: Acknowledgement = match &body[..] {
        [] => Acknowledgement::default(),
        text => serde_json::from_slice(text).map_err(|_| AdminError::InvalidBody)?,
    };
    answer(&admin, admin.drift.acknowledge(&id, !request.undo).await)
}

pub(super) async fn reset(State(admin): Admin, Path(id): Path<String>) -> Answer<api::Finding> {
    answer(&admin, admin.drift.reset(&id).await)
}

fn answer(
    admin: &AdminState,
    found: Result<Option<Finding>, Busy>,
) -> Result<Json<api::Finding>, AdminError> {
    let found = found.map_err(|_| AdminError::Overloaded)?.ok_or(AdminError::UnknownFinding)?;
    Ok(Json(shown(&found, &admin.drift.board().read().mutes, admin.drift.now())))
}

/// POST `/drift/mute`: `{"route":"chat","kind":"ttft_shift","for":"2h"}`; without a route or a kind it is every one, and `"0s"`
/// ends it.
pub(super) async fn mute(State(admin): Admin, Sent(body): Sent) -> Answer<api::Mute> {
    let order: MuteOrder =
        serde_json::from_slice(&body).map_err(|error| AdminError::InvalidMute(error.to_string()))?;
    let kind = match order.kind.as_deref() {
        None => None,
        Some(name) => Some(Kind::named(name).ok_or_else(|| {
            let known = Kind::ALL.map(Kind::as_str).join(", ");
            AdminError::InvalidMute(format!("unknown kind \"{}\"; known: {known}", name.escape_debug()))
        })?),
    };
    let length = parse_duration(&order.r#for).map_err(AdminError::InvalidMute)?;
    if length > MAX_MUTE {
        return Err(AdminError::InvalidMute(
            "for is more than 30 days: mute again when they are over".to_owned(),
        ));
    }
    if let Some(route) = &order.route {
        known(&admin, route)?;
    }
    let until = admin.drift.now() + length.as_secs_f64();
    let mute = Mute { route: order.route, kind, until };
    let answer = shown_mute(&mute);
    admin.drift.mute(mute).await.map_err(|_| AdminError::Overloaded)?;
    Ok(Json(answer))
}

/// Whether there is such a route, or was one that is still found or muted.
fn known(admin: &AdminState, route: &str) -> Result<(), AdminError> {
    let (config, found) = (admin.control.config(), admin.drift.board().read());
    let routes: Vec<&str> = config.routes.iter().map(|route| &*route.name).collect();
    let is_left = found.active.iter().any(|one| *one.series.route == *route)
        || found.mutes.iter().any(|mute| mute.route.as_deref() == Some(route));
    if is_left || routes.contains(&route) {
        return Ok(());
    }
    Err(AdminError::UnknownRoute(route.escape_debug().to_string(), routes.join(", ")))
}

const MAX_MUTE: Duration = Duration::from_secs(30 * 86_400);
