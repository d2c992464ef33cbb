//! The git revision that a release is built from, for `tokenway_build_info`, unless `TOKENWAY_BUILD_REVISION` names one.
//!
//! Only of release builds: every commit would rebuild the crate otherwise.

#![allow(clippy::print_stdout, reason = "how a build script talks to Cargo")]

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed={REVISION}");
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if std::env::var_os(REVISION).is_some() || !is_release {
        return;
    }
    if let Some(log) = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
    if let Some(revision) = git(&["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]) {
        println!("cargo:rustc-env={REVISION}={revision}");
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
