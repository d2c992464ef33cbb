//! `/usage`: requests, tokens and engine seconds by tenant, model and key, for the bill.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::State;
use serde::Deserialize;

use super::AdminState;
use super::error::AdminError;
use super::moment::Moment;
use super::query::{Admin, Answer, Asked};
use crate::api::usage::{UsageAnswer, UsageRow};
use crate::clock::wall_second;
use crate::observe::rfc3339;
use crate::observe::usage::{Payer, Used};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UsageQuery {
    since: Option<String>,
    until: Option<String>,
    by: Option<String>,
}

pub(super) async fn usage(State(admin): Admin, Asked(query): Asked<UsageQuery>) -> Answer<UsageAnswer> {
    let (since, until) = span(&query, admin.now())?;
    let by: Vec<&str> = query.by.as_deref().unwrap_or("tenant").split(',').map(str::trim).collect();
    if let Some(unknown) = by.iter().find(|name| !BY.contains(name)) {
        return Err(AdminError::InvalidQuery(format!("by is a list of {}, not {unknown:?}", BY.join(", "))));
    }
    Ok(Json(answer(&admin, since, until, &by)))
}

/// From when on, and up to when.
fn span(query: &UsageQuery, now: SystemTime) -> Result<(SystemTime, SystemTime), AdminError> {
    let moment = |read: fn(&str) -> Result<Moment, String>, text: &str| match read(text) {
        Ok(Moment::Away(ago)) => Ok(now.checked_sub(ago).unwrap_or(UNIX_EPOCH)),
        Ok(Moment::At(at)) => Ok(at),
        Err(error) => Err(AdminError::InvalidQuery(error)),
    };
    let since = moment(Moment::parse, query.since.as_deref().unwrap_or("1d"))?;
    let end = |text| moment(Moment::parse_end, text);
    let until = query.until.as_deref().map_or(Ok(now + Duration::from_secs(1)), end)?;
    if until < since {
        let (since, until) = (rfc3339::seconds(since), rfc3339::seconds(until));
        let why = format!("the span is reversed: since {since} is after until {until}");
        return Err(AdminError::InvalidQuery(why));
    }
    Ok((since, until))
}

fn answer(admin: &AdminState, since: SystemTime, until: SystemTime, by: &[&str]) -> UsageAnswer {
    let none: Arc<str> = "".into();
    let is_by = |name: &str| by.contains(&name);
    let [tenant, model, key, day] = ["tenant", "model", "key", "day"].map(is_by);
    let kept = |is_kept: bool, name: &Arc<str>| Arc::clone(if is_kept { name } else { &none });
    let asked = |from: u64, payer: &Payer| {
        let Payer { tenant: whose, model: of, key: with } = payer;
        let payer = Payer { tenant: kept(tenant, whose), model: kept(model, of), key: kept(key, with) };
        (if day { from } else { 0 }, payer)
    };
    let (sums, counted) = admin.observer.metrics.usage.sum(since, until, asked);
    // Hours and days are whole; what comes after now is in none.
    let last = counted.as_ref().map_or(until, |counted| wall_second(counted.end).min(admin.now()));
    let mut total = Used::default();
    let rows = sums.iter().map(|((from, payer), used)| {
        total.add(used);
        UsageRow {
            day: day.then(|| rfc3339::date(wall_second(*from))),
            tenant: tenant.then(|| payer.tenant.to_string()),
            model: model.then(|| payer.model.to_string()),
            key: key.then(|| payer.key.to_string()),
            ..row(used)
        }
    });
    UsageAnswer {
        by: by.iter().map(|name| (*name).to_owned()).collect(),
        rows: rows.collect(),
        since: counted.map(|counted| rfc3339::seconds(wall_second(counted.start))),
        total: row(&total),
        until: rfc3339::seconds(until.max(last)),
    }
}

fn row(used: &Used) -> UsageRow {
    UsageRow {
        cached_tokens: used.cached,
        decode_seconds: used.decode_us as f64 / 1e6,
        engine_other_seconds: used.engine_other_us as f64 / 1e6,
        input_tokens: used.input,
        output_tokens: used.output,
        prefill_seconds: used.prefill_us as f64 / 1e6,
        requests: used.requests,
        ..UsageRow::default()
    }
}

const BY: [&str; 4] = ["tenant", "model", "key", "day"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::wall_second as at;

    #[test]
    fn a_reversed_span_is_refused() {
        let asked = |since: &str, until: Option<&str>| {
            let query = UsageQuery { since: Some(since.into()), until: until.map(Into::into), by: None };
            span(&query, at(1_000_000))
        };
        assert_eq!(asked("2h", Some("1h")).unwrap(), (at(992_800), at(996_400)));
        assert_eq!(asked("1h", None).unwrap(), (at(996_400), at(1_000_001)));
        for (since, until) in [("1h", Some("2h")), ("2999-01-01", None)] {
            let refused = asked(since, until).unwrap_err().to_string();
            assert!(refused.contains("reversed"), "{refused}");
        }
    }
}
