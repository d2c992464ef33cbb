//! A body that is in memory: handed over in pieces, for as long as its client takes them.
//!
//! Over HTTP/2 a piece waits for its window, so an answer that nobody takes stays here: `client_stall` and `total` count
//! for it as for a stream. What it holds is charged to the memory of bodies where it is more than a piece.

use std::sync::Arc;

use bytes::Bytes;

use super::watch::StreamWatch;
use crate::observe::record_guard::RecordGuard;

/// The body of an answer of ours, or of a unary answer that was read whole.
#[derive(Debug)]
pub struct WholeBody {
    rest: Bytes,
    has_begun: bool,
    /// Reports when hyper lets go of the body.
    guard: Option<Box<RecordGuard>>,
    watch: Option<Arc<StreamWatch>>,
}

impl WholeBody {
    /// An answer of ours.
    pub fn new(bytes: Bytes, mut guard: Option<Box<RecordGuard>>) -> Self {
        if let Some(guard) = &mut guard {
            guard.captures(|capture| capture.bytes(&bytes));
        }
        Self { rest: bytes, has_begun: false, guard, watch: None }
    }

    /// The answer of an engine, while the watch waits for its client.
    pub fn watched(bytes: Bytes, mut guard: RecordGuard, watch: Arc<StreamWatch>) -> Self {
        guard.captures(|capture| capture.bytes(&bytes));
        Self { rest: bytes, has_begun: false, guard: Some(Box::new(guard)), watch: Some(watch) }
    }

    /// Its record.
    pub fn guard(&mut self) -> Option<&mut RecordGuard> {
        self.guard.as_deref_mut()
    }

    /// All of it, before the first piece is taken.
    pub fn bytes(&self) -> &Bytes {
        &self.rest
    }

    /// The next piece.
    pub(super) fn take(&mut self) -> Option<Bytes> {
        if self.rest.is_empty() {
            return None;
        }
        if self.has_begun
            && let (Some(watch), Some(guard)) = (&self.watch, &self.guard)
        {
            watch.waits_for_client(guard.clock().now());
        }
        self.has_begun = true;
        Some(self.rest.split_to(self.rest.len().min(PIECE)))
    }

    /// Bytes that were not taken yet.
    pub(super) fn left(&self) -> usize {
        self.rest.len()
    }
}

impl Drop for WholeBody {
    fn drop(&mut self) {
        let (Some(watch), Some(guard)) = (&self.watch, &mut self.guard) else { return };
        watch.close();
        // Untouched, it answers a HEAD.
        let has_left = self.has_begun && !self.rest.is_empty();
        match watch.expiry() {
            Some(expiry) => {
                let replica = guard.record().served().map(|served| Arc::clone(&served.replica));
                guard.cut_short(Some(&watch.failure(expiry, replica.unwrap_or_default())));
            }
            None if has_left => guard.not_taken(),
            None => {}
        }
    }
}

/// Bytes that hyper gets at once.
pub const PIECE: usize = 64 * 1024;
