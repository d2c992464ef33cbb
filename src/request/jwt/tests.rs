use jsonwebtoken::{EncodingKey, Header, encode};
use rcgen::KeyPair;
use serde_json::json;

use super::*;
use crate::config::Jwks;

/// An issuer with one P-256 key.
struct Issuer {
    key: KeyPair,
    id: &'static str,
}

impl Issuer {
    fn new(id: &'static str) -> Self {
        Self { key: KeyPair::generate().unwrap(), id }
    }

    fn jwk(&self) -> Value {
        let raw = self.key.public_key_raw();
        let part = |range: std::ops::Range<usize>| base64_url(&raw[range]);
        json!({"kty": "EC", "crv": "P-256", "use": "sig", "kid": self.id, "x": part(1..33), "y": part(33..65)})
    }

    fn sign(&self, claims: &Value) -> String {
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some(self.id.to_owned());
        encode(&header, claims, &EncodingKey::from_ec_der(&self.key.serialize_der())).unwrap()
    }
}

fn base64_url(bytes: &[u8]) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits =
            group.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for at in 0..=group.len() {
            text.push(char::from(LETTERS[(bits >> (18 - 6 * at) & 63) as usize]));
        }
    }
    text
}

fn settings() -> Jwt {
    Jwt {
        issuer: "https://issuer".into(),
        audience: vec!["gateway".into()],
        jwks: Jwks::File("jwks.json".into()),
        tenant_claim: "tenant".into(),
        algorithms: vec![Algorithm::ES256],
        leeway: Duration::from_secs(60),
        refresh: Duration::from_secs(300),
    }
}

fn keys(issuers: &[&Issuer]) -> TokenKeys {
    let keys = TokenKeys::default();
    keys.configure(Some(&settings()));
    let set = json!({"keys": issuers.iter().map(|issuer| issuer.jwk()).collect::<Vec<_>>()});
    keys.publish(KeySet::parse(set.to_string().as_bytes()).unwrap());
    keys
}

const NOW: u64 = 1_800_000_000;

fn verify(keys: &TokenKeys, token: &str, at: u64) -> Result<String, TokenFault> {
    use sha2::{Digest, Sha256};
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(at);
    keys.verify(token.as_bytes(), Sha256::digest(token).into(), now).map(|tenant| tenant.to_string())
}

fn claims() -> Value {
    json!({"iss": "https://issuer", "aud": ["x", "gateway"], "exp": NOW + 100, "tenant": "acme"})
}

fn with(key: &str, value: Value) -> Value {
    let mut claims = claims();
    if value.is_null() {
        claims.as_object_mut().unwrap().remove(key)
    } else {
        claims.as_object_mut().unwrap().insert(key.into(), value)
    };
    claims
}

#[test]
fn each_claim_is_checked() {
    let issuer = Issuer::new("k1");
    let keys = keys(&[&issuer]);
    use TokenFault as F;
    for (claims, expected) in [
        (claims(), Ok("acme")),
        (with("aud", json!("gateway")), Ok("acme")),
        (with("exp", json!(NOW - 30)), Ok("acme")),
        (with("nbf", json!(NOW + 30)), Ok("acme")),
        (with("exp", json!(NOW - 61)), Err(F::Expired)),
        (with("exp", json!(null)), Err(F::NoExpiry)),
        (with("exp", json!("soon")), Err(F::Malformed)),
        (with("nbf", json!(NOW + 61)), Err(F::TooEarly)),
        (with("iss", json!("https://other")), Err(F::Issuer)),
        (with("iss", json!(null)), Err(F::Issuer)),
        (with("iss", json!(["https://issuer"])), Err(F::Issuer)),
        (with("aud", json!("other")), Err(F::Audience)),
        (with("aud", json!(null)), Err(F::Audience)),
        (with("tenant", json!(null)), Err(F::Tenant)),
        (with("tenant", json!(["acme"])), Err(F::Tenant)),
    ] {
        let found = verify(&keys, &issuer.sign(&claims), NOW);
        assert_eq!(found.as_deref().map_err(|fault| *fault), expected, "{claims}");
    }
}

#[test]
fn only_listed_algorithms_and_the_issuer_s_keys_verify() {
    let (issuer, other, impostor) = (Issuer::new("k1"), Issuer::new("k2"), Issuer::new("k1"));
    let keys = keys(&[&issuer]);
    assert_eq!(verify(&keys, &other.sign(&claims()), NOW), Err(TokenFault::UnknownKey));
    assert_eq!(verify(&keys, &impostor.sign(&claims()), NOW), Err(TokenFault::Signature));
    // The public key as a shared secret, and no signature at all.
    let secret = EncodingKey::from_secret(issuer.key.public_key_raw());
    let forged = encode(&Header::new(Algorithm::HS256), &claims(), &secret).unwrap();
    assert_eq!(verify(&keys, &forged, NOW), Err(TokenFault::Algorithm));
    let unsigned =
        format!("{}.{}.", base64_url(br#"{"alg":"none"}"#), base64_url(claims().to_string().as_bytes()));
    assert_eq!(verify(&keys, &unsigned, NOW), Err(TokenFault::Malformed));
    let whole = issuer.sign(&claims());
    for broken in [&whole[..whole.len() - 4], "eyJ.a.b", "..", "eyJhbGciOiJFUzI1NiJ9..", &format!("{whole}x")]
    {
        assert!(verify(&keys, broken, NOW).is_err(), "{broken}");
    }
}

#[test]
fn a_verified_token_is_remembered_until_it_expires_or_the_keys_change() {
    let (first, second) = (Issuer::new("k1"), Issuer::new("k2"));
    let keys = keys(&[&first]);
    let token = first.sign(&claims());
    assert_eq!(verify(&keys, &token, NOW).as_deref(), Ok("acme"));
    assert_eq!(verify(&keys, &token, NOW + 159).as_deref(), Ok("acme"));
    assert_eq!(verify(&keys, &token, NOW + 160), Err(TokenFault::Expired));
    let set = json!({"keys": [second.jwk()]});
    keys.publish(KeySet::parse(set.to_string().as_bytes()).unwrap());
    assert_eq!(verify(&keys, &token, NOW), Err(TokenFault::UnknownKey));
    keys.configure(Some(&Jwt { issuer: "https://new".into(), ..settings() }));
    assert_eq!(verify(&keys, &second.sign(&claims()), NOW), Err(TokenFault::NoKeys));
}

#[test]
fn keys_of_other_kinds_and_uses_are_skipped() {
    let issuer = Issuer::new("k1");
    let mut encryption = issuer.jwk();
    encryption["use"] = json!("enc");
    let mut other = issuer.jwk();
    other["alg"] = json!("ES384");
    let secret = json!({"kty": "oct", "k": "c2VjcmV0"});
    let set =
        |keys: Value| KeySet::parse(json!({ "keys": keys }).to_string().as_bytes()).map(|set| set.keys.len());
    assert_eq!(set(json!([encryption, other, secret, {"kty": "new"}, 7])), Err(KeySetError::Empty));
    assert_eq!(set(json!([secret, issuer.jwk()])), Ok(1));
    assert_eq!(KeySet::parse(b"{}").unwrap_err(), KeySetError::Malformed);
    assert_eq!(KeySet::parse(b"<html>").unwrap_err(), KeySetError::Malformed);
}
#[tokio::test(start_paused = true)]
async fn requests_wait_for_keys_up_to_a_number() {
    let keys = TokenKeys::default();
    let refreshed = || tokio::time::timeout(WAIT_FOR_KEYS / 2, keys.refreshed());
    let waiting: Vec<_> = (0..MAX_WAITING).map(|_| keys.attempts.subscribe()).collect();
    assert!(refreshed().await.is_ok(), "not waited for");
    drop(waiting);
    assert!(refreshed().await.is_err());
}
