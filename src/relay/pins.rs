//! Which replica made which stored response: `previous_response_id` means nothing anywhere else.

use std::collections::VecDeque;
use std::sync::Arc;

use dashmap::DashMap;
use parking_lot::Mutex;

/// A bounded map of response ids to replica URLs; the oldest go first.
#[derive(Debug, Default)]
pub struct ResponsePins {
    made_by: DashMap<Box<str>, Arc<str>>,
    order: Mutex<VecDeque<Box<str>>>,
}

impl ResponsePins {
    /// Remembers who made a response.
    pub fn remember(&self, response: &str, replica_url: &Arc<str>) {
        if self.made_by.insert(response.into(), Arc::clone(replica_url)).is_some() {
            return;
        }
        let mut order = self.order.lock();
        order.push_back(response.into());
        let oldest = if order.len() > MAX_PINS { order.pop_front() } else { None };
        drop(order);
        if let Some(oldest) = oldest {
            self.made_by.remove(&oldest);
        }
    }

    /// The URL of the replica that made a response.
    #[must_use]
    pub fn replica_of(&self, response: &str) -> Option<Arc<str>> {
        self.made_by.get(response).map(|url| Arc::clone(&url))
    }
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
            pins.remember(&format!("resp_{n}"), &url);
        }
        assert!(pins.replica_of("resp_0").is_none());
        assert_eq!(pins.replica_of("resp_1"), Some(url));
    }
}
