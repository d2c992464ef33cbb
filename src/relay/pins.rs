//! Which replica made which stored response, and for whom: its id means nothing anywhere else and to nobody else.

use std::collections::VecDeque;
use std::sync::Arc;

use dashmap::DashMap;
use parking_lot::Mutex;

/// A bounded map of tenants' response ids to replica URLs; the oldest go first.
#[derive(Debug, Default)]
pub struct ResponsePins {
    made_by: DashMap<Box<str>, Arc<str>>,
    order: Mutex<VecDeque<Box<str>>>,
}

impl ResponsePins {
    /// Remembers who made a response for a tenant.
    pub fn remember(&self, tenant: &str, response: &str, replica_url: &Arc<str>) {
        let key = key(tenant, response);
        if self.made_by.insert(key.clone(), Arc::clone(replica_url)).is_some() {
            return;
        }
        let mut order = self.order.lock();
        order.push_back(key);
        let oldest = if order.len() > MAX_PINS { order.pop_front() } else { None };
        drop(order);
        if let Some(oldest) = oldest {
            self.made_by.remove(&oldest);
        }
    }

    /// The URL of the replica that made a response of this tenant.
    #[must_use]
    pub fn replica_of(&self, tenant: &str, response: &str) -> Option<Arc<str>> {
        self.made_by.get(&key(tenant, response)).map(|url| Arc::clone(&url))
    }
}

/// A tenant's name has no line end.
fn key(tenant: &str, response: &str) -> Box<str> {
    format!("{tenant}\n{response}").into()
}

const MAX_PINS: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_pins_go_first() {
        let pins = ResponsePins::default();
        let url: Arc<str> = "http://a".into();
        for n in 0..=MAX_PINS {
            pins.remember("a", &format!("resp_{n}"), &url);
        }
        assert!(pins.replica_of("a", "resp_0").is_none());
        assert_eq!(pins.replica_of("a", "resp_1"), Some(url));
        assert!(pins.replica_of("b", "resp_1").is_none());
    }
}
