//! One connection: a request at a time, and the answer's body as it is read.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use http::{StatusCode, response};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::either::Either;
use tokio_util::io::poll_read_buf;

use super::answer_head;
use super::error::{AskError, BodyError};
use super::framing::{self, Decoded, Framing};
use super::outgoing::{EngineRequest, Outgoing};
use crate::upstream::socket::Stream;

/// An open connection; dropped it is closed.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    /// Read, and not taken.
    read: BytesMut,
    /// Bytes that the next read makes room for.
    room: usize,
    framing: Framing,
    outgoing: Outgoing,
    /// Nothing more can be written: the engine closed its half. What it answered can be read still.
    is_write_closed: bool,
    /// Whether it outlives the answer.
    keeps_open: bool,
    has_answered: bool,
}

impl Connection {
    /// On a socket that nothing was sent on.
    pub fn new(stream: Stream) -> Self {
        Self {
            stream,
            read: BytesMut::new(),
            room: MIN_READ,
            framing: Framing::Ended,
            outgoing: Outgoing::default(),
            is_write_closed: false,
            keeps_open: true,
            has_answered: false,
        }
    }

    /// Whether nothing of the last exchange is left, so that the next request may follow.
    pub fn is_reusable(&self) -> bool {
        self.keeps_open && self.framing == Framing::Ended && self.outgoing.is_done() && self.read.is_empty()
    }

    /// Whether it had a request that was answered: the engine may be closing it at any moment since, whatever it keeps connections for.
    pub fn has_answered(&self) -> bool {
        self.has_answered
    }

    /// Whether a reusable connection is still open, and the engine sent nothing unasked.
    pub fn is_alive(&mut self) -> bool {
        let mut byte = [0];
        let mut nothing = Context::from_waker(Waker::noop());
        Pin::new(&mut self.stream).poll_read(&mut nothing, &mut ReadBuf::new(&mut byte)).is_pending()
    }

    /// Sends a request and waits for the head of its answer; 1xx are skipped, but for 101. Dropped in between, the connection is of no
    /// further use.
    ///
    /// # Errors
    /// [`AskError`]
    pub async fn ask(&mut self, request: EngineRequest) -> Result<response::Parts, AskError> {
        let is_bodiless = request.head.is_head();
        self.outgoing = Outgoing::of(request);
        (self.keeps_open, self.room) = (false, MIN_READ);
        poll_fn(|cx| self.poll_head(is_bodiless, cx)).await
    }

    fn poll_head(
        &mut self,
        is_bodiless: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<response::Parts, AskError>> {
        self.drive_request(cx);
        loop {
            match answer_head::take(&mut self.read)? {
                Some(head) if is_interim(head.status) => continue,
                Some(mut head) => {
                    self.has_answered = true;
                    let length = framing::tidy_length(&mut head).map_err(|_| AskError::InvalidHead)?;
                    self.framing =
                        Framing::of(&head, length, is_bodiless).map_err(|_| AskError::InvalidHead)?;
                    self.keeps_open = answer_head::keeps_open(&head)
                        && self.framing != Framing::ToClose
                        && head.status != StatusCode::SWITCHING_PROTOCOLS;
                    return Poll::Ready(Ok(head));
                }
                None => {}
            }
            let error = match ready!(self.poll_fill(cx)) {
                Ok(1..) => continue,
                // The words of TLS: a server refuses a certificate only after the handshake.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => AskError::Tls(error),
                _ if !self.outgoing.has_begun() => AskError::Unsent,
                _ if self.read.is_empty() => AskError::Closed,
                _ => AskError::Truncated,
            };
            return Poll::Ready(Err(error));
        }
    }

    /// The next bytes of the answer's body; `None` at its end. What is left of the request is written meanwhile.
    #[inline]
    pub fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        self.drive_request(cx);
        loop {
            match self.framing.decode(&mut self.read) {
                Ok(Decoded::Data(data)) => return Poll::Ready(Some(Ok(data))),
                Ok(Decoded::End) => return Poll::Ready(None),
                Ok(Decoded::Nothing) => {}
                Err(malformed) => return Poll::Ready(Some(Err(malformed.into()))),
            }
            match ready!(self.poll_fill(cx)) {
                Ok(1..) => {}
                Ok(0) if self.framing == Framing::ToClose => self.framing = Framing::Ended,
                Ok(0) => return Poll::Ready(Some(Err(BodyError::Truncated))),
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            }
        }
    }

    /// The rest of the body, at most `max` bytes of it.
    ///
    /// # Errors
    /// [`BodyError`], also where it has more.
    pub async fn read_body(&mut self, max: usize) -> Result<Bytes, BodyError> {
        let mut whole = BytesMut::new();
        while let Some(data) = poll_fn(|cx| self.poll_body(cx)).await {
            let data = data?;
            if whole.len() + data.len() > max {
                return Err(BodyError::TooLarge);
            }
            if whole.is_empty() && self.is_end() {
                return Ok(data);
            }
            whole.extend_from_slice(&data);
        }
        Ok(whole.freeze())
    }

    /// Whether the body is read to its end.
    pub fn is_end(&self) -> bool {
        self.framing == Framing::Ended
    }

    /// Bytes of the body that are not read, where its head has their number.
    pub fn left(&self) -> Option<u64> {
        match self.framing {
            Framing::Ended => Some(0),
            Framing::Length(left) => Some(left),
            _ => None,
        }
    }

    fn drive_request(&mut self, cx: &mut Context<'_>) {
        if !self.outgoing.is_done()
            && !self.is_write_closed
            && let Poll::Ready(Err(_)) = self.outgoing.poll_write(&mut self.stream, cx)
        {
            // An engine that refuses a request by its head answers and closes; the answer counts (RFC 9112 §9.5).
            self.is_write_closed = true;
        }
    }

    /// Reads what the socket has. New room for it is made only then, so that a stream which waits holds no more than it needs.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.spare() < self.room / 4 {
            if let Either::Left(socket) = &self.stream {
                ready!(socket.poll_read_ready(cx))?;
            }
            self.read.reserve(self.room);
        }
        let spare = self.spare();
        let count = ready!(poll_read_buf(Pin::new(&mut self.stream), cx, &mut self.read))?;
        if count == spare {
            self.room = (self.room * 2).min(MAX_READ);
        }
        Poll::Ready(Ok(count))
    }

    fn spare(&self) -> usize {
        self.read.capacity() - self.read.len()
    }
}

/// What was switched to, from here on: the bytes as they come.
impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.read.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, into);
        }
        let len = self.read.len().min(into.remaining());
        into.put_slice(&self.read.split_to(len));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

fn is_interim(status: StatusCode) -> bool {
    status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS
}

/// Bytes that a read has room for at first: some events of a stream.
const MIN_READ: usize = 2 * 1024;
/// And at most, where reads fill it.
const MAX_READ: usize = 64 * 1024;
