//! `[pool.outside]`: another house's OpenAI-compatible API as the last pool of a route.

use std::sync::Arc;

use super::check::section::Section;
use super::check::values::MODEL;
use super::declare::{Declared, section};
use super::{EngineKind, Pool};

section! {
    /// another house's OpenAI-compatible API: with standby = true, engine = "generic", engine_api_key; only for routes with outside = true
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Outside for "[pool.outside]", optional {
        /// required: what it calls the model, whatever the route calls it
        model: Arc<str> as MODEL, required "gpt-4o-mini";
        /// requests that it gets at most; a minute's may come at once
        requests_per_minute: Option<u64> as 1..=1_000_000_000, example 60;
        /// of prompts and answers: as predicted while a request runs, then by the provider's usage
        tokens_per_minute: Option<u64> as 1..=1_000_000_000_000, example 200000;
    }
}

/// Reads `[pool.outside]`, and what must hold of a pool that has it.
pub(super) fn outside(section: &Section<'_>, pool: &Pool) -> Option<Outside> {
    let (own, outside) = Outside::opened(section)?;
    own.expect("model", MODEL.hint);
    for (holds, message, hint) in [
        (
            pool.standby,
            "a pool with [pool.outside] takes traffic only while the house's own cannot",
            "set standby = true",
        ),
        (
            pool.engine == EngineKind::Generic,
            "a pool with [pool.outside] has no engine of this house",
            "set engine = \"generic\"",
        ),
        (
            pool.engine_api_key.is_some(),
            "a pool with [pool.outside] has no key of its own: clients' keys are never sent there",
            "set engine_api_key = \"env:NAME\" or \"file:PATH\"",
        ),
    ] {
        if !holds {
            section.fault(message, hint);
        }
    }
    Some(outside)
}
