//! `[telemetry.content]`: whose prompts and answers are written down, and what is left out of them.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use prost::Message as _;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokenway::config::{Config, Otlp, OtlpProtocol, OtlpTarget, Tenant};

use crate::support::replica::{Probes, Replica, Step};
use crate::support::{FORM, Gateway, PATH, config, quiet, until, wire};

/// So many digits that no time, count or identifier beside them has the same by chance.
const CARD: &str = "4111111111111111";

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
    let tenant = |name: &str, content| Tenant { content, ..config::tenant(name, name) };
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
        self.ask_at("POST", PATH, tenant, "application/json", body).await
    }

    async fn ask_at(&self, method: &str, path: &str, tenant: &str, kind: &str, body: &str) -> u16 {
        let headers = [("authorization", &*format!("Bearer {tenant}")), ("content-type", kind)];
        let status = self.gateway.ask(method, path, &headers, body).await.status();
        self.gateway.idle().await;
        status
    }

    /// Entries that were lost.
    fn dropped(&self, reason: &str) -> f64 {
        self.gateway.sum("tokenway_content_dropped_total", &[&format!("reason=\"{reason}\"")])
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
    assert_eq!(trail.ask("agreed", &prompt("tiny", &format!("my card is {CARD}"), true)).await, 200);
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
    assert!(!written.contains("secret") && !written.contains(CARD) && !written.contains('@'), "{written}");
    let mode = std::fs::metadata(&trail.file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let page = trail.gateway.page();
    assert!(!page.contains(CARD) && !page.contains("ann@"), "no content in metrics");
}

/// Answers with these pieces of a body of this type, each by itself.
fn pieces(kind: &str, pieces: &[String]) -> Vec<Step> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n");
    let mut script = vec![Step::Raw(head.into_bytes())];
    script.extend(pieces.iter().map(wire::event));
    script.push(Step::End);
    script
}

#[tokio::test]
async fn a_secret_in_pieces_is_left_out_of_every_stream_also_of_one_that_is_not_understood() {
    let replica = Replica::start().await;
    let form = "--B\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\ntiny\r\n--B--\r\n";
    let (json, sse) = ("application/json", "text/event-stream");
    let stored = r#"{"model":"tiny","input":"x","store":true}"#;
    let of = |event: &dyn Fn(&str) -> String| ["card 41111", "111111", "11111 end"].map(event);
    let mut chat = of(&|text| wire::content(text)).to_vec();
    chat.extend([wire::FINISH.to_owned(), wire::DONE.to_owned()]);
    let deltas =
        of(&|text| format!("data: {{\"type\":\"response.output_text.delta\",\"delta\":\"{text}\"}}\n\n"));
    let unknown = of(&|text| format!("data: {{\"piece\":\"{text}\"}}\n\n"));
    let lines = of(&|text| format!("{{\"piece\":\"{text}\"}}\n"));
    for is_redacted in [true, false] {
        let keys = if is_redacted { r#"redact = ["\\d{16}"]"# } else { "" };
        let (mut config, file, folder) = config_of(&replica, keys);
        config.server.extra_paths = vec!["/v1/custom".into()];
        let trail = Trail { gateway: Gateway::start(config).await, file, _folder: folder };
        replica.next(wire::json(200, r#"{"id":"resp_1","object":"response","output":[]}"#));
        assert_eq!(trail.ask_at("POST", "/v1/responses", "agreed", json, stored).await, 200);
        let [custom, audio, kept] =
            ["/v1/custom", "/v1/audio/transcriptions", "/v1/responses/resp_1?stream=true"];
        for (method, path, kind, body, answer_kind, events) in [
            ("POST", audio, FORM, form, sse, &chat[..]),
            ("GET", kept, json, "", sse, &deltas),
            ("POST", custom, json, r#"{"model":"tiny"}"#, sse, &chat),
            ("POST", custom, json, r#"{"model":"tiny"}"#, sse, &unknown),
            ("POST", custom, json, r#"{"model":"tiny"}"#, "application/x-ndjson", &lines),
        ] {
            replica.next(pieces(answer_kind, events));
            assert_eq!(trail.ask_at(method, path, "agreed", kind, body).await, 200, "{path}");
        }
        let entries = trail.entries(6).await;
        let answers: Vec<_> = entries[1..].iter().map(|entry| &entry["answer"]).collect();
        if is_redacted {
            let text = "card [redacted] end";
            let expected = [
                json!([{ "content": text }]),
                json!([{ "text": text }]),
                json!([{ "content": text }]),
                json!("[redacted]"),
                json!("[redacted]"),
            ];
            assert_eq!(answers, expected.iter().collect::<Vec<_>>());
            let written = std::fs::read_to_string(&trail.file).unwrap();
            assert!(!written.contains("card 4") && !written.contains("11111 end"), "{written}");
        } else {
            assert_eq!(
                *answers[3],
                json!(unknown.concat()),
                "with nothing to leave out it is kept as it came"
            );
            assert_eq!(*answers[4], json!(lines.concat()));
        }
    }
}

#[tokio::test]
async fn a_refusal_and_a_broken_stream_are_written_down_with_what_was_answered() {
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
    let text = format!("{}{CARD}{long}", "y".repeat(1024 - head - 8));
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
    config.telemetry.content.as_mut().unwrap().file = Some(file.clone());
    let trail = Trail { gateway: Gateway::start(config).await, file, _folder };
    let body = prompt("tiny", &"x".repeat(60_000), false);
    let dropped = || trail.dropped("queue_full");
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

/// A gateway whose trail goes to a collector, and into no file.
async fn exporting(replica: &Replica, collector: &Replica, keys: &str) -> Trail {
    let (mut config, file, folder) = config_of(replica, keys);
    let content = config.telemetry.content.as_mut().unwrap();
    (content.file, content.otlp) = (None, true);
    let target = |signal| OtlpTarget {
        endpoint: format!("http://{}/v1/{signal}", collector.addr),
        protocol: OtlpProtocol::Http,
        headers: vec![],
        // One export that hangs outlasts the test: each that ends empties the queue.
        timeout: Duration::from_secs(300),
    };
    config.telemetry.otlp = Some(Otlp { traces: target("traces"), logs: Some(target("logs")) });
    config.telemetry.sampling.routine = 0.0;
    config.telemetry.sampling.keep = vec![];
    Trail { gateway: Gateway::start(config).await, file, _folder: folder }
}

async fn collector() -> Replica {
    let collector = Replica::start().await;
    collector.probes(Probes::Scripted);
    collector.always(wire::json(200, "{}"));
    collector
}

/// The log records that came.
fn events(collector: &Replica) -> Vec<LogRecord> {
    let exports = collector.received().into_iter().filter(|export| export.line().contains("/v1/logs"));
    exports
        .flat_map(|export| ExportLogsServiceRequest::decode(&*export.body).unwrap().resource_logs)
        .flat_map(|logs| logs.scope_logs)
        .flat_map(|logs| logs.log_records)
        .collect()
}

/// The value in the form of JSON; it must have a structure of its own, and be no text of JSON.
fn plain(value: &AnyValue) -> Value {
    let member = |pair: &KeyValue| (pair.key.clone(), plain(pair.value.as_ref().unwrap()));
    match value.value.as_ref() {
        Some(Any::StringValue(text)) => json!(text),
        Some(Any::BoolValue(fact)) => json!(fact),
        Some(Any::IntValue(number)) => json!(number),
        Some(Any::ArrayValue(list)) => list.values.iter().map(plain).collect(),
        Some(Any::KvlistValue(list)) => Value::Object(list.values.iter().map(member).collect()),
        other => json!(format!("{other:?}")),
    }
}

#[tokio::test]
async fn a_collector_gets_an_event_of_the_conventions_for_each_request_that_has_opted_in() {
    let (replica, collector) = (Replica::start().await, collector().await);
    let trail = exporting(&replica, &collector, r#"redact = ["[\\w.]+@[\\w.]+", "\\d{16}"]"#).await;
    replica.always(wire::chat_stream(&["write to an", "n@x", ".org now"]));
    assert_eq!(trail.ask("silent", &prompt("tiny", "a silent secret", true)).await, 200);
    assert_eq!(trail.ask("agreed", &prompt("private", "a private secret", true)).await, 200);
    assert_eq!(trail.ask("agreed", &prompt("tiny", &format!("my card is {CARD}"), true)).await, 200);
    until("the event came", || !events(&collector).is_empty()).await;
    let events = events(&collector);
    assert_eq!(events.len(), 1);
    let event = &events[0];
    assert_eq!(event.event_name, "gen_ai.client.inference.operation.details");
    let of = |name: &str| {
        let found = event.attributes.iter().find(|pair| pair.key == name);
        found.and_then(|pair| pair.value.as_ref()).map_or(Value::Null, plain)
    };
    let part = |text: &str| json!([{ "type": "text", "content": text }]);
    assert_eq!(
        of("gen_ai.input.messages"),
        json!([{ "role": "user", "parts": part("my card is [redacted]") }])
    );
    assert_eq!(
        of("gen_ai.output.messages"),
        json!([{ "role": "assistant", "parts": part("write to [redacted] now"), "finish_reason": "stop" }])
    );
    for (name, expected) in [
        ("gen_ai.operation.name", json!("chat")),
        ("gen_ai.request.model", json!("tiny")),
        ("tokenway.tenant", json!("agreed")),
        ("tokenway.outcome", json!("ok")),
        ("tokenway.content.is_answer_cut", json!(false)),
    ] {
        assert_eq!(of(name), expected, "{name}");
    }
    assert_eq!((event.trace_id.len(), event.span_id.len()), (16, 8));
    for export in collector.received() {
        let bytes = String::from_utf8_lossy(&export.body).into_owned();
        assert!(!bytes.contains("secret") && !bytes.contains(CARD) && !bytes.contains("n@x"), "{bytes}");
    }
    assert!(!trail.file.exists(), "no file was asked for");
}

#[tokio::test]
async fn a_collector_that_hangs_or_refuses_holds_up_no_request_and_what_is_lost_is_counted() {
    let (replica, collector) = (Replica::start().await, collector().await);
    replica.always(wire::json(200, r#"{"id":"c","choices":[]}"#));
    let trail = exporting(&replica, &collector, "").await;
    let body = prompt("tiny", "x", false);
    collector.next(wire::json(400, "{}"));
    assert_eq!(trail.ask("agreed", &body).await, 200);
    until("a refusal is counted", || trail.dropped("export_failed") == 1.0).await;
    collector.always(vec![Step::Hang]);
    let before = collector.count();
    assert_eq!(trail.ask("agreed", &body).await, 200);
    collector.got(before + 1).await;
    let asked = async {
        while trail.dropped("queue_full") == 0.0 {
            assert_eq!(trail.ask("agreed", &body).await, 200);
        }
    };
    tokio::time::timeout(Duration::from_secs(60), asked)
        .await
        .expect("some are dropped, and no request waits");
}
