//! API keys made at run time, and the bill by them: from the command line to a restart.

use std::net::TcpListener;
use std::path::Path;

use tempfile::TempDir;

use crate::serve_support::client::{Answer, chat, get, post_chat};
use crate::serve_support::process::Process;
use crate::serve_support::{Fleet, Gateway, replace, until};

/// A gateway of two tenants that keeps its state, on an admin port of its own.
struct Kept {
    folder: TempDir,
    port: u16,
    _fleet: Fleet,
}

impl Kept {
    fn new() -> Self {
        let (fleet, folder) = (Fleet::start(&[]), TempDir::new().unwrap());
        let file = format!(
            "[admin]\ntoken = \"file:root\"\nread_token = \"file:look\"\n[[pool]]\nname = \"main\"\nreplicas = {}\n\
             [[route]]\nname = \"chat\"\nmodel = \"sim\"\npools = [\"main\"]\n[[route]]\nmodel = \"other\"\npools = [\"main\"]\n\
             [[tenant]]\nname = \"team-a\"\nkey_sha256 = []\n[[tenant]]\nname = \"team-b\"\nkey_sha256 = []\nroutes = [\"chat\"]\n",
            fleet.toml()
        );
        replace(&folder.path().join("gateway.toml"), &file);
        for token in ["root", "look"] {
            replace(&folder.path().join(token), token);
        }
        // A state is kept by its admin port, so the port must outlast the process.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Self { folder, port, _fleet: fleet }
    }

    fn start(&self) -> Gateway {
        let folder: &Path = self.folder.path();
        let gateway = Gateway::with_state(&folder.join("gateway.toml"), folder, self.port);
        gateway.wait_ready();
        gateway
    }
}

fn run_as(gateway: &Gateway, token: &str, args: &[&str]) -> (i32, String, String) {
    Process::run(&[args, &["--admin", &gateway.admin, "--token", token]].concat())
}

/// What a command prints.
fn ran(gateway: &Gateway, args: &[&str]) -> String {
    let (code, out, err) = run_as(gateway, "root", args);
    assert_eq!(code, 0, "{args:?}: {out}{err}");
    out
}

fn refused(gateway: &Gateway, token: &str, args: &[&str]) -> String {
    let (code, out, err) = run_as(gateway, token, args);
    assert_eq!(code, 1, "{args:?}: {out}{err}");
    err
}

fn ask(gateway: &Gateway, model: &str, key: &str) -> Answer {
    post_chat(&gateway.data, &chat(model, "hello", 4), key)
}

#[test]
fn a_key_works_at_once_within_its_routes_and_budget_until_it_is_revoked() {
    let kept = Kept::new();
    let mut gateway = kept.start();
    let add = ["key", "add", "team-a", "--name", "ci", "--expires", "30d"];
    let bounds = ["--routes", "sim", "--budget", "month:requests=2"];
    let key = ran(&gateway, &[&add[..], &bounds].concat()).trim().to_owned();
    assert!(key.starts_with("tw-"), "{key}");
    assert_eq!(ask(&gateway, "sim", &key).status, 200);
    assert_eq!(ask(&gateway, "other", &key).status, 404, "its routes");
    assert_eq!(ask(&gateway, "sim", &key).status, 200);
    let spent = ask(&gateway, "sim", &key);
    let message = "API key ci of tenant team-a has used 2 of its 2 requests of this month";
    assert!(spent.status == 429 && spent.body.contains(message), "{spent:?}");
    let plain = ran(&gateway, &["key", "add", "team-a"]).trim().to_owned();
    assert_eq!(ask(&gateway, "other", &plain).status, 200, "a key without bounds has its tenant's");
    let narrow = ran(&gateway, &["key", "add", "team-b", "--routes", "sim"]);
    assert_eq!(ask(&gateway, "sim", narrow.trim()).status, 200, "a route by its model");

    gateway.process.signal("TERM");
    assert_eq!(gateway.process.exit_code(), 0);
    let gateway = kept.start();
    let list = ran(&gateway, &["key", "list", "team-a"]);
    let lines: Vec<&str> = list.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with("team-a ci state=valid created="), "{list}");
    assert!(lines[0].ends_with(" routes=chat budget=month:requests=2"), "{list}");
    assert!(lines[1].starts_with("team-a key-") && lines[1].ends_with("expires=never"), "{list}");
    assert_eq!(ask(&gateway, "sim", &key).status, 429, "what it used is kept too");
    assert_eq!(ran(&gateway, &["key", "revoke", "team-a", "ci"]), "revoked: key ci of tenant team-a");
    let gone = ask(&gateway, "sim", &key);
    assert!(gone.status == 401 && gone.body.contains("has not been revoked"), "{gone:?}");
    assert_eq!(ask(&gateway, "sim", &plain).status, 200, "another key stays");
    for (folder, secret) in [(kept.folder.path(), &key), (kept.folder.path(), &plain)] {
        for file in std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()) {
            let text = std::fs::read_to_string(&file).unwrap();
            assert!(!text.contains(&secret[3..]), "a secret in {}", file.display());
        }
    }
}

#[test]
fn a_key_whose_time_is_over_is_refused_with_the_time() {
    let kept = Kept::new();
    let gateway = kept.start();
    let key = ran(&gateway, &["key", "add", "team-a", "--name", "short", "--expires", "1s"]);
    let body = chat("sim", "hello", 4);
    let answer = until("the end of the key", || {
        Some(post_chat(&gateway.data, &body, key.trim())).filter(|answer| answer.status != 200)
    });
    assert!(answer.status == 401 && answer.body.contains("\"invalid_api_key\""), "{answer:?}");
    assert!(
        answer.body.contains("the API key expired at 20") && answer.body.contains("Z: ask"),
        "{answer:?}"
    );
    let list = ran(&gateway, &["key", "list"]);
    assert!(list.starts_with("team-a short state=expired "), "{list}");
}

#[test]
fn only_the_admin_token_makes_keys_and_mistakes_are_named() {
    let kept = Kept::new();
    let gateway = kept.start();
    let add = |more: &[&str]| refused(&gateway, "root", &[&["key", "add"], more].concat());
    let look = refused(&gateway, "look", &["key", "add", "team-a"]);
    assert!(look.contains("for reading only"), "{look}");
    assert_eq!(run_as(&gateway, "look", &["key", "list"]).1, "no keys were made at run time");
    for (args, message) in [
        (&["team-c"][..], "there is no tenant team-c; there are: team-a, team-b"),
        (&["team-b", "--routes", "other"], "tenant team-b may not use route other"),
        (&["team-a", "--routes", "gpt"], "no route has the name or model gpt"),
        (&["team-a", "--expires", "soon"], "write a duration such as 30d"),
        (&["team-a", "--expires", "2020-01-01"], "is over already"),
        (&["team-a", "--budget", "day:token=5"], "did you mean"),
        (
            &["team-a", "--routes", "sim", "--budget", "day:tokens=5,model=other"],
            "no route that the key may use takes model other",
        ),
        (&["team-a", "--budget", "eon:tokens=5"], "minute, hour, day, week, month"),
        (&["team-a", "--name", "a/b"], "has no slash"),
    ] {
        let error = add(args);
        assert!(error.contains(message), "{args:?}: {error}");
    }
    ran(&gateway, &["key", "add", "team-a", "--name", "ci"]);
    let taken = add(&["team-a", "--name", "ci"]);
    assert!(taken.contains("has a key ci already: revoke it first"), "{taken}");
    let unknown = refused(&gateway, "root", &["key", "revoke", "team-a", "cd"]);
    assert!(unknown.contains("tenant team-a has no key cd"), "{unknown}");
}

#[test]
fn usage_by_key_adds_up_with_the_metrics_and_outlasts_a_restart() {
    let kept = Kept::new();
    let mut gateway = kept.start();
    let [ci, web] = ["ci", "web"].map(|name| ran(&gateway, &["key", "add", "team-a", "--name", name]));
    for key in [&ci, &ci, &web] {
        assert_eq!(ask(&gateway, "sim", key.trim()).status, 200);
    }
    let json = |gateway: &Gateway, by: &str| -> serde_json::Value {
        let out = ran(gateway, &["usage", "--since", "1h", "--by", by, "--json"]);
        serde_json::from_str(&out).unwrap()
    };
    let usage = json(&gateway, "tenant,model,key");
    let rows = usage["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| (row["key"].as_str().unwrap(), &row["requests"])).collect();
    assert_eq!(names, [("ci", &2.into()), ("web", &1.into())], "{usage}");
    let page = get_metrics(&gateway);
    for (figure, series) in [
        ("input_tokens", "tokenway_tenant_tokens_total{kind=\"input\""),
        ("cached_tokens", "tokenway_tenant_tokens_total{kind=\"cached\""),
        ("output_tokens", "tokenway_tenant_tokens_total{kind=\"output\""),
        ("requests", "tokenway_requests_total{"),
    ] {
        let is_it = |line: &&str| line.starts_with(series) && line.contains("tenant=\"team-a\"");
        let values = page.lines().filter(is_it).map(|line| line.rsplit_once(' ').unwrap().1);
        let metric: f64 = values.map(|value| value.parse::<f64>().unwrap()).sum();
        assert_eq!(usage["total"][figure], serde_json::json!(metric as u64), "{figure}: {usage}\n{page}");
    }
    let is_seconds = |line: &&str| line.starts_with("tokenway_tenant_engine_seconds_total{");
    let seconds: f64 = page
        .lines()
        .filter(is_seconds)
        .map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap())
        .sum();
    let total = &usage["total"];
    let figures = ["prefill_seconds", "decode_seconds", "engine_other_seconds"];
    let billed: f64 = figures.iter().map(|figure| total[*figure].as_f64().unwrap()).sum();
    assert!(billed > 0.0 && (billed - seconds).abs() < 1e-4, "{billed} of {seconds}");

    gateway.process.signal("TERM");
    assert_eq!(gateway.process.exit_code(), 0);
    let gateway = kept.start();
    assert_eq!(json(&gateway, "tenant,model,key")["rows"], usage["rows"], "kept");
    let csv = ran(&gateway, &["usage", "--by", "day,tenant,key", "--csv"]);
    assert!(csv.starts_with("day,tenant,key,requests,input_tokens,"), "{csv}");
    assert!(csv.lines().nth(1).unwrap().contains(",team-a,ci,2,"), "{csv}");
    let error = refused(&gateway, "look", &["usage", "--by", "user"]);
    assert!(error.contains("by is a list of tenant, model, key, day"), "{error}");
}

fn get_metrics(gateway: &Gateway) -> String {
    let head = "authorization: Bearer look\r\n";
    let request = crate::serve_support::client::request("GET", "/metrics", head, "");
    let connection = crate::serve_support::client::connect(&gateway.admin).unwrap();
    assert_eq!(get(&gateway.admin, "/metrics").status, 401, "not without a token");
    crate::serve_support::client::exchange(connection, &request).body
}
