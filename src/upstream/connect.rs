//! Opens outbound connections: TCP, and TLS for https.
//!
//! HTTP/1.1 because that is what vLLM speaks (uvicorn answers an HTTP/2 preface with 400). Of a name with several addresses the next
//! one gets its chance after [`NEXT_ADDRESS_AFTER`], that of the other family first (RFC 8305).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_util::either::Either;
use tokio_util::task::TaskTracker;

use super::http1::Connection;
use super::resolve::{Resolver, families_in_turn};
use super::socket::{Stream, tune};
use crate::clock::{AtomicStamp, Clock};
use crate::config::{Endpoint, PoolTls};
use crate::listener::tls::{TlsError, certificates, private_key};

fn system_roots() -> RootCertStore {
    let native = rustls_native_certs::load_native_certs();
    for error in native.errors {
        tracing::warn!(%error, "system certificates");
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(native.certs);
    roots
}

/// How `https` connections are secured.
#[derive(Clone, Debug)]
pub struct ClientTls {
    config: Arc<rustls::ClientConfig>,
    /// Instead of the endpoint's host.
    server_name: Option<ServerName<'static>>,
}

impl ClientTls {
    /// With the certificate that is presented where a server asks for one, and its key.
    fn trusting(
        roots: RootCertStore,
        identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    ) -> Result<Self, rustls::Error> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let mut config = match identity {
            Some((chain, key)) => config.with_client_auth_cert(chain, key)?,
            None => config.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { config: Arc::new(config), server_name: None })
    }
}

/// Opens connections; cheap to clone, and clones share what [`Connector::secure`] sets.
#[derive(Clone, Debug)]
pub struct Connector {
    tls: Arc<ArcSwap<ClientTls>>,
    resolver: Resolver,
    clock: Clock,
    /// When a shortage of descriptors or ports was logged last.
    shortage_logged: Arc<AtomicStamp>,
}

impl Connector {
    /// A connector that trusts the system's certificate store (`SSL_CERT_FILE` is honoured) for `https`.
    pub fn new(tracker: TaskTracker) -> Result<Self, rustls::Error> {
        let tls = Arc::new(ArcSwap::from_pointee(ClientTls::trusting(system_roots(), None)?));
        let clock = Clock::start();
        let resolver = Resolver::new(clock, tracker);
        Ok(Self { tls, resolver, clock, shortage_logged: Arc::default() })
    }

    fn with_tls(&self, tls: ClientTls) -> Self {
        Self { tls: Arc::new(ArcSwap::from_pointee(tls)), ..self.clone() }
    }

    /// The address of a host, as text or as it was looked up last.
    pub(super) fn known_address(&self, host: &Arc<str>) -> Option<IpAddr> {
        self.resolver.known(host)
    }

    /// The addresses of a name, as far as they are known; looks them up again where that was long ago.
    pub(super) fn addresses(&self, host: &Arc<str>) -> Option<Arc<[IpAddr]>> {
        self.resolver.addresses(host)
    }

    /// Connects to a host by these addresses, which another name server than the system's knows, for as long as they are repeated.
    pub(crate) fn set_addresses(&self, host: &Arc<str>, addresses: Arc<[IpAddr]>) {
        self.resolver.set_addresses(host, addresses);
    }

    /// A connector that is secured by itself from now on.
    pub fn separate(&self) -> Self {
        self.with_tls(ClientTls::clone(&self.tls.load()))
    }

    /// A connector of its own, secured by these files; without any, as this one is.
    pub fn secured(&self, files: Option<&PoolTls>) -> Result<Self, TlsError> {
        Ok(self.with_tls(self.read(files)?))
    }

    /// Reads the files of a pool's TLS; without any, as this connector is secured.
    pub fn read(&self, tls: Option<&PoolTls>) -> Result<ClientTls, TlsError> {
        let Some(tls) = tls else { return Ok(ClientTls::clone(&self.tls.load())) };
        let roots = match &tls.ca {
            None => system_roots(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for ca in certificates(path)? {
                    roots.add(ca)?;
                }
                roots
            }
        };
        let identity = match &tls.identity {
            None => None,
            Some(files) => Some((certificates(&files.cert)?, private_key(&files.key)?)),
        };
        let server_name =
            tls.server_name.as_deref().and_then(|name| ServerName::try_from(name.to_owned()).ok());
        Ok(ClientTls { server_name, ..ClientTls::trusting(roots, identity)? })
    }

    /// Secures connections that are opened from now on, of this connector and its clones.
    pub fn secure(&self, tls: ClientTls) {
        self.tls.store(Arc::new(tls));
    }

    /// The same, offering HTTP/2 in the TLS handshake: for gRPC.
    pub fn offering_http2(&self) -> Self {
        let tls = self.tls.load_full();
        let mut config = rustls::ClientConfig::clone(&tls.config);
        config.alpn_protocols = vec![b"h2".to_vec()];
        let tls = ClientTls { config: Arc::new(config), server_name: tls.server_name.clone() };
        self.with_tls(tls)
    }

    /// A connection for requests. The caller bounds the time.
    pub async fn connect(&self, endpoint: &Endpoint) -> io::Result<Connection> {
        self.open(endpoint).await.map(Connection::new)
    }

    /// Opens a socket and speaks TLS on it for https. The caller bounds the time.
    pub async fn open(&self, endpoint: &Endpoint) -> io::Result<Stream> {
        let socket = self.dial(endpoint).await.inspect_err(|error| {
            if is_local(error) && self.shortage_logged.is_due(LOG_EVERY, self.clock.now()) {
                tracing::error!(
                    %error,
                    "no descriptor or local port for connections to replicas: raise RLIMIT_NOFILE or lower server.max_connections"
                );
            }
        })?;
        tune(&socket)?;
        if !endpoint.is_tls {
            return Ok(Either::Left(socket));
        }
        let tls = self.tls.load_full();
        let name = match &tls.server_name {
            Some(name) => name.clone(),
            None => ServerName::try_from(endpoint.host.to_string()).map_err(io::Error::other)?,
        };
        let connector = tokio_rustls::TlsConnector::from(Arc::clone(&tls.config));
        let secured = Box::pin(connector.connect(name, socket)).await.map_err(in_words)?;
        Ok(Either::Right(Box::new(secured)))
    }

    async fn dial(&self, endpoint: &Endpoint) -> io::Result<TcpStream> {
        let addresses = self.resolver.resolve(&endpoint.host).await?;
        connect_in_turn(&families_in_turn(&addresses, endpoint.port)).await
    }
}

/// A failed TLS handshake as whoever wrote the URL can mend it, where the library's words name the record that it tripped over.
fn in_words(error: io::Error) -> io::Error {
    let words = match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidMessage(_)) => "it does not speak TLS: use http://",
        Some(rustls::Error::InvalidCertificate(why)) if format!("{why:?}").contains("CaUsedAsEndEntity") => {
            "its certificate is an authority's (CA:TRUE), not a server's: make one without"
        }
        _ => return error,
    };
    io::Error::new(error.kind(), words)
}

/// One after the other as they fail, or do not answer for a while; whichever is first (RFC 8305 §5). Of failures the weightiest is kept,
/// and of equal ones the first.
async fn connect_in_turn(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    if let [only] = addresses {
        return TcpStream::connect(only).await;
    }
    let (mut left, mut begun) = (addresses.iter().copied(), JoinSet::new());
    let mut failed: Option<io::Error> = None;
    loop {
        let is_last = left.next().map(|address| begun.spawn(TcpStream::connect(address))).is_none();
        let pause = if is_last { Duration::MAX } else { NEXT_ADDRESS_AFTER };
        match tokio::time::timeout(pause, begun.join_next()).await {
            Ok(Some(ended)) => match ended.unwrap_or_else(|lost| Err(io::Error::other(lost))) {
                Ok(socket) => return Ok(socket),
                Err(error) => {
                    failed = Some(match failed {
                        Some(before) if weight(&before) >= weight(&error) => before,
                        _ => error,
                    });
                }
            },
            Ok(None) => return Err(failed.unwrap_or_else(|| io::ErrorKind::NotFound.into())),
            Err(_) => {}
        }
    }
}

/// How much a failed connect shows of the replica: that its process is gone, that it cannot be reached, or nothing.
fn weight(error: &io::Error) -> u8 {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => 2,
        _ => u8::from(!is_local(error)),
    }
}

/// Whether the failure is a shortage of this process or host (EMFILE, ENFILE, EADDRNOTAVAIL), which is no fault of a replica.
pub fn is_local(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable || matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
}

/// After this the next address is tried beside those before it.
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(250);
const LOG_EVERY: Duration = Duration::from_secs(10);
// Of Linux and the BSDs alike; the standard library has no kind of its own for them.
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_replica_that_does_not_speak_tls_is_named_as_such() {
        use tokio::io::AsyncWriteExt as _;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let answering = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
            socket
        };
        let endpoint = Endpoint { is_tls: true, host: "127.0.0.1".into(), port, base_path: "".into() };
        let connector = Connector::new(TaskTracker::new()).unwrap();
        let (opened, _socket) = tokio::join!(connector.open(&endpoint), answering);
        let error = opened.err().unwrap().to_string();
        assert_eq!(error, "it does not speak TLS: use http://");
    }
}
