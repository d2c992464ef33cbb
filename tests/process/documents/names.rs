//! What README and book name: links, files, subcommands, keys, metrics, recipes, paths of the admin API, and their own length.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use clap::{CommandFactory as _, Parser as _};
use serde_json::Value as Json;
use tokenway::cli::Cli;
use tokenway::config::check::check_str;
use tokenway::config::diagnostics::{Diagnostic, Diagnostics};
use tokenway::config::schema::json_schema;
use toml::de::DeTable;

use super::{Page, root};

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    for page in Page::all() {
        let folder = root().join(&page.path).parent().unwrap().to_owned();
        let prose = page.prose();
        for link in prose.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("http") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { root().join(&page.path) } else { folder.join(file) };
            assert!(target.exists(), "{}: {link} is not there", page.path);
            if !heading.is_empty() {
                let text = fs::read_to_string(&target).unwrap();
                let headings = text.lines().filter(|line| line.starts_with('#'));
                let found = headings.map(anchor).any(|anchor| anchor == heading);
                assert!(found, "{}: {link} has no such heading", page.path);
            }
        }
    }
}

#[test]
fn every_page_is_a_chapter() {
    let summary = Page::read("docs/SUMMARY.md").text;
    for page in Page::all() {
        let inside = page.path.strip_prefix("docs/");
        let link = inside.map_or_else(|| format!("../{}", page.path), str::to_owned);
        let is_listed = summary.contains(&format!("]({link})"));
        assert!(is_listed || link == "SUMMARY.md", "docs/SUMMARY.md leaves {} out", page.path);
    }
}

#[test]
fn names_of_files_commands_keys_and_metrics_are_right() {
    let known = Known::read();
    let wrong: Vec<String> = Page::all()
        .iter()
        .flat_map(|page| page.spans().into_iter().map(|span| (page.path.clone(), span)))
        .filter(|(_, span)| !known.knows(span))
        .map(|(path, span)| format!("{path}: `{span}`"))
        .collect();
    assert!(wrong.is_empty(), "not in this version:\n{}", wrong.join("\n"));
}

#[test]
fn configuration_that_is_shown_is_taken() {
    let headers = headers();
    let mut wrong = Vec::new();
    for page in Page::all() {
        // The whole reference has tests of its own.
        for block in page.blocks("toml").into_iter().filter(|block| !block.starts_with("{{#include")) {
            wrong.extend(faults(&page.path, block, &headers).iter().map(ToString::to_string));
        }
        let is_line =
            |span: &String| span.contains(" = ") && !span.contains('…') && DeTable::parse(span).is_ok();
        let lines = page.spans().into_iter().filter(is_line);
        wrong.extend(
            lines.filter_map(|line| refused(&line, &headers)).map(|fault| format!("{}: {fault}", page.path)),
        );
    }
    assert!(wrong.is_empty(), "`tokenway check` refuses:\n{}", wrong.join("\n"));
}

#[test]
fn figures_of_the_readme_are_those_of_the_results() {
    let readme = Page::read("README.md").text;
    let pages = ["docs/results.md", "docs/performance.md"];
    let results: BTreeSet<String> =
        pages.into_iter().flat_map(|page| figures(&Page::read(page).text)).collect();
    let (_, section) = readme.split_once("## Figures\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    // One or two digits are counts of replicas and minutes.
    let absent: Vec<_> =
        figures(section).into_iter().filter(|f| f.len() > 2 && !results.contains(f)).collect();
    assert!(absent.is_empty(), "{pages:?} do not have {absent:?}");
}

#[test]
fn pages_keep_to_their_length() {
    let words = |text: &str| text.split_whitespace().count();
    let limits = [
        ("README.md", 900),
        ("docs/routing.md", 1_500),
        ("docs/drift.md", 1_500),
        ("docs/reliability.md", 2_000),
        ("docs/operations.md", 3_000),
    ];
    for (path, limit) in limits {
        let n = words(&fs::read_to_string(root().join(path)).unwrap());
        assert!(n <= limit, "{path} has {n} words, at most {limit}");
    }
    // Decisions are records, which nobody reads through.
    let is_read = |page: &&Page| page.path.starts_with("docs/") && !page.path.contains("/decisions/");
    let of_page = |page: &Page| words(&fs::read_to_string(root().join(&page.path)).unwrap());
    let all: usize = Page::all().iter().filter(is_read).map(of_page).sum();
    assert!(all <= 30_000, "the book has {all} words");
}

/// What `check` finds in a piece of a file, but for what stands in the rest of it or on another machine.
fn faults(path: &str, piece: &str, lists: &[String]) -> Vec<Diagnostic> {
    // `[pool.scale]` is of a `[[pool]]` above.
    let list = piece.trim_start_matches('[').split(['.', ']']).next().map(|name| format!("[[{name}]]"));
    let list = list.filter(|list| lists.contains(list) && !piece.starts_with(list.as_str()));
    let text = format!("{}\n{piece}", list.unwrap_or_default());
    let checked = check_str(path, &text, &|name| Some(format!("value of {name}")));
    let is_of_the_rest = |fault: &&Diagnostic| {
        fault.source_line.starts_with('[')
            || fault.source_line.is_empty()
            || ["cannot read", "unknown pool"].iter().any(|known| fault.message.contains(known))
    };
    let faults = checked.err();
    let faults = faults.iter().flat_map(Diagnostics::iter);
    faults.filter(|fault| !is_of_the_rest(fault)).cloned().collect()
}

/// The sections of a file, as the reference heads them.
fn headers() -> Vec<String> {
    let reference = fs::read_to_string(root().join("config/reference.toml")).unwrap();
    let lines =
        reference.lines().map(|line| line.trim_start_matches("# ")).filter(|line| line.starts_with('['));
    lines.filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
}

/// What is wrong with a line of a configuration in every section that has its key.
fn refused(line: &str, headers: &[String]) -> Option<String> {
    let key = line.split([' ', '.']).next()?;
    let unknown = format!("unknown key \"{key}\" in ");
    let mut found = None;
    for header in headers {
        let own = format!("{}.", header.trim_matches(['[', ']']));
        let line = line.strip_prefix(&own).unwrap_or(line);
        let faults = faults("", &format!("{header}\n{line}\n"), headers);
        match faults.first() {
            None => return None,
            Some(fault) if fault.message.starts_with(&unknown) => {}
            Some(fault) => found = found.or_else(|| Some(format!("`{line}`: {}", fault.message))),
        }
    }
    found
}

/// What this version has.
struct Known {
    schema: Json,
    families: String,
    routes: Vec<String>,
    justfile: String,
    manifest: String,
    subcommands: Vec<String>,
}

impl Known {
    fn read() -> Self {
        let file = |path: &str| fs::read_to_string(root().join(path)).unwrap();
        let routes = file("src/admin/routes.rs") + &file("src/admin/openapi/table.rs");
        let begun =
            [".route(\"", "  get \"", "  post \""].into_iter().flat_map(|begin| routes.split(begin).skip(1));
        let quoted = begun.filter_map(|rest| rest.split('"').next());
        Self {
            schema: json_schema(),
            families: file("docs/metric-families.md"),
            routes: quoted.map(str::to_owned).collect(),
            justfile: file("justfile"),
            manifest: file("Cargo.toml"),
            subcommands: Cli::command()
                .get_subcommands()
                .map(|command| command.get_name().to_owned())
                .collect(),
        }
    }

    /// Whether a span names something that exists; true for what is no name of these kinds.
    fn knows(&self, span: &str) -> bool {
        let words: Vec<&str> = span.split(' ').collect();
        match &words[..] {
            ["tokenway", name] => self.subcommands.iter().any(|known| known == name),
            ["tokenway", _, ..] if !span.contains('…') => {
                Cli::try_parse_from(words.iter().map(|w| stand_in(w))).is_ok()
            }
            ["just", name, ..] => self
                .justfile
                .lines()
                .any(|line| line.split([' ', ':']).next() == Some(*name) && !line.starts_with([' ', '#'])),
            ["cargo", "bench", .., name] if span.contains("--bench ") && !name.starts_with('-') => {
                let bench = words.iter().skip_while(|word| **word != "--bench").nth(1);
                bench.is_some_and(|name| self.manifest.contains(&format!("[[bench]]\nname = \"{name}\"")))
            }
            [path, ..] if is_path(path) => root().join(path.trim_end_matches('/')).exists(),
            [key] if is_key(key) => self.has_key(key),
            [section] if section.starts_with('[') && is_key(section.trim_matches(['[', ']'])) => {
                self.has_key(section.trim_matches(['[', ']']))
            }
            [metric] if metric.starts_with("tokenway_") && !metric.contains(['…', ':', '*']) => {
                let name = metric.split(['{', '[']).next().unwrap_or_default();
                let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
                [Some(name), base]
                    .into_iter()
                    .flatten()
                    .any(|name| self.families.contains(&format!("`{name}`")))
            }
            [path] if path.starts_with("/api/") && !path.contains('…') => self.serves(path),
            _ => true,
        }
    }

    fn has_key(&self, key: &str) -> bool {
        let mut at = &self.schema;
        for name in key.split('.') {
            let table = if at["items"].is_object() { &at["items"] } else { at };
            let known = &table["properties"][name];
            at = if known.is_null() { &table["additionalProperties"] } else { known };
            if !at.is_object() {
                return false;
            }
        }
        true
    }

    fn serves(&self, path: &str) -> bool {
        let path = path.split('?').next().unwrap_or_default();
        let inside = path.strip_prefix("/api/v1").or_else(|| path.strip_prefix("/api")).unwrap_or(path);
        let parts = |path: &str| path.split('/').map(str::to_owned).collect::<Vec<_>>();
        let is_it = |route: &&String| {
            let (route, asked) = (parts(route), parts(inside));
            let same = |(known, given): (&String, &String)| known.starts_with('{') || known == given;
            route.len() == asked.len() && route.iter().zip(&asked).all(same)
        };
        self.routes.iter().any(|route| is_it(&route))
    }
}

/// A word of a command, for a placeholder.
fn stand_in(word: &str) -> &str {
    match word {
        "GW" | "GATEWAY" | "URL" => "http://127.0.0.1:9090",
        word => word,
    }
}

/// Whether it names a file of the repository: a folder of it, then no placeholder.
fn is_path(word: &str) -> bool {
    let folders =
        ["src/", "tests/", "benches/", "docker/", "config/", "docs/", ".ci/", "simulator/", "fuzz/"];
    folders.iter().any(|folder| word.starts_with(folder)) && !word.contains(['…', '{', '*', '<'])
}

/// Whether it reads as a key of the configuration below a section: `server.listen`.
fn is_key(word: &str) -> bool {
    let sections = [
        "server", "admin", "timeouts", "retry", "routing", "classes", "pool", "route", "tenant", "auth",
        "telemetry", "drift",
    ];
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    word.split_once('.').is_some_and(|(section, rest)| {
        sections.contains(&section)
            && rest.split('.').all(is_name)
            && !Path::new(word).extension().is_some_and(|e| e == "md" || e == "rs")
    })
}

/// A heading's anchor, as the forges and mdBook make it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The numbers of a text, thousands separators kept.
fn figures(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_digit() || c == '.' || c == ',';
    let parts = text.split(|c| !is_part(c)).map(|part| part.trim_matches(['.', ',']));
    parts.filter(|part| part.starts_with(|c: char| c.is_ascii_digit())).map(str::to_owned).collect()
}
