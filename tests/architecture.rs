//! Holds the source against the map in `docs/architecture.md`, so that the architecture cannot drift unseen.
//!
//! Every file is parsed; `crate::`, `super::` and `self::` paths, in imports, code and macros, are resolved to the file
//! that defines what they name, through re-exports. Code under `#[cfg(test)]` does not count.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// Bottom-up: a module imports only modules listed before it.
const MODULES: &[&str] = &[
    "debug", "labels", "units", "clock", "background", "stage", "stats", "digits", "state_file",
    "whole_file", "error", "config", "listener", "request", "record", "routing", "admission", "upstream",
    "fleet", "observe", "relay", "gateway", "identity", "cluster", "kv_events", "epp", "api", "diagnosis",
    "drift", "rollout", "autoscale", "admin", "simulate", "app", "cli",
];

/// The last module of the data path; those after it are the control plane.
const END_OF_DATA_PATH: &str = "gateway";

/// Parts of `config` that turn text into a configuration: the data path reads the result only.
const CONFIG_READERS: &[&str] =
    &["config/schema", "config/check", "config/declare", "config/reference", "config/reload", "config/load"];

/// Pure code: time is an argument, so the same code runs live, in tests and in simulated time.
const PURE: &[&str] = &[
    "stats", "routing", "admission/refusal", "admission/pace", "admission/queue", "admission/waiter",
    "admission/usage", "admission/ruling", "cluster/wire", "cluster/peers", "kv_events/batch",
    "kv_events/picture", "kv_events/ledger", "fleet/health/standing", "fleet/health/compare", "relay/sse",
    "relay/stream_state", "relay/timeline", "relay/usage_filter", "config/check", "diagnosis",
    "drift/detectors", "rollout/judge", "rollout/plan", "autoscale/judge", "autoscale/forecast",
    "autoscale/scaler", "admin/verdict", "observe/history", "simulate/product_router",
];

/// Words that hide the field's term, counted in code, comments and tests.
const WORN: &[&str] = &[
    "tell", "tells", "told", "say", "says", "said", "nobody", "somebody", "of late", "what came of it",
    "so many", "goes on",
];

/// How many of [`WORN`] a room may have; the others none. Lower a number with what it counts, never raise one.
const WORN_CEILING: &[(&str, usize)] = &[
    ("admin", 6),
    ("admission", 29),
    ("api", 5),
    ("app", 6),
    ("autoscale", 18),
    ("cli", 116),
    ("config", 90),
    ("digits", 1),
    ("drift", 59),
    ("error", 2),
    ("fleet", 135),
    ("gateway", 36),
    ("listener", 7),
    ("main", 3),
    ("observe", 12),
    ("record", 3),
    ("relay", 93),
    ("request", 14),
    ("rollout", 21),
    ("routing", 112),
    ("simulate", 1),
    ("state_file", 4),
    ("stats", 2),
    ("upstream", 4),
];

/// What pure code does not use: runtimes, sockets, clocks, live state.
const IMPURE: &[&str] = &[
    "tokio", "hyper", "std::net::TcpStream", "std::time::Instant", "crate::clock::Clock",
    "crate::fleet::pool", "crate::fleet::registry",
];

/// Only `error.rs` maps a failure to a status.
const STATUS_MAPPING: &[&str] = &["StatusCode::BAD_GATEWAY", "StatusCode::GATEWAY_TIMEOUT"];
const NO_STATUS_MAPPING: &[&str] = &["routing", "relay", "fleet", "request"];

#[test]
fn a_module_imports_only_modules_listed_before_it() {
    let source = Source::read();
    let place = |module: &str| {
        MODULES
            .iter()
            .position(|known| *known == module)
            .unwrap_or_else(|| panic!("{module} is not in MODULES"))
    };
    let mut breaches = BTreeSet::new();
    for (from, to) in source.imports() {
        if place(module_of(from)) < place(module_of(to)) {
            breaches.insert(format!("{from} imports {to}"));
        }
    }
    assert_none(&breaches);
}

#[test]
fn the_documented_order_of_modules_is_the_tested_one() {
    let text = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let documented: Vec<&str> = rows.map(|(module, _)| module).collect();
    assert_eq!(documented, MODULES, "docs/architecture.md and MODULES differ");
}

#[test]
fn the_documented_walk_names_files_that_exist() {
    let text = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let (_, walk) = text.split_once("## The walk of a request").unwrap();
    let (walk, _) = walk.split_once("\n## ").unwrap();
    let stations = walk.lines().filter_map(|line| line.split_once(". `")?.1.split_once("`: "));
    let stations: Vec<&str> = stations.map(|(file, _)| file).collect();
    assert_eq!(stations.len(), 15, "{stations:?}");
    for file in stations {
        assert!(root().join("src").join(file).is_file(), "the walk names src/{file}, which is not there");
    }
}

#[test]
fn files_of_a_module_do_not_import_each_other_in_a_cycle() {
    let source = Source::read();
    // A cycle between a module and its child is allowed, one among siblings is not.
    let is_parent = |a: &str, b: &str| b.strip_prefix(a).is_some_and(|rest| rest.starts_with('/'));
    let mut graph: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in source.imports() {
        if from != to && !is_parent(from, to) && !is_parent(to, from) {
            graph.entry(from).or_default().insert(to);
        }
    }
    let cycles: BTreeSet<String> = cycles(&graph).iter().map(|files| files.join(" -> ")).collect();
    assert_none(&cycles);
}

#[test]
fn the_reliability_page_names_tests_that_exist() {
    let page = fs::read_to_string(root().join("docs/reliability.md")).unwrap();
    let quoted: Vec<_> = page
        .split('`')
        .skip(1)
        .step_by(2)
        .filter_map(|text| text.split_once("::"))
        .filter(|(file, _)| *file != "file")
        .collect();
    assert!(quoted.len() > 60, "{}", quoted.len());
    let sources = rust_files(&root().join("tests"));
    for (file, test) in quoted {
        let is_of_file = |path: &Path| {
            let parts = path.with_extension("");
            parts.components().any(|part| part.as_os_str() == file)
        };
        let is_there = sources
            .iter()
            .filter(|path| is_of_file(path))
            .any(|path| fs::read_to_string(path).is_ok_and(|source| source.contains(&format!("fn {test}("))));
        assert!(is_there, "docs/reliability.md names {file}::{test}, which is not there");
    }
    // Each of the 37 goals has its row.
    for goal in 1..=37 {
        assert!(page.contains(&format!("\n| {goal} | ")), "goal {goal}");
    }
}

#[test]
fn the_data_path_reads_configuration_and_never_its_text() {
    let source = Source::read();
    let end = MODULES.iter().position(|module| *module == END_OF_DATA_PATH).unwrap();
    let is_on_path = |file: &str| module_of(file) != "config" && MODULES[..=end].contains(&module_of(file));
    let breaches: BTreeSet<String> = source
        .imports()
        .filter(|(from, to)| is_on_path(from) && CONFIG_READERS.iter().any(|reader| to.starts_with(reader)))
        .map(|(from, to)| format!("{from} imports {to}"))
        .collect();
    assert_none(&breaches);
}

#[test]
fn pure_code_uses_no_runtime_socket_or_clock() {
    let source = Source::read();
    let mut breaches = BTreeSet::new();
    for pure in PURE {
        let files: Vec<_> = source.files.iter().filter(|(file, _)| is_in(file, pure)).collect();
        assert!(!files.is_empty(), "src/{pure} does not exist: update PURE");
        for (file, paths) in files {
            for path in paths.iter().filter(|path| IMPURE.iter().any(|impure| begins_with(path, impure))) {
                breaches.insert(format!("{file} uses {}", path.join("::")));
            }
        }
    }
    assert_none(&breaches);
}

#[test]
fn worn_words_only_become_fewer() {
    let place = root().join("src");
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for path in rust_files(&place) {
        let file = path.strip_prefix(&place).unwrap().with_extension("");
        *found.entry(module_of(file.to_str().unwrap()).to_owned()).or_default() +=
            worn(&fs::read_to_string(&path).unwrap());
    }
    let ceiling =
        |room: &str| WORN_CEILING.iter().find(|(name, _)| *name == room).map_or(0, |(_, ceiling)| *ceiling);
    let breaches = found.iter().filter(|(room, count)| **count > ceiling(room));
    assert_none(
        &breaches
            .map(|(room, count)| format!("src/{room} has {count} worn words, {} allowed", ceiling(room)))
            .collect(),
    );
}

#[test]
fn only_error_maps_failures_to_a_status() {
    let source = Source::read();
    let mut breaches = BTreeSet::new();
    for (file, paths) in source.files.iter().filter(|(file, _)| NO_STATUS_MAPPING.contains(&module_of(file)))
    {
        for path in paths.iter().map(|path| path.join("::")) {
            if STATUS_MAPPING.iter().any(|status| path.ends_with(status)) {
                breaches.insert(format!("{file} uses {path}"));
            }
        }
    }
    assert_none(&breaches);
}

/// A path by its segments; one that begins with `super` or `self` is written from `crate` on.
type Segments = Vec<String>;

/// The parsed source: files by module path (`relay/sse`, a module's own `mod.rs` is `relay`).
struct Source {
    files: BTreeMap<String, BTreeSet<Segments>>,
    /// What a module re-exports: its path and a name, and where that leads.
    reexports: BTreeMap<(String, String), Segments>,
}

impl Source {
    fn read() -> Self {
        let (mut files, mut reexports) = (BTreeMap::new(), BTreeMap::new());
        let src = root().join("src");
        for path in rust_files(&src) {
            let name = path.strip_prefix(&src).unwrap().with_extension("");
            let name = name.to_str().unwrap().replace('\\', "/");
            let module = name.strip_suffix("/mod").unwrap_or(&name).to_owned();
            if matches!(module.as_str(), "lib" | "main") || is_test_only(&module) {
                continue;
            }
            let file = syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap();
            let mut reader = Reader { module: &module, paths: BTreeSet::new(), reexports: &mut reexports };
            reader.visit_file(&file);
            files.insert(module.clone(), reader.paths);
        }
        Self { files, reexports }
    }

    /// Pairs of a file and a file that it imports.
    fn imports(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().flat_map(move |(from, paths)| {
            let to = paths.iter().filter_map(|path| self.definition(path));
            to.filter(move |to| *to != from.as_str()).map(move |to| (from.as_str(), to))
        })
    }

    /// The file in which what a `crate::` path names is defined.
    fn definition(&self, path: &[String]) -> Option<&str> {
        let mut path = path.to_vec();
        for _ in 0..MAX_REEXPORTS {
            let inside = path.strip_prefix(&["crate".to_owned()][..])?;
            let longest = (1..=inside.len())
                .rev()
                .map(|n| inside[..n].join("/"))
                .find(|m| self.files.contains_key(m))?;
            let depth = longest.split('/').count();
            let next =
                inside.get(depth).and_then(|name| self.reexports.get(&(longest.clone(), name.clone())));
            match next {
                Some(target) => path = target.iter().chain(&inside[depth + 1..]).cloned().collect(),
                None => return self.files.get_key_value(&longest).map(|(file, _)| file.as_str()),
            }
        }
        panic!("re-exports of {} have no end", path.join("::"))
    }
}

/// Collects the paths of one file.
struct Reader<'a> {
    module: &'a str,
    paths: BTreeSet<Segments>,
    reexports: &'a mut BTreeMap<(String, String), Segments>,
}

impl Reader<'_> {
    /// The same path from `crate` on; other crates' paths stay as they are.
    fn absolute(&self, path: &[String]) -> Segments {
        let mut base: Vec<String> = self.module.split('/').map(str::to_owned).collect();
        let mut rest = path;
        match path.first().map(String::as_str) {
            Some("self") => rest = &path[1..],
            Some("super") => {
                while rest.first().is_some_and(|segment| segment == "super") {
                    base.pop();
                    rest = &rest[1..];
                }
            }
            _ => return path.to_vec(),
        }
        std::iter::once("crate".to_owned()).chain(base).chain(rest.iter().cloned()).collect()
    }

    fn note(&mut self, path: &[String]) {
        let path = self.absolute(path);
        self.paths.insert(path);
    }

    fn use_tree(&mut self, tree: &syn::UseTree, before: &[String], is_public: bool) {
        let with = |name: &syn::Ident| before.iter().cloned().chain([name.to_string()]).collect::<Segments>();
        match tree {
            syn::UseTree::Path(path) => self.use_tree(&path.tree, &with(&path.ident), is_public),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.use_tree(tree, before, is_public));
            }
            syn::UseTree::Glob(_) => self.note(before),
            syn::UseTree::Name(name) if name.ident == "self" => self.note(before),
            syn::UseTree::Name(name) => self.used(&with(&name.ident), &name.ident, is_public),
            syn::UseTree::Rename(rename) => self.used(&with(&rename.ident), &rename.rename, is_public),
        }
    }

    fn used(&mut self, path: &[String], name: &syn::Ident, is_public: bool) {
        self.note(path);
        if is_public {
            let target = self.absolute(path);
            if target.first().is_some_and(|first| first == "crate") {
                self.reexports.insert((self.module.to_owned(), name.to_string()), target);
            }
        }
    }

    /// Paths in a macro's tokens, which are not parsed.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Segments = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.end_of_path(&mut path);
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                other => {
                    self.end_of_path(&mut path);
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        self.end_of_path(&mut path);
    }

    fn end_of_path(&mut self, path: &mut Segments) {
        if path.len() > 1 {
            self.note(path);
        }
        path.clear();
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = match item {
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Struct(item) => &item.attrs,
            syn::Item::Const(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if !attributes.iter().any(is_cfg_test) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let is_public = !matches!(item.vis, syn::Visibility::Inherited);
        self.use_tree(&item.tree, &[], is_public);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Segments = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if segments.len() > 1 {
            self.note(&segments);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        self.tokens(item.tokens.clone());
    }
}

fn is_cfg_test(attribute: &syn::Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return false };
    list.path.is_ident("cfg") && list.tokens.to_string() == "test"
}

/// Modules that their parent declares under `#[cfg(test)]`.
fn is_test_only(module: &str) -> bool {
    ["tests", "fixture", "scenarios", "study"].iter().any(|name| module.split('/').any(|part| part == *name))
}

/// Groups of files that reach each other.
fn cycles<'a>(graph: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Vec<Vec<&'a str>> {
    let reached = |from: &'a str| {
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut open = vec![from];
        while let Some(file) = open.pop() {
            open.extend(graph.get(file).into_iter().flatten().copied().filter(|to| seen.insert(*to)));
        }
        seen
    };
    let reach: BTreeMap<&str, BTreeSet<&str>> = graph.keys().map(|file| (*file, reached(file))).collect();
    let mut cycles: BTreeSet<Vec<&str>> = BTreeSet::new();
    for (file, to) in reach.iter().filter(|(file, to)| to.contains(*file)) {
        cycles.insert(
            to.iter().copied().filter(|other| reach.get(other).is_some_and(|r| r.contains(file))).collect(),
        );
    }
    cycles.into_iter().collect()
}

/// How many of [`WORN`] a text has; a phrase may run over the end of a line.
fn worn(text: &str) -> usize {
    let text = text.to_lowercase();
    let words: Vec<_> =
        text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|w| !w.is_empty()).collect();
    let is_at = |phrase: &str, start: usize| {
        phrase.split(' ').eq(words[start..].iter().copied().take(phrase.split(' ').count()))
    };
    (0..words.len()).map(|start| WORN.iter().filter(|phrase| is_at(phrase, start)).count()).sum()
}

fn module_of(file: &str) -> &str {
    file.split('/').next().unwrap()
}

fn is_in(file: &str, place: &str) -> bool {
    file.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn begins_with(path: &[String], start: &str) -> bool {
    start
        .split("::")
        .zip(path.iter().map(Some).chain(std::iter::repeat(None)))
        .all(|(a, b)| b.is_some_and(|b| a == b))
}

fn assert_none(breaches: &BTreeSet<String>) {
    assert!(breaches.is_empty(), "{}", breaches.iter().cloned().collect::<Vec<_>>().join("\n"));
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(place: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path());
    let nested = entries.flat_map(|path| if path.is_dir() { rust_files(&path) } else { vec![path] });
    nested.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

/// Longer chains of re-exports are a mistake of this test.
const MAX_REEXPORTS: usize = 8;
