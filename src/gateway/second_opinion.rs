//! A second opinion on an answer of nothing.
//!
//! A replica that ends every answer at once is quick, and draws traffic. Where a replica gives more empty answers than its pool's
//! others, the same prompt goes to another one before the client gets anything. If that one has text, the first has failed; if not,
//! nothing is what the prompt asks for.

use super::attempt::UpstreamResponse;
use super::outbound::ActiveAttempt;
use crate::clock::Stamp;
use crate::error::ReplicaFailure;
use crate::record::{EmptyAnswer, Record};

/// A response worth relaying with the attempt that got it.
pub type Answered = (UpstreamResponse, ActiveAttempt);

/// An empty answer that waits for another replica's.
#[derive(Debug)]
pub(super) struct Doubted {
    answered: Answered,
    /// Place of its attempt in the record.
    attempt: usize,
}

impl Doubted {
    /// Of the attempt that the record has last.
    pub(super) fn new(answered: Answered, record: &Record) -> Self {
        answered.1.watch.close();
        Self { answered, attempt: record.attempts.len().saturating_sub(1) }
    }

    /// Compares it with what another replica answered; returns what the client gets.
    pub(super) fn settle(self, second: Answered, record: &mut Record, now: Stamp) -> Answered {
        if !second.0.status().is_success() {
            return self.keep(record);
        }
        let is_empty = note_empty(&second.0, record);
        let pick = &self.answered.1.pick;
        let failure = ReplicaFailure::EmptyAnswer { replica: pick.replica.name() };
        record.empty = is_empty.then_some(EmptyAnswer::Usual);
        if let Some(attempt) = record.attempts.get_mut(self.attempt) {
            attempt.error = (!is_empty).then_some(failure.code());
            attempt.is_canceled = is_empty;
        }
        if is_empty {
            second.1.pick.empty();
        } else {
            pick.failed(&failure, now);
        }
        second
    }

    /// No other replica answered: it is all that there is.
    pub(super) fn keep(self, record: &mut Record) -> Answered {
        if self.attempt < record.attempts.len() {
            let attempt = record.attempts.remove(self.attempt);
            record.at.first_byte = attempt.head;
            record.attempts.push(attempt);
        }
        record.empty = Some(EmptyAnswer::OfReplica);
        self.answered
    }
}

/// Notes whether the answer of the last attempt is empty.
pub(super) fn note_empty(answer: &UpstreamResponse, record: &mut Record) -> bool {
    let is_empty = answer.is_empty_answer(record.dialect);
    if let Some(attempt) = record.attempts.last_mut() {
        attempt.is_empty = is_empty;
    }
    is_empty
}
