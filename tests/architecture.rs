//! Holds the modules against the map in `docs/architecture.md`, so that the architecture cannot drift unseen.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

use std::fs;
use std::path::{Path, PathBuf};

/// What may not be named where. The left side is a file or folder under `src/`.
const FORBIDDEN: &[(&[&str], &[&str])] = &[
    // The data path knows nothing of who looks at it, controls it or simulates it.
    (
        &[
            "listener",
            "request",
            "admission",
            "routing",
            "upstream",
            "relay",
            "gateway",
            "journal.rs",
            "record.rs",
        ],
        &[
            "crate::admin",
            "crate::cli",
            "crate::simulate",
            "crate::config::schema",
            "crate::config::check",
            "crate::config::reload",
            "crate::config::load",
        ],
    ),
    // Pure: no runtime, no sockets, no clock; the same code runs live, in tests and in simulated time.
    (
        &[
            "routing",
            "admission/refusal.rs",
            "admission/room.rs",
            "admission/ruling.rs",
            "relay/sse.rs",
            "relay/classify.rs",
            "relay/timeline.rs",
            "relay/usage_filter.rs",
            "config/check",
            "control/drift",
            "simulate/engine",
            "simulate/peers",
            "simulate/replay",
        ],
        &["tokio::", "std::net::TcpStream", "clock::Clock", "crate::fleet::registry", "hyper::"],
    ),
    // Observers read; they never reach into the line.
    (&["observe"], &["crate::gateway", "crate::listener", "crate::upstream", "crate::admin", "crate::cli"]),
    // Only one file maps failures to a status.
    (&["routing", "relay", "fleet", "request"], &["StatusCode::BAD_GATEWAY", "StatusCode::GATEWAY_TIMEOUT"]),
];

#[test]
fn modules_keep_to_the_map() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut breaches = Vec::new();
    for (places, words) in FORBIDDEN {
        for place in *places {
            let files = files(&root.join(place));
            assert!(!files.is_empty(), "src/{place} is gone: mend the map");
            for file in files {
                let text = fs::read_to_string(&file).unwrap();
                let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
                for (at, line) in code.lines().enumerate().filter(|(_, l)| !l.trim_start().starts_with("//"))
                {
                    for word in words.iter().filter(|word| line.contains(**word)) {
                        breaches.push(format!("{}:{}: {word}", file.display(), at + 1));
                    }
                }
            }
        }
    }
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

fn files(place: &Path) -> Vec<PathBuf> {
    if place.is_file() {
        return vec![place.to_owned()];
    }
    let entries = fs::read_dir(place).into_iter().flatten().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| files(&path)).filter(|path| path.extension().is_some_and(|e| e == "rs")).collect()
}
