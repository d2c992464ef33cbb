//! Which replica made which stored response, and for whom: its id means nothing anywhere else and to nobody else.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

/// A bounded map of response ids to the tenants that own them and the replicas that hold them. When it is full, a tenant with more
/// than an equal share loses its own oldest.
#[derive(Debug, Default)]
pub struct ResponsePins(Mutex<Pins>);

#[derive(Debug, Default)]
struct Pins {
    made: HashMap<Arc<str>, Pin>,
    /// Ids by tenant, the oldest first.
    order: HashMap<Arc<str>, VecDeque<Arc<str>>>,
}

#[derive(Debug)]
struct Pin {
    tenant: Arc<str>,
    replica_url: Arc<str>,
}

impl ResponsePins {
    /// Remembers who made a response for a tenant. An id that another tenant holds stays that tenant's.
    pub fn remember(&self, tenant: &Arc<str>, response: &str, replica_url: &Arc<str>) {
        let mut pins = self.0.lock();
        if let Some(known) = pins.made.get_mut(response) {
            if known.tenant == *tenant {
                known.replica_url = Arc::clone(replica_url);
            }
            return;
        }
        if pins.made.len() >= MAX_PINS {
            pins.make_room(tenant);
        }
        let id: Arc<str> = response.into();
        let pin = Pin { tenant: Arc::clone(tenant), replica_url: Arc::clone(replica_url) };
        pins.made.insert(Arc::clone(&id), pin);
        pins.order.entry(Arc::clone(tenant)).or_default().push_back(id);
    }

    /// The URL of the replica that made a response of this tenant.
    #[must_use]
    pub fn replica_of(&self, tenant: &str, response: &str) -> Option<Arc<str>> {
        let pins = self.0.lock();
        let pin = pins.made.get(response).filter(|pin| *pin.tenant == *tenant)?;
        Some(Arc::clone(&pin.replica_url))
    }
}

impl Pins {
    /// Forgets the oldest response of this tenant if it has its share, else of the tenant with the most.
    fn make_room(&mut self, tenant: &Arc<str>) {
        let share = MAX_PINS / self.order.len().max(1);
        let has_share = self.order.get(tenant).is_some_and(|own| own.len() >= share);
        let from = if has_share {
            Some(Arc::clone(tenant))
        } else {
            self.order.iter().max_by_key(|(_, ids)| ids.len()).map(|(name, _)| Arc::clone(name))
        };
        let Some(from) = from else { return };
        let Some(ids) = self.order.get_mut(&from) else { return };
        if let Some(oldest) = ids.pop_front() {
            self.made.remove(&oldest);
        }
        if ids.is_empty() {
            self.order.remove(&from);
        }
    }
}

const MAX_PINS: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_whoever_holds_most_go_first() {
        let pins = ResponsePins::default();
        let (a, b, url): (Arc<str>, Arc<str>, Arc<str>) = ("a".into(), "b".into(), "http://a".into());
        pins.remember(&a, "mine", &url);
        for n in 0..MAX_PINS + 5 {
            pins.remember(&b, &format!("resp_{n}"), &url);
        }
        assert_eq!(pins.replica_of("a", "mine"), Some(Arc::clone(&url)), "a flood takes its own places");
        assert!(pins.replica_of("b", "resp_5").is_none());
        assert!(pins.replica_of("b", "resp_6").is_some());
        pins.remember(&a, "another", &url);
        assert!(pins.replica_of("b", "resp_6").is_none(), "who has less than a share gets its place");
        assert!(pins.replica_of("a", "mine").is_some() && pins.replica_of("a", "another").is_some());
    }

    #[test]
    fn an_id_belongs_to_the_tenant_that_had_it_first() {
        let pins = ResponsePins::default();
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let (one, two): (Arc<str>, Arc<str>) = ("http://1".into(), "http://2".into());
        pins.remember(&a, "resp_1", &one);
        pins.remember(&b, "resp_1", &two);
        assert_eq!(pins.replica_of("a", "resp_1"), Some(one));
        assert!(pins.replica_of("b", "resp_1").is_none());
        pins.remember(&a, "resp_1", &two);
        assert_eq!(pins.replica_of("a", "resp_1"), Some(two), "made again elsewhere");
    }
}
