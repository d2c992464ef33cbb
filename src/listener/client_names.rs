//! The names in a client's certificate, which mutual TLS has verified.
//!
//! DNS names and URIs of the subject alternative names, and the subject's common names. What they mean is up to the handler.

use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Names of the client of one connection; an extension of its requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientNames(Arc<[Box<str>]>);

impl ClientNames {
    /// Each name.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(AsRef::as_ref)
    }

    /// Those of the certificate that a client presented.
    pub(super) fn of(stream: &TlsStream<TcpStream>) -> Option<Self> {
        names(stream.get_ref().1.peer_certificates()?.first()?)
    }
}

fn names(certificate: &[u8]) -> Option<ClientNames> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let alternative = certificate.subject_alternative_name().ok().flatten();
    let alternative = alternative.iter().flat_map(|names| &names.value.general_names);
    let alternative = alternative.filter_map(|name| match name {
        GeneralName::DNSName(name) | GeneralName::URI(name) => Some(*name),
        _ => None,
    });
    let common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    let all: Arc<[Box<str>]> = alternative.chain(common).map(Box::from).collect();
    (!all.is_empty()).then_some(ClientNames(all))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType, string::Ia5String};

    use super::*;

    #[test]
    fn a_certificate_s_names_are_its_alternative_names_and_its_common_name() {
        let mut params = CertificateParams::new(vec!["team-a.internal".to_owned()]).unwrap();
        let uri: Ia5String = "spiffe://cluster/ns/team-a".try_into().unwrap();
        params.subject_alt_names.push(SanType::URI(uri));
        params.distinguished_name.push(DnType::OrganizationName, "x".repeat(300));
        params.distinguished_name.push(DnType::CommonName, "Team Ä");
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let found = names(certificate.der()).unwrap();
        let found: Vec<_> = found.iter().collect();
        // rcgen puts a common name of its own first.
        assert_eq!(found[..2], ["team-a.internal", "spiffe://cluster/ns/team-a"]);
        assert_eq!(found.last(), Some(&"Team Ä"));
    }

    #[test]
    fn broken_der_has_no_names() {
        for der in [&b""[..], b"\x31", b"\x31\x05\x30", b"\x31\x80\x00", b"\x31\x02\x30\x00", b"\x30\x00"] {
            assert_eq!(names(der), None, "{der:?}");
        }
    }
}
