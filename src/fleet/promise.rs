//! What a pool promises through its routes: the models and adapters for which a replica has to prove that it answers, and what
//! its engines call them.
//!
//! A route's name may stand for the only model that an engine lists. What it stands for is the pool's affair: what most replicas
//! list, so that one that comes back with another model neither renames the requests of all nor gets any of them.

use std::collections::HashMap;
use std::sync::Arc;

use super::engine::EngineModel;
use crate::config::{Classes, Config, ModelMatch, Pool, Secret};
use crate::request::chain::ChainSeed;
use crate::units::Tokens;

/// What the routes of one pool say about it.
#[derive(Debug)]
pub(super) struct Promised {
    /// Engine names of models and adapters, each once; none where only `*` leads here.
    models: Vec<Promise>,
    /// A route `*` leads here: whatever a replica lists is promised.
    has_any: bool,
    pub(super) classes: Classes,
    /// Seed of prefix chains.
    pub(super) seed: ChainSeed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Promise {
    name: Arc<str>,
    /// `upstream_model` or an adapter: no other name of the engine's is meant.
    is_exact: bool,
    /// An engine has listed it as one.
    is_adapter: bool,
}

impl Promise {
    /// Whether no other name of the engine's is meant.
    fn is_itself(&self) -> bool {
        self.is_exact || self.is_adapter
    }

    /// What a replica with this list calls it.
    fn name_in<'l>(&self, listed: &'l [EngineModel]) -> Option<&'l Arc<str>> {
        name_in(listed, &self.name).filter(|name| !self.is_itself() || **name == self.name)
    }
}

/// What is to be asked of a replica before it takes traffic.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Proofs {
    /// Each of them must be answered.
    pub(super) all: Vec<Arc<str>>,
    /// Where the engine lists nothing that is promised: one of these must be answered.
    pub(super) any: Vec<Arc<str>>,
    /// Promised, and not listed; or listed shorter than by others of its pool.
    pub(super) lacks: Vec<Arc<str>>,
    /// Its only model is not what its pool's other replicas serve: how people are told.
    pub(super) other: Option<String>,
}

/// How a replica stands to what its pool's routes promise, by its list of models alone.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ByList {
    /// Promised, and not listed.
    pub lacks: Vec<Arc<str>>,
    /// It gets no traffic: its only model is not what its pool's other replicas serve.
    pub other: Option<String>,
    /// The promised names for which its only model stands, and that model.
    pub stands_for: Vec<(Arc<str>, Arc<str>)>,
}

/// Judges the lists of a pool's replicas as their probers do, for `tokenway check --online`.
pub(crate) fn by_lists(config: &Config, pool: &Pool, lists: &[List]) -> Vec<ByList> {
    let promised = Promised::of(config, pool);
    let promised = promised.with_adapters(lists).unwrap_or(promised);
    let names = promised.names(lists, &EngineNames::new());
    let judge = |list: &List| {
        let Proofs { lacks, other, .. } = promised.proofs(list, [&names, &names]);
        let is_for = |promise: &&Promise| !promise.is_itself() && !lacks.contains(&promise.name);
        let stands_for = promised.models.iter().filter(is_for).filter_map(|Promise { name, .. }| {
            let only = name_in(list, name).filter(|only| *only != name)?;
            Some((Arc::clone(name), Arc::clone(only)))
        });
        ByList { stands_for: stands_for.collect(), lacks, other }
    };
    lists.iter().map(judge).collect()
}

/// What a pool's engines call the models that routes name without `upstream_model`.
pub(super) type EngineNames = HashMap<Arc<str>, Arc<str>>;

/// The models of one replica, as listed.
pub(crate) type List = Arc<Vec<EngineModel>>;

impl Default for Promised {
    fn default() -> Self {
        let classes = Classes { short: Tokens(1024), medium: Tokens(8192) };
        Self { models: Vec::new(), has_any: true, classes, seed: ChainSeed::new(&Secret::new("")) }
    }
}

impl Promised {
    /// What a configuration promises of a pool.
    pub(super) fn of(config: &Config, pool: &Pool) -> Self {
        let (mut models, mut has_any): (Vec<Promise>, _) = (Vec::new(), false);
        let mut add = |name: &Arc<str>, is_exact| {
            match models.iter_mut().find(|known| known.name == *name) {
                // An adapter that a route names as well stands for no base model.
                Some(known) => known.is_exact |= is_exact,
                None => models.push(Promise { name: Arc::clone(name), is_exact, is_adapter: false }),
            }
        };
        let here = config.pools.iter().position(|other| other.name == pool.name);
        for route in &config.routes {
            if !here.is_some_and(|here| route.uses(here)) {
                continue;
            }
            match (&route.upstream_model, &route.model) {
                // Its list is of everything that a provider has.
                _ if pool.outside.is_some() => {}
                (Some(given), _) => add(given, true),
                (None, ModelMatch::Named(name)) => add(name, false),
                (None, ModelMatch::Any) => has_any = true,
            }
        }
        pool.lora.adapters.keys().for_each(|name| add(name, true));
        Self { models, has_any, classes: config.classes, seed: ChainSeed::new(&config.routing.seed) }
    }

    /// The same where an engine lists what is promised as an adapter, `None` if that is known: from then on no base model stands for it,
    /// whoever loses it.
    pub(super) fn with_adapters(&self, lists: &[List]) -> Option<Self> {
        let is_adapter = |name: &Arc<str>| {
            lists.iter().any(|list| list.iter().any(|model| model.id == *name && !model.is_base))
        };
        let is_new = |promise: &Promise| !promise.is_adapter && is_adapter(&promise.name);
        if !self.models.iter().any(is_new) {
            return None;
        }
        let models = self.models.iter().cloned();
        let models = models.map(|promise| Promise {
            is_adapter: promise.is_adapter || is_adapter(&promise.name),
            ..promise
        });
        Some(Self { models: models.collect(), seed: self.seed.clone(), ..*self })
    }

    /// Whether the same models are promised.
    pub(super) fn is_the_same(&self, other: &Self) -> bool {
        (&self.models, self.has_any) == (&other.models, other.has_any)
    }

    /// With the adapters that engines have listed under the configuration before.
    pub(super) fn after(mut self, before: &Self) -> Self {
        for promise in &mut self.models {
            promise.is_adapter =
                before.models.iter().any(|known| known.name == promise.name && known.is_adapter);
        }
        self
    }

    /// The engines' names by these lists: for each promise the one that most lists have. A tie goes to the promised name itself,
    /// then to the `former` one. Where engines of several models share a pool, none answers for another.
    pub(super) fn names(&self, lists: &[List], former: &EngineNames) -> EngineNames {
        let of_promise = |promise: &Promise| {
            let mut votes: Vec<(&Arc<str>, usize)> = Vec::new();
            let lists_it = |list: &List| list.iter().any(|model| model.id == promise.name);
            let was_own = former.get(&promise.name) == Some(&promise.name);
            let is_own = was_own || lists.iter().any(lists_it);
            let is_of_another = |name: &Arc<str>| {
                *name != promise.name && self.models.iter().any(|other| other.name == *name)
            };
            let named = lists.iter().filter_map(|list| name_in(list, &promise.name));
            // Where its engines had it, what they list after a restart is another model.
            let is_other =
                |name: &Arc<str>| was_own && *name != promise.name || is_own && is_of_another(name);
            for name in named.filter(|name| !is_other(name)) {
                match votes.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, count)) => *count += 1,
                    None => votes.push((name, 1)),
                }
            }
            let rank = |name: &Arc<str>, count: usize| {
                (count, *name == promise.name, former.get(&promise.name) == Some(name))
            };
            // The first of equals: `max_by_key` would take the last.
            let most =
                votes.iter().rev().max_by_key(|(name, count)| rank(name, *count)).map(|(name, _)| *name);
            // None that has it is ready now.
            let most = most.or_else(|| is_own.then_some(&promise.name))?;
            Some((Arc::clone(&promise.name), Arc::clone(most)))
        };
        self.models.iter().filter(|promise| !promise.is_itself()).filter_map(of_promise).collect()
    }

    /// Which of the models that a replica lists its probes, warm-up and keep-alive ask for: a promised one, because a server of
    /// several loads what it is asked for; an adapter where no route leads to its base.
    pub(super) fn probed<'l>(&self, listed: &'l [EngineModel]) -> Option<&'l EngineModel> {
        let is_promised = |model: &&EngineModel| {
            self.models.iter().any(|promise| promise.name_in(listed).is_some_and(|name| *name == model.id))
        };
        let bases = || listed.iter().filter(|model| model.is_base);
        let adapter = || listed.iter().find(is_promised).filter(|_| !self.has_any);
        bases().find(is_promised).or_else(adapter).or_else(|| bases().next()).or(listed.first())
    }

    /// What a replica that lists these models has to prove, the one aside that every probe asks for. One that lists nothing proves
    /// what its probe does. `names` are those that its pool uses now, or would by what all replicas list.
    pub(super) fn proofs(&self, listed: &[EngineModel], names: [&EngineNames; 2]) -> Proofs {
        let Some(probed) = self.probed(listed) else { return Proofs::default() };
        let mut proofs = Proofs::default();
        let mut is_proved = self.has_any || self.models.is_empty();
        for promise in &self.models {
            if promise.name == probed.id {
                is_proved = true;
                continue;
            }
            if listed.iter().any(|model| model.id == promise.name) {
                proofs.all.push(Arc::clone(&promise.name));
                continue;
            }
            proofs.lacks.push(Arc::clone(&promise.name));
            let only = promise.name_in(listed);
            let expected = names.map(|names| names.get(&promise.name));
            match (only, expected[0].or(expected[1])) {
                (Some(only), Some(usual)) if !expected.contains(&Some(only)) => {
                    proofs.other = Some(format!("serves {only}, and its pool's other replicas {usual}"));
                }
                (Some(_), _) => {
                    // The route's name stands for the only model that there is.
                    is_proved = true;
                    proofs.lacks.pop();
                }
                // Some engines take names that they do not list.
                (None, _) => proofs.any.push(Arc::clone(&promise.name)),
            }
        }
        if is_proved || !proofs.all.is_empty() {
            proofs.any.clear();
            proofs.other = None;
        } else if !proofs.any.is_empty() {
            proofs.other = None;
        }
        proofs
    }
}

/// Models of the first list that take less than those of the others: what is longer fails there, and nowhere else.
pub(super) fn shorter(list: &List, others: &[List]) -> Vec<Arc<str>> {
    let longest = |id: &Arc<str>| {
        let same = others.iter().flat_map(|other| other.iter()).filter(|model| model.id == *id);
        same.filter_map(|model| model.max_len).max()
    };
    let limited = list.iter().filter_map(|model| Some((&model.id, model.max_len?)));
    let short = limited.filter(|(id, len)| longest(id).is_some_and(|longest| longest > *len));
    short.map(|(id, len)| format!("{id} beyond {} tokens", len.0).into()).collect()
}

/// Tokens of the longest prompt with its answer that any of the base models takes; `None` where one does not tell.
pub(super) fn longest(lists: &[List]) -> Option<Tokens> {
    let mut bases = lists.iter().flat_map(|list| list.iter()).filter(|model| model.is_base);
    let longest = bases.try_fold(Tokens(0), |longest, model| Some(longest.max(model.max_len?)));
    longest.filter(|longest| longest.0 > 0)
}

/// What a replica with this list calls a promised model: that name itself, else its only base model.
fn name_in<'l>(list: &'l [EngineModel], promise: &str) -> Option<&'l Arc<str>> {
    if let Some(same) = list.iter().find(|model| *model.id == *promise) {
        return Some(&same.id);
    }
    let mut bases = list.iter().filter(|model| model.is_base);
    match (bases.next(), bases.next()) {
        (Some(only), None) => Some(&only.id),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check::check_with_pool;

    fn listed(models: &[(&str, bool)]) -> Vec<EngineModel> {
        let model = |(id, is_base): &(&str, bool)| EngineModel {
            id: (*id).into(),
            entry: "".into(),
            id_at: 0..0,
            is_base: *is_base,
            max_len: None,
        };
        models.iter().map(model).collect()
    }

    #[test]
    fn a_model_that_others_of_the_pool_list_longer_is_lacked_beyond_its_length() {
        let list = |max_len: Option<u64>| -> List {
            let models = listed(&[("a", true)]).into_iter();
            Arc::new(models.map(|model| EngineModel { max_len: max_len.map(Tokens), ..model }).collect())
        };
        for (own, others, expected) in [
            (Some(512), &[Some(512), Some(4096)][..], &["a beyond 512 tokens"][..]),
            (Some(4096), &[Some(512)], &[]),
            (Some(512), &[None], &[]),
            (None, &[Some(512)], &[]),
        ] {
            let others = Vec::from_iter(others.iter().map(|len| list(*len)));
            let short = shorter(&list(own), &others);
            assert_eq!(Vec::from_iter(short.iter().map(|text| &**text)), expected, "{own:?}");
        }
    }

    fn proofs(routes: &str, models: &[(&str, bool)]) -> [Vec<String>; 3] {
        let config = check_with_pool(routes).unwrap();
        let proofs =
            Promised::of(&config, &config.pools[0]).proofs(&listed(models), [&EngineNames::new(); 2]);
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
        assert_eq!(proofs(&route("a"), &[("b", true), a]), none, "the probe asks for what is promised");
        assert_eq!(proofs(&both, &[a, ("b", true)]), [vec![], vec![], vec!["sql".to_owned()]]);
        let other = route("gpt").replace("pools", "upstream_model = \"c\"\npools");
        assert_eq!(proofs(&other, &[a]), [vec![], vec!["c".to_owned()], vec!["c".to_owned()]]);
        assert_eq!(proofs(&other, &[]), none, "an engine without a list");
        let lacks = [vec![], vec![], vec!["c".to_owned()]];
        assert_eq!(proofs(&(other + &route("*")), &[a]), lacks, "what it lists serves route *");
    }

    #[test]
    fn a_probe_asks_for_what_is_promised_and_rather_for_a_base_model() {
        let route = |model: &str| format!("[[route]]\nmodel = \"{model}\"\npools = [\"p\"]\n");
        let (a, b, sql) = (("a", true), ("b", true), ("sql", false));
        let any = route("*");
        for (routes, listed_models, expected) in [
            (route("b"), &[a, b][..], Some("b")),
            (route("b") + &any, &[a, b], Some("b")),
            (route("gpt"), &[sql, a], Some("a")),
            (route("gpt"), &[a, b], Some("a")),
            (route("sql"), &[a, sql], Some("sql")),
            (route("sql") + &any, &[a, sql], Some("a")),
            (route("sql") + &route("a"), &[sql, a], Some("a")),
            (any, &[sql, a], Some("a")),
            (route("a"), &[sql], Some("sql")),
            (route("a"), &[], None),
        ] {
            let config = check_with_pool(&routes).unwrap();
            let (promised, listed) = (Promised::of(&config, &config.pools[0]), listed(listed_models));
            let probed = promised.probed(&listed).map(|model| &*model.id);
            assert_eq!(probed, expected, "{routes} {listed_models:?}");
        }
    }

    #[test]
    fn of_two_models_in_one_pool_none_answers_for_the_other() {
        let route = |model: &str| format!("[[route]]\nmodel = \"{model}\"\npools = [\"p\"]\n");
        let config = check_with_pool(&(route("alpha") + &route("beta"))).unwrap();
        let promised = Promised::of(&config, &config.pools[0]);
        let list = |name: &str| -> List { Arc::new(listed(&[(name, true)])) };
        let names = |lists: &[&str], former: &EngineNames| {
            promised.names(&lists.iter().map(|name| list(name)).collect::<Vec<_>>(), former)
        };
        let itself: EngineNames = ["alpha", "beta"].map(|name| (Arc::from(name), Arc::from(name))).into();
        let all = names(&["alpha", "alpha", "beta"], &EngineNames::new());
        assert_eq!(all, itself, "though most have the other one");
        assert_eq!(names(&["alpha", "alpha"], &all), itself, "the one that has it is ejected");
        let alias: EngineNames = ["alpha", "beta"].map(|name| (Arc::from(name), Arc::from("alpha"))).into();
        assert_eq!(names(&["alpha"], &EngineNames::new()), alias, "a second name of the only model");
    }

    #[test]
    fn for_what_was_an_adapter_no_base_model_stands() {
        let text = "[[route]]\nmodel = \"sql\"\npools = [\"p\"]\n";
        let config = check_with_pool(text).unwrap();
        let promised = Promised::of(&config, &config.pools[0]);
        let list = |models: &[(&str, bool)]| -> [List; 1] { [Arc::new(listed(models))] };
        let (base, loaded) = (list(&[("m", true)]), list(&[("m", true), ("sql", false)]));
        let sql = |promised: &Promised| promised.names(&base, &EngineNames::new()).get("sql").cloned();
        assert_eq!(sql(&promised).as_deref(), Some("m"), "it may be another name of the only model");
        assert!(promised.with_adapters(&base).is_none());
        let promised = promised.with_adapters(&loaded).unwrap();
        assert!(promised.with_adapters(&loaded).is_none(), "known");
        let reloaded = Promised::of(&config, &config.pools[0]).after(&promised);
        for promised in [promised, reloaded] {
            assert_eq!(sql(&promised), None, "it is gone from the engine, or its replica is ejected");
            assert_eq!(promised.proofs(&base[0], [&EngineNames::new(); 2]).lacks, [Arc::from("sql")]);
        }
    }

    #[test]
    fn an_adapter_that_a_route_names_stands_for_no_base_model() {
        let text = "lora.adapters = { sql = \"/a\" }\n\
                    [[route]]\nmodel = \"sql\"\npools = [\"p\"]\n";
        let config = check_with_pool(text).unwrap();
        let promised = Promised::of(&config, &config.pools[0]);
        let base: List = Arc::new(listed(&[("m", true)]));
        assert_eq!(promised.names(&[base], &EngineNames::new()), EngineNames::new());
    }

    #[test]
    fn what_most_replicas_list_is_what_a_name_stands_for_and_the_odd_one_serves_nothing() {
        let text = "[[route]]\nmodel = \"chat\"\npools = [\"p\"]\n";
        let config = check_with_pool(text).unwrap();
        let promised = Promised::of(&config, &config.pools[0]);
        let list = |name: &str| -> List { Arc::new(listed(&[(name, true)])) };
        let chosen = |lists: &[&str], former: Option<&str>| {
            let former = former.map(|name| (Arc::from("chat"), Arc::from(name))).into_iter().collect();
            let lists: Vec<List> = lists.iter().map(|name| list(name)).collect();
            promised.names(&lists, &former).get("chat").map(ToString::to_string)
        };
        for (lists, former, expected) in [
            (&["m", "other", "m"][..], None, Some("m")),
            (&["other", "m"], Some("m"), Some("m")),
            (&["other", "m"], None, Some("other")),
            (&["other", "chat"], Some("other"), Some("chat")),
            (&["other", "other", "chat"], None, Some("other")),
            (&["other", "other"], Some("chat"), Some("chat")),
            (&[], Some("m"), None),
        ] {
            assert_eq!(chosen(lists, former).as_deref(), expected, "{lists:?} {former:?}");
        }
        let names: EngineNames = [(Arc::from("chat"), Arc::from("m"))].into();
        let odd = promised.proofs(&list("other"), [&names, &names]);
        assert_eq!(odd.other.as_deref(), Some("serves other, and its pool's other replicas m"));
        assert_eq!((odd.lacks.as_slice(), odd.any.len()), (&[Arc::from("chat")][..], 0));
        for good in ["m", "chat"] {
            assert_eq!(promised.proofs(&list(good), [&names, &names]), Proofs::default(), "{good}");
        }
    }
}
