//! Bearer tokens (RFC 7519): signature, issuer, audience, time, and the claim that names the tenant.
//!
//! Pure but for the snapshot of the issuer's keys, which a background task replaces ([`TokenKeys::publish`]). Only public-key
//! algorithms that the configuration lists are accepted, and a key only with the algorithms of its own type. A verified
//! token is remembered by its digest until it expires or the keys change. A token never enters an error or a log.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::{ArcSwap, ArcSwapOption};
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::sync::{Notify, watch};

use crate::clock::since_epoch;
use crate::config::Jwt;
use crate::debug::debug_as;

/// Why a token is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenFault {
    /// Not a JWT, or its header asks for what is not understood.
    #[error("the bearer token is neither a known API key nor a valid JWT")]
    Malformed,
    /// Signed with an algorithm that is not listed.
    #[error("the token's algorithm is not accepted (auth.jwt.algorithms)")]
    Algorithm,
    /// Signed with a key that the issuer does not list.
    #[error("the token is signed with a key that the issuer's key set does not have")]
    UnknownKey,
    /// Not signed by the issuer's key.
    #[error("the token's signature is not valid")]
    Signature,
    /// `exp` is missing.
    #[error("the token has no expiry (exp)")]
    NoExpiry,
    /// `exp` has passed.
    #[error("the token has expired: get a new one")]
    Expired,
    /// `nbf` is to come.
    #[error("the token is not valid yet (nbf): check the clocks")]
    TooEarly,
    /// `iss` is missing or another's.
    #[error("the token is of another issuer (auth.jwt.issuer)")]
    Issuer,
    /// `aud` is missing or another's.
    #[error("the token is meant for another audience (auth.jwt.audience)")]
    Audience,
    /// The claim is missing, or no tenant has this name.
    #[error("the token names no tenant of this gateway (auth.jwt.tenant_claim)")]
    Tenant,
    /// The key set was never read.
    #[error("the issuer's keys could not be read yet (auth.jwt.jwks); try again later")]
    NoKeys,
}

/// The issuer's keys, as the requests see them; shared over reloads.
#[derive(Debug, Default)]
pub struct TokenKeys {
    settings: ArcSwapOption<Jwt>,
    keys: ArcSwap<KeySet>,
    /// A token named a key that is not there.
    wanted: Notify,
    /// Another configuration is in force.
    reconfigured: Notify,
    /// Grows with every attempt to read the keys.
    attempts: watch::Sender<u64>,
}

impl TokenKeys {
    /// Puts a configuration in force. Keys of another issuer or source are forgotten, as is every verified token.
    pub fn configure(&self, settings: Option<&Jwt>) {
        let old = self.settings.swap(settings.cloned().map(Arc::new));
        let same =
            |new: &Jwt| old.as_ref().is_some_and(|old| old.issuer == new.issuer && old.jwks == new.jwks);
        let keys = if settings.is_some_and(same) { self.keys.load().forgetful() } else { KeySet::default() };
        self.keys.store(Arc::new(keys));
        self.reconfigured.notify_one();
    }

    /// `[auth.jwt]` in force.
    pub fn settings(&self) -> Option<Arc<Jwt>> {
        self.settings.load_full()
    }

    /// Replaces the keys.
    pub fn publish(&self, keys: KeySet) {
        self.keys.store(Arc::new(keys));
    }

    /// The keys were read, or could not be: those who wait look again.
    pub fn attempted(&self) {
        self.attempts.send_modify(|count| *count += 1);
    }

    /// Waits until a token names an unknown key.
    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Waits until the configuration changed.
    pub async fn reconfigured(&self) {
        self.reconfigured.notified().await;
    }

    /// Asks for the keys and waits until an attempt was made, for at most [`WAIT_FOR_KEYS`]; not at all where
    /// [`MAX_WAITING`] wait already, because nobody has read their bodies yet.
    pub async fn refreshed(&self) {
        if self.attempts.receiver_count() >= MAX_WAITING {
            return;
        }
        let mut attempts = self.attempts.subscribe();
        self.wanted.notify_one();
        let _ = tokio::time::timeout(WAIT_FOR_KEYS, attempts.changed()).await;
    }

    /// The tenant that a token names; `digest` is its SHA-256.
    ///
    /// # Errors
    /// [`TokenFault`], the first that is found.
    pub fn verify(&self, token: &[u8], digest: [u8; 32], now: SystemTime) -> Result<Arc<str>, TokenFault> {
        // Before the settings: a reload in between must not keep a token of the former ones among the new keys.
        let keys = self.keys.load();
        let settings = self.settings.load();
        let settings = settings.as_ref().ok_or(TokenFault::Malformed)?;
        let now = since_epoch(now).as_secs_f64();
        if let Some(tenant) = keys.remembered(&digest, now) {
            return Ok(tenant);
        }
        let claims = keys.claims(token, settings)?;
        let valid_until = check_time(&claims, settings.leeway, now)?;
        let tenant = claims.get(&settings.tenant_claim).and_then(Value::as_str).ok_or(TokenFault::Tenant)?;
        let tenant: Arc<str> = tenant.into();
        keys.remember(digest, Verified { tenant: Arc::clone(&tenant), valid_until });
        Ok(tenant)
    }
}

/// Whether a bearer token could be a JWT: three parts, the first the start of a JSON object.
pub fn looks_like_token(bearer: &[u8]) -> bool {
    bearer.starts_with(b"eyJ") && bearer.iter().filter(|byte| **byte == b'.').count() == 2
}

fn check_time(claims: &Map<String, Value>, leeway: Duration, now: f64) -> Result<f64, TokenFault> {
    let leeway = leeway.as_secs_f64();
    let date =
        |name: &str| claims.get(name).map(|value| value.as_f64().ok_or(TokenFault::Malformed)).transpose();
    let valid_until = date("exp")?.ok_or(TokenFault::NoExpiry)? + leeway;
    if valid_until <= now {
        return Err(TokenFault::Expired);
    }
    if date("nbf")?.is_some_and(|begin| begin - leeway > now) {
        return Err(TokenFault::TooEarly);
    }
    Ok(valid_until)
}

/// The signature keys of a key set, and the tokens that were verified with them.
#[derive(Default)]
pub struct KeySet {
    keys: Vec<SigningKey>,
    verified: Mutex<HashMap<[u8; 32], Verified>>,
}

#[derive(Clone)]
struct SigningKey {
    id: Option<String>,
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

struct Verified {
    tenant: Arc<str>,
    /// Seconds since the epoch.
    valid_until: f64,
}

/// Why a key set cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeySetError {
    /// Not JSON, or without `keys`.
    #[error("it is no JSON Web Key Set")]
    Malformed,
    /// No key that can verify a signature.
    #[error("it has no public key for signatures")]
    Empty,
}

impl KeySet {
    /// Reads a JSON Web Key Set. Keys of other kinds and uses are skipped.
    ///
    /// # Errors
    /// When there is no usable key in it.
    pub fn parse(json: &[u8]) -> Result<Self, KeySetError> {
        let set: Value = serde_json::from_slice(json).map_err(|_| KeySetError::Malformed)?;
        let keys = set.get("keys").and_then(Value::as_array).ok_or(KeySetError::Malformed)?;
        let keys: Vec<_> = keys.iter().take(MAX_KEYS).filter_map(signing_key).collect();
        if keys.is_empty() { Err(KeySetError::Empty) } else { Ok(Self { keys, ..Self::default() }) }
    }

    /// The same keys, no tokens.
    fn forgetful(&self) -> Self {
        Self { keys: self.keys.clone(), ..Self::default() }
    }

    fn remembered(&self, digest: &[u8; 32], now: f64) -> Option<Arc<str>> {
        let verified = self.verified.lock();
        verified.get(digest).filter(|known| known.valid_until > now).map(|known| Arc::clone(&known.tenant))
    }

    fn remember(&self, digest: [u8; 32], verified: Verified) {
        let mut all = self.verified.lock();
        if all.len() >= MAX_VERIFIED {
            all.clear();
        }
        all.insert(digest, verified);
    }

    fn claims(&self, token: &[u8], settings: &Jwt) -> Result<Map<String, Value>, TokenFault> {
        let header = jsonwebtoken::decode_header(token).map_err(|error| fault(&error))?;
        // Extensions that must be understood (RFC 7515 §4.1.11): none are.
        if header.crit.is_some() {
            return Err(TokenFault::Malformed);
        }
        if !settings.algorithms.contains(&header.alg) {
            return Err(TokenFault::Algorithm);
        }
        if self.keys.is_empty() {
            return Err(TokenFault::NoKeys);
        }
        let validation = validation(header.alg, settings);
        let mut last = TokenFault::UnknownKey;
        let fits = |key: &&SigningKey| {
            let is_named = header.kid.is_none() || key.id.is_none() || key.id == header.kid;
            is_named && key.algorithms.contains(&header.alg)
        };
        for key in self.keys.iter().filter(fits) {
            match jsonwebtoken::decode::<Map<String, Value>>(token, &key.key, &validation) {
                // The library takes a list with the issuer in it, too (RFC 7519 §4.1.1 has one string).
                Ok(data) if data.claims.get("iss").is_some_and(Value::is_string) => return Ok(data.claims),
                Ok(_) => last = TokenFault::Issuer,
                Err(error) => last = fault(&error),
            }
            // Without a key id several keys may fit.
            if last != TokenFault::Signature {
                break;
            }
        }
        Err(last)
    }
}

debug_as!(KeySet => "KeySet");

fn signing_key(json: &Value) -> Option<SigningKey> {
    let jwk: Jwk = serde_json::from_value(json.clone()).ok()?;
    if matches!(jwk.common.public_key_use, Some(PublicKeyUse::Encryption | PublicKeyUse::Other(_))) {
        return None;
    }
    let of_kind = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => RSA,
        AlgorithmParameters::EllipticCurve(ec) if ec.curve == EllipticCurve::P256 => &[Algorithm::ES256],
        AlgorithmParameters::EllipticCurve(ec) if ec.curve == EllipticCurve::P384 => &[Algorithm::ES384],
        AlgorithmParameters::OctetKeyPair(pair) if pair.curve == EllipticCurve::Ed25519 => {
            &[Algorithm::EdDSA]
        }
        // A shared secret has no place in a public key set.
        _ => return None,
    };
    let named = jwk.common.key_algorithm.map(|name| name.to_string());
    let algorithms: Vec<_> =
        of_kind.iter().filter(|a| named.as_ref().is_none_or(|n| *n == format!("{a:?}"))).copied().collect();
    if algorithms.is_empty() {
        return None;
    }
    let key = DecodingKey::from_jwk(&jwk).ok()?;
    Some(SigningKey { id: jwk.common.key_id, algorithms, key })
}

fn validation(algorithm: Algorithm, settings: &Jwt) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.set_issuer(&[&settings.issuer]);
    validation.set_audience(&settings.audience);
    validation.set_required_spec_claims(&["iss", "aud"]);
    // Time is checked against the gateway's clock.
    validation.validate_exp = false;
    validation.validate_nbf = false;
    validation
}

fn fault(error: &jsonwebtoken::errors::Error) -> TokenFault {
    use jsonwebtoken::errors::ErrorKind;
    match error.kind() {
        ErrorKind::InvalidSignature => TokenFault::Signature,
        ErrorKind::InvalidIssuer => TokenFault::Issuer,
        ErrorKind::InvalidAudience => TokenFault::Audience,
        ErrorKind::MissingRequiredClaim(claim) if claim == "iss" => TokenFault::Issuer,
        ErrorKind::MissingRequiredClaim(_) => TokenFault::Audience,
        ErrorKind::InvalidAlgorithm | ErrorKind::InvalidAlgorithmName | ErrorKind::UnsupportedAlgorithm => {
            TokenFault::Algorithm
        }
        _ => TokenFault::Malformed,
    }
}

const RSA: &[Algorithm] = &[
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];
/// Keys of one set; issuers list a handful.
const MAX_KEYS: usize = 64;
/// Tokens remembered at a time, some 100 bytes each.
const MAX_VERIFIED: usize = 10_000;
/// How long a request waits for a key that its token names.
const WAIT_FOR_KEYS: Duration = Duration::from_secs(2);
const MAX_WAITING: usize = 1024;

#[cfg(test)]
mod tests;
