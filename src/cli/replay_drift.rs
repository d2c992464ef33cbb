//! `tokenway replay --drift TRACE --config FILE`: recorded requests through the live detectors, in simulated time.
//!
//! One JSON object per line in, one finding per line out. The detectors are those of the gateway, with the SLOs and the
//! `[drift]` section of the file. A line that cannot be read ends the run with its number: a trace that was half understood
//! would be silent about the other half.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::config::load::{ConfigError, Source, load};
use crate::config::{Config, ModelMatch, Overrides, Route};
use crate::drift::detectors::{Detectors, Finding, NOT_SERVED, Observation, Settings, itl_of_whole};
use crate::record::Outcome;
use crate::units::Tokens;

/// Why a trace was not replayed to its end.
#[expect(missing_docs, reason = "the messages are it")]
#[derive(Debug, thiserror::Error)]
pub enum ReplayDriftError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{path}: {1}", path = .0.display())]
    Trace(PathBuf, io::Error),
    #[error("{path}:{1}: {2}", path = .0.display())]
    Line(PathBuf, usize, String),
    #[error("cannot write the findings: {0}")]
    Write(#[source] io::Error),
}

/// Replays a trace; findings go to `out` in order.
///
/// # Errors
/// [`ReplayDriftError`] with file and line.
pub fn run(trace: &Path, config: &Path, out: &mut dyn Write) -> Result<(), ReplayDriftError> {
    let env = |name: &str| std::env::var(name).ok();
    let config = load(&Source::File(config.to_owned()), &Overrides::default(), &env)?;
    let failed = |error| ReplayDriftError::Trace(trace.to_owned(), error);
    let mut lines = BufReader::with_capacity(1 << 20, File::open(trace).map_err(failed)?);
    let mut detectors = Detectors::new(Settings::from(&config.drift));
    let (mut text, mut number, mut latest, mut findings) = (Vec::new(), 0, f64::NEG_INFINITY, Vec::new());
    loop {
        text.clear();
        if (&mut lines).take(MAX_LINE_BYTES).read_until(b'\n', &mut text).map_err(failed)? == 0 {
            break;
        }
        number += 1;
        if text.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let wrong = |message| ReplayDriftError::Line(trace.to_owned(), number, message);
        let (line, outcome) = read(&text).map_err(wrong)?;
        if line.t < latest - MAX_DISORDER {
            return Err(wrong(format!(
                "t is {} s before that of an earlier line: sort the lines by t",
                latest - line.t
            )));
        }
        latest = latest.max(line.t);
        detectors.observe(&line.observation(outcome, &config), &mut findings);
        write_all(&mut findings, out).map_err(ReplayDriftError::Write)?;
    }
    if latest == f64::NEG_INFINITY {
        return Err(failed(io::Error::other("no records")));
    }
    // What came after the last tick counts as well.
    detectors.judge(f64::NEG_INFINITY, &mut findings);
    write_all(&mut findings, out).and_then(|()| out.flush()).map_err(ReplayDriftError::Write)
}

fn write_all(findings: &mut Vec<Finding>, out: &mut dyn Write) -> io::Result<()> {
    for finding in findings.drain(..) {
        serde_json::to_writer(&mut *out, &finding.to_api())?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// One line of a trace. Further keys are allowed: recordings carry more than drift needs.
#[derive(Deserialize)]
struct TraceLine<'a> {
    t: f64,
    #[serde(borrow)]
    route: Cow<'a, str>,
    #[serde(borrow, default = "not_served")]
    revision: Cow<'a, str>,
    #[serde(borrow, default = "not_served")]
    replica: Cow<'a, str>,
    ttft: Option<f64>,
    itl: Option<f64>,
    predicted: Option<f64>,
    prompt_tokens: Option<f64>,
    /// Of an answer that was no stream.
    duration: Option<f64>,
    output_tokens: Option<f64>,
    #[serde(borrow)]
    outcome: Cow<'a, str>,
}

fn not_served() -> Cow<'static, str> {
    Cow::Borrowed(NOT_SERVED)
}

fn read(text: &[u8]) -> Result<(TraceLine<'_>, Outcome), String> {
    let line: TraceLine<'_> = serde_json::from_slice(text).map_err(|error| without_place(&error))?;
    let outcome = Outcome::named(&line.outcome).ok_or_else(|| {
        let known = Outcome::LABELS.join(", ");
        format!("unknown outcome \"{}\"; known: {known}", line.outcome.escape_debug())
    })?;
    if !line.t.is_finite() || line.t.abs() > MAX_SECONDS {
        return Err("t must be a number of seconds".to_owned());
    }
    for (name, value) in [
        ("ttft", line.ttft),
        ("itl", line.itl),
        ("predicted", line.predicted),
        ("prompt_tokens", line.prompt_tokens),
        ("duration", line.duration),
        ("output_tokens", line.output_tokens),
    ] {
        if value.is_some_and(|value| value < 0.0) {
            return Err(format!("{name} must not be negative"));
        }
    }
    Ok((line, outcome))
}

/// serde's message without its "at line 1": the line is that of the trace.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let message = text.split(" at line ").next().unwrap_or(&text);
    format!("{message} (column {})", error.column())
}

impl TraceLine<'_> {
    fn observation<'a>(&'a self, outcome: Outcome, config: &Config) -> Observation<'a> {
        let output = self.output_tokens.filter(|tokens| *tokens > 0.0);
        let whole = self.duration.filter(|_| outcome == Outcome::Ok && self.ttft.is_none());
        let per_token = || itl_of_whole(whole?, self.predicted, output);
        Observation {
            at: self.t,
            route: &self.route,
            revision: &self.revision,
            is_standby: false,
            replica: &self.replica,
            waited_at: None,
            failed_at: &[],
            ttft: self.ttft.or(whole.filter(|_| output.is_none())),
            itl: self.itl.or_else(per_token),
            prompt: self.prompt_tokens,
            predicted: self.predicted,
            pace: 1.0,
            ttft_bound: ttft_bound(config, &self.route, self.prompt_tokens),
            outcome,
        }
    }
}

/// The route's bound on TTFT for this prompt, and for an empty one.
fn ttft_bound(config: &Config, name: &str, prompt: Option<f64>) -> Option<(f64, f64)> {
    let routes = &config.routes;
    let named = Route::position(routes, name).and_then(|at| routes.get(at));
    let any = || routes.iter().find(|route| route.model == ModelMatch::Any);
    let only = || routes.first().filter(|_| routes.len() == 1);
    let route = named.or_else(any).or_else(only)?;
    let bound = config.slo.get(&route.slo)?.ttft?;
    let of_prompt = bound.for_prompt(Tokens(prompt.unwrap_or(0.0) as u64));
    Some((of_prompt.as_secs_f64(), bound.base.as_secs_f64()))
}

/// In seconds: lines may stand in the order of requests' ends, with the times of their starts. What is before is judged as now.
const MAX_DISORDER: f64 = 60.0;
const MAX_LINE_BYTES: u64 = 1 << 20;
/// Beyond the year 5000 in seconds: milliseconds by mistake.
const MAX_SECONDS: f64 = 1e11;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_endpoint;

    fn fault(line: &str) -> String {
        read(line.as_bytes()).map(|_| ()).unwrap_err()
    }

    #[test]
    fn a_line_that_is_no_record_has_its_own_message() {
        let table = [
            ("{", "EOF while parsing an object (column 1)"),
            ("[]", "invalid length 0"),
            ("{\"t\":1,\"route\":\"r\"}", "missing field `outcome`"),
            (
                "{\"t\":1,\"route\":\"r\",\"outcome\":\"fine\"}",
                "unknown outcome \"fine\"; known: ok, client_error",
            ),
            ("{\"t\":\"1\",\"route\":\"r\",\"outcome\":\"ok\"}", "invalid type: string \"1\", expected f64"),
            ("{\"t\":1,\"route\":\"r\",\"outcome\":\"ok\",\"ttft\":-1}", "ttft must not be negative"),
            ("{\"t\":1e300,\"route\":\"r\",\"outcome\":\"ok\"}", "t must be a number of seconds"),
        ];
        for (line, expected) in table {
            let shown = fault(line);
            assert!(shown.contains(expected), "{line}: {shown}");
        }
    }

    #[test]
    fn an_answer_in_one_piece_has_the_pace_that_the_gateway_sees() {
        let text =
            br#"{"t":1,"route":"r","duration":1.29,"predicted":0.15,"output_tokens":19,"outcome":"ok"}"#;
        let (line, outcome) = read(text).unwrap();
        let source = Source::Upstreams(vec![parse_endpoint("http://127.0.0.1:8001").unwrap()]);
        let config = load(&source, &Overrides::default(), &|_| None).unwrap();
        let seen = line.observation(outcome, &config);
        assert_eq!((seen.ttft, seen.itl.map(|itl| (itl * 1e3).round())), (None, Some(60.0)));
    }

    #[test]
    fn a_field_that_is_missing_is_unknown() {
        let (line, outcome) =
            read(b"{\"t\":1,\"route\":\"r\",\"itl\":null,\"outcome\":\"failed\",\"extra\":[1]}").unwrap();
        assert_eq!((line.ttft, line.itl, outcome), (None, None, Outcome::Failed));
        assert_eq!(line.replica, "none");
    }

    #[test]
    fn lines_that_go_back_in_time_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let config =
            file("f.toml", "[[pool]]\nname = \"p\"\nreplicas = [\"http://a:1\"]\n[[route]]\nmodel = \"m\"\n");
        let replayed = |times: &[f64]| {
            let line = |t: &f64| format!("{{\"t\":{t},\"route\":\"m\",\"outcome\":\"ok\"}}\n");
            let trace = file("t.jsonl", &times.iter().map(line).collect::<String>());
            run(&trace, &config, &mut Vec::new()).map_err(|error| error.to_string())
        };
        assert_eq!(replayed(&[0.0, 70.0, 10.0, 130.0]), Ok(()));
        let error = replayed(&[0.0, 70.0, 9.5]).unwrap_err();
        assert!(
            error.ends_with("t.jsonl:3: t is 60.5 s before that of an earlier line: sort the lines by t"),
            "{error}"
        );
    }
}
