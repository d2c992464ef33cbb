//! A request on its way out: the head that we wrote, and the pieces of its body.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::Request;
use smallvec::SmallVec;
use tokio::io::AsyncWrite;

use super::request_head::RequestHead;
use crate::request::pieces::Pieces;

/// A request as an engine gets it.
#[derive(Debug, Default)]
pub struct EngineRequest {
    /// Its line and fields.
    pub head: RequestHead,
    /// Written in as few calls as it has room for.
    pub body: Pieces,
}

impl From<Request<Bytes>> for EngineRequest {
    fn from(request: Request<Bytes>) -> Self {
        let (parts, body) = request.into_parts();
        let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
        let mut head = RequestHead::new(&parts.method, "", target);
        for (name, value) in &parts.headers {
            head.push(name, value.as_bytes());
        }
        Self { head, body: body.into() }
    }
}

/// What is not written yet.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    left: SmallVec<[Bytes; 4]>,
    /// Those before are written.
    next: usize,
    has_begun: bool,
}

impl Outgoing {
    pub(super) fn of(request: EngineRequest) -> Self {
        let mut left = SmallVec::new();
        left.push(request.head.into_bytes().into());
        left.extend(request.body.into_iter().filter(|piece| !piece.is_empty()));
        Self { left, next: 0, has_begun: false }
    }

    /// Whether all of it is written.
    pub(super) fn is_done(&self) -> bool {
        self.left.is_empty()
    }

    /// Whether the engine may have got any of it.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Writes what the socket takes, all that it can in one call.
    pub(super) fn poll_write<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while let Some(pieces) = self.left.get(self.next..).filter(|pieces| !pieces.is_empty()) {
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            slices.iter_mut().zip(pieces).for_each(|(slice, piece)| *slice = IoSlice::new(piece));
            let count = pieces.len().min(MAX_SLICES);
            let slices = slices.get(..count).unwrap_or_default();
            let written = ready!(Pin::new(&mut *stream).poll_write_vectored(cx, slices))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.has_begun = true;
            self.advance(written);
        }
        ready!(Pin::new(stream).poll_flush(cx))?;
        self.left.clear();
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, mut written: usize) {
        while let Some(piece) = self.left.get_mut(self.next) {
            if written < piece.len() {
                return piece.advance(written);
            }
            written -= piece.len();
            // Its memory is free as soon as it is written.
            *piece = Bytes::new();
            self.next += 1;
        }
    }
}

/// Pieces of one write.
const MAX_SLICES: usize = 8;
