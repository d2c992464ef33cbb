//! How much of a route's queue each tenant takes: what `max_requests` and `max_bytes` are held against.

use std::sync::Arc;

use super::refusal::Exceeded;
use crate::config::QueueLimits;

/// Whose requests of which route; long prompts where they are kept apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UsageKey {
    pub(super) route: Arc<str>,
    pub(super) is_long: bool,
    pub(super) tenant: Arc<str>,
}

impl UsageKey {
    /// Whether the same limits hold for both.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        self.route == other.route && self.is_long == other.is_long
    }
}

/// A limit that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    Requests,
    Bytes,
}

/// Usage by tenant, of those that wait.
#[derive(Clone, Debug, Default)]
pub(super) struct Usages(Vec<Usage>);

#[derive(Clone, Debug)]
struct Usage {
    key: UsageKey,
    requests: usize,
    bytes: usize,
}

impl Usages {
    pub(super) fn add(&mut self, key: &UsageKey, bytes: usize) {
        match self.0.iter_mut().find(|usage| usage.key == *key) {
            Some(usage) => (usage.requests, usage.bytes) = (usage.requests + 1, usage.bytes + bytes),
            None => self.0.push(Usage { key: key.clone(), requests: 1, bytes }),
        }
    }

    pub(super) fn remove(&mut self, key: &UsageKey, bytes: usize) {
        let Some(at) = self.0.iter().position(|usage| usage.key == *key) else { return };
        let Some(usage) = self.0.get_mut(at) else { return };
        (usage.requests, usage.bytes) = (usage.requests - 1, usage.bytes - bytes);
        if usage.requests == 0 {
            self.0.swap_remove(at);
        }
    }

    /// The limit that one more request of `bytes` would exceed.
    pub(super) fn over(&self, key: &UsageKey, bytes: usize, limits: &QueueLimits) -> Option<Over> {
        let (requests, waiting) = self.total(key);
        // Bytes first: whoever is too large for its share takes nobody's place.
        if waiting.saturating_add(bytes) > limits.max_bytes {
            Some(Over::Bytes)
        } else if requests >= limits.max_requests {
            Some(Over::Requests)
        } else {
            None
        }
    }

    /// Whether a request of `own` bytes would be within the limits if requests of `gone` bytes left.
    pub(super) fn fits_without(&self, key: &UsageKey, gone: usize, own: usize, limits: &QueueLimits) -> bool {
        let (_, bytes) = self.total(key);
        limits.max_requests > 0 && bytes.saturating_sub(gone).saturating_add(own) <= limits.max_bytes
    }

    /// The tenant with the most for its weight, if that is more than the newcomer's would have.
    pub(super) fn furthest_over(
        &self,
        key: &UsageKey,
        over: Over,
        bytes: usize,
        weight: impl Fn(&str) -> u32,
    ) -> Option<UsageKey> {
        let per_weight = |amount: usize, tenant: &str| amount as f64 / f64::from(weight(tenant));
        let amount = |usage: &Usage| match over {
            Over::Requests => usage.requests,
            Over::Bytes => usage.bytes,
        };
        let own = self.0.iter().find(|usage| usage.key == *key).map_or(0, amount);
        let added = if over == Over::Requests { 1 } else { bytes };
        let most = self
            .of_route(key)
            .filter(|usage| usage.key.tenant != key.tenant)
            .map(|usage| (per_weight(amount(usage), &usage.key.tenant), usage))
            .max_by(|a, b| a.0.total_cmp(&b.0))?;
        (most.0 > per_weight(own + added, &key.tenant)).then(|| most.1.key.clone())
    }

    /// What to tell those that have to go.
    pub(super) fn exceeded(&self, key: &UsageKey, over: Over, own: usize, limits: &QueueLimits) -> Exceeded {
        let (waiting, bytes) = self.total(key);
        match over {
            Over::Requests => Exceeded::MaxRequests { waiting, max: limits.max_requests },
            Over::Bytes => Exceeded::MaxBytes { waiting: bytes, own, max: limits.max_bytes },
        }
    }

    fn of_route(&self, key: &UsageKey) -> impl Iterator<Item = &Usage> {
        let key = key.clone();
        self.0.iter().filter(move |usage| usage.key.is_beside(&key))
    }

    /// Requests and bytes of the route's queue.
    fn total(&self, key: &UsageKey) -> (usize, usize) {
        self.of_route(key)
            .fold((0, 0), |(requests, bytes), usage| (requests + usage.requests, bytes + usage.bytes))
    }
}
