//! A second opinion on an answer of nothing.
//!
//! A replica that ends every answer at once is quick, and draws traffic. Where a replica gives more empty answers than its pool's
//! others, the same prompt goes to another one before the client gets anything. If that one has text, the first has failed; if not,
//! nothing is what the prompt asks for.

use super::attempt::UpstreamResponse;
use super::exchange::{Answered, Doubted, Exchange};
use super::picker;
use crate::error::ReplicaFailure;
use crate::fleet::pick::Pick;
use crate::record::EmptyAnswer;

impl Exchange {
    /// Returns the answer, or holds it back if it is empty and another replica should be asked.
    pub(super) fn trust(&mut self, answered: Answered) -> Result<Answered, Box<Doubted>> {
        let (answer, active) = &answered;
        if !self.note_empty(answer) {
            return Ok(answered);
        }
        let is_of_replica = active.pick.empty();
        let empty = if is_of_replica { EmptyAnswer::OfReplica } else { EmptyAnswer::Usual };
        self.guard.record().empty = Some(empty);
        if !is_of_replica || !self.may_ask_again(&active.pick) {
            return Ok(answered);
        }
        active.watch.close();
        let attempt = self.guard.record().attempts.len().saturating_sub(1);
        Err(Box::new(Doubted { answered, attempt }))
    }

    /// Compares it with what another replica answered; returns what the client gets.
    pub(super) fn settle(&mut self, first: Doubted, second: Answered) -> Answered {
        let record = self.guard.record();
        if second.0.is_error(record.dialect, record.owes_answer()) {
            if let Some(failure) = self.blamed(&second) {
                second.1.pick.failed(&failure, self.gateway().clock.now());
            }
            return self.keep(first);
        }
        let is_empty = self.note_empty(&second.0);
        let pick = &first.answered.1.pick;
        let failure = ReplicaFailure::EmptyAnswer { replica: pick.replica.name() };
        let record = self.guard.record();
        record.empty = is_empty.then_some(EmptyAnswer::Usual);
        if let Some(attempt) = record.attempts.get_mut(first.attempt) {
            attempt.error = (!is_empty).then_some(failure.code());
            attempt.is_canceled = is_empty;
        }
        if is_empty {
            second.1.pick.empty();
        } else {
            pick.failed(&failure, self.gateway().clock.now());
        }
        second
    }

    /// No other replica answered: it is all that there is.
    pub(super) fn keep(&mut self, first: Doubted) -> Answered {
        let record = self.guard.record();
        if first.attempt < record.attempts.len() {
            let attempt = record.attempts.remove(first.attempt);
            record.at.first_byte = attempt.head;
            record.attempts.push(attempt);
        }
        record.empty = Some(EmptyAnswer::OfReplica);
        first.answered
    }

    fn note_empty(&mut self, answer: &UpstreamResponse) -> bool {
        let record = self.guard.record();
        let is_empty = answer.is_empty_answer(record.dialect);
        if let Some(attempt) = record.attempts.last_mut() {
            attempt.is_empty = is_empty;
        }
        is_empty
    }

    fn may_ask_again(&mut self, pick: &Pick) -> bool {
        let now = self.gateway().clock.now();
        picker::note_tried(&mut self.tried, pick);
        let retry = &self.prepared.table.config.retry;
        !self.prepared.is_sent_once
            && self.prepared.pinned.is_none()
            && self.prepared.carrier.is_none()
            && retry.attempts > 0
            && !std::mem::replace(&mut self.retried_started, true)
            && pick.pool.retries.withdraw(retry.min_per_second, now)
    }
}
