//! Logs: to stderr, as text on a terminal and as JSON elsewhere.
//!
//! stdout belongs to the access log and to what commands print. Lines are written by a thread of their own, so that a
//! stderr that nobody reads holds up nothing, and are limited by their place in the code ([`rate`]), so that no client
//! can fill it. A bare level is that of the gateway's own code: dependencies are at `error` unless they are named.

mod rate;
mod text;

use std::io::{self, IsTerminal as _};
use std::panic::PanicHookInfo;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tracing::Metadata;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Registry, reload};

use self::rate::RateLimit;
use self::text::TextLines;
use crate::clock::Clock;
use crate::observe::line_writer::{LineWriter, LogOutput};
use crate::observe::metrics::LogDrops;
use crate::observe::rfc3339;
use crate::observe::style::{LogFormat, Style};

/// A log level, or comma-separated filters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLevel(String);

/// The text is neither a level nor valid filters.
#[derive(Debug, thiserror::Error)]
#[error(
    "\"{0}\" is not a log level: use off, error, warn, info, debug, or filters such as info,tokenway=debug"
)]
pub struct UnknownLevel(String);

impl FromStr for LogLevel {
    type Err = UnknownLevel;

    fn from_str(text: &str) -> Result<Self, UnknownLevel> {
        // `Targets` takes a bare word that is no level as a module's name; mostly it is a mistyped level.
        let is_known =
            |part: &str| !part.is_empty() && (part.contains('=') || part.parse::<LevelFilter>().is_ok());
        let are_known = text.split(',').all(is_known);
        if !are_known || text.parse::<Targets>().is_err() {
            return Err(UnknownLevel(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }
}

impl LogLevel {
    fn filter(&self) -> Targets {
        let directive = |part: &str| match part {
            part if part.contains('=') || part.eq_ignore_ascii_case("off") => part.to_owned(),
            level => format!("error,tokenway={level},tokenway_sim={level}"),
        };
        let directives: Vec<String> = self.0.split(',').map(directive).collect();
        directives.join(",").parse().expect("invariant: every part was parsed when the level was read")
    }
}

/// The filter in force, changeable while the program runs.
#[derive(Debug)]
pub struct LogFilter {
    filter: reload::Handle<Targets, Registry>,
    text: Mutex<String>,
    lines: Arc<StderrLines>,
    format: LogFormat,
}

impl LogFilter {
    /// The level or filters that were set last.
    pub fn text(&self) -> String {
        self.text.lock().clone()
    }

    /// Puts a level or filters in force.
    ///
    /// # Errors
    /// The message of [`UnknownLevel`].
    pub fn set(&self, text: &str) -> Result<(), String> {
        let level: LogLevel = text.parse().map_err(|error: UnknownLevel| error.to_string())?;
        self.filter.reload(level.filter()).map_err(|error| error.to_string())?;
        *self.text.lock() = level.0;
        Ok(())
    }

    /// How logs are written.
    pub fn format(&self) -> LogFormat {
        self.format
    }

    /// Whether people read it.
    pub fn is_text(&self) -> bool {
        self.lines.style.is_some()
    }

    /// Counts of lines that were not written, for the metrics.
    pub fn drops(&self) -> Arc<LogDrops> {
        Arc::clone(&self.lines.dropped)
    }

    /// Writes what is queued, also when the filter is gone.
    pub fn flusher(&self) -> impl FnOnce() + use<> {
        let lines = Arc::clone(&self.lines);
        move || lines.flush()
    }
}

/// The queue of lines to stderr.
#[derive(Debug)]
struct StderrLines {
    /// `None` if its thread could not be started: then there is no log.
    writer: Option<LineWriter>,
    /// `None` is JSON.
    style: Option<Style>,
    dropped: Arc<LogDrops>,
}

impl StderrLines {
    fn start(style: Option<Style>) -> Arc<Self> {
        let dropped = Arc::new(LogDrops::default());
        let drops = Arc::clone(&dropped);
        let lost = move |lines| _ = drops.write_failed.fetch_add(lines, Ordering::Relaxed);
        // There is no place to log an error of the log.
        let start = |stderr| LineWriter::start("log", stderr, lost, |_| {});
        let writer = LogOutput::stderr().and_then(start).ok();
        Arc::new(Self { writer, style, dropped })
    }

    fn add(&self, line: &[u8]) {
        if !self.writer.as_ref().is_some_and(|writer| writer.add(line)) {
            self.dropped.queue_full.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn flush(&self) {
        if let Some(writer) = &self.writer {
            writer.flush(FLUSH_FOR);
        }
    }

    /// A line about lines that the rate limit left out before the one that follows.
    fn note_left_out(&self, count: u64, place: &Metadata<'_>, clock: &Clock) {
        let (time, level, target) = (rfc3339::utc(clock.wall(clock.now())), place.level(), place.target());
        let message = format!("{count} lines like the next one were left out");
        self.add(
            match self.style {
                None => format!(
                    "{{\"timestamp\":\"{time}\",\"level\":\"{level}\",\"message\":\"{message}\",\"target\":\"{target}\"}}\n"
                ),
                Some(style) => text::line(style, &time, *level, &message),
            }
            .as_bytes(),
        );
    }
}

/// One event's line on its way into the queue: the layer writes it at once.
struct StderrLine(Arc<StderrLines>);

impl io::Write for StderrLine {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.add(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts logging; a subscriber that was installed before stays.
pub fn init(level: &LogLevel, format: LogFormat) -> LogFilter {
    let (filter, handle) = reload::Layer::new(level.filter());
    let style = format.text(io::stderr().is_terminal());
    let queue = StderrLines::start(style);
    let writer = Arc::clone(&queue);
    let lines = tracing_subscriber::fmt::layer().with_writer(move || StderrLine(Arc::clone(&writer)));
    let (registry, limit) = (tracing_subscriber::registry().with(filter), RateLimit::new(Arc::clone(&queue)));
    let started = match style {
        None => registry.with(lines.json().flatten_event(true).with_filter(limit)).try_init(),
        Some(style) => registry.with(lines.event_format(TextLines::new(style)).with_filter(limit)).try_init(),
    };
    match started {
        Ok(()) => std::panic::set_hook(Box::new(log_panic)),
        Err(_) => tracing::debug!("logging was started before"),
    }
    LogFilter { filter: handle, text: Mutex::new(level.0.clone()), lines: queue, format }
}

/// The default hook writes to stderr itself, and would wait for whoever does not read it.
fn log_panic(info: &PanicHookInfo<'_>) {
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let message = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("?");
    let thread = std::thread::current();
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    tracing::error!(place, thread = thread.name(), "panicked, which is a bug of the gateway: {message}");
}

/// For the last lines, when the process ends.
const FLUSH_FOR: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_filters_are_taken_and_mistyped_levels_are_not() {
        for text in ["info", "DEBUG", "off", "info,tokenway=debug", "tokenway::relay=trace"] {
            assert!(text.parse::<LogLevel>().is_ok(), "{text}");
        }
        for text in ["", "loud", "inf", "info,tokenway=loud", "info,", "=x=y"] {
            assert!(text.parse::<LogLevel>().is_err(), "{text}");
        }
    }
}
