//! `cache_salt` of tenants that share no prefix cache.
//!
//! An engine answers sooner what it has in its cache, so a shared cache reveals to a tenant what others have asked
//! (CVE-2025-46570). vLLM keeps apart what has different salts, and leaves it to its caller to choose them. Here a salt is a
//! keyed hash of the tenant, or of its `cache_group`: without the key no client can write that of another. A client's own salt is folded
//! in: it divides its tenant's part of the cache and leads out of it nowhere.

use sha2::{Digest, Sha256};

use crate::config::{Secret, Tenant};
use crate::debug::debug_as;
use crate::digits;

/// Makes salts of this gateway, and of all that share `routing.seed`.
#[derive(Clone)]
pub struct SaltKey([u8; 32]);

impl SaltKey {
    /// The key that a secret stands for.
    pub fn new(secret: &Secret) -> Self {
        Self(keyed(DOMAIN, secret.reveal()))
    }
}

/// The part of the engines' caches that one tenant uses, or one group of tenants.
#[derive(Clone)]
pub struct Isolation {
    key: [u8; 32],
    salt: Box<str>,
}

impl Isolation {
    /// That of a tenant with `cache_isolation`.
    pub fn of(tenant: &Tenant, key: &SaltKey) -> Option<Self> {
        let scope = match &tenant.cache_group {
            // No name has a line end.
            Some(group) => format!("group\n{group}"),
            None => format!("tenant\n{}", tenant.name),
        };
        let key = keyed(&key.0, &scope);
        tenant.cache_isolation.then(|| Self { key, salt: hex(&key).into() })
    }

    /// What the engine gets for a request whose client wrote `own`.
    pub fn salt(&self, own: Option<&str>) -> Box<str> {
        own.filter(|own| !own.is_empty())
            .map_or_else(|| self.salt.clone(), |own| hex(&keyed(&self.key, own)).into())
    }

    /// Keeps hashes of the tenant's sessions apart from those of others.
    pub fn scope(&self) -> u64 {
        self.key.first_chunk().copied().map_or(0, u64::from_be_bytes)
    }
}

debug_as!(SaltKey => "SaltKey(***)", Isolation => "Isolation(***)");

/// Nested, so that no hash leads to that of a longer text.
pub fn keyed(key: &[u8; 32], text: &str) -> [u8; 32] {
    let inner = Sha256::new().chain_update(key).chain_update(text).finalize();
    Sha256::new().chain_update(key).chain_update(inner).finalize().into()
}

/// 128 bits. vLLM takes at most 128 characters, and none of `@/\`.
fn hex(hash: &[u8; 32]) -> String {
    digits::half_of(&keyed(hash, "salt"))
}

const DOMAIN: &[u8; 32] = b"tokenway cache_salt, version 1\0\0";

#[cfg(test)]
mod tests {
    use super::*;

    fn isolation(name: &str, group: Option<&str>, secret: &str) -> Isolation {
        let tenant = Tenant {
            name: name.into(),
            cache_isolation: true,
            cache_group: group.map(Into::into),
            ..Tenant::default()
        };
        Isolation::of(&tenant, &SaltKey::new(&Secret::new(secret))).unwrap()
    }

    #[test]
    fn a_salt_is_of_one_tenant_one_secret_and_one_client_s_salt() {
        let a = isolation("a", None, "s");
        let group = isolation("a", Some("b"), "s");
        let all = [
            a.salt(None),
            a.salt(Some("x")),
            a.salt(Some(&a.salt(None))),
            group.salt(None),
            isolation("b", None, "s").salt(None),
            isolation("b", None, "s").salt(Some("x")),
            isolation("a", None, "t").salt(None),
        ];
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len(), "{all:?}");
        assert!(
            all.iter().all(|salt| salt.len() == 32 && salt.bytes().all(|b| b.is_ascii_hexdigit())),
            "{all:?}"
        );
        assert_eq!(a.salt(None), isolation("a", None, "s").salt(Some("")), "the same at every start");
        assert_eq!(group.salt(Some("x")), isolation("c", Some("b"), "s").salt(Some("x")), "a group shares");
        assert!(Isolation::of(&Tenant::default(), &SaltKey::new(&Secret::new("s"))).is_none());
    }
}
