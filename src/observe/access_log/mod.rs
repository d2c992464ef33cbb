//! The access log: one JSON line a request, written by a thread of its own.
//!
//! A log that cannot be written must not be felt: requests append their line to what is pending and go on; too much
//! of it (a stalled pipe), a full disk or a closed pipe drops lines and counts them. The line is made where the request
//! ends, while its record is still in the cache: handed to another thread, reading it there and freeing it took longer
//! than the line itself. The names are those of the span attributes. Rotation is left to others: SIGHUP reopens the file.

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

/// Makes lines and queues them for the writer, which ends with it.
pub struct AccessLog {
    queue: Arc<Queue>,
    clock: Clock,
    metrics: Arc<Metrics>,
}

/// Between those whose requests end and the writer.
#[derive(Default)]
struct Queue {
    pending: Mutex<Pending>,
    wake: Condvar,
}

/// What the writer has to do.
#[derive(Default)]
struct Pending {
    lines: Lines,
    reopens: bool,
    flushed: Vec<SyncSender<()>>,
    is_closed: bool,
    /// The writer sleeps until it is told.
    is_idle: bool,
}

#[derive(Default)]
struct Lines {
    text: Vec<u8>,
    count: u64,
}

impl AccessLog {
    /// Opens the target and starts the writer; `None` where the log is off.
    ///
    /// # Errors
    /// The file cannot be opened, or no thread can be started.
    pub fn start(
        target: &config::AccessLog,
        clock: Clock,
        metrics: &Arc<Metrics>,
    ) -> io::Result<Option<Self>> {
        let Some(sink) = Sink::open(target)? else { return Ok(None) };
        let queue = Arc::new(Queue::default());
        let writer = Writer { queue: Arc::clone(&queue), sink, metrics: Arc::clone(metrics), is_torn: false };
        std::thread::Builder::new().name("access-log".into()).spawn(move || writer.run())?;
        Ok(Some(Self { queue, clock, metrics: Arc::clone(metrics) }))
    }

    /// Queues a record's line, or drops and counts it.
    pub fn record(&self, record: &Record, judgement: &Judgement) {
        // Made outside of the lock, in memory that is in the cache already. A thread that ends has none any more.
        let is_written = DRAFT.try_with(|draft| {
            let mut line = draft.take();
            line.clear();
            line::write(&mut line, record, judgement, &self.clock);
            let is_taken = self.queue.change(|pending| pending.lines.add(&line));
            line.shrink_to(LONGEST_DRAFT);
            draft.set(line);
            is_taken
        });
        if is_written != Ok(true) {
            self.metrics.access_log_dropped(1);
        }
    }

    /// Opens a file anew, for log rotation. What is pending goes to the new one.
    pub fn reopen(&self) {
        self.queue.change(|pending| pending.reopens = true);
    }

    /// Waits until what is queued is written, at most `limit`. Blocks: not for the data path.
    pub fn flush(&self, limit: Duration) {
        let (done, is_done) = sync_channel(1);
        self.queue.change(|pending| pending.flushed.push(done));
        // A stalled pipe is abandoned: the process ends with or without it.
        let _ = is_done.recv_timeout(limit);
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.queue.change(|pending| pending.is_closed = true);
    }
}

impl Queue {
    /// Adds to what the writer has to do, and wakes it if it sleeps.
    fn change<T>(&self, add: impl FnOnce(&mut Pending) -> T) -> T {
        let mut pending = self.pending.lock();
        let added = add(&mut pending);
        let was_idle = std::mem::take(&mut pending.is_idle);
        drop(pending);
        if was_idle {
            self.wake.notify_one();
        }
        added
    }

    /// Waits for something to do and takes it; `lines` is empty room for the next ones. Of what stays only its end is told.
    fn take(&self, lines: &mut Lines) -> Pending {
        let mut pending = self.pending.lock();
        while pending.is_nothing() {
            pending.is_idle = true;
            self.wake.wait(&mut pending);
        }
        std::mem::swap(&mut pending.lines, lines);
        Pending {
            reopens: std::mem::take(&mut pending.reopens),
            flushed: std::mem::take(&mut pending.flushed),
            is_closed: pending.is_closed,
            ..Pending::default()
        }
    }
}

impl Lines {
    /// Appends a line, if there is room.
    fn add(&mut self, line: &[u8]) -> bool {
        let has_room = self.text.len() + line.len() <= MOST_PENDING;
        if has_room {
            self.text.extend_from_slice(line);
            self.count += 1;
        }
        has_room
    }
}

impl Pending {
    fn is_nothing(&self) -> bool {
        self.lines.count == 0 && !self.reopens && self.flushed.is_empty() && !self.is_closed
    }
}

/// Where lines go. Written without a buffer between batches, so that a line is there when it is written.
struct Sink {
    file: File,
    path: Option<PathBuf>,
}

impl Sink {
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
    queue: Arc<Queue>,
    sink: Sink,
    metrics: Arc<Metrics>,
    /// A failed write may have left half a line: the next one starts on a line of its own.
    is_torn: bool,
}

impl Writer {
    fn run(mut self) {
        let mut lines = Lines::default();
        loop {
            let rest = self.queue.take(&mut lines);
            if rest.reopens {
                self.reopen();
            }
            self.write(&mut lines);
            for flushed in rest.flushed {
                // Nobody waits any more: fine.
                let _ = flushed.try_send(());
            }
            if rest.is_closed {
                return;
            }
            // Who waits for every line is woken for every line: at high rates that costs the requests' threads a
            // system call each. Lines gather meanwhile.
            std::thread::sleep(GATHER);
        }
    }

    fn reopen(&mut self) {
        let Some(path) = &self.sink.path else { return };
        match append(path) {
            Ok(file) => {
                self.sink.file = file;
                self.is_torn = false;
            }
            Err(error) => tracing::error!(path = %path.display(), %error, "access log not reopened"),
        }
    }

    /// Writes the lines and leaves room for others.
    fn write(&mut self, lines: &mut Lines) {
        let count = std::mem::take(&mut lines.count);
        if count == 0 {
            return;
        }
        let torn = if self.is_torn { self.sink.file.write_all(b"\n") } else { Ok(()) };
        match torn.and_then(|()| self.sink.file.write_all(&lines.text)) {
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
    /// Room for a line in the making.
    static DRAFT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Bytes that may wait for the writer; about as many lines as it has kilobytes. As much again is being written.
const MOST_PENDING: usize = 4 << 20;
const LONGEST_DRAFT: usize = 16 << 10;
const USUAL_BATCH: usize = 256 << 10;
const GATHER: Duration = Duration::from_millis(2);
