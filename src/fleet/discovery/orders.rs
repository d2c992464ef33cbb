//! What operators made of replicas, which holds whatever sources name. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use crate::config::Endpoint;

/// What operators made of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Override {
    Drained,
    Removed,
}

/// The orders in force, by URL.
#[derive(Debug, Default)]
pub(super) struct Orders {
    by_url: HashMap<Endpoint, Order>,
}

/// What they made of a URL, which holds for the process that was there then, where its source tells processes apart.
#[derive(Clone, Debug)]
struct Order {
    order: Override,
    instance: Option<Arc<str>>,
}

impl Orders {
    /// What holds for a process at a URL.
    pub(super) fn of(&self, endpoint: &Endpoint, instance: Option<&str>) -> Option<Override> {
        let order = self.by_url.get(endpoint)?;
        (order.instance.is_none() || order.instance.as_deref() == instance).then_some(order.order)
    }

    /// An order for the process that is at the URL now, where that is known.
    pub(super) fn give(&mut self, endpoint: &Endpoint, order: Override, instance: Option<Arc<str>>) {
        self.by_url.insert(endpoint.clone(), Order { order, instance });
    }

    /// The replica takes part again.
    pub(super) fn lift(&mut self, endpoint: &Endpoint) {
        self.by_url.remove(endpoint);
    }

    /// Takes over those of another pool for some URLs; its own come first.
    pub(super) fn inherit(&mut self, gone: &Self, is_wanted: impl Fn(&Endpoint) -> bool) {
        for (endpoint, order) in gone.by_url.iter().filter(|(endpoint, _)| is_wanted(endpoint)) {
            self.by_url.entry(endpoint.clone()).or_insert_with(|| order.clone());
        }
    }

    /// Lifts all others.
    pub(super) fn retain(&mut self, stays: impl Fn(&Endpoint) -> bool) {
        self.by_url.retain(|endpoint, _| stays(endpoint));
    }

    pub(super) fn len(&self) -> usize {
        self.by_url.len()
    }
}
