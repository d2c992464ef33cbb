//! `tokenway check --online`: asks every listed replica what the configuration takes for granted.
//!
//! Two reads a replica, its models (without them its health) and its metrics, on connections of their own; no inference. Lists of
//! models are judged as probers judge them ([`promise`]).
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
use crate::fleet::promise::{self, ByList, List};
use crate::fleet::{metrics_text, model_list};
use crate::upstream::call::{Call, CallError};
use crate::upstream::connect::Connector;

#[derive(Debug, Default)]
pub(super) struct Answer {
    pool: Arc<str>,
    replica: Arc<str>,
    url: String,
    models: List,
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
            let (pool, endpoint) = (pool.clone(), replica.endpoint.clone());
            let asks_for_keys = !config.tenants.is_empty();
            let (permits, connector) = (Arc::clone(&permits), secured.clone());
            asked.spawn(async move {
                // The semaphore is never closed.
                let _permit = permits.acquire().await;
                if answer.problems.is_empty() {
                    answer.ask(&pool, &endpoint, asks_for_keys, &connector).await;
                }
                ((at, place), answer)
            });
        }
    }
    let mut answers = asked.join_all().await;
    answers.sort_by_key(|(place, _)| *place);
    let mut answers: Vec<Answer> = answers.into_iter().map(|(_, answer)| answer).collect();
    compare_models(config, &mut answers);
    compare_lengths(&mut answers);
    answers
}

/// Finds what the lists of each pool's replicas lack of what its routes ask them for.
fn compare_models(config: &Config, answers: &mut [Answer]) {
    for (at, pool) in config.pools.iter().enumerate() {
        let wanted = wanted(config, at, pool);
        let mut own: Vec<_> = answers.iter_mut().filter(|answer| answer.pool == pool.name).collect();
        let lists: Vec<List> = own.iter().map(|answer| Arc::clone(&answer.models)).collect();
        let judged = promise::by_lists(config, pool, &lists);
        for (answer, by_list) in own.iter_mut().zip(judged).filter(|(answer, _)| !answer.models.is_empty()) {
            answer.judge(&wanted, by_list, pool.outside.is_some());
        }
    }
}

/// Notes where others of its pool take longer prompts than a replica: those are sent to either.
fn compare_lengths(answers: &mut [Answer]) {
    let listed = answers.iter().flat_map(|answer| {
        answer.lengths().map(|(model, length)| ((Arc::clone(&answer.pool), Arc::clone(model)), length))
    });
    let mut longest: HashMap<(Arc<str>, Arc<str>), u64> = HashMap::new();
    for (of, length) in listed {
        let known = longest.entry(of).or_default();
        *known = length.max(*known);
    }
    for answer in answers {
        let note = |(model, own): (&Arc<str>, u64)| {
            let longest = longest.get(&(Arc::clone(&answer.pool), Arc::clone(model)));
            let longest = longest.filter(|longest| **longest > own)?;
            Some(format!(
                "max_model_len of {model} is {own}, and {longest} at another of its pool: longer prompts fail here"
            ))
        };
        let notes: Vec<_> = answer.lengths().filter_map(note).collect();
        answer.notes.extend(notes);
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
    async fn ask(&mut self, pool: &Pool, endpoint: &Endpoint, asks_for_keys: bool, connector: &Connector) {
        let profile = &pool.engine_profile;
        let get = async |endpoint: &Endpoint, path: &str| {
            let key = pool.engine_api_key.as_ref();
            Call { endpoint, key, path, body: None, rank: None, timeout: TIMEOUT }.send(connector).await
        };
        let page = get(endpoint, &profile.models_path).await;
        let is_there = self.read_models(pool, page, asks_for_keys);
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

    /// Whether anything answered. A gateway that `asks_for_keys` sends no client's key on.
    fn read_models(
        &mut self,
        pool: &Pool,
        page: Result<(StatusCode, Bytes), CallError>,
        asks_for_keys: bool,
    ) -> bool {
        let path = &pool.engine_profile.models_path;
        let page = match page {
            Err(error) => {
                self.problems.push(error.to_string());
                return false;
            }
            Ok((StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _)) => {
                match (&pool.engine_api_key, asks_for_keys) {
                    (Some(_), _) => self.problems.push(format!("{path} refuses engine_api_key of the pool")),
                    (None, true) => {
                        self.problems.push(format!("{path} asks for a key: set engine_api_key of the pool"));
                    }
                    (None, false) => self.notes.push(format!(
                        "{path} asks for a key: clients' own go on to it; models are not known"
                    )),
                }
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
        self.models = Arc::new(model_list::parse(&page));
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
        true
    }

    /// Finds what it lacks of what it will be asked for.
    fn judge(&mut self, wanted: &[Wanted], by_list: ByList, is_outside: bool) {
        if let Some(other) = by_list.other {
            self.problems.push(format!("{other}: it gets no traffic"));
            return;
        }
        for Wanted { route, model } in wanted {
            // A provider's list is no promise: it has the one model or not.
            let lacks = match is_outside {
                true => !self.models.iter().any(|served| served.id == *model),
                false => by_list.lacks.contains(model),
            };
            if lacks {
                let served = self.ids().join(", ");
                let problem = format!("does not serve \"{model}\" of route \"{route}\"; it serves: {served}");
                self.problems.push(problem);
            } else if let Some((name, only)) = by_list.stands_for.iter().find(|(name, _)| name == model) {
                self.notes.push(format!("answers as \"{name}\": its only model is {only}"));
            }
        }
    }

    fn ids(&self) -> Vec<&str> {
        self.models.iter().map(|model| &*model.id).collect()
    }

    /// `max_model_len` of the models that list it.
    fn lengths(&self) -> impl Iterator<Item = (&Arc<str>, u64)> {
        self.models.iter().filter_map(|model| Some((&model.id, model.max_len?.0)))
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "pool": &*self.pool,
            "replica": &*self.replica,
            "url": self.url,
            "ok": self.problems.is_empty(),
            "models": self.ids(),
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
        let models = match self.ids().as_slice() {
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
        assert_eq!((answers[0].problems.as_slice(), answers[0].ids().as_slice()), (&[][..], &["sim"][..]));
        assert_eq!(answers[1].problems, ["connection refused"]);
        let only = ask(&config("llama"));
        assert!(only[0].problems.is_empty(), "{:?}", only[0].problems);
        assert!(only[0].notes.contains(&"answers as \"llama\": its only model is sim".to_owned()));
        let exact = "llama\"\nupstream_model = \"llama";
        let other = ask(&config(exact));
        assert_eq!(other[0].problems, ["does not serve \"llama\" of route \"llama\"; it serves: sim"]);
        let canary = format!(
            "[[pool]]\nname = \"p\"\nreplicas = [\"http://{closed}\"]\n[[pool]]\nname = \"new\"\nreplicas = [\"{}\"]\n\
             [[route]]\nmodel = \"{exact}\"\npools = [\"p\"]\n[route.canary]\npool = \"new\"\nsteps = [{{ weight = 10, soak = \"1h\" }}]\n",
            sim.url()
        );
        let canary = ask(&check_str("f.toml", &canary, &|_| None).unwrap());
        assert_eq!(canary[1].problems, other[0].problems, "a canary will be asked for it");
        let standby = format!(
            "[[pool]]\nname = \"p\"\nreplicas = [\"http://{closed}\"]\n\
             [[pool]]\nname = \"spare\"\nstandby = true\nreplicas = [\"{}\"]\n\
             [[route]]\nmodel = \"{exact}\"\npools = [\"p\", \"spare\"]\n",
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
        let mut answers = [Answer { pool: "p".into(), ..Answer::default() }];
        let page = Ok((StatusCode::OK, Bytes::from_static(page.as_bytes())));
        assert!(answers[0].read_models(&config.pools[0], page, false));
        compare_models(&config, &mut answers);
        let [answer] = answers;
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
    fn an_engine_that_asks_for_a_key_is_usable_where_clients_send_theirs() {
        let tenant = "[[tenant]]\nname = \"t\"\nkey_sha256 = [\"SHA\"]\n".replace("SHA", &"a".repeat(64));
        let key = "engine_api_key = \"env:KEY\"\n".to_owned();
        for (own, tenant, is_usable) in [("", "", true), (&*key, "", false), ("", &*tenant, false)] {
            let pool = format!("[[pool]]\nname = \"p\"\nreplicas = [\"http://127.0.0.1:8001\"]\n{own}");
            let config =
                check_str("f.toml", &format!("{pool}{tenant}"), &|_| Some("key".to_owned())).unwrap();
            let mut answer = Answer::default();
            let refusal = Ok((StatusCode::UNAUTHORIZED, Bytes::new()));
            assert!(answer.read_models(&config.pools[0], refusal, !config.tenants.is_empty()));
            assert_eq!(
                (answer.problems.is_empty(), answer.notes.len()),
                (is_usable, usize::from(is_usable)),
                "{own}"
            );
        }
    }

    #[test]
    fn replicas_of_a_pool_with_unequal_lengths_are_noted() {
        let answer = |pool: &str, length: u64| Answer {
            pool: pool.into(),
            models: Arc::new(model_list::parse(
                format!("{{\"data\":[{{\"id\":\"m\",\"max_model_len\":{length}}}]}}").as_bytes(),
            )),
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
