//! Which LoRA adapters an engine holds ready, as its metrics page lets one conclude.
//!
//! vLLM tells the adapters of its running and waiting requests (`vllm:lora_requests_info`) and how many it keeps at a time
//! (`max_lora`), the latest used ones. So it holds the last `max_lora` that were seen. An engine that tells nothing is not known to
//! hold anything, which is not the same as holding nothing.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::metrics_text::LoraRequests;

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

    /// A page came.
    pub(super) fn seen(&self, now: &LoraRequests<'_>) {
        let before = self.0.load();
        let mut held: Vec<Arc<str>> = Vec::new();
        let known = |name: &str| before.iter().find(|held| ***held == *name).cloned();
        for name in now.adapters() {
            if held.len() < MAX_HELD && !held.iter().any(|one| **one == *name) {
                held.push(known(name).unwrap_or_else(|| name.into()));
            }
        }
        // All that run are held, even if the page should say otherwise.
        let room = now.max.clamp(held.len(), MAX_HELD.max(held.len()));
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
    use crate::fleet::metrics_text::lora_requests;

    fn page(running: &str, waiting: &str, max: u32, at: f64) -> String {
        format!(
            "vllm:lora_requests_info{{max_lora=\"{max}\",running_lora_adapters=\"{running}\",waiting_lora_adapters=\"{waiting}\"}} {at}\n"
        )
    }

    #[test]
    fn the_latest_used_are_held_as_many_as_fit() {
        let adapters = Adapters::default();
        let see = |page: &str| {
            adapters.seen(&lora_requests(page, None).unwrap());
            adapters.held().iter().map(|name| name.to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(see(&page("a,b", "", 2, 1.0)), "a b");
        assert_eq!(see(&page("", "", 2, 2.0)), "a b", "idle adapters stay");
        assert_eq!(see(&page("c", "", 2, 3.0)), "c a");
        assert!(adapters.holds("c") && !adapters.holds("b"));
        assert_eq!(see(&page("d", "a,e", 2, 4.0)), "d a e", "what waits is loaded next");
        // A page keeps the series of before: the newest value counts.
        let two = page("x", "", 2, 5.0) + &page("y", "", 2, 9.0) + &page("z", "", 2, 7.0);
        assert!(see(&two).starts_with('y'));
        adapters.forget();
        assert!(adapters.held().is_empty());
        assert!(lora_requests("vllm:num_requests_running 1\n", None).is_none(), "not told is not none");
    }
}
