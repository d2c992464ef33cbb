//! `[auth.jwt]`: tokens of an issuer beside API keys.

use std::time::Duration;

use jsonwebtoken::Algorithm;
use toml::de::DeValue;

use crate::config::{Jwks, Jwt};

use super::section::{Item, Section};
use super::shape::Kind;
use super::values::{DURATION, ENDPOINT, POSITIVE_DURATION};

/// Reads `[auth]`.
pub(super) fn jwt(root: &Section<'_>) -> Option<Jwt> {
    let auth = root.section("auth", "[auth]");
    let section = auth.section("jwt", "[auth.jwt]");
    let text = |key| section.get(key).and_then(|item| item.text().map(str::to_owned));
    let (issuer, audience) = (text("issuer"), audience(&section));
    let jwks = section.get("jwks").and_then(|item| jwks(&item));
    let tenant_claim = text("tenant_claim").unwrap_or_else(|| "tenant".to_owned());
    let algorithms = algorithms(&section);
    let leeway = section.parse("leeway", &DURATION).unwrap_or(Duration::from_secs(60));
    let refresh = section.parse("refresh", &POSITIVE_DURATION).unwrap_or(Duration::from_secs(300));
    if !section.is_present() {
        return None;
    }
    for (key, hint) in [("issuer", ISSUER_HINT), ("audience", AUDIENCE_HINT), ("jwks", JWKS_HINT)] {
        section.expect(key, hint);
    }
    if root.list("tenant").is_empty() {
        section.fault(
            "[auth.jwt] needs tenants that its tokens can name",
            "add one: [[tenant]] name = \"acme\"; its name is the value of the token's tenant_claim",
        );
    }
    Some(Jwt { issuer: issuer?, audience, jwks: jwks?, tenant_claim, algorithms, leeway, refresh })
}

fn audience(section: &Section<'_>) -> Vec<String> {
    let Some(item) = section.get("audience") else { return Vec::new() };
    item.accepts([Kind::Text { hint: "" }, Kind::List]);
    let of = |item: &Item<'_>| item.text().map(str::to_owned);
    let list: Vec<String> = match item.value {
        DeValue::String(_) => of(&item).into_iter().collect(),
        _ => item.list().iter().filter_map(of).collect(),
    };
    if list.iter().all(String::is_empty) {
        item.fault("audience is empty", AUDIENCE_HINT);
    }
    list
}

fn algorithms(section: &Section<'_>) -> Vec<Algorithm> {
    let Some(item) = section.get("algorithms") else {
        return vec![Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA];
    };
    let list = item.list();
    if list.is_empty() && item.value.as_array().is_some() {
        item.fault("algorithms is empty", "leave it out for the default: RS256, ES256, EdDSA");
    }
    list.iter().filter_map(|item| item.one_of("signature algorithm", ALGORITHMS)).collect()
}

fn jwks(item: &Item<'_>) -> Option<Jwks> {
    let text = item.text()?;
    let Some(path) = text.strip_prefix("file:") else {
        let at = text.find('?').unwrap_or(text.len());
        let (url, query) = text.split_at(at);
        return match (ENDPOINT.parse)(url) {
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
    let path = item.checking.directory.join(path);
    let fault = match std::fs::read(&path) {
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

/// All of public keys: with `none` or a shared secret (HS256) anyone who knows the public key could sign.
const ALGORITHMS: &[(&str, Algorithm)] = &[
    ("RS256", Algorithm::RS256),
    ("RS384", Algorithm::RS384),
    ("RS512", Algorithm::RS512),
    ("PS256", Algorithm::PS256),
    ("PS384", Algorithm::PS384),
    ("PS512", Algorithm::PS512),
    ("ES256", Algorithm::ES256),
    ("ES384", Algorithm::ES384),
    ("EdDSA", Algorithm::EdDSA),
];
const ISSUER_HINT: &str = "write the `iss` of its tokens: issuer = \"https://login.example/\"";
const AUDIENCE_HINT: &str = "write the `aud` that tokens for this gateway carry: audience = [\"tokenway\"]";
const JWKS_HINT: &str =
    "name the issuer's key set: \"https://login.example/.well-known/jwks.json\" or \"file:jwks.json\"";
