//! Files that the gateway writes: none is another key's, and none is read.

use std::path::{Path, PathBuf};

use crate::config::{AccessLog, Config};

use super::section::{Item, Section};

/// Reports a file that is written, and that another key, or the configuration `file` itself, has.
pub(super) fn expect_files_apart(root: &Section<'_>, config: &Config, file: &Path) {
    let outputs = outputs(root, config);
    let file = place(file);
    let inputs: Vec<_> = root.checking.inputs.borrow().iter().map(|path| place(path)).collect();
    for (at, output) in outputs.iter().enumerate() {
        let name = output.name;
        let is_it = |earlier: &&Output<'_>| {
            // Several routes may share one.
            earlier.place == output.place && !(earlier.name == CANARY && name == CANARY)
        };
        if output.place == file {
            output.item.fault(format!("{name} is the configuration file itself"), APART_HINT);
        } else if inputs.contains(&output.place) {
            output.item.fault(format!("{name} is a file that another key reads"), APART_HINT);
        } else if let Some(earlier) = outputs.iter().take(at).find(is_it) {
            output.item.fault(format!("{name} is the file of {}", earlier.name), APART_HINT);
        }
    }
}

/// A file that a key names to be written.
struct Output<'a> {
    name: &'static str,
    item: Item<'a>,
    place: PathBuf,
}

fn outputs<'a>(root: &Section<'a>, config: &Config) -> Vec<Output<'a>> {
    let telemetry = &config.telemetry;
    let access_log = match &telemetry.access_log {
        AccessLog::File(path) => Some(path.as_path()),
        _ => None,
    };
    let content = telemetry.content.as_ref().and_then(|content| content.file.as_deref());
    let one = [
        ("telemetry.access_log", access_log, root.peek(&["telemetry", "access_log"], 0)),
        ("telemetry.content.file", content, root.peek(&["telemetry", "content", "file"], 0)),
        ("drift.state", config.drift.state.path(), root.peek(&["drift", "state"], 0)),
    ];
    let canaries = config.routes.iter().enumerate().map(|(at, route)| {
        let state = route.canary.as_ref().and_then(|canary| canary.state.as_deref());
        (CANARY, state, root.peek(&["route", "canary", "state"], at))
    });
    let output = |(name, path, item): (&'static str, Option<&Path>, Option<Item<'a>>)| {
        Some(Output { name, item: item?, place: place(path?) })
    };
    one.into_iter().chain(canaries).filter_map(output).collect()
}

/// A path that is the same for all names of a file, also of one that is not there yet.
fn place(path: &Path) -> PathBuf {
    let beside = || {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        Some(parent.unwrap_or(Path::new(".")).canonicalize().ok()?.join(path.file_name()?))
    };
    path.canonicalize().ok().or_else(beside).unwrap_or_else(|| path.to_owned())
}

const CANARY: &str = "route.canary.state";
const APART_HINT: &str = "give each its own file";
