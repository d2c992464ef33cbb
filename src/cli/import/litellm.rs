//! LiteLLM's config.yaml: `model_list` becomes pools and routes, a route for each `model_name`.

use saphyr::{LoadableYamlNode as _, Yaml};
use serde_json::{Map, Value as Json};

use super::super::draft::{Draft, DraftPool, DraftRoute, name_of, quoted};
use super::Notes;

/// Maps the file.
///
/// # Errors
/// What is wrong with the YAML, with its place.
pub(super) fn import(text: &str, notes: &mut Notes) -> Result<Draft, String> {
    let documents = Yaml::load_from_str(text).map_err(|error| error.to_string())?;
    let file = documents.first().map(json).unwrap_or_default();
    if documents.len() > 1 {
        notes.left("every document after the first `---`", "LiteLLM reads one");
    }
    let models = file["model_list"].as_array().ok_or("no model_list: it is no configuration of LiteLLM")?;
    let mut found = Found::default();
    for entry in models {
        deployment(&mut found, entry, notes);
    }
    let mut draft = found.draft;
    aliases(&mut draft, &file["router_settings"]["model_group_alias"], notes);
    let sections = file.as_object().into_iter().flatten().filter(|(name, _)| *name != "model_list");
    for (section, settings) in sections {
        let Some(settings) = settings.as_object() else {
            let of_files = "the models of the files that it names are not read: import each of them";
            notes.left(section, if section == "include" { of_files } else { "no counterpart" });
            continue;
        };
        for (key, value) in settings {
            let weak = (section.as_str(), key.as_str());
            let twin = TWINS.iter().find(|(known, _)| *known == weak).map(|(_, strong)| strong);
            match twin.filter(|(section, key)| !file[section][key].is_null()) {
                Some((other, twin)) => {
                    notes.left(format_args!("{section}.{key}"), &format!("{other}.{twin} goes before it"));
                }
                None if weak == ("router_settings", "model_group_alias") => {}
                None => setting(&mut draft, section, key, value, notes),
            }
        }
    }
    share_pools(&mut draft, notes);
    Ok(draft)
}

/// What the entries have become so far.
#[derive(Default)]
struct Found {
    draft: Draft,
    /// Of each pool: name and model of its entries, and their key.
    pools: Vec<(String, String, Option<String>)>,
    /// Keys that stand in the file itself: one variable each.
    literals: Vec<String>,
}

impl Found {
    /// The pool of these entries; a new one where there is none.
    fn pool(&mut self, name: &str, upstream: &str, key: Option<String>) -> &mut DraftPool {
        let of = (name.to_owned(), upstream.to_owned(), key);
        let at = self.pools.iter().position(|pool| *pool == of).unwrap_or_else(|| {
            let is_own = upstream == name || upstream.is_empty();
            let plain = name_of(&if is_own { name.to_owned() } else { format!("{name}-{upstream}") });
            let keyed = of.2.as_deref().and_then(|key| key.rsplit(':').next()).unwrap_or("no-key");
            let keyed = name_of(&format!("{plain}-{keyed}"));
            let name = self.draft.free_name(&[plain, keyed]);
            let keys = of.2.iter().map(|key| format!("engine_api_key = {}", quoted(key))).collect();
            self.draft.pools.push(DraftPool { name, replicas: Vec::new(), keys });
            self.pools.push(of);
            self.pools.len() - 1
        });
        &mut self.draft.pools[at]
    }

    /// The key as a secret's place; one that stands in the file is not repeated.
    fn engine_key(&mut self, key: &str, what: &str, notes: &mut Notes) -> Option<String> {
        if matches!(key, "" | "none" | "None" | "EMPTY" | "fake-key" | "dummy") {
            return None;
        }
        if let Some(variable) = key.strip_prefix("os.environ/") {
            return Some(format!("env:{variable}"));
        }
        let at = self.literals.iter().position(|known| known == key).unwrap_or_else(|| {
            self.literals.push(key.to_owned());
            self.literals.len() - 1
        });
        let variable =
            if at == 0 { "ENGINE_API_KEY".to_owned() } else { format!("ENGINE_API_KEY_{}", at + 1) };
        notes.add(format!("{what}: put its api_key into the variable {variable}, or write file:PATH"));
        Some(format!("env:{variable}"))
    }
}

/// One entry of `model_list`: a replica of a pool of those with the same name, model and key.
fn deployment(found: &mut Found, entry: &Json, notes: &mut Notes) {
    let name = &*word_of(&entry["model_name"]);
    let params = &entry["litellm_params"];
    let model = params["model"].as_str().unwrap_or_default();
    let what = format!("model {name} ({model})");
    if name.is_empty() {
        return notes.left(what, "no model_name");
    }
    let Some(base) = params["api_base"].as_str().or(params["base_url"].as_str()) else {
        return notes.left(what, "no api_base: a provider's own API is not an engine of yours");
    };
    if base.starts_with("os.environ/") {
        return notes.left(what, &format!("api_base {base}: no variable is read here, write the URL"));
    }
    let (provider, upstream) = provider_and_model(params, model);
    match provider {
        Some(provider) if FOREIGN.contains(&provider) => {
            return notes
                .left(what, &format!("{provider} has an API of its own, which LiteLLM translates to"));
        }
        None if model.contains('/') => {
            notes.add(format!(
                "{what}: the engine is asked for {model:?}; LiteLLM would take its first word for a provider"
            ));
        }
        _ => {}
    }
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
    let key = params["api_key"].as_str().and_then(|key| found.engine_key(key, &what, notes));
    let pool = found.pool(name, upstream, key);
    if pool.replicas.contains(&url) {
        return notes.left(format_args!("{what} at {url}"), "listed twice");
    }
    let others = pool.replicas.len() as u64;
    pool.replicas.push(url);
    let pool_name = pool.name.clone();
    let route = found.draft.routes.iter_mut().find(|route| route.model == name);
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
        None => found.draft.routes.push(DraftRoute {
            model: name.to_owned(),
            upstream_model: (upstream != name && !upstream.is_empty()).then(|| upstream.to_owned()),
            pools: vec![(pool_name, weight)],
            ..DraftRoute::default()
        }),
    }
}

/// The provider, where LiteLLM knows it, and the model as the engine has it: the provider's word is LiteLLM's.
fn provider_and_model<'a>(params: &'a Json, model: &'a str) -> (Option<&'a str>, &'a str) {
    let first = model.split_once('/');
    match params["custom_llm_provider"].as_str() {
        Some(stated) => match first.filter(|(word, _)| *word == stated) {
            Some((_, rest)) => (Some(stated), rest),
            None => (Some(stated), model),
        },
        None => match first.filter(|(word, _)| FOREIGN.contains(word) || PROVIDERS.contains(word)) {
            Some((word, rest)) => (Some(word), rest),
            None => (None, model),
        },
    }
}

/// Further names of models are routes like theirs.
fn aliases(draft: &mut Draft, table: &Json, notes: &mut Notes) {
    if !table.is_null() && !table.is_object() {
        notes.left("router_settings.model_group_alias", "not a table of names");
    }
    for (alias, target) in table.as_object().into_iter().flatten() {
        let what = format!("router_settings.model_group_alias.{alias}");
        if target["hidden"] == true {
            notes.left(format_args!("{what}: hidden"), "/v1/models shows it");
        }
        let target = target.as_str().or_else(|| target["model"].as_str()).unwrap_or_default();
        let Some(route) = draft.routes.iter().find(|route| route.model == target) else {
            notes.left(what, &format!("no model {target:?} in the result"));
            continue;
        };
        if draft.routes.iter().any(|route| route.model == *alias) {
            notes.left(what, "model_list has that name");
            continue;
        }
        let upstream = route.upstream_model.clone().unwrap_or_else(|| route.model.clone());
        draft.routes.push(DraftRoute {
            model: alias.clone(),
            upstream_model: Some(upstream),
            pools: route.pools.clone(),
            ..DraftRoute::default()
        });
    }
}

/// Several names of one engine, aliases or adapters, share a pool: in two it would count half its load.
fn share_pools(draft: &mut Draft, notes: &mut Notes) {
    let mut kept: Vec<DraftPool> = Vec::new();
    for pool in draft.pools.drain(..) {
        let is_same = |other: &&DraftPool| {
            let is_in = |url| other.replicas.contains(url);
            other.keys == pool.keys
                && other.replicas.len() == pool.replicas.len()
                && pool.replicas.iter().all(is_in)
        };
        let Some(same) = kept.iter().find(is_same) else {
            for url in &pool.replicas {
                if let Some(other) = kept.iter().find(|other| other.replicas.contains(url)) {
                    let why = "each counts only its own requests there; give both pools the same replicas, or one of them none";
                    notes.left(
                        format_args!("replica {url} is in the pools {} and {}", other.name, pool.name),
                        why,
                    );
                }
            }
            kept.push(pool);
            continue;
        };
        notes.add(format!("pool {} has the replicas of {}: one pool", pool.name, same.name));
        for route in &mut draft.routes {
            for (name, _) in &mut route.pools {
                if *name == pool.name {
                    same.name.clone_into(name);
                }
            }
        }
    }
    draft.pools = kept;
}

/// Says what of an entry is lost.
fn unmapped(entry: &Json, what: &str, notes: &mut Notes) {
    for (key, value) in entry["litellm_params"].as_object().into_iter().flatten() {
        match key.as_str() {
            "model" | "api_base" | "base_url" | "api_key" | "custom_llm_provider" => {}
            "weight" if value.is_u64() => {}
            "timeout" | "stream_timeout" => notes.left(format_args!("{what}: {key}"), "see route.timeouts"),
            "rpm" | "tpm" => notes.left(format_args!("{what}: {key}"), "see tenant.limits"),
            _ => notes.left(format_args!("{what}: {key}"), "no counterpart"),
        }
    }
    let others = entry.as_object().into_iter().flatten().map(|(key, _)| key);
    for key in others.filter(|key| !["model_name", "litellm_params"].contains(&key.as_str())) {
        notes.left(format_args!("{what}: {key}"), "no counterpart");
    }
}

fn setting(draft: &mut Draft, section: &str, key: &str, value: &Json, notes: &mut Notes) {
    let what = format!("{section}.{key}");
    match (section, key) {
        ("router_settings", "routing_strategy") => {
            let name = value.as_str().unwrap_or_default();
            let policy = notes.policy(&format!("{what} {name}"), name);
            draft.routes.iter_mut().for_each(|route| route.policy = policy);
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
        (_, "fallbacks") => notes.left(what, "see a pool with standby = true, and [route.degrade]"),
        ("router_settings", key) if key.starts_with("redis_") => {
            notes.left(what, "what gateways have in common: see [cluster]");
        }
        ("litellm_settings", "callbacks" | "success_callback" | "failure_callback") => {
            notes.left(what, "not needed for metrics: see admin.listen, and [telemetry] for traces");
        }
        ("general_settings", "database_url") => notes.left(what, "no database is needed"),
        _ => notes.left(what, "no counterpart"),
    }
}

fn json(yaml: &Yaml<'_>) -> Json {
    if let Some(list) = yaml.as_sequence() {
        return list.iter().map(json).collect();
    }
    if let Some(table) = yaml.as_mapping() {
        let member = |(key, value): (&Yaml<'_>, &Yaml<'_>)| (word_of(&json(key)), json(value));
        let mut members: Map<String, Json> = table.iter().map(member).collect();
        // YAML 1.1's merge key: what another table, or the first of several, has and this one does not.
        let merged = members.remove("<<").map(|merged| match merged {
            Json::Array(tables) => tables,
            table => vec![table],
        });
        for (key, value) in merged.iter().flatten().filter_map(Json::as_object).flatten() {
            members.entry(key).or_insert_with(|| value.clone());
        }
        return Json::Object(members);
    }
    let text = yaml.as_str().map(Json::from);
    text.or_else(|| yaml.as_integer().map(Json::from))
        .or_else(|| yaml.as_floating_point().map(Json::from))
        .or_else(|| yaml.as_bool().map(Json::from))
        .unwrap_or_default()
}

/// A name as it stands there, be it a number.
fn word_of(value: &Json) -> String {
    match value {
        Json::Null => String::new(),
        value => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
    }
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
    "anthropic", "azure", "azure_ai", "azure_text", "bedrock", "cohere", "cohere_chat", "gemini",
    "huggingface", "ollama", "ollama_chat", "predibase", "replicate", "sagemaker", "sagemaker_chat",
    "triton", "vertex_ai", "watsonx", "watsonx_text",
];
/// OpenAI-compatible ones: servers that people run themselves, and services.
const PROVIDERS: &[&str] = &[
    "aiohttp_openai", "anyscale", "baseten", "cerebras", "codestral", "custom_openai", "dashscope",
    "databricks", "deepinfra", "deepseek", "docker_model_runner", "empower", "fireworks_ai", "friendliai",
    "galadriel", "github", "groq", "hosted_vllm", "hyperbolic", "infinity", "lambda_ai", "litellm_proxy",
    "llamafile", "lm_studio", "meta_llama", "mistral", "moonshot", "nebius", "novita", "nscale",
    "nvidia_nim", "oobabooga", "openai", "openai_like", "openrouter", "perplexity", "sambanova",
    "text-completion-openai", "together_ai", "vllm", "volcengine", "voyage", "xai", "xinference",
];
