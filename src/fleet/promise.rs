//! What a pool promises through its routes: the models and adapters for which a replica has to prove that it answers.

use std::sync::Arc;

use super::replica::EngineModel;
use crate::config::{Classes, Config, ModelMatch, Pool, Secret};
use crate::request::chain::ChainSeed;
use crate::units::Tokens;

/// What the routes of one pool say about it.
#[derive(Debug)]
pub(super) struct Promised {
    /// Engine names of models and adapters, each once; none where only `*` leads here.
    models: Vec<Promise>,
    pub(super) classes: Classes,
    /// Seed of prefix chains.
    pub(super) seed: ChainSeed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Promise {
    name: Arc<str>,
    /// `upstream_model` or an adapter: no other name of the engine's is meant.
    is_exact: bool,
}

/// What is to be asked of a replica before it takes traffic.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Proofs {
    /// Each of them must be answered.
    pub(super) all: Vec<Arc<str>>,
    /// Where the engine lists nothing that is promised: one of these must be answered.
    pub(super) any: Vec<Arc<str>>,
    /// Promised, and not listed.
    pub(super) lacks: Vec<Arc<str>>,
}

impl Default for Promised {
    fn default() -> Self {
        let classes = Classes { short: Tokens(1024), medium: Tokens(8192) };
        Self { models: Vec::new(), classes, seed: ChainSeed::new(&Secret::new("")) }
    }
}

impl Promised {
    /// What a configuration promises of a pool.
    pub(super) fn of(config: &Config, pool: &Pool) -> Self {
        let mut models: Vec<Promise> = Vec::new();
        let mut add = |name: &Arc<str>, is_exact| {
            if !models.iter().any(|known| known.name == *name) {
                models.push(Promise { name: Arc::clone(name), is_exact });
            }
        };
        let leads_here = |at: usize| config.pools.get(at).is_some_and(|other| other.name == pool.name);
        for route in &config.routes {
            if !route.pools.iter().any(|weighted| leads_here(weighted.pool)) {
                continue;
            }
            match (&route.upstream_model, &route.model) {
                (Some(given), _) => add(given, true),
                (None, ModelMatch::Named(name)) => add(name, false),
                (None, ModelMatch::Any) => {}
            }
        }
        pool.lora.adapters.keys().for_each(|name| add(name, true));
        Self { models, classes: config.classes, seed: ChainSeed::new(&config.seed) }
    }

    /// What a replica that lists these models has to prove, its first model aside, which every probe asks for. One that lists
    /// nothing proves what its probe does.
    pub(super) fn proofs(&self, listed: &[EngineModel]) -> Proofs {
        let Some(first) = listed.first() else { return Proofs::default() };
        let mut proofs = Proofs::default();
        let is_only_base = listed.iter().filter(|model| model.is_base).count() == 1;
        let mut is_proved = self.models.is_empty();
        for promise in &self.models {
            if promise.name == first.id {
                is_proved = true;
            } else if listed.iter().any(|model| model.id == promise.name) {
                proofs.all.push(Arc::clone(&promise.name));
            } else if is_only_base && !promise.is_exact {
                // The route's name stands for the only model that there is.
                is_proved = true;
            } else {
                proofs.lacks.push(Arc::clone(&promise.name));
            }
        }
        if !is_proved && proofs.all.is_empty() {
            // Some engines take names that they do not list.
            proofs.any.clone_from(&proofs.lacks);
        }
        proofs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check::check_str;

    fn listed(models: &[(&str, bool)]) -> Vec<EngineModel> {
        let model = |(id, is_base): &(&str, bool)| EngineModel {
            id: (*id).into(),
            entry: "".into(),
            id_at: 0..0,
            is_base: *is_base,
        };
        models.iter().map(model).collect()
    }

    fn proofs(routes: &str, models: &[(&str, bool)]) -> [Vec<String>; 3] {
        let text = format!("[[pool]]\nname = \"p\"\nreplicas = [\"http://127.0.0.1:1\"]\n{routes}");
        let config = check_str("f.toml", &text, &|_| None).unwrap();
        let proofs = Promised::of(&config, &config.pools[0]).proofs(&listed(models));
        [proofs.all, proofs.any, proofs.lacks]
            .map(|names| names.iter().map(|name| name.to_string()).collect())
    }

    #[test]
    fn every_promised_model_that_is_listed_is_proved_and_what_is_not_listed_is_said() {
        let route = |model: &str| format!("[[route]]\nmodel = \"{model}\"\npools = [\"p\"]\n");
        let (a, sql) = (("a", true), ("sql", false));
        let none: [Vec<String>; 3] = Default::default();
        assert_eq!(proofs("", &[a]), none, "only * leads here");
        assert_eq!(proofs(&route("a"), &[a, sql]), none, "the probe asks for it");
        assert_eq!(proofs(&route("gpt"), &[a]), none, "a name of ours for the only base model");
        let both = route("a") + &route("sql");
        assert_eq!(proofs(&both, &[a, sql])[0], ["sql"]);
        assert_eq!(proofs(&both, &[a, ("b", true)]), [vec![], vec![], vec!["sql".to_owned()]]);
        let other = route("gpt").replace("pools", "upstream_model = \"c\"\npools");
        assert_eq!(proofs(&other, &[a]), [vec![], vec!["c".to_owned()], vec!["c".to_owned()]]);
        assert_eq!(proofs(&other, &[]), none, "an engine without a list");
    }
}
