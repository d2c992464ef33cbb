//! Files that the gateway reads: known here, so that no key has one of them written ([`super::files`]).

use std::path::PathBuf;

use super::section::{Item, Section};
use crate::config::Config;

/// The path of a file that is read, relative to the configuration.
pub(in crate::config) fn input(item: &Item<'_>, path: &str) -> PathBuf {
    let path = item.checking.directory.join(path);
    item.checking.inputs.borrow_mut().push(path.clone());
    path
}

/// Those that are read with the configuration and not again: lists of replicas have readers of their own.
pub(super) fn read_once(root: &Section<'_>, config: &Config) -> Vec<PathBuf> {
    let is_list = |path: &PathBuf| config.pools.iter().any(|pool| pool.discovery.file.as_ref() == Some(path));
    root.checking.inputs.borrow().iter().filter(|path| !is_list(path)).cloned().collect()
}
