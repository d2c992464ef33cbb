//! A second opinion on an answer that may be its prompt's doing: one of nothing, or a refusal of the request as wrong.
//!
//! A replica that ends or refuses every answer at once is quick, and draws traffic. Where a replica gives more such answers than its
//! pool's others, the same prompt goes to another one before the client gets anything. If that one has an answer, the first has failed;
//! if not, it is what the prompt asks for. So what clients do wrong speaks against no replica, wherever their requests go.

use http::StatusCode;

use super::attempt::UpstreamResponse;
use super::exchange::{Answered, Doubted, Exchange};
use super::picker;
use crate::error::ReplicaFailure;
use crate::fleet::pick::Pick;
use crate::record::EmptyAnswer;

impl Doubted {
    /// The replica that gave it.
    pub(super) fn pick(&self) -> &Pick {
        &self.answered.1.pick
    }

    fn refusal(&self) -> Option<u16> {
        refusal(&self.answered.0)
    }

    /// Another replica answered alike.
    fn confirmed(&self, (_, second): &Answered) {
        self.pick().confirmed();
        second.pick.doubtful();
    }
}

impl Exchange {
    /// Returns the answer, or holds it back if another replica should be asked.
    pub(super) fn trust(&mut self, answered: Answered) -> Result<Answered, Box<Doubted>> {
        let (answer, active) = &answered;
        let is_empty = self.note_empty(answer);
        let is_refusal = refusal(answer).is_some();
        if let Some(tokens) = self.prepared.length() {
            active.pick.pool.note_length(tokens, is_refusal);
        }
        if is_refusal {
            // It computed nothing of the prompt: no request is to follow it for a cache.
            active.pick.assignment.withdrawn(self.prepared.prompt.chain.hashes());
        }
        if !is_empty && !is_refusal {
            return Ok(answered);
        }
        let is_of_replica = active.pick.doubtful();
        if is_empty {
            let empty = if is_of_replica { EmptyAnswer::OfReplica } else { EmptyAnswer::Usual };
            self.guard.record().empty = Some(empty);
        }
        if !is_of_replica || !self.may_ask_again(&active.pick) {
            return Ok(answered);
        }
        active.watch.close();
        let attempt = self.guard.record().attempts.len().saturating_sub(1);
        Err(Box::new(Doubted { answered, attempt }))
    }

    /// Compares it with what another replica answered; returns what the client gets.
    pub(super) fn settle(&mut self, first: Doubted, second: Answered) -> Answered {
        let now = self.gateway().clock.now();
        let blamed = self.blamed(&second);
        let are_refusals = first.refusal().is_some() && refusal(&second.0).is_some() && blamed.is_none();
        let record = self.guard.record();
        if !are_refusals && second.0.is_error(record.dialect, record.owes_answer()) {
            if let Some(failure) = blamed {
                second.1.pick.failed(&failure, now);
            }
            return self.keep(first);
        }
        let is_empty = self.note_empty(&second.0);
        let is_alike = are_refusals || (is_empty && first.refusal().is_none());
        let (pick, replica) = (first.pick(), first.pick().replica.name());
        let failure = match first.refusal() {
            Some(status) => ReplicaFailure::RefusedAlone { replica, status },
            None => ReplicaFailure::EmptyAnswer { replica },
        };
        let record = self.guard.record();
        record.empty = is_empty.then_some(EmptyAnswer::Usual);
        if let Some(attempt) = record.attempts.get_mut(first.attempt) {
            attempt.error = (!is_alike).then_some(failure.code());
            attempt.is_canceled = is_alike;
        }
        match failure {
            _ if is_alike => first.confirmed(&second),
            ReplicaFailure::RefusedAlone { .. } => pick.refused_alone(self.prepared.conversation(), now),
            failure => pick.failed(&failure, now),
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
        record.empty = first.refusal().is_none().then_some(EmptyAnswer::OfReplica);
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

/// The status by which an engine refuses a request as wrong, or as one that it does not serve.
fn refusal(answer: &UpstreamResponse) -> Option<u16> {
    let UpstreamResponse::Buffered(answer) = answer else { return None };
    let status = answer.head.status;
    let refuses = status.is_client_error() || status == StatusCode::NOT_IMPLEMENTED;
    refuses.then(|| status.as_u16())
}
