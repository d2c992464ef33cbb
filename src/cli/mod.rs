//! The command line: flags, subcommands and environment variables, parsed into types.
//!
//! Every flag has a `TOKENWAY_…` variable, and a flag wins over a variable. One file for each subcommand; exit codes
//! are 0 (success), 1 (failure) and 2 (usage error). Parsing has no effects: nothing is loaded or printed here.

pub mod canary;
pub mod check;
pub mod demo;
pub mod replay;
pub mod replay_drift;
pub mod serve;
pub mod showcase;
pub mod sim;

use std::ffi::OsString;
use std::io::{self, Write};

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use self::canary::CanaryArgs;
use self::check::CheckArgs;
use self::demo::DemoArgs;
use self::replay::ReplayArgs;
use self::serve::ServeArgs;
use self::sim::SimArgs;
use crate::app::logging::LogLevel;

/// A latency-aware inference gateway: a drop-in OpenAI endpoint in front of a fleet of vLLM replicas.
#[derive(Debug, Parser)]
#[command(name = "tokenway", version, max_term_width = 110)]
pub struct Cli {
    /// What is logged to stderr: error, warn, info, debug, trace, off, or filters such as `info,tokenway=debug`
    #[arg(long, global = true, env = "TOKENWAY_LOG_LEVEL", value_name = "LEVEL", default_value = "info")]
    pub log_level: LogLevel,
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the gateway
    Serve(ServeArgs),
    /// Check a configuration file and say what is wrong with it
    Check(CheckArgs),
    /// Show the canaries of a gateway; promote, roll back, pause or resume one
    Canary(CanaryArgs),
    /// Simulated fleet, gateway and traffic in one process: no GPU, no configuration
    Demo(DemoArgs),
    /// Simulated vLLM replicas on given ports
    Sim(SimArgs),
    /// Run recorded requests in simulated time
    Replay(ReplayArgs),
    /// Show a gateway in the terminal
    #[command(hide = true)]
    Top(UnbuiltArgs),
}

/// Any arguments, for subcommands that are not built.
#[derive(Args, Debug)]
pub struct UnbuiltArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    rest: Vec<OsString>,
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
        let matches = Self::command().try_get_matches_from(args)?;
        let mut cli = Self::from_arg_matches(&matches)?;
        if let (Command::Serve(args), Some(given)) = (&mut cli.command, matches.subcommand_matches("serve")) {
            args.settle_source(given).map_err(|error| error.format(&mut Self::command()))?;
        }
        Ok(cli)
    }
}

/// Answers a subcommand that is not built.
///
/// # Errors
/// When `err` cannot be written.
pub fn refuse_unbuilt(subcommand: &str, err: &mut dyn Write) -> io::Result<u8> {
    writeln!(err, "error: `tokenway {subcommand}` is not supported yet")?;
    Ok(EXIT_USAGE)
}

/// Success.
pub const EXIT_OK: u8 = 0;
/// The command failed; the reason is on stderr.
pub const EXIT_FAILED: u8 = 1;
/// The command line is wrong; the reason is on stderr.
pub const EXIT_USAGE: u8 = 2;

#[cfg(test)]
mod tests {
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
    fn serve_takes_a_file_or_urls() {
        let args = serve(&["--config", "a.toml"]).unwrap();
        assert_eq!(args.source(), Source::File("a.toml".into()));
        let args = serve(&["--upstream", "http://a:1", "--upstream", "http://b:2,http://c:3"]).unwrap();
        let Source::Upstreams(endpoints) = args.source() else { panic!() };
        assert_eq!(endpoints.len(), 3);
    }

    #[test]
    fn flags_become_overrides() {
        let args = serve(&[
            "--upstream",
            "http://a:1",
            "--listen",
            "0.0.0.0:80",
            "--policy",
            "least_loaded",
            "--served-model-name",
            "llama",
            "--otlp-endpoint",
            "http://c:4318",
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
        let cases: [(&[&str], &str); 9] = [
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
        for (args, said) in cases {
            let error = serve(args).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{args:?}");
            assert!(error.to_string().contains(said), "{args:?}: {error}");
        }
    }

    #[test]
    fn what_is_not_built_is_said_plainly_and_not_in_the_help() {
        let help = Cli::command().render_long_help().to_string();
        assert!(!help.contains("  top "), "{help}");
        Cli::read(["tokenway", "top", "x", "--config", "y"]).unwrap();
        let mut said = Vec::new();
        assert_eq!(refuse_unbuilt("top", &mut said).unwrap(), 2);
        assert_eq!(String::from_utf8(said).unwrap(), "error: `tokenway top` is not supported yet\n");
    }
}
