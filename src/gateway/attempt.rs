//! One try at one replica: connect, send, wait until the answer is worth relaying.
//!
//! vLLM answers 200 at once, even to a request that is still queued, so the head is held back until the first
//! content event; everything before it can still be retried elsewhere. Unary answers are held until they are
//! whole (up to a bound), for the same reason. Dropping the future closes the connection, which cancels the
//! engine's work.

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, StatusCode, header, response};
use http_body_util::{BodyExt, Full};
use hyper::body::Body as _;
use hyper::body::Incoming;
use memchr::memmem::Finder;
use tokio::time::Instant;

use crate::clock::{Clock, Stamp};
use crate::error::{Failure, ReplicaFailure, Timer};
use crate::fleet::load_report;
use crate::fleet::replica::Replica;
use crate::relay::reader::{HoldOutcome, StreamReader, StreamShape};
use crate::relay::usage::{self, EngineErrorKind};
use crate::relay::watch::{Expiry, StreamWatch};
use crate::request::dialect::Dialect;
use crate::upstream::headers;
use crate::upstream::pool::{CheckoutError, Lease};

/// A request on its way to one replica.
#[derive(Debug)]
pub struct Order {
    /// Whom it goes to.
    pub replica: Arc<Replica>,
    /// It, with our framing and headers.
    pub request: Request<Full<Bytes>>,
    /// How its stream is to be read.
    pub shape: StreamShape,
    /// The watchdog's view of it.
    pub watch: Arc<StreamWatch>,
    /// Its deadlines.
    pub deadlines: Deadlines,
    /// Whether we asked the engine to tell its load.
    pub asks_load: bool,
    /// Time.
    pub clock: Clock,
}

/// Deadlines of one attempt.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// For the connection.
    pub connect: Duration,
    /// When the first content event is overdue (streams): the stamp and the configured length.
    pub first_token: Option<(Stamp, Duration)>,
    /// When the request is overdue: the stamp and the configured length.
    pub total: (Stamp, Duration),
}

/// An answer worth relaying.
#[derive(Debug)]
pub enum Answer {
    /// All of it.
    Whole(WholeAnswer),
    /// A stream that reached its first content event, or ended without any.
    Stream {
        /// Head.
        head: Box<response::Parts>,
        /// What was held back, and the rest.
        reader: Box<StreamReader>,
    },
    /// A unary answer too large to be held: what was read of it, and the rest.
    Large {
        /// Head.
        head: Box<response::Parts>,
        /// Read already.
        first: Bytes,
        /// The rest.
        rest: Incoming,
        /// Its connection.
        lease: Lease,
    },
}

/// A whole answer of an engine.
#[derive(Debug)]
pub struct WholeAnswer {
    /// Head.
    pub head: Box<response::Parts>,
    /// Body.
    pub body: Bytes,
}

/// Why an attempt gave nothing to relay.
#[derive(Debug)]
pub enum AttemptError {
    /// The replica failed; perhaps with a complete answer that says so.
    Replica(ReplicaFailure, Option<WholeAnswer>),
    /// A deadline of the whole request passed.
    Overdue(Failure),
}

/// Moments of an attempt.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttemptMoments {
    /// It began.
    pub start: Stamp,
    /// The connection was at hand.
    pub connected: Option<Stamp>,
    /// The head was there.
    pub head: Option<Stamp>,
}

impl Order {
    /// Sends it and waits until the answer is worth relaying.
    ///
    /// # Errors
    /// [`AttemptError`]: what failed, and whether the replica may have begun to work.
    pub async fn send(&mut self, moments: &mut AttemptMoments) -> Result<Answer, AttemptError> {
        let (watch, deadlines) = (Arc::clone(&self.watch), self.deadlines);
        let name = Arc::clone(&self.replica.served.replica);
        // Whichever arm is dropped gives its connection back by closing it; no arm leaves work behind. The watchdog
        // keeps the deadlines: a timer for each request would cost more than all its clock readings.
        tokio::select! {
            biased;
            answer = self.exchange(moments) => answer,
            expiry = poll_fn(|cx| watch.poll_expiry(cx)) => Err(of_expiry(expiry, &deadlines, name)),
        }
    }

    async fn exchange(&mut self, moments: &mut AttemptMoments) -> Result<Answer, AttemptError> {
        let deadline = self.clock.instant(self.clock.now().after(self.deadlines.connect));
        let mut lease = self.checkout(deadline).await.map_err(failed)?;
        moments.connected = Some(self.clock.now());
        let response = self.response(&mut lease).await.map_err(failed)?;
        moments.head = Some(self.clock.now());
        let (head, body) = response.into_parts();
        let mut head = Box::new(head);
        if self.asks_load {
            self.take_load_report(&mut head);
        }
        if is_event_stream(&head) && head.status.is_success() {
            return self.first_content(head, body, lease).await;
        }
        self.whole(head, body, lease).await
    }

    async fn checkout(&self, deadline: Instant) -> Result<Lease, ReplicaFailure> {
        let replica = Arc::clone(&self.replica.served.replica);
        let after = self.deadlines.connect;
        self.replica.connections.checkout(deadline).await.map_err(|error| match error {
            CheckoutError::NoFree => ReplicaFailure::NoFreeConnection { replica, after },
            CheckoutError::Timeout => ReplicaFailure::ConnectTimeout { replica, after },
            CheckoutError::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                ReplicaFailure::Refused { replica }
            }
            CheckoutError::Io(error) => ReplicaFailure::Unreachable { replica, kind: error.kind() },
        })
    }

    async fn response(&mut self, lease: &mut Lease) -> Result<http::Response<Incoming>, ReplicaFailure> {
        let replica = Arc::clone(&self.replica.served.replica);
        let closed =
            move |is_unsent| ReplicaFailure::ClosedBeforeHead { replica: Arc::clone(&replica), is_unsent };
        let connection = lease.connection().ok_or_else(|| closed(true))?;
        connection
            .sender
            .try_send_request(std::mem::take(&mut self.request))
            .await
            .map_err(|mut error| closed(error.take_message().is_some()))
    }

    /// An engine tells its load with a unary answer, so it is as it was a moment ago.
    fn take_load_report(&self, head: &mut response::Parts) {
        let report = headers::take_load_report(&mut head.headers);
        if let Some(report) = report.and_then(|value| load_report::parse(value.as_bytes())) {
            self.replica.target.reported(report, self.clock.now());
        }
    }

    async fn first_content(
        &self,
        head: Box<response::Parts>,
        body: Incoming,
        lease: Lease,
    ) -> Result<Answer, AttemptError> {
        let replica = Arc::clone(&self.replica.served.replica);
        let shape = self.shape.clone();
        let watch = Arc::clone(&self.watch);
        let mut reader = Box::new(StreamReader::new(body, lease, watch, shape, self.clock));
        match poll_fn(|cx| reader.poll_hold(cx)).await {
            HoldOutcome::Released => Ok(Answer::Stream { head, reader }),
            HoldOutcome::EngineDown => Err(failed(ReplicaFailure::EngineDown { replica })),
            HoldOutcome::Broken => Err(failed(ReplicaFailure::Truncated { replica })),
        }
    }

    async fn whole(
        &self,
        head: Box<response::Parts>,
        mut body: Incoming,
        lease: Lease,
    ) -> Result<Answer, AttemptError> {
        let replica = Arc::clone(&self.replica.served.replica);
        let mut first = Bytes::new();
        let mut more: Option<BytesMut> = None;
        while let Some(frame) = body.frame().await {
            let frame =
                frame.map_err(|_| failed(ReplicaFailure::Truncated { replica: Arc::clone(&replica) }))?;
            let Ok(data) = frame.into_data() else { continue };
            match &mut more {
                None if first.is_empty() => first = data,
                None => more = Some(BytesMut::from_iter(first.iter().chain(&data).copied())),
                Some(more) => more.extend_from_slice(&data),
            }
            let held = more.as_ref().map_or(first.len(), BytesMut::len);
            if held > MAX_HELD && !body.is_end_stream() {
                let first = more.map_or(first, BytesMut::freeze);
                return Ok(Answer::Large { head, first, rest: body, lease });
            }
        }
        lease.give_back();
        let answer = WholeAnswer { head, body: more.map_or(first, BytesMut::freeze) };
        if is_aborted(&answer) {
            return Err(failed(ReplicaFailure::Truncated { replica }));
        }
        match retriable(&answer, self.shape.dialect, replica) {
            Some(failure) => Err(AttemptError::Replica(failure, Some(answer))),
            None => Ok(Answer::Whole(answer)),
        }
    }
}

impl Answer {
    /// Status of the answer.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Whole(WholeAnswer { head, .. }) | Self::Stream { head, .. } | Self::Large { head, .. } => {
                head.status
            }
        }
    }
}

fn failed(failure: ReplicaFailure) -> AttemptError {
    AttemptError::Replica(failure, None)
}

fn of_expiry(expiry: Expiry, deadlines: &Deadlines, replica: Arc<str>) -> AttemptError {
    match expiry {
        Expiry::ReplicaSilent => failed(ReplicaFailure::Silent { replica }),
        Expiry::DrainOver => AttemptError::Overdue(Failure::DrainCut),
        Expiry::Deadline(timer) => {
            let of_stream = deadlines.first_token.filter(|_| timer == Timer::FirstToken);
            let after = of_stream.map_or(deadlines.total.1, |(_, after)| after);
            AttemptError::Overdue(Failure::Timeout { timer, after })
        }
    }
}

/// Whether an answer says that another replica should be asked: overload and gateways' statuses, and the
/// engine's own words for being dead or going down. Any other 500 is the request's own answer.
fn retriable(answer: &WholeAnswer, dialect: Dialect, replica: Arc<str>) -> Option<ReplicaFailure> {
    match answer.head.status {
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
            Some(ReplicaFailure::Status { replica, status: answer.head.status.as_u16() })
        }
        StatusCode::INTERNAL_SERVER_ERROR => {
            let kind = usage::of_unary(dialect, &answer.body).error.map(|error| error.kind);
            let is_down = matches!(kind, Some(EngineErrorKind::EngineDead | EngineErrorKind::ShuttingDown));
            is_down.then_some(ReplicaFailure::EngineDown { replica })
        }
        _ => None,
    }
}

/// Whether the engine gave the request up when it was told to stop: vLLM's answer then ends where it was, with 200. The
/// words cannot stand in a model's text, where their quotes would be escaped.
fn is_aborted(answer: &WholeAnswer) -> bool {
    static WORDS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(br#""finish_reason":"abort""#));
    answer.head.status.is_success() && WORDS.find(&answer.body).is_some()
}

fn is_event_stream(head: &response::Parts) -> bool {
    head.headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|v| v.as_bytes().get(..17).is_some_and(|v| v.eq_ignore_ascii_case(b"text/event-stream")))
}

/// Answers up to here are held until they are whole, so that a truncated one can be retried.
const MAX_HELD: usize = 1 << 20;
