//! The access log: one JSON line per request, or a short line of text for people at a terminal.
//!
//! Lines are formatted where the request ends, while its record is in the cache: passing the record to another thread
//! cost more than formatting. Field names are those of the span attributes. SIGHUP reopens the file, for rotation by
//! others.

mod line;
mod text;

use std::cell::Cell;
use std::io;
use std::sync::{Arc, OnceLock};

use super::judgement::Judgement;
use super::line_writer::{LineWriter, LogOutput};
use super::metrics::Metrics;
use super::style::{LogFormat, Style};
use crate::clock::Clock;
use crate::config;
use crate::record::Record;

/// Formats lines and queues them for the writer, which ends when this is dropped.
pub(super) struct AccessLogger {
    pub(super) lines: LineWriter,
    clock: Clock,
    metrics: Arc<Metrics>,
    is_terminal: bool,
    /// Unset is JSON.
    text: OnceLock<Style>,
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
        let output = match target {
            config::AccessLog::Off => return Ok(None),
            config::AccessLog::Stdout => LogOutput::stdout()?,
            config::AccessLog::Stderr => LogOutput::stderr()?,
            config::AccessLog::File(path) => LogOutput::file(path)?,
        };
        let is_terminal = output.is_terminal();
        let counters = Arc::clone(metrics);
        let lost = move |lines| counters.families.process.access_log_dropped.inc_by(lines);
        let lines = LineWriter::start("access-log", output, lost, |error| {
            tracing::error!(%error, "access log cannot be written; lines are dropped and counted");
        })?;
        Ok(Some(Self { lines, clock, metrics: Arc::clone(metrics), is_terminal, text: OnceLock::new() }))
    }

    /// Writes as the process' log does from now on.
    pub(super) fn write_as(&self, format: LogFormat) {
        if let Some(style) = format.text(self.is_terminal) {
            let _ = self.text.set(style);
        }
    }

    /// Queues a record's line, or drops and counts it.
    pub(super) fn record(&self, record: &Record, judgement: &Judgement) {
        // Formatted outside of the lock, in cached memory. The thread-local is gone in a thread that ends.
        let is_queued = DRAFT.try_with(|draft| {
            let mut line = draft.take();
            line.clear();
            match self.text.get() {
                None => line::write(&mut line, record, judgement, &self.clock),
                Some(style) => text::write(&mut line, record, judgement, *style, &self.clock),
            }
            let has_room = self.lines.add(&line);
            line.shrink_to(MAX_DRAFT);
            draft.set(line);
            has_room
        });
        if is_queued != Ok(true) {
            self.metrics.families.process.access_log_dropped.inc();
        }
    }
}

thread_local! {
    /// Buffer for formatting a line.
    static DRAFT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

const MAX_DRAFT: usize = 16 << 10;
