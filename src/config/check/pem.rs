//! PEM files, opened here so that a missing or empty one is reported with its line and not at the first connection.
//!
//! Whether a certificate is valid is the listener's affair, and its clients'.

use std::path::{Path, PathBuf};

use memchr::memmem;
use rustls::Error;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::codec::{FILE, Own};
use super::section::{Item, Section};
use crate::whole_file;

/// The path of a PEM file, relative to the configuration; its content is looked at.
pub(in crate::config) fn pem_file(
    section: &Section<'_>,
    key: &'static str,
    holds: fn(&[u8]) -> Result<(), String>,
) -> Option<PathBuf> {
    read(&section.get(key)?, holds)
}

/// One with certificates.
pub(in crate::config) const CERTIFICATES: Own<PathBuf> =
    Own { read: |item| read(item, holds_certificate), ..FILE };

fn read(item: &Item<'_>, holds: fn(&[u8]) -> Result<(), String>) -> Option<PathBuf> {
    let path = item.input(item.filled()?);
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

/// Files of a certificate and its key, each looked at alone and then both together.
pub(in crate::config) fn pem_pair(section: &Section<'_>) -> (Option<PathBuf>, Option<PathBuf>) {
    let cert = pem_file(section, "cert", holds_certificate);
    let key = pem_file(section, "key", holds_key);
    if let (Some(cert), Some(key), Some(item)) = (&cert, &key, section.get("key"))
        && let Some(error) = mismatch(cert, key)
    {
        let (cert, key) = (cert.display(), key.display());
        match error {
            Error::InconsistentKeys(_) => {
                item.fault(format!("{key} is not the key of {cert}: they do not belong together"), PAIR_HINT);
            }
            other => item.fault(format!("{cert} with {key} cannot be used: {other}"), PAIR_HINT),
        }
    }
    (cert, key)
}

/// Why TLS refuses the pair; `None` also for a file that has a fault of its own.
fn mismatch(cert: &Path, key: &Path) -> Option<Error> {
    let (cert, key) = (whole_file::read(cert).ok()?, whole_file::read(key).ok()?);
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&cert).collect::<Result<_, _>>().ok()?;
    let key = PrivateKeyDer::from_pem_slice(&key).ok()?;
    if chain.is_empty() {
        return None;
    }
    CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider()).err()
}

/// Whether a PEM file holds certificates.
pub(in crate::config) fn holds_certificate(pem: &[u8]) -> Result<(), String> {
    let mut all = CertificateDer::pem_slice_iter(pem).peekable();
    if !matches!(all.peek(), Some(Ok(_))) {
        return Err("holds no certificate in PEM form".to_owned());
    }
    for one in all {
        let read = one
            .map_err(|error| error.to_string())
            .and_then(|one| X509Certificate::from_der(&one).map(drop).map_err(|error| error.to_string()));
        read.map_err(|error| format!("holds a certificate that cannot be read: {error}"))?;
    }
    Ok(())
}

/// Whether a PEM file holds a private key.
fn holds_key(pem: &[u8]) -> Result<(), String> {
    match PrivateKeyDer::from_pem_slice(pem) {
        Ok(_) => Ok(()),
        Err(_) if memmem::find(pem, b"ENCRYPTED").is_some() => {
            Err("holds a private key that is encrypted: store it without a passphrase (openssl pkey)"
                .to_owned())
        }
        Err(_) => Err("holds no private key in PEM form".to_owned()),
    }
}

const PAIR_HINT: &str =
    "name the private key that this certificate was issued for; where both were renewed, replace both files";
pub(in crate::config) const HINT: &str = "name PEM files, relative to the configuration file: tls = { cert = \"server.pem\", key = \"server.key\" }";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_certificate_or_is_encrypted_is_named() {
        let pem = |kind: &str, text: &str| format!("-----BEGIN {kind}-----\n{text}\n-----END {kind}-----\n");
        let fault = holds_certificate(pem("CERTIFICATE", "aGVsbG8=").as_bytes()).unwrap_err();
        assert!(fault.starts_with("holds a certificate that cannot be read"), "{fault}");
        let good = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap().cert.pem();
        let damaged = good.replace("MII", "M#I");
        assert_eq!(holds_certificate((good.clone() + &good).as_bytes()), Ok(()));
        let fault = holds_certificate((good + &damaged).as_bytes()).unwrap_err();
        assert!(fault.starts_with("holds a certificate that cannot be read"), "{fault}");
        let fault = holds_key(pem("ENCRYPTED PRIVATE KEY", "aGVsbG8=").as_bytes()).unwrap_err();
        assert!(fault.starts_with("holds a private key that is encrypted"), "{fault}");
        assert_eq!(holds_key(b"-").unwrap_err(), "holds no private key in PEM form");
    }
}
