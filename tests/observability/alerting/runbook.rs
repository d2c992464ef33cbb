//! The runbook's queries and commands: what an operator copies at night has to work.
//!
//! Every code span of `docs/runbook.md` is one of four: a query, which names a metric; a command of `tokenway`; a path of the
//! admin API, after `GW`; or a word. The first three are looked up here.

use std::fs;

use clap::Parser as _;
use tokenway::cli::Cli;

/// What stands between backticks.
fn spans() -> Vec<String> {
    let text = fs::read_to_string(super::kit("../docs/runbook.md")).unwrap();
    // No fences: a pair of backticks is always one span.
    assert_eq!(text.matches('`').count() % 2, 0);
    text.split('`').skip(1).step_by(2).map(|span| span.replace('\n', " ")).collect()
}

/// Queries, as the runbook has them.
pub(super) fn queries() -> Vec<super::Query> {
    let is_query = |span: &String| {
        ["tokenway_", "process_"].iter().any(|metric| span.contains(metric)) || span.starts_with("up ")
    };
    let queries: Vec<_> = spans()
        .into_iter()
        .filter(is_query)
        .map(|text| super::Query { place: format!("runbook.md, {text}"), text })
        .collect();
    assert!(queries.len() > 20, "{} queries", queries.len());
    queries
}

#[test]
fn commands_of_the_runbook_are_what_the_program_takes() {
    let commands: Vec<String> = spans().into_iter().filter(|span| span.starts_with("tokenway ")).collect();
    assert!(commands.len() >= 3, "{commands:?}");
    for command in commands {
        let words = command.split(' ').map(|word| if word == "GW" { "http://127.0.0.1:9090" } else { word });
        if let Err(error) = Cli::try_parse_from(words) {
            panic!("{command}: {error}");
        }
    }
    assert!(Cli::try_parse_from(["tokenway", "canary", "http://127.0.0.1:9090", "promoted"]).is_err());
}

#[test]
fn paths_of_the_runbook_are_routes_of_the_admin_port() {
    let known = fs::read_to_string(super::kit("../src/admin/openapi/table.rs")).unwrap();
    let paths: Vec<String> =
        spans().into_iter().filter_map(|span| Some(span.strip_prefix("GW/api")?.to_owned())).collect();
    assert!(paths.len() >= 5, "{paths:?}");
    for path in paths {
        assert!(known.contains(&format!("  get \"{path}\" ")), "GW/api{path} is not served");
    }
}
