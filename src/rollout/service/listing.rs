//! A rollout, as `/api/v1/canaries` reports it.

use super::board::RolloutView;
use crate::api::canaries::{Canary, CanaryRequests, CanaryTest};
use crate::rollout::judge::Evidence;

impl RolloutView {
    /// As the admin API lists it.
    #[must_use]
    pub(crate) fn to_api(&self) -> Canary {
        Canary {
            pool: self.pool.to_string(),
            reason: self.reason.clone(),
            report: self.report.clone(),
            requests: CanaryRequests {
                baseline: self.requests[0],
                canary: self.requests[1],
                shadow: self.shadowed,
            },
            revision: self.revision.to_string(),
            route: self.route.to_string(),
            shadow_weight: f64::from(self.shadow_share) / 100.0,
            soaked: self.soaked,
            state: self.state.as_str().to_owned(),
            step: self.step.0,
            steps: self.step.1,
            tests: self.evidence.iter().map(test).collect(),
            weight: f64::from(self.share) / 100.0,
        }
    }
}

fn test(evidence: &Evidence) -> CanaryTest {
    CanaryTest { bound: evidence.bound, evidence: evidence.share, test: evidence.test.to_owned() }
}
