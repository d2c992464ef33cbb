//! The steps of a rollout, and who may change them. Pure.
//!
//! ```text
//! running ─ last soak over, or promote ─> promoted
//!    │  ^
//!    │  └─ resume ─ paused <─ pause, or a breach with on_breach = "pause"
//!    └─ breach, or rollback ─> rolled_back
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{Canary, OnBreach};

/// State of a rollout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RolloutState {
    /// It walks its steps.
    #[default]
    Running,
    /// It keeps its step until somebody acts.
    Paused,
    /// It has all traffic.
    Promoted,
    /// It has none.
    RolledBack,
}

impl RolloutState {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Running, Self::Paused, Self::Promoted, Self::RolledBack];

    /// Its name in the API and as a label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Promoted => "promoted",
            Self::RolledBack => "rolled_back",
        }
    }
}

/// What an operator may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// All traffic to the canary, now.
    Promote,
    /// All traffic back, now.
    Rollback,
    /// Stay at this step.
    Pause,
    /// Go on.
    Resume,
}

/// Where a rollout is; what is kept over restarts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Its state.
    pub state: RolloutState,
    /// Index into the steps.
    pub step: usize,
    /// Seconds of this step's soak that are over.
    pub soaked: f64,
    /// Answers of the canary in this step.
    pub answers: u64,
    /// Why it is in its state, for people.
    pub reason: String,
    /// A breach took its traffic, and it may come back.
    pub is_off: bool,
}

impl Plan {
    /// The canary's share of new requests, in ten thousandths.
    #[must_use]
    pub fn share(&self, canary: &Canary) -> u32 {
        match self.state {
            RolloutState::Promoted => 10_000,
            RolloutState::RolledBack => 0,
            _ if self.is_off => 0,
            _ => canary.steps.get(self.step).map_or(0, |step| step.weight * 100),
        }
    }

    /// Time has passed in which the canary could answer; returns whether the step ended.
    pub fn soak(&mut self, canary: &Canary, passed: Duration) -> bool {
        if self.state != RolloutState::Running {
            return false;
        }
        self.soaked += passed.as_secs_f64();
        let Some(step) = canary.steps.get(self.step) else {
            return self.enter(RolloutState::Promoted, ALL_STEPS);
        };
        if self.soaked < step.soak.as_secs_f64() || self.answers < canary.min_requests {
            return false;
        }
        (self.soaked, self.answers) = (0.0, 0);
        self.step += 1;
        if self.step >= canary.steps.len() {
            self.enter(RolloutState::Promoted, ALL_STEPS);
        } else {
            self.reason = format!("step {} of {}", self.step + 1, canary.steps.len());
        }
        true
    }

    /// A bound was broken.
    pub fn breach(&mut self, canary: &Canary, reason: &str) {
        if self.state != RolloutState::Running {
            return;
        }
        match canary.on_breach {
            OnBreach::Rollback => self.enter(RolloutState::RolledBack, reason),
            OnBreach::Pause => {
                self.is_off = true;
                self.enter(RolloutState::Paused, reason)
            }
        };
    }

    /// An operator acts; returns whether what was judged so far is to be forgotten.
    ///
    /// # Errors
    /// Where the state does not allow it.
    pub fn act(&mut self, action: Action) -> Result<bool, String> {
        let from = self.state;
        let refused = |what: &str| Err(format!("a canary that is {} cannot be {what}", from.as_str()));
        match (action, from) {
            (Action::Promote, RolloutState::Promoted) | (Action::Rollback, RolloutState::RolledBack) => {}
            (Action::Promote, _) => drop(self.enter(RolloutState::Promoted, "promoted by hand")),
            (Action::Rollback, _) => drop(self.enter(RolloutState::RolledBack, "rolled back by hand")),
            (Action::Pause, RolloutState::Running) => {
                drop(self.enter(RolloutState::Paused, "paused by hand"))
            }
            (Action::Resume, RolloutState::Paused) => {
                let was_off = std::mem::take(&mut self.is_off);
                self.enter(RolloutState::Running, "resumed by hand");
                return Ok(was_off);
            }
            (Action::Pause, RolloutState::Paused) | (Action::Resume, RolloutState::Running) => {}
            (Action::Pause, _) => return refused("paused"),
            (Action::Resume, _) => return refused("resumed"),
        }
        Ok(false)
    }

    fn enter(&mut self, state: RolloutState, reason: &str) -> bool {
        self.state = state;
        reason.clone_into(&mut self.reason);
        true
    }
}

const ALL_STEPS: &str = "all steps held";
