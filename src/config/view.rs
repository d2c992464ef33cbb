//! The configuration that runs as `/api/config` shows it, with secrets masked.
//!
//! Declared sections show themselves. The others are written out field by field: names are those of the configuration
//! file, durations are seconds, and a field added there stays hidden until it is listed here as no secret.

use std::time::Duration;

use serde_json::{Map, Value as Json, json};

use super::{Config, Dcgm, Declared, Degrade, Keep, Pool, Route, Telemetry, masked_headers};
use crate::stage::{Stage, StageBudget};

/// The whole configuration.
pub(crate) fn view(config: &Config) -> Json {
    let slo: Map<String, Json> =
        config.slo.iter().map(|(name, bounds)| (name.to_string(), bounds.view())).collect();
    json!({
        "server": config.server.view(),
        "admin": config.admin.view(),
        "retry": config.retry.view(),
        "slo": slo,
        "routing": config.routing.view(),
        "classes": config.classes.view(),
        "pool": config.pools.iter().map(pool).collect::<Vec<_>>(),
        "route": config.routes.iter().map(|of| route(config, of)).collect::<Vec<_>>(),
        "tenant": config.tenants.iter().map(Declared::view).collect::<Vec<_>>(),
        "auth": { "jwt": config.jwt.as_ref().map(Declared::view) },
        "telemetry": telemetry(&config.telemetry),
        "hook": config.hook.as_ref().map(Declared::view),
        "drift": config.drift.view(),
        "cluster": config.cluster.as_ref().map(Declared::view),
    })
}

fn pool(pool: &Pool) -> Json {
    let replicas = pool.replicas.iter().map(|replica| {
        json!({
            "name": &*replica.name,
            "url": replica.endpoint.to_string(),
            "zone": replica.zone.as_deref(),
            "dcgm": pool.dcgm.replicas.get(&replica.name).map(dcgm),
        })
    });
    extended(
        pool.view(),
        json!({
            "name": &*pool.name,
            "revision": &*pool.revision,
            "replicas": replicas.collect::<Vec<_>>(),
            "discovery": pool.discovery.describe(),
            "outside": pool.outside.as_ref().map(Declared::view),
            "kv_events": pool.kv_events.as_ref().map(Declared::view),
            "dcgm": pool.dcgm.pool.as_ref().map(dcgm),
            "keep_alive": pool.keep_alive.map(|interval| json!({ "interval": seconds(interval) })),
            "lora": { "load": pool.lora.load, "adapters": pool.lora.adapters.keys().map(|name| &**name).collect::<Vec<_>>() },
        }),
    )
}

/// What a declaration shows, with what refers to other sections.
fn extended(mut shown: Json, more: Json) -> Json {
    if let (Some(shown), Json::Object(more)) = (shown.as_object_mut(), more) {
        shown.extend(more);
    }
    shown
}

fn route(config: &Config, route: &Route) -> Json {
    let pools = route.pools.iter().filter_map(|weighted| {
        let pool = config.pools.get(weighted.pool)?;
        Some(json!({ "pool": &*pool.name, "weight": weighted.weight }))
    });
    extended(
        route.view(),
        json!({
            "name": &*route.name,
            "model": route.model.as_str(),
            "outside": route.outside,
            "pools": pools.collect::<Vec<_>>(),
            "slo": &*route.slo,
            "hedge": route.hedge.as_ref().map(Declared::view),
            "stage_budget": route.stage_budget.as_deref().map(stage_budget),
            "timeouts": route.timeouts.view(),
            "queue": route.queue.as_ref().map(Declared::view),
            "prefill": route.prefill.as_ref().map(Declared::view),
            "canary": route.canary.as_ref().map(Declared::view),
            "degrade": route.degrade.as_ref().map(|degrade| degrade_to(config, degrade)),
        }),
    )
}

fn dcgm(dcgm: &Dcgm) -> Json {
    let labels = dcgm.labels.iter().map(|(name, values)| {
        (name.to_string(), values.iter().map(|value| &**value).collect::<Vec<_>>().into())
    });
    json!({ "url": &*dcgm.url, "labels": labels.collect::<Map<_, _>>() })
}

fn degrade_to(config: &Config, degrade: &Degrade) -> Json {
    let to = config.routes.get(degrade.to).map(|route| &*route.name);
    json!({
        "to": to,
        "when": {
            "predicted_ttft_over_slo": degrade.over,
            "tenants": degrade.tenants.as_ref().map(|names| names.iter().map(|name| &**name).collect::<Vec<_>>()),
            "max_priority": degrade.max_priority,
        },
        "until": { "predicted_ttft_over_slo": degrade.until },
        "min_dwell": seconds(degrade.min_dwell),
    })
}

fn stage_budget(budget: &StageBudget) -> Json {
    let shares = Stage::ALL.into_iter().filter_map(|stage| Some((stage, budget.share(stage)?)));
    shares
        .map(|(stage, share)| (stage.as_str().to_owned(), seconds(share).into()))
        .collect::<Map<_, _>>()
        .into()
}

fn telemetry(telemetry: &Telemetry) -> Json {
    let otlp = telemetry.otlp.as_ref().map(|otlp| {
        json!({
            "endpoint": without_userinfo(&otlp.traces_endpoint),
            "protocol": otlp.protocol.as_str(),
            "headers": masked_headers(&otlp.headers),
            "timeout": seconds(otlp.timeout),
        })
    });
    let metrics = telemetry.otlp_metrics.as_ref().map(|otlp| {
        json!({
            "endpoint": without_userinfo(&otlp.endpoint),
            "protocol": otlp.protocol.as_str(),
            "interval": seconds(otlp.interval),
            "temporality": otlp.temporality.as_str(),
        })
    });
    json!({
        "access_log": telemetry.access_log.to_string(),
        "otlp": otlp,
        "otlp_metrics": metrics,
        "content": telemetry.content.as_ref().map(Declared::view),
        "engine_spans": telemetry.engine_spans.map(|spans| spans.listen.to_string()),
        "stages_by_tenant": telemetry.stages_by_tenant,
        "ttft_by_tenant": telemetry.ttft_by_tenant,
        "runbook_url": telemetry.runbook_url.as_deref().map(without_userinfo),
        "sampling": {
            "routine": telemetry.sampling.routine,
            "error": telemetry.sampling.keeps(Keep::Error),
            "slo_miss": telemetry.sampling.keeps(Keep::SloMiss),
            "tail": telemetry.sampling.keeps(Keep::Tail),
            "retry": telemetry.sampling.keeps(Keep::Retry),
            "canary": telemetry.sampling.keeps(Keep::Canary),
            "drift": telemetry.sampling.keeps(Keep::Drift),
            "max_per_second": telemetry.sampling.max_per_second,
        },
    })
}

/// A URL without the user and password that may stand before its host, and without its query.
pub fn without_userinfo(url: &str) -> String {
    let url = without_query(url);
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let host = authority.rsplit('@').next().unwrap_or(authority);
    format!("{scheme}://{host}{path}")
}

fn without_query(url: &str) -> &str {
    url.split(['?', '#']).next().unwrap_or(url)
}

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_lose_what_may_be_secret() {
        let table = [
            ("http://c:4318/v1/traces", "http://c:4318/v1/traces"),
            ("https://user:pw@c/v1/traces?key=abc", "https://c/v1/traces"),
            ("https://user:p@ss@c", "https://c"),
        ];
        for (url, expected) in table {
            assert_eq!(without_userinfo(url), expected);
        }
    }

    #[test]
    fn the_path_of_a_webhook_is_not_shown() {
        let pool = |name: &str| format!("[[pool]]\nname = \"{name}\"\nreplicas = [\"http://{name}:1\"]\n");
        let text = pool("a")
            + &pool("b")
            + "[drift]\nwebhook = \"https://hooks.example/services/T0/s3cret\"\n[[route]]\nmodel = \"m\"\npools = [\"a\"]\n\
               [route.canary]\npool = \"b\"\nwebhook = \"http://127.0.0.1:9000\"\n\
               steps = [{ weight = 50, soak = \"1h\" }]\n";
        let shown = view(&crate::config::check::check_str("f.toml", &text, &|_| None).unwrap());
        assert_eq!(shown["drift"]["webhook"], "https://hooks.example:443/***");
        assert_eq!(shown["route"][0]["canary"]["webhook"], "http://127.0.0.1:9000");
        assert!(!shown.to_string().contains("s3cret"));
    }
}
