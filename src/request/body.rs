//! Reads a request body whole, bounded in size, in time and in what all bodies hold together.
//!
//! The body is kept as bytes and forwarded as read: framing never crosses, and a retry needs all of it. A client that
//! declares more than the limit is refused before it uploads (its `Expect` is not answered). Memory is charged for
//! what is there, not for what a head declares. An upload has a deadline and a minimum rate, and ends where others need
//! its memory more.

use std::error::Error as _;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame};

use super::arriving::{ArrivingBody, BrokenBody};
use super::body_memory::{AnswerBudgets, Charge};
use super::uploads::UploadEntry;
use crate::clock::{Clock, Stamp, stood_still};
use crate::error::Failure;

/// A body in memory; its charge is released with it.
#[derive(Debug)]
pub struct HeldBody {
    /// As the client sent it.
    pub bytes: Bytes,
    charge: Charge,
}

/// Bounds of one read.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// Largest body in bytes.
    pub size: usize,
    /// Longest pause between two pieces.
    pub stall: Duration,
    /// From the head to the last byte, for a body that is slower than `min_rate`.
    pub timeout: Duration,
    /// Bytes a second over the last [`RATE_BURST`]; 0 is no minimum.
    pub min_rate: u64,
}

impl HeldBody {
    /// A request without a body.
    pub fn empty() -> Self {
        Self { bytes: Bytes::new(), charge: Charge::default() }
    }

    /// The budgets of what answers it.
    pub fn answer_budgets(&self) -> AnswerBudgets {
        self.charge.of_answer()
    }
}

/// Reads the whole body of a request whose head came at `head`.
///
/// # Errors
/// 413 over the limit, 503 without memory, 408 when the client is too slow, 499 when it leaves, 400 for bad framing.
pub async fn read(
    body: &mut ArrivingBody,
    charge: Charge,
    limits: BodyLimits,
    clock: Clock,
    head: Stamp,
) -> Result<HeldBody, Failure> {
    let declared = body.size_hint().exact().map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    if declared.is_some_and(|n| n > limits.size) {
        return Err(Failure::BodyTooLarge { limit: limits.size });
    }
    // HTTP/2 can declare nothing and send something all the same.
    if declared == Some(0) && body.is_end_stream() {
        return Ok(HeldBody { bytes: Bytes::new(), charge });
    }
    let paid_until = head.after(RATE_GRACE);
    let (waited, received, entry) = (Duration::ZERO, 0, None);
    let mut upload = Upload { body, charge, limits, clock, head, paid_until, waited, received, entry };
    let Some(first) = upload.next().await? else {
        return Ok(HeldBody { bytes: Bytes::new(), charge: upload.charge });
    };
    if declared == Some(first.len()) {
        // The usual case: one piece, no copy.
        upload.charge(first.len()).await?;
        return Ok(HeldBody { bytes: first, charge: upload.charge });
    }
    // Boxed: rare, and its state would be most of what every request's future carries around.
    Box::pin(upload.rest(first, declared)).await
}

/// Discards the body of a refused request if it is small and comes at once, so that its connection can go on; whether it
/// was read to its end. A large one is left to the connection's close.
pub async fn is_discarded(mut body: ArrivingBody) -> bool {
    let is_small = body.size_hint().upper().is_some_and(|n| n <= MAX_DISCARDED);
    if !is_small {
        return false;
    }
    let to_end = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = tokio::time::timeout(DISCARD_FOR, to_end).await;
    body.is_end_stream()
}

/// Discards what a client still sends of a body whose request is refused, within the bounds of a lingering close.
pub async fn discard(mut body: ArrivingBody) {
    let mut left = LINGER_BYTES;
    let to_end = async {
        while let Ok(Some(Ok(frame))) = tokio::time::timeout(LINGER_PAUSE, body.frame()).await {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
            if left == 0 {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(LINGER, to_end).await;
}

/// Checks the head's framing and coding, beyond what hyper does (RFC 9110 §10.1.1, RFC 9112 §3.2 and §6.1).
///
/// # Errors
/// 400, 415 or 417 with what is wrong.
pub fn check_head(version: http::Version, uri: &http::Uri, headers: &HeaderMap) -> Result<(), Failure> {
    check_host(version, uri, headers)?;
    check_codings(version, headers)
}

/// The part of it that is of `Transfer-Encoding`, `Content-Encoding` and `Expect`.
pub(crate) fn check_codings(version: http::Version, headers: &HeaderMap) -> Result<(), Failure> {
    if version < http::Version::HTTP_2 {
        let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
        if let Some(coding) = codings.next()
            && (codings.next().is_some() || !coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked"))
        {
            return Err(Failure::bad_request("transfer-encoding must be exactly `chunked`", None));
        }
    }
    let is_none = |coding: &[u8]| coding.is_empty() || coding.eq_ignore_ascii_case(b"identity");
    let is_coded = |v: &http::HeaderValue| {
        !v.as_bytes().split(|b| *b == b',').all(|coding| is_none(coding.trim_ascii()))
    };
    if headers.get_all(header::CONTENT_ENCODING).iter().any(is_coded) {
        return Err(Failure::UnsupportedEncoding);
    }
    let is_known = |v: &http::HeaderValue| v.as_bytes().eq_ignore_ascii_case(b"100-continue");
    if !headers.get_all(header::EXPECT).iter().all(is_known) {
        return Err(Failure::ExpectationFailed);
    }
    Ok(())
}

/// The part of it that is of `Host`.
pub(crate) fn check_host(
    version: http::Version,
    uri: &http::Uri,
    headers: &HeaderMap,
) -> Result<(), Failure> {
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

/// A body on its way in.
struct Upload<'b> {
    body: &'b mut ArrivingBody,
    charge: Charge,
    limits: BodyLimits,
    clock: Clock,
    head: Stamp,
    /// The minimum rate as a token bucket of at most [`RATE_BURST`], kept as the time at which it is empty.
    paid_until: Stamp,
    /// Time in which the client waited for us: for memory.
    waited: Duration,
    received: u64,
    /// `None` until a second piece is awaited.
    entry: Option<UploadEntry>,
}

/// Until when an upload is paid for that was `until`, and then `bytes` came.
fn paid(until: Stamp, bytes: usize, min_rate: u64, now: Stamp) -> Stamp {
    let span = time_for(bytes as u64, min_rate).unwrap_or_default();
    until.after(span).min(now.after(RATE_BURST))
}

/// The time for which `bytes` are enough at `min_rate`; `None` without a minimum rate.
fn time_for(bytes: u64, min_rate: u64) -> Option<Duration> {
    bytes.saturating_mul(1000).checked_div(min_rate).map(Duration::from_millis)
}

impl Upload<'_> {
    /// Reads on from the `first` piece. What is charged grows with what has come, to at most twice of it. A buffer that grew with
    /// it would be copied at each step: it gets its room at once, which takes memory where bytes are written.
    async fn rest(mut self, first: Bytes, declared: Option<usize>) -> Result<HeldBody, Failure> {
        self.entry = self.charge.enter();
        let mut whole = Vec::with_capacity(declared.unwrap_or_default().min(MAX_ROOM));
        let mut charged = 0;
        let mut piece = Some(first);
        while let Some(bytes) = piece {
            self.note(bytes.len())?;
            let len = whole.len() + bytes.len();
            if len > self.limits.size {
                return Err(Failure::BodyTooLarge { limit: self.limits.size });
            }
            if len > charged {
                let most = declared.unwrap_or(self.limits.size).max(len);
                let more = len.max(charged * 2).next_multiple_of(STEP).min(most);
                self.charge(more - charged).await?;
                charged = more;
                whole.reserve_exact(charged - whole.len());
            }
            whole.extend_from_slice(&bytes);
            piece = self.next().await?;
        }
        Ok(HeldBody { bytes: whole.into(), charge: self.charge })
    }

    /// A piece came: it pays for the time until the next.
    fn note(&mut self, bytes: usize) -> Result<(), Failure> {
        self.paid_until = paid(self.paid_until, bytes, self.limits.min_rate, self.clock.now());
        match &self.entry {
            Some(entry) if entry.evicted().is_cancelled() => Err(Failure::BodyEvicted),
            Some(entry) => {
                entry.received(bytes);
                Ok(())
            }
            None => Ok(()),
        }
    }

    async fn charge(&mut self, bytes: usize) -> Result<(), Failure> {
        if self.charge.try_add(bytes) {
            return Ok(());
        }
        if let Some(entry) = &self.entry {
            entry.waits_for_gateway(true);
        }
        let asked = self.clock.now();
        let charged = Box::pin(self.charge.add(bytes)).await;
        let waited = self.clock.now().since(asked);
        self.waited += waited;
        self.paid_until = self.paid_until.after(waited);
        if let Some(entry) = &self.entry {
            entry.waits_for_gateway(false);
        }
        charged
    }

    async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            // Mostly it came with the head; only a pause needs a timer.
            let frame = match poll_fn(|cx| Poll::Ready(Pin::new(&mut *self.body).poll_frame(cx))).await {
                Poll::Ready(frame) => frame,
                Poll::Pending => Box::pin(self.awaited()).await?,
            };
            match frame {
                None => return Ok(None),
                Some(Err(error)) => return Err(of_upload(&error, self.limits.size)),
                Some(Ok(frame)) => {
                    // Trailers are dropped: they never become headers.
                    if let Ok(data) = frame.into_data() {
                        self.received += data.len() as u64;
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    async fn awaited(&mut self) -> Result<Option<Result<Frame<Bytes>, BrokenBody>>, Failure> {
        loop {
            let (at, late) = self.deadline(self.clock.now());
            let frame = tokio::time::timeout_at(self.clock.instant(at), self.body.frame());
            let frame = match &self.entry {
                Some(entry) => {
                    entry.evicted().run_until_cancelled(frame).await.ok_or(Failure::BodyEvicted)?
                }
                None => frame.await,
            };
            if let Ok(frame) = frame {
                return Ok(frame);
            }
            // Its rest may have come while nobody here could read it.
            let Some(missed) = stood_still(at, self.clock.now()) else { return Err(late) };
            self.waited += missed;
            self.paid_until = self.paid_until.after(missed);
        }
    }

    /// Until when the next piece is due, and what is wrong if it does not come.
    fn deadline(&self, now: Stamp) -> (Stamp, Failure) {
        let BodyLimits { stall, timeout, min_rate, .. } = self.limits;
        let paid_for = time_for(self.received, min_rate);
        let began = self.head.after(self.waited);
        let paused = (now.after(stall), Failure::BodyStalled { after: stall });
        let slow = paid_for.map(|_| (self.paid_until, Failure::BodyTooSlow { min_rate }));
        let overdue =
            (began.after(timeout.max(paid_for.unwrap_or_default())), Failure::BodyTimeout { after: timeout });
        let first =
            |one: (Stamp, Failure), other: (Stamp, Failure)| if other.0 < one.0 { other } else { one };
        first(slow.into_iter().fold(overdue, first), paused)
    }
}

/// An upload that ended early: a framing error is the client's mistake, anything else means that it left.
fn of_upload(error: &BrokenBody, limit: usize) -> Failure {
    let error = match error {
        BrokenBody::Http(error) => error,
        BrokenBody::TooLarge => return Failure::BodyTooLarge { limit },
        BrokenBody::Left => return Failure::ClientLeft,
    };
    let mut cause = error.source();
    while let Some(error) = cause {
        let is_framing = match (error.downcast_ref::<io::Error>(), error.downcast_ref::<h2::Error>()) {
            (Some(io), _) => matches!(io.kind(), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput),
            (None, Some(h2)) => !h2.is_remote() && !h2.is_io(),
            (None, None) => false,
        };
        if is_framing {
            return Failure::bad_request("the framing of the request body is malformed", None);
        }
        cause = error.source();
    }
    Failure::ClientLeft
}

/// Identity of all requests without a body.
pub const NO_BODY: u64 = 0;
const STEP: usize = 64 * 1024;
/// Bytes of a declared body that get their room before they come.
const MAX_ROOM: usize = 2 << 20;
const MAX_DISCARDED: u64 = 64 * 1024;
const DISCARD_FOR: Duration = Duration::from_millis(100);
const LINGER: Duration = Duration::from_secs(30);
const LINGER_PAUSE: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 64 << 20;
/// What a body has until its first piece.
const RATE_GRACE: Duration = Duration::from_secs(5);
/// What came at once pays for no more than this.
const RATE_BURST: Duration = Duration::from_secs(10);

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
        for (coding, expected) in [("gzip", 415), ("identity, gzip", 415), ("", 200), ("Identity", 200)] {
            assert_eq!(check("/x", &[host.clone(), (CONTENT_ENCODING, coding)]), expected, "{coding:?}");
        }
        assert_eq!(check("/x", &[host.clone(), (EXPECT, "100-continue")]), 200);
        assert_eq!(check("/x", &[host.clone(), (EXPECT, "cake")]), 417);
        assert_eq!(check("/x", &[host, (EXPECT, "100-continue"), (EXPECT, "cake")]), 417);
        assert_eq!(check("/x", &[(HOST, "user@a")]), 400);
    }

    #[test]
    fn what_came_at_once_pays_for_seconds_and_a_steady_upload_for_itself() {
        let at = |ms| Stamp::default().after(Duration::from_millis(ms));
        let begun = at(5000);
        assert_eq!(paid(begun, 31 << 20, 16 << 10, at(2000)), at(12_000));
        let (mut steady, mut slow) = (begun, begun);
        for second in 1..=100 {
            steady = paid(steady, 16 << 10, 16 << 10, at(second * 1000));
            slow = paid(slow, 15 << 10, 16 << 10, at(second * 1000));
        }
        assert!(steady > at(100_000) && slow < at(100_000));
        assert_eq!(paid(begun, 1, 0, at(1000)), begun);
        assert_eq!(time_for(1, 0), None);
    }
}
