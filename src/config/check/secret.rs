//! Secrets: named in the file, kept elsewhere.
//!
//! A file is copied, committed and shown; so a secret stands in it as `env:NAME` or `file:PATH` only. What is wrong
//! with one is reported without its value.

use std::path::PathBuf;

use http::HeaderValue;

use crate::config::Secret;
use crate::config::diagnostics::is_reference;

use super::section::Item;
use crate::whole_file;

/// The secret that an item names, which goes out and comes in as a header.
pub(in crate::config) fn read(item: &Item<'_>) -> Option<Secret> {
    let text = item.text()?;
    let secret = resolve(item, text);
    if secret.is_none() && !is_reference(text) {
        item.fault_masked("a secret does not belong into the file", HINT);
    }
    if secret.as_ref().is_some_and(|secret| HeaderValue::from_str(secret.reveal()).is_err()) {
        item.fault(format!("{text} has a line break or another control character inside"), ONE_LINE);
        return None;
    }
    // Headers lose them on their way (RFC 9110, section 5.5).
    let secret = Secret::new(secret?.reveal().trim_matches([' ', '\t']));
    if secret.reveal().is_empty() {
        item.fault(format!("{text} is empty"), HINT);
        return None;
    }
    Some(secret)
}

/// The secret that an item names, or the item's own text where that may stand in a file.
pub(in crate::config) fn read_or_plain(item: &Item<'_>) -> Option<Secret> {
    let text = item.filled()?;
    if is_reference(text) { resolve(item, text) } else { Some(Secret::new(text)) }
}

fn resolve(item: &Item<'_>, text: &str) -> Option<Secret> {
    let value = match referred(text, item.checking.env, |path| item.input(path))? {
        Ok(value) => value,
        Err(message) => {
            let hint = if text.starts_with("env:") { SET_IT } else { HINT };
            return item.missing(message, hint, Secret::new(STAND_IN));
        }
    };
    if value.is_empty() {
        item.fault(format!("{text} is empty"), HINT);
        return None;
    }
    Some(Secret::new(value))
}

/// What a reference names; `None` where the text is none.
fn referred(
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
    path: impl FnOnce(&str) -> PathBuf,
) -> Option<Result<String, String>> {
    if let Some(name) = text.strip_prefix("env:") {
        return Some(env(name).ok_or_else(|| format!("environment variable {name} is not set")));
    }
    let path = path(text.strip_prefix("file:")?);
    let content = whole_file::read_text(&path).map(|text| text.trim_end_matches(['\r', '\n']).to_owned());
    Some(content.map_err(|error| format!("cannot read {}: {error}", path.display())))
}

/// Whether it stands for one that is not on the machine where a file is checked.
pub(in crate::config) fn is_stand_in(secret: &Secret) -> bool {
    secret.reveal() == STAND_IN
}

/// The secret that a flag or variable names or gives; `env` looks up environment variables.
///
/// # Errors
/// What is wrong with it, without its value.
pub fn secret_of(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Secret, String> {
    let value = referred(text, env, |path| path.into()).unwrap_or_else(|| Ok(text.to_owned()))?;
    match value.trim_matches([' ', '\t', '\r', '\n']) {
        "" => Err("it is empty".to_owned()),
        value => Ok(Secret::new(value)),
    }
}

/// Of a secret that is not on the machine where a file is checked; nothing is ever sent with it.
const STAND_IN: &str = "missing";
const SET_IT: &str = "set it; where a file is only checked, --allow-missing-secrets does without";
const ONE_LINE: &str = "a key is one line of a header: keep nothing else there";
const HINT: &str = "name where it is kept: \"env:NAME\" or \"file:PATH\"";
