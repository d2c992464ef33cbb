//! Whose load has grown: a tenant that floods, a class of prompts; pure.

use std::sync::Arc;

use super::figures::share;
use super::table::FLOOD;
use crate::labels::OTHER;
use crate::observe::history::{Dimension, Slot};

/// The tenant or class whose share of the prompt tokens has at least doubled to a large one, while the load as a whole grew, with the
/// evidence: in the last minute, against these seconds before.
pub(super) fn grown(
    minute: &Slot,
    (before, before_seconds): (&Slot, f64),
    dimension: Dimension,
) -> Option<(Arc<str>, String)> {
    let tokens = |slot: &Slot| -> Vec<(Arc<str>, f64)> {
        let parts = slot.parts_of(dimension);
        parts.map(|(name, part)| (Arc::clone(name), part.prompt_tokens as f64)).collect()
    };
    let (now, past) = (tokens(minute), tokens(before));
    let sum = |all: &[(Arc<str>, f64)]| all.iter().map(|(_, tokens)| tokens).sum::<f64>();
    let (all_now, all_past) = (sum(&now), sum(&past));
    if before.requests < MIN_BEFORE || all_now <= 0.0 || all_past <= 0.0 {
        return None;
    }
    let per_second = |tokens: f64, seconds: f64| tokens / seconds.max(1.0);
    now.iter()
        .filter(|(name, _)| **name != *OTHER)
        .filter_map(|(name, tokens)| {
            let earlier = past.iter().find(|(known, _)| known == name).map_or(0.0, |(_, tokens)| *tokens);
            let (own, was) = (tokens / all_now, earlier / all_past);
            let rate_grew = per_second(*tokens, 60.0) >= 2.0 * per_second(earlier, before_seconds);
            let is_it = own >= FLOOD && (own >= 2.0 * was || own - was >= 0.25) && rate_grew;
            let evidence = || match dimension {
                Dimension::Class => {
                    format!("prompts are {} of the prompt tokens, {} before", share(own), share(was))
                }
                _ => format!("sends {} of the prompt tokens, {} before", share(own), share(was)),
            };
            is_it.then(|| (own, (Arc::clone(name), evidence())))
        })
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, found)| found)
}

/// Requests before the last minute: fewer are no share.
const MIN_BEFORE: u32 = 10;
