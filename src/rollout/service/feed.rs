//! From first tokens, gaps and records to the judges, over a bounded channel.
//!
//! Requests of routes without a running canary cost one look at an empty list. What does not fit is dropped and counted.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::api::canaries::Canary;
use crate::clock::Stamp;
use crate::observe::metrics::{Metrics, StreamKey};
use crate::observe::slo::SloVerdict;
use crate::observe::{Judgement, Tap};
use crate::record::{self, Attempt, AttemptCause, FirstToken, Gaps, Outcome, Record, Served};
use crate::request::class::Class;
use crate::rollout::judge::Arm;
use crate::rollout::plan::Action;

/// Hands observations and commands over.
pub struct Feed {
    pub(super) observations: mpsc::Sender<Observation>,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) watched: Arc<ArcSwap<Vec<Watched>>>,
    /// Every rollout as it is, in the order of the routes.
    pub(super) board: Arc<Mutex<Vec<Canary>>>,
    pub(super) metrics: Arc<Metrics>,
}

/// A canary that is being judged.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    pub(super) route: Arc<str>,
    pub(super) pool: Arc<str>,
    pub(super) revision: Arc<str>,
}

/// Something of a route with a canary.
pub(super) struct Observation {
    pub(super) route: Arc<str>,
    pub(super) class: Class,
    /// When its request came; of gaps that does not matter: they are those of now.
    pub(super) arrived: Stamp,
    pub(super) seen: Seen,
}

pub(super) enum Seen {
    FirstToken {
        arm: Arm,
        replica: u64,
        ttft: f64,
        conversation: Option<u64>,
        /// See [`Record::has_queued`].
        has_queued: bool,
    },
    /// Gaps in seconds, with the tokens that each stands for.
    Gaps {
        arm: Arm,
        replica: u64,
        gaps: Vec<(f64, f64)>,
    },
    Ended(Box<Ended>),
    /// The queue of a side's pool refused it.
    TurnedAway {
        arm: Arm,
        record: Arc<Record>,
    },
}

/// One ended request, and what only its feed can know of it.
pub(super) struct Ended {
    pub(super) record: Arc<Record>,
    /// Attempts that ended by themselves: whose, and whether they failed.
    pub(super) attempts: Vec<(Arm, bool)>,
    pub(super) arm: Arm,
    /// Whose request it was first: what was lost there is in its time.
    pub(super) dealt: Arm,
    /// Replica and error of an attempt at the canary that failed before the baseline answered.
    pub(super) lost: Option<(Arc<str>, &'static str)>,
    /// Neither its client nor the gateway gave it up before its first token.
    pub(super) is_answered: bool,
    /// Waited for its first token, or its answer, until its end.
    pub(super) censored: Option<f64>,
    /// Of an answer without a stream: the replica's time, per output token where it generates.
    pub(super) answer_time: Option<f64>,
    /// One over its output tokens.
    pub(super) brevity: Option<f64>,
    /// Whether a generated answer ended at its limit of tokens.
    pub(super) is_at_limit: Option<bool>,
    pub(super) is_slo_missed: Option<bool>,
    pub(super) error: Option<&'static str>,
    /// Hash of the replica that served it.
    pub(super) replica: u64,
}

pub(super) enum Command {
    Act {
        route: Arc<str>,
        action: Action,
        done: oneshot::Sender<Result<(), ActError>>,
    },
    /// Writes the state, confirms it and ends the task.
    End(oneshot::Sender<()>),
    /// Judge before the next tick: what was seen may need no statistics.
    Judge,
}

/// Why an action had no effect, or has one that does not last.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ActError {
    /// The route is not known or has no canary.
    #[error("route {0} has no canary")]
    NoCanary(String),
    /// Its state does not allow it.
    #[error("{0}")]
    State(String),
    /// It is in force, and its state cannot be written.
    #[error(
        "the canary is {state}, and a restart would forget it: route.canary.state {path} cannot be written: {error}"
    )]
    NotKept {
        /// That it has now.
        state: &'static str,
        /// Of the state.
        path: String,
        /// Why.
        error: String,
    },
    /// The task is gone or did not answer in time.
    #[error("the rollouts do not answer")]
    NoAnswer,
}

impl Feed {
    /// Rollouts as they are, for the admin API.
    pub(crate) fn canaries(&self) -> Vec<Canary> {
        self.board.lock().clone()
    }

    /// Acts on the canary of a route.
    pub async fn act(&self, route: &str, action: Action) -> Result<(), ActError> {
        let (done, answer) = oneshot::channel();
        let command = Command::Act { route: route.into(), action, done };
        self.commands.try_send(command).map_err(|_| ActError::NoAnswer)?;
        match tokio::time::timeout(ANSWER_TIMEOUT, answer).await {
            Ok(Ok(result)) => result,
            _ => Err(ActError::NoAnswer),
        }
    }

    /// Which side a pool's replica of a revision is on: neither where a reload has made the canary another revision since.
    fn arm(&self, route: &str, pool: &str, revision: &str) -> Option<Arm> {
        let watched = self.watched.load();
        let of_route = watched.iter().find(|watched| *watched.route == *route)?;
        match *of_route.pool == *pool {
            true => (*of_route.revision == *revision).then_some(Arm::Canary),
            false => Some(Arm::Baseline),
        }
    }

    fn arm_of(&self, route: &str, served: &Served) -> Option<Arm> {
        self.arm(route, &served.pool, &served.revision)
    }

    /// Counts a refusal by a queue; returns whose it was.
    fn turned_away(&self, record: &Arc<Record>) -> Option<Arm> {
        let by = record.turned_away.as_ref()?;
        let arm = self.arm(&record.route, &by.pool, &by.revision)?;
        let seen = Seen::TurnedAway { arm, record: Arc::clone(record) };
        self.send(record, seen);
        Some(arm)
    }

    fn send(&self, record: &Record, seen: Seen) {
        let (route, class, arrived) = (Arc::clone(&record.route), record.class, record.at.head);
        self.send_on(Observation { route, class, arrived, seen });
    }

    fn send_on(&self, observation: Observation) {
        if self.observations.try_send(observation).is_err() {
            self.metrics.families.control.canary_dropped.inc();
        }
    }
}

impl Tap for Feed {
    fn first_token(&self, first: &FirstToken<'_>) {
        // Loading, compiling and empty caches are no property of a revision, nor is what was lost elsewhere.
        if first.is_cold || first.record.is_filling() {
            return;
        }
        let (Some(served), FirstToken { record, ttft, .. }) = (first.waited_at(), first) else { return };
        if let Some(arm) = self.arm_of(&record.route, served) {
            let (ttft, conversation) = (ttft.as_secs_f64(), record.conversation);
            let replica = id(&served.pool, &served.replica);
            let has_queued = record.has_queued();
            let seen = Seen::FirstToken { arm, replica, ttft, conversation, has_queued };
            self.send(record, seen);
        }
    }

    fn gaps(&self, stream: &StreamKey, gaps: &Gaps<'_>) {
        if gaps.is_filling {
            return;
        }
        let Some(arm) = self.arm(&stream.route, &stream.pool, &stream.revision) else { return };
        let gaps: Vec<_> = gaps.itl().map(|(itl, tokens)| (itl.as_secs_f64(), f64::from(tokens))).collect();
        if !gaps.is_empty() {
            let replica = id(&stream.pool, &stream.replica);
            let (route, seen) = (Arc::clone(&stream.route), Seen::Gaps { arm, replica, gaps });
            self.send_on(Observation { route, class: stream.class, arrived: Stamp::default(), seen });
        }
    }

    fn record(&self, record: &Arc<Record>, judgement: &Judgement) {
        let turned_away = self.turned_away(record);
        let Some(served) = record.served() else { return };
        let Some(arm) = self.arm_of(&record.route, served) else { return };
        let last = record.attempts.len().saturating_sub(1);
        let is_over = record.outcome != Outcome::Canceled;
        let is_cold = record.is_cold() || record.is_filling();
        // Prompts are computed for all revisions alike.
        let is_own = |attempt: &Attempt| !attempt.is_canceled && attempt.cause != AttemptCause::Prefill;
        let lost = record.attempts.iter().filter(|attempt| is_own(attempt) && arm == Arm::Baseline);
        let lost = lost.filter(|attempt| self.arm_of(&record.route, &attempt.served) == Some(Arm::Canary));
        let mut lost = lost.filter_map(|attempt| Some((Arc::clone(&attempt.served.replica), attempt.error?)));
        let first = record.attempts.iter().find(|attempt| is_own(attempt));
        let dealt = turned_away.or_else(|| first.and_then(|first| self.arm_of(&record.route, &first.served)));
        // The last one has waited for itself, however it ended.
        let mut before = record.attempts.iter().take(last);
        let is_retried =
            record.turned_away.is_some() || before.any(|made| is_own(made) && made.error.is_some());
        let attempts = record.attempts.iter().enumerate().filter(|(_, attempt)| is_own(attempt));
        let is_bad = record.outcome != Outcome::Ok || is_empty(record);
        let attempts = attempts.filter_map(|(at, attempt)| {
            let is_failed = attempt.error.is_some() || (at == last && is_over && is_bad);
            let arm = self.arm_of(&record.route, &attempt.served)?;
            (is_failed || (at == last && is_over)).then_some((arm, is_failed))
        });
        let is_unary = !record.is_stream;
        let is_answered =
            if is_unary { record.outcome == Outcome::Ok } else { record.at.first_token.is_some() };
        // Clients leave, with or without an answer of their own: at the end of a unary one nothing was open any more.
        let is_refused = is_unary && is_over && record.status < 500;
        let is_open = !is_answered && !is_refused;
        let waited = || Some(record.at.end.since(record.at.read?).as_secs_f64());
        let output = record.tokens.output.filter(|_| record.dialect.generates());
        let per_token = |seconds: f64| seconds / output.map_or(1.0, |tokens| tokens.0.max(1) as f64);
        let answer_time = record.answered().filter(|_| is_unary && record.outcome == Outcome::Ok && !is_cold);
        let sent = |answer: &Attempt| record.outrun().map_or(answer.start, |(silent, _)| silent.start);
        let ended = Ended {
            record: Arc::clone(record),
            attempts: attempts.collect(),
            arm,
            dealt: dealt.unwrap_or(arm),
            lost: lost.next(),
            is_answered: is_answered || is_over,
            censored: if is_open && !is_cold && !is_retried { waited() } else { None },
            answer_time: answer_time.map(|answer| per_token(answer.end.since(sent(answer)).as_secs_f64())),
            brevity: brevity(record).filter(|_| record.outcome == Outcome::Ok),
            is_at_limit: is_at_limit(record).filter(|_| record.outcome == Outcome::Ok),
            is_slo_missed: match judgement.verdict {
                _ if record.is_filling() => None,
                SloVerdict::Met => Some(false),
                SloVerdict::Missed(_) => Some(true),
                SloVerdict::NotCounted => None,
            },
            // A client that left is no failure.
            error: record.error.or_else(|| is_empty(record).then_some("empty")).filter(|_| is_over),
            replica: id(&served.pool, &served.replica),
        };
        let is_unknown_model = arm == Arm::Canary && record.unserved.is_some();
        self.send(record, Seen::Ended(Box::new(ended)));
        if is_unknown_model {
            // A full queue of commands is on its way to the same end.
            let _ = self.commands.try_send(Command::Judge);
        }
    }

    fn sees_copies(&self) -> bool {
        true
    }

    fn is_canary(&self, record: &Record) -> bool {
        record.served().is_some_and(|served| self.arm_of(&record.route, served) == Some(Arm::Canary))
    }
}

/// Identifies a replica: names are unique within a pool.
pub(super) fn id(pool: &str, replica: &str) -> u64 {
    xxh3_64_with_seed(replica.as_bytes(), xxh3_64(pool.as_bytes()))
}

/// Whether a good status brought nothing: no content, or an error object.
fn is_empty(record: &Record) -> bool {
    if !record.dialect.generates() {
        return false;
    }
    if record.is_stream {
        return record.content_events == 0;
    }
    record.finish_reasons.is_empty() && record.tokens.output.is_none_or(|tokens| tokens.0 == 0)
}

/// One over the tokens of a generated answer, where they are known; of a stream whose engine does not count them by its text: one event
/// may have many.
fn brevity(record: &Record) -> Option<f64> {
    let by_text = record.is_stream.then(|| record.text_bytes as f64 / BYTES_PER_TOKEN);
    let tokens = record.tokens.output.map(|tokens| tokens.0 as f64).or(by_text)?;
    record.dialect.generates().then(|| 1.0 / tokens.max(0.5))
}

/// Whether a generated answer with a known reason ended at its limit of tokens.
fn is_at_limit(record: &Record) -> Option<bool> {
    record::is_at_limit(&record.finish_reasons).filter(|_| record.dialect.generates())
}

/// Of prose; both sides are measured by it.
const BYTES_PER_TOKEN: f64 = 4.0;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::config::check::check_with_pool;
    use crate::observe::fixture;

    /// A feed that watches a canary where the record was served, of its revision or another one; and what it observes.
    fn feed(record: &Record, revision: Option<&str>) -> (Feed, mpsc::Receiver<Observation>) {
        let config = check_with_pool("").unwrap();
        let metrics = Arc::new(Metrics::new(&config, Clock::start()));
        let ((observations, seen), (commands, _)) = (mpsc::channel(9), mpsc::channel(9));
        let Served { pool, revision: own, .. } = record.served().unwrap().clone();
        let (route, revision) = (Arc::clone(&record.route), revision.map_or(own, Into::into));
        let watched = Arc::new(ArcSwap::from_pointee(vec![Watched { route, pool, revision }]));
        (Feed { observations, commands, watched, board: Arc::default(), metrics }, seen)
    }

    /// What came of a request that is over.
    fn ended(feed: &Feed, seen: &mut mpsc::Receiver<Observation>, record: &Record) -> Option<Box<Ended>> {
        feed.record(&Arc::new(record.clone()), &Judgement::of(record));
        match seen.try_recv().ok()?.seen {
            Seen::Ended(ended) => Some(ended),
            _ => panic!("it ended"),
        }
    }

    #[test]
    fn replicas_of_two_pools_may_have_one_name() {
        assert_ne!(id("old", "r1"), id("new", "r1"));
        assert_eq!(id("old", "r1"), id("old", "r1"));
    }

    #[test]
    fn a_wait_that_ends_without_an_answer_is_the_replica_s_unless_another_had_failed_before() {
        let mut late = fixture::stream();
        let (feed, mut seen) = feed(&late, None);
        (late.outcome, late.at.first_token, late.attempts[0].error) =
            (Outcome::Failed, None, Some("timeout_first_token"));
        let mut is_censored = |record: &Record| ended(&feed, &mut seen, record).unwrap().censored.is_some();
        assert!(is_censored(&late));
        late.attempts.push(late.attempts[0].clone());
        assert!(!is_censored(&late), "part of it is the first one's");
    }

    #[test]
    fn only_a_wait_as_long_as_empty_caches_make_it_counts_for_no_side() {
        let mut record = fixture::stream();
        let (feed, mut seen) = feed(&record, None);
        let is_late = |ended: &Ended| (ended.censored.is_some(), ended.is_slo_missed.is_some());
        record.decision.as_mut().unwrap().is_filling = true;
        record.slo.ttft = Some(Duration::from_millis(100));
        // From the decision to the first token 198 ms pass, and 1288 to the end.
        for (longest, answered, lost) in [
            (150, (false, true), (true, true)),
            (200, (false, false), (true, true)),
            (1300, (false, false), (false, false)),
        ] {
            let decision = record.decision.as_mut().unwrap();
            decision.longest_fill = Duration::from_millis(longest);
            assert_eq!(is_late(&ended(&feed, &mut seen, &record).unwrap()), answered, "{longest} ms");
            let mut left = record.clone();
            (left.outcome, left.at.first_token, left.at.last_token) = (Outcome::Failed, None, None);
            assert_eq!(is_late(&ended(&feed, &mut seen, &left).unwrap()), lost, "{longest} ms");
        }
    }

    #[test]
    fn an_answer_of_a_cold_replica_is_known_for_one() {
        let mut record = fixture::stream();
        let (feed, mut seen) = feed(&record, None);
        for is_cold in [false, true] {
            record.decision.as_mut().unwrap().is_cold = is_cold;
            assert_eq!(ended(&feed, &mut seen, &record).unwrap().record.is_cold(), is_cold);
        }
    }

    #[test]
    fn what_began_under_the_revision_before_is_not_the_canary_s() {
        let record = fixture::stream();
        let arm = |revision| {
            let (feed, mut seen) = feed(&record, revision);
            ended(&feed, &mut seen, &record).map(|ended| ended.arm)
        };
        assert_eq!(arm(None), Some(Arm::Canary));
        assert_eq!(arm(Some("after-a-reload")), None);
    }

    #[test]
    fn what_a_hedge_was_sent_for_is_late_and_what_failed_before_is_another_s() {
        let mut record = fixture::hedged();
        let (feed, mut seen) = feed(&record, None);
        let mut first_token = |record: &Record| {
            let served = record.served().unwrap();
            let ttft = record.ttft().unwrap();
            feed.first_token(&FirstToken { record, served, ttft, predicted: None, is_cold: false });
            match seen.try_recv().ok()?.seen {
                Seen::FirstToken { arm, replica, ttft, .. } => Some((arm, replica, ttft)),
                _ => panic!("a first token"),
            }
        };
        let late = id("llama", "gpu-b:8000");
        assert_eq!(first_token(&record), Some((Arm::Canary, late, 0.2)), "it took that long or longer");
        (record.attempts[0].is_canceled, record.attempts[0].error) = (false, Some("closed_before_head"));
        assert_eq!(first_token(&record), None);
    }

    #[test]
    fn an_answer_in_one_piece_after_a_hedge_took_as_long_as_its_client_waited() {
        let mut record = Record { is_stream: false, ..fixture::hedged() };
        (record.at.first_token, record.at.last_token, record.tokens.output) = (None, None, None);
        record.attempts[1].end = record.at.head.after(Duration::from_millis(1012));
        let (feed, mut seen) = feed(&record, None);
        assert_eq!(ended(&feed, &mut seen, &record).unwrap().answer_time, Some(1.0));
    }

    #[test]
    fn a_stream_without_counted_tokens_is_as_long_as_its_text_in_however_many_events() {
        let mut record = fixture::stream();
        let (feed, mut seen) = feed(&record, None);
        let mut brevity = |record: &Record| ended(&feed, &mut seen, record).unwrap().brevity;
        assert_eq!(brevity(&record), Some(1.0 / 21.0));
        (record.tokens.output, record.text_bytes) = (None, 96);
        let of = [24, 6].map(|events| {
            record.content_events = events;
            brevity(&record)
        });
        assert_eq!(of, [Some(1.0 / 24.0); 2]);
        record.text_bytes = 1;
        assert_eq!(brevity(&record), Some(2.0), "it stopped at once");
    }
}
