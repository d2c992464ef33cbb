//! The buffer of a unary answer, which is read whole so that a truncated one can be retried.
//!
//! Up to [`PIECE`] it is free: to relay an answer as it comes takes as much. Beyond, it is charged to the memory of bodies,
//! for as long as its client takes; where there is none the answer is relayed as it comes, so that the engine waits for
//! the client.

use bytes::Bytes;

use crate::relay::whole_body::PIECE;
use crate::request::body_memory::{AnswerBudgets, Charge};

/// The bytes of a unary answer so far.
#[derive(Debug)]
pub(super) struct AnswerBuffer<'b> {
    budgets: &'b AnswerBudgets,
    /// Of the whole answer, where the engine says so.
    length: usize,
    /// The only piece, as it came.
    first: Bytes,
    /// Every piece, from the second on.
    all: Vec<u8>,
    charge: Option<Charge>,
}

impl<'b> AnswerBuffer<'b> {
    /// An answer of `length` bytes, if that is known.
    pub(super) fn new(budgets: &'b AnswerBudgets, length: Option<u64>) -> Self {
        let length = length.and_then(|length| usize::try_from(length).ok());
        let length = length.filter(|length| *length <= MAX_BUFFERED).unwrap_or_default();
        Self { budgets, length, first: Bytes::new(), all: Vec::new(), charge: None }
    }

    /// Takes a piece; whether there is room for another.
    pub(super) fn take(&mut self, piece: Bytes) -> bool {
        if self.first.is_empty() && self.all.is_empty() {
            self.first = piece;
            return true;
        }
        let first = std::mem::take(&mut self.first);
        let len = self.all.len() + first.len() + piece.len();
        let has_memory = len <= self.all.capacity() || self.grow(len);
        self.all.extend_from_slice(&first);
        self.all.extend_from_slice(&piece);
        has_memory && len <= MAX_BUFFERED
    }

    fn grow(&mut self, len: usize) -> bool {
        let before = Some(self.all.capacity()).filter(|bytes| *bytes > PIECE).unwrap_or_default();
        let wanted =
            if len <= self.length { self.length } else { len.next_power_of_two().min(MAX_BUFFERED.max(len)) };
        let is_charged = wanted <= PIECE
            || self.charge.get_or_insert_with(|| self.budgets.open()).try_add(wanted - before);
        let capacity = if is_charged { wanted } else { len };
        self.all.reserve_exact(capacity - self.all.len());
        is_charged
    }

    /// All that came.
    pub(super) fn freeze(self) -> Bytes {
        match self.charge {
            Some(charge) => charge.around(self.all),
            None if self.all.is_empty() => self.first,
            None => self.all.into(),
        }
    }
}

/// Largest unary response, in bytes, that is buffered whole.
const MAX_BUFFERED: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::request::body_memory::BodyMemory;

    /// Reads an answer in pieces of 64 KiB; how many were taken while there was room.
    fn held(budgets: &AnswerBudgets, length: Option<u64>, bytes: usize) -> (usize, Bytes) {
        let mut answer = AnswerBuffer::new(budgets, length);
        let whole: Vec<u8> = (0..bytes).map(|n| n as u8).collect();
        let pieces = whole.chunks(PIECE);
        let taken = pieces.take_while(|piece| answer.take(Bytes::copy_from_slice(piece))).count();
        (taken, answer.freeze())
    }

    #[test]
    fn answers_are_held_while_there_is_memory_and_small_ones_always() {
        // Answers have a quarter of 4 MiB.
        let budgets = BodyMemory::new(4 << 20, 1 << 20, Clock::start()).open(None, None).of_answer();
        for length in [None, Some(900_000)] {
            let (taken, first) = held(&budgets, length, 900_000);
            assert_eq!((taken, first.len(), first[899_999]), (14, 900_000, 899_999_u32 as u8));
            let (taken, second) = held(&budgets, length, 900_000);
            assert!(taken < 14 && second.len() == (taken + 1) * PIECE, "{taken}");
            assert_eq!(second[..PIECE], first[..PIECE]);
            assert_eq!(held(&budgets, None, PIECE).0, 1);
            drop((first, second));
        }
        assert_eq!(held(&budgets, None, 2 << 20).0, 16, "1 MiB at most");
    }
}
