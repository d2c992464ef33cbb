//! API keys made at run time, in force in all gateways: two hashes at the broker, of keys by their digests and of revoked digests.
//!
//! A digest is made once, and a revoked one stays revoked, so both hashes only grow together: no clock decides, and whoever comes
//! late or finds the broker empty puts back what it knows. A counter shows that there is something to read. Every entry is signed with
//! `routing.seed`: who may write to the broker, but does not know the seed, can make no key. The hashes are those of one seed: under
//! another one each gateway writes again what it knows, and one that still has the old seed keeps to the old hashes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisError};

use super::connected::Connected;
use super::link::UntilLost;
use crate::clock::ticks;
use crate::config::Secret;
use crate::digits;
use crate::identity::{KeyStore, Revocation, SharedKey};
use crate::request::cache_salt::keyed;

/// Shares the keys of one gateway.
pub(super) struct KeyRing {
    /// Before the names of the broker's keys.
    prefix: String,
    signer: [u8; 32],
    store: Arc<KeyStore>,
}

/// What the broker has, as digests.
struct Known {
    /// Of keys, but for entries that were looked at and are no gateway's.
    listed: HashSet<String>,
    revoked: HashSet<String>,
    /// Entries that are no gateway's of this seed.
    foreign: usize,
}

/// What was true when both sides were the same.
#[derive(PartialEq, Eq)]
struct Seen {
    /// The broker's counter of changes.
    changes: Option<u64>,
    /// Entries of both its hashes: one that evicts takes a hash, and not the counter.
    entries: (usize, usize),
    /// Changes here.
    own: u64,
}

impl KeyRing {
    pub(super) fn new(cluster: &str, seed: &Secret, store: Arc<KeyStore>) -> Self {
        let signer = keyed(DOMAIN, seed.reveal());
        let mut seed = digits::hex_of(&keyed(&signer, "which seed"));
        seed.truncate(SEED_DIGITS);
        Self { prefix: format!("{cluster}:keys:{seed}"), signer, store }
    }

    /// Follows the broker until the connection ends.
    pub(super) async fn share(&self, at: &Connected<'_>) -> UntilLost {
        // On a new connection the broker may be another one.
        let (mut connection, mut seen, mut is_warned) = (at.connection(), None, false);
        let (mut ticks, mut refusals) = (ticks(LOOK_EVERY), at.refused.of("API keys are not shared"));
        loop {
            ticks.tick().await;
            let looked = self.look(&mut connection, &mut seen, &mut is_warned).await;
            refusals.note(looked.map(|()| true))?;
        }
    }

    async fn look(
        &self,
        connection: &mut MultiplexedConnection,
        seen: &mut Option<Seen>,
        is_warned: &mut bool,
    ) -> Result<(), RedisError> {
        let counter = format!("{}:changes", self.prefix);
        let mut asking = Pipeline::with_capacity(3);
        asking.cmd("GET").arg(&counter).cmd("HLEN").arg(&self.prefix).cmd("HLEN").arg(self.revoked());
        let (changes, listed, revoked): (Option<u64>, usize, usize) = asking.query_async(connection).await?;
        let found = Seen { changes, entries: (listed, revoked), own: self.store.changes() };
        if seen.as_ref() == Some(&found) {
            return Ok(());
        }
        let Known { listed, revoked, foreign } = self.read(connection, seen.is_none()).await?;
        if foreign > 0 && !std::mem::replace(is_warned, true) {
            tracing::warn!(
                entries = foreign,
                "the broker has API keys or revocations that no gateway with this routing.seed wrote: they do not count"
            );
        }
        let own = self.store.changes();
        self.write(connection, &counter, &listed, &revoked).await?;
        *seen = Some(Seen { own, ..found });
        Ok(())
    }

    /// Takes in what the others know; returns what the broker has. With `all`, entries of keys that are known here are looked at as
    /// well: others may not know them, and take only what is signed.
    async fn read(&self, connection: &mut MultiplexedConnection, all: bool) -> Result<Known, RedisError> {
        let mut asking = Pipeline::with_capacity(2);
        asking.cmd("HKEYS").arg(&self.prefix).cmd("HGETALL").arg(self.revoked());
        let (mut listed, revoked): (HashSet<String>, HashMap<String, String>) =
            asking.query_async(connection).await?;
        let unread: Vec<String> =
            listed.iter().filter(|digest| all || !self.store.knows(digest)).cloned().collect();
        let (mut keys, mut foreign) = (Vec::new(), 0);
        for digests in unread.chunks(MAX_ENTRIES) {
            let mut asking = redis::cmd("HMGET");
            asking.arg(&self.prefix).arg(digests);
            let entries: Vec<Option<String>> = asking.query_async(connection).await?;
            for (digest, entry) in digests.iter().zip(entries) {
                let Some(entry) = entry else { continue };
                let key = self.verified(digest, &entry).and_then(SharedKey::read);
                match key.filter(|key| key.is_of(digest)) {
                    Some(key) if !self.store.knows(digest) => keys.push(key),
                    Some(_) => {}
                    None => {
                        foreign += 1;
                        listed.remove(digest);
                    }
                }
            }
        }
        let (mut known, mut gone) = (HashSet::new(), Vec::new());
        for (digest, entry) in revoked {
            let signed =
                self.verified(&digest, &entry).and_then(|at| Revocation::read(&digest, at.parse().ok()?));
            match signed {
                Some(revocation) => {
                    gone.push(revocation);
                    known.insert(digest);
                }
                None => foreign += 1,
            }
        }
        let store = Arc::clone(&self.store);
        // It waits for the disk.
        let _ = tokio::task::spawn_blocking(move || store.merge(keys, gone)).await;
        Ok(Known { listed, revoked: known, foreign })
    }

    /// Writes what the broker lacks, and takes out what is revoked.
    async fn write(
        &self,
        connection: &mut MultiplexedConnection,
        counter: &str,
        listed: &HashSet<String>,
        revoked: &HashSet<String>,
    ) -> Result<(), RedisError> {
        let (keys, gone) =
            self.store.beyond(|digest| listed.contains(digest), |digest| revoked.contains(digest));
        let is_revoked = |digest: &&String| self.store.has_revoked(digest);
        let left: Vec<&String> = listed.iter().filter(is_revoked).collect();
        if keys.is_empty() && gone.is_empty() && left.is_empty() {
            return Ok(());
        }
        let mut writing = redis::pipe();
        writing.atomic();
        for (digest, at) in &gone {
            let entry = self.signed(digest, &at.to_string());
            writing.cmd("HSET").arg(self.revoked()).arg(digest).arg(entry).ignore();
        }
        for (digest, key) in &keys {
            writing.cmd("HSET").arg(&self.prefix).arg(digest).arg(self.signed(digest, key)).ignore();
        }
        for digest in left {
            writing.cmd("HDEL").arg(&self.prefix).arg(digest).ignore();
        }
        writing.cmd("INCR").arg(counter).ignore();
        writing.query_async(connection).await
    }

    fn revoked(&self) -> String {
        format!("{}:revoked", self.prefix)
    }

    /// An entry with its signature before it.
    fn signed(&self, digest: &str, entry: &str) -> String {
        format!("{} {entry}", self.signature(digest, entry))
    }

    /// What a signed entry holds; `None` where the signature is not of this seed.
    fn verified<'e>(&self, digest: &str, signed: &'e str) -> Option<&'e str> {
        let (signature, entry) = signed.split_once(' ')?;
        (signature == self.signature(digest, entry)).then_some(entry)
    }

    fn signature(&self, digest: &str, entry: &str) -> String {
        let hash = keyed(&self.signer, &format!("{digest}\n{entry}"));
        digits::hex_of(&hash)
    }
}

/// A key is in force everywhere after two looks at most.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Of one round trip.
const MAX_ENTRIES: usize = 500;
/// Enough for any two seeds.
const SEED_DIGITS: usize = 16;
const DOMAIN: &[u8; 32] = b"tokenway shared API keys, v1    ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_believed_for_its_digest_and_of_the_same_seed_only() {
        let ring = |seed: &str| {
            KeyRing::new("c", &Secret::new(seed), Arc::new(KeyStore::open(Arc::default(), None)))
        };
        let signed = ring("a").signed("00", "entry with spaces");
        assert_eq!(ring("a").verified("00", &signed), Some("entry with spaces"));
        assert_eq!(ring("a").verified("01", &signed), None);
        assert_eq!(ring("b").verified("00", &signed), None);
        for forged in ["", "entry", " entry", &signed.replace("with", "without")] {
            assert_eq!(ring("a").verified("00", forged), None, "{forged}");
        }
    }
}
