//! `[telemetry.content]`: whose prompts and answers are written down, and what is left out of them.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokenway::config::{Config, Tenant};

use crate::support::replica::Replica;
use crate::support::{Gateway, config, quiet, until, wire};

const PATH: &str = "/v1/chat/completions";

/// A gateway whose trail is written into a folder of the test.
struct Trail {
    gateway: Gateway,
    file: PathBuf,
    _folder: TempDir,
}

/// Tenants `agreed` and `silent`, of which the first has opted in; routes `*`, which has, and `private`, which has not.
fn config_of(replica: &Replica, keys: &str) -> (Config, PathBuf, TempDir) {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("content.jsonl");
    let mut config = config::of(&[replica]);
    config.routes[0].content = true;
    config.routes.push(config::route("private", &[0]));
    let tenant = |name: &str, content| {
        let key_digests = vec![Sha256::digest(name).into()];
        Tenant { name: name.into(), key_digests, content, ..Tenant::default() }
    };
    config.tenants = vec![tenant("agreed", true), tenant("silent", false)];
    let text = format!(
        "[telemetry.content]\nfile = {}\n{keys}\n[[pool]]\nname = \"p\"\nreplicas = [\"http://127.0.0.1:1\"]\n",
        json!(file)
    );
    config.telemetry.content = quiet::checked(&text).telemetry.content;
    (config, file, folder)
}

impl Trail {
    async fn start(replica: &Replica, keys: &str) -> Self {
        let (config, file, folder) = config_of(replica, keys);
        Self { gateway: Gateway::start(config).await, file, _folder: folder }
    }

    /// Asks as a tenant, and waits for the end of the request.
    async fn ask(&self, tenant: &str, body: &str) -> u16 {
        let mut client = self.gateway.client().await;
        client.post(PATH, &[("authorization", &*format!("Bearer {tenant}"))], body.as_bytes()).await;
        let status = client.reply().await.status();
        self.gateway.idle().await;
        status
    }

    /// What has been written, once there is so much of it.
    async fn entries(&self, count: usize) -> Vec<Value> {
        until("entries are written", || lines(&self.file).len() >= count).await;
        lines(&self.file)
    }
}

fn lines(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    // The last line may be half written.
    text.split_inclusive('\n')
        .filter_map(|line| serde_json::from_str(line.strip_suffix('\n')?).ok())
        .collect()
}

fn prompt(model: &str, text: &str, is_stream: bool) -> String {
    json!({ "model": model, "stream": is_stream, "messages": [{ "role": "user", "content": text }] })
        .to_string()
}

#[tokio::test]
async fn only_tenants_and_routes_that_have_opted_in_are_written_down_and_patterns_are_left_out() {
    let replica = Replica::start().await;
    let trail = Trail::start(&replica, r#"redact = ["[\\w.]+@[\\w.]+", "\\d{16}"]"#).await;
    // No event has the whole address.
    replica.always(wire::chat_stream(&["write to an", "n@x", ".org now"]));
    assert_eq!(trail.ask("silent", &prompt("tiny", "a silent secret", true)).await, 200);
    assert_eq!(trail.ask("agreed", &prompt("private", "a private secret", true)).await, 200);
    assert_eq!(trail.ask("agreed", &prompt("tiny", "my card is 4111111111111111", true)).await, 200);
    replica.always(wire::json(200, r#"{"id":"c","choices":[{"message":{"content":"ann@x.org"}}]}"#));
    assert_eq!(trail.ask("agreed", &prompt("tiny", "again", false)).await, 200);
    let entries = trail.entries(2).await;
    assert_eq!(entries.len(), 2, "{entries:?}");
    let [stream, whole] = [&entries[0], &entries[1]];
    assert_eq!(stream["request"]["messages"][0]["content"], "my card is [redacted]");
    assert_eq!(stream["answer"], json!([{ "content": "write to [redacted] now" }]));
    for (name, expected) in [
        ("tenant", json!("agreed")),
        ("route", json!("*")),
        ("model", json!("tiny")),
        ("status", json!(200)),
        ("outcome", json!("ok")),
        ("error", Value::Null),
        ("is_request_cut", json!(false)),
        ("is_answer_cut", json!(false)),
    ] {
        assert_eq!(stream[name], expected, "{name}");
    }
    assert_eq!(whole["answer"]["choices"][0]["message"]["content"], "[redacted]");
    let written = std::fs::read_to_string(&trail.file).unwrap();
    assert!(!written.contains("secret") && !written.contains("4111") && !written.contains('@'), "{written}");
    let mode = std::fs::metadata(&trail.file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let page = trail.gateway.app.gateway.observer.metrics().render(&[]);
    assert!(!page.contains("4111") && !page.contains("ann"), "no content in metrics");
}

#[tokio::test]
async fn a_refusal_and_a_broken_stream_are_written_down_with_what_was_answered() {
    use crate::support::replica::Step;
    let replica = Replica::start().await;
    let trail = Trail::start(&replica, "").await;
    replica.always(wire::json(400, r#"{"error":{"message":"too long"}}"#));
    assert_eq!(trail.ask("agreed", &prompt("tiny", "x", false)).await, 400);
    replica.always(wire::begun_then("half", [Step::Close]));
    trail.ask("agreed", &prompt("tiny", "x", true)).await;
    let entries = trail.entries(2).await;
    assert_eq!(entries[0]["answer"]["error"]["message"], "too long");
    assert_eq!((&entries[0]["outcome"], &entries[0]["status"]), (&json!("client_error"), &json!(400)));
    assert_eq!(entries[1]["answer"], json!([{ "content": "half" }]));
    assert_eq!(entries[1]["outcome"], "failed");
}

#[tokio::test]
async fn an_entry_is_cut_and_a_secret_at_the_cut_is_still_left_out() {
    let replica = Replica::start().await;
    let trail = Trail::start(&replica, "max_entry = \"1KiB\"\nredact = [\"\\\\d{16}\"]").await;
    let long = "x".repeat(2000);
    replica.always(wire::chat_stream(&[&long, &long]));
    // The number begins before the cut and ends behind it.
    let head = prompt("tiny", "", true).find("\"content\":\"").unwrap() + "\"content\":\"".len();
    let text = format!("{}4111111111111111{long}", "y".repeat(1024 - head - 8));
    assert_eq!(trail.ask("agreed", &prompt("tiny", &text, true)).await, 200);
    let entry = trail.entries(1).await.remove(0);
    assert_eq!((&entry["is_request_cut"], &entry["is_answer_cut"]), (&json!(true), &json!(true)));
    let request = entry["request"].as_str().unwrap();
    assert!(request.len() <= 1024 && !request.contains("411"), "{request}");
    assert_eq!(entry["answer"][0]["content"].as_str().map(str::len), Some(1024));
}

#[tokio::test]
async fn files_are_bounded_in_size_and_number() {
    let replica = Replica::start().await;
    let trail = Trail::start(&replica, "max_file = \"4KiB\"\nfiles = 3").await;
    for n in 0..40 {
        assert_eq!(
            trail.ask("agreed", &prompt("tiny", &format!("{n} {}", "x".repeat(500)), true)).await,
            200
        );
    }
    let numbered = |n: u32| trail.file.with_file_name(format!("content.jsonl.{n}"));
    let is_last_written =
        || lines(&trail.file).last().is_some_and(|line| line["request"].to_string().contains("39 x"));
    until("the last one is written", is_last_written).await;
    for file in [trail.file.clone(), numbered(1), numbered(2)] {
        let size = std::fs::metadata(&file).unwrap().len();
        assert!(size <= 4096 && !lines(&file).is_empty(), "{size} {}", file.display());
    }
    assert!(!numbered(3).exists());
}

#[tokio::test]
async fn a_disk_that_hangs_holds_up_no_request_and_what_is_lost_is_counted() {
    let replica = Replica::start().await;
    replica.always(wire::json(200, r#"{"id":"c","choices":[]}"#));
    let (mut config, file, _folder) = config_of(&replica, "");
    // A pipe that is never read takes 64 KiB and then nothing.
    let made = std::process::Command::new("mkfifo").arg(&file).status().unwrap();
    assert!(made.success());
    let keeps_open = std::fs::OpenOptions::new().read(true).write(true).open(&file).unwrap();
    config.telemetry.content.as_mut().unwrap().file = file.clone();
    let trail = Trail { gateway: Gateway::start(config).await, file, _folder };
    let body = prompt("tiny", &"x".repeat(60_000), false);
    let dropped = || {
        let page = trail.gateway.app.gateway.observer.metrics().render(&[]);
        let series = "tokenway_content_dropped_total{reason=\"queue_full\"} ";
        let line = page.lines().find_map(|line| line.strip_prefix(series));
        line.unwrap().parse::<f64>().unwrap()
    };
    assert_eq!(dropped(), 0.0);
    let asked = async {
        while dropped() == 0.0 {
            assert_eq!(trail.ask("agreed", &body).await, 200);
        }
    };
    tokio::time::timeout(Duration::from_secs(60), asked)
        .await
        .expect("some are dropped, and no request waits");
    drop(keeps_open);
}
