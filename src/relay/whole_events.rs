//! Cuts a stream's bytes to whole events: of half an event the client must not have seen anything when its engine dies. The stream may
//! be continued elsewhere, and SDKs that read JSON of half an event fail on it, never on the error event that follows.

use bytes::{Bytes, BytesMut};

/// The event that the last read stopped in.
#[derive(Debug, Default)]
pub struct WholeEvents {
    begun: BytesMut,
    /// It is too long to be held back: its bytes go as they come.
    is_passing: bool,
}

impl WholeEvents {
    /// What is whole after a read in which the last event ended at `end`.
    pub fn cut(&mut self, mut read: Bytes, end: usize) -> Bytes {
        if self.is_passing && end == 0 {
            return read;
        }
        self.is_passing = false;
        let rest = read.split_off(end.min(read.len()));
        if self.begun.is_empty() {
            self.begun.extend_from_slice(&rest);
            return read;
        }
        if read.is_empty() {
            self.begun.extend_from_slice(&rest);
            self.is_passing = self.begun.len() > MAX_EVENT;
            return if self.is_passing { self.rest() } else { read };
        }
        self.begun.extend_from_slice(&read);
        let whole = self.begun.split().freeze();
        self.begun.extend_from_slice(&rest);
        whole
    }

    /// Whether nothing is held back.
    pub fn is_empty(&self) -> bool {
        self.begun.is_empty()
    }

    /// The event that was begun and will not end.
    pub fn rest(&mut self) -> Bytes {
        self.begun.split().freeze()
    }

    /// Whether what has passed is of whole events.
    pub fn is_between(&self) -> bool {
        !self.is_passing
    }
}

/// Bytes of an event that are held back.
const MAX_EVENT: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::sse::Scanner;
    use crate::relay::stream_state::Echo;
    use crate::request::dialect::Dialect;

    #[test]
    fn only_whole_events_pass_however_the_reads_are_cut() {
        /// Where clients may take an event for ended; a line feed behind the carriage return that ends one is part of it.
        const ENDS: [usize; 5] = [9, 19, 20, 25, 34];
        let stream = "data: a\n\ndata: b\r\n\r\n: c\r\rdata: d\n\ndata: half";
        for size in 1..=stream.len() {
            let mut scanner = Scanner::new(Dialect::Chat, Echo::default());
            let (mut whole, mut passed, mut read_so_far) = (WholeEvents::default(), Vec::new(), 0);
            for read in stream.as_bytes().chunks(size) {
                let end = scanner.feed(read, |_, _| {}).end;
                passed.extend_from_slice(&whole.cut(Bytes::copy_from_slice(read), end));
                read_so_far += read.len();
                let due = ENDS.iter().filter(|end| **end <= read_so_far).max().copied().unwrap_or(0);
                assert_eq!(passed.len(), due, "an event passes as soon as it has ended: reads of {size}");
            }
            assert_eq!(whole.rest(), "data: half", "reads of {size}");
            assert_eq!(
                String::from_utf8(passed).unwrap(),
                stream.replace("data: half", ""),
                "reads of {size}"
            );
        }
    }

    #[test]
    fn an_event_without_end_is_not_held_for_ever() {
        let mut whole = WholeEvents::default();
        let read = Bytes::from(vec![b'x'; MAX_EVENT / 2]);
        let passed: usize = (0..4).map(|_| whole.cut(read.clone(), 0).len()).sum();
        assert_eq!((passed, whole.is_between()), (4 * read.len(), false));
        assert_eq!(whole.cut(Bytes::from("x\n\ndata"), 3), "x\n\n", "the next one is");
        assert_eq!((whole.is_between(), whole.rest()), (true, Bytes::from("data")));
    }
}
