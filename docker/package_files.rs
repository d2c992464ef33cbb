//! Writes what packages have beside the binary: man pages and completions, from the definition of the command line.
//!
//!     cargo run --locked --example package-files -- FOLDER

use std::env::args_os;
use std::error::Error;
use std::fs;
use std::path::PathBuf;

use clap::{Command, CommandFactory as _};
use clap_complete::{Shell, generate_to};
use tokenway::cli::Cli;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = args_os().nth(1).map(PathBuf::from).ok_or("usage: package-files FOLDER")?;
    let (pages, completions) = (folder.join("man"), folder.join("completions"));
    fs::create_dir_all(&pages)?;
    fs::create_dir_all(&completions)?;
    clap_mangen::generate_to(documented(), pages)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut Cli::command(), "tokenway", &completions)?;
    }
    Ok(())
}

/// The command without `help` of its own, which would be a page for every page.
fn documented() -> Command {
    Cli::command().disable_help_subcommand(true)
}
