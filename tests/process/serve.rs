//! The `tokenway` binary as an operator has it: arguments, files, signals, logs, exit codes.
//!
//! What happens inside a request has its own tests; here it is that the whole starts, says what it does, changes
//! its configuration, and ends as promised.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;

use crate::serve_support::client::{Stream, connect, exchange, request};
use crate::serve_support::{
    Answer, DeadPort, Fleet, Gateway, Process, admin, chat, example, get, post_chat, replace, until,
};

#[test]
fn what_came_while_the_gateway_was_stopped_is_read_before_it_counts_as_missing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    let text = "[server]\nlisten = \"127.0.0.1:0\"\nheader_timeout = \"1s\"\nkeep_alive = \"1s\"\n\
                [admin]\nlisten = \"127.0.0.1:0\"\n[[pool]]\nname = \"p\"\nreplicas = [\"http://127.0.0.1:1\"]\n";
    replace(&file, text);
    let gateway = Gateway::with_file(&file);
    let mut answer = [0; 12];
    for (before, during) in [
        ("", request("GET", "/version", "", "")),
        ("GET /vers", "ion HTTP/1.1\r\nhost: a\r\n\r\n".to_owned()),
    ] {
        let mut idle = TcpStream::connect(&gateway.data).unwrap();
        idle.write_all(before.as_bytes()).unwrap();
        // Another connection is served: by then that one has been read.
        assert_eq!(get(&gateway.data, "/version").status, 200);
        gateway.process.signal("STOP");
        idle.write_all(during.as_bytes()).unwrap();
        // The pause itself, longer than either bound.
        std::thread::sleep(std::time::Duration::from_millis(2500));
        gateway.process.signal("CONT");
        idle.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200", "{before:?}");
    }
}

#[test]
fn each_example_starts_alive_but_not_ready_without_its_replicas_and_ends_on_sigint() {
    for name in ["minimal.toml", "two-pools.toml", "tls.toml"] {
        let copy = Example::copy(name);
        let mut gateway = Gateway::with_file(&copy.file);
        assert_eq!(get(&gateway.admin, "/healthz").status, 200, "{name}");
        let readiness = get(&gateway.admin, "/readyz");
        assert_eq!(readiness.status, 503, "{name}");
        assert!(readiness.body.contains("has no ready replica"), "{name}: {}", readiness.body);
        let health = if name == "tls.toml" {
            get_over_tls(&gateway.data, "/health", &copy.certificate)
        } else {
            get(&gateway.data, "/health")
        };
        assert_eq!(health.status, 503, "{name}: {health:?}");
        let on_admin_port = get(&gateway.admin, "/readyz/any");
        assert_eq!((on_admin_port.status, on_admin_port.body), (health.status, health.body), "{name}");
        gateway.process.signal("INT");
        assert_eq!(gateway.process.exit_code(), 0, "{name}");
    }
}

#[test]
fn one_ready_route_of_several_is_enough_for_a_load_balancer_on_either_port() {
    let (fleet, folder) = (Fleet::start(&["--step-ms", "60"]), TempDir::new().unwrap());
    let file = folder.path().join("gateway.toml");
    let pools = format!(
        "[[pool]]\nname = \"main\"\nreplicas = {}\n\n[[pool]]\nname = \"dead\"\nreplicas = [\"http://127.0.0.1:1\"]\n",
        fleet.toml()
    );
    let routes =
        "[[route]]\nmodel = \"*\"\npools = [\"main\"]\n\n[[route]]\nmodel = \"other\"\npools = [\"dead\"]\n";
    replace(&file, &format!("{pools}\n{routes}"));
    let mut gateway = Gateway::with_file(&file);
    let any = || get(&gateway.admin, "/readyz/any");
    until("a ready route", || (any().status == 200).then_some(()));
    assert_eq!((any().body, get(&gateway.data, "/health").status), (r#"{"status":"ok"}"#.to_owned(), 200));
    assert_eq!(get(&gateway.admin, "/readyz").status, 503, "every required route");
    let stream = Stream::begin(&gateway.data, &chat("sim", PROMPT, 50));
    gateway.process.signal("TERM");
    let draining = until("the end of readiness", || Some(any()).filter(|answer| answer.status != 200));
    assert_eq!((draining.status, &*draining.body), (503, r#"{"status":"draining"}"#));
    assert!(stream.finish().is_complete_stream());
    assert_eq!(gateway.process.exit_code(), 0);
}

#[test]
fn a_variable_without_a_value_is_none() {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tokenway"));
    command.args(["sim", "--replicas", "1", "--port", "0"]);
    for name in ["TOKENWAY_LOG_LEVEL", "TOKENWAY_LOG_FORMAT", "TOKENWAY_SIM_MODEL"] {
        command.env(name, "");
    }
    Process::spawn(command).out.line_with("ready n=1");
}

#[test]
fn a_bench_that_is_interrupted_shows_what_it_has_measured() {
    let fleet = Fleet::start(&[]);
    let mut bench = Process::start(&["bench", &fleet.urls[0], "--rate", "50", "--duration", "10m", "--json"]);
    let engine = fleet.urls[0].trim_start_matches("http://").to_owned();
    let ended = |line: &str| {
        let is_it = line.starts_with("vllm:request_success_total");
        is_it && line.split(' ').next_back().and_then(|count| count.parse().ok()) > Some(9.0)
    };
    until("some requests have ended", || get(&engine, "/metrics").body.lines().any(ended).then_some(()));
    bench.signal("INT");
    assert_eq!(bench.exit_code(), 1);
    let told: serde_json::Value = serde_json::from_str(&bench.out.rest()).unwrap();
    assert!(told[0]["figures"]["requests"].as_u64().unwrap() > 0, "{told}");
    assert!(bench.err.rest().contains("interrupted: figures of the "));
}

#[test]
fn the_reference_passes_the_check() {
    let (code, out, err) = Process::run(&["check", example("reference.toml").to_str().unwrap()]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("reference.toml: ok\n  pool llama-8b-r1"), "{out}");
}

#[test]
fn a_stream_comes_through_is_measured_and_is_logged_without_its_secrets() {
    let fleet = Fleet::start(&[]);
    let mut gateway = Gateway::in_front_of(&fleet, &["--log-level", "trace"]);
    let answer = post_chat(&gateway.data, &chat("sim", PROMPT, 8), KEY);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.is_complete_stream(), "{answer:?}");
    let line = gateway.process.out.line_with("tokenway.outcome");
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["tokenway.outcome"], "ok");
    assert_eq!(line["gen_ai.usage.output_tokens"], 8);
    assert_eq!(gateway.metric("tokenway_time_to_first_token_seconds_count"), 1.0);
    gateway.process.signal("INT");
    assert_eq!(gateway.process.exit_code(), 0);
    for (log, text) in [("stdout", gateway.process.out.rest()), ("stderr", gateway.process.err.rest())] {
        assert!(!text.contains(PROMPT), "the prompt is in {log}: {text}");
        assert!(!text.contains(KEY), "the key is in {log}: {text}");
    }
}

#[test]
fn a_tls_handshake_at_a_port_in_clear_text_is_logged_once() {
    let fleet = Fleet::start(&[]);
    let mut gateway = Gateway::in_front_of(&fleet, &[]);
    for _ in 0..3 {
        let mut client = TcpStream::connect(&gateway.data).unwrap();
        // A record of a handshake with the beginning of a ClientHello.
        client.write_all(&[22, 3, 1, 0, 5, 1, 0, 0, 1, 3, b'\r', b'\n', b'\r', b'\n']).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    }
    gateway.process.err.line_with("a client speaks TLS to a port in clear text");
    gateway.process.signal("INT");
    assert_eq!(gateway.process.exit_code(), 0);
    assert_eq!(gateway.process.err.rest().matches("speaks TLS").count(), 1);
}

#[test]
fn clients_ask_for_the_served_name_and_the_replicas_get_their_own() {
    let fleet = Fleet::start(&["--model", "vendor/real-name"]);
    let gateway = Gateway::in_front_of(&fleet, &["--served-model-name", "alias"]);
    // A replica answers 404 to any name but its own.
    let answer = post_chat(&gateway.data, &chat("alias", PROMPT, 2), KEY);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(
        answer.body.contains(r#""model":"vendor/real-name""#) && answer.is_complete_stream(),
        "{answer:?}"
    );
    let answer = post_chat(&gateway.data, &chat("vendor/real-name", PROMPT, 2), KEY);
    assert_eq!(answer.status, 404, "{answer:?}");
    assert!(answer.body.contains(r#""code":"model_not_found""#), "{answer:?}");
}

#[test]
fn a_changed_file_is_taken_a_broken_one_is_refused_and_sighup_reads_again() {
    let fleet = Fleet::start(&[]);
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("gateway.toml");
    let named = |model: &str| {
        format!(
            "[[pool]]\nname = \"main\"\nreplicas = {}\n\n[[route]]\nname = \"chat\"\nmodel = \"{model}\"\n\
             upstream_model = \"sim\"\n",
            fleet.toml()
        )
    };
    let status = |gateway: &Gateway, model: &str| post_chat(&gateway.data, &chat(model, "hi", 1), KEY).status;
    replace(&file, &named("first-name"));
    let gateway = Gateway::ready_with(&file);
    assert_eq!((status(&gateway, "first-name"), status(&gateway, "second-name")), (200, 404));

    replace(&file, &named("second-name"));
    gateway.process.err.line_with("configuration reloaded");
    assert_eq!((status(&gateway, "first-name"), status(&gateway, "second-name")), (404, 200));
    assert_eq!(gateway.metric(LAST_RELOAD), 1.0);

    replace(&file, &named("third-name").replace("upstream_model", "upstream_modle"));
    let refusal = gateway.process.err.line_with("configuration refused");
    assert!(refusal.contains("gateway.toml:8:1: "), "{refusal}");
    assert_eq!((status(&gateway, "second-name"), status(&gateway, "third-name")), (200, 404));
    assert_eq!(gateway.metric(LAST_RELOAD), 0.0);

    gateway.process.signal("HUP");
    gateway.process.err.lines_with("configuration refused", 2);
    replace(&file, &named("third-name"));
    gateway.process.err.lines_with("configuration reloaded", 2);
    assert_eq!(gateway.metric(LAST_RELOAD), 1.0);
    gateway.process.signal("HUP");
    gateway.process.err.lines_with("configuration reloaded", 3);
    assert_eq!((status(&gateway, "second-name"), status(&gateway, "third-name")), (404, 200));

    let reload = || {
        let asked = request("POST", "/api/reload", "x-tokenway-admin: 1\r\n", "");
        exchange(connect(&gateway.admin).unwrap(), &asked).status
    };
    assert_eq!(reload(), 200);
    gateway.process.err.lines_with("configuration reloaded", 4);
    replace(&file, "[server]\nlisten = 1\n");
    gateway.process.err.lines_with("configuration refused", 3);
    assert_eq!(reload(), 422);
    gateway.process.err.lines_with("configuration refused", 4);
}

#[test]
fn a_refused_configuration_is_taken_once_the_files_it_names_are_there() {
    let folder = TempDir::new().unwrap();
    let (file, key) = (folder.path().join("gateway.toml"), folder.path().join("key"));
    let pool = |name: &str| {
        format!("[[pool]]\nname = \"{name}\"\nreplicas = [\"http://127.0.0.1:{}\"]\n", DeadPort::new().port())
    };
    replace(&file, &pool("one"));
    let gateway = Gateway::with_file(&file);
    replace(&file, &format!("{}engine_api_key = \"file:key\"\n", pool("two")));
    gateway.process.err.line_with("configuration refused");
    replace(&key, "secret");
    gateway.process.err.line_with("configuration reloaded");
    // Away while the configuration changes, and back as it was.
    let refused = gateway.process.err.count("configuration refused");
    std::fs::remove_file(&key).unwrap();
    replace(&file, &format!("{}engine_api_key = \"file:key\"\n", pool("three")));
    gateway.process.err.lines_with("configuration refused", refused + 1);
    replace(&key, "secret");
    gateway.process.err.lines_with("configuration reloaded", 2);
}

#[test]
fn a_reload_that_drops_the_last_tenant_warns_that_the_port_is_open() {
    let fleet = Fleet::start(&[]);
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("gateway.toml");
    let pool = format!("[[pool]]\nname = \"main\"\nreplicas = {}\n", fleet.toml());
    let tenant = format!("[[tenant]]\nname = \"t\"\nkey_sha256 = [\"{}\"]\n", "0".repeat(64));
    replace(&file, &format!("{pool}{tenant}"));
    let gateway = Gateway::ready_with(&file);
    replace(&file, &pool);
    let warning = gateway.process.err.line_with("no [[tenant]] asks for a key");
    assert!(warning.contains("WARN") && warning.contains("127.0.0.1"), "{warning}");
    gateway.process.err.line_with("configuration reloaded");
    gateway.process.signal("HUP");
    gateway.process.err.lines_with("configuration reloaded", 2);
    assert_eq!(gateway.process.err.count("no [[tenant]] asks for a key"), 1, "open before, it is no change");
}

#[test]
fn wrong_command_lines_end_with_2_and_say_what_is_wrong() {
    let cases: [(&[&str], &str); 6] = [
        (&["serve", "--config", "a.toml", "--upstream", "http://a:1"], "--config"),
        (&["serve"], "nothing to serve"),
        (&["serve", "--upstream", "http://a:1", "--log-level", "loud"], "\"loud\" is not a log level"),
        (&["serve", "--upstream", "http://a:1", "--listen", "80"], "--listen"),
        (&["replay", "trace.jsonl"], "--config"),
        (&["top"], "<URL>"),
    ];
    for (args, said) in cases {
        let (code, out, err) = Process::run(args);
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}: {err}");
        assert!(err.contains(said), "{args:?}: {err}");
    }
}

#[test]
fn a_bad_file_is_shown_with_place_line_and_hint_by_check_and_by_serve() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("gateway.toml");
    replace(&file, "[[pool]]\nname = \"main\"\nreplicsa = [\"http://127.0.0.1:1\"]\n");
    let file = file.to_str().unwrap();
    for args in [vec!["check", file], vec!["serve", "--config", file]] {
        let (code, out, err) = Process::run(&args);
        assert_eq!((code, out.as_str()), (1, ""), "{args:?}: {err}");
        for part in [&format!("{file}:3:1: "), "replicsa = [\"http://127.0.0.1:1\"]", "hint: ", "replicas"] {
            assert!(err.contains(part), "{args:?} without {part:?}: {err}");
        }
    }
}

#[test]
fn a_sighup_in_the_middle_of_the_start_is_a_reload_after_it() {
    let folder = TempDir::new().unwrap();
    let port = DeadPort::new().port();
    // The start waits for whoever writes its file of keys.
    let keys = folder.path().join(format!("keys-{port}.json"));
    assert!(std::process::Command::new("mkfifo").arg(&keys).status().unwrap().success());
    let (admin, file) = (format!("127.0.0.1:{port}"), example("minimal.toml"));
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tokenway"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", &admin, "--config"]).arg(file);
    command.env("STATE_DIRECTORY", folder.path());
    let mut gateway = Process::spawn(command);
    let opening = std::thread::spawn(move || std::fs::File::options().write(true).open(keys).unwrap());
    until("the start reads its keys", || opening.is_finished().then_some(()));
    gateway.signal("HUP");
    opening.join().unwrap().write_all(br#"{"version":1,"keys":[]}"#).unwrap();
    gateway.err.line_with("configuration reloaded");
    gateway.signal("INT");
    assert_eq!(gateway.exit_code(), 0);
}

#[test]
fn a_configuration_may_come_from_a_pipe() {
    let folder = TempDir::new().unwrap();
    let pipe = folder.path().join("gateway.toml");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[drift]\nstate = false\n\
         [[pool]]\nname = \"p\"\nreplicas = [\"http://127.0.0.1:{}\"]\n",
        DeadPort::new().port()
    );
    let written = pipe.clone();
    let writing = std::thread::spawn(move || std::fs::write(written, text).unwrap());
    let gateway = Gateway::with_file(&pipe);
    writing.join().unwrap();
    gateway.process.err.line_with("tokenway is listening");
}

#[test]
fn a_removed_tls_section_serves_on_until_a_restart_and_blocks_no_reload() {
    let copy = Example::copy("tls.toml");
    let gateway = Gateway::with_file(&copy.file);
    let folder = copy.file.parent().unwrap();
    for file in ["server.pem", "server.key"] {
        std::fs::remove_file(folder.join(file)).unwrap();
    }
    let text = std::fs::read_to_string(&copy.file).unwrap();
    let without: Vec<&str> = text.lines().filter(|line| !line.starts_with("tls = ")).collect();
    assert!(without.len() < text.lines().count(), "{text}");
    replace(&copy.file, &without.join("\n"));
    let reload = || {
        let asked = request("POST", "/api/reload", "x-tokenway-admin: 1\r\n", "");
        exchange(connect(&gateway.admin).unwrap(), &asked)
    };
    for n in 1..3 {
        let answer = reload();
        assert_eq!(answer.status, 200, "{n}: {answer:?}");
        assert!(
            answer.body.contains("server.tls (on or off) changed and needs a restart"),
            "{n}: {answer:?}"
        );
        assert_eq!(get_over_tls(&gateway.data, "/health", &copy.certificate).status, 503, "{n}");
    }
    // The section is back, and its files are not: those a reload has to read.
    replace(&copy.file, &text);
    let answer = reload();
    assert!(answer.status == 422 && !answer.body.is_empty(), "{answer:?}");
}

#[test]
fn a_reload_by_either_way_begins_an_access_log_that_was_moved_away() {
    let fleet = Fleet::start(&[]);
    let folder = TempDir::new().unwrap();
    let (file, log) = (folder.path().join("gateway.toml"), folder.path().join("access.log"));
    let pool = format!("[[pool]]\nname = \"main\"\nreplicas = {}\n", fleet.toml());
    replace(&file, &format!("{pool}[telemetry]\naccess_log = {log:?}\n"));
    let gateway = Gateway::ready_with(&file);
    for way in ["signal", "port"] {
        std::fs::rename(&log, folder.path().join(way)).unwrap();
        match way {
            "signal" => gateway.process.signal("HUP"),
            _ => {
                let asked = request("POST", "/api/reload", "x-tokenway-admin: 1\r\n", "");
                assert_eq!(exchange(connect(&gateway.admin).unwrap(), &asked).status, 200);
            }
        }
        until("the log is there again", || log.exists().then_some(()));
    }
}

#[test]
fn an_access_log_that_cannot_be_opened_is_named() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("gateway.toml");
    // Longer than a name can be; a directory that is missing is found by `check`.
    let log = format!("./{}", "l".repeat(300));
    let pool = "[[pool]]\nname = \"main\"\nreplicas = [\"http://127.0.0.1:1\"]\n";
    replace(&file, &format!("{pool}[telemetry]\naccess_log = {log:?}\n"));
    let flags = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
    let (code, _, err) = Process::run(&[&["serve", "--config", file.to_str().unwrap()][..], &flags].concat());
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("telemetry.access_log: ") && err.contains("ll: File name too long"), "{err}");
}

#[test]
fn a_port_in_use_ends_it_with_the_address_and_what_to_do() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let upstream = ["serve", "--upstream", "http://127.0.0.1:1"];
    for (flag, free, key) in
        [("--listen", "--admin-listen", "server.listen"), ("--admin-listen", "--listen", "admin.listen")]
    {
        let (code, _, err) = Process::run(&[&upstream[..], &[flag, &taken, free, "127.0.0.1:0"]].concat());
        assert_eq!(code, 1, "{err}");
        assert!(err.contains(&format!("cannot listen on {taken} ({key}): ")), "{err}");
        assert!(err.contains("stop it or choose another address"), "{err}");
    }
}

#[test]
fn a_token_that_reads_changes_nothing_and_the_port_of_the_metrics_needs_none() {
    let flags = ["--upstream", "http://127.0.0.1:1", "--admin-metrics-listen", "127.0.0.1:0"];
    let tokens = ["--admin-token", "s3cret", "--admin-read-token", "look"];
    let gateway = Gateway::start(&[&flags[..], &tokens].concat());
    let ask = |method: &str, path: &str, token: &str| admin(&gateway.admin, method, path, token);
    for path in ["/metrics", "/api/v1/fleet", "/api/v1/config"] {
        assert_eq!(get(&gateway.admin, path).status, 401, "{path}");
        assert_eq!(ask("GET", path, "look").status, 200, "{path}");
    }
    let changes =
        ["drain", "reload", "log-level", "replicas", "warm-up", "drift/mute", "drift/1/acknowledge"];
    for path in changes.iter().chain(&["canaries/default/promote"]) {
        let answer = ask("POST", &format!("/api/v1/{path}"), "look");
        assert_eq!(answer.status, 403, "{path}: {answer:?}");
        assert!(
            answer.body.contains(r#""code":"read_only","message":"this token may only read"#),
            "{answer:?}"
        );
    }
    let config = ask("GET", "/api/v1/config", "look").body;
    assert!(!config.contains("s3cret") && !config.contains("look"), "{config}");
    assert_eq!(ask("POST", "/api/v1/reload", "s3cret").status, 200);

    let started = gateway.process.err.line_with("tokenway is listening");
    let started: serde_json::Value = serde_json::from_str(&started).unwrap();
    let metrics = started["metrics"].as_str().unwrap();
    let metrics = metrics.trim_start_matches("http://").trim_end_matches("/metrics");
    assert!(get(metrics, "/metrics").body.contains("tokenway_build_info"));
    let health = ["/healthz", "/readyz"].map(|path| get(metrics, path).status);
    assert_eq!(health, [200, 503]);
    for path in ["/", "/api/v1/fleet", "/api/v1/config", "/page.js"] {
        assert_eq!(admin(metrics, "GET", path, "s3cret").status, 404, "{path}");
    }
    assert_eq!(admin(metrics, "POST", "/api/v1/drain", "s3cret").status, 404);
}

#[test]
fn tokens_by_flag_are_checked_at_start() {
    let upstream = ["serve", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1"];
    for (flags, expected) in [
        (&["--admin-listen", "0.0.0.0:0"][..], "there is no admin token"),
        (
            &["--admin-token", "env:NO_SUCH_VARIABLE"],
            "--admin-token: environment variable NO_SUCH_VARIABLE is not set",
        ),
        (&["--admin-read-token", ""], "--admin-read-token: it is empty"),
        (
            &["--admin-token", "a", "--admin-read-token", "a"],
            "--admin-read-token: token and read_token are the same",
        ),
    ] {
        let (code, _, err) = Process::run(&[&upstream[..], flags].concat());
        assert!(code == 1 && err.contains(expected), "{flags:?}: {err}");
    }
}

#[test]
fn sigterm_lets_a_stream_end_and_is_not_ready_meanwhile() {
    let fleet = Fleet::start(&["--step-ms", "60"]);
    let folder = TempDir::new().unwrap();
    let mut gateway = draining(&fleet, folder.path(), "100ms");
    let stream = Stream::begin(&gateway.data, &chat("sim", PROMPT, 50));
    gateway.process.signal("TERM");
    // The admin port ends after the last stream: its answer comes while this one runs.
    let readiness = until("the end of readiness", || {
        let answer = get(&gateway.admin, "/readyz");
        (answer.status != 200).then_some(answer)
    });
    assert_eq!(readiness.status, 503);
    assert!(readiness.body.contains("draining"), "{readiness:?}");
    let answer = stream.finish();
    assert!(answer.is_complete_stream(), "{answer:?}");
    assert_eq!(gateway.process.exit_code(), 0);
    let line = gateway.process.out.rest();
    assert!(line.contains(r#""tokenway.outcome":"ok""#), "{line}");
}

#[test]
fn a_second_signal_ends_at_once() {
    let fleet = Fleet::start(&["--step-ms", "100"]);
    let folder = TempDir::new().unwrap();
    let mut gateway = draining(&fleet, folder.path(), "10m");
    let stream = Stream::begin(&gateway.data, &chat("sim", PROMPT, 6_000));
    gateway.process.signal("TERM");
    gateway.process.err.line_with("draining; a second signal ends at once");
    gateway.process.signal("TERM");
    assert_eq!(gateway.process.exit_code(), 0);
    let answer = stream.finish();
    assert!(!answer.is_complete_stream(), "an incomplete answer looks complete: {answer:?}");
}

#[test]
fn a_renewed_certificate_is_loaded_without_a_signal_and_an_expired_one_is_told() {
    let copy = Example::copy("tls.toml");
    let gateway = Gateway::with_file(&copy.file);
    gateway.process.err.line_with("tokenway is listening");
    assert_eq!(gateway.process.err.count("has expired"), 0);
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    (params.not_before, params.not_after) =
        (rcgen::date_time_ymd(2020, 1, 1), rcgen::date_time_ymd(2021, 1, 1));
    let folder = copy.file.parent().unwrap();
    std::fs::write(folder.join("server.key"), key.serialize_pem()).unwrap();
    std::fs::write(folder.join("server.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    assert!(gateway.process.err.line_with("this certificate has expired").contains("server.pem"));
}

/// The screen of `tokenway top` on a terminal of its own: the terminal's other end.
fn top(admin: &str) -> (std::process::Child, std::fs::File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{Winsize, tcsetwinsize};
    // A child that held this end, too, would keep the terminal.
    let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&screen).unwrap();
    unlockpt(&screen).unwrap();
    tcsetwinsize(&screen, Winsize { ws_row: 30, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let name = ptsname(&screen, Vec::new()).unwrap().into_string().unwrap();
    let terminal = std::fs::OpenOptions::new().read(true).write(true).open(name).unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tokenway"));
    command.args(["top", &format!("http://{admin}")]);
    command.stdin(terminal.try_clone().unwrap()).stdout(terminal).stderr(std::process::Stdio::null());
    let child = command.spawn().unwrap();
    let mut screen = std::fs::File::from(screen);
    let (mut seen, mut part) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&seen).contains("Findings") {
        let read = std::io::Read::read(&mut screen, &mut part).unwrap();
        seen.extend_from_slice(&part[..read]);
    }
    (child, screen)
}

#[test]
fn top_ends_with_its_terminal_and_on_every_signal() {
    let fleet = Fleet::start(&[]);
    let gateway = Gateway::in_front_of(&fleet, &[]);
    for ends in ["", "TERM", "INT", "HUP"] {
        let (mut child, screen) = top(&gateway.admin);
        let mut screen = Some(screen);
        if ends.is_empty() {
            screen = None;
        } else {
            let pid = child.id().to_string();
            assert!(std::process::Command::new("kill").args(["-s", ends, &pid]).status().unwrap().success());
        }
        // What it draws last has to go somewhere.
        let drain = screen
            .map(|mut screen| std::thread::spawn(move || std::io::copy(&mut screen, &mut std::io::sink())));
        until("the end of top", || child.try_wait().unwrap());
        drop(drain);
    }
}

#[test]
fn a_stderr_that_nobody_reads_holds_up_neither_requests_nor_the_end() {
    let fleet = Fleet::start(&[]);
    let mut gateway = Gateway::in_front_of(&fleet, &["--log-level", "trace,hyper=trace,mio=trace"]);
    gateway.process.err.hold();
    // Some hundred lines each: far more than a pipe holds.
    for _ in 0..40 {
        assert_eq!(post_chat(&gateway.data, &chat("sim", PROMPT, 2), KEY).status, 200);
    }
    gateway.process.signal("INT");
    assert_eq!(gateway.process.exit_code(), 0);
}

#[test]
fn the_demo_prints_its_addresses_and_tables_and_ends_by_itself() {
    let ports = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
    let (code, out, err) = Process::run(&[&["demo", "--duration", "3s"], &ports[..]].concat());
    assert_eq!(code, 0, "{err}");
    for address in [
        "page      http://127.0.0.1:", "gateway   http://127.0.0.1:", "admin     http://127.0.0.1:",
        "replica 3 http://127.0.0.1:",
    ] {
        assert!(out.contains(address), "{out}");
    }
    assert!(out.matches("\nclients: sent ").count() >= 2, "{out}");
    assert!(out.contains("\nreplica               requests"), "{out}");
}

/// The first command of the README, as it stands there.
#[test]
fn the_readme_begins_with_the_demo() {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let (_, block) = readme.split_once("```sh\n").unwrap();
    let first = block.lines().next().unwrap();
    let (command, _) = first.split_once('#').unwrap();
    let args: Vec<&str> =
        command.trim().strip_prefix("cargo run --release --locked -- ").unwrap().split(' ').collect();
    let ports = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--duration", "2s"];
    let (code, out, err) = Process::run(&[&args[..], &ports[..]].concat());
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("\nclients: sent "), "{out}");
}

#[test]
fn the_demo_tells_each_act_with_figures_before_and_after() {
    let ports = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
    let mut demo = Process::start(&[&["demo", "--story"], &ports[..]].concat());
    demo.out.line_with("1 of 4: another policy");
    demo.signal("INT");
    assert_eq!(demo.exit_code(), 0, "{:?}", demo.out.lines());
}

#[test]
fn schema_completions_and_check_are_for_tools() {
    let (code, out, _) = Process::run(&["schema"]);
    let schema: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &schema["properties"]["pool"]["type"]), (0, &"array".into()));
    let (code, out, _) = Process::run(&["completions", "bash"]);
    assert!(code == 0 && out.contains("_tokenway"), "{out}");
    let fleet = Fleet::start(&[]);
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("gateway.toml");
    replace(&file, &format!("[[pool]]\nname = \"p\"\nreplicas = {}\n", fleet.toml()));
    let (code, out, err) = Process::run(&["check", "--online", "--json", file.to_str().unwrap()]);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &report["replicas"][1]["models"][0]), (0, &"sim".into()), "{out}{err}");
    // A server that is no engine: `serve` would send it nothing.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    std::thread::spawn(move || {
        for connection in other.incoming().take(9) {
            let mut connection = connection.unwrap();
            let _ = connection.read(&mut [0; 4096]);
            let _ = connection
                .write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        }
    });
    replace(&file, &format!("[[pool]]\nname = \"p\"\nreplicas = [\"http://{address}\"]\n"));
    let (code, out, _) = Process::run(&["check", "--online", file.to_str().unwrap()]);
    assert!(code == 1 && out.contains("/health answered 404: it gets no traffic"), "{code}: {out}");
}

#[test]
fn top_and_explain_ask_a_running_gateway() {
    let fleet = Fleet::start(&[]);
    let gateway = Gateway::in_front_of(&fleet, &[]);
    assert_eq!(post_chat(&gateway.data, &chat("sim", PROMPT, 4), KEY).status, 200);
    let (code, out, err) = Process::run(&["top", &gateway.admin]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("Replicas (2)\n") && out.contains("  ready"), "{out}");
    let (_, out, _) = Process::run(&["top", "--json", &gateway.admin]);
    let seen: serde_json::Value = serde_json::from_str(&out).unwrap();
    let id = seen["requests"]["requests"][0]["request_id"].as_str().unwrap();
    let (code, out, err) = Process::run(&["explain", &gateway.admin, id]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("Why replica 127.0.0.1:"), "{out}");
    assert!(out.contains("Where the time went"), "{out}");
    let trace = out.lines().find_map(|line| line.strip_prefix("trace ")).unwrap();
    let (code, by_trace, _) = Process::run(&["explain", &gateway.admin, trace]);
    assert_eq!((code, by_trace), (0, out));
    let (code, _, err) = Process::run(&["explain", &gateway.admin, "no-such-request"]);
    assert!(code == 1 && err.contains("no request \"no-such-request\" is kept"), "{err}");
    let (code, _, err) = Process::run(&["top", &gateway.data]);
    assert!(code == 1 && err.contains("no admin port"), "{err}");
}

/// A copy of an example whose replicas are ports that refuse, and the files that it names.
struct Example {
    file: PathBuf,
    certificate: CertificateDer<'static>,
    _folder: TempDir,
    _dead: Vec<DeadPort>,
}

impl Example {
    fn copy(name: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let mut text = std::fs::read_to_string(example(name)).unwrap();
        let mut dead = Vec::new();
        for port in ["8001", "8002", "8003"] {
            let refusing = DeadPort::new();
            text = text.replace(&format!("127.0.0.1:{port}"), &format!("127.0.0.1:{}", refusing.port()));
            dead.push(refusing);
        }
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(folder.path().join("server.pem"), made.cert.pem()).unwrap();
        std::fs::write(folder.path().join("server.key"), made.signing_key.serialize_pem()).unwrap();
        Self { file, certificate: made.cert.der().clone(), _folder: folder, _dead: dead }
    }
}

fn get_over_tls(authority: &str, path: &str, trusted: &CertificateDer<'static>) -> Answer {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let session = ClientConnection::new(Arc::new(config), name).unwrap();
    let connection = StreamOwned::new(session, connect(authority).unwrap());
    exchange(connection, &request("GET", path, "", ""))
}

/// A ready gateway with a given delay between SIGTERM and refusing.
fn draining(fleet: &Fleet, folder: &Path, delay: &str) -> Gateway {
    let file = folder.join("gateway.toml");
    let pool = format!("[[pool]]\nname = \"main\"\nreplicas = {}\n", fleet.toml());
    replace(&file, &format!("[server]\ndrain_delay = \"{delay}\"\n\n{pool}\n[[route]]\nmodel = \"*\"\n"));
    Gateway::ready_with(&file)
}

const PROMPT: &str = "canary-prompt-5417";
const KEY: &str = "canary-key-8823";
const LAST_RELOAD: &str = "tokenway_config_last_reload_successful";
