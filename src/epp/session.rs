//! One stream of Envoy: one HTTP request and its answer.
//!
//! A [`Session`] is the stream of what Envoy is to do, polled by its HTTP/2 stream. Each poll reads what Envoy sent, lets the line
//! go on with it, and gives the next message. Everything of the request lives in here: where Envoy closes or resets the stream, at
//! any point, the session is dropped, and with it place, load and record of the request.

mod orders;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use http::{HeaderMap, Response, Uri};
use hyper::body::Body as _;
use tonic::codegen::tokio_stream::Stream;
use tonic::{Code, Status, Streaming};

use super::Warned;
use super::fields::{self, Head};
use super::metadata;
use super::proto::{
    BodySendMode, HttpBody, HttpHeaders, Order, ProcessingRequest, ProcessingResponse, ProtocolConfiguration,
    Seen,
};
use super::transfer::{Outgoing, Transfer};
use crate::error::{ErrorShape, Failure};
use crate::gateway::reply::{self, OwnAnswer};
use crate::gateway::{Gateway, IncomingRequest};
use crate::listener::KillSwitch;
use crate::relay::body::ReplyBody;
use crate::request::arriving::{ArrivingBody, Feed, fed};

/// A request of Envoy with its answer.
pub(super) struct Session {
    gateway: Arc<Gateway>,
    kill: KillSwitch,
    warned: Arc<Warned>,
    /// `None` once Envoy has no more to send.
    messages: Option<Streaming<ProcessingRequest>>,
    out: VecDeque<ProcessingResponse>,
    /// Ends the stream, after what is in `out`.
    failure: Option<Status>,
    modes: Modes,
    request: Half,
    /// Of the request, as Envoy has it.
    path: Uri,
    answer: Half,
    /// `None` before the request's head.
    transfer: Option<Arc<Transfer>>,
    line: Line,
}

/// How Envoy sends bodies.
#[derive(Clone, Copy, Debug)]
struct Modes {
    /// The request's body comes in one message, after its head was answered.
    is_buffered: bool,
    /// Each message with a part of the answer is let pass by the one that the line made of it; else at once, unchanged.
    is_duplex: bool,
}

/// One direction: what has come of it, and what was let pass.
#[derive(Debug, Default)]
struct Half {
    /// Fields as they came.
    headers: Option<HeaderMap>,
    /// For the line, while the body comes.
    feed: Option<Feed>,
    end: End,
    /// Its head was let pass.
    is_passed: bool,
}

/// How a direction ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum End {
    #[default]
    Open,
    /// With its head.
    Head,
    /// With its last piece.
    Body,
    Trailers,
}

/// The request in the line.
enum Line {
    /// Its head has not come.
    Unstarted,
    Answering(Pin<Box<dyn Future<Output = Response<ReplyBody>> + Send>>),
    Relaying(Box<ReplyBody>),
    Over,
}

impl Session {
    pub(super) fn new(
        gateway: Arc<Gateway>,
        messages: Streaming<ProcessingRequest>,
        kill: KillSwitch,
        warned: Arc<Warned>,
    ) -> Self {
        Self {
            gateway,
            kill,
            warned,
            messages: Some(messages),
            out: VecDeque::new(),
            failure: None,
            modes: Modes { is_buffered: false, is_duplex: true },
            request: Half::default(),
            path: Uri::default(),
            answer: Half::default(),
            transfer: None,
            line: Line::Unstarted,
        }
    }

    /// Reads one message, if there is room for it; whether anything happened.
    fn poll_messages(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(messages) =
            self.messages.as_mut().filter(|_| self.request.has_room() && self.answer.has_room())
        else {
            return false;
        };
        match Pin::new(messages).poll_next(cx) {
            Poll::Pending => return false,
            Poll::Ready(Some(Ok(message))) => {
                if let Err(status) = self.take(message) {
                    self.note_misconfigured(&status);
                    self.fail(status);
                }
            }
            Poll::Ready(Some(Err(status))) => {
                tracing::debug!(%status, "a stream of Envoy broke");
                self.broken(status);
            }
            // Its client left, or there is nothing more that Envoy would show.
            Poll::Ready(None) => self.give_up(),
        }
        true
    }

    /// A message that cannot be read, or a stream that broke. Ended properly, Envoy would let the request pass without a decision.
    fn broken(&mut self, status: Status) {
        let is_too_long = status.code() == Code::OutOfRange;
        match self.request.feed.take() {
            // The line refuses its body as it would one in pieces.
            Some(feed) if is_too_long && !self.request.is_sent() => {
                feed.overflow();
                self.messages = None;
            }
            // An answer that passes as it is does so without the picker too.
            _ if self.request.is_sent() && !self.modes.is_duplex => self.give_up(),
            _ => self.fail(status),
        }
    }

    fn note_misconfigured(&self, status: &Status) {
        let is_of_config = status.code() == Code::FailedPrecondition;
        if is_of_config && !self.warned.of_requests.swap(true, Ordering::Relaxed) {
            tracing::warn!("ext_proc is configured so that no request can be placed: {}", status.message());
        }
    }

    fn give_up(&mut self) {
        (self.messages, self.line) = (None, Line::Over);
    }

    fn fail(&mut self, status: Status) {
        self.give_up();
        self.failure = Some(status);
    }

    fn take(&mut self, message: ProcessingRequest) -> Result<(), Status> {
        if message.observability_mode {
            return Err(Status::failed_precondition("observability_mode hides the decision: turn it off"));
        }
        let ProcessingRequest { seen, metadata_context, protocol_config, .. } = message;
        let Some(seen) = seen else {
            return Err(Status::invalid_argument("a message that is neither head, body nor trailers"));
        };
        let is_first = matches!(self.line, Line::Unstarted);
        match seen {
            Seen::RequestHeaders(head) if is_first => {
                self.set_modes(protocol_config, head.end_of_stream)?;
                self.begin(head, metadata::subset_of(metadata_context.as_ref()));
            }
            Seen::RequestHeaders(_) => return Err(Status::invalid_argument("a second request head")),
            Seen::ResponseHeaders(head) if is_first => {
                // Of a filter before us, or Envoy itself, which refuses a request that is not ours to place.
                self.line = Line::Over;
                self.set_modes(protocol_config, true)?;
                self.answered(head, None)?;
            }
            _ if is_first => {
                return Err(Status::invalid_argument(
                    "the stream does not begin with a request head: set request_header_mode to SEND",
                ));
            }
            Seen::RequestBody(mut body) => {
                // Before trailers Envoy does not call it the end, and has them wait until it is answered.
                body.end_of_stream |= self.modes.is_buffered;
                self.request.fed(body);
            }
            Seen::RequestTrailers(_) => {
                self.request.ended(End::Trailers);
                if self.modes.is_buffered {
                    self.out.push_back(orders::trailers(Order::RequestTrailers));
                }
            }
            Seen::ResponseHeaders(head) => {
                self.answered(head, metadata::served(metadata_context.as_ref()))?;
            }
            Seen::ResponseBody(body) => self.answer_body(body),
            Seen::ResponseTrailers(_) => {
                self.answer.ended(End::Trailers);
                if !self.is_relayed() {
                    self.out.push_back(orders::trailers(Order::ResponseTrailers));
                }
            }
        }
        Ok(())
    }

    /// As the first message has them; without any they are the defaults. `is_whole`: no body follows the request's head.
    fn set_modes(&mut self, config: Option<ProtocolConfiguration>, is_whole: bool) -> Result<(), Status> {
        let Some(config) = config else { return Ok(()) };
        let (request, response) = (config.request_body_mode(), config.response_body_mode());
        self.modes = Modes {
            is_buffered: match request {
                BodySendMode::Streamed | BodySendMode::BufferedPartial => {
                    return Err(Status::failed_precondition(
                        "request_body_mode must be FULL_DUPLEX_STREAMED or BUFFERED: a decision needs the whole body",
                    ));
                }
                BodySendMode::Buffered => true,
                BodySendMode::Unsent if !is_whole => {
                    return Err(Status::failed_precondition(
                        "request_body_mode is NONE: it must be FULL_DUPLEX_STREAMED or BUFFERED, or no body comes to decide on",
                    ));
                }
                BodySendMode::Unsent | BodySendMode::FullDuplexStreamed => false,
            },
            is_duplex: response == BodySendMode::FullDuplexStreamed,
        };
        if response == BodySendMode::Unsent && !self.warned.of_answers.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "Envoy sends no answers to the endpoint picker: latencies and loads stay unknown; set response_body_mode to FULL_DUPLEX_STREAMED"
            );
        }
        Ok(())
    }

    /// Starts the line on a request's head.
    fn begin(&mut self, head: HttpHeaders, subset: Option<Box<[SocketAddr]>>) {
        let HttpHeaders { headers, end_of_stream } = head;
        let Some(head) = Head::read(headers) else { return self.refuse(&Failure::MalformedHead) };
        let (length, peer) = (head.length(), head.peer());
        self.request.headers = Some(head.headers.clone());
        let Some(parts) = head.into_request() else { return self.refuse(&Failure::MalformedHead) };
        self.path.clone_from(&parts.uri);
        let body = if end_of_stream {
            self.request.end = End::Head;
            None
        } else {
            let (feed, body) = fed(length);
            self.request.feed = Some(feed);
            Some(ArrivingBody::Fed(body))
        };
        if self.modes.is_buffered && !end_of_stream {
            self.request.is_passed = true;
            self.out.push_back(orders::unchanged(Order::RequestHeaders));
        }
        let transfer = Arc::new(Transfer::new(subset, self.modes.is_duplex));
        let (gateway, kill) = (Arc::clone(&self.gateway), Arc::clone(&self.kill));
        let incoming = IncomingRequest::carried(gateway, parts, body, kill, peer, Arc::clone(&transfer) as _);
        self.transfer = Some(transfer);
        self.line = Line::Answering(Box::pin(incoming.answer()));
    }

    /// Answers a request that no record can be made of.
    fn refuse(&mut self, failure: &Failure) {
        self.gateway.observer.metrics.families.requests.http_rejected.inc([failure.code()]);
        let (head, body) = reply::failure_bytes(failure, ErrorShape::OpenAi).into_parts();
        self.out.push_back(orders::immediate(head.status, &head.headers, body));
        self.line = Line::Over;
    }

    /// The head of an answer, and who gave it. One that the line does not wait for is Envoy's own, and passes: a request that
    /// was not sent until then is over.
    fn answered(&mut self, head: HttpHeaders, served: Option<SocketAddr>) -> Result<(), Status> {
        let HttpHeaders { headers, end_of_stream } = head;
        let Some(head) = Head::read(headers) else {
            return Err(Status::invalid_argument("the answer's head is malformed"));
        };
        let Some(status) = head.status else {
            return Err(Status::invalid_argument("the answer's head has no :status"));
        };
        let (feed, body) = fed(head.length());
        let mut response = Response::new(body);
        *response.status_mut() = status;
        response.headers_mut().clone_from(&head.headers);
        self.answer.headers = Some(head.headers);
        self.answer.feed = Some(feed);
        if end_of_stream {
            self.answer.ended(End::Head);
        }
        match &self.transfer {
            _ if self.is_undecided() => self.line = Line::Over,
            Some(transfer) if matches!(self.line, Line::Answering(_)) => transfer.arrived(response, served),
            _ => {}
        }
        if !self.is_relayed() {
            self.answer.is_passed = true;
            self.out.push_back(orders::unchanged(Order::ResponseHeaders));
        }
        Ok(())
    }

    fn answer_body(&mut self, body: HttpBody) {
        if !self.is_relayed() {
            // Over full duplex what is to pass is sent back; otherwise an empty message lets it pass.
            self.out.push_back(match self.modes.is_duplex {
                true => orders::response_body(body.clone()),
                false => orders::unchanged(Order::ResponseBody),
            });
        }
        self.answer.fed(body);
    }

    /// Whether the line has yet to place the request, or to refuse it.
    fn is_undecided(&self) -> bool {
        matches!(self.line, Line::Answering(_)) && !self.request.is_sent()
    }

    /// Whether the line gives what passes of the answer.
    fn is_relayed(&self) -> bool {
        self.modes.is_duplex && matches!(self.line, Line::Answering(_) | Line::Relaying(_))
    }

    /// Lets the line go on; whether anything happened.
    fn poll_line(&mut self, cx: &mut Context<'_>) -> bool {
        match &mut self.line {
            Line::Unstarted | Line::Over => false,
            Line::Answering(answering) => {
                let polled = answering.as_mut().poll(cx);
                let outgoing = self.transfer.as_ref().and_then(|transfer| transfer.take());
                let is_placed = outgoing.is_some();
                if let Some(outgoing) = outgoing {
                    self.send(outgoing);
                }
                match polled {
                    Poll::Ready(response) => {
                        self.settle(response);
                        true
                    }
                    Poll::Pending => is_placed,
                }
            }
            Line::Relaying(body) => {
                let Poll::Ready(frame) = Pin::new(&mut **body).poll_frame(cx) else { return false };
                let is_last = body.is_end_stream();
                match frame {
                    Some(Ok(frame)) => {
                        if let (true, Ok(data)) = (self.modes.is_duplex, frame.into_data()) {
                            let is_last = is_last && self.answer.end == End::Body;
                            self.out.extend(orders::pieces(data, is_last).map(orders::response_body));
                            if is_last {
                                self.line = Line::Over;
                            }
                        }
                    }
                    None => self.finish(),
                    Some(Err(_)) if self.modes.is_duplex => {
                        self.fail(Status::aborted("the answer broke off, or took too long"));
                    }
                    Some(Err(_)) => self.line = Line::Over,
                }
                true
            }
        }
    }

    /// Lets the request go to its destination.
    fn send(&mut self, outgoing: Outgoing) {
        let before = self.request.headers.take().unwrap_or_default();
        let (is_buffered, end) = (self.modes.is_buffered, self.request.end);
        self.out.extend(orders::destination(outgoing, &before, &self.path, is_buffered, end));
        self.request.is_passed = true;
        self.request.feed = None;
        if self.request.end == End::Open {
            // Refused above where it was not: the line has read it to its end.
            self.request.end = End::Body;
        }
    }

    /// The line has an answer.
    fn settle(&mut self, response: Response<ReplyBody>) {
        let is_own = !self.request.is_sent() || response.extensions().get::<OwnAnswer>().is_some();
        let (head, body) = response.into_parts();
        if is_own && !self.answer.is_passed {
            if let ReplyBody::Whole(whole) = &body {
                self.out.push_back(orders::immediate(head.status, &head.headers, whole.bytes().clone()));
            }
            self.line = Line::Over;
            return;
        }
        if self.modes.is_duplex && !std::mem::replace(&mut self.answer.is_passed, true) {
            let before = self.answer.headers.take().unwrap_or_default();
            self.out.push_back(orders::response_head(fields::changes(&before, &head.headers, false)));
        }
        self.line = Line::Relaying(Box::new(body));
    }

    /// The answer was relayed to its end.
    fn finish(&mut self) {
        self.line = Line::Over;
        if !self.modes.is_duplex {
            return;
        }
        match self.answer.end {
            End::Head => {}
            End::Trailers => self.out.push_back(orders::trailers(Order::ResponseTrailers)),
            End::Open | End::Body => {
                self.out.extend(orders::pieces(bytes::Bytes::new(), true).map(orders::response_body));
            }
        }
    }
}

impl Half {
    fn fed(&mut self, body: HttpBody) {
        let HttpBody { body, end_of_stream } = body;
        if let Some(feed) = &self.feed {
            feed.push(body);
        }
        if end_of_stream {
            self.ended(End::Body);
        }
    }

    fn ended(&mut self, end: End) {
        self.end = end;
        if let Some(feed) = self.feed.take() {
            feed.end();
        }
    }

    fn has_room(&self) -> bool {
        self.feed.as_ref().is_none_or(|feed| feed.unread() < MAX_UNREAD)
    }

    /// Of the request: whether it was let go.
    fn is_sent(&self) -> bool {
        self.headers.is_none()
    }
}

impl Stream for Session {
    type Item = Result<ProcessingResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(message) = this.out.pop_front() {
                return Poll::Ready(Some(Ok(message)));
            }
            if let Some(status) = this.failure.take() {
                return Poll::Ready(Some(Err(status)));
            }
            let had_room = this.request.has_room() && this.answer.has_room();
            let has_read = this.poll_messages(cx);
            let has_gone_on = this.poll_line(cx);
            // What the line has read makes room, which wakes no task.
            let has_room = this.request.has_room() && this.answer.has_room();
            if has_read || has_gone_on || has_room && !had_room || !this.out.is_empty() {
                continue;
            }
            return match (&this.messages, &this.line) {
                (None, Line::Over | Line::Unstarted) if this.failure.is_none() => Poll::Ready(None),
                _ => Poll::Pending,
            };
        }
    }
}

/// Bytes of a body that the line has not read, from which on Envoy is not read.
const MAX_UNREAD: usize = 256 * 1024;
