//! Files that the gateway reads: known here, so that no key has one of them written ([`super::files`]).

use std::path::PathBuf;

use super::section::Item;

/// The path of a file that is read, relative to the configuration.
pub(in crate::config) fn input(item: &Item<'_>, path: &str) -> PathBuf {
    let path = item.checking.directory.join(path);
    item.checking.inputs.borrow_mut().push(path.clone());
    path
}
