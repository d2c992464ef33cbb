//! `tokenway check --online`: asks every listed replica what the configuration takes for granted.
//!
//! Two reads a replica, its models (without them its health) and its metrics, on connections of their own; no inference.
//! What is missing for requests to be answered is a problem, what routing would only like to know is a note.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::show::counted;
use crate::cli::style::{Paint, Style};
use crate::config::{Config, Endpoint, Pool, ProbeKind, Route};
use crate::fleet::metrics_text;
use crate::upstream::call::{Call, CallError};
use crate::upstream::connect::Connector;

/// What one replica answered.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pool: Arc<str>,
    replica: Arc<str>,
    url: String,
    models: Vec<String>,
    /// `max_model_len` of those that list it.
    lengths: Vec<(String, u64)>,
    /// Requests to it would fail.
    pub(super) problems: Vec<String>,
    /// Routing would know less.
    notes: Vec<String>,
}

/// Asks all replicas; the answers are in the order of the file.
pub(super) async fn ask_all(config: &Config, connector: &Connector) -> Vec<Answer> {
    let permits = Arc::new(Semaphore::new(MAX_AT_ONCE));
    let mut asked = JoinSet::new();
    for (at, pool) in config.pools.iter().enumerate() {
        let wanted: Arc<[Wanted]> = wanted(config, at, pool).into();
        let secured = connector.separate();
        let tls = connector.read(pool.tls.as_ref()).map(|tls| secured.secure(tls));
        let tls_fault = tls.err().map(|fault| fault.to_string());
        for (place, replica) in pool.replicas.iter().enumerate() {
            let mut answer = Answer {
                pool: Arc::clone(&pool.name),
                replica: Arc::clone(&replica.name),
                url: replica.endpoint.to_string(),
                problems: tls_fault.iter().cloned().collect(),
                ..Answer::default()
            };
            let (pool, endpoint, wanted) = (pool.clone(), replica.endpoint.clone(), Arc::clone(&wanted));
            let (permits, connector) = (Arc::clone(&permits), secured.clone());
            asked.spawn(async move {
                // The semaphore is never closed.
                let _permit = permits.acquire().await;
                if answer.problems.is_empty() {
                    answer.ask(&pool, &endpoint, &wanted, &connector).await;
                }
                ((at, place), answer)
            });
        }
    }
    let mut answers = asked.join_all().await;
    answers.sort_by_key(|(place, _)| *place);
    let mut answers: Vec<Answer> = answers.into_iter().map(|(_, answer)| answer).collect();
    compare_lengths(&mut answers);
    answers
}

/// Notes where others of its pool take longer prompts than a replica: those are sent to either.
fn compare_lengths(answers: &mut [Answer]) {
    let listed = answers.iter().flat_map(|answer| {
        answer.lengths.iter().map(|(model, length)| ((Arc::clone(&answer.pool), model.clone()), *length))
    });
    let mut longest: HashMap<(Arc<str>, String), u64> = HashMap::new();
    for (of, length) in listed {
        let known = longest.entry(of).or_default();
        *known = length.max(*known);
    }
    for answer in answers {
        for (model, own) in &answer.lengths {
            let longest = longest.get(&(Arc::clone(&answer.pool), model.clone()));
            if let Some(longest) = longest.filter(|longest| *longest > own) {
                answer.notes.push(format!(
                    "max_model_len of {model} is {own}, and {longest} at another of its pool: longer prompts fail here"
                ));
            }
        }
    }
}

/// A model that a route asks the pool's replicas for, and that they have before the gateway comes.
#[derive(Debug)]
struct Wanted {
    route: Arc<str>,
    model: Arc<str>,
}

fn wanted(config: &Config, at: usize, pool: &Pool) -> Vec<Wanted> {
    let is_canary = |route: &Route| route.canary.as_ref().is_some_and(|canary| canary.pool == at);
    let uses = config.routes.iter().filter(|route| {
        let is_prefill = route.prefill.as_ref().is_some_and(|prefill| prefill.pool == at);
        is_prefill
            || is_canary(route)
            || route.pools.iter().any(|weighted| weighted.pool == at && (weighted.weight > 0 || pool.standby))
    });
    let of_provider = pool.outside.as_ref().map(|outside| &outside.model);
    uses.filter_map(|route| Some((&route.name, of_provider.or_else(|| route.asked_model())?)))
        .filter(|(_, model)| !(pool.lora.load && pool.lora.adapters.contains_key(*model)))
        .map(|(route, model)| Wanted { route: Arc::clone(route), model: Arc::clone(model) })
        .collect()
}

impl Answer {
    async fn ask(&mut self, pool: &Pool, endpoint: &Endpoint, wanted: &[Wanted], connector: &Connector) {
        let profile = &pool.engine_profile;
        let get = async |endpoint: &Endpoint, path: &str| {
            let key = pool.engine_api_key.as_ref();
            Call { endpoint, key, path, body: None, rank: None, timeout: TIMEOUT }.send(connector).await
        };
        let page = get(endpoint, &profile.models_path).await;
        let is_there = self.read_models(pool, page, wanted);
        let is_asked =
            pool.outside.is_none() && matches!(pool.probe.kind, ProbeKind::Auto | ProbeKind::Health);
        if is_there && is_asked && self.models.is_empty() && self.problems.is_empty() {
            // Without models that is all that probes can ask.
            let path = &profile.health_path;
            match get(endpoint, path).await {
                Ok((status, _)) if status.is_success() => {}
                Ok((status, _)) => {
                    let status = status.as_u16();
                    self.problems.push(format!("{path} answered {status}: it gets no traffic"));
                }
                Err(error) => self.problems.push(format!("{path}: {error}: it gets no traffic")),
            }
        }
        let Some(path) = profile.metrics_path.as_deref().filter(|_| is_there) else { return };
        let elsewhere = profile.metrics_port.map(|port| endpoint.at_port(port));
        match get(elsewhere.as_ref().unwrap_or(endpoint), path).await {
            Ok((StatusCode::OK, page)) => {
                let absent =
                    metrics_text::parse(&String::from_utf8_lossy(&page), profile, None).absent(profile);
                if !absent.is_empty() {
                    self.notes.push(format!("{path} does not have: {}", absent.join(", ")));
                }
            }
            Ok((status, _)) => {
                self.notes.push(format!("{path} answered {}: load is not seen", status.as_u16()));
            }
            Err(error) => self.notes.push(format!("{path}: {error}: load is not seen")),
        }
    }

    /// Whether anything answered.
    fn read_models(
        &mut self,
        pool: &Pool,
        page: Result<(StatusCode, Bytes), CallError>,
        wanted: &[Wanted],
    ) -> bool {
        let path = &pool.engine_profile.models_path;
        let page = match page {
            Err(error) => {
                self.problems.push(error.to_string());
                return false;
            }
            Ok((StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _)) => {
                self.problems.push(format!("{path} refuses the key: set engine_api_key of the pool"));
                return true;
            }
            Ok((StatusCode::OK, page)) => page,
            Ok((status, _)) => {
                let found = format!("{path} answered {}: models are not known", status.as_u16());
                // Probes ask a provider for nothing else.
                let kept = if pool.outside.is_some() { &mut self.problems } else { &mut self.notes };
                kept.push(found);
                return true;
            }
        };
        let page: Value = serde_json::from_slice(&page).unwrap_or_default();
        let ids = page["data"].as_array().into_iter().flatten().filter_map(|model| model["id"].as_str());
        self.models = ids.map(str::to_owned).collect();
        let lengths =
            page["data"].as_array().into_iter().flatten().filter_map(|model| {
                Some((model["id"].as_str()?.to_owned(), model["max_model_len"].as_u64()?))
            });
        self.lengths = lengths.collect();
        if self.models.is_empty() {
            // Probes take what lists none for another server, unless they are for a certain path; of a provider the status will do.
            match pool.probe.kind {
                ProbeKind::Auto if pool.outside.is_none() => self.problems.push(format!(
                    "{path} lists no models, as every engine does: if it is one, set probe.kind"
                )),
                _ => self.notes.push(format!("{path} lists no models: they are not known")),
            }
            return true;
        }
        for Wanted { route, model } in wanted {
            if !self.models.iter().any(|served| **served == **model) {
                let served = self.models.join(", ");
                let problem = format!("does not serve \"{model}\" of route \"{route}\"; it serves: {served}");
                self.problems.push(problem);
            }
        }
        true
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "pool": &*self.pool,
            "replica": &*self.replica,
            "url": self.url,
            "ok": self.problems.is_empty(),
            "models": self.models,
            "problems": self.problems,
            "notes": self.notes,
        })
    }

    /// As text: a line, and one for each problem and note.
    pub(super) fn tell(&self, style: Style, out: &mut dyn Write) -> io::Result<()> {
        let verdict = match self.problems.is_empty() {
            true => style.paint(Paint::Good, "answers"),
            false => style.paint(Paint::Error, "not usable"),
        };
        let models = match self.models.as_slice() {
            [] => String::new(),
            [one] => format!(", serves {one}"),
            several => format!(", serves {} ({})", counted(several.len(), "model"), several.join(", ")),
        };
        writeln!(out, "  replica {} of pool {} at {}: {verdict}{models}", self.replica, self.pool, self.url)?;
        for problem in &self.problems {
            writeln!(out, "    {}", style.paint(Paint::Error, problem))?;
        }
        for note in &self.notes {
            writeln!(out, "    {}", style.paint(Paint::Warning, note))?;
        }
        Ok(())
    }
}

const TIMEOUT: Duration = Duration::from_secs(5);
const MAX_AT_ONCE: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check::check_str;
    use tokio_util::task::TaskTracker;

    #[test]
    fn replicas_say_what_they_serve_and_the_missing_ones_are_named() {
        let (runtime, sim) = crate::cli::simulated();
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let config = |model: &str| {
            let text = format!(
                "[[pool]]\nname = \"p\"\nreplicas = [\"{}\", \"http://{closed}\"]\n[[route]]\nmodel = \"{model}\"\n",
                sim.url()
            );
            check_str("f.toml", &text, &|_| None).unwrap()
        };
        let connector = Connector::new(TaskTracker::new()).unwrap();
        let ask = |config: &Config| runtime.block_on(ask_all(config, &connector));
        let answers = ask(&config("sim"));
        assert_eq!(
            (answers[0].problems.as_slice(), answers[0].models.as_slice()),
            (&[][..], &["sim".to_owned()][..])
        );
        assert_eq!(answers[1].problems, ["connection refused"]);
        let other = ask(&config("llama"));
        assert_eq!(other[0].problems, ["does not serve \"llama\" of route \"llama\"; it serves: sim"]);
        let canary = format!(
            "[[pool]]\nname = \"p\"\nreplicas = [\"http://{closed}\"]\n[[pool]]\nname = \"new\"\nreplicas = [\"{}\"]\n\
             [[route]]\nmodel = \"llama\"\npools = [\"p\"]\n[route.canary]\npool = \"new\"\nsteps = [{{ weight = 10, soak = \"1h\" }}]\n",
            sim.url()
        );
        let canary = ask(&check_str("f.toml", &canary, &|_| None).unwrap());
        assert_eq!(canary[1].problems, other[0].problems, "a canary will be asked for it");
        let standby = format!(
            "[[pool]]\nname = \"p\"\nreplicas = [\"http://{closed}\"]\n\
             [[pool]]\nname = \"spare\"\nstandby = true\nreplicas = [\"{}\"]\n\
             [[route]]\nmodel = \"llama\"\npools = [\"p\", \"spare\"]\n",
            sim.url()
        );
        let standby = ask(&check_str("f.toml", &standby, &|_| None).unwrap());
        assert_eq!(standby[1].problems, other[0].problems, "a standby will be asked for it");
        let mut out = Vec::new();
        other[0].tell(Style::Plain, &mut out).unwrap();
        assert!(String::from_utf8(out).unwrap().contains("not usable, serves sim\n    does not serve"));
    }

    /// What the first pool's replicas are found to lack when `/v1/models` is this page.
    fn problems(of_pool: &str, routes: &[&str], page: &'static str) -> Vec<String> {
        let house = "[[pool]]\nname = \"house\"\nreplicas = [\"http://127.0.0.1:8001\"]\n";
        let pool = house.replace("house", "p") + of_pool;
        let route = |model: &&str| {
            let outside = of_pool.contains("outside");
            format!("[[route]]\nmodel = \"{model}\"\npools = [\"house\", \"p\"]\noutside = {outside}\n")
        };
        let text = pool + house + &routes.iter().map(route).collect::<String>();
        let config = check_str("f.toml", &text, &|_| Some("key".to_owned())).unwrap();
        let mut answer = Answer::default();
        let page = Ok((StatusCode::OK, Bytes::from_static(page.as_bytes())));
        assert!(answer.read_models(&config.pools[0], page, &wanted(&config, 0, &config.pools[0])));
        answer.problems
    }

    #[test]
    fn a_replica_is_asked_for_what_its_pool_asks_it_for() {
        let listed = |id: &str| -> &'static str { format!("{{\"data\":[{{\"id\":\"{id}\"}}]}}").leak() };
        let provider = "standby = true\nengine = \"generic\"\nengine_api_key = \"env:KEY\"\n[pool.outside]\nmodel = \"gpt-x\"\n";
        assert!(problems(provider, &["llama"], listed("gpt-x")).is_empty());
        let missing = problems(provider, &["llama"], listed("llama"));
        assert_eq!(missing, ["does not serve \"gpt-x\" of route \"llama\"; it serves: llama"]);
        let adapter =
            |load: bool| format!("lora = {{ load = {load}, adapters = {{ sql = \"/adapters/sql\" }} }}\n");
        assert!(problems(&adapter(true), &["llama", "sql"], listed("llama")).is_empty());
        assert_eq!(problems(&adapter(false), &["llama", "sql"], listed("llama")).len(), 1);
    }

    #[test]
    fn replicas_of_a_pool_with_unequal_lengths_are_noted() {
        let answer = |pool: &str, length: u64| Answer {
            pool: pool.into(),
            lengths: vec![("m".to_owned(), length)],
            ..Answer::default()
        };
        let mut answers = [answer("p", 512), answer("p", 4096), answer("q", 256)];
        compare_lengths(&mut answers);
        let notes = answers.map(|answer| answer.notes.join(""));
        let short = "max_model_len of m is 512, and 4096 at another of its pool: longer prompts fail here";
        assert_eq!(notes, [short, "", ""]);
    }

    #[test]
    fn what_lists_no_models_is_no_engine() {
        for page in ["<html></html>", "{}", "{\"data\":[]}"] {
            assert_eq!(
                problems("", &["*"], page),
                ["/v1/models lists no models, as every engine does: if it is one, set probe.kind"],
                "{page}"
            );
            assert!(problems("[pool.probe]\nkind = \"completion\"\n", &["*"], page).is_empty(), "{page}");
        }
    }
}
