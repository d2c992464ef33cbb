//! What gateways learn from each other about keys: made ones and revoked ones, by digest.
//!
//! What comes first does not matter: a digest is made once, and never again after it was revoked.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use super::key_store::{KeyStore, MAX_KEYS, SharedKey, bytes_of};
use crate::digits;
use crate::request::api_keys::KeyDigest;

/// A key that another gateway revoked.
#[derive(Debug)]
pub struct Revocation {
    digest: KeyDigest,
    /// Seconds since 1970.
    at: u64,
}

impl Revocation {
    /// `None` where it is no digest.
    pub fn read(digest: &str, at: u64) -> Option<Self> {
        Some(Self { digest: bytes_of(digest)?, at })
    }
}

/// By digest, in hexadecimal: keys as they are kept, and times of revocations.
type Beyond = (Vec<(String, String)>, Vec<(String, u64)>);

impl KeyStore {
    /// Another number after each change.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Whether a key of this digest was made or revoked.
    pub fn knows(&self, digest: &str) -> bool {
        bytes_of(digest)
            .is_some_and(|digest| self.keys.of(&digest).is_some() || self.revoked.lock().contains(&digest))
    }

    /// Whether a key of this digest was revoked.
    pub fn has_revoked(&self, digest: &str) -> bool {
        bytes_of(digest).is_some_and(|digest| self.revoked.lock().contains(&digest))
    }

    /// Takes in what others made and revoked. Waits for the disk; a file that cannot be written keeps no revocation from being in
    /// force.
    pub fn merge(&self, made: Vec<SharedKey>, gone: Vec<Revocation>) {
        let mut revoked = self.revoked.lock();
        let mut keys = HashMap::clone(&self.keys.all());
        let mut is_changed = false;
        for Revocation { digest, at } in gone {
            if revoked.add(digest, at) {
                is_changed = true;
                keys.remove(&digest);
            }
        }
        let fresh = made.into_iter().filter(|made| !revoked.contains(&made.digest));
        let (mut taken, mut left) = (0, 0);
        for SharedKey { digest, key } in fresh {
            if keys.len() < MAX_KEYS {
                taken += usize::from(keys.insert(digest, key).is_none());
            } else {
                left += 1;
            }
        }
        if left > 0 {
            tracing::warn!(left, "API keys of other gateways are refused here: there are {MAX_KEYS} already");
        }
        if !is_changed && taken == 0 {
            return;
        }
        if let Err(error) = self.write(&keys, &revoked) {
            tracing::warn!(%error, "API keys of other gateways are in force and not kept");
        }
        self.publish(keys);
    }

    /// Keys and revocations that another side has not listed.
    pub fn beyond(&self, has_key: impl Fn(&String) -> bool, has_revoked: impl Fn(&String) -> bool) -> Beyond {
        let all = self.keys.all();
        let keys = all.iter().map(|pair| (digits::hex_of(pair.0), pair));
        let keys = keys
            .filter(|(name, _)| !has_key(name))
            .filter_map(|(name, pair)| Some((name, serde_json::to_string(&SharedKey::of(pair)).ok()?)));
        let revoked = self.revoked.lock();
        let gone = revoked.iter().map(|(digest, at)| (digits::hex_of(digest), at));
        (keys.collect(), gone.filter(|(name, _)| !has_revoked(name)).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::request::api_keys::ApiKey;

    fn store() -> KeyStore {
        KeyStore::open(Arc::default(), None)
    }

    /// Everything that one knows goes to the other.
    fn send(from: &KeyStore, to: &KeyStore) {
        let (keys, gone) = from.beyond(|_| false, |_| false);
        let keys = keys.iter().filter_map(|(_, key)| SharedKey::read(key)).collect();
        let gone = gone.iter().filter_map(|(digest, at)| Revocation::read(digest, *at)).collect();
        to.merge(keys, gone);
    }

    #[test]
    fn a_revocation_wins_in_whatever_order_it_comes() {
        let (one, other, late) = (store(), store(), store());
        let key = ApiKey { tenant: "a".into(), name: "ci".into(), ..ApiKey::default() };
        one.make(key).unwrap();
        send(&one, &other);
        send(&one, &late);
        assert_eq!((other.all(), other.changes()), (one.all(), 1));
        send(&one, &other);
        assert_eq!(other.changes(), 1, "nothing new");
        other.revoke("a", "ci", 100).unwrap();
        send(&other, &one);
        send(&late, &other);
        send(&late, &one);
        assert!(one.all().is_empty() && other.all().is_empty(), "an older one brings no key back");
        send(&one, &late);
        assert!(late.all().is_empty());
    }

    #[test]
    fn keys_of_one_name_that_two_gateways_made_at_once_are_revoked_together() {
        let (one, other) = (store(), store());
        let key = ApiKey { tenant: "a".into(), name: "ci".into(), ..ApiKey::default() };
        one.make(key.clone()).unwrap();
        other.make(key).unwrap();
        send(&one, &other);
        assert_eq!(other.all().len(), 2);
        other.revoke("a", "ci", 1).unwrap();
        send(&other, &one);
        assert!(one.all().is_empty() && other.all().is_empty());
    }

    #[test]
    fn of_two_unnamed_keys_that_two_gateways_made_at_once_one_is_revoked_without_the_other() {
        let (one, other) = (store(), store());
        let unnamed = ApiKey { tenant: "a".into(), ..ApiKey::default() };
        let (_, stays) = one.make(unnamed.clone()).unwrap();
        let (_, goes) = other.make(unnamed).unwrap();
        send(&one, &other);
        other.revoke("a", &goes.name, 1).unwrap();
        send(&other, &one);
        assert_eq!([one.all(), other.all()], [[Arc::clone(&stays)], [stays]]);
    }
}
