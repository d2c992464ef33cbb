//! Send it, let it wait, or let another route answer: the rules of a route on what routing predicts. Pure.
//!
//! A late request is not sent while others could still be in time: it gets a replica when the wait there, its own prompt
//! included, leaves room for a fresh one. A request that no waiting would help goes out when there is room, too: on an idle
//! fleet, late is better than never. And predictions must be falsifiable: a pool that has answered nobody for [`UNPROVED`] and
//! has an idle replica gets the request whatever is predicted, else one bad observation would close the route for good.

use std::time::Duration;

use crate::config::{Degrade, Queue};
use crate::routing::{Aim, Decision, Judged, TOLERATED_HARM, Verdict};

/// What a route asks of admission.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// `[route.queue]`; without it late requests are sent all the same.
    pub queue: Option<Queue>,
    /// `[route.degrade]`, where this request may use it.
    pub degrade: Option<Degrade>,
    /// The TTFT bound of an empty prompt: what a fresh request may have to meet.
    pub quick: Duration,
}

/// What to do with a request now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ruling {
    /// Send it.
    Place,
    /// It has time, and any placement now would break streams: it waits for a better moment.
    Hold,
    /// No replica can answer it in time: it waits in the queue, or is refused by its limits.
    Queue(Outlook),
    /// Another route answers.
    Degrade,
}

/// What is predicted for a request that waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outlook {
    /// Until there is room for it, if nothing else came.
    pub drain: Duration,
    /// What its prompt adds to the wait of those behind it.
    pub work: Duration,
}

impl Outlook {
    /// When to come back: of use to a client, and never beyond what a prediction can mean.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        self.drain.clamp(MIN_RETRY, MAX_RETRY)
    }

    /// With those that wait before it.
    #[must_use]
    pub fn behind(self, ahead: Duration) -> Self {
        Self { drain: self.drain.saturating_add(ahead), ..self }
    }
}

/// What a route wants done with a request that was judged just now. `is_behind_others` says whether other late requests
/// come first; it is asked only where that matters.
#[must_use]
pub fn rule(rules: &Rules, judged: &Judged<'_>, is_behind_others: impl FnOnce() -> bool) -> Ruling {
    let decision = match judged.verdict() {
        Verdict::Hold { .. } => return Ruling::Hold,
        Verdict::Place(decision) | Verdict::Hopeless { decision, .. } => decision,
    };
    let aim = judged.aim();
    let (Some(bound), Some(predicted)) = (aim.slo.ttft, decision.predicted_ttft) else {
        return Ruling::Place;
    };
    let is_late = is_late(aim, decision);
    if (!is_late && rules.degrade.is_none()) || judged.is_let_in() || is_unproved(judged) {
        return Ruling::Place;
    }
    let is_over = |degrade: &Degrade| aim.waited + predicted > bound.mul_f64(degrade.over);
    if rules.degrade.as_ref().is_some_and(is_over) {
        return Ruling::Degrade;
    }
    match rules.queue {
        Some(queue) if is_late => {
            let outlook = outlook(decision, rules.quick, judged.candidates().len());
            let may_go = queue.max_requests > 0
                && outlook.drain.is_zero()
                && decision.terms.harm <= TOLERATED_HARM
                && !is_behind_others();
            if may_go { Ruling::Place } else { Ruling::Queue(outlook) }
        }
        _ => Ruling::Place,
    }
}

/// Whether a request counts as late. Under overload, admission fills the fleet up to just this bound, and a request at the
/// edge of its SLO misses it every second time: hence the margin.
fn is_late(aim: &Aim, decision: &Decision) -> bool {
    aim.slo
        .ttft
        .zip(decision.predicted_ttft)
        .is_some_and(|(bound, predicted)| aim.waited + predicted > bound.mul_f64(SAFE))
}

/// Predictions must be falsifiable: a pool that has answered nobody for a while and has an idle replica gets the request.
fn is_unproved(judged: &Judged<'_>) -> bool {
    judged.silence().is_none_or(|silence| silence >= UNPROVED)
        && judged.candidates().iter().any(|candidate| candidate.requests < 1.0)
}

fn outlook(decision: &Decision, quick: Duration, replicas: usize) -> Outlook {
    let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(FAR);
    let prefill = seconds(decision.terms.prefill);
    // What is longer than all the room there is goes when next to nothing is before it.
    let may_wait = quick.mul_f64(ROOM).saturating_sub(prefill).max(quick.mul_f64(FREE));
    Outlook {
        drain: seconds(decision.terms.wait).saturating_sub(may_wait).min(FAR),
        work: seconds(decision.terms.prefill / replicas.max(1) as f64).min(FAR),
    }
}

/// The share of the bound of an empty prompt that a late request and what is before it may take of the best replica's time:
/// what comes fresh then is still in time. (Without the request itself in it, twice as much as a fleet can do made all late.)
const ROOM: f64 = 0.5;
/// The share of that bound below which a replica counts as free.
const FREE: f64 = 0.05;
/// The share of its bound up to which a request is in time: what is left is for what a prediction errs by.
const SAFE: f64 = 0.95;
/// A pool that has not answered for so long has nothing to be judged by.
const UNPROVED: Duration = Duration::from_secs(10);
const MIN_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(60);
/// Longer than anybody waits.
const FAR: Duration = Duration::from_secs(3600);
