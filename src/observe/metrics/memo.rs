//! Handles by a small fixed key, resolved once.
//!
//! For label values that come from a handful of constants (outcomes, reasons, policies), where a hash map costs
//! more than walking a short list. Keys must come from code, never from a client.

use std::sync::OnceLock;

/// A list of handles that grows when a key is seen for the first time. Reading it takes no lock: a request looks up dozens.
pub(super) struct Memo<K, M>(OnceLock<Box<Entry<K, M>>>);

struct Entry<K, M> {
    key: K,
    handle: M,
    rest: Memo<K, M>,
}

impl<K, M> Default for Memo<K, M> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<K: Copy + PartialEq, M> Memo<K, M> {
    /// The handle of `key`; `make` resolves it the first time.
    pub(super) fn get(&self, key: K, make: impl Fn() -> M) -> &M {
        let mut list = self;
        loop {
            // Where another thread adds its own key at once, this one comes behind it.
            let entry = list.0.get_or_init(|| Box::new(Entry { key, handle: make(), rest: Self::default() }));
            if entry.key == key {
                return &entry.handle;
            }
            list = &entry.rest;
        }
    }
}
