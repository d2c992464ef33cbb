//! `tokenway import`: another gateway's flags or file as a configuration of ours.
//!
//! The TOML goes to stdout; what could not be mapped goes to stderr, line by line, and makes the exit code 1. With exit
//! code 0 it passes `tokenway check`, once the variables of the secrets that it names are set.

mod litellm;
mod nginx;
mod router;

pub(super) use router::counterpart;

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::draft::{Draft, replica_url};
use super::{EXIT_FAILED, EXIT_OK, Outputs, failed};
use crate::config::PolicyName;
use crate::config::check::{check_elsewhere, parse_span};
use crate::config::view::without_userinfo;

/// Arguments of `tokenway import`.
#[derive(Args, Debug)]
pub struct ImportArgs {
    #[command(subcommand)]
    from: From,
}

/// Where from.
#[derive(Debug, Subcommand)]
enum From {
    /// Flags of vllm-router
    VllmRouter(Flags),
    /// Flags of SMG, the SGLang model gateway
    Smg(Flags),
    /// Flags of sglang-router
    SglangRouter(Flags),
    /// A config.yaml of LiteLLM
    Litellm(File),
    /// The upstream blocks of an nginx.conf
    Nginx(File),
}

#[derive(Args, Debug)]
struct Flags {
    /// Its flags: -- --worker-urls http://gpu-1:8000 --policy cache_aware
    #[arg(value_name = "FLAGS", trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    flags: Vec<String>,
}

#[derive(Args, Debug)]
struct File {
    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Why there is nothing to print.
#[derive(Debug, thiserror::Error)]
enum ImportError {
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("{}: {why}", path.display())]
    Parse { path: PathBuf, why: String },
    #[error("no replica with an http:// or https:// URL in it: nothing to import")]
    NoReplicas,
}

/// What has no counterpart, and what should be known of the rest.
#[derive(Debug, Default)]
struct Notes {
    left: Vec<String>,
    lines: Vec<String>,
}

impl Notes {
    /// A setting that is not in the result.
    fn left(&mut self, what: impl std::fmt::Display, why: &str) {
        self.left.push(format!("{what}: {why}"));
    }

    /// A setting that is, in another form.
    fn add(&mut self, what: impl Into<String>) {
        self.lines.push(what.into());
    }

    /// Our policy for another gateway's, or a note that there is none. One that keeps clients on a replica goes by a header here.
    fn policy(&mut self, what: &str, name: &str) -> Option<PolicyName> {
        let policy = PolicyName::from_elsewhere(name);
        match policy {
            Some(PolicyName::Session) => {
                self.left(what, "session here: by the header x-session-id, which clients have to send");
            }
            Some(policy) => self.add(format!("{what}: {} here", policy.as_str())),
            None => self.left(what, "no such policy here; latency is used"),
        }
        policy
    }

    /// The URL of a replica, or a note why it is none.
    fn replica(&mut self, url: &str) -> Option<String> {
        let shown = without_userinfo(url);
        replica_url(url).inspect_err(|why| self.left(format_args!("replica {shown}"), why)).ok()
    }

    /// Lists a replica in a pool, once.
    fn add_replica(&mut self, replicas: &mut Vec<String>, url: &str) {
        match self.replica(url) {
            Some(url) if replicas.contains(&url) => self.left(format_args!("replica {url}"), "listed twice"),
            url => replicas.extend(url),
        }
    }

    /// A duration above zero, or a note why it is none.
    fn seconds(&mut self, what: impl std::fmt::Display, seconds: impl std::fmt::Display) -> Option<String> {
        let span = format!("{seconds}s");
        parse_span(&span).inspect_err(|why| self.left(what, why)).ok().map(|_| span)
    }

    /// What `tokenway check` would refuse in the result, should anything be left.
    fn refused(&mut self, text: &str) {
        for fault in check_elsewhere(text).err().iter().flat_map(|faults| faults.iter()) {
            let line = fault.source_line.split(" #").next().unwrap_or_default().trim();
            self.left(line, &fault.message);
        }
    }
}

/// Prints the configuration. The result is the exit code.
pub fn run(args: &ImportArgs, (out, err): Outputs<'_>) -> io::Result<u8> {
    let mut notes = Notes::default();
    let (what, draft) = match &args.from {
        From::VllmRouter(flags) => ("flags of vllm-router", Ok(router::import(&flags.flags, &mut notes))),
        From::Smg(flags) => ("flags of smg", Ok(router::import(&flags.flags, &mut notes))),
        From::SglangRouter(flags) => ("flags of sglang-router", Ok(router::import(&flags.flags, &mut notes))),
        From::Litellm(File { file }) => ("LiteLLM's file", parsed(file, &mut notes, litellm::import)),
        From::Nginx(File { file }) => ("nginx's upstream blocks", parsed(file, &mut notes, nginx::import)),
    };
    let text = draft.and_then(|draft| {
        let has_replicas = draft.pools.iter().any(|pool| !pool.replicas.is_empty());
        if !has_replicas {
            return Err(ImportError::NoReplicas);
        }
        let text = draft.render(&format!("Made by `tokenway import` from {what}."), "gateway.toml");
        notes.refused(&text);
        Ok(text)
    });
    for line in &notes.lines {
        writeln!(err, "note: {line}")?;
    }
    for left in &notes.left {
        writeln!(err, "not mapped: {left}")?;
    }
    match text {
        Ok(text) => {
            write!(out, "{text}")?;
            Ok(if notes.left.is_empty() { EXIT_OK } else { EXIT_FAILED })
        }
        Err(error) => failed(err, &error),
    }
}

fn parsed(
    path: &Path,
    notes: &mut Notes,
    import: fn(&str, &mut Notes) -> Result<Draft, String>,
) -> Result<Draft, ImportError> {
    let text =
        std::fs::read_to_string(path).map_err(|error| ImportError::Read { path: path.to_owned(), error })?;
    import(&text, notes).map_err(|why| ImportError::Parse { path: path.to_owned(), why })
}

#[cfg(test)]
mod tests;
