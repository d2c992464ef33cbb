//! The audit trail: a JSON line for each request that has agreed to it, in files of bounded size that only the gateway's user reads.
//!
//! Requests hand over what was captured through a bounded queue. A thread redacts and writes; where it cannot keep up, entries are
//! dropped and counted.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::capture::{Capture, Reader};
use super::redact::Redact;
use crate::clock::Clock;
use crate::config::Content;
use crate::observe::line_writer::{LineWriter, LogOutput, LostLines};
use crate::observe::metrics::{ContentLoss, Metrics};
use crate::observe::rfc3339;
use crate::record::Record;

/// Queues entries for the thread that writes them.
pub(in crate::observe) struct Trail {
    sender: SyncSender<Job>,
    lines: Arc<LineWriter>,
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
    /// The file cannot be opened, or no thread can be started.
    pub(in crate::observe) fn start(
        config: &Content,
        clock: Clock,
        metrics: &Arc<Metrics>,
    ) -> io::Result<Self> {
        let output = LogOutput::private(&config.file, config.max_file as u64, config.files)?;
        let lines = Arc::new(LineWriter::start("content", output, Lost(Arc::clone(metrics)))?);
        let (sender, jobs) = sync_channel(MAX_QUEUED);
        let writer = Writer {
            redact: Redact::new(&config.redact),
            limit: config.max_entry,
            lines: Arc::clone(&lines),
            clock,
            metrics: Arc::clone(metrics),
        };
        std::thread::Builder::new().name("redact".into()).spawn(move || writer.run(&jobs))?;
        Ok(Self { sender, lines, limit: config.max_entry, metrics: Arc::clone(metrics) })
    }

    /// Reopens the file, for rotation by others.
    pub(in crate::observe) fn reopen(&self) {
        self.lines.reopen();
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
        self.lines.flush(limit);
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
            self.metrics.families.process.content_dropped.inc([ContentLoss::QueueFull.as_str()]);
        }
    }
}

struct Writer {
    redact: Redact,
    limit: usize,
    lines: Arc<LineWriter>,
    clock: Clock,
    metrics: Arc<Metrics>,
}

impl Writer {
    /// Until the trail is dropped.
    fn run(&self, jobs: &Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            match job {
                Job::Entry(record, capture) => {
                    let mut line = self.entry(&record, &capture).to_string();
                    line.push('\n');
                    if !self.lines.add(line.as_bytes()) {
                        self.metrics.families.process.content_dropped.inc([ContentLoss::QueueFull.as_str()]);
                    }
                }
                Job::Flush(done) => {
                    // The receiver may have timed out.
                    let _ = done.try_send(());
                }
            }
        }
    }

    fn entry(&self, record: &Record, capture: &Capture) -> Json {
        let (answer, is_answer_cut) = capture.redacted_answer(&self.redact, self.limit);
        json!({
            "time": rfc3339::utc(self.clock.wall(record.at.head)),
            "request_id": &*record.request_id,
            "trace_id": format!("{:032x}", record.trace.trace_id),
            "tenant": &*record.tenant,
            "key": &*record.key,
            "route": &*record.route,
            "model": record.requested_model,
            "path": &*record.path,
            "status": record.status,
            "outcome": record.outcome.as_str(),
            "error": record.error,
            "request": self.redact.body(&capture.request, self.limit),
            "answer": answer,
            "is_request_cut": record.bytes_in > self.limit as u64,
            "is_answer_cut": is_answer_cut,
        })
    }
}

/// Counts the lines that a failed write loses.
struct Lost(Arc<Metrics>);

impl LostLines for Lost {
    fn lost(&self, lines: u64) {
        self.0.families.process.content_dropped.inc_by([ContentLoss::WriteFailed.as_str()], lines);
    }

    fn failed(&self, error: &io::Error) {
        tracing::error!(%error, "telemetry.content cannot be written; entries are dropped and counted");
    }
}

/// Entries that wait; each has at most twice `max_entry` bytes.
const MAX_QUEUED: usize = 256;
/// Longest secret that is found at a cut.
const BEYOND_CUT: usize = 1024;
const RETRY: Duration = Duration::from_millis(5);
