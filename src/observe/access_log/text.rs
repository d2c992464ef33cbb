//! A request as a short line of text: what happened, where, how long it took, and the id to ask `explain` for.

use std::fmt::Write as _;
use std::time::Duration;

use crate::clock::Clock;
use crate::observe::judgement::Judgement;
use crate::observe::rfc3339;
use crate::observe::style::{Paint, Style, push_escaped};
use crate::record::{Outcome, Record};

/// Appends the line of a record, its newline included.
pub(super) fn write(out: &mut Vec<u8>, record: &Record, judgement: &Judgement, style: Style, clock: &Clock) {
    let time = rfc3339::utc(clock.wall(record.at.head));
    let time = style.paint(Paint::Faint, time.get(11..19).unwrap_or(&time));
    let paint = match record.outcome {
        Outcome::Ok if judgement.missed().is_none() => Paint::Good,
        Outcome::Failed => Paint::Error,
        _ => Paint::Warning,
    };
    let mut line = format!("{time}  {}  ", style.paint(paint, &record.status.to_string()));
    let model = record.requested_model.as_deref().unwrap_or(&record.model);
    push_escaped(&mut line, &format!("{} {model}", record.dialect.operation()));
    if let Some(served) = record.served() {
        push_escaped(&mut line, &format!(" → {}", served.replica));
    }
    if let Some(error) = record.error {
        let _ = write!(line, "  {}", style.paint(paint, error));
    }
    if let Some(ttft) = record.ttft() {
        let _ = write!(line, "  ttft {}", seconds(ttft));
    }
    let _ = write!(line, "  {}", seconds(record.at.end.since(record.at.head)));
    if let (Some(input), Some(output)) = (record.tokens.input, record.tokens.output) {
        let cached = record.tokens.cached.map_or(String::new(), |cached| format!(" ({} cached)", cached.0));
        let _ = write!(line, "  {}{cached} + {} tokens", input.0, output.0);
    }
    if let Some(missed) = judgement.missed().filter(|_| record.outcome == Outcome::Ok) {
        let _ = write!(line, "  {}", style.paint(paint, &format!("missed {}", missed.as_str())));
    }
    let _ = writeln!(line, "  {}", style.paint(Paint::Faint, &record.request_id));
    out.extend_from_slice(line.as_bytes());
}

fn seconds(span: Duration) -> String {
    match span.as_secs_f64() {
        short if short < 1.0 => format!("{:.0} ms", 1e3 * short),
        long => format!("{long:.2} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::fixture;

    #[test]
    fn a_request_is_one_short_line_that_no_client_can_break() {
        let mut record = fixture::stream();
        record.requested_model = Some("a\n\u{1b}[2J".into());
        let mut out = Vec::new();
        write(&mut out, &record, &Judgement::of(&record), Style::Plain, &Clock::start());
        let line = String::from_utf8(out).unwrap();
        assert!(line.contains("  200  chat a\\n\\u{1b}[2J → gpu-a:8000  ttft 200 ms  "), "{line}");
        assert!(line.ends_with("  req-1\n") && line.len() < 200, "{line}");
    }
}
