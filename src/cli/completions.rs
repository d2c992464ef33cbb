//! `tokenway completions SHELL`: a completion script from the definition of the command line.

use std::io::{self, Write};

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::Cli;

/// Arguments of `tokenway completions`.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// Shell to complete for
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Writes the script.
pub fn run(args: &CompletionsArgs, out: &mut dyn Write) -> io::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tokenway", &mut script);
    out.write_all(&script)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_gets_a_script_that_knows_the_subcommands() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut out = Vec::new();
            run(&CompletionsArgs { shell }, &mut out).unwrap();
            let script = String::from_utf8(out).unwrap();
            assert!(script.contains("serve") && script.contains("completions"), "{shell}");
        }
    }
}
