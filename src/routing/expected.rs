//! What a request of mean work would meet that arrives now: the prediction that scaling asks for.

use std::sync::Arc;
use std::time::Duration;

use super::{Ask, Dispatcher, EngineLimits, Prompt, Sampling, SlotSet, Target, Typical, Verdict, policies};
use crate::clock::Stamp;
use crate::config::PolicyName;
use crate::units::Tokens;

/// Times of a mean request at the replica that the policy `latency` would choose.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// From its turn to its first token.
    pub first_token: Duration,
    /// For its turn, behind what the replica has.
    pub wait: Duration,
    /// That it takes of the replica.
    pub work: Duration,
    /// Replicas that it could go to.
    pub replicas: usize,
}

impl Expected {
    /// `None` where there is no target.
    pub fn at<'t>(
        dispatcher: &Arc<Dispatcher>,
        limits: &EngineLimits,
        targets: impl Iterator<Item = &'t Target>,
        typical: &Typical,
        now: Stamp,
    ) -> Option<Self> {
        let tokens = Tokens(typical.uncached as u64);
        let tried = SlotSet::new();
        let max_tokens = Some(Tokens(typical.output.ceil() as u64));
        let sampling = Sampling { max_tokens, ..Sampling::default() };
        let ask = Ask { sampling, ..Ask::of(Prompt { tokens, ..Prompt::default() }, &tried) };
        // Collected, so that they may be lent for as short as the question.
        let targets: Vec<&Target> = targets.collect();
        let policy = policies::named(PolicyName::Latency);
        let judged = dispatcher.judge(&*policy, &ask, limits, now, targets.into_iter())?;
        let Verdict::Place(decision) = &judged.verdict else { return None };
        let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds.max(0.0)).ok();
        let terms = &decision.terms;
        Some(Self {
            first_token: seconds(terms.prefill + terms.base)?,
            wait: seconds(terms.wait)?,
            work: seconds(terms.turn)?,
            replicas: judged.candidates.len(),
        })
    }
}
