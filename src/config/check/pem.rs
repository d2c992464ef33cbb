//! PEM files, opened here so that a missing or empty one is reported with its line and not at the first connection.
//!
//! The certificates' own meaning is the listener's.

use std::path::PathBuf;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::section::Section;
use crate::whole_file;

/// The path of a PEM file, relative to the configuration; its content is looked at.
pub(in crate::config) fn pem_file(
    section: &Section<'_>,
    key: &'static str,
    holds: fn(&[u8]) -> Result<(), String>,
) -> Option<PathBuf> {
    let item = section.get(key)?;
    let path = section.checking.directory.join(item.text()?);
    let fault = match whole_file::read(&path) {
        Ok(pem) => holds(&pem).err().map(|fault| format!("{} {fault}", path.display())),
        Err(error) => {
            let message = format!("cannot read {}: {error}", path.display());
            return item.missing(message, HINT, ()).map(|()| path);
        }
    };
    if let Some(message) = fault {
        item.fault(message, HINT);
    }
    Some(path)
}

/// Whether a PEM file holds a certificate.
pub(in crate::config) fn holds_certificate(pem: &[u8]) -> Result<(), String> {
    match CertificateDer::pem_slice_iter(pem).next() {
        Some(Ok(_)) => Ok(()),
        _ => Err("holds no certificate in PEM form".to_owned()),
    }
}

/// Whether a PEM file holds a private key.
pub(in crate::config) fn holds_key(pem: &[u8]) -> Result<(), String> {
    match PrivateKeyDer::from_pem_slice(pem) {
        Ok(_) => Ok(()),
        Err(_) => Err("holds no private key in PEM form".to_owned()),
    }
}

/// How PEM files are named.
pub(in crate::config) const HINT: &str = "name PEM files, relative to the configuration file: tls = { cert = \"server.pem\", key = \"server.key\" }";
