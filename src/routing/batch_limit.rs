//! How many sequences an engine runs at once, by what it does: vLLM does not tell its `--max-num-seqs`.
//!
//! Whoever has requests waiting while its cache has room, and yet never runs more than so many, runs no more than so many. Found
//! out again and again before it is believed, and forgotten as soon as more are seen to run: prompts that fill
//! an engine's steps look the same for a while.

/// What the pages of one engine have shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BatchLimit {
    /// Most requests that were seen to run.
    most: u64,
    /// Pages on which so many ran and others waited.
    sightings: u32,
}

impl BatchLimit {
    /// What one more page adds: running and waiting requests, and the share of the KV cache in use.
    #[must_use]
    pub(super) fn seeing(self, running: f64, waiting: f64, kv_cache_usage: f64) -> Self {
        // A cast saturates, and takes NaN for zero.
        let running = running as u64;
        let is_full = running > 0 && waiting >= 1.0 && kv_cache_usage < FULL;
        match running.cmp(&self.most) {
            std::cmp::Ordering::Greater => Self { most: running, sightings: u32::from(is_full) },
            std::cmp::Ordering::Equal if is_full => {
                Self { sightings: self.sightings.saturating_add(1), ..self }
            }
            _ => self,
        }
    }

    /// The limit, once it is believed.
    #[must_use]
    pub(super) fn get(self) -> Option<u64> {
        (self.sightings >= ENOUGH).then_some(self.most)
    }
}

/// From this share on, running sequences leave a KV cache no room for the next prompt: that is what others wait for.
const FULL: f64 = 0.9;
/// Pages before it is believed: some seconds with a queue.
const ENOUGH: u32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    fn after(pages: &[(f64, f64, f64)]) -> Option<u64> {
        let limit = pages.iter().fold(BatchLimit::default(), |limit, (running, waiting, usage)| {
            limit.seeing(*running, *waiting, *usage)
        });
        limit.get()
    }

    #[test]
    fn is_what_runs_while_others_wait_again_and_again() {
        let full = (8.0, 3.0, 0.4);
        let cases = [
            ("five times full", vec![full; 5], Some(8)),
            ("four times", vec![full; 4], None),
            ("with pauses", [vec![full; 3], vec![(2.0, 0.0, 0.1); 9], vec![full; 2]].concat(), Some(8)),
            ("nobody waits", vec![(8.0, 0.0, 0.4); 9], None),
            ("the cache is full", vec![(8.0, 3.0, 0.97); 9], None),
            ("more are seen to run", [vec![full; 9], vec![(9.0, 0.0, 0.4)]].concat(), None),
            ("no figures", vec![(f64::NAN, 3.0, 0.1); 9], None),
        ];
        for (name, pages, expected) in cases {
            assert_eq!(after(&pages), expected, "{name}");
        }
    }
}
