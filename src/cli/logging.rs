//! Logs: to stderr, as text on a terminal and as JSON elsewhere.
//!
//! stdout belongs to the access log and to what commands print.

use std::io::IsTerminal as _;
use std::str::FromStr;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// What is logged: a level, or comma-separated filters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLevel(String);

/// A level that does not exist.
#[derive(Debug, thiserror::Error)]
#[error(
    "\"{0}\" is not a log level: use off, error, warn, info, debug, trace, or filters such as info,tokenway=debug"
)]
pub struct UnknownLevel(String);

impl FromStr for LogLevel {
    type Err = UnknownLevel;

    fn from_str(text: &str) -> Result<Self, UnknownLevel> {
        // A bare word that is no level would be taken as the name of a module: mostly it is a mistyped level.
        let is_known =
            |part: &str| !part.is_empty() && (part.contains('=') || part.parse::<LevelFilter>().is_ok());
        let are_known = text.split(',').all(is_known);
        if !are_known || EnvFilter::try_new(text).is_err() {
            return Err(UnknownLevel(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }
}

/// Starts logging; where a log is being written already, that one stays.
pub fn init(level: &LogLevel) {
    let builder =
        tracing_subscriber::fmt().with_env_filter(EnvFilter::new(&level.0)).with_writer(std::io::stderr);
    let started = if std::io::stderr().is_terminal() {
        builder.try_init()
    } else {
        builder.json().flatten_event(true).try_init()
    };
    if started.is_err() {
        tracing::debug!("logging was started before");
    }
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
