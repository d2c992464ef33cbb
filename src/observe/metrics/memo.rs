//! Handles by a small fixed key, resolved once.
//!
//! For label values that come from a handful of constants (outcomes, reasons, policies), where a hash map costs
//! more than looking through a short list. Keys must come from code, never from a client.

use parking_lot::RwLock;

/// A list of handles that grows when a key is seen for the first time.
pub(super) struct Memo<K, M>(RwLock<Vec<(K, M)>>);

impl<K, M> Default for Memo<K, M> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<K: Copy + PartialEq, M: Clone> Memo<K, M> {
    /// The handle of `key`; `make` resolves it the first time.
    pub(super) fn get(&self, key: K, make: impl FnOnce() -> M) -> M {
        let known = |list: &[(K, M)]| list.iter().find(|(k, _)| *k == key).map(|(_, m)| m.clone());
        if let Some(handle) = known(&self.0.read()) {
            return handle;
        }
        let mut list = self.0.write();
        known(&list).unwrap_or_else(|| {
            let handle = make();
            list.push((key, handle.clone()));
            handle
        })
    }
}
