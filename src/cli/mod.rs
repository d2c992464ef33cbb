//! The command line: flags, subcommands and environment variables, parsed into types.
//!
//! What runs has a `TOKENWAY_…` variable for every flag, and a flag wins over it; what only looks has none. One file for each subcommand; exit codes
//! are 0 (success), 1 (failure) and 2 (usage error). Parsing has no effects: nothing is loaded or printed here.

pub mod admin_client;
pub mod bench;
pub mod canary;
pub mod check;
pub mod completions;
pub mod demo;
mod draft;
pub mod drift;
pub mod epp;
pub mod explain;
mod foreign;
pub mod import;
pub mod init;
pub mod key;
pub mod replay;
pub mod replay_drift;
mod scoreboard;
pub mod serve;
pub mod showcase;
pub mod sim;
mod story;
pub mod top;
pub mod usage;

pub use crate::observe::style;

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write};
use std::pin::Pin;

use clap::builder::Resettable;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::app::logging::LogLevel;
use crate::observe::style::LogFormat;

/// A latency-aware inference gateway: a drop-in OpenAI endpoint in front of a fleet of vLLM replicas.
#[derive(Debug, Parser)]
#[command(name = "tokenway", version = VERSION, max_term_width = 110)]
pub struct Cli {
    /// What is logged to stderr: error, warn, info, debug, off, or filters such as `info,tokenway=debug`
    #[arg(long, global = true, env = "TOKENWAY_LOG_LEVEL", value_name = "LEVEL", default_value = "info")]
    pub log_level: LogLevel,
    /// How logs are written: auto is text on a terminal and JSON elsewhere
    #[arg(long, global = true, env = "TOKENWAY_LOG_FORMAT", value_name = "FORMAT", default_value = "auto")]
    pub log_format: LogFormat,
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the gateway
    Serve(serve::ServeArgs),
    /// Run an endpoint picker for Envoy (Gateway API Inference Extension)
    Epp(epp::EppArgs),
    /// Write a commented configuration file, from flags or from a few questions
    Init(init::InitArgs),
    /// Turn another gateway's flags or file into a configuration; says what could not be mapped
    Import(import::ImportArgs),
    /// Check a configuration file: every mistake with its place and a hint
    Check(check::CheckArgs),
    /// Show the canaries of a gateway; promote, roll back, pause or resume one
    Canary(canary::CanaryArgs),
    /// Simulated fleet, gateway and traffic in one process: no GPU, no configuration
    Demo(demo::DemoArgs),
    /// Simulated vLLM replicas on given ports
    Sim(sim::SimArgs),
    /// Make, list and revoke API keys of a running gateway
    Key(key::KeyArgs),
    /// Show what tenants, models and API keys have used: requests, tokens, engine seconds
    Usage(usage::UsageArgs),
    /// List findings of drift; with a command: acknowledge, reset, mute
    Drift(drift::DriftArgs),
    /// Run recorded requests in simulated time
    Replay(replay::ReplayArgs),
    /// Send requests at a rate or by a trace, open loop, and print latencies and goodput
    Bench(bench::BenchArgs),
    /// Show a running gateway in the terminal: routes, replicas, slow requests, findings
    Top(top::TopArgs),
    /// Explain one request of a running gateway: where its time went and why that replica
    Explain(explain::ExplainArgs),
    /// Print the JSON Schema of the configuration file, for editors
    Schema,
    /// Print completions for a shell
    Completions(completions::CompletionsArgs),
}

impl Cli {
    /// Reads a command line, the program's name first, and the environment.
    ///
    /// # Errors
    /// A usage error, or a request for help or version: `exit` prints it and exits with the right code.
    pub fn read<I>(args: I) -> Result<Self, clap::Error>
    where
        I: IntoIterator,
        I::Item: Into<OsString> + Clone,
    {
        let read = without_empty_variables(Self::command()).try_get_matches_from(args);
        let matches = read.map_err(foreign::with_tip)?;
        let mut cli = Self::from_arg_matches(&matches)?;
        let settled = match (&mut cli.command, matches.subcommand()) {
            (Command::Serve(args), Some((_, given))) => args.source.settle(given),
            (Command::Epp(args), Some((_, given))) => args.source.settle(given),
            _ => Ok(()),
        };
        settled.map_err(|error| error.format(&mut Self::command()))?;
        Ok(cli)
    }
}

/// A variable without a value, as compose files and unit files leave them, is as good as none.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| {
        let value = arg.get_env().and_then(std::env::var_os);
        if value.is_some_and(|value| value.is_empty()) { arg.env(Resettable::Reset) } else { arg }
    });
    command.mut_subcommands(without_empty_variables)
}

/// What commands print to: answers, and errors.
type Outputs<'a> = (&'a mut dyn Write, &'a mut dyn Write);

/// Prints the text that is asked for, or why there is none. The result is the exit code.
fn print<'a, E: Display>(
    asked: impl Future<Output = Result<String, E>> + 'a,
    (out, err): Outputs<'_>,
) -> io::Result<u8> {
    // One kind for all commands: each kind has six kilobytes of code of its own.
    let asked: Pin<Box<dyn Future<Output = Result<String, E>> + 'a>> = Box::pin(asked);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match runtime.block_on(asked) {
        Ok(text) => write!(out, "{text}").map(|()| EXIT_OK),
        Err(error) => failed(err, &error),
    }
}

/// Prints an error. The result is the exit code.
fn failed(err: &mut dyn Write, error: &impl Display) -> io::Result<u8> {
    writeln!(err, "error: {error}").map(|()| EXIT_FAILED)
}

/// Success.
pub const EXIT_OK: u8 = 0;
/// The command failed; the reason is on stderr.
pub const EXIT_FAILED: u8 = 1;
/// The command line is wrong; the reason is on stderr.
pub const EXIT_USAGE: u8 = 2;

/// Of the package, and of the commit that a release was built from.
const VERSION: &str = match option_env!("TOKENWAY_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// The exit code of a subcommand, what it prints, and its errors.
#[cfg(test)]
fn printed(run: impl FnOnce(Outputs<'_>) -> io::Result<u8>) -> (u8, String, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = run((&mut out, &mut err)).unwrap();
    (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

/// A simulated replica, and where it runs.
#[cfg(test)]
fn simulated() -> (tokio::runtime::Runtime, tokenway_sim::server::SimReplica) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (tracker, over) = Default::default();
    let free = "127.0.0.1:0".parse().unwrap();
    let starting = tokenway_sim::server::start(Default::default(), free, &tracker, over);
    let sim = runtime.block_on(starting).unwrap();
    (runtime, sim)
}

#[cfg(test)]
mod tests {
    use super::serve::ServeArgs;
    use super::*;
    use crate::config::PolicyName;
    use crate::config::load::Source;

    fn serve(args: &[&str]) -> Result<ServeArgs, clap::Error> {
        let args = ["tokenway", "serve"].iter().chain(args);
        match Cli::read(args)?.command {
            Command::Serve(args) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_request_is_explained_by_the_gateway_of_this_machine_where_none_is_named() {
        let asked =
            |args: &[&str]| match Cli::read(["tokenway", "explain"].iter().chain(args)).unwrap().command {
                Command::Explain(args) => format!("{args:?}"),
                other => panic!("{other:?}"),
            };
        let own = asked(&["req-1"]);
        assert!(own.contains("port: 9090") && own.contains("id: \"req-1\""), "{own}");
        let other = asked(&["gateway:9100", "req-1"]);
        assert!(other.contains("port: 9100") && other.contains("id: \"req-1\""), "{other}");
    }

    #[test]
    fn serve_takes_a_file_or_urls() {
        let args = serve(&["--config", "a.toml"]).unwrap();
        assert_eq!(args.source.source(), Source::File("a.toml".into()));
        let args = serve(&["--upstream", "http://a:1", "--upstream", "http://b:2,http://c:3"]).unwrap();
        let Source::Upstreams(endpoints) = args.source.source() else { panic!() };
        assert_eq!(endpoints.len(), 3);
        let args = serve(&["--worker-urls", "http://a:1", "http://b:2", "--policy", "prefix"]).unwrap();
        let Source::Upstreams(endpoints) = args.source.source() else { panic!() };
        assert_eq!(endpoints.len(), 2);
    }

    #[test]
    fn flags_become_overrides() {
        let args = serve(&[
            "--upstream", "http://a:1", "--listen", "0.0.0.0:80", "--policy", "least_loaded",
            "--served-model-name", "llama", "--otlp-endpoint", "http://c:4318",
        ]);
        let overrides = args.unwrap().overrides();
        assert_eq!(overrides.listen.unwrap().to_string(), "0.0.0.0:80");
        assert_eq!(overrides.admin_listen, None);
        assert_eq!(overrides.policy, Some(PolicyName::LeastLoaded));
        assert_eq!(overrides.served_model_name.as_deref(), Some("llama"));
        assert_eq!(overrides.otlp_endpoint.as_deref(), Some("http://c:4318"));
    }

    #[test]
    fn wrong_command_lines_are_usage_errors() {
        let cases: [(&[&str], &str); 17] = [
            (&["--upstream", "http://a:1", "--policy", "cache_aware"], "cache_aware is called latency here"),
            (&["--upstream", "http://a:1", "--policy", "cache-aware"], "cache-aware is called latency here"),
            (
                &["--upstream", "http://a:1", "--policy", "least-loaded"],
                "least-loaded is called least_loaded here",
            ),
            (&["--worker-urls", "http://a:1", "--port", "80"], "--listen ADDRESS:PORT; `tokenway import"),
            (&["--worker-urls", "http://a:1", "--api-key", "x"], "pool.engine_api_key"),
            (&["--worker-urls", "http://a:1", "--queue_size", "9"], "see [route.queue]"),
            (&["--worker-urls", "http://a:1", "--request-timeout-secs", "9"], "import vllm-router"),
            (&["--upstream", "http://a:1", "--log-format", "xml"], "auto, text, json"),
            (&[], "--config"),
            (&["--config", "a.toml", "--upstream", "http://a:1"], "cannot be used with"),
            (&["--upstream", "a:1"], "http://"),
            (&["--upstream", "http://a:1/v1"], "before /v1"),
            (&["--upstream", "http://a:1", "--listen", "80"], "--listen"),
            (&["--upstream", "http://a:1", "--policy", "fastest"], "least_loaded"),
            (&["--upstream", "http://a:1", "--log-level", "loud"], "loud"),
            (&["--upstream", "http://a:1", "--otlp-endpoint", "collector"], "--otlp-endpoint"),
            (&["--upstrem", "http://a:1"], "--upstream"),
        ];
        for (args, expected) in cases {
            let error = serve(args).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{args:?}");
            assert!(error.to_string().contains(expected), "{args:?}: {error}");
        }
    }

    #[test]
    fn the_tutorial_has_commands_that_parse_and_a_file_that_passes_check() {
        let text = include_str!("../../docs/getting-started.md");
        let blocks = |kind: &str| -> Vec<&str> {
            let begin = format!("```{kind}\n");
            text.split(begin.as_str()).skip(1).filter_map(|rest| rest.split("```").next()).collect()
        };
        let lines = blocks("sh").into_iter().flat_map(str::lines);
        let commands: Vec<_> = lines.filter(|line| line.starts_with("tokenway ")).collect();
        assert!(commands.len() > 8, "{commands:?}");
        for command in commands {
            let words = command.split_whitespace().take_while(|word| !["#", ">"].contains(word));
            assert!(Cli::read(words).is_ok(), "{command}");
        }
        for file in blocks("toml") {
            crate::config::check::check_str("gateway.toml", file, &|_| None).unwrap();
        }
    }

    /// `TOKENWAY_UPDATE_DOCS=1` writes the document instead.
    #[test]
    fn the_document_shows_every_subcommand_as_its_help_does() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/cli.md");
        let document = std::fs::read_to_string(path).unwrap();
        let marker = "<!-- generated from --help -->\n";
        let (before, _) = document.split_once(marker).unwrap();
        let mut expected = format!("{before}{marker}");
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            let mut shown = command.clone().term_width(100).bin_name(format!("tokenway {name}"));
            let help = shown.render_long_help().to_string();
            let lines: Vec<_> = help.trim().lines().map(str::trim_end).collect();
            expected.push_str(&format!("\n## tokenway {name}\n\n```text\n{}\n```\n", lines.join("\n")));
        }
        if std::env::var_os("TOKENWAY_UPDATE_DOCS").is_some() {
            std::fs::write(path, &expected).unwrap();
        }
        assert!(
            std::fs::read_to_string(path).unwrap() == expected,
            "docs/cli.md is not what --help says: TOKENWAY_UPDATE_DOCS=1 cargo test --lib the_document_shows"
        );
    }
}
