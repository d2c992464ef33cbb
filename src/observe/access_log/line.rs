//! Formats a line: a JSON object of the request's time, its ids and its attributes.
//!
//! Written by hand: serde_json took a tenth of the CPU of a small request.

use std::io::Write as _;
use std::net::IpAddr;

use crate::clock::Clock;
use crate::digits;
use crate::observe::attributes::{self, AttributeValue};
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
    attributes::each(record, judgement, |key, value| {
        out.extend_from_slice(key.member.as_bytes());
        write_value(out, &value);
    });
    out.extend_from_slice(b"}\n");
}

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
    use serde_json::Value as Json;

    use super::*;
    use crate::observe::fixture;
    use crate::record::{Addends, Weighed};

    #[test]
    fn a_line_has_the_names_of_the_span_attributes() {
        let mut out = Vec::new();
        let record = fixture::stream();
        write(&mut out, &record, &Judgement::of(&record), &Clock::start());
        let line: Json = serde_json::from_slice(&out).unwrap();
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
    fn each_part_of_a_cost_has_a_name_of_its_own() {
        let mut record = fixture::stream();
        let cost = Addends {
            wait: 1.0,
            prefill: 2.0,
            base: 3.0,
            adapter: 4.0,
            transfer: 5.0,
            others: 6.0,
            decoding: 7.0,
            harm: 8.0,
            late: 9.0,
            failure: 10.0,
        };
        let weighed = |replica: &str, is_chosen| Weighed {
            replica: replica.into(),
            is_chosen,
            cost,
            ..Weighed::default()
        };
        record.decision.as_mut().unwrap().weighed = [weighed("a", true), weighed("b", false)].into();
        let mut out = Vec::new();
        write(&mut out, &record, &Judgement::of(&record), &Clock::start());
        let text = String::from_utf8(out).unwrap();
        let line: Json = serde_json::from_str(&text).unwrap();
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
        let mut out = Vec::new();
        write(&mut out, &record, &Judgement::of(&record), &Clock::start());
        assert_eq!(out.iter().filter(|byte| **byte == b'\n').count(), 1);
        let parsed: Json = serde_json::from_slice(&out).unwrap();
        assert_eq!(parsed["gen_ai.response.id"], "a\"b\n{c");
    }
}
