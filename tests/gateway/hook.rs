//! `[hook]`: what an operator's service decides before a request, and learns behind its answer.

use std::time::Duration;

use serde_json::{Value, json};
use tokenway::config::{Degrade, Endpoint, Hook, OnLoss};

use crate::support::client::Reply;
use crate::support::replica::{Gate, Probes, Replica, Step};
use crate::support::{FORM, Gateway, PATH, config, until, wire};

const ALLOW: &str = r#"{"allow":true}"#;

async fn service(answer: Vec<Step>) -> Replica {
    let service = Replica::start().await;
    service.probes(Probes::Scripted);
    service.always(answer);
    service
}

fn at(service: &Replica, path: &str) -> Option<Endpoint> {
    Some(Endpoint { base_path: path.into(), ..service.endpoint() })
}

async fn start(replica: &Replica, hook: Hook) -> Gateway {
    let mut config = config::of(&[replica]);
    config.routes.push(config::route("unasked", &[0]));
    config.hook = Some(hook);
    Gateway::start(config).await
}

fn body(model: &str) -> String {
    format!(r#"{{"model":"{model}","stream":true,"messages":[{{"role":"user","content":"hi \"you\""}}]}}"#)
}

async fn ask(gateway: &Gateway, model: &str) -> Reply {
    let headers =
        [("authorization", "Bearer k"), ("x-team", "a"), ("cookie", "c"), ("x-request-id", "own-id")];
    gateway.post_with(PATH, &headers, body(model)).await
}

fn calls(gateway: &Gateway, call: &str, outcome: &str) -> f64 {
    let labels = format!("{{call=\"{call}\",outcome=\"{outcome}\"}}");
    gateway.sum("tokenway_hook_calls_total", &[&labels])
}

#[tokio::test]
async fn a_route_that_may_degrade_to_one_of_the_hook_s_is_asked_for_too() {
    let (replica, service) = (Replica::start().await, service(wire::json(200, r#"{"allow":false}"#)).await);
    let mut config = config::of(&[&replica]);
    config.routes = vec![config::route("large", &[0]), config::route("small", &[0])];
    config.routes[0].degrade = Some(Degrade::above(1.5, 1));
    let routes = Some(vec!["small".into()]);
    config.hook = Some(Hook { before: at(&service, "/check"), routes, ..Hook::default() });
    let gateway = Gateway::start(config).await;
    for model in ["large", "small"] {
        assert_eq!(ask(&gateway, model).await.status(), 403, "{model}");
    }
}

#[tokio::test]
async fn a_request_that_is_allowed_is_sent_as_it_came_and_the_service_sees_no_credential() {
    let (replica, service) = (Replica::start().await, service(wire::json(200, ALLOW)).await);
    let routes = Some(vec!["*".into()]);
    let hook = Hook { before: at(&service, "/check"), routes, ..Hook::default() };
    let gateway = start(&replica, hook).await;
    for _ in 0..3 {
        assert_eq!(ask(&gateway, "tiny").await.status(), 200);
    }
    assert_eq!(ask(&gateway, "unasked").await.status(), 200);
    assert_eq!((service.count(), service.connections()), (3, 1), "on a connection that is kept");
    let asked = service.received().remove(0);
    assert_eq!(asked.line(), "POST /check HTTP/1.1");
    let question: Value = serde_json::from_slice(&asked.body).unwrap();
    let (sent, expected) =
        (replica.received().remove(0), serde_json::from_str::<Value>(&body("tiny")).unwrap());
    assert_eq!(sent.text(), body("tiny"));
    for (name, expected) in [
        ("body", expected),
        ("tenant", json!("default")),
        ("route", json!("*")),
        ("model", json!("tiny")),
        ("method", json!("POST")),
        ("path", json!(PATH)),
        ("request_id", json!("own-id")),
        ("is_stream", json!(true)),
    ] {
        assert_eq!(question[name], expected, "{name}");
    }
    assert_eq!(question["headers"]["x-team"], "a");
    for secret in ["authorization", "cookie"] {
        assert_eq!(question["headers"][secret], Value::Null);
    }
    assert_eq!(calls(&gateway, "before", "ok"), 3.0);
}

#[tokio::test]
async fn a_refusal_is_answered_with_the_service_s_message_and_reaches_no_engine() {
    let (replica, service) = (Replica::start().await, service(wire::json(200, ALLOW)).await);
    let gateway = start(&replica, Hook { before: at(&service, ""), ..Hook::default() }).await;
    for (verdict, status, message) in [
        (json!({ "allow": false, "message": "no card numbers", "status": 422 }), 422, "no card numbers"),
        (json!({ "allow": false, "message": "x".repeat(5000) }), 403, &*"x".repeat(1024)),
        (json!({ "allow": false, "status": 500 }), 403, "the request was refused (hook.before)"),
    ] {
        service.always(wire::json(200, &verdict.to_string()));
        let reply = ask(&gateway, "tiny").await;
        assert_eq!((reply.status(), &*reply.code()), (status, "hook_refused"), "{}", reply.text());
        assert_eq!(reply.json()["error"]["message"], message);
    }
    assert_eq!(replica.count(), 0);
    assert_eq!(service.received()[0].line(), "POST / HTTP/1.1");
    assert_eq!(calls(&gateway, "before", "refused"), 3.0);
}

#[tokio::test]
async fn without_an_answer_in_time_it_is_open_or_closed_as_configured() {
    let replica = Replica::start().await;
    let dead = service(wire::json(200, ALLOW)).await;
    dead.stop_listening().await;
    let hanging = service(vec![Step::Hang]).await;
    let failing = service(wire::json(500, ALLOW)).await;
    let vague = service(wire::json(200, r#"{"ok":true}"#)).await;
    for (name, service, outcome) in [
        ("dead", &dead, "failed"),
        ("slow", &hanging, "timeout"),
        ("failing", &failing, "failed"),
        ("vague", &vague, "failed"),
    ] {
        for (on_failure, status) in [(OnLoss::Open, 200), (OnLoss::Closed, 503)] {
            let timeout = Duration::from_millis(200);
            let hook = Hook { before: at(service, ""), timeout, on_failure, ..Hook::default() };
            let gateway = start(&replica, hook).await;
            let reply = ask(&gateway, "tiny").await;
            assert_eq!(reply.status(), status, "{name} {on_failure:?}: {}", reply.text());
            if status == 503 {
                assert_eq!(reply.code(), "hook_unavailable");
                assert_eq!(reply.field("retry-after"), Some("1"));
            }
            assert_eq!(calls(&gateway, "before", outcome), 1.0, "{name}");
        }
    }
}

#[tokio::test]
async fn a_request_that_is_too_large_for_the_service_is_not_cut_but_a_failure() {
    let (replica, service) = (Replica::start().await, service(wire::json(200, ALLOW)).await);
    for (on_failure, status) in [(OnLoss::Open, 200), (OnLoss::Closed, 503)] {
        let hook = Hook { before: at(&service, ""), max_body: 10, on_failure, ..Hook::default() };
        let gateway = start(&replica, hook).await;
        assert_eq!(ask(&gateway, "tiny").await.status(), status);
        assert_eq!((service.count(), calls(&gateway, "before", "too_large")), (0, 1.0));
    }
}

#[tokio::test]
async fn a_wait_for_the_service_shows_as_time_of_admission() {
    let replica = Replica::start().await;
    let mut slow = vec![Step::Tick; 10];
    slow.extend(wire::json(200, ALLOW));
    let service = service(slow).await;
    let gateway = start(&replica, Hook { before: at(&service, ""), ..Hook::default() }).await;
    let reply = ask(&gateway, "tiny").await;
    let timing = reply.field("server-timing").unwrap().to_owned();
    let admit = timing.split(", ").find_map(|stage| stage.strip_prefix("admit;dur=")).unwrap();
    assert!(admit.parse::<f64>().unwrap() >= 90.0, "{timing}");
}

#[tokio::test]
async fn the_service_gets_every_answer_after_the_client_has_it() {
    let replica = Replica::start().await;
    let gate = Gate::new();
    let mut held = vec![Step::Wait(gate.clone())];
    held.extend(wire::json(200, "{}"));
    let service = service(held).await;
    let gateway = start(&replica, Hook { after: at(&service, "/after"), ..Hook::default() }).await;
    replica.next(wire::chat_stream(&["a", "b"]));
    replica.next(wire::json(200, r#"{"id":"c","choices":[{"message":{"content":"whole"}}]}"#));
    for _ in 0..2 {
        assert_eq!(ask(&gateway, "tiny").await.status(), 200);
        gateway.idle().await;
    }
    assert_eq!(calls(&gateway, "after", "ok"), 0.0, "clients have their answers, and the service none yet");
    gate.cancel();
    until("it has both", || calls(&gateway, "after", "ok") == 2.0).await;
    let mut reports: Vec<Value> =
        service.received().iter().map(|got| serde_json::from_slice(&got.body).unwrap()).collect();
    reports.sort_by_key(|report| report["answer"].is_object());
    assert_eq!(reports[0]["answer"], json!([{ "content": "ab" }]));
    assert_eq!(reports[1]["answer"]["choices"][0]["message"]["content"], "whole");
    for report in reports {
        assert_eq!(
            (&report["status"], &report["outcome"], &report["route"]),
            (&json!(200), &json!("ok"), &json!("*"))
        );
    }
}

#[tokio::test]
async fn answers_that_the_service_is_too_slow_for_are_dropped_and_counted() {
    let (replica, service) = (Replica::start().await, service(vec![Step::Hang]).await);
    replica.always(wire::json(200, r#"{"id":"c","choices":[]}"#));
    let timeout = Duration::from_secs(60);
    let gateway = start(&replica, Hook { after: at(&service, ""), timeout, ..Hook::default() }).await;
    let asked = async {
        while calls(&gateway, "after", "dropped") == 0.0 {
            assert_eq!(ask(&gateway, "tiny").await.status(), 200);
        }
    };
    tokio::time::timeout(Duration::from_secs(60), asked).await.expect("the queue is bounded");
    assert_eq!(calls(&gateway, "after", "ok"), 0.0);
}

/// Posts a body of this type to a gateway of one model and `/v1/custom`, whose hook allows everything it is asked about.
async fn post_raw(
    service: &Replica,
    on_failure: OnLoss,
    path: &str,
    kind: &str,
    body: &[u8],
) -> (Reply, Replica) {
    let ([replica], mut config) = config::fresh().await;
    replica.always(wire::json(200, "{}"));
    config.server.extra_paths = vec!["/v1/custom".into()];
    config.hook = Some(Hook { before: at(service, ""), on_failure, ..Hook::default() });
    let gateway = Gateway::start(config).await;
    (gateway.post_with(path, &[("content-type", kind)], body).await, replica)
}

const AUDIO: &str = "/v1/audio/transcriptions";

/// A form whose binary part has this disposition.
fn form(binary: &str) -> Vec<u8> {
    let text = "--B\r\ncontent-disposition: form-data; name=\"prompt\"\r\n\r\nspell it \"Zoë\"\r\n";
    let head = format!("--B\r\ncontent-disposition: form-data; {binary}\r\n\r\n");
    [text.as_bytes(), head.as_bytes(), b"RIFF\xff\xfe\0", b"\r\n--B--\r\n"].concat()
}

#[tokio::test]
async fn of_a_form_with_a_binary_file_the_service_gets_all_but_the_file() {
    let service = service(wire::json(200, ALLOW)).await;
    for file in [r#"name="file"; filename="a.wav""#, r#"name="file"; filename*=utf-8''a.wav"#] {
        let (reply, replica) = post_raw(&service, OnLoss::Closed, AUDIO, FORM, &form(file)).await;
        assert_eq!(reply.status(), 200, "{}", reply.text());
        assert_eq!(replica.only().body, form(file), "the engine gets what came");
        let question: Value = serde_json::from_slice(&service.received().pop().unwrap().body).unwrap();
        let seen = String::from_utf8_lossy(&form(file)).replace("RIFF\u{fffd}\u{fffd}\0", "");
        assert_eq!(question["body"], json!(seen));
    }
}

#[tokio::test]
async fn a_body_that_is_no_text_is_not_shown_as_nothing_but_a_failure() {
    let service = service(wire::json(200, ALLOW)).await;
    let utf16 = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let json = "application/json";
    for (path, kind, body) in [
        ("/v1/custom", json, b"{\"prompt\":\"Zo\xeb\"}".to_vec()),
        ("/v1/custom", json, utf16("\u{feff}{\"prompt\":\"x\"}")),
        ("/v1/custom", json, utf16("{\"prompt\":\"x\"}")),
        // An engine takes these for texts, in another character set.
        (AUDIO, FORM, form("name=\"prompt\"")),
        (AUDIO, FORM, form("name=\"prompt\"; FileName=\"a\"")),
        (AUDIO, FORM, b"\xff no form".to_vec()),
    ] {
        for (on_failure, status) in [(OnLoss::Open, 200), (OnLoss::Closed, 503)] {
            let (reply, replica) = post_raw(&service, on_failure, path, kind, &body).await;
            assert_eq!(reply.status(), status, "{path} {body:?}: {}", reply.text());
            assert_eq!(replica.count(), usize::from(status == 200), "{path} {body:?}");
            if status == 503 {
                assert_eq!(reply.code(), "hook_unavailable");
            }
        }
    }
    assert_eq!(service.count(), 0, "the service is not asked about what it cannot see");
}
