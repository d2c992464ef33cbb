//! The configuration that runs as `/api/config` shows it, with secrets masked.
//!
//! Declared sections show themselves. The others are written out field by field: names are those of the configuration
//! file, durations are seconds, and a field added there stays hidden until it is listed here as no secret.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value as Json};

use super::declare::put;
use super::{Config, Dcgm, Declared, Degrade, Keep, Otlp, Pool, Route, Telemetry, masked_headers};
use crate::stage::StageBudget;

pub(crate) fn view(config: &Config) -> Json {
    let slo: Map<String, Json> =
        config.slo.iter().map(|(name, bounds)| (name.to_string(), bounds.view())).collect();
    object([
        ("server", config.server.view()),
        ("admin", config.admin.view()),
        ("retry", config.retry.view()),
        ("slo", slo.into()),
        ("routing", config.routing.view()),
        ("classes", config.classes.view()),
        ("pool", config.pools.iter().map(pool).collect()),
        ("route", config.routes.iter().map(|of| route(config, of)).collect()),
        ("tenant", config.tenants.iter().map(Declared::view).collect()),
        ("auth", object([("jwt", section(config.jwt.as_ref()))])),
        ("telemetry", telemetry(&config.telemetry)),
        ("hook", section(config.hook.as_ref())),
        ("drift", config.drift.view()),
        ("cluster", section(config.cluster.as_ref())),
    ])
}

/// Members of an object. Not `json!`, which spells out every one of them in machine code.
fn object<const N: usize>(members: [(&str, Json); N]) -> Json {
    let mut keys = Map::new();
    members.into_iter().for_each(|(key, value)| put(&mut keys, key, value));
    keys.into()
}

/// A section that may be absent.
fn section(section: Option<&impl Declared>) -> Json {
    section.map_or(Json::Null, Declared::view)
}

fn words<'a>(words: impl Iterator<Item = &'a Arc<str>>) -> Json {
    words.map(|word| Json::from(&**word)).collect()
}

fn pool(pool: &Pool) -> Json {
    let replicas = pool.replicas.iter().map(|replica| {
        object([
            ("name", (*replica.name).into()),
            ("url", replica.endpoint.to_string().into()),
            ("zone", replica.zone.as_deref().into()),
            ("dcgm", pool.dcgm.replicas.get(&replica.name).map(dcgm).into()),
        ])
    });
    let lora = object([("load", pool.lora.load.into()), ("adapters", words(pool.lora.adapters.keys()))]);
    let keep_alive = pool.keep_alive.map(|interval| object([("interval", seconds(interval))]));
    extended(
        pool.view(),
        object([
            ("name", (*pool.name).into()),
            ("revision", (*pool.revision).into()),
            ("replicas", replicas.collect()),
            ("discovery", pool.discovery.describe().into()),
            ("outside", section(pool.outside.as_ref())),
            ("kv_events", section(pool.kv_events.as_ref())),
            ("dcgm", pool.dcgm.pool.as_ref().map(dcgm).into()),
            ("keep_alive", keep_alive.into()),
            ("lora", lora),
        ]),
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
        Some(object([("pool", (*pool.name).into()), ("weight", weighted.weight.into())]))
    });
    extended(
        route.view(),
        object([
            ("name", (*route.name).into()),
            ("model", route.model.as_str().into()),
            ("outside", route.outside.into()),
            ("pools", pools.collect()),
            ("slo", (*route.slo).into()),
            ("hedge", section(route.hedge.as_ref())),
            ("stage_budget", route.stage_budget.as_deref().map(stage_budget).into()),
            ("timeouts", route.timeouts.view()),
            ("queue", section(route.queue.as_ref())),
            ("prefill", section(route.prefill.as_ref())),
            ("canary", section(route.canary.as_ref())),
            ("degrade", route.degrade.as_ref().map(|degrade| degrade_to(config, degrade)).into()),
        ]),
    )
}

fn dcgm(dcgm: &Dcgm) -> Json {
    let labels = dcgm.labels.iter().map(|(name, values)| (name.to_string(), words(values.iter())));
    object([("url", (*dcgm.url).into()), ("labels", labels.collect::<Map<_, _>>().into())])
}

fn degrade_to(config: &Config, degrade: &Degrade) -> Json {
    let to = config.routes.get(degrade.to).map(|route| &*route.name);
    let when = object([
        ("predicted_ttft_over_slo", degrade.over.into()),
        ("tenants", degrade.tenants.as_ref().map(|names| words(names.iter())).into()),
        ("max_priority", degrade.max_priority.into()),
    ]);
    object([
        ("to", to.into()),
        ("when", when),
        ("until", object([("predicted_ttft_over_slo", degrade.until.into())])),
        ("min_dwell", seconds(degrade.min_dwell)),
    ])
}

fn stage_budget(budget: &StageBudget) -> Json {
    budget
        .shares()
        .map(|(stage, share)| (stage.as_str().to_owned(), seconds(share)))
        .collect::<Map<_, _>>()
        .into()
}

fn telemetry(telemetry: &Telemetry) -> Json {
    let otlp = telemetry.otlp.as_ref().map(|Otlp { traces, .. }| {
        object([
            ("endpoint", without_userinfo(&traces.endpoint).into()),
            ("protocol", traces.protocol.as_str().into()),
            ("headers", masked_headers(&traces.headers)),
            ("timeout", seconds(traces.timeout)),
        ])
    });
    let metrics = telemetry.otlp_metrics.as_ref().map(|otlp| {
        object([
            ("endpoint", without_userinfo(&otlp.target.endpoint).into()),
            ("protocol", otlp.target.protocol.as_str().into()),
            ("interval", seconds(otlp.interval)),
            ("temporality", otlp.temporality.as_str().into()),
        ])
    });
    let sampling = &telemetry.sampling;
    let rates =
        object([("routine", sampling.routine.into()), ("max_per_second", sampling.max_per_second.into())]);
    let sampling =
        extended(rates, object(Keep::ALL.map(|keep| (keep.as_str(), sampling.keeps(keep).into()))));
    let more = object([
        ("otlp", otlp.into()),
        ("otlp_metrics", metrics.into()),
        ("content", section(telemetry.content.as_ref())),
        ("engine_spans", telemetry.engine_spans.map(|spans| spans.listen.to_string()).into()),
        ("runbook_url", telemetry.runbook_url.as_deref().map(without_userinfo).into()),
        ("sampling", sampling),
    ]);
    extended(telemetry.view(), more)
}

/// A URL without the user and password that may stand before its host, and without its query.
pub fn without_userinfo(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or(url);
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let host = authority.rsplit('@').next().unwrap_or(authority);
    format!("{scheme}://{host}{path}")
}

fn seconds(duration: Duration) -> Json {
    duration.as_secs_f64().into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::diagnostics::names_secret;
    use crate::config::reference::DECLARED;
    use crate::config::reference::tests::section_text;

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

    /// The keys under which something is masked.
    fn masked(shown: &Json, key: &str, keys: &mut BTreeSet<String>) {
        match shown {
            Json::Object(members) => members.iter().for_each(|(name, value)| {
                masked(value, if names_secret(key) { key } else { name }, keys);
            }),
            Json::Array(entries) => entries.iter().for_each(|entry| masked(entry, key, keys)),
            Json::String(text) if text.contains("***") => {
                keys.insert(key.to_owned());
            }
            _ => {}
        }
    }

    #[test]
    fn diagnostics_mask_what_is_masked_here() {
        let base = "[[pool]]\nname = \"p\"\nreplicas = [\"http://a:1\"]\nengine_api_key = \"env:K\"\n\
                    [[pool]]\nname = \"q\"\nreplicas = [\"http://b:1\"]\n\
                    [[route]]\nmodel = \"llama-8b\"\npools = [\"p\"]\n";
        let mut keys = BTreeSet::new();
        for declared in DECLARED {
            let section = section_text(declared).replace("headers = {}", "headers = { x = \"y\" }");
            let section = section.replace("\"llama-8b-r2\"", "\"q\"");
            let lines = section.lines().map(|line| line.strip_prefix("# ").unwrap_or(line));
            let section = lines.collect::<Vec<_>>().join("\n");
            let checked = crate::config::check::check_str("f.toml", &(base.to_owned() + &section), &|name| {
                Some(name.to_owned())
            });
            if let Ok(config) = checked {
                masked(&view(&config), "", &mut keys);
            }
        }
        assert_eq!(keys.iter().find(|key| !names_secret(key)), None);
        let some = ["engine_api_key", "headers", "key_sha256", "read_token", "seed", "token", "webhook"];
        assert_eq!(keys.iter().map(String::as_str).collect::<Vec<_>>(), some);
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
