//! Admission rules: place, hold, queue or degrade a request, from routing's TTFT prediction and the route's policy. Pure.
//!
//! In a pool that queues, a request is sent when a replica begins on it at once or nearly so, and otherwise waits in the
//! gateway: there the order is ours, and what was sent keeps its prediction. Who would miss its bound because of those
//! before it is refused; who would miss it on an idle replica as well has no slack to lose and waits as best effort, with the
//! requests that have no bound. Predictions must be falsifiable: a pool without a first token for [`UNPROVED_AFTER`] that has
//! an idle replica gets the request whatever is predicted; otherwise one bad observation would close the route for good.

use std::time::Duration;

use super::outlook::{Outlook, Stay};
use crate::clock::Stamp;
use crate::config::QueueLimits;
use crate::routing::{Decision, Judged, Verdict};

/// Admission rules of a route, as they apply to one request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// `[route.queue]`; `None` refuses nobody.
    pub queue: Option<QueueLimits>,
    /// `[route.degrade]`, where this request may use it.
    pub degrade: Option<DegradeRule>,
    /// TTFT bound of an empty prompt; zero without a bound.
    pub base_ttft: Duration,
}

/// `[route.degrade]`, as it applies to one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DegradeRule {
    /// Index of the other route.
    pub to: usize,
    /// Above this multiple of the TTFT bound.
    pub over: f64,
}

/// Decision of admission on one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ruling {
    /// Send it to the replica that routing chose.
    Place,
    /// It has slack, and any placement now would break the ITL of running streams: wait.
    Hold,
    /// No replica has room for it, or others are before it: wait in the queue, or be refused by its limits.
    Queue(Outlook, Stay),
    /// Hand it to the route of `[route.degrade]`.
    Degrade,
}

/// Applies the rules to a request that routing has just judged; `is_shared` says whether the pool queues. `ahead` is the
/// predicted wait behind those that are before it in the queue, `None` if none is: asked once, because it takes a lock.
#[must_use]
pub fn rule(
    rules: &Rules,
    judged: &Judged<'_>,
    is_shared: bool,
    ahead: impl FnOnce(&Outlook) -> Option<Duration>,
) -> Ruling {
    let decision = match judged.verdict() {
        Verdict::Hold => return Ruling::Hold,
        Verdict::Place(decision) => decision,
    };
    if decision.predicted_ttft.is_none() || !(is_shared || rules.degrade.is_some()) {
        return Ruling::Place;
    }
    if judged.was_tried() || (judged.is_let_in() && !is_shared) || is_unproved(judged) {
        return Ruling::Place;
    }
    let lookahead = lookahead(rules);
    let outlook = outlook(rules, judged, decision, lookahead);
    let ahead = if is_shared { ahead(&outlook) } else { None };
    let aim = judged.aim();
    let own = seconds(decision.terms.prefill + decision.terms.base);
    let predicted = aim.waited + own + seconds(decision.terms.wait).max(ahead.unwrap_or_default());
    let is_over =
        |degrade: &DegradeRule| aim.slo.ttft.is_some_and(|bound| predicted > bound.mul_f64(degrade.over));
    if rules.degrade.as_ref().is_some_and(is_over) && !judged.is_let_in() {
        return Ruling::Degrade;
    }
    if !is_shared {
        return Ruling::Place;
    }
    let has_room = judged.has_room(lookahead);
    let is_in_time = aim.slo.ttft.is_none_or(|bound| predicted <= bound.mul_f64(SAFETY));
    // A late answer is better than none, but not where nobody may wait at all; and what nobody measured refuses nobody.
    let may_be_late = outlook.slack.is_none() && rules.queue.is_none_or(|queue| queue.max_requests > 0);
    if has_room && ahead.is_none() && (is_in_time || may_be_late || judged.is_let_in()) {
        return Ruling::Place;
    }
    Ruling::Queue(outlook, if has_room { Stay::Own } else { Stay::NoRoom })
}

fn outlook(rules: &Rules, judged: &Judged<'_>, decision: &Decision, lookahead: Duration) -> Outlook {
    let aim = judged.aim();
    let terms = &decision.terms;
    let own = seconds(terms.prefill + terms.base);
    let bound = aim.slo.ttft.unwrap_or_default();
    let spent = aim.waited + own;
    let left = |share: f64| bound.mul_f64(share).saturating_sub(spent);
    // What an untaught model predicts is no reason to refuse.
    let can_be_met = own <= bound.mul_f64(SAFETY) && (rules.queue.is_some() || !left(SAFETY).is_zero());
    let knows = !judged.is_let_in();
    let slack = can_be_met.then(|| if knows { left(ENTER).saturating_sub(lookahead) } else { left(SAFETY) });
    let read = Stamp::from_nanos(aim.now.as_nanos().saturating_sub(span_nanos(aim.waited)));
    Outlook {
        at: aim.now,
        drain: if knows { seconds(terms.wait).saturating_sub(lookahead) } else { Duration::ZERO },
        work: seconds(terms.turn),
        replicas: judged.candidates().len(),
        slack,
        latest: if can_be_met { aim.now.after(left(SAFETY)) } else { read },
        bound,
    }
}

/// How long before it can begin on a request a replica is sent it, so that it never runs dry.
fn lookahead(rules: &Rules) -> Duration {
    if rules.base_ttft.is_zero() {
        UNBOUNDED_LOOKAHEAD
    } else {
        rules.base_ttft.mul_f64(LOOKAHEAD).clamp(MIN_LOOKAHEAD, MAX_LOOKAHEAD)
    }
}

/// Whether the pool is due for a request that tests its predictions: silent for [`UNPROVED_AFTER`], one replica idle.
fn is_unproved(judged: &Judged<'_>) -> bool {
    judged.silence().is_some_and(|silence| silence >= UNPROVED_AFTER)
        && judged.candidates().iter().any(|candidate| candidate.requests < 1.0)
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).map_or(MAX_OUTLOOK, |time| time.min(MAX_OUTLOOK))
}

fn span_nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Fraction of its bound up to which a request counts as in time; the rest is a margin for prediction error.
const SAFETY: f64 = 0.9;
/// Fraction of its bound within which a request must be predicted to be answered to begin to wait: what waits may err.
const ENTER: f64 = 0.75;
/// Fraction of the empty-prompt bound that a request waits at a replica at most.
const LOOKAHEAD: f64 = 0.1;
/// The pool is looked at every ten milliseconds at the latest.
const MIN_LOOKAHEAD: Duration = Duration::from_millis(10);
/// Several steps of an engine that computes prompts: what waits there fills them.
const MAX_LOOKAHEAD: Duration = Duration::from_millis(200);
/// The same for requests without a bound: what they take is felt by the next ones with a bound.
const UNBOUNDED_LOOKAHEAD: Duration = Duration::from_millis(50);
/// Age of the last first token of a pool above which its predictions count as unproved.
const UNPROVED_AFTER: Duration = Duration::from_secs(10);
/// Upper bound of every prediction here, above any `max_wait` in use.
const MAX_OUTLOOK: Duration = Duration::from_secs(3600);
