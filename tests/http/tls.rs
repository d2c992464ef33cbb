//! The data port under TLS: protocols by ALPN, client certificates, reload, a handshake that never ends.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, Certificate, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tempfile::TempDir;
use tokenway::config::{PoolIdentity, PoolTls, Tenant, Tls};
use tokenway::fleet::status::ReplicaState;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::task::TaskTracker;

use crate::listener_support::raw::{self, Client, post};
use crate::listener_support::replica::fault;
use crate::listener_support::{CHAT, Gateway, STREAM, soon, until};

const CHAT_PATH: &str = "/v1/chat/completions";

/// A certificate authority and the files of a gateway.
struct Files {
    folder: TempDir,
    ca: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Files {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = params.self_signed(&key).unwrap();
        let this = Self { folder: TempDir::new().unwrap(), ca, issuer: Issuer::new(params, key) };
        std::fs::write(this.path("ca.pem"), this.ca.pem()).unwrap();
        this.renew();
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a new certificate and key for the gateway; returns the certificate.
    fn renew(&self) -> CertificateDer<'static> {
        let (cert, key) = self.issue("localhost");
        std::fs::write(self.path("cert.pem"), cert.pem()).unwrap();
        std::fs::write(self.path("key.pem"), key.serialize_pem()).unwrap();
        cert.der().clone()
    }

    fn issue(&self, name: &str) -> (Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    fn tls(&self, asks_clients: bool) -> Tls {
        let client_ca = asks_clients.then(|| self.path("ca.pem"));
        Tls { cert: self.path("cert.pem"), key: self.path("key.pem"), client_ca, is_removed: false }
    }

    /// Writes a certificate and key for the gateway as a client of its engines.
    fn client_identity(&self, name: &str) -> PoolIdentity {
        let (certificate, private) = self.issue(name);
        let (cert, key) = (self.path("client.pem"), self.path("client.key"));
        std::fs::write(&cert, certificate.pem()).unwrap();
        std::fs::write(&key, private.serialize_pem()).unwrap();
        PoolIdentity { cert, key }
    }

    /// A client that trusts the authority, with a certificate of its own or without.
    fn client(&self, has_certificate: bool, alpn: &[&str]) -> TlsConnector {
        self.client_named(has_certificate.then_some("client"), alpn)
    }

    fn client_named(&self, certificate: Option<&str>, alpn: &[&str]) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.ca.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = if let Some(name) = certificate {
            let (cert, key) = self.issue(name);
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            builder.with_client_auth_cert(vec![cert.der().clone()], key).unwrap()
        } else {
            builder.with_no_client_auth()
        };
        config.alpn_protocols = alpn.iter().map(|p| p.as_bytes().to_vec()).collect();
        TlsConnector::from(Arc::new(config))
    }
}

async fn handshake(client: &TlsConnector, addr: SocketAddr) -> std::io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from("localhost").unwrap();
    let socket = TcpStream::connect(addr).await?;
    soon("a handshake", client.connect(name, socket)).await
}

fn served(stream: &TlsStream<TcpStream>) -> CertificateDer<'static> {
    stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
}

async fn is_served(client: &mut Client<TlsStream<TcpStream>>) {
    client.send_raw(post(CHAT_PATH, "", CHAT)).await;
    assert_eq!(client.reply().await.status(), 200);
}

#[tokio::test]
async fn http1_and_http2_are_chosen_by_alpn() {
    let files = Files::new();
    let gateway = Gateway::with(|c| c.server.tls = Some(files.tls(false))).await;
    for alpn in [&["http/1.1"][..], &[]] {
        let stream = handshake(&files.client(false, alpn), gateway.addr()).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), alpn.first().map(|p| p.as_bytes()));
        is_served(&mut Client::over(stream)).await;
    }
    let stream = handshake(&files.client(false, &["h2", "http/1.1"]), gateway.addr()).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let io = TokioIo::new(stream);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    TaskTracker::new().spawn(connection);
    for _ in 0..3 {
        let request = http::Request::post(format!("https://localhost{CHAT_PATH}"))
            .body(Full::new(Bytes::from_static(CHAT.as_bytes())))
            .unwrap();
        let response = soon("an answer", sender.send_request(request)).await.unwrap();
        assert_eq!((response.status().as_u16(), response.version()), (200, http::Version::HTTP_2));
        let body = soon("its body", response.into_body().collect()).await.unwrap().to_bytes();
        assert!(body.starts_with(b"{"));
    }
    assert!(gateway.replica.seen().iter().all(|seen| fault(seen).is_none()));
}

#[tokio::test]
async fn what_is_no_http2_on_a_connection_that_chose_it_ends_it_without_an_answer() {
    let files = Files::new();
    let gateway = Gateway::with(|c| c.server.tls = Some(files.tls(false))).await;
    for bytes in [post(CHAT_PATH, "", CHAT), "INVALID CONNECTION PREFACE\r\n\r\n".into()] {
        let mut client =
            Client::over(handshake(&files.client(false, &["h2"]), gateway.addr()).await.unwrap());
        client.send_raw(bytes).await;
        assert!(client.is_closed().await);
    }
    assert!(gateway.replica.seen().is_empty());
}

#[tokio::test]
async fn a_protocol_that_is_not_offered_ends_the_handshake() {
    let files = Files::new();
    let gateway = Gateway::with(|c| c.server.tls = Some(files.tls(false))).await;
    assert!(handshake(&files.client(false, &["spdy/3"]), gateway.addr()).await.is_err());
}

#[tokio::test]
async fn clear_text_on_a_tls_port_is_told_so_and_not_served() {
    let files = Files::new();
    let gateway = Gateway::with(|c| c.server.tls = Some(files.tls(false))).await;
    let mut client = raw::sent(gateway.addr(), post(CHAT_PATH, "", CHAT)).await;
    let answer = client.reply().await;
    assert_eq!((answer.status(), answer.code().as_str()), (400, "tls_required"), "{answer:?}");
    assert!(client.is_closed().await);
    assert!(gateway.replica.seen().is_empty());
}

#[tokio::test]
async fn mutual_tls_refuses_clients_without_a_certificate_or_with_a_strangers() {
    let files = Files::new();
    let gateway = Gateway::with(|c| c.server.tls = Some(files.tls(true))).await;
    let stranger = Files::new();
    let mut trusting = RootCertStore::empty();
    trusting.add(files.ca.der().clone()).unwrap();
    let (cert, key) = stranger.issue("client");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(trusting)
        .with_client_auth_cert(
            vec![cert.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    for client in [files.client(false, &[]), TlsConnector::from(Arc::new(config))] {
        // TLS 1.3 tells the client only after its own handshake is done.
        if let Ok(stream) = handshake(&client, gateway.addr()).await {
            let mut client = Client::over(stream);
            client.send_raw(post(CHAT_PATH, "", CHAT)).await;
            assert!(client.is_closed().await);
        }
    }
    assert!(gateway.replica.seen().is_empty());
    let stream = handshake(&files.client(true, &[]), gateway.addr()).await.unwrap();
    is_served(&mut Client::over(stream)).await;
}

#[tokio::test]
async fn a_reload_serves_the_new_certificate_while_old_connections_live_on() {
    let files = Files::new();
    let first = files.renew();
    let gateway = Gateway::with(|c| c.server.tls = Some(files.tls(false))).await;
    let client = files.client(false, &["http/1.1"]);
    let stream = handshake(&client, gateway.addr()).await.unwrap();
    assert_eq!(served(&stream), first);
    let mut old = Client::over(stream);
    is_served(&mut old).await;

    let second = files.renew();
    gateway.app.reload(Arc::new(gateway.config.clone())).unwrap();
    // A client of its own: one that knows a session would not be shown a certificate.
    let stream = handshake(&files.client(false, &[]), gateway.addr()).await.unwrap();
    assert_eq!(served(&stream), second);
    is_served(&mut Client::over(stream)).await;
    is_served(&mut old).await;
}

#[tokio::test]
async fn a_reload_with_a_bad_certificate_changes_nothing_and_names_the_file() {
    let files = Files::new();
    let first = files.renew();
    let gateway = Gateway::with(|c| c.server.tls = Some(files.tls(false))).await;
    for (name, content) in [("key.pem", Some("no pem")), ("cert.pem", Some("")), ("cert.pem", None)] {
        files.renew();
        match content {
            Some(content) => std::fs::write(files.path(name), content).unwrap(),
            None => std::fs::remove_file(files.path(name)).unwrap(),
        }
        let error = gateway.app.reload(Arc::new(gateway.config.clone())).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
        let stream = handshake(&files.client(false, &[]), gateway.addr()).await.unwrap();
        assert_eq!(served(&stream), first);
    }
    // A key that does not belong to the certificate.
    files.renew();
    std::fs::write(files.path("key.pem"), KeyPair::generate().unwrap().serialize_pem()).unwrap();
    assert!(gateway.app.reload(Arc::new(gateway.config.clone())).is_err());
    let stream = handshake(&files.client(false, &[]), gateway.addr()).await.unwrap();
    assert_eq!(served(&stream), first);
}

#[tokio::test]
async fn a_handshake_that_does_not_end_is_cut_by_its_timeout() {
    let files = Files::new();
    let gateway = Gateway::with(|c| {
        c.server.tls = Some(files.tls(false));
        c.server.tls_handshake_timeout = Duration::from_millis(200);
    })
    .await;
    assert!(Client::connect(gateway.addr()).await.is_closed().await);
}

#[tokio::test]
async fn the_first_head_is_due_from_accept_with_the_handshake_included() {
    let files = Files::new();
    let gateway = Gateway::with(|c| {
        c.server.tls = Some(files.tls(false));
        c.server.header_timeout = Duration::from_millis(600);
    })
    .await;
    // No handshake at all: its own timeout is far away.
    assert!(Client::connect(gateway.addr()).await.is_closed().await);
    let stream = handshake(&files.client(false, &[]), gateway.addr()).await.unwrap();
    let mut silent = Client::over(stream);
    assert!(silent.is_closed().await);
}

#[tokio::test]
async fn a_client_certificate_names_its_tenant_and_needs_no_key() {
    let files = Files::new();
    let tenant = |name: &str, route: &str| Tenant {
        name: name.into(),
        client_names: vec![format!("{name}.internal").into()],
        routes: Some(vec![route.into()]),
        ..Tenant::default()
    };
    let gateway = Gateway::with(|c| {
        c.server.tls = Some(files.tls(true));
        c.tenants = vec![tenant("acme", "*"), tenant("other", "none")];
    })
    .await;
    let ask = async |name: &str| {
        let client = files.client_named(Some(name), &["http/1.1"]);
        let mut client = Client::over(handshake(&client, gateway.addr()).await.unwrap());
        client.send_raw(post(CHAT_PATH, "", CHAT)).await;
        let reply = client.reply().await;
        (reply.status(), if reply.status() == 200 { String::new() } else { reply.code() })
    };
    assert_eq!(ask("acme.internal").await, (200, String::new()));
    assert_eq!(ask("other.internal").await, (404, "model_not_found".into()));
    // A certificate of the CA, but no tenant's: a key is asked for.
    assert_eq!(ask("stranger.internal").await, (401, "invalid_api_key".into()));
    assert_eq!(gateway.replica.seen().len(), 1);
}

#[tokio::test]
async fn a_reload_trusts_another_client_ca() {
    let (files, others) = (Files::new(), Files::new());
    let gateway = Gateway::with(|c| c.server.tls = Some(files.tls(true))).await;
    let stream = handshake(&files.client(true, &[]), gateway.addr()).await.unwrap();
    let mut old = Client::over(stream);
    is_served(&mut old).await;
    std::fs::copy(others.path("ca.pem"), files.path("ca.pem")).unwrap();
    gateway.app.reload(Arc::new(gateway.config.clone())).unwrap();
    if let Ok(stream) = handshake(&files.client(true, &[]), gateway.addr()).await {
        assert!(Client::over(stream).is_closed().await);
    }
    // The connection that was verified before goes on.
    is_served(&mut old).await;
}

/// Ends TLS in front of a replica and asks clients for a certificate of this authority.
async fn secured(files: &Files, replica: SocketAddr) -> (SocketAddr, TaskTracker) {
    let mut roots = RootCertStore::empty();
    roots.add(files.ca.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build().unwrap();
    let (cert, key) = files.issue("engine.internal");
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![cert.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (addr, tasks) = (listener.local_addr().unwrap(), TaskTracker::new());
    let connections = tasks.clone();
    tasks.spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            connections.spawn(async move {
                let Ok(mut client) = acceptor.accept(socket).await else { return };
                let mut engine = TcpStream::connect(replica).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut engine).await;
            });
        }
    });
    (addr, tasks)
}

#[tokio::test]
async fn engines_that_ask_for_a_certificate_get_the_pool_s_and_a_reload_changes_it() {
    let files = Files::new();
    let mut tls = PoolTls {
        ca: Some(files.path("ca.pem")),
        identity: Some(files.client_identity("gateway")),
        server_name: Some("engine.internal".into()),
    };
    let mut gateway = Gateway::start().await;
    let (addr, _tasks) = secured(&files, gateway.replica.addr).await;
    let endpoint = &mut gateway.config.pools[0].replicas[0].endpoint;
    (endpoint.is_tls, endpoint.port) = (true, addr.port());
    let apply = |gateway: &mut Gateway, tls: &PoolTls| {
        gateway.config.pools[0].tls = Some(tls.clone());
        gateway.app.reload(Arc::new(gateway.config.clone()))
    };
    let is_ready =
        |gateway: &Gateway| gateway.app.fleet.statuses().iter().all(|r| r.state == ReplicaState::Ready);
    apply(&mut gateway, &tls).unwrap();
    until("probes pass with the certificate", || is_ready(&gateway)).await;
    // A stream over TLS in both halves of a reload.
    let mut stream = raw::sent(gateway.addr(), post(CHAT_PATH, "x-script: gated\r\n", STREAM)).await;
    assert!(stream.head().await.text.starts_with("HTTP/1.1 200"));

    // Files that cannot be used change nothing.
    std::fs::write(files.path("client.key"), "no pem").unwrap();
    let error = apply(&mut gateway, &tls).unwrap_err().to_string();
    assert!(error.contains("client.key"), "{error}");
    // Another authority's certificate is refused by the engine.
    tls.identity = Some(Files::new().client_identity("gateway"));
    // (Its folder is gone with its authority.)
    assert!(apply(&mut gateway, &tls).is_err());
    tls.identity = None;
    apply(&mut gateway, &tls).unwrap();
    // Others were served by idle connections before; those are gone.
    assert_eq!(raw::ask(gateway.addr(), CHAT_PATH, CHAT).await.status(), 502);
    gateway.replica.let_go(3);
    while stream.chunk().await.expect("the stream goes on") != b"" {}
    tls.identity = Some(files.client_identity("gateway"));
    apply(&mut gateway, &tls).unwrap();
    until("probes pass again", || is_ready(&gateway)).await;
    gateway.is_well().await;
}
