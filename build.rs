//! Revision and date of the commit that a release is built from, for `tokenway --version` and `tokenway_build_info`, unless
//! `TOKENWAY_BUILD_REVISION` and `TOKENWAY_BUILD_DATE` name them.
//!
//! Only of release builds: every commit would rebuild the crate otherwise. And the admin page's files and the reference of the
//! configuration, compressed: they are 70 KB less in the binary.

#![allow(clippy::print_stdout, reason = "how a build script talks to Cargo")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

use flate2::Compression;
use flate2::write::GzEncoder;

fn main() -> io::Result<()> {
    let to = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?);
    let page = Path::new("src/admin/page");
    println!("cargo:rerun-if-changed={}", page.display());
    for entry in fs::read_dir(page)? {
        pack(&entry?.path(), &to)?;
    }
    let reference = Path::new("config/reference.toml");
    println!("cargo:rerun-if-changed={}", reference.display());
    pack(reference, &to)?;
    state_version();
    Ok(())
}

/// Compresses a file into a directory.
fn pack(from: &Path, to: &Path) -> io::Result<()> {
    let mut name = from.file_name().unwrap_or_default().to_owned();
    name.push(".gz");
    let mut packed = GzEncoder::new(fs::File::create(to.join(name))?, Compression::best());
    io::copy(&mut fs::File::open(from)?, &mut packed)?;
    packed.finish().map(drop)
}

fn state_version() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed={REVISION}");
    println!("cargo:rerun-if-env-changed={DATE}");
    if !env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        return;
    }
    if let Some(log) = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
    let stated = |variable: &str| env::var(variable).ok().filter(|value| !value.is_empty());
    let revision =
        stated(REVISION).or_else(|| git(&["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]));
    let date = stated(DATE).or_else(|| git(&["log", "-1", "--format=%cs"]));
    let known: Vec<&str> = [&revision, &date].into_iter().flatten().map(String::as_str).collect();
    if !known.is_empty() {
        println!("cargo:rustc-env=TOKENWAY_VERSION={} ({})", env!("CARGO_PKG_VERSION"), known.join(", "));
    }
    for (variable, value) in [(REVISION, &revision), (DATE, &date)] {
        if let Some(value) = value {
            println!("cargo:rustc-env={variable}={value}");
        }
    }
}

/// What git says; `None` without git, or outside a checkout.
fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    Some(text).filter(|text| !text.is_empty())
}

const REVISION: &str = "TOKENWAY_BUILD_REVISION";
const DATE: &str = "TOKENWAY_BUILD_DATE";
