//! Logs: to stderr, as text on a terminal and as JSON elsewhere.
//!
//! stdout belongs to the access log and to what commands print.

use std::io::IsTerminal as _;
use std::str::FromStr;

use parking_lot::Mutex;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, reload};

/// A log level, or comma-separated filters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLevel(String);

/// The text is neither a level nor valid filters.
#[derive(Debug, thiserror::Error)]
#[error(
    "\"{0}\" is not a log level: use off, error, warn, info, debug, trace, or filters such as info,tokenway=debug"
)]
pub struct UnknownLevel(String);

impl FromStr for LogLevel {
    type Err = UnknownLevel;

    fn from_str(text: &str) -> Result<Self, UnknownLevel> {
        // `EnvFilter` takes a bare word that is no level as a module's name; mostly it is a mistyped level.
        let is_known =
            |part: &str| !part.is_empty() && (part.contains('=') || part.parse::<LevelFilter>().is_ok());
        let are_known = text.split(',').all(is_known);
        if !are_known || EnvFilter::try_new(text).is_err() {
            return Err(UnknownLevel(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }
}

/// The filter in force, changeable while the program runs.
#[derive(Debug)]
pub struct LogFilter {
    filter: reload::Handle<EnvFilter, Registry>,
    text: Mutex<String>,
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
        self.filter.reload(EnvFilter::new(&level.0)).map_err(|error| error.to_string())?;
        *self.text.lock() = level.0;
        Ok(())
    }
}

/// Starts logging; a subscriber that was installed before stays.
pub fn init(level: &LogLevel) -> LogFilter {
    let (filter, handle) = reload::Layer::new(EnvFilter::new(&level.0));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(filter);
    let started = if std::io::stderr().is_terminal() {
        registry.with(lines).try_init()
    } else {
        registry.with(lines.json().flatten_event(true)).try_init()
    };
    if started.is_err() {
        tracing::debug!("logging was started before");
    }
    LogFilter { filter: handle, text: Mutex::new(level.0.clone()) }
}

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
