//! A line of the log for people: time, level where it is not `info`, message, fields.

use std::fmt::{self, Debug, Write as _};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::clock::Clock;
use crate::observe::rfc3339;
use crate::observe::style::{Paint, Style, push_escaped};

pub(super) struct TextLines {
    style: Style,
    clock: Clock,
}

impl TextLines {
    pub(super) fn new(style: Style) -> Self {
        Self { style, clock: Clock::start() }
    }
}

impl<S, N> FormatEvent<S, N> for TextLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut parts = EventText { style: self.style, ..EventText::default() };
        event.record(&mut parts);
        let time = rfc3339::utc(self.clock.wall(self.clock.now()));
        let text = format!("{}{}", parts.message, parts.fields);
        out.write_str(&line(self.style, &time, *event.metadata().level(), &text))
    }
}

/// `10:33:07  WARN  message`, by an RFC 3339 time.
pub(super) fn line(style: Style, time: &str, level: Level, text: &str) -> String {
    let time = style.paint(Paint::Faint, time.get(11..19).unwrap_or(time));
    let level = match level {
        Level::ERROR => style.paint(Paint::Error, "ERROR "),
        Level::WARN => style.paint(Paint::Warning, "WARN  "),
        Level::INFO => String::new(),
        other => style.paint(Paint::Faint, &format!("{other} ")),
    };
    format!("{time}  {level}{text}\n")
}

/// Message and fields of an event.
#[derive(Default)]
struct EventText {
    style: Style,
    message: String,
    fields: String,
}

impl Visit for EventText {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            return push_escaped(&mut self.message, value);
        }
        let mut shown = String::new();
        if value.contains(' ') {
            let _ = write!(shown, "{value:?}");
        } else {
            push_escaped(&mut shown, value);
        }
        let name = self.style.paint(Paint::Faint, &format!("{}=", field.name()));
        let _ = write!(self.fields, "  {name}{shown}");
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.record_str(field, &format!("{value:.3}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_short_and_colour_is_only_where_it_is_wanted() {
        let time = "2026-11-24T10:33:07.033168Z";
        assert_eq!(line(Style::Plain, time, Level::INFO, "stopped"), "10:33:07  stopped\n");
        assert_eq!(line(Style::Plain, time, Level::WARN, "late"), "10:33:07  WARN  late\n");
        assert!(line(Style::Colored, time, Level::WARN, "late").contains("\u{1b}[1;33mWARN"));
    }
}
