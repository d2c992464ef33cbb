//! A body as it arrives: read from a connection of ours, or fed piece by piece by a proxy that has the connection.
//!
//! Feeder and reader of a fed body live in one task, which takes turns: nothing here waits for memory. The feeder asks how
//! much is not read yet, and stops reading its own source.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use thiserror::Error;

/// The body of a client's request.
#[derive(Debug)]
pub enum ArrivingBody {
    /// Over a connection of ours.
    Http(Incoming),
    /// Fed by a proxy.
    Fed(FedBody),
}

/// Why a body ended before its end.
#[derive(Debug, Error)]
pub enum BrokenBody {
    /// Its connection broke, or its framing is wrong.
    #[error(transparent)]
    Http(#[from] hyper::Error),
    /// Its feeder is gone.
    #[error("the proxy gave the request up")]
    Left,
    /// A piece is longer than a whole body may be.
    #[error("the proxy sent more than a body may have")]
    TooLarge,
}

impl Body for ArrivingBody {
    type Data = Bytes;
    type Error = BrokenBody;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenBody>>> {
        match self.get_mut() {
            Self::Http(body) => {
                Pin::new(body).poll_frame(cx).map(|frame| frame.map(|frame| frame.map_err(Into::into)))
            }
            Self::Fed(body) => body.poll(cx).map(|piece| piece.map(|piece| piece.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http(body) => body.is_end_stream(),
            Self::Fed(body) => body.is_over(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http(body) => body.size_hint(),
            Self::Fed(body) => body.length().map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}

/// The reading end of a fed body, with the length that its head gives.
#[derive(Debug)]
pub struct FedBody(Arc<Mutex<Pipe>>, Option<u64>);

/// The feeding end. Dropped before [`Feed::end`] it breaks the body.
#[derive(Debug)]
pub struct Feed(Arc<Mutex<Pipe>>);

#[derive(Debug, Default)]
struct Pipe {
    pieces: VecDeque<Bytes>,
    unread: usize,
    has_ended: bool,
    is_broken: bool,
    is_too_large: bool,
    has_reader: bool,
    waker: Option<Waker>,
}

impl Pipe {
    fn is_over(&self) -> bool {
        self.has_ended && self.pieces.is_empty()
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Both ends of a body whose head declares `length`.
pub fn fed(length: Option<u64>) -> (Feed, FedBody) {
    let pipe = Arc::new(Mutex::new(Pipe { has_reader: true, ..Pipe::default() }));
    (Feed(Arc::clone(&pipe)), FedBody(pipe, length))
}

impl Feed {
    /// Adds a piece; thrown away where nothing reads it any more.
    pub fn push(&self, piece: Bytes) {
        let mut pipe = self.0.lock();
        if piece.is_empty() || !pipe.has_reader {
            return;
        }
        pipe.unread += piece.len();
        pipe.pieces.push_back(piece);
        pipe.wake();
    }

    /// The body is complete.
    pub fn end(&self) {
        let mut pipe = self.0.lock();
        pipe.has_ended = true;
        pipe.wake();
    }

    /// A piece came that is longer than a whole body may be, and was not read.
    pub fn overflow(self) {
        self.0.lock().is_too_large = true;
    }

    /// Bytes that were not read yet.
    pub fn unread(&self) -> usize {
        self.0.lock().unread
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        let mut pipe = self.0.lock();
        pipe.is_broken = !pipe.has_ended;
        pipe.wake();
    }
}

impl FedBody {
    /// Whether all of it came and was read.
    pub fn is_over(&self) -> bool {
        self.0.lock().is_over()
    }

    /// As its head declares.
    pub fn length(&self) -> Option<u64> {
        self.1
    }

    /// The next piece; `None` at the end.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BrokenBody>>> {
        let mut pipe = self.0.lock();
        if let Some(piece) = pipe.pieces.pop_front() {
            pipe.unread -= piece.len();
            return Poll::Ready(Some(Ok(piece)));
        }
        if pipe.has_ended {
            return Poll::Ready(None);
        }
        if pipe.is_broken {
            let why = if pipe.is_too_large { BrokenBody::TooLarge } else { BrokenBody::Left };
            return Poll::Ready(Some(Err(why)));
        }
        pipe.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for FedBody {
    fn drop(&mut self) {
        let mut pipe = self.0.lock();
        (pipe.has_reader, pipe.unread) = (false, 0);
        pipe.pieces.clear();
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn a_fed_body_comes_in_order_and_ends_as_its_feeder_does() {
        for is_complete in [true, false] {
            let (feed, body) = fed(Some(3));
            let mut body = ArrivingBody::Fed(body);
            assert_eq!(body.size_hint().exact(), Some(3));
            for piece in ["a", "", "bc"] {
                feed.push(Bytes::from_static(piece.as_bytes()));
            }
            assert_eq!(feed.unread(), 3);
            if is_complete {
                feed.end();
            }
            drop(feed);
            let mut read = Vec::new();
            while let Some(Ok(frame)) = body.frame().await {
                read.extend_from_slice(frame.data_ref().unwrap());
            }
            assert_eq!(read, b"abc");
            assert_eq!(body.is_end_stream(), is_complete);
            assert_eq!(body.frame().await.is_none(), is_complete);
        }
    }

    #[test]
    fn what_nothing_reads_is_not_kept() {
        let (feed, body) = fed(None);
        feed.push(Bytes::from_static(b"before"));
        drop(body);
        feed.push(Bytes::from_static(b"after"));
        assert_eq!(feed.unread(), 0);
    }
}
