//! What the observers conclude from one record: its stages, its verdict, whom to ask about it.
//!
//! Made once at a request's end, so that metrics, spans and the tail decision say the same and none of them computes
//! it again. The rules are in [`super::slo`] and [`super::stages`].

use smallvec::SmallVec;

use super::slo::{self, Missed, Verdict};
use super::stages::{self, Stage, StageTimes};
use crate::record::Record;

/// What follows from one record.
#[derive(Clone, Debug)]
pub struct Judgement {
    /// Where its time went.
    pub stages: StageTimes,
    /// Whether it met its SLO.
    pub verdict: Verdict,
    /// The stage that a miss is put down to.
    pub blamed: Option<Stage>,
    /// Stages that took more than the route's budget gives them.
    pub over_budget: SmallVec<[Stage; 4]>,
}

impl Judgement {
    /// Judges an ended request.
    #[must_use]
    pub fn of(record: &Record) -> Self {
        let stages = stages::stages(record);
        let verdict = slo::verdict(record);
        let blamed = match verdict {
            Verdict::Missed(missed) => slo::blamed(record, missed, &stages),
            Verdict::Met | Verdict::NotCounted => None,
        };
        let over_budget = slo::over_budget(record, &stages);
        Self { stages, verdict, blamed, over_budget }
    }

    /// Why the SLO was missed, if it was.
    #[must_use]
    pub fn missed(&self) -> Option<Missed> {
        match self.verdict {
            Verdict::Missed(missed) => Some(missed),
            Verdict::Met | Verdict::NotCounted => None,
        }
    }
}
