//! From records to the detectors, over a bounded channel.
//!
//! Called when an answer is out already; costs a few reference counts and a try_send. What does not fit is counted.

use std::sync::{Arc, OnceLock};

use tokio::sync::{mpsc, oneshot};

use super::board::Board;
use crate::clock::{Clock, Stamp};
use crate::drift::detectors::{Observation, SeriesName};
use crate::fleet::status::ReplicaStatus;
use crate::observe::Tap;
use crate::observe::metrics::Metrics;
use crate::record::{Outcome, Record};

/// Hands records over.
pub struct Feed {
    sender: mpsc::Sender<Message>,
    board: Arc<Board>,
    clock: Clock,
    metrics: Arc<Metrics>,
    fleet: Arc<OnceLock<Fleet>>,
}

/// What the task is told.
pub(super) enum Message {
    Sample(Sample),
    /// Save, and say so.
    End(oneshot::Sender<()>),
}

/// One ended request.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    at: f64,
    route: Arc<str>,
    served: Option<(Arc<str>, Arc<str>)>,
    ttft: Option<f64>,
    itl: Option<f64>,
    predicted: Option<f64>,
    ttft_bound: Option<f64>,
    connect: Option<f64>,
    /// Prompt tokens, and those of them that were cached.
    prompt: Option<(f64, f64)>,
    outcome: Outcome,
}

/// Looks at the replicas.
pub(super) type Fleet = Box<dyn Fn() -> Vec<ReplicaStatus> + Send + Sync>;

impl Feed {
    pub(super) fn new(
        sender: mpsc::Sender<Message>,
        board: Arc<Board>,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { sender, board, clock, metrics, fleet: Arc::default() }
    }

    /// Says how the replicas are looked at; without it diagnosis goes by requests alone.
    pub fn watch_fleet(&self, fleet: impl Fn() -> Vec<ReplicaStatus> + Send + Sync + 'static) {
        // A second one changes nothing: there is one fleet.
        let _ = self.fleet.set(Box::new(fleet));
    }

    pub(super) fn fleet(&self) -> Arc<OnceLock<Fleet>> {
        Arc::clone(&self.fleet)
    }

    /// Findings, for the admin API.
    #[must_use]
    pub fn board(&self) -> &Board {
        &self.board
    }

    pub(super) fn end(&self, done: oneshot::Sender<()>) -> bool {
        self.sender.try_send(Message::End(done)).is_ok()
    }
}

impl Tap for Feed {
    fn record(&self, record: &Record) {
        let sample = Sample::of(record, self.clock);
        if self.sender.try_send(Message::Sample(sample)).is_err() {
            self.metrics.drift_dropped();
        }
    }

    /// While its series drifts, or did until just now.
    fn wants_trace(&self, record: &Record) -> bool {
        self.board.is_drifting(record, || seconds(self.clock, record.at.end))
    }
}

impl Sample {
    fn of(record: &Record, clock: Clock) -> Self {
        let seconds = |span: std::time::Duration| span.as_secs_f64();
        let answered = record.attempts.last().filter(|attempt| attempt.error.is_none());
        let gaps = record.content_events.saturating_sub(1);
        // Without a token count the mean gap stands for it: drift is a comparison with itself.
        let mean_gap = || {
            let span = record.at.last_token?.since(record.at.first_token?);
            (gaps > 0).then(|| span.as_secs_f64() / gaps as f64)
        };
        Self {
            at: self::seconds(clock, record.at.end),
            route: Arc::clone(&record.route),
            served: record.served().map(|s| (Arc::clone(&s.revision), Arc::clone(&s.replica))),
            ttft: record.ttft().map(seconds),
            itl: record.tpot().map(seconds).or_else(mean_gap),
            predicted: record.decision.as_ref().and_then(|d| d.predicted_ttft).map(seconds),
            ttft_bound: record.slo.ttft.map(seconds),
            connect: answered.and_then(|attempt| Some(seconds(attempt.connected?.since(attempt.start)))),
            prompt: record.tokens.input.zip(record.tokens.cached).map(|(a, b)| (a.0 as f64, b.0 as f64)),
            outcome: record.outcome,
        }
    }

    /// The replica that answered.
    pub(super) fn series(&self) -> Option<SeriesName> {
        let (revision, replica) = self.served.clone()?;
        Some(SeriesName { route: Arc::clone(&self.route), revision, replica: Some(replica) })
    }

    pub(super) fn ttft(&self) -> Option<f64> {
        self.ttft
    }

    pub(super) fn itl(&self) -> Option<f64> {
        self.itl
    }

    pub(super) fn connect(&self) -> Option<f64> {
        self.connect
    }

    pub(super) fn prompt(&self) -> Option<(f64, f64)> {
        self.prompt
    }

    pub(super) fn observation(&self) -> Observation<'_> {
        let (revision, replica) = self.served.as_ref().map_or(("none", "none"), |(a, b)| (&**a, &**b));
        Observation {
            at: self.at,
            route: &self.route,
            revision,
            replica,
            ttft: self.ttft,
            itl: self.itl,
            predicted: self.predicted,
            ttft_bound: self.ttft_bound,
            outcome: self.outcome,
        }
    }
}

/// Wall-clock seconds of a stamp.
pub(super) fn seconds(clock: Clock, stamp: Stamp) -> f64 {
    let since = clock.wall(stamp).duration_since(std::time::UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}
