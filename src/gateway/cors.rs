//! Calls of web pages from other origins (CORS, as the Fetch standard has it).
//!
//! With `server.cors_origins` the gateway decides: it answers preflights, which carry no key, and marks every answer, its
//! own and the engines'. Without it preflights are the engines' to answer, also without a key ([`super::preflights`]), and what
//! engines say passes.

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, header};

use crate::config::Server;
use crate::error::Failure;

/// What the configured origins mean for one request.
#[derive(Debug)]
pub(super) struct CorsGrant {
    /// Value of `access-control-allow-origin`; `None` where the page may not call.
    origin: Option<HeaderValue>,
}

/// Whether a browser asks if it may send a request.
pub(super) fn is_preflight(parts: &Parts) -> bool {
    parts.method == Method::OPTIONS
        && parts.headers.contains_key(header::ORIGIN)
        && parts.headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

impl CorsGrant {
    /// `None` where the gateway does not decide.
    pub(super) fn of(server: &Server, request: &HeaderMap) -> Option<Self> {
        let allowed = server.cors_origins.as_ref()?;
        let given = request.get(header::ORIGIN);
        let origin = if allowed.iter().any(|origin| origin == "*") {
            given.map(|_| HeaderValue::from_static("*"))
        } else {
            given
                .filter(|given| allowed.iter().any(|o| o.as_bytes().eq_ignore_ascii_case(given.as_bytes())))
                .cloned()
        };
        Some(Self { origin })
    }

    /// The answer to a preflight.
    pub(super) fn preflight(&self, parts: &Parts) -> Result<Response<Bytes>, Failure> {
        if self.origin.is_none() {
            return Err(Failure::OriginNotAllowed);
        }
        let mut response = Response::new(Bytes::from_static(b"OK"));
        let headers = response.headers_mut();
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        headers.insert(header::CONTENT_TYPE, text);
        let methods = HeaderValue::from_static("DELETE, GET, HEAD, OPTIONS, POST");
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
        if let Some(requested) = parts.headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, requested.clone());
        }
        Ok(response)
    }

    /// Marks an answer, whoever made it.
    pub(super) fn mark(&self, headers: &mut HeaderMap) {
        for engines in [
            header::ACCESS_CONTROL_ALLOW_ORIGIN,
            header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
            header::ACCESS_CONTROL_EXPOSE_HEADERS,
        ] {
            headers.remove(engines);
        }
        // A cache must not give one page's answer to another, and no page's is as good as any for `*`.
        if self.origin.as_ref().is_none_or(|origin| origin != "*") {
            headers.append(header::VARY, HeaderValue::from_name(header::ORIGIN));
        }
        if let Some(origin) = &self.origin {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            let exposed = HeaderValue::from_static(EXPOSED);
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
        }
    }
}

/// Headers of ours that a page may read.
const EXPOSED: &str = "x-request-id, server-timing, retry-after, x-tokenway-replica, x-tokenway-revision, \
                       x-tokenway-decision, x-tokenway-degraded-from, \
                       x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, \
                       x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens";
