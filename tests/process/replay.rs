//! `tokenway replay`: a trace through configurations and rivals, in simulated time.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

use std::path::Path;

use serde_json::Value;
use tokenway::cli::{Cli, Command, replay};

/// What the command printed and its exit code.
struct Said {
    code: u8,
    out: String,
    err: String,
}

fn replay(directory: &Path, args: &[&str]) -> Said {
    let in_directory = |arg: &&str| match arg.strip_prefix('@') {
        Some(file) => directory.join(file).display().to_string(),
        None => (*arg).to_owned(),
    };
    let line = ["tokenway", "replay"].iter().chain(args).map(in_directory);
    let Command::Replay(args) = Cli::read(line).unwrap().command else { panic!("another command") };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = replay::run(&args, &|_| None, &mut out, &mut err).unwrap();
    Said { code, out: String::from_utf8(out).unwrap(), err: String::from_utf8(err).unwrap() }
}

fn runs(directory: &Path, args: &[&str]) -> Vec<Value> {
    let said = replay(directory, &[args, &["--json"]].concat());
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    serde_json::from_str(&said.out).unwrap()
}

fn figure(run: &Value, name: &str) -> f64 {
    run[name].as_f64().unwrap_or_else(|| panic!("{name} in {run}"))
}

/// An engine that states all its limits.
const SLOW: &str = r#"{"step_s": 0.05, "prompt_token_s": 0.0005, "max_num_seqs": 256, "max_batched_tokens": 8192, "kv_tokens": 799744}"#;

/// A folder with `trace.jsonl` (conversations that share their past), `azure.csv`, `latency.toml` and `turns.toml`.
fn folder() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let mut trace = String::new();
    for n in 0..400_u64 {
        // An odd number: in turn, no conversation meets the same replica again by chance.
        let (conversation, turn) = (n % 39, n / 39);
        let ids: Vec<u64> = (0..4 + 2 * turn).map(|block| conversation * 1_000 + block).collect();
        let prompt = ids.len() as u64 * 512 - 100;
        let at = n * 120 + (n * n) % 97;
        trace += &format!(
            "{{\"timestamp\": {at}, \"input_length\": {prompt}, \"output_length\": 60, \"hash_ids\": {ids:?}}}\n"
        );
    }
    let mut azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n".to_owned();
    for n in 0..50 {
        azure += &format!("2023-11-16 18:15:{:02}.5000000,{},{}\n", n, 100 + n * 7, 10 + n);
    }
    let config = |policy: &str| {
        format!(
            "[slo.mine]\nttft = \"1s\"\ntpot = \"100ms\"\n[[pool]]\nname = \"p\"\nreplicas = [\"http://127.0.0.1:1\", \
             \"http://127.0.0.1:2\"]\n[[route]]\nmodel = \"m\"\npools = [{{ name = \"p\" }}]\npolicy = \
             \"{policy}\"\nslo = \"mine\"\n[[pool]]\nname = \"other\"\nreplicas = [\"http://127.0.0.1:3\"]\n\
             [[route]]\nmodel = \"n\"\npools = [\"other\"]\n"
        )
    };
    let at = |ms: u64| format!("{{\"timestamp\": {ms}, \"input_length\": 9, \"output_length\": 9}}\n");
    for (file, text) in [
        ("trace.jsonl", trace),
        ("azure.csv", azure),
        ("latency.toml", config("latency")),
        ("turns.toml", config("round_robin")),
        ("wrong.toml", "[server]\nlisten = \"nowhere\"\n".to_owned()),
        ("wrong.jsonl", "{\"timestamp\": 1}\n".to_owned()),
        ("years.jsonl", at(0) + &at(99_999_999_999_999)),
        ("slow.json", SLOW.to_owned()),
        ("wrong.json", "{\"steps\": 1}".to_owned()),
    ] {
        std::fs::write(directory.path().join(file), text).unwrap();
    }
    directory
}

#[test]
fn each_file_and_each_rival_is_a_row() {
    let folder = folder();
    let said = replay(
        folder.path(),
        &[
            "@trace.jsonl", "--config", "@latency.toml", "--config", "@turns.toml", "--policies",
            "smetric,oracle",
        ],
    );
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    let rows: Vec<&str> = said.out.lines().collect();
    assert_eq!(rows.len(), 6, "{}", said.out);
    for said in ["vary by 30 %", "chunks of 8192", "signals 1 s old"] {
        assert!(rows[0].contains(said), "{said}: {}", rows[0]);
    }
    for (row, starts) in
        rows.iter().zip(["engines: ", "policy", "latency (", "round_robin (", "smetric", "oracle"])
    {
        assert!(row.starts_with(starts), "{row}");
    }
    for heading in ["miss %", "ttft p99", "tpot p99", "good/s", "hit", "spread", "refused %", "err p50 %"] {
        assert!(rows[1].contains(heading), "{heading}");
    }
}

#[test]
fn the_fleet_and_the_bounds_are_those_of_the_file() {
    let folder = folder();
    let file = ["@trace.jsonl", "--config", "@latency.toml"];
    let own = runs(folder.path(), &file);
    assert_eq!((own[0]["replicas"].as_u64(), own[0]["requests"].as_u64()), (Some(2), Some(400)));
    let other = runs(folder.path(), &[&file[..], &["--replicas", "8", "--ttft", "1us"]].concat());
    assert_eq!((other[0]["replicas"].as_u64(), other[0]["requests"].as_u64()), (Some(8), Some(800)));
    assert_eq!(figure(&other[0], "violations"), 1.0, "nobody answers in a microsecond");
    assert!(figure(&own[0], "violations") < 1.0);
}

#[test]
fn a_pool_that_stands_by_does_not_serve_and_what_is_left_out_is_named() {
    let folder = folder();
    let file = std::fs::read_to_string(folder.path().join("latency.toml")).unwrap();
    let pools = |names: &str| format!("pools = [{names}]");
    let file = file.replace(&pools("{ name = \"p\" }"), &pools("{ name = \"p\" }, { name = \"backup\" }"));
    let backup = "[[pool]]\nname = \"backup\"\nstandby = true\nreplicas = [\"http://127.0.0.1:4\"]\n";
    std::fs::write(folder.path().join("standby.toml"), file + backup).unwrap();
    let said = replay(folder.path(), &["@trace.jsonl", "--config", "@standby.toml", "--json"]);
    let runs: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(runs[0]["replicas"].as_u64(), Some(2));
    let note = "route \"m\": not replayed: pools without weight (standby, canary)\n";
    assert!(said.err.starts_with("note: ") && said.err.ends_with(note), "{}", said.err);
}

#[test]
fn engines_are_noisy_unless_told_otherwise() {
    let folder = folder();
    let run = |more: &[&str]| {
        let mut runs = runs(
            folder.path(),
            &[&["@trace.jsonl", "--policies", "latency", "--replicas", "2"], more].concat(),
        );
        runs.swap_remove(0)
    };
    let of = |run: &Value, names: [&str; 3]| names.map(|name| figure(run, name));
    let settings = ["jitter", "max_batched_tokens", "signals_age_s"];
    let usual = run(&[]);
    assert_eq!(of(&usual, settings), [0.3, 8192.0, 1.0]);
    assert_eq!(of(&run(&["--hardware", "a100"]), settings), [0.3, 2048.0, 1.0]);
    assert_eq!(of(&run(&["--jitter", "0", "--signals-age", "50ms"]), settings), [0.0, 8192.0, 0.05]);
    let [requests, tokens, tpot] = of(&usual, ["requests_spread", "tokens_spread", "tpot_p90_s"]);
    assert!((1.0..=2.0).contains(&requests) && (1.0..=2.0).contains(&tokens), "{usual}");
    assert!((figure(&usual, "tpot_p50_s")..=figure(&usual, "tpot_p99_s")).contains(&tpot), "{usual}");
}

#[test]
fn the_same_seed_gives_the_same_figures_on_any_number_of_threads() {
    let folder = folder();
    let args =
        ["@trace.jsonl", "--policies", "latency,power_of_two,oracle", "--seeds", "1,2", "--replicas", "4"];
    let one = replay(folder.path(), &[&args[..], &["--threads", "1", "--json"]].concat());
    let three = replay(folder.path(), &[&args[..], &["--threads", "3", "--json"]].concat());
    assert_eq!(one.out, three.out);
    let runs: Vec<Value> = serde_json::from_str(&one.out).unwrap();
    assert_eq!(runs.len(), 6);
    assert_ne!(runs[0]["ttft_p50_s"], runs[1]["ttft_p50_s"], "seeds differ");
}

#[test]
fn affinity_hits_and_load_and_slow_replicas_hurt() {
    let folder = folder();
    let base = ["@trace.jsonl", "--policies", "round_robin,latency", "--replicas", "4", "--seeds", "1,2"];
    let mean = |args: &[&str], policy: &str, name: &str| {
        let runs = runs(folder.path(), &[&base[..], args].concat());
        let of_policy = runs.iter().filter(|run| run["policy"] == policy);
        of_policy.map(|run| figure(run, name)).sum::<f64>() / 2.0
    };
    assert!(mean(&[], "latency", "hit_rate") > mean(&[], "round_robin", "hit_rate") + 0.2);
    assert!(mean(&["--load", "3"], "latency", "ttft_p99_s") > mean(&[], "latency", "ttft_p99_s"));
    let slow = ["--slow", "2=4"];
    assert!(mean(&slow, "round_robin", "ttft_p99_s") > 1.5 * mean(&[], "round_robin", "ttft_p99_s"));
    let engine = ["--engine", "@slow.json"];
    assert!(mean(&engine, "round_robin", "tpot_p50_s") > 2.0 * mean(&[], "round_robin", "tpot_p50_s"));
}

#[test]
fn a_trace_without_prefixes_is_served_without_hits() {
    let folder = folder();
    let runs =
        runs(folder.path(), &["@azure.csv", "--policies", "latency,smetric,dynamo", "--replicas", "2"]);
    for run in &runs {
        assert_eq!((run["requests"].as_u64(), figure(run, "hit_rate")), (Some(50), 0.0), "{run}");
    }
}

#[test]
fn an_engine_fitted_to_a_recording_can_be_replayed_on() {
    let folder = folder();
    // 20 ms a step and 1 ms a prompt token, one request at a time.
    let line = |n: u32| {
        let (prompt, output, sent) = (40 + 11 * (n % 9), 2 + n % 5, f64::from(n) * 3.0);
        let first = sent + 0.02 + f64::from(prompt) * 0.001;
        let end = first + 0.02 * f64::from(output - 1);
        format!(
            "{{\"prompt_tokens\": {prompt}, \"output_tokens\": {output}, \"sent\": {sent}, \"first_token\": {first}, \
             \"end\": {end}}}\n"
        )
    };
    let recording: String = (0..30).map(line).collect();
    std::fs::write(folder.path().join("recording.jsonl"), recording).unwrap();
    let said = replay(folder.path(), &["--fit", "@recording.jsonl"]);
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.err.contains("held out: 15 requests, TTFT off by"), "{}", said.err);
    let engine: Value = serde_json::from_str(&said.out).unwrap();
    let prompt_token = figure(&engine, "prompt_token_s");
    assert!(engine["kv_tokens"].is_null(), "a recording does not have the engine's limits: {engine}");
    assert!(said.err.contains("max_num_seqs, max_batched_tokens, kv_tokens"), "{}", said.err);
    assert!((0.0009..0.0011).contains(&prompt_token), "{engine}");
    std::fs::write(folder.path().join("fitted.json"), said.out).unwrap();
    let args = ["@azure.csv", "--policies", "latency", "--replicas", "1", "--engine", "@fitted.json"];
    let said = replay(folder.path(), &args);
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.err.contains("max_num_seqs 256, max_batched_tokens 8192, kv_tokens 799744"), "{}", said.err);
}

#[test]
fn what_cannot_be_run_is_explained() {
    let folder = folder();
    let cases: [(&[&str], &str); 10] = [
        (&["--fit", "@azure.csv"], "azure.csv: line 1: "),
        (&["@none.jsonl", "--policies", "latency"], "cannot read"),
        (&["@wrong.jsonl", "--policies", "latency"], "wrong.jsonl: line 1: missing field"),
        (&["@trace.jsonl", "--config", "@wrong.toml"], "wrong.toml:2:10: "),
        (
            &["@trace.jsonl", "--config", "@latency.toml", "--route", "chat"],
            "no route \"chat\"; its routes: m",
        ),
        (&["@trace.jsonl", "--policies", "latency", "--replicas", "4", "--slow", "4=2"], "replicas 0 to 3"),
        (&["@trace.jsonl", "--policies", "latency", "--engine", "@wrong.json"], "wrong.json: unknown field"),
        (&["@trace.jsonl", "--policies", "latency", "--engine", "@none.json"], "none.json"),
        (
            &["@years.jsonl", "--policies", "latency"],
            "the trace lasts 1736111 days at --load 1.0, more than 366",
        ),
        (
            &["@trace.jsonl", "--policies", "latency", "--load", "1,1e-300"],
            "days at --load 1e-300, more than 366",
        ),
    ];
    for (args, expected) in cases {
        let said = replay(folder.path(), args);
        assert_eq!((said.code, said.out.as_str()), (1, ""), "{args:?}");
        assert!(said.err.contains(expected), "{args:?}: {}", said.err);
    }
}

#[test]
fn a_production_configuration_is_replayed_without_its_secrets() {
    let folder = folder();
    let text = std::fs::read_to_string(folder.path().join("latency.toml")).unwrap();
    let secret = "[admin]\ntoken = \"env:TOKENWAY_NOT_SET\"\n";
    std::fs::write(folder.path().join("secret.toml"), format!("{secret}{text}")).unwrap();
    assert!(!runs(folder.path(), &["@azure.csv", "--config", "@secret.toml"]).is_empty());
}

#[test]
fn wrong_flags_are_usage_errors() {
    for (args, expected) in [
        (vec!["t"], "--config"),
        (vec!["t", "--policies", "fastest"], "unknown policy; there are latency"),
        (vec!["t", "--policies", "latency", "--load", "0"], "--load"),
        (vec!["t", "--policies", "latency", "--signals-age", "50"], "with its unit"),
        (vec!["t", "--policies", "latency", "--slow", "1"], "N=FACTOR"),
        (vec!["t", "--policies", "latency", "--replicas", "100000"], "at most"),
        (vec!["t", "--policies", "latency", "--gateways", "0"], "--gateways"),
        (vec!["t", "--policies", "latency", "--route", "chat"], "--config"),
    ] {
        let error = Cli::read(["tokenway", "replay"].into_iter().chain(args.iter().copied())).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{args:?}");
        assert!(error.to_string().contains(expected), "{args:?}: {error}");
    }
}

#[test]
fn gateways_in_a_cluster_find_prefixes_as_one_does_and_alone_they_lose_them() {
    let folder = folder();
    let base = ["@trace.jsonl", "--config", "@latency.toml", "--replicas", "4"];
    let with = |more: &[&str]| runs(folder.path(), &[&base, more].concat());
    let shared = with(&["--gateways", "1,4"]);
    let alone = with(&["--gateways", "4", "--gateways-alone"]);
    let hits = |run: &Value| figure(run, "hit_rate");
    let (one, four) = (hits(&shared[0]), hits(&shared[1]));
    assert_eq!((figure(&shared[1], "gateways"), figure(&shared[1], "refused")), (4.0, 0.0));
    assert!(four > 0.97 * one, "{four} of {one}");
    assert!(hits(&alone[0]) < 0.9 * one, "{} of {one}", hits(&alone[0]));
    let table = replay(folder.path(), &[&base[..], &["--gateways", "4"]].concat());
    assert!(table.out.contains("latency ("), "{}", table.out);
    assert!(table.out.contains("), 4 gateways "), "{}", table.out);
}
