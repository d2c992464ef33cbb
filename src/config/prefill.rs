//! `pool.role` and `[route.prefill]`: prompts computed in one pool and decoded in another.
//!
//! KV moves between engines of one revision only, so a prefill pool of another one is refused here. What depends on a single
//! request (its dialect, `n`, its own `kv_transfer_params`) is decided by `gateway::apart`.

use std::sync::Arc;

use super::check::codec::{NAMED, Word};
use super::check::section::Section;
use super::declare::{Declared, section};
use super::{EngineKind, PolicyName, Pool, WeightedPool};
use crate::labels::labels;

section! {
    /// prompts are computed by another pool, and decoded by those of the route
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Prefill for "[route.prefill]", optional {
        /// computes them: the same model and revision, none of the route's own pools
        pool_name @ "pool": Arc<str> as NAMED, required "llama-8b-prefill";
        /// auto: where it costs less in predicted seconds, policy latency only | always | never
        when: PrefillWhen as Word("choice"), default "auto";
        /// not for prompts of which the decoding replica would compute fewer
        min_uncached_tokens: u64 as 0..=i64::MAX, default 0;
        /// how KV moves: nixl (vLLM's kv_transfer_params) | shared (a store that both sides read: order alone) | sglang (both at once)
        connector: Connector as Word("connector"), default "nixl";
        /// of SGLang's prefill engines (--disaggregation-bootstrap-port)
        bootstrap_port: u16 as 1..=65535, default 8998;
    } with {
        /// Index into [`Config::pools`](super::Config::pools).
        pool: usize,
    }
}

labels! {
    /// `pool.role`
    #[derive(Default)]
    pub enum Role {
        /// It computes prompts for others: no route's own pool.
        Prefill = "prefill",
        /// It answers, and computes no prompts for others.
        Decode = "decode",
        /// Either.
        #[default]
        Both = "both",
    }
}

impl Role {
    /// As a label of a target gives it: its names, and llm-d's `prefill-decode`.
    pub fn of_label(text: &str) -> Option<Self> {
        if text == "prefill-decode" { Some(Self::Both) } else { Self::named(text) }
    }

    /// Whether a pool of this role takes a target with that label.
    pub fn takes(self, label: Self) -> bool {
        self == label || self == Self::Both || label == Self::Both
    }
}

labels! {
    /// `route.prefill.when`
    pub enum PrefillWhen {
        /// Where it costs less.
        Auto = "auto",
        /// Wherever it is possible.
        Always = "always",
        /// Nowhere.
        Never = "never",
    }

    /// `route.prefill.connector`
    pub enum Connector {
        /// The prefill answer has an object that the decoding request carries.
        Nixl = "nixl",
        /// Both sides read one store.
        Shared = "shared",
        /// Both requests at once, with `bootstrap_*`.
        Sglang = "sglang",
    }
}

impl Connector {
    /// Whether this engine does not know how KV moves by it; `false` where that is its operator's affair.
    pub(super) fn is_unknown_to(self, engine: EngineKind) -> bool {
        match self {
            Self::Nixl => matches!(engine, EngineKind::Sglang | EngineKind::Triton | EngineKind::Torchserve),
            Self::Shared => false,
            Self::Sglang => engine != EngineKind::Sglang,
        }
    }
}

/// Reads `[route.prefill]`, and expects that the route's own pools decode.
pub(super) fn prefill(
    route: &Section<'_>,
    known: &[Pool],
    pools: &[WeightedPool],
    policy: PolicyName,
) -> Option<Prefill> {
    for pool in pools.iter().filter_map(|weighted| known.get(weighted.pool)) {
        if pool.role == Role::Prefill {
            let message =
                format!("pool \"{}\" has role \"prefill\": it answers no requests of a route", pool.name);
            route.fault(message, "name it in [route.prefill], and a pool that decodes in pools");
        }
    }
    let (section, prefill) = Prefill::opened(route)?;
    section.expect("pool", "name the pool that computes prompts: pool = \"…\"");
    let item = section.get("pool")?;
    let at = item.pool_of(known)?;
    let pool = known.get(at)?;
    if pool.role == Role::Decode {
        let message =
            format!("pool \"{}\" has role \"decode\": it computes no prompts for others", pool.name);
        item.fault(message, "give it role = \"prefill\" or \"both\", or name another pool");
    }
    if pool.outside.is_some() {
        let message =
            format!("pool \"{}\" has [pool.outside]: a provider computes no prompts for others", pool.name);
        item.fault(message, "name a pool of this house");
    } else if pools.iter().any(|weighted| weighted.pool == at) {
        item.fault(
            "the route's own pool cannot be its prefill pool: prompts would go to where they are decoded",
            "list the replicas that compute prompts in a [[pool]] of their own",
        );
    } else {
        expect_one_revision(&item, pool, known, pools);
    }
    if prefill.when == PrefillWhen::Auto && policy != PolicyName::Latency {
        let message =
            format!("when = \"auto\" compares predictions, and policy \"{}\" has none", policy.as_str());
        section.fault(message, "use policy = \"latency\", or when = \"always\" with min_uncached_tokens");
    }
    Some(Prefill { pool: at, ..prefill })
}

/// KV of another model, or of another image, is of no use: a fault where no pool of the route has the prefill pool's revision.
fn expect_one_revision(
    item: &super::check::section::Item<'_>,
    prefill: &Pool,
    known: &[Pool],
    pools: &[WeightedPool],
) {
    let others = || pools.iter().filter_map(|weighted| known.get(weighted.pool));
    let model = |pool: &Pool| pool.revision_info.get("model").cloned();
    if let Some(other) = others().find(|other| {
        model(other).zip(model(prefill)).is_some_and(|(one, another)| one != another)
            && other.revision == prefill.revision
    }) {
        let message = format!("pools \"{}\" and \"{}\" state different models", prefill.name, other.name);
        item.fault(message, "KV moves between engines of one model: see revision_info.model of both");
    } else if !pools.is_empty() && others().all(|other| other.revision != prefill.revision) {
        let message = format!(
            "pool \"{}\" has revision \"{}\", and no pool of the route has it: KV moves within one revision",
            prefill.name, prefill.revision
        );
        item.fault(
            message,
            "write the same revision = \"…\" in both pools if they run one model on one image",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check::check_str;

    /// Two pools of one revision and a route with these keys of `[route.prefill]`.
    fn file(roles: [&str; 2], route: &str, prefill: &str) -> String {
        let pool = |name: &str, port: u16, keys: &str| {
            format!("[[pool]]\nname = \"{name}\"\nreplicas = [\"http://127.0.0.1:{port}\"]\n{keys}\n")
        };
        let [p, d] = [pool("p", 1, roles[0]), pool("d", 2, roles[1])];
        format!("{p}{d}[[route]]\nmodel = \"m\"\n{route}\n[route.prefill]\n{prefill}\n")
    }

    fn first_fault(text: &str) -> Option<String> {
        let faults = check_str("f.toml", text, &|_| Some("key".to_owned())).err()?;
        faults.iter().next().map(|fault| fault.message.clone())
    }

    const ONE: [&str; 2] = ["revision = \"r\"\nrole = \"prefill\"", "revision = \"r\"\nrole = \"decode\""];

    const OUTSIDE: &str = "revision = \"r\"\nstandby = true\nengine = \"generic\"\nengine_api_key = \"env:KEY\"\n\
                           [pool.outside]\nmodel = \"x\"";

    #[test]
    fn a_prefill_pool_beside_a_decoding_one_is_taken() {
        let text = file(ONE, "pools = [\"d\"]", "pool = \"p\"\nmin_uncached_tokens = 512");
        let config = check_str("f.toml", &text, &|_| None).unwrap_or_else(|faults| panic!("{faults}"));
        let prefill = config.routes[0].prefill.clone().unwrap();
        assert_eq!((prefill.pool, prefill.min_uncached_tokens), (0, 512));
        assert_eq!((prefill.when, prefill.connector), (PrefillWhen::Auto, Connector::Nixl));
        assert_eq!(
            config.pools.iter().map(|pool| pool.role).collect::<Vec<_>>(),
            [Role::Prefill, Role::Decode]
        );
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let both = ["revision = \"r\"", "revision = \"r\""];
        for (roles, route, prefill, expected) in [
            (both, "pools = [\"d\"]", "pool = \"p\"", None),
            (both, "pools = [\"d\"]", "pool = \"p\"\nconnector = \"shared\"\nwhen = \"never\"", None),
            (
                ONE,
                "pools = [\"d\", \"p\"]",
                "pool = \"p\"",
                Some("pool \"p\" has role \"prefill\": it answers"),
            ),
            (
                both,
                "pools = [\"d\", \"p\"]",
                "pool = \"p\"",
                Some("the route's own pool cannot be its prefill"),
            ),
            (["", ""], "pools = [\"d\"]", "pool = \"p\"", Some("pool \"p\" has revision \"p\", and no pool")),
            (
                [
                    "revision = \"r\"\nrevision_info = { model = \"a\" }",
                    "revision = \"r\"\nrevision_info = { model = \"b\" }",
                ],
                "pools = [\"d\"]",
                "pool = \"p\"",
                Some("pools \"p\" and \"d\" state different models"),
            ),
            (
                ["role = \"decode\"\nrevision = \"r\"", "revision = \"r\""],
                "pools = [\"d\"]",
                "pool = \"p\"",
                Some("pool \"p\" has role \"decode\""),
            ),
            (
                [OUTSIDE, "revision = \"r\""],
                "pools = [\"d\"]\noutside = true",
                "pool = \"p\"",
                Some("pool \"p\" has [pool.outside]: a provider computes no prompts"),
            ),
            (both, "pools = [\"d\"]", "pool = \"q\"", Some("unknown pool \"q\"")),
            (both, "pools = [\"d\"]", "when = \"always\"", Some("[route.prefill] has no \"pool\"")),
            (both, "pools = [\"d\"]", "pool = \"p\"\nconnector = \"sglang\"\nbootstrap_port = 9000", None),
            (
                both,
                "pools = [\"d\"]\npolicy = \"prefix\"",
                "pool = \"p\"",
                Some("when = \"auto\" compares predictions"),
            ),
            (both, "pools = [\"d\"]\npolicy = \"prefix\"", "pool = \"p\"\nwhen = \"always\"", None),
        ] {
            let found = first_fault(&file(roles, route, prefill));
            let is_expected = match (&found, expected) {
                (Some(found), Some(expected)) => found.starts_with(expected),
                (found, expected) => found.is_none() && expected.is_none(),
            };
            assert!(is_expected, "{route} {prefill}: {found:?}");
        }
    }
}
