//! `tokenway check FILE`: everything that is wrong with a file, or a summary of what it says.
//!
//! Faults end with exit code 1; warnings do not, unless they are denied. `--online` also asks every listed replica, and the broker.

mod broker;
mod online;
mod show;

use std::io;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

use self::broker::BrokerAnswer;
use self::online::Answer;
use super::style::{Paint, Style};
use super::{EXIT_FAILED, EXIT_OK, Outputs};
use crate::config::Overrides;
use crate::config::check::Checked;
use crate::config::diagnostics::Diagnostic;
use crate::config::load::{ConfigError, Source, load_with_warnings};
use crate::upstream::connect::Connector;

/// Arguments of `tokenway check`.
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// Configuration file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Write one JSON object to stdout: ok, errors, warnings, summary, replicas, broker
    #[arg(long)]
    json: bool,
    /// Also ask every listed replica: is it there, which models it serves, whether its metrics have what routing reads; and the broker
    #[arg(long)]
    online: bool,
    /// Secrets and PEM files that are not on this machine are warnings: for CI
    #[arg(long)]
    allow_missing_secrets: bool,
    /// Warnings are faults
    #[arg(long)]
    deny_warnings: bool,
}

#[derive(Debug, Default)]
struct Report {
    errors: Vec<Diagnostic>,
    /// Of a file that cannot be read.
    failure: Option<String>,
    checked: Option<Checked>,
    answers: Vec<Answer>,
    broker: Option<BrokerAnswer>,
}

/// Checks the file: the summary goes to `out`, faults go to `err`. The result is the exit code.
pub fn run(
    args: &CheckArgs,
    env: &dyn Fn(&str) -> Option<String>,
    (out, err): Outputs<'_>,
    style: Style,
) -> io::Result<u8> {
    let overrides = Overrides { allow_missing_secrets: args.allow_missing_secrets, ..Overrides::default() };
    let mut report = match load_with_warnings(None, &Source::File(args.file.clone()), &overrides, env) {
        Ok(checked) => Report { checked: Some(checked), ..Report::default() },
        Err(ConfigError::Invalid(found)) => Report { errors: found.faults, ..Report::default() },
        Err(other) => Report { failure: Some(other.to_string()), ..Report::default() },
    };
    if let Some(checked) = report.checked.as_ref().filter(|_| args.online) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let connector = Connector::new(TaskTracker::new()).map_err(io::Error::other)?;
        report.answers = runtime.block_on(online::ask_all(&checked.config, &connector));
        report.broker = runtime.block_on(broker::ask_broker(&checked.config, &connector));
    }
    let is_ok = report.is_ok(args.deny_warnings);
    let told = if args.json {
        writeln!(out, "{:#}", report.json(args, is_ok))
    } else {
        report.tell(args, style, is_ok, (out, err))
    };
    // The verdict stands, whether or not it is read to its end.
    told.or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })?;
    Ok(if is_ok { EXIT_OK } else { EXIT_FAILED })
}

impl Report {
    fn warnings(&self) -> &[Diagnostic] {
        self.checked.as_ref().map(|checked| checked.warnings.as_slice()).unwrap_or_default()
    }

    fn is_ok(&self, denies_warnings: bool) -> bool {
        let passes_warnings = !denies_warnings || self.warnings().is_empty();
        let do_replicas = self.answers.iter().all(|answer| answer.problems.is_empty());
        let does_broker = self.broker.as_ref().is_none_or(|broker| broker.found.is_ok());
        self.checked.is_some() && do_replicas && does_broker && passes_warnings
    }

    fn json(&self, args: &CheckArgs, is_ok: bool) -> Value {
        let mut errors: Vec<_> = self.errors.iter().map(|error| json!(error)).collect();
        errors.extend(self.failure.iter().map(|message| json!({ "message": message })));
        let mut json = json!({
            "file": args.file.display().to_string(),
            "ok": is_ok,
            "errors": errors,
            "warnings": self.warnings(),
            "summary": self.checked.as_ref().map(|checked| show::summary_json(&checked.config)),
        });
        if args.online {
            json["replicas"] = self.answers.iter().map(Answer::json).collect();
            json["broker"] = self.broker.as_ref().map(BrokerAnswer::json).into();
        }
        json
    }

    fn tell(&self, args: &CheckArgs, style: Style, is_ok: bool, (out, err): Outputs<'_>) -> io::Result<()> {
        if let Some(failure) = &self.failure {
            writeln!(err, "{}", style.paint(Paint::Error, failure))?;
        }
        let errors = self.errors.iter().map(|error| ((Paint::Error, ""), error));
        let warnings = self.warnings().iter().map(|warning| ((Paint::Warning, "warning: "), warning));
        for (at, (severity, found)) in errors.chain(warnings).enumerate() {
            if at > 0 {
                writeln!(err)?;
            }
            show::diagnostic(err, style, severity, found)?;
        }
        let Some(checked) = &self.checked else { return Ok(()) };
        let verdict = match (is_ok, self.warnings().len()) {
            (true, 0) => style.paint(Paint::Good, "ok"),
            (true, n) => style.paint(Paint::Warning, &format!("ok, {}", show::counted(n, "warning"))),
            (false, _) => style.paint(Paint::Error, "not ok"),
        };
        writeln!(out, "{}: {verdict}", args.file.display())?;
        show::summary(&checked.config, out)?;
        for answer in &self.answers {
            answer.tell(style, out)?;
        }
        if let Some(broker) = &self.broker {
            broker.write(style, out)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
