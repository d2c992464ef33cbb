//! One verdict for all gateways: each judges what it sees, and shows where its rollout is and how strong its evidence is.
//!
//! One plan holds: the last word of an operator or a breach, caution before progress, the later step before the earlier one. So a
//! breach anywhere stops the canary everywhere, and a step ends for all as soon as it ends for one, which takes the answers of all
//! together and no suspicion anywhere.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::cluster::Shown;
use crate::rollout::judge::Evidence;
use crate::rollout::plan::Plan;

/// What a gateway shows of one rollout.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct View {
    /// Which revision, by a hash of its identity.
    revision: u64,
    pub(super) plan: Plan,
    tests: Vec<Evidence>,
    /// Of another gateway that is there.
    #[serde(skip)]
    is_alive: bool,
}

impl View {
    pub(super) fn new(identity: &str, plan: &Plan, tests: Vec<Evidence>) -> Self {
        Self { revision: xxh3_64(identity.as_bytes()), plan: plan.clone(), tests, is_alive: false }
    }

    /// What other gateways show of the same revision.
    pub(super) fn read_all(shown: &[Shown], identity: &str) -> Vec<Self> {
        let revision = xxh3_64(identity.as_bytes());
        let read = |shown: &Shown| {
            let view: Self = serde_json::from_str(&shown.text).ok()?;
            (view.revision == revision).then_some(Self { is_alive: shown.is_alive, ..view })
        };
        shown.iter().filter_map(read).collect()
    }

    pub(super) fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// What gateways that are there have seen in this gateway's step.
#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    /// Of the same revision, whatever their step.
    pub(super) gateways: usize,
    pub(super) answers: u64,
    tests: Vec<Evidence>,
}

impl Elsewhere {
    pub(super) fn of(views: Vec<View>, plan: &Plan) -> Self {
        let mut alive = Self::default();
        for view in views.into_iter().filter(|view| view.is_alive) {
            alive.gateways += 1;
            if view.plan.stance() == plan.stance() {
                alive.answers += view.plan.answers;
                alive.tests.extend(view.tests);
            }
        }
        alive
    }

    /// This gateway's evidence with the strongest of any: suspicion anywhere counts, and a breach would have been seen where the
    /// most was seen.
    pub(super) fn strongest(&self, mut own: Vec<Evidence>) -> Vec<Evidence> {
        for test in &mut own {
            for other in self.tests.iter().filter(|other| other.test == test.test) {
                test.share = test.share.max(other.share);
                test.trial =
                    test.trial.map_or(other.trial, |trial| Some(trial.max(other.trial.unwrap_or(trial))));
            }
        }
        own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence(share: f64, trial: Option<f64>) -> Vec<Evidence> {
        vec![Evidence { test: "errors".into(), bound: 0.01, share, trial }]
    }

    fn shown(revision: &str, plan: &Plan, evidence: Vec<Evidence>, is_alive: bool) -> Shown {
        Shown { text: View::new(revision, plan, evidence).text(), is_alive }
    }

    #[test]
    fn answers_add_up_and_the_strongest_evidence_of_the_same_step_counts() {
        let plan = Plan { answers: 40, ..Plan::default() };
        let later = Plan { step: 1, ..plan.clone() };
        let all = [
            shown("r2", &plan, evidence(0.3, Some(0.4)), true),
            shown("r2", &plan, evidence(0.1, Some(1.2)), true),
            shown("r2", &plan, evidence(0.9, None), false),
            shown("r2", &later, evidence(0.9, Some(9.0)), true),
            shown("r1", &plan, evidence(0.9, Some(9.0)), true),
            Shown { text: "{}".to_owned(), is_alive: true },
        ];
        let views = View::read_all(&all, "r2");
        assert_eq!(views.len(), 4);
        let elsewhere = Elsewhere::of(views, &plan);
        assert_eq!((elsewhere.gateways, elsewhere.answers), (3, 80));
        let strongest = elsewhere.strongest(evidence(-0.2, None));
        assert_eq!((strongest[0].share, strongest[0].trial), (0.3, Some(1.2)));
        assert_eq!(elsewhere.strongest(evidence(0.5, Some(2.0)))[0].share, 0.5);
    }
}
