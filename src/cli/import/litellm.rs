//! LiteLLM's config.yaml: `model_list` becomes pools and routes, a route for each `model_name`.

use saphyr::{LoadableYamlNode as _, Yaml};
use serde_json::Value as Json;

use super::super::draft::{Draft, DraftPool, DraftRoute, name_of, quoted};
use super::Notes;
use crate::config::PolicyName;

/// Maps the file.
///
/// # Errors
/// What is wrong with the YAML, with its place.
pub(super) fn import(text: &str, notes: &mut Notes) -> Result<Draft, String> {
    let documents = Yaml::load_from_str(text).map_err(|error| error.to_string())?;
    let file = documents.first().map(json).unwrap_or_default();
    let models = file["model_list"].as_array().ok_or("no model_list: it is no configuration of LiteLLM")?;
    let mut draft = Draft::default();
    for entry in models {
        deployment(&mut draft, entry, notes);
    }
    let sections = file.as_object().into_iter().flatten().filter(|(name, _)| *name != "model_list");
    for (section, settings) in sections {
        for (key, value) in settings.as_object().into_iter().flatten() {
            let weak = (section.as_str(), key.as_str());
            let twin = TWINS.iter().find(|(known, _)| *known == weak).map(|(_, strong)| strong);
            match twin.filter(|(section, key)| !file[section][key].is_null()) {
                Some((other, twin)) => {
                    notes.left(format_args!("{section}.{key}"), &format!("{other}.{twin} goes before it"));
                }
                None => setting(&mut draft, section, key, value, notes),
            }
        }
    }
    Ok(draft)
}

/// One entry of `model_list`: a replica of a pool of those with the same name, model and key.
fn deployment(draft: &mut Draft, entry: &Json, notes: &mut Notes) {
    let name = entry["model_name"].as_str().unwrap_or_default();
    let params = &entry["litellm_params"];
    let model = params["model"].as_str().unwrap_or_default();
    let what = format!("model {name} ({model})");
    let Some(base) = params["api_base"].as_str() else {
        return notes.left(what, "no api_base: a provider's own API is not an engine of yours");
    };
    if let Some((provider, _)) = model.split_once('/').filter(|(provider, _)| FOREIGN.contains(provider)) {
        return notes.left(what, &format!("{provider} has an API of its own, which LiteLLM translates to"));
    }
    // The provider's prefix is LiteLLM's, not the engine's.
    let upstream = model.split_once('/').filter(|(provider, _)| PROVIDERS.contains(provider));
    let upstream = upstream.map_or(model, |(_, model)| model);
    let is_every_name = name == "*" && (upstream == "*" || !upstream.contains('*'));
    if !is_every_name && [name, upstream].iter().any(|model| model.contains('*')) {
        return notes.left(what, WILDCARD);
    }
    let weight = match params["weight"].as_u64() {
        Some(0) => return notes.left(what, "weight 0: it gets no requests"),
        weight => weight.unwrap_or(1),
    };
    let Some(url) = notes.replica(base) else { return };
    unmapped(entry, &what, notes);
    let key = params["api_key"].as_str().and_then(|key| engine_key(key, &what, notes));
    let keys: Vec<_> = key.into_iter().collect();
    let pool_name = if upstream == name || upstream.is_empty() {
        name_of(name)
    } else {
        name_of(&format!("{name}-{upstream}"))
    };
    let pool = pool_of(draft, pool_name, keys);
    if pool.replicas.contains(&url) {
        return notes.left(format_args!("{what} at {url}"), "listed twice");
    }
    let others = pool.replicas.len() as u64;
    pool.replicas.push(url);
    let pool_name = pool.name.clone();
    let route = draft.routes.iter_mut().find(|route| route.model == name);
    match route {
        Some(DraftRoute { pools, .. }) if pools.iter().any(|(pool, _)| *pool == pool_name) => {
            for (_, all) in pools.iter_mut().filter(|(pool, _)| *pool == pool_name) {
                if *all != weight.saturating_mul(others) {
                    let why = "replicas of a pool are weighed by what they can do";
                    notes.left(format_args!("{what}: weight {weight}"), why);
                }
                *all = all.saturating_add(weight);
            }
        }
        Some(route) if route.upstream_model.as_deref().unwrap_or(name) == upstream => {
            route.pools.push((pool_name, weight));
        }
        Some(_) => notes.left(what, "a route has one upstream_model: its pool is written without a route"),
        None => draft.routes.push(DraftRoute {
            model: name.to_owned(),
            upstream_model: (upstream != name && !upstream.is_empty()).then(|| upstream.to_owned()),
            pools: vec![(pool_name, weight)],
            ..DraftRoute::default()
        }),
    }
}

/// Says what of an entry is lost.
fn unmapped(entry: &Json, what: &str, notes: &mut Notes) {
    for (key, value) in entry["litellm_params"].as_object().into_iter().flatten() {
        match key.as_str() {
            "model" | "api_base" | "api_key" => {}
            "weight" if value.is_u64() => {}
            _ => notes.left(format_args!("{what}: {key}"), "no counterpart"),
        }
    }
    let others = entry.as_object().into_iter().flatten().map(|(key, _)| key);
    for key in others.filter(|key| !["model_name", "litellm_params"].contains(&key.as_str())) {
        notes.left(format_args!("{what}: {key}"), "no counterpart");
    }
}

/// The pool of that name and key; a new one where there is none.
fn pool_of(draft: &mut Draft, mut name: String, keys: Vec<String>) -> &mut DraftPool {
    if draft.pools.iter().any(|pool| pool.name == name && pool.keys != keys) {
        let key = keys.first().and_then(|key| key.rsplit(':').next()).unwrap_or("no-key");
        name = name_of(&format!("{name}-{key}"));
    }
    let at = draft.pools.iter().position(|pool| pool.name == name).unwrap_or_else(|| {
        draft.pools.push(DraftPool { name, replicas: Vec::new(), keys });
        draft.pools.len() - 1
    });
    &mut draft.pools[at]
}

/// The key as a secret's place; one that stands in the file is not repeated.
fn engine_key(key: &str, what: &str, notes: &mut Notes) -> Option<String> {
    if matches!(key, "" | "none" | "None" | "EMPTY" | "fake-key" | "dummy") {
        return None;
    }
    let variable = key.strip_prefix("os.environ/").unwrap_or_else(|| {
        notes.add(format!("{what}: put its api_key into the variable ENGINE_API_KEY, or say file:PATH"));
        "ENGINE_API_KEY"
    });
    Some(format!("engine_api_key = {}", quoted(&format!("env:{variable}"))))
}

fn setting(draft: &mut Draft, section: &str, key: &str, value: &Json, notes: &mut Notes) {
    let what = format!("{section}.{key}");
    match (section, key) {
        ("router_settings", "routing_strategy") => {
            let name = value.as_str().unwrap_or_default();
            match PolicyName::from_elsewhere(name) {
                Some(policy) => {
                    notes.add(format!("{what} {name}: {} here", policy.as_str()));
                    draft.routes.iter_mut().for_each(|route| route.policy = Some(policy));
                }
                None => notes.left(format_args!("{what} {name}"), "no such policy here; latency is used"),
            }
        }
        ("router_settings" | "litellm_settings", "num_retries") if value.is_u64() => {
            draft.attempts = value.as_u64().map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        }
        ("router_settings", "timeout") | ("litellm_settings", "request_timeout") if value.is_number() => {
            let total = notes.seconds(format_args!("{what} {value}"), value);
            draft.routes.iter_mut().for_each(|route| route.total.clone_from(&total));
        }
        ("general_settings", "master_key") => {
            notes.left(what, "clients' keys are digests: [[tenant]] key_sha256");
        }
        (_, "fallbacks") => notes.left(what, "see [route.degrade], or a pool of small weight"),
        ("general_settings", "database_url") => notes.left(what, "no database is needed"),
        _ => notes.left(what, "no counterpart"),
    }
}

fn json(yaml: &Yaml<'_>) -> Json {
    if let Some(list) = yaml.as_sequence() {
        return list.iter().map(json).collect();
    }
    if let Some(table) = yaml.as_mapping() {
        let member = |(key, value): (&Yaml<'_>, &Yaml<'_>)| Some((key.as_str()?.to_owned(), json(value)));
        return Json::Object(table.iter().filter_map(member).collect());
    }
    let text = yaml.as_str().map(Json::from);
    text.or_else(|| yaml.as_integer().map(Json::from))
        .or_else(|| yaml.as_floating_point().map(Json::from))
        .or_else(|| yaml.as_bool().map(Json::from))
        .unwrap_or_default()
}

/// Section and key.
type Setting = (&'static str, &'static str);

/// Settings of one meaning, of which the second wins.
const TWINS: [(Setting, Setting); 2] = [
    (("litellm_settings", "request_timeout"), ("router_settings", "timeout")),
    (("litellm_settings", "num_retries"), ("router_settings", "num_retries")),
];
const WILDCARD: &str = "a route's model is one name or \"*\": list each model by name";
/// Providers that are no OpenAI-compatible server.
const FOREIGN: &[&str] = &[
    "anthropic",
    "azure",
    "azure_ai",
    "azure_text",
    "bedrock",
    "cohere",
    "cohere_chat",
    "gemini",
    "huggingface",
    "ollama",
    "ollama_chat",
    "predibase",
    "replicate",
    "sagemaker",
    "sagemaker_chat",
    "triton",
    "vertex_ai",
    "watsonx",
    "watsonx_text",
];
const PROVIDERS: &[&str] =
    &["openai", "hosted_vllm", "vllm", "text-completion-openai", "custom_openai", "litellm_proxy"];
