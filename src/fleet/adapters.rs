//! Which LoRA adapters an engine holds ready, as its metrics page lets one conclude.
//!
//! vLLM tells the adapters of its running and waiting requests (`vllm:lora_requests_info`) and how many it keeps at a time
//! (`max_lora`), the latest used ones. So it holds the last `max_lora` that were seen. An engine that tells nothing is not known to
//! hold anything, which is not the same as holding nothing.

use std::sync::Arc;

use arc_swap::ArcSwap;

/// Adapters of one engine, the latest used first.
#[derive(Debug, Default)]
pub struct Adapters(ArcSwap<Vec<Arc<str>>>);

impl Adapters {
    /// Whether a request for this one needs no loading.
    pub fn holds(&self, adapter: &str) -> bool {
        self.0.load().iter().any(|held| **held == *adapter)
    }

    /// All that are held.
    pub fn held(&self) -> Vec<Arc<str>> {
        self.0.load().to_vec()
    }

    /// A page came: the adapters of running, then of waiting requests, and how many the engine keeps.
    pub(super) fn seen<'n>(&self, names: impl Iterator<Item = &'n str>, max: usize) {
        let before = self.0.load();
        let mut held: Vec<Arc<str>> = Vec::new();
        let known = |name: &str| before.iter().find(|held| ***held == *name).cloned();
        for name in names {
            if held.len() < MAX_HELD && !held.iter().any(|one| **one == *name) {
                held.push(known(name).unwrap_or_else(|| name.into()));
            }
        }
        // All that run are held, even if the page should say otherwise.
        let room = max.clamp(held.len(), MAX_HELD.max(held.len()));
        let older: Vec<_> = before.iter().filter(|one| !held.contains(*one)).cloned().collect();
        held.extend(older.into_iter().take(room - held.len()));
        if **before != held {
            self.0.store(Arc::new(held));
        }
    }

    /// Its process is another one.
    pub(super) fn forget(&self) {
        self.0.store(Arc::default());
    }
}

/// More than an engine keeps on its GPU.
const MAX_HELD: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_used_are_held_as_many_as_fit() {
        let adapters = Adapters::default();
        let see = |names: &[&str]| {
            adapters.seen(names.iter().copied(), 2);
            adapters.held().iter().map(|name| name.to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(see(&["a", "b"]), "a b");
        assert_eq!(see(&[]), "a b", "idle adapters stay");
        assert_eq!(see(&["c"]), "c a");
        assert!(adapters.holds("c") && !adapters.holds("b"));
        assert_eq!(see(&["d", "a", "e"]), "d a e", "what waits is loaded next");
        adapters.forget();
        assert!(adapters.held().is_empty());
    }
}
