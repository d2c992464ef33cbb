//! `/api/config`: the configuration that runs, with secrets masked.
//!
//! Written out field by field, not derived: names are those of the configuration file, durations are seconds, and a
//! field that is added to [`Config`] stays hidden until somebody decides that it is no secret.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value as Json, json};

use crate::config::{
    AccessLog, Canary, CanaryShadow, Config, DataParallel, Dcgm, Degrade, Drift, Hedge, HedgeAfter, Jwt,
    Pool, PoolTls, QuantileRatios, QueueLimits, Route, Scale, Secret, Slo, Telemetry, Tenant, Timeouts, Tls,
};
use crate::stage::{Stage, StageBudget};

/// The whole configuration.
pub(super) fn config(config: &Config) -> Json {
    let slo: Map<String, Json> =
        config.slo.iter().map(|(name, bounds)| (name.to_string(), slo(bounds))).collect();
    json!({
        "server": server(config),
        "admin": { "listen": config.admin.listen.to_string(), "token": masked(config.admin.token.as_ref()) },
        "retry": {
            "attempts": config.retry.attempts,
            "budget": config.retry.budget,
            "min_per_second": config.retry.min_per_second,
        },
        "slo": slo,
        "routing": { "seed": MASK },
        "classes": { "short": config.classes.short.0, "medium": config.classes.medium.0 },
        "pool": config.pools.iter().map(pool).collect::<Vec<_>>(),
        "route": config.routes.iter().map(|of| route(config, of)).collect::<Vec<_>>(),
        "tenant": config.tenants.iter().map(tenant).collect::<Vec<_>>(),
        "auth": { "jwt": config.jwt.as_ref().map(jwt) },
        "telemetry": telemetry(&config.telemetry),
        "drift": drift(&config.drift),
    })
}

fn server(config: &Config) -> Json {
    let server = &config.server;
    json!({
        "listen": server.listen.to_string(),
        "tls": server.tls.as_ref().map(tls),
        "body_limit": server.body_limit,
        "body_memory": server.body_memory,
        "body_timeout": seconds(server.body_timeout),
        "body_min_rate": server.body_min_rate,
        "header_timeout": seconds(server.header_timeout),
        "keep_alive": seconds(server.keep_alive),
        "tls_handshake_timeout": seconds(server.tls_handshake_timeout),
        "max_connections": server.max_connections,
        "drain_delay": seconds(server.drain_delay),
        "drain_timeout": seconds(server.drain_timeout),
        "heartbeat": server.heartbeat.map(seconds),
        "route_info_headers": server.route_info_headers,
        "extra_paths": server.extra_paths,
        "root_path": server.root_path,
        "cors_origins": server.cors_origins.as_ref().map(|all| {
            all.iter().map(|origin| origin.to_str().unwrap_or_default()).collect::<Vec<_>>()
        }),
        "trust_headers": server.trust_headers.iter().map(|name| name.as_str()).collect::<Vec<_>>(),
    })
}

fn tls(tls: &Tls) -> Json {
    json!({
        "cert": tls.cert.display().to_string(),
        "key": tls.key.display().to_string(),
        "client_ca": tls.client_ca.as_ref().map(|path| path.display().to_string()),
    })
}

fn slo(slo: &Slo) -> Json {
    json!({
        "ttft": slo.ttft.map(|bound| json!({
            "base": seconds(bound.base),
            "per_prompt_token": seconds(bound.per_prompt_token),
        })),
        "itl": slo.itl.iter().map(|(percent, bound)| (format!("p{percent}"), seconds(bound).into())).collect::<Map<_, _>>(),
        "tpot": slo.tpot.map(seconds),
        "e2e": slo.e2e.map(seconds),
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
    json!({
        "name": &*pool.name,
        "revision": &*pool.revision,
        "revision_info": pool.revision_info,
        "engine": pool.engine.as_str(),
        "replicas": replicas.collect::<Vec<_>>(),
        "discovery": pool.discovery.describe(),
        "data_parallel": match pool.data_parallel {
            DataParallel::Auto => json!("auto"),
            DataParallel::Ranks(count) => json!(count.get()),
        },
        "tls": pool.tls.as_ref().map(pool_tls),
        "engine_api_key": masked(pool.engine_api_key.as_ref()),
        "scrape_interval": seconds(pool.scrape_interval),
        "max_connections": pool.max_connections,
        "max_num_seqs": pool.max_num_seqs,
        "queue_target": pool.queue_target,
        "dcgm": pool.dcgm.pool.as_ref().map(dcgm),
        "probe": {
            "interval": seconds(pool.probe.interval),
            "timeout": seconds(pool.probe.timeout),
            "kind": format!("{:?}", pool.probe.kind).to_lowercase(),
        },
        "warmup": {
            "requests": pool.warmup.requests,
            "timeout": seconds(pool.warmup.timeout),
            "slow_start": seconds(pool.warmup.slow_start),
            "lengths": pool.warmup.lengths.iter().map(|one| format!("{one:?}").to_lowercase()).collect::<Vec<_>>(),
            "prompts": pool.warmup.prompts.len(),
            "features": pool.warmup.features.iter().map(|one| format!("{one:?}").to_lowercase()).collect::<Vec<_>>(),
        },
        "keep_alive": pool.keep_alive.map(|interval| json!({ "interval": seconds(interval) })),
        "lora": { "load": pool.lora.load, "adapters": pool.lora.adapters.keys().map(|name| &**name).collect::<Vec<_>>() },
        "ejection": { "max_share": pool.max_ejected_share },
        "scale": scale(&pool.scale),
    })
}

fn scale(scale: &Scale) -> Json {
    let windows = scale.windows.iter().map(|window| {
        json!({ "start": window.start.as_str(), "end": window.end.as_str(), "min_replicas": window.min_replicas })
    });
    json!({
        "min_replicas": scale.min_replicas,
        "max_replicas": scale.max_replicas,
        "idle_after": seconds(scale.idle_after),
        "scale_down_after": seconds(scale.scale_down_after),
        "cold_start": seconds(scale.cold_start),
        "windows": windows.collect::<Vec<_>>(),
        "wait": {
            "max_requests": scale.wait.max_requests,
            "max_bytes": scale.wait.max_bytes,
            "max_wait": seconds(scale.wait.max_wait),
            "heartbeat": scale.wait.heartbeat.map(seconds),
        },
    })
}

fn route(config: &Config, route: &Route) -> Json {
    let pools = route.pools.iter().filter_map(|weighted| {
        let pool = config.pools.get(weighted.pool)?;
        Some(json!({ "pool": &*pool.name, "weight": weighted.weight }))
    });
    json!({
        "name": &*route.name,
        "model": route.model.as_str(),
        "upstream_model": route.upstream_model.as_deref(),
        "required": route.required,
        "pools": pools.collect::<Vec<_>>(),
        "policy": route.policy.as_str(),
        "slo": &*route.slo,
        "client_may": {
            "timeout": route.client_may.timeout,
            "slo_class": route.client_may.slo_class,
            "priority": route.client_may.priority,
        },
        "ask_usage": route.ask_usage,
        "migrate": route.migrate,
        "hedge": route.hedge.as_ref().map(hedge),
        "stage_budget": route.stage_budget.as_deref().map(stage_budget),
        "timeouts": timeouts(&route.timeouts),
        "queue": route.queue.as_ref().map(queue),
        "canary": route.canary.as_ref().map(|canary| canary_of(config, canary)),
        "degrade": route.degrade.as_ref().map(|degrade| degrade_to(config, degrade)),
    })
}

fn hedge(hedge: &Hedge) -> Json {
    let after = match hedge.after {
        HedgeAfter::Quantile(share) => json!(format!("p{}", (share * 1000.0).round() / 10.0)),
        HedgeAfter::Delay(delay) => json!(seconds(delay)),
    };
    json!({ "after": after, "budget": hedge.budget })
}

fn queue(queue: &QueueLimits) -> Json {
    json!({
        "max_requests": queue.max_requests,
        "max_bytes": queue.max_bytes,
        "max_wait": seconds(queue.max_wait),
        "isolate_long": queue.isolate_long,
    })
}

fn canary_of(config: &Config, canary: &Canary) -> Json {
    let ratios = |ratios: QuantileRatios| json!({ "p50": ratios.p50, "p99": ratios.p99 });
    let steps = canary.steps.iter().map(|step| json!({ "weight": step.weight, "soak": seconds(step.soak) }));
    json!({
        "pool": config.pools.get(canary.pool).map(|pool| &*pool.name),
        "shadow": canary.shadow.as_ref().map(shadow),
        "steps": steps.collect::<Vec<_>>(),
        "max_cold_start": canary.max_cold_start.map(seconds),
        "max_ttft_ratio": ratios(canary.max_ttft_ratio),
        "max_itl_ratio": ratios(canary.max_itl_ratio),
        "max_tpot_ratio": ratios(canary.max_tpot_ratio),
        "max_error_ratio_increase": canary.max_error_ratio_increase,
        "max_goodput_decrease": canary.max_goodput_decrease,
        "max_queue_ratio": canary.max_queue_ratio,
        "false_rollback_rate": canary.false_rollback_rate,
        "on_breach": canary.on_breach.as_str(),
        "min_requests": canary.min_requests,
        "webhook": canary.webhook.as_ref().map(ToString::to_string),
        "state": canary.state.as_ref().map(|path| path.display().to_string()),
    })
}

fn shadow(shadow: &CanaryShadow) -> Json {
    json!({
        "weight": shadow.weight,
        "soak": seconds(shadow.soak),
        "min_requests": shadow.min_requests,
        "max_concurrent": shadow.max_concurrent,
        "max_bytes": shadow.max_bytes,
    })
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

fn timeouts(timeouts: &Timeouts) -> Json {
    json!({
        "connect": seconds(timeouts.connect),
        "first_token": seconds(timeouts.first_token),
        "inter_token": seconds(timeouts.inter_token),
        "total": seconds(timeouts.total),
        "client_stall": seconds(timeouts.client_stall),
    })
}

fn tenant(tenant: &Tenant) -> Json {
    json!({
        "name": &*tenant.name,
        "keys": vec![MASK; tenant.key_digests.len()],
        "client_names": tenant.client_names.iter().map(|name| &**name).collect::<Vec<_>>(),
        "routes": tenant.routes.as_ref().map(|routes| routes.iter().map(|name| &**name).collect::<Vec<_>>()),
        "weight": tenant.weight,
        "priority": tenant.priority,
        "limits": {
            "requests_per_minute": tenant.limits.requests_per_minute,
            "tokens_per_minute": tenant.limits.tokens_per_minute,
            "concurrency": tenant.limits.concurrency,
        },
    })
}

fn jwt(jwt: &Jwt) -> Json {
    json!({
        "issuer": jwt.issuer,
        "audience": jwt.audience,
        "jwks": without_query(&jwt.jwks.to_string()),
        "tenant_claim": jwt.tenant_claim,
        "algorithms": jwt.algorithms.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>(),
        "leeway": seconds(jwt.leeway),
        "refresh": seconds(jwt.refresh),
    })
}

fn pool_tls(tls: &PoolTls) -> Json {
    let shown = |path: &PathBuf| path.display().to_string();
    json!({
        "ca": tls.ca.as_ref().map(shown),
        "cert": tls.identity.as_ref().map(|files| shown(&files.cert)),
        "key": tls.identity.as_ref().map(|files| shown(&files.key)),
        "server_name": tls.server_name.as_deref(),
    })
}

fn telemetry(telemetry: &Telemetry) -> Json {
    let access_log = match &telemetry.access_log {
        AccessLog::Stdout => "stdout".to_owned(),
        AccessLog::Stderr => "stderr".to_owned(),
        AccessLog::Off => "off".to_owned(),
        AccessLog::File(path) => path.display().to_string(),
    };
    let otlp = telemetry.otlp.as_ref().map(|otlp| {
        // Values are mostly credentials; names help to see what is sent.
        let headers: Map<String, Json> =
            otlp.headers.iter().map(|(name, _)| (name.to_string(), MASK.into())).collect();
        json!({
            "endpoint": without_userinfo(&otlp.traces_endpoint),
            "protocol": otlp.protocol.as_str(),
            "headers": headers,
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
        "access_log": access_log,
        "otlp": otlp,
        "otlp_metrics": metrics,
        "engine_spans": telemetry.engine_spans.map(|spans| spans.listen.to_string()),
        "sampling": {
            "routine": telemetry.sampling.routine,
            "error": telemetry.sampling.keep_error,
            "slo_miss": telemetry.sampling.keep_slo_miss,
            "tail": telemetry.sampling.keep_tail,
            "retry": telemetry.sampling.keep_retry,
        },
    })
}

fn drift(drift: &Drift) -> Json {
    json!({
        "block": seconds(drift.block),
        "baseline": { "from": seconds(drift.from), "to": seconds(drift.to) },
        "availability": drift.availability,
        "webhook": drift.webhook.as_ref().map(ToString::to_string),
        "state": drift.state.path().map(|path| path.display().to_string()),
    })
}

/// A URL without the user and password that may stand before its host, and without its query.
fn without_userinfo(url: &str) -> String {
    let url = without_query(url);
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let host = authority.rsplit('@').next().unwrap_or(authority);
    format!("{scheme}://{host}{path}")
}

fn without_query(url: &str) -> &str {
    url.split(['?', '#']).next().unwrap_or(url)
}

fn masked(secret: Option<&Secret>) -> Option<&'static str> {
    secret.map(|_| MASK)
}

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

const MASK: &str = "***";

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
}
