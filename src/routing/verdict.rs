//! Place it now or wait a moment: what a decision is worth, by the request's SLO.
//!
//! [`judge`] asks [`super::decide`] and holds the answer against the bounds. *Pacing* may speak against placing at once: every
//! place would push streams over their bound on time per token while this request still has time to spare; then a moment
//! of waiting lets running streams win slack with every token. Only where the request itself has a bound on its time per token.
//! Waiting itself, its order, and what becomes of a request that will be late (queue, degrade, refuse) are the caller's
//! affair: nothing in here waits or counts.

use super::{Candidate, Decision, Policy, Query, decide};
use crate::routing::tuning::prices;

/// What to do with a request now.
#[derive(Clone, Copy, Debug)]
pub enum Verdict {
    /// Send it.
    Place(Decision),
    /// Keep it: it has time, and any placement now, as this best one, would break streams. To be judged again a few milliseconds later.
    Hold(Decision),
}

/// Decides as [`decide`] does and says whether the decision should be acted on now. `None` without a candidate.
///
/// Pure, and cheap enough to be asked again for every waiting request whenever something changed. A policy that
/// predicts nothing always places.
pub(super) fn judge(
    policy: &dyn Policy,
    query: &Query<'_>,
    candidates: &mut [Candidate<'_>],
) -> Option<Verdict> {
    let decision = decide(policy, query, candidates)?;
    let aim = &query.aim;
    let is_held = aim.slo.ttft.zip(decision.predicted_ttft).is_some_and(|(bound, predicted)| {
        let has_time = aim.waited + predicted < bound.mul_f64(aim.patience.clamp(0.0, 1.0));
        // A wait helps only as far as streams gain by it: each token wins them what a step leaves of the bound.
        let saved = decision.terms.harm * decision.terms.slack;
        has_time && aim.slo.tpot.is_some() && saved > prices::PACING_HARM
    });
    Some(if is_held { Verdict::Hold(decision) } else { Verdict::Place(decision) })
}
