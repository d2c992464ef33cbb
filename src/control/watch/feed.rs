//! From records to the detectors, over a bounded channel.
//!
//! Called when an answer is out already; costs a few reference counts and a try_send. What does not fit is counted.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::board::Board;
use crate::clock::{Clock, Stamp};
use crate::control::drift::Observation;
use crate::observe::metrics::Metrics;
use crate::record::{Outcome, Record};

/// Hands records over.
pub struct Feed {
    sender: mpsc::Sender<Message>,
    board: Arc<Board>,
    clock: Clock,
    metrics: Arc<Metrics>,
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
    outcome: Outcome,
}

impl Feed {
    pub(super) fn new(
        sender: mpsc::Sender<Message>,
        board: Arc<Board>,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { sender, board, clock, metrics }
    }

    /// A request's end.
    pub fn record(&self, record: &Record) {
        let sample = Sample::of(record, self.clock);
        if self.sender.try_send(Message::Sample(sample)).is_err() {
            self.metrics.drift_dropped();
        }
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

impl Sample {
    fn of(record: &Record, clock: Clock) -> Self {
        let seconds = |span: std::time::Duration| span.as_secs_f64();
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
            outcome: record.outcome,
        }
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
