//! Admission rules: place, hold, queue or degrade a request, from routing's TTFT prediction and the route's policy. Pure.
//!
//! A request is sent when a replica begins on it at once or nearly so, and otherwise waits in the gateway: there the order is
//! ours, and what was sent keeps its prediction. Where no route of the pool has a `[route.queue]` only our own prompts are waited
//! for, and nobody is refused: who cannot meet its bound any more waits as best effort, with the requests that have none. Where one
//! has, who would miss its bound because of those before it is refused, and who would miss it on an idle replica as well is best effort. Predictions must be falsifiable: a pool without a first token for [`memories::RECENT`] that has
//! an idle replica, or was sent nothing for as long, gets the request whatever is predicted; otherwise one bad observation would close the route for good.

use std::time::Duration;

use super::outlook::{Deferral, Outlook};
use super::queue::Line;
use super::waiter::{WaitReason, Waiter};
use crate::clock::Stamp;
use crate::config::QueueLimits;
use crate::routing::tuning::{memories, prices, priors};
use crate::routing::{Decision, Judged, Verdict, span};

/// Admission rules of a route, as they apply to one request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// `[route.queue]`; without it nothing is refused.
    pub queue: Option<QueueLimits>,
    /// `[route.degrade]`, where this request may use it.
    pub degrade: Option<DegradeRule>,
    /// TTFT bound of an empty prompt; zero without a bound.
    pub base_ttft: Duration,
    /// Whether only one replica can answer it: then there is no other order than that of this replica's queue, unless the pool's
    /// is strict.
    pub is_pinned: bool,
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
    /// Wait in the queue, or be refused by its limits.
    Wait(WaitReason, Outlook, Deferral),
    /// Hand it to the route of `[route.degrade]`.
    Degrade,
}

/// Applies the rules to a request that routing has just judged; `is_strict`: a route of the pool has a `[route.queue]`. `arriving`
/// makes a waiter of it, or nothing where the queue itself called it: then it is the first.
pub fn rule(
    rules: &Rules,
    judged: &Judged<'_>,
    is_strict: bool,
    line: &mut impl Line,
    arriving: impl FnOnce(Outlook) -> Option<Waiter>,
) -> Ruling {
    let decision = match &judged.verdict {
        Verdict::Hold(_) => return Ruling::Wait(WaitReason::Held, held(judged), Deferral::Request),
        Verdict::Place(decision) => decision,
    };
    if decision.predicted_ttft.is_none() {
        return Ruling::Place;
    }
    if judged.query.ask.is_past_engine
        || !judged.query.ask.tried.is_empty()
        || (judged.bypasses_admission && !is_strict)
        || is_unproved(judged)
    {
        return Ruling::Place;
    }
    let lookahead = lookahead(rules, judged.step());
    let outlook = outlook(rules, judged, decision, Spare { lookahead, is_strict });
    let arriving = arriving(outlook);
    let ahead = arriving.as_ref().and_then(|waiter| line.ahead(waiter));
    let aim = &judged.query.aim;
    let own = span(decision.terms.prefill + decision.terms.base);
    let predicted = aim.waited + own + span(decision.terms.wait).max(ahead.unwrap_or_default());
    let is_over =
        |degrade: &DegradeRule| aim.slo.ttft.is_some_and(|bound| predicted > bound.mul_f64(degrade.over));
    if rules.degrade.as_ref().is_some_and(is_over) && !judged.bypasses_admission {
        return Ruling::Degrade;
    }
    let has_room = if is_strict { judged.has_room(lookahead) } else { judged.runs_dry(lookahead) };
    let is_in_time = aim.slo.ttft.is_none_or(|bound| predicted <= bound.mul_f64(IN_TIME));
    // A late answer is better than none, but not where nobody may wait at all; and what nobody measured refuses nobody.
    let may_be_late = outlook.slack.is_none() && rules.queue.is_none_or(|queue| queue.max_requests > 0);
    let is_next = has_room && ahead.is_none();
    if is_next && (!is_strict || is_in_time || may_be_late || judged.bypasses_admission)
        || rules.is_pinned && !is_strict
    {
        if let Some(waiter) = &arriving {
            line.passed(waiter, aim.now);
        }
        return Ruling::Place;
    }
    let stay = if has_room { Deferral::Request } else { Deferral::NoCapacity };
    Ruling::Wait(WaitReason::Late, outlook, stay)
}

/// What is allowed for.
#[derive(Clone, Copy)]
struct Spare {
    /// See [`lookahead`].
    lookahead: Duration,
    /// Whether first tokens may come as much later than predicted as they do.
    is_strict: bool,
}

fn outlook(rules: &Rules, judged: &Judged<'_>, decision: &Decision, spare: Spare) -> Outlook {
    let (aim, terms, lookahead) = (&judged.query.aim, &decision.terms, spare.lookahead);
    let bound = aim.slo.ttft.unwrap_or_default();
    let (first, whole) = (terms.prefill + terms.base, terms.prefill + terms.base + terms.decode);
    // Without a stream the answer is seen at its end: it is to be there by then where the bound has time for all of it.
    let is_whole = !judged.query.ask.shows_first_token && span(whole) <= bound.mul_f64(IN_TIME);
    let own = span(if is_whole { whole } else { first });
    // What is sent is begun on within the lookahead, but what predictions err by has to fit in as well.
    // Errors beyond that are of others' waits: they would refuse who is first in line.
    let most = bound.mul_f64(1.0 - prices::ENTER);
    let late_by = if spare.is_strict { judged.late_by(own).min(most) } else { Duration::ZERO };
    let spent = aim.waited + own + late_by;
    let left = |share: f64| bound.mul_f64(share).saturating_sub(spent);
    // What an untaught model predicts is no reason to refuse.
    // Where nobody is refused, who has little time left goes behind those that have more: what is begun on at the last moment is late.
    let can_be_met =
        own <= bound.mul_f64(IN_TIME) && (rules.queue.is_some() || !left(prices::ENTER).is_zero());
    let knows = !judged.bypasses_admission;
    let slack =
        can_be_met.then(|| if knows { left(prices::ENTER).saturating_sub(lookahead) } else { left(IN_TIME) });
    let read = Stamp::from_nanos(aim.now.as_nanos().saturating_sub(span_nanos(aim.waited)));
    Outlook {
        at: aim.now,
        drain: if knows { span(terms.wait).saturating_sub(lookahead) } else { Duration::ZERO },
        work: span(terms.turn),
        replicas: judged.candidates.len(),
        slack,
        latest: if can_be_met { aim.now.after(left(IN_TIME)) } else { read },
        bound,
        is_held_back: spare.is_strict && judged.is_held_back(lookahead),
    }
}

/// Of a request that is held for the sake of running streams.
fn held(judged: &Judged<'_>) -> Outlook {
    let aim = &judged.query.aim;
    let left = aim.slo.ttft.unwrap_or_default().saturating_sub(aim.waited);
    Outlook { at: aim.now, slack: Some(Duration::ZERO), latest: aim.now.after(left), ..Outlook::default() }
}

/// How long before it can begin on a request a replica is sent it, so that it never runs dry. A step takes what waits when it begins,
/// and costs `step` however little that is: where prompts are short and engines slow, a tight bound alone would leave steps half empty.
fn lookahead(rules: &Rules, step: Duration) -> Duration {
    let by_bound = if rules.base_ttft.is_zero() {
        prices::MAX_LOOKAHEAD / 4
    } else {
        rules.base_ttft.mul_f64(priors::ERROR).max(MIN_LOOKAHEAD)
    };
    by_bound.max(step.saturating_mul(prices::FILLED_STEPS)).min(prices::MAX_LOOKAHEAD)
}

/// Whether the pool is due for a request that tests its predictions: silent for [`memories::RECENT`], and one replica idle, or
/// nothing sent for as long.
fn is_unproved(judged: &Judged<'_>) -> bool {
    let is_long = |span: Option<Duration>| span.is_some_and(|span| span >= memories::RECENT);
    let is_idle = || judged.candidates.iter().any(|candidate| candidate.requests < 1.0);
    is_long(judged.dispatcher.silence(judged.query.aim.now)) && (is_long(judged.pause()) || is_idle())
}

fn span_nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// The pool is looked at every ten milliseconds at the latest.
const MIN_LOOKAHEAD: Duration = Duration::from_millis(10);
/// Fraction of its bound up to which a request counts as in time; the rest is a margin for prediction error.
const IN_TIME: f64 = 1.0 - priors::ERROR;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::queue::WaitQueue;
    use crate::clock::{millis, seconds as at};
    use crate::config::PolicyName;
    use crate::routing::policies::named;
    use crate::routing::{Ask, Dispatcher, EngineLimits, Prompt, SlotSet, Target, TimingSample, Work};
    use crate::units::Tokens;

    #[test]
    fn what_waits_for_proof_that_an_idle_engine_runs_more_waits_for_no_room() {
        let (dispatcher, target, tried) = (Dispatcher::new(1), Target::new(0, 1), SlotSet::new());
        let limits = EngineLimits { scrape_interval: Duration::from_secs(1), batch_limit: None };
        let policy = named(PolicyName::Latency);
        let ask = Ask::of(Prompt::default(), &tried);
        let known = EngineLimits { batch_limit: Some(8), ..limits };
        let judge =
            |limits| dispatcher.judge(&*policy, &ask, limits, at(1), std::iter::once(&target)).unwrap();
        let waits =
            |judged: &Judged<'_>| (judged.has_room(Duration::MAX), judged.is_held_back(Duration::MAX));
        let sent = [0, 1].map(|_| judge(&limits).assign().unwrap());
        assert_eq!(waits(&judge(&limits)), (false, true));
        assert_eq!(waits(&judge(&known)), (true, false));
        drop(sent);
        assert_eq!(waits(&judge(&limits)), (true, false));
    }

    #[test]
    fn a_pool_that_has_lost_what_it_was_sent_is_sent_another_request_and_those_lost_are_waited_for_no_more() {
        let (dispatcher, target, tried) = (Dispatcher::new(1), Target::new(0, 1), SlotSet::new());
        for n in 0..200 {
            let (tokens, busy) = (100 * (1 + n % 7), millis(20 + 10 * (1 + n % 7)).since(millis(0)));
            let work = Work::of(Tokens(tokens), Tokens(0));
            let sample = TimingSample { work, busy, was_idle: false, context: 0, at: at(1) };
            dispatcher.model.observe(0, &sample);
        }
        dispatcher.answered(at(1));
        let limits = EngineLimits { scrape_interval: Duration::from_secs(1), batch_limit: Some(64) };
        let policy = named(PolicyName::Latency);
        let prompt = Prompt { bytes: 16_000, tokens: Tokens(4000), ..Prompt::default() };
        let ask = Ask::of(prompt, &tried);
        let judged = |now| dispatcher.judge(&*policy, &ask, &limits, now, std::iter::once(&target)).unwrap();
        let is_sent = |now| {
            let mut line = WaitQueue::<u64>::default();
            rule(&Rules::default(), &judged(now), false, &mut line, |_| None) == Ruling::Place
        };
        assert!(is_sent(at(1)));
        let lost = [0, 1].map(|_| judged(at(1)).assign().unwrap());
        assert!(!is_sent(at(2)) && !is_sent(at(10)) && is_sent(at(11)));
        let mut answered = judged(at(11)).assign().unwrap();
        assert!(!is_sent(at(12)) && !is_sent(at(20)), "one at a time");
        answered.first_token(at(12));
        let targets = || std::iter::once(&target);
        dispatcher.refresh(targets(), targets(), &limits, at(12));
        assert!(is_sent(at(12)), "it overtook those that were lost");
        drop(lost);
    }
}
