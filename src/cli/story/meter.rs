//! What the gateway measured between two moments of the story.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;

use super::super::scoreboard::milliseconds;
use crate::observe::judgement::Judgement;
use crate::record::{Outcome, Record};
use crate::stats::Histogram;

/// Collects the requests that end, until they are taken.
#[derive(Debug, Default)]
pub(in crate::cli) struct Meter(Mutex<Figures>);

/// Figures of one span of time.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    ttft: Histogram,
    pub(super) ok: u64,
    pub(super) failed: u64,
    pub(super) refused: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    by_replica: BTreeMap<String, u64>,
    /// Requests that missed the SLO and were not refused, by the stage to blame.
    missed_in: BTreeMap<&'static str, u64>,
}

impl Meter {
    pub(in crate::cli) fn record(&self, record: &Record, judgement: &Judgement) {
        let mut figures = self.0.lock();
        match record.outcome {
            Outcome::Ok => figures.ok += 1,
            Outcome::Failed => figures.failed += 1,
            Outcome::Refused => figures.refused += 1,
            Outcome::ClientError | Outcome::Canceled => return,
        }
        if let Some(ttft) = record.ttft() {
            figures.ttft.add(ttft, 1);
        }
        if let (Some(prompt), Some(cached)) = (record.tokens.input, record.tokens.cached) {
            figures.prompt_tokens += prompt.0;
            figures.cached_tokens += cached.0;
        }
        if let Some(served) = record.served() {
            *figures.by_replica.entry(served.replica.to_string()).or_default() += 1;
        }
        // Those that were refused are counted on their own.
        if judgement.missed().is_some() && record.outcome != Outcome::Refused {
            let stage = judgement.blamed.map_or("unknown", |stage| stage.as_str());
            *figures.missed_in.entry(stage).or_default() += 1;
        }
    }

    /// The figures since the last call.
    pub(super) fn take(&self) -> Figures {
        std::mem::take(&mut *self.0.lock())
    }
}

impl Figures {
    /// Requests that ended.
    pub(super) fn all(&self) -> u64 {
        self.ok + self.failed + self.refused
    }

    pub(super) fn ttft(&self, q: f64) -> Option<Duration> {
        self.ttft.counts().quantile(q).map(Duration::from_secs_f64)
    }

    /// Share of the prompt tokens that were cached.
    pub(super) fn hit_share(&self) -> f64 {
        self.cached_tokens as f64 / self.prompt_tokens.max(1) as f64
    }

    /// Share of the requests that one replica answered.
    pub(super) fn share_of(&self, replica: &str) -> f64 {
        let all: u64 = self.by_replica.values().sum();
        self.by_replica.get(replica).copied().unwrap_or(0) as f64 / all.max(1) as f64
    }

    /// Requests that missed the SLO and were not refused.
    pub(super) fn missed(&self) -> u64 {
        self.missed_in.values().sum()
    }

    /// Those of them that spent the time in the engine.
    pub(super) fn missed_in_engine(&self) -> u64 {
        ["engine_queue", "prefill", "engine_other", "decode"]
            .iter()
            .filter_map(|s| self.missed_in.get(s))
            .sum()
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |q| milliseconds(self.ttft(q), 0);
        write!(
            f,
            "{} answered, {} failed, {} refused; TTFT p50 {} p99 {} ms; {:.0} % of prompt tokens cached",
            self.ok,
            self.failed,
            self.refused,
            ms(0.5),
            ms(0.99),
            self.hit_share() * 100.0
        )?;
        if self.missed() > 0 {
            let stages = self.missed_in.iter().map(|(stage, n)| format!("{stage} {n}"));
            write!(f, "; late: {}", Vec::from_iter(stages).join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_said_in_a_line() {
        let mut ttft = Histogram::default();
        (1..=100).for_each(|millis| ttft.add(Duration::from_millis(millis), 1));
        let figures = Figures {
            ttft,
            ok: 100,
            refused: 3,
            prompt_tokens: 200,
            cached_tokens: 50,
            by_replica: BTreeMap::from([("a".to_owned(), 30), ("b".to_owned(), 10)]),
            missed_in: BTreeMap::from([("prefill", 2), ("relay", 1)]),
            ..Figures::default()
        };
        assert_eq!(
            figures.to_string(),
            "100 answered, 0 failed, 3 refused; TTFT p50 50 p99 99 ms; 25 % of prompt tokens cached; late: prefill 2, relay 1"
        );
        assert_eq!((figures.all(), figures.share_of("a"), figures.missed_in_engine()), (103, 0.75, 2));
        assert_eq!(Figures::default().ttft(0.5), None);
    }
}
