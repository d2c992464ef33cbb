//! The steps of a rollout, and who may change them. Pure.
//!
//! ```text
//! running: copies of requests where a shadow step is configured, then the steps
//! running ─ last soak over, or promote ─> promoted
//!    │  ^
//!    │  └─ resume ─ paused <─ pause, or a breach with on_breach = "pause"
//!    └─ breach, or rollback ─> rolled_back
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{Canary, OnBreach};
use crate::labels::labels;

labels! {
    /// State of a rollout.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum RolloutState {
        /// It walks its steps.
        #[default]
        Running = "running",
        /// It keeps its step until somebody acts.
        Paused = "paused",
        /// It has all traffic.
        Promoted = "promoted",
        /// It has none.
        RolledBack = "rolled_back",
    }
}

labels! {
    /// What an operator may do.
    pub enum Action {
        /// All traffic to the canary, now.
        Promote = "promote",
        /// All traffic back, now.
        Rollback = "rollback",
        /// Stay at this step.
        Pause = "pause",
        /// Go on.
        Resume = "resume",
    }
}

/// Where a rollout is; what is kept over restarts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Its state.
    pub state: RolloutState,
    /// Index into the steps.
    pub step: usize,
    /// The shadow step, which comes before them, is over.
    pub is_past_shadow: bool,
    /// Seconds of this step's soak that are over.
    pub soaked: f64,
    /// Answers of the canary in this step.
    pub answers: u64,
    /// Why it is in its state, for people.
    pub reason: String,
    /// It has no traffic, and may come back: a breach took it, or what was decided cannot be read.
    pub is_off: bool,
    /// When an operator or a breach changed it last, in milliseconds since 1970 or, by a clock that is behind, one more than before;
    /// 0: never.
    pub acts: u64,
    /// Answers in this step at other gateways.
    #[serde(skip)]
    pub answers_elsewhere: u64,
    /// Most gateways at a time that have judged this step; 0 where none has heard of another.
    #[serde(default)]
    pub gateways: u32,
    /// Its pool's pods are its own by an operator's word, though another revision was rolled back there.
    #[serde(default)]
    pub owns_pods: bool,
}

impl Plan {
    /// A plan before its first step.
    pub fn new(canary: &Canary) -> Self {
        let plan = Self::default();
        Self { reason: plan.place(canary), ..plan }
    }

    /// Whether it is at the shadow step, whatever its state.
    pub fn is_shadow(&self, canary: &Canary) -> bool {
        canary.shadow.is_some() && !self.is_past_shadow && self.step == 0
    }

    /// The share of new requests of which the canary gets copies, in ten thousandths.
    pub fn shadow_share(&self, canary: &Canary) -> u32 {
        let is_on = matches!(self.state, RolloutState::Running | RolloutState::Paused) && !self.is_off;
        let shadow = canary.shadow.filter(|_| is_on && self.is_shadow(canary));
        shadow.map_or(0, |shadow| shadow.weight * 100)
    }

    /// The canary's share of new requests, in ten thousandths.
    pub fn share(&self, canary: &Canary) -> u32 {
        match self.state {
            RolloutState::Promoted => 10_000,
            RolloutState::RolledBack => 0,
            _ if self.is_off || self.is_shadow(canary) => 0,
            _ => canary.steps.get(self.step).map_or(0, |step| step.weight * 100),
        }
    }

    /// Time has passed in which the canary could answer, and `missing` says what a verdict lacks; returns whether the step ended. One
    /// that lacks something goes on, for [`MAX_SOAKS`] soaks in all for each gateway, and then pauses, with what it lacks by now as the
    /// reason.
    pub fn soak(&mut self, canary: &Canary, passed: Duration, missing: Option<&str>) -> bool {
        if self.state == RolloutState::Paused && self.reason.starts_with(NO_VERDICT) {
            self.reason = self.no_verdict(self.lacks(canary, missing).as_deref().unwrap_or(NOTHING_MISSING));
        }
        if self.state != RolloutState::Running {
            return false;
        }
        self.soaked += passed.as_secs_f64();
        let shadow = canary.shadow.filter(|_| self.is_shadow(canary));
        // One that has had requests does not go back to copies, whatever is configured later.
        self.is_past_shadow = shadow.is_none();
        let of_step = || canary.steps.get(self.step).map(|step| step.soak);
        let Some(soak) = shadow.map(|shadow| shadow.soak).or_else(of_step) else {
            self.enter(RolloutState::Promoted, ALL_STEPS);
            return true;
        };
        if self.soaked < soak.as_secs_f64() {
            return false;
        }
        if let Some(missing) = self.lacks(canary, missing) {
            if self.soaked >= f64::from(self.max_soaks()) * soak.as_secs_f64() {
                // Resumed, it has the other soaks again.
                self.soaked = soak.as_secs_f64();
                self.enter(RolloutState::Paused, &self.no_verdict(&missing));
                return true;
            }
            return false;
        }
        (self.soaked, self.answers, self.answers_elsewhere, self.gateways) = (0.0, 0, 0, 0);
        self.is_past_shadow = true;
        self.step += usize::from(shadow.is_none());
        if self.step >= canary.steps.len() {
            self.enter(RolloutState::Promoted, ALL_STEPS);
        } else {
            self.reason = self.place(canary);
        }
        true
    }

    /// What a verdict on this step lacks: answers, or else what is `missing`.
    fn lacks(&self, canary: &Canary, missing: Option<&str>) -> Option<String> {
        let shadow = canary.shadow.filter(|_| self.is_shadow(canary));
        let answers = shadow.map_or(canary.min_requests, |shadow| shadow.min_requests);
        let all = self.answers + self.answers_elsewhere;
        if all < answers { Some(format!("{all} of {answers} answers")) } else { missing.map(str::to_owned) }
    }

    /// Each of several gateways judges by its part of the answers, and takes as many times the soaks to see enough.
    fn max_soaks(&self) -> u32 {
        MAX_SOAKS * self.gateways.max(1)
    }

    fn no_verdict(&self, missing: &str) -> String {
        let at = if self.gateways > 1 { format!(" at {} gateways", self.gateways) } else { String::new() };
        format!("{NO_VERDICT}{} soaks{at}: {missing}", self.max_soaks())
    }

    fn place(&self, canary: &Canary) -> String {
        if self.is_shadow(canary) {
            return SHADOW.to_owned();
        }
        format!("{PLACE}{} of {}", self.step + 1, canary.steps.len())
    }

    /// Takes other steps: one that is past the last of them keeps to that, and soaks again; one whose shadow step is gone begins the
    /// first.
    pub fn resteps(&mut self, canary: &Canary) {
        let last = canary.steps.len().saturating_sub(1);
        let is_past = self.step > last && self.state != RolloutState::Promoted;
        let was_shadow = !self.is_past_shadow && (self.soaked > 0.0 || self.reason == SHADOW);
        let is_moved = was_shadow && canary.shadow.is_none();
        if is_past || is_moved {
            (self.step, self.soaked, self.answers) = (self.step.min(last), 0.0, 0);
        }
        if is_moved {
            self.is_past_shadow = true;
            // Clients meet it when it is resumed.
            self.is_off |= self.state == RolloutState::Paused;
        }
        // The number of steps is part of it; an operator's word stays.
        let is_place = self.reason.starts_with(PLACE) || self.reason == SHADOW;
        if self.state == RolloutState::Running && (is_past || is_place) {
            self.reason = self.place(canary);
        }
    }

    /// Whether it has requests, or copies, that are judged.
    pub fn is_judged(&self) -> bool {
        match self.state {
            RolloutState::Running => true,
            RolloutState::Paused => !self.is_off,
            RolloutState::Promoted | RolloutState::RolledBack => false,
        }
    }

    /// A bound was broken at `now`, in milliseconds since 1970.
    pub fn breach(&mut self, canary: &Canary, reason: &str, now: u64) {
        if !self.is_judged() {
            return;
        }
        self.acts = now.max(self.acts + 1);
        match canary.on_breach {
            OnBreach::Rollback => self.enter(RolloutState::RolledBack, reason),
            OnBreach::Pause => {
                self.is_off = true;
                self.enter(RolloutState::Paused, reason);
            }
        }
    }

    /// What was decided before cannot be read: it waits for an operator, or a gateway that knows.
    pub fn lose(&mut self) {
        self.is_off = true;
        self.enter(RolloutState::Paused, LOST);
    }

    fn is_lost(&self) -> bool {
        self.state == RolloutState::Paused && self.is_off && self.reason == LOST
    }

    /// An operator acts at `now`, in milliseconds since 1970; returns whether what was judged so far is to be forgotten.
    ///
    /// # Errors
    /// Where the state does not allow it.
    pub fn act(&mut self, action: Action, now: u64) -> Result<bool, String> {
        let forgets = self.act_from(self.state, action)?;
        // Also one that changes nothing here: elsewhere it may, and it is the last word.
        self.acts = now.max(self.acts + 1);
        Ok(forgets)
    }

    fn act_from(&mut self, from: RolloutState, action: Action) -> Result<bool, String> {
        let refused = |what: &str| Err(format!("a canary that is {} cannot be {what}", from.as_str()));
        match (action, from) {
            (Action::Promote, RolloutState::Promoted) | (Action::Rollback, RolloutState::RolledBack) => {}
            (Action::Promote, _) => self.enter(RolloutState::Promoted, "promoted by hand"),
            (Action::Rollback, _) => self.enter(RolloutState::RolledBack, "rolled back by hand"),
            (Action::Pause, RolloutState::Running) => self.enter(RolloutState::Paused, "paused by hand"),
            (Action::Resume, RolloutState::Paused) => {
                let was_off = std::mem::take(&mut self.is_off);
                if was_off {
                    // What it soaked was another's, as far as its evidence goes: that is forgotten.
                    (self.soaked, self.answers, self.answers_elsewhere) = (0.0, 0, 0);
                }
                self.enter(RolloutState::Running, "resumed by hand");
                return Ok(was_off);
            }
            (Action::Pause, RolloutState::Paused) | (Action::Resume, RolloutState::Running) => {}
            (Action::Pause, _) => return refused("paused"),
            (Action::Resume, _) => return refused("resumed"),
        }
        Ok(false)
    }

    /// What all gateways have in common of it, the higher one before the lower: caution before progress.
    pub fn stance(&self) -> (u8, usize) {
        let caution = match self.state {
            RolloutState::RolledBack => 3,
            RolloutState::Paused if self.is_off => 2,
            RolloutState::Paused => 1,
            RolloutState::Running | RolloutState::Promoted => 0,
        };
        let progress = match self.state {
            RolloutState::Promoted => usize::MAX,
            _ => 2 * self.step + usize::from(self.is_past_shadow),
        };
        (caution, progress)
    }

    /// Takes over another gateway's plan of the same revision where that one holds: the last word of an operator or a breach, then the
    /// higher [`stance`](Self::stance). One that is lost holds against none. Returns whether it is another one now.
    pub fn follow(&mut self, other: &Self) -> bool {
        let (ours, theirs) = (self.stance(), other.stance());
        if other.is_lost() {
            return false;
        }
        // That is so of the revision, whatever was decided since.
        self.owns_pods |= other.owns_pods;
        if ours == theirs && !self.is_lost() {
            self.acts = self.acts.max(other.acts);
            self.soaked = self.soaked.max(other.soaked);
            return false;
        }
        let holds = self.is_lost() || (other.acts, theirs) > (self.acts, ours);
        if holds {
            let kept =
                if self.is_in_step_of(other) { [self.answers, self.answers_elsewhere] } else { [0; 2] };
            let owns_pods = self.owns_pods;
            *self = Self { answers: kept[0], answers_elsewhere: kept[1], owns_pods, ..other.clone() };
        }
        holds
    }

    /// Whether both have requests of the same step, whether they run or were paused by hand.
    pub fn is_in_step_of(&self, other: &Self) -> bool {
        let place = |plan: &Self| (plan.step, plan.is_past_shadow);
        place(self) == place(other) && self.is_judged() && other.is_judged()
    }

    fn enter(&mut self, state: RolloutState, reason: &str) {
        self.state = state;
        reason.clone_into(&mut self.reason);
    }
}

/// Soaks that a step may take until one gateway would have seen a breach.
const MAX_SOAKS: u32 = 4;
const ALL_STEPS: &str = "all steps held";
/// The reason of one whose state cannot be read.
const LOST: &str = "its state cannot be read: resume it to begin anew";
const SHADOW: &str = "shadow: copies of requests";
/// How the reason of one that runs begins.
const PLACE: &str = "step ";
/// How the reason of one that paused without a verdict begins.
const NO_VERDICT: &str = "no verdict after ";
const NOTHING_MISSING: &str = "nothing is missing any more, resume it";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::fixture::canary;

    #[test]
    fn steps_end_with_soak_and_answers_and_the_last_one_promotes() {
        let (canary, mut plan) = (canary("min_requests = 10\n"), Plan::default());
        let minute = Duration::from_secs(60);
        assert_eq!(plan.share(&canary), 1000);
        assert!(!plan.soak(&canary, minute, None), "nobody asked it anything");
        plan.answers = 10;
        assert!(plan.soak(&canary, Duration::ZERO, None));
        assert_eq!((plan.step, plan.share(&canary), plan.soaked), (1, 5000, 0.0));
        plan.answers = 10;
        assert!(!plan.soak(&canary, minute, None));
        assert!(plan.soak(&canary, minute, None));
        assert_eq!((plan.state, plan.share(&canary)), (RolloutState::Promoted, 10_000));
        plan.breach(&canary, "late", 0);
        assert_eq!(plan.state, RolloutState::Promoted, "what is over is over");
    }

    #[test]
    fn of_two_gateways_the_more_cautious_plan_holds_and_an_operator_decides() {
        let canary = canary("");
        let begun = Plan { is_past_shadow: true, ..Plan::new(&canary) };
        let (mut one, mut other) =
            (begun.clone(), Plan { step: 1, soaked: 30.0, answers: 7, ..begun.clone() });
        assert!(one.follow(&other) && !other.follow(&begun), "the later step");
        assert_eq!((one.step, one.soaked, one.answers), (1, 30.0, 0));
        other.breach(&canary, "ttft_p99", 0);
        assert!(one.follow(&other));
        assert_eq!((one.state, &*one.reason), (RolloutState::RolledBack, "ttft_p99"));
        let promoted = Plan { state: RolloutState::Promoted, ..begun.clone() };
        assert!(!one.follow(&promoted), "a breach holds against what was promoted meanwhile");
        let mut late = promoted;
        assert!(late.follow(&one));
        assert!(late.act(Action::Promote, 0).is_ok() && one.follow(&late) && !late.follow(&other));
        assert_eq!((one.state, one.acts), (RolloutState::Promoted, 2));
        let mut soaking = begun.clone();
        assert!(!soaking.follow(&Plan { soaked: 9.0, answers: 9, ..begun }), "the same step");
        assert_eq!((soaking.soaked, soaking.answers), (9.0, 0));
        let saved: Plan = serde_json::from_str(&serde_json::to_string(&late).unwrap()).unwrap();
        assert_eq!(saved, late);
    }

    #[test]
    fn a_plan_that_is_lost_follows_any_other_and_none_follows_it_until_an_operator_acts() {
        let canary = canary("");
        let begun = Plan { is_past_shadow: true, ..Plan::new(&canary) };
        let mut lost = begun.clone();
        lost.lose();
        assert_eq!((lost.state, lost.share(&canary)), (RolloutState::Paused, 0));
        let mut other = Plan { soaked: 9.0, ..begun };
        assert!(!other.follow(&lost) && lost.clone().follow(&other));
        assert!(!lost.clone().follow(&lost));
        let kept: Plan = serde_json::from_str(&serde_json::to_string(&lost).unwrap()).unwrap();
        assert!(kept.clone().follow(&other), "also after a restart");
        assert_eq!(lost.act(Action::Rollback, 5), Ok(false));
        assert!(other.follow(&lost));
        assert_eq!(other.state, RolloutState::RolledBack);
    }

    #[test]
    fn a_pause_at_one_gateway_and_a_resume_at_another_keep_the_answers_of_the_step() {
        let canary = canary("");
        let begun = Plan { is_past_shadow: true, soaked: 20.0, answers: 80, ..Plan::new(&canary) };
        let (mut here, mut there) = (begun.clone(), begun);
        here.act(Action::Pause, 1_000).unwrap();
        assert!(there.follow(&here));
        there.act(Action::Resume, 2_000).unwrap();
        assert!(here.follow(&there));
        let shown = |plan: &Plan| (plan.state, plan.answers, plan.soaked);
        assert_eq!(shown(&here), (RolloutState::Running, 80, 20.0));
        assert_eq!(shown(&there), shown(&here));
        // What a breach had stopped begins anew.
        here.breach(&Canary { on_breach: OnBreach::Pause, ..canary }, "errors", 3_000);
        assert!(there.follow(&here));
        there.act(Action::Resume, 4_000).unwrap();
        assert!(here.follow(&there));
        assert_eq!(here.answers, 0);
    }

    #[test]
    fn of_two_operators_who_did_not_hear_of_each_other_the_later_one_decides() {
        let canary = canary("");
        let begun = Plan { is_past_shadow: true, ..Plan::new(&canary) };
        let (mut here, mut there) = (begun.clone(), begun);
        here.act(Action::Pause, 1_000).unwrap();
        here.act(Action::Resume, 2_000).unwrap();
        there.act(Action::Rollback, 3_000).unwrap();
        assert!(!there.follow(&here), "however often it was changed before");
        assert!(here.follow(&there));
        assert_eq!(here.state, RolloutState::RolledBack);
        // A clock that is behind.
        here.act(Action::Promote, 900).unwrap();
        assert!(there.follow(&here), "what an operator saw before goes before");
        assert_eq!(there.state, RolloutState::Promoted);
    }

    #[test]
    fn a_breach_holds_against_what_an_operator_did_before_it_elsewhere() {
        let canary = canary("");
        let begun = Plan { is_past_shadow: true, ..Plan::new(&canary) };
        let (mut here, mut there) = (begun.clone(), begun);
        here.act(Action::Pause, 1_000).unwrap();
        here.act(Action::Resume, 2_000).unwrap();
        there.breach(&canary, "ttft_p99", 3_000);
        assert!(!there.follow(&here) && here.follow(&there));
        assert_eq!((here.state, &*here.reason), (RolloutState::RolledBack, "ttft_p99"));
        // Both saw it: each keeps its own words, and both know the later time.
        let mut third = Plan { is_past_shadow: true, ..Plan::new(&canary) };
        third.breach(&canary, "errors", 4_000);
        assert!(!here.follow(&third) && !third.follow(&here));
        assert_eq!((&*here.reason, here.acts), ("ttft_p99", 4_000));
    }

    #[test]
    fn the_shadow_step_comes_first_has_no_share_and_is_left_for_the_first_step() {
        let canary = canary("shadow = { weight = 5, soak = \"1m\", min_requests = 20 }\nmin_requests = 10\n");
        let mut plan = Plan::new(&canary);
        assert_eq!((plan.share(&canary), plan.shadow_share(&canary)), (0, 500));
        assert!(plan.act(Action::Pause, 0).is_ok());
        assert_eq!((plan.share(&canary), plan.shadow_share(&canary)), (0, 500), "it stays at its step");
        assert!(plan.act(Action::Resume, 0).is_ok());
        let minute = Duration::from_secs(60);
        assert!(!plan.soak(&canary, minute, None), "no copy was answered");
        let saved = serde_json::to_string(&plan).unwrap();
        let mut plan: Plan = serde_json::from_str(&saved).unwrap();
        plan.answers = 10;
        assert!(!plan.soak(&canary, Duration::ZERO, None), "not enough copies for a verdict");
        plan.answers = 20;
        assert!(plan.soak(&canary, Duration::ZERO, None));
        assert_eq!((plan.step, plan.share(&canary), plan.shadow_share(&canary)), (0, 1000, 0));
        assert_eq!((&*plan.reason, plan.answers, plan.soaked), ("step 1 of 2", 0, 0.0));
        plan.answers = 10;
        assert!(plan.soak(&canary, minute, None));
        assert_eq!((plan.step, plan.share(&canary)), (1, 5000));

        let mut slow = Plan::new(&canary);
        slow.breach(&canary, "ttft_p99", 0);
        assert_eq!(
            (slow.state, slow.share(&canary), slow.shadow_share(&canary)),
            (RolloutState::RolledBack, 0, 0)
        );
    }

    #[test]
    fn a_shadow_step_that_is_configured_late_does_not_take_a_canary_back_to_it() {
        let (before, after) = (canary(""), canary("shadow = { weight = 5, soak = \"1m\" }\n"));
        let mut plan = Plan::new(&before);
        plan.soak(&before, Duration::from_secs(1), None);
        assert_eq!((plan.share(&after), plan.shadow_share(&after)), (1000, 0));
    }

    #[test]
    fn a_step_without_a_verdict_goes_on_for_four_soaks_and_then_pauses_with_what_is_missing() {
        let (canary, mut plan) = (canary(""), Plan::default());
        plan.answers = 10;
        let minute = Duration::from_secs(60);
        for _ in 0..3 {
            assert!(!plan.soak(&canary, minute, Some("ttft_p99: too few answers")));
        }
        assert!(plan.soak(&canary, minute, Some("ttft_p99: too few answers")));
        assert_eq!((plan.state, plan.share(&canary)), (RolloutState::Paused, 1000));
        assert!(plan.reason.ends_with("ttft_p99: too few answers"), "{}", plan.reason);
        assert_eq!(plan.act(Action::Resume, 0), Ok(false));
        assert!(plan.soak(&canary, Duration::ZERO, None));
        assert_eq!((plan.state, plan.step), (RolloutState::Running, 1));
    }

    #[test]
    fn a_step_that_several_gateways_judge_has_four_soaks_for_each_also_while_one_is_unheard() {
        let (canary, mut plan) = (canary(""), Plan { gateways: 3, answers: 1, ..Plan::default() });
        let (minute, missing) = (Duration::from_secs(60), Some("ttft_p99: too few answers"));
        for soak in 1..12 {
            assert!(!plan.soak(&canary, minute, missing), "{soak}");
            plan = serde_json::from_str(&serde_json::to_string(&plan).unwrap()).unwrap();
        }
        assert!(plan.soak(&canary, minute, missing));
        assert_eq!(plan.reason, "no verdict after 12 soaks at 3 gateways: ttft_p99: too few answers");
        assert!(plan.act(Action::Resume, 0).is_ok() && plan.soak(&canary, minute, None));
        assert_eq!((plan.step, plan.gateways), (1, 0));
    }

    #[test]
    fn a_pause_without_a_verdict_says_what_is_missing_now() {
        let (canary, mut plan) = (canary("min_requests = 10\n"), Plan::default());
        let minute = Duration::from_secs(60);
        (0..4).for_each(|_| _ = plan.soak(&canary, minute, None));
        assert_eq!(
            (plan.state, &*plan.reason),
            (RolloutState::Paused, "no verdict after 4 soaks: 0 of 10 answers")
        );
        plan.answers = 12;
        assert!(!plan.soak(&canary, minute, Some("the baseline has answered nothing")), "it stays paused");
        assert_eq!(plan.reason, "no verdict after 4 soaks: the baseline has answered nothing");
        assert!(!plan.soak(&canary, minute, None));
        assert_eq!(plan.reason, "no verdict after 4 soaks: nothing is missing any more, resume it");
        assert!(plan.act(Action::Resume, 0).is_ok() && plan.act(Action::Pause, 0).is_ok());
        plan.soak(&canary, minute, Some("the baseline has answered nothing"));
        assert_eq!(plan.reason, "paused by hand", "an operator's word stays");
    }

    #[test]
    fn a_canary_past_the_last_of_fewer_steps_keeps_to_that_and_soaks_again() {
        let (before, mut after) = (canary(""), canary(""));
        let mut plan = Plan { step: 1, soaked: 60.0, answers: 9, ..Plan::new(&before) };
        after.steps.truncate(1);
        plan.resteps(&after);
        assert_eq!((plan.state, plan.share(&after), plan.soaked), (RolloutState::Running, 1000, 0.0));
        assert!(!plan.soak(&after, Duration::from_secs(1), None));
    }

    #[test]
    fn without_its_shadow_step_a_canary_that_was_at_it_begins_the_first_step() {
        let (before, after) =
            (canary("shadow = { weight = 5, soak = \"10m\" }\n"), canary("min_requests = 1\n"));
        let mut plan = Plan::new(&before);
        plan.answers = 9;
        assert!(!plan.soak(&before, Duration::from_secs(60), None));
        plan.resteps(&after);
        assert_eq!((&*plan.reason, plan.share(&after), plan.soaked), ("step 1 of 2", 1000, 0.0));
        assert!(!plan.soak(&after, Duration::from_secs(59), None), "copies are no soak of the step");
        plan.resteps(&before);
        assert_eq!((&*plan.reason, plan.shadow_share(&before)), ("step 1 of 2", 0), "clients have met it");
        let mut paused = Plan::new(&before);
        paused.soak(&before, Duration::from_secs(1), None);
        paused.act(Action::Pause, 0).unwrap();
        paused.resteps(&after);
        assert_eq!((&*paused.reason, paused.share(&after)), ("paused by hand", 0));
        assert!(paused.act(Action::Resume, 0).is_ok() && paused.share(&after) == 1000);
        let begun = Plan::new(&after);
        let mut fresh = begun.clone();
        fresh.resteps(&after);
        assert_eq!(fresh, begun);
    }

    #[test]
    fn its_place_among_the_steps_is_that_of_the_configuration_in_force() {
        let (before, mut after) = (canary(""), canary(""));
        let mut plan = Plan { answers: 10, ..Plan::new(&before) };
        assert!(plan.soak(&before, Duration::from_secs(60), None));
        let of = before.steps.len();
        assert_eq!(plan.reason, format!("step 2 of {of}"));
        after.steps.push(after.steps[0]);
        plan.resteps(&after);
        assert_eq!(plan.reason, format!("step 2 of {}", of + 1));
        plan.act(Action::Pause, 0).unwrap();
        plan.act(Action::Resume, 0).unwrap();
        plan.resteps(&before);
        assert_eq!(plan.reason, "resumed by hand");
    }

    #[test]
    fn a_breach_takes_the_traffic_and_a_paused_one_may_come_back() {
        let (final_one, mut plan) = (canary(""), Plan::default());
        plan.breach(&final_one, "ttft_p99", 0);
        assert_eq!(
            (plan.state, plan.share(&final_one), &*plan.reason),
            (RolloutState::RolledBack, 0, "ttft_p99")
        );
        assert!(plan.act(Action::Resume, 0).is_err() && plan.act(Action::Pause, 0).is_err());
        let (pausing, mut plan) = (canary("on_breach = \"pause\"\n"), Plan::default());
        (plan.soaked, plan.answers) = (70.0, 500);
        plan.breach(&pausing, "errors", 0);
        assert_eq!((plan.state, plan.share(&pausing)), (RolloutState::Paused, 0));
        assert_eq!(plan.act(Action::Resume, 0), Ok(true), "what was held against it is forgotten");
        assert_eq!((plan.soaked, plan.answers), (0.0, 0), "and what it soaked until then");
        assert_eq!(plan.share(&pausing), 1000);
        assert_eq!(plan.act(Action::Pause, 0), Ok(false));
        assert_eq!(plan.share(&pausing), 1000, "by hand it keeps its step");
        let mut bad = plan.clone();
        bad.breach(&pausing, "errors", 0);
        assert_eq!(bad.share(&pausing), 0, "a paused one is judged as well");
        assert_eq!(plan.act(Action::Resume, 0), Ok(false));
    }
}
