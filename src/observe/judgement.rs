//! What follows from one record: times by stage, SLO verdict, the stage to blame.
//!
//! Computed once at the end of a request, so that metrics, spans and tail sampling agree. The rules are in
//! [`super::slo`] and [`super::stages`].

use smallvec::SmallVec;

use super::slo::{self, Missed, SloVerdict};
use super::stages::{self, Stage, StageTimes};
use crate::record::Record;

/// Stages and SLO verdict of one record.
#[derive(Clone, Debug)]
pub struct Judgement {
    /// Times by stage.
    pub stages: StageTimes,
    /// Whether the SLO was met.
    pub verdict: SloVerdict,
    /// The stage that a miss is blamed on.
    pub blamed: Option<Stage>,
    /// Stages that exceeded the route's budget.
    pub over_budget: SmallVec<[Stage; 4]>,
}

impl Judgement {
    /// Judges an ended request.
    pub fn of(record: &Record) -> Self {
        let stages = stages::stages(record);
        let verdict = slo::verdict(record);
        let blamed = match verdict {
            SloVerdict::Missed(missed) => slo::blamed(record, missed, &stages),
            SloVerdict::Met | SloVerdict::NotCounted => None,
        };
        let over_budget = slo::over_budget(record, &stages);
        Self { stages, verdict, blamed, over_budget }
    }

    /// Reason of a miss.
    pub fn missed(&self) -> Option<Missed> {
        match self.verdict {
            SloVerdict::Missed(missed) => Some(missed),
            SloVerdict::Met | SloVerdict::NotCounted => None,
        }
    }
}
