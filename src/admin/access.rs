//! Who may use the admin port.
//!
//! With a token, everything but the health endpoints requires one: `read_token` is enough to look, only `token` changes
//! anything. Without any the port is on loopback, where the
//! remaining enemy is a web page in the operator's own browser: DNS rebinding (a foreign name in `host` that resolves
//! to this machine) and forged forms (a POST without our header, which no form can set).

use std::hint::black_box;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderMap, Method};
use sha2::{Digest, Sha256};

use super::AdminState;
use super::error::AdminError;
use crate::config::{Admin, Secret};

/// Middleware: passes on what [`check`] allows.
pub(super) async fn guard(
    State(admin): State<Arc<AdminState>>,
    request: Request,
    next: Next,
) -> Result<Response, AdminError> {
    // Read each time: a reload may change it.
    check(&admin.control.config().admin, request.method(), request.headers())?;
    Ok(next.run(request).await)
}

/// Middleware: two readers of one request must not see two hosts (RFC 9112 §3.2).
pub(super) async fn one_host(request: Request, next: Next) -> Result<Response, AdminError> {
    if request.headers().get_all(HOST).iter().nth(1).is_some() {
        return Err(AdminError::SeveralHosts);
    }
    Ok(next.run(request).await)
}

/// Whether a request may be answered.
pub(super) fn check(admin: &Admin, method: &Method, headers: &HeaderMap) -> Result<(), AdminError> {
    let has = |token: &Option<Secret>| token.as_ref().is_some_and(|token| has_token(headers, token));
    if !admin.is_guarded() {
        if !is_local_host(headers) {
            return Err(AdminError::ForeignHost);
        }
    } else if !has(&admin.token) {
        if !has(&admin.read_token) {
            return Err(AdminError::InvalidToken);
        }
        if !matches!(*method, Method::GET | Method::HEAD) {
            return Err(AdminError::ReadOnly);
        }
    }
    let is_safe = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    let has_header = headers.get("x-tokenway-admin").is_some_and(|value| value == "1");
    if is_safe || has_header { Ok(()) } else { Err(AdminError::MissingHeader) }
}

fn has_token(headers: &HeaderMap, token: &Secret) -> bool {
    let Some(given) = headers.get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes())) else {
        return false;
    };
    // Of digests, and of every byte of them: the time it takes tells nothing of the token.
    let (given, token) = (Sha256::digest(given), Sha256::digest(token.reveal().as_bytes()));
    given.iter().zip(token.iter()).fold(0, |differ, (a, b)| black_box(differ | (a ^ b))) == 0
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| rest.trim_ascii())
}

/// Names of this machine, and addresses: after a rebinding a browser sends the foreign name. Without `host` it is no
/// browser.
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
        let admin = |token: Option<&str>, read_token: Option<&str>| Admin {
            token: token.map(Secret::new),
            read_token: read_token.map(Secret::new),
            ..Admin::default()
        };
        let (none, token) = (admin(None, None), admin(Some("s3cret"), Some("look")));
        let (none, token, read_only) = (&none, &token, &admin(None, Some("look")));
        let by = |credentials| ("authorization", credentials);
        let look = by("Bearer look");
        let csrf = ("x-tokenway-admin", "1");
        let table = [
            (none, Method::GET, headers(&[("host", "127.0.0.1:9090")]), Ok(())),
            (none, Method::GET, headers(&[("host", "[::1]:9090")]), Ok(())),
            (none, Method::GET, headers(&[("host", "LOCALHOST")]), Ok(())),
            (none, Method::GET, headers(&[("host", "evil.example:9090")]), Err(AdminError::ForeignHost)),
            (none, Method::GET, headers(&[("host", "127.0.0.1.evil.example")]), Err(AdminError::ForeignHost)),
            (none, Method::GET, headers(&[]), Ok(())),
            (none, Method::POST, headers(&[("host", "localhost")]), Err(AdminError::MissingHeader)),
            (none, Method::POST, headers(&[("host", "localhost"), csrf]), Ok(())),
            (token, Method::GET, headers(&[("host", "localhost")]), Err(AdminError::InvalidToken)),
            (token, Method::GET, headers(&[by("Bearer s3cre")]), Err(AdminError::InvalidToken)),
            (token, Method::GET, headers(&[by("Basic s3cret")]), Err(AdminError::InvalidToken)),
            (token, Method::GET, headers(&[("host", "gw.example"), by("bearer s3cret")]), Ok(())),
            (token, Method::POST, headers(&[by("Bearer s3cret")]), Err(AdminError::MissingHeader)),
            (token, Method::POST, headers(&[by("Bearer s3cret"), csrf]), Ok(())),
            (token, Method::GET, headers(&[look]), Ok(())),
            (token, Method::HEAD, headers(&[look]), Ok(())),
            (token, Method::POST, headers(&[look, csrf]), Err(AdminError::ReadOnly)),
            (token, Method::DELETE, headers(&[look, csrf]), Err(AdminError::ReadOnly)),
            (read_only, Method::GET, headers(&[look]), Ok(())),
            (read_only, Method::GET, headers(&[("host", "localhost")]), Err(AdminError::InvalidToken)),
            (read_only, Method::POST, headers(&[look, csrf]), Err(AdminError::ReadOnly)),
        ];
        for (i, (admin, method, headers, expected)) in table.iter().enumerate() {
            assert_eq!(check(admin, method, headers), *expected, "case {i}");
        }
    }
}
