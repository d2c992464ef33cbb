//! A request as text: what happened, a waterfall of its stages, the decision with its terms, the attempts.
//!
//! Pure: from the gateway's answer to lines of at most 130 columns. A word that is missing, as from a gateway of another
//! version, is left out.

use std::fmt::Write as _;

use crate::api::decisions::{Candidate, Chosen, Way};
use crate::api::requests::{Attempt, Choice, Request, RequestDetail, StageTime};
use crate::cli::style::{Paint, Style};
use crate::record::Addends;

pub(crate) fn explanation(detail: &RequestDetail, style: Style) -> String {
    let mut out = String::new();
    let text = Text { detail, style };
    // Writing to a String cannot fail.
    let _ = text
        .head(&mut out)
        .and_then(|()| text.others(&mut out))
        .and_then(|()| text.stages(&mut out))
        .and_then(|()| text.decision(&mut out));
    let _ = text.attempts(&mut out);
    out
}

struct Text<'a> {
    detail: &'a RequestDetail,
    style: Style,
}

impl Text<'_> {
    fn head(&self, out: &mut String) -> std::fmt::Result {
        let (detail, request) = (self.detail, &self.detail.request);
        let word = |word: &str| if word.is_empty() { "-".to_owned() } else { word.to_owned() };
        let paint = if request.outcome == "ok" { Paint::Good } else { Paint::Error };
        let verdict = self.style.paint(paint, &format!("{} {}", word(&request.outcome), request.status));
        let id = self.style.paint(Paint::Bold, &word(&request.request_id));
        writeln!(out, "{id}  {verdict}  {}", word(&request.time))?;
        let replica = request.replica.as_deref().unwrap_or_default();
        let names = [
            ("route", &*request.route),
            ("model", &*request.model),
            ("tenant", &*request.tenant),
            ("class", &*request.class),
            ("revision", &*request.revision),
            ("replica", replica),
        ];
        let named = names.iter().filter(|(_, name)| !name.is_empty());
        writeln!(out, "{}", Vec::from_iter(named.map(|(what, name)| format!("{what} {name}"))).join(", "))?;
        if !detail.trace_id.is_empty() {
            writeln!(out, "trace {}", detail.trace_id)?;
        }
        if let Some(error) = &request.error {
            writeln!(out, "{}", self.style.paint(Paint::Error, &format!("error {error}")))?;
        }
        self.tokens(out)?;
        self.times(out)?;
        if let Some(missed) = &request.slo_missed {
            let stage = request.slo_missed_in.as_ref();
            // A refusal has its stage by its reason, the others by their time.
            let part = if missed == "refused" { "in" } else { "most of it in" };
            let place = stage.map(|stage| format!(", {part} {stage}")).unwrap_or_default();
            writeln!(out, "{}", self.style.paint(Paint::Error, &format!("missed its SLO: {missed}{place}")))?;
        }
        if let Some(from) = &detail.degraded_from {
            writeln!(out, "degraded from route {from}: it would have been late there")?;
        }
        if detail.held > 0.0 {
            writeln!(out, "waited {} in the gateway before it was sent", time(detail.held))?;
        }
        Ok(())
    }

    /// What else has its id.
    fn others(&self, out: &mut String) -> std::fmt::Result {
        let others = &self.detail.others;
        if others.is_empty() {
            return Ok(());
        }
        let heading = format!("Others with this id: {}", others.len());
        writeln!(out, "\n{}", self.style.paint(Paint::Bold, &heading))?;
        for other in others {
            let Request { outcome, span_id, status, time, .. } = other;
            let replica = other.replica.as_deref().unwrap_or("-");
            writeln!(out, "  {time}  {outcome} {status}  replica {replica}, span {span_id}")?;
        }
        Ok(())
    }

    fn tokens(&self, out: &mut String) -> std::fmt::Result {
        let detail = self.detail;
        let prompt = match (detail.prompt_tokens, detail.cached_tokens) {
            (Some(prompt), Some(cached)) => format!("{prompt} prompt tokens, {cached} of them cached"),
            (Some(prompt), None) => format!("{prompt} prompt tokens"),
            (None, _) => format!("about {} prompt tokens", detail.estimated_prompt_tokens),
        };
        let output = detail.output_tokens.map(|output| format!(", {output} output tokens"));
        writeln!(out, "{prompt}{}", output.unwrap_or_default())
    }

    /// Each latency beside its bound.
    fn times(&self, out: &mut String) -> std::fmt::Result {
        let (request, bounds) = (&self.detail.request, &self.detail.bounds);
        for (what, took, bound) in [
            ("first token after", request.ttft, bounds.ttft),
            ("per output token", request.tpot, bounds.tpot),
            ("whole request", Some(request.duration), bounds.e2e),
        ] {
            let Some(took) = took else { continue };
            let (bound, paint) = match bound {
                Some(bound) if took > bound => (format!(" of at most {}", time(bound)), Paint::Error),
                Some(bound) => (format!(" of at most {}", time(bound)), Paint::Good),
                None => (String::new(), Paint::Bold),
            };
            writeln!(out, "{what:<18} {}{bound}", self.style.paint(paint, &time(took)))?;
        }
        Ok(())
    }

    /// A bar a stage, each from where the one before ended.
    fn stages(&self, out: &mut String) -> std::fmt::Result {
        let stages = &self.detail.stages;
        let whole = stages.iter().map(|stage| stage.start + stage.duration).fold(0.0, f64::max);
        if whole <= 0.0 {
            return Ok(());
        }
        writeln!(out, "\n{}", self.style.paint(Paint::Bold, "Where the time went"))?;
        for StageTime { budget, duration, over_budget, source, stage, start } in stages {
            let is_blamed = self.detail.request.slo_missed_in.as_ref() == Some(stage);
            let paint = if *over_budget || is_blamed { Paint::Error } else { Paint::Good };
            let bar = self.style.paint(paint, &bar(start / whole, duration / whole));
            let share = duration / whole * 100.0;
            let relation = if *over_budget { "over its budget of" } else { "budget" };
            let budget = budget.map(|budget| format!(" {relation} {}", time(budget))).unwrap_or_default();
            writeln!(out, "  {stage:<13} {:>9} {share:>4.0} %  {bar}  ({source}){budget}", time(*duration))?;
        }
        Ok(())
    }

    fn decision(&self, out: &mut String) -> std::fmt::Result {
        let Some(Choice { chosen: decision, .. }) = &self.detail.decision else {
            return writeln!(out, "\nNo replica was chosen: the request ended before that.");
        };
        let Chosen { policy, reason, candidates, weighed, .. } = decision;
        let replica = decision.replica.as_deref().unwrap_or("none");
        writeln!(out, "\n{}", self.style.paint(Paint::Bold, &format!("Why replica {replica}")))?;
        writeln!(
            out,
            "  policy {policy}, reason {reason}, {candidates} candidates, decided {} after arrival",
            time(decision.waited)
        )?;
        let moves_kv = |one: &Candidate| one.cost_seconds.get(TRANSFER).is_some_and(|cost| *cost != 0.0);
        let has_transfer = weighed.iter().any(moves_kv);
        let addends = || {
            let names = Addends::default().named().map(|(name, _)| name);
            names.into_iter().filter(|name| *name != TRANSFER || has_transfer)
        };
        if weighed.is_empty() {
            writeln!(out, "  its candidates were not kept: the policy predicts nothing, or load was high")?;
        } else {
            write!(out, "    {:<18} {:>9} {:>7}", "candidate", "predicted", "cached")?;
            addends().try_for_each(|name| write!(out, " {name:>8}"))?;
            writeln!(out, " {:>8}", "= cost")?;
        }
        weighed.iter().try_for_each(|candidate| self.candidate(candidate, addends(), out))?;
        if let Some(counted) = counted(weighed) {
            writeln!(out, "  {counted}")?;
        }
        if let Some(why) = &decision.why {
            writeln!(out, "  {why}; the columns before the cost are its parts, in seconds")?;
        }
        if let Some(way) = &decision.way {
            writeln!(out, "  {}", way_in_words(way))?;
        }
        self.outcome(decision, out)
    }

    fn candidate(
        &self,
        candidate: &Candidate,
        addends: impl Iterator<Item = &'static str>,
        out: &mut String,
    ) -> std::fmt::Result {
        let mut line = format!(
            "  {} {:<18} {:>9} {:>7}",
            if candidate.chosen { "*" } else { " " },
            candidate.replica,
            time(candidate.predicted_ttft),
            candidate.predicted_hit_tokens,
        );
        for name in addends {
            match candidate.cost_seconds.get(name) {
                Some(seconds) => write!(line, " {seconds:>8.3}")?,
                None => write!(line, " {:>8}", "-")?,
            }
        }
        write!(line, " {:>8.3}", candidate.cost)?;
        let paint = if candidate.chosen { Paint::Bold } else { Paint::Faint };
        writeln!(out, "{}", self.style.paint(paint, &line))
    }

    /// The prediction against what happened.
    fn outcome(&self, decision: &Chosen, out: &mut String) -> std::fmt::Result {
        let (Some(predicted), Some(actual)) = (decision.predicted_ttft, self.detail.request.ttft) else {
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
        if self.detail.attempts_made.is_empty() {
            return Ok(());
        }
        writeln!(out, "\n{}", self.style.paint(Paint::Bold, "Attempts"))?;
        for (at, attempt) in self.detail.attempts_made.iter().enumerate() {
            let Attempt { cause, replica, start, connected, head, end, status, canceled, error, .. } =
                attempt;
            let mut parts = vec![format!("from {}", time(*start))];
            parts.extend(connected.map(|at| format!("connected {}", time(at))));
            parts.extend(head.map(|at| format!("response head {}", time(at))));
            parts.extend(end.map(|at| format!("end {}", time(at))));
            parts.extend(status.map(|status| format!("status {status}")));
            if *canceled {
                parts.push(self.given_up(cause, at).to_owned());
            }
            if attempt.empty {
                parts.push("no text".to_owned());
            }
            parts.extend(attempt.engine_error.as_ref().map(|words| format!("engine error: {words}")));
            let error = error.as_ref().map(|error| format!("  {}", self.style.paint(Paint::Error, error)));
            writeln!(out, "  {cause:<9} {replica:<24} {}{}", parts.join(", "), error.unwrap_or_default())?;
        }
        Ok(())
    }

    /// Why the attempt at this place has no end of its own. That of a hedge that lost stands before the one that spoke.
    fn given_up(&self, cause: &str, at: usize) -> &'static str {
        let mut later = self.detail.attempts_made.iter().skip(at + 1);
        match &*self.detail.request.outcome {
            _ if cause == "prefill" && later.len() > 0 => "given up: not computed in time",
            _ if later.any(|other| !other.canceled) => "given up: another spoke first",
            "canceled" => "given up: the client left",
            _ => "given up",
        }
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

/// A time for people.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 0.01 => format!("{:.0} ms", s * 1e3),
        s => format!("{:.1} ms", s * 1e3),
    }
}

const BAR: usize = 40;
/// Part of a cost only where a prompt may be computed elsewhere.
const TRANSFER: &str = "transfer";

/// Whose cached tokens are no estimate; `None` where all are.
fn counted(weighed: &[Candidate]) -> Option<String> {
    let counted: Vec<&str> =
        weighed.iter().filter(|one| one.predicted_hit_by == "kv_events").map(|one| &*one.replica).collect();
    let whose = if counted.len() == weighed.len() { "all".to_owned() } else { counted.join(", ") };
    (!counted.is_empty()).then(|| format!("cached: counted by KV events at {whose}"))
}

/// Where the prompt was computed, and both ways in seconds.
fn way_in_words(way: &Way) -> String {
    let cost =
        |seconds: Option<f64>| seconds.map_or("not priced".to_owned(), |seconds| format!("{seconds:.3} s"));
    let place = match &way.replica {
        Some(replica) if way.way == "apart" => format!("computed by {replica}"),
        _ => "computed where it was decoded".to_owned(),
    };
    let mut words =
        format!("prompt {place} ({}): there {}, apart {}", way.reason, cost(way.together), cost(way.apart));
    if let (Some(prefill), Some(transfer), Some(decode)) =
        (way.apart_prefill, way.apart_transfer, way.apart_decode)
    {
        words.push_str(&format!(" = {prefill:.3} prefill + {transfer:.3} transfer + {decode:.3} decode"));
    }
    if let Some(took) = way.transfer {
        words.push_str(&format!("; the transfer took {}", time(took)));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn explained(request: serde_json::Value) -> String {
        explanation(&serde_json::from_value(request).unwrap(), Style::Plain)
    }

    #[test]
    fn a_late_request_says_where_its_time_went_and_why_it_went_there() {
        let text = explained(serde_json::from_str(LATE).unwrap());
        for part in [
            "r-1  ok 200  2026-11-22T12:00:00.000Z\nroute chat, model llama, tenant acme, class short, revision r1, replica gpu-2\n",
            "250 prompt tokens, 128 of them cached, 64 output tokens\n",
            "first token after  1.20 s of at most 500 ms\n",
            "missed its SLO: ttft, most of it in engine_queue\n",
            "  engine_queue     1.00 s   33 %  █████████████···························  (estimated) over its budget of 150 ms\n",
            "Why replica gpu-2\n  policy latency, reason load, 2 candidates, decided 0.4 ms after arrival\n",
            "  * gpu-2                 400 ms     128    0.300    0.100    0.000        -    0.010    0.000    0.000    0.000    0.000    0.410\n",
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
    fn the_parts_of_a_cost_are_its_addends() {
        let mut request: serde_json::Value = serde_json::from_str(LATE).unwrap();
        assert!(!explained(request.clone()).contains("transfer"));
        request["decision"]["weighed"][0]["cost_seconds"]["transfer"] = json!(0.105);
        let text = explained(request);
        let columns = [
            "    0.100    0.000        -    0.105    0.010 ",
            "    0.100    0.000        -        -    0.000 ",
        ];
        for part in ["  adapter transfer   others ", columns[0], columns[1]] {
            assert!(text.contains(part), "{part}\n---\n{text}");
        }
    }

    #[test]
    fn cached_tokens_that_are_counted_are_marked_as_such() {
        let with = |by: [&str; 2]| {
            let mut request: serde_json::Value = serde_json::from_str(LATE).unwrap();
            for (at, by) in by.into_iter().enumerate() {
                request["decision"]["weighed"][at]["predicted_hit_by"] = json!(by);
            }
            explained(request)
        };
        assert!(with(["kv_events", "estimate"]).contains("  cached: counted by KV events at gpu-2\n"));
        assert!(with(["kv_events"; 2]).contains("at all\n"));
        assert!(!with(["estimate"; 2]).contains("KV events"));
    }

    #[test]
    fn what_another_version_does_not_tell_is_left_out() {
        let text = explained(json!({"request_id": "x", "outcome": "refused", "status": 429}));
        assert!(text.starts_with("x  refused 429  -\n"), "{text}");
        assert!(text.contains("No replica was chosen"), "{text}");
    }

    #[test]
    fn the_others_of_an_id_are_listed() {
        let one = |span: &str| json!({"outcome": "ok", "status": 200, "replica": "gpu-1", "time": "12:00", "span_id": span});
        let text = explained(
            json!({"request_id": "x", "outcome": "failed", "status": 500, "others": [one("a"), one("b")]}),
        );
        let listed = "Others with this id: 2\n  12:00  ok 200  replica gpu-1, span a\n  12:00  ok 200  replica gpu-1, span b\n";
        assert!(text.contains(listed), "{text}");
    }

    #[test]
    fn why_an_attempt_was_given_up_is_shown() {
        let attempt = |cause: &str, canceled: bool, status: Option<u16>| {
            json!({"cause": cause, "replica": "gpu-1", "start": 0.0, "connected": 0.1, "head": null, "end": 1.0,
                   "status": status, "canceled": canceled, "error": null, "empty": false})
        };
        let made = |outcome: &str, attempts: Vec<serde_json::Value>| {
            explained(
                json!({"request_id": "x", "outcome": outcome, "status": 499, "attempts_made": attempts}),
            )
        };
        let (lost, won) = (attempt("first", true, None), attempt("hedge", false, Some(200)));
        let cases = [
            (made("canceled", vec![lost.clone()]), "given up: the client left\n"),
            (
                made("canceled", vec![attempt("prefill", false, Some(200)), lost.clone()]),
                "given up: the client left\n",
            ),
            (made("ok", vec![lost.clone(), won]), "given up: another spoke first\n"),
            (
                made("ok", vec![attempt("prefill", true, None), attempt("first", false, Some(200))]),
                "given up: not computed in time\n",
            ),
            (made("failed", vec![lost]), "given up\n"),
        ];
        for (text, part) in cases {
            assert!(text.contains(part), "{part}\n---\n{text}");
        }
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
