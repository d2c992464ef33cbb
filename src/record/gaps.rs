//! Gaps between the content events of a stream, and the inter-token latencies that they stand for.

use std::time::Duration;

/// A gap between two content events of one choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// One ICL observation.
    pub length: Duration,
    /// Tokens of the later event; `None` where they are known only at the end ([`Gaps::late_itl`]).
    pub tokens: Option<u32>,
}

/// A batch of gaps of one stream, observed at least once a second.
#[derive(Clone, Copy, Debug)]
pub struct Gaps<'a> {
    /// Oldest first.
    pub gaps: &'a [Gap],
    /// Gaps whose token count became known at the end: (gap, whole tokens per event).
    pub late_itl: &'a [(Duration, u32)],
    /// Prompts were computed meanwhile that another pool has cached; see [`super::DecisionSummary::is_filling`].
    pub is_filling: bool,
}

impl<'a> Gaps<'a> {
    /// From the first of its events to the last.
    pub fn span(&self) -> Duration {
        self.gaps.iter().map(|gap| gap.length).sum()
    }

    /// Inter-chunk latencies: each gap once.
    pub fn icl(&self) -> impl Iterator<Item = Duration> + use<'a> {
        self.gaps.iter().map(|gap| gap.length)
    }

    /// Inter-token latencies with their counts: a gap whose later event has `n` tokens is `n` times an `n`-th of it.
    pub fn itl(&self) -> impl Iterator<Item = (Duration, u32)> + Clone + use<'a> {
        let at_once = self.gaps.iter().filter_map(|gap| Some((gap.length, gap.tokens?)));
        at_once.chain(self.late_itl.iter().copied()).filter_map(|(gap, tokens)| {
            let tokens = tokens.min(MAX_TOKENS_PER_EVENT);
            // Nearly always one: a division takes longer than all the rest.
            Some((if tokens == 1 { gap } else { gap.checked_div(tokens)? }, tokens))
        })
    }
}

/// Tokens counted for one event at most: a wrong count of an engine must neither keep a core busy nor outweigh every other
/// observation.
const MAX_TOKENS_PER_EVENT: u32 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_counts_once_for_each_token_and_not_at_all_where_they_are_unknown_or_none() {
        let ms = Duration::from_millis;
        let gap = |length, tokens| Gap { length: ms(length), tokens };
        let gaps = [gap(90, Some(9)), gap(50, None), gap(70, Some(0)), gap(2048, Some(u32::MAX))];
        let batch = Gaps { gaps: &gaps, late_itl: &[(ms(30), 3), (ms(40), 0)], is_filling: false };
        assert_eq!(batch.icl().collect::<Vec<_>>(), [ms(90), ms(50), ms(70), ms(2048)]);
        assert_eq!(batch.itl().collect::<Vec<_>>(), [(ms(10), 9), (ms(2), 1024), (ms(10), 3)]);
    }
}
