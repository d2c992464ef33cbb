//! The alerting kit: rules and dashboards hold against what the gateway really exports.
//!
//! Names and labels of every query are looked up on a page of `/metrics`. Where `promtool` is installed it checks the
//! syntax of all of them and runs the rules' own tests, which show each alert firing and staying silent.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

mod boards;

mod ordinary;

mod runbook;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tokenway::diagnosis::Causes;
use tokenway::drift::detectors::{Finding, Kind, SeriesName};
use tokenway::fleet::status::{EngineCounters, ReplicaState, ReplicaStatus};
use tokenway::observe::metrics::{DeliveryResult, StreamKey};
use tokenway::record::{Gap, Gaps, Outcome, Record};
use tokenway::stage::{Stage, StageBudget};

use crate::support;

fn kit(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(path)
}

/// A page on which everything has happened once.
fn page() -> String {
    let mut config = support::config();
    config.pools[0].queue_target = NonZeroU64::new(8);
    for slo in config.slo.values_mut() {
        slo.tpot = Some(Duration::from_millis(40));
        slo.e2e = Some(Duration::from_secs(60));
    }
    let observer = support::observer(&config);
    let record = support::record();
    let first = support::first_token(&record);
    observer.first_token(&first);
    let gaps = [Gap { length: Duration::from_millis(40), tokens: Some(2) }];
    let key = StreamKey::new(&record, first.served);
    observer.stream_series(&key).gaps(&Gaps { gaps: &gaps, late_itl: &[], is_filling: false });
    let mut budget = StageBudget::default();
    budget.set(Stage::Prefill, Duration::from_millis(1));
    observer.record(&Arc::new(Record { stage_budget: Some(Arc::new(budget)), ..support::record() }));
    let mut failed = support::record();
    failed.outcome = Outcome::Failed;
    failed.error = Some("timeout_inter_token");
    observer.record(&Arc::new(failed));
    let metrics = &observer.metrics;
    metrics.families.requests.admissions.inc(["admit", "ready"]);
    metrics.families.requests.http_rejected.inc(["header_timeout"]);
    // More values than a label holds.
    for timer in 0..250 {
        metrics.families.requests.timeouts.inc([&format!("timer-{timer}")]);
    }
    metrics.families.control.drift_webhook.inc([DeliveryResult::Failed.as_str()]);
    metrics.set_sources(&[support::source()]);
    metrics.families.cluster.connected.set(["production"], Some(1.0));
    metrics.families.cluster.refused.set(["production"], Some(0.0));
    let finding = Finding {
        at: 0.0,
        kind: Kind::TtftTailDrift,
        series: SeriesName { route: "chat".into(), revision: "v1".into(), replica: None },
        causes: Causes::default(),
        evidence: Vec::new(),
        is_acknowledged: false,
    };
    metrics.families.control.drift_findings.inc(finding.labels());
    metrics.families.control.drift_active.set(finding.labels(), Some(1.0));
    for (state, is_it) in [("running", 0.0), ("paused", 0.0), ("promoted", 0.0), ("rolled_back", 1.0)] {
        metrics.families.canaries.state.set(["chat", "new", "r2", state], Some(is_it));
    }
    metrics.families.canaries.share.set(["chat", "new", "r2"], Some(0.0));
    metrics.families.canaries.shadow_share.set(["chat", "new", "r2"], Some(0.0));
    metrics.families.canaries.evidence.set(["chat", "new", "r2", "ttft_p99"], Some(1.0));
    metrics.families.canaries.shadow_requests.inc(["chat", "new", "r2", "ok"]);
    metrics.families.canaries.shadow_ttft.get(["chat", "new", "r2"]).observe(0.04);
    metrics.families.process.certificate_expiry.set(["server.pem"], Some(2e9));
    let counters = Some(EngineCounters { preemptions: Some(1.0), ..EngineCounters::default() });
    metrics.render(&[ReplicaStatus { counters, ..support::status(ReplicaState::Ready, true) }])
}

/// Series names of a page with their labels; `instance` and `job` are Prometheus' own.
fn exported(page: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut exported: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let Some((series, _)) = line.rsplit_once(' ') else { continue };
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let of_name = exported.entry(name.to_owned()).or_default();
        of_name.extend(["instance", "job"].map(str::to_owned));
        of_name.extend(labels.split("\",").filter_map(|pair| Some(pair.split_once("=\"")?.0.to_owned())));
    }
    exported
}

/// Each selector of a query: its name and the labels between its braces.
fn selectors(query: &str) -> Vec<(String, Vec<String>)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut found = Vec::new();
    let mut rest = query;
    while let Some(at) = rest.find(|c: char| is_name(c)) {
        rest = &rest[at..];
        let end = rest.find(|c: char| !is_name(c)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        rest = after;
        if !name.starts_with("tokenway") && !name.starts_with("process_") {
            if rest.starts_with('"') {
                // Cannot be: names are never followed by a quote.
                panic!("{query}");
            }
            continue;
        }
        let inside =
            rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(inside, _)| inside);
        let labels = inside.split(',').filter_map(|pair| {
            let (label, _) = pair.split_once('=')?;
            Some(label.trim().trim_end_matches('!').to_owned())
        });
        found.push((name.to_owned(), labels.collect()));
    }
    found
}

/// A query without what stands between quotes, which is no name.
fn unquoted(query: &str) -> String {
    query.split('"').step_by(2).collect::<Vec<_>>().join("\"\"")
}

/// Labels that a query groups or joins by.
fn grouped(query: &str) -> Vec<String> {
    let words = ["by (", "on (", "ignoring (", "group_left ("];
    let parts = words.iter().flat_map(|word| query.split(word).skip(1));
    let inside = parts.filter_map(|part| part.split_once(')')).map(|(inside, _)| inside);
    let labels = inside.flat_map(|inside| inside.split(',')).map(|label| label.trim().to_owned());
    labels.filter(|label| !label.is_empty()).collect()
}

struct Query {
    place: String,
    text: String,
}

fn dashboards() -> Vec<Query> {
    let files = ["fleet", "route", "replica", "rollout"];
    let mut queries = Vec::new();
    for file in files {
        let text = fs::read_to_string(kit(&format!("grafana/{file}.json"))).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        for panel in json["panels"].as_array().unwrap() {
            let title = panel["title"].as_str().unwrap();
            for target in panel["targets"].as_array().unwrap() {
                let place = format!("{file}.json, panel {title}");
                let text = target["expr"].as_str().unwrap().replace("$__rate_interval", "1m");
                queries.push(Query { place, text });
            }
        }
        for annotation in json["annotations"]["list"].as_array().unwrap() {
            let text = annotation["expr"].as_str().unwrap().to_owned();
            // Prometheus' own series of what fires.
            if !text.starts_with("ALERTS{") {
                queries
                    .push(Query { place: format!("{file}.json, annotation {}", annotation["name"]), text });
            }
        }
        for variable in json["templating"]["list"].as_array().unwrap() {
            let Some(query) = variable["query"]["query"].as_str() else { continue };
            let inside = query.strip_prefix("label_values(").unwrap().strip_suffix(')').unwrap();
            let (selector, label) = inside.rsplit_once(", ").unwrap();
            let text = format!("max by ({label}) ({selector})");
            queries.push(Query { place: format!("{file}.json, variable {label}"), text });
        }
    }
    assert!(queries.len() > 60, "{} queries", queries.len());
    queries
}

/// Expressions of the rules, and the names that they record.
fn rules() -> (Vec<Query>, BTreeSet<String>) {
    let text = fs::read_to_string(kit("prometheus/rules.yml")).unwrap();
    let (mut queries, mut recorded, mut place): (Vec<Query>, _, _) =
        (Vec::new(), BTreeSet::new(), String::new());
    let mut is_in_query = false;
    for line in text.lines() {
        let trimmed = line.trim_start();
        if let Some(name) = trimmed.strip_prefix("- record: ") {
            recorded.insert(name.to_owned());
            place = name.to_owned();
        } else if let Some(name) = trimmed.strip_prefix("- alert: ") {
            place = name.to_owned();
        }
        if let Some(query) = trimmed.strip_prefix("expr: ") {
            is_in_query = query == "|";
            let text = query.trim_matches('|').to_owned();
            queries.push(Query { place: format!("rules.yml, {place}"), text });
        } else if is_in_query && line.starts_with("          ") {
            let query = queries.last_mut().unwrap();
            query.text.push_str(trimmed);
            query.text.push(' ');
        } else {
            is_in_query = false;
        }
    }
    assert!(recorded.len() > 10 && queries.len() > 25);
    (queries, recorded)
}

#[tokio::test]
async fn every_query_asks_for_what_the_gateway_exports() {
    let exported = exported(&page());
    let (of_rules, recorded) = rules();
    let mut wrong = Vec::new();
    for query in of_rules.iter().chain(&dashboards()).chain(&runbook::queries()) {
        let found = selectors(&unquoted(&query.text));
        let is_about_up = query.text.contains("up{job=\"tokenway\"}") || query.text.starts_with("up ");
        assert!(!found.is_empty() || is_about_up, "{}: no metric in {}", query.place, query.text);
        let mut known = BTreeSet::from(["instance", "job"].map(str::to_owned));
        for (name, labels) in found {
            if recorded.contains(&name) {
                known
                    .extend(["route", "revision", "outcome", "reason", "pool", "replica"].map(str::to_owned));
                continue;
            }
            let Some(of_name) = exported.get(&name) else {
                wrong.push(format!("{}: no metric {name}", query.place));
                continue;
            };
            known.extend(of_name.iter().cloned());
            let missing = labels.iter().filter(|label| !of_name.contains(*label));
            wrong.extend(missing.map(|label| format!("{}: {name} has no label {label}", query.place)));
        }
        let missing = grouped(&query.text).into_iter().filter(|label| !known.contains(label));
        wrong.extend(missing.map(|label| format!("{}: nothing has a label {label}", query.place)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_scan_sees_names_and_labels() {
    let query =
        r#"sum by (route) (rate(tokenway_requests_total{outcome=~"failed, or {worse}", code!="200"}[5m]))"#;
    let found = selectors(&unquoted(query));
    assert_eq!(
        found,
        [("tokenway_requests_total".to_owned(), vec!["outcome".to_owned(), "code".to_owned()])]
    );
    assert_eq!(grouped(query), ["route"]);
}

fn promtool(args: &[&str]) -> Option<(bool, String)> {
    match Command::new("promtool").args(args).output() {
        Ok(output) => {
            let said = [output.stdout, output.stderr].concat();
            Some((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
        }
        Err(_) => {
            let _ = writeln!(
                std::io::stderr(),
                "skipped: promtool is not installed (Debian: apt-get install prometheus)"
            );
            None
        }
    }
}

#[test]
fn promtool_reads_the_rules_every_panel_and_the_runbook() {
    let rules = kit("prometheus/rules.yml");
    let Some((is_good, said)) = promtool(&["check", "rules", rules.to_str().unwrap()]) else { return };
    assert!(is_good, "{said}");
    // Queries of panels and of the runbook are checked by the same parser, as rules that record them.
    let mut file = String::from("groups:\n- name: panels\n  rules:\n");
    for (at, query) in dashboards().iter().chain(&runbook::queries()).enumerate() {
        let text = serde_json::Value::from(query.text.as_str());
        file.push_str(&format!("  # {}\n  - record: panel:{at}\n    expr: {text}\n", query.place));
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("panels.yml");
    fs::write(&path, &file).unwrap();
    let (is_good, said) = promtool(&["check", "rules", path.to_str().unwrap()]).unwrap();
    assert!(is_good, "{said}\n{file}");
}

#[test]
fn every_alert_fires_when_it_should_and_is_silent_when_it_should_not() {
    let files = ["rules_test.yml", "rules_days_test.yml"].map(|name| kit("prometheus").join(name));
    let text: String = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let (of_rules, recorded) = rules();
    let alerts = of_rules.iter().filter_map(|query| query.place.strip_prefix("rules.yml, "));
    for alert in alerts.filter(|alert| !recorded.contains(*alert)) {
        let asked = format!("alertname: {alert}\n        exp_alerts:");
        let (silent, firing) = (format!("{asked} []\n"), format!("{asked}\n"));
        assert!(text.contains(&silent) && text.contains(&firing), "{alert} is not tested on both sides");
    }
    let [minutes, days] = files.each_ref().map(|file| file.to_str().unwrap());
    let Some((is_good, said)) = promtool(&["test", "rules", minutes, days]) else { return };
    assert!(is_good, "{said}");
}

/// The anchor that GitHub and others make of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase().replace(' ', "-");
    kept.chars().filter(|c| c.is_alphanumeric() || *c == '-').collect()
}

#[test]
fn every_alert_opens_a_section_of_the_runbook() {
    let runbook = fs::read_to_string(kit("../docs/runbook.md")).unwrap();
    let headings: BTreeSet<String> =
        runbook.lines().filter_map(|l| l.strip_prefix("## ")).map(anchor).collect();
    let rules = fs::read_to_string(kit("prometheus/rules.yml")).unwrap();
    let links: Vec<&str> = rules.lines().filter_map(|l| l.trim().strip_prefix("runbook_url: ")).collect();
    assert_eq!(links.len(), rules.matches("- alert: ").count(), "an alert without a runbook");
    for link in links {
        let (absolute, section) = link.split_once("{{ else }}docs/runbook.md#").unwrap();
        let section = section.strip_suffix("{{ end }}'").unwrap();
        assert!(absolute.ends_with(&format!(r#"{{{{ . | first | label "url" }}}}#{section}"#)), "{link}");
        assert!(headings.contains(section), "{section} is no section of {headings:?}");
    }
}

/// Runs promtool on these days; what each said where an alert fired.
fn ordinary(days: &[ordinary::Day], first_seed: u64) -> Vec<String> {
    let (page, directory) = (page(), tempfile::tempdir().unwrap());
    let exported = exported(&page);
    let edges = |name: &str| -> Vec<String> {
        let of_name = page.lines().filter(|line| line.starts_with(&format!("{name}_bucket{{")));
        let mut edges: Vec<String> = Vec::new();
        for line in of_name {
            let (_, le) = line.split_once("le=\"").unwrap();
            let le = le.split('"').next().unwrap().to_owned();
            if !edges.contains(&le) {
                edges.push(le);
            }
        }
        assert!(edges.len() > 5, "{name}: {edges:?}");
        edges
    };
    let (ttft, overhead) =
        (edges("tokenway_time_to_first_token_seconds"), edges("tokenway_gateway_overhead_seconds"));
    let writer = ordinary::Writer { ttft_edges: &ttft, overhead_edges: &overhead };
    fs::copy(kit("prometheus/rules.yml"), directory.path().join("rules.yml")).unwrap();
    let mut wrong = Vec::new();
    for (seed, day) in (first_seed..).zip(days) {
        let (test, used) = writer.test(day, seed);
        for (name, labels) in used.iter().filter(|(name, _)| *name != "up") {
            let known = exported.get(name).unwrap_or_else(|| panic!("no metric {name}"));
            assert!(labels.is_subset(known), "{name} has not all of {labels:?}");
        }
        let path = directory.path().join("day.yml");
        fs::write(&path, test).unwrap();
        let Some((is_good, said)) = promtool(&["test", "rules", path.to_str().unwrap()]) else { break };
        if !is_good {
            wrong.push(format!("{}: {said}", day.name));
        }
    }
    wrong
}

#[tokio::test]
async fn ordinary_days_raise_no_alert() {
    assert_eq!(ordinary::STATES, ReplicaState::ALL.map(ReplicaState::as_str));
    let days = ordinary::days();
    assert_eq!(days.len(), 30);
    let some: Vec<_> = days.into_iter().filter(|day| day.name == "much at once, one gateway").collect();
    let wrong = ordinary(&some, 0);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
#[ignore = "minutes: cargo test --test observability alerting -- --ignored"]
async fn thirty_ordinary_days_raise_no_alert() {
    let wrong = ordinary(&ordinary::days(), 0);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
#[ignore = "minutes: cargo test --test observability alerting -- --ignored"]
async fn days_of_other_mixes_and_seeds_raise_no_alert() {
    let mut wrong = ordinary(&ordinary::days(), 1000);
    wrong.extend(ordinary(&ordinary::drawn(20, 20), 2000));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The rules' tests with every series of one gateway exported by `gateways` of them.
fn of_gateways(tests: &str, gateways: usize) -> String {
    let mut copied = String::new();
    let mut lines = tests.lines();
    while let Some(line) = lines.next() {
        let Some(series) = line.strip_prefix("      - series: '").and_then(|rest| rest.strip_suffix('\''))
        else {
            copied.push_str(&format!("{line}\n"));
            continue;
        };
        let values = lines.next().unwrap();
        if series.contains("instance=") {
            copied.push_str(&format!("{line}\n{values}\n"));
            continue;
        }
        let (name, labels) = series.trim_end_matches('}').split_once('{').unwrap_or((series, ""));
        for gateway in 1..=gateways {
            let comma = if labels.is_empty() { "" } else { ", " };
            let series =
                format!("{name}{{{labels}{comma}instance=\"gateway-{gateway}:9090\", job=\"tokenway\"}}");
            copied.push_str(&format!("      - series: '{series}'\n{values}\n"));
        }
    }
    copied
}

#[test]
fn alerts_are_the_same_with_two_and_with_three_gateways() {
    let tests = fs::read_to_string(kit("prometheus/rules_test.yml")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    fs::copy(kit("prometheus/rules.yml"), directory.path().join("rules.yml")).unwrap();
    for gateways in [2, 3] {
        let copied = of_gateways(&tests, gateways);
        assert!(copied.contains(&format!("gateway-{gateways}:9090")));
        let path = directory.path().join(format!("tests-{gateways}.yml"));
        fs::write(&path, copied).unwrap();
        let Some((is_good, said)) = promtool(&["test", "rules", path.to_str().unwrap()]) else { return };
        assert!(is_good, "{gateways} gateways: {said}");
    }
}
