//! Replays the fuzzing corpus and mutates it, on stable and without coverage guidance: a floor, not the ceiling.
//!
//! `FUZZ_CASES` sets the number of mutants a target (`just fuzz`: a million); `FUZZ_SEED` another run than the last.
//! What fails is written beside the target's binary and named; it belongs into `fuzz/corpus/TARGET` once it is mended.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

#[path = "../fuzz/targets.rs"]
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// xorshift64*: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// Bytes that mean something to one of the parsers.
const WORDS: &[&str] = &[
    "\r\n", "\n", "\r", "\r\n\r\n", "\n\n", ":", ": ", ";", ",", "\"", "\\", "\\u0000", "\\ud800", "{", "}",
    "[", "]", "null", "true", "data: ", "data:", "event: ", "[DONE]", "\u{feff}", "\"usage\":{}",
    "\"choices\":[]", "\"model\":", "\"stream\":true", "\"stream_options\":", "\"include_usage\":",
    "Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n", "0\r\n\r\n", "Host: a\r\n", "HTTP/1.1",
    "1e999", "-1", "18446744073709551616", "NaN", "+Inf", "}[[", "]]\n", " = ", "0s", "env:A", ".", "eyJ",
    "=",
];

fn mutate(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut data = seeds[random.below(seeds.len())].clone();
    for _ in 0..=random.below(4) {
        let at = random.below(data.len() + 1);
        let upto = (at + random.below(24)).min(data.len());
        match random.below(8) {
            0 if at < data.len() => data[at] ^= 1 << random.below(8),
            1 if at < data.len() => data[at] = random.next() as u8,
            2 => drop(data.drain(at..upto)),
            3 => {
                let copy = data[at..upto].to_vec();
                let to = random.below(data.len() + 1);
                data.splice(to..to, copy);
            }
            4 | 5 => {
                let word = WORDS[random.below(WORDS.len())].bytes();
                data.splice(at..at, word);
            }
            6 => {
                let other = &seeds[random.below(seeds.len())];
                let from = random.below(other.len() + 1);
                data.truncate(at);
                data.extend_from_slice(&other[from..]);
            }
            _ => data.truncate(at),
        }
    }
    data.truncate(16 * 1024);
    data
}

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn run(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut seeds: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_owned(), std::fs::read(path).unwrap()))
        .collect();
    seeds.sort();
    let seeds: Vec<_> = seeds.into_iter().map(|(_, seed)| seed).collect();
    let tried = |data: &[u8]| {
        if catch_unwind(AssertUnwindSafe(|| check(data))).is_err() {
            let name = format!("fuzz-{target}-{:x}", xxhash_rust::xxh3::xxh3_64(data));
            let path = std::env::current_exe().unwrap().with_file_name(name);
            std::fs::write(&path, data).unwrap();
            panic!("{target} fails on {}: {:?}", path.display(), data.escape_ascii().to_string());
        }
    };
    seeds.iter().for_each(|seed| tried(seed));
    let mut random = Random(variable("FUZZ_SEED", 0x746f_6b65_6e77_6179));
    for _ in 0..variable("FUZZ_CASES", 1500) {
        tried(&mutate(&seeds, &mut random));
    }
}

#[test]
fn sse() {
    run("sse", targets::sse);
}

#[test]
fn usage_filter() {
    run("usage_filter", targets::usage_filter);
}

#[test]
fn json() {
    run("json", targets::json);
}

#[test]
fn splice() {
    run("splice", targets::splice);
}

#[test]
fn metrics() {
    run("metrics", targets::metrics);
}

#[test]
fn config() {
    run("config", targets::config);
}

#[test]
fn framing() {
    run("framing", targets::framing);
}

#[test]
fn head() {
    run("head", targets::head);
}

#[test]
fn token() {
    run("token", targets::token);
}
