//! A unary answer too large to be held: relayed as it comes, and aborted if it breaks off.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::body::Incoming;

use super::body::Aborted;
use super::watch::{Verdict, Watch};
use crate::error::{Failure, Timer};
use crate::fleet::pick::Pick;
use crate::observe::record_guard::RecordGuard;
use crate::record::Outcome;
use crate::upstream::pool::Lease;

/// The rest of a large answer.
#[derive(Debug)]
pub struct LargeBody {
    first: Option<Bytes>,
    rest: Incoming,
    lease: Option<Lease>,
    journal: RecordGuard,
    watch: Arc<Watch>,
    pick: Box<Pick>,
}

impl LargeBody {
    /// What was read already, the rest with its connection, and what lives as long as the answer.
    #[must_use]
    pub fn new(
        first: Bytes,
        (rest, lease): (Incoming, Lease),
        journal: RecordGuard,
        watch: Arc<Watch>,
        pick: Box<Pick>,
    ) -> Self {
        Self { first: Some(first), rest, lease: Some(lease), journal, watch, pick }
    }

    /// The next frame.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Aborted>>> {
        self.watch.waits();
        if let Some(first) = self.first.take() {
            return self.hand(first);
        }
        if let Poll::Ready(verdict) = self.watch.poll_verdict(cx) {
            let failure = match verdict {
                Verdict::Deadline(Timer::ClientStall) => {
                    return self.abort(Outcome::Canceled, "timeout_client_stall");
                }
                Verdict::Deadline(_) => "timeout_total",
                Verdict::ReplicaSilent => "replica_failed",
                Verdict::DrainOver => Failure::DrainCut.code(),
            };
            return self.abort(Outcome::Failed, failure);
        }
        loop {
            match Pin::new(&mut self.rest).poll_frame(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return self.complete(),
                Poll::Ready(Some(Err(_))) => return self.abort(Outcome::Failed, "replica_failed"),
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        return self.hand(data);
                    }
                }
            }
        }
    }

    fn hand(&mut self, data: Bytes) -> Poll<Option<Result<Frame<Bytes>, Aborted>>> {
        self.journal.record().bytes_out += data.len() as u64;
        let now = self.journal.clock().now();
        self.watch.moved(now);
        self.watch.handed(now);
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn complete(&mut self) -> Poll<Option<Result<Frame<Bytes>, Aborted>>> {
        self.journal.settle(Outcome::Ok, None);
        self.pick.answered(self.journal.clock().now());
        if let Some(lease) = self.lease.take() {
            lease.give_back();
        }
        Poll::Ready(None)
    }

    fn abort(&mut self, outcome: Outcome, code: &'static str) -> Poll<Option<Result<Frame<Bytes>, Aborted>>> {
        self.journal.settle(outcome, Some(code));
        self.lease = None;
        Poll::Ready(Some(Err(Aborted)))
    }
}

impl Drop for LargeBody {
    fn drop(&mut self) {
        self.watch.is_done();
    }
}
