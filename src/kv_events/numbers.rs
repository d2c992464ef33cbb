//! The numbers of a publisher's batches: which one is due, which is missing, and when they began again. Pure.

/// What a number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// It is the next one, or the first that is seen.
    Next,
    /// It was taken in already, by a replay.
    Known,
    /// Those from [`Numbers::next`] on up to it are missing.
    Missing,
    /// It was given before: the publisher is another process.
    Restarted,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Numbers {
    next: Option<u64>,
    /// Lower ones cannot come from the process that was followed when the connection was made.
    floor: u64,
    /// Every one since the process began was taken in, or since its cache was emptied: what was before does not matter.
    pub(super) is_complete: bool,
    has_skipped: bool,
}

impl Numbers {
    /// A connection was made: what comes on it is newer than all before.
    pub(super) fn connected(&mut self) {
        self.floor = self.next.unwrap_or_default();
    }

    /// What a batch with this number is.
    pub(super) fn judge(&self, number: u64) -> Due {
        match self.next {
            None => Due::Next,
            Some(next) if number == next => Due::Next,
            Some(next) if number > next => Due::Missing,
            Some(_) if number < self.floor => Due::Restarted,
            Some(_) => Due::Known,
        }
    }

    /// A batch was taken in.
    pub(super) fn took(&mut self, number: u64) {
        self.has_skipped |= self.next.is_some_and(|next| number > next);
        self.is_complete = match self.next {
            None => number == 0,
            Some(next) => self.is_complete && number == next,
        };
        self.next = Some(number.saturating_add(1));
    }

    /// The first number that is not known.
    pub(super) fn next(&self) -> u64 {
        self.next.unwrap_or_default()
    }

    /// Whether none was skipped since the connection was made, or since the last call.
    pub(super) fn is_gapless(&mut self) -> bool {
        !std::mem::take(&mut self.has_skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_and_restarts_show_in_the_numbers() {
        let mut numbers = Numbers::default();
        numbers.connected();
        assert_eq!(numbers.judge(5), Due::Next);
        numbers.took(5);
        assert!(!numbers.is_complete, "those before it were missed");
        assert_eq!(numbers.judge(6), Due::Next);
        assert_eq!((numbers.judge(9), numbers.next()), (Due::Missing, 6));
        (6..=9).for_each(|number| numbers.took(number));
        assert!(numbers.is_gapless());
        assert_eq!(numbers.judge(8), Due::Known, "it came by a replay, too");
        numbers.connected();
        assert_eq!(numbers.judge(0), Due::Restarted);
        numbers = Numbers::default();
        numbers.took(0);
        assert!(numbers.is_complete);
        numbers.took(2);
        assert!(!numbers.is_gapless() && numbers.is_gapless());
        assert!(!numbers.is_complete);
        numbers.is_complete = true;
        numbers.took(3);
        assert!(numbers.is_complete);
    }
}
