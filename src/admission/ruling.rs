//! Admission rules: place, hold, queue or degrade a request, from routing's TTFT prediction and the route's policy. Pure.
//!
//! A late request (`waited + predicted TTFT > bound`) is placed only when the best replica's wait plus its own prefill
//! leaves headroom for a fresh request, so that it does not make others late. This includes requests that can no longer
//! meet their SLO: on an idle fleet they go out at once. Predictions must be falsifiable: a pool without a first token for
//! [`UNPROVED_AFTER`] that has an idle replica gets the request whatever is predicted; otherwise one bad observation would
//! close the route for good.

use std::time::Duration;

use crate::config::{Degrade, QueueLimits};
use crate::routing::{Aim, Decision, Judged, TOLERATED_HARM, Verdict};

/// Admission rules of a route, as they apply to one request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// `[route.queue]`; `None` places late requests as well.
    pub queue: Option<QueueLimits>,
    /// `[route.degrade]`, where this request may use it.
    pub degrade: Option<Degrade>,
    /// TTFT bound of an empty prompt: the tightest that a fresh request may have.
    pub base_ttft: Duration,
}

/// Decision of admission on one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ruling {
    /// Send it to the replica that routing chose.
    Place,
    /// It has slack, and any placement now would break the ITL of running streams: wait.
    Hold,
    /// No replica can meet its TTFT bound: wait in the queue, or be refused by its limits.
    Queue(Outlook),
    /// Hand it to the route of `[route.degrade]`.
    Degrade,
}

/// Prediction for a waiting request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outlook {
    /// Time until it can be placed if no other request arrives.
    pub drain: Duration,
    /// Prefill time that it adds to the wait of the requests behind it: prefill / replicas.
    pub work: Duration,
}

impl Outlook {
    /// `Retry-After`: [`Self::drain`], clamped to 1 to 60 s.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        self.drain.clamp(MIN_RETRY, MAX_RETRY)
    }

    /// The same behind a queue whose work takes `ahead`.
    #[must_use]
    pub fn behind(self, ahead: Duration) -> Self {
        Self { drain: self.drain.saturating_add(ahead), ..self }
    }
}

/// Applies the rules to a request that routing has just judged. `is_behind_others` says whether a late request with an
/// earlier deadline waits; evaluated only if the request is late, because it takes the queue's lock.
#[must_use]
pub fn rule(rules: &Rules, judged: &Judged<'_>, is_behind_others: impl FnOnce() -> bool) -> Ruling {
    let decision = match judged.verdict() {
        Verdict::Hold { .. } => return Ruling::Hold,
        Verdict::Place(decision) => decision,
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
            let outlook = outlook(decision, rules.base_ttft, judged.candidates().len());
            let may_go = queue.max_requests > 0
                && outlook.drain.is_zero()
                && decision.terms.harm <= TOLERATED_HARM
                && !is_behind_others();
            if may_go { Ruling::Place } else { Ruling::Queue(outlook) }
        }
        _ => Ruling::Place,
    }
}

/// Whether `waited + predicted > SAFETY * bound`. Under overload admission fills the fleet up to exactly this threshold,
/// and a request placed right at its bound misses it every second time.
fn is_late(aim: &Aim, decision: &Decision) -> bool {
    aim.slo
        .ttft
        .zip(decision.predicted_ttft)
        .is_some_and(|(bound, predicted)| aim.waited + predicted > bound.mul_f64(SAFETY))
}

/// Whether the pool is due for a request that tests its predictions: silent for [`UNPROVED_AFTER`], one replica idle.
fn is_unproved(judged: &Judged<'_>) -> bool {
    judged.silence().is_none_or(|silence| silence >= UNPROVED_AFTER)
        && judged.candidates().iter().any(|candidate| candidate.requests < 1.0)
}

fn outlook(decision: &Decision, base_ttft: Duration, replicas: usize) -> Outlook {
    let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(MAX_OUTLOOK);
    let prefill = seconds(decision.terms.prefill);
    // A prompt longer than the headroom is placed once the replica's wait is below FREE.
    let max_wait = base_ttft.mul_f64(HEADROOM).saturating_sub(prefill).max(base_ttft.mul_f64(FREE));
    Outlook {
        drain: seconds(decision.terms.wait).saturating_sub(max_wait).min(MAX_OUTLOOK),
        work: seconds(decision.terms.prefill / replicas.max(1) as f64).min(MAX_OUTLOOK),
    }
}

/// Fraction of the empty-prompt bound that (wait + own prefill) of a late request may use on the best replica, so that a
/// fresh request is still in time. (With the wait alone, an offered load of twice the capacity made every request late.)
const HEADROOM: f64 = 0.5;
/// Fraction of that bound below which a replica's wait counts as zero.
const FREE: f64 = 0.05;
/// Fraction of its bound up to which a request counts as in time; the rest is a margin for prediction error.
const SAFETY: f64 = 0.95;
/// Age of the last first token of a pool above which its predictions count as unproved.
const UNPROVED_AFTER: Duration = Duration::from_secs(10);
const MIN_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(60);
/// Upper bound of every prediction here, above any `max_wait` in use.
const MAX_OUTLOOK: Duration = Duration::from_secs(3600);
