//! `[auth]`: how clients prove who they are beside API keys.

use std::path::PathBuf;
use std::time::Duration;

use super::Endpoint;

/// `[auth.jwt]`: bearer tokens of one issuer; a claim names the tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jwt {
    /// `iss` of a valid token.
    pub issuer: String,
    /// A valid token is meant for one of these (`aud`); at least one.
    pub audience: Vec<String>,
    /// Where the issuer's public keys are.
    pub jwks: Jwks,
    /// Claim with the name of a `[[tenant]]`.
    pub tenant_claim: String,
    /// Signature algorithms that are accepted; at least one, none with a shared secret.
    pub algorithms: Vec<jsonwebtoken::Algorithm>,
    /// Difference of clocks that `exp` and `nbf` allow.
    pub leeway: Duration,
    /// Period in which the keys are read again.
    pub refresh: Duration,
}

/// A JSON Web Key Set (RFC 7517).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Jwks {
    /// `file:PATH`
    File(PathBuf),
    /// An `http` or `https` URL.
    Url {
        /// Without a path.
        endpoint: Endpoint,
        /// Path and query.
        target: String,
    },
}

impl std::fmt::Display for Jwks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Url { endpoint, target } => write!(f, "{endpoint}{target}"),
        }
    }
}
