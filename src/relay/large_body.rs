//! A unary answer too large to be held: relayed as it comes, and aborted if it breaks off.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::body::{Body, Frame};

use super::aborting::Aborted;
use super::watch::{Expiry, StreamWatch};
use crate::error::{Failure, Timer};
use crate::fleet::pick::Pick;
use crate::observe::record_guard::RecordGuard;
use crate::record::Outcome;
use crate::upstream::pool::Lease;

/// The body of a large unary answer.
#[derive(Debug)]
pub struct LargeBody {
    first: Option<Bytes>,
    rest: Incoming,
    lease: Option<Lease>,
    guard: RecordGuard,
    watch: Arc<StreamWatch>,
    pick: Box<Pick>,
}

impl LargeBody {
    /// What was read already, the rest with its connection, and what lives as long as the answer.
    #[must_use]
    pub fn new(
        first: Bytes,
        rest: Incoming,
        lease: Lease,
        guard: RecordGuard,
        watch: Arc<StreamWatch>,
        pick: Box<Pick>,
    ) -> Self {
        Self {
            first: Some(first).filter(|bytes| !bytes.is_empty()),
            rest,
            lease: Some(lease),
            guard,
            watch,
            pick,
        }
    }

    /// Polled by hyper: the next frame, the end, or the abort.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Aborted>>> {
        self.watch.waits_for_replica();
        if let Some(first) = self.first.take() {
            return self.hand(first);
        }
        if let Poll::Ready(expiry) = self.watch.poll_expiry(cx) {
            let failure = match expiry {
                Expiry::Deadline(Timer::ClientStall) => {
                    return self.abort(Outcome::Canceled, "timeout_client_stall");
                }
                Expiry::Deadline(_) => "timeout_total",
                Expiry::ReplicaSilent => "replica_failed",
                Expiry::DrainOver => Failure::DrainCut.code(),
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
        self.guard.record().bytes_out += data.len() as u64;
        let now = self.guard.clock().now();
        self.watch.restart_silence(now);
        self.watch.waits_for_client(now);
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn complete(&mut self) -> Poll<Option<Result<Frame<Bytes>, Aborted>>> {
        self.guard.settle(Outcome::Ok, None);
        self.pick.answered(self.guard.clock().now());
        if let Some(lease) = self.lease.take() {
            lease.give_back();
        }
        Poll::Ready(None)
    }

    fn abort(&mut self, outcome: Outcome, code: &'static str) -> Poll<Option<Result<Frame<Bytes>, Aborted>>> {
        self.guard.settle(outcome, Some(code));
        self.lease = None;
        Poll::Ready(Some(Err(Aborted)))
    }
}

impl Drop for LargeBody {
    fn drop(&mut self) {
        self.watch.close();
    }
}
