//! One attempt at one replica: connect, send, wait until the response is worth relaying.
//!
//! vLLM answers 200 at once, even to a request that is still queued, so a stream's head is held back until the first
//! content event: until then another replica can be tried. Unary responses are buffered whole (see [`AnswerBuffer`]) for
//! the same reason. Dropping the future closes the connection, which aborts the request in the engine.

use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header, response};
use smallvec::SmallVec;
use tokio::time::Instant;

use super::answer_buffer::AnswerBuffer;
use super::carrier::{Cargo, Carrier, MAX_FALLBACKS};
use crate::clock::{Clock, Stamp};
use crate::error::{Closed, Failure, ReplicaFailure};
use crate::fleet::replica::Replica;
use crate::relay::reader::{StreamReader, StreamShape};
use crate::relay::stream_state::StreamEnd;
use crate::relay::usage::{self, AnswerFacts, EngineError};
use crate::relay::verdict;
use crate::relay::watch::{Deadline, StreamWatch};
use crate::request::body_memory::AnswerBudgets;
use crate::request::dialect::{BodyForm, Dialect};
use crate::upstream::answer_body::AnswerBody;
use crate::upstream::connect::is_local;
use crate::upstream::headers;
use crate::upstream::http1::{AskError, EngineRequest};
use crate::upstream::pool::{CheckoutError, Lease};

/// A request on its way to one replica.
#[derive(Debug)]
pub struct UpstreamAttempt {
    /// The chosen replica.
    pub replica: Arc<Replica>,
    /// The request with the upstream framing and headers.
    pub request: EngineRequest,
    /// How the response stream is scanned.
    pub shape: StreamShape,
    /// State shared with the watchdog, which enforces the deadlines.
    pub watch: Arc<StreamWatch>,
    /// Timeout of the connection, the wait for a free one included.
    pub connect: Duration,
    /// Whether the client asked for a stream.
    pub is_stream: bool,
    /// Whether its client is owed an answer with content.
    pub owes_answer: bool,
    /// Whether it takes a connection that has been idle, which the engine may be about to close: a request's first attempt does, if
    /// it may be repeated.
    pub takes_idle: bool,
    /// Set as soon as the replica gets it.
    pub sent: Option<Arc<AtomicBool>>,
    /// Memory of a unary answer.
    pub answer_memory: AnswerBudgets,
    /// Takes it there in place of our own connections.
    pub carrier: Option<Arc<dyn Carrier>>,
    /// Where its carrier may take it instead.
    pub fallbacks: SmallVec<[Arc<Replica>; MAX_FALLBACKS]>,
    /// The process' clock.
    pub clock: Clock,
}

/// Deadlines of one attempt.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// Connect timeout, the wait for a free connection included.
    pub connect: Duration,
    /// First content event (streams only).
    pub first_token: Option<Deadline>,
    /// End of the response.
    pub total: Deadline,
}

/// A response worth relaying.
#[derive(Debug)]
pub enum UpstreamResponse {
    /// A unary response, complete.
    Buffered(BufferedResponse),
    /// A stream that reached its first content event, or ended without any.
    Stream {
        /// Status and headers as the engine sent them.
        head: Box<response::Parts>,
        /// The bytes held back and the rest of the body.
        reader: Box<StreamReader>,
    },
    /// A unary response that is not buffered whole, or a body that may last whose content is unknown.
    Large {
        /// Status and headers as the engine sent them.
        head: Box<response::Parts>,
        /// The bytes read so far.
        first: Bytes,
        /// The unread part of the body.
        rest: AnswerBody,
    },
}

/// A complete unary response.
#[derive(Debug)]
pub struct BufferedResponse {
    /// Status and headers as the engine sent them.
    pub head: Box<response::Parts>,
    /// The complete body.
    pub body: Bytes,
    /// Read once: whether it is to be relayed, what it teaches and the record ask for them.
    facts: OnceLock<Box<AnswerFacts>>,
}

impl BufferedResponse {
    /// As the engine sent it.
    pub fn new(head: Box<response::Parts>, body: Bytes) -> Self {
        Self { head, body, facts: OnceLock::new() }
    }

    /// Figures and ends of its answer, in the dialect of the request.
    pub(super) fn facts(&self, dialect: Dialect) -> &AnswerFacts {
        self.facts.get_or_init(|| Box::new(usage::of_unary(dialect, &self.body)))
    }

    /// The same, for the last that asks.
    pub(super) fn take_facts(&mut self, dialect: Dialect) -> AnswerFacts {
        let known = self.facts.take();
        known.map_or_else(|| usage::of_unary(dialect, &self.body), |facts| *facts)
    }

    /// Whether it is a JSON document that ends before its end: nothing vouches for a body that its engine's connection ended, and a
    /// process that dies may leave half a one under a whole framing.
    fn is_cut(&self, dialect: Dialect) -> bool {
        if !self.head.status.is_success() || dialect.body_form() != BodyForm::Json {
            return false;
        }
        match self.body.trim_ascii() {
            [b'{', ..] if dialect.generates() => self.facts(dialect).is_cut,
            [b'{' | b'[', .., last] => !matches!(last, b'}' | b']'),
            other => matches!(other, [b'{' | b'[']),
        }
    }

    /// Whether it is HTML under a status of success, not only by its name.
    fn is_page(&self) -> bool {
        let has_tag = matches!(self.body.trim_ascii_start(), [b'<', b'!' | b'a'..=b'z' | b'A'..=b'Z', ..]);
        has_tag && self.head.status.is_success() && is_html(&self.head.headers)
    }

    /// The error that its body reports under a status of success, where an answer is owed. An error is short: what is long and no text
    /// of a model is not read for one.
    pub(super) fn error_under_success(&self, dialect: Dialect, owes_answer: bool) -> Option<EngineError> {
        let is_read = dialect.generates() || self.body.len() <= MAX_SHORT;
        let may_be = owes_answer && is_read && self.head.status.is_success();
        may_be.then(|| self.facts(dialect).error).flatten()
    }
}

/// Why an attempt failed.
#[derive(Debug)]
pub enum AttemptError {
    /// The replica failed; with its response if it sent a complete one (e.g. 503).
    Replica(ReplicaFailure, Option<BufferedResponse>),
    /// A deadline of the whole request passed.
    Overdue(Failure),
    /// The gateway itself cannot go on: the replica has no part in it.
    Ours(Failure),
}

/// Timestamps of an attempt; `None` for what was not reached.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttemptTimes {
    /// Start of the attempt.
    pub start: Stamp,
    /// A connection was checked out.
    pub connected: Option<Stamp>,
    /// The response head arrived.
    pub head: Option<Stamp>,
}

impl UpstreamAttempt {
    /// Sends the request and waits until the response is worth relaying.
    ///
    /// # Errors
    /// [`AttemptError`]; [`ReplicaFailure::is_unsent`] says whether the replica may have started.
    pub async fn send(&mut self, times: &mut AttemptTimes) -> Result<UpstreamResponse, AttemptError> {
        let watch = Arc::clone(&self.watch);
        // Both arms are cancel-safe: a dropped exchange closes its connection. The watchdog keeps the deadlines, because a
        // timer per request would cost more than all its clock reads.
        let expiry = tokio::select! {
            biased;
            answer = self.exchange(times) => return answer,
            expiry = poll_fn(|cx| watch.poll_expiry(cx)) => expiry,
        };
        match watch.failure(expiry, self.replica.name()) {
            Failure::Replica(failure) => Err(failed(failure)),
            overdue => Err(AttemptError::Overdue(overdue)),
        }
    }

    async fn exchange(&mut self, times: &mut AttemptTimes) -> Result<UpstreamResponse, AttemptError> {
        let (head, body) = match self.carrier.take() {
            Some(carrier) => {
                times.connected = Some(self.clock.now());
                let (replica, request) = (Arc::clone(&self.replica), std::mem::take(&mut self.request));
                let cargo = Cargo { replica, fallbacks: std::mem::take(&mut self.fallbacks), request };
                carrier.carry(cargo).await.map_err(failed)?.map(AnswerBody::Fed).into_parts()
            }
            None => {
                let deadline = self.clock.instant(times.start.after(self.connect));
                let lease = self.checkout(deadline).await?;
                let connected = self.clock.now();
                times.connected = Some(connected);
                if let Some(sent) = &self.sent {
                    sent.store(true, Ordering::Relaxed);
                }
                let (head, lease) = self.response(lease, deadline, connected).await.map_err(failed)?;
                (head, AnswerBody::Leased(lease))
            }
        };
        times.head = Some(self.clock.now());
        if let Some(what) = headers::response_fault(&head) {
            let replica = self.replica.name();
            return Err(failed(ReplicaFailure::InvalidHead { replica, what }));
        }
        let head = Box::new(head);
        if head.status.is_success() && head.status != StatusCode::RESET_CONTENT {
            let is_stream = is_event_stream(&head.headers);
            if self.is_relayed_from_head(is_stream, body.length()) {
                return Ok(UpstreamResponse::Large { head, first: Bytes::new(), rest: body });
            }
            if is_stream {
                if let Some(what) = headers::coding_fault(&head.headers) {
                    return Err(failed(ReplicaFailure::InvalidHead { replica: self.replica.name(), what }));
                }
                return self.first_content(head, body).await;
            }
        }
        if let Some(content_type) = self.foreign_type(&head) {
            let replica = self.replica.name();
            return Err(failed(ReplicaFailure::NotAnAnswer { replica, content_type }));
        }
        self.whole(head, body).await
    }

    async fn checkout(&self, deadline: Instant) -> Result<Lease, AttemptError> {
        let connections = &self.replica.connections;
        let lease = match self.takes_idle {
            true => connections.checkout(deadline).await,
            // Boxed: few requests need one, and all would have room for it.
            false => Box::pin(connections.fresh(deadline)).await,
        };
        lease.map_err(|error| match no_connection(error, self.replica.name(), self.connect) {
            Failure::Replica(failure) => failed(failure),
            ours => AttemptError::Ours(ours),
        })
    }

    async fn response(
        &mut self,
        mut lease: Lease,
        deadline: Instant,
        sent: Stamp,
    ) -> Result<(response::Parts, Lease), ReplicaFailure> {
        let closed = match lease.connection.ask(std::mem::take(&mut self.request)).await {
            Ok(head) => return Ok((head, lease)),
            Err(AskError::Unsent) => Closed::Unsent,
            Err(AskError::Closed)
                if lease.connection.has_answered() && self.clock.now().since(sent) < CLOSING =>
            {
                drop(lease);
                Box::pin(self.how_closed(deadline)).await
            }
            Err(error) => match head_fault(&error) {
                Some(what) => {
                    return Err(ReplicaFailure::InvalidHead { replica: self.replica.name(), what });
                }
                None => Closed::Asked,
            },
        };
        Err(ReplicaFailure::ClosedBeforeHead { replica: self.replica.name(), closed })
    }

    /// What the close of an idle connection was, right after a request was written to it: an engine that ends idle connections
    /// gives no notice (RFC 9112, section 9.5), and takes new ones; one that crashed does not.
    async fn how_closed(&self, deadline: Instant) -> Closed {
        match self.replica.connections.fresh(deadline).await {
            Ok(lease) => {
                lease.give_back();
                Closed::Idle
            }
            Err(_) => Closed::Asked,
        }
    }

    /// The content type of a success that no engine sends: a page of whatever else listens there. A stream is answered by
    /// events or JSON; other requests by anything but HTML, which those whose body we do not know may ask for.
    fn foreign_type(&self, head: &response::Parts) -> Option<Box<str>> {
        let dialect = self.shape.dialect;
        if !head.status.is_success() || dialect.body_form() == BodyForm::Opaque {
            return None;
        }
        let is_foreign = if self.is_stream && dialect.generates() {
            !type_of(&head.headers).windows(4).any(|piece| piece.eq_ignore_ascii_case(b"json"))
        } else {
            // whisper.cpp calls plain text so: of a transcription the text decides.
            dialect != Dialect::Audio && is_html(&head.headers)
        };
        is_foreign.then(|| content_type(&head.headers))
    }

    /// Whether its body may last: nothing in a stream of another dialect is a content event that we know, so there is
    /// nothing to wait for.
    fn is_relayed_from_head(&self, is_stream: bool, length: Option<u64>) -> bool {
        let dialect = self.shape.dialect;
        if is_stream {
            return !dialect.has_known_stream();
        }
        dialect.body_form() == BodyForm::Opaque && length.is_none()
    }

    async fn first_content(
        &self,
        head: Box<response::Parts>,
        body: AnswerBody,
    ) -> Result<UpstreamResponse, AttemptError> {
        let replica = self.replica.name();
        let shape = self.shape.clone();
        let watch = Arc::clone(&self.watch);
        let mut reader = Box::new(StreamReader::new(body, watch, shape, self.clock));
        match poll_fn(|cx| reader.poll_hold(cx)).await {
            Err(StreamEnd::Failed(error)) => match error.of_engine(&replica) {
                Some(failure) => Err(failed(failure)),
                // Relayed as it is, like any other 500; of a replica on trial another may do better.
                None if self.replica.is_on_trial() && !error.is_of_request() => {
                    Err(failed(ReplicaFailure::ErrorEvent { replica }))
                }
                None => Ok(UpstreamResponse::Stream { head, reader }),
            },
            Ok(()) => Ok(UpstreamResponse::Stream { head, reader }),
            Err(_) => Err(failed(ReplicaFailure::Truncated { replica })),
        }
    }

    async fn whole(
        &self,
        mut head: Box<response::Parts>,
        mut body: AnswerBody,
    ) -> Result<UpstreamResponse, AttemptError> {
        let mut answer = AnswerBuffer::new(&self.answer_memory, body.length());
        while let Some(data) = body.next().await {
            let data =
                data.map_err(|_| failed(ReplicaFailure::Truncated { replica: self.replica.name() }))?;
            if head.status == StatusCode::RESET_CONTENT {
                // It has no content, whatever came (RFC 9110 §15.3.6).
                continue;
            }
            if !answer.take(data) && !body.is_end() {
                return Ok(UpstreamResponse::Large { head, first: answer.freeze(), rest: body });
            }
        }
        if head.status == StatusCode::RESET_CONTENT {
            headers::strip_length(&mut head.headers);
        }
        let answer = BufferedResponse::new(head, answer.freeze());
        if self.shape.dialect == Dialect::Audio && answer.is_page() {
            let content_type = content_type(&answer.head.headers);
            return Err(failed(ReplicaFailure::NotAnAnswer { replica: self.replica.name(), content_type }));
        }
        if self.owes_answer && answer.is_cut(self.shape.dialect) {
            return Err(failed(ReplicaFailure::Truncated { replica: self.replica.name() }));
        }
        if is_aborted(&answer, self.shape.dialect) {
            return Err(failed(ReplicaFailure::EngineDown {
                replica: self.replica.name(),
                is_orderly: true,
            }));
        }
        match self.retriable(&answer) {
            Some(failure) => Err(AttemptError::Replica(failure, Some(answer))),
            None => Ok(UpstreamResponse::Buffered(answer)),
        }
    }

    /// The failure of a response that another replica should be tried for: 502, 503, 504, the message of an engine that is dead or
    /// shutting down under 500 or a status of success, and what is no answer. Any other 500 and any other error is relayed.
    fn retriable(&self, answer: &BufferedResponse) -> Option<ReplicaFailure> {
        let (replica, status, dialect) = (|| self.replica.name(), answer.head.status, self.shape.dialect);
        let error = match status {
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
                return Some(ReplicaFailure::Status { replica: replica(), status: status.as_u16() });
            }
            StatusCode::INTERNAL_SERVER_ERROR => answer.facts(dialect).error,
            _ if self.owes_answer && verdict::is_no_answer(dialect, status, answer.body.is_empty()) => {
                let content_type = match status {
                    StatusCode::OK => "nothing".into(),
                    other => other.to_string().into(),
                };
                return Some(ReplicaFailure::NotAnAnswer { replica: replica(), content_type });
            }
            _ => answer.error_under_success(dialect, self.owes_answer),
        };
        error?.of_engine(&replica())
    }
}

impl UpstreamResponse {
    /// Whether it is whole and has no content, though its model ended it.
    pub fn is_empty_answer(&self, dialect: Dialect) -> bool {
        match self {
            _ if !dialect.generates() || !self.status().is_success() => false,
            Self::Buffered(answer) if answer.body.len() <= MAX_SHORT => {
                let facts = answer.facts(dialect);
                !facts.has_content && facts.has_stopped() && facts.error.is_none()
            }
            Self::Stream { reader, .. } => reader.is_empty_answer(),
            Self::Buffered(_) | Self::Large { .. } => false,
        }
    }

    /// Whether it is an error by its status, as a whole by its body, or from its first event on.
    pub fn is_error(&self, dialect: Dialect, owes_answer: bool) -> bool {
        let has_error = || match self {
            Self::Buffered(answer) => answer.error_under_success(dialect, owes_answer).is_some(),
            Self::Stream { reader, .. } => reader.scanner.state().answer.error.is_some(),
            Self::Large { .. } => false,
        };
        !self.status().is_success() || has_error()
    }

    /// HTTP status as the engine sent it.
    pub fn status(&self) -> StatusCode {
        self.head().status
    }

    /// Status and headers as the engine sent them.
    pub fn head(&self) -> &response::Parts {
        match self {
            Self::Buffered(BufferedResponse { head, .. })
            | Self::Stream { head, .. }
            | Self::Large { head, .. } => head,
        }
    }
}

/// What is wrong with a response head that came and cannot be read.
pub(super) fn head_fault(error: &AskError) -> Option<&'static str> {
    match error {
        AskError::HeadTooLarge => Some("answered with a head over 256 headers or 64 KiB"),
        AskError::InvalidHead => Some("answered with a head that is no valid HTTP (RFC 9112)"),
        AskError::Unsent | AskError::Closed | AskError::Truncated | AskError::Tls(_) => None,
    }
}

/// The failure of a replica to which no connection was had.
pub(super) fn no_connection(error: CheckoutError, replica: Arc<str>, after: Duration) -> Failure {
    Failure::Replica(match error {
        CheckoutError::NoFree => ReplicaFailure::NoFreeConnection { replica, after },
        CheckoutError::Timeout => ReplicaFailure::ConnectTimeout { replica, after },
        CheckoutError::Io(error) if is_local(&error) => return Failure::LocalResources,
        CheckoutError::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            ReplicaFailure::Refused { replica }
        }
        CheckoutError::Io(error) => ReplicaFailure::Unreachable { replica, kind: error.kind() },
    })
}

fn failed(failure: ReplicaFailure) -> AttemptError {
    AttemptError::Replica(failure, None)
}

/// Whether the engine gave the request up at shutdown: vLLM then returns the truncated completion with 200.
fn is_aborted(answer: &BufferedResponse, dialect: Dialect) -> bool {
    matches!(dialect, Dialect::Chat | Dialect::ChatBatch | Dialect::Completions | Dialect::Messages)
        && answer.head.status.is_success()
        && answer.facts(dialect).is_aborted()
}

fn type_of(headers: &HeaderMap) -> &[u8] {
    headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes)
}

fn is_html(headers: &HeaderMap) -> bool {
    type_of(headers).get(..9).is_some_and(|start| start.eq_ignore_ascii_case(b"text/html"))
}

/// The content type of a response as error messages name it.
pub(super) fn content_type(headers: &HeaderMap) -> Box<str> {
    let name = headers.get(header::CONTENT_TYPE).map_or(&b"no content type"[..], HeaderValue::as_bytes);
    String::from_utf8_lossy(name).to_lowercase().chars().take(MAX_TYPE).collect()
}

/// Whether a response is a stream of server-sent events.
pub(super) fn is_event_stream(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|v| v.as_bytes().get(..17).is_some_and(|v| v.eq_ignore_ascii_case(b"text/event-stream")))
}

/// How soon after a request its idle connection ends if the engine had closed it before: a round trip, also a far one.
const CLOSING: Duration = Duration::from_millis(100);
/// Bytes of a unary answer that may be an error, or have no content: ids, usage and names take some.
const MAX_SHORT: usize = 4096;
/// Characters of a foreign content type that an error message shows.
const MAX_TYPE: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_that_ends_before_its_end_is_cut_whatever_its_numbers() {
        let is_cut = |dialect, body: &'static [u8]| {
            let (head, ()) = http::Response::new(()).into_parts();
            BufferedResponse::new(Box::new(head), Bytes::from_static(body)).is_cut(dialect)
        };
        for (body, expected) in [
            (&br#"{"choices":[{"logprobs":NaN,"message":{"content":"a"}}]}"#[..], false),
            (br#"{"choices":[{"message":{"content":"a"#, true),
            (br#"{"choices":[{"message":{"content":"a"}}"#, true),
            (br#"{"id":"a\u00"#, true),
            (br#"{"id":tru"#, true),
            (b"{\"id\":\"\xc3", true),
            (b"{", true),
            (br#"{"choices":[],"score":NaN}"#, false),
            (b"{} ", false),
            (b"", false),
            (b"OK", false),
        ] {
            assert_eq!(is_cut(Dialect::Chat, body), expected, "{}", String::from_utf8_lossy(body));
        }
        let vectors = br#"{"data":[{"embedding":[0.1,0.2]}],"usage":{}}"#;
        assert!(!is_cut(Dialect::Embeddings, vectors) && is_cut(Dialect::Embeddings, &vectors[..30]));
        assert!(!is_cut(Dialect::Extra, &vectors[..30]), "an opaque body may be anything");
    }
}
