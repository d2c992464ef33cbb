//! Events near an onset: what happens within a quarter of an hour before trouble begins can be its cause; nothing else can.

use serde::{Deserialize, Serialize};

use super::cause::{Case, Diagnosis, Tier};
use super::signals::SignalChange;
use super::table::{COLD, EVENT_AFTER, EVENT_BEFORE};

/// When trouble began, by the minute: between the two, at the earliest and at the latest.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Onset {
    pub(crate) earliest: i64,
    pub(crate) latest: i64,
}

impl Onset {
    pub(crate) fn at(minute: i64) -> Self {
        Self { earliest: minute, latest: minute }
    }

    /// Whether an event of this minute can be the cause.
    fn follows(self, minute: i64) -> bool {
        (self.earliest - EVENT_BEFORE..=self.latest + EVENT_AFTER).contains(&minute)
    }
}

/// Deploy of a revision that replaced another, in minutes.
pub(super) fn deploy(onset: Onset, first_request: Option<i64>) -> Option<Case> {
    let minute = first_request.filter(|minute| onset.follows(*minute))?;
    let after = (onset.earliest - minute).max(0) as f64 * 60.0;
    Some(Case::new(Diagnosis::Revision, Tier::Event).with("onset_after_revision_seconds", after))
}

/// Engines that were configured otherwise, or restarted, or that joined.
pub(super) fn engines(onset: Option<Onset>, changes: &[SignalChange], now: i64) -> Option<Case> {
    let mut limits = changes.iter().filter_map(|change| change.ratio(|s| s.batch_limit));
    if let Some(ratio) = limits.find(|ratio| (ratio - 1.0).abs() > 0.01) {
        return Some(Case::new(Diagnosis::Configuration, Tier::Event).with("batch_limit_ratio", ratio));
    }
    // Of several starts the first is what began it: whoever restarts engines against trouble has not caused it.
    let is_near = |change: &&SignalChange| {
        let first = change.first_started_ago.or(change.started_ago);
        onset.zip(first).is_none_or(|(onset, ago)| onset.follows(now - ago))
    };
    if !changes.iter().filter(|change| change.started_ago.is_some()).any(|change| is_near(&change)) {
        return None;
    }
    let started: Vec<i64> = changes.iter().filter_map(|change| change.started_ago).collect();
    let last = *started.iter().min()?;
    // A start of minutes ago is cold; what all of them are long after it was configured so.
    let is_configured = last >= COLD && started.len() == changes.len();
    let cause = if is_configured { Diagnosis::Configuration } else { Diagnosis::ColdStarts };
    Some(
        Case::new(cause, Tier::Event)
            .with("replicas_restarted", started.len() as f64)
            .with("minutes_since_start", last as f64),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deploy_is_a_cause_within_a_quarter_of_an_hour_before_the_onset() {
        for (minute, is_cause) in [(84, false), (85, true), (100, true), (102, true), (103, false)] {
            assert_eq!(deploy(Onset::at(100), Some(minute)).is_some(), is_cause, "{minute}");
        }
        assert_eq!(deploy(Onset::at(100), None), None, "the route's first revision");
    }

    #[test]
    fn a_restart_long_before_the_onset_is_no_cause() {
        let restarted = |ago| SignalChange { started_ago: Some(ago), ..SignalChange::default() };
        let causes =
            |onset, ago| engines(Some(Onset::at(onset)), &[restarted(ago); 2], 200).map(|case| case.cause);
        assert_eq!(causes(198, 2), Some(Diagnosis::ColdStarts));
        assert_eq!(causes(190, 18), Some(Diagnosis::Configuration), "long warm again");
        assert_eq!(causes(199, 18), None, "seventeen minutes before");
        assert_eq!(causes(190, 3), None, "seven minutes after");
    }
}
