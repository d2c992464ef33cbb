//! The names in a client's certificate, which mutual TLS has verified.
//!
//! DNS names and URIs of the subject alternative names, and the subject's common names. What they mean is up to the handler.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use webpki::EndEntityCert;

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

fn names(certificate: &CertificateDer<'_>) -> Option<ClientNames> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    let alternative = certificate.valid_dns_names().chain(certificate.valid_uri_names()).map(Box::from);
    let all: Arc<[Box<str>]> = alternative.chain(common_names(certificate.subject())).collect();
    (!all.is_empty()).then_some(ClientNames(all))
}

/// The common names in a subject: `SET { SEQUENCE { OBJECT IDENTIFIER, string } … } …` (RFC 5280 §4.1.2.4, DER).
fn common_names(mut subject: &[u8]) -> Vec<Box<str>> {
    let mut names = Vec::new();
    while let Some((SET, mut set, rest)) = element(subject) {
        subject = rest;
        while let Some((SEQUENCE, attribute, rest)) = element(set) {
            set = rest;
            let Some((OBJECT_ID, COMMON_NAME, value)) = element(attribute) else { continue };
            if let Some((UTF8_STRING | PRINTABLE_STRING | IA5_STRING, text, _)) = element(value)
                && let Ok(text) = std::str::from_utf8(text)
            {
                names.push(text.into());
            }
        }
    }
    names
}

/// Tag, content and what follows of the first DER element.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match *first {
        short @ 0..=0x7f => (usize::from(short), rest),
        0x81 => rest.split_first().map(|(length, rest)| (usize::from(*length), rest))?,
        0x82 => {
            let (length, rest) = rest.split_first_chunk::<2>()?;
            (usize::from(u16::from_be_bytes(*length)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_ID: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const IA5_STRING: u8 = 0x16;
/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

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
            assert!(common_names(der).is_empty(), "{der:?}");
        }
    }
}
