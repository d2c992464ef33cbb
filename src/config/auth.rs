//! `[auth]`: how clients prove who they are beside API keys.

use std::path::PathBuf;
use std::time::Duration;

use jsonwebtoken::Algorithm;
use serde_json::json;
use toml::de::DeValue;

use super::Endpoint;
use super::check::codec::{Codec, FILLED, List, Own, Words};
use super::check::section::{Item, Section};
use super::check::shape::Kind;
use super::check::values::{DURATION, POSITIVE_DURATION, TARGET};
use super::declare::{Declared, section};
use crate::whole_file;

section! {
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Jwt for "[auth.jwt]", optional {
        /// required: `iss`
        issuer: String as FILLED, required "https://login.example/";
        /// required: one of them is in `aud`
        audience: Vec<String> as AUDIENCE, required ["tokenway"];
        /// required: the issuer's keys; or "file:jwks.json"
        jwks: Jwks as JWKS, required "https://login.example/.well-known/jwks.json";
        /// its value is the name of a `[[tenant]]`
        tenant_claim: String as FILLED, default "tenant";
        /// also RS384, RS512, PS256, PS384, PS512, ES384; never a shared secret
        algorithms: Vec<Algorithm> as ALGORITHMS, default ["RS256", "ES256", "EdDSA"];
        /// difference of clocks for `exp` and `nbf`
        leeway: Duration as DURATION, default "60s";
        /// of the keys; also on a reload and when a token names an unknown key; the last good ones stay
        refresh: Duration as POSITIVE_DURATION, default "5m";
    }
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

pub(super) fn jwt(root: &Section<'_>) -> Option<Jwt> {
    let auth = root.section("auth", "[auth]");
    let (section, jwt) = Jwt::opened(&auth)?;
    for (key, hint) in [("issuer", ISSUER_HINT), ("audience", AUDIENCE_HINT), ("jwks", JWKS_HINT)] {
        section.expect(key, hint);
    }
    if root.list("tenant").is_empty() {
        section.fault(
            "[auth.jwt] needs tenants that its tokens can name",
            "add one: [[tenant]] name = \"acme\"; its name is the value of the token's tenant_claim",
        );
    }
    Some(jwt)
}

fn audience(item: &Item<'_>) -> Option<Vec<String>> {
    item.accepts([Kind::Text { hint: "" }, Kind::List]);
    let of = |item: &Item<'_>| item.text().map(str::to_owned);
    let list: Vec<String> = match item.value {
        DeValue::String(_) => of(item).into_iter().collect(),
        _ => item.list().iter().filter_map(of).collect(),
    };
    if list.iter().all(String::is_empty) {
        item.fault("audience is empty", AUDIENCE_HINT);
    }
    Some(list)
}

fn algorithms(item: &Item<'_>) -> Option<Vec<Algorithm>> {
    let list = item.list();
    if item.is_empty_list() {
        item.fault("algorithms is empty", "leave it out for the default: RS256, ES256, EdDSA");
    }
    Some(list.iter().filter_map(|item| ALGORITHM.read(item)).collect())
}

fn jwks(item: &Item<'_>) -> Option<Jwks> {
    let text = item.text()?;
    let Some(path) = text.strip_prefix("file:") else {
        let at = text.find('?').unwrap_or(text.len());
        let (url, query) = text.split_at(at);
        return match (TARGET.parse)(url) {
            Ok(mut endpoint) => {
                let target = format!("{}{query}", endpoint.base_path);
                endpoint.base_path = "".into();
                let target = if target.starts_with('/') { target } else { format!("/{target}") };
                Some(Jwks::Url { endpoint, target })
            }
            Err(message) => {
                item.fault(message, JWKS_HINT);
                None
            }
        };
    };
    let path = item.input(path);
    let fault = match whole_file::read(&path) {
        Ok(json) => holds_keys(&json).err().map(|fault| format!("{} {fault}", path.display())),
        Err(error) => Some(format!("cannot read {}: {error}", path.display())),
    };
    if let Some(message) = fault {
        item.fault(message, JWKS_HINT);
    }
    Some(Jwks::File(path))
}

fn holds_keys(json: &[u8]) -> Result<(), &'static str> {
    let json: serde_json::Value = serde_json::from_slice(json).map_err(|_| "is not JSON")?;
    match json.get("keys").and_then(|keys| keys.as_array()) {
        Some(keys) if !keys.is_empty() => Ok(()),
        _ => Err("is not a key set: it has no \"keys\""),
    }
}

const AUDIENCE: Own<Vec<String>> = Own { read: audience, show: |list| json!(list) };
const ALGORITHMS: Own<Vec<Algorithm>> = Own { read: algorithms, show: |list| List(ALGORITHM).show(list) };
/// A query may hold a secret.
const JWKS: Own<Jwks> = Own { read: jwks, show: |jwks| json!(jwks.to_string().split(['?', '#']).next()) };
/// All of public keys: with `none` or a shared secret (HS256) anyone who knows the public key could sign.
const ALGORITHM: Words<Algorithm> = Words(
    "signature algorithm",
    &[
        ("RS256", Algorithm::RS256),
        ("RS384", Algorithm::RS384),
        ("RS512", Algorithm::RS512),
        ("PS256", Algorithm::PS256),
        ("PS384", Algorithm::PS384),
        ("PS512", Algorithm::PS512),
        ("ES256", Algorithm::ES256),
        ("ES384", Algorithm::ES384),
        ("EdDSA", Algorithm::EdDSA),
    ],
);
const ISSUER_HINT: &str = "write the `iss` of its tokens: issuer = \"https://login.example/\"";
const AUDIENCE_HINT: &str = "write the `aud` that tokens for this gateway carry: audience = [\"tokenway\"]";
const JWKS_HINT: &str =
    "name the issuer's key set: \"https://login.example/.well-known/jwks.json\" or \"file:jwks.json\"";
