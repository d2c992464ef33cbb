//! Makes, keeps and revokes API keys at run time ([`crate::request::api_keys`]).
//!
//! A change is written before it is in force, so that a restart forgets none; the secret itself is kept nowhere. A broken file is
//! kept aside and its keys are refused; one that cannot be read stays as it is, and keys do not change until a start that reads it.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use super::random;
use super::revocations::Revocations;
use crate::config::Secret;
use crate::digits;
use crate::request::api_keys::{ApiKey, ApiKeys, KeyDigest};
use crate::state_file::{self, Version};

/// The keys of one gateway.
#[derive(Debug)]
pub struct KeyStore {
    pub(super) keys: Arc<ApiKeys>,
    /// `None` where the gateway keeps no state: keys last as long as the process.
    file: Option<PathBuf>,
    /// Why the file's keys are not known, though it may have some: written now, it would lose them.
    unread: Option<String>,
    /// Keys of the file that cannot be read, as they stand there.
    unreadable: Vec<Json>,
    /// Held while keys change.
    pub(super) revoked: Mutex<Revocations>,
    pub(super) changes: AtomicU64,
}

/// Why keys stay as they are.
#[expect(missing_docs, reason = "the messages are it")]
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("tenant {tenant} has a key {name} already: revoke it first, or choose another name")]
    NameTaken { tenant: Arc<str>, name: Arc<str> },
    #[error("tenant {tenant} has no key {name} that was made at run time")]
    Unknown { tenant: String, name: String },
    #[error("there are {MAX_KEYS} keys already: revoke some, such as expired ones")]
    TooMany,
    #[error(
        "nothing has changed: {path} could not be read ({error}), and its keys would be lost: make it readable, or move it away, and start the gateway again",
        path = path.display()
    )]
    Unread { path: PathBuf, error: String },
    #[error("nothing has changed: {path} cannot be written: {error}", path = path.display())]
    NotKept { path: PathBuf, error: io::Error },
}

#[derive(Debug, Default, Deserialize, Serialize)]
struct Kept {
    version: Version<1>,
    keys: Vec<KeptKey>,
    /// When, by digest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    revoked: BTreeMap<String, u64>,
}

/// One of another build, or with a time zone that this system does not know, is refused alone and stays in the file.
#[derive(Debug, Deserialize, Serialize)]
#[serde(untagged)]
enum KeptKey {
    Readable(SharedKey),
    Unreadable(Json),
}

/// A key in the file, and on its way to other gateways.
#[derive(Debug, Deserialize, Serialize)]
pub struct SharedKey {
    #[serde(rename = "sha256", serialize_with = "write_digest", deserialize_with = "read_digest")]
    pub(super) digest: KeyDigest,
    #[serde(flatten)]
    pub(super) key: Arc<ApiKey>,
}

impl SharedKey {
    /// `None` where the text is no key.
    pub fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    pub(super) fn of((digest, key): (&KeyDigest, &Arc<ApiKey>)) -> Self {
        Self { digest: *digest, key: Arc::clone(key) }
    }

    /// Whether it has this digest, in hexadecimal.
    pub fn is_of(&self, digest: &str) -> bool {
        bytes_of(digest) == Some(self.digest)
    }
}

fn write_digest<S: Serializer>(digest: &KeyDigest, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&digits::hex_of(digest))
}

fn read_digest<'de, D: Deserializer<'de>>(from: D) -> Result<KeyDigest, D::Error> {
    bytes_of(&String::deserialize(from)?).ok_or_else(|| D::Error::custom("sha256 is no SHA-256 digest"))
}

impl KeyStore {
    /// Puts the keys of the file in force.
    pub fn open(keys: Arc<ApiKeys>, file: Option<PathBuf>) -> Self {
        let (mut revoked, mut unread, mut unreadable) = (Revocations::default(), None, Vec::new());
        if let Some(path) = &file {
            match state_file::read::<Kept>(path) {
                Ok(kept) => {
                    let kept = kept.unwrap_or_default();
                    let mut known = HashMap::with_capacity(kept.keys.len());
                    for kept in kept.keys {
                        match kept {
                            KeptKey::Readable(SharedKey { digest, key }) => _ = known.insert(digest, key),
                            KeptKey::Unreadable(key) => unreadable.push(key),
                        }
                    }
                    unreadable.iter().for_each(refused);
                    keys.publish(known);
                    let digest = |(hex, at): (String, u64)| Some((bytes_of(&hex)?, at));
                    revoked = kept.revoked.into_iter().filter_map(digest).collect();
                }
                Err(error) => {
                    tracing::error!(path = %path.display(), %error, "API keys made at run time are refused: their file cannot be read");
                    // One that is broken was moved aside.
                    let is_gone =
                        path.symlink_metadata().is_err_and(|it| it.kind() == io::ErrorKind::NotFound);
                    unread = (!is_gone).then(|| error.to_string());
                }
            }
        }
        Self { keys, file, unread, unreadable, revoked: Mutex::new(revoked), changes: AtomicU64::default() }
    }

    /// Whether keys outlast a restart.
    pub fn is_kept(&self) -> bool {
        self.file.is_some()
    }

    /// All keys, by tenant and name.
    pub fn all(&self) -> Vec<Arc<ApiKey>> {
        let mut all: Vec<_> = self.keys.all().values().cloned().collect();
        all.sort_by(|a, b| (&a.tenant, &a.name).cmp(&(&b.tenant, &b.name)));
        all
    }

    /// Makes a key; one without a name is called by its digest, which no other gateway gives to another one. Waits for the disk.
    ///
    /// # Errors
    /// [`KeyError`]; nothing has changed then.
    pub fn make(&self, mut key: ApiKey) -> Result<(Secret, Arc<ApiKey>), KeyError> {
        let revoked = self.revoked.lock();
        let mut keys = HashMap::clone(&self.keys.all());
        if keys.len() >= MAX_KEYS {
            return Err(KeyError::TooMany);
        }
        let mut secret = random();
        secret.truncate(SECRET_DIGITS);
        let secret = format!("{PREFIX}{secret}");
        let digest: KeyDigest = Sha256::digest(&secret).into();
        if key.name.is_empty() {
            let mut digits = digits::hex_of(&digest);
            digits.truncate(NAME_DIGITS);
            key.name = format!("key-{digits}").into();
        }
        if keys.values().any(|known| (&known.tenant, &known.name) == (&key.tenant, &key.name)) {
            return Err(KeyError::NameTaken { tenant: key.tenant, name: key.name });
        }
        let key = Arc::new(key);
        keys.insert(digest, Arc::clone(&key));
        self.write(&keys, &revoked)?;
        self.publish(keys);
        Ok((Secret::new(secret), key))
    }

    /// Takes a key out of force, and with it those of its name that other gateways made. Waits for the disk.
    ///
    /// # Errors
    /// [`KeyError`]; nothing has changed then.
    pub fn revoke(&self, tenant: &str, name: &str, now: u64) -> Result<Arc<ApiKey>, KeyError> {
        let mut revoked = self.revoked.lock();
        let mut keys = HashMap::clone(&self.keys.all());
        let is_it = |key: &ApiKey| *key.tenant == *tenant && *key.name == *name;
        let gone: Vec<_> = keys.extract_if(|_, key| is_it(key)).collect();
        let (_, key) = gone
            .first()
            .ok_or_else(|| KeyError::Unknown { tenant: tenant.to_owned(), name: name.to_owned() })?;
        let mut after = revoked.clone();
        for (digest, _) in &gone {
            after.add(*digest, now);
        }
        self.write(&keys, &after)?;
        *revoked = after;
        self.publish(keys);
        Ok(Arc::clone(key))
    }

    pub(super) fn write(
        &self,
        keys: &HashMap<KeyDigest, Arc<ApiKey>>,
        revoked: &Revocations,
    ) -> Result<(), KeyError> {
        let Some(path) = &self.file else { return Ok(()) };
        if let Some(error) = &self.unread {
            return Err(KeyError::Unread { path: path.clone(), error: error.clone() });
        }
        let readable = keys.iter().map(|key| KeptKey::Readable(SharedKey::of(key)));
        let keys = readable.chain(self.unreadable.iter().cloned().map(KeptKey::Unreadable)).collect();
        let revoked = revoked.iter().map(|(digest, at)| (digits::hex_of(digest), at)).collect();
        let written = state_file::write(path, &Kept { version: Version, keys, revoked });
        written.map_err(|error| KeyError::NotKept { path: path.clone(), error })
    }

    /// Puts keys in force, while none others change.
    pub(super) fn publish(&self, keys: HashMap<KeyDigest, Arc<ApiKey>>) {
        self.keys.publish(keys);
        self.changes.fetch_add(1, Ordering::Release);
    }
}

/// A key of the file that cannot be read.
fn refused(key: &Json) {
    let text = |name: &str| key.get(name).and_then(Json::as_str).unwrap_or("unknown");
    let error = SharedKey::deserialize(key).err().map(|error| error.to_string()).unwrap_or_default();
    let (tenant, name) = (text("tenant"), text("name"));
    tracing::error!(tenant, key = name, error, "an API key made at run time is refused: it cannot be read");
}

pub(super) fn bytes_of(hex: &str) -> Option<KeyDigest> {
    digits::bytes_of(hex)?.try_into().ok()
}

/// Where scanners of leaked secrets find one by.
const PREFIX: &str = "tw-";
/// 192 bits.
const SECRET_DIGITS: usize = 48;
/// Of a digest, in the name of a key that was given none: as long as an id of a container, and enough for any number of keys.
const NAME_DIGITS: usize = 12;
pub(super) const MAX_KEYS: usize = 200_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Budget, Window};

    fn key(tenant: &str, name: &str) -> ApiKey {
        let budget = Budget { window: Window::Day, tokens: Some(5), hard: false, ..Budget::default() };
        let routes = Some(vec!["chat".into()]);
        let (created, expires) = (7, Some(9));
        ApiKey { tenant: tenant.into(), name: name.into(), routes, budgets: vec![budget], created, expires }
    }

    #[test]
    fn keys_outlast_a_restart_and_their_secrets_are_in_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys.json");
        let keys = Arc::new(ApiKeys::default());
        let store = KeyStore::open(Arc::clone(&keys), Some(file.clone()));
        let (secret, made) = store.make(key("a", "ci")).unwrap();
        let digest = Sha256::digest(secret.reveal()).into();
        assert!(secret.reveal().starts_with("tw-") && secret.reveal().len() == 51);
        assert_eq!(keys.of(&digest), Some(Arc::clone(&made)), "in force at once");
        assert!(matches!(store.make(key("a", "ci")), Err(KeyError::NameTaken { .. })));
        let (secret_of_unnamed, unnamed) = store.make(key("b", "")).unwrap();
        let hex = digits::hex_of(&Sha256::digest(secret_of_unnamed.reveal()));
        assert_eq!(*unnamed.name, format!("key-{}", &hex[..12]));
        assert!(!std::fs::read_to_string(&file).unwrap().contains(secret.reveal()));

        let again = Arc::new(ApiKeys::default());
        let store = KeyStore::open(Arc::clone(&again), Some(file.clone()));
        assert_eq!(again.of(&digest), Some(made), "with all that it had");
        store.revoke("a", "ci", 9).unwrap();
        assert!(again.of(&digest).is_none());
        assert!(matches!(store.revoke("a", "ci", 9), Err(KeyError::Unknown { .. })));
        let after = KeyStore::open(Arc::default(), Some(file));
        assert_eq!(after.all().len(), 1);
        assert_eq!(
            *after.revoked.lock(),
            [(digest, 9)].into_iter().collect(),
            "a restart brings no revoked key back"
        );
    }

    #[test]
    fn a_change_that_cannot_be_kept_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let store = KeyStore::open(Arc::default(), Some(file.join("keys.json")));
        let error = store.make(key("a", "ci")).unwrap_err().to_string();
        assert!(error.starts_with("nothing has changed: ") && store.all().is_empty(), "{error}");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let (file, hidden) = (folder.path().join("keys.json"), folder.path().join("hidden.json"));
        KeyStore::open(Arc::default(), Some(file.clone())).make(key("a", "ci")).unwrap();
        std::fs::rename(&file, &hidden).unwrap();
        // Also root cannot read a link to itself.
        std::os::unix::fs::symlink(&file, &file).unwrap();
        let store = KeyStore::open(Arc::default(), Some(file.clone()));
        assert!(store.all().is_empty());
        let error = store.make(key("a", "new")).unwrap_err().to_string();
        assert!(error.contains("keys.json") && error.contains("start the gateway again"), "{error}");
        // Nor once it can be, for what is in it is not known.
        std::fs::rename(&hidden, &file).unwrap();
        store.make(key("a", "new")).unwrap_err();
        let again = KeyStore::open(Arc::default(), Some(file)).all();
        assert_eq!(again.iter().map(|key| &*key.name).collect::<Vec<_>>(), ["ci"]);
    }

    #[test]
    fn a_file_from_the_future_or_a_broken_one_is_kept_aside_and_its_keys_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys.json");
        for text in [r#"{"version":2,"keys":[]}"#, "{"] {
            std::fs::write(&file, text).unwrap();
            let store = KeyStore::open(Arc::default(), Some(file.clone()));
            assert!(store.all().is_empty(), "{text}");
            let mut kept = std::fs::read_dir(folder.path()).unwrap().filter_map(|entry| {
                let path = entry.unwrap().path();
                path.extension().is_some_and(|name| name == "corrupt").then(|| std::fs::read_to_string(path))
            });
            assert!(kept.any(|kept| kept.unwrap() == text), "{text}");
            store.make(key("a", "new")).unwrap();
            assert_eq!(KeyStore::open(Arc::default(), Some(file.clone())).all().len(), 1);
        }
    }
    #[test]
    fn a_key_that_cannot_be_read_is_refused_alone_and_stays_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys.json");
        let digest = "0".repeat(64);
        for broken in [
            r#"{"created":1,"name":"b","sha256":"00","tenant":"a"}"#.to_owned(),
            format!(
                r#"{{"budget":[{{"requests":1,"time_zone":"Europe/Bern-Bethlehem"}}],"created":1,"name":"b","sha256":"{digest}","tenant":"a"}}"#
            ),
        ] {
            std::fs::write(&file, format!(r#"{{"version":1,"keys":[{broken}]}}"#)).unwrap();
            let store = KeyStore::open(Arc::default(), Some(file.clone()));
            assert!(store.all().is_empty(), "{broken}");
            store.make(key("a", "new")).unwrap();
            assert!(std::fs::read_to_string(&file).unwrap().contains(&broken), "{broken}");
            assert_eq!(KeyStore::open(Arc::default(), Some(file.clone())).all().len(), 1);
        }
    }
}
