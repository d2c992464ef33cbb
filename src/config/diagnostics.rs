//! What is wrong with a configuration, and where.
//!
//! A [`Diagnostic`] knows its file, line and column, the offending line, and what to do about it. All faults of a
//! file are reported at once, in the order of the file, so that one round of editing mends it. Values of secrets, and users
//! and passwords in URLs, are masked whatever the fault is: diagnostics end up in logs of CI and in answers of the admin API.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

use serde::Serialize;

/// One fault of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// The file's name, as it was given.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong: lower case, no full stop.
    pub message: String,
    /// What to do about it.
    pub hint: String,
    /// The offending line.
    pub source_line: String,
    /// Characters of that line which are at fault.
    pub width: usize,
}

impl Diagnostic {
    /// The diagnostic of a span of bytes in `text`.
    pub(crate) fn at(file: &str, text: &str, span: &Range<usize>, fault: Fault) -> Self {
        Source::new(file, text).diagnostic(span, fault)
    }
}

/// A file as diagnostics quote it; its lines are counted and masked once.
struct Source<'a> {
    file: &'a str,
    text: &'a str,
    /// Each line with the byte at which it starts, and what may be shown of it.
    lines: Vec<(usize, String)>,
}

impl<'a> Source<'a> {
    fn new(file: &'a str, text: &'a str) -> Self {
        let (mut start, mut masking) = (0, Masking::default());
        let lines = text.split('\n').map(|line| {
            let shown = masking.conceal(&line.trim_end_matches('\r').replace(is_unsafe, "\u{fffd}"));
            let at = start;
            start += line.len() + 1;
            (at, shown)
        });
        Self { file, text, lines: lines.collect() }
    }

    fn diagnostic(&self, span: &Range<usize>, fault: Fault) -> Diagnostic {
        let start = floor_char_boundary(self.text, span.start);
        let end = floor_char_boundary(self.text, span.end.max(start));
        let line = self.lines.partition_point(|(at, _)| *at <= start);
        let (line_start, shown) = self.lines.get(line - 1).map_or((0, ""), |(at, shown)| (*at, shown));
        let column = self.text.get(line_start..start).unwrap_or_default().chars().count() + 1;
        let marked = self.text.get(start..end).unwrap_or_default().lines().next().unwrap_or_default();
        let width = marked.chars().count().max(1);
        let source_line = if fault.is_secret { mask(shown, column, width) } else { shown.to_owned() };
        Diagnostic {
            file: self.file.to_owned(),
            line,
            column,
            message: conceal_urls(fault.message).replace(is_unsafe, "\u{fffd}"),
            hint: fault.hint,
            source_line,
            width: if fault.is_secret { MASK.len() } else { width },
        }
    }
}

/// A terminal would obey it.
fn is_unsafe(c: char) -> bool {
    c.is_control() && c != '\t'
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:{}:{}: {}", self.file, self.line, self.column, self.message)?;
        let gutter = self.line.to_string();
        writeln!(f, " {gutter} | {}", self.source_line)?;
        // Tabs stay tabs, so that the caret stands below its character whatever a tab's width is.
        let indent: String = self
            .source_line
            .chars()
            .take(self.column - 1)
            .map(|c| if c == '\t' { '\t' } else { ' ' })
            .collect();
        let blank = " ".repeat(gutter.len());
        writeln!(f, " {blank} | {indent}{}", "^".repeat(self.width))?;
        write!(f, "hint: {}", self.hint)
    }
}

/// What was found at these spans of bytes in `text`, in its order.
pub(crate) fn in_order(file: &str, text: &str, mut found: Vec<(Range<usize>, Fault)>) -> Vec<Diagnostic> {
    found.sort_by_key(|(span, _)| span.start);
    let source = Source::new(file, text);
    found.into_iter().map(|(span, fault)| source.diagnostic(&span, fault)).collect()
}

/// All faults of one configuration, in the order of the file; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostics {
    pub(crate) faults: Vec<Diagnostic>,
    /// Files that the configuration names, beside its own: when they change it may be without faults.
    pub(crate) files: Vec<PathBuf>,
}

impl Diagnostics {
    /// The faults in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Diagnostic> {
        self.faults.iter()
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, diagnostic) in self.faults.iter().enumerate() {
            if index > 0 {
                f.write_str("\n\n")?;
            }
            diagnostic.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

/// A fault that does not know its place yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub(crate) message: String,
    pub(crate) hint: String,
    /// Whether the value at fault must not be shown.
    pub(crate) is_secret: bool,
}

impl Fault {
    /// A fault whose value may be shown.
    pub(crate) fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into(), is_secret: false }
    }
}

/// The known word that `word` was most likely meant to be.
pub(crate) fn closest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let allowed = (word.chars().count() / 3).max(2);
    known
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), *candidate))
        .filter(|(distance, candidate)| *distance <= allowed && *distance < candidate.len())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `message`, with the likely word where there is one.
pub(crate) fn did_you_mean(message: String, word: &str, known: &[&str]) -> String {
    match closest(word, known) {
        Some(meant) => format!("{message}; did you mean \"{meant}\"?"),
        None => message,
    }
}

fn floor_char_boundary(text: &str, index: usize) -> usize {
    let mut index = index.min(text.len());
    while !text.is_char_boundary(index) {
        index -= 1;
    }
    index
}

/// Whether a key's value is a secret, in our configuration or in what somebody takes for it.
pub(crate) fn names_secret(key: &str) -> bool {
    SECRET_KEYS.contains(&key.to_ascii_lowercase().as_str())
}

/// Whether a value says where a secret is kept, and may be shown.
pub(crate) fn is_reference(value: &str) -> bool {
    value.starts_with("env:") || value.starts_with("file:")
}

/// What hides the values of [`SECRET_KEYS`], line after line.
#[derive(Default)]
struct Masking {
    /// Lists and tables that are open.
    depth: usize,
    /// The key whose value is hidden, and the depth at which it stands.
    secret: Option<(usize, String)>,
    /// The section, where all of its values are hidden.
    section: Option<String>,
}

impl Masking {
    /// The line with an asterisk for each character that is hidden, so that columns stay.
    fn conceal(&mut self, line: &str) -> String {
        if line.starts_with('[') && !line.contains(['=', ',']) {
            let header = line.split('#').next().unwrap_or_default().trim();
            let section = secret_in(header.trim_matches(['[', ']']));
            *self = Self { section, ..Self::default() };
            return conceal_urls(line.to_owned());
        }
        let mut shown: Vec<char> = line.chars().collect();
        let (mut word, mut at) = (0..0, 0);
        while let Some(&c) = shown.get(at) {
            at += 1;
            match c {
                '=' if self.secret.is_none() => {
                    let key: String = shown.get(word.clone()).unwrap_or_default().iter().collect();
                    let secret = self.section.clone().or_else(|| secret_in(&key));
                    self.secret = secret.map(|secret| (self.depth, secret));
                }
                '[' | '{' => self.depth += 1,
                ']' | '}' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.secret.take_if(|(depth, _)| self.depth < *depth);
                }
                ',' => drop(self.secret.take_if(|(depth, _)| *depth > 0 && self.depth == *depth)),
                '#' => break,
                c if c.is_whitespace() || c == '=' => {}
                _ => {
                    (word, at) = word_at(&shown, at - 1, &word);
                    let is_followed = shown.iter().skip(at).find(|c| !c.is_whitespace()) == Some(&'=');
                    self.hide(&mut shown, word.clone(), is_followed);
                }
            }
        }
        if self.depth == 0 {
            self.secret = None;
        }
        conceal_urls(shown.into_iter().collect())
    }

    /// Hides a value of a secret key, unless it says where the secret is kept; a PEM file's name is none. Of a webhook the path is
    /// the secret, of a table the values.
    fn hide(&self, shown: &mut [char], value: Range<usize>, is_followed: bool) {
        let Some((depth, key)) = &self.secret else { return };
        let Some(value) = shown.get_mut(value) else { return };
        let text: String = value.iter().collect();
        let is_key = is_followed && self.depth > *depth;
        if is_key || is_reference(&text) || text.ends_with(".pem") || text.ends_with(".key") {
            return;
        }
        let path = text.split_once("://").filter(|_| key == WEBHOOK).map_or(0, |(scheme, rest)| {
            let before = scheme.chars().count() + "://".len();
            before + rest.chars().position(|c| c == '/').map_or(rest.chars().count(), |at| at + 1)
        });
        value.iter_mut().skip(path).for_each(|c| *c = '*');
    }
}

/// The key or value that begins at a character, without its quotes, and where the text goes on. Quoted parts of a dotted
/// key go with those before.
fn word_at(line: &[char], start: usize, before: &Range<usize>) -> (Range<usize>, usize) {
    let length =
        |at: usize, is_part: &dyn Fn(char) -> bool| line.iter().skip(at).take_while(|c| is_part(**c)).count();
    match line.get(start) {
        Some(&quote @ ('"' | '\'')) => {
            let end = start + 1 + length(start + 1, &|c| c != quote);
            let is_part = before.end == start && line.get(..start).is_some_and(|line| line.ends_with(&['.']));
            (if is_part { before.start..end } else { start + 1..end }, end + 1)
        }
        _ => {
            let is_part = |c: char| !c.is_whitespace() && !"=,[]{}#\"'".contains(c);
            let end = start + length(start, &is_part).max(1);
            (start..end, end)
        }
    }
}

/// The part of a dotted key that names a secret.
fn secret_in(key: &str) -> Option<String> {
    let mut parts = key.split('.').map(|part| part.trim_matches(['"', '\'', ' ']).to_ascii_lowercase());
    parts.find(|part| names_secret(part))
}

/// The text with an asterisk for each character of a URL that may hold a credential: in front of its `@`, and of its query.
fn conceal_urls(text: String) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once("://") {
        let end = after.find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'')).unwrap_or(after.len());
        let (url, behind) = after.split_at(end);
        let (user, host) = url.split_at(url.rfind('@').unwrap_or(0));
        shown.push_str(before);
        shown.push_str("://");
        let (host, query) = host.split_at(host.find('?').map_or(host.len(), |at| at + 1));
        shown.extend(user.chars().map(|_| '*'));
        shown.push_str(host);
        shown.extend(query.chars().map(|_| '*'));
        rest = behind;
    }
    shown + rest
}

fn mask(line: &str, column: usize, width: usize) -> String {
    let head = line.chars().take(column - 1);
    let tail = line.chars().skip(column - 1 + width);
    head.chain(MASK.chars()).chain(tail).collect()
}

const MASK: &str = "\"***\"";
const WEBHOOK: &str = "webhook";
/// Those that `/api/config` masks are here, which a test holds.
const SECRET_KEYS: &[&str] = &[
    "api_key", "api_keys", "apikey", "authorization", "engine_api_key", "headers", "key", "key_sha256",
    "keys", "password", "read_token", "secret", "seed", "token", WEBHOOK, "x-api-key",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diagnostic_shows_its_place_its_line_and_a_hint() {
        let text = "a = 1\nnom = \"höh\" # x\n";
        let shown = Diagnostic::at("f.toml", text, &(12..18), Fault::new("bad value", "change it"));
        assert_eq!(
            shown.to_string(),
            "f.toml:2:7: bad value\n 2 | nom = \"höh\" # x\n   |       ^^^^^\nhint: change it"
        );
    }

    #[test]
    fn a_secret_is_masked_in_the_quoted_line() {
        let fault = Fault { is_secret: true, ..Fault::new("bad", "mend") };
        let shown = Diagnostic::at("f", "token = \"hunter2\" # x", &(8..17), fault).to_string();
        assert!(shown.contains("token = \"***\" # x") && !shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn no_secret_is_quoted_whatever_the_fault_is() {
        for (line, shown) in [
            ("key = \"sk-1\"", "key = \"****\""),
            ("  keys = [\"sk-1\", 'sk-2'] # two", "  keys = [\"****\", '****'] # two"),
            (
                "{ nam = \"a\", key_sha256 = [\"sk-1\"], weight = 1 }",
                "{ nam = \"a\", key_sha256 = [\"****\"], weight = 1 }",
            ),
            ("token = hunter2", "token = *******"),
            ("token = \"hunter2", "token = \"*******"),
            (
                "h = { Authorization = \"Bearer x\", a = \"b\" }",
                "h = { Authorization = \"********\", a = \"b\" }",
            ),
            ("\"token\" = \"env:TOKEN\"", "\"token\" = \"env:TOKEN\""),
            ("tls = { cert = \"a.pem\", key = \"a.key\" }", "tls = { cert = \"a.pem\", key = \"a.key\" }"),
            ("first_token = \"60s\"", "first_token = \"60s\""),
            ("webhook = \"http://a/x?token=t\"", "webhook = \"http://a/*********\""),
            ("webhook = \"http://a:1\"", "webhook = \"http://a:1\""),
            (
                "drift = { webhook = \"https://hooks/T0/s3cret\", wndow = 1 }",
                "drift = { webhook = \"https://hooks/*********\", wndow = 1 }",
            ),
            ("admin = {read_token=\"a\", listn = \"x\"}", "admin = {read_token=\"*\", listn = \"x\"}"),
            ("read_token = supersecret", "read_token = ***********"),
            ("routing = { seed = \"s\", polcy = \"p\" }", "routing = { seed = \"*\", polcy = \"p\" }"),
            (
                "otlp = { headers = { a = \"b\", \"c\" = \"d\" }, tmeout = \"1s\" }",
                "otlp = { headers = { a = \"*\", \"c\" = \"*\" }, tmeout = \"1s\" }",
            ),
            ("telemetry.otlp.headers.\"x-a\" = \"b\"", "telemetry.otlp.headers.\"x-a\" = \"*\""),
            ("url = \"http://u:pä@a:1/x\", 'https://b:2'", "url = \"http://****@a:1/x\", 'https://b:2'"),
        ] {
            assert_eq!(Masking::default().conceal(line), shown, "{line}");
        }
        let several = "keys = [\n  \"sk-1\",\n]\nname = \"a\"\n[telemetry.otlp.headers]\nx-a = \"b\"\n[server]\nlisten = \"c\"";
        let shown = Source::new("f", several).lines;
        let shown: Vec<_> = shown.iter().map(|(_, line)| line.as_str()).collect();
        assert_eq!(shown[1..4], ["  \"****\",", "]", "name = \"a\""]);
        assert_eq!(shown[5..], ["x-a = \"*\"", "[server]", "listen = \"c\""]);
        assert_eq!(conceal_urls("\"redis://:pw@h\" is not".to_owned()), "\"redis://***@h\" is not");
    }

    #[test]
    fn spans_at_the_edges_of_a_file_have_a_place() {
        for (text, span, line, column) in
            [("", 0..0, 1, 1), ("a\n", 2..2, 2, 1), ("a", 9..12, 1, 2), ("ü", 1..2, 1, 1)]
        {
            let shown = Diagnostic::at("f", text, &span, Fault::new("m", "h"));
            assert_eq!((shown.line, shown.column), (line, column), "{text:?} {span:?}");
        }
    }

    #[test]
    fn the_closest_word_is_suggested_and_a_far_one_is_not() {
        let known = ["listen", "tls", "body_limit"];
        assert_eq!(closest("lisen", &known), Some("listen"));
        assert_eq!(closest("body-limit", &known), Some("body_limit"));
        assert_eq!(closest("colour", &known), None);
    }
}
