//! The InferenceObjective that a request names: its priority orders the request in the queue.

use http::{HeaderMap, HeaderName};

use super::Gateway;
use super::table::RouteState;

/// The priority of the objective that these headers name, in the first pool of the route that has it. `None` where none is named, or no
/// pool follows any; one that no pool has is counted.
pub(super) fn priority(gateway: &Gateway, route: &RouteState, headers: &HeaderMap) -> Option<i32> {
    let mut followed = route.pools.iter().filter(|pool| pool.objectives.are_followed());
    let first = followed.clone().next()?;
    let name = HEADERS.iter().find_map(|name| headers.get(name))?;
    let name = name.to_str().unwrap_or_default();
    let known = followed.find_map(|pool| pool.objectives.priority(name));
    if known.is_none() {
        gateway.observer.metrics.families.routes.unknown_objectives.inc([&*route.config.name]);
        if first.objectives.note_missed() {
            let pool = &*first.name;
            tracing::warn!(pool, "a request names an InferenceObjective that the pool does not have");
        }
    }
    known
}

/// llm-d's, then the extension's, which llm-d takes as well.
const HEADERS: [HeaderName; 2] = [
    HeaderName::from_static("x-llm-d-inference-objective"),
    HeaderName::from_static("x-gateway-inference-objective"),
];
