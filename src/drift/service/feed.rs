//! From records to the detectors, over a bounded channel.
//!
//! Called after the response is out; costs a few reference counts and a `try_send`. What does not fit is dropped and counted.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::DriftService;
use super::board::Board;
use crate::clock::{Clock, Stamp, since_epoch};
use crate::drift::detectors::{Finding, Mute, NOT_SERVED, Observation, SeriesName, itl_of_whole};
use crate::observe::metrics::Metrics;
use crate::observe::stages::Stage;
use crate::observe::{Judgement, Tap};
use crate::record::{Attempt, Outcome, Record, SloBounds, TokenCounts};

/// Hands records over.
pub struct Feed {
    pub(super) sender: mpsc::Sender<FeedMessage>,
    pub(super) board: Arc<Board>,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<Metrics>,
}

pub(super) enum FeedMessage {
    Ended(EndedRequest),
    /// An operator's: a finding is known or over, or silence.
    Order(Order),
    /// Writes the baselines, confirms it and ends the task.
    End(oneshot::Sender<()>),
}

/// What the task does for an operator, its answer included.
pub(super) type Order = Box<dyn FnOnce(&mut DriftService) + Send>;

/// The task that owns the findings is gone or overloaded.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("drift detection is busy")]
pub struct Busy;

#[derive(Clone, Debug)]
pub(super) struct EndedRequest {
    record: Arc<Record>,
    at: f64,
    pub(super) ttft: Option<f64>,
    pub(super) itl: Option<f64>,
    /// Seconds by stage before the first token.
    pub(super) stages: [Option<f64>; STAGES.len()],
    pub(super) output: Option<f64>,
    /// Replicas of its revision at which it failed before its last attempt.
    failed_at: Vec<Arc<str>>,
}

impl Feed {
    /// Findings, for the admin API.
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Somebody knows of the finding `id`: nobody is told of it any more. `None` where it does not hold.
    pub async fn acknowledge(&self, id: &str, is_acknowledged: bool) -> Result<Option<Finding>, Busy> {
        let id = id.to_owned();
        self.order(move |service| service.detectors.acknowledge(&id, is_acknowledged)).await
    }

    /// Ends the finding `id` and takes what is now for usual. `None` where it does not hold.
    pub async fn reset(&self, id: &str) -> Result<Option<Finding>, Busy> {
        let id = id.to_owned();
        self.order(move |service| service.detectors.reset(&id)).await
    }

    /// Tells nobody of such findings; one that is over already ends the mute before it.
    pub async fn mute(&self, mute: Mute) -> Result<(), Busy> {
        self.order(|service| service.mute(mute)).await
    }

    async fn order<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut DriftService) -> T + Send + 'static,
    ) -> Result<T, Busy> {
        let (answer, answered) = oneshot::channel();
        let order: Order = Box::new(|service| {
            // Whoever asked may be gone.
            let _ = answer.send(act(service));
        });
        self.sender.try_send(FeedMessage::Order(order)).map_err(|_| Busy)?;
        answered.await.map_err(|_| Busy)
    }

    /// Seconds since the Unix epoch.
    pub fn now(&self) -> f64 {
        seconds(self.clock, self.clock.now())
    }
}

impl Tap for Feed {
    fn record(&self, record: &Arc<Record>, judgement: &Judgement) {
        if record.has_no_route() {
            return;
        }
        let request = EndedRequest::of(record, judgement, self.clock);
        if self.sender.try_send(FeedMessage::Ended(request)).is_err() {
            self.metrics.families.control.drift_dropped.inc();
        }
    }

    /// While its series drifts, and five minutes more.
    fn wants_trace(&self, record: &Record) -> bool {
        self.board.is_drifting(record, || seconds(self.clock, record.at.end))
    }
}

impl EndedRequest {
    pub(super) fn of(record: &Arc<Record>, judgement: &Judgement, clock: Clock) -> Self {
        let seconds = |span: Duration| span.as_secs_f64();
        // The first answers of a process that has just become warm tell of its start (`cold_starts`), not of its speed.
        let is_cold = record.is_cold();
        let whole = answer_in_one_piece(record).map(seconds);
        // A whole answer of another API, such as a batch, is judged by its time alone.
        let output = record.tokens.output.filter(|_| record.is_stream || record.dialect.generates());
        let output = output.map(|tokens| tokens.0 as f64);
        let has_tokens = output.is_some_and(|tokens| tokens > 0.0);
        let ttft = record.ttft().map(seconds).or(whole.filter(|_| !has_tokens)).filter(|_| !is_cold);
        let is_answered = (record.ttft().is_some() || whole.is_some()) && !is_cold;
        let time_of = |stage| judgement.stages.iter().find(|time| time.stage == stage);
        let time = |stage| time_of(stage).map_or(0.0, |time| seconds(time.duration));
        // Without a token count the mean gap between events stands for it: drift is a comparison with itself. A client that left may have
        // waited longer for the next event than for any before.
        let mean_gap = || {
            let last = record.at.last_token?;
            let open = record.longest_gap_at.filter(|at| *at > last);
            let gaps = record.content_events.saturating_sub(1) + u64::from(open.is_some());
            let span = open.unwrap_or(last).since(record.at.first_token?);
            (gaps > 0).then(|| span.as_secs_f64() / gaps as f64)
        };
        let per_token = || itl_of_whole(whole?, predicted_ttft(record), output);
        Self {
            record: Arc::clone(record),
            at: self::seconds(clock, record.at.end),
            ttft,
            itl: record.tpot().map(seconds).or_else(mean_gap).or_else(per_token),
            stages: STAGES.map(|stage| is_answered.then(|| time(stage))),
            output,
            failed_at: failed_at(record),
        }
    }

    /// The replica that answered, as a series.
    pub(super) fn series(&self) -> Option<SeriesName> {
        let served = self.record.served()?;
        let (revision, replica) = (Arc::clone(&served.revision), Some(Arc::clone(&served.replica)));
        Some(SeriesName { route: Arc::clone(&self.record.route), revision, replica })
    }

    /// Prompt tokens, by the engine or estimated.
    pub(super) fn prompt(&self) -> Option<f64> {
        let tokens = self.record.tokens.input.unwrap_or(self.record.estimated_input);
        Some(tokens.0 as f64).filter(|tokens| *tokens > 0.0)
    }

    /// Prompt tokens, and those of them that were cached.
    pub(super) fn cached(&self) -> Option<(f64, f64)> {
        let TokenCounts { input, cached, .. } = self.record.tokens;
        Some((input?.0 as f64, cached?.0 as f64))
    }

    pub(super) fn observation(&self) -> Observation<'_> {
        let record = &*self.record;
        // It failed in the queue of the gateway, whichever replica came to have the rest of its time.
        let served = record.served().filter(|_| !record.is_spared());
        let SloBounds { ttft: bound, ttft_base, .. } = record.slo;
        Observation {
            at: self.at,
            route: &record.route,
            revision: served.map_or(NOT_SERVED, |served| &served.revision),
            is_standby: served.is_some_and(|served| served.is_standby),
            replica: served.map_or(NOT_SERVED, |served| &served.replica),
            waited_at: waited_at(record),
            failed_at: &self.failed_at,
            ttft: self.ttft,
            itl: self.itl,
            prompt: self.prompt(),
            predicted: predicted_ttft(record),
            pace: record.decision.as_ref().map_or(1.0, |decision| decision.pace),
            ttft_bound: bound.map(|b| (b.as_secs_f64(), ttft_base.unwrap_or(b).as_secs_f64())),
            // Refused by its tenant's own limits, it says as little of the route as a client's error.
            outcome: if record.is_over_own_limit() { Outcome::ClientError } else { record.outcome },
        }
    }
}

/// The replica that made it wait for its first token, where that is of the revision that it counts for.
fn waited_at(record: &Record) -> Option<&str> {
    let (_, charged) = record.charged()?;
    (charged.served.revision == record.served()?.revision).then_some(&*charged.served.replica)
}

fn failed_at(record: &Record) -> Vec<Arc<str>> {
    let Some((last, before)) = record.attempts.split_last() else { return Vec::new() };
    let has_failed = |(at, attempt): &(usize, &Attempt)| {
        let is_own = attempt.served.revision == last.served.revision && !attempt.is_prefill_leg();
        is_own && record.outcome_of(*at, attempt) == Outcome::Failed
    };
    let failed = before.iter().enumerate().filter(has_failed);
    failed.map(|(_, attempt)| Arc::clone(&attempt.served.replica)).collect()
}

/// Predicted at the decision, in seconds.
fn predicted_ttft(record: &Record) -> Option<f64> {
    Some(record.decision.as_ref()?.predicted_ttft?.as_secs_f64())
}

/// From the last byte of the request to the end of a good answer that was no stream.
fn answer_in_one_piece(record: &Record) -> Option<Duration> {
    let is_whole = record.outcome == Outcome::Ok && record.at.first_token.is_none() && !record.is_stream;
    Some(record.at.end.since(record.at.read.filter(|_| is_whole)?))
}

/// Stages before the first token, in the order of `Signals`: in the gateway, on the way, at the engine.
pub(super) const STAGES: [Stage; 5] =
    [Stage::Admit, Stage::Connect, Stage::EngineQueue, Stage::Prefill, Stage::EngineOther];

/// Seconds since the Unix epoch.
pub(super) fn seconds(clock: Clock, stamp: Stamp) -> f64 {
    since_epoch(clock.wall(stamp)).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::fixture;
    use crate::request::dialect::Dialect;
    use crate::units::Tokens;

    #[test]
    fn a_replica_that_failed_first_is_charged_with_its_failure_and_with_the_wait() {
        let mut record = fixture::stream();
        let answered = record.attempts.remove(0);
        let mut failed = Attempt { error: Some("timeout"), ..answered.clone() };
        Arc::make_mut(&mut failed.served).replica = "sick".into();
        failed.end = failed.start.after(Duration::from_secs(2));
        record.attempts = vec![failed, answered.clone()];
        let record = Arc::new(record);
        let request = EndedRequest::of(&record, &Judgement::of(&record), Clock::start());
        let observed = request.observation();
        assert_eq!((observed.replica, observed.waited_at), (&*answered.served.replica, Some("sick")));
        assert_eq!(*observed.failed_at, [Arc::<str>::from("sick")]);
    }

    #[test]
    fn a_request_that_a_replica_got_too_late_fails_at_none() {
        let mut late = fixture::stream();
        (late.outcome, late.error, late.at.first_token) =
            (Outcome::Failed, Some("timeout_first_token"), None);
        let failed_at = |record: &Record| {
            let ended = Arc::new(record.clone());
            let request = EndedRequest::of(&ended, &Judgement::of(record), Clock::start());
            let observed = request.observation();
            assert_eq!(observed.outcome, Outcome::Failed);
            observed.replica.to_owned()
        };
        late.attempts[0].error = Some("timeout_first_token");
        assert_eq!(failed_at(&late), *late.attempts[0].served.replica);
        (late.attempts[0].error, late.attempts[0].is_canceled) = (None, true);
        assert_eq!(failed_at(&late), NOT_SERVED);
    }

    #[test]
    fn an_answer_in_one_piece_is_timed_by_its_end_or_by_its_tokens() {
        let mut whole = fixture::stream();
        whole.is_stream = false;
        (whole.at.first_token, whole.at.last_token) = (None, None);
        let observed = |record: &Record| {
            let ended = Arc::new(record.clone());
            let request = EndedRequest::of(&ended, &Judgement::of(record), Clock::start());
            (request.ttft.map(|s| (s * 1e3).round()), request.itl.map(|s| (s * 1e3).round()))
        };
        // 1,290 ms from its last byte, 150 of them predicted for the first of 21 tokens.
        assert_eq!(observed(&whole), (None, Some(54.0)));
        whole.dialect = Dialect::ChatBatch;
        assert_eq!(observed(&whole), (Some(1290.0), None), "a batch has no pace");
        whole.dialect = Dialect::Chat;
        whole.tokens.output = None;
        assert_eq!(observed(&whole), (Some(1290.0), None));
        whole.tokens.output = Some(Tokens(0));
        assert_eq!(observed(&whole), (Some(1290.0), None));
        whole.outcome = Outcome::Failed;
        assert_eq!(observed(&whole), (None, None));
    }
}
