//! What is counted of one route in one slot of time: misses by reason and stage, and who took part.
//!
//! Parts (replica, revision, tenant, class) have sums only, so that hundreds of them fit.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::labels::{LabelHasher, OTHER, labels};
use crate::observe::judgement::Judgement;
use crate::observe::overdue::Late;
use crate::observe::slo::{Missed, SloVerdict};
use crate::record::{Attempt, AttemptCause, Outcome, Record, Served};
use crate::request::class::Class;
use crate::stage::{ByStage, Stage};
use crate::stats::Mean;

labels! {
    /// What a part is one of.
    pub enum Dimension {
        Replica = "replica",
        Revision = "revision",
        Tenant = "tenant",
        Class = "class",
    }
}

impl Dimension {
    /// Whether it is of an engine, not of the client.
    pub fn is_engine(self) -> bool {
        matches!(self, Self::Replica | Self::Revision)
    }

    /// Names with a part of their own: tenants take no place of a replica. A pool has 2,048 replicas at most.
    fn most(self) -> usize {
        match self {
            Self::Replica => 2_048,
            Self::Revision | Self::Class => 64,
            Self::Tenant => 128,
        }
    }
}

/// Counts of one replica, revision, tenant or class.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// Ended requests.
    pub requests: u32,
    /// Those that count for the SLO.
    pub judged: u32,
    /// Attempts that failed, retried ones included; of a replica or revision only.
    pub failures: u32,
    /// Attempts that were answered with success, and those of them without content; of a replica or revision only.
    pub answers: u32,
    /// See `answers`.
    pub empty: u32,
    /// Prompts that it computed for another replica; of a replica only.
    pub prefills: u32,
    /// Last error message of its engine; of a replica or revision only.
    pub engine_error: Option<Arc<str>>,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Misses by the stage that is blamed.
    pub missed_in: ByStage<u32>,
    /// Those of them that failed or had no content. Which replica a request ends at that several have failed is chance: `failures` and
    /// `empty` count each attempt where it was made.
    pub wrong_in: ByStage<u32>,
    /// Seconds in each stage, of the requests that reached it.
    pub stages: ByStage<Mean>,
    /// Inter-token latencies in seconds; of a replica only.
    pub itl: Mean,
    /// Seconds to first tokens, over what the same work was predicted to take at the pool's speed.
    pub over_expected: Mean,
    /// Seconds to first tokens, over the prompt tokens that were to be computed: the same of any pool.
    pub per_token: Mean,
}

impl Part {
    /// Requests that missed their SLO.
    pub fn missed(&self) -> u32 {
        self.missed_in.iter().map(|(_, missed)| missed).sum()
    }

    /// Mean seconds in a stage, of the requests that reached it.
    pub fn mean(&self, stage: Stage) -> Option<f64> {
        self.stages[stage].value()
    }

    /// Adds the times in its own stages and the blame of a miss there (`by` 1), or takes them back (-1).
    fn add_stages(&mut self, judgement: &Judgement, is_own: impl Fn(Stage) -> bool, by: i32) {
        let blamed = blamed(judgement);
        if let Some(missed) = judgement.missed().filter(|_| is_own(blamed)) {
            add(&mut self.missed_in[blamed], by);
            if matches!(missed, Missed::Error | Missed::Empty) {
                add(&mut self.wrong_in[blamed], by);
            }
        }
        for time in judgement.stages.iter().filter(|time| is_own(time.stage)) {
            self.stages[time.stage].add_times(time.duration.as_secs_f64(), f64::from(by));
        }
    }

    fn attempt(&mut self, attempt: &Attempt, has_failed: bool) {
        // One without text is both.
        if is_answered(attempt) && (attempt.is_empty || !has_failed) {
            self.answers += 1;
            self.empty += u32::from(attempt.is_empty);
        }
        if has_failed {
            self.failures += 1;
            if let Some(words) = &attempt.engine_error {
                self.engine_error = Some((&**words).into());
            }
        }
    }

    /// Adds everything of another part.
    pub fn merge(&mut self, other: &Self) {
        self.requests += other.requests;
        self.judged += other.judged;
        self.failures += other.failures;
        self.answers += other.answers;
        self.empty += other.empty;
        self.prefills += other.prefills;
        if other.engine_error.is_some() {
            self.engine_error.clone_from(&other.engine_error);
        }
        self.prompt_tokens += other.prompt_tokens;
        for stage in Stage::ALL {
            self.missed_in[stage] += other.missed_in[stage];
            self.wrong_in[stage] += other.wrong_in[stage];
            self.stages[stage] += other.stages[stage];
        }
        self.itl += other.itl;
        self.over_expected += other.over_expected;
        self.per_token += other.per_token;
    }

    /// A revision without one of its replicas; `None` if nothing is left, or if the replica has requests of another revision as well.
    pub fn without(&self, replica: &Self) -> Option<Self> {
        let judged = self.judged.checked_sub(replica.judged).filter(|judged| *judged > 0)?;
        let mut rest =
            Self { judged, requests: self.requests.checked_sub(replica.requests)?, ..self.clone() };
        rest.failures = self.failures.checked_sub(replica.failures)?;
        rest.answers = self.answers.checked_sub(replica.answers)?;
        rest.empty = self.empty.checked_sub(replica.empty)?;
        rest.prompt_tokens = self.prompt_tokens.saturating_sub(replica.prompt_tokens);
        for stage in Stage::ALL {
            rest.missed_in[stage] = self.missed_in[stage].saturating_sub(replica.missed_in[stage]);
            rest.wrong_in[stage] = self.wrong_in[stage].saturating_sub(replica.wrong_in[stage]);
            rest.stages[stage] -= replica.stages[stage];
        }
        rest.over_expected -= replica.over_expected;
        rest.per_token -= replica.per_token;
        Some(rest)
    }
}

/// Counts of one route in one slot.
#[derive(Clone, Debug, Default)]
pub struct Slot {
    /// Ended requests.
    pub requests: u32,
    /// Requests that met their SLO.
    pub good: u32,
    /// Requests whose answer was whole and had no content.
    pub empty: u32,
    /// Requests that ended as an error of their client's.
    pub rejected: u32,
    /// Misses, in the order of [`Missed::ALL`].
    pub missed: [u32; Missed::ALL.len()],
    /// Misses by the stage that is blamed.
    pub missed_in: ByStage<u32>,
    /// Bounds on TTFT of the ended requests in seconds: they differ where a bound grows with the prompt.
    pub bound: Mean,
    /// Who took part.
    pub parts: HashMap<(Dimension, Arc<str>), Part, LabelHasher>,
    /// How many of each dimension were recorded.
    names: [usize; Dimension::ALL.len()],
}

impl Slot {
    /// Requests that count for the SLO.
    pub fn judged(&self) -> u32 {
        self.good + self.all_missed()
    }

    /// Requests that missed their SLO.
    pub fn all_missed(&self) -> u32 {
        self.missed.iter().sum()
    }

    /// Requests without content in their answers, as a fraction of all.
    pub fn empty_share(&self) -> f64 {
        f64::from(self.empty) / f64::from(self.requests.max(1))
    }

    /// Errors of clients, as a fraction of all requests.
    pub fn rejected_share(&self) -> f64 {
        f64::from(self.rejected) / f64::from(self.requests.max(1))
    }

    /// Misses, as a fraction of the judged.
    fn missed_share(&self) -> f64 {
        f64::from(self.all_missed()) / f64::from(self.judged().max(1))
    }

    /// Whether its requests kept their SLO, and their answers had text, about as often as is `usual`. Before anything is usual, a route
    /// that misses a little is taken for one that always does.
    pub(super) fn is_calm(&self, usual: Option<&Self>) -> bool {
        let (missed, empty) = usual.map_or((1.0, 1.0), |usual| (usual.missed_share(), usual.empty_share()));
        let most = (2.0 * missed).clamp(CALM, MOST_CALM);
        self.missed_share() <= most && self.empty_share() <= 2.0 * empty + 0.1
    }

    /// Adds everything of another slot.
    pub fn merge(&mut self, other: &Self) {
        self.merge_sums(other);
        for (key, part) in &other.parts {
            self.parts.entry(key.clone()).or_default().merge(part);
        }
    }

    /// The same, with as few parts as if all had been recorded here.
    pub(super) fn absorb(&mut self, other: &Self) {
        self.merge_sums(other);
        for ((dimension, name), part) in &other.parts {
            self.part(*dimension, name).merge(part);
        }
    }

    /// Without its parts.
    pub(super) fn merge_sums(&mut self, other: &Self) {
        self.requests += other.requests;
        self.good += other.good;
        self.empty += other.empty;
        self.rejected += other.rejected;
        self.missed.iter_mut().zip(other.missed).for_each(|(sum, more)| *sum += more);
        Stage::ALL.into_iter().for_each(|stage| self.missed_in[stage] += other.missed_in[stage]);
        self.bound += other.bound;
    }

    pub(super) fn record(&mut self, record: &Record, judgement: &Judgement) {
        self.requests += 1;
        self.empty += u32::from(record.empty.is_some());
        self.rejected += u32::from(record.outcome == Outcome::ClientError);
        self.bound.add(record.slo.ttft.filter(|_| record.is_stream).map(|bound| bound.as_secs_f64()));
        self.good += u32::from(judgement.verdict == SloVerdict::Met);
        if let Some(missed) = judgement.missed() {
            self.missed[missed as usize] += 1;
            self.missed_in[blamed(judgement)] += 1;
        }
        let expected =
            record.decision.as_ref().and_then(|d| Some(d.predicted_ttft?.as_secs_f64() / d.pace.max(0.01)));
        let ttft = record.ttft().map(|ttft| ttft.as_secs_f64());
        let prompt = record.tokens.input.unwrap_or(record.estimated_input).0;
        let cached = record.decision.as_ref().map_or(0, |decision| decision.predicted_hit.0);
        let computed = prompt.saturating_sub(cached).max(1) as f64;
        let charges = Charges::of(record);
        let charged = charges.charged;
        let is_counted = u32::from(judgement.verdict != SloVerdict::NotCounted);
        for (dimension, name) in charges.took_part() {
            let part = self.part(dimension, name);
            part.requests += 1;
            part.judged += is_counted;
            part.prompt_tokens += prompt;
            // What was lost at the attempts before is in it.
            let ttft = ttft.filter(|_| !charges.is_later || !dimension.is_engine());
            if let Some((sum, count)) = ttft.zip(expected) {
                part.over_expected += Mean { sum, count };
            }
            part.per_token += ttft.map_or(Mean::default(), |sum| Mean { sum, count: computed });
            part.add_stages(judgement, |stage| charges.is_own(dimension, name, stage), 1);
            if let (Dimension::Replica | Dimension::Revision, Some((at, attempt))) = (dimension, charged) {
                part.attempt(attempt, has_failed(record, at, attempt));
            }
        }
        for (dimension, name) in &charges.beside {
            let part = self.part(*dimension, name);
            part.judged += is_counted;
            part.add_stages(judgement, |stage| charges.is_own(*dimension, name, stage), 1);
        }
        for (at, attempt) in record.attempts.iter().enumerate() {
            if charged.is_none_or(|(charged, _)| charged != at) {
                self.attempt(attempt, has_failed(record, at, attempt));
            }
        }
    }

    /// Counts a recorded request's stages as they were measured in place of what they were `before`. Its verdict is the same.
    pub(super) fn correct(&mut self, record: &Record, before: &Judgement, measured: &Judgement) {
        if before.missed().is_some() {
            add(&mut self.missed_in[blamed(before)], -1);
            add(&mut self.missed_in[blamed(measured)], 1);
        }
        let charges = Charges::of(record);
        let beside = charges.beside.iter().map(|(dimension, name)| (*dimension, name));
        for (dimension, name) in charges.took_part().chain(beside) {
            let is_own = |stage| charges.is_own(dimension, name, stage);
            let part = self.part(dimension, name);
            part.add_stages(before, is_own, -1);
            part.add_stages(measured, is_own, 1);
        }
    }

    /// Counts an attempt of a request that is charged to another one.
    fn attempt(&mut self, attempt: &Attempt, has_failed: bool) {
        let Served { replica, revision, .. } = &*attempt.served;
        if is_answered(attempt) || has_failed {
            let part = self.part(Dimension::Replica, replica);
            part.attempt(attempt, has_failed);
            part.prefills += u32::from(is_answered(attempt) && attempt.cause == AttemptCause::Prefill);
            self.part(Dimension::Revision, revision).attempt(attempt, has_failed);
        }
    }

    /// Counts a request that has missed a bound and has not ended: as the miss that its record will be.
    pub fn add_late(&mut self, late: &Late) {
        let blamed = late.stage;
        self.missed[late.missed as usize] += 1;
        self.missed_in[blamed] += 1;
        for (dimension, name) in took_part(late.asked.as_deref(), &late.tenant, late.class) {
            let part = self.part(dimension, name);
            part.judged += 1;
            part.missed_in[blamed] += 1;
        }
    }

    /// Those of one kind, with their names.
    pub fn parts_of(&self, dimension: Dimension) -> impl Iterator<Item = (&Arc<str>, &Part)> {
        self.parts.iter().filter(move |((of, _), _)| *of == dimension).map(|((_, name), part)| (name, part))
    }

    /// What one has of it.
    pub fn of(&self, dimension: Dimension, name: &Arc<str>) -> Option<&Part> {
        self.parts.get(&(dimension, Arc::clone(name)))
    }

    /// The part of that name; past [`Dimension::most`] new ones share [`OTHER`].
    pub(super) fn part(&mut self, dimension: Dimension, name: &Arc<str>) -> &mut Part {
        let mut key = (dimension, Arc::clone(name));
        let names = &mut self.names[dimension as usize];
        let has_room = *names < dimension.most();
        if !has_room && !self.parts.contains_key(&key) {
            key.1 = OTHER.into();
        }
        self.parts.entry(key).or_insert_with(|| {
            *names += usize::from(has_room);
            Part::default()
        })
    }
}

/// Who took part in a request that went to this replica, if it did.
fn took_part<'r>(
    served: Option<&'r Served>,
    tenant: &'r Arc<str>,
    class: Class,
) -> impl Iterator<Item = (Dimension, &'r Arc<str>)> {
    let all = [
        (Dimension::Replica, served.map(|served| &served.replica)),
        (Dimension::Revision, served.map(|served| &served.revision)),
        (Dimension::Tenant, Some(tenant)),
        (Dimension::Class, Some(class.shared_name())),
    ];
    all.into_iter().filter_map(|(dimension, name)| Some((dimension, name?)))
}

/// Who is charged with what of a request.
struct Charges<'r> {
    record: &'r Record,
    charged: Option<(usize, &'r Attempt)>,
    /// Another one had it before.
    is_later: bool,
    /// Other replicas and revisions with stages of it.
    beside: SmallVec<[(Dimension, Arc<str>); 2]>,
}

impl<'r> Charges<'r> {
    fn of(record: &'r Record) -> Self {
        let charged = record.charged();
        let is_later = charged.is_some_and(|(_, attempt)| !record.is_first(attempt));
        let mut this = Self { record, charged, is_later, beside: SmallVec::new() };
        if let Some((_, charged)) = charged.filter(|_| record.attempts.len() > 1) {
            this.add_beside(&charged.served);
        }
        this
    }

    fn add_beside(&mut self, charged: &Served) {
        let owners = [Stage::Decode, Stage::Prefill, Stage::KvTransfer].map(|stage| self.owner(stage));
        for owner in owners.into_iter().flatten() {
            let Served { replica, revision, .. } = &*owner.served;
            for (dimension, own, of_charged) in [
                (Dimension::Replica, replica, &charged.replica),
                (Dimension::Revision, revision, &charged.revision),
            ] {
                let part = (dimension, Arc::clone(own));
                if own != of_charged && !self.beside.contains(&part) {
                    self.beside.push(part);
                }
            }
        }
    }

    fn took_part(&self) -> impl Iterator<Item = (Dimension, &'r Arc<str>)> + use<'r> {
        let served = self.charged.map(|(_, attempt)| &*attempt.served);
        took_part(served, &self.record.tenant, self.record.class)
    }

    /// Whose the time in a stage is, where that need not be the one that the request counts for.
    fn owner(&self, stage: Stage) -> Option<&'r Attempt> {
        let answered = || self.record.answered().or(self.record.attempts.last());
        match stage {
            Stage::Decode | Stage::Relay => answered(),
            Stage::KvTransfer => self.longest_leg(stage).or_else(answered),
            Stage::EngineQueue | Stage::Prefill | Stage::EngineOther => self.longest_leg(Stage::Prefill),
            _ => None,
        }
    }

    fn longest_leg(&self, stage: Stage) -> Option<&'r Attempt> {
        let legs = self.record.legs().filter(|(of, _)| *of == stage).map(|(_, leg)| leg);
        legs.max_by_key(|leg| leg.end.since(leg.start))
    }

    /// Whether the time in a stage is charged to this part.
    fn is_own(&self, dimension: Dimension, name: &Arc<str>, stage: Stage) -> bool {
        if self.is_later && dimension.is_engine() && stage == Stage::Connect {
            // The time of others is in it.
            return false;
        }
        if self.beside.is_empty() {
            return true;
        }
        let owner = self.owner(stage).or(self.charged.map(|(_, attempt)| attempt));
        let is_its = |of: fn(&Served) -> &Arc<str>| owner.is_some_and(|owner| of(&owner.served) == name);
        match dimension {
            Dimension::Replica => is_its(|served| &served.replica),
            Dimension::Revision => is_its(|served| &served.revision),
            Dimension::Tenant | Dimension::Class => true,
        }
    }
}

fn blamed(judgement: &Judgement) -> Stage {
    judgement.blamed.unwrap_or(Stage::Route)
}

fn is_answered(attempt: &Attempt) -> bool {
    attempt.status.is_some_and(|status| status < 300)
}

/// Also where its stream broke off after a good head.
fn has_failed(record: &Record, at: usize, attempt: &Attempt) -> bool {
    attempt.error.is_some()
        || attempt.status.is_some_and(|status| status >= 500)
        || record.outcome_of(at, attempt) == Outcome::Failed
}

fn add(count: &mut u32, by: i32) {
    *count = count.saturating_add_signed(by);
}

/// Missed share up to which a slot is calm on any route, and beyond which on none.
const CALM: f64 = 0.01;
const MOST_CALM: f64 = 0.1;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::observe::fixture;
    use crate::record::{Outcome, SloBounds};

    /// What is counted of these.
    fn slot_of<const N: usize>(records: [&Record; N]) -> Slot {
        let mut slot = Slot::default();
        records.into_iter().for_each(|record| slot.record(record, &Judgement::of(record)));
        slot
    }

    /// Its first token is late.
    fn late() -> Record {
        let slo = SloBounds { ttft: Some(Duration::from_millis(100)), ..SloBounds::default() };
        Record { slo, ..fixture::stream() }
    }

    #[test]
    fn a_miss_is_counted_for_the_route_and_for_everyone_who_took_part() {
        let left = Record { outcome: Outcome::ClientError, ..fixture::stream() };
        let slot = slot_of([&late(), &fixture::stream(), &left]);
        assert_eq!((slot.requests, slot.judged(), slot.good), (3, 2, 1));
        assert_eq!(slot.missed[Missed::Ttft as usize], 1);
        assert_eq!(slot.missed_in[Stage::Prefill], 1);
        let part = |dimension, name: &str| slot.parts[&(dimension, name.into())].clone();
        for (dimension, name) in [
            (Dimension::Replica, "gpu-a:8000"),
            (Dimension::Revision, "v1"),
            (Dimension::Tenant, "acme"),
            (Dimension::Class, "short"),
        ] {
            let part = part(dimension, name);
            assert_eq!((part.requests, part.judged, part.missed(), part.prompt_tokens), (3, 2, 1, 300));
            assert!((part.mean(Stage::Prefill).unwrap() - 0.195).abs() < 1e-9);
        }
        let revision = part(Dimension::Revision, "v1");
        assert!(revision.without(&part(Dimension::Replica, "gpu-a:8000")).is_none(), "its only replica");
        let mut both = revision.clone();
        both.merge(&revision);
        let rest = both.without(&revision).unwrap();
        assert_eq!((rest.requests, rest.judged, rest.missed(), rest.prompt_tokens), (3, 2, 1, 300));
        assert!((rest.mean(Stage::Prefill).unwrap() - 0.195).abs() < 1e-9);
        let mut twice = slot.clone();
        twice.merge(&slot);
        assert_eq!((twice.judged(), twice.all_missed()), (4, 2));
        assert_eq!(twice.parts[&(Dimension::Tenant, "acme".into())].missed(), 2);
    }

    #[test]
    fn a_failed_attempt_is_charged_to_its_replica_though_another_answered() {
        let mut retried = fixture::stream();
        let mut failed = retried.attempts[0].clone();
        Arc::make_mut(&mut failed.served).replica = "gpu-b:8000".into();
        failed.error = Some("connect_refused");
        failed.end = failed.start;
        retried.attempts.insert(0, failed);
        let slot = slot_of([&retried]);
        let replica = |name: &str| slot.parts[&(Dimension::Replica, name.into())].clone();
        assert_eq!((replica("gpu-b:8000").failures, replica("gpu-b:8000").requests), (1, 0));
        assert_eq!((replica("gpu-a:8000").failures, replica("gpu-a:8000").requests), (0, 1));
        let revision = slot.of(Dimension::Revision, &"v1".into()).unwrap();
        assert_eq!((revision.failures, revision.answers), (1, 1));
    }

    #[test]
    fn a_request_that_a_replica_got_too_late_is_no_failure_of_it() {
        let mut late =
            Record { outcome: Outcome::Failed, error: Some("timeout_first_token"), ..fixture::stream() };
        late.attempts[0].status = None;
        (late.attempts[0].is_canceled, late.at.first_token) = (true, None);
        let slot = slot_of([&late]);
        let part = slot.of(Dimension::Replica, &"gpu-a:8000".into()).unwrap();
        assert_eq!((slot.all_missed(), part.failures, part.answers), (1, 0, 0));
    }

    #[test]
    fn a_stream_that_breaks_off_is_a_failure_and_no_answer() {
        let broken = Record { outcome: Outcome::Failed, ..fixture::stream() };
        let slot = slot_of([&broken, &fixture::stream()]);
        let part = slot.of(Dimension::Replica, &"gpu-a:8000".into()).unwrap();
        assert_eq!((part.requests, part.failures, part.answers), (2, 1, 1));
    }

    #[test]
    fn what_a_hedge_waited_for_is_not_the_winner_s_connect() {
        let mut hedged = late();
        let mut overtaken = hedged.attempts[0].clone();
        Arc::make_mut(&mut overtaken.served).replica = "gpu-b:8000".into();
        overtaken.end = overtaken.start.after(Duration::from_millis(1));
        hedged.attempts[0].start = overtaken.end;
        hedged.attempts.insert(0, overtaken);
        hedged.at.connected = hedged.at.first_token;
        assert_eq!(Judgement::of(&hedged).blamed, Some(Stage::Connect));
        let slot = slot_of([&hedged]);
        let part = |dimension, name: &str| slot.parts[&(dimension, name.into())].clone();
        let winner = part(Dimension::Replica, "gpu-a:8000");
        assert_eq!((winner.requests, winner.missed(), winner.mean(Stage::Connect)), (1, 0, None));
        assert_eq!(part(Dimension::Tenant, "acme").missed(), 1);
        assert_eq!(slot.missed_in[Stage::Connect], 1);
    }

    #[test]
    fn a_prompt_that_was_computed_for_another_replica_counts_where_it_was() {
        let mut record = fixture::stream();
        let mut leg = record.attempts[0].clone();
        (leg.cause, leg.status) = (AttemptCause::Prefill, Some(200));
        Arc::make_mut(&mut leg.served).replica = "prefill-1".into();
        // It took longer than the head of the answer, and the answer's gaps were too long.
        leg.end = leg.start.after(Duration::from_secs(2));
        record.attempts.insert(0, leg);
        record.itl_missed = Some(99);
        let slot = slot_of([&record]);
        let part = |name: &str| slot.of(Dimension::Replica, &name.into()).unwrap();
        let (own, decoder) = (part("prefill-1"), part("gpu-a:8000"));
        assert_eq!((own.prefills, own.requests, own.judged, own.missed()), (1, 0, 1, 0));
        assert_eq!((decoder.requests, decoder.judged, decoder.missed_in[Stage::Decode]), (1, 1, 1));
        assert!(own.mean(Stage::Prefill).is_some() && own.mean(Stage::Decode).is_none());
        assert!(decoder.mean(Stage::Decode).is_some() && decoder.mean(Stage::Prefill).is_none());
        let revision = slot.of(Dimension::Revision, &"v1".into()).unwrap();
        assert_eq!((revision.judged, revision.missed_in[Stage::Decode]), (1, 1));
    }

    #[test]
    fn kv_that_did_not_come_counts_where_it_was_awaited() {
        let mut record = late();
        let mut awaited = record.attempts[0].clone();
        Arc::make_mut(&mut awaited.served).replica = "decode-1".into();
        awaited.error = Some("transfer_failed");
        awaited.end = record.at.first_token.unwrap();
        (record.attempts[0].start, record.at.connected) = (awaited.end, Some(awaited.end));
        record.attempts.insert(0, awaited);
        // Decoding took longer than the wait.
        assert_eq!(Judgement::of(&record).blamed, Some(Stage::KvTransfer));
        let slot = slot_of([&record]);
        let mean = |name: &str| slot.of(Dimension::Replica, &name.into()).unwrap().mean(Stage::KvTransfer);
        assert!(mean("decode-1").is_some() && mean("gpu-a:8000").is_none());
    }

    #[test]
    fn parts_are_bounded() {
        let (mut slot, mut record) = (Slot::default(), fixture::stream());
        for i in 0..1000 {
            record.tenant = format!("t{i}").into();
            slot.record(&record, &Judgement::of(&record));
        }
        assert_eq!(slot.parts[&(Dimension::Tenant, OTHER.into())].requests, 872);
        assert_eq!(slot.parts.len(), 128 + 4);
        // As many tenants as there are leave replicas theirs.
        for i in 0..1000 {
            Arc::make_mut(&mut record.attempts[0].served).replica = format!("r{i}").into();
            slot.record(&record, &Judgement::of(&record));
        }
        assert!((0..1000).all(|i| slot.of(Dimension::Replica, &format!("r{i}").into()).is_some()));
    }
}
