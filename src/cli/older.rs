//! A gateway without `/api/v1`: the same figures, as far as its older paths have them.
//!
//! Without verdicts, stages and kept requests; both `top` and `explain` say so.

use serde_json::{Value, json};

use super::admin_client::{AdminClient, AskError};

/// In place of `/api/v1/slo`: routes with percentiles, without a verdict.
///
/// # Errors
/// [`AskError`].
pub(super) async fn slo(client: &AdminClient) -> Result<Value, AskError> {
    let routes = client.get("/api/routes").await?;
    let latency = client.get("/api/latency?window=5m").await?;
    Ok(routes_with(&routes, &latency))
}

fn routes_with(routes: &Value, latency: &Value) -> Value {
    let series = latency["series"].as_array().map(Vec::as_slice).unwrap_or_default();
    let routes = routes["routes"].as_array().map(Vec::as_slice).unwrap_or_default().iter().map(|route| {
        // Of several revisions the one with the most requests.
        let own = series.iter().filter(|series| series["route"] == route["route"]);
        let most = own.max_by_key(|series| series["ttft"]["count"].as_u64());
        let figures = |key: &str| most.map_or(Value::Null, |series| series[key].clone());
        json!({
            "route": route["route"],
            "goodput": { "requests": figures("duration")["count"] },
            "ttft": figures("ttft"),
            "itl": figures("itl"),
        })
    });
    json!({ "sentence": SENTENCE, "routes": routes.collect::<Vec<_>>() })
}

/// In place of `/api/v1/requests`: the latest decisions.
///
/// # Errors
/// [`AskError`].
pub(super) async fn requests(client: &AdminClient) -> Result<Value, AskError> {
    let decisions = client.get("/api/decisions").await?;
    Ok(json!({ "requests": decisions["decisions"] }))
}

/// In place of `/api/v1/requests/{id}`: one of the latest decisions.
///
/// # Errors
/// [`AskError`]; `NotFound` when it is none of them.
pub(super) async fn request(client: &AdminClient, id: &str) -> Result<Value, AskError> {
    let decisions = client.get("/api/decisions").await?;
    let found =
        decisions["decisions"].as_array().into_iter().flatten().find(|found| found["request_id"] == id);
    found.map(as_request).ok_or_else(|| AskError::NotFound("no such request".to_owned()))
}

fn as_request(found: &Value) -> Value {
    let mut decision = found.clone();
    let chosen = found["replica"].clone();
    for candidate in decision["weighed"].as_array_mut().into_iter().flatten() {
        candidate["chosen"] = (candidate["replica"] == chosen).into();
    }
    let mut request = found.clone();
    request["decision"] = decision;
    request
}

const SENTENCE: &str = "this gateway is of an older version and gives no verdict";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_answers_become_the_newer_ones_as_far_as_they_go() {
        let routes = json!({ "routes": [{ "route": "chat" }, { "route": "idle" }] });
        let latency = json!({ "series": [
            { "route": "chat", "revision": "r1", "ttft": { "count": 2, "p50": 0.1 } },
            { "route": "chat", "revision": "r2", "ttft": { "count": 9, "p50": 0.2 } }] });
        let slo = routes_with(&routes, &latency);
        assert_eq!(
            (&slo["routes"][0]["ttft"]["p50"], &slo["routes"][1]["ttft"]),
            (&json!(0.2), &Value::Null)
        );
        let request = as_request(&json!({
            "request_id": "r", "replica": "b", "policy": "latency", "weighed": [{ "replica": "a" }, { "replica": "b" }]
        }));
        assert_eq!(request["decision"]["weighed"][1]["chosen"], true);
        assert_eq!(request["decision"]["policy"], "latency");
    }
}
