//! Formats a line: a JSON object of the request's time, its ids and its attributes.
//!
//! Written by hand: serde_json took a tenth of the CPU of a small request.

use std::io::Write as _;
use std::net::IpAddr;

use crate::clock::Clock;
use crate::digits;
use crate::observe::attributes::{self, AttributeKey, AttributeValue, Sink};
use crate::observe::judgement::Judgement;
use crate::observe::rfc3339;
use crate::record::Record;
use crate::request::json;

/// Appends the line of a record, its newline included.
pub(super) fn write(out: &mut Vec<u8>, record: &Record, judgement: &Judgement, clock: &Clock) {
    out.extend_from_slice(b"{\"time\":\"");
    rfc3339::write_utc(out, clock.wall(record.at.head));
    out.extend_from_slice(b"\",\"request_id\":");
    write_text(out, &record.request_id);
    out.extend_from_slice(b",\"trace_id\":\"");
    digits::hex(out, record.trace.trace_id, 32);
    out.push(b'"');
    attributes::each(record, judgement, &mut Line(out));
    out.extend_from_slice(b"}\n");
}

struct Line<'o>(&'o mut Vec<u8>);

impl<'a> Sink<'a> for Line<'_> {
    #[inline(always)]
    fn take(&mut self, key: AttributeKey, value: AttributeValue<'a>) {
        self.0.extend_from_slice(key.member.as_bytes());
        write_value(self.0, &value);
    }
}

#[inline(always)]
fn write_value(out: &mut Vec<u8>, value: &AttributeValue<'_>) {
    match value {
        AttributeValue::Str(text) => write_text(out, text),
        AttributeValue::Text(text) => write_text(out, text),
        AttributeValue::Number(number) => digits::decimal::<6>(out, *number),
        AttributeValue::Int(number) => {
            if *number < 0 {
                out.push(b'-');
            }
            digits::int(out, number.unsigned_abs());
        }
        AttributeValue::Name(name) => {
            out.push(b'"');
            out.extend_from_slice(name.as_bytes());
            out.push(b'"');
        }
        AttributeValue::Span(span) => digits::seconds(out, *span),
        AttributeValue::Bool(true) => out.extend_from_slice(b"true"),
        AttributeValue::Bool(false) => out.extend_from_slice(b"false"),
        AttributeValue::Address(IpAddr::V4(address)) => {
            let mut before = b'"';
            for octet in address.octets() {
                out.push(before);
                digits::int(out, octet.into());
                before = b'.';
            }
            out.push(b'"');
        }
        AttributeValue::Address(IpAddr::V6(address)) => {
            // Writing into memory does not fail.
            let _ = write!(out, "\"{address}\"");
        }
        AttributeValue::List(texts) => {
            out.push(b'[');
            for (at, text) in texts.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write_text(out, text);
            }
            out.push(b']');
        }
    }
}

/// A JSON string; only text that needs escapes goes through serde_json.
fn write_text(out: &mut Vec<u8>, text: &str) {
    if !json::is_plain(text) {
        // Writing JSON into memory does not fail.
        let _ = serde_json::to_writer(&mut *out, text);
        return;
    }
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::observe::fixture;
    use crate::record::{Addends, Weighed};

    fn line_of(record: &Record) -> (String, Json) {
        let mut out = Vec::new();
        write(&mut out, record, &Judgement::of(record), &Clock::start());
        let line = serde_json::from_slice(&out).unwrap();
        (String::from_utf8(out).unwrap(), line)
    }

    #[test]
    fn a_line_has_the_names_of_the_span_attributes() {
        let record = fixture::stream();
        let (_, line) = line_of(&record);
        for (name, value) in [
            ("request_id", json!("req-1")),
            ("trace_id", json!("123456789abcdef0123456789abcdef0")),
            ("gen_ai.operation.name", json!("chat")),
            ("tokenway.replica", json!("gpu-a:8000")),
            ("tokenway.outcome", json!("ok")),
            ("http.response.status_code", json!(200)),
            ("gen_ai.usage.output_tokens", json!(21)),
            ("gen_ai.response.finish_reasons", json!(["stop"])),
            ("tokenway.ttft", json!(0.2)),
            ("error.type", Json::Null),
        ] {
            assert_eq!(line[name], value, "{name}");
        }
        assert!(line["time"].as_str().unwrap().ends_with('Z'));
        for time in Judgement::of(&record).stages {
            let name = format!("tokenway.stage.{}", time.stage.as_str());
            assert_eq!(line[&name], time.duration.as_secs_f64(), "{name}");
        }
    }

    #[test]
    fn each_part_of_a_cost_has_a_name_of_its_own() {
        let mut record = fixture::stream();
        let [wait, prefill, base, adapter, transfer] = [1.0, 2.0, 3.0, 4.0, 5.0];
        let [others, decoding, harm, late, failure] = [6.0, 7.0, 8.0, 9.0, 10.0];
        let cost = Addends { wait, prefill, base, adapter, transfer, others, decoding, harm, late, failure };
        let weighed = |is_chosen| Weighed { replica: "a".into(), is_chosen, cost, ..Weighed::default() };
        record.decision.as_mut().unwrap().weighed = [weighed(true), weighed(false)].into();
        let (text, line) = line_of(&record);
        for (name, seconds) in cost.named() {
            let name = format!("tokenway.decision.cost.{name}");
            assert_eq!(text.matches(&format!("\"{name}\":")).count(), 1, "{name}: {text}");
            assert_eq!(line[&name], seconds, "{name}");
        }
    }

    #[test]
    fn an_address_is_written_as_the_standard_library_does() {
        for text in ["0.0.0.0", "127.0.0.1", "255.10.200.9", "::1", "2001:db8::7"] {
            let mut out = Vec::new();
            write_value(&mut out, &AttributeValue::Address(text.parse().unwrap()));
            assert_eq!(String::from_utf8(out).unwrap(), format!("\"{text}\""));
        }
    }

    #[test]
    fn text_from_outside_cannot_break_a_line() {
        let mut record = fixture::stream();
        record.response_id = Some("a\"b\n{c".into());
        let (text, line) = line_of(&record);
        assert_eq!(text.matches('\n').count(), 1);
        assert_eq!(line["gen_ai.response.id"], "a\"b\n{c");
    }
}
