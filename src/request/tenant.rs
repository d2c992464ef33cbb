//! The tenant of a request: by its client certificate, its API key, or its bearer token.
//!
//! Only SHA-256 digests of keys are held, in a map by digest: what a look-up's time tells about digests tells nothing
//! about keys, as nobody can choose the digest of a guess. What is no known key may be a token ([`super::jwt`]).
//! Neither ever enters an error or a log.
//!
//! Without configured tenants every request belongs to `default` and no key is required; the credential is the engine's then.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::AUTHORIZATION;
use http::request::Parts;
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::api_keys::{ApiKey, ApiKeys, KeyDigest};
use super::cache_salt::{Isolation, SaltKey};
use super::jwt::{TokenFault, TokenKeys, looks_like_token};
use crate::config;
use crate::digits;
use crate::error::Failure;
use crate::listener::ClientNames;

/// All tenants, by the digests of their keys.
#[derive(Clone, Debug)]
pub struct Tenants {
    tenants: Vec<TenantRef>,
    /// Index into `tenants` by name.
    names: HashMap<Arc<str>, usize>,
    /// Keys of the configuration, by digest.
    keys: HashMap<KeyDigest, Arc<ApiKey>>,
    /// Keys made at run time.
    made: Arc<ApiKeys>,
    /// Keys of the token issuer.
    tokens: Arc<TokenKeys>,
    /// The tenant of every request where none are configured.
    default: Option<TenantRef>,
}

/// One tenant, as a request carries it, with the key that named it.
#[derive(Clone, Debug)]
pub struct TenantRef {
    known: Arc<Known>,
    key: Option<Arc<ApiKey>>,
}

#[derive(Debug)]
struct Known {
    config: config::Tenant,
    isolation: Option<Isolation>,
}

impl TenantRef {
    fn new(known: Known) -> Self {
        Self { known: Arc::new(known), key: None }
    }

    /// That of every request where none are configured, and of requests without a key: CORS preflights.
    pub fn anonymous() -> Self {
        let config = config::Tenant { name: "default".into(), ..config::Tenant::default() };
        Self::new(Known { config, isolation: None })
    }

    /// `name` of the tenant: the label `tenant`.
    pub fn name(&self) -> &Arc<str> {
        &self.known.config.name
    }

    /// The tenant's section of the configuration.
    pub fn config(&self) -> &config::Tenant {
        &self.known.config
    }

    /// The key that it showed; `None` for a token, a certificate or a trusted header.
    pub fn key(&self) -> Option<&ApiKey> {
        self.key.as_deref()
    }

    /// Name of that key, for records.
    pub fn key_name(&self) -> Option<Arc<str>> {
        self.key.as_ref().map(|key| Arc::clone(&key.name))
    }

    /// Its part of the engines' caches, where it does not share them.
    pub fn isolation(&self) -> Option<&Isolation> {
        self.known.isolation.as_ref()
    }

    /// Whether it may use a route, with this key; `means` is whether a word of its lists is that route.
    pub fn may_use(&self, means: impl Fn(&str) -> bool) -> bool {
        let routes = self.known.config.routes.as_ref();
        routes.is_none_or(|routes| routes.iter().any(|word| means(word)))
            && self.key.as_ref().is_none_or(|key| key.may_use(means))
    }
}

/// Why a request has no tenant: 401 `invalid_api_key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// No key at all.
    #[error("no API key given: send it as `authorization: Bearer KEY` or `x-api-key: KEY`")]
    MissingKey,
    /// A key of no tenant.
    #[error("the API key is not valid: check that it is complete and has not been revoked")]
    InvalidKey,
    /// A key whose time is over.
    #[error("the API key expired at {}: ask for a new one", utc(*since))]
    Expired {
        /// Seconds since 1970.
        since: u64,
    },
    /// A trusted header with the name of no tenant.
    #[error("the trusted header (server.trust_headers) names no tenant")]
    UntrustedName,
    /// More than one trusted header: which of them the proxy wrote cannot be told.
    #[error("the trusted header (server.trust_headers) is given more than once")]
    SeveralNames,
    /// A bearer token that is not accepted.
    #[error(transparent)]
    Token(#[from] TokenFault),
}

impl AuthError {
    /// What the client is told: 401, or 503 where the gateway lacks the issuer's keys.
    pub(crate) fn failure(&self) -> Failure {
        match self {
            Self::Token(TokenFault::NoKeys) => Failure::NoTokenKeys { retry_after: KEYS_RETRY_AFTER },
            other => Failure::InvalidKey { message: other.to_string() },
        }
    }

    /// Whether newer keys of the issuer may help.
    pub fn wants_keys(&self) -> bool {
        matches!(self, Self::Token(TokenFault::UnknownKey | TokenFault::NoKeys))
    }
}

impl Tenants {
    /// The tenants of a configuration; `key` makes the salts of those that share no cache.
    pub fn new(configured: &[config::Tenant], key: Option<&SaltKey>) -> Self {
        let known = |tenant: &config::Tenant| Known {
            isolation: key.and_then(|key| Isolation::of(tenant, key)),
            config: tenant.clone(),
        };
        let tenants: Vec<_> = configured.iter().map(|tenant| TenantRef::new(known(tenant))).collect();
        let names =
            configured.iter().enumerate().map(|(at, tenant)| (Arc::clone(&tenant.name), at)).collect();
        let of_file = |tenant: &config::Tenant, digest| Arc::new(ApiKey::of_file(&tenant.name, digest));
        let keys = configured.iter().flat_map(|tenant| {
            tenant.key_digests.iter().map(move |digest| (*digest, of_file(tenant, digest)))
        });
        let keys = keys.collect();
        let default = tenants.is_empty().then(TenantRef::anonymous);
        Self { tenants, names, keys, made: Arc::default(), tokens: Arc::default(), default }
    }

    /// The same, with keys made at run time, and with tokens of the issuer whose keys these are.
    #[must_use]
    pub fn beside(self, made: Arc<ApiKeys>, tokens: Arc<TokenKeys>) -> Self {
        Self { made, tokens, ..self }
    }

    /// Keys of the token issuer.
    pub fn tokens(&self) -> &TokenKeys {
        &self.tokens
    }

    /// Whether a key is asked for, so that the client's credential is the gateway's and is not forwarded.
    pub fn ask_for_keys(&self) -> bool {
        self.default.is_none()
    }

    /// The tenant of that name: for a trusted proxy that has identified it already.
    pub fn named(&self, name: &[u8]) -> Option<TenantRef> {
        let at = std::str::from_utf8(name).ok().and_then(|name| self.names.get(name));
        at.and_then(|at| self.tenants.get(*at)).cloned()
    }

    /// Who sent a request with this head, at this wall time. A certificate that names a tenant decides alone.
    ///
    /// # Errors
    /// When there are tenants and the head holds no key or token of any.
    pub fn identify(&self, parts: &Parts, now: SystemTime) -> Result<TenantRef, AuthError> {
        if let Some(default) = &self.default {
            return Ok(default.clone());
        }
        if let Some(tenant) = parts.extensions.get().and_then(|names| self.certified(names)) {
            return Ok(tenant);
        }
        let key = key_of(&parts.headers)?;
        let digest: [u8; 32] = Sha256::digest(key).into();
        if let Some(key) = self.keys.get(&digest).cloned().or_else(|| self.made.of(&digest)) {
            return self.of_key(key, now);
        }
        if self.tokens.settings().is_none() || !looks_like_token(key) {
            return Err(AuthError::InvalidKey);
        }
        let name = self.tokens.verify(key, digest, now)?;
        self.named(name.as_bytes()).ok_or(AuthError::Token(TokenFault::Tenant))
    }

    fn certified(&self, names: &ClientNames) -> Option<TenantRef> {
        let is_his = |tenant: &&TenantRef| {
            names.iter().any(|name| tenant.config().client_names.iter().any(|known| **known == *name))
        };
        self.tenants.iter().find(is_his).cloned()
    }

    fn of_key(&self, key: Arc<ApiKey>, now: SystemTime) -> Result<TenantRef, AuthError> {
        if let Some(since) = key.expires.filter(|_| key.has_expired(now)) {
            return Err(AuthError::Expired { since });
        }
        let tenant = self.named(key.tenant.as_bytes()).ok_or(AuthError::InvalidKey)?;
        Ok(TenantRef { key: Some(key), ..tenant })
    }
}

/// The id under which an engine stores a response whose client chose `id`: the tenant's own, so that no tenant can name another's. The
/// same choice of one tenant stays the same id.
pub fn own_response_id(tenant: &str, id: &str) -> String {
    // A tenant's name has no line end.
    let digest = Sha256::new().chain_update(tenant).chain_update("\n").chain_update(id).finalize();
    format!("resp_{}", digits::half_of(&digest.into()))
}

/// RFC 3339 of a time in seconds since 1970.
fn utc(seconds: u64) -> String {
    Timestamp::from_second(i64::try_from(seconds).unwrap_or(i64::MAX)).unwrap_or_default().to_string()
}

/// The key of a request: the bearer token, else `x-api-key`. A header given twice is refused, as the next hop might
/// read the other one.
fn key_of(headers: &HeaderMap) -> Result<&[u8], AuthError> {
    let bearer = single(headers, AUTHORIZATION.as_str())?.and_then(bearer_token);
    let key = match bearer {
        Some(token) => Some(token),
        None => single(headers, API_KEY)?.map(<[u8]>::trim_ascii),
    };
    key.filter(|key| !key.is_empty()).ok_or(AuthError::MissingKey)
}

fn single<'h>(headers: &'h HeaderMap, name: &str) -> Result<Option<&'h [u8]>, AuthError> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (value, None) => Ok(value.map(http::HeaderValue::as_bytes)),
        (_, Some(_)) => Err(AuthError::InvalidKey),
    }
}

fn bearer_token(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(BEARER.len())?;
    if !scheme.eq_ignore_ascii_case(BEARER) {
        return None;
    }
    Some(token.trim_ascii()).filter(|token| !token.is_empty())
}

const API_KEY: &str = "x-api-key";

const BEARER: &[u8] = b"Bearer ";

const KEYS_RETRY_AFTER: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str, keys: &[&str], routes: Option<&[&str]>) -> config::Tenant {
        config::Tenant {
            name: name.into(),
            key_digests: keys.iter().map(|key| Sha256::digest(key).into()).collect(),
            routes: routes.map(|routes| routes.iter().map(|route| Arc::from(*route)).collect()),
            ..config::Tenant::default()
        }
    }

    fn identify(tenants: &Tenants, pairs: &[(&'static str, &'static str)]) -> Result<TenantRef, AuthError> {
        let (mut parts, ()) = http::Request::new(()).into_parts();
        for (name, value) in pairs {
            parts.headers.append(*name, http::HeaderValue::from_static(value));
        }
        tenants.identify(&parts, SystemTime::UNIX_EPOCH)
    }

    #[test]
    fn keys_find_their_tenant() {
        let tenants =
            Tenants::new(&[tenant("a", &["k1", "k2"], None), tenant("b", &["k3"], Some(&["r"]))], None);
        assert!(tenants.ask_for_keys());
        for (pairs, expected) in [
            (&[("authorization", "Bearer k1")][..], Ok("a")),
            (&[("authorization", "bearer  k2 ")], Ok("a")),
            (&[("x-api-key", "k3")], Ok("b")),
            (&[("authorization", "Basic k1"), ("x-api-key", "k3")], Ok("b")),
            (&[("authorization", "Bearer k1"), ("x-api-key", "k3")], Ok("a")),
            (&[], Err(AuthError::MissingKey)),
            (&[("authorization", "Bearer ")], Err(AuthError::MissingKey)),
            (&[("authorization", "k1")], Err(AuthError::MissingKey)),
            (&[("x-api-key", "")], Err(AuthError::MissingKey)),
            (&[("authorization", "Bearer k")], Err(AuthError::InvalidKey)),
            (&[("x-api-key", "K3")], Err(AuthError::InvalidKey)),
            (&[("authorization", "Bearer k1"), ("authorization", "Bearer k3")], Err(AuthError::InvalidKey)),
        ] {
            let found = identify(&tenants, pairs);
            assert_eq!(found.as_ref().map(|tenant| &**tenant.name()).map_err(|e| *e), expected, "{pairs:?}");
        }
    }

    #[test]
    fn errors_differ_and_hold_no_key() {
        let (missing, invalid) = (AuthError::MissingKey.to_string(), AuthError::InvalidKey.to_string());
        assert_ne!(missing, invalid);
    }

    #[test]
    fn without_tenants_everybody_is_the_default_one() {
        let tenants = Tenants::new(&[], None);
        assert!(!tenants.ask_for_keys());
        let tenant = identify(&tenants, &[]).unwrap();
        assert_eq!(&**tenant.name(), "default");
        assert!(tenant.may_use(|word| word == "anything"));
    }

    #[test]
    fn a_tenant_without_keys_lets_nobody_in() {
        let tenants = Tenants::new(&[tenant("a", &[], None)], None);
        assert_eq!(identify(&tenants, &[]).unwrap_err(), AuthError::MissingKey);
    }

    #[test]
    fn a_key_made_at_run_time_is_its_tenant_s_within_its_routes_until_it_expires() {
        let made = Arc::new(ApiKeys::default());
        let tenants = Tenants::new(&[tenant("a", &["k1"], Some(&["r", "s"]))], None)
            .beside(Arc::clone(&made), Arc::default());
        let ask = |key: &'static str, seconds| {
            let (mut parts, ()) = http::Request::new(()).into_parts();
            parts.headers.insert("x-api-key", http::HeaderValue::from_static(key));
            tenants.identify(&parts, SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
        };
        assert_eq!(ask("new", 0).unwrap_err(), AuthError::InvalidKey);
        let key = |tenant: &str| ApiKey {
            tenant: tenant.into(),
            name: "ci".into(),
            routes: Some(vec!["s".into(), "t".into()]),
            expires: Some(100),
            ..ApiKey::default()
        };
        let digest = Sha256::digest("new").into();
        made.publish(HashMap::from([(digest, Arc::new(key("a")))]));
        let found = ask("new", 99).unwrap();
        assert_eq!((&**found.name(), found.key_name().as_deref()), ("a", Some("ci")));
        let may = ["r", "s", "t"].map(|route| found.may_use(|word| word == route));
        assert_eq!(may, [false, true, false], "what both its tenant and the key may");
        let since = 100;
        for now in [100, 101, u64::from(u32::MAX)] {
            assert_eq!(ask("new", now).unwrap_err(), AuthError::Expired { since }, "at {now}");
        }
        assert!(ask("new", 50).is_ok(), "a clock that was ahead takes no key for good");
        let message = AuthError::Expired { since: 1_795_536_000 }.to_string();
        assert_eq!(message, "the API key expired at 2026-11-24T16:00:00Z: ask for a new one");
        made.publish(HashMap::from([(digest, Arc::new(key("gone")))]));
        assert_eq!(ask("new", 1).unwrap_err(), AuthError::InvalidKey, "its tenant is not configured");
        let of_file = ask("k1", 1).unwrap();
        assert_eq!(of_file.key_name().map(|name| name.len()), Some(8), "of its digest");
    }

    #[test]
    fn routes_are_a_list_or_all() {
        let tenants =
            Tenants::new(&[tenant("a", &["k1"], None), tenant("b", &["k3"], Some(&["r", "s"]))], None);
        let all = identify(&tenants, &[("x-api-key", "k1")]).unwrap();
        let some = identify(&tenants, &[("x-api-key", "k3")]).unwrap();
        for (route, is_allowed) in [("r", true), ("s", true), ("t", false), ("", false)] {
            assert!(all.may_use(|word| word == route));
            assert_eq!(some.may_use(|word| word == route), is_allowed, "{route}");
        }
    }
}
