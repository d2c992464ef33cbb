//! Digests of revoked keys, so that a gateway that was away and comes back with the key cannot bring it back.
//!
//! Only their number is bounded: a clock that is wrong loses none.

use std::collections::HashMap;

use crate::request::api_keys::KeyDigest;

/// When each was revoked, in seconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Revocations(HashMap<KeyDigest, u64>);

impl Revocations {
    pub(super) fn contains(&self, digest: &KeyDigest) -> bool {
        self.0.contains_key(digest)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&KeyDigest, u64)> {
        self.0.iter().map(|(digest, at)| (digest, *at))
    }

    /// Adds one; whether it is news. The oldest of too many is forgotten.
    pub(super) fn add(&mut self, digest: KeyDigest, at: u64) -> bool {
        if self.contains(&digest) {
            return false;
        }
        if self.0.len() >= MAX
            && let Some(oldest) = self.0.iter().min_by_key(|(_, at)| **at).map(|(digest, _)| *digest)
        {
            self.0.remove(&oldest);
        }
        self.0.insert(digest, at).is_none()
    }
}

impl FromIterator<(KeyDigest, u64)> for Revocations {
    fn from_iter<I: IntoIterator<Item = (KeyDigest, u64)>>(all: I) -> Self {
        Self(all.into_iter().collect())
    }
}

const MAX: usize = 200_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_too_many_is_forgotten() {
        let digest = |n: u64| {
            let mut digest = KeyDigest::default();
            digest[..8].copy_from_slice(&n.to_be_bytes());
            digest
        };
        let mut revoked: Revocations = (0..MAX as u64).map(|n| (digest(n), n)).collect();
        assert!(!revoked.add(digest(1), 5), "known");
        assert!(revoked.add(digest(u64::MAX), 5));
        assert!(!revoked.contains(&digest(0)) && revoked.contains(&digest(1)));
        assert_eq!(revoked.iter().count(), MAX);
    }
}
