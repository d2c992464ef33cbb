//! Reads a request body whole, bounded in size, in time and in what all bodies hold together.
//!
//! The body is kept as bytes and forwarded as read: framing never crosses, and a retry needs all of it. A client that
//! declares more than the limit is refused before it uploads (its `Expect` is not answered).

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::Failure;

/// The memory that all request bodies share (`server.body_memory`).
#[derive(Clone, Debug)]
pub struct BodyMemory {
    free: Arc<Semaphore>,
    total_units: u32,
}

/// A body in memory; its share of [`BodyMemory`] is released with it.
#[derive(Debug)]
pub struct HeldBody {
    /// As the client sent it.
    pub bytes: Bytes,
    _share: Option<OwnedSemaphorePermit>,
}

/// Bounds of one read.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// Largest body in bytes.
    pub size: usize,
    /// Longest pause between two pieces.
    pub stall: Duration,
}

impl HeldBody {
    /// A request without a body.
    #[must_use]
    pub fn empty() -> Self {
        Self { bytes: Bytes::new(), _share: None }
    }
}

impl BodyMemory {
    /// `bytes` for all bodies together, in units of 1 KiB.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let total_units = units(bytes).max(1);
        Self { free: Arc::new(Semaphore::new(total_units as usize)), total_units }
    }

    async fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Failure> {
        let wanted = units(bytes).min(self.total_units);
        if let Ok(share) = Arc::clone(&self.free).try_acquire_many_owned(wanted) {
            return Ok(share);
        }
        Box::pin(tokio::time::timeout(WAIT_FOR_MEMORY, Arc::clone(&self.free).acquire_many_owned(wanted)))
            .await
            .ok()
            .and_then(Result::ok)
            .ok_or(Failure::BodyMemory)
    }
}

/// Reads the whole body.
///
/// # Errors
/// 413 over the limit, 503 without memory, 408 when the client pauses for too long, 400 when it breaks off.
pub async fn read(body: &mut Incoming, memory: &BodyMemory, limits: BodyLimits) -> Result<HeldBody, Failure> {
    let declared = body.size_hint().exact().map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    match declared {
        // HTTP/2 can declare nothing and send something all the same.
        Some(0) if !body.is_end_stream() => read_declared(body, 0, memory, limits).await,
        Some(0) => Ok(HeldBody::empty()),
        Some(n) if n > limits.size => Err(Failure::BodyTooLarge { limit: limits.size }),
        Some(n) => read_declared(body, n, memory, limits).await,
        // Boxed: rare, and its state would be most of what every request's future carries around.
        None => Box::pin(read_chunked(body, memory, limits)).await,
    }
}

/// Checks the head's framing and coding, beyond what hyper does (RFC 9110 §10.1.1, RFC 9112 §3.2 and §6.1).
///
/// # Errors
/// 400, 415 or 417 with what is wrong.
pub fn check_head(version: http::Version, uri: &http::Uri, headers: &HeaderMap) -> Result<(), Failure> {
    check_host(version, uri, headers)?;
    if version < http::Version::HTTP_2 {
        let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
        if let Some(coding) = codings.next()
            && (codings.next().is_some() || !coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked"))
        {
            return Err(Failure::bad_request("transfer-encoding must be exactly `chunked`", None));
        }
    }
    let is_coded = |v: &http::HeaderValue| !v.as_bytes().eq_ignore_ascii_case(b"identity");
    if headers.get_all(header::CONTENT_ENCODING).iter().any(is_coded) {
        return Err(Failure::UnsupportedEncoding);
    }
    let is_known = |v: &http::HeaderValue| v.as_bytes().eq_ignore_ascii_case(b"100-continue");
    if !headers.get_all(header::EXPECT).iter().all(is_known) {
        return Err(Failure::ExpectationFailed);
    }
    Ok(())
}

fn check_host(version: http::Version, uri: &http::Uri, headers: &HeaderMap) -> Result<(), Failure> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let wrong = |what: &str| Err(Failure::bad_request(what, None));
    match (hosts.next(), hosts.next()) {
        (None, _) if version == http::Version::HTTP_11 => wrong("an HTTP/1.1 request needs a host header"),
        (_, Some(_)) => wrong("more than one host header"),
        (Some(host), None) => {
            let authority = http::uri::Authority::try_from(host.as_bytes());
            // A URI's authority may name a user; a host may not (RFC 9110 §7.2).
            let Some(authority) = authority.ok().filter(|a| !a.as_str().contains('@')) else {
                return wrong("the host header is not a valid authority");
            };
            match uri.authority() {
                Some(target) if *target != authority => {
                    wrong("the host header and the request target differ")
                }
                _ => Ok(()),
            }
        }
        (None, None) => Ok(()),
    }
}

async fn read_declared(
    body: &mut Incoming,
    len: usize,
    memory: &BodyMemory,
    limits: BodyLimits,
) -> Result<HeldBody, Failure> {
    let share = memory.take(len).await?;
    let Some(first) = next_piece(body, limits.stall).await? else {
        return if len == 0 { Ok(HeldBody::empty()) } else { Err(broken_off()) };
    };
    if first.len() == len {
        // The usual case: one piece, no copy.
        return Ok(HeldBody { bytes: first, _share: Some(share) });
    }
    let mut whole = BytesMut::with_capacity(len);
    whole.extend_from_slice(&first);
    while let Some(piece) = next_piece(body, limits.stall).await? {
        whole.extend_from_slice(&piece);
    }
    Ok(HeldBody { bytes: whole.freeze(), _share: Some(share) })
}

async fn read_chunked(
    body: &mut Incoming,
    memory: &BodyMemory,
    limits: BodyLimits,
) -> Result<HeldBody, Failure> {
    let mut whole = BytesMut::new();
    let mut share: Option<OwnedSemaphorePermit> = None;
    let mut held = 0;
    while let Some(piece) = next_piece(body, limits.stall).await? {
        if whole.len().saturating_add(piece.len()) > limits.size {
            return Err(Failure::BodyTooLarge { limit: limits.size });
        }
        while held < whole.len() + piece.len() {
            let more = memory.take(STEP).await?;
            held += STEP;
            match &mut share {
                Some(share) => share.merge(more),
                none => *none = Some(more),
            }
        }
        whole.extend_from_slice(&piece);
    }
    Ok(HeldBody { bytes: whole.freeze(), _share: share })
}

async fn next_piece(body: &mut Incoming, stall: Duration) -> Result<Option<Bytes>, Failure> {
    loop {
        // Mostly it came with the head; only a pause needs a timer.
        let frame = match poll_fn(|cx| Poll::Ready(Pin::new(&mut *body).poll_frame(cx))).await {
            Poll::Ready(frame) => frame,
            Poll::Pending => Box::pin(tokio::time::timeout(stall, body.frame()))
                .await
                .map_err(|_| Failure::BodyStalled { after: stall })?,
        };
        match frame {
            None => return Ok(None),
            Some(Err(_)) => return Err(broken_off()),
            Some(Ok(frame)) => {
                // Trailers are dropped: they never become headers.
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

fn broken_off() -> Failure {
    Failure::bad_request("the request body is malformed or broke off before its end", None)
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).min((Semaphore::MAX_PERMITS >> 1) as u32)
}

const UNIT: usize = 1024;
const STEP: usize = 64 * 1024;
const WAIT_FOR_MEMORY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn check(uri: &'static str, pairs: &[(http::HeaderName, &'static str)]) -> u16 {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name.clone(), http::HeaderValue::from_static(value));
        }
        check_head(http::Version::HTTP_11, &http::Uri::from_static(uri), &headers)
            .map_or_else(|f| f.status().as_u16(), |()| 200)
    }

    #[test]
    fn heads_that_two_parsers_could_read_differently_are_refused() {
        use header::{CONTENT_ENCODING, EXPECT, HOST, TRANSFER_ENCODING};
        let host = (HOST, "a:1");
        assert_eq!(check("/x", std::slice::from_ref(&host)), 200);
        assert_eq!(check("/x", &[]), 400);
        assert_eq!(check("/x", &[host.clone(), host.clone()]), 400);
        assert_eq!(check("/x", &[(HOST, "a b,c")]), 400);
        assert_eq!(check("http://evil/x", std::slice::from_ref(&host)), 400);
        assert_eq!(check("http://a:1/x", std::slice::from_ref(&host)), 200);
        assert_eq!(check("/x", &[host.clone(), (TRANSFER_ENCODING, "chunked")]), 200);
        assert_eq!(check("/x", &[host.clone(), (TRANSFER_ENCODING, "cow, chunked")]), 400);
        assert_eq!(
            check("/x", &[host.clone(), (TRANSFER_ENCODING, "chunked"), (TRANSFER_ENCODING, "chunked")]),
            400
        );
        assert_eq!(check("/x", &[host.clone(), (CONTENT_ENCODING, "gzip")]), 415);
        assert_eq!(check("/x", &[host.clone(), (EXPECT, "100-continue")]), 200);
        assert_eq!(check("/x", &[host.clone(), (EXPECT, "cake")]), 417);
        assert_eq!(check("/x", &[host, (EXPECT, "100-continue"), (EXPECT, "cake")]), 417);
        assert_eq!(check("/x", &[(HOST, "user@a")]), 400);
    }
}
