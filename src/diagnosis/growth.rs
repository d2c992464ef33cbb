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
    let sum = |slot: &Slot| slot.parts_of(dimension).map(|(_, part)| part.prompt_tokens).sum::<u64>() as f64;
    let (all_now, all_past) = (sum(minute), sum(before));
    if before.requests < MIN_BEFORE || all_now <= 0.0 || all_past <= 0.0 {
        return None;
    }
    let per_second = |tokens: f64, seconds: f64| tokens / seconds.max(1.0);
    let named = minute.parts_of(dimension).filter(|(name, _)| ***name != *OTHER);
    named
        .filter_map(|(name, part)| {
            let tokens = part.prompt_tokens as f64;
            let earlier = before.of(dimension, name).map_or(0.0, |part| part.prompt_tokens as f64);
            let (own, was) = (tokens / all_now, earlier / all_past);
            let rate_grew = per_second(tokens, 60.0) >= 2.0 * per_second(earlier, before_seconds);
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
