//! The access log: one JSON line per request, written by its own thread.
//!
//! Requests append their line to a bounded buffer and go on; a stalled pipe, a full disk or a closed pipe drops lines
//! and counts them. Lines are formatted where the request ends, while its record is in the cache: passing the record to
//! another thread cost more than formatting. Field names are those of the span attributes. SIGHUP reopens the file, for
//! rotation by others.

mod line;

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::judgement::Judgement;
use super::metrics::Metrics;
use crate::clock::Clock;
use crate::config;
use crate::record::Record;

/// Formats lines and queues them for the writer, which ends when this is dropped.
pub(super) struct AccessLogger {
    queue: Arc<LineQueue>,
    clock: Clock,
    metrics: Arc<Metrics>,
}

/// From the requests to the writer.
#[derive(Default)]
struct LineQueue {
    pending: Mutex<WriterWork>,
    wake: Condvar,
}

/// Work for the writer.
#[derive(Default)]
struct WriterWork {
    lines: LineBatch,
    reopens: bool,
    flushed: Vec<SyncSender<()>>,
    is_closed: bool,
    /// The writer sleeps and has to be woken.
    is_idle: bool,
}

#[derive(Default)]
struct LineBatch {
    text: Vec<u8>,
    count: u64,
}

impl AccessLogger {
    /// Opens the target and starts the writer; `None` where the log is off.
    ///
    /// # Errors
    /// The file cannot be opened, or no thread can be started.
    pub(super) fn start(
        target: &config::AccessLog,
        clock: Clock,
        metrics: &Arc<Metrics>,
    ) -> io::Result<Option<Self>> {
        let Some(output) = LogOutput::open(target)? else { return Ok(None) };
        let queue = Arc::new(LineQueue::default());
        let writer =
            Writer { queue: Arc::clone(&queue), output, metrics: Arc::clone(metrics), is_torn: false };
        std::thread::Builder::new().name("access-log".into()).spawn(move || writer.run())?;
        Ok(Some(Self { queue, clock, metrics: Arc::clone(metrics) }))
    }

    /// Queues a record's line, or drops and counts it.
    pub(super) fn record(&self, record: &Record, judgement: &Judgement) {
        // Formatted outside of the lock, in cached memory. The thread-local is gone in a thread that ends.
        let is_queued = DRAFT.try_with(|draft| {
            let mut line = draft.take();
            line.clear();
            line::write(&mut line, record, judgement, &self.clock);
            let has_room = self.queue.change(|pending| pending.lines.add(&line));
            line.shrink_to(MAX_DRAFT);
            draft.set(line);
            has_room
        });
        if is_queued != Ok(true) {
            self.metrics.access_log_dropped(1);
        }
    }

    /// Reopens the file, for rotation; pending lines go to the new one.
    pub(super) fn reopen(&self) {
        self.queue.change(|pending| pending.reopens = true);
    }

    /// Blocks until queued lines are written, at most for `limit`.
    pub(super) fn flush(&self, limit: Duration) {
        let (done, is_done) = sync_channel(1);
        self.queue.change(|pending| pending.flushed.push(done));
        // A stalled pipe is given up.
        let _ = is_done.recv_timeout(limit);
    }
}

impl Drop for AccessLogger {
    fn drop(&mut self) {
        self.queue.change(|pending| pending.is_closed = true);
    }
}

impl LineQueue {
    /// Adds work, and wakes the writer if it sleeps.
    fn change<T>(&self, add: impl FnOnce(&mut WriterWork) -> T) -> T {
        let mut pending = self.pending.lock();
        let added = add(&mut pending);
        let was_idle = std::mem::take(&mut pending.is_idle);
        drop(pending);
        if was_idle {
            self.wake.notify_one();
        }
        added
    }

    /// Waits for work and takes it; swaps `lines`, which is empty, with the pending ones.
    fn take(&self, lines: &mut LineBatch) -> WriterWork {
        let mut pending = self.pending.lock();
        while pending.is_nothing() {
            pending.is_idle = true;
            self.wake.wait(&mut pending);
        }
        std::mem::swap(&mut pending.lines, lines);
        WriterWork {
            reopens: std::mem::take(&mut pending.reopens),
            flushed: std::mem::take(&mut pending.flushed),
            is_closed: pending.is_closed,
            ..WriterWork::default()
        }
    }
}

impl LineBatch {
    /// Appends a line, if there is room.
    fn add(&mut self, line: &[u8]) -> bool {
        let has_room = self.text.len() + line.len() <= MAX_PENDING_BYTES;
        if has_room {
            self.text.extend_from_slice(line);
            self.count += 1;
        }
        has_room
    }
}

impl WriterWork {
    fn is_nothing(&self) -> bool {
        self.lines.count == 0 && !self.reopens && self.flushed.is_empty() && !self.is_closed
    }
}

/// The log's file or standard stream, unbuffered.
struct LogOutput {
    file: File,
    path: Option<PathBuf>,
}

impl LogOutput {
    fn open(target: &config::AccessLog) -> io::Result<Option<Self>> {
        let (file, path) = match target {
            config::AccessLog::Off => return Ok(None),
            config::AccessLog::Stdout => (File::from(io::stdout().as_fd().try_clone_to_owned()?), None),
            config::AccessLog::Stderr => (File::from(io::stderr().as_fd().try_clone_to_owned()?), None),
            config::AccessLog::File(path) => (append(path)?, Some(path.clone())),
        };
        Ok(Some(Self { file, path }))
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

struct Writer {
    queue: Arc<LineQueue>,
    output: LogOutput,
    metrics: Arc<Metrics>,
    /// A failed write may have left a partial line: the next write starts with a newline.
    is_torn: bool,
}

impl Writer {
    fn run(mut self) {
        let mut lines = LineBatch::default();
        loop {
            let rest = self.queue.take(&mut lines);
            if rest.reopens {
                self.reopen();
            }
            self.write(&mut lines);
            for flushed in rest.flushed {
                // The receiver may have timed out.
                let _ = flushed.try_send(());
            }
            if rest.is_closed {
                return;
            }
            // Waiting for each line would cost the requests' threads a wake-up, a system call, per line.
            std::thread::sleep(BATCH_INTERVAL);
        }
    }

    fn reopen(&mut self) {
        let Some(path) = &self.output.path else { return };
        match append(path) {
            Ok(file) => {
                self.output.file = file;
                self.is_torn = false;
            }
            Err(error) => tracing::error!(path = %path.display(), %error, "access log not reopened"),
        }
    }

    /// Writes the lines and empties the batch.
    fn write(&mut self, lines: &mut LineBatch) {
        let count = std::mem::take(&mut lines.count);
        if count == 0 {
            return;
        }
        let torn = if self.is_torn { self.output.file.write_all(b"\n") } else { Ok(()) };
        match torn.and_then(|()| self.output.file.write_all(&lines.text)) {
            Ok(()) => self.is_torn = false,
            Err(error) => {
                if !self.is_torn {
                    tracing::error!(%error, "access log cannot be written; lines are dropped and counted");
                }
                self.is_torn = true;
                self.metrics.access_log_dropped(count);
            }
        }
        lines.text.clear();
        lines.text.shrink_to(USUAL_BATCH);
    }
}

thread_local! {
    /// Buffer for formatting a line.
    static DRAFT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Bytes waiting for the writer, about 4,000 lines; as much again may be in the process of being written.
const MAX_PENDING_BYTES: usize = 4 << 20;
const MAX_DRAFT: usize = 16 << 10;
const USUAL_BATCH: usize = 256 << 10;
const BATCH_INTERVAL: Duration = Duration::from_millis(2);
