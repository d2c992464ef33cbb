//! TLS towards the collector, from the files that `OTEL_EXPORTER_OTLP_CERTIFICATE`, `…_CLIENT_CERTIFICATE` and
//! `…_CLIENT_KEY` name (`…_TRACES_…` or `…_METRICS_…` first): our configuration has no key for them.

use std::ffi::OsString;
use std::path::PathBuf;

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::task::TaskTracker;

use crate::upstream::connect::{Connector, Identity, system_roots};

/// Why TLS towards the collector cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum CollectorTlsError {
    /// A file that a variable names.
    #[error("{path}: {source}")]
    File {
        path: PathBuf,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// Why the files were rejected.
    #[error(transparent)]
    Tls(#[from] rustls::Error),
}

/// A connector with these certificates, or with the system's and none of its own.
pub(super) fn connector(signal: &str, tracker: TaskTracker) -> Result<Connector, CollectorTlsError> {
    let file = |what| variable(signal, what).map(PathBuf::from);
    let roots = match file("CERTIFICATE") {
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate)?;
            }
            roots
        }
        None => system_roots(),
    };
    let identity = match (file("CLIENT_CERTIFICATE"), file("CLIENT_KEY")) {
        (Some(chain), Some(path)) => {
            let key = PrivateKeyDer::from_pem_file(&path)
                .map_err(|source| CollectorTlsError::File { path, source })?;
            Some(Identity { chain: certificates(chain)?, key })
        }
        _ => None,
    };
    Ok(Connector::trusting(roots, identity, tracker)?)
}

fn certificates(path: PathBuf) -> Result<Vec<CertificateDer<'static>>, CollectorTlsError> {
    let read = CertificateDer::pem_file_iter(&path).and_then(Iterator::collect);
    read.map_err(|source| CollectorTlsError::File { path, source })
}

/// `signal`: `TRACES_`, `LOGS_` or `METRICS_`.
pub(super) fn variable(signal: &str, what: &str) -> Option<OsString> {
    let of =
        |prefix| std::env::var_os(format!("OTEL_EXPORTER_OTLP_{prefix}{what}")).filter(|p| !p.is_empty());
    of(signal).or_else(|| of(""))
}
