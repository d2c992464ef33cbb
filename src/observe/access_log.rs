//! The access log: one JSON line a request, written by a thread of its own.
//!
//! A log that cannot be written must not be felt: requests hand their record to a bounded queue and go on; a
//! full queue (a stalled pipe), a full disk or a closed pipe drops lines and counts them. The names are those of
//! the span attributes. Rotation is left to others: SIGHUP reopens the file.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use super::attributes::{Value, attributes};
use super::metrics::Metrics;
use super::rfc3339;
use crate::clock::Clock;
use crate::config;
use crate::digits;
use crate::record::Record;

/// Queues records for the writer.
pub struct AccessLog {
    queue: SyncSender<Message>,
    metrics: Arc<Metrics>,
}

enum Message {
    Line(Arc<Record>),
    Reopen,
    Flush(SyncSender<()>),
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
        let (queue, messages) = sync_channel(QUEUED_LINES);
        let writer = Writer { sink, clock, metrics: Arc::clone(metrics), is_torn: false };
        std::thread::Builder::new().name("access-log".into()).spawn(move || writer.run(&messages))?;
        Ok(Some(Self { queue, metrics: Arc::clone(metrics) }))
    }

    /// Queues a line, or drops and counts it.
    pub fn record(&self, record: &Arc<Record>) {
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.queue.try_send(Message::Line(Arc::clone(record)))
        {
            self.metrics.access_log_dropped(1);
        }
    }

    /// Opens a file anew, for log rotation. Where the queue is full it is not done: that log is stuck anyway.
    pub fn reopen(&self) {
        if self.queue.try_send(Message::Reopen).is_err() {
            tracing::warn!("access log not reopened: its queue is full");
        }
    }

    /// Waits until what is queued is written, at most `limit`. Blocks: not for the data path.
    pub fn flush(&self, limit: Duration) {
        let (done, is_done) = sync_channel(1);
        if self.queue.try_send(Message::Flush(done)).is_ok() {
            // A stalled pipe is abandoned: the process ends with or without it.
            let _ = is_done.recv_timeout(limit);
        }
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
    sink: Sink,
    clock: Clock,
    metrics: Arc<Metrics>,
    /// A failed write may have left half a line: the next one starts on a line of its own.
    is_torn: bool,
}

impl Writer {
    fn run(mut self, messages: &Receiver<Message>) {
        let mut batch = Vec::new();
        while let Ok(first) = messages.recv() {
            let mut lines = 0;
            let mut next = Some(first);
            // One write for what has gathered; a control message ends the batch to keep its place.
            while let Some(message) = next.take() {
                match message {
                    Message::Line(record) => {
                        lines += 1;
                        write_line(&mut batch, &record, &self.clock);
                        if batch.len() < BATCH_BYTES {
                            next = messages.try_recv().ok();
                        }
                    }
                    control => {
                        self.write(&mut batch, std::mem::take(&mut lines));
                        self.obey(control);
                    }
                }
            }
            self.write(&mut batch, lines);
            // Who waits for every line is woken for every line: at high rates that costs the requests' threads a
            // system call each. Lines gather meanwhile.
            std::thread::sleep(GATHER);
        }
    }

    fn obey(&mut self, control: Message) {
        match (control, &self.sink.path) {
            (Message::Reopen, Some(path)) => match append(path) {
                Ok(file) => {
                    self.sink.file = file;
                    self.is_torn = false;
                }
                Err(error) => tracing::error!(path = %path.display(), %error, "access log not reopened"),
            },
            (Message::Flush(done), _) => {
                // Nobody waits any more: fine.
                let _ = done.try_send(());
            }
            _ => {}
        }
    }

    fn write(&mut self, batch: &mut Vec<u8>, lines: u64) {
        if lines == 0 {
            return;
        }
        let torn = if self.is_torn { self.sink.file.write_all(b"\n") } else { Ok(()) };
        match torn.and_then(|()| self.sink.file.write_all(batch)) {
            Ok(()) => self.is_torn = false,
            Err(error) => {
                if !self.is_torn {
                    tracing::error!(%error, "access log cannot be written; lines are dropped and counted");
                }
                self.is_torn = true;
                self.metrics.access_log_dropped(lines);
            }
        }
        batch.clear();
    }
}

/// One line: the time the request came, its ids, then the attributes. Written by hand: with a serialiser it took a
/// tenth of all the work for a small request.
fn write_line(batch: &mut Vec<u8>, record: &Record, clock: &Clock) {
    batch.extend_from_slice(b"{\"time\":\"");
    rfc3339::write_utc(batch, clock.wall(record.at.head));
    batch.extend_from_slice(b"\",\"request_id\":");
    write_text(batch, &record.request_id);
    batch.extend_from_slice(b",\"trace_id\":\"");
    digits::hex(batch, record.trace.trace_id, 32);
    batch.push(b'"');
    for (name, value) in attributes(record) {
        batch.extend_from_slice(b",\"");
        batch.extend_from_slice(name.as_bytes());
        batch.extend_from_slice(b"\":");
        write_value(batch, &value);
    }
    batch.extend_from_slice(b"}\n");
}

fn write_value(batch: &mut Vec<u8>, value: &Value<'_>) {
    match value {
        Value::Str(text) => write_text(batch, text),
        Value::Int(number) => {
            if *number < 0 {
                batch.push(b'-');
            }
            digits::int(batch, number.unsigned_abs());
        }
        // Microseconds are all that is meant; the rest is noise in every line.
        Value::Float(seconds) => digits::seconds(batch, (seconds * 1e6).round() as u64),
        Value::Bool(true) => batch.extend_from_slice(b"true"),
        Value::Bool(false) => batch.extend_from_slice(b"false"),
        Value::List(texts) => {
            batch.push(b'[');
            for (at, text) in texts.iter().enumerate() {
                if at > 0 {
                    batch.push(b',');
                }
                write_text(batch, text);
            }
            batch.push(b']');
        }
    }
}

/// A JSON string; only what needs escapes goes through a serialiser.
fn write_text(batch: &mut Vec<u8>, text: &str) {
    if text.bytes().any(|byte| byte < b' ' || byte == b'"' || byte == b'\\') {
        // Writing JSON into memory does not fail.
        let _ = serde_json::to_writer(&mut *batch, text);
        return;
    }
    batch.push(b'"');
    batch.extend_from_slice(text.as_bytes());
    batch.push(b'"');
}

const QUEUED_LINES: usize = 8192;
const BATCH_BYTES: usize = 64 * 1024;
// Short, because the memory of a record that waits here is not used again while it is still in the cache.
const GATHER: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use serde_json::Value as Json;

    use super::*;
    use crate::observe::fixture;

    #[test]
    fn a_line_has_the_names_of_the_span_attributes() {
        let mut batch = Vec::new();
        write_line(&mut batch, &fixture::stream(), &Clock::start());
        let line: Json = serde_json::from_slice(&batch).unwrap();
        let text = |name: &str| line[name].as_str().unwrap().to_owned();
        assert_eq!(text("request_id"), "req-1");
        assert_eq!(text("trace_id"), "123456789abcdef0123456789abcdef0");
        assert_eq!(text("gen_ai.operation.name"), "chat");
        assert_eq!(text("tokenway.replica"), "gpu-a:8000");
        assert_eq!(text("tokenway.outcome"), "ok");
        assert_eq!(line["http.response.status_code"], 200);
        assert_eq!(line["gen_ai.usage.output_tokens"], 21);
        assert_eq!(line["gen_ai.response.finish_reasons"], serde_json::json!(["stop"]));
        assert_eq!(line["tokenway.ttft"], 0.2);
        assert_eq!(line["tokenway.stage.prefill"], 0.195);
        assert!(text("time").ends_with('Z'));
        assert!(line.get("error.type").is_none());
    }

    #[test]
    fn what_clients_name_cannot_break_a_line() {
        let mut record = fixture::stream();
        record.response_id = Some("a\"b\n{c".into());
        let mut batch = Vec::new();
        write_line(&mut batch, &record, &Clock::start());
        assert_eq!(batch.iter().filter(|byte| **byte == b'\n').count(), 1);
        let parsed: Json = serde_json::from_slice(&batch).unwrap();
        assert_eq!(parsed["gen_ai.response.id"], "a\"b\n{c");
    }
}
