//! TLS of the data port: rustls from PEM files, reloadable, mutual where a client CA is given.
//!
//! A reload swaps the whole server configuration: new handshakes use the new certificate, open connections go on.
//! rustls has only TLS 1.3 and TLS 1.2 with AEAD.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use x509_parser::prelude::{FromDer, X509Certificate};

use crate::clock::wall_second;
use crate::config::Tls;
use crate::labels::labels;

/// The TLS configuration in force.
#[derive(Debug)]
pub struct TlsSlot {
    current: ArcSwap<rustls::ServerConfig>,
}

/// Why certificate files cannot be used.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file cannot be read or is no PEM.
    #[error("{}: {why}", path.display())]
    File {
        /// A file of `server.tls` or `pool.tls`.
        path: PathBuf,
        /// Error of the PEM reader.
        why: String,
    },
    /// Key and certificate do not match, or rustls refuses them.
    #[error("{0}")]
    Config(#[from] rustls::Error),
}

labels! {
    /// Why a client's handshake failed.
    pub enum HandshakeFault {
        /// Mutual TLS: it showed no certificate, or one that is not accepted.
        ClientCertificate = "client_certificate",
        /// It refused ours.
        Alert = "alert",
        /// It does not speak TLS as we do.
        Protocol = "protocol",
        /// It left.
        Closed = "closed",
        /// It took too long.
        Timeout = "timeout",
    }
}

impl HandshakeFault {
    pub(super) fn of(error: &std::io::Error) -> Self {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match inner {
            Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented) => {
                Self::ClientCertificate
            }
            Some(rustls::Error::AlertReceived(_)) => Self::Alert,
            Some(_) => Self::Protocol,
            None => Self::Closed,
        }
    }
}

impl TlsSlot {
    /// Reads certificate, key and client CA.
    ///
    /// # Errors
    /// [`TlsError`] with the file and what to mend.
    pub fn load(tls: &Tls) -> Result<Arc<Self>, TlsError> {
        Ok(Arc::new(Self { current: ArcSwap::new(server_config(tls)?) }))
    }

    /// Reads the files again; on an error the old certificate stays.
    pub fn reload(&self, tls: &Tls) -> Result<(), TlsError> {
        self.current.store(server_config(tls)?);
        Ok(())
    }

    /// One server handshake; the caller sets the timeout.
    pub async fn accept(&self, socket: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        TlsAcceptor::from(self.current.load_full()).accept(socket).await
    }
}

fn server_config(tls: &Tls) -> Result<Arc<rustls::ServerConfig>, TlsError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?;
    let builder = match &tls.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for ca in certificates(path)? {
                roots.add(ca).map_err(|e| unusable(path, &e))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|e| unusable(path, &e))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(certificates(&tls.cert)?, private_key(&tls.key)?)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// When the first certificate of a PEM file, the server's own, expires; `None` where that cannot be read.
pub fn expiry(path: &Path) -> Option<SystemTime> {
    let all = certificates(path).ok()?;
    let (_, own) = X509Certificate::from_der(all.first()?).ok()?;
    let seconds = u64::try_from(own.validity().not_after.timestamp()).ok()?;
    Some(wall_second(seconds))
}

/// The certificates of a PEM file, at least one.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<_, _>>)
        .map_err(|e| unusable(path, &e))?;
    if all.is_empty() {
        return Err(TlsError::File { path: path.into(), why: "no certificate in this PEM file".into() });
    }
    Ok(all)
}

/// The first private key of a PEM file.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|e| unusable(path, &e))
}

fn unusable(path: &Path, error: &dyn std::fmt::Display) -> TlsError {
    TlsError::File { path: path.into(), why: error.to_string() }
}
