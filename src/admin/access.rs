//! Who may use the admin port. Pure.
//!
//! With a token, everything but the health endpoints asks for it. Without one the port is on loopback, where the
//! remaining enemy is a web page in the operator's own browser: DNS rebinding (a foreign name in `host` that leads
//! here) and forged forms (a POST without our header, which no form can set).

use std::net::IpAddr;

use http::header::{AUTHORIZATION, HOST};
use http::{HeaderMap, Method};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::config::Secret;

/// Why a request is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denied {
    /// No token, or a wrong one.
    Token,
    /// A `host` that does not name this machine.
    Host,
    /// A POST without `x-tokenway-admin: 1`.
    Header,
}

/// Whether a request may go on.
pub(super) fn check(token: Option<&Secret>, method: &Method, headers: &HeaderMap) -> Result<(), Denied> {
    match token {
        Some(token) if !has_token(headers, token) => return Err(Denied::Token),
        None if !is_local_host(headers) => return Err(Denied::Host),
        _ => {}
    }
    let is_safe = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    let has_header = headers.get("x-tokenway-admin").is_some_and(|value| value == "1");
    if is_safe || has_header { Ok(()) } else { Err(Denied::Header) }
}

fn has_token(headers: &HeaderMap, token: &Secret) -> bool {
    let Some(given) = headers.get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes())) else {
        return false;
    };
    // Digests have one length, so that comparing them tells nothing of the token's.
    Sha256::digest(given).as_slice().ct_eq(Sha256::digest(token.reveal().as_bytes()).as_slice()).into()
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| rest.trim_ascii())
}

/// Names of this machine, and addresses: a browser that was led here by a foreign name sends that name. Without
/// a `host` it is no browser.
fn is_local_host(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST) else { return true };
    let Ok(host) = host.to_str() else { return false };
    let name = if let Some(rest) = host.strip_prefix('[') {
        rest.split(']').next().unwrap_or(rest)
    } else {
        host.split(':').next().unwrap_or(host)
    };
    let name = name.to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn who_may() {
        let token = Secret::new("s3cret");
        let csrf = ("x-tokenway-admin", "1");
        let table = [
            (None, Method::GET, headers(&[("host", "127.0.0.1:9090")]), Ok(())),
            (None, Method::GET, headers(&[("host", "[::1]:9090")]), Ok(())),
            (None, Method::GET, headers(&[("host", "LOCALHOST")]), Ok(())),
            (None, Method::GET, headers(&[("host", "evil.example:9090")]), Err(Denied::Host)),
            (None, Method::GET, headers(&[("host", "127.0.0.1.evil.example")]), Err(Denied::Host)),
            (None, Method::GET, headers(&[]), Ok(())),
            (None, Method::POST, headers(&[("host", "localhost")]), Err(Denied::Header)),
            (None, Method::POST, headers(&[("host", "localhost"), csrf]), Ok(())),
            (Some(&token), Method::GET, headers(&[("host", "localhost")]), Err(Denied::Token)),
            (Some(&token), Method::GET, headers(&[("authorization", "Bearer s3cre")]), Err(Denied::Token)),
            (Some(&token), Method::GET, headers(&[("authorization", "Basic s3cret")]), Err(Denied::Token)),
            (
                Some(&token),
                Method::GET,
                headers(&[("host", "gw.example"), ("authorization", "bearer s3cret")]),
                Ok(()),
            ),
            (Some(&token), Method::POST, headers(&[("authorization", "Bearer s3cret")]), Err(Denied::Header)),
            (Some(&token), Method::POST, headers(&[("authorization", "Bearer s3cret"), csrf]), Ok(())),
        ];
        for (i, (token, method, headers, expected)) in table.iter().enumerate() {
            assert_eq!(check(*token, method, headers), *expected, "case {i}");
        }
    }
}
