//! Who asks: bearer tokens of an issuer beside API keys, and what changes while the gateway runs.
//!
//! What each claim means is in `request::jwt`; here the issuer is a server whose answers change, and the gateway is
//! looked at from its data port.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jsonwebtoken::jwk::{Jwk, JwkSet};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use parking_lot::Mutex;
use rcgen::KeyPair;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokenway::clock::Clock;
use tokenway::config::{Config, Endpoint, Jwks, Jwt, Tenant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use crate::listener_support::raw::{self, Client, post};
use crate::listener_support::{CHAT, Gateway, STREAM, soon};

const CHAT_PATH: &str = "/v1/chat/completions";
const KEY: &str = "key-of-acme";

/// A key of the issuer.
struct SigningKey {
    id: &'static str,
    key: EncodingKey,
}

impl SigningKey {
    fn new(id: &'static str) -> Self {
        let pair = KeyPair::generate().unwrap();
        Self { id, key: EncodingKey::from_ec_der(&pair.serialize_der()) }
    }

    fn jwk(&self) -> Jwk {
        let mut jwk = Jwk::from_encoding_key(&self.key, Algorithm::ES256).unwrap();
        jwk.common.key_id = Some(self.id.to_owned());
        jwk
    }

    /// A token for an hour with these claims on top.
    fn token(&self, claims: Value) -> String {
        let clock = Clock::start();
        let now = clock.wall(clock.now()).duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let mut all = json!({"iss": "https://issuer", "aud": "tokenway", "exp": now + 3600});
        all.as_object_mut().unwrap().extend(claims.as_object().unwrap().clone());
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some(self.id.to_owned());
        jsonwebtoken::encode(&header, &all, &self.key).unwrap()
    }

    fn of(&self, tenant: &str) -> String {
        self.token(json!({ "tenant": tenant }))
    }
}

/// The issuer's key set on a port of its own.
struct Issuer {
    addr: SocketAddr,
    /// `None` answers 503.
    keys: Arc<Mutex<Option<String>>>,
    _tasks: TaskTracker,
}

impl Issuer {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (keys, tasks) = (Arc::new(Mutex::<Option<String>>::default()), TaskTracker::new());
        let answers = Arc::clone(&keys);
        tasks.spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let mut request = [0; 4096];
                let read = socket.read(&mut request).await.unwrap_or(0);
                assert!(request[..read].starts_with(b"GET /keys?of=tokenway HTTP/1.1\r\n"));
                let (status, body) = match answers.lock().clone() {
                    Some(body) => ("200 OK", body),
                    None => ("503 Service Unavailable", String::new()),
                };
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                let _ = socket.write_all(answer.as_bytes()).await;
            }
        });
        Self { addr, keys, _tasks: tasks }
    }

    fn publish(&self, keys: &[&SigningKey]) {
        let set = JwkSet { keys: keys.iter().map(|key| key.jwk()).collect() };
        *self.keys.lock() = Some(serde_json::to_string(&set).unwrap());
    }

    fn fail(&self) {
        *self.keys.lock() = None;
    }

    fn jwks(&self) -> Jwks {
        let host = self.addr.ip().to_string().into();
        let endpoint = Endpoint { is_tls: false, host, port: self.addr.port(), base_path: "".into() };
        Jwks::Url { endpoint, target: "/keys?of=tokenway".into() }
    }
}

fn tenant(name: &str, key: Option<&str>, routes: Option<&str>) -> Tenant {
    Tenant {
        name: name.into(),
        key_digests: key.iter().map(|key| Sha256::digest(key).into()).collect(),
        routes: routes.map(|route| vec![route.into()]),
        ..Tenant::default()
    }
}

/// Tenant `acme` with a key, `guest` without one and without a route.
fn configure(config: &mut Config, jwks: Jwks) {
    config.tenants = vec![tenant("acme", Some(KEY), None), tenant("guest", None, Some("none"))];
    config.jwt = Some(Jwt {
        issuer: "https://issuer".into(),
        audience: vec!["tokenway".into()],
        jwks,
        tenant_claim: "tenant".into(),
        algorithms: vec![Algorithm::ES256],
        leeway: Duration::from_secs(60),
        refresh: Duration::from_secs(3600),
    });
}

/// Status and error code of a chat request with this credential.
async fn ask(gateway: &Gateway, credential: &str) -> (u16, String) {
    let field = format!("authorization: Bearer {credential}\r\n");
    let reply = raw::exchange(gateway.addr(), post(CHAT_PATH, &field, CHAT)).await;
    assert!(!reply.text().contains(credential), "the answer repeats the credential");
    (reply.status(), if reply.status() == 200 { String::new() } else { reply.code() })
}

fn refused() -> (u16, String) {
    (401, "invalid_api_key".into())
}

fn served() -> (u16, String) {
    (200, String::new())
}

#[tokio::test]
async fn tokens_name_their_tenant_and_keys_go_on_working_beside_them() {
    let (issuer, key, stranger) = (Issuer::start().await, SigningKey::new("k1"), SigningKey::new("k1"));
    issuer.publish(&[&key]);
    let gateway = Gateway::with(|c| configure(c, issuer.jwks())).await;
    assert_eq!(ask(&gateway, &key.of("acme")).await, served());
    assert_eq!(ask(&gateway, KEY).await, served());
    // The tenant's rights are those of its section, however it was identified.
    assert_eq!(ask(&gateway, &key.of("guest")).await, (404, "model_not_found".into()));
    for (what, token) in [
        ("another tenant", key.of("nobody")),
        ("no tenant", key.token(json!({}))),
        ("expired", key.token(json!({"tenant": "acme", "exp": 1_700_000_000}))),
        ("another audience", key.token(json!({"tenant": "acme", "aud": "other"}))),
        ("another issuer", key.token(json!({"tenant": "acme", "iss": "https://other"}))),
        ("another's signature", stranger.of("acme")),
        ("no token", "eyJhbGciOiJub25lIn0.e30.".into()),
        ("another key", "another-key".into()),
    ] {
        assert_eq!(ask(&gateway, &token).await, refused(), "{what}");
    }
    assert_eq!(models(&gateway, &key.of("acme")).await, 200);
    assert_eq!(models(&gateway, &stranger.of("acme")).await, 401);
    let seen = gateway.replica.seen();
    assert_eq!(seen.len(), 2);
    assert!(seen.iter().all(|seen| seen.header("authorization").is_none()), "a credential went upstream");
}

/// Status of the list of models.
async fn models(gateway: &Gateway, token: &str) -> u16 {
    let head = format!("GET /v1/models HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {token}\r\n\r\n");
    raw::exchange(gateway.addr(), head).await.status()
}

#[tokio::test]
async fn rotated_keys_are_taken_up_and_the_last_good_ones_outlive_the_issuer() {
    let (issuer, first, second) = (Issuer::start().await, SigningKey::new("k1"), SigningKey::new("k2"));
    let gateway = Gateway::with(|c| configure(c, issuer.jwks())).await;
    // The issuer was down from the start: not the client's fault.
    assert_eq!(ask(&gateway, &first.of("acme")).await, (503, "no_token_keys".into()));
    assert_eq!(ask(&gateway, KEY).await, served());
    let becomes = async |token: &str, expected: (u16, String)| {
        soon("the keys are read again", async { while ask(&gateway, token).await != expected {} }).await;
    };
    issuer.publish(&[&first]);
    becomes(&first.of("acme"), served()).await;
    // Rotation: the next token with the new key makes the gateway look.
    issuer.publish(&[&second]);
    becomes(&second.of("acme"), served()).await;
    assert_eq!(ask(&gateway, &first.of("acme")).await, refused(), "a withdrawn key");
    // So does a list of models, which many clients ask for first.
    issuer.publish(&[&first]);
    soon("the keys are read for a list", async { while models(&gateway, &first.of("acme")).await != 200 {} })
        .await;
    issuer.publish(&[&second]);
    becomes(&second.of("acme"), served()).await;
    issuer.fail();
    assert_eq!(ask(&gateway, &first.of("acme")).await, refused());
    assert_eq!(ask(&gateway, &second.of("acme")).await, served());
    *issuer.keys.lock() = Some("<html>".into());
    gateway.app.reload(Arc::new(gateway.config.clone())).unwrap();
    assert_eq!(ask(&gateway, &second.of("acme")).await, served());
}

#[tokio::test]
async fn keys_and_key_sets_change_by_a_reload_without_a_dropped_stream() {
    let (first, second) = (SigningKey::new("k1"), SigningKey::new("k2"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jwks.json");
    let write = |key: &SigningKey| {
        std::fs::write(&path, serde_json::to_string(&JwkSet { keys: vec![key.jwk()] }).unwrap()).unwrap();
    };
    write(&first);
    let mut gateway = Gateway::with(|c| configure(c, Jwks::File(path.clone()))).await;
    let open = async |credential: &str| {
        let mut client = Client::connect(gateway.addr()).await;
        let fields = format!("authorization: Bearer {credential}\r\nx-script: gated\r\n");
        client.send_raw(post(CHAT_PATH, &fields, STREAM)).await;
        assert!(client.head().await.text.starts_with("HTTP/1.1 200"));
        client
    };
    let mut streams = [open(KEY).await, open(&first.of("acme")).await];
    write(&second);
    gateway.config.tenants[0] = tenant("acme", Some("new-key"), None);
    gateway.app.reload(Arc::new(gateway.config.clone())).unwrap();
    assert_eq!(ask(&gateway, KEY).await, refused());
    assert_eq!(ask(&gateway, "new-key").await, served());
    soon("the new key set is read", async { while ask(&gateway, &second.of("acme")).await != served() {} })
        .await;
    assert_eq!(ask(&gateway, &first.of("acme")).await, refused());
    gateway.replica.let_go(6);
    for stream in &mut streams {
        while stream.chunk().await.expect("the stream of an old key goes on") != b"" {}
    }
}
