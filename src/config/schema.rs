//! A JSON Schema of the configuration, for editors: `tokenway schema`.
//!
//! Keys and types are what the checker itself notes while it reads the reference with every optional key switched on;
//! descriptions and defaults are those that the reference states. So there is no second list of keys to keep. The schema
//! knows types, words and bounds; what depends on other keys only `tokenway check` finds.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::check::shape::{Kind, Place, Shapes, Within};
use super::check::{ROOT, shapes_of};
use super::declare::{Declaration, State};
use super::reference::DECLARED;
use crate::whole_file::unpacked;

/// The schema, draft 7: what editors for TOML read.
pub fn json_schema() -> Value {
    let shapes = shapes_of(&[&every_key(), OTHER_FORMS]);
    let mut schema = Writer { shapes: &shapes, notes: notes(&unpacked(REFERENCE)) }.section(ROOT);
    schema["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    schema["title"] = "Configuration of tokenway".into();
    schema
}

/// The schema of one declared section.
#[cfg(test)]
pub(super) fn section_schema(declaration: &Declaration, shapes: &Shapes) -> Value {
    let mut notes = BTreeMap::new();
    describe(declaration, &mut notes);
    Writer { shapes, notes }.section(declaration.header)
}

struct Writer<'a> {
    shapes: &'a Shapes,
    notes: BTreeMap<(String, String), Note>,
}

impl Writer<'_> {
    /// A table with the keys of a section.
    fn section(&self, header: &'static str) -> Value {
        let keys: Vec<_> = self.shapes.keys().filter(|(section, _)| *section == header).collect();
        let mut properties = Map::new();
        for (_, key) in &keys {
            let mut value = self.value(Place { header, key, within: Within::Itself });
            if let Some(note) = self.notes.get(&(bare(header).to_owned(), (*key).to_owned())) {
                note.describe(&mut value);
            }
            properties.insert((*key).to_owned(), value);
        }
        let required: Vec<_> =
            keys.iter().map(|(_, key)| *key).filter(|key| self.shapes.is_required(header, key)).collect();
        let mut section =
            json!({ "type": "object", "additionalProperties": false, "properties": properties });
        if !required.is_empty() {
            section["required"] = required.into();
        }
        section
    }

    /// A value of any of the types that its place is read as; without one, of any type.
    fn value(&self, place: Place<'_>) -> Value {
        let mut forms: Vec<Value> = Vec::new();
        for kind in self.shapes.kinds(place) {
            let form = self.form(kind, place);
            if !forms.contains(&form) {
                forms.push(form);
            }
        }
        let texts = forms.iter().filter(|form| form["type"] == "string").count();
        if texts > 1 {
            // The text without a form is the one that takes every other.
            forms.retain(|form| form["type"] != "string" || form.get("description").is_some());
            forms.dedup_by(|later, first| later["type"] == "string" && first["type"] == "string");
        }
        match forms.len() {
            0 => json!({}),
            1 => forms.remove(0),
            _ => json!({ "anyOf": forms }),
        }
    }

    fn form(&self, kind: &Kind, place: Place<'_>) -> Value {
        match kind {
            Kind::Text { hint: "" } => json!({ "type": "string" }),
            Kind::Text { hint } => json!({ "type": "string", "description": hint }),
            Kind::Word(words) => json!({ "type": "string", "enum": words }),
            Kind::Boolean => json!({ "type": "boolean" }),
            Kind::Integer { least, most: i64::MAX } => json!({ "type": "integer", "minimum": least }),
            Kind::Integer { least, most } => {
                json!({ "type": "integer", "minimum": least, "maximum": most })
            }
            Kind::Ratio => json!({ "type": "number", "minimum": 0, "maximum": 1 }),
            Kind::Number => json!({ "type": "number" }),
            Kind::List => {
                json!({ "type": "array", "items": self.value(Place { within: Within::List, ..place }) })
            }
            Kind::Table => {
                let values = self.value(Place { within: Within::Table, ..place });
                json!({ "type": "object", "additionalProperties": values })
            }
            Kind::Section { header } => self.section(header),
        }
    }
}

/// What the reference says of a key.
#[derive(Debug, Default)]
struct Note {
    text: String,
    default: Option<Value>,
}

impl Note {
    fn describe(&self, schema: &mut Value) {
        let form = schema.get("description").and_then(Value::as_str).unwrap_or_default();
        let said: Vec<_> = [self.text.as_str(), form].into_iter().filter(|text| !text.is_empty()).collect();
        if !said.is_empty() {
            schema["description"] = said.join("\n").into();
        }
        if let Some(default) = &self.default {
            schema["default"] = default.clone();
        }
    }
}

/// The note of every key that has a line of its own, by section and key.
fn notes(reference: &str) -> BTreeMap<(String, String), Note> {
    let mut notes = BTreeMap::new();
    let mut section = ROOT.to_owned();
    let mut is_example = false;
    for line in reference.lines() {
        let optional = optional_key(line);
        let (code, comment) = split_comment(optional.unwrap_or(line));
        if let Some(header) = code.strip_prefix('[') {
            section = bare(header.trim_end_matches(']')).to_owned();
            if section.starts_with("slo.") {
                section = "slo.*".to_owned();
            }
            // Keys of a list's entries, and of what is off, are examples.
            is_example = header.starts_with('[') || section == "slo.*" || optional.is_some();
        } else if let Some((key, value)) = code.split_once(" = ") {
            let default = (optional.is_none() && !is_example).then(|| literal(value)).flatten();
            let note = Note { text: comment.to_owned(), default };
            notes.entry((section.clone(), key.trim().to_owned())).or_insert(note);
        }
    }
    DECLARED.iter().for_each(|declaration| describe(declaration, &mut notes));
    notes
}

/// Adds the notes of a declared section.
fn describe(declaration: &Declaration, notes: &mut BTreeMap<(String, String), Note>) {
    let (above, name) = declaration.path().rsplit_once('.').unwrap_or((ROOT, declaration.path()));
    let note = Note { text: declaration.note(), default: None };
    notes.entry((above.to_owned(), name.to_owned())).or_insert(note);
    for key in declaration.keys {
        let has_default = key.state == State::Default && !declaration.is_optional;
        let default = if has_default { literal(&key.value()) } else { None };
        let note = Note { text: key.note(), default };
        notes.insert((declaration.path().to_owned(), key.name.to_owned()), note);
    }
}

fn literal(value: &str) -> Option<Value> {
    let parsed: toml::Table = format!("value = {value}").parse().ok()?;
    serde_json::to_value(parsed.get("value")?).ok()
}

/// A line of TOML, and the comment after it.
fn split_comment(line: &str) -> (&str, &str) {
    let mut is_quoted = false;
    let mut before = ' ';
    for (at, c) in line.char_indices() {
        match c {
            '"' if before != '\\' => is_quoted = !is_quoted,
            '#' if !is_quoted => return (line[..at].trim(), line[at + 1..].trim()),
            _ => {}
        }
        before = c;
    }
    (line.trim(), "")
}

/// The reference with every key that it shows in a comment.
pub(super) fn every_key() -> String {
    let reference = unpacked(REFERENCE);
    let lines: Vec<_> = reference.lines().map(|line| optional_key(line).unwrap_or(line)).collect();
    lines.join("\n")
}

/// The key or header that a comment shows.
pub(super) fn optional_key(line: &str) -> Option<&str> {
    let shown = line.strip_prefix("# ")?;
    let is_key = shown.split_once(" = ").is_some_and(|(key, _)| {
        !key.is_empty() && key.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    });
    (is_key || shown.starts_with('[')).then_some(shown)
}

/// `[[pool]]` as `pool`.
fn bare(header: &str) -> &str {
    header.trim_matches(['[', ']'])
}

const REFERENCE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/reference.toml.gz"));

/// Entries of lists and tables that the reference shows empty or in prose.
const OTHER_FORMS: &str = "\
[server]
extra_paths = [\"/v1/custom\"]
trust_headers = [\"x-tenant\"]
[[pool]]
name = \"p\"
replicas = [{ url = \"http://127.0.0.1:1\", zone = \"a\", dcgm = \"http://a:9400/metrics\" }]
dcgm = { url = \"http://a:9400/metrics\", labels = { gpu = \"0\" } }
dns = { url = \"http://a:1\", server = \"127.0.0.1:53\" }
kubernetes = { namespace = \"n\", service = \"s\", port = \"http\", scheme = \"http\", api = \"http://127.0.0.1:1\" }
revision_info = { image = \"i\" }
[pool.warmup]
prompts = [\"p\"]
features = [\"logprobs\"]
[pool.engine_profile]
batch_limit = [\"m\"]
[[pool]]
name = \"q\"
kubernetes = { namespace = \"n\", inference_pool = \"p\" }
[[route]]
model = \"m\"
[route.canary]
pool = \"p\"
max_ttft_ratio = { p50 = 1.2, p99 = 1.2 }
max_itl_ratio = { p50 = 1.2, p99 = 1.2 }
max_tpot_ratio = { p50 = 1.2, p99 = 1.2 }
[route.degrade.when]
tenants = [\"t\"]
max_priority = 0
[telemetry.otlp]
headers = { x = \"1\" }
[drift]
state = false
";

#[cfg(test)]
mod tests;
