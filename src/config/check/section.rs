//! Reading one section of a file: typed values by key, faults with their places.
//!
//! Every reading function reports its fault and returns `None`, so that the caller goes on with a default and the
//! next fault is found as well; a configuration that was read with faults is thrown away at the end. A section knows
//! the keys that its reader requested: any other key in the file is unknown, so a key that nothing reads cannot pass.
//!
//! The text is read as a tree with spans and not by serde's derive, which stops at the first fault and says of a
//! string-or-table value only that "no variant matched".

use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::de::{DeTable, DeValue};

use crate::config::diagnostics::{Fault, did_you_mean, is_reference, names_secret};
use crate::config::{Overrides, PolicyName, Pool, state};

use super::shape::{Kind, Place, Shapes, Within};
use super::values::Form;

/// One check of one file: its inputs and its findings.
pub(in crate::config) struct Checking<'a> {
    /// Directory of the file: relative paths start there.
    pub(in crate::config) directory: &'a Path,
    pub(in crate::config) env: &'a dyn Fn(&str) -> Option<String>,
    /// Flags, which win over the file.
    pub(in crate::config) overrides: &'a Overrides,
    /// Faults found so far.
    pub(in crate::config) faults: RefCell<Vec<(Range<usize>, Fault)>>,
    /// What is worth a look and no fault.
    pub(in crate::config) warnings: RefCell<Vec<(Range<usize>, Fault)>>,
    /// Files that keys name to be read.
    pub(in crate::config) inputs: RefCell<Vec<PathBuf>>,
    /// Every requested key, with what it was read as.
    pub(in crate::config) shapes: RefCell<Shapes>,
}

impl<'a> Checking<'a> {
    /// A check that has found nothing yet.
    pub(in crate::config) fn new(
        directory: &'a Path,
        env: &'a dyn Fn(&str) -> Option<String>,
        overrides: &'a Overrides,
    ) -> Self {
        Self {
            directory,
            env,
            overrides,
            faults: RefCell::default(),
            warnings: RefCell::default(),
            inputs: RefCell::default(),
            shapes: RefCell::default(),
        }
    }

    /// Notes what is no fault and yet hardly meant.
    pub(in crate::config) fn warn(&self, span: &Range<usize>, fault: Fault) {
        self.warnings.borrow_mut().push((span.clone(), fault));
    }

    /// Notes what a place is read as.
    fn record(&self, place: Place<'_>, kind: Kind) {
        self.shapes.borrow_mut().record(place, kind);
    }

    pub(in crate::config) fn report(&self, span: &Range<usize>, fault: Fault) {
        self.faults.borrow_mut().push((span.clone(), fault));
    }
}

/// One section; an absent one has no keys.
pub(crate) struct Section<'a> {
    /// The check that it belongs to.
    pub(in crate::config) checking: &'a Checking<'a>,
    /// Its header or inline table.
    pub(in crate::config) span: Range<usize>,
    /// How messages call it: `[server]`, `[[pool]]`.
    header: &'static str,
    table: Option<&'a DeTable<'a>>,
    requested: RefCell<Vec<&'static str>>,
}

impl<'a> Section<'a> {
    /// Opens a section; its reader must request every possible key before it is dropped.
    pub(in crate::config) fn open(
        checking: &'a Checking<'a>,
        header: &'static str,
        span: Range<usize>,
        table: Option<&'a DeTable<'a>>,
    ) -> Self {
        Self { checking, span, header, table, requested: RefCell::default() }
    }

    /// Whether the file has it.
    pub(in crate::config) fn is_present(&self) -> bool {
        self.table.is_some()
    }

    /// Every key that is there.
    pub(in crate::config) fn items(&self) -> impl Iterator<Item = Item<'a>> + use<'a> {
        let header = self.header;
        entries(self.checking, self.table, move |key| Place { header, key, within: Within::Itself })
    }

    pub(in crate::config) fn get(&self, key: &'static str) -> Option<Item<'a>> {
        self.requested.borrow_mut().push(key);
        self.items().find(|item| item.key == key)
    }

    /// The value under a path of keys, in the entry `at` where the first of them is a list, without reading it: for what is
    /// found when all was read.
    pub(in crate::config) fn peek(&self, path: &[&str], mut at: usize) -> Option<Item<'a>> {
        let (first, below) = path.split_first()?;
        let first = self.items().find(|item| item.key == *first)?;
        below.iter().try_fold(first, |item, key| item.peek(key, std::mem::take(&mut at)))
    }

    /// A value written as text in some form.
    pub(in crate::config) fn parse<T>(&self, key: &'static str, form: &Form<T>) -> Option<T> {
        self.get(key)?.parse(form)
    }

    /// Like [`Section::parse`], for a key without which the section means nothing.
    pub(in crate::config) fn require<T>(&self, key: &'static str, form: &Form<T>) -> Option<T> {
        self.expect(key, form.hint);
        self.parse(key, form)
    }

    /// Reports a key that is missing; `hint` says how to write it.
    pub(in crate::config) fn expect(&self, key: &'static str, hint: &str) {
        self.checking.shapes.borrow_mut().require(self.header, key);
        if self.get(key).is_none() {
            self.fault(format!("{} has no \"{key}\"", self.header), hint);
        }
    }

    /// The entries of a list; none where the key is absent.
    pub(in crate::config) fn list(&self, key: &'static str) -> Vec<Item<'a>> {
        self.get(key).map(|item| item.list()).unwrap_or_default()
    }

    pub(in crate::config) fn section(&self, key: &'static str, header: &'static str) -> Section<'a> {
        let absent = || Section::open(self.checking, header, self.span.clone(), None);
        self.get(key).and_then(|item| item.section(header)).unwrap_or_else(absent)
    }

    /// The sections of an array of tables.
    pub(in crate::config) fn sections(&self, key: &'static str, header: &'static str) -> Vec<Section<'a>> {
        self.list(key).into_iter().filter_map(|item| item.section(header)).collect()
    }

    /// Reports a name that an earlier section of its kind has.
    pub(in crate::config) fn expect_unique(
        &self,
        what: &str,
        name: &Arc<str>,
        names: &mut HashSet<Arc<str>>,
    ) {
        if !names.insert(Arc::clone(name)) {
            self.fault(
                format!("two {what}s are named \"{name}\""),
                format!("give each {what} a name of its own"),
            );
        }
    }

    /// Reports a fault of the first of these keys that is there, if there is one.
    pub(in crate::config) fn fault_if(
        &self,
        is_wrong: bool,
        keys: &[&'static str],
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        if let Some(item) = keys.iter().find_map(|key| self.get(key)).filter(|_| is_wrong) {
            item.fault(message, hint);
        }
    }

    /// Reports a fault of the section as a whole.
    pub(in crate::config) fn fault(&self, message: impl Into<String>, hint: impl Into<String>) {
        self.checking.report(&self.span, Fault::new(message, hint));
    }
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        // Readers may ask for a key several times.
        let mut requested = self.requested.take();
        let mut seen = HashSet::new();
        requested.retain(|key| seen.insert(*key));
        for item in self.items().filter(|item| !requested.contains(&item.key)) {
            let message = format!("unknown key \"{}\" in {}", item.key, self.header);
            let message = did_you_mean(message, item.key, &requested);
            item.fault_at_key(message, format!("{} knows: {}", self.header, requested.join(", ")));
        }
        let mut shapes = self.checking.shapes.borrow_mut();
        for key in requested {
            shapes.know(self.header, key);
        }
    }
}

/// One value with its key and its place.
#[derive(Clone)]
pub(in crate::config) struct Item<'a> {
    /// The check that it belongs to.
    pub(in crate::config) checking: &'a Checking<'a>,
    /// Its key; that of the list for an entry of a list.
    pub(in crate::config) key: &'a str,
    /// Which key of the schema it is a value of.
    place: Place<'a>,
    pub(in crate::config) span: Range<usize>,
    pub(in crate::config) value: &'a DeValue<'a>,
    key_span: Range<usize>,
}

impl<'a> Item<'a> {
    fn record(&self, kind: Kind) {
        self.checking.record(self.place, kind);
    }

    /// A value written as text in some form.
    pub(in crate::config) fn parse<T>(&self, form: &Form<T>) -> Option<T> {
        self.record(Kind::Text { hint: form.hint });
        let Some(text) = self.value.as_str() else {
            self.wrong_type(form.noun, form.hint);
            return None;
        };
        match (form.parse)(text) {
            Ok(value) => Some(value),
            Err(message) => {
                self.fault(message, form.hint);
                None
            }
        }
    }

    pub(in crate::config) fn text(&self) -> Option<&'a str> {
        self.record(Kind::Text { hint: "" });
        self.plain_text()
    }

    /// Text that is not empty.
    pub(in crate::config) fn filled(&self) -> Option<&'a str> {
        let text = self.text()?;
        if text.is_empty() {
            self.fault(format!("{} is empty", self.key), "write it between the quotes, or leave the key out");
        }
        Some(text).filter(|text| !text.is_empty())
    }

    /// A path, relative to the file's directory.
    pub(in crate::config) fn path(&self) -> Option<PathBuf> {
        Some(self.checking.directory.join(self.filled()?))
    }

    /// The path of a file that is written: relative to the directory that the service manager gives for such, else to the file's, which
    /// packages mount read-only.
    pub(in crate::config) fn state_path(&self) -> Option<PathBuf> {
        let given = state::directory_given(self.checking.env);
        Some(given.as_deref().unwrap_or(self.checking.directory).join(self.filled()?))
    }

    /// The path of a file that is read, relative to the file's directory: no key has it written ([`super::files`]).
    pub(in crate::config) fn input(&self, path: &str) -> PathBuf {
        let path = self.checking.directory.join(path);
        self.checking.inputs.borrow_mut().push(path.clone());
        path
    }

    fn plain_text(&self) -> Option<&'a str> {
        let text = self.value.as_str();
        if text.is_none() {
            self.wrong_type("a string", "put it into quotes");
        }
        text
    }

    /// A number; `expected` and `hint` are for a value of another type.
    pub(in crate::config) fn number(&self, expected: &str, hint: &str) -> Option<f64> {
        self.record(Kind::Number);
        self.any_number(expected, hint)
    }

    fn any_number(&self, expected: &str, hint: &str) -> Option<f64> {
        match self.value {
            DeValue::Float(float) => float.as_str().parse().ok(),
            DeValue::Integer(integer) => integer.as_str().parse().ok(),
            _ => {
                self.wrong_type(expected, hint);
                None
            }
        }
    }

    pub(super) fn boolean(&self) -> Option<bool> {
        self.record(Kind::Boolean);
        let value = self.value.as_bool();
        if value.is_none() {
            self.wrong_type("true or false", "write it without quotes");
        }
        value
    }

    /// A share from 0 to 1.
    pub(in crate::config) fn ratio(&self) -> Option<f64> {
        self.record(Kind::Ratio);
        let number = self.any_number("a number from 0 to 1", "write a share without quotes: 0.1")?;
        let share = Some(number).filter(|n| (0.0..=1.0).contains(n));
        if share.is_none() {
            let hint = "write a share of the whole: 0.1 is a tenth";
            self.fault(format!("{} must be from 0 to 1", self.key), hint);
        }
        share
    }

    pub(in crate::config) fn integer(&self, bounds: RangeInclusive<i64>) -> Option<i64> {
        self.record(Kind::Integer { least: *bounds.start(), most: *bounds.end() });
        let DeValue::Integer(integer) = self.value else {
            self.wrong_type("a whole number", "write it without quotes, fraction or unit");
            return None;
        };
        let number = i64::from_str_radix(integer.as_str(), integer.radix()).ok();
        let number = number.filter(|n| bounds.contains(n));
        if number.is_none() {
            let (least, most) = bounds.into_inner();
            let hint =
                if most == i64::MAX { format!("{least} or more") } else { format!("from {least} to {most}") };
            self.fault(format!("{} is out of range", self.key), hint);
        }
        number
    }

    /// One of a fixed set of words.
    pub(in crate::config) fn one_of<T: Copy>(&self, what: &str, known: &[(&'static str, T)]) -> Option<T> {
        self.record(Kind::Word(known.iter().map(|(word, _)| *word).collect()));
        let text = self.plain_text()?;
        let found = known.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        if found.is_none() {
            let words: Vec<_> = known.iter().map(|(word, _)| *word).collect();
            self.fault_unknown(what, text, &words, format!("known: {}", words.join(", ")));
        }
        found
    }

    /// One of the things that the file names elsewhere: its place among `known`.
    pub(in crate::config) fn place_of(&self, what: &str, name: &str, known: &[&str]) -> Option<usize> {
        let found = known.iter().position(|known| *known == name);
        if found.is_none() {
            self.fault_unknown(what, name, known, format!("{what}s of this file: {}", known.join(", ")));
        }
        found
    }

    /// The pool that it names: its place among `known`.
    pub(in crate::config) fn pool_of(&self, known: &[Pool]) -> Option<usize> {
        let names: Vec<_> = known.iter().map(|pool| &*pool.name).collect();
        self.place_of("pool", self.text()?, &names)
    }

    /// Reports a word that is not one of `known`.
    pub(in crate::config) fn fault_unknown(
        &self,
        what: &str,
        word: &str,
        known: &[&str],
        hint: impl Into<String>,
    ) {
        let elsewhere = (what == "policy").then(|| PolicyName::from_elsewhere(word)).flatten();
        let message = match elsewhere {
            Some(policy) => format!("\"{word}\" is called \"{}\" here", policy.as_str()),
            None => did_you_mean(format!("unknown {what} \"{word}\""), word, known),
        };
        self.fault(message, hint);
    }

    pub(in crate::config) fn list(&self) -> Vec<Item<'a>> {
        self.record(Kind::List);
        let Some(array) = self.value.as_array() else {
            let is_table = self.value.as_table().is_some();
            let hint = if is_table {
                "double the brackets of its header: [[ … ]]"
            } else {
                "put it into brackets: [ … ]"
            };
            self.wrong_type("a list", hint);
            return Vec::new();
        };
        let entry = |value: &'a toml::Spanned<DeValue<'a>>| Item {
            span: value.span(),
            value: value.get_ref(),
            place: Place { within: Within::List, ..self.place },
            ..self.clone()
        };
        array.iter().map(entry).collect()
    }

    /// Whether it is a list without entries.
    pub(in crate::config) fn is_empty_list(&self) -> bool {
        self.value.as_array().is_some_and(|array| array.is_empty())
    }

    /// The entries of a table whose keys are free; `expected` and `hint` are for a value of another type.
    pub(in crate::config) fn entries(
        &self,
        expected: &str,
        hint: &str,
    ) -> impl Iterator<Item = Item<'a>> + use<'a> {
        self.record(Kind::Table);
        if self.value.as_table().is_none() {
            self.wrong_type(expected, hint);
        }
        let place = Place { within: Within::Table, ..self.place };
        entries(self.checking, self.value.as_table(), move |_| place)
    }

    /// The value of a key of a table, or of the entry of a list at a place, without reading it.
    pub(in crate::config) fn peek(&self, key: &str, at: usize) -> Option<Item<'a>> {
        let array = self.value.as_array();
        if let Some(value) = array.and_then(|array| array.get(at)) {
            return Item { span: value.span(), value: value.get_ref(), ..self.clone() }.peek(key, 0);
        }
        let place = self.place;
        entries(self.checking, self.value.as_table(), move |_| place).find(|item| item.key == key)
    }

    /// Notes the types that it may have, where which one it has decides how it is read.
    pub(in crate::config) fn accepts(&self, kinds: impl IntoIterator<Item = Kind>) {
        for kind in kinds {
            self.record(kind);
        }
    }

    /// Reports a secret that is not on this machine; `None` unless that is tolerated.
    pub(in crate::config) fn missing<T>(
        &self,
        message: String,
        hint: &'static str,
        stand_in: T,
    ) -> Option<T> {
        if self.checking.overrides.allow_missing_secrets {
            self.checking.warn(&self.span, Fault::new(message, "the gateway does not start without it"));
            return Some(stand_in);
        }
        self.fault(message, hint);
        None
    }

    pub(in crate::config) fn section(&self, header: &'static str) -> Option<Section<'a>> {
        self.record(Kind::Section { header });
        let table = self.value.as_table();
        if table.is_none() {
            self.wrong_type("a table", format!("write {header} as a table, as in config/reference.toml"));
        }
        // An empty span is that of a table which only its subtables made: the key is the better place.
        let span = if self.span.is_empty() { self.key_span.clone() } else { self.span.clone() };
        table.map(|table| Section::open(self.checking, header, span, Some(table)))
    }

    /// Whether the file writes exactly this.
    pub(in crate::config) fn is_written(&self, text: &str) -> bool {
        match self.value {
            DeValue::String(string) => string == text,
            DeValue::Integer(integer) => integer.as_str() == text,
            DeValue::Boolean(value) => value.to_string() == text,
            _ => false,
        }
    }

    /// Reports a fault of the value.
    pub(in crate::config) fn fault(&self, message: impl Into<String>, hint: impl Into<String>) {
        let secret = self.value.as_str().filter(|text| names_secret(self.key) && !is_reference(text));
        let message: String = message.into();
        let message = match secret {
            Some(text) => message.replace(&format!("\"{text}\""), "\"***\""),
            None => message,
        };
        // An entry of a list may stand on a line without its key.
        self.checking.report(&self.span, Fault { is_secret: secret.is_some(), ..Fault::new(message, hint) });
    }

    /// Reports a fault of the value, which must not be shown.
    pub(in crate::config) fn fault_masked(&self, message: impl Into<String>, hint: impl Into<String>) {
        self.checking.report(&self.span, Fault { is_secret: true, ..Fault::new(message, hint) });
    }

    /// Warns of a secret that stands in the file itself, where that has always been taken.
    pub(in crate::config) fn warn_of_plain_secret(&self, message: &str, hint: &str) {
        let is_plain = self.value.as_str().is_some_and(|text| !is_reference(text));
        if is_plain {
            self.checking.warn(&self.span, Fault { is_secret: true, ..Fault::new(message, hint) });
        }
    }

    /// Reports that the key itself is at fault.
    pub(in crate::config) fn fault_at_key(&self, message: impl Into<String>, hint: impl Into<String>) {
        self.checking.report(&self.key_span, Fault::new(message, hint));
    }

    /// Reports a value of another type.
    pub(in crate::config) fn wrong_type(&self, expected: &str, hint: impl Into<String>) {
        let found = match self.value {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "a whole number",
            DeValue::Float(_) => "a number",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        self.fault(format!("{}: expected {expected}, found {found}", self.key), hint);
    }
}

fn entries<'a, F>(
    checking: &'a Checking<'a>,
    table: Option<&'a DeTable<'a>>,
    place: F,
) -> impl Iterator<Item = Item<'a>> + use<'a, F>
where
    F: Fn(&'a str) -> Place<'a>,
{
    table.into_iter().flatten().map(move |(key, value)| Item {
        checking,
        key: key.get_ref(),
        place: place(key.get_ref()),
        key_span: key.span(),
        span: value.span(),
        value: value.get_ref(),
    })
}
