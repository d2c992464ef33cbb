//! Which replica made which stored response, and for whom: its id means nothing anywhere else and to nobody else.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use crate::record::{Record, TokenCounts};
use crate::units::Tokens;

/// A bounded map of response ids to the tenants that own them and the replicas that hold them. When it is full, a tenant with more
/// than an equal share loses its own oldest.
#[derive(Debug, Default)]
pub struct ResponsePins {
    pins: Mutex<Pins>,
    /// To who knows what other gateways made.
    others: OnceLock<mpsc::Sender<PinAsked>>,
    are_others_known: AtomicBool,
    /// They were known since the start.
    were_others_known: AtomicBool,
}

#[derive(Debug, Default)]
struct Pins {
    made: HashMap<Arc<str>, Pin>,
    /// Ids by tenant, the oldest first.
    order: HashMap<Arc<str>, VecDeque<Arc<str>>>,
    /// Ids that other gateways have not been given yet; `None` where there are none.
    unshared: Option<VecDeque<Arc<str>>>,
}

/// Which replica made a response, and for whom.
#[derive(Clone, Debug)]
pub struct Pin {
    /// Who owns it.
    pub tenant: Arc<str>,
    /// Where it is.
    pub replica_url: Arc<str>,
    /// What its request was charged, where that ended without the usage.
    owed: Option<TokenCounts>,
}

/// A response of a tenant that this gateway does not know.
#[derive(Debug)]
pub struct PinAsked {
    /// The tenant.
    pub tenant: Arc<str>,
    /// Id of the response.
    pub response: Box<str>,
    /// The URL of the replica that made it.
    pub answer: oneshot::Sender<Option<Arc<str>>>,
}

/// A stored response that a request asks for.
#[derive(Debug)]
pub struct StoredAnswer {
    /// Who knows what it owes.
    pub pins: Arc<ResponsePins>,
    /// Its id.
    pub id: Box<str>,
}

impl StoredAnswer {
    /// As [`ResponsePins::take_owed`].
    pub fn take_owed(&self, tenant: &str, usage: TokenCounts) -> TokenCounts {
        self.pins.take_owed(tenant, &self.id, usage)
    }
}

impl ResponsePins {
    /// Remembers who made a response for a tenant. An id that another tenant holds stays that tenant's.
    pub fn remember(&self, tenant: &Arc<str>, response: &str, replica_url: &Arc<str>) {
        let pins = &mut *self.pins.lock();
        if let Some((id, _)) = pins.made.get_key_value(response) {
            let id = Arc::clone(id);
            let Some(known) = pins.made.get_mut(response) else { return };
            if known.tenant == *tenant && known.replica_url != *replica_url {
                known.replica_url = Arc::clone(replica_url);
                pins.unshared(id);
            }
            return;
        }
        if pins.made.len() >= MAX_PINS {
            pins.make_room(tenant);
        }
        let id: Arc<str> = response.into();
        let pin = Pin { tenant: Arc::clone(tenant), replica_url: Arc::clone(replica_url), owed: None };
        pins.made.insert(Arc::clone(&id), pin);
        pins.unshared(Arc::clone(&id));
        pins.order.entry(Arc::clone(tenant)).or_default().push_back(id);
    }

    /// Of a request that ended without the usage of the response that it makes: one in the background, or whose client left.
    pub fn owe_usage_of(&self, record: &Record) {
        if !record.dialect.is_stateful() || is_known(record.tokens) {
            return;
        }
        let response = record.response_id.as_deref();
        let mut pins = self.pins.lock();
        let pin = response.and_then(|id| pins.made.get_mut(id));
        if let Some(pin) = pin.filter(|pin| pin.tenant == record.tenant) {
            pin.owed = Some(record.charged_tokens());
        }
    }

    /// What of a stored response's usage its tenant has not been charged yet: once, to the first request that sees it.
    pub fn take_owed(&self, tenant: &str, response: &str, usage: TokenCounts) -> TokenCounts {
        if !is_known(usage) {
            return TokenCounts::default();
        }
        let mut pins = self.pins.lock();
        let pin = pins.made.get_mut(response).filter(|pin| *pin.tenant == *tenant);
        let Some(charged) = pin.and_then(|pin| pin.owed.take()) else { return TokenCounts::default() };
        let rest = |used: Option<Tokens>, charged: Option<Tokens>| {
            used.map(|used| Tokens(used.0.saturating_sub(charged.unwrap_or_default().0)))
        };
        TokenCounts {
            input: rest(usage.input, charged.input),
            cached: rest(usage.cached, charged.cached),
            output: rest(usage.output, charged.output),
        }
    }

    /// From now on other gateways are to know them, and are asked for what is not known here while [`Self::others_known`].
    pub fn share(&self) -> mpsc::Receiver<PinAsked> {
        let (sender, asked) = mpsc::channel(MAX_ASKED);
        // There is one cluster at most.
        let _ = self.others.set(sender);
        self.share_all();
        asked
    }

    /// Whether what other gateways made can be asked for. Where it can again, whoever kept it may have lost it.
    pub fn others_known(&self, are_known: bool) {
        self.were_others_known.fetch_or(are_known, Ordering::Relaxed);
        if !self.are_others_known.swap(are_known, Ordering::Relaxed) && are_known {
            self.share_all();
        }
    }

    fn share_all(&self) {
        let pins = &mut *self.pins.lock();
        pins.unshared = Some(pins.made.keys().cloned().collect());
    }

    /// Takes at most `most` that other gateways have not been given yet.
    pub fn take_unshared(&self, most: usize) -> Vec<(Arc<str>, Pin)> {
        let pins = &mut *self.pins.lock();
        let Some(unshared) = &mut pins.unshared else { return Vec::new() };
        let ids = unshared.drain(..most.min(unshared.len()));
        ids.filter_map(|id| Some((Arc::clone(&id), pins.made.get(&id)?.clone()))).collect()
    }

    /// They were taken and could not be given: they come first again. More than there is room for is left out.
    pub fn put_back(&self, ids: impl DoubleEndedIterator<Item = Arc<str>>) {
        let pins = &mut *self.pins.lock();
        let Some(unshared) = &mut pins.unshared else { return };
        for id in ids.rev() {
            if unshared.len() >= 2 * MAX_PINS {
                return;
            }
            unshared.push_front(id);
        }
    }

    /// Learns from the other gateways which replica made a response that is not known here: a request that would be refused waits
    /// for that, at most [`PATIENCE`]. False where they could not be asked: what they made may exist all the same.
    pub async fn fetch(&self, tenant: &Arc<str>, response: &str) -> bool {
        if self.replica_of(tenant, response).is_some() {
            return true;
        }
        let Some(others) = self.others.get() else { return true };
        let asking = async {
            while !self.are_others_known.load(Ordering::Relaxed) {
                // Only a gateway that has just begun is about to be connected.
                (!self.were_others_known.load(Ordering::Relaxed)).then_some(())?;
                tokio::time::sleep(LOOK_EVERY).await;
            }
            let (answer, answered) = oneshot::channel();
            let asked = PinAsked { tenant: Arc::clone(tenant), response: response.into(), answer };
            others.try_send(asked).ok()?;
            answered.await.ok()
        };
        let Ok(Some(made_at)) = tokio::time::timeout(PATIENCE, asking).await else { return false };
        if let Some(url) = made_at {
            self.remember(tenant, response, &url);
        }
        true
    }

    /// The URL of the replica that made a response of this tenant.
    pub fn replica_of(&self, tenant: &str, response: &str) -> Option<Arc<str>> {
        let pins = self.pins.lock();
        let pin = pins.made.get(response).filter(|pin| *pin.tenant == *tenant)?;
        Some(Arc::clone(&pin.replica_url))
    }
}

impl Pins {
    fn unshared(&mut self, id: Arc<str>) {
        if let Some(unshared) = self.unshared.as_mut().filter(|unshared| unshared.len() < 2 * MAX_PINS) {
            unshared.push_back(id);
        }
    }

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

/// Whether it is the usage of an answer: one that is being written may count nothing.
fn is_known(usage: TokenCounts) -> bool {
    usage.output.is_some_and(|output| output.0 > 0)
}

const MAX_PINS: usize = 100_000;
/// Questions that wait.
const MAX_ASKED: usize = 4096;
/// For another gateway's answer.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(20);

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

    #[test]
    fn what_was_not_charged_of_a_response_is_owed_once_and_by_its_tenant() {
        let pins = ResponsePins::default();
        let counts = |input, output| TokenCounts {
            input: Some(Tokens(input)),
            cached: None,
            output: (output > 0).then_some(Tokens(output)),
        };
        pins.remember(&"a".into(), "resp_1", &"http://1".into());
        assert_eq!(pins.take_owed("a", "resp_1", counts(9, 50)), TokenCounts::default(), "was counted");
        pins.pins.lock().made.get_mut("resp_1").unwrap().owed = Some(counts(7, 0));
        assert_eq!(pins.take_owed("b", "resp_1", counts(9, 50)), TokenCounts::default());
        assert_eq!(pins.take_owed("a", "resp_1", counts(9, 0)), TokenCounts::default(), "not written yet");
        assert_eq!(pins.take_owed("a", "resp_1", counts(9, 50)), counts(2, 50));
        assert_eq!(pins.take_owed("a", "resp_1", counts(9, 50)), TokenCounts::default(), "once");
    }
}
