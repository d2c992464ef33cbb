//! How the value of one key is written in the file and shown by `/api/config`.
//!
//! A declared key (`config::declare`) names its codec. What a codec does not show, such as a secret, the admin API
//! cannot give away.

use std::net::SocketAddr;
use std::num::{NonZeroU64, NonZeroUsize};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};

use crate::config::{Endpoint, Secret};
use crate::labels::Labelled;
use crate::units::Tokens;

use super::secret;
use super::section::{Item, Section};
use super::values::{Form, TARGET};

/// Both directions of a value: from the file, and to the admin API.
pub(in crate::config) trait Codec<T> {
    /// Reads the value; a fault is reported and leaves none.
    fn read(&self, item: &Item<'_>) -> Option<T>;

    /// What `/api/config` shows of it.
    fn show(&self, value: &T) -> Json;
}

impl Section<'_> {
    /// The value of a key; a call, because there are hundreds.
    #[inline(never)]
    pub(in crate::config) fn value<T>(&self, key: &'static str, codec: &dyn Codec<T>) -> Option<T> {
        codec.read(&self.get(key)?)
    }
}

/// Text in some form.
impl<T: Shown> Codec<T> for Form<T> {
    fn read(&self, item: &Item<'_>) -> Option<T> {
        item.parse(self)
    }

    fn show(&self, value: &T) -> Json {
        value.shown()
    }
}

/// A whole number within bounds, which lie within those of `T`.
impl<T: Whole> Codec<T> for RangeInclusive<i64> {
    fn read(&self, item: &Item<'_>) -> Option<T> {
        item.integer(self.clone()).and_then(T::of)
    }

    fn show(&self, value: &T) -> Json {
        value.shown()
    }
}

/// A member of a closed set, by its name; what messages call it.
pub(in crate::config) struct Word(pub(in crate::config) &'static str);

impl<T: Labelled> Codec<T> for Word {
    fn read(&self, item: &Item<'_>) -> Option<T> {
        Words(self.0, T::WORDS).read(item)
    }

    fn show(&self, value: &T) -> Json {
        Words(self.0, T::WORDS).show(value)
    }
}

/// One of a fixed set of words: what messages call it, and the words.
pub(in crate::config) struct Words<T: 'static>(
    pub(in crate::config) &'static str,
    pub(in crate::config) &'static [(&'static str, T)],
);

impl<T: Copy + PartialEq> Codec<T> for Words<T> {
    fn read(&self, item: &Item<'_>) -> Option<T> {
        item.one_of(self.0, self.1)
    }

    fn show(&self, value: &T) -> Json {
        self.1.iter().find(|(_, known)| known == value).map(|(word, _)| *word).into()
    }
}

pub(in crate::config) struct List<C>(pub(in crate::config) C);

impl<T, C: Codec<T>> Codec<Vec<T>> for List<C> {
    fn read(&self, item: &Item<'_>) -> Option<Vec<T>> {
        Some(item.list().iter().filter_map(|entry| self.0.read(entry)).collect())
    }

    fn show(&self, value: &Vec<T>) -> Json {
        value.iter().map(|entry| self.0.show(entry)).collect()
    }
}

/// A value that only its own section has.
pub(in crate::config) struct Own<T> {
    pub(in crate::config) read: fn(&Item<'_>) -> Option<T>,
    pub(in crate::config) show: fn(&T) -> Json,
}

impl<T> Codec<T> for Own<T> {
    fn read(&self, item: &Item<'_>) -> Option<T> {
        (self.read)(item)
    }

    fn show(&self, value: &T) -> Json {
        (self.show)(value)
    }
}

pub(in crate::config) const SWITCH: Own<bool> = Own { read: |item| item.boolean(), show: |on| json!(on) };

/// A share from 0 to 1.
pub(in crate::config) const SHARE: Own<f64> = Own { read: |item| item.ratio(), show: |share| json!(share) };

pub(in crate::config) const TEXT: Own<String> =
    Own { read: |item| item.text().map(Into::into), show: |text| json!(text) };

/// Plain text with something in it.
pub(in crate::config) const FILLED: Own<String> = Own { read: |item| item.filled().map(Into::into), ..TEXT };

/// Plain text that names something.
pub(in crate::config) const NAMED: Own<Arc<str>> =
    Own { read: |item| item.filled().map(Into::into), show: |text| json!(**text) };

/// A file that the gateway writes, or reads later.
pub(in crate::config) const FILE: Own<PathBuf> =
    Own { read: |item| item.path(), show: |path| json!(path.to_string_lossy()) };

/// A file that is written.
pub(in crate::config) const STATE_FILE: Own<PathBuf> = Own { read: |item| item.state_path(), ..FILE };

/// A file that lines are appended to, opened at the start.
pub(in crate::config) const LOG: Own<PathBuf> = Own { read: log, ..FILE };

/// `env:NAME` or `file:PATH`; never shown.
pub(in crate::config) const SECRET: Own<Secret> = Own { read: secret::read, show: |_| json!(MASK) };

/// Like [`SECRET`], or the text itself; never shown.
pub(in crate::config) const SEED: Own<Secret> = Own { read: secret::read_or_plain, ..SECRET };

/// The URL of a webhook: its path, often the secret, is never shown.
pub(in crate::config) const WEBHOOK: Own<Endpoint> =
    Own { read: |item| item.parse(&TARGET), show: |endpoint| json!(without_path(endpoint)) };

fn without_path(endpoint: &Endpoint) -> String {
    let base_path = if endpoint.base_path.is_empty() { "" } else { "/***" };
    Endpoint { base_path: base_path.into(), ..endpoint.clone() }.to_string()
}

/// The path of a file that lines are appended to.
pub(in crate::config) fn log(item: &Item<'_>) -> Option<PathBuf> {
    let path = item.path()?;
    if path.is_dir() {
        item.fault(format!("{} is a directory", path.display()), LOG_HINT);
        return None;
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty() && !parent.is_dir());
    let Some(parent) = parent else { return Some(path) };
    let message = format!("cannot write {}: {} is no directory", path.display(), parent.display());
    item.missing(message, LOG_HINT, ()).map(|()| path)
}

/// A value with one way to be shown.
pub(in crate::config) trait Shown {
    /// What `/api/config` shows: durations are seconds, sizes bytes.
    fn shown(&self) -> Json;
}

macro_rules! shown {
    ($($type:ty),* => |$value:ident| $shown:expr) => {
        $(impl Shown for $type {
            fn shown(&self) -> Json {
                let $value = self;
                json!($shown)
            }
        })*
    };
}

shown!(i32, u16, u32, u64, usize, NonZeroU64, NonZeroUsize => |number| number);
shown!(SocketAddr, Endpoint, String, Arc<str>, http::HeaderName => |text| text.to_string());
shown!([u8; 32] => |_digest| MASK);
shown!(http::HeaderValue => |text| text.to_str().unwrap_or_default());
shown!(Duration => |span| span.as_secs_f64());
shown!(Tokens => |tokens| tokens.0);

impl<T: Shown> Shown for Option<T> {
    fn shown(&self) -> Json {
        self.as_ref().map_or(Json::Null, Shown::shown)
    }
}

pub(in crate::config) trait Whole: Shown + Sized {
    /// The number, if the type has it.
    fn of(number: i64) -> Option<Self>;
}

macro_rules! whole {
    ($($type:ty),* => |$number:ident| $value:expr) => {
        $(impl Whole for $type {
            fn of(number: i64) -> Option<Self> {
                let $number = number.try_into().ok()?;
                $value
            }
        })*
    };
}

whole!(i32, u16, u32, u64, usize => |number| Some(number));
whole!(NonZeroU64, NonZeroUsize => |number| Self::new(number));
whole!(Tokens => |number| Some(Self(number)));

/// In place of a secret.
const MASK: &str = "***";

const LOG_HINT: &str = "name a file in a directory that is there";
