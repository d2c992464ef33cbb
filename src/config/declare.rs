//! Keys are declared once: what a section's declaration says is all that there is to say of its keys.
//!
//! From `section!` follow the type with its default, the reader with its faults, what `/api/config` shows, what a reload
//! keeps, the JSON Schema and the lines of `config/reference.toml`. What depends on other keys or sections is checked
//! beside the declaration, on values that were read.

use std::path::Path;

use serde_json::Value as Json;
use toml::de::DeTable;

use super::Overrides;
use super::check::codec::Codec;
use super::check::section::{Checking, Item, Section};

/// Declares a section.
///
/// ```text
/// section! {
///     /// only before the first content event
///     #[derive(Clone, Debug, PartialEq)]
///     pub struct Retry for "[retry]" {
///         /// at most this share of recent requests may be retries
///         budget: f64 as SHARE, default 0.1;
///         /// bearer token
///         token: Option<Secret> as SECRET, example "env:TOKEN", restart;
///     }
/// }
/// ```
///
/// `as` names the [`Codec`] of the value. Then stands what an absent key means: `default` as the file would write it;
/// nothing, with an `example` (an `Option`) or as an `empty` list; the defaults of a `section {}` below; or a fault, with
/// an example of what is `required`: the section's reader reports it with its own words, and goes on. `field @ "key"` names a key
/// that the field is not called after. Flags of a key: `restart` (a reload keeps the old value and warns), `hidden` (from `/api/config`). Behind the header `optional`
/// says that the section is off unless the file has it. Behind the keys `with` adds fields that are none: the section's reader
/// fills them in, from other sections. Doc comments are those of the reference, without their backticks.
macro_rules! section {
    (
        $(#[doc = $doc:literal])*
        $(#[derive($($derive:ident),*)])?
        $visible:vis struct $Section:ident for $header:literal $(, $optional:ident)? {
            $(
                $(#[doc = $key_doc:literal])*
                $key:ident $(@ $file:literal)?: $type:ty as $codec:expr, $state:ident $text:tt $(, $flag:ident)*;
            )*
        } $(with {
            $($(#[doc = $with_doc:literal])* $with:ident: $with_type:ty,)*
        })?
    ) => {
        #[doc = concat!("`", $header, "`")]
        #[doc = ""]
        $(#[doc = $doc])*
        $(#[derive($($derive),*)])?
        $visible struct $Section {
            $($(#[doc = $key_doc])* $visible $key: $type,)*
            $($($(#[doc = $with_doc])* $visible $with: $with_type,)*)?
        }

        impl Default for $Section {
            fn default() -> Self {
                // Read once: every check of a file needs it.
                static DEFAULT: std::sync::LazyLock<$Section> = std::sync::LazyLock::new(|| $Section {
                    $($key: $crate::config::declare::section!(@default $state $key $text $codec),)*
                    $($($with: Default::default(),)*)?
                });
                DEFAULT.clone()
            }
        }

        impl $crate::config::declare::Declared for $Section {
            const DECLARATION: $crate::config::declare::Declaration = $crate::config::declare::Declaration {
                header: $header,
                doc: &[$($doc),*],
                is_optional: false $(|| $crate::config::declare::section!(@is optional $optional))?,
                keys: &[$($crate::config::declare::Key {
                    name: $crate::config::declare::section!(@name $key $($file)?),
                    doc: &[$($key_doc),*],
                    value: stringify!($text),
                    state: $crate::config::declare::section!(@state $state),
                    needs_restart: false $(|| $crate::config::declare::section!(@is restart $flag))*,
                }),*],
            };

            fn read(section: &$crate::config::check::section::Section<'_>, default: &Self) -> Self {
                Self {
                    $($key: {
                        let value = section.value($crate::config::declare::section!(@name $key $($file)?), &$codec);
                        $crate::config::declare::section!(@or_default $state value, default.$key)
                    },)*
                    $($($with: default.$with.clone(),)*)?
                }
            }

            fn view(&self) -> serde_json::Value {
                let mut keys = serde_json::Map::new();
                $(if !(false $(|| $crate::config::declare::section!(@is hidden $flag))*) {
                    let name = $crate::config::declare::section!(@name $key $($file)?);
                    let value = $crate::config::declare::section!(@given $state self.$key);
                    $crate::config::declare::show(&mut keys, name, &$codec, value);
                })*
                keys.into()
            }

            #[allow(unused_variables, reason = "most sections need no restart")]
            fn keep_fixed(&mut self, old: &Self, fixed: &mut $crate::config::declare::Fixed) {
                $($(
                    $crate::config::declare::section!(
                        @keep $flag fixed, $header, stringify!($key), &mut self.$key, &old.$key
                    );
                )*)*
            }
        }
    };
    (@default default $key:ident $text:tt $codec:expr) => {
        $crate::config::declare::default_of(stringify!($key), stringify!($text), &$codec)
    };
    (@default required $key:ident $text:tt $codec:expr) => {
        $crate::config::declare::default_of(stringify!($key), stringify!($text), &$codec)
    };
    (@default $absent:ident $key:ident $text:tt $codec:expr) => { Default::default() };
    (@or_default example $value:ident, $default:expr) => { $value.or_else(|| $default.clone()) };
    (@or_default $state:ident $value:ident, $default:expr) => { $value.unwrap_or_else(|| $default.clone()) };
    (@name $key:ident) => { stringify!($key) };
    (@name $key:ident $file:literal) => { $file };
    (@given example $value:expr) => { $value.as_ref() };
    (@given $state:ident $value:expr) => { Some(&$value) };
    (@state default) => { $crate::config::declare::State::Default };
    (@state example) => { $crate::config::declare::State::Example };
    (@state required) => { $crate::config::declare::State::Required };
    (@state empty) => { $crate::config::declare::State::Example };
    (@state section) => { $crate::config::declare::State::Section };
    (@is restart restart) => { true };
    (@is hidden hidden) => { true };
    (@is optional optional) => { true };
    (@is restart hidden) => { false };
    (@is hidden restart) => { false };
    (@keep restart $fixed:ident, $header:literal, $key:expr, $new:expr, $old:expr) => {
        $fixed.keep_key($header, $key, $new, $old)
    };
    (@keep hidden $($unused:tt)*) => {};
}

pub(super) use section;

/// A section of which every key is declared.
pub(crate) trait Declared: Default {
    const DECLARATION: Declaration;

    /// What the file says, and `default` of the rest.
    fn read(section: &Section<'_>, default: &Self) -> Self;

    /// What `/api/config` shows.
    fn view(&self) -> Json;

    /// Keeps the old value of each key that is read once, at start.
    fn keep_fixed(&mut self, old: &Self, fixed: &mut Fixed);

    /// Reads the section below the one that has it.
    fn of(parent: &Section<'_>) -> Self {
        Self::read(&Self::open(parent), &Self::default())
    }

    /// The keys of an optional section, with the section for further checks; `None` where it is absent.
    fn opened<'a>(parent: &Section<'a>) -> Option<(Section<'a>, Self)> {
        let section = Self::open(parent);
        let read = section.is_present().then(|| Self::read(&section, &Self::default()))?;
        Some((section, read))
    }

    /// Opens the section below the one that has it.
    fn open<'a>(parent: &Section<'a>) -> Section<'a> {
        parent.section(Self::DECLARATION.key(), Self::DECLARATION.header)
    }
}

/// One declared key of what is shown.
#[inline(never)]
pub(super) fn show<T>(
    keys: &mut serde_json::Map<String, Json>,
    key: &str,
    codec: &dyn Codec<T>,
    value: Option<&T>,
) {
    put(keys, key, value.map_or(Json::Null, |value| codec.show(value)));
}

/// One key of what is shown; a call, because there are hundreds.
#[inline(never)]
pub(crate) fn put(keys: &mut serde_json::Map<String, Json>, key: &str, value: Json) {
    keys.insert(key.to_owned(), value);
}

/// What a declaration says, for everything but the type itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Declaration {
    /// `[pool.probe]`
    pub(crate) header: &'static str,
    /// Its doc comment, by lines.
    pub(crate) doc: &'static [&'static str],
    /// Whether nothing of it holds unless the file has it.
    pub(crate) is_optional: bool,
    /// Its keys, in the order of the reference.
    pub(crate) keys: &'static [Key],
}

impl Declaration {
    /// The header without brackets: `pool.probe`.
    pub(crate) fn path(&self) -> &'static str {
        self.header.trim_matches(['[', ']'])
    }

    /// What the reference says of it.
    pub(crate) fn note(&self) -> String {
        note(self.doc)
    }

    /// The key under which the section above has it: `probe`.
    pub(crate) fn key(&self) -> &'static str {
        self.path().rsplit('.').next().unwrap_or_default()
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    /// Its name in the file and of its field.
    pub(crate) name: &'static str,
    /// Its doc comment, by lines.
    pub(crate) doc: &'static [&'static str],
    /// Its default, or an example, in TOML, over as many lines as the compiler likes.
    pub(in crate::config) value: &'static str,
    /// What it means where the file has no such key.
    pub(crate) state: State,
    /// Whether a reload keeps its old value.
    pub(crate) needs_restart: bool,
}

impl Key {
    /// Its value in one line.
    pub(crate) fn value(&self) -> String {
        self.value.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// What the reference says of it.
    pub(crate) fn note(&self) -> String {
        note(self.doc) + if self.needs_restart { "; restart" } else { "" }
    }
}

/// What an absent key means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Its `value`.
    Default,
    /// Nothing; its `value` is an example.
    Example,
    /// A fault; its `value` is an example.
    Required,
    /// The defaults of a section of its own.
    Section,
}

fn note(doc: &[&str]) -> String {
    doc.iter().map(|line| line.trim().replace('`', "")).collect::<Vec<_>>().join(" ")
}

/// A section below, with its own declaration.
pub(super) struct Below;

impl<S: Declared> Codec<S> for Below {
    fn read(&self, item: &Item<'_>) -> Option<S> {
        Some(S::read(&item.section(S::DECLARATION.header)?, &S::default()))
    }

    fn show(&self, section: &S) -> Json {
        section.view()
    }
}

/// What an absent key means.
pub(super) fn default_of<T>(key: &'static str, text: &str, codec: &dyn Codec<T>) -> T {
    let mut value = None;
    read_alone(key, text, &mut |section| value = section.value(key, codec));
    value.expect("invariant: a declared default fits its codec; a test reads each")
}

fn read_alone(key: &str, text: &str, read: &mut dyn FnMut(&Section<'_>)) {
    let text = format!("{key} = {text}");
    let Ok(tree) = DeTable::parse(&text) else { return };
    let overrides = Overrides::default();
    let checking = Checking::new(Path::new(""), &|_| None, &overrides);
    read(&Section::open(&checking, "", 0..0, Some(tree.get_ref())));
}

/// Keeps old values of what only a restart changes, with a warning for each that differs.
#[derive(Default)]
pub(crate) struct Fixed {
    pub(super) warnings: Vec<String>,
}

impl Fixed {
    /// Keeps the old value of a key or section.
    pub(super) fn keep<T: Clone + PartialEq>(&mut self, key: &str, new: &mut T, old: &T) {
        if new != old {
            new.clone_from(old);
            self.warnings.push(format!("{key} changed and needs a restart: the old value stays"));
        }
    }

    /// Keeps the old value of a declared key.
    pub(super) fn keep_key<T: Clone + PartialEq>(&mut self, header: &str, key: &str, new: &mut T, old: &T) {
        self.keep(&format!("{}.{key}", header.trim_matches(['[', ']'])), new, old);
    }
}

#[cfg(test)]
mod tests;
