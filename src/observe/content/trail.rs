//! The audit trail: each request that has agreed to it as a JSON line, in files of bounded size that only the gateway's user reads, as
//! a log record for the collector, or both.
//!
//! Requests hand over what was captured through a bounded queue. A thread redacts, writes and queues for the collector; where it
//! cannot keep up, entries are dropped and counted.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use super::capture::{Capture, Reader};
use super::entry::Entry;
use super::redact::{BEYOND_CUT, Redact};
use crate::clock::Clock;
use crate::config::Content;
use crate::observe::line_writer::{LineWriter, LogOutput};
use crate::observe::metrics::{ContentLoss, DeliveryResult, Metrics};
use crate::observe::otlp::{BatchQueue, Collector, CollectorError, LogBatch};
use crate::observe::{ObserveError, Surroundings};
use crate::record::Record;

/// Queues entries for the thread that writes them.
pub(in crate::observe) struct Trail {
    sender: SyncSender<Job>,
    lines: Option<Arc<LineWriter>>,
    events: Option<Arc<BatchQueue<LogBatch>>>,
    limit: usize,
    metrics: Arc<Metrics>,
}

enum Job {
    Entry(Arc<Record>, Arc<Capture>),
    Flush(SyncSender<()>),
}

impl Trail {
    /// Opens the file and starts the thread.
    ///
    /// # Errors
    /// The file cannot be opened, nothing can be exported, or no thread can be started.
    pub(in crate::observe) fn start(
        config: &Content,
        collector: Option<&Collector>,
        around: &Surroundings,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, ObserveError> {
        let lines = config.file.as_ref().map(|path| {
            let counters = Arc::clone(metrics);
            let write_failed = ContentLoss::WriteFailed.as_str();
            let lost = move |lines| counters.families.process.content_dropped.inc_by([write_failed], lines);
            LogOutput::private(path, config.max_file as u64, config.files)
                .and_then(|output| LineWriter::start("content", output, lost, |error| {
                    tracing::error!(%error, "telemetry.content cannot be written; entries are dropped and counted");
                }))
                .map(Arc::new)
                .map_err(|error| ObserveError::Content { path: path.clone(), error })
        });
        let events = collector.filter(|_| config.otlp);
        let events = events.map(|collector| {
            LogBatch::start(collector, around, metrics, MAX_QUEUED, exported)?
                .ok_or(CollectorError::TracesAlone)
        });
        let (lines, events) = (lines.transpose()?, events.transpose()?.map(Arc::new));
        let (sender, jobs) = sync_channel(MAX_QUEUED);
        let writer = Writer {
            redact: Redact::new(&config.redact),
            limit: config.max_entry,
            lines: lines.clone(),
            events: events.clone(),
            clock: around.clock,
            metrics: Arc::clone(metrics),
        };
        let redacting = std::thread::Builder::new().name("redact".into()).spawn(move || writer.run(&jobs));
        redacting.map_err(ObserveError::Thread)?;
        Ok(Self { sender, lines, events, limit: config.max_entry, metrics: Arc::clone(metrics) })
    }

    /// Reopens the file, for rotation by others.
    pub(in crate::observe) fn reopen(&self) {
        if let Some(lines) = &self.lines {
            lines.reopen();
        }
    }

    /// Blocks until queued entries are written, at most for `limit`.
    pub(in crate::observe) fn flush(&self, limit: Duration) {
        let (done, is_done) = sync_channel(1);
        let (mut job, mut left) = (Job::Flush(done), limit);
        while let Err(TrySendError::Full(again)) = self.sender.try_send(job) {
            if left.is_zero() {
                return;
            }
            job = again;
            std::thread::sleep(RETRY);
            left = left.saturating_sub(RETRY);
        }
        // A stalled disk is given up.
        let _ = is_done.recv_timeout(limit);
        if let Some(lines) = &self.lines {
            lines.flush(limit);
        }
    }

    /// Exports what has been handed over, for at most `limit`.
    pub(in crate::observe) async fn shutdown(&self, limit: Duration) {
        if let Some(events) = &self.events {
            events.shutdown("entries of telemetry.content", limit).await;
        }
    }
}

impl Reader for Trail {
    /// More than it keeps, so that what stands at the cut is redacted as a whole.
    fn limit(&self) -> usize {
        self.limit.saturating_add(BEYOND_CUT)
    }

    fn take(&self, record: &Arc<Record>, capture: &Arc<Capture>) {
        let entry = Job::Entry(Arc::clone(record), Arc::clone(capture));
        if self.sender.try_send(entry).is_err() {
            queue_full(&self.metrics);
        }
    }
}

struct Writer {
    redact: Redact,
    limit: usize,
    lines: Option<Arc<LineWriter>>,
    events: Option<Arc<BatchQueue<LogBatch>>>,
    clock: Clock,
    metrics: Arc<Metrics>,
}

impl Writer {
    /// Until the trail is dropped.
    fn run(&self, jobs: &Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            match job {
                Job::Entry(record, capture) => self.write(&record, &capture),
                Job::Flush(done) => {
                    // The receiver may have timed out.
                    let _ = done.try_send(());
                }
            }
        }
    }

    fn write(&self, record: &Record, capture: &Capture) {
        let entry = Entry::new(record, capture, &self.redact, self.limit);
        if let Some(lines) = &self.lines
            && !lines.add(entry.line(&self.clock).as_bytes())
        {
            queue_full(&self.metrics);
        }
        if let Some(events) = &self.events
            && events.sender.try_send(entry.event(&self.clock)).is_err()
        {
            queue_full(&self.metrics);
        }
    }
}

fn queue_full(metrics: &Metrics) {
    metrics.families.process.content_dropped.inc([ContentLoss::QueueFull.as_str()]);
}

fn exported(metrics: &Metrics, result: DeliveryResult, entries: u64) {
    if result != DeliveryResult::Sent {
        metrics.families.process.content_dropped.inc_by([ContentLoss::ExportFailed.as_str()], entries);
    }
}

/// Entries that wait; each has at most twice `max_entry` bytes.
const MAX_QUEUED: usize = 256;
const RETRY: Duration = Duration::from_millis(5);
