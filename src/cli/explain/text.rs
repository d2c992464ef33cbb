//! A request as text: what happened, a waterfall of its stages, the decision with its terms, the attempts.
//!
//! Pure: from the gateway's JSON to lines of at most 130 columns. A field that is missing, as from a gateway of another
//! version, is left out.

use std::fmt::Write as _;

use serde_json::Value;

use crate::cli::style::{Paint, Style};

/// The whole explanation.
pub(super) fn explanation(request: &Value, style: Style) -> String {
    let mut out = String::new();
    let text = Text { request, style };
    // Writing to a String cannot fail.
    let _ = text.head(&mut out).and_then(|()| text.stages(&mut out)).and_then(|()| text.decision(&mut out));
    let _ = text.attempts(&mut out);
    out
}

struct Text<'a> {
    request: &'a Value,
    style: Style,
}

impl Text<'_> {
    fn head(&self, out: &mut String) -> std::fmt::Result {
        let request = self.request;
        let word = |key: &str| request[key].as_str().unwrap_or("-");
        let outcome = word("outcome");
        let paint = if outcome == "ok" { Paint::Good } else { Paint::Error };
        let status = request["status"].as_u64().map(|status| format!(" {status}")).unwrap_or_default();
        let verdict = self.style.paint(paint, &format!("{outcome}{status}"));
        writeln!(out, "{}  {verdict}  {}", self.style.paint(Paint::Bold, word("request_id")), word("time"))?;
        let names = ["route", "model", "tenant", "class", "revision", "replica"];
        let named = names.iter().filter_map(|key| Some(format!("{key} {}", request[*key].as_str()?)));
        writeln!(out, "{}", Vec::from_iter(named).join(", "))?;
        if let Some(trace) = request["trace_id"].as_str() {
            writeln!(out, "trace {trace}")?;
        }
        if let Some(error) = request["error"].as_str() {
            writeln!(out, "{}", self.style.paint(Paint::Error, &format!("error {error}")))?;
        }
        self.tokens(out)?;
        for (key, what) in
            [("ttft", "first token after"), ("tpot", "per output token"), ("duration", "whole request")]
        {
            let Some(took) = request[key].as_f64() else { continue };
            let bound = request["bounds"][if key == "duration" { "e2e" } else { key }].as_f64();
            let (bound, paint) = match bound {
                Some(bound) if took > bound => (format!(" of at most {}", time(bound)), Paint::Error),
                Some(bound) => (format!(" of at most {}", time(bound)), Paint::Good),
                None => (String::new(), Paint::Bold),
            };
            writeln!(out, "{what:<18} {}{bound}", self.style.paint(paint, &time(took)))?;
        }
        if let Some(missed) = request["slo_missed"].as_str() {
            let stage = request["slo_missed_in"].as_str();
            let place = stage.map(|stage| format!(", most of it in {stage}")).unwrap_or_default();
            writeln!(out, "{}", self.style.paint(Paint::Error, &format!("missed its SLO: {missed}{place}")))?;
        }
        if let Some(from) = request["degraded_from"].as_str() {
            writeln!(out, "degraded from route {from}: it would have been late there")?;
        }
        let held = request["held"].as_f64().filter(|held| *held > 0.0);
        held.map_or(Ok(()), |held| {
            writeln!(out, "held {} in the gateway to spare running streams", time(held))
        })
    }

    fn tokens(&self, out: &mut String) -> std::fmt::Result {
        let count = |key: &str| self.request[key].as_u64();
        let mut said = Vec::new();
        match (count("prompt_tokens"), count("cached_tokens")) {
            (Some(prompt), Some(cached)) => {
                said.push(format!("{prompt} prompt tokens, {cached} of them cached"));
            }
            (Some(prompt), None) => said.push(format!("{prompt} prompt tokens")),
            (None, _) => {
                said.extend(count("estimated_prompt_tokens").map(|n| format!("about {n} prompt tokens")));
            }
        }
        said.extend(count("output_tokens").map(|output| format!("{output} output tokens")));
        if said.is_empty() { Ok(()) } else { writeln!(out, "{}", said.join(", ")) }
    }

    /// A bar a stage, each from where the one before ended.
    fn stages(&self, out: &mut String) -> std::fmt::Result {
        let stages = self.request["stages"].as_array().map(Vec::as_slice).unwrap_or_default();
        let end = |stage: &Value| {
            stage["start"].as_f64().unwrap_or(0.0) + stage["duration"].as_f64().unwrap_or(0.0)
        };
        let whole = stages.iter().map(end).fold(0.0, f64::max);
        if stages.is_empty() || whole <= 0.0 {
            return Ok(());
        }
        writeln!(out, "\n{}", self.style.paint(Paint::Bold, "Where the time went"))?;
        for stage in stages {
            let (start, took) =
                (stage["start"].as_f64().unwrap_or(0.0), stage["duration"].as_f64().unwrap_or(0.0));
            let name = stage["stage"].as_str().unwrap_or("?");
            let is_over = stage["over_budget"] == true;
            let is_blamed = self.request["slo_missed_in"].as_str() == Some(name);
            let paint = if is_over || is_blamed { Paint::Error } else { Paint::Good };
            let bar = self.style.paint(paint, &bar(start / whole, took / whole));
            let share = took / whole * 100.0;
            let mut remarks = Vec::new();
            remarks.extend(stage["source"].as_str().map(|source| format!("({source})")));
            if let Some(budget) = stage["budget"].as_f64() {
                let relation = if is_over { "over its budget of" } else { "budget" };
                remarks.push(format!("{relation} {}", time(budget)));
            }
            let line = format!("  {name:<13} {:>9} {share:>4.0} %  {bar}  {}", time(took), remarks.join(" "));
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }

    fn decision(&self, out: &mut String) -> std::fmt::Result {
        let decision = &self.request["decision"];
        if decision.is_null() {
            return writeln!(out, "\nNo replica was chosen: the request ended before that.");
        }
        let replica = decision["replica"].as_str().unwrap_or("none");
        writeln!(out, "\n{}", self.style.paint(Paint::Bold, &format!("Why replica {replica}")))?;
        let (policy, reason) =
            (decision["policy"].as_str().unwrap_or("?"), decision["reason"].as_str().unwrap_or("?"));
        let candidates = decision["candidates"].as_u64().unwrap_or(0);
        let waited = decision["waited"].as_f64().unwrap_or(0.0);
        writeln!(
            out,
            "  policy {policy}, reason {reason}, {candidates} candidates, decided {} after arrival",
            time(waited)
        )?;
        let weighed = decision["weighed"].as_array().map(Vec::as_slice).unwrap_or_default();
        if weighed.is_empty() {
            writeln!(out, "  its candidates were not kept: the policy predicts nothing, or load was high")?;
        } else {
            write!(out, "    {:<24} {:>9} {:>7}", "candidate", "predicted", "cached")?;
            ADDENDS.iter().try_for_each(|name| write!(out, " {name:>8}"))?;
            writeln!(out, " {:>8}", "= cost")?;
        }
        for candidate in weighed {
            let figure = |value: &Value, digits: usize| {
                value.as_f64().map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
            };
            let is_chosen = candidate["chosen"] == true;
            let mut line = format!(
                "  {} {:<24} {:>9} {:>7}",
                if is_chosen { "*" } else { " " },
                candidate["replica"].as_str().unwrap_or("?"),
                candidate["predicted_ttft"].as_f64().map_or_else(|| "-".to_owned(), time),
                figure(&candidate["predicted_hit_tokens"], 0),
            );
            for name in ADDENDS {
                write!(line, " {:>8}", figure(&candidate["cost_seconds"][name], 3))?;
            }
            write!(line, " {:>8}", figure(&candidate["cost"], 3))?;
            writeln!(out, "{}", self.style.paint(if is_chosen { Paint::Bold } else { Paint::Faint }, &line))?;
        }
        if let Some(why) = decision["why"].as_str() {
            writeln!(out, "  {why}; the columns before the cost are its parts, in seconds")?;
        }
        self.outcome(decision, out)
    }

    /// The prediction against what happened.
    fn outcome(&self, decision: &Value, out: &mut String) -> std::fmt::Result {
        let (Some(predicted), Some(actual)) =
            (decision["predicted_ttft"].as_f64(), self.request["ttft"].as_f64())
        else {
            return Ok(());
        };
        let verdict = match actual / predicted.max(1e-6) {
            ratio if ratio > 1.5 => format!("{ratio:.1} times as long"),
            ratio if ratio < 0.67 => format!("{:.0} % of that", ratio * 100.0),
            _ => "about right".to_owned(),
        };
        writeln!(
            out,
            "  predicted first token after {}, it came after {}: {verdict}",
            time(predicted),
            time(actual)
        )
    }

    fn attempts(&self, out: &mut String) -> std::fmt::Result {
        let attempts = self.request["attempts_made"].as_array().map(Vec::as_slice).unwrap_or_default();
        if attempts.is_empty() {
            return Ok(());
        }
        writeln!(out, "\n{}", self.style.paint(Paint::Bold, "Attempts"))?;
        for attempt in attempts {
            let at = |key: &str| attempt[key].as_f64();
            let mut said = vec![format!("from {}", time(at("start").unwrap_or(0.0)))];
            said.extend(at("connected").map(|at| format!("connected {}", time(at))));
            said.extend(at("head").map(|at| format!("response head {}", time(at))));
            said.extend(at("end").map(|at| format!("end {}", time(at))));
            said.extend(attempt["status"].as_u64().map(|status| format!("status {status}")));
            if attempt["canceled"] == true {
                said.push("given up: another spoke first".to_owned());
            }
            let error = attempt["error"].as_str();
            let error =
                error.map(|error| format!("  {}", self.style.paint(Paint::Error, error))).unwrap_or_default();
            let (cause, replica) =
                (attempt["cause"].as_str().unwrap_or("?"), attempt["replica"].as_str().unwrap_or("?"));
            writeln!(out, "  {cause:<9} {replica:<24} {}{error}", said.join(", "))?;
        }
        Ok(())
    }
}

/// A part of a line of [`BAR`] cells, from `start` on, both as shares of the whole.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "shares of a few cells")]
fn bar(start: f64, share: f64) -> String {
    let cells = BAR as f64;
    let from = ((start * cells).floor().max(0.0) as usize).min(BAR - 1);
    let long = ((share * cells).round().max(1.0) as usize).min(BAR - from);
    format!("{}{}{}", "·".repeat(from), "█".repeat(long), "·".repeat(BAR - from - long))
}

/// A time as a person says it.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 0.01 => format!("{:.0} ms", s * 1e3),
        s => format!("{:.1} ms", s * 1e3),
    }
}

const BAR: usize = 40;
/// Parts of a cost, in seconds.
const ADDENDS: [&str; 8] = ["wait", "prefill", "base", "others", "decoding", "harm", "late", "failure"];

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_late_request_says_where_its_time_went_and_why_it_went_there() {
        let request: Value = serde_json::from_str(LATE).unwrap();
        let text = explanation(&request, Style::Plain);
        for part in [
            "r-1  ok 200  2026-11-22T12:00:00.000Z\nroute chat, model llama, tenant acme, class short, revision r1, replica gpu-2\n",
            "250 prompt tokens, 128 of them cached, 64 output tokens\n",
            "first token after  1.20 s of at most 500 ms\n",
            "missed its SLO: ttft, most of it in engine_queue\n",
            "  engine_queue     1.00 s   33 %  █████████████···························  (estimated) over its budget of 150 ms\n",
            "Why replica gpu-2\n  policy latency, reason load, 2 candidates, decided 0.4 ms after arrival\n",
            "  * gpu-2                       400 ms     128    0.300    0.100    0.000    0.010    0.000    0.000    0.000    0.000    0.410\n",
            "  gpu-2 over gpu-1: 1.0 s less risk of a late first token; the columns before the cost are its parts, in seconds\n",
            "  predicted first token after 400 ms, it came after 1.20 s: 3.0 times as long\n",
            "  first     gpu-1                    from 1.0 ms, end 10 ms  connect_refused\n",
            "  retry     gpu-2                    from 10 ms, connected 11 ms, response head 1.10 s, end 3.00 s, status 200\n",
        ] {
            assert!(text.contains(part), "{part}\n---\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 130), "{text}");
    }

    #[test]
    fn what_another_version_does_not_tell_is_left_out() {
        let text =
            explanation(&json!({"request_id": "x", "outcome": "refused", "status": 429}), Style::Plain);
        assert!(text.starts_with("x  refused 429  -\n"), "{text}");
        assert!(text.contains("No replica was chosen"), "{text}");
    }

    const LATE: &str = r#"{
            "request_id": "r-1", "time": "2026-11-22T12:00:00.000Z", "route": "chat", "model": "llama", "tenant": "acme",
            "class": "short", "revision": "r1", "replica": "gpu-2", "outcome": "ok", "status": 200, "error": null,
            "ttft": 1.2, "tpot": 0.02, "duration": 3.0, "slo_missed": "ttft", "slo_missed_in": "engine_queue",
            "bounds": {"ttft": 0.5, "e2e": null}, "prompt_tokens": 250, "cached_tokens": 128, "output_tokens": 64,
            "trace_id": "0af7651916cd43dd8448eb211c80319c", "held": 0.0,
            "stages": [
                {"stage": "read", "start": 0.0, "duration": 0.001, "source": "measured", "budget": null, "over_budget": false},
                {"stage": "engine_queue", "start": 0.001, "duration": 1.0, "source": "estimated", "budget": 0.15, "over_budget": true},
                {"stage": "decode", "start": 1.001, "duration": 1.999, "source": "measured", "budget": null, "over_budget": false}
            ],
            "decision": {"policy": "latency", "reason": "load", "replica": "gpu-2", "candidates": 2, "waited": 0.0004,
                "predicted_ttft": 0.4,
                "why": "gpu-2 over gpu-1: 1.0 s less risk of a late first token", "weighed": [
                {"replica": "gpu-2", "predicted_ttft": 0.4, "harm": 0.0, "late": 0.0, "predicted_hit_tokens": 128,
                 "cost": 0.41, "cost_seconds": {"wait": 0.3, "prefill": 0.1, "base": 0.0, "others": 0.01, "decoding": 0.0,
                 "harm": 0.0, "late": 0.0, "failure": 0.0}, "chosen": true},
                {"replica": "gpu-1", "predicted_ttft": 0.9, "harm": 0.0, "late": 0.1, "predicted_hit_tokens": 0,
                 "cost": 1.9, "cost_seconds": {"wait": 0.8, "prefill": 0.1, "base": 0.0, "others": 0.0, "decoding": 0.0,
                 "harm": 0.0, "late": 1.0, "failure": 0.0}, "chosen": false}]},
            "attempts_made": [
                {"replica": "gpu-1", "cause": "first", "start": 0.001, "end": 0.01, "error": "connect_refused", "canceled": false},
                {"replica": "gpu-2", "cause": "retry", "start": 0.01, "connected": 0.011, "head": 1.1, "end": 3.0, "status": 200}]}"#;
}
